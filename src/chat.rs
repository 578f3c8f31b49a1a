//! Chat types of no one provider: what the context is made of and what a model answers.
//!
//! The shapes are those of OpenAI chat completions, reduced to what the agent uses. How a provider spells
//! them on the wire is [`crate::llm`]'s affair.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who speaks in a [`Message`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions and injected context.
    System,
    /// The input: a DM's text or a trigger's payload.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

impl Role {
    /// The name on the wire and in snapshots.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One chat message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; empty where an assistant only calls tools.
    pub content: String,
    /// The calls an assistant asks for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// The call that a [`Role::Tool`] message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message that is only text.
    #[must_use]
    pub fn text(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into(), tool_calls: Vec::new(), tool_call_id: None }
    }

    /// An assistant's message: its text and the calls it asks for.
    #[must_use]
    pub fn assistant(content: impl Into<String>, tool_calls: Vec<ToolCall>) -> Self {
        Self { role: Role::Assistant, content: content.into(), tool_calls, tool_call_id: None }
    }

    /// The result of the call `id`.
    #[must_use]
    pub fn tool_result(id: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: Role::Tool,
            content: content.into(),
            tool_calls: Vec::new(),
            tool_call_id: Some(id.into()),
        }
    }
}

/// A tool call that a model asks for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within the run; made by us where the model gave none or repeated one.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// The arguments as JSON text, as the model wrote them: it may be invalid, and the tool loop says so to the model.
    /// Nothing in its many spellings is `{}` already; the empty text is a call that was cut before its arguments.
    pub arguments: String,
    /// The seal that a provider put on the thoughts behind the call, and wants back with it: opaque, and of use to that
    /// provider alone (Gemini's `thought_signature`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl ToolCall {
    /// A call that no provider has signed.
    #[must_use]
    pub fn new(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        Self { id: id.into(), name: name.into(), arguments: arguments.into(), signature: None }
    }

    /// The arguments as what they must be.
    ///
    /// # Errors
    /// [`ArgumentsError`]: the call must not be executed, and a history must not hold these arguments.
    pub fn parsed_arguments(&self) -> Result<Map<String, Value>, ArgumentsError> {
        serde_json::from_str(&self.arguments).map_err(|error| match error.is_eof() {
            true => ArgumentsError::CutOff,
            false => ArgumentsError::Invalid(error.to_string()),
        })
    }
}

/// Why a call's arguments are no JSON object. The model must act.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// They end in the middle, whatever finish reason the provider tells.
    #[error("the arguments were cut off")]
    CutOff,
    /// They are something else.
    #[error("the arguments are no JSON object: {0}")]
    Invalid(String),
}

/// What a model is told about a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolSchema {
    /// The name to call it by.
    pub name: String,
    /// When to use it, for the model.
    pub description: String,
    /// JSON schema of the arguments: always an object with `properties`.
    pub parameters: Value,
}

/// Whether the model may call tools in this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    /// The schemas are sent, calls are not wanted: the last answer of a run.
    None,
}

/// Model parameters; `None` leaves the provider's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Params {
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// The most tokens an answer may have.
    pub max_tokens: Option<u32>,
    /// Sampling seed.
    pub seed: Option<i64>,
}

/// One request to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest<'a> {
    /// `provider/model`.
    pub model: &'a str,
    /// The conversation so far.
    pub messages: &'a [Message],
    /// The tools on offer.
    pub tools: &'a [ToolSchema],
    /// Whether tools may be called.
    pub tool_choice: ToolChoice,
    /// Model parameters.
    pub params: &'a Params,
}

/// What a model answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatAnswer {
    /// The text, perhaps empty. Reasoning is not part of it.
    pub content: String,
    /// The calls it asks for; their ids are as the provider sent them, perhaps empty or repeated. Each may be cut off:
    /// see [`ToolCall::parsed_arguments`].
    pub tool_calls: Vec<ToolCall>,
    /// Why it stopped.
    pub finish_reason: FinishReason,
    /// Tokens used, where the provider says.
    pub usage: Option<Usage>,
    /// `provider/model` that answered.
    pub model: String,
}

/// Why a model stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// It was done.
    Stop,
    /// The token limit cut it off.
    Length,
    /// It wants tools called.
    ToolCalls,
    /// Anything else, as the provider spells it.
    Other(String),
}

/// Tokens of one answer, or of several; `None` is a part that nobody told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of the request, those from a cache among them.
    pub input_tokens: Option<u64>,
    /// Tokens of the request that came from the provider's cache, and cost less.
    #[serde(default)]
    pub cached_input_tokens: Option<u64>,
    /// Tokens of the answer, its reasoning among them.
    pub output_tokens: Option<u64>,
}

impl Usage {
    /// The sum of both, part by part; what only one tells is that one's.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        Self {
            input_tokens: sum(self.input_tokens, other.input_tokens),
            cached_input_tokens: sum(self.cached_input_tokens, other.cached_input_tokens),
            output_tokens: sum(self.output_tokens, other.output_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_an_object_or_cut_off_or_something_else() {
        let parsed = |arguments: &str| {
            let call = ToolCall::new("1", "t", arguments);
            call.parsed_arguments()
        };
        assert_eq!(parsed(r#" {"a":1} "#).unwrap()["a"], 1);
        for cut in ["", "{", r#"{"content":"Hello wor"#, r#"{"a":tru"#, r#"{"a":1"#] {
            assert_eq!(parsed(cut), Err(ArgumentsError::CutOff), "{cut}");
        }
        for other in ["[1]", "null", "7", r#"{"a":1}}"#, "{'a':1}", "\"{}\""] {
            assert!(matches!(parsed(other), Err(ArgumentsError::Invalid(_))), "{other}");
        }
    }

    #[test]
    fn usage_adds_up_part_by_part() {
        let usage = |input, cached, output| Usage {
            input_tokens: input,
            cached_input_tokens: cached,
            output_tokens: output,
        };
        let sum = usage(Some(1), None, None).plus(usage(Some(u64::MAX), Some(2), None));
        assert_eq!(sum, usage(Some(u64::MAX), Some(2), None));
    }
}
