//! Errors of an invocation: what a retry can help, and what it cannot.

use crate::store::StoreError;

/// Why a trigger could not be worked to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A retry can help: the trigger stays claimable and Lambda is told so.
    #[error("{0}")]
    Transient(String),
    /// No retry helps.
    #[error("{0}")]
    Permanent(String),
    /// Another process owns the run: it was taken over while we were at work. What we did is discarded.
    #[error("the run was taken over by another process")]
    TakenOver,
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
