//! The real [`Llm`]: OpenAI chat completions over HTTP, for every provider of the catalogue.
//!
//! Asks one model, and does what concerns that model alone. Which one to ask instead, and when to ask again later, is
//! the caller's affair. See <https://platform.openai.com/docs/api-reference/chat>.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use reqwest::Client;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::catalogue::{Model, ModelId, Providers};
use super::exchange::Exchange;
use super::write::{Refused, write_request};
use super::{Llm, LlmError};
use crate::chat::{ChatAnswer, ChatRequest};
use crate::credentials::Credentials;
use crate::secret::Secret;

/// Asks providers over one shared HTTP client.
#[derive(Debug, Clone)]
pub struct OpenAi {
    client: Client,
    credentials: Arc<Credentials>,
    /// What models refused, for as long as the process lives: the next request does without.
    refused: Arc<Mutex<BTreeMap<String, Refused>>>,
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
        Self { client, credentials, refused: Arc::default() }
    }

    /// Asks until nothing is left that the same model may do about a failure. Each of it is done once, each parameter
    /// counting for itself, so this ends.
    async fn ask(
        &self,
        id: &ModelId,
        request: &ChatRequest<'_>,
        until: Instant,
    ) -> Result<ChatAnswer, LlmError> {
        let mut model = self.credentials.model(id).map_err(|lacks| LlmError::Account(lacks.into()))?;
        let (mut is_renewed, mut had_hiccup) = (false, false);
        loop {
            let body = write_request(request, &model, &self.refused_by(&model));
            let failed = match (Exchange { model: &model, body: &body, until }).run(&self.client).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            tracing::debug!(model = %model.id(), error = %failed.error, "the model did not answer this request");
            match &failed.error {
                LlmError::RefusedParameter { name, .. } if self.remember(&model, name) => {}
                LlmError::Account(_) if !is_renewed => {
                    is_renewed = true;
                    let renewed = self.renewed(id, model.provider.key.as_ref(), until).await;
                    model = renewed.ok_or(failed.error)?;
                }
                _ if failed.is_hiccup() && !had_hiccup => had_hiccup = true,
                _ => return Err(failed.error),
            }
        }
    }

    /// The model with a newer key than the one that was refused.
    async fn renewed(&self, id: &ModelId, refused: Option<&Secret>, until: Instant) -> Option<Model> {
        timeout_at(until, self.credentials.renewed(id, refused)).await.ok().flatten()
    }

    fn refused_by(&self, model: &Model) -> Refused {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&model.id()).cloned().unwrap_or_default()
    }

    /// Whether that is news.
    fn remember(&self, model: &Model, parameter: &'static str) -> bool {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.entry(model.id()).or_default().insert(parameter)
    }
}

/// The body that `model` is sent for a request, as long as it has refused nothing.
#[must_use]
pub fn body(request: &ChatRequest<'_>, model: &Model) -> Value {
    write_request(request, model, &Refused::new())
}

#[async_trait]
impl Llm for OpenAi {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let id = request.model.parse().map_err(|error| LlmError::Permanent(format!("{error}").into()))?;
        self.ask(&id, request, until).await
    }
}

#[cfg(test)]
#[cfg(feature = "local")]
mod tests;
