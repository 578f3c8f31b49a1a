//! What Lambda hands over: each JSON shape, told apart by its envelope alone (design §2).
//!
//! Bodies are data; only the envelope decides what a payload is, and so what it may do. More than one shape, or none,
//! is a [`PayloadError`] that names the top-level keys and never their content.

use std::collections::BTreeMap;
use std::fmt;

use nostr::prelude::Timestamp;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::prompt::Prompt;
use super::webhook::Webhook;
use crate::clock;
use crate::hash::is_lower_hex;

/// A payload by its shape.
#[derive(Debug)]
pub enum Payload {
    /// Events that a bridge or a caller pushes: DMs and subscription events.
    Relay(RelayEvents),
    /// A request to the function URL; [`crate::http`] reads the rest of it.
    FunctionUrl,
    /// A batch of the queue.
    Sqs(Vec<Record>),
    /// The schedule's tick.
    Tick {
        /// When it was to come; `None` where it does not say, or not readably.
        scheduled_at: Option<Timestamp>,
    },
    /// A stored run goes on.
    Resume {
        /// The run's id.
        run: String,
    },
    /// A message of the admin.
    Prompt(Prompt),
    /// A request to a webhook that somebody else received.
    Webhook {
        /// The request.
        webhook: Webhook,
        /// What tells it from others, where the sender says.
        id: Option<String>,
    },
}

/// `{"type":"relay","events":[…],"relay"?:"wss://…"}`, or one bare signed event.
#[derive(Debug)]
pub struct RelayEvents {
    /// Each event as it came, unchecked.
    pub events: Vec<Box<RawValue>>,
    /// Where they came from, if the sender says so; believed only if it is one of our inbox relays.
    pub relay: Option<String>,
}

/// Why a payload is not taken. A retry changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Not an object.
    #[error("the payload is not a JSON object")]
    NotAnObject,
    /// A top-level key stands there twice: which of the two counts would be up to the reader.
    #[error("the payload has a top-level key twice: {0}")]
    Repeated(String),
    /// None of the shapes.
    #[error("the payload is of no known shape; its top-level keys are: {0}")]
    Unknown(String),
    /// Several shapes at once.
    #[error("the payload could be {0}; its top-level keys are: {1}")]
    Ambiguous(String, String),
    /// The right envelope with a part missing or of the wrong type.
    #[error("the {shape} payload cannot be read: {fault}")]
    Malformed {
        /// Which envelope.
        shape: &'static str,
        /// Which field, and what it should be.
        fault: &'static str,
    },
    /// A shape of the design that this version does not serve.
    #[error("a {0} payload is not built yet")]
    NotBuilt(&'static str),
}

type Fields = BTreeMap<String, Box<RawValue>>;

/// The most events in one payload.
const MAX_EVENTS: usize = 1_000;

impl Payload {
    /// Reads a payload's JSON text.
    ///
    /// # Errors
    /// See [`PayloadError`].
    pub fn parse(json: &str) -> Result<Self, PayloadError> {
        let Pairs(pairs) = serde_json::from_str(json).map_err(|_| PayloadError::NotAnObject)?;
        let mut fields = Fields::new();
        for (key, value) in pairs {
            let name = shown(&key);
            if fields.insert(key, value).is_some() {
                return Err(PayloadError::Repeated(name));
            }
        }
        let shapes: Vec<Shape> = Shape::ALL.into_iter().filter(|shape| shape.matches(&fields)).collect();
        match shapes.as_slice() {
            [] => Err(PayloadError::Unknown(key_names(&fields))),
            [shape] => shape.read(json, &fields),
            several => {
                let names = several.iter().map(|shape| shape.name()).collect::<Vec<_>>().join(" or ");
                Err(PayloadError::Ambiguous(names, key_names(&fields)))
            }
        }
    }
}

/// The envelopes of design §2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    FunctionUrl,
    Schedule,
    Sqs,
    Event,
    Typed(&'static str),
}

impl Shape {
    const ALL: [Self; 9] = [
        Self::FunctionUrl,
        Self::Schedule,
        Self::Sqs,
        Self::Event,
        Self::Typed("relay"),
        Self::Typed("resume"),
        Self::Typed("tick"),
        Self::Typed("prompt"),
        Self::Typed("webhook"),
    ];

