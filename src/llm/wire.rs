//! Chat completions as JSON: written strictly, read leniently.
//!
//! Providers differ in what they forgive. What we send is what the strictest of them takes; what we read is walked as
//! a [`Value`], so that a null, a missing field or an odd type costs that field and not the answer. What a status
//! means is [`super::failure`]'s affair.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::LlmError;
use super::catalogue::TokenLimit;
use crate::chat::{ChatAnswer, ChatRequest, FinishReason, Message, Role, ToolCall, ToolChoice, Usage};

/// The longest tool name that providers take.
const MAX_NAME_CHARS: usize = 64;

/// What stands for a text that a tool message must have and does not.
const NO_RESULT: &str = r#"{"success":false,"error":"no result was recorded for this call"}"#;

/// The request's body.
pub(super) fn write_request(request: &ChatRequest<'_>, model: &str, limit: TokenLimit) -> Value {
    let mut body = Map::new();
    body.insert("model".into(), model.into());
    body.insert("messages".into(), write_messages(request.messages).into());
    // `tool_choice` without tools is refused, and so is an empty list of tools.
    if !request.tools.is_empty() {
        let tool = |t: &crate::chat::ToolSchema| {
            json!({"type": "function", "function": {
                "name": t.name, "description": t.description, "parameters": t.parameters,
            }})
        };
        body.insert("tools".into(), request.tools.iter().map(tool).collect());
        let choice = match request.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
        };
        body.insert("tool_choice".into(), choice.into());
    }
    if let Some(temperature) = request.params.temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(max_tokens) = request.params.max_tokens {
        let name = match limit {
            TokenLimit::MaxTokens => "max_tokens",
            TokenLimit::MaxCompletionTokens => "max_completion_tokens",
        };
        body.insert(name.into(), max_tokens.into());
    }
    if let Some(seed) = request.params.seed {
        body.insert("seed".into(), seed.into());
    }
    Value::Object(body)
}

/// The messages, with no empty one, every call answered right behind it, and no id used twice.
fn write_messages(messages: &[Message]) -> Vec<Value> {
    let mut out = Vec::new();
    let mut used_ids = HashSet::new();
    let mut rest = messages;
    while let [message, tail @ ..] = rest {
        rest = tail;
        match message.role {
            // A result with no call in front of it.
            Role::Tool => {}
            Role::Assistant if !message.tool_calls.is_empty() => {
                let results = tail.iter().take_while(|m| m.role == Role::Tool).count();
                let (results, behind) = tail.split_at(results);
                write_batch(message, results, &mut used_ids, &mut out);
                rest = behind;
            }
            _ if message.content.trim().is_empty() => {}
            role => out.push(json!({"role": role.as_str(), "content": message.content})),
        }
    }
    out
}

/// An assistant's calls and, in their order, one result for each.
fn write_batch(assistant: &Message, results: &[Message], used: &mut HashSet<String>, out: &mut Vec<Value>) {
    let mut by_id: HashMap<&str, &str> = HashMap::new();
    for result in results {
        by_id.entry(result.tool_call_id.as_deref().unwrap_or_default()).or_insert(&result.content);
    }
    let mut calls = Vec::new();
    let mut answers = Vec::new();
    for call in &assistant.tool_calls {
        let id = unused_id(&call.id, used);
        let content = by_id.remove(call.id.as_str()).filter(|c| !c.trim().is_empty()).unwrap_or(NO_RESULT);
        calls.push(json!({"id": id, "type": "function", "function": {
            "name": wire_name(&call.name), "arguments": object_text(&call.arguments),
        }}));
        answers.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    let text = Some(&assistant.content).filter(|text| !text.trim().is_empty());
    out.push(json!({"role": "assistant", "content": text, "tool_calls": calls}));
    out.append(&mut answers);
}

/// `id`, or one made up where it is empty or taken.
fn unused_id(id: &str, used: &mut HashSet<String>) -> String {
    let mut id = if id.is_empty() { format!("call_{}", used.len()) } else { id.to_owned() };
    while !used.insert(id.clone()) {
        id.push('x');
    }
    id
}

/// A name that every provider takes: a model may have called a tool by a name that none would.
fn wire_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let name: String = name.chars().take(MAX_NAME_CHARS).map(allowed).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// The arguments where they are the text of a JSON object, else `{}`: strict providers refuse a whole history for one
/// call that a model wrote badly.
fn object_text(arguments: &str) -> &str {
    if serde_json::from_str::<Map<String, Value>>(arguments).is_ok() { arguments } else { "{}" }
}

/// The body of an answer as JSON.
///
/// # Errors
/// [`LlmError::Unreadable`] for anything else: a proxy's HTML page, a body that was cut.
pub(super) fn parse(body: &[u8]) -> Result<Value, LlmError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    serde_json::from_slice(body)
        .map_err(|_| LlmError::Unreadable(format!("{} bytes that are not JSON", body.len())))
}

