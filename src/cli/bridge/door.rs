//! Where a bridge pushes to: the agent's `POST /bridge`, or the queue that feeds it.

use std::time::Duration;

use reqwest::header::HeaderMap;
use reqwest::{Client, StatusCode, Url};

use crate::aws::Aws;
use crate::aws::sqs::{self, Sqs};
use crate::config;
use crate::https::{self, Protocol};
use crate::secret::Secret;

/// How long a push may take: without a queue the agent answers when its run is over.
const PUSH_TIME: Duration = Duration::from_secs(150);

const CONNECT_TIME: Duration = Duration::from_secs(10);

/// Why a batch was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It may be taken later, by the other end's word not before so long.
    Later(String, Option<Duration>),
    /// It never will be.
    Never(String),
}

/// The other end.
pub(super) enum Door {
    Function { client: Client, url: Url, token: Secret },
    Queue(Sqs),
}

/// What `--to` names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    Function(Url),
    Queue(String),
}

impl Place {
    /// A queue's URL has an account and a name as its path; any other is that of a function, with or without `/bridge`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut url = Url::parse(text.trim())
            .map_err(|_| "--to is not a URL: give the agent's https://… or its queue's".to_owned())?;
        let is_account = |part: &str| part.len() == 12 && part.bytes().all(|byte| byte.is_ascii_digit());
        if url.path().split('/').nth(1).is_some_and(is_account) {
            return sqs::checked_url(text.trim()).map(Self::Queue).map_err(|fault| format!("--to {fault}"));
        }
        let is_loopback = matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
        if url.scheme() != "https" && !(url.scheme() == "http" && is_loopback) {
            return Err("--to would show the token to everybody on the way: give https://…".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err("--to has more than an address: give https://HOST alone".to_owned());
        }
        let path = url.path().trim_end_matches('/');
        let path = format!("{}/bridge", path.strip_suffix("/bridge").unwrap_or(path));
        url.set_path(&path);
        Ok(Self::Function(url))
    }

    /// For people: without what may be private.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Function(url) => url.as_str(),
            Self::Queue(url) => url,
        }
    }
}

impl Door {
    /// The door at `place`, opened by `token` where it needs one.
    ///
    /// # Errors
    /// What is missing.
    pub(super) async fn open(place: Place, token: Option<String>) -> Result<Self, String> {
        match place {
            Place::Queue(url) => Ok(Self::Queue(Sqs::new(Aws::default().config().await, url))),
            Place::Function(url) => {
                let token = token.filter(|token| !token.trim().is_empty()).ok_or(
                    "DIDACTYL_BRIDGE_TOKEN is not set: give a token that the agent's DIDACTYL_API_TOKEN has as bridge=TOKEN",
                )?;
                let token = config::shown_token(token.trim())
                    .map_err(|fault| format!("DIDACTYL_BRIDGE_TOKEN {fault}"))?;
                let client = https::http_client(Protocol::Http2, CONNECT_TIME)?;
                Ok(Self::Function { client, url, token: Secret::new(token.to_owned()) })
            }
        }
    }

    /// Pushes a payload.
    ///
    /// # Errors
    /// [`Refused`]; its words hold neither the payload nor the token.
    pub(super) async fn push(&self, payload: String) -> Result<(), Refused> {
        match self {
            Self::Queue(queue) => {
                queue.send(payload).await.map_err(|error| Refused::Later(error.to_string(), None))
            }
            Self::Function { client, url, token } => {
                let request = client
                    .post(url.clone())
                    .bearer_auth(token.expose())
                    .header("content-type", "application/json")
                    .timeout(PUSH_TIME)
                    .body(payload);
                match request.send().await {
                    Ok(response) => verdict(response.status(), retry_after(response.headers())),
                    Err(error) => Err(Refused::Later(unreachable(&error).to_owned(), None)),
                }
            }
        }
    }
}

fn unreachable(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "the agent did not answer in time"
    } else if error.is_connect() {
        "the agent cannot be reached"
    } else {
        "the connection to the agent broke"
    }
}

