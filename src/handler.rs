//! START HERE: one invocation from top to bottom.
//!
//! ```text
//! payload ─▶ inbox ─▶ trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! Whatever a trigger's door was, [`work`] is its one path. A trigger that fails stops no other. The next file to read
//! for a DM is [`crate::dm`]; the order of the checks before it is in [`crate::inbox`].

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use nostr::prelude::{EventId, RelayUrl};
use serde::Serialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::assemble::assemble;
use crate::clock::{Deadline, Stopwatch};
use crate::dm::Opened;
use crate::error::Error;
use crate::history;
use crate::inbox::{self, Inbound, Rejected};
use crate::load::{self, Loaded};
use crate::publish;
use crate::record::{self, Claim, Claimed, MAX_ATTEMPTS, RunRecord, Status};
use crate::relay::address;
use crate::run::driver;
use crate::run::journal::Journal;
use crate::trigger::payload::{Payload, RelayEvents};
use crate::trigger::{Source, Trigger};

/// The most conversations that one invocation works at the same time.
const CONVERSATIONS_AT_ONCE: usize = 8;

/// What became of one event or run, for the caller.
#[derive(Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Answered now, or by an earlier delivery of the same trigger.
    Replied {
        /// The run.
        run: String,
        /// The ids of the reply's parts.
        reply: Vec<EventId>,
        /// Set where the reply only says that there is no answer, and why.
        #[serde(skip_serializing_if = "Option::is_none")]
        failure: Option<String>,
    },
    /// Another worker is at it.
    Busy {
        /// The run.
        run: String,
    },
    /// The agent's own message: kept in the conversation.
    Recorded,
    /// It starts nothing, and never will.
    Rejected {
        /// Why.
        reason: String,
    },
    /// It could not be worked to its end; the queue brings it back.
    Queued {
        /// The run.
        run: String,
        /// Why.
        reason: String,
    },
    /// It could not be worked to its end; it is claimed again when it comes again.
    Unfinished {
        /// Why.
        reason: String,
    },
}

/// Answers one payload. The value tells what became of each event, in the order they came.
///
/// # Errors
/// Only where handing the same payload over again can help.
pub async fn handle(app: &App, json: &str, deadline: Deadline) -> Result<Value, Error> {
    let answer = match Payload::parse(json) {
        Ok(Payload::Relay(batch)) => relay_events(app, batch, deadline).await,
        Ok(Payload::Resume { run }) => resume(app, &run, deadline).await,
        Err(reason) => {
            tracing::warn!(%reason, "a payload is rejected");
            Ok(json!({"success": false, "error": reason.to_string()}))
        }
    };
    app.relays.close().await;
    answer
}

/// Events that a bridge or a caller pushed: DMs.
async fn relay_events(app: &App, batch: RelayEvents, deadline: Deadline) -> Result<Value, Error> {
    let relay = batch.relay.as_deref().and_then(|url| believed_relay(app, url));
    let mut results: BTreeMap<usize, Result<Outcome, Error>> = BTreeMap::new();
    let mut work = Vec::new();
    for (at, event) in batch.events.iter().enumerate() {
        match inbox::read(app, event.get(), relay.as_ref()) {
            Ok(Inbound::Work(trigger)) => work.push((at, *trigger)),
            Ok(Inbound::Own(opened)) => drop(results.insert(at, keep_own(app, opened).await)),
            Err(rejected) => drop(results.insert(at, reject(app, rejected).await)),
        }
    }
    results.extend(work_all(app, work, deadline).await);
    report(results)
}

/// A run of an earlier invocation goes on, from what the store has of it.
async fn resume(app: &App, run_id: &str, deadline: Deadline) -> Result<Value, Error> {
    let result = match record::stored_trigger(app, run_id).await {
        Ok(trigger) => guarded(app, trigger, deadline).await,
        Err(Error::Permanent(reason)) => Ok(Outcome::Rejected { reason }),
        Err(error) => Err(error),
    };
    report(BTreeMap::from([(0, result)]))
}

