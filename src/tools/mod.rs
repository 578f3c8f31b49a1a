//! The `Tool` port: what the model can do.
//!
//! A tool has a typed argument struct, from which its schema is derived, a [`Class`], a lowest [`Tier`] and a cap on
//! the size of its result. [`registry::Registry`] holds them by name, offers those that a run may use, and runs calls.

mod agent_identity;
#[cfg(test)]
mod fixture;
mod nostr_admin_profile;
mod nostr_post;
mod nostr_query;
pub mod outside;
mod reference;
pub mod registry;
mod schema;
pub mod time;

use async_trait::async_trait;
use nostr::prelude::{Coordinate, Event, Kind, PublicKey, Tag, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use crate::relay::{PublishReport, Relays, Target};
use crate::state::AgentState;
use crate::trigger::Tier;

/// What a tool does to the world (design §8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Reads from the store or from our own relays.
    Read,
    /// Publishes or stores something.
    Write,
}

/// What a tool may use while it runs.
pub struct ToolContext<'a> {
    /// The run's admin.
    pub admin: PublicKey,
    /// What the agent knows of itself and its admin.
    pub state: &'a AgentState,
    /// The relays.
    pub relays: &'a dyn Relays,
    /// Our own relays to read from: `DIDACTYL_RELAYS` and the agent's read relays.
    pub read_targets: &'a [Target],
    /// Sends events so that nothing is sent twice.
    pub publisher: &'a dyn Publisher,
    /// Our clock.
    pub now: Timestamp,
    /// When the call must have ended.
    pub until: Instant,
}

/// An event that a tool wants published. Its time and signature are the publisher's affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The kind.
    pub kind: Kind,
    /// The content.
    pub content: String,
    /// The tags.
    pub tags: Vec<Tag>,
}

impl Draft {
    /// Where the event will lie, if it replaces older versions of itself (NIP-01).
    #[must_use]
    pub fn address(&self, author: PublicKey) -> Option<Coordinate> {
        let d = self.tags.iter().find(|tag| tag.kind() == "d").and_then(Tag::content).unwrap_or_default();
        let coordinate = Coordinate::new(self.kind, author);
        match self.kind {
            kind if kind.is_addressable() => Some(coordinate.identifier(d)),
            kind if kind.is_replaceable() => Some(coordinate),
            _ => None,
        }
    }
}

/// Publishes a tool's event: signed once, saved under the call, then sent. A call that is run again after a crash
/// gets the event of the first time, and the same id is sent.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Takes the draft, or the event that an earlier try of this very call saved, to the agent's write relays. A new
    /// version of a replaceable or addressable event is dated after the one it replaces.
    ///
    /// # Errors
    /// [`ToolError::Run`] where it could not be saved: then nothing was sent. [`ToolError::Model`] where it cannot be
    /// dated after the version it replaces.
    async fn publish(&self, draft: Draft) -> Result<(Event, Vec<PublishReport>), ToolError>;
}

/// Why a tool gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// For the model, in words that it can act on: becomes `{"success":false,"error":…}`.
    #[error("{0}")]
    Model(String),
    /// Ends this attempt of the run; the text is for the operator.
    #[error("{0}")]
    Run(#[from] crate::error::Error),
}

/// The port.
#[async_trait]
pub trait Tool: Send + Sync {
    /// The name the model calls it by.
    fn name(&self) -> &'static str;
    /// When to use it, for the model.
    fn description(&self) -> &'static str;
    /// JSON schema of the arguments.
    fn parameters(&self) -> Value;
    /// What it does to the world.
    fn class(&self) -> Class;
    /// The lowest tier that may use it.
    fn lowest_tier(&self) -> Tier;
    /// Whether templates may name it as a variable: it only reads what is at hand, and needs no argument.
    fn is_variable(&self) -> bool {
        false
    }
    /// Whether a call may be made again where nobody knows whether it took effect: it only reads, or does nothing but publish
    /// through [`ToolContext::publisher`], which sends the same event. A call of another tool is made once at the most, and
    /// where its process died meanwhile the model is told that nobody knows what came of it. Such a tool answers
    /// [`ToolError::Model`] where it knows that nothing was done.
    fn is_repeatable(&self) -> bool {
        true
    }
    /// The most bytes of its result as JSON.
    fn max_result_bytes(&self) -> usize {
        16_000
    }
    /// Does it.
    ///
    /// # Errors
    /// See [`ToolError`].
    async fn call(&self, arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError>;
}
