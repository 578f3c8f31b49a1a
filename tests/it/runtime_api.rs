//! The real function's process under an emulation of the interface that Lambda offers to it
//! (<https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>).

use std::collections::BTreeMap;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use didactyl::app::LEASE_MARGIN;
use didactyl::clock::DEFAULT_BUDGET;
use didactyl::llm::scripted::Answer;
use didactyl::record::dm_trigger_id;
use nostr::prelude::ToBech32;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::agent::{TestAgent, dm_id, echo, nip04, nip17, outcomes, secret};

/// How long a process of a test may take for anything; nothing waits that long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// What the function answered: a value, or the error that makes Lambda try again.
pub type FunctionResult = Result<Value, Value>;

/// A process of the function and the runtime API that it alone talks to. Both end with the value.
pub struct Function {
    child: Child,
    stderr: JoinHandle<String>,
    invocations: mpsc::UnboundedSender<Invocation>,
    taken: mpsc::UnboundedReceiver<String>,
    answers: mpsc::UnboundedReceiver<(String, FunctionResult)>,
    _server: JoinSet<()>,
}

struct Invocation {
    payload: String,
    deadline_ms: u64,
}

/// The server's side.
struct Api {
    invocations: Mutex<mpsc::UnboundedReceiver<Invocation>>,
    taken: mpsc::UnboundedSender<String>,
    answers: mpsc::UnboundedSender<(String, FunctionResult)>,
    handed_out: AtomicUsize,
}

impl Function {
    /// Starts the process with these variables and no others of ours.
    pub async fn start(vars: &BTreeMap<&'static str, String>) -> Self {
        Self::start_binary(std::path::Path::new(env!("CARGO_BIN_EXE_didactyl-lambda")), vars).await
    }

    /// The same with another binary.
    pub async fn start_binary(binary: &std::path::Path, vars: &BTreeMap<&'static str, String>) -> Self {
        let (invocations, waiting) = mpsc::unbounded_channel();
        let (taken_by, taken) = mpsc::unbounded_channel();
        let (answered, answers) = mpsc::unbounded_channel();
        let api = Api {
            invocations: Mutex::new(waiting),
            taken: taken_by,
            answers: answered,
            handed_out: AtomicUsize::new(0),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/{id}/response", post(response))
            .route("/2018-06-01/runtime/invocation/{id}/error", post(error))
            .with_state(Arc::new(api));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, app).await.unwrap() });

        let mut child = Command::new(binary)
            .env_clear()
            .envs(vars)
            .env("AWS_LAMBDA_RUNTIME_API", address.to_string())
            .env("AWS_LAMBDA_FUNCTION_NAME", "didactyl")
            .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
            .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let stderr = tokio::spawn(async move {
            let mut text = String::new();
            stderr.read_to_string(&mut text).await.unwrap();
            text
        });
        Self { child, stderr, invocations, taken, answers, _server: server }
    }

    /// Hands a payload out; returns when the process has taken it.
    pub async fn hand_out(&mut self, payload: &str) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(60);
        self.hand_out_until(payload, u64::try_from(now.as_millis()).unwrap()).await;
    }

    async fn hand_out_until(&mut self, payload: &str, deadline_ms: u64) {
        let invocation = Invocation { payload: payload.to_owned(), deadline_ms };
        self.invocations.send(invocation).unwrap();
        tokio::time::timeout(PATIENCE, self.taken.recv()).await.expect("the process asks for work").unwrap();
    }

    /// The answer to what was handed out.
    pub async fn answer(&mut self) -> FunctionResult {
        let (_, answer) =
            tokio::time::timeout(PATIENCE, self.answers.recv()).await.expect("it answers").unwrap();
        answer
    }

    pub async fn invoke(&mut self, payload: &str) -> FunctionResult {
        self.hand_out(payload).await;
        self.answer().await
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    /// Kills the process as the host does: no signal that it could catch.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Ends the process; what it logged.
    async fn into_stderr(mut self) -> String {
        self.child.kill().await.unwrap();
        self.stderr.await.unwrap()
    }

    /// Waits until the process ends by itself; what it logged.
    async fn ended(mut self) -> (ExitStatus, String) {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap();
        (status, self.stderr.await.unwrap())
    }
}

async fn next(State(api): State<Arc<Api>>) -> Response {
    let Some(invocation) = api.invocations.lock().await.recv().await else {
        return StatusCode::GONE.into_response();
    };
    let id = format!("request-{}", api.handed_out.fetch_add(1, Ordering::SeqCst) + 1);
    // The test is over where nobody listens any more.
    let _ = api.taken.send(id.clone());
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("lambda-runtime-aws-request-id", id),
        ("lambda-runtime-deadline-ms", invocation.deadline_ms.to_string()),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:eu-west-1:1:function:didactyl".to_owned()),
        ("lambda-runtime-trace-id", "Root=1-1-1".to_owned()),
    ];
    let headers: HeaderMap =
        headers.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    (headers, invocation.payload).into_response()
}

async fn response(State(api): State<Arc<Api>>, Path(id): Path<String>, body: Bytes) -> Response {
    accept(&api, id, Ok(serde_json::from_slice(&body).unwrap()))
}

async fn error(State(api): State<Arc<Api>>, Path(id): Path<String>, body: Bytes) -> Response {
    accept(&api, id, Err(serde_json::from_slice(&body).unwrap()))
}

fn accept(api: &Api, id: String, result: FunctionResult) -> Response {
    let _ = api.answers.send((id, result));
    (StatusCode::ACCEPTED, Json(json!({"status": "OK"}))).into_response()
}

