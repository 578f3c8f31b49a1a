//! The `Queue` port: hands a stored run to a later invocation. SQS on AWS; none on a laptop, where a tick
//! takes up the run that could not be ended, once it is due.

use std::time::Duration;

use async_trait::async_trait;

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