    fn name(self) -> &'static str {
        match self {
            Self::FunctionUrl => "function URL",
            Self::Schedule => "schedule",
            Self::Sqs => "SQS",
            Self::Event => "signed event",
            Self::Typed(name) => name,
        }
    }

    fn matches(self, fields: &Fields) -> bool {
        match self {
            Self::FunctionUrl => {
                text(fields, "version").as_deref() == Some("2.0")
                    && read::<RequestContext>(fields, "requestContext").is_some()
            }
            Self::Schedule => {
                matches!(text(fields, "source").as_deref(), Some("aws.events" | "aws.scheduler"))
                    && text(fields, "detail-type").as_deref() == Some("Scheduled Event")
            }
            Self::Sqs => read::<Vec<Record>>(fields, "Records")
                .is_some_and(|records| !records.is_empty() && records.iter().all(Record::is_of_sqs)),
            Self::Event => ["id", "pubkey", "sig", "kind"].iter().all(|key| fields.contains_key(*key)),
            Self::Typed(name) => text(fields, "type").as_deref() == Some(name),
        }
    }

    fn read(self, json: &str, fields: &Fields) -> Result<Payload, PayloadError> {
        let malformed = |fault| PayloadError::Malformed { shape: self.name(), fault };
        match self {
            Self::Event => {
                let event = RawValue::from_string(json.to_owned())
                    .map_err(|_| malformed("it is not one JSON object"))?;
                Ok(Payload::Relay(RelayEvents { events: vec![event], relay: None }))
            }
            Self::Typed("relay") => {
                let events: Vec<Box<RawValue>> = read(fields, "events")
                    .ok_or_else(|| malformed("`events` must be a list of signed events"))?;
                if events.len() > MAX_EVENTS {
                    return Err(malformed("`events` has more than 1000 entries: send fewer at once"));
                }
                Ok(Payload::Relay(RelayEvents { events, relay: text(fields, "relay") }))
            }
            Self::Typed("resume") => {
                let run = text(fields, "run").filter(|run| is_lower_hex(run, 32));
                let run = run.ok_or_else(|| malformed("`run` must be the run's id"))?;
                Ok(Payload::Resume { run })
            }
            Self::Schedule | Self::Typed("tick") => {
                let scheduled_at = text(fields, "time").and_then(|time| clock::parse_utc(&time));
                Ok(Payload::Tick { scheduled_at })
            }
            Self::Typed("prompt") => Prompt::read(json).map(Payload::Prompt).map_err(malformed),
            Self::Typed("webhook") => {
                let slug =
                    text(fields, "slug").ok_or_else(|| malformed("`slug` must be the webhook's name"))?;
                let body = fields.get("body").map_or("null", |body| body.get());
                let content_type = text(fields, "content_type").unwrap_or_default();
                let webhook = Webhook::from_json(slug, content_type, body).map_err(malformed)?;
                Ok(Payload::Webhook { webhook, id: text(fields, "id").filter(|id| !id.is_empty()) })
            }
            Self::FunctionUrl => Ok(Payload::FunctionUrl),
            Self::Sqs => Ok(Payload::Sqs(read(fields, "Records").unwrap_or_default())),
            _ => Err(PayloadError::NotBuilt(self.name())),
        }
    }
}

/// An object's fields as they stand, repeated ones too.
struct Pairs(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[derive(Deserialize)]
struct RequestContext {
    #[serde(rename = "http")]
    _http: Http,
}

#[derive(Deserialize)]
struct Http {
    #[serde(rename = "method")]
    _method: String,
}

/// One record of an SQS batch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    event_source: String,
    /// What the answer names it by.
    #[serde(default)]
    pub message_id: String,
    /// A relay form, or the id of a stored run.
    #[serde(default)]
    pub body: String,
}

impl Record {
    fn is_of_sqs(&self) -> bool {
        self.event_source == "aws:sqs"
    }
}

fn read<'a, T: Deserialize<'a>>(fields: &'a Fields, key: &str) -> Option<T> {
    fields.get(key).and_then(|value| serde_json::from_str(value.get()).ok())
}

fn text(fields: &Fields, key: &str) -> Option<String> {
    read(fields, key)
}

/// A key as it may be shown: cut short and without control characters.
fn shown(key: &str) -> String {
    key.chars().filter(|c| !c.is_control()).take(32).collect()
}

