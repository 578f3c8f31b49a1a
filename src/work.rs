//! One run, from the claim to the record: the same path for every door.
//!
//! ```text
//! trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! What comes before is in [`crate::handler`].

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use nostr::prelude::PublicKey;

use crate::app::App;
use crate::assemble::assemble;
use crate::clock::{Deadline, Stopwatch};
use crate::error::Error;
use crate::guests;
use crate::letter::Letter;
use crate::load::{self, Loaded};
use crate::outcome::{Outcome, Worked};
use crate::publish;
use crate::queue::{LONGEST_DELAY, QUEUE_GRACE, enqueue_run};
use crate::record::{self, Claim, Claimed, Due, MAX_ATTEMPTS, RunRecord, Status, due_after, line};
use crate::run::driver;
use crate::run::journal::Journal;
use crate::standby;
use crate::trigger::{Source, Trigger};

/// With less time left nothing is claimed: it would only be taken from whoever has time.
const MIN_TIME: Duration = Duration::from_secs(5);

/// How long the queue keeps a run that could not be ended, the first time.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest that a run which could not be ended waits for a tick.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 60 * 60);

/// A run of an earlier invocation goes on, from what the store has of it.
pub(crate) async fn resume(app: &App, run_id: &str, deadline: Deadline) -> Worked {
    match record::stored_trigger(app, run_id).await {
        Ok(trigger) => work(app, trigger, deadline).await,
        Err(Error::Permanent(reason)) => Ok(Outcome::Rejected { reason }),
        Err(error) => Err(error),
    }
}

/// One trigger, and what stands before and behind it in the line of its conversation: the same for every door. Tells what
/// became of this one.
pub async fn work(app: &App, trigger: Trigger, deadline: Deadline) -> Worked {
    if deadline.left() < MIN_TIME {
        return Err(Error::Transient("the invocation's time is used up".to_owned()));
    }
    let Some(peer) = trigger.conversation() else {
        return work_one(app, trigger, deadline, true).await.map(|(outcome, _)| outcome);
    };
    let mine = trigger.id.clone();
    let (mut outcome, mut next) = work_one(app, trigger, deadline, false).await?;
    while let Some(first) = next_in_line(app, &peer, &next, deadline).await {
        let is_mine = first.id == mine;
        match work_one(app, first, deadline, true).await {
            Ok((worked, then)) => {
                // Whatever became of it, others may wait behind it whom its end does not know of.
                next = if then == Next::Nobody { Next::Line } else { then };
                if is_mine {
                    outcome = worked;
                }
            }
            Err(error) if is_mine => return Err(error),
            Err(error) => {
                tracing::info!(%error, "who waits behind this run waits on");
                break;
            }
        }
    }
    Ok(outcome)
}

/// What is to be worked after a run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// It is not known to anybody here that others wait.
    Nobody,
    /// The line of its conversation.
    Line,
    /// This run, which nobody has and which it waits for.
    Ahead(String),
    /// Nothing: it waits for a run that somebody else comes for.
    Left,
}

/// The trigger of the run whose turn it is, if there is one and time for it.
async fn next_in_line(app: &App, peer: &PublicKey, next: &Next, deadline: Deadline) -> Option<Trigger> {
    let has_time = deadline.left() >= MIN_TIME;
    let found = match next {
        Next::Nobody | Next::Left => return None,
        Next::Ahead(run) if has_time => record::stored_trigger(app, run).await.map(Some),
        Next::Ahead(_) | Next::Line => match line::waiting(app, peer).await {
            Ok(waiting) if has_time => Ok(waiting.into_iter().next().map(|due| due.trigger)),
            Ok(waiting) => {
                pass_on(app, waiting).await;
                Ok(None)
            }
            Err(error) => Err(error),
        },
    };
    found.unwrap_or_else(|error| {
        tracing::warn!(%error, "a run that waits in its conversation cannot be worked now");
        None
    })
}

