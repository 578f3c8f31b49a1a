//! What the agent knows of itself and its admin: soul, adopted skills, profiles, relay lists.
//!
//! An [`AgentState`] is built from whatever events the store and the relays gave, so building it again with more
//! events is how it learns. Reading those events is left to others; they are believed to be verified.

use std::collections::{BTreeMap, BTreeSet};

use nostr::prelude::{Event, Keys, Kind, PublicKey, Timestamp};
use serde_json::{Map, Value};

use crate::context::markdown::clean;
use crate::events::EventSet;
use crate::kinds;
use crate::skill::adoption::AdoptionList;
use crate::skill::{self, Skill, TriggerFilter};
use crate::trigger::Tier;
use crate::warnings;

/// The name of an agent that has none.
pub const DEFAULT_NAME: &str = "Didactyl Agent";

/// The longest name, in characters.
const MAX_NAME_CHARS: usize = 64;

/// Built from events by `load`.
#[derive(Debug, Clone)]
pub struct AgentState {
    /// The agent's key.
    pub agent: PublicKey,
    /// The keys whose orders it takes.
    pub admins: Vec<PublicKey>,
    /// The agent's name: one line, never empty.
    pub name: String,
    /// Everything that is known, by kind and author.
    pub events: EventSet,
    /// The adopted skills that are at hand, in list order.
    pub skills: Vec<Skill>,
    /// What was left out, and why, in sentences that hold no message text.
    pub warnings: Vec<String>,
    by_d: BTreeMap<String, usize>,
    wanted: Vec<(PublicKey, String)>,
}

impl AgentState {
    /// Builds the state from verified events, in any order.
    ///
    /// Soul, list, private skills and own public ones count only under the agent's signature: they are looked up by
    /// its key. `fallback_name` names the agent where its profile does not.
    #[must_use]
    pub fn build(
        keys: &Keys,
        admins: &[PublicKey],
        fallback_name: Option<&str>,
        events: impl IntoIterator<Item = Event>,
        now: Timestamp,
    ) -> Self {
        let mut set = EventSet::new(now);
        for event in events {
            set.insert(event);
        }
        let mut state = Self {
            agent: keys.public_key(),
            admins: admins.to_vec(),
            name: String::new(),
            warnings: set.warnings().to_vec(),
            events: set,
            skills: Vec::new(),
            by_d: BTreeMap::new(),
            wanted: Vec::new(),
        };
        state.name = state.find_name(fallback_name);
        state.adopt(keys);
        warnings::limit(&mut state.warnings);
        state
    }

    /// The agent's newest soul, whatever its d tag.
    #[must_use]
    pub fn soul(&self) -> Option<&Event> {
        self.events.newest_of_any_d(kinds::SOUL, self.agent)
    }

    /// The adopted skill with the d tag `d`.
    #[must_use]
    pub fn skill(&self, d: &str) -> Option<&Skill> {
        self.skills.get(*self.by_d.get(d)?)
    }

    /// Whether no adopted skill has a trigger that can be read: then all of them speak in the admin's messages, as the
    /// older generation of agents has it (design §4).
    #[must_use]
    pub fn lacks_triggers(&self) -> bool {
        !self.skills.is_empty() && self.skills.iter().all(|skill| skill.triggers.is_empty())
    }

    /// Adopted skills of other authors that are not at hand: author and d tag, to be asked for.
    #[must_use]
    pub fn wanted_foreign(&self) -> &[(PublicKey, String)] {
        &self.wanted
    }

    /// The profile (kind 0) of a key, where it is known and is a JSON object.
    #[must_use]
    pub fn profile(&self, author: PublicKey) -> Option<Map<String, Value>> {
        serde_json::from_str(&self.events.newest(kinds::PROFILE, author)?.content).ok()
    }

    /// Whether an admin follows this key (kind 3): its web of trust.
    #[must_use]
    pub fn is_contact(&self, key: PublicKey) -> bool {
        self.is_listed(kinds::CONTACTS, key)
    }

    /// Whether an admin has muted this key for everybody to see (kind 10000). What is muted privately is encrypted to the
    /// admin.
    #[must_use]
    pub fn is_muted(&self, key: PublicKey) -> bool {
        self.is_listed(kinds::MUTE_LIST, key)
    }

