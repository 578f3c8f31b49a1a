//! What becomes of the messages that the relays showed: each is opened, and what it asks for is made durable, before its
//! id counts as dealt with.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use futures_util::StreamExt;
use nostr::prelude::{Event, EventId, PublicKey, RelayUrl};
use tokio::time::Instant;

use super::door::Door;
use super::ledger::{BEFORE_START_SECS, Ledger};
use super::read::Heard;
use crate::app::App;
use crate::clock::Deadline;
use crate::dm::Opened;
use crate::error::Error;
use crate::handler::{QUEUE_GRACE, due_after, keep_message};
use crate::heed::Refusal;
use crate::history::{self, StoredMessage};
use crate::inbox::{self, Inbound, MAX_AHEAD, Rejection, Swept};
use crate::record::{self, RunRecord};
use crate::store::{Range, keys};
use crate::trigger::{Tier, Trigger};

/// How many are made durable at the same time.
const AT_ONCE: usize = 8;

/// The most that are opened alone in one tick.
const MAX_ALONE: usize = 50;

/// The most that are opened together: their ids are one row.
const MAX_BATCH: usize = 1000;

/// How often an event may be alone without an outcome.
const MAX_LONELY_DEATHS: u32 = 2;

/// Opening is work for the processor: after so many others get their turn.
const OPENED_PER_TURN: usize = 16;

/// The most messages of a conversation that are looked through for an answer.
const MAX_LOOKED_THROUGH: usize = 60;

/// A message, with every copy that differs: a relay may show a forged one under its id.
#[derive(Debug)]
struct Candidate {
    id: EventId,
    at: u64,
    copies: Vec<(RelayUrl, Event)>,
}

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It is genuine, and what it asks for is durable: it need not be looked at again.
    Dealt,
    /// It is no message of anybody, or not decided yet. It may be shown again.
    Left,
    /// It could not be dealt with: the relays that showed it are read here again.
    Open,
}

/// What became of all messages of a tick.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Each by its id.
    pub(crate) ends: HashMap<EventId, End>,
    /// The work among them that is stored and that nobody has begun.
    pub(crate) triggers: Vec<Trigger>,
    /// Messages that went into the history alone.
    pub(crate) kept: usize,
    /// Events that were given up: opening them ended the process.
    pub(crate) quarantined: Vec<EventId>,
    /// Those that are still to be opened alone.
    pub(crate) rest: Vec<EventId>,
    /// How often each of these was.
    pub(crate) alone: BTreeMap<EventId, u32>,
}

/// Deals with the messages that `heard` has. One that could not be dealt with by `until` is left open. `was_settled` says
/// whether an earlier sweep found all that there is from before the start.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable before anything was opened.
pub(crate) async fn settle(
    app: &App,
    door: &Door<'_>,
    ledger: &mut Ledger,
    heard: &[Heard],
    was_settled: bool,
    deadline: Deadline,
    until: Instant,
) -> Result<Settled, Error> {
    let is_settled = ledger.cursors.settled_at.is_some();
    let batch = ledger.batch.clone().unwrap_or_default();
    let suspects: HashSet<EventId> = batch.ids.iter().copied().collect();
    let (mut suspected, others): (Vec<_>, Vec<_>) =
        candidates(heard).into_iter().partition(|candidate| suspects.contains(&candidate.id));
    let mut settled = Settled { alone: batch.alone, ..Settled::default() };
    let desk = Desk { app, door, deadline, until, start_at: ledger.cursors.start_at };

    // Those that were never alone first: the one that ends the process shall not hold up its neighbours.
    suspected.sort_by_key(|candidate| settled.alone.get(&candidate.id).copied().unwrap_or_default());
    let mut left: Vec<EventId> = suspected.iter().map(|candidate| candidate.id).collect();
    for (number, candidate) in suspected.iter().enumerate() {
        let deaths = settled.alone.entry(candidate.id).or_default();
        if *deaths >= MAX_LONELY_DEATHS {
            desk.quarantine(candidate, &mut settled).await;
        } else if number >= MAX_ALONE || Instant::now() >= until {
            settled.ends.insert(candidate.id, End::Open);
            continue;
        } else {
            *deaths += 1;
            ledger.note_batch(app, &left, &settled.alone).await?;
            desk.deal(std::slice::from_ref(candidate), was_settled, &mut settled).await;
        }
        settled.alone.remove(&candidate.id);
        left.retain(|id| *id != candidate.id);
    }
    // Of several batches none sees the agent's own messages in the others: what these decide is decided by the next sweep.
    let is_settled = was_settled || (is_settled && others.len() <= MAX_BATCH);
    for batch in others.chunks(MAX_BATCH) {
        let ids: Vec<EventId> =
            left.iter().copied().chain(batch.iter().map(|candidate| candidate.id)).collect();
        ledger.note_batch(app, &ids, &settled.alone).await?;
        desk.deal(batch, is_settled, &mut settled).await;
    }
    settled.rest = left;
    Ok(settled)
}