/// A 4xx says that this very request is wrong, but for those that somebody can set right meanwhile.
fn verdict(status: StatusCode, wait: Option<Duration>) -> Result<(), Refused> {
    let code = status.as_u16();
    let later = |fault: String| Err(Refused::Later(fault, wait));
    match code {
        200..=299 => Ok(()),
        401 | 403 => later(format!(
            "the agent answers {code}: DIDACTYL_BRIDGE_TOKEN is not one that its DIDACTYL_API_TOKEN has with the scope bridge"
        )),
        404 => later("the agent answers 404: is --to its URL?".to_owned()),
        408 | 425 | 429 => later(format!("the agent answers {code}")),
        400..=499 => Err(Refused::Never(format!("the agent answers {code}"))),
        _ => later(format!("the agent answers {code}")),
    }
}

/// The seconds of `Retry-After`; a date is passed over.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_told_from_a_function_by_its_path_and_a_token_goes_only_where_nobody_listens_in() {
        let table = [
            "https://abc.lambda-url.eu-central-1.on.aws",
            "https://abc.lambda-url.eu-central-1.on.aws/bridge/",
            "https://agent.test/didactyl/",
            "http://127.0.0.1:8787",
            "http://[::1]:8787",
            "https://sqs.eu-central-1.amazonaws.com/123456789012/work",
            "http://127.0.0.1:5000/123456789012/work",
            "https://sqs.eu-central-1.amazonaws.com/123456789012/work.fifo",
            "http://agent.test",
            "http://127.0.0.1.evil.test",
            "https://me:SEKRIT@agent.test",
            "https://agent.test/?token=SEKRIT",
            "agent.test",
        ];
        let read: Vec<String> = table
            .iter()
            .map(|text| match Place::parse(text) {
                Ok(Place::Function(url)) => format!("function {url}"),
                Ok(Place::Queue(url)) => format!("queue {url}"),
                Err(fault) => fault,
            })
            .collect();
        insta::assert_snapshot!(read.join("\n"), @r"
        function https://abc.lambda-url.eu-central-1.on.aws/bridge
        function https://abc.lambda-url.eu-central-1.on.aws/bridge
        function https://agent.test/didactyl/bridge
        function http://127.0.0.1:8787/bridge
        function http://[::1]:8787/bridge
        queue https://sqs.eu-central-1.amazonaws.com/123456789012/work
        queue http://127.0.0.1:5000/123456789012/work
        --to names a FIFO queue, which cannot delay one message: give a standard queue
        --to would show the token to everybody on the way: give https://…
        --to would show the token to everybody on the way: give https://…
        --to has more than an address: give https://HOST alone
        --to has more than an address: give https://HOST alone
        --to is not a URL: give the agent's https://… or its queue's
        ");
    }

    #[test]
    fn what_a_later_push_can_help_is_pushed_again() {
        let read: Vec<String> = [200, 202, 400, 401, 403, 404, 405, 413, 429, 500, 503, 302]
            .map(|code| format!("{code} {:?}", verdict(StatusCode::from_u16(code).unwrap(), None)))
            .into();
        insta::assert_snapshot!(read.join("\n"), @r#"
        200 Ok(())
        202 Ok(())
        400 Err(Never("the agent answers 400"))
        401 Err(Later("the agent answers 401: DIDACTYL_BRIDGE_TOKEN is not one that its DIDACTYL_API_TOKEN has with the scope bridge", None))
        403 Err(Later("the agent answers 403: DIDACTYL_BRIDGE_TOKEN is not one that its DIDACTYL_API_TOKEN has with the scope bridge", None))
        404 Err(Later("the agent answers 404: is --to its URL?", None))
        405 Err(Never("the agent answers 405"))
        413 Err(Never("the agent answers 413"))
        429 Err(Later("the agent answers 429", None))
        500 Err(Later("the agent answers 500", None))
        503 Err(Later("the agent answers 503", None))
        302 Err(Later("the agent answers 302", None))
        "#);
    }

    #[test]
    fn the_wait_that_the_agent_asks_for_is_read_in_seconds() {
        let read = |value: &'static str| {
            let headers = [("retry-after", value)].map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap()));
            retry_after(&headers.into_iter().collect())
        };
        assert_eq!(read("30"), Some(Duration::from_secs(30)));
        assert_eq!(["-1", "", "Wed, 21 Oct 2026 07:28:00 GMT"].map(read), [None; 3]);
        let wait = Some(Duration::from_secs(30));
        let told = verdict(StatusCode::SERVICE_UNAVAILABLE, wait);
        assert_eq!(told, Err(Refused::Later("the agent answers 503".to_owned(), wait)));
    }
}