fn relay_payload(agent: &TestAgent, events: &[nostr::prelude::Event]) -> String {
    json!({"type": "relay", "events": events, "relay": agent.relay_url.to_string()}).to_string()
}

#[tokio::test]
async fn a_payload_of_no_known_shape_is_rejected_and_the_process_goes_on() {
    let agent = TestAgent::start().await;
    let mut function = Function::start(&agent.vars()).await;
    let rejected = [function.invoke(r#"{"hello":"world"}"#).await, function.invoke("[1]").await];
    insta::assert_snapshot!(rejected.map(|answer| answer.unwrap().to_string()).join("\n"), @r#"
    {"success":false,"error":"the payload is of no known shape; its top-level keys are: hello"}
    {"success":false,"error":"the payload is not a JSON object"}
    "#);
    // Lambda itself lets no such thing through; emulators do.
    let error = function.invoke(r#"{"type":"relay","#).await.unwrap_err();
    assert!(error["errorMessage"].as_str().unwrap().contains("line 1 column 16"), "{error}");

    let answer = function.invoke(&relay_payload(&agent, &[nip17(&secret(2), "hello")])).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(agent.replies().await.len(), 1);
}

#[tokio::test]
async fn a_failed_invocation_is_an_error_that_asks_for_a_retry() {
    let agent = TestAgent::with_script(|_| Answer::Refusal(500, vec![], "the model is ill".to_owned())).await;
    let mut function = Function::start(&agent.vars()).await;
    let error = function.invoke(&relay_payload(&agent, &[nip17(&secret(2), "hello")])).await.unwrap_err();
    insta::assert_snapshot!(error, @r#"{"errorType":"Retry","errorMessage":"the model is unavailable for now"}"#);
}

/// `cargo lambda` sends the same small number as the deadline of every invocation.
#[tokio::test]
async fn a_deadline_of_1970_means_the_default_budget() {
    let agent = TestAgent::start().await;
    let dm = nip17(&secret(2), "hello");
    let mut function = Function::start(&agent.vars()).await;
    let before_ms = agent.app.clock.now_ms();
    function.hand_out_until(&relay_payload(&agent, std::slice::from_ref(&dm)), 600_000).await;
    let answer = function.answer().await.unwrap();
    let after_ms = agent.app.clock.now_ms();

    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let lease_until_ms = agent.record(&dm_trigger_id(&dm_id(&dm))).await.lease_until_ms;
    let budget_ms = u64::try_from((DEFAULT_BUDGET + LEASE_MARGIN).as_millis()).unwrap();
    // Two clocks, each rounded down to its millisecond.
    assert!(lease_until_ms + 2 >= before_ms + budget_ms, "{lease_until_ms} {before_ms}");
    assert!(lease_until_ms <= after_ms + budget_ms, "{lease_until_ms} {after_ms}");
}

#[tokio::test]
async fn a_faulty_configuration_ends_the_process_with_all_faults_and_no_values() {
    let vars = BTreeMap::from([
        ("DIDACTYL_NSEC", "SEKRIT-nsec".to_owned()),
        ("DIDACTYL_RELAYS", "SEKRIT-relay://".to_owned()),
        ("DIDACTYL_STORE", "SEKRIT-store".to_owned()),
        ("DIDACTYL_LLM", "openai/gpt".to_owned()),
        ("OPENAI_API_KEY", "SEKRIT\nkey".to_owned()),
        ("DIDACTYL_API_TOKEN", "SEKRIT-token".to_owned()),
        ("DIDACTYL_MAX_AGE", "SEKRIT-age".to_owned()),
    ]);
    let (status, stderr) = Function::start(&vars).await.ended().await;
    assert!(!status.success(), "{status}");
    for name in vars.keys().chain(&["DIDACTYL_ADMIN"]) {
        assert!(stderr.contains(name), "{name} is not in: {stderr}");
    }
    assert!(!stderr.contains("SEKRIT"), "{stderr}");
}

#[tokio::test]
async fn no_key_and_no_message_is_in_the_logs_of_the_most_talkative_level() {
    let agent = TestAgent::with_script(|asked| match asked.last_text("user") {
        "SEKRIT refused" => Answer::Refusal(401, vec![], "Bearer SEKRIT-api-key".to_owned()),
        _ => echo(asked),
    })
    .await;
    let mut vars = agent.vars();
    vars.insert("SCRIPTED_API_KEY", "SEKRIT-api-key".to_owned());
    vars.insert("DIDACTYL_LOG", "didactyl=trace".to_owned());
    let mut function = Function::start(&vars).await;
    let messages = [
        nip17(&secret(2), "SEKRIT question"),
        nip04(&secret(2), "SEKRIT question"),
        nip17(&secret(2), "SEKRIT refused"),
        // Nobody that the agent heeds.
        nip17(&secret(3), "SEKRIT question"),
    ];
    for message in messages {
        let answer = function.invoke(&relay_payload(&agent, &[message])).await.unwrap();
        assert_eq!(answer["success"], true, "{answer}");
    }
    assert_eq!(agent.replies().await.len(), 3);
    let authorization = agent.model.requests()[0].authorization.clone();
    assert_eq!(authorization.as_deref(), Some("Bearer SEKRIT-api-key"));

    let stderr = function.into_stderr().await;
    assert!(stderr.contains("an event is rejected"), "it logs: {stderr}");
    let nsec = secret(1).secret_key().clone();
    for kept in ["SEKRIT", &nsec.to_secret_hex(), &nsec.to_bech32().unwrap()] {
        assert!(!stderr.contains(kept), "{kept} is in: {stderr}");
    }
}
