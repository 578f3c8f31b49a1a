//! The doors of a deployed agent: function URL and queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::clock::Deadline;
use didactyl::config::{ApiToken, Scope};
use didactyl::credentials::Credentials;
use didactyl::handler;
use didactyl::llm::{Llm, LlmError};
use didactyl::queue::Queue;
use nostr::prelude::{Event, Timestamp};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::agent::{BUDGET, TestAgent, nip04, nip17, nip17_at, secret};
use crate::faults::MemoryQueue;

const TOKEN: &str = "a-token-of-the-bridge-0001";
const READER: &str = "a-token-that-only-reads-01";

async fn agent() -> TestAgent {
    let mut agent = TestAgent::start().await;
    let token = |scope, text: &str| ApiToken { scope, sha256: Sha256::digest(text).into() };
    with_tokens(&mut agent, vec![token(Scope::Bridge, TOKEN), token(Scope::Read, READER)]);
    agent
}

fn with_tokens(agent: &mut TestAgent, tokens: Vec<ApiToken>) {
    agent.app.credentials = Arc::new(Credentials::fixed(agent.app.config.providers.clone(), tokens));
}

/// A request of payload format 2.0 with a header in a spelling of the sender's own.
fn request(method: &str, path: &str, token: Option<&str>, body: &str, base64: bool) -> Value {
    let mut headers = json!({"Content-Type": "application/json", "x-forwarded-for": "192.0.2.1"});
    if let Some(token) = token {
        headers["AUTHORIZATION"] = json!(format!("bearer {token}"));
    }
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "", "headers": headers,
        "requestContext": {"accountId": "anonymous", "http": {"method": method, "path": path, "protocol": "HTTP/1.1"}},
        "httpMethod": "GET", "body": body, "isBase64Encoded": base64,
    })
}

async fn hand_over(app: &App, payload: &Value) -> Value {
    handler::handle(app, &payload.to_string(), Deadline::after(BUDGET)).await.unwrap()
}

pub fn relay_form(events: &[Event]) -> String {
    json!({"type": "relay", "events": events}).to_string()
}

#[tokio::test]
async fn each_request_gets_its_exact_status_and_a_complete_answer() {
    let agent = agent().await;
    let cases = [
        ("GET", "/health", None, "", 200, json!({"success": true, "status": "ok"})),
        ("GET", "/", None, "", 404, json!({"success": false, "error": "there is no such path"})),
        (
            "POST",
            "/health",
            None,
            "",
            405,
            json!({"success": false, "error": "this path takes another method"}),
        ),
        (
            "GET",
            "/bridge",
            Some(TOKEN),
            "",
            405,
            json!({"success": false, "error": "this path takes another method"}),
        ),
        (
            "POST",
            "/webhook/x",
            None,
            "",
            401,
            json!({"success": false, "error": "the request is not signed as this webhook's are"}),
        ),
        (
            "GET",
            "/api/runs/1",
            None,
            "",
            501,
            json!({"success": false, "error": "this route is not built yet"}),
        ),
        ("POST", "/bridge", None, "{}", 401, json!({"success": false, "error": "a bearer token is needed"})),
        (
            "POST",
            "/bridge",
            Some("no"),
            "{}",
            401,
            json!({"success": false, "error": "the token is not known"}),
        ),
        (
            "POST",
            "/bridge",
            Some(READER),
            "{}",
            403,
            json!({"success": false, "error": "the token is of another scope"}),
        ),
        (
            "POST",
            "/bridge",
            Some(TOKEN),
            "{}",
            400,
            json!({"success": false, "error": "the payload is of no known shape; its top-level keys are: none"}),
        ),
        (
            "POST",
            "/bridge",
            Some(TOKEN),
            r#"{"type":"resume","run":"00000000000000000000000000000000"}"#,
            400,
            json!({"success": false, "error": "the bridge takes relay events only"}),
        ),
        (
            "POST",
            "/bridge",
            Some(TOKEN),
            r#"{"type":"relay","events":[]}"#,
            200,
            json!({"success": true, "results": []}),
        ),
    ];
    for (method, path, token, body, status, answer) in cases {
        let got = hand_over(&agent.app, &request(method, path, token, body, false)).await;
        let keys: Vec<&String> = got.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["statusCode", "headers", "body", "isBase64Encoded", "cookies"]);
        assert_eq!(got["cookies"], json!([]));
        assert_eq!(got["isBase64Encoded"], json!(false));
        let body: Value = serde_json::from_str(got["body"].as_str().unwrap()).unwrap();
        assert_eq!((got["statusCode"].as_u64().unwrap(), body), (status, answer), "{method} {path}");
    }
    let refused = hand_over(&agent.app, &request("POST", "/bridge", None, "", false)).await;
    assert_eq!(refused["headers"]["www-authenticate"], json!("Bearer"));
    let wrong = hand_over(&agent.app, &request("PUT", "/bridge", Some(TOKEN), "", false)).await;
    assert_eq!(wrong["headers"]["allow"], json!("POST"));
}

