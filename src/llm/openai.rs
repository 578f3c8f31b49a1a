//! The real [`Llm`]: OpenAI chat completions over HTTP, for every provider of the catalogue.
//!
//! One request, one answer, not streamed. Which model to ask instead, and when to ask again, is the caller's affair.
//! See <https://platform.openai.com/docs/api-reference/chat>.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use tokio::time::Instant;

use super::catalogue::{Model, ModelId, Providers};
use super::failure::{Refusal, retry_after};
use super::{Llm, LlmError, wire};
use crate::chat::{ChatAnswer, ChatRequest};
use crate::credentials::Credentials;

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The largest error that is read; what is behind it is of no use.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Asks providers over one shared HTTP client.
#[derive(Debug, Clone)]
pub struct OpenAi {
    client: Client,
    credentials: Arc<Credentials>,
}

impl OpenAi {
    /// Over `client`, which should follow no redirects and read no proxy from the environment.
    #[must_use]
    pub fn new(client: Client, providers: Providers) -> Self {
        Self::with_credentials(client, Arc::new(Credentials::fixed(providers, Vec::new())))
    }

    /// The same, with keys that may change.
    #[must_use]
    pub fn with_credentials(client: Client, credentials: Arc<Credentials>) -> Self {
        Self { client, credentials }
    }

    /// Asks once more where the provider refused a key that is not the newest.
    async fn ask_with_newest_key(
        &self,
        id: &ModelId,
        request: &ChatRequest<'_>,
    ) -> Result<ChatAnswer, LlmError> {
        let model = self.credentials.model(id).map_err(LlmError::Account)?;
        let refusal = match self.ask(&model, request).await {
            Err(LlmError::Account(refusal)) => refusal,
            answer => return answer,
        };
        match self.credentials.renewed(id, model.provider.key.as_ref()).await {
            Some(model) => self.ask(&model, request).await,
            None => Err(LlmError::Account(refusal)),
        }
    }

    async fn ask(&self, model: &Model, request: &ChatRequest<'_>) -> Result<ChatAnswer, LlmError> {
        let key = model.provider.key.as_ref();
        let body = wire::write_request(request, &model.name, model.info.token_limit);
        let mut post = self.client.post(format!("{}/chat/completions", model.provider.base_url)).json(&body);
        if let Some(key) = key {
            post = post.bearer_auth(key.expose());
        }
        let response = send(post).await.map_err(|error| lost(&error))?;

        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        if !response.status().is_success() {
            let body = read_body(response, MAX_ERROR_BYTES).await.unwrap_or_else(|(read, _)| read);
            return Err(Refusal { status, retry_after, body: &body }.into_error(key));
        }
        let body = read_body(response, MAX_ANSWER_BYTES).await.map_err(|(_, error)| error)?;
        let json = wire::parse(&body)?;
        if let Some(error) = wire::error_in(&json) {
            return Err(Refusal { status: inner_status(error), retry_after, body: &body }.into_error(key));
        }
        wire::read_answer(&json, &model.id())
    }
}

#[async_trait]
impl Llm for OpenAi {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let id = request.model.parse().map_err(|error| LlmError::Permanent(format!("{error}")))?;
        let answer = tokio::time::timeout_at(until, self.ask_with_newest_key(&id, request)).await;
        answer.unwrap_or_else(|_| Err(transient("it did not answer in the time there was")))
    }
}

/// Sends it once more where the connection ended before the head of an answer: a pooled one may have died while the
/// sandbox was frozen, and nobody knows before a request is written to it.
async fn send(post: RequestBuilder) -> reqwest::Result<Response> {
    let again = post.try_clone();
    match (post.send().await, again) {
        (Err(error), Some(again)) if connection_ended(&error) => again.send().await,
        (sent, _) => sent,
    }
}

/// Whether an open connection was closed or reset. A server that cannot be reached, takes too long or answers garbage is
/// another matter.
fn connection_ended(error: &reqwest::Error) -> bool {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    let mut of_connection = sources.filter_map(|error| error.downcast_ref::<hyper::Error>());
    !error.is_connect()
        && !error.is_timeout()
        && of_connection.next().is_some_and(|error| !error.is_parse() && !error.is_user())
}

/// The body, up to `max` bytes.
///
/// # Errors
/// What was read, and why there is not more.
async fn read_body(mut response: Response, max: usize) -> Result<Vec<u8>, (Vec<u8>, LlmError)> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(body),
            Ok(Some(chunk)) if body.len().saturating_add(chunk.len()) <= max => {
                body.extend_from_slice(&chunk)
            }
            Ok(Some(_)) => {
                return Err((body, LlmError::Unreadable(format!("it is longer than {max} bytes"))));
            }
            Err(error) => return Err((body, lost(&error))),
        }
    }
}

/// The status that an error inside a 200 names; without one it is the provider's trouble.
fn inner_status(error: &Value) -> u16 {
    let code = error.get("code").or_else(|| error.get("status"));
    let number = code.and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| (400..=599).contains(n)).unwrap_or(502)
}

/// The connection failed. The error's own text is not used: it holds the URL.
fn lost(error: &reqwest::Error) -> LlmError {
    transient(if error.is_connect() {
        "no connection to the provider"
    } else if error.is_timeout() {
        "the provider took too long"
    } else {
        "the connection to the provider broke"
    })
}

fn transient(reason: &str) -> LlmError {
    LlmError::Transient { reason: reason.to_owned(), retry_after: None }
}

#[cfg(test)]
#[cfg(feature = "local")]
mod tests;
