//! A skill as its author defines it: all of its event but key, time and signature, with nothing resolved. This is
//! what is written ([`Definition::write`]), and what a rewrite starts from.

use nostr::prelude::{Coordinate, Event, Keys, Kind, PublicKey, Tag, Tags};

use super::tags::{self, Said};
use super::{
    Notes, RunRules, SkillError, SkillParams, SkillTrigger, TriggerFilter, content, name, rules, triggers,
};
use crate::kinds;

/// NIP-44's longest plaintext that every client opens, in bytes.
pub const MAX_SEALED_BYTES: usize = 65_535;

/// What a skill's author decides.
#[derive(Debug, Clone, PartialEq)]
pub struct Definition {
    /// The d tag.
    pub d: String,
    /// Whether only the agent can read the content (kind 31124). The tags of both kinds are readable by everybody.
    pub private: bool,
    /// One line for people and for the model.
    pub description: Option<String>,
    /// The content in clear, as it stands: markdown, or the older JSON.
    pub content: String,
    /// What fires it.
    pub triggers: Vec<TriggerFilter>,
    /// Whether its triggers are heeded.
    pub enabled: bool,
    /// Parameters for its runs.
    pub params: SkillParams,
    /// How often it may run, what that may cost, and what its runs may do.
    pub rules: RunRules,
    /// The tools it asks for.
    pub required_tools: Vec<String>,
    /// Tags that the codec does not know, in their order.
    pub other_tags: Vec<Tag>,
}

/// Why a definition is not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The content does not fit into NIP-44.
    #[error(
        "its content has {0} bytes, and a private skill at most 65535; shorten it, split it, or make it public"
    )]
    TooLong(usize),
    /// Something in it would be read as something else.
    #[error("it would not be read as it is meant, correct it: {}", .0.join("; "))]
    Unreadable(Vec<String>),
}

/// The tags that the codec knows, but for triggers of an unknown type.
pub(super) const KNOWN: [&str; 16] = [
    "d",
    "scope",
    "description",
    "trigger",
    "filter",
    "enabled",
    "llm",
    "temperature",
    "max_tokens",
    "seed",
    "max_turns",
    "max_runs",
    "budget",
    "allow_self",
    "reply",
    "requires_tool",
];

impl Definition {
    /// Reads kind, tags and content of a skill of the agent's own, signed or not; a private one's content may be
    /// sealed or in clear. What cannot be read is left out and told in `warnings`.
    ///
    /// # Errors
    /// [`SkillError`] where it is no skill, or sealed for another key.
    pub fn read(
        kind: Kind,
        tags: &Tags,
        content: &str,
        keys: &Keys,
        warnings: &mut Vec<String>,
    ) -> Result<Self, SkillError> {
        let private = kind == kinds::PRIVATE_SKILL;
        if !private && kind != kinds::PUBLIC_SKILL {
            return Err(SkillError::Kind);
        }
        let content = if private { content::open(content, keys)? } else { content.to_owned() };
        Ok(Self::from_clear(private, tags, content, warnings))
    }

    /// Reads the agent's own event.
    ///
    /// # Errors
    /// As [`Definition::read`]; [`SkillError::Foreign`] where another key signed it.
    pub fn of(event: &Event, keys: &Keys, warnings: &mut Vec<String>) -> Result<Self, SkillError> {
        if event.pubkey != keys.public_key() {
            return Err(SkillError::Foreign);
        }
        Self::read(event.kind, &event.tags, &event.content, keys, warnings)
    }

    fn from_clear(private: bool, tags: &Tags, content: String, warnings: &mut Vec<String>) -> Self {
        let d = tags.iter().find(|tag| tag.kind() == "d").and_then(|tag| tag.content()).unwrap_or_default();
        let mut notes = Notes { skill: name(d), warnings };
        let mut said = Said::own(kind(private), tags, &mut notes);
        lift_params(&mut said.params, &said.triggers, &mut notes);
        Self {
            d: d.to_owned(),
            private,
            description: said.description,
            content,
            triggers: said.triggers.into_iter().map(|trigger| trigger.filter).collect(),
            enabled: said.enabled,
            params: said.params,
            rules: said.rules,
            required_tools: said.required_tools,
            other_tags: tags.iter().filter(|tag| !is_known(tag)).cloned().collect(),
        }
    }

