//! What the scripted model refuses: all that one provider or another would.
//!
//! | what | who refuses otherwise |
//! | --- | --- |
//! | no parameter that is not OpenAI's, none of a wrong type or out of range | Mistral, OpenAI |
//! | `tool_choice` and `parallel_tool_calls` only beside tools, `stream_options` only in a stream | OpenAI |
//! | system messages in front only, each role a known one, no message empty | many chat templates; Anthropic |
//! | the last message is a user's or a tool's | Mistral |
//! | each call answered right behind it, once, and nothing else there | OpenAI, Anthropic |
//! | ids of nine letters and digits, none used twice | Mistral |
//! | arguments that are the text of a JSON object | Anthropic, llama.cpp |
//! | tools' names of letters, digits, `_` and `-`, at most 64; schemas of objects with properties | OpenAI, Google |

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Checks a request's body.
///
/// # Errors
/// What is wrong, and in which message.
pub fn check(body: &Value) -> Result<(), String> {
    let body = body.as_object().ok_or("the body is no JSON object")?;
    check_parameters(body)?;
    check_tools(body)?;
    let messages = body.get("messages").and_then(Value::as_array).ok_or("`messages` is no list")?;
    let last = messages.last().ok_or("`messages` is empty")?;
    let mut used_ids = HashSet::new();
    // Calls that wait for their result.
    let mut open: Vec<&str> = Vec::new();
    let mut is_begun = false;
    for (index, message) in messages.iter().enumerate() {
        let role = role(message);
        let at = |reason: &str| format!("message {index} ({role}): {reason}");
        if role != "tool" && !open.is_empty() {
            return Err(at(&format!("the calls {open:?} in front of it have no result")));
        }
        let content = message.get("content");
        if content.is_some_and(|content| !content.is_string() && !content.is_null()) {
            return Err(at("its content is no text"));
        }
        let has_text = content.and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
        let calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if !has_text && calls.is_empty() {
            return Err(at("it is empty"));
        }
        match role {
            "system" if is_begun => return Err(at("it does not stand in front")),
            "system" | "user" if calls.is_empty() => {}
            "assistant" => {
                for call in calls {
                    let id = check_call(call).map_err(|reason| at(&reason))?;
                    if !used_ids.insert(id) {
                        return Err(at(&format!("the call id {id:?} is used twice")));
                    }
                    open.push(id);
                }
            }
            "tool" => {
                let id = message.get("tool_call_id").and_then(Value::as_str).unwrap_or_default();
                let call = open.iter().position(|o| *o == id);
                open.remove(call.ok_or_else(|| at(&format!("it answers no open call: {id:?}")))?);
            }
            _ => return Err(at("the role is unknown or may not call tools")),
        }
        is_begun |= role != "system";
    }
    if !open.is_empty() {
        return Err(format!("the calls {open:?} at the end have no result"));
    }
    match role(last) {
        "user" | "tool" => Ok(()),
        role => Err(format!("the last message is of the role {role:?}: there is nothing to answer")),
    }
}

fn role(message: &Value) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn check_parameters(body: &Map<String, Value>) -> Result<(), String> {
    if body.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("`model` is missing".into());
    }
    let has = |name: &str| body.contains_key(name);
    for (name, value) in body {
        let is_right = match name.as_str() {
            "model" | "messages" | "tools" => true,
            "tool_choice" => has("tools") && (value == "auto" || value == "none"),
            "parallel_tool_calls" => has("tools") && value.is_boolean(),
            "temperature" => value.as_f64().is_some_and(|t| (0.0..=2.0).contains(&t)),
            "max_tokens" => value.as_u64().is_some_and(|n| n > 0) && !has("max_completion_tokens"),
            "max_completion_tokens" => value.as_u64().is_some_and(|n| n > 0),
            "seed" => value.is_i64() || value.is_u64(),
            "stream" => value.is_boolean(),
            "stream_options" => {
                body.get("stream").is_some_and(|stream| stream == true)
                    && value.as_object().is_some_and(|o| o.len() == 1)
                    && value.get("include_usage").is_some_and(Value::is_boolean)
            }
            _ => false,
        };
        if !is_right {
            return Err(format!("the parameter `{name}` is unknown, has a wrong value or must not be there"));
        }
    }
    Ok(())
}

/// The call's id.
fn check_call(call: &Value) -> Result<&str, String> {
    let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if text("/type") != "function" {
        return Err("a call's type is not `function`".into());
    }
    check_name(text("/function/name"))?;
    if serde_json::from_str::<Map<String, Value>>(text("/function/arguments")).is_err() {
        return Err("a call's arguments are not the text of a JSON object".into());
    }
    match text("/id") {
        id if id.len() == 9 && id.chars().all(|c| c.is_ascii_alphanumeric()) => Ok(id),
        id => Err(format!("the call id {id:?} is not of nine letters and digits")),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        return Err(format!("{name:?} is no name for a tool"));
    }
    Ok(())
}

fn check_tools(body: &Map<String, Value>) -> Result<(), String> {
    let Some(tools) = body.get("tools") else { return Ok(()) };
    let tools = tools.as_array().filter(|t| !t.is_empty()).ok_or("`tools` is no list or empty")?;
    let mut names = HashSet::new();
    for tool in tools {
        if tool.get("type").is_none_or(|kind| kind != "function") {
            return Err("a tool's type is not `function`".into());
        }
        let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        check_name(name)?;
        if !names.insert(name) {
            return Err(format!("the tool {name} is there twice"));
        }
        let schema = tool.pointer("/function/parameters").unwrap_or(&Value::Null);
        if schema.get("type").is_none_or(|kind| kind != "object") || !is_plain_schema(schema) {
            return Err(format!("the schema of {name} is not a plain one of an object with properties"));
        }
    }
    Ok(())
}

