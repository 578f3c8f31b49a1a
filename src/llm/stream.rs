//! The chunks of a streamed answer, put together into the body that an unstreamed one would have been.

use serde_json::{Map, Value, json};

use super::read::{part_text, signature_of};

/// What has come so far.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    has_choice: bool,
    has_tokens: bool,
    content: String,
    refusal: String,
    calls: Vec<Call>,
    finish_reason: Option<Value>,
    usage: Option<Value>,
}

/// A call in the making.
#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    signature: String,
}

impl Assembly {
    /// Takes one chunk up.
    pub(super) fn push(&mut self, chunk: &Value) {
        let usage = [chunk.get("usage"), chunk.pointer("/x_groq/usage")];
        if let Some(usage) = usage.into_iter().flatten().find(|usage| usage.is_object()) {
            self.usage = Some(usage.clone());
        }
        let Some(choice) = chunk.pointer("/choices/0") else { return };
        self.has_choice = true;
        if let Some(reason) = choice.get("finish_reason").filter(|reason| reason.is_string()) {
            self.finish_reason = Some(reason.clone());
        }
        // Some servers send whole messages in a stream.
        let delta = [choice.get("delta"), choice.get("message")];
        if let Some(delta) = delta.into_iter().flatten().find(|delta| delta.is_object()) {
            self.push_delta(delta);
        }
    }

    fn push_delta(&mut self, delta: &Value) {
        match delta.get("content") {
            Some(Value::String(text)) => self.content.push_str(text),
            Some(Value::Array(parts)) => self.content.extend(parts.iter().filter_map(part_text)),
            _ => {}
        }
        self.refusal.push_str(text(delta, "refusal"));
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        let legacy = delta.get("function_call").filter(|call| call.is_object());
        for call in calls.into_iter().flatten().filter(|call| call.is_object()).chain(legacy) {
            self.push_call(call);
        }
        let thinks = ["reasoning_content", "reasoning"].iter().any(|name| !text(delta, name).is_empty());
        self.has_tokens |= thinks || self.has_something();
    }

    fn push_call(&mut self, delta: &Value) {
        let function = delta.get("function").filter(|function| function.is_object()).unwrap_or(delta);
        let (id, name) = (text(delta, "id"), text(function, "name"));
        let index = delta.get("index").and_then(Value::as_u64);
        let has_arguments =
            function.get("arguments").is_some_and(|arguments| arguments != "" && !arguments.is_null());
        let call = match self.position(index, id, name, has_arguments) {
            Some(at) => self.calls.get_mut(at),
            None => {
                self.calls.push(Call { index, ..Call::default() });
                self.calls.last_mut()
            }
        };
        let Some(call) = call else { return };
        // Some servers repeat both in each delta.
        if call.id.is_empty() {
            call.id = id.to_owned();
        }
        if call.name.is_empty() {
            call.name = name.to_owned();
        }
        if let Some(signature) = signature_of(delta) {
            call.signature = signature.to_owned();
        }
        match function.get("arguments") {
            Some(Value::String(piece)) => call.arguments.push_str(piece),
            Some(Value::Null) | None => {}
            Some(whole) => call.arguments = whole.to_string(),
        }
    }

    /// The call that a delta continues. The index says so where it can be believed: some servers give none, and some
    /// give each call the index 0 and an id of its own, or not even that.
    fn position(&self, index: Option<u64>, id: &str, name: &str, has_arguments: bool) -> Option<usize> {
        // Only the first delta of a call must have its name; some servers make up an id for each delta.
        let is_of = |call: &Call| name.is_empty() || id.is_empty() || call.id.is_empty() || call.id == id;
        let is_next =
            |call: &Call| id.is_empty() && !name.is_empty() && has_arguments && is_object(&call.arguments);
        let at = match index {
            Some(index) => self.calls.iter().rposition(|call| call.index == Some(index)),
            None if id.is_empty() || name.is_empty() => self.calls.len().checked_sub(1),
            None => self.calls.iter().rposition(|call| call.id == id),
        };
        at.filter(|at| self.calls.get(*at).is_some_and(|call| is_of(call) && !is_next(call)))
    }

    /// Whether the model has begun to speak or to think.
    pub(super) fn has_tokens(&self) -> bool {
        self.has_tokens
    }

    /// Whether the model has said that it is done; usage may still follow.
    pub(super) fn is_finished(&self) -> bool {
        self.finish_reason.is_some()
    }

    fn has_something(&self) -> bool {
        !self.content.is_empty() || !self.refusal.is_empty() || !self.calls.is_empty()
    }

    /// The body of an unstreamed answer.
    pub(super) fn into_body(self) -> Value {
        let mut body = Map::new();
        if self.has_choice {
            let call = |call: Call| {
                json!({"id": call.id, "function": {"name": call.name, "arguments": call.arguments},
                    "extra_content": {"google": {"thought_signature": call.signature}}})
            };
            let calls: Vec<Value> = self.calls.into_iter().map(call).collect();
            let message = json!({"content": self.content, "refusal": self.refusal, "tool_calls": calls});
            let choice = json!({"finish_reason": self.finish_reason, "message": message});
            body.insert("choices".into(), json!([choice]));
        }
        body.insert("usage".into(), self.usage.unwrap_or_default());
        Value::Object(body)
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(text).is_ok()
}
