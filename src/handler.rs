//! START HERE: one invocation from top to bottom.
//!
//! ```text
//! payload ─▶ inbox ─▶ trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! Whatever a trigger's door was, [`work`] is its one path. A trigger that fails stops no other. The next file to read
//! for a DM is [`crate::dm`]; the order of the checks before it is in [`crate::inbox`].

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};

use crate::app::App;
use crate::assemble::assemble;
use crate::clock::{Deadline, Stopwatch};
use crate::dm::Opened;
use crate::error::Error;
use crate::guests;
use crate::history;
use crate::http;
use crate::inbox::{self, Inbound, Rejected};
use crate::letter::Letter;
use crate::load::{self, Loaded};
use crate::notices::instance;
use crate::outcome::{Outcome, Worked, report};
use crate::publish;
use crate::queue::Queue;
use crate::record::{self, Claim, Claimed, MAX_ATTEMPTS, RunRecord, Status};
use crate::relay::address;
use crate::run::driver;
use crate::run::journal::Journal;
use crate::sqs;
use crate::standby;
use crate::store::{Expect, Write, write_or_leave};
use crate::tick;
use crate::trigger::payload::{Payload, PayloadError, RelayEvents};
use crate::trigger::{Source, Trigger};

/// With less time left nothing is claimed: it would only be taken from whoever has time.
const MIN_TIME: Duration = Duration::from_secs(5);

/// How long the queue keeps a run that could not be ended, the first time.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest that SQS keeps a message back.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(15 * 60);

/// The longest that a run which could not be ended waits for a tick.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 60 * 60);

/// How long the queue has to bring a run before a tick asks it again.
pub(crate) const QUEUE_GRACE: Duration = Duration::from_secs(2 * 60);

/// The most conversations that one invocation works at the same time.
pub(crate) const CONVERSATIONS_AT_ONCE: usize = 8;

