//! Standby (`DIDACTYL_STANDBY`): the agent reads and records, and answers nobody. No model is asked and nothing is sent.
//!
//! What would be work is stored and held. With the first sweep after the standby that read every relay, the agent starts
//! anew: what was written in the six hours before that and nobody answered since is worked, and the rest is history. A run
//! that was begun before the standby is work however old its message is: a saved reply, or what waits for a model. What
//! somebody else answered meanwhile is not answered twice.

use nostr::prelude::Timestamp;

use crate::app::App;
use crate::error::Error;
use crate::load;
use crate::outcome::{Outcome, Worked};
use crate::record::{self, Due, MAX_DUE, RunRecord, Status};
use crate::store::Row;
use crate::sweep::door::Door;
use crate::sweep::ledger::BEFORE_START_SECS;
use crate::sweep::settle::has_written;
use crate::trigger::{Source, Tier, Trigger};

/// Makes a trigger durable, and nothing more. Of guests' no more than a sweep would: of a flood of strangers nothing is
/// stored.
///
/// # Errors
/// As [`record::store`] and [`load::stored`].
pub(crate) async fn hold(app: &App, trigger: &Trigger) -> Worked {
    if trigger.tier < Tier::Admin {
        let stored = load::stored(app, trigger).await?;
        if let Err(refusal) = Door::in_standby(app, &stored).judge(trigger) {
            return Ok(Outcome::Rejected { reason: refusal.to_string() });
        }
    }
    let due_at = app.clock.now().as_secs();
    let record = record::store(app, trigger, due_at).await?;
    Ok(if record.status.is_final() { Outcome::of(record) } else { Outcome::Standby { run: record.run_id } })
}

/// In standby, and with the first sweep after it: runs that were begun before are held as well. Whoever is still at one of them
/// finds it taken.
pub(crate) async fn hold_due(app: &App, due: Vec<Due>) {
    for mut due in due {
        // What is held has no part in its conversation: whether it is work is not known.
        let record = RunRecord { held: true, floor: false, lease_until_ms: 0, ..due.record.clone() };
        if let Err(error) = due.save(app, record).await {
            tracing::warn!(run.id = %due.record.run_id, %error, "a run is not held yet");
        }
    }
}

/// After it, once it is known when the agent started anew, which is `start_at`: of the held runs among `rows` (those of
/// [`record::first_due`]) what is to be worked beside the runs that are `due`. The admins' come at once, the guests' as
/// there is room.
///
/// # Errors
/// As [`record::held`].
pub(crate) async fn release(
    app: &App,
    rows: &[Row],
    start_at: Timestamp,
    due: &mut Vec<Due>,
) -> Result<(), Error> {
    for mut held in record::held(app, rows).await? {
        if held.record.tier < Tier::Admin && due.len() >= MAX_DUE {
            break;
        }
        match release_one(app, &mut held, start_at).await {
            Ok(true) => due.push(held),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(run.id = %held.record.run_id, %error, "a run is held for one more tick");
            }
        }
    }
    Ok(())
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
    if !due.record.was_begun() && at.saturating_add(BEFORE_START_SECS) < start {
        return Ok(Some("it is more than six hours older than the end of the standby"));
    }
    let is_answered = has_written(app, &dm.peer, at..start).await?;
    Ok(is_answered.then_some("the agent wrote to its sender after it and before the end of the standby"))
}
