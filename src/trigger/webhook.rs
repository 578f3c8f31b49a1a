//! A webhook's request, and its body as text or JSON.
//!
//! [`Body::decode`] is the one place that reads a body, whatever bytes a sender has put there: it gives valid UTF-8 and
//! never fails on what the bytes say.

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::{MAX_TEXT_BYTES, cut};

/// The longest body that a request may have, in bytes.
pub const MAX_BODY_BYTES: usize = 256 * 1024;

/// The longest type of a body that is kept, in bytes.
const MAX_TYPE_BYTES: usize = 128;

/// The longest name of a webhook, in bytes.
const MAX_SLUG_BYTES: usize = 128;

/// A request to a webhook, authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Webhook {
    /// Which one.
    pub slug: String,
    /// What its sender says the body is, without parameters; empty where nothing is said.
    pub content_type: String,
    /// What it says.
    pub body: Body,
}

/// A body as the model gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Valid JSON without white space between its parts; kept as text, so that numbers, repeated keys and any depth stay as
    /// they were sent.
    Json(String),
    /// Anything else; also JSON that is longer than a trigger's text may be, which is cut.
    Text(String),
}

/// A body that is not taken; the door answers 413.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body has more than {MAX_BODY_BYTES} bytes: send less at once")]
pub struct BodyTooLarge;

impl Webhook {
    /// A request as it came. `content_type` is the header as sent.
    ///
    /// # Errors
    /// [`BodyTooLarge`].
    pub fn read(slug: &str, content_type: &str, body: &[u8]) -> Result<Self, BodyTooLarge> {
        let said = Some(media_type(content_type)).filter(|said| said.len() <= MAX_TYPE_BYTES);
        let body = Body::decode(content_type, body)?;
        Ok(Self { slug: slug.to_owned(), content_type: said.unwrap_or_default(), body })
    }

    /// A request as a payload has it, its body as JSON text: a string there is the body as it was sent, anything else is a
    /// JSON body.
    ///
    /// # Errors
    /// Which field is wrong, and what it should be.
    pub(super) fn from_json(slug: String, content_type: String, body: &str) -> Result<Self, &'static str> {
        if !is_slug(&slug) {
            return Err("`slug` must be the webhook's name");
        }
        let body = without_lone_surrogates(body);
        let sent: Option<String> = serde_json::from_str(&body).ok();
        let content_type = match (media_type(&content_type).as_str(), &sent) {
            ("", None) => "application/json".to_owned(),
            ("", Some(_)) => "text/plain".to_owned(),
            (said, _) => said.to_owned(),
        };
        let body = match sent {
            // Characters already, whatever charset its sender used.
            Some(text) => Body::decode(&content_type, text.as_bytes()),
            None if body.len() > MAX_BODY_BYTES => Err(BodyTooLarge),
            None => Ok(Body::json_or_text(compact(&body), body)),
        };
        let body = body.map_err(|_| "`body` has more than 262144 bytes: send less at once")?;
        Ok(Self { slug, content_type, body })
    }

    /// The user message of its run.
    #[must_use]
    pub(super) fn message(&self) -> String {
        let body = match &self.body {
            Body::Json(json) => json.clone(),
            Body::Text(text) => json!(text).to_string(),
        };
        format!(
            r#"{{"trigger":"webhook","slug":{},"content_type":{},"body":{body}}}"#,
            json!(self.slug),
            json!(self.content_type),
        )
    }
}

impl Body {
    /// Reads a body's bytes. `content_type` is the header as sent; its `charset` decides how bytes become characters, UTF-8
    /// where it names none. What is no character becomes U+FFFD, lone surrogates in JSON escapes among them. Whatever then
    /// reads as JSON is JSON, unless its type says that it is text.
    ///
    /// # Errors
    /// [`BodyTooLarge`].
    pub fn decode(content_type: &str, bytes: &[u8]) -> Result<Self, BodyTooLarge> {
        if bytes.len() > MAX_BODY_BYTES {
            return Err(BodyTooLarge);
        }
        let text = characters(content_type, bytes);
        if media_type(content_type).starts_with("text/") {
            return Ok(Self::Text(cut(text, "the body")));
        }
        Ok(Self::json_or_text(compact(&without_lone_surrogates(&text)), text))
    }

