//! Skills: what kinds 31123 and 31124 say, read in every form that Didactyl's generations wrote.
//!
//! This is the one codec for skill events. It reads leniently: what cannot be read disables that one thing, with a
//! warning that names the skill and the tag but never a text. Which skills a trigger fires and what becomes of their
//! text is [`crate::context`]'s affair; the list of adopted ones is [`adoption`].

pub mod adoption;
mod content;
mod definition;
#[cfg(feature = "local")]
pub mod draft;
mod filters;
mod params;
mod rules;
mod tags;
mod triggers;

use nostr::filter::MatchEventOptions;
use nostr::prelude::{Coordinate, Event, EventId, Filter, Keys, PublicKey};

pub use self::definition::{Definition, MAX_SEALED_BYTES, WriteError};
pub use self::params::SkillParams;
pub use self::rules::{DEFAULT_MAX_RUNS, RunRules};
use self::tags::Said;
pub use self::triggers::{SkillTrigger, TriggerFilter};
use crate::events;
use crate::kinds;
use crate::trigger::cron::normalise;
use crate::trigger::{Source, Trigger};

/// A skill, parsed from its event.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// Kind, author and d tag.
    pub coordinate: Coordinate,
    /// The version that was read.
    pub event_id: EventId,
    /// One line for people and for the model.
    pub description: Option<String>,
    /// Markdown with `{{variables}}`: what goes into the document.
    pub instructions: String,
    /// A template that frames the run's user message, from a `user:` block.
    pub user_block: Option<String>,
    /// What fires it; none for skills that are only referred to.
    pub triggers: Vec<SkillTrigger>,
    /// Whether its triggers are heeded (`["enabled","false"]`).
    pub enabled: bool,
    /// Parameters for the runs that it takes part in.
    pub params: SkillParams,
    /// How often it may run, what that may cost, and what its runs may do.
    pub rules: RunRules,
    /// The tools it asks for; empty for all that the tier may use.
    pub required_tools: Vec<String>,
}

/// A skill of which nothing can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SkillError {
    /// Its content is sealed for another key, or damaged.
    #[error("its content is encrypted, and not with the agent's key")]
    Sealed,
    /// A private skill that the agent did not sign.
    #[error("it is a private skill of another author")]
    Foreign,
    /// Not kind 31123 or 31124.
    #[error("its kind is not that of a skill")]
    Kind,
}

impl Skill {
    /// Reads a verified event. What cannot be read is left out and told in `warnings`.
    ///
    /// Of a skill that the agent did not sign only content, description, triggers and required tools count, and its
    /// dm triggers never name strangers: an author elsewhere must not decide whom the agent answers or what it costs.
    ///
    /// # Errors
    /// [`SkillError`] where the skill as a whole cannot be used.
    pub fn parse(event: &Event, keys: &Keys, warnings: &mut Vec<String>) -> Result<Self, SkillError> {
        let own = event.pubkey == keys.public_key();
        let content = if event.kind == kinds::PUBLIC_SKILL {
            event.content.clone()
        } else if event.kind != kinds::PRIVATE_SKILL {
            return Err(SkillError::Kind);
        } else if own {
            content::open(&event.content, keys)?
        } else {
            return Err(SkillError::Foreign);
        };
        let content = content::Content::parse(&content);
        let coordinate = Coordinate::new(event.kind, event.pubkey).identifier(events::d_tag(event));
        let mut notes = Notes { skill: name(&coordinate.identifier), warnings };
        let said = if own {
            Said::own(event.kind, &event.tags, &mut notes)
        } else {
            Said::foreign(&event.tags, &mut notes)
        };
        triggers::tell_of_any_webhook(said.triggers.iter().map(|trigger| &trigger.filter), &mut notes);
        Ok(Self {
            coordinate,
            event_id: event.id,
            description: said.description.or(content.description),
            instructions: content.instructions,
            user_block: content.user_block,
            triggers: said.triggers,
            enabled: said.enabled,
            params: said.params,
            rules: said.rules,
            required_tools: said.required_tools,
        })
    }

    /// The d tag: the name that other skills embed it by.
    #[must_use]
    pub fn d(&self) -> &str {
        &self.coordinate.identifier
    }

    /// Who signed it.
    #[must_use]
    pub fn author(&self) -> PublicKey {
        self.coordinate.public_key
    }