/// Whether a schema says of each part what it is, with nothing that only some providers follow.
fn is_plain_schema(schema: &Value) -> bool {
    let Some(schema) = schema.as_object() else { return false };
    let is = |kind: &str| schema.get("type").is_some_and(|named| named == kind);
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = schema.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let has =
        |name: &Value| name.as_str().is_some_and(|name| properties.is_some_and(|p| p.contains_key(name)));
    !["$schema", "$ref", "$defs", "definitions"].iter().any(|name| schema.contains_key(*name))
        && schema.get("type").is_none_or(Value::is_string)
        // A map says of its values instead what they are.
        && (!is("object") || properties.is_some() || schema.get("additionalProperties").is_some_and(is_plain_schema))
        && properties.is_none_or(|properties| properties.values().all(is_plain_schema))
        && names.iter().all(has)
        && (!is("array") || schema.get("items").is_some_and(is_plain_schema))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn body(messages: Value) -> Value {
        json!({"model": "m", "messages": messages})
    }

    #[test]
    fn each_fault_of_a_history_is_named() {
        let user = json!({"role": "user", "content": "hi"});
        let system = json!({"role": "system", "content": "be brief"});
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "t", "arguments": arguments}});
        let asks = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let ask = asks(json!([call("aaaaaaaa1", "{}")]));
        let result = json!({"role": "tool", "tool_call_id": "aaaaaaaa1", "content": "{}"});
        assert_eq!(check(&body(json!([system, user, ask, result]))), Ok(()));
        let histories = [
            json!([]),
            json!([{"role": "user", "content": " "}]),
            json!([{"role": "user", "content": null}]),
            json!([{"role": "user", "content": ["hi"]}]),
            json!([{"role": "assistant", "content": "", "tool_calls": []}]),
            json!([{"role": "robot", "content": "hi"}]),
            json!([user, system]),
            json!([user, {"role": "assistant", "content": "hi"}]),
            json!([ask]),
            json!([ask, user]),
            json!([user, result]),
            json!([ask, result, result]),
            json!([ask, result, ask, result]),
            json!([asks(json!([call("", "{}")]))]),
            json!([asks(json!([call("scripted_1_0", "{}")]))]),
            json!([asks(json!([call("aaaaaaaa1", "")]))]),
        ];
        let faults: Vec<String> = histories.iter().map(|h| check(&body(h.clone())).unwrap_err()).collect();
        insta::assert_snapshot!(faults.join("\n"), @r#"
        `messages` is empty
        message 0 (user): it is empty
        message 0 (user): it is empty
        message 0 (user): its content is no text
        message 0 (assistant): it is empty
        message 0 (robot): the role is unknown or may not call tools
        message 1 (system): it does not stand in front
        the last message is of the role "assistant": there is nothing to answer
        the calls ["aaaaaaaa1"] at the end have no result
        message 1 (user): the calls ["aaaaaaaa1"] in front of it have no result
        message 1 (tool): it answers no open call: "aaaaaaaa1"
        message 2 (tool): it answers no open call: "aaaaaaaa1"
        message 2 (assistant): the call id "aaaaaaaa1" is used twice
        message 0 (assistant): the call id "" is not of nine letters and digits
        message 0 (assistant): the call id "scripted_1_0" is not of nine letters and digits
        message 0 (assistant): a call's arguments are not the text of a JSON object
        "#);
    }

    #[test]
    fn faulty_parameters_and_tools_are_refused() {
        let tool = |name: &str, schema: Value| json!({"type": "function", "function": {"name": name, "parameters": schema}});
        let plain =
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}});
        let good = json!([tool("a", plain.clone())]);
        let table = [
            json!({"tools": []}),
            json!({"tools": [tool("a b", plain.clone())]}),
            json!({"tools": [{"function": {"name": "a", "parameters": plain}}]}),
            json!({"tools": [tool("a", json!({"type": "object"}))]}),
            json!({"tools": [tool("a", json!({"type": "object", "properties": {}, "required": ["x"]}))]}),
            json!({"tools": [tool("a", json!({"type": "object", "properties": {"x": {"type": "array"}}}))]}),
            json!({"tools": [tool("a", json!({"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}}))]}),
            json!({"tools": [tool("a", plain.clone()), tool("a", plain.clone())]}),
            json!({"tool_choice": "none"}),
            json!({"tools": good, "tool_choice": "maybe"}),
            json!({"parallel_tool_calls": false}),
            json!({"temperature": 3}),
            json!({"max_tokens": 0}),
            json!({"max_tokens": 1, "max_completion_tokens": 1}),
            json!({"seed": 0.5}),
            json!({"random_seed": 1}),
            json!({"stream_options": {"include_usage": true}}),
            json!({"model": ""}),
        ];
        let user = json!([{"role": "user", "content": "hi"}]);
        for faulty in table {
            let mut body = body(user.clone());
            for (name, value) in faulty.as_object().unwrap() {
                body[name] = value.clone();
            }
            assert!(check(&body).is_err(), "{body}");
        }
        let mut body = body(user);
        body["tools"] = good;
        body["tool_choice"] = "none".into();
        assert_eq!(check(&body), Ok(()));
    }
}
