//! A function URL's request, payload format 2.0.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

/// A request as far as the routes need it.
#[derive(Debug)]
pub(super) struct Request {
    /// Upper case.
    pub(super) method: String,
    /// As sent: segments are not decoded.
    path: String,
    /// The stage that an API gateway puts in front of the path, where it has one.
    stage: Option<String>,
    /// Names in lower case, whatever the sender's spelling.
    headers: BTreeMap<String, String>,
    /// The bytes that the client sent.
    pub(super) body: Vec<u8>,
}

/// `http.method` under `requestContext` is the method; the top-level `httpMethod` of emulators says GET whatever came.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    raw_path: String,
    request_context: Context,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Deserialize)]
struct Context {
    http: Http,
    #[serde(default)]
    stage: Option<String>,
}

#[derive(Deserialize)]
struct Http {
    method: String,
}

impl Request {
    /// Reads the payload.
    pub(super) fn read(payload: &str) -> Result<Self, &'static str> {
        let wire: Wire =
            serde_json::from_str(payload).map_err(|_| "the request is not of payload format 2.0")?;
        let body = wire.body.unwrap_or_default();
        let body = if wire.is_base64_encoded {
            BASE64.decode(body).map_err(|_| "the body is said to be base64 and is not")?
        } else {
            body.into_bytes()
        };
        let mut headers = BTreeMap::<String, String>::new();
        for (name, value) in wire.headers {
            // As repeated headers are told.
            let values = headers.entry(name.to_ascii_lowercase()).or_default();
            if !values.is_empty() {
                values.push(',');
            }
            values.push_str(&value);
        }
        Ok(Self {
            method: wire.request_context.http.method.to_ascii_uppercase(),
            path: wire.raw_path,
            stage: wire.request_context.stage.filter(|stage| stage != "$default"),
            headers,
            body,
        })
    }

    /// The segments of the path, each decoded once; without empty ones, and without the stage.
    ///
    /// # Errors
    /// A segment cannot be decoded: half a sentence that says so.
    pub(super) fn segments(&self) -> Result<Vec<String>, &'static str> {
        let mut segments = Vec::new();
        for segment in self.path.split('/').filter(|segment| !segment.is_empty()) {
            segments.push(decoded(segment).ok_or("the path has an escape that spells no character")?);
        }
        if self.stage.is_some() && self.stage.as_ref() == segments.first() {
            segments.remove(0);
        }
        Ok(segments)
    }

    /// A header's value, several with commas between; `name` in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// A segment's `%` escapes as the bytes that they stand for, which must be UTF-8.
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let value = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn segments(path: &str, stage: &str) -> Result<Vec<String>, &'static str> {
        let context = json!({"http": {"method": "POST"}, "stage": stage});
        Request::read(&json!({"rawPath": path, "requestContext": context}).to_string())?.segments()
    }

    #[test]
    fn a_path_is_split_before_it_is_decoded_and_decoded_once() {
        let bad = || Err("the path has an escape that spells no character");
        let good = |segments: &[&str]| Ok(segments.iter().map(|&segment| segment.to_owned()).collect());
        for (path, stage, expected) in [
            ("/webhook/my%2Fskill", "$default", good(&["webhook", "my/skill"])),
            ("/webhook/my%252Fskill", "$default", good(&["webhook", "my%2Fskill"])),
            ("/webhook/%C3%B1and%c3%ba", "$default", good(&["webhook", "ñandú"])),
            ("/webhook/..%2f..%2fadmin", "$default", good(&["webhook", "../../admin"])),
            ("/webhook//gh/", "$default", good(&["webhook", "gh"])),
            ("/prod/webhook/gh", "prod", good(&["webhook", "gh"])),
            ("/prod/webhook/gh", "$default", good(&["prod", "webhook", "gh"])),
            ("/webhook/a+b c", "$default", good(&["webhook", "a+b c"])),
            ("", "$default", good(&[])),
            ("/webhook/%zz", "$default", bad()),
            ("/webhook/a%", "$default", bad()),
            ("/webhook/a%+1", "$default", bad()),
            ("/webhook/%ff", "$default", bad()),
        ] {
            assert_eq!(segments(path, stage), expected, "{path}");
        }
    }

    #[test]
    fn headers_are_known_in_any_case_and_repeated_ones_are_joined() {
        let context = json!({"http": {"method": "POST"}});
        let headers = json!({"X-A": "1", "x-a": "2", "X-B": "3"});
        let request = json!({"rawPath": "/", "requestContext": context, "headers": headers});
        let request = Request::read(&request.to_string()).unwrap();
        assert_eq!((request.header("x-a"), request.header("x-b")), (Some("1,2"), Some("3")));
    }
}
