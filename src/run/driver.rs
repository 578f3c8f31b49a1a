//! Carries out what a [`Run`] asks for, within the deadline: the one place where a run does I/O.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::app::App;
use crate::chat::ToolCall;
use crate::clock::{Deadline, Stopwatch};
use crate::context::Context;
use crate::error::Error;
use crate::llm::fallback::Fallback;
use crate::load;
use crate::record::{Claim, Delivery};
use crate::relay::Target;
use crate::run::journal::Journal;
use crate::run::ledger::Ledger;
use crate::run::publisher::{CallPublisher, Versions};
use crate::run::{Run, Step, ToolResult};
use crate::snapshots::Recorder;
use crate::state::AgentState;
use crate::store::keys::{self, Place};
use crate::tools::ToolContext;
use crate::trigger::Trigger;

/// How long one tool call may take.
pub const TOOL_SLICE: Duration = Duration::from_secs(10);

/// How much longer a tool is waited for that does not mind its time.
const TOOL_GRACE: Duration = Duration::from_millis(500);

/// Takes a run from its context to its final text. The record learns what took part.
///
/// # Errors
/// [`Error::Transient`] where a later attempt may succeed, [`Error::Permanent`] where none can, [`Error::TakenOver`].
pub async fn drive(
    app: &App,
    trigger: &Trigger,
    state: &AgentState,
    context: Context,
    claim: &mut Claim,
    journal: Journal,
    deadline: Deadline,
) -> Result<String, Error> {
    claim.record.skills =
        context.skills.iter().map(|skill| (skill.coordinate.to_string(), skill.event_id)).collect();
    let chain = app.config.providers.chain(&context.model_chain, &app.config.llm);
    let first = app.config.providers.first_usable(&chain).map_err(|error| {
        tracing::warn!(%error, "no model can be asked");
        Error::NoAnswer { reason: "no model that the skill asks for can be used", transient: false }
    })?;
    let snapshots = Recorder::new(app, trigger, &claim.record.run_id, &context);
    let usable = chain.entries().iter().filter_map(|id| app.config.providers.model(id).ok());
    let fallback = Fallback::new(usable.map(|model| model.id()));
    let mut run = Run::new(context.messages, context.tools, context.params, first.id(), context.max_turns);

    let mut ledger = Ledger::new(&app.config.providers, &mut claim.record);
    journal.spends().for_each(|spent| ledger.spent(spent.clone()));
    let deliveries = std::mem::take(&mut claim.record.deliveries);
    let mut driver = Driver {
        app,
        trigger,
        state,
        claim: &*claim,
        journal,
        read_targets: load::read_targets(app, state),
        deadline,
        versions: Versions::default(),
        fallback,
        ledger,
        snapshots,
        deliveries: Mutex::new(deliveries),
    };
    let (mut model_ms, mut tools_ms) = (0, 0);
    let result = driver.drive_to_the_end(&mut run, &mut model_ms, &mut tools_ms).await;

    let (attempts, usage, cost_micro_usd) = driver.ledger.into_sums();
    let deliveries = driver.deliveries.into_inner();
    let record = &mut claim.record;
    record.deliveries = deliveries;
    record.note_step("model", model_ms);
    record.note_step("tools", tools_ms);
    record.model = Some(run.model_used().to_owned());
    record.turns = u32::try_from(run.turns().len()).unwrap_or(u32::MAX);
    (record.attempts, record.usage, record.cost_micro_usd) = (attempts, usage, cost_micro_usd);
    record.tool_calls =
        run.turns().iter().flat_map(|turn| &turn.tool_calls).map(|call| call.name.clone()).collect();
    result
}

/// What the steps of one run need.
pub(super) struct Driver<'a> {
    pub(super) app: &'a App,
    trigger: &'a Trigger,
    pub(super) state: &'a AgentState,
    claim: &'a Claim,
    pub(super) journal: Journal,
    pub(super) read_targets: Vec<Target>,
    pub(super) deadline: Deadline,
    pub(super) versions: Versions,
    pub(super) fallback: Fallback,
    pub(super) ledger: Ledger<'a>,
    pub(super) snapshots: Recorder<'a>,
    /// What relays said to the events of tools.
    pub(super) deliveries: Mutex<Vec<Delivery>>,
}

impl Driver<'_> {
    async fn drive_to_the_end(
        &mut self,
        run: &mut Run,
        model_ms: &mut u64,
        tools_ms: &mut u64,
    ) -> Result<String, Error> {
        let mut watch = Stopwatch::start();
        loop {
            match run.next() {
                Step::CallModel(_) => {
                    self.ask_model(run).await?;
                    *model_ms = model_ms.saturating_add(watch.lap_ms());
                }
                Step::CallTools(calls) => {
                    let results = self.call_tools(run, &calls).await?;
                    run.tools_answered(results);
                    *tools_ms = tools_ms.saturating_add(watch.lap_ms());
                }
                Step::Done { text } => return Ok(text),
                Step::Failed { reason } => return Err(Error::Permanent(reason)),
            }
        }
    }

    /// Side by side where all only read; in the model's order where one does more.
    async fn call_tools(&self, run: &Run, calls: &[ToolCall]) -> Result<Vec<ToolResult>, Error> {
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

    async fn call_tool(&self, turn: u32, index: usize, call: &ToolCall) -> Result<ToolResult, Error> {
        if let Some(result) = self.journal.result(turn, index) {
            return Ok(result.clone());
        }
        if Instant::now() >= self.deadline.work_until() {
            return Err(Error::NoAnswer { reason: "the time for it was used up", transient: true });
        }
        let until = self.deadline.slice(TOOL_SLICE);
        let publisher = CallPublisher {
            driver: self,
            place: Place::Effect(turn, index),
            saved: self.journal.effect(turn, index),
            until,
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
            Err(_) => {
                let read = "it took too long; ask for less at a time";
                let wrote =
                    "it took too long; whether it took effect is not known: look before you try again";
                let only_read = self.app.tools.only_read(std::slice::from_ref(call));
                json!({"success": false, "error": if only_read { read } else { wrote }}).to_string()
            }
        };
        let result = ToolResult { call_id: call.id.clone(), content };
        self.append(Place::Result(turn, index), &result).await?;
        Ok(result)
    }

    /// Writes a row of the journal, if the run is still ours.
    pub(super) async fn append<T: Serialize>(&self, place: Place, value: &T) -> Result<(), Error> {
        let record = &self.claim.record;
        let write = self.app.put_sealed(keys::journal(&record.run_id, place), value, record.expires_at)?;
        self.claim.append(self.app, vec![write]).await
    }
}