/// Works triggers: those of one conversation one after another in the order they were written, conversations side by
/// side.
async fn work_all(
    app: &App,
    work: Vec<(usize, Trigger)>,
    deadline: Deadline,
) -> Vec<(usize, Result<Outcome, Error>)> {
    let mut conversations: BTreeMap<_, Vec<(usize, Trigger)>> = BTreeMap::new();
    for (at, trigger) in work {
        conversations.entry(trigger.peer()).or_default().push((at, trigger));
    }
    futures_util::stream::iter(conversations.into_values())
        .map(|mut triggers| async move {
            triggers.sort_by_key(|(_, trigger)| trigger.created_at());
            let mut results = Vec::new();
            for (at, trigger) in triggers {
                results.push((at, guarded(app, trigger, deadline).await));
            }
            results
        })
        .buffer_unordered(CONVERSATIONS_AT_ONCE)
        .collect::<Vec<_>>()
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// [`work`], with a panic turned into an error: a fault in one run must not lose the others of the batch.
async fn guarded(app: &App, trigger: Trigger, deadline: Deadline) -> Result<Outcome, Error> {
    let run = record::run_id(&trigger.id);
    AssertUnwindSafe(work(app, trigger, deadline)).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!(run.id = %run, "the run panicked; it is taken over when its lease ends");
        Err(Error::Transient("internal fault".to_owned()))
    })
}

/// One trigger, from the claim to the record: the same for every door.
pub async fn work(app: &App, trigger: Trigger, deadline: Deadline) -> Result<Outcome, Error> {
    let lease_until_ms = app.lease_until_ms(deadline);
    let mut watch = Stopwatch::start();
    let (claimed, stored) =
        tokio::join!(record::claim(app, &trigger, lease_until_ms), load::stored(app, &trigger));
    let mut claim = match claimed? {
        Claimed::Ours(claim) => claim,
        Claimed::Finished(record) => return Ok(finished(record)),
        Claimed::Busy(record) => return Ok(Outcome::Busy { run: record.run_id }),
    };
    claim.record.steps_ms = vec![("claim".to_owned(), watch.lap_ms())];
    let result = match stored {
        Ok(stored) => answer(app, &trigger, stored, &mut claim, deadline, watch).await,
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => Ok(finished(claim.record)),
        Err(Error::TakenOver) => Ok(Outcome::Busy { run: claim.record.run_id }),
        Err(error) => give_back(app, claim, error).await,
    }
}

/// A run that could not be ended: free to be claimed at once, and handed to the queue where there is one.
async fn give_back(app: &App, claim: Claim, error: Error) -> Result<Outcome, Error> {
    const DELAY: Duration = Duration::from_secs(30);
    let run = claim.record.run_id.clone();
    let lease_left_ms = claim.record.lease_until_ms.saturating_sub(app.clock.now_ms());
    tracing::warn!(run.id = %run, attempt = claim.record.attempt, %error, "the run is given back");
    let released = claim.release(app, &error.to_string()).await;
    // Whoever came before the end of a lease would find the run taken, and the queue would forget it.
    let delay = if released { DELAY } else { DELAY.max(Duration::from_millis(lease_left_ms)) };
    match &app.queue {
        Some(queue) if !matches!(error, Error::Permanent(_)) => match queue.enqueue(&run, delay).await {
            Ok(()) => Ok(Outcome::Queued { run, reason: error.to_string() }),
            Err(refused) => {
                tracing::warn!(run.id = %run, error = %refused, "the run could not be queued");
                Err(error)
            }
        },
        _ => Err(error),
    }
}

/// The reply of an earlier attempt, or a new one; saved before it is sent; recorded after.
async fn answer(
    app: &App,
    trigger: &Trigger,
    stored: load::Stored,
    claim: &mut Claim,
    deadline: Deadline,
    mut watch: Stopwatch,
) -> Result<(), Error> {
    let Source::Dm(dm) = &trigger.source;
    let earlier = claim.earlier(app).await?;
    let (parts, route) = if earlier.reply.is_empty() {
        let loaded = load::refresh(app, trigger, stored, deadline.slice(load::SLICE)).await?;
        claim.record.note_step("load", watch.lap_ms());
        let route = publish::route(app, &loaded.state, dm);
        let text = alongside(
            respond(app, trigger, &loaded, claim, earlier.journal, deadline),
            app.relays.open(&route.all(), deadline.work_until()),
        )
        .await?;
        watch.lap_ms();
        let parts = publish::sign(app, dm, &text, app.clock.now())?;
        claim.save_reply(app, dm, &parts).await?;
        claim.record.note_step("save", watch.lap_ms());
        (parts, route)
    } else {
        let state = stored.into_loaded(app, trigger).state;
        (earlier.reply, publish::route(app, &state, dm))
    };
    let sent = publish::send(app, &route, &parts, deadline.end()).await;
    claim.record.note_step("publish", watch.lap_ms());
    claim.record.deliveries = sent.deliveries;
    if !sent.arrived {
        return Err(Error::Transient("no relay of the recipient accepted the reply; it is saved".to_owned()));
    }
    claim.finish(app).await
}