/// The first top-level keys.
fn key_names(fields: &Fields) -> String {
    const MOST: usize = 12;
    let mut names: Vec<String> = fields.keys().take(MOST).map(|key| shown(key)).collect();
    if fields.len() > MOST {
        names.push("…".to_owned());
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::webhook::Body;

    #[test]
    fn each_rejection_names_its_reason_and_no_content() {
        let cases = [
            ("[]", "the payload is not a JSON object"),
            ("{}", "the payload is of no known shape; its top-level keys are: none"),
            (
                r#"{"type":"relay","events":[],"type":"resume"}"#,
                "the payload has a top-level key twice: type",
            ),
            (
                r#"{"secret":"nsec1","type":"open sesame"}"#,
                "the payload is of no known shape; its top-level keys are: secret, type",
            ),
            (
                r#"{"type":"relay","events":[],"source":"aws.events","detail-type":"Scheduled Event"}"#,
                "the payload could be schedule or relay; its top-level keys are: detail-type, events, source, type",
            ),
            (
                r#"{"type":"relay","events":{"0":1}}"#,
                "the relay payload cannot be read: `events` must be a list of signed events",
            ),
            (r#"{"type":"resume","run":7}"#, "the resume payload cannot be read: `run` must be the run's id"),
            (
                r#"{"type":"prompt","message":""}"#,
                "the prompt payload cannot be read: `message` must be a text that is not empty",
            ),
            (
                r#"{"Records":[{"eventSource":"aws:sqs"},{"eventSource":"aws:s3"}]}"#,
                "the payload is of no known shape; its top-level keys are: Records",
            ),
            (
                r#"{"version":"2.0","requestContext":{"http":{}}}"#,
                "the payload is of no known shape; its top-level keys are: requestContext, version",
            ),
        ];
        for (json, reason) in cases {
            assert_eq!(Payload::parse(json).unwrap_err().to_string(), reason, "{json}");
        }
    }

    #[test]
    fn a_webhook_payload_holds_json_or_text() {
        let read = |json: &str| match Payload::parse(json) {
            Ok(Payload::Webhook { webhook, id }) => Ok((webhook, id)),
            Ok(other) => panic!("not read as a webhook: {other:?}"),
            Err(error) => Err(error.to_string()),
        };
        let webhook = |content_type: &str, body| Webhook {
            slug: "ci".to_owned(),
            content_type: content_type.to_owned(),
            body,
        };
        let json = webhook("application/json", Body::Json(r#"{"b":["\ufffd"],"a":1}"#.to_owned()));
        assert_eq!(
            read(r#"{"type":"webhook","slug":"ci","body":{"b": ["\ud800"], "a": 1},"id":"7"}"#),
            Ok((json.clone(), Some("7".to_owned())))
        );
        let text = |text: &str| Body::Text(text.to_owned());
        assert_eq!(
            read(r#"{"type":"webhook","slug":"ci","body":"{} \ud83d"}"#),
            Ok((webhook("text/plain", text("{} \u{fffd}")), None))
        );
        assert_eq!(
            read(
                r#"{"type":"webhook","slug":"ci","content_type":"Application/JSON; charset=utf-8","body":" [1]"}"#
            ),
            Ok((webhook("application/json", Body::Json("[1]".to_owned())), None))
        );
        assert_eq!(
            read(r#"{"type":"webhook","slug":"ci"}"#),
            Ok((webhook("application/json", Body::Json("null".to_owned())), None))
        );
        let slug = "the webhook payload cannot be read: `slug` must be the webhook's name";
        assert_eq!(read(r#"{"type":"webhook","slug":7}"#), Err(slug.to_owned()));
        assert_eq!(read(r#"{"type":"webhook","slug":"a:b"}"#), Err(slug.to_owned()));
    }

    #[test]
    fn the_relay_forms_and_a_bare_event_are_read() {
        let Ok(Payload::Relay(batch)) =
            Payload::parse(r#"{"type":"relay","events":[{"id":"a"},7],"relay":"wss://r.test"}"#)
        else {
            panic!("not read as a relay payload");
        };
        assert_eq!(batch.events.iter().map(|e| e.get()).collect::<Vec<_>>(), [r#"{"id":"a"}"#, "7"]);
        assert_eq!(batch.relay.as_deref(), Some("wss://r.test"));

        let bare = r#"{"id":"a","pubkey":"b","kind":4,"sig":"c"}"#;
        let Ok(Payload::Relay(batch)) = Payload::parse(bare) else { panic!("not read as an event") };
        assert_eq!(batch.events.iter().map(|e| e.get()).collect::<Vec<_>>(), [bare]);
        assert_eq!(batch.relay, None);
    }

    #[test]
    fn each_form_of_a_tick_is_read_with_the_time_that_it_was_to_come() {
        let scheduled = |source: &str, time: &str| {
            format!(r#"{{"source":"{source}","detail-type":"Scheduled Event","time":"{time}"}}"#)
        };
        let noon = Some(Timestamp::from(1_796_040_000));
        for (json, expected) in [
            (r#"{"type":"tick"}"#.to_owned(), None),
            (r#"{"type":"tick","time":"2026-11-30T12:00:00Z"}"#.to_owned(), noon),
            (r#"{"type":"tick","time":"soon"}"#.to_owned(), None),
            (scheduled("aws.events", "2026-11-30T12:00:00Z"), noon),
            (scheduled("aws.scheduler", "2026-11-30T12:00:00Z"), noon),
        ] {
            let Ok(Payload::Tick { scheduled_at }) = Payload::parse(&json) else { panic!("{json}") };
            assert_eq!(scheduled_at, expected, "{json}");
        }
    }

    #[test]
    fn a_deeply_nested_payload_is_rejected_without_recursion() {
        let deep = format!(r#"{{"events":{}1{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(
            Payload::parse(&deep).unwrap_err().to_string(),
            "the payload is of no known shape; its top-level keys are: events"
        );
    }
}
