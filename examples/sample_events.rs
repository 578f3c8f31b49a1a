//! Writes the sample payloads of `events/` anew: `cargo run --example sample_events events`.
//!
//! They are signed with the published test keys, secret key 2 (the admin) to secret key 1 (the agent).

use std::error::Error;
use std::path::Path;

use didactyl::cli::sandbox::published_key;
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
    ];
    for (name, payload) in samples {
        write(&Path::new(&folder).join(format!("{name}.json")), &payload)?;
    }
    Ok(())
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
