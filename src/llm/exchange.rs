//! One request to a provider and its answer, streamed or not, in the time there is.

use std::error::Error;
use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::catalogue::Model;
use super::failure::{Refusal, retry_after};
use super::sse::Lines;
use super::stream::Assembly;
use super::{LlmError, Reason, read};
use crate::chat::{ChatAnswer, FinishReason};

/// The largest answer that is read.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// The largest error that is read; what is behind it is of no use.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// How long a stream may take to tell the usage, once the answer is whole.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// What ends a stream.
const DONE: &[u8] = b"[DONE]";

/// Why there is no answer, and what came instead of one.
pub(super) struct Failed {
    pub(super) error: LlmError,
    /// Of the answer's head, where there was one.
    status: Option<u16>,
}

impl Failed {
    /// Whether this may have been a hiccup between us and the provider: a CDN that did not reach it, an answer that
    /// cannot be read.
    pub(super) fn is_hiccup(&self) -> bool {
        matches!(self.error, LlmError::Unreadable(_))
            || matches!((&self.error, self.status), (LlmError::Transient { .. }, Some(520..=527)))
    }
}

/// A request on its way.
pub(super) struct Exchange<'a> {
    pub(super) model: &'a Model,
    /// What is sent.
    pub(super) body: &'a Value,
    pub(super) until: Instant,
}

impl Exchange<'_> {
    /// Sends the request, and reads the answer.
    pub(super) async fn run(&self, client: &reqwest::Client) -> Result<ChatAnswer, Failed> {
        let provider = &self.model.provider;
        let mut post = client.post(format!("{}/chat/completions", provider.base_url)).json(self.body);
        if let Some(key) = &provider.key {
            post = post.bearer_auth(key.expose());
        }
        let sent = timeout_at(self.until_first_token(), send(post)).await;
        let response = sent
            .map_err(|_| silent())
            .and_then(|sent| sent.map_err(|error| lost(&error)))
            .map_err(|error| Failed { error, status: None })?;

        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let mut body = Body { response, read: 0, max: MAX_ANSWER_BYTES };
        let answer = if (200..300).contains(&status) {
            self.read(&mut body, &headers).await
        } else {
            body.max = MAX_ERROR_BYTES;
            // What of it came says what is wrong.
            let (read, _) = body.rest(Vec::new(), self.until).await;
            Err(self.refusal(status, &headers, &read))
        };
        answer.map_err(|error| Failed { error, status: Some(status) })
    }

    fn is_streamed(&self) -> bool {
        self.body.get("stream").is_some_and(|stream| stream == true)
    }

    /// Until when something must have come. An unstreamed answer comes as a whole.
    fn until_first_token(&self) -> Instant {
        if self.is_streamed() { self.within(self.model.info.first_token) } else { self.until }
    }

    fn within(&self, silence: Duration) -> Instant {
        Instant::now().checked_add(silence).map_or(self.until, |limit| limit.min(self.until))
    }

    fn refusal(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> LlmError {
        let refusal = Refusal { status, retry_after: retry_after(headers), body, sent: self.body };
        refusal.into_error(self.model.provider.key.as_ref())
    }

    /// A stream, or one JSON text, whatever was asked for and whatever the headers say.
    async fn read(&self, body: &mut Body, headers: &HeaderMap) -> Result<ChatAnswer, LlmError> {
        let mut begin = Vec::new();
        loop {
            let text = begin.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&begin);
            match text.trim_ascii_start().first() {
                Some(b'{' | b'[' | b'<') => break,
                Some(_) => return self.read_stream(begin, body, headers).await,
                None => match body.next(self.until_first_token()).await? {
                    Some(bytes) => begin.extend_from_slice(&bytes),
                    None => break,
                },
            }
        }
        let (whole, end) = body.rest(begin, self.until).await;
        end?;
        let json = read::parse(&whole)?;
        self.check(&json, &whole, headers)?;
        read::read_answer(&json, &self.model.id(), self.is_used_up(&json))
    }

    async fn read_stream(
        &self,
        begin: Vec<u8>,
        body: &mut Body,
        headers: &HeaderMap,
    ) -> Result<ChatAnswer, LlmError> {
        let mut lines = Lines::default();
        let mut assembly = Assembly::default();
        let mut bytes = begin;
        let end = 'end: loop {
            for payload in lines.push(&bytes) {
                match self.take_up(&payload, &mut assembly, headers) {
                    Ok(true) => {}
                    Ok(false) => break 'end Ok(()),
                    Err(error) => break 'end Err(error),
                }
            }
            let info = &self.model.info;
            let limit = match (assembly.is_finished(), assembly.has_tokens()) {
                (true, _) => AFTERWARDS,
                (false, true) => info.idle,
                (false, false) => info.first_token,
            };
            match body.next(self.within(limit)).await {
                Ok(Some(more)) => bytes = more,
                Ok(None) => {
                    let last = lines.finish().map(|last| self.take_up(&last, &mut assembly, headers));
                    break match last {
                        Some(Err(error)) => Err(error),
                        Some(Ok(false)) => Ok(()),
                        _ if assembly.is_finished() || !assembly.has_tokens() => Ok(()),
                        _ => Err(transient("the stream ended before the answer did")),
                    };
                }
                Err(error) => break Err(error),
            }
        };
        let is_whole = end.is_ok() || assembly.is_finished();
        let body = assembly.into_body();
        let read = read::read_answer(&body, &self.model.id(), !is_whole || self.is_used_up(&body));
        match (end, read) {
            (Err(error), Ok(partial)) if !is_whole => Err(interrupted(error, partial)),
            (Err(error), Err(_)) => Err(error),
            (_, read) => read,
        }
    }

    /// Takes up the payload of one event; whether more may follow. What was never meant to be JSON is passed over; what
    /// was and is damaged may have been any part of the answer.
    fn take_up(
        &self,
        payload: &[u8],
        assembly: &mut Assembly,
        headers: &HeaderMap,
    ) -> Result<bool, LlmError> {
        if payload == DONE {
            return Ok(false);
        }
        if payload.starts_with(b"{") {
            let chunk = read::parse(payload)?;
            self.check(&chunk, payload, headers)?;
            assembly.push(&chunk);
        }
        Ok(true)
    }

    /// Refuses a body of 200 that holds an error.
    fn check(&self, json: &Value, body: &[u8], headers: &HeaderMap) -> Result<(), LlmError> {
        match read::error_in(json) {
            Some(error) => Err(self.refusal(inner_status(error), headers, body)),
            None => Ok(()),
        }
    }

    /// Whether the answer has as many tokens as it may: some providers say of a cut call that it is whole.
    fn is_used_up(&self, answer: &Value) -> bool {
        let most =
            ["max_tokens", "max_completion_tokens"].iter().find_map(|name| self.body.get(*name)?.as_u64());
        let used = answer.pointer("/usage/completion_tokens").and_then(Value::as_u64);
        matches!((used, most), (Some(used), Some(most)) if used >= most)
    }
}

