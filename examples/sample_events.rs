//! Writes the sample payloads of `events/` anew: `cargo run --example sample_events events`.
//!
//! They are signed with the published test keys, secret key 2 (the admin) to secret key 1 (the agent).

use std::error::Error;
use std::path::Path;

use didactyl::cli::sandbox::{PUBLISHED_TOKEN, published_key};
use didactyl::kinds;
use nostr::nips::nip04;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, PublicKey, Tag, Timestamp, UnsignedEvent};
use serde_json::{Value, json};

/// 2026-11-30T12:00:00Z.
const WRITTEN_AT: Timestamp = Timestamp::from_secs(1_796_040_000);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("name the folder to write to")?;
    let (agent, admin) = (published_key(1)?.public_key(), published_key(2)?);
    let relay = |event: Event| json!({"type": "relay", "events": [event], "relay": "wss://relay.example"});
    let samples = [
        ("dm", relay(nip17(&admin, agent, "What time is it?")?)),
        ("dm-nip04", relay(nip04(&admin, agent, "What is my profile?")?)),
        ("dm-event", serde_json::to_value(nip04(&admin, agent, "Hello!")?)?),
        ("sqs", sqs(&[relay(nip04(&admin, agent, "Hello from the queue!")?).to_string()])),
        ("function-url", bridge(&relay(nip17(&admin, agent, "Hello from the bridge!")?).to_string())),
        ("tick", json!({"type": "tick", "time": "2026-11-30T12:00:00Z"})),
        ("prompt", json!({"type": "prompt", "message": "What time is it?", "max_turns": 4})),
        ("webhook", json!({"type": "webhook", "slug": "deploy", "body": {"status": "done"}})),
        ("resume", json!({"type": "resume", "run": "00000000000000000000000000000000"})),
    ];
    for (name, payload) in samples {
        write(&Path::new(&folder).join(format!("{name}.json")), &payload)?;
    }
    Ok(())
}

/// A batch of the queue, one record per body.
fn sqs(bodies: &[String]) -> Value {
    let record = |(i, body): (usize, &String)| {
        json!({
            "messageId": format!("00000000-0000-0000-0000-{i:012}"),
            "receiptHandle": "sample",
            "body": body,
            "attributes": {"ApproximateReceiveCount": "1"},
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:didactyl-work",
            "awsRegion": "eu-central-1",
        })
    };
    json!({"Records": bodies.iter().enumerate().map(record).collect::<Vec<_>>()})
}

/// A `POST /bridge` as the function URL hands it over, payload format 2.0, with the published token.
fn bridge(body: &str) -> Value {
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/bridge",
        "rawQueryString": "",
        "headers": {
            "authorization": format!("Bearer {PUBLISHED_TOKEN}"),
            "content-type": "application/json",
            "host": "sample.lambda-url.eu-central-1.on.aws",
        },
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "sample",
            "domainName": "sample.lambda-url.eu-central-1.on.aws",
            "http": {
                "method": "POST",
                "path": "/bridge",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "didactyl-bridge",
            },
            "requestId": "00000000-0000-0000-0000-000000000000",
            "routeKey": "$default",
            "stage": "$default",
            "time": "30/Nov/2026:12:00:00 +0000",
            "timeEpoch": 1_796_040_000_000_u64,
        },
        "body": body,
        "isBase64Encoded": false,
    })
}

fn nip17(author: &Keys, to: PublicKey, text: &str) -> Result<Event, Box<dyn Error>> {
    let rumor = UnsignedEvent::new(author.public_key(), WRITTEN_AT, kinds::CHAT, [Tag::public_key(to)], text);
    Ok(GiftWrapBuilder::new(to, rumor).finalize(author)?)
}

fn nip04(author: &Keys, to: PublicKey, text: &str) -> Result<Event, Box<dyn Error>> {
    let content = nip04::encrypt(author.secret_key(), &to, text)?;
    let message = EventBuilder::new(kinds::DM_NIP04, content).tag(Tag::public_key(to));
    Ok(message.custom_created_at(WRITTEN_AT).finalize(author)?)
}

fn write(path: &Path, payload: &Value) -> Result<(), Box<dyn Error>> {
    std::fs::write(path, serde_json::to_string_pretty(payload)? + "\n")?;
    Ok(())
}
