use proptest::prelude::*;

use super::messages::write_messages;
use super::*;
use crate::chat::Params;
use crate::chat::{Message, ToolCall};
use crate::llm::catalogue::{Chain, Custom, Providers};

/// The model `p/m`, with these settings of the operator's.
fn model(settings: &str) -> Model {
    let custom = Custom::parse(&format!(r#"{{"models": {{"p/m": {settings}}}}}"#)).unwrap();
    let chain: Chain = "p/m".parse().unwrap();
    let lookup = |name: &str| (name == "P_BASE_URL").then(|| "http://127.0.0.1:9".to_owned());
    Providers::with_custom(&chain, custom, &lookup).first_usable(&chain).unwrap()
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall::new(id, name, arguments)
}

fn written(messages: &[Message]) -> String {
    let lines: Vec<String> =
        write_messages(messages, &model("{}").info).iter().map(ToString::to_string).collect();
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
        let contents = body["messages"].as_array().unwrap().iter().map(|m| m["content"].as_str().unwrap());
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
    let out = write_messages(&messages, &model("{}").info);
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
    let content = |settings: &str| write_messages(&messages, &model(settings).info)[0]["content"].clone();
    assert_eq!((content("{}"), content(r#"{"null_content": false}"#)), (Value::Null, "".into()));
}

#[test]
fn the_most_tokens_of_an_answer_are_no_more_than_the_model_can_give() {
    let limit = |settings: &str| {
        let body = body(&PARAMS, ToolChoice::None, false, settings, &[]);
        serde_json::from_str::<Value>(&body).unwrap()["max_tokens"].clone()
    };
    assert_eq!((limit(r#"{"max_output": 8}"#), limit(r#"{"max_output": 10}"#)), (8.into(), 9.into()));
}

#[test]
fn a_model_that_must_not_think_is_told_so() {
    insta::assert_snapshot!(body(&Params::default(), ToolChoice::None, false, r#"{"thinking": false, "stream": false}"#, &[]), @r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"thinking":{"type":"disabled"}}"#);
}

#[test]
fn a_calls_signature_goes_back_to_who_wants_it_and_to_nobody_else() {
    let signed = |id: &str| ToolCall { signature: Some(format!("seal {id}")), ..call(id, "t", "{}") };
    let messages = [
        Message::assistant("", vec![signed("a"), call("b", "t", "{}"), signed("c")]),
        Message::assistant("", vec![call("d", "t", "{}"), call("e", "t", "{}")]),
    ];
    let signatures = |settings: &str| {
        let written = write_messages(&messages, &model(settings).info);
        let calls = written.iter().filter_map(|m| m["tool_calls"].as_array()).flatten();
        let signature = |call: &Value| match call.get("extra_content") {
            Some(extra) => extra["google"]["thought_signature"].as_str().unwrap().to_owned(),
            None => "none".to_owned(),
        };
        calls.map(signature).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(signatures("{}"), "none, none, none, none, none");
    let sent = signatures(r#"{"thought_signatures": "sent"}"#);
    assert_eq!(sent, "seal a, none, seal c, none, none");
    let demanded = signatures(r#"{"thought_signatures": "demanded"}"#);
    assert_eq!(demanded, "seal a, none, seal c, skip_thought_signature_validator, none");
}

#[test]
fn where_roles_must_take_turns_what_one_says_in_a_row_is_one_message() {
    let text = Message::text;
    let messages = [
        text(Role::System, "1"),
        text(Role::User, "a"),
        text(Role::User, "b"),
        text(Role::System, "2"),
        text(Role::Assistant, "c"),
        Message::assistant("d", vec![call("x", "t", "{}"), call("y", "t", "{}")]),
        Message::tool_result("x", "X"),
        Message::tool_result("y", "Y"),
        Message::assistant("", vec![call("z", "t", "{}")]),
        Message::tool_result("z", "Z"),
        text(Role::User, "e"),
    ];
    insta::assert_snapshot!(turns(&messages).iter().map(Value::to_string).collect::<Vec<_>>().join("\n"), @r#"
    {"role":"system","content":"1\n\n2"}
    {"role":"user","content":"a\n\nb"}
    {"role":"assistant","content":"c\n\nd","tool_calls":[{"id":"call00001","type":"function","function":{"name":"t","arguments":"{}"}},{"id":"call00002","type":"function","function":{"name":"t","arguments":"{}"}}]}
    {"role":"tool","tool_call_id":"call00001","content":"X"}
    {"role":"tool","tool_call_id":"call00002","content":"Y"}
    {"role":"assistant","content":null,"tool_calls":[{"id":"call00003","type":"function","function":{"name":"t","arguments":"{}"}}]}
    {"role":"tool","tool_call_id":"call00003","content":"Z"}
    {"role":"user","content":"e"}
    "#);
}

/// What a model whose roles must take turns is sent.
fn turns(messages: &[Message]) -> Vec<Value> {
    let params = Params::default();
    let request =
        ChatRequest { model: "p/m", messages, tools: &[], tool_choice: ToolChoice::Auto, params: &params };
    let body = write_request(&request, &model(r#"{"alternate_roles": true}"#), &Refused::new());
    body["messages"].as_array().unwrap().clone()
}

fn any_message() -> impl Strategy<Value = Message> {
    let role = prop_oneof![Just(Role::System), Just(Role::User), Just(Role::Assistant), Just(Role::Tool)];
    let calls = prop_oneof![2 => Just(0), 1 => 1_usize..3];
    (role, "[ a-c\n]{0,3}", calls).prop_map(|(role, content, calls)| match role {
        Role::Assistant => {
            let call = |at| call(&format!("c{at}"), "t", "{}");
            Message::assistant(content, (0..calls).map(call).collect())
        }
        Role::Tool => Message::tool_result("c0", content),
        role => Message::text(role, content),
    })
}

proptest! {
    #[test]
    fn whatever_the_messages_are_no_role_speaks_twice_in_a_row_and_each_keeps_its_words_in_order(
        messages in prop::collection::vec(any_message(), 0..12),
    ) {
        let out = turns(&messages);
        for pair in out.windows(2) {
            prop_assert!(pair[0]["role"] != pair[1]["role"] || pair[0]["role"] == "tool" || pair[0].get("tool_calls").is_some(), "{:?}", out);
        }
        let words = |written: &[Value], role: Role| {
            let of_role = written.iter().filter(|message| message["role"] == role.as_str());
            let texts: Vec<&str> = of_role.filter_map(|message| message["content"].as_str()).collect();
            texts.join("\n\n")
        };
        let plain = write_messages(&messages, &model("{}").info);
        for role in [Role::System, Role::User, Role::Assistant, Role::Tool] {
            let filled: Vec<Value> = plain.iter().filter(|message| message["content"] != "").cloned().collect();
            prop_assert_eq!(words(&out, role), words(&filled, role));
        }
        let calls = |written: &[Value]| -> Vec<Value> {
            written.iter().filter_map(|message| message.get("tool_calls")).cloned().collect()
        };
        prop_assert_eq!(calls(&out), calls(&plain));
    }
}
