//! An SQS batch: each record is worked for itself, and the answer names those that are to come again.
//!
//! The answer is a type of its own: an empty or null one tells Lambda that all records are done, and they are deleted.
//! <https://docs.aws.amazon.com/lambda/latest/dg/services-sqs-errorhandling.html>

use serde::Serialize;

use crate::app::App;
use crate::aws::sqs::parse_body;
use crate::clock::Deadline;
use crate::error::Error;
use crate::handler;
use crate::outcome::Worked;
use crate::trigger::payload::{Payload, Record};
use crate::work;

/// The answer to a batch.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchAnswer {
    /// The records that shall come again.
    pub batch_item_failures: Vec<ItemFailure>,
}

/// A record that shall come again.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemFailure {
    /// Its message id.
    pub item_identifier: String,
}

/// Works a batch, one record after another: of one that fails the others know nothing.
pub async fn answer(app: &App, records: Vec<Record>, deadline: Deadline) -> BatchAnswer {
    let mut failures = Vec::new();
    for record in records {
        if let Err(error) = work(app, &record, deadline).await {
            tracing::warn!(sqs.message_id = %record.message_id, %error, "a record comes again");
            failures.push(ItemFailure { item_identifier: record.message_id });
        }
    }
    BatchAnswer { batch_item_failures: failures }
}

/// An error where the record shall come again. One that will never parse is told in the log and is done.
async fn work(app: &App, record: &Record, deadline: Deadline) -> Result<(), Error> {
    if let Some(run) = parse_body(&record.body) {
        return settled(work::resume(app, run, deadline).await);
    }
    match Payload::parse(&record.body) {
        Ok(Payload::Relay(events)) => {
            handler::work_events(app, events, deadline).await.into_iter().try_for_each(settled)
        }
        Ok(_) => {
            tracing::warn!(sqs.message_id = %record.message_id, "a record is neither relay events nor a stored run, and is dropped");
            Ok(())
        }
        Err(reason) => {
            tracing::warn!(sqs.message_id = %record.message_id, %reason, "a record is dropped");
            Ok(())
        }
    }
}

/// Whether the queue may forget the record. A run that another worker has is that worker's to end.
fn settled(result: Worked) -> Result<(), Error> {
    match result {
        Err(error) if error.is_transient() => Err(error),
        _ => Ok(()),
    }
}
