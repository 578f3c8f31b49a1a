use serde_json::json;

use super::*;
use crate::chat::{Role, Usage};
use crate::context::compaction::Limits;

fn tool(name: &str) -> ToolSchema {
    ToolSchema {
        name: name.into(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": {}}),
    }
}

fn new_run(max_turns: u32) -> Run {
    let messages = vec![Message::text(Role::User, "hi")];
    Run::new(messages, vec![tool("time"), tool("query")], Params::default(), "p/m".into(), max_turns)
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall::new(id, name, arguments)
}

fn answer(content: &str, tool_calls: Vec<ToolCall>) -> ChatAnswer {
    ChatAnswer {
        content: content.into(),
        tool_calls,
        finish_reason: FinishReason::Stop,
        usage: Some(Usage { input_tokens: Some(10), cached_input_tokens: None, output_tokens: Some(1) }),
        model: "p/used".into(),
    }
}

fn result(call_id: &str) -> ToolResult {
    ToolResult { call_id: call_id.into(), content: format!("result of {call_id}") }
}

fn tool_choice(run: &Run) -> Option<ToolChoice> {
    match run.next() {
        Step::CallModel(request) => Some(request.tool_choice),
        _ => None,
    }
}

fn done(text: &str) -> Step<'static> {
    Step::Done { text: text.into() }
}

#[test]
fn a_text_ends_the_run() {
    let mut run = new_run(4);
    assert_eq!(tool_choice(&run), Some(ToolChoice::Auto));
    run.model_answered(answer(" hello\n", vec![]));
    assert_eq!(run.next(), done("hello"));
    assert_eq!(run.turns().len(), 1);
    assert_eq!(run.model_used(), "p/used");
}

#[test]
fn results_stand_behind_their_calls_in_the_order_of_the_calls() {
    let mut run = new_run(4);
    run.model_answered(answer("wait", vec![call("a", "time", "{}"), call("b", "query", "{}")]));
    run.tools_answered(vec![result("b"), result("a")]);
    let seen: Vec<(&str, Option<&str>)> =
        run.messages().iter().map(|m| (m.content.as_str(), m.tool_call_id.as_deref())).collect();
    let expected = [("hi", None), ("wait", None), ("result of a", Some("a")), ("result of b", Some("b"))];
    assert_eq!(seen, expected);
}

#[test]
fn results_may_come_one_by_one_and_the_first_of_a_call_counts() {
    let mut run = new_run(4);
    let (a, b) = (call("a", "time", "{}"), call("b", "query", "{}"));
    run.model_answered(answer("", vec![a, b.clone()]));
    let late = ToolResult { call_id: "a".into(), content: "late".into() };
    run.tools_answered(vec![result("a"), result("nobody")]);
    run.tools_answered(vec![late]);
    assert_eq!(run.next(), Step::CallTools(vec![b]));
    assert_eq!(run.messages().len(), 1, "an unfinished turn is not in the messages");
    run.tools_answered(vec![result("b")]);
    assert_eq!(run.messages()[2].content, "result of a");
    assert_eq!(tool_choice(&run), Some(ToolChoice::Auto));
}

#[test]
fn missing_and_repeated_ids_are_replaced_by_unique_ones() {
    let mut run = new_run(4);
    let calls = ["", "x", "x", "call_1_4", ""].map(|id| call(id, "time", "{}"));
    run.model_answered(answer("", calls.to_vec()));
    let ids = |run: &Run| -> Vec<String> {
        run.turns().last().unwrap().tool_calls.iter().map(|c| c.id.clone()).collect()
    };
    let first = ids(&run);
    assert_eq!(first, ["call_1_0", "x", "call_1_2", "call_1_4", "call_1_4_"]);
    run.tools_answered(first.iter().map(|id| result(id)).collect());
    run.model_answered(answer("", vec![call("x", "time", "{}")]));
    assert_eq!(ids(&run), ["call_2_0"], "an id of an earlier turn is taken too");
}

