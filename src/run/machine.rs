//! The machine: which step is next, and what its outcome changes. No I/O, no clock, no randomness.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::guards;
use crate::chat::{
    ArgumentsError, ChatAnswer, ChatRequest, FinishReason, Message, Params, ToolCall, ToolChoice, ToolSchema,
};
use crate::context::compaction::{Compaction, Log};

/// The answer where the model's final text is empty, twice.
const EMPTY_TEXT: &str = "I have nothing to say to that: the model gave an empty answer. Please ask again.";

/// The answer where the model still wants tools when no turn is left.
const OUT_OF_TURNS: &str = "I used up all the steps I may take for one message and did not finish. Ask me to go on, or for a smaller part.";

/// How often a run advises its model to send a shorter call.
const MAX_CUT_OFFS: u32 = 2;

/// How often a run asks again after an empty answer.
const MAX_EMPTY: u32 = 1;

/// A run as it stands. Equal inputs in equal order make an equal run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    log: Log,
    tools: Vec<ToolSchema>,
    params: Params,
    model: String,
    max_turns: u32,
    turns: Vec<Turn>,
    /// Answers with calls that were cut off.
    cut_offs: u32,
    /// Answers with neither calls nor text.
    empty: u32,
    /// The model cannot use tools, or has used up its turns: one last call is left.
    tools_are_over: bool,
    state: State,
}

/// What the run waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
enum State {
    Model,
    /// The last turn of [`Run::turns`] has calls without a result.
    Tools,
    Done {
        text: String,
    },
    Failed {
        reason: String,
    },
}

/// A turn as the run's record shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// 1 for the first.
    pub turn: u32,
    /// The model's text, perhaps empty.
    pub assistant: String,
    /// The calls that were taken up, in the model's order.
    pub tool_calls: Vec<RecordedCall>,
}

/// A call and its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// Unique within the run.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as the model wrote them.
    pub arguments: String,
    /// See [`ToolCall::signature`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The result as JSON text; `None` until it is there.
    pub result: Option<String>,
}

impl RecordedCall {
    /// The call as the messages show it: see [`guards::presentable`].
    pub(super) fn call(&self) -> ToolCall {
        guards::presentable(ToolCall {
            id: self.id.clone(),
            name: self.name.clone(),
            arguments: self.arguments.clone(),
            signature: self.signature.clone(),
        })
    }
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    pub call_id: String,
    /// JSON text: `{"success":true,"content":…}` or `{"success":false,"error":…}`.
    pub content: String,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<'a> {
    /// Ask the model and tell [`Run::model_answered`].
    CallModel(ChatRequest<'a>),
    /// Run these calls and tell [`Run::tools_answered`]. Each is of a tool on offer, with the text of a JSON object.
    CallTools(Vec<ToolCall>),
    /// The run has its answer; the text is not empty.
    Done {
        /// The answer.
        text: String,
    },
    /// The run has ended without one.
    Failed {
        /// Why, for the operator.
        reason: String,
    },
}

impl Run {
    /// A run over `messages`, which pair calls with results where they hold any.
    ///
    /// `max_turns` counts the model calls that may use tools, at least one; one more may follow that may not. `model`
    /// is `provider/model`.
    #[must_use]
    pub fn new(
        messages: Vec<Message>,
        tools: Vec<ToolSchema>,
        params: Params,
        model: String,
        max_turns: u32,
    ) -> Self {
        Self {
            log: Log::new(messages),
            tools,
            params,
            model,
            max_turns: max_turns.max(1),
            turns: Vec::new(),
            cut_offs: 0,
            empty: 0,
            tools_are_over: false,
            state: State::Model,
        }
    }

    /// The next step. Asking changes nothing: the same step comes until its outcome was told.
    #[must_use]
    pub fn next(&self) -> Step<'_> {
        match &self.state {
            State::Model => Step::CallModel(ChatRequest {
                model: &self.model,
                messages: self.log.messages(),
                tools: &self.tools,
                tool_choice: if self.may_use_tools() { ToolChoice::Auto } else { ToolChoice::None },
                params: &self.params,
            }),
            State::Tools => Step::CallTools(self.open_calls().map(RecordedCall::call).collect()),
            State::Done { text } => Step::Done { text: text.clone() },
            State::Failed { reason } => Step::Failed { reason: reason.clone() },
        }
    }

    /// The model answered [`Step::CallModel`].
    ///
    /// Calls that cannot be run are answered here, so that the model can mend them. Told at another time, the run
    /// fails: a journal that says so is not this run's.
    pub fn model_answered(&mut self, answer: ChatAnswer) {
        match self.state {
            State::Model => {}
            State::Tools => return self.fail("a model's answer came while tools were to be run"),
            State::Done { .. } | State::Failed { .. } => return,
        }
        self.model = answer.model;
        let text = answer.content.trim().to_owned();
        let wants_tools = !answer.tool_calls.is_empty();
        if wants_tools && self.may_use_tools() {
            self.calls_came(text, answer.tool_calls, &answer.finish_reason);
        } else {
            self.text_came(text, wants_tools);
        }
    }

    /// Calls came in an answer that may have them.
    fn calls_came(&mut self, assistant: String, calls: Vec<ToolCall>, finish: &FinishReason) {
        let is_cut = |error: ArgumentsError| guards::is_cut_off(&error, finish);
        if calls.iter().any(|call| call.parsed_arguments().is_err_and(is_cut)) {
            if self.cut_offs >= MAX_CUT_OFFS {
                // Advice has not helped. The answer is forgotten, and the next one must do without tools.
                self.tools_are_over = true;
                return self.push_turn(assistant, Vec::new());
            }
            self.cut_offs = self.cut_offs.saturating_add(1);
        }
        let calls = self.take_up(calls, finish);
        self.push_turn(assistant, calls);
        self.state = State::Tools;
        self.close_turn();
    }