/// The error that a body carries, whatever its status says.
pub(super) fn error_in(body: &Value) -> Option<&Value> {
    let choice = body.pointer("/choices/0/error");
    body.get("error").into_iter().chain(choice).find(|error| !error.is_null())
}

/// The answer in a body without an error.
///
/// # Errors
/// [`LlmError::Unreadable`] where there is no message in it.
pub(super) fn read_answer(body: &Value, model: &str) -> Result<ChatAnswer, LlmError> {
    let choice =
        body.pointer("/choices/0").ok_or_else(|| LlmError::Unreadable("it holds no choices".into()))?;
    let message = choice
        .get("message")
        .filter(|m| m.is_object())
        .ok_or_else(|| LlmError::Unreadable("its first choice holds no message".into()))?;
    let tool_calls = read_calls(message);
    Ok(ChatAnswer {
        content: read_content(message),
        finish_reason: read_finish_reason(choice, !tool_calls.is_empty()),
        tool_calls,
        usage: read_usage(body),
        model: model.to_owned(),
    })
}

/// The visible text: a string or text parts, without a block of thoughts in front; else the words of a refusal.
fn read_content(message: &Value) -> String {
    let text = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(part_text).collect(),
        _ => String::new(),
    };
    let text = without_thoughts(&text);
    if !text.trim().is_empty() {
        return text.to_owned();
    }
    message.get("refusal").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        // Parts of other types (`thinking`, `reasoning`) are not for the reader.
        _ if matches!(part.get("type").and_then(Value::as_str), None | Some("text" | "output_text")) => {
            part.get("text").and_then(Value::as_str)
        }
        _ => None,
    }
}

/// Some servers leave the model's thoughts in front of its text. Tags further on are the text's own.
fn without_thoughts(text: &str) -> &str {
    match text.trim_start().strip_prefix("<think>") {
        None => text,
        Some(thoughts) => thoughts.split_once("</think>").map_or("", |(_, text)| text.trim_start()),
    }
}

fn read_calls(message: &Value) -> Vec<ToolCall> {
    let calls = match message.get("tool_calls") {
        Some(Value::Array(calls)) => calls.as_slice(),
        _ => &[],
    };
    if calls.is_empty() {
        // The shape before there were several calls in one message.
        return message.get("function_call").filter(|c| c.is_object()).map(read_call).into_iter().collect();
    }
    calls.iter().filter(|c| c.is_object()).map(read_call).collect()
}

fn read_call(call: &Value) -> ToolCall {
    let function = call.get("function").filter(|f| f.is_object()).unwrap_or(call);
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    ToolCall {
        id: text(call.get("id")),
        name: text(function.get("name")),
        arguments: read_arguments(function.get("arguments")),
    }
}

/// The arguments as JSON text. Nothing in its many spellings is `{}`; an object is written as text; a text that holds
/// the text of an object is unwrapped once. What is left is as the model wrote it.
fn read_arguments(arguments: Option<&Value>) -> String {
    let text = match arguments {
        None | Some(Value::Null) => return "{}".to_owned(),
        Some(Value::String(text)) => text.trim(),
        Some(other) => return other.to_string(),
    };
    match serde_json::from_str::<Value>(text) {
        _ if text.is_empty() => "{}".to_owned(),
        Ok(Value::Null) => "{}".to_owned(),
        Ok(Value::String(inner)) if inner.trim().is_empty() => "{}".to_owned(),
        Ok(Value::String(inner)) if serde_json::from_str::<Map<String, Value>>(&inner).is_ok() => inner,
        _ => text.to_owned(),
    }
}

/// Whether there are calls decides, not the word: several providers say `stop` beside calls.
fn read_finish_reason(choice: &Value, calls: bool) -> FinishReason {
    match choice.get("finish_reason").and_then(Value::as_str).unwrap_or_default() {
        "length" | "max_tokens" => FinishReason::Length,
        _ if calls => FinishReason::ToolCalls,
        "" | "stop" | "end_turn" | "eos" | "tool_calls" | "function_call" | "tool_use" => FinishReason::Stop,
        other => FinishReason::Other(other.chars().take(MAX_NAME_CHARS).collect()),
    }
}

