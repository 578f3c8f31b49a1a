//! The `Tool` port: what the model can do.
//!
//! A tool has a typed argument struct, from which its schema is derived, a [`Class`], a lowest [`Tier`] and a cap on
//! the size of its result. [`registry::Registry`] holds them by name, offers those that a run may use, and runs calls.

pub mod agent_identity;
pub mod nostr_admin_profile;
pub mod nostr_post;
pub mod nostr_query;
pub mod registry;
pub mod time;

use async_trait::async_trait;
use nostr::prelude::{Event, Keys, PublicKey, Timestamp};
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
    /// The agent's keys, for tools that read sealed events. Never in a result.
    pub keys: &'a Keys,
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

/// Publishes a tool's event: signed once, saved under the call, then sent. A call that is run again after a crash
/// gets the event of the first time, and the same id is sent.
#[async_trait]
pub trait Publisher: Send + Sync {
    /// Takes `make`'s event, or the one saved by an earlier try of this very call, to the agent's write relays.
    ///
    /// # Errors
    /// [`ToolError::Run`] where it could not be saved: then nothing was sent.
    async fn publish(
        &self,
        make: &(dyn Fn() -> Result<Event, ToolError> + Sync),
    ) -> Result<(Event, Vec<PublishReport>), ToolError>;
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
