//! The variables that the agent answers itself, from what it knows and from the trigger.
//!
//! Those that tools answer, skills embedded by their d tag, `{{message}}` and `{{adopted_skills_content}}` are
//! [`super::render`]'s affair.

use nostr::prelude::{Event, PublicKey, ToBech32};
use serde_json::{Value, json};

use crate::kinds;
use crate::state::AgentState;
use crate::trigger::{Tier, Trigger};

/// How many of the admin's notes are shown where a section sets no limit.
const DEFAULT_NOTES: usize = 10;

/// A variable's value and the way it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Known {
    /// One line of our own.
    Text(String),
    /// Compact JSON on one line.
    Json(Value),
    /// Markdown.
    List(Value),
}

/// The entry that a name stands for which is none itself: what Didactyl calls the section that it is in.
pub(crate) fn alias(name: &str) -> Option<&'static str> {
    Some(match name {
        "admin_relay_list" => "admin_kind10002_json",
        "admin_notes" => "admin_notes_content",
        "startup_events" => "startup_events_json",
        "adopted_skills" => super::render::DOCUMENT,
        _ => return None,
    })
}

/// The lowest tier that may see a variable of this module: the same as for the tool that tells it.
pub(crate) fn lowest_tier(name: &str) -> Tier {
    match name {
        "admin_kind0_json" | "admin_kind10002_json" | "admin_notes_content" | "memory" | "tasks" => {
            Tier::Admin
        }
        _ => Tier::Stranger,
    }
}

/// The value of `name`: `None` where this module does not know the name, [`Value::Null`] where nothing is known.
pub(crate) fn lookup(
    name: &str,
    state: &AgentState,
    trigger: &Trigger,
    limit: Option<usize>,
) -> Option<Known> {
    let admin = trigger.admin;
    Some(match name {
        // It may begin like a heading or a list.
        "agent_name" => Known::List(Value::String(state.name.clone())),
        "agent_pubkey" => Known::Text(state.agent.to_hex()),
        "agent_npub" => Known::Text(state.agent.to_bech32().unwrap_or_default()),
        "admin_pubkey" => Known::Text(admin.to_hex()),
        "sender_pubkey" => Known::Text(trigger.peer().map(|peer| peer.to_hex()).unwrap_or_default()),
        // Where nobody speaks, nobody has a tier: the run's own would vouch for a webhook's body.
        "sender_tier" => {
            Known::Text(trigger.peer().map(|_| trigger.tier.as_str().to_owned()).unwrap_or_default())
        }
        "admin_kind0_json" => Known::Json(state.profile(admin).map_or(Value::Null, Value::Object)),
        "admin_kind10002_json" => Known::Json(relay_list(state, admin)),
        "startup_events_json" => Known::Json(startup_events(state)),
        "admin_notes_content" => Known::List(notes(state, admin, limit.unwrap_or(DEFAULT_NOTES))),
        // Nothing is kept yet: there is no tool that would save it.
        "memory" | "tasks" => Known::Text(String::new()),
        _ => return None,
    })
}

fn relay_list(state: &AgentState, author: PublicKey) -> Value {
    let (read, write) = (state.read_relays(author), state.write_relays(author));
    let only_write = write.iter().filter(|url| !read.contains(url));
    let relays: Vec<Value> = read
        .iter()
        .chain(only_write)
        .map(|url| json!({"url": url, "read": read.contains(url), "write": write.contains(url)}))
        .collect();
    if relays.is_empty() { Value::Null } else { Value::Array(relays) }
}

/// The agent's own events that a host would publish at its start.
fn startup_events(state: &AgentState) -> Value {
    let own = |kind| state.events.newest(kind, state.agent);
    let shown = |event: &Event| json!({"kind": event.kind, "content": event.content, "tags": event.tags});
    let kinds = [kinds::PROFILE, kinds::RELAY_LIST, kinds::INBOX_RELAYS, kinds::ADOPTION_LIST];
    let events: Vec<Value> = kinds.into_iter().filter_map(own).map(shown).collect();
    if events.is_empty() { Value::Null } else { Value::Array(events) }
}

/// The newest notes, newest first.
fn notes(state: &AgentState, author: PublicKey, limit: usize) -> Value {
    let notes = state.events.of_kind(kinds::NOTE);
    let notes = notes.into_iter().filter(|note| note.pubkey == author).take(limit);
    let notes: Vec<Value> = notes.map(|note| Value::String(note.content.clone())).collect();
    if notes.is_empty() { Value::Null } else { Value::Array(notes) }
}