#[test]
fn calls_that_cannot_be_run_are_answered_and_only_the_others_are_run() {
    let mut run = new_run(4);
    let good = call("g", "time", r#"{"zone":"UTC"}"#);
    let calls = vec![
        call("1", "query", r#"{"kinds":[1"#),
        call("2", "query", "[1]"),
        call("3", "query", "kinds: 1"),
        good.clone(),
        call("4", "shell_exec", "{}"),
        call("5", "read_file", "{}"),
        call("6", "profile", "{}"),
        call("7", "", "{}"),
    ];
    run.model_answered(answer("", calls));
    assert_eq!(run.next(), Step::CallTools(vec![good]));
    run.tools_answered(vec![result("g")]);
    let results: Vec<&str> = run.messages()[2..].iter().map(|m| m.content.as_str()).collect();
    insta::assert_snapshot!(results.join("\n"), @r#"
    {"success":false,"error":"invalid JSON arguments: they were cut off; send a shorter call"}
    {"success":false,"error":"invalid JSON arguments: invalid type: sequence, expected a map at line 1 column 0; send one JSON object"}
    {"success":false,"error":"invalid JSON arguments: expected value at line 1 column 1; send one JSON object"}
    result of g
    {"success":false,"error":"not available on this host: there is no shell and there are no local files"}
    {"success":false,"error":"not available on this host: there is no shell and there are no local files"}
    {"success":false,"error":"this run has no such tool; available: time, query"}
    {"success":false,"error":"this run has no such tool; available: time, query"}
    "#);
}

#[test]
fn a_turn_of_nothing_but_bad_calls_goes_straight_back_to_the_model() {
    let mut run = new_run(4);
    run.model_answered(answer("", vec![call("a", "nothing", "{}")]));
    assert!(
        matches!(run.next(), Step::CallModel(request) if request.model == "p/used"),
        "the run stays with the model that answered"
    );
    assert_eq!(run.messages().len(), 3);
}

#[test]
fn arguments_of_an_answer_that_hit_the_token_limit_are_called_cut_off() {
    let mut run = new_run(4);
    let cut = ChatAnswer {
        finish_reason: FinishReason::Length,
        ..answer("", vec![call("a", "time", r#"{"content":"Hello "wor"#)])
    };
    run.model_answered(cut);
    assert!(run.messages()[2].content.contains("send a shorter call"), "{:?}", run.messages()[2]);
}

#[test]
fn the_call_after_the_last_turn_may_not_use_tools_and_its_text_is_the_answer() {
    let mut run = new_run(2);
    for turn in ["a", "b"] {
        assert_eq!(tool_choice(&run), Some(ToolChoice::Auto));
        run.model_answered(answer("", vec![call(turn, "time", "{}")]));
        run.tools_answered(vec![result(turn)]);
    }
    assert_eq!(tool_choice(&run), Some(ToolChoice::None));
    let mut silent = run.clone();
    run.model_answered(answer("so far", vec![call("c", "time", "{}")]));
    assert_eq!(run.next(), done("so far"));
    assert_eq!(run.turns()[2].tool_calls, [], "a call that was not run is not recorded as one");
    silent.model_answered(answer(" ", vec![call("c", "time", "{}")]));
    assert_eq!(silent.next(), done(OUT_OF_TURNS));
}

#[test]
fn an_empty_answer_is_asked_for_once_more_and_then_becomes_an_honest_sentence() {
    let mut run = new_run(4);
    run.model_answered(answer(" \n", vec![]));
    assert_eq!(tool_choice(&run), Some(ToolChoice::Auto));
    assert_eq!(run.messages().len(), 1, "an empty message is never stored");
    let mut lucky = run.clone();
    lucky.model_answered(answer("hello", vec![]));
    assert_eq!(lucky.next(), done("hello"));
    // The one retry is of the whole run.
    run.model_answered(answer("", vec![call("a", "time", "{}")]));
    run.tools_answered(vec![result("a")]);
    run.model_answered(answer("", vec![]));
    assert_eq!(run.next(), done(EMPTY_TEXT));
}

#[test]
fn b021_a_call_that_was_cut_off_is_not_run_and_advice_is_given_twice() {
    let cut =
        |id: &str| answer("", vec![call(id, "query", r#"{"content":"Hello wor"#), call("", "time", "{}")]);
    let mut run = new_run(9);
    for (turn, id) in ["a", "b"].into_iter().enumerate() {
        run.model_answered(cut(id));
        assert!(matches!(run.next(), Step::CallTools(calls) if calls.len() == 1 && calls[0].name == "time"));
        run.tools_answered(vec![result(&format!("call_{}_1", turn + 1))]);
        let [asked, told, _] = run.messages().last_chunk().unwrap();
        assert_eq!(asked.tool_calls[0].arguments, "{}");
        assert!(told.content.contains("cut off; send a shorter call"), "{told:?}");
    }
    let before = run.messages().len();
    run.model_answered(cut("c"));
    assert_eq!(run.messages().len(), before, "what cannot be mended is forgotten");
    assert_eq!(tool_choice(&run), Some(ToolChoice::None));
    run.model_answered(answer("I could not.", vec![]));
    assert_eq!(run.next(), done("I could not."));
}

#[test]
fn b025_the_third_identical_call_is_told_that_its_result_is_there() {
    let mut run = new_run(16);
    let spellings =
        [r#"{"kinds":[1],"limit":1}"#, r#"{ "limit": 1, "kinds": [1] }"#, r#"{"kinds":[1],"limit":1}"#];
    for (id, arguments) in ["a", "b"].into_iter().zip(spellings) {
        run.model_answered(answer(
            "",
            vec![call(id, "query", arguments), call(&format!("{id}t"), "time", "{}")],
        ));
        run.tools_answered(vec![result(id), result(&format!("{id}t"))]);
    }
    let other = call("d", "query", r#"{"kinds":[1],"limit":2}"#);
    run.model_answered(answer("", vec![call("c", "query", spellings[2]), other.clone()]));
    assert_eq!(run.next(), Step::CallTools(vec![other]));
    run.tools_answered(vec![result("d")]);
    let told = &run.messages()[run.messages().len() - 2].content;
    insta::assert_snapshot!(told, @r#"{"success":false,"error":"you already have this result: the same call was answered before and is not run again; use what it gave, or answer without it"}"#);
}

#[test]
fn a_call_whose_result_is_no_longer_shown_gets_that_result_again() {
    let mut run = new_run(16);
    let content = format!(r#"{{"success":true,"content":"{}"}}"#, "x".repeat(3000));
    for id in ["a", "b", "c"] {
        let arguments = if id == "c" { r#"{"other":1}"# } else { "{}" };
        run.model_answered(answer("", vec![call(id, "query", arguments)]));
        run.tools_answered(vec![ToolResult { call_id: id.into(), content: content.clone() }]);
        let limits = Limits { at: 700, to: 500, window: 1000 };
        if let Some(plan) = run.log().plan(0, limits) {
            run.compact(&plan);
        }
    }
    run.model_answered(answer("", vec![call("d", "query", "{}")]));
    let told: serde_json::Value = serde_json::from_str(&run.messages().last().unwrap().content).unwrap();
    assert!(told["note"].as_str().unwrap().contains("already have this result"), "{told}");
    assert_eq!(told["content"].as_str().unwrap().len(), 3000);
}

#[test]
fn names_with_a_known_prefix_are_run_and_shown_without_it() {
    let mut run = new_run(4);
    run.model_answered(answer(
        "",
        vec![call("a", "functions.time", "{}"), call("b", "default_api.tim", "{}")],
    ));
    assert_eq!(run.next(), Step::CallTools(vec![call("a", "time", "{}")]));
    run.tools_answered(vec![result("a")]);
    let [asked, _, told] = run.messages().last_chunk().unwrap();
    assert_eq!(
        asked.tool_calls.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(),
        ["time", "default_api_tim"]
    );
    assert!(told.content.contains("available: time, query"), "{told:?}");
}

#[test]
fn what_comes_at_the_wrong_time_fails_the_run_and_an_ended_run_stays() {
    let failed = |reason: &str| Step::Failed { reason: reason.into() };
    let mut early = new_run(4);
    early.tools_answered(vec![result("a")]);
    assert_eq!(early.next(), failed("tool results came while the model was to be asked"));
    let mut twice = new_run(4);
    twice.model_answered(answer("", vec![call("a", "time", "{}")]));
    twice.model_answered(answer("hello", vec![]));
    assert_eq!(twice.next(), failed("a model's answer came while tools were to be run"));
    let mut ended = new_run(4);
    ended.model_answered(answer("hello", vec![]));
    let before = ended.clone();
    ended.model_answered(answer("again", vec![]));
    ended.tools_answered(vec![result("a")]);
    ended.fail("too late");
    assert_eq!(ended, before);
}
