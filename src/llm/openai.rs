//! The real [`Llm`]: OpenAI chat completions over HTTP, for every provider of the catalogue.
//!
//! One request, one answer, not streamed. Which model to ask instead, and when to ask again, is the caller's affair.
//! See <https://platform.openai.com/docs/api-reference/chat>.

use async_trait::async_trait;
use reqwest::{Client, Response};
use serde_json::Value;
use tokio::time::Instant;

use super::catalogue::{Model, Providers};
use super::failure::{Refusal, retry_after};
use super::{Llm, LlmError, wire};
use crate::chat::{ChatAnswer, ChatRequest};

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The largest error that is read; what is behind it is of no use.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Asks the providers of a [`Providers`] over one shared HTTP client.
#[derive(Debug, Clone)]
pub struct OpenAi {
    client: Client,
    providers: Providers,
}

impl OpenAi {
    /// Over `client`, which should follow no redirects and read no proxy from the environment.
    #[must_use]
    pub fn new(client: Client, providers: Providers) -> Self {
        Self { client, providers }
    }

    async fn ask(&self, model: &Model, request: &ChatRequest<'_>) -> Result<ChatAnswer, LlmError> {
        let key = model.provider.key.as_ref();
        let body = wire::write_request(request, &model.name, model.provider.token_limit);
        let mut post = self.client.post(format!("{}/chat/completions", model.provider.base_url)).json(&body);
        if let Some(key) = key {
            post = post.bearer_auth(key.expose());
        }
        let response = post.send().await.map_err(|error| lost(&error))?;

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
        let model = self.providers.model(&id).map_err(LlmError::Account)?;
        let answer = tokio::time::timeout_at(until, self.ask(&model, request)).await;
        answer.unwrap_or_else(|_| Err(transient("it did not answer in the time there was")))
    }
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
