//! The messages of a request, as the strictest provider takes them.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::chat::{Message, Role, ToolCall};
use crate::llm::catalogue::{ModelInfo, Signatures};

/// The longest tool name that providers take.
const MAX_NAME_CHARS: usize = 64;

/// What stands for a text that a tool message must have and does not.
const NO_RESULT: &str = r#"{"success":false,"error":"no result was recorded for this call"}"#;

/// What stands for a signature that a model demands and that another one's calls cannot have: Google's documentation names
/// it for that.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The messages, with no empty one, and every call answered right behind it.
pub(super) fn write_messages(messages: &[Message], info: &ModelInfo) -> Vec<Value> {
    let mut out = Vec::new();
    let mut calls = 0;
    let mut rest = messages;
    while let [message, tail @ ..] = rest {
        rest = tail;
        match message.role {
            // A result with no call in front of it.
            Role::Tool => {}
            Role::Assistant if !message.tool_calls.is_empty() => {
                let results = tail.iter().take_while(|m| m.role == Role::Tool).count();
                let (results, behind) = tail.split_at(results);
                let text = if message.content.trim().is_empty() { "" } else { &message.content };
                let text = if text.is_empty() && info.null_content { Value::Null } else { text.into() };
                write_batch(text, &message.tool_calls, results, info, &mut calls, &mut out);
                rest = behind;
            }
            _ if message.content.trim().is_empty() => {}
            role => out.push(json!({"role": role.as_str(), "content": message.content})),
        }
    }
    out
}

/// An assistant's calls and, in their order, one result for each.
///
/// `count` counts the calls of the request: an id is made of it, in the one shape that every provider takes. Mistral's
/// ids are nine letters and digits; others take those too, and no model has a use for the ids of its own making.
fn write_batch(
    text: Value,
    calls: &[ToolCall],
    results: &[Message],
    info: &ModelInfo,
    count: &mut usize,
    out: &mut Vec<Value>,
) {
    let mut by_id: HashMap<&str, &str> = HashMap::new();
    for result in results {
        by_id.entry(result.tool_call_id.as_deref().unwrap_or_default()).or_insert(&result.content);
    }
    let mut written = Vec::new();
    let mut answers = Vec::new();
    for call in calls {
        *count = count.saturating_add(1);
        let id = format!("call{count:05}");
        let content = by_id.remove(call.id.as_str()).filter(|c| !c.trim().is_empty()).unwrap_or(NO_RESULT);
        written.push(write_call(call, &id, signature_of(call, written.is_empty(), info)));
        answers.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    out.push(json!({"role": "assistant", "content": text, "tool_calls": written}));
    out.append(&mut answers);
}

fn write_call(call: &ToolCall, id: &str, signature: Option<&str>) -> Value {
    let mut written = json!({"id": id, "type": "function", "function": {
        "name": wire_name(&call.name), "arguments": object_text(call),
    }});
    if let (Some(signature), Some(fields)) = (signature, written.as_object_mut()) {
        fields.insert("extra_content".into(), json!({"google": {"thought_signature": signature}}));
    }
    written
}

/// The signature that a call goes with. Of calls that are made side by side the first one has it.
fn signature_of<'a>(call: &'a ToolCall, is_first: bool, info: &ModelInfo) -> Option<&'a str> {
    let own = call.signature.as_deref();
    match info.thought_signatures {
        Signatures::Unsent => None,
        Signatures::Sent => own,
        Signatures::Demanded => own.or(is_first.then_some(NO_SIGNATURE)),
    }
}

/// The messages with roles that take turns: what one role says in several messages, one behind the other, becomes one,
/// with an empty line in between. Tools' results stay apart, each beside its call.
pub(super) fn in_turns(messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::new();
    for message in messages {
        match out.last_mut() {
            Some(last) if goes_on(last, &message) => join(last, message),
            _ => out.push(message),
        }
    }
    out
}

/// Whether `message` can become a part of `last`.
fn goes_on(last: &Value, message: &Value) -> bool {
    last.get("role") == message.get("role")
        && last.get("tool_calls").is_none()
        && last.get("tool_call_id").is_none()
}

/// `message` with the text of `last` in front, in the place of `last`.
fn join(last: &mut Value, mut message: Value) {
    let text = |message: &Value| {
        message.get("content").and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let texts: Vec<String> = [text(last), text(&message)].into_iter().flatten().collect();
    if let Some(fields) = message.as_object_mut() {
        fields.insert("content".into(), texts.join("\n\n").into());
    }
    *last = message;
}

/// A name that every provider takes: a model may have called a tool by a name that none would.
fn wire_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = name.chars().take(MAX_NAME_CHARS).map(allowed).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// The arguments where they are the text of a JSON object, else `{}`: strict providers refuse a whole history for one
/// call that a model wrote badly.
fn object_text(call: &ToolCall) -> &str {
    if call.parsed_arguments().is_ok() { &call.arguments } else { "{}" }
}
