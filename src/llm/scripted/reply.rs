//! What the scripted model sends: whole or in pieces, in time or late, to its end or not.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};

use super::Asked;

/// An answer as HTTP carries it.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers by name; those that are none are left out.
    pub headers: Vec<(String, String)>,
    /// The body, each piece after a wait.
    pub pieces: Vec<(Duration, Vec<u8>)>,
    /// Whether the connection is broken off behind the last piece.
    pub is_cut: bool,
}

impl Reply {
    /// A 200 with this JSON text.
    #[must_use]
    pub fn json(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: vec![(header::CONTENT_TYPE.to_string(), "application/json".to_owned())],
            pieces: vec![(Duration::ZERO, body.into())],
            is_cut: false,
        }
    }

    /// A stream of these chunks and what ends one.
    #[must_use]
    pub fn stream(chunks: &[Value]) -> Self {
        let mut reply = Self::events(&chunks.iter().map(ToString::to_string).collect::<Vec<_>>());
        reply.pieces.push((Duration::ZERO, b"data: [DONE]\n\n".to_vec()));
        reply
    }

    /// A stream of events with these texts, and nothing behind them.
    #[must_use]
    pub fn events<T: AsRef<str>>(texts: &[T]) -> Self {
        let event = |text: &T| (Duration::ZERO, format!("data: {}\n\n", text.as_ref()).into_bytes());
        Self {
            status: 200,
            headers: vec![(header::CONTENT_TYPE.to_string(), "text/event-stream".to_owned())],
            pieces: texts.iter().map(event).collect(),
            is_cut: false,
        }
    }

    /// The same bytes in pieces of this size.
    ///
    /// # Panics
    /// For a size of 0.
    #[must_use]
    pub fn trickled(self, size: usize) -> Self {
        let whole: Vec<u8> = self.pieces.into_iter().flat_map(|(_, piece)| piece).collect();
        let pieces = whole.chunks(size).map(|piece| (Duration::ZERO, piece.to_vec())).collect();
        Self { pieces, ..self }
    }

    /// The same, broken off behind its last piece.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { is_cut: true, ..self }
    }

    /// The same, and nothing for `wait` behind its last piece.
    #[must_use]
    pub fn silent_for(mut self, wait: Duration) -> Self {
        self.pieces.push((wait, Vec::new()));
        self
    }
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let end = self.is_cut.then(|| Err(io::Error::from(io::ErrorKind::ConnectionReset)));
        let pieces = self.pieces.into_iter().map(Ok).chain(end);
        let body = stream::unfold(pieces, |mut pieces| async move {
            let (wait, piece) = match pieces.next()? {
                Ok((wait, piece)) => (wait, Ok(Bytes::from(piece))),
                Err(error) => (Duration::ZERO, Err(error)),
            };
            // Also without a wait the server gets its turn: what it has so far leaves before the connection breaks.
            match wait {
                Duration::ZERO => tokio::task::yield_now().await,
                wait => tokio::time::sleep(wait).await,
            }
            Some((piece, pieces))
        });
        let mut response = (status, Body::from_stream(body)).into_response();
        for (name, value) in self.headers {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// The answer `message` in the form that was asked for.
pub(super) fn completion(asked: &Asked, mut message: Value, finish_reason: &str) -> Reply {
    // Rough, but the same for the same input.
    let tokens = |value: &Value| value.to_string().len() / 4;
    let usage = json!({"prompt_tokens": tokens(&asked.body), "completion_tokens": tokens(&message)});
    if let Some(message) = message.as_object_mut() {
        message.insert("role".to_owned(), "assistant".into());
    }
    let body = |object: &str, choices: Value| {
        json!({
            "id": format!("scripted-{}", asked.number),
            "object": object,
            "model": asked.body.get("model"),
            "choices": choices,
        })
    };
    if asked.body.get("stream").is_none_or(|stream| stream != true) {
        let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason});
        let mut body = body("chat.completion", json!([choice]));
        if let Some(body) = body.as_object_mut() {
            body.insert("usage".to_owned(), usage);
        }
        return Reply::json(body.to_string());
    }
    let chunk = |delta: Value, reason: Option<&str>| {
        body("chat.completion.chunk", json!([{"index": 0, "delta": delta, "finish_reason": reason}]))
    };
    let mut chunks = vec![chunk(json!({"role": "assistant", "content": ""}), None)];
    chunks.extend(deltas(&message).into_iter().map(|delta| chunk(delta, None)));
    chunks.push(chunk(json!({}), Some(finish_reason)));
    if asked.body.pointer("/stream_options/include_usage").is_some_and(|wanted| wanted == true) {
        let mut last = body("chat.completion.chunk", json!([]));
        if let Some(last) = last.as_object_mut() {
            last.insert("usage".to_owned(), usage);
        }
        chunks.push(last);
    }
    Reply::stream(&chunks)
}

/// The message's text in two halves, and of each call its name, then its arguments in two halves.
fn deltas(message: &Value) -> Vec<Value> {
    let mut deltas = Vec::new();
    if let Some(text) = message.get("content").and_then(Value::as_str) {
        deltas.extend(halves(text).map(|half| json!({"content": half})));
    }
    let calls = message.get("tool_calls").and_then(Value::as_array);
    for (index, call) in calls.into_iter().flatten().enumerate() {
        let text = |pointer: &str| call.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let function = json!({"name": text("/function/name"), "arguments": ""});
        let begin = json!({"index": index, "id": text("/id"), "type": "function", "function": function});
        deltas.push(json!({"tool_calls": [begin]}));
        for half in halves(text("/function/arguments")) {
            deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": half}}]}));
        }
    }
    deltas
}

fn halves(text: &str) -> impl Iterator<Item = String> {
    let count = text.chars().count() / 2;
    [text.chars().take(count).collect::<String>(), text.chars().skip(count).collect()].into_iter()
}
