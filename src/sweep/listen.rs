//! What a tick hears after its sweep, while it keeps subscriptions open: each message is dealt with at once, as the sweep
//! deals with those that it finds, and worked while others are heard.
//!
//! ```text
//! a subscription per relay ─▶ open what is new, make it durable ─▶ work, or queue
//! ```
//!
//! Nothing depends on it: what it misses, or does not come to, the next sweep finds; and what it heard, the next sweep
//! meets as work that somebody has.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use nostr::prelude::{Event, EventId, Filter, PublicKey, RelayUrl, Timestamp};
use serde::Serialize;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;

use super::door::Door;
use super::ledger::Known;
use super::plan::look_back_secs;
use super::questions::Question;
use super::read::Inbox;
use super::settle::{self, End};
use super::subscriptions::Subscriptions;
use crate::app::App;
use crate::clock::Deadline;
use crate::guests::Counters;
use crate::handler::{self, CONVERSATIONS_AT_ONCE};
use crate::load::Stored;
use crate::outcome::Worked;
use crate::relay::RelayError;
use crate::relay::listen::{Ear, Heard, MAX_STORED, listen};
use crate::trigger::Trigger;

/// How long a run must still have when it begins with what was heard last.
const RUN_TIME: Duration = Duration::from_secs(30);

/// How many events, and how many messages to be worked, wait for their turn. Then the sockets wait.
const MAX_WAITING: usize = 64;

/// What a listener needs to know of the sweep before it.
#[derive(Debug)]
pub(crate) struct Ears {
    /// Whom to listen to.
    pub(super) inboxes: Vec<Inbox>,
    /// Those of them that also showed what the skills subscribe to.
    pub(super) subscribed: HashSet<RelayUrl>,
    /// Ids that were dealt with.
    pub(super) known: Known,
    /// Ids that the sweep met, and may have left for the next one.
    pub(super) met: HashSet<EventId>,
    /// The agent's state.
    pub(super) stored: Stored,
    /// What the skills subscribe to.
    pub(super) subscriptions: Subscriptions,
    /// What guests have had, with what the sweep stored of theirs.
    pub(super) counters: Counters,
    /// When this agent first swept.
    pub(super) start_at: u64,
}

/// What was heard, for the operator.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Events that nobody knew.
    events: usize,
    /// Messages among them that are work.
    work: usize,
    /// Relays that were not heard all the time, and why.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    failures: BTreeMap<String, String>,
}

/// Until when an invocation listens that shall do so until `wanted`: what it heard last must still be worked. `None` where
/// it has not the time.
pub(crate) fn until(wanted: Instant, deadline: Deadline) -> Option<Instant> {
    let latest = deadline.work_until().checked_sub(RUN_TIME)?;
    Some(wanted.min(latest)).filter(|until| *until > Instant::now())
}

/// Listens until `until` or until `stop` is over, and then ends the work that it began.
pub(crate) async fn run(
    app: &App,
    ears: Ears,
    deadline: Deadline,
    until: Instant,
    stop: impl Future<Output = ()>,
) -> (Report, Vec<Worked>) {
    let (ear, heard) = mpsc::channel(MAX_WAITING);
    let (begin, work) = mpsc::channel(MAX_WAITING);
    let (inboxes, subscribed) = (ears.inboxes.clone(), ears.subscribed.clone());
    let questions = ears.subscriptions.questions().to_vec();
    tracing::info!(relays = inboxes.len(), "the tick listens");
    let subscribed = async move {
        tokio::select! {
            () = subscribe_all(app, &inboxes, (&subscribed, &questions), &ear, until) => {}
            () = stop => {}
        }
    };
    // Boxed: side by side they are one future, which a thread's stack must hold.
    let ((), report, results) = tokio::join!(
        Box::pin(subscribed),
        Box::pin(deal_with_all(app, ears, heard, begin, deadline)),
        Box::pin(work_all(app, work, deadline))
    );
    (report, results)
}

