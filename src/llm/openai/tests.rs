//! The real client against the scripted server, over loopback.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::chat::{FinishReason, Message, Params, Role, ToolCall, ToolChoice, ToolSchema, Usage};
use crate::llm::Reason;
use crate::llm::catalogue::Chain;
use crate::llm::scripted::{Answer, Asked, LABEL, Scripted, demo};

const KEY: &str = "sk-test-SEKRIT";

fn client(base_url: &str) -> OpenAi {
    // Fails where another test was first, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let chain: Chain = "scripted/demo".parse().unwrap();
    let lookup = |name: &str| match name {
        "SCRIPTED_BASE_URL" => Some(base_url.to_owned()),
        "SCRIPTED_API_KEY" => Some(KEY.to_owned()),
        _ => None,
    };
    let client = Client::builder().no_proxy().build().unwrap();
    OpenAi::new(client, Providers::resolve(&chain, &lookup))
}

fn later() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

async fn ask(server: &Scripted, messages: &[Message], tools: &[ToolSchema]) -> Result<ChatAnswer, LlmError> {
    let params = Params::default();
    let request = ChatRequest {
        model: "scripted/demo",
        messages,
        tools,
        tool_choice: ToolChoice::Auto,
        params: &params,
    };
    client(&server.base_url).complete(&request, later()).await
}

async fn answer_to_hi(answer: Answer) -> Result<ChatAnswer, LlmError> {
    let server = Scripted::start(move |_: &Asked| answer.clone()).await.unwrap();
    ask(&server, &[Message::text(Role::User, "hi")], &[]).await
}

fn tool(name: &str) -> ToolSchema {
    ToolSchema {
        name: name.into(),
        description: String::new(),
        parameters: json!({"type": "object", "properties": {}}),
    }
}

#[tokio::test]
async fn the_demo_calls_the_tool_and_answers_with_its_result() {
    let server = Scripted::start(demo).await.unwrap();
    let mut messages = vec![Message::text(Role::User, "What time is it?")];
    let first = ask(&server, &messages, &[tool("time")]).await.unwrap();
    assert_eq!(first.finish_reason, FinishReason::ToolCalls);
    let call = ToolCall::new("scripted_1_0", "time", "{}");
    assert_eq!(first.tool_calls, std::slice::from_ref(&call));

    messages.push(Message::assistant(first.content, first.tool_calls));
    let result = r#"{"success":true,"content":{"iso":"2026-01-02T03:04:05Z"}}"#;
    messages.push(Message::tool_result(call.id, result));
    let last = ask(&server, &messages, &[tool("time")]).await.unwrap();
    assert_eq!(last.content, format!("{LABEL} It is 2026-01-02T03:04:05Z."));
    assert_eq!((last.model.as_str(), last.finish_reason), ("scripted/demo", FinishReason::Stop));
    assert!(last.usage.is_some_and(|u: Usage| u.input_tokens > Some(0) && u.output_tokens > Some(0)));
    assert_eq!((server.calls(), server.refusals()), (2, vec![]));
    assert_eq!(server.requests()[0].authorization.as_deref(), Some("Bearer sk-test-SEKRIT"));
}