    /// The first of its triggers that `trigger` fires.
    #[must_use]
    pub fn fired_by(&self, trigger: &Trigger) -> Option<&SkillTrigger> {
        if !self.enabled {
            return None;
        }
        let same = |named: &Option<String>, this: &str| named.as_ref().is_none_or(|named| named == this);
        self.triggers.iter().find(|own| match (&own.filter, &trigger.source) {
            // A prompt is a message of an admin.
            (TriggerFilter::Dm(tiers), Source::Dm(_) | Source::Prompt(_)) => tiers.contains(&trigger.tier),
            (TriggerFilter::Cron(schedule), Source::Cron(cron)) => {
                same(&schedule.as_deref().map(normalise), &cron.schedule)
            }
            (TriggerFilter::Subscription(filter), Source::Subscription(subscription)) => {
                let may = |fires: &Vec<String>| fires.contains(&self.coordinate.to_string());
                subscription.fires.as_ref().is_none_or(may)
                    && (self.rules.allow_self || !subscription.own)
                    && matches(filter, &subscription.event)
            }
            (TriggerFilter::Webhook(slug), Source::Webhook(webhook)) => same(slug, &webhook.slug),
            (TriggerFilter::Chain(d), Source::Chain(chain)) => {
                *d == chain.from && !chain.path.iter().any(|ran| ran == self.d())
            }
            _ => false,
        })
    }
}

/// Whether an event matches a NIP-01 filter; nothing matches one that cannot be read.
fn matches(filter: &str, event: &Event) -> bool {
    Filter::from_json(filter).is_ok_and(|filter| filter.match_event(event, MatchEventOptions::new()))
}

/// Where the codec tells what it could not read.
struct Notes<'a> {
    skill: String,
    warnings: &'a mut Vec<String>,
}

impl Notes<'_> {
    fn warn(&mut self, tag: &str, what: &str) {
        self.warnings.push(format!("skill {}: tag {tag:?} {what}", self.skill));
    }
}

/// A d tag as warnings and logs show it: quoted, one line, not endless.
pub(crate) fn name(d: &str) -> String {
    let short: String = d.chars().take(64).collect();
    format!("{short:?}{}", if short.len() < d.len() { "…" } else { "" })
}

#[cfg(test)]
pub(crate) mod tests {
    use nostr::prelude::{EventBuilder, FinalizeEvent, Kind, Signature, Tag, Timestamp, nip44};

    use sha2::Digest;

    use super::*;
    use crate::trigger::Tier;

    pub(crate) fn keys(n: u8) -> Keys {
        Keys::parse(&format!("{n:064x}")).unwrap()
    }

    pub(crate) fn signed(author: u8, kind: Kind, tags: &[&[&str]], content: &str) -> Event {
        EventBuilder::new(kind, content)
            .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
            .custom_created_at(Timestamp::from(1_803_902_400))
            .finalize(&keys(author))
            .unwrap()
    }

    /// As [`signed`], but with no signature and a made-up id: for states of thousands of events, which are believed.
    pub(crate) fn unsigned(author: u8, kind: Kind, tags: &[&[&str]], content: &str) -> Event {
        let hash = sha2::Sha256::digest(format!("{author} {kind} {tags:?} {content}"));
        let tags = tags.iter().filter_map(|tag| Tag::parse(tag.iter().copied()).ok());
        Event::new(
            EventId::from_byte_array(hash.into()),
            keys(author).public_key(),
            Timestamp::from(1_803_902_400),
            kind,
            tags,
            content,
            Signature::from_byte_array([0; 64]),
        )
    }

    fn parse(event: &Event) -> (Skill, Vec<String>) {
        let mut warnings = Vec::new();
        (Skill::parse(event, &keys(1), &mut warnings).unwrap(), warnings)
    }

