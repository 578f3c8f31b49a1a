//! The `Llm` port: one request to one model.
//!
//! The real thing is [`openai::OpenAi`], chat completions over HTTP for every provider of the [`catalogue`].

pub mod catalogue;
mod exchange;
mod failure;
pub mod fallback;
pub mod openai;
mod read;
mod reason;
#[cfg(feature = "local")]
pub mod scripted;
mod sse;
mod stream;
mod write;

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

pub use self::reason::Reason;
use crate::chat::{ChatAnswer, ChatRequest};

/// Why a model did not answer, by who must act. Decided once, from status and body, in [`openai`].
///
/// What it shows, by `Display` and `Debug` alike, may be logged: our words, the HTTP status, and the provider's own code
/// for the error. The provider's message, which may quote the prompt, is only in [`Reason::words`]. What the same model
/// can still do about it was done before the error is returned: see [`Llm::complete`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// It may work later: rate limits, 5xx, broken connections, time. The chain goes on; its last entry may wait.
    #[error("the model is unavailable for now: {reason}")]
    Transient {
        /// What happened.
        reason: Reason,
        /// How long the provider asks us to wait.
        retry_after: Option<Duration>,
    },
    /// The answer broke off after its first words or calls: a connection lost, a stream that fell silent, time. The
    /// chain goes on; what came is there for who finds nobody to answer better.
    #[error("the model's answer broke off: {reason}")]
    Interrupted {
        /// What happened.
        reason: Reason,
        /// What came. Its last call may be cut off.
        partial: Box<ChatAnswer>,
    },
    /// The request is larger than the model's window. The loop makes the history smaller and asks again.
    #[error("the request does not fit the model's context window: {0}")]
    Overflow(Reason),
    /// The model does not take a parameter, and asking without it was of no use. The chain goes on.
    #[error("the model refused the parameter {name}: {reason}")]
    RefusedParameter {
        /// The parameter's name on the wire.
        name: &'static str,
        /// What the provider said.
        reason: Reason,
    },
    /// The key is wrong or there is no money: the operator must act. The chain goes on.
    #[error("the provider refused the key or the account: {0}")]
    Account(Reason),
    /// A 200 that cannot be read as an answer, twice. The chain goes on.
    #[error("the model's answer cannot be read: {0}")]
    Unreadable(Reason),
    /// This request will never work with this model. The chain goes on.
    #[error("the provider refused the request: {0}")]
    Permanent(Reason),
}

impl LlmError {
    /// What happened.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        match self {
            Self::Transient { reason, .. }
            | Self::Interrupted { reason, .. }
            | Self::RefusedParameter { reason, .. }
            | Self::Overflow(reason)
            | Self::Account(reason)
            | Self::Unreadable(reason)
            | Self::Permanent(reason) => reason,
        }
    }

    /// What the sender of a message may be told: half a sentence of ours, no word of the provider's.
    #[must_use]
    pub fn told(&self) -> &'static str {
        match self {
            Self::Transient { .. } => "the model is unavailable for now",
            Self::Interrupted { .. } => "the model's answer broke off",
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
        matches!(self, Self::Transient { .. } | Self::Interrupted { .. } | Self::Unreadable(_))
    }
}

/// The port.
#[async_trait]
pub trait Llm: Send + Sync {
    /// Asks this one model, until `until`. Whom to ask instead, and when to ask again later, is the caller's affair.
    ///
    /// What concerns this model alone happens inside (design §6.8): a parameter that it refuses is spelled otherwise or
    /// left out, once each, and so from then on; a connection that ended before any byte is opened again; a 52x and a
    /// 200 that cannot be read are asked again once.
    ///
    /// # Errors
    /// See [`LlmError`]; the time being up is [`LlmError::Transient`], or [`LlmError::Interrupted`] where something
    /// had come by then.
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError>;
}
