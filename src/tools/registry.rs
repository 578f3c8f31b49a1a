//! The tools by name: which of them a run is offered, and the running of a call.
//!
//! What a run may not use is refused here too: a model may call what it was never offered.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::outside::{clean, clean_value};
use super::{Class, Tool, ToolContext, ToolError};
use super::{agent_identity, nostr_admin_profile, nostr_post, nostr_query, time};
use crate::chat::{ToolCall, ToolSchema};
use crate::context::excerpt;
use crate::context::markdown::cut;
use crate::error::Error;
use crate::trigger::Tier;

/// Tools by name.
pub struct Registry(BTreeMap<&'static str, Box<dyn Tool>>);

impl Registry {
    /// The agent's tools.
    #[must_use]
    pub fn standard() -> Self {
        Self::of(vec![
            Box::new(agent_identity::AgentIdentity),
            Box::new(nostr_admin_profile::NostrAdminProfile),
            Box::new(nostr_post::NostrPost),
            Box::new(nostr_query::NostrQuery),
            Box::new(time::Time),
        ])
    }

    /// These tools.
    #[must_use]
    pub fn of(tools: Vec<Box<dyn Tool>>) -> Self {
        Self(tools.into_iter().map(|tool| (tool.name(), tool)).collect())
    }

    /// What a run of this tier is offered, by name. A tainted run only reads: text that nobody trusted wrote takes
    /// part in it.
    #[must_use]
    pub fn schemas(&self, tier: Tier, tainted: bool) -> Vec<ToolSchema> {
        let offered = self.0.values().filter(|tool| may_use(tool.as_ref(), tier, tainted));
        offered
            .map(|tool| ToolSchema {
                name: tool.name().to_owned(),
                description: tool.description().to_owned(),
                parameters: tool.parameters(),
            })
            .collect()
    }

    /// The tools that templates may name, and the lowest tier that each is for.
    #[must_use]
    pub fn variables(&self) -> BTreeMap<String, Tier> {
        let variables = self.0.values().filter(|tool| tool.is_variable());
        variables.map(|tool| (tool.name().to_owned(), tool.lowest_tier())).collect()
    }

    /// Whether these calls only read. Then their order does not matter.
    #[must_use]
    pub fn only_read(&self, calls: &[ToolCall]) -> bool {
        calls.iter().all(|call| self.0.get(call.name.as_str()).is_none_or(|tool| tool.class() == Class::Read))
    }

    /// Whether this call may be made again where nobody knows whether it took effect: see [`Tool::is_repeatable`].
    #[must_use]
    pub fn is_repeatable(&self, call: &ToolCall) -> bool {
        self.0.get(call.name.as_str()).is_none_or(|tool| tool.class() == Class::Read || tool.is_repeatable())
    }

    /// What a template's variable becomes: the content of the tool's result.
    ///
    /// # Errors
    /// [`ToolError`] where there is none.
    pub async fn value(&self, name: &str, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        let tool = self.0.get(name).filter(|tool| tool.is_variable());
        let tool = tool.ok_or_else(|| ToolError::Model("there is no such variable".into()))?;
        tool.call(Value::Object(Map::new()), context).await.map(clean_value)
    }

    /// Runs a call. The result is JSON text, `{"success":true,"content":…}` or `{"success":false,"error":…}`, free of
    /// hidden characters and at most the tool's cap long.
    ///
    /// # Errors
    /// What ends this attempt of the run; what the model can act on is a result.
    pub async fn call(
        &self,
        call: &ToolCall,
        context: &ToolContext<'_>,
        tier: Tier,
        tainted: bool,
    ) -> Result<String, Error> {
        let Some(tool) = self.0.get(call.name.as_str()) else {
            return Ok(failure("there is no such tool"));
        };
        if !may_use(tool.as_ref(), tier, tainted) {
            return Ok(failure("this tool may not be used in this run"));
        }
        let arguments = match serde_json::from_str::<Map<String, Value>>(&call.arguments) {
            Ok(arguments) => Value::Object(arguments),
            Err(error) => return Ok(failure(&format!("invalid JSON arguments: {error}"))),
        };
        match tool.call(arguments, context).await {
            Ok(content) => Ok(excerpt::content_in(&clean_value(content), tool.max_result_bytes())),
            Err(ToolError::Model(error)) => Ok(failure(&error)),
            Err(ToolError::Run(error)) => Err(error),
        }
    }
}

fn may_use(tool: &dyn Tool, tier: Tier, tainted: bool) -> bool {
    tier >= tool.lowest_tier() && (!tainted || tool.class() == Class::Read)
}

fn failure(error: &str) -> String {
    const MAX_ERROR_BYTES: usize = 4000;
    json!({"success": false, "error": cut(&clean(error), MAX_ERROR_BYTES)}).to_string()
}

#[cfg(test)]
mod tests;
