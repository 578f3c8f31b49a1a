//! What a provider's refusal means: from status, headers and body to an [`LlmError`], decided here and nowhere else.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::{LlmError, Reason, read};
use crate::secret::Secret;

/// The longest code of an error that is shown. It is a name; what is longer is a text.
const MAX_CODE_CHARS: usize = 48;

/// No provider's wish to wait longer than this is believed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Parameters that a request can do without, or spell otherwise. An error that names one of them can be helped.
const OPTIONAL: [&str; 9] = [
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "random_seed",
    "tool_choice",
    "parallel_tool_calls",
    "stream_options",
    "stream",
];

/// What providers write where a request is larger than the model's window; few have a code for it.
const OVERFLOWS: [&str; 9] = [
    "context length",
    "context window",
    "context size",
    "maximum context",
    "maximum prompt length",
    "prompt is too long",
    "input is too long",
    "input token count",
    "too many tokens",
];

/// What they write on a key or an account with the status of a bad request.
const ACCOUNTS: [&str; 3] = ["api key not valid", "invalid api key", "credit balance"];

/// A refusal as it came: a status, and a body that may be anything.
pub(super) struct Refusal<'a> {
    /// The HTTP status, or the code inside an error that came with a 200.
    pub(super) status: u16,
    /// From the headers.
    pub(super) retry_after: Option<Duration>,
    /// The body.
    pub(super) body: &'a [u8],
    /// The request's body.
    pub(super) sent: &'a Value,
}

impl Refusal<'_> {
    /// What it means. All that the provider says loses `key`; its words may quote the prompt, so only the status and the
    /// names that the error has are shown.
    pub(super) fn into_error(self, key: Option<&Secret>) -> LlmError {
        let json = read::parse(self.body).ok();
        let error = json.as_ref().map(|body| read::error_in(body).unwrap_or(body));
        let words = error.map_or_else(|| plain_text(self.body), message);
        let mut shown = format!("status {}", self.status);
        for code in error.map(codes).unwrap_or_default() {
            shown = format!("{shown}, {code}");
        }
        if is_page(self.body) {
            shown.push_str(", a web page instead of an answer");
        }
        let masked = |text: &str| key.map_or_else(|| text.to_owned(), |key| key.redact(text));
        self.classify(error, &words.to_lowercase(), Reason::new(masked(&shown), &masked(&words)))
    }

    fn classify(&self, error: Option<&Value>, words: &str, reason: Reason) -> LlmError {
        let field = |name: &str| error.and_then(|e| e.get(name)).and_then(Value::as_str).unwrap_or_default();
        let code = field("code");
        if code == "context_length_exceeded" || self.status == 413 {
            return LlmError::Overflow(reason);
        }
        match self.status {
            401..=403 => LlmError::Account(reason),
            // A spent budget comes as a rate limit that no waiting helps.
            429 if code == "insufficient_quota" => LlmError::Account(reason),
            408 | 409 | 425 | 429 | 500.. => {
                let retry_after = self.retry_after.or_else(|| error.and_then(retry_delay));
                LlmError::Transient { reason, retry_after }
            }
            400 if ACCOUNTS.iter().any(|phrase| words.contains(phrase)) => LlmError::Account(reason),
            400 | 422 if OVERFLOWS.iter().any(|phrase| words.contains(phrase)) => LlmError::Overflow(reason),
            400 | 422 => match self.refused_parameter(field("param"), words) {
                Some(name) => LlmError::RefusedParameter { name, reason },
                None => LlmError::Permanent(reason),
            },
            _ => LlmError::Permanent(reason),
        }
    }

    /// The optional parameter that an error names: in its field, else as the first such word of its text. One that we
    /// did not send is advice, and `stream` is too usual a word.
    fn refused_parameter(&self, param: &str, words: &str) -> Option<&'static str> {
        let sent =
            |word: &str| OPTIONAL.into_iter().find(|name| *name == word && self.sent.get(name).is_some());
        if let Some((_, param)) = param.rsplit_once('.').or((!param.is_empty()).then_some(("", param))) {
            return sent(param);
        }
        words
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .filter(|word| *word != "stream")
            .find_map(sent)
    }
}

