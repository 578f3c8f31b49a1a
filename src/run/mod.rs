//! A run: from a trigger's context to a final text, turn by turn. A **turn** is one model call and the tool calls that
//! it asks for.
//!
//! [`Run`] decides and does nothing: it says what the next step is, and is told what came of it. So each branch can be
//! tested without a model, and a run is rebuilt in another process by telling it the same things again: the journal
//! holds what the run began with, the answers and the results, each once. Carrying the steps out, in time and in the face of errors, is the
//! driver's affair.
//!
//! ```
//! use didactyl::chat::{ChatAnswer, FinishReason, Message, Params, Role, ToolCall, ToolSchema};
//! use didactyl::run::{Run, Step, ToolResult};
//!
//! let time = ToolSchema {
//!     name: "time".into(),
//!     description: "Tells the time.".into(),
//!     parameters: serde_json::json!({"type": "object", "properties": {}}),
//! };
//! let question = Message::text(Role::User, "What time is it?");
//! let mut run = Run::new(vec![question], vec![time], Params::default(), "openai/gpt-6-luna".into(), 4);
//!
//! // The model is asked, and asks for the time.
//! assert!(matches!(run.next(), Step::CallModel(request) if request.messages.len() == 1));
//! let answer = |content: &str, tool_calls| ChatAnswer {
//!     content: content.into(),
//!     tool_calls,
//!     finish_reason: FinishReason::Stop,
//!     usage: None,
//!     model: "openai/gpt-6-luna".into(),
//! };
//! let call = ToolCall::new("c1", "time", "{}");
//! run.model_answered(answer("", vec![call.clone()]));
//!
//! // The tool is run.
//! assert_eq!(run.next(), Step::CallTools(vec![call]));
//! let content = r#"{"success":true,"content":{"unix":0}}"#.to_owned();
//! run.tools_answered(vec![ToolResult { call_id: "c1".into(), content }]);
//!
//! // The model is asked again, with the call and its result behind the question.
//! assert!(matches!(run.next(), Step::CallModel(request) if request.messages.len() == 3));
//! run.model_answered(answer("It is midnight.", vec![]));
//! assert_eq!(run.next(), Step::Done { text: "It is midnight.".into() });
//! assert_eq!(run.turns().len(), 2);
//! ```

pub mod beginning;
pub(crate) mod calls;
pub mod driver;
mod guards;
pub mod journal;
mod ledger;
mod machine;
mod model;
mod publisher;

pub use machine::{RecordedCall, Run, Step, ToolResult, Turn};
