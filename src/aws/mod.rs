//! What the clients of AWS services have in common: one configuration, one HTTP client ([`http`]), one way to tell a failure.
//!
//! DynamoDB ([`crate::store::dynamodb`]), SQS ([`sqs`]) and SSM ([`ssm`]) are made from it. Region, credentials and
//! `AWS_ENDPOINT_URL` come from the usual variables of AWS.

pub mod http;
pub mod sqs;
pub mod ssm;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::RequestId;
use tokio::sync::OnceCell;

/// The configuration that all AWS clients of the process share, made when the first of them asks for it: without a
/// configured region it looks for one over the network, which an agent that uses no AWS must not do.
#[derive(Debug, Clone, Default)]
pub struct Aws(Arc<OnceCell<SdkConfig>>);

impl Aws {
    /// The configuration. Where credentials and region are in the environment, as on Lambda, nothing is sent.
    pub async fn config(&self) -> &SdkConfig {
        self.0.get_or_init(load).await
    }
}

/// A call is tried five times within eight seconds, each time for three at most: so a connection that died while the
/// sandbox was frozen costs a call one attempt and, as the pause after it is short, hardly any time, and a throttle has a
/// second or so to pass. All calls of ours may be repeated: a conditional write meets its own row, a queued run is claimed
/// once.
async fn load() -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .operation_attempt_timeout(Duration::from_secs(3))
        .operation_timeout(Duration::from_secs(8))
        .build();
    let retries =
        RetryConfig::standard().with_max_attempts(5).with_initial_backoff(Duration::from_millis(100));
    aws_config::defaults(BehaviorVersion::v2026_01_12())
        .http_client(http::client())
        .timeout_config(timeouts)
        .retry_config(retries)
        .load()
        .await
}

/// What went wrong, by code and request id, never by the answer's body: it holds values.
pub(crate) fn explain<E>(service: &str, error: SdkError<E>) -> String
where
    E: ProvideErrorMetadata + Error + 'static,
{
    let Some(answer) = error.raw_response() else {
        // Without an answer there is none to show.
        return format!("{service}: {}", DisplayErrorContext(error));
    };
    let Some(code) = error.code() else {
        return format!("{service}: an unreadable answer with status {}", answer.status().as_u16());
    };
    let message = error.message().unwrap_or("no message");
    let request = error.request_id().unwrap_or("unknown");
    format!("{service}: {code}: {message} (request {request})")
}
