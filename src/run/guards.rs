//! What stands between a model's wish to call a tool and the call: names, arguments, repetitions, and that nobody knows what
//! came of it. Pure.
//!
//! What is refused is answered in words that the model can act on, so that it can mend its call.

use serde_json::{Map, Value, json};

use super::machine::{RecordedCall, Turn};
use crate::chat::{ArgumentsError, FinishReason, Message, Role, ToolCall, ToolSchema};

/// What names of tools contain that a function cannot have: it has no home.
const NOT_ON_THIS_HOST: [&str; 5] = ["shell", "bash", "exec", "terminal", "file"];

/// What models put in front of names that they have learned elsewhere.
const PREFIXES: [&str; 5] = ["functions.", "default_api.", "tools.", "function.", "tool."];

/// How often the same call is run.
const MAX_SAME_CALLS: usize = 2;

/// The longest name of a tool that providers take.
const MAX_NAME_CHARS: usize = 64;

/// A name that a tool on offer has: as it stands, or behind one prefix.
pub(super) fn known_name<'a>(name: &'a str, tools: &[ToolSchema]) -> Option<&'a str> {
    let is_known = |name: &str| tools.iter().any(|tool| tool.name == name);
    let stripped = PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix));
    std::iter::once(name).chain(stripped).find(|name| is_known(name))
}

/// The answer to a call of a tool that is not on offer.
pub(super) fn no_such_tool(name: &str, tools: &[ToolSchema]) -> String {
    let name = name.to_lowercase();
    if name.split(|c: char| !c.is_alphanumeric()).any(|word| NOT_ON_THIS_HOST.contains(&word)) {
        return failure("not available on this host: there is no shell and there are no local files");
    }
    let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    match names.as_slice() {
        [] => failure("no tool is available in this run; answer without tools"),
        names => failure(&format!("this run has no such tool; available: {}", names.join(", "))),
    }
}

/// Whether arguments that cannot be read end in the middle: by themselves, or because the answer hit its token limit.
pub(super) fn is_cut_off(error: &ArgumentsError, finish: &FinishReason) -> bool {
    *error == ArgumentsError::CutOff || *finish == FinishReason::Length
}

/// The answer to a call whose arguments cannot be read.
pub(super) fn bad_arguments(error: &ArgumentsError, finish: &FinishReason) -> String {
    match error {
        ArgumentsError::Invalid(reason) if !is_cut_off(error, finish) => {
            failure(&format!("invalid JSON arguments: {reason}; send one JSON object"))
        }
        _ => failure("invalid JSON arguments: they were cut off; send a shorter call"),
    }
}

/// The answer to a call that was run before, often enough: that its result is there already; and the result itself
/// where the messages no longer show it whole.
pub(super) fn repeated(
    name: &str,
    arguments: &Map<String, Value>,
    turns: &[Turn],
    batch: &[RecordedCall],
    messages: &[Message],
) -> Option<String> {
    let arguments = canonical(&Value::Object(arguments.clone()));
    let is_same = |call: &&RecordedCall| {
        call.name == name
            && call.call().parsed_arguments().is_ok_and(|a| canonical(&Value::Object(a)) == arguments)
    };
    let earlier = turns.iter().flat_map(|turn| &turn.tool_calls).filter(is_same);
    let (count, result) = earlier.fold((0_usize, None), |(count, result), call| {
        (count.saturating_add(1), call.result.as_deref().or(result))
    });
    if count.saturating_add(batch.iter().filter(is_same).count()) < MAX_SAME_CALLS {
        return None;
    }
    let advice = "you already have this result: the same call was answered before and is not run again; use what it \
                  gave, or answer without it";
    let is_shown = |result: &str| messages.iter().any(|m| m.role == Role::Tool && m.content == result);
    let content = result.filter(|result| !is_shown(result)).and_then(|result| {
        let mut fields = serde_json::from_str::<Map<String, Value>>(result).ok()?;
        fields.remove("content")
    });
    Some(match content {
        Some(content) => json!({"success": true, "note": advice, "content": content}).to_string(),
        None => failure(advice),
    })
}

/// The answer to a call that is not made twice, and of which nobody knows whether it took effect.
pub(super) fn unknown_outcome() -> String {
    failure(
        "it is not known whether this was done: the call was broken off. Do not repeat it without asking; say that it may \
         have been done, or look whether it was",
    )
}

/// JSON text that is the same for the same arguments, in whatever order their fields came.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            let fields = fields.iter().map(|(name, value)| format!("{}:{}", json!(name), canonical(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// A call as a history may hold it: a name that every provider takes, and arguments that are the text of an object.
pub(super) fn presentable(call: ToolCall) -> ToolCall {
    let arguments = if call.parsed_arguments().is_ok() { call.arguments } else { "{}".to_owned() };
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = call.name.chars().take(MAX_NAME_CHARS).map(allowed).collect();
    let name = if name.is_empty() { "unnamed".to_owned() } else { name };
    ToolCall { name, arguments, ..call }
}

fn failure(error: &str) -> String {
    json!({"success": false, "error": error}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_stripped_only_where_a_known_name_is_left() {
        let tool = |name: &str| ToolSchema {
            name: name.into(),
            description: String::new(),
            parameters: json!({"type": "object", "properties": {}}),
        };
        let tools = [tool("time"), tool("tools.odd")];
        for (name, known) in [
            ("time", Some("time")),
            ("functions.time", Some("time")),
            ("default_api.time", Some("time")),
            ("tools.odd", Some("tools.odd")),
            ("functions.Time", None),
            ("functions.time ", None),
            ("functions.functions.time", None),
            ("my.time", None),
            ("functionstime", None),
            ("time2", None),
            ("", None),
        ] {
            assert_eq!(known_name(name, &tools), known, "{name}");
        }
    }

    #[test]
    fn the_same_arguments_are_the_same_in_any_order_and_spelling() {
        let canonical = |text: &str| canonical(&serde_json::from_str(text).unwrap());
        let one = canonical(r#"{"kinds":[1,2],"a":{"y":"\u0041","x":null}}"#);
        assert_eq!(one, r#"{"a":{"x":null,"y":"A"},"kinds":[1,2]}"#);
        assert_eq!(canonical(r#"{ "a": {"x": null, "y": "A"}, "kinds": [1, 2] }"#), one);
        assert_ne!(canonical(r#"{"a":{"x":null,"y":"A"},"kinds":[2,1]}"#), one);
        // What looks like another field is part of a name.
        assert_ne!(canonical(r#"{"a\":1,\"b":1}"#), canonical(r#"{"a":1,"b":1}"#));
    }
}