    #[test]
    fn a_skill_of_the_newest_form_is_read_whole() {
        let (skill, warnings) = parse(&signed(
            1,
            kinds::PUBLIC_SKILL,
            &[
                &["d", "spell:check"],
                &["description", " Checks spelling. "],
                &["trigger", "dm", "admin, WOT"],
                &["trigger", "cron", "0 9 * * *"],
                &["llm", "anthropic/claude-sonnet-4-20250514, openai/gpt-4o-mini, cheap"],
                &["temperature", "0.7"],
                &["max_tokens", "512"],
                &["seed", "-3"],
                &["max_turns", "4"],
                &["requires_tool", "nostr_post"],
                &["requires_tool", "nostr_post"],
            ],
            "# Spelling\n\nuser: is no block in markdown.\n",
        ));
        assert_eq!(warnings, [""; 0]);
        assert_eq!(skill.d(), "spell:check");
        assert_eq!(skill.description.as_deref(), Some("Checks spelling."));
        assert_eq!(skill.instructions, "# Spelling\n\nuser: is no block in markdown.\n");
        assert_eq!(skill.user_block, None);
        assert_eq!(
            skill.triggers.iter().map(|trigger| trigger.filter.clone()).collect::<Vec<_>>(),
            [
                TriggerFilter::Dm([Tier::Admin, Tier::Wot].into()),
                TriggerFilter::Cron(Some("0 9 * * *".to_owned()))
            ]
        );
        assert_eq!(
            skill.params,
            SkillParams {
                llm: Some("anthropic/claude-sonnet-4-20250514, openai/gpt-4o-mini, cheap".to_owned()),
                temperature: Some(0.7),
                max_tokens: Some(512),
                seed: Some(-3),
                max_turns: Some(4),
            }
        );
        assert_eq!(skill.required_tools, ["nostr_post"]);
    }

    #[test]
    fn tags_that_cannot_be_read_disable_one_thing_each() {
        let (skill, warnings) = parse(&signed(
            1,
            kinds::PUBLIC_SKILL,
            &[
                &["d", "odd"],
                &["trigger"],
                &["trigger", "telepathy"],
                &["trigger", "dm", "admin,friends"],
                &["trigger", "dm", "everybody"],
                &["trigger", "subscription"],
                &["trigger", "chain", ""],
                &["temperature", "warm"],
                &["temperature", "NaN"],
                &["max_tokens", "99999999999999999999"],
                &["max_turns", "0"],
                &["seed"],
                &["llm", " "],
                &["requires_tool", "no such\ntool"],
                &["enabled", "perhaps"],
            ],
            "text",
        ));
        assert_eq!(skill.params, SkillParams::default());
        assert_eq!(skill.triggers.len(), 1);
        assert!(skill.enabled && skill.required_tools.is_empty());
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        skill "odd": tag "trigger" names no type and is ignored; give dm, cron, subscription, webhook or chain
        skill "odd": tag "trigger" has a type that is not known and is ignored; give dm, cron, subscription, webhook or chain
        skill "odd": tag "trigger" (dm) names a tier that is not admin, wot or stranger; that tier is ignored
        skill "odd": tag "trigger" (dm) names a tier that is not admin, wot or stranger; that tier is ignored
        skill "odd": tag "trigger" (dm) names no tier that is left and is ignored
        skill "odd": tag "trigger" (subscription) needs a filter; it is ignored until then
        skill "odd": tag "trigger" (chain) needs the d tag of the skill it follows and is ignored
        skill "odd": tag "enabled" is neither true nor false and is ignored
        skill "odd": tag "llm" is not a model chain and is ignored; give for example "openai/gpt-5-mini, cheap"
        skill "odd": tag "temperature" is not a number from 0 to 2 and is ignored
        skill "odd": tag "temperature" is not a number from 0 to 2 and is ignored
        skill "odd": tag "max_tokens" is not a whole number from 1 to 1000000 and is ignored
        skill "odd": tag "seed" is not a whole number and is ignored
        skill "odd": tag "max_turns" is not a whole number from 1 to 1000 and is ignored
        skill "odd": tag "requires_tool" names no tool and is ignored; give the name of one, such as time
        "#);
    }

    #[test]
    fn a_foreign_skill_never_sets_parameters_or_answers_strangers() {
        let event = signed(
            2,
            kinds::PUBLIC_SKILL,
            &[
                &["d", "shared"],
                &["trigger", "dm", "stranger,wot", "max_turns=9"],
                &["llm", "dear/model"],
                &["max_tokens", "900000"],
                &["enabled", "false"],
                &["trigger", "subscription", "{\"kinds\":[1]}"],
                &["max_runs", "1000000"],
                &["allow_self", "true"],
                &["reply", "admin"],
                &["budget", "1000000"],
                &["scope", "private"],
                &["requires_tool", "nostr_query"],
            ],
            "text",
        );
        let (skill, warnings) = parse(&event);
        assert_eq!(skill.params, SkillParams::default());
        assert_eq!(
            skill.triggers,
            [SkillTrigger { filter: TriggerFilter::Dm([Tier::Wot].into()), params: SkillParams::default() }]
        );
        assert!(skill.enabled);
        assert_eq!(skill.rules, RunRules::default());
        assert_eq!(skill.required_tools, ["nostr_query"]);
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        skill "shared": tag "trigger" (subscription) has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a max_runs tag to the agent's own skill; it is ignored until then
        skill "shared": tag "trigger" (dm) names stranger, which only the agent's own skills may; that tier is ignored
        "#);
    }