#[tokio::test]
async fn the_demo_has_a_rule_for_each_of_its_words() {
    let server = Scripted::start(demo).await.unwrap();
    let tools = ["time", "nostr_admin_profile", "nostr_post"].map(tool);
    let history = [Message::text(Role::User, "a"), Message::text(Role::Assistant, "b")];
    let mut told = Vec::new();
    for text in ["Post a note: time flies", "show my profile", "hello", "what time?"] {
        let messages = [&history[..], &[Message::text(Role::User, text)]].concat();
        let offered = if text == "what time?" { &[][..] } else { &tools };
        let answer = ask(&server, &messages, offered).await.unwrap();
        let calls = answer.tool_calls.iter().map(|c| format!("{} {}", c.name, c.arguments));
        told.push(calls.chain([answer.content.clone()]).collect::<String>());
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    nostr_post {"content":"time flies"}
    nostr_admin_profile {}
    [scripted model] You wrote: hello. I see 2 earlier messages of this conversation.
    [scripted model] I would call time, but this run does not offer it.
    "#);
}

#[tokio::test]
async fn a_history_that_does_not_pair_is_mended_before_it_is_sent() {
    let server = Scripted::start(|_: &Asked| Answer::Text("ok".into())).await.unwrap();
    let call = |id: &str, arguments: &str| ToolCall::new(id, "odd name", arguments);
    let messages = [
        Message::tool_result("stray", "x"),
        Message::text(Role::User, "hi"),
        Message::assistant("", vec![call("a", "{\"cut"), call("a", ""), call("", "{}")]),
        Message::tool_result("a", ""),
        Message::text(Role::System, ""),
        Message::assistant("", vec![call("a", "{}")]),
    ];
    let answer = ask(&server, &messages, &[]).await;
    assert_eq!((answer.map(|a| a.content), server.refusals()), (Ok("ok".into()), vec![]));
}

#[tokio::test]
async fn the_server_refuses_a_wrong_history_of_a_careless_client() {
    let server = Scripted::start(demo).await.unwrap();
    let body = json!({"model": "m", "messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]});
    let http = client(&server.base_url).client;
    let url = format!("{}/chat/completions", server.base_url);
    let response = http.post(url).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert_eq!(server.refusals(), ["message 0 (tool): it answers no open call: \"a\""]);
    assert_eq!((server.calls(), server.requests().len()), (1, 0));
}

#[tokio::test]
async fn refusals_keep_the_providers_words_and_the_wait_and_lose_the_key() {
    let words = format!(r#"{{"error":{{"message":"key {KEY} is over its limit; sent: Bearer {KEY}"}}}}"#);
    let headers = vec![("retry-after".to_owned(), "7".to_owned())];
    let said = "key [redacted] is over its limit; sent: Bearer [redacted]";
    assert_eq!(
        answer_to_hi(Answer::Refusal(429, headers, words)).await,
        Err(LlmError::Transient {
            reason: Reason::new("status 429".to_owned(), said),
            retry_after: Some(Duration::from_secs(7)),
        })
    );
}

#[tokio::test]
async fn an_error_inside_a_200_is_an_error() {
    let table = [
        (
            r#"{"error":{"message":"bad key","code":401}}"#,
            "the provider refused the key or the account: status 401",
        ),
        (
            r#"{"error":{"message":"busy","code":"busy"}}"#,
            "the model is unavailable for now: status 502, busy",
        ),
        (
            r#"{"choices":[{"error":{"message":"upstream","code":503},"message":{"content":"ha"}}]}"#,
            "the model is unavailable for now: status 503",
        ),
    ];
    for (body, expected) in table {
        let error = answer_to_hi(Answer::Body(body.into())).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn garbage_and_an_endless_answer_are_unreadable() {
    let long =
        format!("{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}]}}", "x".repeat(8 * 1024 * 1024));
    for body in ["<html>SEKRIT</html>".to_owned(), String::new(), long] {
        let error = answer_to_hi(Answer::Body(body)).await.unwrap_err();
        assert!(
            matches!(&error, LlmError::Unreadable(_)) && !error.reason().words().contains("SEKRIT"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_model_that_hangs_is_left_at_the_deadline() {
    let server = Scripted::start(|_: &Asked| Answer::Hang).await.unwrap();
    let messages = [Message::text(Role::User, "hi")];
    let params = Params::default();
    let request = ChatRequest {
        model: "scripted/demo",
        messages: &messages,
        tools: &[],
        tool_choice: ToolChoice::Auto,
        params: &params,
    };
    let until = Instant::now() + Duration::from_millis(50);
    let error = client(&server.base_url).complete(&request, until).await.unwrap_err();
    let reason = "it did not answer in the time there was".into();
    assert_eq!(error, LlmError::Transient { reason, retry_after: None });
}

#[tokio::test]
async fn a_server_that_is_gone_is_a_transient_error_without_its_url() {
    let server = Scripted::start(|asked: &Asked| match asked.number {
        1 => Answer::Text("ok".into()),
        _ => Answer::Hang,
    });
    let server = server.await.unwrap();
    let llm = client(&server.base_url);
    let messages = [Message::text(Role::User, "hi")];
    let params = Params::default();
    let request = ChatRequest {
        model: "scripted/demo",
        messages: &messages,
        tools: &[],
        tool_choice: ToolChoice::Auto,
        params: &params,
    };
    assert_eq!(llm.complete(&request, later()).await.unwrap().content, "ok");
    drop(server);
    let error = llm.complete(&request, later()).await.unwrap_err();
    assert!(error.is_transient() && !error.to_string().contains("127.0.0.1"), "{error}");
}

#[tokio::test]
async fn an_answer_may_come_late() {
    let answer = Answer::After(Duration::from_millis(1), Box::new(Answer::Text("late".into())));
    assert_eq!(answer_to_hi(answer).await.unwrap().content, "late");
}

#[tokio::test]
async fn a_model_that_no_provider_has_is_named_without_a_request() {
    let params = Params::default();
    let mut request = ChatRequest {
        model: "nobody/m",
        messages: &[],
        tools: &[],
        tool_choice: ToolChoice::Auto,
        params: &params,
    };
    let llm = client("http://127.0.0.1:9/v1");
    assert!(matches!(llm.complete(&request, later()).await, Err(LlmError::Account(_))));
    request.model = "no-slash";
    assert!(matches!(llm.complete(&request, later()).await, Err(LlmError::Permanent(_))));
}
