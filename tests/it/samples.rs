//! The sample payloads of `events/`, as `make invoke` hands them over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use didactyl::cli::sandbox::PUBLISHED_TOKEN;
use didactyl::clock::Deadline;
use didactyl::config::{ApiToken, Scope};
use didactyl::credentials::Credentials;
use didactyl::handler;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::agent::TestAgent;

/// What an answer says, without ids.
fn told(answer: &Value) -> Value {
    let outcomes = |results: &Value| {
        results.as_array().unwrap().iter().map(|result| result["outcome"].clone()).collect::<Value>()
    };
    match answer {
        _ if answer["results"].is_array() => outcomes(&answer["results"]),
        _ if answer["statusCode"].is_number() => {
            let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
            json!({"status": answer["statusCode"], "outcomes": outcomes(&body["results"])})
        }
        _ => answer.clone(),
    }
}

#[tokio::test]
async fn every_sample_payload_is_answered() {
    let mut agent = TestAgent::start().await;
    agent.app.config.max_age = None;
    let token = ApiToken { scope: Scope::All, sha256: Sha256::digest(PUBLISHED_TOKEN).into() };
    agent.app.credentials = Arc::new(Credentials::fixed(agent.app.config.providers.clone(), vec![token]));
    let mut answers = BTreeMap::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/events")).unwrap() {
        let path = file.unwrap().path();
        let payload = std::fs::read_to_string(&path).unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        let answer = handler::handle(&agent.app, &payload, deadline).await.unwrap();
        answers.insert(path.file_stem().unwrap().to_string_lossy().into_owned(), told(&answer));
    }
    let not_built =
        |what: &str| json!({"success": false, "error": format!("a {what} payload is not built yet")});
    assert_eq!(
        answers,
        BTreeMap::from([
            ("dm".to_owned(), json!(["replied"])),
            ("dm-event".to_owned(), json!(["replied"])),
            ("dm-nip04".to_owned(), json!(["replied"])),
            ("function-url".to_owned(), json!({"status": 200, "outcomes": ["replied"]})),
            ("prompt".to_owned(), not_built("prompt")),
            ("resume".to_owned(), json!(["rejected"])),
            ("sqs".to_owned(), json!({"batchItemFailures": []})),
            ("tick".to_owned(), json!([])),
            ("webhook".to_owned(), json!(["rejected"])),
        ])
    );
    let mut texts: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    texts.sort();
    assert_eq!(
        texts,
        [
            "HELLO FROM THE BRIDGE!",
            "HELLO FROM THE QUEUE!",
            "HELLO!",
            "WHAT IS MY PROFILE?",
            "WHAT TIME IS IT?"
        ]
    );
}
