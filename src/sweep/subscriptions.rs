//! What the adopted skills subscribe to, and which of them an event fires. Pure.
//!
//! A subscription counts from the time at which the agent first saw it: what was published before is none of its business,
//! however often the relays show it.

use nostr::prelude::{Event, Filter, Kind, PublicKey, Timestamp};

use super::questions::{Question, questions};
use crate::events::EventSet;
use crate::hash::{hex, sha256};
use crate::kinds;
use crate::relay::MATCHING;
use crate::skill::{Skill, TriggerFilter};
use crate::state::AgentState;

/// The most filters that relays are asked for; those of the skills that stand last in the list are left out.
const MAX_QUESTIONS: usize = 20;

/// Private messages and what wraps them: they fire nothing, whatever a filter says (design §4).
const NEVER: [Kind; 4] = [kinds::DM_NIP04, kinds::SEAL, kinds::CHAT, kinds::GIFT_WRAP];

/// The subscriptions of all adopted skills that are enabled.
#[derive(Debug, Clone)]
pub struct Subscriptions {
    agent: PublicKey,
    all: Vec<Subscribed>,
    questions: Vec<Question>,
    /// What authors took back, as far as it is known.
    deletions: EventSet,
}

/// One of them.
#[derive(Debug, Clone)]
struct Subscribed {
    by: Subscriber,
    filter: Filter,
    /// When the agent first saw it.
    since: Timestamp,
    allow_self: bool,
}

/// A skill that subscribes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscriber {
    /// Its address: `kind:author:d`.
    pub skill: String,
    /// Its d tag.
    pub d: String,
    /// The most runs of it in a UTC day.
    pub runs_per_day: u32,
}

/// Why an event fires nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Idle {
    /// It is a private message.
    #[error("events of this kind fire nothing: they are private messages, or wrap them")]
    Private,
    /// NIP-40.
    #[error("it has expired")]
    Expired,
    /// NIP-09.
    #[error("its author deleted it")]
    Deleted,
    /// No filter, or one that came later.
    #[error("no adopted skill subscribes to it, or none did when it was published")]
    Unwanted,
}

impl Subscriptions {
    /// Those of the adopted skills, at our clock's `now`. `first_seen` tells when the agent first saw the one of this name; see
    /// [`names`].
    #[must_use]
    pub fn of(state: &AgentState, now: Timestamp, first_seen: impl Fn(&str) -> Option<u64>) -> Self {
        let mut all: Vec<Subscribed> = Vec::new();
        for (skill, filter) in subscribed(state) {
            let Some(since) = first_seen(&name(skill, &filter)) else { continue };
            let by = Subscriber {
                skill: skill.coordinate.to_string(),
                d: skill.d().to_owned(),
                runs_per_day: skill.rules.runs_per_day(),
            };
            let since = Timestamp::from(since).max(filter.since.unwrap_or_default());
            all.push(Subscribed { by, filter, since, allow_self: skill.rules.allow_self });
        }
        let mut questions = questions(all.iter().map(|one| (one.filter.clone(), one.since)));
        if questions.len() > MAX_QUESTIONS {
            tracing::warn!(
                filters = questions.len(),
                "only the first {MAX_QUESTIONS} filters of skills are asked for"
            );
            questions.truncate(MAX_QUESTIONS);
        }
        let mut subscriptions = Self { agent: state.agent, all, questions, deletions: EventSet::new(now) };
        subscriptions.learn(state.events.of_kind(kinds::DELETION).into_iter().cloned());
        subscriptions
    }

    /// Takes verified deletion requests (NIP-09).
    pub fn learn(&mut self, deletions: impl IntoIterator<Item = Event>) {
        deletions.into_iter().for_each(|event| self.deletions.insert(event));
    }

    /// What relays are to be asked for.
    #[must_use]
    pub fn questions(&self) -> &[Question] {
        &self.questions
    }

    /// The skill of this address, if it subscribes to anything.
    #[must_use]
    pub fn subscriber(&self, skill: &str) -> Option<&Subscriber> {
        self.all.iter().map(|one| &one.by).find(|by| by.skill == skill)
    }

    /// The addresses of the skills that a verified event fires, each once, in list order.
    ///
    /// # Errors
    /// Why it fires none.
    pub fn fired_by(&self, event: &Event, now: Timestamp) -> Result<Vec<String>, Idle> {
        if NEVER.contains(&event.kind) {
            return Err(Idle::Private);
        }
        let mut fired: Vec<String> = Vec::new();
        for one in &self.all {
            let is_wanted = event.created_at >= one.since
                && (one.allow_self || event.pubkey != self.agent)
                && one.filter.match_event(event, MATCHING);
            if is_wanted && !fired.contains(&one.by.skill) {
                fired.push(one.by.skill.clone());
            }
        }
        if fired.is_empty() {
            return Err(Idle::Unwanted);
        }
        if event.is_expired_at(now) {
            return Err(Idle::Expired);
        }
        if self.deletions.is_deleted(event) {
            return Err(Idle::Deleted);
        }
        Ok(fired)
    }
}

/// The names of the subscriptions of the adopted skills: a filter that is edited is another one, and counts anew.
pub fn names(state: &AgentState) -> impl Iterator<Item = String> {
    subscribed(state).map(|(skill, filter)| name(skill, &filter))
}

fn subscribed(state: &AgentState) -> impl Iterator<Item = (&Skill, Filter)> {
    let enabled = state.skills.iter().filter(|skill| skill.enabled);
    enabled.flat_map(|skill| {
        skill.triggers.iter().filter_map(move |trigger| match &trigger.filter {
            TriggerFilter::Subscription(filter) => Some((skill, Filter::from_json(filter).ok()?)),
            _ => None,
        })
    })
}

fn name(skill: &Skill, filter: &Filter) -> String {
    let text = format!("{} {}", skill.coordinate, filter.try_as_json().unwrap_or_default());
    hex(&sha256(text.as_bytes())).chars().take(16).collect()
}
