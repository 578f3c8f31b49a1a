//! All models of a chain are out of order for now: the run waits, for longer and longer and up to a day, without using up
//! its attempts, and whoever waits for its answer is told so once (design §7).
//!
//! An outage is the conversation's: a row there says since when it lasts and that the note was sent. The first answer of a
//! model to any of its runs removes the row, so the next outage is told again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::clock::Deadline;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::letter::Letter;
use crate::publish::{self, Route};
use crate::record::{Claim, FORMAT, Outage, RunRecord, read_clear, to_json};
use crate::store::{Expect, Row, Write, keys};

/// What the sender is told.
pub const NOTE: &str = "The model is unavailable for now; I will answer as soon as it is back.";

/// How long a run waits for a model, reckoned from when its conversation first met the outage.
pub const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// How long one waits whose time has come by a schedule: later nobody wants what it would say.
pub const SCHEDULED_PATIENCE: Duration = Duration::from_secs(15 * 60);

/// How long it waits the first time.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest that it waits at a time, but for the part that differs from run to run.
const LONGEST_DELAY: Duration = Duration::from_secs(30 * 60);

/// The row of a conversation; clear.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Mark {
    format: u32,
    /// Unix milliseconds.
    since_ms: u64,
}

/// How long a run waits now: as long as the outage lasts already, within bounds, and up to an eighth more, so that not all
/// runs ask the model at the same moment when it is back.
#[must_use]
pub fn delay(record: &RunRecord, now_ms: u64) -> Duration {
    let since_ms = record.waits_for_model_since_ms().unwrap_or(now_ms);
    let lasts = Duration::from_millis(now_ms.saturating_sub(since_ms));
    let delay = lasts.clamp(FIRST_DELAY, LONGEST_DELAY);
    let digits = record.run_id.get(..2).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    delay.saturating_add(delay.saturating_mul(digits.unwrap_or_default()) / (8 * 256))
}

/// Whether the run has waited long enough.
#[must_use]
pub fn is_over(record: &RunRecord, now_ms: u64) -> bool {
    let since_ms = record.waits_for_model_since_ms().unwrap_or(now_ms);
    let patience = if record.trigger_id.starts_with("cron:") { SCHEDULED_PATIENCE } else { PATIENCE };
    Duration::from_millis(now_ms.saturating_sub(since_ms)) >= patience
}

/// The row of a conversation as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    mark: Mark,
    version: u64,
}

impl Found {
    /// `None` where the row is not to be read.
    pub(crate) fn read(row: &Row) -> Option<Self> {
        read_clear(row).ok().map(|mark| Self { mark, version: row.version })
    }
}

/// What the store has of the outage that a run's conversation is in.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// The conversation's row.
    pub(crate) found: Option<Found>,
    /// The note that an earlier attempt at this run signed, and that may not be out.
    pub(crate) note: Vec<ReplyPart>,
}

impl Known {
    /// Before any model is asked: the run waits for one like the others of its conversation.
    pub(crate) fn meet(&self, record: &mut RunRecord) {
        if let Some(found) = self.found {
            meet(record, found.mark.since_ms);
        }
    }

    /// After the run has asked its models, which are out of order or not. Where they are, and nobody said so yet, the sender
    /// is told: signed, saved, then sent. Where one answered, the outage is over.
    ///
    /// # Errors
    /// As [`Claim::save_reply`]. That no relay took the note is none: the next attempt sends it again.
    pub(crate) async fn settle(
        self,
        app: &App,
        letter: &Letter,
        route: &Route,
        claim: &mut Claim,
        is_out: bool,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let heard = claim.record.waits_for_model_since_ms().is_none();
        if let Some(found) = self.found.filter(|_| heard) {
            end(app, letter, claim, found.version).await;
        }
        let is_told = self.found.is_some() && !heard;
        if !is_out {
            return Ok(());
        }
        let since_ms = meet(&mut claim.record, app.clock.now_ms());
        // Where nobody spoke, nobody waits for an answer.
        if letter.in_reply_to.is_none() {
            return Ok(());
        }
        let mut parts = self.note;
        if !is_told {
            let mark = to_json(&Mark { format: FORMAT, since_ms })?;
            let mark = Write::put(keys::outage(&letter.peer), Expect::Absent, mark, None);
            let signed = publish::sign(app, letter, NOTE, app.clock.now())?;
            if claim.save_note(app, letter, &signed, mark).await? {
                parts = signed;
            }
        }
        let until = deadline.publish_until();
        if !parts.is_empty() && publish::send(app, route, &parts, &mut Vec::new(), until).await {
            claim.note_is_out(parts.len());
        }
        Ok(())
    }
}

/// The run meets an outage that lasts since then, or longer where it knows of one. Since when it does, Unix milliseconds.
pub(crate) fn meet(record: &mut RunRecord, since_ms: u64) -> u64 {
    record.waits_for_model_since_ms().unwrap_or_else(|| {
        record.outage = Some(Outage::since(since_ms));
        since_ms
    })
}

/// A model answered: the conversation's outage is over. Written if the run is still ours and the row as it was read: a worker
/// that slept meanwhile knows nothing of outages that came after. Where it cannot be written, the next answer ends the outage.
async fn end(app: &App, letter: &Letter, claim: &Claim, version: u64) {
    let write = Write::delete(keys::outage(&letter.peer), Expect::Version(version));
    if let Err(error) = claim.append(app, vec![write]).await {
        tracing::warn!(run.id = %claim.record.run_id, %error, "that the model is back could not be written down");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(run_id: &str, since_ms: u64) -> RunRecord {
        let json = serde_json::json!({
            "format": 1, "run_id": run_id, "trigger_id": "dm:1", "tier": "admin", "tainted": false, "status": "running",
            "owner": "o", "fence": 1, "attempt": 1, "lease_until_ms": 0, "arrived_at": 0, "updated_at_ms": 0,
            "expires_at": null, "outage": {"since_ms": since_ms},
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_run_waits_twice_as_long_each_time_and_never_much_longer_than_half_an_hour() {
        let (mut now_ms, mut waits) = (1_000_000, Vec::new());
        let record = record("00ff", now_ms);
        while !is_over(&record, now_ms) {
            let wait = delay(&record, now_ms);
            waits.push(wait.as_secs());
            now_ms += u64::try_from(wait.as_millis()).unwrap();
        }
        assert_eq!(waits[..9], [30, 30, 60, 120, 240, 480, 960, 1800, 1800]);
        assert_eq!(waits.len(), 7 + 47);
    }

    #[test]
    fn runs_that_wait_together_do_not_come_together() {
        let at = |run_id: &str| delay(&record(run_id, 0), 3_600_000).as_millis();
        assert_eq!([at("00"), at("80"), at("ff")], [1_800_000, 1_912_500, 2_024_121]);
        // A record that is no run's of ours waits too.
        assert_eq!(at("zz"), 1_800_000);
    }
}
