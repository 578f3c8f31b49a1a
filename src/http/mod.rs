//! The function URL: routes, who may use them, and exact answers (design §9).
//!
//! Whatever comes in is answered with an HTTP object and never with an error of the function, which Lambda would turn
//! into a bare 5xx. A request that is refused touches no store and no relay.

mod auth;
mod prompt;
mod request;
mod webhook;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use self::request::Request;
use crate::app::App;
use crate::clock::Deadline;
use crate::config::Scope;
use crate::handler;
use crate::outcome::{is_left, told, wants_retry};
use crate::trigger::payload::{Payload, RelayEvents};

/// An answer in the shape of payload format 2.0. All fields are always there: `cargo lambda watch` asks for `cookies`.
///
/// <https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html>
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    status_code: u16,
    headers: BTreeMap<&'static str, String>,
    body: String,
    is_base64_encoded: bool,
    cookies: Vec<String>,
    #[serde(skip)]
    left: Option<String>,
}

impl Answer {
    /// The status.
    #[must_use]
    pub fn status_code(&self) -> u16 {
        self.status_code
    }

    /// Names and values of headers.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.headers.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The body: JSON.
    #[must_use]
    pub fn body(&self) -> &str {
        &self.body
    }

    /// The id of a run that is stored and due, and that nobody was asked to work: whoever can go on behind the answer works
    /// it, else the next tick does.
    #[must_use]
    pub fn left(&self) -> Option<&str> {
        self.left.as_deref()
    }

    fn leaving(self, run: String) -> Self {
        Self { left: Some(run), ..self }
    }

    fn new(status_code: u16, body: &Value) -> Self {
        let headers = BTreeMap::from([("content-type", "application/json".to_owned())]);
        Self {
            status_code,
            headers,
            body: body.to_string(),
            is_base64_encoded: false,
            cookies: Vec::new(),
            left: None,
        }
    }

    pub(crate) fn error(status_code: u16, error: impl std::fmt::Display) -> Self {
        Self::new(status_code, &json!({"success": false, "error": error.to_string()}))
    }

    fn with_header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.insert(name, value.into());
        self
    }

    /// When the same request may be tried again, in whole seconds.
    fn with_retry_after(self, wait: Duration) -> Self {
        self.with_header("retry-after", wait.as_secs().to_string())
    }
}

/// A route: its method, its path, and what it does.
struct Route {
    method: &'static str,
    path: &'static str,
    door: Door,
}

#[derive(Clone)]
enum Door {
    Health,
    Bridge,
    /// Of this slug.
    Webhook(String),
    /// Of design §9, and not served by this version.
    NotBuilt,
}

const ROUTES: [Route; 11] = [
    Route { method: "GET", path: "/health", door: Door::Health },
    Route { method: "POST", path: "/bridge", door: Door::Bridge },
    Route { method: "POST", path: prompt::PATH, door: Door::NotBuilt },
    Route { method: "POST", path: "/api/prompt/run", door: Door::NotBuilt },
    Route { method: "POST", path: "/api/prompt/run-simple", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/context/current", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/context/parts", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/context/logs", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/status", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/skills", door: Door::NotBuilt },
    Route { method: "GET", path: "/api/runs", door: Door::NotBuilt },
];

/// What a request to the function URL would start, whoever sends it: events or a prompt. It is read as its door reads it.
///
/// # Errors
/// Why it starts nothing.
pub fn starts(payload: &str) -> Result<Payload, String> {
    let request = Request::read(payload)?;
    let segments = request.segments()?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match (request.method.as_str(), segments.as_slice()) {
        ("POST", ["bridge"]) => read_events(&request).map(Payload::Relay),
        ("POST", ["webhook", slug]) => match webhook::read(&request, slug) {
            Ok(webhook) => Ok(Payload::Webhook { webhook, id: None }),
            Err(answer) => Err(answer.body),
        },
        ("POST", path) if is_at(prompt::PATH, path) => prompt::read(&request).map(Payload::Prompt),
        _ => Err("this request starts no run that can be shown".to_owned()),
    }
}

/// Answers a request, given as the payload's JSON text.
pub async fn answer(app: &App, payload: &str, deadline: Deadline) -> Answer {
    let request = match Request::read(payload) {
        Ok(request) => request,
        Err(reason) => return Answer::error(400, reason),
    };
    let answer = match find(&request) {
        Ok(Door::Health) => Answer::new(200, &json!({"success": true, "status": "ok"})),
        Ok(Door::NotBuilt) => Answer::error(501, "this route is not built yet"),
        Ok(Door::Bridge) => match auth::check(app, &request, Scope::Bridge) {
            Ok(()) => bridge(app, &request, deadline).await,
            Err(refusal) => refusal,
        },
        Ok(Door::Webhook(slug)) => webhook::answer(app, &request, &slug).await,
        Err(answer) => answer,
    };
    tracing::info!(method = %request.method, status = answer.status_code, "an HTTP request was answered");
    answer
}

/// Whether these are the segments of `path`.
fn is_at(path: &str, segments: &[impl AsRef<str>]) -> bool {
    path.split('/').skip(1).eq(segments.iter().map(AsRef::as_ref))
}

fn find(request: &Request) -> Result<Door, Answer> {
    let segments = request.segments().map_err(|reason| Answer::error(400, reason))?;
    let mut allowed = Vec::new();
    match segments.as_slice() {
        [door, slug] if door == "webhook" && request.method == "POST" => {
            return Ok(Door::Webhook(slug.clone()));
        }
        [door, _] if door == "webhook" => allowed.push("POST"),
        [api, runs, _] if api == "api" && runs == "runs" => return Ok(Door::NotBuilt),
        _ => {}
    }
    for route in &ROUTES {
        if !is_at(route.path, &segments) {
            continue;
        }
        if route.method == request.method {
            return Ok(route.door.clone());
        }
        allowed.push(route.method);
    }
    if allowed.is_empty() {
        return Err(Answer::error(404, "there is no such path"));
    }
    Err(Answer::error(405, "this path takes another method").with_header("allow", allowed.join(", ")))
}

/// `POST /bridge`: the relay forms, and nothing else that a payload may be.
async fn bridge(app: &App, request: &Request, deadline: Deadline) -> Answer {
    let events = match read_events(request) {
        Ok(events) => events,
        Err(reason) => return Answer::error(400, reason),
    };
    let results = handler::accept(app, events, deadline).await;
    let left = results.iter().any(is_left);
    // A run that was given back is stored and due: another push would help nobody.
    let retry = results.iter().any(|result| wants_retry(result) && !is_left(result));
    let body = json!({"success": !retry, "results": told(results)});
    match (retry, left) {
        (true, _) => Answer::new(503, &body).with_header("retry-after", "30"),
        (false, true) => Answer::new(202, &body),
        (false, false) => Answer::new(200, &body),
    }
}

fn read_events(request: &Request) -> Result<RelayEvents, String> {
    let body = std::str::from_utf8(&request.body).map_err(|_| "the body is not UTF-8".to_owned())?;
    match Payload::parse(body) {
        Ok(Payload::Relay(events)) => Ok(events),
        Ok(_) => Err("the bridge takes relay events only".to_owned()),
        Err(reason) => Err(reason.to_string()),
    }
}