/// Leaves to the queue, or to the next tick, what there is no time for.
async fn pass_on(app: &App, waiting: Vec<Due>) {
    for mut due in waiting {
        let run = due.record.run_id.clone();
        let passed = match &app.queue {
            Some(queue) => enqueue_run(queue.as_ref(), run.clone()).await.map(drop),
            None => due.postpone(app, app.clock.now().as_secs()).await,
        };
        if let Err(error) = passed {
            tracing::info!(run.id = %run, %error, "a run that waits is not due at once");
        }
    }
}

/// One run, from the claim to the record. `is_its_turn`: whether it is known to stand first in the line, if in one. A panic
/// is an error of this run alone.
async fn work_one(
    app: &App,
    trigger: Trigger,
    deadline: Deadline,
    is_its_turn: bool,
) -> Result<(Outcome, Next), Error> {
    if !matches!(trigger.source, Source::Dm(_) | Source::Notice(_)) {
        let reason = format!("runs of {} triggers are not built yet", trigger.source.name());
        return Ok((Outcome::Rejected { reason }, Next::Nobody));
    }
    if app.config.standby {
        return Ok((standby::hold(app, &trigger).await?, Next::Nobody));
    }
    let mut watch = Stopwatch::start();
    let lease_until_ms = app.lease_until_ms(deadline);
    let (claimed, stored) =
        tokio::join!(record::claim(app, &trigger, lease_until_ms), load::stored(app, &trigger));
    let mut claim = match claimed? {
        Claimed::Ours(claim) => claim,
        Claimed::Finished(record) => return Ok((Outcome::of(record), Next::Nobody)),
        Claimed::Busy(record) => return Ok((leave(app, &record, record.free_at_ms(), None).await, Next::Nobody)),
        Claimed::Held(record) => return Ok((Outcome::Standby { run: record.run_id }, Next::Nobody)),
        Claimed::Waits { record, behind } => return Ok(wait(app, &record, behind).await),
    };
    if !is_its_turn
        && claim.took_floor()
        && let Ok(stored) = &stored
        && line::is_preceded(&claim.record, &stored.line)
    {
        claim.give_way(app).await?;
        return Ok((Outcome::Busy { run: claim.record.run_id, waits_for: None }, Next::Line));
    }
    claim.record.steps_ms = vec![("claim".to_owned(), watch.lap_ms())];
    let answer = async { answer(app, &trigger, stored?, &mut claim, deadline, watch).await };
    let result = AssertUnwindSafe(answer).catch_unwind().await;
    match result.unwrap_or_else(|_| Err(Error::Transient("the run panicked".to_owned()))) {
        Ok(()) => {
            let next = if claim.others_wait() { Next::Line } else { Next::Nobody };
            Ok((Outcome::of(claim.record), next))
        }
        Err(Error::TakenOver) => {
            Ok((Outcome::Busy { run: claim.record.run_id, waits_for: None }, Next::Nobody))
        }
        Err(error) => give_back(app, claim, error).await.map(|outcome| (outcome, Next::Left)),
    }
}

/// A run that stands in the line behind another one: that one goes first.
async fn wait(app: &App, record: &RunRecord, behind: RunRecord) -> (Outcome, Next) {
    let is_free = behind.free_at_ms() <= app.clock.now_ms() && !behind.held;
    if is_free {
        let outcome = Outcome::Busy { run: record.run_id.clone(), waits_for: Some(behind.run_id.clone()) };
        return (outcome, Next::Ahead(behind.run_id));
    }
    (leave(app, record, behind.free_at_ms(), Some(behind.run_id)).await, Next::Left)
}

/// A run that another worker has, or that waits. Where there is a queue it comes again when it is free, which is
/// `free_at_ms`: the worker may be dead.
async fn leave(app: &App, record: &RunRecord, free_at_ms: u64, waits_for: Option<String>) -> Outcome {
    let run = record.run_id.clone();
    let wait = Duration::from_millis(free_at_ms.saturating_sub(app.clock.now_ms()));
    if let Some(queue) = &app.queue
        && let Err(error) = queue.enqueue(&run, wait.min(LONGEST_DELAY)).await
    {
        tracing::warn!(run.id = %run, %error, "a run that is in other hands could not be queued");
    }
    Outcome::Busy { run, waits_for }
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