/// The `questions` of the skills go to the relays that are `subscribed` alone: others would refuse the messages with them.
async fn subscribe_all(
    app: &App,
    inboxes: &[Inbox],
    (subscribed, questions): (&HashSet<RelayUrl>, &[Question]),
    ear: &Ear,
    until: Instant,
) {
    let agent = app.agent();
    join_all(inboxes.iter().map(async |inbox| {
        let questions = if subscribed.contains(&inbox.target.url) { questions } else { &[] };
        let filters = |cuts| {
            let since = app.clock.now() - look_back_secs(cuts);
            let of_skills = questions
                .iter()
                .map(|question| question.filter.clone().since(since.max(question.since)).limit(MAX_STORED));
            std::iter::once(filter(inbox, agent, since)).chain(of_skills).collect()
        };
        listen(app.relays.as_ref(), &inbox.target, filters, ear, until).await;
    }))
    .await;
}

fn filter(inbox: &Inbox, agent: PublicKey, since: Timestamp) -> Filter {
    Filter::new().kinds(inbox.incoming()).pubkey(agent).since(since).limit(MAX_STORED)
}

/// Makes durable what is heard, as many at once as have come, and hands on what is to be worked.
async fn deal_with_all(
    app: &App,
    ears: Ears,
    mut heard: Receiver<(RelayUrl, Heard)>,
    begin: Sender<Trigger>,
    deadline: Deadline,
) -> Report {
    let (mut report, mut met, mut counters) = (Report::default(), ears.met.clone(), ears.counters.clone());
    let Ears { stored, subscriptions, start_at, .. } = &ears;
    let door = Door { app, stored, subscriptions: Some(subscriptions), start_at: *start_at };
    let mut said = Vec::new();
    while heard.recv_many(&mut said, MAX_WAITING).await > 0 {
        let mut new: Vec<(RelayUrl, Event)> = Vec::new();
        for (relay, heard) in said.drain(..) {
            match heard {
                Heard::Event(event) if !met.contains(&event.id) && !ears.known.contains(&event.id) => {
                    new.push((relay, *event));
                }
                Heard::Event(_) | Heard::EndOfStored => {}
                Heard::MayWithhold(error) | Heard::Broken(error) => report.failed(&relay, &error),
            }
        }
        let settled = settle::heard(door, &new, counters, deadline).await;
        counters = settled.counters;
        // A forged event does not hide the real one that bears its id.
        met.extend(settled.ends.iter().filter(|(_, end)| **end == End::Dealt).map(|(id, _)| *id));
        report.events += settled.ends.len();
        report.work += settled.triggers.len();
        for trigger in settled.triggers {
            // Whoever works them lives as long as this does.
            let _ = begin.send(trigger).await;
        }
    }
    report
}

impl Report {
    fn failed(&mut self, relay: &RelayUrl, error: &RelayError) {
        if self.failures.insert(relay.to_string(), error.to_string()).is_none() {
            tracing::warn!(relay.url = %relay, %error, "a relay is not heard");
        }
    }
}

/// Works what is to be worked: conversations side by side, and of those that it heard the messages of one after another.
async fn work_all(app: &App, mut work: Receiver<Trigger>, deadline: Deadline) -> Vec<Worked> {
    let mut results = Vec::new();
    // The conversations, and kinds of others, that are being worked, each with what waits in it.
    let mut waiting: BTreeMap<_, VecDeque<Trigger>> = BTreeMap::new();
    let mut running = FuturesUnordered::new();
    let mut is_open = true;
    let begin = async |trigger: Trigger| (trigger.queue_of(), handler::begin(app, trigger, deadline).await);
    while is_open || !running.is_empty() {
        tokio::select! {
            trigger = work.recv(), if is_open && running.len() < CONVERSATIONS_AT_ONCE => match trigger {
                Some(trigger) => match waiting.get_mut(&trigger.queue_of()) {
                    Some(waiting) => waiting.push_back(trigger),
                    None => {
                        waiting.insert(trigger.queue_of(), VecDeque::new());
                        running.push(begin(trigger));
                    }
                },
                None => is_open = false,
            },
            Some((queue, worked)) = running.next() => {
                results.push(worked);
                match waiting.get_mut(&queue).and_then(VecDeque::pop_front) {
                    Some(trigger) => running.push(begin(trigger)),
                    None => drop(waiting.remove(&queue)),
                }
            }
        }
    }
    results
}