/// The text of the answer: a fixed one, the model's, or an honest word that there is none.
async fn respond(
    app: &App,
    trigger: &Trigger,
    loaded: &Loaded,
    claim: &mut Claim,
    journal: Journal,
    deadline: Deadline,
) -> Result<String, Error> {
    let Source::Dm(dm) = &trigger.source;
    // What an earlier attempt failed of no longer counts.
    claim.record.reason = None;
    if let Some(notice) = dm.notice {
        return Ok(notice.text().to_owned());
    }
    let attempt = claim.record.attempt;
    let result = if attempt > MAX_ATTEMPTS {
        Err(Error::Permanent(format!("it was begun {MAX_ATTEMPTS} times and never came to its end")))
    } else {
        let context = assemble(app, trigger, loaded, deadline).await;
        driver::drive(app, trigger, &loaded.state, context, claim, journal, deadline).await
    };
    match result {
        Err(Error::Permanent(reason)) => Ok(apology(claim, reason)),
        Err(Error::Transient(reason)) if attempt >= MAX_ATTEMPTS => Ok(apology(claim, reason)),
        other => other,
    }
}

/// What the sender is told where there is no answer. The reason is one of our own error texts: short, without secrets.
fn apology(claim: &mut Claim, reason: String) -> String {
    tracing::error!(run.id = %claim.record.run_id, %reason, "the run failed");
    let text = format!("I could not answer this message: {reason}.");
    claim.record.reason = Some(reason);
    text
}

/// Does `main`, and `aside` as long as that takes.
async fn alongside<T>(main: impl Future<Output = T>, aside: impl Future<Output = ()>) -> T {
    tokio::pin!(main, aside);
    tokio::select! {
        result = &mut main => result,
        () = aside => main.await,
    }
}

/// The agent's own message, written by another of its clients or seen again: part of the conversation, never work.
async fn keep_own(app: &App, opened: Opened) -> Result<Outcome, Error> {
    let peer = opened.peer;
    if let Some(message) = history::found(app, opened) {
        app.store.write(&[message.write(app, &peer)?]).await?;
    }
    Ok(Outcome::Recorded)
}

/// A rejection is recorded where it is final, so that nobody looks at the event twice.
async fn reject(app: &App, rejected: Rejected) -> Result<Outcome, Error> {
    let reason = rejected.reason.to_string();
    tracing::info!(%reason, "an event is rejected");
    if let Some((id, created_at)) = rejected.verified {
        record::drop_event(app, &id, created_at, &reason).await?;
    }
    Ok(Outcome::Rejected { reason })
}

/// A relay that a caller names is believed only if it is one of ours.
fn believed_relay(app: &App, url: &str) -> Option<RelayUrl> {
    address::normalize(url).filter(|url| app.config.relays.contains(url))
}

fn finished(record: RunRecord) -> Outcome {
    match record.status {
        Status::Dropped => Outcome::Rejected { reason: record.reason.unwrap_or_default() },
        _ => Outcome::Replied { run: record.run_id, reply: record.reply_ids, failure: record.reason },
    }
}

/// The answer to the caller: an error only where a retry can help.
fn report(results: BTreeMap<usize, Result<Outcome, Error>>) -> Result<Value, Error> {
    let mut retry = None;
    let outcomes: Vec<Outcome> = results
        .into_values()
        .map(|result| {
            result.unwrap_or_else(|error| {
                let reason = error.to_string();
                if !matches!(error, Error::Permanent(_)) {
                    retry.get_or_insert(error);
                }
                Outcome::Unfinished { reason }
            })
        })
        .collect();
    match retry {
        Some(error) => Err(error),
        None => Ok(json!({"success": true, "results": outcomes})),
    }
}
