//! A **scripted** model: it answers from rules and understands nothing. For the demo without a key, and for tests.
//!
//! It is a server on loopback that speaks OpenAI chat completions, streamed where it is asked to, so whoever talks to
//! it uses the real client. It is as strict as the strictest provider: [`strict::check`] answers what one of them would
//! refuse with a 400 that says what is wrong. It misbehaves as its script wants: see [`Answer`]. Where it stands in for
//! a model, it says so: each answer of [`demo`] begins with [`LABEL`].

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

mod demo;
mod reply;
pub mod strict;

pub use demo::{LABEL, demo};
pub use reply::Reply;

/// A request that passed the checks.
#[derive(Debug, Clone)]
pub struct Asked {
    /// 1 for the first request of this server.
    pub number: usize,
    /// The whole body.
    pub body: Value,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

impl Asked {
    /// The messages as sent, at least one.
    #[must_use]
    pub fn messages(&self) -> &[Value] {
        self.body.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// The text of the last message with this role, or nothing.
    #[must_use]
    pub fn last_text(&self, role: &str) -> &str {
        let text = |m: &'_ Value| m.get("role").is_some_and(|r| r == role);
        let last = self.messages().iter().rfind(|m| text(m));
        last.and_then(|m| m.get("content")).and_then(Value::as_str).unwrap_or_default()
    }

    /// The result that the last message holds, where that is one of a tool.
    #[must_use]
    pub fn result(&self) -> Option<Value> {
        let last = self.messages().last().filter(|m| m.get("role").is_some_and(|r| r == "tool"))?;
        let text = last.get("content").and_then(Value::as_str).unwrap_or_default();
        Some(serde_json::from_str(text).unwrap_or_else(|_| text.into()))
    }

    /// Whether `tool` may be called in the answer.
    #[must_use]
    pub fn offers(&self, tool: &str) -> bool {
        let tools = self.body.get("tools").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.body.get("tool_choice").is_none_or(|choice| choice != "none")
            && tools.iter().any(|t| t.pointer("/function/name").is_some_and(|name| name == tool))
    }
}

/// What the script says to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A text.
    Text(String),
    /// Calls of tools: name and arguments. The server makes the ids.
    Calls(Vec<(String, Value)>),
    /// A body of 200 as it stands: garbage, or a message in an odd shape.
    Body(String),
    /// Anything that HTTP can carry, in its pieces, and perhaps cut.
    Raw(Reply),
    /// A refusal: the status, headers, and the body.
    Refusal(u16, Vec<(String, String)>, String),
    /// No answer, until the client gives up.
    Hang,
    /// An answer after a while.
    After(Duration, Box<Answer>),
}

impl Answer {
    /// One call.
    #[must_use]
    pub fn call(tool: &str, arguments: Value) -> Self {
        Self::Calls(vec![(tool.to_owned(), arguments)])
    }
}

/// What decides the answers.
pub type Script = dyn Fn(&Asked) -> Answer + Send + Sync;

/// A running scripted model. Dropping it stops the server and breaks off what hangs.
#[derive(Debug)]
pub struct Scripted {
    /// Where it listens, for a `NAME_BASE_URL`.
    pub base_url: String,
    log: Arc<Mutex<Vec<Asked>>>,
    refused: Arc<Mutex<Vec<String>>>,
    /// The server and each answer that waits watch this one; it goes with the value.
    _running: watch::Sender<()>,
}

struct Server {
    script: Box<Script>,
    log: Arc<Mutex<Vec<Asked>>>,
    refused: Arc<Mutex<Vec<String>>>,
    running: watch::Receiver<()>,
}

impl Scripted {
    /// Starts a server on a free loopback port, in the current tokio runtime.
    ///
    /// # Errors
    /// Where no port can be listened on.
    pub async fn start(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let (sender, running) = watch::channel(());
        let (log, refused) = (Arc::default(), Arc::default());
        let mut ended = running.clone();
        let server = Server {
            script: Box::new(script),
            log: Arc::clone(&log),
            refused: Arc::clone(&refused),
            running,
        };
        let app = Router::new().route("/v1/chat/completions", post(complete)).with_state(Arc::new(server));
        let end = async move { while ended.changed().await.is_ok() {} };
        tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(end).into_future());
        Ok(Self { base_url, log, refused, _running: sender })
    }

    /// How many requests came, the refused ones among them.
    #[must_use]
    pub fn calls(&self) -> usize {
        lock(&self.log).len() + lock(&self.refused).len()
    }

    /// The requests that passed the checks, in their order.
    #[must_use]
    pub fn requests(&self) -> Vec<Asked> {
        lock(&self.log).clone()
    }

    /// Why requests were refused. A test that uses this model should find it empty.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        lock(&self.refused).clone()
    }
}

/// A script that panicked has done its harm already; what it logged is still good.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn complete(State(server): State<Arc<Server>>, headers: HeaderMap, body: Bytes) -> Response {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if let Err(reason) = strict::check(&body) {
        lock(&server.refused).push(reason.clone());
        return error(StatusCode::BAD_REQUEST, &reason);
    }
    let authorization = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let asked = {
        let mut log = lock(&server.log);
        let asked = Asked { number: log.len() + 1, body, authorization };
        log.push(asked.clone());
        asked
    };
    let mut running = server.running.clone();
    tokio::select! {
        answer = answer(&asked, (server.script)(&asked)) => answer,
        _ = running.changed() => error(StatusCode::SERVICE_UNAVAILABLE, "the scripted model has ended"),
    }
}

async fn answer(asked: &Asked, mut answer: Answer) -> Response {
    while let Answer::After(wait, then) = answer {
        tokio::time::sleep(wait).await;
        answer = *then;
    }
    let reply = match answer {
        Answer::Text(text) => reply::completion(asked, json!({"content": text}), "stop"),
        Answer::Calls(calls) => {
            let call = |(index, (name, arguments)): (usize, (String, Value))| {
                json!({"id": format!("scripted_{}_{index}", asked.number), "type": "function",
                    "function": {"name": name, "arguments": arguments.to_string()}})
            };
            let calls: Value = calls.into_iter().enumerate().map(call).collect();
            reply::completion(asked, json!({"content": null, "tool_calls": calls}), "tool_calls")
        }
        Answer::Body(body) => Reply::json(body),
        Answer::Raw(reply) => reply,
        Answer::Refusal(status, headers, body) => Reply { status, headers, ..Reply::json(body) },
        // `After` was taken off above.
        Answer::Hang | Answer::After(..) => std::future::pending().await,
    };
    reply.into_response()
}

fn error(status: StatusCode, message: &str) -> Response {
    let body = json!({"error": {"message": message, "type": "invalid_request_error"}});
    Reply { status: status.as_u16(), ..Reply::json(body.to_string()) }.into_response()
}
