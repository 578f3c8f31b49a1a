//! How a run's tool calls are made: each once its place in the journal says that it is to be made, and with its result there
//! before the next step.

use std::sync::OnceLock;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::json;
use tokio::time::timeout_at;

use crate::chat::ToolCall;
use crate::error::Error;
use crate::run::driver::Driver;
use crate::run::guards;
use crate::run::journal::Answered;
use crate::run::publisher::CallPublisher;
use crate::run::{Run, ToolResult};
use crate::store::keys::Place;
use crate::tools::ToolContext;

/// How long one tool call may take.
pub(crate) const TOOL_SLICE: Duration = Duration::from_secs(10);

/// How much longer a tool is waited for that does not mind its time.
const TOOL_GRACE: Duration = Duration::from_millis(500);

impl Driver<'_> {
    /// Side by side where all only read; in the model's order where one does more.
    pub(super) async fn call_tools(&self, run: &Run, calls: &[ToolCall]) -> Result<Vec<ToolResult>, Error> {
        let turn = u32::try_from(run.turns().len()).unwrap_or(u32::MAX);
        // By their place in the model's answer: which of its calls are run depends on the tools on offer.
        let place = |call: &ToolCall| {
            run.turns().last()?.tool_calls.iter().position(|recorded| recorded.id == call.id)
        };
        let placed = calls.iter().map(|call| (place(call).unwrap_or_default(), call));
        if self.app.tools.only_read(calls) {
            return try_join_all(placed.map(|(at, call)| self.call_tool(turn, at, call))).await;
        }
        let mut results = Vec::new();
        for (at, call) in placed {
            results.push(self.call_tool(turn, at, call).await?);
        }
        Ok(results)
    }

    /// What came of a call, from the journal where it is there.
    async fn call_tool(&self, turn: u32, index: usize, call: &ToolCall) -> Result<ToolResult, Error> {
        if let Some(result) = self.journal.result(turn, index) {
            return Ok(result.clone());
        }
        let place = Place::Result(turn, index);
        if self.journal.is_begun(turn, index) {
            let result = ToolResult { call_id: call.id.clone(), content: guards::unknown_outcome() };
            self.append(place, &result).await?;
            return Ok(result);
        }
        self.may_go_on()?;
        self.check_time()?;
        if self.app.tools.is_repeatable(call) {
            let answered = self.make_call(turn, index, call).await?;
            self.append(place, &answered).await?;
            return Ok(answered.result);
        }
        self.begin(turn, index, call).await?;
        let answered = self.make_call(turn, index, call).await?;
        self.append(place, &answered).await?;
        if answered.result.content != guards::unknown_outcome() {
            // It is the last that began.
            self.unknown_calls.lock().await.pop();
        }
        Ok(answered.result)
    }

    /// Writes down that a call begins which is not made twice: whoever finds that and no result calls nothing. Nobody looks here
    /// whether the agent was stopped: after this the call counts as made, so it is made.
    async fn begin(&self, turn: u32, index: usize, call: &ToolCall) -> Result<(), Error> {
        self.write_down(Place::Begun(turn, index), &call.name).await?;
        self.unknown_calls.lock().await.push((turn, call.name.clone()));
        Ok(())
    }

    async fn make_call(&self, turn: u32, index: usize, call: &ToolCall) -> Result<Answered, Error> {
        let until = self.deadline.slice(TOOL_SLICE);
        let publisher = CallPublisher {
            driver: self,
            place: Place::Effect(turn, index),
            saved: self.journal.effect(turn, index),
            until,
            sent: OnceLock::new(),
        };
        let context = ToolContext {
            admin: self.trigger.admin,
            state: self.state,
            relays: self.app.relays.as_ref(),
            read_targets: &self.read_targets,
            publisher: &publisher,
            now: self.app.clock.now(),
            until,
        };
        let result = self.app.tools.call(call, &context, self.trigger.tier, self.trigger.tainted);
        let content = match timeout_at(until + TOOL_GRACE, result).await {
            Ok(content) => content?,
            Err(_) => self.took_too_long(call),
        };
        let result = ToolResult { call_id: call.id.clone(), content };
        Ok(Answered { result, deliveries: publisher.deliveries().await })
    }

    /// The result of a call that was broken off.
    fn took_too_long(&self, call: &ToolCall) -> String {
        let tools = &self.app.tools;
        let error = match (tools.is_repeatable(call), tools.only_read(std::slice::from_ref(call))) {
            (false, _) => return guards::unknown_outcome(),
            (true, true) => "it took too long; ask for less at a time",
            (true, false) => {
                "it took too long; whether it took effect is not known: look before you try again"
            }
        };
        json!({"success": false, "error": error}).to_string()
    }
}
