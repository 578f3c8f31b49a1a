//! From what is known to what the model sees: the variables' values are fetched, the rest is [`crate::context`]'s.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use futures_util::future::join_all;
use nostr::prelude::Event;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::chat::Params;
use crate::clock::Deadline;
use crate::context::{self, Context, Defaults, Input};
use crate::history;
use crate::load::Loaded;
use crate::relay::PublishReport;
use crate::run::calls::TOOL_SLICE;
use crate::state::AgentState;
use crate::tools::{Draft, Publisher, ToolContext, ToolError};
use crate::trigger::Trigger;
use crate::warnings;

/// The context that the model will see: the names of its variables, their values together, then the pure assembly.
pub async fn assemble(app: &App, trigger: &Trigger, loaded: &Loaded, deadline: Deadline) -> Context {
    let state = &loaded.state;
    let entries = app.tools.variables();
    let names = context::names(state, trigger, &entries);
    let (values, lacking) = fetch(app, trigger, state, names, deadline.slice(TOOL_SLICE)).await;
    let mut context = context::assemble(&Input {
        state,
        trigger,
        history: &history::as_chat(&loaded.history),
        entries: &entries,
        values: &values,
        defaults: &Defaults {
            model_chain: app.config.llm.to_string(),
            params: Params::default(),
            max_turns: app.config.max_turns,
        },
        tools: &app.tools.schemas(trigger.tier, trigger.tainted),
    });
    context.warnings.splice(0..0, state.warnings.iter().cloned());
    context.warnings.extend(lacking);
    warnings::limit(&mut context.warnings);
    for warning in &context.warnings {
        tracing::warn!(%warning, "the context");
    }
    context
}

/// Asks all tools side by side, until `until`. One that fails or is late costs its own variable alone, and is told.
async fn fetch(
    app: &App,
    trigger: &Trigger,
    state: &AgentState,
    names: BTreeSet<String>,
    until: Instant,
) -> (BTreeMap<String, Value>, Vec<String>) {
    let tools = ToolContext {
        admin: trigger.admin,
        state,
        relays: app.relays.as_ref(),
        read_targets: &[],
        publisher: &ReadOnly,
        now: app.clock.now(),
        until,
    };
    let answers = join_all(names.iter().map(|name| timeout_at(until, app.tools.value(name, &tools)))).await;
    let (mut values, mut lacking) = (BTreeMap::new(), Vec::new());
    for (name, answer) in names.into_iter().zip(answers) {
        match answer {
            Ok(Ok(value)) => drop(values.insert(name, value)),
            Ok(Err(error)) => {
                // What the error says may quote somebody's text.
                tracing::info!(variable = %name, %error, "a variable is empty");
                lacking.push(format!("the tool {name} failed, its variable is empty"));
            }
            Err(_) => lacking.push(format!("the tool {name} did not answer in time, its variable is empty")),
        }
    }
    (values, lacking)
}

/// For templates: a variable only reads.
struct ReadOnly;

#[async_trait]
impl Publisher for ReadOnly {
    async fn publish(&self, _draft: Draft) -> Result<(Event, Vec<PublishReport>), ToolError> {
        Err(ToolError::Model("a variable publishes nothing".to_owned()))
    }
}
