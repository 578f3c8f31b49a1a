//! Carries out what a [`Run`] asks for, within the deadline: the one place where a run does I/O.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde::Serialize;

use crate::app::App;
use crate::chat::{ChatAnswer, ChatRequest, ToolCall};
use crate::clock::{Deadline, Stopwatch};
use crate::context::Context;
use crate::error::Error;
use crate::llm::LlmError;
use crate::load;
use crate::record::Claim;
use crate::relay::Target;
use crate::run::journal::{Journal, fit};
use crate::run::publisher::{CallPublisher, Versions};
use crate::run::{Run, Step, ToolResult};
use crate::state::AgentState;
use crate::store::keys::{self, Place};
use crate::tools::ToolContext;
use crate::trigger::Trigger;

/// How long one tool call may take.
pub const TOOL_SLICE: Duration = Duration::from_secs(10);

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
    let model = app.config.providers.first_usable(&chain).map_err(|error| {
        tracing::warn!(%error, "no model can be asked");
        Error::NoAnswer { reason: "no model that the skill asks for can be used", transient: false }
    })?;
    let mut run = Run::new(context.messages, context.tools, context.params, model.id(), context.max_turns);

    let read_targets = load::read_targets(app, state);
    let driver = Driver {
        app,
        trigger,
        state,
        claim: &*claim,
        journal,
        read_targets,
        deadline,
        versions: Versions::default(),
    };
    let (mut model_ms, mut tools_ms) = (0, 0);
    let result = driver.to_the_end(&mut run, &mut model_ms, &mut tools_ms).await;

    claim.record.note_step("model", model_ms);
    claim.record.note_step("tools", tools_ms);
    claim.record.model = Some(run.model_used().to_owned());
    claim.record.turns = u32::try_from(run.turns().len()).unwrap_or(u32::MAX);
    claim.record.usage = run.usage();
    claim.record.tool_calls =
        run.turns().iter().flat_map(|turn| &turn.tool_calls).map(|call| call.name.clone()).collect();
    result
}

/// What the steps of one run need.
pub(super) struct Driver<'a> {
    pub(super) app: &'a App,
    trigger: &'a Trigger,
    pub(super) state: &'a AgentState,
    claim: &'a Claim,
    journal: Journal,
    pub(super) read_targets: Vec<Target>,
    pub(super) deadline: Deadline,
    pub(super) versions: Versions,
}

impl Driver<'_> {
    async fn to_the_end(
        &self,
        run: &mut Run,
        model_ms: &mut u64,
        tools_ms: &mut u64,
    ) -> Result<String, Error> {
        let mut watch = Stopwatch::start();
        loop {
            let turn = u32::try_from(run.turns().len()).unwrap_or(u32::MAX);
            match run.next() {
                Step::CallModel(request) => {
                    let answer = self.ask_model(turn.saturating_add(1), &request).await?;
                    run.model_answered(answer);
                    *model_ms = model_ms.saturating_add(watch.lap_ms());
                }
                Step::CallTools(calls) => {
                    // By their place in the model's answer: which of its calls are run depends on the tools on offer.
                    let place = |call: &ToolCall| {
                        run.turns().last()?.tool_calls.iter().position(|recorded| recorded.id == call.id)
                    };
                    let placed = calls.iter().map(|call| (place(call).unwrap_or_default(), call));
                    let results =
                        try_join_all(placed.map(|(at, call)| self.call_tool(turn, at, call))).await?;
                    run.tools_answered(results);
                    *tools_ms = tools_ms.saturating_add(watch.lap_ms());
                }
                Step::Done { text } => return Ok(text),
                Step::Failed { reason } => return Err(Error::Permanent(reason)),
            }
        }
    }

    /// The model's answer, from the journal where an earlier attempt has heard it. A final answer needs no row: it is
    /// saved as the reply right after.
    async fn ask_model(&self, turn: u32, request: &ChatRequest<'_>) -> Result<ChatAnswer, Error> {
        if let Some(answer) = self.journal.answer(turn) {
            return Ok(answer.clone());
        }
        let answer = self.app.llm.complete(request, self.deadline.work_until()).await.map_err(model_error)?;
        if answer.tool_calls.is_empty() {
            return Ok(answer);
        }
        let answer = fit(answer)?;
        self.append(Place::Answer(turn), &answer).await?;
        Ok(answer)
    }

    async fn call_tool(&self, turn: u32, index: usize, call: &ToolCall) -> Result<ToolResult, Error> {
        if let Some(result) = self.journal.result(turn, index) {
            return Ok(result.clone());
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
        let content = self.app.tools.call(call, &context, self.trigger.tier, self.trigger.tainted).await?;
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

/// What a model's refusal means for the run. A provider may quote the prompt in its words, so they are for the eyes of who
/// asks for them.
fn model_error(error: LlmError) -> Error {
    tracing::warn!(
        reason = error.told(),
        "the model did not answer; its provider's words are logged at level debug"
    );
    tracing::debug!(%error, "the model did not answer");
    Error::NoAnswer { reason: error.told(), transient: error.is_transient() }
}
