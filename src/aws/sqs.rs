//! The queue on AWS: a standard SQS queue that feeds this same function. A message holds nothing but a run's id; all
//! else about the run is in the store. Whoever receives it twice claims the run once.
//!
//! API: <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessage.html>

use std::time::Duration;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_sqs::Client;
use reqwest::Url;

use super::explain;
use crate::queue::{Queue, QueueError};

/// The longest that SQS keeps a message back.
const MAX_DELAY: Duration = Duration::from_secs(15 * 60);

/// What a message's body begins with. A relay payload, the other thing that the queue may bring, begins with `{`.
const PREFIX: &str = "run:";

/// The digits of a run's id, see [`crate::record::run_id`].
const ID_DIGITS: usize = 32;

/// The body of the message that asks for `run_id` to be worked.
#[must_use]
pub fn body(run_id: &str) -> String {
    format!("{PREFIX}{run_id}")
}

/// The run that a body written by [`body`] names; `None` for any other text.
#[must_use]
pub fn parse_body(body: &str) -> Option<&str> {
    let id = body.trim().strip_prefix(PREFIX)?;
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (id.len() == ID_DIGITS && id.bytes().all(is_digit)).then_some(id)
}

/// A queue's URL as it was given, if it can be one.
///
/// # Errors
/// What is wrong with it, without showing it.
pub(crate) fn checked_url(text: &str) -> Result<String, String> {
    let url = Url::parse(text).ok().filter(|url| {
        let plain = url.username().is_empty() && url.password().is_none();
        let segments = url.path().split('/').filter(|segment| !segment.is_empty()).count();
        matches!(url.scheme(), "https" | "http") && plain && url.query().is_none() && segments == 2
    });
    let Some(url) = url else {
        return Err("is not a queue's URL: give https://sqs.REGION.amazonaws.com/ACCOUNT/NAME".to_owned());
    };
    if url.path().ends_with(".fifo") {
        return Err("names a FIFO queue, which cannot delay one message: give a standard queue".to_owned());
    }
    Ok(text.to_owned())
}

/// An SQS queue.
#[derive(Debug)]
pub struct Sqs {
    client: Client,
    url: String,
}

impl Sqs {
    /// The queue at `url`. Sends nothing yet.
    #[must_use]
    pub fn new(config: &SdkConfig, url: impl Into<String>) -> Self {
        Self { client: Client::new(config), url: url.into() }
    }
}

impl Sqs {
    /// Sends a message with this body.
    ///
    /// # Errors
    /// [`QueueError`] where it was not taken.
    pub async fn send(&self, body: String) -> Result<(), QueueError> {
        let call = self.client.send_message().queue_url(&self.url).message_body(body);
        call.send().await.map(drop).map_err(|error| QueueError(explain("SQS", error)))
    }
}

#[async_trait]
impl Queue for Sqs {
    /// A longer delay than SQS knows is cut to 15 minutes; parts of a second count as a whole one.
    async fn enqueue(&self, run_id: &str, delay: Duration) -> Result<(), QueueError> {
        let call = self.client.send_message().queue_url(&self.url).message_body(body(run_id));
        let sent = call.delay_seconds(delay_seconds(delay)).send().await;
        sent.map(drop).map_err(|error| QueueError(explain("SQS", error)))
    }
}

fn delay_seconds(delay: Duration) -> i32 {
    let delay = delay.min(MAX_DELAY);
    let started = u64::from(delay.subsec_nanos() > 0);
    i32::try_from(delay.as_secs() + started).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_names_its_run_and_no_other_text_does() {
        let run = crate::record::run_id("dm:1");
        assert_eq!(parse_body(&body(&run)), Some(run.as_str()));
        assert_eq!(parse_body(&format!(" {}\n", body(&run))), Some(run.as_str()));
        let others = ["", "run:", "run:1", &run, r#"{"type":"resume","run":"1"}"#]
            .map(str::to_owned)
            .into_iter()
            .chain([
                body(&run.to_uppercase()),
                body(&format!("{run}0")),
                body(&run.replacen(|_| true, "#", 1)),
            ]);
        for other in others {
            assert_eq!(parse_body(&other), None, "{other}");
        }
    }

    #[test]
    fn a_delay_is_whole_seconds_up_to_a_quarter_of_an_hour() {
        let table = [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (30_000, 30), (899_001, 900), (86_400_000, 900)];
        for (ms, seconds) in table {
            assert_eq!(delay_seconds(Duration::from_millis(ms)), seconds, "{ms} ms");
        }
    }

    #[test]
    fn only_the_url_of_a_standard_queue_is_taken() {
        for url in ["https://sqs.eu-central-1.amazonaws.com/123456789012/work", "http://127.0.0.1:5000/1/q"] {
            assert_eq!(checked_url(url).as_deref(), Ok(url));
        }
        let refused = [
            "work",
            "arn:aws:sqs:eu-central-1:123456789012:SEKRIT",
            "https://me:SEKRIT@sqs.eu-central-1.amazonaws.com/123456789012/work",
            "https://sqs.eu-central-1.amazonaws.com/SEKRIT",
            "https://sqs.eu-central-1.amazonaws.com/123456789012/SEKRIT.fifo",
        ]
        .map(|url| checked_url(url).unwrap_err());
        insta::assert_snapshot!(refused.join("\n"), @r"
        is not a queue's URL: give https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
        is not a queue's URL: give https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
        is not a queue's URL: give https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
        is not a queue's URL: give https://sqs.REGION.amazonaws.com/ACCOUNT/NAME
        names a FIFO queue, which cannot delay one message: give a standard queue
        ");
    }
}