    fn is_listed(&self, kind: Kind, key: PublicKey) -> bool {
        let lists = self.admins.iter().filter_map(|admin| self.events.newest(kind, *admin));
        let hex = key.to_hex();
        lists.flat_map(|list| list.tags.iter()).any(|tag| {
            tag.kind() == "p" && tag.content().is_some_and(|named| named.eq_ignore_ascii_case(&hex))
        })
    }

    /// Whether the profile of a key says that a program writes for it (NIP-24).
    #[must_use]
    pub fn is_bot(&self, key: PublicKey) -> bool {
        self.profile(key).is_some_and(|profile| profile.get("bot") == Some(&Value::Bool(true)))
    }

    /// Whether a message of a stranger would fire a skill.
    #[must_use]
    pub fn answers_strangers(&self) -> bool {
        let is_for_strangers = |filter: &TriggerFilter| matches!(filter, TriggerFilter::Dm(tiers) if tiers.contains(&Tier::Stranger));
        let enabled = self.skills.iter().filter(|skill| skill.enabled);
        enabled.flat_map(|skill| &skill.triggers).any(|trigger| is_for_strangers(&trigger.filter))
    }

    /// Where a key reads NIP-17 messages (kind 10050), as written: addresses are checked by who dials them.
    #[must_use]
    pub fn inbox_relays(&self, author: PublicKey) -> Vec<String> {
        self.relays(kinds::INBOX_RELAYS, author, "relay", |_| true)
    }

    /// Where a key reads what mentions it (NIP-65), as written.
    #[must_use]
    pub fn read_relays(&self, author: PublicKey) -> Vec<String> {
        self.relays(kinds::RELAY_LIST, author, "r", |marker| marker != Some("write"))
    }

    /// Where a key publishes (NIP-65), as written.
    #[must_use]
    pub fn write_relays(&self, author: PublicKey) -> Vec<String> {
        self.relays(kinds::RELAY_LIST, author, "r", |marker| marker != Some("read"))
    }

    fn relays(
        &self,
        kind: Kind,
        author: PublicKey,
        tag_name: &str,
        is_meant: impl Fn(Option<&str>) -> bool,
    ) -> Vec<String> {
        let Some(list) = self.events.newest(kind, author) else { return Vec::new() };
        let mut seen = BTreeSet::new();
        list.tags
            .iter()
            .filter(|tag| tag.kind() == tag_name && is_meant(tag.as_slice().get(2).map(String::as_str)))
            .filter_map(|tag| tag.content().map(str::trim))
            .filter(|url| !url.is_empty() && seen.insert(url.to_owned()))
            .map(str::to_owned)
            .collect()
    }

    fn find_name(&self, fallback: Option<&str>) -> String {
        let profile = self.profile(self.agent).unwrap_or_default();
        let of = |field: &str| profile.get(field).and_then(Value::as_str).and_then(one_line);
        of("display_name")
            .or_else(|| of("name"))
            .or_else(|| fallback.and_then(one_line))
            .unwrap_or_else(|| DEFAULT_NAME.to_owned())
    }

    fn adopt(&mut self, keys: &Keys) {
        let Some(list) = self.events.newest(kinds::ADOPTION_LIST, self.agent) else { return };
        let list = AdoptionList::parse(list, self.agent, &mut self.warnings);
        for entry in list.entries {
            let d = &entry.identifier;
            let found = self.events.newest_addressable(entry.kind, entry.public_key, d);
            let Some(event) = found else {
                self.warnings.push(format!("adopted skill {} was not found and is left out", skill::name(d)));
                if entry.public_key != self.agent {
                    self.wanted.push((entry.public_key, entry.identifier));
                }
                continue;
            };
            match Skill::parse(event, keys, &mut self.warnings) {
                Ok(skill) => {
                    self.by_d.insert(skill.d().to_owned(), self.skills.len());
                    self.skills.push(skill);
                }
                Err(error) => {
                    self.warnings.push(format!("adopted skill {} is left out: {error}", skill::name(d)));
                }
            }
        }
    }
}

