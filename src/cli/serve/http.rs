//! The function URL on a loopback port: requests become payloads of format 2.0, and the same door answers them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::app::App;
use crate::clock::{DEFAULT_BUDGET, Deadline};
use crate::http::{self, Answer};
use crate::work;

/// What Lambda lets through.
const MAX_BODY_BYTES: usize = 6 * 1024 * 1024;

/// What each request needs.
#[derive(Clone)]
struct Desk {
    app: Arc<App>,
    /// Each work under way holds one: when all are dropped, all are over.
    under_way: mpsc::Sender<Infallible>,
}

/// Answers requests until `stop` is over and the work of the last one is.
///
/// # Errors
/// The socket failed.
pub(super) async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (under_way, mut over) = mpsc::channel(1);
    let desk = Desk { app, under_way };
    let router = Router::new().fallback(answer).layer(DefaultBodyLimit::max(MAX_BODY_BYTES)).with_state(desk);
    let served = axum::serve(listener, router).with_graceful_shutdown(stop).await;
    over.recv().await;
    served
}

/// The work is a task of its own: a client that hangs up, whose request's future is dropped, ends no run. On Lambda it
/// could not either.
async fn answer(
    State(Desk { app, under_way }): State<Desk>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(refused) => return response(Answer::error(refused.status().as_u16(), refused.body_text())),
    };
    let payload = payload(&method, &uri, &headers, &body).to_string();
    let (tell, told) = oneshot::channel();
    tokio::spawn(async move {
        let answer = http::answer(&app, &payload, Deadline::after(DEFAULT_BUDGET)).await;
        let left = answer.left().map(str::to_owned);
        // A client that hung up hears nothing.
        let _ = tell.send(answer);
        if let Some(run) = left {
            go_on(&app, &run).await;
        }
        drop(under_way);
    });
    response(told.await.unwrap_or_else(|_| Answer::error(500, "the work on this request failed")))
}

/// Works a stored run at once, which on Lambda waits for a tick.
async fn go_on(app: &App, run: &str) {
    if let Err(error) = work::resume(app, run, Deadline::after(DEFAULT_BUDGET)).await {
        tracing::warn!(run.id = %run, %error, "a run has to wait for a tick");
    }
}

/// <https://docs.aws.amazon.com/lambda/latest/dg/urls-invocation.html#urls-payloads>
fn payload(method: &Method, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Value {
    let mut named = Map::new();
    for name in headers.keys() {
        let values: Vec<String> = headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        named.insert(name.as_str().to_owned(), json!(values.join(",")));
    }
    let host = named.get("host").cloned().unwrap_or_else(|| json!("localhost"));
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": uri.path(),
        "rawQueryString": uri.query().unwrap_or_default(),
        "headers": named,
        "requestContext": {
            "accountId": "anonymous",
            "domainName": host,
            "http": {"method": method.as_str(), "path": uri.path(), "protocol": "HTTP/1.1", "sourceIp": "127.0.0.1"},
            "routeKey": "$default",
            "stage": "$default",
        },
        "body": BASE64.encode(body),
        "isBase64Encoded": true,
    })
}

fn response(answer: Answer) -> Response {
    let status = StatusCode::from_u16(answer.status_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Body::from(answer.body().to_owned())).into_response();
    for (name, value) in answer.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::payload::Payload;

    #[test]
    fn a_request_becomes_a_payload_of_the_function_url() {
        let mut headers = HeaderMap::new();
        for (name, value) in
            [("host", "127.0.0.1:8787"), ("x-a", "1"), ("x-a", "2"), ("authorization", "Bearer t")]
        {
            headers.append(name, value.parse().unwrap());
        }
        let uri = "/webhook/a%20b?x=1&y".parse().unwrap();
        let payload = payload(&Method::POST, &uri, &headers, &Bytes::from_static(b"\xff\0{}"));
        assert!(matches!(Payload::parse(&payload.to_string()), Ok(Payload::FunctionUrl)));
        insta::assert_snapshot!(serde_json::to_string_pretty(&payload).unwrap(), @r#"
        {
          "version": "2.0",
          "routeKey": "$default",
          "rawPath": "/webhook/a%20b",
          "rawQueryString": "x=1&y",
          "headers": {
            "host": "127.0.0.1:8787",
            "x-a": "1,2",
            "authorization": "Bearer t"
          },
          "requestContext": {
            "accountId": "anonymous",
            "domainName": "127.0.0.1:8787",
            "http": {
              "method": "POST",
              "path": "/webhook/a%20b",
              "protocol": "HTTP/1.1",
              "sourceIp": "127.0.0.1"
            },
            "routeKey": "$default",
            "stage": "$default"
          },
          "body": "/wB7fQ==",
          "isBase64Encoded": true
        }
        "#);
    }
}