    /// `json`, if it is that and no longer than a trigger's text may be, else the `text`.
    fn json_or_text(json: Option<String>, text: String) -> Self {
        match json.filter(|json| json.len() <= MAX_TEXT_BYTES) {
            Some(json) => Self::Json(json),
            None => Self::Text(cut(text, "the body")),
        }
    }
}

/// Whether a text can be a webhook's name: what one segment of a path can say. A colon would part the id of its trigger
/// elsewhere.
#[must_use]
pub fn is_slug(text: &str) -> bool {
    let is_plain = |c: char| !c.is_control() && !c.is_whitespace() && c != ':';
    (1..=MAX_SLUG_BYTES).contains(&text.len()) && text.chars().all(is_plain)
}

/// The type alone, in lower case: `application/json; charset=utf-8` is `application/json`.
#[must_use]
pub fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn characters(content_type: &str, bytes: &[u8]) -> String {
    let parameters = content_type.to_ascii_lowercase();
    let charset =
        parameters.split(';').skip(1).find_map(|parameter| parameter.trim().strip_prefix("charset="));
    match charset.map(|charset| charset.trim_matches('"')) {
        // Its 256 characters are the first 256 of Unicode.
        Some("iso-8859-1" | "latin1") => bytes.iter().map(|&byte| char::from(byte)).collect(),
        _ => {
            let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            String::from_utf8_lossy(bytes).into_owned()
        }
    }
}

/// JSON text in which each `\u` escape of half a character is that of U+FFFD. Parsers refuse the half ones.
fn without_lone_surrogates(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, escape)) = rest.find('\\').and_then(|at| rest.split_at_checked(at)) {
        out.push_str(before);
        let len = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
            (Some(0xD800..=0xDFFF), _) => {
                out.push_str("\\ufffd");
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
            (Some(_), _) => 6,
            // A backslash and what it escapes, which may be another one.
            (None, _) => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (escape, more) = escape.split_at_checked(len).unwrap_or((escape, ""));
        out.push_str(escape);
        rest = more;
    }
    out.push_str(rest);
    out
}

/// The UTF-16 code unit that an escape at the start of `text` names.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
}