/// The text of an error object, in the shapes that are about.
fn message(error: &Value) -> String {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(_) => Some(fault(value)),
        Value::Array(items) => Some(items.iter().map(fault).collect::<Vec<_>>().join("; ")),
        _ => None,
    };
    let named = ["message", "detail", "error"].iter().find_map(|name| error.get(*name).and_then(text));
    named.or_else(|| error.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Of an object what names the fault: its kind, its place and its words. Some servers quote the request beside them.
fn fault(value: &Value) -> String {
    let word = |name: &str| value.get(name).and_then(Value::as_str);
    let place = value.get("loc").and_then(Value::as_array);
    let place = place.into_iter().flatten().filter_map(Value::as_str);
    let words = ["type", "msg", "message"].into_iter().filter_map(word);
    words.chain(place).collect::<Vec<_>>().join(" ")
}

/// The names by which an error goes: `insufficient_quota`, `RESOURCE_EXHAUSTED`. A name is one word of few letters: what
/// is anything else is a text, and might be anybody's.
fn codes(error: &Value) -> Vec<&str> {
    let is_name = |code: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        (1..=MAX_CODE_CHARS).contains(&code.len())
            && code.chars().all(allowed)
            && code.contains(|c: char| c.is_ascii_alphabetic())
    };
    let named = ["code", "type", "status"].iter().filter_map(|field| error.get(*field)?.as_str());
    let mut codes: Vec<&str> = named.filter(is_name).collect();
    codes.dedup();
    codes
}

fn is_page(body: &[u8]) -> bool {
    body.trim_ascii_start().starts_with(b"<")
}

/// A body that is not JSON; a page's markup helps nobody.
fn plain_text(body: &[u8]) -> String {
    if is_page(body) { String::new() } else { String::from_utf8_lossy(body).into_owned() }
}

/// The wait that Google asks for inside its error: `"retryDelay": "34.07s"`.
fn retry_delay(error: &Value) -> Option<Duration> {
    let details = error.get("details")?.as_array()?;
    let delay = details.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    wait(delay.strip_suffix('s')?.parse().ok()?)
}

/// Not-a-number, negative and endless times are no times.
fn wait(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok().map(|wait| wait.min(MAX_RETRY_AFTER))
}

