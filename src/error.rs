//! Errors of an invocation: what a retry can help, and what it cannot.

use crate::store::StoreError;

/// Why a trigger could not be worked to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A retry can help: the trigger stays claimable and Lambda is told so. The text is for the log.
    #[error("{0}")]
    Transient(String),
    /// A retry can help, and somebody comes for it: the run is stored, given back, and due. The text is for the log.
    #[error("{0}")]
    GivenBack(String),
    /// No retry helps. The text is for the log.
    #[error("{0}")]
    Permanent(String),
    /// There is no answer, for a reason that the sender is told. No word of it comes from outside.
    #[error("{reason}")]
    NoAnswer {
        /// Half a sentence: "the model is unavailable for now".
        reason: &'static str,
        /// Whether the model may answer later: see [`crate::outage`].
        transient: bool,
    },
    /// An admin stopped the agent: the run goes on when that is over.
    #[error("the agent is stopped")]
    Stopped,
    /// The time of this invocation is used up, and the run is not at its end.
    #[error("the time for it was used up")]
    OutOfTime {
        /// Whether this invocation brought the run further, so that the next one will too.
        has_progress: bool,
    },
    /// A row of a newer format: it is left to newer binaries. The text is for the log.
    #[error("{0}")]
    Newer(String),
    /// Another process owns the run: it was taken over while we were at work. What we did is discarded.
    #[error("the run was taken over by another process")]
    TakenOver,
}

impl Error {
    /// Whether handing the same thing over again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Transient(_)
                | Self::GivenBack(_)
                | Self::TakenOver
                | Self::OutOfTime { .. }
                | Self::NoAnswer { transient: true, .. }
        )
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::Transient(error.to_string()),
            StoreError::Invalid(_) => Self::Permanent(error.to_string()),
            StoreError::Conflict { .. } => Self::TakenOver,
        }
    }
}