/// The messages of all relays, each once, the oldest first.
fn candidates(heard: &[Heard]) -> Vec<Candidate> {
    let mut by_id: BTreeMap<EventId, Candidate> = BTreeMap::new();
    for relay in heard {
        for event in &relay.messages {
            let candidate = by_id.entry(event.id).or_insert_with(|| Candidate {
                id: event.id,
                at: event.created_at.as_secs(),
                copies: Vec::new(),
            });
            if !candidate.copies.iter().any(|(_, copy)| copy == event) {
                candidate.copies.push((relay.url.clone(), event.clone()));
            }
        }
    }
    let mut candidates: Vec<Candidate> = by_id.into_values().collect();
    candidates.sort_by_key(|candidate| (candidate.at, candidate.id));
    candidates
}

/// What dealing with messages needs.
struct Desk<'a> {
    app: &'a App,
    door: &'a Door<'a>,
    deadline: Deadline,
    until: Instant,
    start_at: u64,
}

/// When the agent wrote to whom.
type OwnTimes = HashMap<PublicKey, Vec<u64>>;

/// What is to be made durable.
pub(super) enum Order {
    /// Somebody's message to be answered.
    Work(Box<Trigger>),
    /// A message for the history.
    Message(Opened),
    /// Work from before the start that was answered then.
    Answered(Box<Trigger>),
    /// A message of a guest who has had its answers.
    Refused(Box<Trigger>, Refusal),
}

impl Order {
    /// Whose messages come first.
    fn tier(&self) -> Tier {
        match self {
            Self::Work(trigger) => trigger.tier,
            _ => Tier::Admin,
        }
    }
}

