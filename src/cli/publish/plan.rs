//! What will be sent: each draft as a signed event, and the adoption list that names the skills.

use std::io::Write;

use nostr::prelude::{Event, Keys, Timestamp};

use super::{CliResult, Drafts, Failure};
use crate::kinds;
use crate::skill::adoption::{AdoptionList, write};
use crate::skill::{self, Definition};
use crate::state::AgentState;
use crate::versions::{self, VersionError};

/// The events to send.
pub(super) struct Plan {
    /// Soul and skills.
    pub(super) drafts: Vec<Planned>,
    /// The adoption list, where there are skills.
    pub(super) list: Option<Planned>,
}

/// One event to send.
pub(super) struct Planned {
    /// What it is, for people.
    pub(super) name: String,
    /// Signed.
    pub(super) event: Event,
    news: String,
    /// The content's bytes in clear.
    size: usize,
}

impl Plan {
    /// Signs what is new. What the relays have already stays as it is and is sent again: some of them may lack it.
    ///
    /// # Errors
    /// A sentence that says which of the drafts cannot be an event, and why.
    pub(super) fn make(
        keys: &Keys,
        drafts: Drafts,
        state: &AgentState,
        now: Timestamp,
    ) -> Result<Self, Failure> {
        let maker = Maker { keys, state, now };
        let soul = drafts.soul.map(|text| maker.soul(&text)).transpose()?;
        let list = maker.list(&drafts.skills)?;
        let skills = drafts.skills.into_iter().map(|skill| maker.skill(skill));
        let skills = skills.collect::<Result<Vec<Planned>, Failure>>()?;
        Ok(Self { drafts: soul.into_iter().chain(skills).collect(), list })
    }
}

struct Maker<'a> {
    keys: &'a Keys,
    state: &'a AgentState,
    now: Timestamp,
}

impl Maker<'_> {
    fn soul(&self, text: &str) -> Result<Planned, Failure> {
        let before = self.state.soul();
        let event = match before.filter(|soul| soul.content == text) {
            Some(soul) => soul.clone(),
            None => signed("soul", versions::soul(self.keys, text, &self.state.events, self.now))?,
        };
        Ok(Planned::new("soul".to_owned(), event, before, text.len()))
    }

    fn skill(&self, mut skill: Definition) -> Result<Planned, Failure> {
        let name = format!("skill {}", skill::name(&skill.d));
        let before = self.state.events.newest_addressable(skill.kind(), self.keys.public_key(), &skill.d);
        if let Some(before) = before {
            skill.keep_other_tags(&before.tags);
        }
        let event = match before.filter(|before| says_the_same(before, &skill, self.keys)) {
            Some(before) => before.clone(),
            None => signed(&name, versions::skill(self.keys, &skill, &self.state.events, self.now))?,
        };
        Ok(Planned::new(name, event, before, skill.content.len()))
    }

    /// The adoption list with all skills on it, if there are any.
    fn list(&self, skills: &[Definition]) -> Result<Option<Planned>, Failure> {
        let agent = self.keys.public_key();
        let before = self.state.events.newest(kinds::ADOPTION_LIST, agent);
        let adopted =
            before.map(|list| AdoptionList::parse(list, agent, &mut Vec::new())).unwrap_or_default();
        let old = before.map(|list| list.tags.clone().to_vec()).unwrap_or_default();
        let (mut tags, mut added) = (old.clone(), Vec::new());
        for skill in skills {
            let (address, d) = (skill.coordinate(agent), skill::name(&skill.d));
            match adopted.entries.iter().find(|entry| entry.identifier == skill.d) {
                Some(entry) if *entry == address => {}
                Some(other) => {
                    return Err(format!(
                        "the adoption list names {other}, and of two skills with the d tag {d} the first counts; \
                         give the draft another d tag or that kind, or take that entry off the list"
                    )
                    .into());
                }
                None => {
                    tags = write::adopt(tags, &address, None);
                    added.push(d);
                }
            }
        }
        let name = "adoption list".to_owned();
        Ok(match before {
            _ if skills.is_empty() => None,
            Some(list) if tags == old => Some(Planned::new(name, list.clone(), before, 0)),
            _ => {
                let event = versions::adoption_list(self.keys, tags, &self.state.events, self.now);
                let news = format!("{} appended", added.join(", "));
                Some(Planned { event: signed(&name, event)?, name, news, size: 0 })
            }
        })
    }
}

fn signed(name: &str, event: Result<Event, VersionError>) -> Result<Event, Failure> {
    event.map_err(|error| format!("{name}: {error}").into())
}

/// Whether the version on the relays says what the definition says, and needs no new one.
fn says_the_same(event: &Event, skill: &Definition, keys: &Keys) -> bool {
    let is_clear = skill.private && event.content == skill.content;
    let tags = skill.write();
    !is_clear
        && tags.is_ok_and(|tags| tags == event.tags.clone().to_vec())
        && Definition::of(event, keys, &mut Vec::new()).is_ok_and(|before| before.content == skill.content)
}

impl Planned {
    fn new(name: String, event: Event, before: Option<&Event>, size: usize) -> Self {
        let news = match before {
            None => "new".to_owned(),
            Some(before) if before.id == event.id => "unchanged, sent again as it is".to_owned(),
            Some(before) => format!("replaces {}", before.id),
        };
        Self { name, event, news, size }
    }

    /// Prints it for a person to check.
    pub(super) fn show(&self, out: &mut dyn Write) -> CliResult {
        let Self { name, event, news, size } = self;
        writeln!(out, "\n{name}, kind {}: {news}", event.kind)?;
        for tag in event.tags.iter() {
            writeln!(out, "  {}", serde_json::to_string(tag.as_slice())?)?;
        }
        if event.kind == kinds::PRIVATE_SKILL {
            writeln!(out, "  content: {size} bytes, for the agent alone; everybody can read the tags")?;
        } else if event.kind != kinds::ADOPTION_LIST {
            writeln!(out, "  content: {size} bytes, for everybody to read")?;
        }
        Ok(())
    }
}