    /// Kind 31124 where it is private, else 31123.
    #[must_use]
    pub fn kind(&self) -> Kind {
        kind(self.private)
    }

    /// Where it lies once `author` has signed it.
    #[must_use]
    pub fn coordinate(&self, author: PublicKey) -> Coordinate {
        Coordinate::new(self.kind(), author).identifier(&self.d)
    }

    /// Keeps the unknown tags of the version that this one replaces, in front of its own. Where both have tags of
    /// one name, the older ones of that name go.
    pub fn keep_other_tags(&mut self, previous: &Tags) {
        let named = |tag: &Tag| self.other_tags.iter().any(|own| own.kind() == tag.kind());
        let mut kept: Vec<Tag> =
            previous.iter().filter(|tag| !is_known(tag) && !named(tag)).cloned().collect();
        kept.append(&mut self.other_tags);
        self.other_tags = kept;
    }

    /// The tags of its event, in the one order that we write; read again, they say the very same.
    ///
    /// # Errors
    /// [`WriteError`].
    pub fn write(&self) -> Result<Vec<Tag>, WriteError> {
        if self.private && self.content.len() > MAX_SEALED_BYTES {
            return Err(WriteError::TooLong(self.content.len()));
        }
        let tags = self.tags();
        let mut warnings = Vec::new();
        let list = Tags::from_list(tags.clone());
        if Self::from_clear(self.private, &list, self.content.clone(), &mut warnings) == *self {
            return Ok(tags);
        }
        if warnings.is_empty() {
            warnings.push(
                "a value is empty, repeated, or holds spaces or line ends that its tag cannot".to_owned(),
            );
        }
        Err(WriteError::Unreadable(warnings))
    }

    fn tags(&self) -> Vec<Tag> {
        let SkillParams { llm, temperature, max_tokens, seed, max_turns } = &self.params;
        let RunRules { max_runs, allow_self, reply_to_admin, budget_micro_usd } = &self.rules;
        let one = |name: &str, value: Option<String>| value.map(|value| Tag::custom(name, [value]));
        let single = [
            one("enabled", (!self.enabled).then(|| "false".to_owned())),
            one("llm", llm.clone()),
            one("temperature", temperature.map(|value| value.to_string())),
            one("max_tokens", max_tokens.map(|value| value.to_string())),
            one("seed", seed.map(|value| value.to_string())),
            one("max_turns", max_turns.map(|value| value.to_string())),
            one("max_runs", max_runs.map(|value| value.to_string())),
            one("budget", budget_micro_usd.map(rules::usd)),
            one("allow_self", allow_self.then(|| "true".to_owned())),
            one("reply", reply_to_admin.then(|| "admin".to_owned())),
        ];
        let mut tags = vec![Tag::identifier(&self.d), Tag::custom("scope", [tags::scope(self.kind())])];
        tags.extend(one("description", self.description.clone()));
        tags.extend(self.triggers.iter().map(TriggerFilter::tag));
        tags.extend(single.into_iter().flatten());
        tags.extend(self.required_tools.iter().map(|tool| Tag::custom("requires_tool", [tool])));
        tags.extend(self.other_tags.iter().cloned());
        tags
    }
}

fn kind(private: bool) -> Kind {
    if private { kinds::PRIVATE_SKILL } else { kinds::PUBLIC_SKILL }
}

fn is_known(tag: &Tag) -> bool {
    KNOWN.contains(&tag.kind()) && !triggers::is_of_unknown_type(tag)
}

/// Makes parameters that stand on trigger tags the skill's own, which is what we write.
fn lift_params(params: &mut SkillParams, triggers: &[SkillTrigger], notes: &mut Notes<'_>) {
    let of_run = |trigger: &SkillTrigger| {
        let mut set = params.clone();
        set.apply(&trigger.params);
        set
    };
    let runs: Vec<SkillParams> = triggers.iter().map(of_run).collect();
    let Some(first) = runs.first() else { return };
    if runs.iter().any(|other| other != first) {
        notes.warn(
            "trigger",
            "sets parameters that differ from another trigger's; those of the first are kept",
        );
    }
    *params = first.clone();
}

#[cfg(test)]
mod tests;
