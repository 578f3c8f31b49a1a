//! What the scripted model refuses: all that one provider or another would.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Checks a request's body.
///
/// # Errors
/// What is wrong, and in which message.
pub(super) fn check(body: &Value) -> Result<(), String> {
    if body.get("model").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err("`model` is missing".into());
    }
    check_tools(body)?;
    let messages = body.get("messages").and_then(Value::as_array).ok_or("`messages` is no list")?;
    if messages.is_empty() {
        return Err("`messages` is empty".into());
    }
    let mut used_ids = HashSet::new();
    // Calls that wait for their result.
    let mut open: Vec<&str> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        let at = |reason: &str| format!("message {index} ({role}): {reason}");
        if role != "tool" && !open.is_empty() {
            return Err(at(&format!("the calls {open:?} in front of it have no result")));
        }
        let has_text =
            message.get("content").and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty());
        let calls = message.get("tool_calls").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if !has_text && calls.is_empty() {
            return Err(at("it is empty"));
        }
        match role {
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
    }
    if open.is_empty() { Ok(()) } else { Err(format!("the calls {open:?} at the end have no result")) }
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
        "" => Err("a call has no id".into()),
        id => Ok(id),
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(allowed) {
        return Err(format!("{name:?} is no name for a tool"));
    }
    Ok(())
}

fn check_tools(body: &Value) -> Result<(), String> {
    let Some(tools) = body.get("tools") else {
        return if body.get("tool_choice").is_some() {
            Err("`tool_choice` without tools".into())
        } else {
            Ok(())
        };
    };
    let tools = tools.as_array().filter(|t| !t.is_empty()).ok_or("`tools` is no list or empty")?;
    let mut names = HashSet::new();
    for tool in tools {
        let name = tool.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
        check_name(name)?;
        if !names.insert(name) {
            return Err(format!("the tool {name} is there twice"));
        }
        let schema = tool.pointer("/function/parameters");
        let is_object = schema.is_some_and(|s| s.get("type").is_some_and(|t| t == "object"));
        if !is_object || !schema.and_then(|s| s.get("properties")).is_some_and(Value::is_object) {
            return Err(format!("the schema of {name} is not an object with properties"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_fault_of_a_request_is_named() {
        let user = json!({"role": "user", "content": "hi"});
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "t", "arguments": arguments}});
        let asks = |calls: Value| json!({"role": "assistant", "content": null, "tool_calls": calls});
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "{}"});
        let histories = [
            json!([]),
            json!([{"role": "user", "content": " "}]),
            json!([{"role": "user", "content": null}]),
            json!([{"role": "assistant", "content": "", "tool_calls": []}]),
            json!([{"role": "robot", "content": "hi"}]),
            json!([asks(json!([call("a", "{}")]))]),
            json!([asks(json!([call("a", "{}")])), user]),
            json!([user, result("a")]),
            json!([asks(json!([call("a", "{}")])), result("a"), result("a")]),
            json!([asks(json!([call("a", "{}")])), result("a"), asks(json!([call("a", "{}")])), result("a")]),
            json!([asks(json!([call("", "{}")]))]),
            json!([asks(json!([call("a", "")]))]),
        ];
        let faults: Vec<String> =
            histories.iter().map(|h| check(&json!({"model": "m", "messages": h})).unwrap_err()).collect();
        insta::assert_snapshot!(faults.join("\n"), @r#"
        `messages` is empty
        message 0 (user): it is empty
        message 0 (user): it is empty
        message 0 (assistant): it is empty
        message 0 (robot): the role is unknown or may not call tools
        the calls ["a"] at the end have no result
        message 1 (user): the calls ["a"] in front of it have no result
        message 1 (tool): it answers no open call: "a"
        message 2 (tool): it answers no open call: "a"
        message 2 (assistant): the call id "a" is used twice
        message 0 (assistant): a call has no id
        message 0 (assistant): a call's arguments are not the text of a JSON object
        "#);
    }

    #[test]
    fn faulty_tools_are_refused() {
        let tool = |name: &str, schema: Value| json!({"function": {"name": name, "parameters": schema}});
        let good = json!({"type": "object", "properties": {}});
        let table = [
            json!({"tools": []}),
            json!({"tool_choice": "none"}),
            json!({"tools": [tool("a b", good.clone())]}),
            json!({"tools": [tool("a", json!({"type": "object"}))]}),
            json!({"tools": [tool("a", good.clone()), tool("a", good.clone())]}),
        ];
        for mut body in table {
            body["model"] = "m".into();
            body["messages"] = json!([{"role": "user", "content": "hi"}]);
            assert!(check(&body).is_err(), "{body}");
            body["tools"] = json!([tool("a", good.clone())]);
            assert_eq!(check(&body), Ok(()), "{body}");
        }
    }
}
