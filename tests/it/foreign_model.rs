//! A model server that somebody else wrote, with its faults on: LLMock (Python), in the scripted model's place.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use didactyl::outage::NOTE;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::agent::{TestAgent, app_over, config, deliver_to, nip17, secret};
use crate::interop;

/// A running server.
struct Llmock {
    url: String,
    http: reqwest::Client,
    _process: Child,
}

impl Llmock {
    /// Starts it, or `None` where it is not installed.
    async fn start() -> Option<Self> {
        interop::folder()?;
        didactyl::install_crypto_provider();
        // Free a moment ago; nobody else on this machine asks for it by its number.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new("llmock")
            .args(["serve", "--host", "127.0.0.1", "--port", &port.to_string(), "--log-level", "warning"])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let server = Self { url: format!("http://127.0.0.1:{port}"), http, _process: process };
        for _ in 0..300 {
            if server.http.get(format!("{}/health", server.url)).send().await.is_ok() {
                return Some(server);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("llmock does not answer");
    }

    /// What its next request meets.
    async fn will(&self, behavior: Value) {
        let scenario = json!({"behaviors": [behavior]});
        let queued = self.http.post(format!("{}/_llmock/scenario", self.url)).json(&scenario).send().await;
        queued.unwrap().error_for_status().unwrap();
    }

    /// What it thinks of its client.
    async fn verdict(&self) -> Value {
        self.http.get(format!("{}/_llmock/verdict", self.url)).send().await.unwrap().json().await.unwrap()
    }
}

#[tokio::test]
async fn with_a_foreign_models_faults_on_each_message_is_answered_once_and_the_client_found_resilient() {
    let Some(llmock) = Llmock::start().await else { return };
    let agent = TestAgent::start().await;
    let mut vars = agent.vars();
    vars.insert("SCRIPTED_BASE_URL", format!("{}/v1", llmock.url));
    let app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);

    let faults = [
        json!({"type": "reply", "text": "No fault."}),
        json!({"type": "fail", "status": 503, "retry_after": 0}),
        json!({"type": "fail", "status": 429, "retry_after": 0}),
        json!({"type": "stream_fault", "kind": "disconnect", "after_chunks": 3}),
        json!({"type": "stream_fault", "kind": "truncate", "after_chunks": 3}),
        json!({"type": "stream_fault", "kind": "malformed", "after_chunks": 3}),
        json!({"type": "tool_fault", "kind": "malformed_arguments"}),
        json!({"type": "tool_fault", "kind": "unknown_tool"}),
    ];
    for (count, fault) in faults.into_iter().enumerate() {
        llmock.will(fault.clone()).await;
        let dm = [nip17(&secret(2), &format!("message {count}: what time is it?"))];
        // A fault that the run does not survive makes the invocation fail, and the message comes again.
        let mut answer = deliver_to(&app, &agent.relay_url, &dm).await;
        if answer.is_err() {
            agent.clock.forward(Duration::from_secs(60));
            answer = deliver_to(&app, &agent.relay_url, &dm).await;
        }
        let answer = answer.unwrap();
        assert_eq!(answer["results"][0]["outcome"], "replied", "{fault}: {answer}");
        assert_eq!(answer["results"][0].get("failure"), None, "{fault}: {answer}");
        // Of a model that fails for now the sender is told beside the answer.
        let mut replies = agent.replies().await;
        replies.retain(|(_, text)| text != NOTE);
        assert_eq!(replies.len(), count + 1, "{fault}: {replies:?}");
    }
    let verdict = llmock.verdict().await;
    assert_eq!((&verdict["passed"], &verdict["errors"]), (&json!(true), &json!(0)), "{verdict}");
}