/// Answers one payload. The value tells what became of each event, in the order they came.
///
/// # Errors
/// Only where handing the same payload over again can help.
pub async fn handle(app: &App, json: &str, deadline: Deadline) -> Result<Value, Error> {
    let answer = match Payload::parse(json) {
        Ok(Payload::Relay(events)) => report(accept(app, events, deadline).await),
        Ok(Payload::Resume { run }) => report(vec![resume(app, &run, deadline).await]),
        Ok(Payload::Sqs(records)) => Ok(json!(sqs::answer(app, records, deadline).await)),
        Ok(Payload::Tick { scheduled_at }) => tick::run(app, scheduled_at, deadline).await,
        Ok(Payload::FunctionUrl) => Ok(json!(http::answer(app, json, deadline).await)),
        Ok(Payload::Prompt(_)) => Ok(rejected(&PayloadError::NotBuilt("prompt"))),
        Ok(Payload::Webhook { .. }) => Ok(rejected(&PayloadError::NotBuilt("webhook"))),
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
    match &app.queue {
        Some(queue) if !app.config.standby => enqueue_run(queue.as_ref(), record::run_id(&trigger.id)).await,
        _ => work(app, trigger, deadline).await,
    }
}

/// Asks the queue to bring a run that is stored.
pub(crate) async fn enqueue_run(queue: &dyn Queue, run: String) -> Worked {
    match queue.enqueue(&run, Duration::ZERO).await {
        Ok(()) => Ok(Outcome::Queued { run, reason: None }),
        // It is stored, and due again soon.
        Err(error) => Err(Error::Transient(error.to_string())),
    }
}

/// A run of an earlier invocation goes on, from what the store has of it.
pub(crate) async fn resume(app: &App, run_id: &str, deadline: Deadline) -> Worked {
    match record::stored_trigger(app, run_id).await {
        Ok(trigger) => work(app, trigger, deadline).await,
        Err(Error::Permanent(reason)) => Ok(Outcome::Rejected { reason }),
        Err(error) => Err(error),
    }
}

/// When stored work is due that somebody is to begin now, if nobody does: Unix seconds.
pub(crate) fn due_if_not_begun(app: &App, deadline: Deadline) -> u64 {
    match app.queue {
        Some(_) => due_after(app, QUEUE_GRACE),
        // Until then this invocation may come to it.
        None => app.lease_until_ms(deadline) / 1000 + 1,
    }
}

/// So long from now, as due rows tell time: Unix seconds.
pub(crate) fn due_after(app: &App, wait: Duration) -> u64 {
    (app.clock.now() + wait).as_secs()
}

/// Works triggers: those of one conversation one after another in the order they were written, conversations side by
/// side.
pub(crate) async fn work_all(app: &App, triggers: Placed<Trigger>, deadline: Deadline) -> Placed<Worked> {
    let mut conversations: BTreeMap<_, Placed<Trigger>> = BTreeMap::new();
    for (at, trigger) in triggers {
        conversations.entry(trigger.peer()).or_default().push((at, trigger));
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

/// One trigger, from the claim to the record: the same for every door. A panic is an error of this run alone.
pub async fn work(app: &App, trigger: Trigger, deadline: Deadline) -> Worked {
    if deadline.left() < MIN_TIME {
        return Err(Error::Transient("the invocation's time is used up".to_owned()));
    }
    if !matches!(trigger.source, Source::Dm(_) | Source::Notice(_)) {
        return Ok(Outcome::Rejected {
            reason: format!("runs of {} triggers are not built yet", trigger.source.name()),
        });
    }
    if app.config.standby {
        return standby::hold(app, &trigger).await;
    }
    let mut watch = Stopwatch::start();
    let lease_until_ms = app.lease_until_ms(deadline);
    let (claimed, stored) =
        tokio::join!(record::claim(app, &trigger, lease_until_ms), load::stored(app, &trigger));
    let mut claim = match claimed? {
        Claimed::Ours(claim) => claim,
        Claimed::Finished(record) => return Ok(Outcome::of(record)),
        Claimed::Busy(record) => return Ok(leave(app, record).await),
        Claimed::Held(record) => return Ok(Outcome::Standby { run: record.run_id }),
    };
    claim.record.steps_ms = vec![("claim".to_owned(), watch.lap_ms())];
    let answer = async { answer(app, &trigger, stored?, &mut claim, deadline, watch).await };
    let result = AssertUnwindSafe(answer).catch_unwind().await;
    match result.unwrap_or_else(|_| Err(Error::Transient("the run panicked".to_owned()))) {
        Ok(()) => Ok(Outcome::of(claim.record)),
        Err(Error::TakenOver) => Ok(Outcome::Busy { run: claim.record.run_id }),
        Err(error) => give_back(app, claim, error).await,
    }
}

/// A run that another worker has, or that waits. Where there is a queue it comes again when it is free: the worker may be
/// dead.
async fn leave(app: &App, record: RunRecord) -> Outcome {
    let free_at_ms = record.free_at_ms();
    let run = record.run_id;
    let wait = Duration::from_millis(free_at_ms.saturating_sub(app.clock.now_ms()));
    if let Some(queue) = &app.queue
        && let Err(error) = queue.enqueue(&run, wait.min(LONGEST_DELAY)).await
    {
        tracing::warn!(run.id = %run, %error, "a run that is in other hands could not be queued");
    }
    Outcome::Busy { run }
}

/// A run that could not be ended: it waits, each time for longer, in the queue where there is one. Whoever delivers its
/// trigger meanwhile finds it busy. A tick takes it up where nobody else does.
async fn give_back(app: &App, claim: Claim, error: Error) -> Worked {
    let run = claim.record.run_id.clone();
    let lease_left_ms = claim.record.lease_until_ms.saturating_sub(app.clock.now_ms());
    let (longest, grace) = match &app.queue {
        Some(_) => (LONGEST_DELAY, QUEUE_GRACE),
        None => (LONGEST_WAIT, Duration::ZERO),
    };
    let doubled = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(claim.record.attempt.saturating_sub(1)));
    let mut delay = doubled.min(longest);
    tracing::warn!(run.id = %run, attempt = claim.record.attempt, %error, "the run is given back");
    let (not_before, due_at) = (due_after(app, delay), due_after(app, delay + grace));
    if !claim.release(app, shown(&error), not_before, due_at).await {
        // Whoever came before the end of the lease would find the run taken, and the queue would forget it.
        delay = delay.max(Duration::from_millis(lease_left_ms));
    }
    match &app.queue {
        Some(queue) if error.is_transient() => match queue.enqueue(&run, delay.min(LONGEST_DELAY)).await {
            Ok(()) => Ok(Outcome::Queued { run, reason: Some(error.to_string()) }),
            Err(refused) => {
                tracing::warn!(run.id = %run, error = %refused, "the run could not be queued");
                Err(Error::GivenBack(error.to_string()))
            }
        },
        None if error.is_transient() => Err(Error::GivenBack(error.to_string())),
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
    let (saved, journal) = match claim.earlier(app).await {
        Ok(earlier) => (earlier.reply, Ok(earlier.journal)),
        // Nobody knows what was done already: nothing is done again, and the sender is told.
        Err(error @ Error::Permanent(_)) if claim.record.status == Status::Running => {
            (Vec::new(), Err(error))
        }
        Err(error) => return Err(error),
    };
    let (parts, route) = if saved.is_empty() {
        let until = deadline.slice(load::SLICE);
        let Some((trigger, mut loaded)) = guests::admit(app, trigger, stored, claim, until).await? else {
            return Ok(());
        };
        claim.record.note_step("load", watch.lap_ms());
        let letter = Letter::of(&trigger, &loaded);
        let route = publish::route(app, &loaded.state, &letter);
        let (targets, unsaved) = (route.all(), std::mem::take(&mut loaded.unsaved));
        // While the model thinks, what the relays told is kept and the connections for the reply are opened.
        let respond = alongside(
            respond(app, &trigger, &loaded, claim, journal, deadline),
            app.relays.open(&targets, deadline.work_until()),
        );
        let ((), text) = tokio::join!(load::keep(app, unsaved), respond);
        let text = text?;
        watch.lap_ms();
        let parts = publish::sign(app, &letter, &text, app.clock.now())?;
        claim.save_reply(app, &letter, &parts).await?;
        claim.record.note_step("save", watch.lap_ms());
        (parts, route)
    } else {
        let loaded = stored.into_loaded(app, trigger);
        let letter = Letter::of(trigger, &loaded).as_written(&saved);
        (saved, publish::route(app, &loaded.state, &letter))
    };
    let sent = publish::send(app, &route, &parts, deadline.publish_until()).await;
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
    journal: Result<Journal, Error>,
    deadline: Deadline,
) -> Result<String, Error> {
    // What an earlier attempt failed of no longer counts.
    claim.record.reason = None;
    if let Some(text) = trigger.fixed_text() {
        return Ok(text.to_owned());
    }
    let attempt = claim.record.tries();
    let result = match journal {
        Err(error) => Err(error),
        Ok(_) if attempt > MAX_ATTEMPTS => Err(Error::NoAnswer {
            reason: "it was begun three times and never came to its end",
            transient: false,
        }),
        Ok(journal) => {
            let context = assemble(app, trigger, loaded, deadline).await;
            driver::drive(app, trigger, &loaded.state, context, claim, journal, deadline).await
        }
    };
    match result {
        Err(error)
            if !matches!(error, Error::TakenOver) && (!error.is_transient() || attempt >= MAX_ATTEMPTS) =>
        {
            Ok(apology(claim, &error))
        }
        other => other,
    }
}

/// What the sender is told where there is no answer. What lies behind it is for the log.
fn apology(claim: &mut Claim, error: &Error) -> String {
    tracing::error!(run.id = %claim.record.run_id, %error, "the run failed");
    claim.record.reason = Some(shown(error).to_owned());
    format!("I could not answer this message: {}.", shown(error))
}

/// A failure in words of ours: for the sender and for the record, which is not sealed.
fn shown(error: &Error) -> &'static str {
    match error {
        Error::NoAnswer { reason, .. } => reason,
        _ => "something failed on my side",
    }
}

/// Does `main`, and `aside` as long as that takes.
async fn alongside<T>(main: impl Future<Output = T>, aside: impl Future<Output = ()>) -> T {
    tokio::pin!(main, aside);
    tokio::select! {
        result = &mut main => result,
        () = aside => main.await,
    }
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
