//! START HERE: one invocation from top to bottom.
//!
//! ```text
//! payload ─▶ inbox ─▶ trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! Whatever a trigger's door was, [`crate::work`] is its one path: the next file to read. A trigger that fails stops no
//! other. How a DM is opened is in [`crate::dm`]; the order of the checks before that is in [`crate::inbox`].

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::app::App;
use crate::clock::Deadline;
use crate::commands;
use crate::dm::Opened;
use crate::error::Error;
use crate::history;
use crate::http;
use crate::inbox::{self, Inbound, Rejected};
use crate::notices::instance;
use crate::outcome::{Outcome, Worked, report};
use crate::queue::{QUEUE_GRACE, Queue, enqueue_run};
use crate::record::{self, due_after};
use crate::relay::address;
use crate::sqs;
use crate::standby;
use crate::store::{Expect, Write, write_or_leave};
use crate::tick;
use crate::trigger::Trigger;
use crate::trigger::payload::{Payload, PayloadError, RelayEvents};
use crate::webhooks;
use crate::work::{resume, work};

/// The most conversations that one invocation works at the same time.
pub(crate) const CONVERSATIONS_AT_ONCE: usize = 8;

/// Answers one payload. The value tells what became of each event, in the order they came.
///
/// # Errors
/// Only where handing the same payload over again can help.
pub async fn handle(app: &App, json: &str, deadline: Deadline) -> Result<Value, Error> {
    handle_request(app, json, deadline, None).await
}

/// The same of an invocation with this request id, which it has again when it is tried again.
///
/// # Errors
/// As [`handle`].
pub async fn handle_request(
    app: &App,
    json: &str,
    deadline: Deadline,
    request_id: Option<&str>,
) -> Result<Value, Error> {
    // The larger ones are boxed, so that a thread's stack need not hold the largest of them.
    let answer = match Payload::parse(json) {
        Ok(Payload::Relay(events)) => report(Box::pin(accept(app, events, deadline)).await),
        Ok(Payload::Resume { run }) => report(vec![resume(app, &run, deadline).await]),
        Ok(Payload::Sqs(records)) => Ok(json!(sqs::answer(app, records, deadline).await)),
        Ok(Payload::Tick { scheduled_at }) => Box::pin(tick::run(app, scheduled_at, deadline)).await,
        Ok(Payload::FunctionUrl) => Ok(json!(Box::pin(http::answer(app, json, deadline)).await)),
        Ok(Payload::Prompt(_)) => Ok(rejected(&PayloadError::NotBuilt("prompt"))),
        Ok(Payload::Webhook { webhook, id }) => {
            let id = match (id, request_id) {
                (Some(id), _) => id,
                (None, Some(request)) => request.to_owned(),
                (None, None) => app.new_owner()?,
            };
            report(vec![webhooks::desk::work(app, webhook, id, deadline).await])
        }
        Err(reason) => Ok(rejected(&reason)),
    };
    app.relays.close().await;
    answer
}

fn rejected(reason: &PayloadError) -> Value {
    tracing::warn!(%reason, "a payload is rejected");
    json!({"success": false, "error": reason.to_string()})
}

/// Events that somebody pushed: stored and left to the queue where there is one, else worked here.
pub(crate) async fn accept(app: &App, events: RelayEvents, deadline: Deadline) -> Vec<Worked> {
    let Some(queue) = &app.queue else { return work_events(app, events, deadline).await };
    let (triggers, notes) = sort_out(app, &events);
    let mut results = note_all(app, notes).await;
    for (at, trigger) in triggers {
        results.push((at, enqueue(app, queue.as_ref(), &trigger).await));
    }
    by_place(results)
}

/// Works events here and now, whether there is a queue or not.
pub(crate) async fn work_events(app: &App, events: RelayEvents, deadline: Deadline) -> Vec<Worked> {
    let (triggers, notes) = sort_out(app, &events);
    let (mut results, noted) = tokio::join!(work_all(app, triggers, deadline), note_all(app, notes));
    results.extend(noted);
    by_place(results)
}

/// Things with the place of the event that they came from.
pub(crate) type Placed<T> = Vec<(usize, T)>;

/// What each event asks for, by its place: runs, and what is only to be noted.
fn sort_out(app: &App, batch: &RelayEvents) -> (Placed<Trigger>, Placed<Note>) {
    // Whether it is one of ours is judged where the agent's lists are known: see `publish::route`.
    let relay = batch.relay.as_deref().and_then(address::normalize);
    let (mut triggers, mut notes) = (Vec::new(), Vec::new());
    for (at, event) in batch.events.iter().enumerate() {
        match inbox::read(app, event.get(), relay.as_ref()) {
            Ok(Inbound::Work(trigger)) => triggers.push((at, *trigger)),
            Ok(Inbound::Own(opened) | Inbound::Past(opened)) => notes.push((at, Note::Message(opened))),
            Err(rejected) => notes.push((at, Note::Rejected(rejected))),
        }
    }
    (triggers, notes)
}

