//! `agent_identity`: who the agent is.

use async_trait::async_trait;
use nostr::prelude::ToBech32;
use serde_json::{Value, json};

use super::schema::{NoArguments, schema_of};
use super::{Class, Tool, ToolContext, ToolError};
use crate::trigger::Tier;

/// The tool.
pub(super) struct AgentIdentity;

#[async_trait]
impl Tool for AgentIdentity {
    fn name(&self) -> &'static str {
        "agent_identity"
    }

    fn description(&self) -> &'static str {
        "Your own identity on Nostr: npub, public key in hex, and name."
    }

    fn parameters(&self) -> Value {
        schema_of::<NoArguments>()
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn lowest_tier(&self) -> Tier {
        Tier::Stranger
    }

    fn is_variable(&self) -> bool {
        true
    }

    async fn call(&self, _arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        let agent = context.state.agent;
        let Ok(npub) = agent.to_bech32();
        Ok(json!({"npub": npub, "hex": agent.to_hex(), "name": context.state.name}))
    }
}
