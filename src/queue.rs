//! The `Queue` port: hands a stored run to a later invocation. SQS on AWS; none on a laptop, where a tick
//! takes up the run that could not be ended, once it is due.

use std::time::Duration;

use async_trait::async_trait;

use crate::error::Error;
use crate::outcome::{Outcome, Worked};

/// The longest that SQS keeps a message back.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(15 * 60);

/// How long the queue has to bring a run before a tick asks it again.
pub(crate) const QUEUE_GRACE: Duration = Duration::from_secs(2 * 60);

/// The queue did not take the message; the run stays stored.
#[derive(Debug, thiserror::Error)]
#[error("the queue is unavailable: {0}")]
pub struct QueueError(pub String);

/// The port.
#[async_trait]
pub trait Queue: Send + Sync {
    /// Asks for the run `run_id` to be worked `delay` from now or later (SQS: at most 15 minutes).
    ///
    /// # Errors
    /// [`QueueError`] where the message was not taken.
    async fn enqueue(&self, run_id: &str, delay: Duration) -> Result<(), QueueError>;
}

/// Asks the queue to bring a run that is stored.
pub(crate) async fn enqueue_run(queue: &dyn Queue, run: String) -> Worked {
    match queue.enqueue(&run, Duration::ZERO).await {
        Ok(()) => Ok(Outcome::Queued { run, reason: None }),
        // It is stored, and due again soon.
        Err(error) => Err(Error::Transient(error.to_string())),
    }
}