/// What is to be written down of an event that starts nothing.
enum Note {
    Message(Opened),
    Rejected(Rejected),
}

/// Writes notes down, several at once: none depends on another, and no run waits for them.
async fn note_all(app: &App, notes: Placed<Note>) -> Placed<Worked> {
    futures_util::stream::iter(notes)
        .map(async |(at, note)| match note {
            Note::Message(opened) => (at, keep_message(app, opened).await),
            Note::Rejected(rejected) => (at, reject(app, rejected).await),
        })
        .buffer_unordered(CONVERSATIONS_AT_ONCE)
        .collect()
        .await
}

fn by_place(mut results: Placed<Worked>) -> Vec<Worked> {
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, worked)| worked).collect()
}

/// Makes a trigger durable and leaves it to the queue. One that is stored already is queued again: the first message
/// may have been lost.
async fn enqueue(app: &App, queue: &dyn Queue, trigger: &Trigger) -> Worked {
    if app.config.standby {
        return standby::hold(app, trigger).await;
    }
    let record = record::store(app, trigger, due_after(app, QUEUE_GRACE)).await?;
    if record.status.is_final() {
        return Ok(Outcome::of(record));
    }
    enqueue_run(queue, record.run_id).await
}

/// Works a trigger that is stored, or leaves it to the queue where there is one.
pub(crate) async fn begin(app: &App, trigger: Trigger, deadline: Deadline) -> Worked {
    match app.working_queue() {
        Some(queue) => enqueue_run(queue, record::run_id(&trigger.id)).await,
        None => work(app, trigger, deadline).await,
    }
}

/// Works triggers: those of one conversation one after another in the order they were written, conversations side by
/// side. Commands come before all: no conversation holds them up, and a `/stop` holds for what came with it.
pub(crate) async fn work_all(app: &App, triggers: Placed<Trigger>, deadline: Deadline) -> Placed<Worked> {
    let (commands, triggers) = triggers
        .into_iter()
        .partition::<Placed<Trigger>, _>(|(_, trigger)| commands::said(app, trigger).is_some());
    let mut results = Vec::new();
    for triggers in [commands, triggers] {
        results.extend(work_conversations(app, triggers, deadline).await);
    }
    results
}

async fn work_conversations(app: &App, triggers: Placed<Trigger>, deadline: Deadline) -> Placed<Worked> {
    let mut conversations: BTreeMap<_, Placed<Trigger>> = BTreeMap::new();
    for (at, trigger) in triggers {
        conversations.entry(trigger.queue_of()).or_default().push((at, trigger));
    }
    // The admins' first: guests wait.
    let mut conversations: Vec<_> = conversations.into_values().collect();
    conversations.sort_by_key(|triggers| Reverse(triggers.iter().map(|(_, trigger)| trigger.tier).max()));
    futures_util::stream::iter(conversations)
        .map(|mut triggers| async move {
            triggers.sort_by_key(|(_, trigger)| trigger.created_at());
            let mut results = Vec::new();
            for (at, trigger) in triggers {
                results.push((at, work(app, trigger, deadline).await));
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

/// A message that is part of the conversation and never work: the agent's own, written by another of its clients or seen
/// again, or one that is too old.
pub(crate) async fn keep_message(app: &App, opened: Opened) -> Worked {
    let peer = opened.peer;
    let Some(message) = history::found(app, opened) else { return Ok(Outcome::Recorded) };
    let write = message.write(app, &peer)?;
    if message.from_agent {
        instance::suspect(app, &peer, &message).await?;
        // What this store's agent sent lies there already.
        write_or_leave(app.store.as_ref(), &[Write { expect: Expect::Absent, ..write }]).await?;
    } else {
        app.store.write(&[write]).await?;
    }
    Ok(Outcome::Recorded)
}

/// A rejection is recorded where it is final, so that nobody looks at the event twice.
async fn reject(app: &App, rejected: Rejected) -> Worked {
    let reason = rejected.reason.to_string();
    tracing::info!(%reason, "an event is rejected");
    if let Some((id, created_at)) = rejected.verified {
        record::drop_event(app, &id, created_at, &reason).await?;
    }
    Ok(Outcome::Rejected { reason })
}
