//! Requests as JSON, written strictly: providers differ in what they forgive, and what we send is what the strictest
//! takes. Reading is [`super::read`]'s affair.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::catalogue::Model;
use crate::chat::{ChatRequest, Message, Role, ToolCall, ToolChoice, ToolSchema};

/// The longest tool name that providers take.
const MAX_NAME_CHARS: usize = 64;

/// What stands for a text that a tool message must have and does not.
const NO_RESULT: &str = r#"{"success":false,"error":"no result was recorded for this call"}"#;

/// The names of parameters that a model refused.
pub(super) type Refused = BTreeSet<&'static str>;

/// The request's body, without what the model does not take.
pub(super) fn write_request(request: &ChatRequest<'_>, model: &Model, refused: &Refused) -> Value {
    let info = &model.info;
    let takes = |parameter: &str| !refused.contains(parameter);
    let mut body = Map::new();
    body.insert("model".into(), model.name.as_str().into());
    let mut messages = write_messages(request.messages, info.null_content);
    if info.system_first {
        // Stable: each kind keeps its order.
        messages.sort_by_key(|message| message.get("role").is_none_or(|role| role != Role::System.as_str()));
    }
    body.insert("messages".into(), messages.into());

    // Where no call is wanted and the model would make one all the same, it sees no schema.
    let heeds_none = info.tool_choice_none && takes("tool_choice");
    let offers = info.tools && (request.tool_choice == ToolChoice::Auto || heeds_none);
    // `tool_choice` without tools is refused, and so is an empty list of tools.
    if offers && !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(write_tool).collect());
        let choice = match request.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
        };
        if takes("tool_choice") {
            body.insert("tool_choice".into(), choice.into());
        }
        if !info.parallel_tool_calls && takes("parallel_tool_calls") {
            body.insert("parallel_tool_calls".into(), false.into());
        }
    }
    if let Some(temperature) = request.params.temperature.filter(|_| info.temperature && takes("temperature"))
    {
        body.insert("temperature".into(), temperature.into());
    }
    let limit = [info.token_limit, info.token_limit.other()].into_iter().find(|limit| takes(limit.as_str()));
    if let (Some(max_tokens), Some(limit)) = (request.params.max_tokens, limit) {
        body.insert(limit.as_str().into(), max_tokens.into());
    }
    if let Some(seed) = request.params.seed.filter(|_| takes(info.seed.as_str())) {
        body.insert(info.seed.as_str().into(), seed.into());
    }
    if info.stream && takes("stream") {
        body.insert("stream".into(), true.into());
        if info.stream_usage && takes("stream_options") {
            body.insert("stream_options".into(), json!({"include_usage": true}));
        }
    }
    Value::Object(body)
}

fn write_tool(tool: &ToolSchema) -> Value {
    json!({"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters,
    }})
}