impl Desk<'_> {
    /// Opens all of `candidates`, and then makes durable what they ask for.
    async fn deal(&self, candidates: &[Candidate], is_settled: bool, settled: &mut Settled) {
        let mut orders = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            if number.is_multiple_of(OPENED_PER_TURN) {
                tokio::task::yield_now().await;
            }
            if Instant::now() >= self.until {
                settled.ends.insert(candidate.id, End::Open);
                continue;
            }
            let Swept { genuine, verdict } = self.open(candidate);
            let order = match verdict {
                Ok(Inbound::Work(trigger)) => Order::Work(trigger),
                Ok(Inbound::Own(opened) | Inbound::Past(opened)) => Order::Message(opened),
                Err(reason) => {
                    tracing::info!(event.id = %candidate.id, %reason, "an event that the sweep found starts nothing");
                    settled.ends.insert(candidate.id, if genuine { End::Dealt } else { End::Left });
                    continue;
                }
            };
            orders.push((candidate.id, order));
        }
        let mut orders = self.door.sift(orders, self.start_at, settled).await;
        orders.sort_by_key(|(_, order)| Reverse(order.tier()));
        let own = own_times(self.app, &orders);
        let done = futures_util::stream::iter(orders)
            .map(async |(id, order)| (id, self.carry_out(order, &own, is_settled).await))
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        for (id, result) in done {
            let end = match result {
                Ok(Done::Stored(trigger)) => {
                    settled.triggers.extend(trigger.map(|trigger| *trigger));
                    End::Dealt
                }
                Ok(Done::Kept) => {
                    settled.kept += 1;
                    End::Dealt
                }
                Ok(Done::Undecided) => End::Left,
                Err(error) => {
                    tracing::warn!(event.id = %id, %error, "a message that the sweep found is left for the next tick");
                    End::Open
                }
            };
            settled.ends.insert(id, end);
        }
    }

    /// The first copy that is genuine counts.
    fn open(&self, candidate: &Candidate) -> Swept {
        let mut last = Swept { genuine: false, verdict: Err(Rejection::Forged) };
        for (relay, event) in &candidate.copies {
            last = inbox::sweep(self.app, event, Some(relay));
            if last.genuine {
                break;
            }
        }
        last
    }

    async fn carry_out(&self, order: Order, own: &OwnTimes, is_settled: bool) -> Result<Done, Error> {
        let order = match order {
            Order::Work(trigger) => match self.decide(trigger, own, is_settled).await? {
                Some(order) => order,
                None => return Ok(Done::Undecided),
            },
            other => other,
        };
        match order {
            Order::Work(trigger) => Ok(Done::Stored(self.store(trigger).await?)),
            Order::Refused(trigger, refusal) => {
                record::refuse(self.app, &trigger, &refusal.to_string()).await.map(|()| Done::Kept)
            }
            Order::Message(opened) => keep_message(self.app, opened).await.map(|_| Done::Kept),
            Order::Answered(trigger) => {
                if let Some((peer, message)) = history::incoming(&trigger) {
                    self.app.store.write(&[message.write(self.app, &peer)?]).await?;
                }
                Ok(Done::Kept)
            }
        }
    }

    /// Of the messages from before the agent's first sweep only the last hours' are work, and of these only what no later
    /// message of the agent answers; which that are is known when every relay has told what it has.
    async fn decide(
        &self,
        trigger: Box<Trigger>,
        own: &OwnTimes,
        is_settled: bool,
    ) -> Result<Option<Order>, Error> {
        let at = trigger.created_at().as_secs();
        if at >= self.start_at {
            return Ok(Some(Order::Work(trigger)));
        }
        if at.saturating_add(BEFORE_START_SECS) < self.start_at {
            return Ok(Some(Order::Answered(trigger)));
        }
        if !is_settled {
            return Ok(None);
        }
        let Some(peer) = trigger.peer() else { return Ok(Some(Order::Work(trigger))) };
        // What it wrote since answers something else.
        let answers = |written: u64| (at..self.start_at).contains(&written);
        let is_answered = own.get(&peer).is_some_and(|times| times.iter().copied().any(answers)) || {
            let newest = Range::newest(keys::conversation(&peer), MAX_LOOKED_THROUGH);
            let rows = self.app.store.list(&newest).await?;
            rows.iter()
                .filter_map(|row| self.app.open_sealed::<StoredMessage>(row).ok())
                .any(|message| message.from_agent && answers(message.created_at.as_secs()))
        };
        Ok(Some(if is_answered { Order::Answered(trigger) } else { Order::Work(trigger) }))
    }

    /// Makes work durable. Returned where somebody should begin it now.
    async fn store(&self, trigger: Box<Trigger>) -> Result<Option<Box<Trigger>>, Error> {
        let app = self.app;
        let its_time = trigger.created_at().as_secs().saturating_sub(MAX_AHEAD.as_secs());
        let is_early = its_time > app.clock.now().as_secs();
        let due_at = if is_early {
            its_time
        } else if app.queue.is_some() {
            due_after(app, QUEUE_GRACE)
        } else {
            // Until then this invocation may come to it.
            app.lease_until_ms(self.deadline) / 1000 + 1
        };
        let record = record::store(app, &trigger, due_at).await?;
        Ok((!is_early && is_free(app, &record)).then_some(trigger))
    }

    /// Gives an event up that ends every process which opens it.
    async fn quarantine(&self, candidate: &Candidate, settled: &mut Settled) {
        tracing::error!(event.id = %candidate.id, "opening this event ended the process again and again: it is given up");
        let genuine = candidate.copies.iter().map(|(_, event)| event).find(|event| event.verify().is_ok());
        let recorded = match genuine {
            Some(event) => {
                let reason = "opening it ended the process again and again";
                record::drop_event(self.app, &event.id, event.created_at, reason).await
            }
            None => Ok(()),
        };
        if let Err(error) = &recorded {
            tracing::warn!(event.id = %candidate.id, %error, "that it is given up could not be recorded");
        }
        settled.ends.insert(candidate.id, if recorded.is_ok() { End::Dealt } else { End::Open });
        settled.quarantined.push(candidate.id);
    }
}

/// What became of an order.
enum Done {
    /// Work; with its trigger where somebody should begin it now.
    Stored(Option<Box<Trigger>>),
    /// Part of the history.
    Kept,
    /// It is too early to tell.
    Undecided,
}

/// Whether somebody may begin this run.
fn is_free(app: &App, record: &RunRecord) -> bool {
    !record.status.is_final() && record.lease_until_ms <= app.clock.now_ms()
}

/// When the agent wrote to each peer, by the messages of its own among the orders.
fn own_times(app: &App, orders: &[(EventId, Order)]) -> OwnTimes {
    let mut times = OwnTimes::new();
    for (_, order) in orders {
        if let Order::Message(opened) = order
            && opened.author == app.agent()
        {
            times.entry(opened.peer).or_default().push(opened.created_at.as_secs());
        }
    }
    times
}