/// The JSON text without white space between its parts, if it is JSON.
fn compact(text: &str) -> Option<String> {
    let json: &RawValue = serde_json::from_str(text).ok()?;
    let (mut in_string, mut escaped) = (false, false);
    let is_kept = |c: &char| {
        match (in_string, escaped, *c) {
            (true, true, _) => escaped = false,
            (true, false, '\\') => escaped = true,
            (_, _, '"') => in_string = !in_string,
            _ => {}
        }
        in_string || !c.is_ascii_whitespace()
    };
    Some(json.get().chars().filter(is_kept).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn json(text: &str) -> Body {
        Body::Json(text.to_owned())
    }

    fn text(text: &str) -> Body {
        Body::Text(text.to_owned())
    }

    #[test]
    fn a_body_is_json_where_it_reads_as_json_and_text_elsewhere() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        let table: [(&str, &[u8], Body); 14] = [
            (
                "application/json",
                br#" {"b": [1.10, 12345678901234567890123], "a": "x y\"{ }"} "#,
                json(r#"{"b":[1.10,12345678901234567890123],"a":"x y\"{ }"}"#),
            ),
            ("", b"{\"a\":1}", json("{\"a\":1}")),
            ("application/x-www-form-urlencoded", b"a=1&b=2", text("a=1&b=2")),
            ("application/json", b"{\"a\":", text("{\"a\":")),
            ("text/plain", b"{\"a\":1}", text("{\"a\":1}")),
            ("application/json; charset=utf-8", b"\xef\xbb\xbf{}", json("{}")),
            ("application/json", deep.as_bytes(), json(&deep)),
            ("application/json", br#"{"msg":"\ud800"}"#, json(r#"{"msg":"\ufffd"}"#)),
            (
                "application/json",
                br#"["ok \ud83d","\udc00x","\ud83d\ud83d\ude00","\\ud800","\u00e9"]"#,
                json(r#"["ok \ufffd","\ufffdx","\ufffd\ud83d\ude00","\\ud800","\u00e9"]"#),
            ),
            ("text/plain; charset=\"ISO-8859-1\"", b"\xe9\xf1", text("éñ")),
            ("application/json;charset=latin1", b"\"\xe9\"", json("\"é\"")),
            ("text/plain", b"\xe9\xf1", text("\u{fffd}\u{fffd}")),
            ("application/json", b"\"\xe9\"", json("\"\u{fffd}\"")),
            ("", b"", text("")),
        ];
        for (content_type, bytes, body) in table {
            assert_eq!(Body::decode(content_type, bytes), Ok(body), "{content_type} {bytes:?}");
        }
        assert_eq!(Body::decode("", &vec![b'x'; MAX_BODY_BYTES + 1]), Err(BodyTooLarge));
    }

    #[test]
    fn a_body_that_is_longer_than_a_message_is_a_text_that_says_where_it_was_cut() {
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_TEXT_BYTES));
        let note = "\n[cut: the body has 131080 bytes]";
        assert_eq!(
            Body::decode("application/json", long.as_bytes()),
            Ok(text(&(long.split_at(MAX_TEXT_BYTES).0.to_owned() + note)))
        );
        // Within the limit once the white space is gone.
        let wide = format!("[{}1]", " ".repeat(MAX_TEXT_BYTES));
        assert_eq!(Body::decode("", wide.as_bytes()), Ok(json("[1]")));
        for byte in [0, b'"', 0xff] {
            let Ok(Body::Text(kept)) = Body::decode("text/plain", &[byte; MAX_BODY_BYTES]) else {
                panic!("it is a text");
            };
            let spelled = json!(kept).to_string().len();
            assert!(spelled < 2 * MAX_TEXT_BYTES + 100 && kept.len() < MAX_TEXT_BYTES + 100, "{byte}");
            assert!(kept.contains("[cut: the body has "), "{byte}");
        }
    }

    #[test]
    fn the_message_is_compact_json_with_its_keys_in_order() {
        let message =
            |body| Webhook { slug: "ci\"".to_owned(), content_type: "text/plain".to_owned(), body }.message();
        assert_eq!(
            message(json("{\"b\":1,\"a\":2}")),
            r#"{"trigger":"webhook","slug":"ci\"","content_type":"text/plain","body":{"b":1,"a":2}}"#
        );
        assert_eq!(
            message(text("one\n\"two\"")),
            r#"{"trigger":"webhook","slug":"ci\"","content_type":"text/plain","body":"one\n\"two\""}"#
        );
    }

    fn pieces() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop::sample::select(vec![
            "{", "}", "[", "]", "\"", ":", ",", "\\", "\\u", "d800", "dc00", "\\ud83d", "\\ude00", " ", "\n",
            "1", "e", "é", "null", "\"a\":",
        ]);
        let bytes = piece.prop_map(|piece| piece.as_bytes().to_vec());
        let piece = prop_oneof![9 => bytes, 1 => any::<u8>().prop_map(|byte| vec![byte])];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_body_gives_a_message_of_valid_json(bytes in pieces(), quoted in any::<bool>()) {
            let bytes = if quoted { [b"\"".as_slice(), &bytes, b"\""].concat() } else { bytes };
            let body = Body::decode("application/json", &bytes).unwrap();
            let webhook = Webhook { slug: "s".to_owned(), content_type: String::new(), body };
            let message: Value = serde_json::from_str(&webhook.message()).unwrap();
            let value: Result<Value, _> = serde_json::from_slice(&bytes);
            if let Ok(value) = value {
                // What was JSON before any repair means the same after it.
                prop_assert_eq!(&message["body"], &value);
            }
        }
    }
}
