//! Standby (`DIDACTYL_STANDBY`): the agent reads and records, and answers nobody. No model is asked and nothing is sent.
//!
//! What would be work is stored and held. With the first sweep after the standby that read every relay, the agent starts
//! anew: what was written in the six hours before that and nobody answered since is worked, and the rest is history.

use nostr::prelude::Timestamp;

use crate::app::App;
use crate::error::Error;
use crate::outcome::{Outcome, Worked};
use crate::record::{self, Due, RunRecord, Status};
use crate::sweep::ledger::BEFORE_START_SECS;
use crate::sweep::settle::has_written;
use crate::trigger::{Source, Trigger};

/// Makes a trigger durable, and nothing more.
///
/// # Errors
/// As [`record::store`].
pub(crate) async fn hold(app: &App, trigger: &Trigger) -> Worked {
    let due_at = app.clock.now().as_secs();
    let record = record::store(app, trigger, due_at).await?;
    Ok(if record.status.is_final() { Outcome::of(record) } else { Outcome::Standby { run: record.run_id } })
}

/// In standby: runs that were begun before it are held as well.
pub(crate) async fn hold_due(app: &App, due: Vec<Due>) {
    for mut due in due.into_iter().filter(|due| !due.record.held) {
        let record = RunRecord { held: true, ..due.record.clone() };
        if let Err(error) = due.save(app, record).await {
            tracing::warn!(run.id = %due.record.run_id, %error, "a run is not held yet");
        }
    }
}

/// After it: what is to be worked of the runs that are due. Held ones stay so until it is known when the agent started
/// anew, which is `start_at`.
pub(crate) async fn release(app: &App, due: Vec<Due>, start_at: Option<Timestamp>) -> Vec<Due> {
    let mut released = Vec::new();
    for mut due in due {
        if !due.record.held {
            released.push(due);
        } else if let Some(start_at) = start_at {
            match release_one(app, &mut due, start_at).await {
                Ok(true) => released.push(due),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(run.id = %due.record.run_id, %error, "a run is held for one more tick");
                }
            }
        }
    }
    released
}

/// Decides about a held run; whether it is to be worked.
async fn release_one(app: &App, due: &mut Due, start_at: Timestamp) -> Result<bool, Error> {
    let reason = past(app, due, start_at).await?;
    let record = RunRecord { held: false, ..due.record.clone() };
    let record = match reason {
        None => record,
        Some(reason) => {
            RunRecord { status: Status::Dropped, due_at: None, reason: Some(reason.to_owned()), ..record }
        }
    };
    due.save(app, record).await?;
    Ok(reason.is_none())
}

/// Why a held run is history and no work.
async fn past(app: &App, due: &Due, start_at: Timestamp) -> Result<Option<&'static str>, Error> {
    let Source::Dm(dm) = &due.trigger.source else { return Ok(None) };
    let (at, start) = (dm.created_at.as_secs(), start_at.as_secs());
    if at.saturating_add(BEFORE_START_SECS) < start {
        return Ok(Some("it is more than six hours older than the end of the standby"));
    }
    let is_answered = has_written(app, &dm.peer, at..start, &due.record.reply_ids).await?;
    Ok(is_answered.then_some("another instance answered it during the standby"))
}