/// How long the provider asks us to wait: `retry-after-ms`, else `retry-after` in seconds. Dates are passed over.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    wait(number("retry-after-ms").map(|ms| ms / 1000.0).or_else(|| number("retry-after"))?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(status: u16, body: &str) -> LlmError {
        let sent = json!({"temperature": 0, "max_tokens": 9, "seed": 1, "stream": true});
        Refusal { status, retry_after: None, body: body.as_bytes(), sent: &sent }.into_error(None)
    }

    #[test]
    fn each_refusal_becomes_the_error_that_says_who_must_act() {
        let table = [
            (401, r#"{"error":{"message":"bad key"}}"#),
            (402, r#"{"error":{"message":"Insufficient Balance"}}"#),
            (429, r#"{"error":{"code":"insufficient_quota","message":"no money"}}"#),
            (429, r#"{"error":{"message":"slow down"}}"#),
            (503, ""),
            (521, "<!DOCTYPE html><title>521: Web server is down</title>"),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
            (400, r#"{"error":{"code":"context_length_exceeded","message":"too long"}}"#),
            (400, r#"{"error":{"message":"This model's maximum context length is 8192 tokens"}}"#),
            (400, r#"{"error":{"message":"prompt is too long: 210000 tokens"}}"#),
            (
                400,
                r#"{"error":{"code":"unsupported_parameter","param":"max_tokens","message":"use max_completion_tokens"}}"#,
            ),
            (400, r#"{"error":{"param":"temperature","message":"only 1 is allowed"}}"#),
            (
                400,
                r#"{"error":{"message":"Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."}}"#,
            ),
            (422, r#"{"detail":[{"type":"extra_forbidden","loc":["body","seed"],"input":"private text"}]}"#),
            (400, r#"{"error":{"param":"messages.[1].content","message":"temperature is no role"}}"#),
            (404, r#"{"error":"model 'x' not found"}"#),
            (400, "plain\n  words"),
        ];
        let told = |(status, body): &(u16, &str)| {
            let error = error(*status, body);
            format!("{error} [{}]", error.reason().words())
        };
        insta::assert_snapshot!(table.iter().map(told).collect::<Vec<_>>().join("\n"), @r"
        the provider refused the key or the account: status 401 [bad key]
        the provider refused the key or the account: status 402 [Insufficient Balance]
        the provider refused the key or the account: status 429, insufficient_quota [no money]
        the model is unavailable for now: status 429 [slow down]
        the model is unavailable for now: status 503 []
        the model is unavailable for now: status 521, a web page instead of an answer []
        the model is unavailable for now: status 529, overloaded_error [Overloaded]
        the request does not fit the model's context window: status 400, context_length_exceeded [too long]
        the request does not fit the model's context window: status 400 [This model's maximum context length is 8192 tokens]
        the request does not fit the model's context window: status 400 [prompt is too long: 210000 tokens]
        the model refused the parameter max_tokens: status 400, unsupported_parameter [use max_completion_tokens]
        the model refused the parameter temperature: status 400 [only 1 is allowed]
        the model refused the parameter max_tokens: status 400 [Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'.]
        the model refused the parameter seed: status 422 [extra_forbidden body seed]
        the provider refused the request: status 400 [temperature is no role]
        the provider refused the request: status 404 [model 'x' not found]
        the provider refused the request: status 400 [plain words]
        ");
    }

    #[test]
    fn of_an_error_only_what_is_a_name_is_shown() {
        let shown = |error: Value| codes(&error).join(" ");
        assert_eq!(shown(json!({"code": "a_b-c.d", "type": "T", "status": "T"})), "a_b-c.d T");
        for text in [
            json!("my secret plan"),
            json!("größe"),
            json!("x".repeat(49)),
            json!("1234"),
            json!(""),
            json!({"a": 1}),
        ] {
            assert_eq!(shown(json!({"code": text, "message": "m", "param": "p"})), "", "{text}");
        }
    }

    #[test]
    fn an_echoed_key_is_taken_out_before_the_text_is_cut() {
        let key = Secret::new("sk-test-SEKRIT".to_owned());
        for padding in 900..1_000 {
            let body = format!(r#"{{"error":{{"message":"{}Bearer sk-test-SEKRIT"}}}}"#, "x".repeat(padding));
            let refusal =
                Refusal { status: 401, retry_after: None, body: body.as_bytes(), sent: &Value::Null };
            let error = refusal.into_error(Some(&key));
            assert!(!error.reason().words().contains("sk-t"), "padding {padding}");
        }
    }

    #[test]
    fn a_key_that_is_echoed_as_the_name_of_an_error_is_not_shown() {
        let key = Secret::new("sk-test-SEKRIT".to_owned());
        let body = br#"{"error":{"code":"sk-test-SEKRIT","type":"bad.sk-test-SEKRIT"}}"#;
        let refusal = Refusal { status: 401, retry_after: None, body, sent: &Value::Null };
        let shown = refusal.into_error(Some(&key)).to_string();
        assert!(shown.contains("status 401, ") && !shown.contains("SEKRIT"), "{shown}");
    }

    #[test]
    fn the_wait_is_read_in_seconds_and_milliseconds_and_dates_are_passed_over() {
        let table = [
            (vec![("retry-after", "7")], Some(Duration::from_secs(7))),
            (vec![("retry-after", "0.5")], Some(Duration::from_millis(500))),
            (vec![("retry-after", "9"), ("retry-after-ms", "20")], Some(Duration::from_millis(20))),
            (vec![("retry-after", "1e300")], None),
            (vec![("retry-after", "999999999")], Some(MAX_RETRY_AFTER)),
            (vec![("retry-after", "-1")], None),
            (vec![("retry-after", "NaN")], None),
            (vec![("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], None),
            (vec![], None),
        ];
        for (pairs, expected) in table {
            let headers = pairs.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect();
            assert_eq!(retry_after(&headers), expected, "{pairs:?}");
        }
    }
}