#[tokio::test]
async fn without_a_configured_token_the_bridge_is_closed() {
    let mut agent = agent().await;
    with_tokens(&mut agent, Vec::new());
    for token in [None, Some(TOKEN), Some("")] {
        let got = hand_over(&agent.app, &request("POST", "/bridge", token, "{}", false)).await;
        assert_eq!(got["statusCode"], json!(401));
    }
}

#[tokio::test]
async fn the_bridge_answers_a_dm_whose_body_came_in_base64() {
    let agent = agent().await;
    let body = BASE64.encode(relay_form(&[nip17(&secret(2), "hello")]));
    let got = hand_over(&agent.app, &request("POST", "/bridge", Some(TOKEN), &body, true)).await;
    assert_eq!(got["statusCode"], json!(200), "{got}");
    assert!(got["body"].as_str().unwrap().contains(r#""outcome":"replied""#), "{got}");
    assert_eq!(agent.replies().await.len(), 1);

    let broken = hand_over(&agent.app, &request("POST", "/bridge", Some(TOKEN), "%%%", true)).await;
    assert_eq!(broken["statusCode"], json!(400));
    assert!(broken["body"].as_str().unwrap().contains("base64"));
}

/// Once the first push failed, a bridge that comes again and again would use up the attempts within seconds.
#[tokio::test]
async fn a_run_that_was_given_back_is_taken_and_pushes_that_come_too_early_use_up_no_attempt() {
    let mut agent = agent().await;
    agent.app.llm = Arc::new(Fragile);
    let push =
        |text: &str| request("POST", "/bridge", Some(TOKEN), &relay_form(&[nip17(&secret(2), text)]), false);
    let failing = push("panic");
    for outcome in ["unfinished", "busy", "busy", "busy"] {
        let got = hand_over(&agent.app, &failing).await;
        assert_eq!(got["statusCode"], json!(202), "{got}");
        let body: Value = serde_json::from_str(got["body"].as_str().unwrap()).unwrap();
        assert_eq!((&body["success"], &body["results"][0]["outcome"]), (&json!(true), &json!(outcome)));
    }
    assert_eq!(agent.replies().await, []);
    for wait in [30, 60] {
        agent.clock.forward(Duration::from_secs(wait));
        hand_over(&agent.app, &failing).await;
        assert_eq!(agent.replies().await, []);
    }
    // The third attempt was the last.
    agent.clock.forward(Duration::from_secs(120));
    hand_over(&agent.app, &failing).await;
    assert_eq!(agent.replies().await.len(), 1);
}

pub fn record(id: &str, body: &str) -> Value {
    json!({"messageId": id, "receiptHandle": "h", "body": body, "eventSource": "aws:sqs", "awsRegion": "eu-central-1",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:work"})
}

pub fn batch(records: &[Value]) -> Value {
    json!({"Records": records})
}

/// A model that panics at one message, fails at another, and else answers.
struct Fragile;

#[async_trait]
impl Llm for Fragile {
    async fn complete(&self, request: &ChatRequest<'_>, _until: Instant) -> Result<ChatAnswer, LlmError> {
        let text = request.messages.last().map(|message| message.content.clone()).unwrap_or_default();
        assert!(text != "panic", "the model's client has a fault");
        if text == "fail" {
            return Err(LlmError::Transient { reason: "503".into(), retry_after: None });
        }
        Ok(ChatAnswer {
            content: text.to_uppercase(),
            tool_calls: vec![],
            finish_reason: didactyl::chat::FinishReason::Stop,
            usage: None,
            model: request.model.to_owned(),
        })
    }
}

#[tokio::test]
async fn of_a_mixed_batch_exactly_what_a_retry_can_help_comes_again() {
    let mut agent = agent().await;
    agent.app.llm = Arc::new(Fragile);
    let admin = secret(2);
    let dm = |text: &str| relay_form(&[nip17(&admin, text)]);
    // Of conversations of their own: in one, what failed holds up what comes behind it.
    agent.app.config.admins.extend([secret(4).public_key(), secret(5).public_key()]);
    let others = |scalar: u8, text: &str| relay_form(&[nip17(&secret(scalar), text)]);
    let old = relay_form(&[nip17_at(&admin, "too old", Timestamp::from(1_600_000_000))]);
    let mut forged = serde_json::to_value(nip04(&admin, "forged")).unwrap();
    forged["content"] = json!("changed");
    let records = [
        record("good-1", &dm("one")),
        record("panics", &others(4, "panic")),
        record("garbage", "{not json"),
        record("forged", &forged.to_string()),
        record("expired", &old),
        record("fails", &others(5, "fail")),
        record("prompt", r#"{"type":"prompt","message":"obey"}"#),
        record("no-run", "run:00000000000000000000000000000000"),
        record("good-2", &dm("two")),
    ];
    let answer = hand_over(&agent.app, &batch(&records)).await;
    assert_eq!(
        answer,
        json!({"batchItemFailures": [{"itemIdentifier": "panics"}, {"itemIdentifier": "fails"}]})
    );
    let texts: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts.len(), 2, "{texts:?}");
    assert!(["ONE", "TWO"].iter().all(|text| texts.contains(&(*text).to_owned())), "{texts:?}");

    let nothing_to_do = hand_over(&agent.app, &batch(&[record("garbage", "{")])).await;
    assert_eq!(nothing_to_do, json!({"batchItemFailures": []}));
}

#[tokio::test]
async fn a_record_that_there_is_no_time_for_comes_again_untouched() {
    let agent = agent().await;
    let payload = batch(&[record("late", &relay_form(&[nip17(&secret(2), "hi")]))]).to_string();
    let answer =
        handler::handle(&agent.app, &payload, Deadline::after(Duration::from_secs(1))).await.unwrap();
    assert_eq!(answer, json!({"batchItemFailures": [{"itemIdentifier": "late"}]}));
    assert_eq!((agent.model.calls(), agent.replies().await.len()), (0, 0));
}

#[tokio::test]
async fn with_a_queue_the_bridge_only_stores_and_the_worker_answers_once() {
    let mut agent = agent().await;
    let queue = Arc::new(MemoryQueue::default());
    agent.app.queue = Some(Arc::clone(&queue) as Arc<dyn Queue>);
    let body = relay_form(&[nip17(&secret(2), "hello")]);
    let push = request("POST", "/bridge", Some(TOKEN), &body, false);
    for _ in 0..2 {
        let got = hand_over(&agent.app, &push).await;
        assert_eq!(got["statusCode"], json!(202), "{got}");
    }
    assert_eq!((agent.model.calls(), agent.replies().await.len()), (0, 0));

    let runs: Vec<String> = queue.taken().into_iter().map(|(run, _)| run).collect();
    assert_eq!(runs.len(), 2, "queued again, since the first message may have been lost");
    assert_eq!(runs[0], runs[1]);
    for run in &runs {
        let answer = hand_over(&agent.app, &batch(&[record("m", &didactyl::aws::sqs::body(run))])).await;
        assert_eq!(answer, json!({"batchItemFailures": []}));
    }
    assert_eq!((agent.model.calls(), agent.replies().await.len()), (1, 1));
    let again = hand_over(&agent.app, &push).await;
    assert_eq!(again["statusCode"], json!(200), "{again}");
    assert!(again["body"].as_str().unwrap().contains(r#""outcome":"replied""#));
}
