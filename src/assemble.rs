//! From what is known to what the model sees: the variables' values are fetched, the rest is [`crate::context`]'s.

use async_trait::async_trait;
use futures_util::future::join_all;
use nostr::prelude::Event;

use crate::app::App;
use crate::chat::Params;
use crate::clock::Deadline;
use crate::context::{self, Context, Defaults, Input};
use crate::history;
use crate::load::Loaded;
use crate::relay::PublishReport;
use crate::run::driver::TOOL_SLICE;
use crate::tools::{Draft, Publisher, ToolContext, ToolError};
use crate::trigger::Trigger;

/// The most model calls of a run that may use tools, where no skill asks for fewer.
const MAX_TURNS: u32 = 16;

/// The context that the model will see: the names of its variables, their values together, then the pure assembly.
pub async fn assemble(app: &App, trigger: &Trigger, loaded: &Loaded, deadline: Deadline) -> Context {
    let state = &loaded.state;
    let entries = app.tools.variables();
    let tools = ToolContext {
        admin: trigger.admin,
        state,
        relays: app.relays.as_ref(),
        read_targets: &[],
        publisher: &ReadOnly,
        now: app.clock.now(),
        until: deadline.slice(TOOL_SLICE),
    };
    let names = context::names(state, trigger, &entries);
    let values = join_all(names.into_iter().map(async |name| {
        let value = app.tools.value(&name, &tools).await;
        value
            .inspect_err(|error| tracing::info!(variable = %name, %error, "a variable is empty"))
            .ok()
            .map(|value| (name, value))
    }))
    .await;
    let context = context::assemble(&Input {
        state,
        trigger,
        history: &history::as_chat(&loaded.history),
        entries: &entries,
        values: &values.into_iter().flatten().collect(),
        defaults: &Defaults {
            model_chain: app.config.llm.to_string(),
            params: Params::default(),
            max_turns: MAX_TURNS,
        },
        tools: &app.tools.schemas(trigger.tier, trigger.tainted),
    });
    for warning in &context.warnings {
        tracing::warn!(%warning, "the context");
    }
    context
}

/// For templates: a variable only reads.
struct ReadOnly;

#[async_trait]
impl Publisher for ReadOnly {
    async fn publish(&self, _draft: Draft) -> Result<(Event, Vec<PublishReport>), ToolError> {
        Err(ToolError::Model("a variable publishes nothing".to_owned()))
    }
}