/// A name as one short line, or nothing. What a context would not show does not count.
fn one_line(text: &str) -> Option<String> {
    let text = clean(text);
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || c.is_control()).collect();
    let line: String = words
        .into_iter()
        .filter(|w| !w.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(MAX_NAME_CHARS)
        .collect();
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skill::tests::{keys, signed};

    const NOW: u64 = 1_803_902_400;

    #[test]
    fn a_name_of_nothing_that_can_be_seen_is_none() {
        assert_eq!(one_line("\u{202e}   \u{7}"), None);
        assert_eq!(one_line(" Di\u{202e}do\n II "), Some("Dido II".to_owned()));
    }

    fn build(events: Vec<Event>) -> AgentState {
        AgentState::build(&keys(1), &[keys(2).public_key()], None, events, Timestamp::from(NOW))
    }

    fn skill(author: u8, kind: Kind, d: &str) -> Event {
        signed(author, kind, &[&["d", d]], d)
    }

    #[test]
    fn adopted_skills_come_in_list_order_and_missing_ones_are_told() {
        let (agent, author) = (keys(1).public_key(), keys(3).public_key());
        let list = signed(
            1,
            kinds::ADOPTION_LIST,
            &[
                &["a", &format!("31123:{author}:far")],
                &["a", &format!("31123:{agent}:gone")],
                &["a", &format!("31124:{agent}:own")],
                &["a", &format!("31123:{author}:shared")],
            ],
            "",
        );
        let state = build(vec![
            skill(3, kinds::PUBLIC_SKILL, "shared"),
            skill(1, kinds::PRIVATE_SKILL, "own"),
            skill(1, kinds::PUBLIC_SKILL, "not adopted"),
            list,
        ]);
        assert_eq!(state.skills.iter().map(Skill::d).collect::<Vec<_>>(), ["own", "shared"]);
        assert_eq!(state.wanted_foreign(), [(author, "far".to_owned())]);
        assert_eq!(
            state.warnings,
            [
                "adopted skill \"far\" was not found and is left out",
                "adopted skill \"gone\" was not found and is left out"
            ]
        );
        assert!(state.skill("own").is_some() && state.skill("not adopted").is_none());
    }

    #[test]
    fn another_key_sets_neither_soul_nor_list() {
        let agent = keys(1).public_key();
        let state = build(vec![
            skill(3, kinds::SOUL, "soul"),
            signed(3, kinds::ADOPTION_LIST, &[&["a", &format!("31123:{agent}:x")]], ""),
            skill(1, kinds::PUBLIC_SKILL, "x"),
        ]);
        assert!(state.soul().is_none() && state.skills.is_empty());
    }

    #[test]
    fn relay_lists_are_read_by_their_markers() {
        let state = build(vec![
            signed(
                2,
                kinds::RELAY_LIST,
                &[
                    &["r", "wss://both"],
                    &["r", "wss://in", "read"],
                    &["r", "wss://out", "write"],
                    &["r"],
                    &["r", "wss://both"],
                ],
                "",
            ),
            signed(2, kinds::INBOX_RELAYS, &[&["relay", "wss://dm"], &["r", "wss://no"]], ""),
        ]);
        let admin = keys(2).public_key();
        assert_eq!(state.read_relays(admin), ["wss://both", "wss://in"]);
        assert_eq!(state.write_relays(admin), ["wss://both", "wss://out"]);
        assert_eq!(state.inbox_relays(admin), ["wss://dm"]);
        assert_eq!(state.inbox_relays(keys(3).public_key()), [""; 0]);
    }

    #[test]
    fn the_name_is_one_line_and_never_missing() {
        let named = |profile: &str, fallback: Option<&str>| {
            let events = vec![signed(1, kinds::PROFILE, &[], profile)];
            AgentState::build(&keys(1), &[], fallback, events, Timestamp::from(NOW)).name
        };
        assert_eq!(named(r#"{"name":"low","display_name":"  High\n# Life "}"#, None), "High # Life");
        assert_eq!(named(r#"{"name":"low","display_name":""}"#, Some("env")), "low");
        assert_eq!(named(r#"{"display_name":7}"#, Some("env")), "env");
        assert_eq!(named("no json", None), DEFAULT_NAME);
    }
}