/// The messages, with no empty one, and every call answered right behind it.
fn write_messages(messages: &[Message], null_content: bool) -> Vec<Value> {
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
                let text = if text.is_empty() && null_content { Value::Null } else { text.into() };
                write_batch(text, &message.tool_calls, results, &mut calls, &mut out);
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
        written.push(json!({"id": id, "type": "function", "function": {
            "name": wire_name(&call.name), "arguments": object_text(call),
        }}));
        answers.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
    }
    out.push(json!({"role": "assistant", "content": text, "tool_calls": written}));
    out.append(&mut answers);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Params;
    use crate::llm::catalogue::{Chain, Custom, Providers};

    /// The model `p/m`, with these settings of the operator's.
    fn model(settings: &str) -> Model {
        let custom = Custom::parse(&format!(r#"{{"models": {{"p/m": {settings}}}}}"#)).unwrap();
        let chain: Chain = "p/m".parse().unwrap();
        let lookup = |name: &str| (name == "P_BASE_URL").then(|| "http://127.0.0.1:9".to_owned());
        Providers::with_custom(&chain, custom, &lookup).first_usable(&chain).unwrap()
    }

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
    }

    fn written(messages: &[Message]) -> String {
        let lines: Vec<String> = write_messages(messages, true).iter().map(ToString::to_string).collect();
        lines.join("\n")
    }

    const PARAMS: Params = Params { temperature: Some(0.5), max_tokens: Some(9), seed: Some(-1) };

    fn body(
        params: &Params,
        choice: ToolChoice,
        with_tools: bool,
        settings: &str,
        refused: &[&'static str],
    ) -> String {
        let tool = ToolSchema {
            name: "time".into(),
            description: "Tells the time.".into(),
            parameters: json!({"type": "object", "properties": {}}),
        };
        let request = ChatRequest {
            model: "p/m",
            messages: &[Message::text(Role::User, "hi")],
            tools: if with_tools { std::slice::from_ref(&tool) } else { &[] },
            tool_choice: choice,
            params,
        };
        write_request(&request, &model(settings), &refused.iter().copied().collect()).to_string()
    }

    #[test]
    fn a_request_holds_only_what_was_asked_for() {
        insta::assert_snapshot!(body(&Params::default(), ToolChoice::None, false, r#"{"stream":false}"#, &[]), @r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
        insta::assert_snapshot!(body(&PARAMS, ToolChoice::None, true, "{}", &[]), @r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"time","description":"Tells the time.","parameters":{"type":"object","properties":{}}}}],"tool_choice":"none","temperature":0.5,"max_tokens":9,"seed":-1,"stream":true,"stream_options":{"include_usage":true}}"#);
    }

    #[test]
    fn a_request_is_spelled_as_the_model_takes_it() {
        let settings = r#"{"token_limit": "max_completion_tokens", "seed": "random_seed", "temperature": false,
            "parallel_tool_calls": false, "stream_usage": false}"#;
        insta::assert_snapshot!(body(&PARAMS, ToolChoice::Auto, true, settings, &[]), @r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"time","description":"Tells the time.","parameters":{"type":"object","properties":{}}}}],"tool_choice":"auto","parallel_tool_calls":false,"max_completion_tokens":9,"random_seed":-1,"stream":true}"#);
        // No schema where a call is not wanted and the model would make one all the same, or makes none at all.
        let without = body(&PARAMS, ToolChoice::None, false, "{}", &[]);
        assert_eq!(body(&PARAMS, ToolChoice::None, true, r#"{"tool_choice_none": false}"#, &[]), without);
        assert_eq!(body(&PARAMS, ToolChoice::Auto, true, r#"{"tools": false}"#, &[]), without);
        assert_eq!(body(&PARAMS, ToolChoice::None, true, "{}", &["tool_choice"]), without);
    }

    #[test]
    fn what_was_refused_is_spelled_otherwise_or_left_out() {
        let off = r#"{"stream": false}"#;
        let shown = |refused: &[&'static str]| body(&PARAMS, ToolChoice::Auto, false, off, refused);
        let table = [
            shown(&["max_tokens"]),
            shown(&["max_tokens", "max_completion_tokens"]),
            shown(&["temperature", "seed"]),
            body(
                &PARAMS,
                ToolChoice::Auto,
                true,
                r#"{"parallel_tool_calls": false}"#,
                &["tool_choice", "parallel_tool_calls", "stream_options"],
            ),
            body(&PARAMS, ToolChoice::Auto, false, "{}", &["stream"]),
        ];
        insta::assert_snapshot!(table.join("\n"), @r#"
        {"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"max_completion_tokens":9,"seed":-1}
        {"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"seed":-1}
        {"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":9}
        {"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"time","description":"Tells the time.","parameters":{"type":"object","properties":{}}}}],"temperature":0.5,"max_tokens":9,"seed":-1,"stream":true}
        {"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"max_tokens":9,"seed":-1}
        "#);
    }

    #[test]
    fn system_messages_move_to_the_front_where_the_model_wants_them_there() {
        let messages = [
            Message::text(Role::System, "1"),
            Message::text(Role::User, "a"),
            Message::text(Role::System, "2"),
            Message::text(Role::Assistant, "b"),
            Message::text(Role::User, "c"),
            Message::text(Role::System, "3"),
        ];
        let params = Params::default();
        let contents = |settings: &str| {
            let request = ChatRequest {
                model: "p/m",
                messages: &messages,
                tools: &[],
                tool_choice: ToolChoice::Auto,
                params: &params,
            };
            let body = write_request(&request, &model(settings), &Refused::new());
            let contents =
                body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap());
            contents.collect::<String>()
        };
        assert_eq!(contents(r#"{"system_first": true}"#), "123abc");
        assert_eq!(contents(r#"{"system_first": false}"#), "1a2bc3");
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
        {"role":"assistant","content":null,"tool_calls":[{"id":"call00001","type":"function","function":{"name":"one","arguments":"{}"}},{"id":"call00002","type":"function","function":{"name":"two","arguments":"{\"x\":1}"}},{"id":"call00003","type":"function","function":{"name":"3","arguments":"{}"}}]}
        {"role":"tool","tool_call_id":"call00001","content":"{\"success\":false,\"error\":\"no result was recorded for this call\"}"}
        {"role":"tool","tool_call_id":"call00002","content":"B"}
        {"role":"tool","tool_call_id":"call00003","content":"{\"success\":false,\"error\":\"no result was recorded for this call\"}"}
        {"role":"user","content":"thanks"}
        "#);
    }

    #[test]
    fn repeated_ids_bad_arguments_and_bad_names_are_mended() {
        let bad = ["", " ", "{\"content\":\"Hello wor", "[1]", "null"];
        let calls = bad.iter().map(|a| call("same", "shell exec!", a)).collect();
        let messages = [Message::assistant("text", calls), Message::tool_result("same", "R")];
        let out = write_messages(&messages, true);
        let mut ids = BTreeSet::new();
        for (wire, result) in out[0]["tool_calls"].as_array().unwrap().iter().zip(&out[1..]) {
            assert!(ids.insert(wire["id"].as_str().unwrap()), "the id {} is used twice", wire["id"]);
            assert_eq!(wire["id"], result["tool_call_id"]);
            assert_eq!(wire["function"]["arguments"], "{}");
            assert_eq!(wire["function"]["name"], "shell_exec_");
        }
        assert_eq!((ids.len(), out.len()), (5, 6));
    }

    #[test]
    fn a_text_that_is_missing_is_null_or_empty() {
        let messages = [Message::assistant(" ", vec![call("a", "t", "{}")]), Message::tool_result("a", "R")];
        assert_eq!(write_messages(&messages, true)[0]["content"], Value::Null);
        assert_eq!(write_messages(&messages, false)[0]["content"], "");
    }
}
