//! The ends of a run's work that are not the end of the run: it is in other hands, goes on elsewhere, or is tried again.

use std::time::Duration;

use super::{is_outage, shown};
use crate::app::App;
use crate::error::Error;
use crate::outage;
use crate::outcome::{Outcome, Worked};
use crate::publish;
use crate::queue::{LONGEST_DELAY, QUEUE_GRACE};
use crate::record::{self, Claim, Status, due_after};

/// How long the queue keeps a run that could not be ended, the first time.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest that a run which could not be ended waits for a tick.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 60 * 60);

/// A run that another worker has, or that waits. Where there is a queue it comes again when it is free, which is
/// `free_at_ms`: the worker may be dead.
pub(super) async fn leave(app: &App, run: String, free_at_ms: u64, waits_for: Option<String>) -> Outcome {
    let wait = Duration::from_millis(free_at_ms.saturating_sub(app.clock.now_ms()));
    if let Some(queue) = &app.queue
        && let Err(error) = queue.enqueue(&run, wait.min(LONGEST_DELAY)).await
    {
        tracing::warn!(run.id = %run, %error, "a run that is in other hands could not be queued");
    }
    Outcome::Busy { run, waits_for }
}

/// A run that somebody else has by now, or that an admin cancelled.
pub(super) async fn taken_over(app: &App, claim: Claim) -> Worked {
    let cancelled = record::note_work(app, &claim.record).await.unwrap_or_else(|error| {
        tracing::warn!(run.id = %claim.record.run_id, %error, "what was done for a run that was lost is not noted");
        None
    });
    Ok(cancelled.map_or_else(|| Outcome::Busy { run: claim.record.run_id, waits_for: None }, Outcome::of))
}

/// A run that goes on in another invocation: at once, in the queue where there is one, else with the next tick.
pub(super) async fn suspend(app: &App, mut claim: Claim) -> Worked {
    let record = &mut claim.record;
    record.attempt = record.attempt.saturating_sub(1);
    record.continuations = record.continuations.saturating_add(1);
    let run = record.run_id.clone();
    tracing::info!(run.id = %run, continuations = record.continuations, "the run is suspended");
    let grace = if app.queue.is_some() { QUEUE_GRACE } else { Duration::ZERO };
    if !claim.release(app, "it goes on in another invocation", 0, due_after(app, grace)).await {
        return Err(Error::GivenBack(
            "the run could not be suspended: it goes on when its lease ends".to_owned(),
        ));
    }
    if let Some(queue) = &app.queue
        && let Err(error) = queue.enqueue(&run, Duration::ZERO).await
    {
        tracing::warn!(run.id = %run, %error, "a suspended run could not be queued: a tick takes it up");
    }
    Ok(Outcome::Suspended { run })
}

/// A run that could not be ended: it waits, each time for longer, in the queue where there is one. Whoever delivers its
/// trigger meanwhile finds it busy. A tick takes it up where nobody else does.
pub(super) async fn give_back(app: &App, mut claim: Claim, error: Error) -> Worked {
    let run = claim.record.run_id.clone();
    let lease_left_ms = claim.record.lease_until_ms.saturating_sub(app.clock.now_ms());
    // What only has to be sent is left to the ticks: its recipient's relays may be down for longer than a queue waits.
    let is_reply = claim.record.status == Status::Replying;
    let queue = app.queue.as_ref().filter(|_| !is_reply);
    let (longest, grace) = match queue {
        Some(_) => (LONGEST_DELAY, QUEUE_GRACE),
        None => (LONGEST_WAIT, Duration::ZERO),
    };
    let doubled = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(claim.record.looks().saturating_sub(1)));
    let mut delay = if is_reply { publish::delay(&claim.record.deliveries) } else { doubled.min(longest) };
    if matches!(error, Error::Newer(_)) {
        // Nothing was tried: it is a newer binary's.
        claim.record.attempt = claim.record.attempt.saturating_sub(1);
    }
    if is_outage(&error) {
        claim.record.attempt = claim.record.attempt.saturating_sub(1);
        delay = outage::delay(&claim.record, app.clock.now_ms());
    }
    tracing::warn!(run.id = %run, attempt = claim.record.attempt, %error, "the run is given back");
    let (not_before, due_at) = (due_after(app, delay), due_after(app, delay + grace));
    if !claim.release(app, shown(&error), not_before, due_at).await {
        // Whoever came before the end of the lease would find the run taken, and the queue would forget it.
        delay = delay.max(Duration::from_millis(lease_left_ms));
    }
    match queue {
        None if error.is_transient() && app.queue.is_some() => {
            Ok(Outcome::Queued { run, reason: Some(error.to_string()) })
        }
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
