//! The events of a small but complete agent: profile, relay lists, soul, three skills, adoption list.

use std::path::Path;

use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, RelayUrl, Tag, Timestamp};
use serde_json::json;

use crate::events::EventSet;
use crate::kinds;
use crate::skill::adoption::write;
use crate::skill::draft;
use crate::versions;

/// The soul, with Didactyl's own template.
const SOUL: &str = include_str!("soul.md");

/// The skills' drafts, in the order of the adoption list: one that others refer to as `{{identity}}`, one that answers
/// DMs, one that no DM fires.
const SKILLS: [(&str, &str); 3] = [
    ("identity.md", include_str!("identity.md")),
    ("chat.md", include_str!("chat.md")),
    ("daily.md", include_str!("daily.md")),
];

type Failure = Box<dyn std::error::Error>;

/// The agent's events, all signed by `agent` at `now`.
///
/// # Errors
/// Where one cannot be written or signed.
pub fn agent_events(agent: &Keys, relay: &RelayUrl, now: Timestamp) -> Result<Vec<Event>, Failure> {
    let nothing = EventSet::new(now);
    let mut events = agent_profile(agent, relay, now)?;
    events.push(versions::soul(agent, SOUL, &nothing, now)?);
    let mut list = Vec::new();
    for (file, text) in SKILLS {
        let draft::SkillDraft { definition: skill, faults, .. } = draft::skill(Path::new(file), text, agent)?;
        if !faults.is_empty() {
            return Err(faults.join("; ").into());
        }
        events.push(versions::skill(agent, &skill, &nothing, now)?);
        list = write::adopt(list, &skill.coordinate(agent.public_key()), None);
    }
    events.push(versions::adoption_list(agent, list, &nothing, now)?);
    Ok(events)
}

/// The events by which the agent is found: profile and relay lists.
///
/// # Errors
/// Where signing fails.
pub fn agent_profile(
    agent: &Keys,
    relay: &RelayUrl,
    now: Timestamp,
) -> Result<Vec<Event>, nostr::error::Error> {
    let profile =
        json!({"name": "didactyl", "display_name": "Didactyl", "about": "A sovereign agent.", "bot": true});
    let r = Tag::custom("r", [relay.to_string()]);
    let inbox = Tag::custom("relay", [relay.to_string()]);
    Ok(vec![
        sign(agent, kinds::PROFILE, profile.to_string(), vec![], now)?,
        sign(agent, kinds::RELAY_LIST, String::new(), vec![r], now)?,
        sign(agent, kinds::INBOX_RELAYS, String::new(), vec![inbox], now)?,
    ])
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
