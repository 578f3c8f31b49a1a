//! What became of events and runs, for whoever handed them over.

use nostr::prelude::EventId;
use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::record::{RunRecord, Status};

/// What became of one event or run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
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
    /// Run to its end now or before. Nobody is answered: the record keeps what it came to.
    Done {
        /// The run.
        run: String,
    },
    /// Another worker is at it, it was given back a short while ago and waits, or it waits for the message before it.
    Busy {
        /// The run.
        run: String,
        /// The run of the message that it waits for.
        #[serde(skip_serializing_if = "Option::is_none")]
        waits_for: Option<String>,
    },
    /// It is stored. Whether it is answered is decided when the standby is over.
    Standby {
        /// The run.
        run: String,
    },
    /// It is stored. It is worked when an admin lets the agent go on.
    Stopped {
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
    /// It is stored, and the queue or a tick brings it to a later invocation.
    Queued {
        /// The run.
        run: String,
        /// Why it was not worked to its end here, where that was tried.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The time of this invocation is used up: it goes on in a later one, which the queue or the due list brings.
    Suspended {
        /// The run.
        run: String,
    },
    /// It could not be worked to its end; it is claimed again when it comes again, or when it is due.
    Unfinished {
        /// Why.
        reason: String,
    },
}

/// What became of one event or run; the error is one of ours, not one of the event's.
pub type Worked = Result<Outcome, Error>;

impl Outcome {
    /// What a run that is over came to.
    #[must_use]
    pub fn of(record: RunRecord) -> Self {
        match record.status {
            Status::Dropped | Status::Undelivered => {
                Self::Rejected { reason: record.reason.unwrap_or_default() }
            }
            Status::Dead if record.reply_ids.is_empty() => {
                Self::Rejected { reason: record.reason.unwrap_or_default() }
            }
            Status::Done if record.reply_ids.is_empty() => Self::Done { run: record.run_id },
            _ => Self::Replied { run: record.run_id, reply: record.reply_ids, failure: record.reason },
        }
    }
}

/// Whether handing the same thing over again can help.
#[must_use]
pub fn wants_retry(worked: &Worked) -> bool {
    worked.as_ref().is_err_and(Error::is_transient)
}

/// Whether it is durable and waits for somebody else, or for a later time: who handed it over need not come again.
#[must_use]
pub fn is_left(worked: &Worked) -> bool {
    matches!(
        worked,
        Ok(Outcome::Queued { .. }
            | Outcome::Busy { .. }
            | Outcome::Standby { .. }
            | Outcome::Stopped { .. }
            | Outcome::Suspended { .. })
            | Err(Error::GivenBack(_))
    )
}

/// All outcomes, errors told as [`Outcome::Unfinished`].
#[must_use]
pub fn told(results: Vec<Worked>) -> Vec<Outcome> {
    let unfinished = |error: Error| Outcome::Unfinished { reason: error.to_string() };
    results.into_iter().map(|result| result.unwrap_or_else(unfinished)).collect()
}

/// The answer to a direct invocation.
///
/// # Errors
/// The first error where a retry can help: Lambda hands the payload over again, and what is done already is told the
/// same way.
pub fn report(mut results: Vec<Worked>) -> Result<Value, Error> {
    match results.iter().position(wants_retry) {
        Some(at) => results.swap_remove(at).map(|outcome| json!(outcome)),
        None => Ok(json!({"success": results.iter().all(Result::is_ok), "results": told(results)})),
    }
}