    /// A final text came, perhaps an empty one; an empty message is never stored.
    fn text_came(&mut self, text: String, wants_tools: bool) {
        self.push_turn(text.clone(), Vec::new());
        if text.is_empty() && !wants_tools && self.empty < MAX_EMPTY {
            self.empty = self.empty.saturating_add(1);
            return;
        }
        let text = match text.as_str() {
            "" if wants_tools => OUT_OF_TURNS,
            "" => EMPTY_TEXT,
            text => text,
        };
        self.state = State::Done { text: text.to_owned() };
    }

    fn push_turn(&mut self, assistant: String, tool_calls: Vec<RecordedCall>) {
        self.turns.push(Turn { turn: self.turn_number(), assistant, tool_calls });
    }

    /// The messages become shorter: between two turns, never between a call and its results. At another time nothing
    /// happens.
    pub fn compact(&mut self, compaction: &Compaction) {
        if self.state == State::Model {
            self.log.compact(compaction);
        }
    }

    /// Calls of [`Step::CallTools`] have results: all, or some now and the others later. The first result of a call
    /// counts; results of no open call are passed over.
    pub fn tools_answered(&mut self, results: Vec<ToolResult>) {
        match self.state {
            State::Tools => {}
            State::Model => return self.fail("tool results came while the model was to be asked"),
            State::Done { .. } | State::Failed { .. } => return,
        }
        let calls = self.turns.last_mut().map_or(&mut [][..], |turn| &mut turn.tool_calls);
        for result in results {
            if let Some(call) = calls.iter_mut().find(|c| c.result.is_none() && c.id == result.call_id) {
                call.result = Some(result.content);
            }
        }
        self.close_turn();
    }

    /// Ends the run without an answer, for a reason that lies outside: no model can be asked. An ended run stays as
    /// it is.
    pub fn fail(&mut self, reason: impl Into<String>) {
        if matches!(self.state, State::Model | State::Tools) {
            self.state = State::Failed { reason: reason.into() };
        }
    }

    /// The messages so far: calls and results always paired.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        self.log.messages()
    }

    /// The messages as compaction sees them.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Whether the run has come to an end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Done { .. } | State::Failed { .. })
    }

    /// How the model is asked.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The tools on offer.
    #[must_use]
    pub fn tools(&self) -> &[ToolSchema] {
        &self.tools
    }

    /// The turns so far, for the run's record.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// `provider/model` that answered last; before the first answer, the one that is asked.
    #[must_use]
    pub fn model_used(&self) -> &str {
        &self.model
    }

    fn may_use_tools(&self) -> bool {
        !self.tools_are_over && self.turns.len() < usize::try_from(self.max_turns).unwrap_or(usize::MAX)
    }

    fn turn_number(&self) -> u32 {
        u32::try_from(self.turns.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    fn open_calls(&self) -> impl Iterator<Item = &RecordedCall> {
        self.turns.last().into_iter().flat_map(|t| &t.tool_calls).filter(|c| c.result.is_none())
    }

    /// The calls with ids of their own; those that cannot be run have their result already.
    fn take_up(&self, calls: Vec<ToolCall>, finish: &FinishReason) -> Vec<RecordedCall> {
        let turn = self.turn_number();
        let earlier = self.turns.iter().flat_map(|turn| &turn.tool_calls).map(|call| call.id.clone());
        let mut used: HashSet<String> = self
            .messages()
            .iter()
            .flat_map(|m| &m.tool_calls)
            .map(|call| call.id.clone())
            .chain(earlier)
            .collect();
        let mut recorded: Vec<RecordedCall> = Vec::new();
        for (index, mut call) in calls.into_iter().enumerate() {
            if call.id.is_empty() || used.contains(&call.id) {
                call.id = format!("call_{turn}_{index}");
            }
            // A provider may have used our own spelling.
            while !used.insert(call.id.clone()) {
                call.id.push('_');
            }
            if let Some(name) = guards::known_name(&call.name, &self.tools) {
                call.name = name.to_owned();
            }
            let result = self.objection(&call, finish, &recorded);
            let ToolCall { id, name, arguments, signature } = call;
            recorded.push(RecordedCall { id, name, arguments, signature, result });
        }
        recorded
    }

    /// The result of a call that cannot be run. `batch` are the calls in front of it.
    fn objection(&self, call: &ToolCall, finish: &FinishReason, batch: &[RecordedCall]) -> Option<String> {
        if !self.tools.iter().any(|tool| tool.name == call.name) {
            return Some(guards::no_such_tool(&call.name, &self.tools));
        }
        match call.parsed_arguments() {
            Err(error) => Some(guards::bad_arguments(&error, finish)),
            Ok(arguments) => guards::repeated(&call.name, &arguments, &self.turns, batch, self.messages()),
        }
    }

    /// Once each call of the last turn has its result, both become messages and the model is next.
    fn close_turn(&mut self) {
        if self.open_calls().next().is_some() {
            return;
        }
        let Some(turn) = self.turns.last() else { return };
        let calls = turn.tool_calls.iter().map(RecordedCall::call).collect();
        let results = turn
            .tool_calls
            .iter()
            .map(|call| Message::tool_result(call.id.clone(), call.result.clone().unwrap_or_default()));
        let batch = std::iter::once(Message::assistant(turn.assistant.clone(), calls)).chain(results);
        self.log.push_batch(batch);
        self.state = State::Model;
    }
}

#[cfg(test)]
mod tests;