/// The rest of a response.
struct Body {
    response: Response,
    read: usize,
    max: usize,
}

impl Body {
    /// The next bytes, at `limit` at the latest; `None` at the end.
    async fn next(&mut self, limit: Instant) -> Result<Option<Vec<u8>>, LlmError> {
        let chunk = timeout_at(limit, self.response.chunk()).await.map_err(|_| silent())?;
        let Some(chunk) = chunk.map_err(|error| lost(&error))? else { return Ok(None) };
        self.read = self.read.saturating_add(chunk.len());
        if self.read > self.max {
            return Err(LlmError::Unreadable(format!("it is longer than {} bytes", self.max).into()));
        }
        Ok(Some(chunk.to_vec()))
    }

    /// All that comes behind `begin`, and why there is not more.
    async fn rest(&mut self, begin: Vec<u8>, until: Instant) -> (Vec<u8>, Result<(), LlmError>) {
        let mut whole = begin;
        loop {
            match self.next(until).await {
                Ok(Some(bytes)) => whole.extend_from_slice(&bytes),
                Ok(None) => return (whole, Ok(())),
                Err(error) => return (whole, Err(error)),
            }
        }
    }
}

/// Sends it once more where the connection ended before the head of an answer: a pooled one may have died while the
/// sandbox was frozen, and nobody knows before a request is written to it.
async fn send(post: RequestBuilder) -> reqwest::Result<Response> {
    let again = post.try_clone();
    match (post.send().await, again) {
        (Err(error), Some(again)) if connection_ended(&error) => again.send().await,
        (sent, _) => sent,
    }
}

/// Whether an open connection was closed or reset. A server that cannot be reached, takes too long or answers garbage is
/// another matter.
fn connection_ended(error: &reqwest::Error) -> bool {
    let sources = std::iter::successors(error.source(), |error| (*error).source());
    let mut of_connection = sources.filter_map(|error| error.downcast_ref::<hyper::Error>());
    !error.is_connect()
        && !error.is_timeout()
        && of_connection.next().is_some_and(|error| !error.is_parse() && !error.is_user())
}

/// The status that an error inside a 200 names; without one it is the provider's trouble.
fn inner_status(error: &Value) -> u16 {
    let code = error.get("code").or_else(|| error.get("status"));
    let number = code.and_then(|code| code.as_u64().or_else(|| code.as_str()?.parse().ok()));
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| (400..=599).contains(n)).unwrap_or(502)
}

/// What `error` means once something has come. Thoughts alone are nothing.
fn interrupted(error: LlmError, mut partial: ChatAnswer) -> LlmError {
    if partial.content.trim().is_empty() && partial.tool_calls.is_empty() {
        return error;
    }
    let reason = match error {
        LlmError::Transient { reason, .. } => reason,
        LlmError::Unreadable(_) => "a part of the stream cannot be read".into(),
        other => Reason::new(other.to_string(), other.reason().words()),
    };
    partial.finish_reason = FinishReason::Other("interrupted".to_owned());
    LlmError::Interrupted { reason, partial: Box::new(partial) }
}

/// The connection failed. The error's own text is not used: it holds the URL.
fn lost(error: &reqwest::Error) -> LlmError {
    transient(if error.is_connect() {
        "no connection to the provider"
    } else if error.is_timeout() {
        "the provider took too long"
    } else {
        "the connection to the provider broke"
    })
}

fn silent() -> LlmError {
    transient("it did not answer in the time there was")
}

fn transient(reason: &str) -> LlmError {
    LlmError::Transient { reason: reason.into(), retry_after: None }
}
