//! What the agent knows of itself and its admin: soul, adopted skills, profiles, relay lists.
use nostr::prelude::PublicKey;

/// Built from events by `load`.
pub struct AgentState {
    /// The agent's key.
    pub agent: PublicKey,
}