fn read_usage(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|u| u.is_object())?;
    let count = |pointers: &[&str]| {
        let value = pointers.iter().find_map(|pointer| usage.pointer(pointer))?;
        // Some proxies write counts as floats; the cast saturates.
        value.as_u64().or_else(|| value.as_f64().map(|float| float as u64))
    };
    let usage = Usage {
        input_tokens: count(&["/prompt_tokens", "/input_tokens"]),
        cached_input_tokens: count(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
            "/cached_tokens",
        ]),
        output_tokens: count(&["/completion_tokens", "/output_tokens"]),
    };
    (usage != Usage::default()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Params, ToolSchema};

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
    }

    fn read(message: Value) -> ChatAnswer {
        read_answer(&json!({"choices": [{"message": message}]}), "p/m").unwrap()
    }

    fn written(messages: &[Message]) -> String {
        let lines: Vec<String> = write_messages(messages).iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    #[test]
    fn a_request_holds_only_what_was_asked_for() {
        let messages = [Message::text(Role::User, "hi")];
        let mut request = ChatRequest {
            model: "p/m",
            messages: &messages,
            tools: &[],
            tool_choice: ToolChoice::None,
            params: &Params::default(),
        };
        insta::assert_snapshot!(write_request(&request, "m", TokenLimit::MaxTokens),
            @r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);

        let tools = [ToolSchema {
            name: "time".into(),
            description: "Tells the time.".into(),
            parameters: json!({"type": "object", "properties": {}}),
        }];
        let params = Params { temperature: Some(0.5), max_tokens: Some(9), seed: Some(-1) };
        request.tools = &tools;
        request.params = &params;
        insta::assert_snapshot!(write_request(&request, "m", TokenLimit::MaxCompletionTokens),
            @r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"time","description":"Tells the time.","parameters":{"type":"object","properties":{}}}}],"tool_choice":"none","temperature":0.5,"max_completion_tokens":9,"seed":-1}"#);
    }

    #[test]
    fn every_call_is_answered_in_order_and_strays_and_empty_messages_are_left_out() {
        let messages = [
            Message::text(Role::System, " \n"),
            Message::tool_result("stray", "x"),
            Message::text(Role::User, "do it"),
            Message::assistant(
                "",
                vec![call("a", "one", "{}"), call("b", "two", r#"{"x":1}"#), call("c", "3", "")],
            ),
            Message::tool_result("b", "B"),
            Message::tool_result("a", " "),
            Message::tool_result("b", "again"),
            Message::assistant("  ", vec![]),
            Message::text(Role::User, "thanks"),
        ];
        insta::assert_snapshot!(written(&messages), @r#"
        {"role":"user","content":"do it"}
        {"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"one","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"two","arguments":"{\"x\":1}"}},{"id":"c","type":"function","function":{"name":"3","arguments":"{}"}}]}
        {"role":"tool","tool_call_id":"a","content":"{\"success\":false,\"error\":\"no result was recorded for this call\"}"}
        {"role":"tool","tool_call_id":"b","content":"B"}
        {"role":"tool","tool_call_id":"c","content":"{\"success\":false,\"error\":\"no result was recorded for this call\"}"}
        {"role":"user","content":"thanks"}
        "#);
    }

    #[test]
    fn repeated_ids_bad_arguments_and_bad_names_are_mended() {
        let bad = ["", " ", "{\"content\":\"Hello wor", "[1]", "null"];
        let calls = bad.iter().map(|a| call("same", "shell exec!", a)).collect();
        let messages = [Message::assistant("text", calls), Message::tool_result("same", "R")];
        let out = write_messages(&messages);
        let mut ids = HashSet::new();
        for (wire, result) in out[0]["tool_calls"].as_array().unwrap().iter().zip(&out[1..]) {
            assert!(ids.insert(wire["id"].as_str().unwrap()), "the id {} is used twice", wire["id"]);
            assert_eq!(wire["id"], result["tool_call_id"]);
            assert_eq!(wire["function"]["arguments"], "{}");
            assert_eq!(wire["function"]["name"], "shell_exec_");
        }
        assert_eq!((ids.len(), out.len()), (5, 6));
    }

    #[test]
    fn content_is_read_in_each_of_its_shapes() {
        let table = [
            (json!({"content": "hi"}), "hi"),
            (json!({"content": null}), ""),
            (json!({}), ""),
            (json!({"content": 7}), ""),
            (json!({"content": [{"type": "text", "text": "a"}, "b", {"text": "c"}]}), "abc"),
            (json!({"content": [{"type": "thinking", "text": "hmm"}, {"type": "text", "text": "a"}]}), "a"),
            (json!({"content": "", "reasoning_content": "hmm", "reasoning": "hmm"}), ""),
            (json!({"content": "<think>hmm</think>\n\nhi"}), "hi"),
            (json!({"content": "\n<think>hmm"}), ""),
            (json!({"content": "say <think>"}), "say <think>"),
            (json!({"content": null, "refusal": "I will not."}), "I will not."),
        ];
        for (message, expected) in table {
            assert_eq!(read(message.clone()).content, expected, "{message}");
        }
    }

    #[test]
    fn arguments_are_read_in_each_of_their_shapes() {
        let table = [
            (json!({"name": "t", "arguments": ""}), "{}"),
            (json!({"name": "t", "arguments": " "}), "{}"),
            (json!({"name": "t", "arguments": null}), "{}"),
            (json!({"name": "t", "arguments": "null"}), "{}"),
            (json!({"name": "t", "arguments": {}}), "{}"),
            (json!({"name": "t"}), "{}"),
            (json!({"name": "t", "arguments": "\"\""}), "{}"),
            (json!({"name": "t", "arguments": {"a": 1}}), r#"{"a":1}"#),
            (json!({"name": "t", "arguments": "{\"a\": 1}"}), r#"{"a": 1}"#),
            (json!({"name": "t", "arguments": "\"{\\\"a\\\":1}\""}), r#"{"a":1}"#),
            (json!({"name": "t", "arguments": "{\"a\":"}), r#"{"a":"#),
            (json!({"name": "t", "arguments": [1]}), "[1]"),
        ];
        for (function, expected) in table {
            let answer = read(json!({"tool_calls": [{"id": "c", "type": "function", "function": function}]}));
            assert_eq!(answer.tool_calls, [call("c", "t", expected)], "{function}");
        }
    }

    #[test]
    fn calls_are_read_without_ids_without_types_and_in_the_legacy_shape() {
        let answer = read(json!({"tool_calls": [
            {"function": {"name": "a", "arguments": "{}"}}, {"id": null, "name": "b"}, null, {"id": 7, "function": {}},
        ]}));
        assert_eq!(answer.tool_calls, [call("", "a", "{}"), call("", "b", "{}"), call("7", "", "{}")]);
        let legacy = read(json!({"tool_calls": null, "function_call": {"name": "a", "arguments": "{}"}}));
        assert_eq!(legacy.tool_calls, [call("", "a", "{}")]);
    }

    #[test]
    fn calls_decide_and_not_the_finish_reason() {
        let calls = json!([{"id": "c", "function": {"name": "t"}}]);
        for reason in [json!("stop"), json!("end_turn"), json!("function_call"), json!(null), json!("")] {
            let choice = json!({"finish_reason": reason, "message": {"tool_calls": calls}});
            let answer = read_answer(&json!({"choices": [choice]}), "p/m").unwrap();
            assert_eq!(answer.finish_reason, FinishReason::ToolCalls, "{reason}");
        }
        let reason = |reason: Value| {
            let choice = json!({"finish_reason": reason, "message": {"content": "done", "tool_calls": []}});
            read_answer(&json!({"choices": [choice]}), "p/m").unwrap().finish_reason
        };
        assert_eq!(reason(json!("tool_calls")), FinishReason::Stop);
        assert_eq!(reason(json!("length")), FinishReason::Length);
        assert_eq!(reason(json!("content_filter")), FinishReason::Other("content_filter".into()));
    }

    #[test]
    fn usage_is_read_where_it_is_and_missing_where_it_is_not() {
        let usage = |usage: Value| read_usage(&json!({"usage": usage}));
        let told = |input, cached, output| {
            Some(Usage { input_tokens: input, cached_input_tokens: cached, output_tokens: output })
        };
        assert_eq!(usage(json!(null)), None);
        assert_eq!(usage(json!({})), None);
        let both = told(Some(3), None, Some(2));
        assert_eq!(usage(json!({"prompt_tokens": 3, "completion_tokens": 2.0})), both);
        assert_eq!(usage(json!({"input_tokens": 3, "output_tokens": 2})), both);
        assert_eq!(usage(json!({"prompt_tokens": 3, "completion_tokens": null})), told(Some(3), None, None));
        for cached in [
            json!({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}),
            json!({"prompt_tokens": 3, "prompt_cache_hit_tokens": 1, "prompt_cache_miss_tokens": 2}),
            json!({"prompt_tokens": 3, "prompt_tokens_details": null, "cached_tokens": 1}),
        ] {
            assert_eq!(usage(cached.clone()), told(Some(3), Some(1), None), "{cached}");
        }
    }

    #[test]
    fn a_body_without_a_message_is_unreadable_and_a_bom_is_not() {
        assert!(parse(b"\xef\xbb\xbf{}").is_ok());
        let table: [&[u8]; 7] = [
            b"",
            b"<!DOCTYPE html><title>Log in</title>",
            b"{\"choices\":[{\"mess",
            b"{\"choices\":null,\"error\":null}",
            b"{\"choices\":[]}",
            b"{\"choices\":[{\"message\":null}]}",
            b"[]",
        ];
        for body in table {
            let error = parse(body).and_then(|body| read_answer(&body, "p/m")).unwrap_err();
            assert!(matches!(&error, LlmError::Unreadable(_)), "{error}");
            assert!(!error.to_string().contains('<'), "{error}");
        }
    }
}
