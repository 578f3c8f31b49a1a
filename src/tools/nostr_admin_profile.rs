//! `nostr_admin_profile`: the admin's profile (kind 0), as last read from the relays.

use async_trait::async_trait;
use serde_json::Value;

use super::schema::{NoArguments, schema_of};
use super::{Class, Tool, ToolContext, ToolError};
use crate::trigger::Tier;

/// The tool.
pub(super) struct NostrAdminProfile;

#[async_trait]
impl Tool for NostrAdminProfile {
    fn name(&self) -> &'static str {
        "nostr_admin_profile"
    }

    fn description(&self) -> &'static str {
        "The profile of your admin as published on Nostr: name, about, picture, NIP-05 and so on."
    }

    fn parameters(&self) -> Value {
        schema_of::<NoArguments>()
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn lowest_tier(&self) -> Tier {
        Tier::Admin
    }

    fn is_variable(&self) -> bool {
        true
    }

    async fn call(&self, _arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        match context.state.profile(context.admin) {
            Some(profile) => Ok(Value::Object(profile)),
            None => Err(ToolError::Model("no readable profile of the admin was found on the relays".into())),
        }
    }
}
