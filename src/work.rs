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
use tokio::time::Instant;

use crate::app::App;
use crate::assemble::assemble;
use crate::clock::{Deadline, Stopwatch};
use crate::commands::{self, Command};
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::guests;
use crate::letter::Letter;
use crate::load::{self, Loaded};
use crate::outcome::{Outcome, Worked};
use crate::publish::{self, Route};
use crate::queue::{LONGEST_DELAY, QUEUE_GRACE};
use crate::record::{self, Claim, Claimed, MAX_ATTEMPTS, RunRecord, Status, due_after};
use crate::run::driver;
use crate::run::journal::Journal;
use crate::standby;
use crate::trigger::{Dm, Source, Trigger};

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
    // On the heap: what a run awaits nests deep, and all of it would lie in the futures of every door.
    let answer = Box::pin(async { answer(app, &trigger, stored?, &mut claim, deadline, watch).await });
    let result = AssertUnwindSafe(answer).catch_unwind().await;
    match result.unwrap_or_else(|_| Err(Error::Transient("the run panicked".to_owned()))) {
        Ok(()) => Ok(Outcome::of(claim.record)),
        Err(Error::TakenOver) => taken_over(app, claim).await,
        Err(Error::Stopped) => {
            let run = claim.record.run_id.clone();
            claim.put_off(app).await;
            Ok(Outcome::Stopped { run })
        }
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

/// A run that somebody else has by now, or that an admin cancelled.
async fn taken_over(app: &App, claim: Claim) -> Worked {
    let cancelled = record::note_work(app, &claim.record).await.unwrap_or_else(|error| {
        tracing::warn!(run.id = %claim.record.run_id, %error, "what was done for a run that was lost is not noted");
        None
    });
    Ok(cancelled.map_or_else(|| Outcome::Busy { run: claim.record.run_id }, Outcome::of))
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
    let doubled = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(claim.record.looks().saturating_sub(1)));
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
    let until = deadline.slice(load::SLICE);
    let command = commands::said(app, trigger).filter(|_| saved.is_empty());
    let (parts, route) = if let Some((dm, command)) = command {
        let answered = Box::pin(obey(app, trigger, (dm, &command), stored, claim, until)).await?;
        claim.record.note_step("command", watch.lap_ms());
        answered
    } else if saved.is_empty() {
        if stored.flags.stopped_at().is_some() && !commands::passes_a_stop(app, trigger) {
            return Err(Error::Stopped);
        }
        let Some((trigger, mut loaded)) = guests::admit(app, trigger, stored, claim, until).await? else {
            return Ok(());
        };
        claim.record.note_step("load", watch.lap_ms());
        let letter = Letter::of(&trigger, &loaded);
        let route = publish::route(app, &loaded.state, &letter);
        let (targets, unsaved) = (route.all(), std::mem::take(&mut loaded.unsaved));
        if loaded.asked
            && !commands::passes_a_stop(app, &trigger)
            && let Err(error) = commands::flags::check(app).await
        {
            load::keep(app, unsaved).await;
            return Err(error);
        }
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

/// Does what a command orders. Its answer was saved with that; it goes back the way that the command came.
async fn obey(
    app: &App,
    trigger: &Trigger,
    (dm, command): (&Dm, &Command),
    stored: load::Stored,
    claim: &mut Claim,
    until: Instant,
) -> Result<(Vec<ReplyPart>, Route), Error> {
    let letter = Letter::answer_to(dm);
    let parts = match commands::obey(app, trigger, (dm, command), claim).await {
        Err(error) if is_final(&error, claim) => {
            let parts = publish::sign(app, &letter, &apology(claim, &error), app.clock.now())?;
            claim.save_reply(app, &letter, &parts).await?;
            parts
        }
        other => other?,
    };
    let loaded = load::refresh(app, trigger, stored, until).await?;
    load::keep(app, loaded.unsaved).await;
    Ok((parts, publish::route(app, &loaded.state, &letter)))
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
        Err(error) if is_final(&error, claim) => Ok(apology(claim, &error)),
        other => other,
    }
}

/// Whether no later attempt helps, or there is none left.
fn is_final(error: &Error, claim: &Claim) -> bool {
    !matches!(error, Error::TakenOver | Error::Stopped)
        && (!error.is_transient() || claim.record.tries() >= MAX_ATTEMPTS)
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
