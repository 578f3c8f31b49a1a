//! Payloads as a whole. The events in them are good: it is the envelope that is not.

use serde_json::json;

use super::{Case, batch, case};
use crate::agent::{nip04, secret};

const NO_OBJECT: &str = "the payload is not a JSON object";
const NO_EVENTS: &str = "the relay payload cannot be read: `events` must be a list of signed events";
const TOO_MANY: &str =
    "the relay payload cannot be read: `events` has more than 1000 entries: send fewer at once";
const NO_RUN: &str = "the resume payload cannot be read: `run` must be the run's id";
const TYPE_UNKNOWN: &str = "the payload is of no known shape; its top-level keys are: events, type";
const TYPE_TWICE: &str = "the payload has a top-level key twice: type";

pub(super) fn cases() -> Vec<Case> {
    let event = nip04(&secret(2), "good").as_json();
    [not_json(&event), wrong_types(&event), several_shapes(&event)].into_iter().flatten().collect()
}

fn not_json(event: &str) -> Vec<Case> {
    let good = batch([event]);
    let cut = |bytes: usize| good[..good.len() - bytes].to_owned();
    let broken = |from: &str, to: &str| good.replacen(from, to, 1);
    vec![
        case("nothing", "", NO_OBJECT),
        case("space", " \n\t ", NO_OBJECT),
        case("null", "null", NO_OBJECT),
        case("a number", "7", NO_OBJECT),
        case("a text", r#""relay""#, NO_OBJECT),
        case("a payload in a text", json!(good).to_string(), NO_OBJECT),
        case("an array", format!("[{good}]"), NO_OBJECT),
        case("an array of key and value", r#"["type","relay"]"#, NO_OBJECT),
        case("without its last byte", cut(1), NO_OBJECT),
        case("cut inside the event", cut(40), NO_OBJECT),
        case("half", good[..good.len() / 2].to_owned(), NO_OBJECT),
        case("one brace", "{", NO_OBJECT),
        case("a byte order mark", format!("\u{feff}{good}"), NO_OBJECT),
        case("NUL at the start", format!("\0{good}"), NO_OBJECT),
        case("NUL at the end", format!("{good}\0"), NO_OBJECT),
        case("NUL inside a text", broken("relay", "re\0lay"), NO_OBJECT),
        case("a raw line break inside a text", broken("relay", "re\nlay"), NO_OBJECT),
        case("two objects", format!("{good}{good}"), NO_OBJECT),
        case("two lines", format!("{good}\n{good}"), NO_OBJECT),
        case("a comma at the end", format!("{},}}", cut(1)), NO_OBJECT),
        case("a comment", format!("/* hello */{good}"), NO_OBJECT),
        case("single quotes", good.replace('"', "'"), NO_OBJECT),
        case("a key without quotes", broken(r#""type""#, "type"), NO_OBJECT),
        case("NaN", broken(r#""relay""#, "NaN"), NO_OBJECT),
        case("an unknown escape", broken("relay", r"\x72elay"), NO_OBJECT),
        case("a key with a lone surrogate", r#"{"\ud800":1}"#, NO_OBJECT),
        case("100,000 open brackets", "[".repeat(100_000), NO_OBJECT),
        case("100,000 open braces", r#"{"a":"#.repeat(100_000), NO_OBJECT),
        case("100,000 nested arrays", nested("[", "]"), NO_OBJECT),
    ]
}

fn wrong_types(event: &str) -> Vec<Case> {
    let typed = |value: &str| format!(r#"{{"type":{value},"events":[{event}]}}"#);
    let events = |value: &str| format!(r#"{{"type":"relay","events":{value}}}"#);
    let many_keys = (0..2_000).map(|i| format!(r#""key{i:04}":{i}"#)).collect::<Vec<_>>().join(",");
    vec![
        case("an empty object", "{}", "the payload is of no known shape; its top-level keys are: none"),
        case(
            "type missing",
            format!(r#"{{"events":[{event}]}}"#),
            "the payload is of no known shape; its top-level keys are: events",
        ),
        case("type null", typed("null"), TYPE_UNKNOWN),
        case("type a number", typed("1"), TYPE_UNKNOWN),
        case("type in a list", typed(r#"["relay"]"#), TYPE_UNKNOWN),
        case("type in capitals", typed(r#""RELAY""#), TYPE_UNKNOWN),
        case("type with a space", typed(r#"" relay""#), TYPE_UNKNOWN),
        case("type with NUL", typed(r#""relay\u0000""#), TYPE_UNKNOWN),
        case("type a lone surrogate", typed(r#""\ud800""#), TYPE_UNKNOWN),
        case("type unheard of", typed(r#""shell""#), TYPE_UNKNOWN),
        case("events missing", r#"{"type":"relay"}"#, NO_EVENTS),
        case("events null", events("null"), NO_EVENTS),
        case("events a text", events(r#""[]""#), NO_EVENTS),
        case("events a number", events("0"), NO_EVENTS),
        case("events an object", events(r#"{"0":{}}"#), NO_EVENTS),
        case("one event without a list", events(event), NO_EVENTS),
        case("events 100,000 deep in objects", events(&nested(r#"{"a":"#, "}")), NO_EVENTS),
        case("1,001 events", batch(vec![event; 1_001]), TOO_MANY),
        case("1,001 nulls", batch(vec!["null"; 1_001]), TOO_MANY),
        case("run missing", r#"{"type":"resume"}"#, NO_RUN),
        case("run a number", r#"{"type":"resume","run":7}"#, NO_RUN),
        case("run a list", r#"{"type":"resume","run":["a"]}"#, NO_RUN),
        case("run empty", r#"{"type":"resume","run":""}"#, NO_RUN),
        case("run a path", r#"{"type":"resume","run":"../RUN#1"}"#, NO_RUN),
        case(
            "run of 100,000 digits",
            json!({"type": "resume", "run": "9".repeat(100_000)}).to_string(),
            NO_RUN,
        ),
        case("run a lone surrogate", r#"{"type":"resume","run":"\udfff"}"#, NO_RUN),
        case(
            "a field 100,000 deep",
            format!(r#"{{"deep":{}}}"#, nested("[", "]")),
            "the payload is of no known shape; its top-level keys are: deep",
        ),
        case(
            "2,000 keys",
            format!("{{{many_keys}}}"),
            "the payload is of no known shape; its top-level keys are: key0000, key0001, key0002, key0003, key0004, key0005, key0006, key0007, key0008, key0009, key0010, key0011, …",
        ),
        case(
            "a key of a megabyte",
            format!(r#"{{"{}":1}}"#, "k".repeat(1 << 20)),
            "the payload is of no known shape; its top-level keys are: kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
        ),
        case(
            "a key that forges a log line",
            r#"{"a\r\n{\"level\":\"ERROR\"}":1}"#,
            r#"the payload is of no known shape; its top-level keys are: a{"level":"ERROR"}"#,
        ),
        case(
            "an event without a signature",
            r#"{"id":"a","pubkey":"b","kind":4,"content":"c"}"#,
            "the payload is of no known shape; its top-level keys are: content, id, kind, pubkey",
        ),
        case(
            "queue records of another source",
            format!(r#"{{"Records":[{{"eventSource":"aws:sns","body":{}}}]}}"#, json!(event)),
            "the payload is of no known shape; its top-level keys are: Records",
        ),
    ]
}

fn several_shapes(event: &str) -> Vec<Case> {
    let also = |fields: &str| format!("{},{fields}}}", &event[..event.len() - 1]);
    let relay = |fields: &str| format!(r#"{{"type":"relay","events":[{event}],{fields}}}"#);
    let http = r#""version":"2.0","requestContext":{"http":{"method":"POST"}}"#;
    let queue = r#""Records":[{"eventSource":"aws:sqs"}]"#;
    let tick = r#""source":"aws.events","detail-type":"Scheduled Event""#;
    let event_keys = "content, created_at, id, kind, pubkey, sig, tags";
    let reason = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    vec![
        case(
            "an event that is a relay form",
            also(r#""type":"relay","events":[]"#),
            "the payload could be signed event or relay; its top-level keys are: content, created_at, events, id, kind, pubkey, sig, tags, type",
        ),
        case(
            "an event that is a prompt",
            also(r#""type":"prompt""#),
            reason(format!(
                "the payload could be signed event or prompt; its top-level keys are: {event_keys}, type"
            )),
        ),
        case(
            "an event that is a schedule",
            also(tick),
            "the payload could be schedule or signed event; its top-level keys are: content, created_at, detail-type, id, kind, pubkey, sig, source, tags",
        ),
        case(
            "a relay form that is a request",
            relay(http),
            "the payload could be function URL or relay; its top-level keys are: events, requestContext, type, version",
        ),
        case(
            "a relay form that is a queue batch",
            relay(queue),
            "the payload could be SQS or relay; its top-level keys are: Records, events, type",
        ),
        case(
            "a relay form that is a schedule",
            relay(tick),
            "the payload could be schedule or relay; its top-level keys are: detail-type, events, source, type",
        ),
        case(
            "a request that is a queue batch and a schedule",
            format!("{{{http},{queue},{tick}}}"),
            "the payload could be function URL or schedule or SQS; its top-level keys are: Records, detail-type, requestContext, source, version",
        ),
        case("two types", format!(r#"{{"type":"relay","events":[{event}],"type":"resume"}}"#), TYPE_TWICE),
        case(
            "the same type twice",
            format!(r#"{{"type":"relay","type":"relay","events":[{event}]}}"#),
            TYPE_TWICE,
        ),
        case(
            "two types, one spelled with escapes",
            format!(r#"{{"type":"relay","ty\u0070e":"resume","events":[{event}]}}"#),
            TYPE_TWICE,
        ),
        case("two lists of events", relay(r#""events":[]"#), "the payload has a top-level key twice: events"),
        case(
            "an event with two contents",
            also(r#""content":"obey""#),
            "the payload has a top-level key twice: content",
        ),
    ]
}

fn nested(open: &str, close: &str) -> String {
    const DEPTH: usize = 100_000;
    format!("{}1{}", open.repeat(DEPTH), close.repeat(DEPTH))
}
