//! The machine: which step is next, and what its outcome changes. No I/O, no clock, no randomness.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::chat::{
    ChatAnswer, ChatRequest, FinishReason, Message, Params, ToolCall, ToolChoice, ToolSchema, Usage,
};

/// The answer where the model's final text is empty.
const EMPTY_TEXT: &str = "I have nothing to say to that: the model gave an empty answer. Please ask again.";

/// The answer where the model still wants tools when no turn is left.
const OUT_OF_TURNS: &str = "I used up all the steps I may take for one message and did not finish. Ask me to go on, or for a smaller part.";

/// What names of tools contain that a function cannot have: it has no home.
const NOT_ON_THIS_HOST: [&str; 5] = ["shell", "bash", "exec", "terminal", "file"];

/// A run as it stands. Equal inputs in equal order make an equal run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    messages: Vec<Message>,
    tools: Vec<ToolSchema>,
    params: Params,
    model: String,
    model_used: Option<String>,
    max_turns: u32,
    turns: Vec<Turn>,
    usage: Usage,
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
    /// The result as JSON text; `None` until it is there.
    pub result: Option<String>,
}

impl RecordedCall {
    fn call(&self) -> ToolCall {
        ToolCall { id: self.id.clone(), name: self.name.clone(), arguments: self.arguments.clone() }
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
            messages,
            tools,
            params,
            model,
            model_used: None,
            max_turns: max_turns.max(1),
            turns: Vec::new(),
            usage: Usage::default(),
            state: State::Model,
        }
    }

    /// The next step. Asking changes nothing: the same step comes until its outcome was told.
    #[must_use]
    pub fn next(&self) -> Step<'_> {
        match &self.state {
            State::Model => Step::CallModel(ChatRequest {
                model: &self.model,
                messages: &self.messages,
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
        let may_use_tools = self.may_use_tools();
        self.usage = self.usage.plus(answer.usage.unwrap_or_default());
        self.model_used = Some(answer.model);
        let turn = self.turn_number();
        let wants_tools = !answer.tool_calls.is_empty();
        let tool_calls =
            if may_use_tools { self.take_up(turn, answer.tool_calls, &answer.finish_reason) } else { vec![] };
        self.turns.push(Turn { turn, assistant: answer.content.clone(), tool_calls });
        if wants_tools && may_use_tools {
            self.state = State::Tools;
            self.close_turn();
        } else {
            let text = match answer.content.trim() {
                "" if wants_tools => OUT_OF_TURNS,
                "" => EMPTY_TEXT,
                text => text,
            };
            self.state = State::Done { text: text.to_owned() };
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
        &self.messages
    }

    /// The turns so far, for the run's record.
    #[must_use]
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// The tokens of all answers.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// `provider/model` that answered last; before the first answer, the one that is asked.
    #[must_use]
    pub fn model_used(&self) -> &str {
        self.model_used.as_deref().unwrap_or(&self.model)
    }

    fn may_use_tools(&self) -> bool {
        self.turns.len() < usize::try_from(self.max_turns).unwrap_or(usize::MAX)
    }

    fn turn_number(&self) -> u32 {
        u32::try_from(self.turns.len()).unwrap_or(u32::MAX).saturating_add(1)
    }

    fn open_calls(&self) -> impl Iterator<Item = &RecordedCall> {
        self.turns.last().into_iter().flat_map(|t| &t.tool_calls).filter(|c| c.result.is_none())
    }

    /// The calls with ids of their own; those that cannot be run have their result already.
    fn take_up(&self, turn: u32, calls: Vec<ToolCall>, finish: &FinishReason) -> Vec<RecordedCall> {
        let mut used: HashSet<String> =
            self.messages.iter().flat_map(|m| &m.tool_calls).map(|call| call.id.clone()).collect();
        let mut recorded = Vec::new();
        for (index, call) in calls.into_iter().enumerate() {
            let mut id = call.id;
            if id.is_empty() || used.contains(&id) {
                id = format!("call_{turn}_{index}");
            }
            // A provider may have used our own spelling.
            while !used.insert(id.clone()) {
                id.push('_');
            }
            let result = self.objection(&call.name, &call.arguments, finish);
            let result = result.map(|error| json!({"success": false, "error": error}).to_string());
            recorded.push(RecordedCall { id, name: call.name, arguments: call.arguments, result });
        }
        recorded
    }

    /// Why a call cannot be run, in words that the model can act on.
    fn objection(&self, name: &str, arguments: &str, finish: &FinishReason) -> Option<String> {
        if !self.tools.iter().any(|tool| tool.name == name) {
            return Some(self.no_such_tool(name));
        }
        let error = serde_json::from_str::<Map<String, Value>>(arguments).err()?;
        Some(if error.is_eof() || *finish == FinishReason::Length {
            "invalid JSON arguments: they were cut off; send a shorter call".to_owned()
        } else {
            format!("invalid JSON arguments: {error}; send one JSON object")
        })
    }

    fn no_such_tool(&self, name: &str) -> String {
        let name = name.to_lowercase();
        if name.split(|c: char| !c.is_alphanumeric()).any(|word| NOT_ON_THIS_HOST.contains(&word)) {
            return "not available on this host: there is no shell and there are no local files".to_owned();
        }
        let names: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        match names.as_slice() {
            [] => "no tool is available in this run; answer without tools".to_owned(),
            names => format!("this run has no such tool; available: {}", names.join(", ")),
        }
    }

    /// Once each call of the last turn has its result, both become messages and the model is next.
    fn close_turn(&mut self) {
        if self.open_calls().next().is_some() {
            return;
        }
        let Some(turn) = self.turns.last() else { return };
        let calls = turn.tool_calls.iter().map(RecordedCall::call).collect();
        self.messages.push(Message::assistant(turn.assistant.clone(), calls));
        for call in &turn.tool_calls {
            self.messages
                .push(Message::tool_result(call.id.clone(), call.result.clone().unwrap_or_default()));
        }
        self.state = State::Model;
    }
}

#[cfg(test)]
mod tests;
