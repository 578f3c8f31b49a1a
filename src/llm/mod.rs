//! The `Llm` port: one request to one model.
//!
//! The real thing is [`openai::OpenAi`], chat completions over HTTP for every provider of the [`catalogue`].

pub mod catalogue;
mod failure;
pub mod openai;
#[cfg(feature = "local")]
pub mod scripted;
mod wire;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::chat::{ChatAnswer, ChatRequest};

/// Why a model did not answer, by who must act. Decided once, from status and body, in [`openai`].
///
/// No variant carries a key, a prompt or a whole body: texts are the provider's own error message, cut to a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// It may work later: rate limits, 5xx, broken connections, time.
    #[error("the model is unavailable for now: {reason}")]
    Transient {
        /// What happened.
        reason: String,
        /// How long the provider asks us to wait.
        retry_after: Option<Duration>,
    },
    /// The request is larger than the model's window.
    #[error("the request does not fit the model's context window: {0}")]
    Overflow(String),
    /// The model does not know a parameter.
    #[error("the model refused the parameter {name}: {reason}")]
    RefusedParameter {
        /// The parameter's name on the wire.
        name: String,
        /// The provider's words.
        reason: String,
    },
    /// The key is wrong or there is no money: the operator must act.
    #[error("the provider refused the key or the account: {0}")]
    Account(String),
    /// A 200 that cannot be read as an answer.
    #[error("the model's answer cannot be read: {0}")]
    Unreadable(String),
    /// The request will never work.
    #[error("the provider refused the request: {0}")]
    Permanent(String),
}

impl LlmError {
    /// What the sender of a message may be told: half a sentence of ours, no word of the provider's.
    #[must_use]
    pub fn told(&self) -> &'static str {
        match self {
            Self::Transient { .. } => "the model is unavailable for now",
            Self::Overflow(_) => "the conversation does not fit the model's context window",
            Self::RefusedParameter { .. } => "the model refused a parameter of the request",
            Self::Account(_) => "the model's provider refused the key or the account",
            Self::Unreadable(_) => "the model's answer cannot be read",
            Self::Permanent(_) => "the model's provider refused the request",
        }
    }

    /// Whether the same request may work later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Transient { .. } | Self::Unreadable(_))
    }
}

/// The port.
#[async_trait]
pub trait Llm: Send + Sync {
    /// Asks the model, until `until`.
    ///
    /// # Errors
    /// See [`LlmError`]; the time being up is [`LlmError::Transient`].
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError>;
}
