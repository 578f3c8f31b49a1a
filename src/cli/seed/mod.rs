//! The events of a small but complete agent: profile, relay lists, soul, three skills, adoption list.

use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, RelayUrl, Tag, Timestamp};
use serde_json::json;

use crate::kinds;

/// The soul, with Didactyl's own template.
pub const SOUL: &str = include_str!("soul.md");
/// A skill that others refer to as `{{identity}}`.
pub const IDENTITY: &str = include_str!("identity.md");
/// The skill that answers DMs.
pub const CHAT: &str = include_str!("chat.md");
/// A skill that no DM fires.
pub const DAILY: &str = include_str!("daily.md");

/// The agent's events, all signed by `agent` at `now`.
///
/// # Errors
/// Where signing fails.
pub fn agent_events(
    agent: &Keys,
    relay: &RelayUrl,
    now: Timestamp,
) -> Result<Vec<Event>, nostr::error::Error> {
    let author = agent.public_key();
    let skill = |d: &str, content: &str, tags: Vec<Tag>| {
        (kinds::PUBLIC_SKILL, content.to_owned(), [vec![Tag::identifier(d)], tags].concat())
    };
    let profile =
        json!({"name": "didactyl", "display_name": "Didactyl", "about": "A sovereign agent.", "bot": true});
    let adopted = ["identity", "chat", "daily"].map(|d| Tag::custom("a", [format!("31123:{author}:{d}")]));
    [
        (kinds::PROFILE, profile.to_string(), vec![]),
        (kinds::RELAY_LIST, String::new(), vec![Tag::custom("r", [relay.to_string()])]),
        (kinds::INBOX_RELAYS, String::new(), vec![Tag::custom("relay", [relay.to_string()])]),
        (kinds::SOUL, SOUL.to_owned(), vec![Tag::identifier("soul")]),
        skill("identity", IDENTITY, vec![]),
        skill("chat", CHAT, vec![Tag::custom("trigger", ["dm", "admin"])]),
        skill("daily", DAILY, vec![Tag::custom("trigger", ["cron", "@daily"])]),
        (kinds::ADOPTION_LIST, String::new(), adopted.to_vec()),
    ]
    .into_iter()
    .map(|(kind, content, tags)| sign(agent, kind, content, tags, now))
    .collect()
}

/// The events by which an admin is found: profile and relay lists.
///
/// # Errors
/// Where signing fails.
pub fn admin_events(
    admin: &Keys,
    relay: &RelayUrl,
    now: Timestamp,
) -> Result<Vec<Event>, nostr::error::Error> {
    let profile = json!({"name": "satoshi", "about": "Runs an agent."});
    [
        (kinds::PROFILE, profile.to_string(), vec![]),
        (kinds::RELAY_LIST, String::new(), vec![Tag::custom("r", [relay.to_string()])]),
        (kinds::INBOX_RELAYS, String::new(), vec![Tag::custom("relay", [relay.to_string()])]),
    ]
    .into_iter()
    .map(|(kind, content, tags)| sign(admin, kind, content, tags, now))
    .collect()
}

fn sign(
    keys: &Keys,
    kind: Kind,
    content: String,
    tags: Vec<Tag>,
    now: Timestamp,
) -> Result<Event, nostr::error::Error> {
    EventBuilder::new(kind, content).tags(tags).custom_created_at(now).finalize(keys)
}