    #[test]
    fn a_private_skill_is_opened_with_the_agents_key_alone() {
        let sealed = |reader: u8| {
            let (secret, public) = (keys(reader), keys(reader).public_key());
            nip44::encrypt(secret.secret_key(), &public, "# Secret", nip44::Version::V2).unwrap()
        };
        let own = signed(1, kinds::PRIVATE_SKILL, &[&["d", "p"]], &sealed(1));
        assert_eq!(parse(&own).0.instructions, "# Secret");
        let plain = signed(1, kinds::PRIVATE_SKILL, &[&["d", "p"]], "Agile text, never sealed.");
        assert_eq!(parse(&plain).0.instructions, "Agile text, never sealed.");
        let refused = |event: &Event| Skill::parse(event, &keys(1), &mut Vec::new()).unwrap_err();
        assert_eq!(refused(&signed(1, kinds::PRIVATE_SKILL, &[&["d", "p"]], &sealed(2))), SkillError::Sealed);
        assert_eq!(refused(&signed(2, kinds::PRIVATE_SKILL, &[&["d", "p"]], "text")), SkillError::Foreign);
        assert_eq!(refused(&signed(1, kinds::NOTE, &[], "text")), SkillError::Kind);
    }

    /// For each tag name: how many warnings each malformed shape gives, and what is left of a skill with nothing else.
    #[test]
    fn malformed_tags_of_every_name_are_told_and_change_nothing_else() {
        let huge = "9".repeat(100_000);
        let values: [&[&str]; 12] = [
            &[],
            &[""],
            &["\u{0}\u{7}\n\u{202e}"],
            &["SEKRIT"],
            &["NaN"],
            &["-1"],
            &["1e999"],
            &["99999999999999999999"],
            &[&huge],
            &["{\"kinds\":[1]}"],
            &["SEKRIT", "SEKRIT", "SEKRIT", "SEKRIT"],
            &["[]", ""],
        ];
        let names = [
            "trigger",
            "filter",
            "enabled",
            "scope",
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
            "description",
            "d",
            "",
            "unknown",
        ];
        let mut table = String::new();
        for name in names {
            for value in values {
                let tag: Vec<&str> = [&[name], value].concat();
                // Twice: a repetition is no worse than one.
                let (skill, warnings) = parse(&signed(1, kinds::PUBLIC_SKILL, &[&tag, &tag], "text"));
                table += &format!("{} ", warnings.len() / 2);
                assert!(warnings.iter().all(|w| w.len() < 400 && !w.contains('\n')), "{name} {value:?}");
                assert!(
                    name == "d" || warnings.iter().all(|w| !w.contains("SEKRIT")),
                    "{name}: {warnings:?}"
                );
                assert!(skill.triggers.is_empty() && skill.enabled && skill.instructions == "text");
            }
            table += &format!("{name}\n");
        }
        insta::assert_snapshot!(table, @r"
        1 1 1 1 1 1 1 1 1 1 1 1 trigger
        1 1 1 1 1 1 1 1 1 1 1 1 filter
        1 1 1 1 1 1 1 1 1 1 1 1 enabled
        1 1 1 1 1 1 1 1 1 1 1 1 scope
        1 1 1 0 0 0 0 0 1 0 0 0 llm
        1 1 1 1 1 1 1 1 1 1 1 1 temperature
        1 1 1 1 1 1 1 1 1 1 1 1 max_tokens
        1 1 1 1 1 0 1 1 1 1 1 1 seed
        1 1 1 1 1 1 1 1 1 1 1 1 max_turns
        1 1 1 1 1 1 1 1 1 1 1 1 max_runs
        1 1 1 1 1 1 1 1 1 1 1 1 budget
        1 1 1 1 1 1 1 1 1 1 1 1 allow_self
        1 1 1 1 1 1 1 1 1 1 1 1 reply
        1 1 1 0 0 0 0 0 1 1 0 2 requires_tool
        0 0 0 0 0 0 0 0 0 0 0 0 description
        0 0 0 0 0 0 0 0 0 0 0 0 d
        0 0 0 0 0 0 0 0 0 0 0 0 
        0 0 0 0 0 0 0 0 0 0 0 0 unknown
        ");
    }
}
