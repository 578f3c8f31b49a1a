//! A skill's triggers: `["trigger",TYPE,FILTER?]`, and how else they were written.
//!
//! Filters of other types than `dm` are kept as written, once their shape is right: what a cron expression or a Nostr
//! filter means is [`crate::trigger`]'s affair.

use std::collections::BTreeSet;

use nostr::prelude::{Tag, Tags};

use super::{Notes, SkillParams, filters, tags};
use crate::trigger::{Tier, cron};

/// One thing that fires a skill.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillTrigger {
    /// What fires it.
    pub filter: TriggerFilter,
    /// Parameters that stand on the trigger's own tag, for the runs that it starts.
    pub params: SkillParams,
}

/// A trigger's type, and which events of that type it means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TriggerFilter {
    /// Direct messages from senders of these tiers.
    Dm(BTreeSet<Tier>),
    /// The instants of a cron expression; without one, every cron run.
    Cron(Option<String>),
    /// Events that match this NIP-01 filter: JSON as written, which the crate's `Filter` reads and which names what
    /// design §4 asks for.
    Subscription(String),
    /// Requests to the webhook of this slug; without one, to any.
    Webhook(Option<String>),
    /// The end of a run of the skill with this d tag.
    Chain(String),
}

/// The triggers of a skill, in the order of its tags. `has_max_runs`: whether a number of runs is set that counts.
pub(super) fn parse(tags: &Tags, has_max_runs: bool, notes: &mut Notes<'_>) -> Vec<SkillTrigger> {
    let mut triggers = Vec::new();
    for raw in raw(tags, notes) {
        if let Some(filter) = filter(&raw, has_max_runs, notes) {
            triggers.push(SkillTrigger { filter, params: SkillParams::parse_trigger(raw.params, notes) });
        }
    }
    triggers
}

/// Whether the skill's triggers are heeded at all.
pub(super) fn enabled(tags: &Tags, notes: &mut Notes<'_>) -> bool {
    let mut enabled = true;
    for tag in tags.iter().filter(|tag| tag.kind() == "enabled") {
        match tags::boolean(tag.content().unwrap_or_default().trim()) {
            Some(said) => enabled = said,
            None => notes.warn("enabled", "is neither true nor false and is ignored"),
        }
    }
    enabled
}

/// Takes strangers out of the dm triggers of a skill that the agent did not sign, and all parameters.
pub(super) fn restrict_foreign(triggers: &mut Vec<SkillTrigger>, notes: &mut Notes<'_>) {
    for trigger in triggers.iter_mut() {
        trigger.params = SkillParams::default();
        if let TriggerFilter::Dm(tiers) = &mut trigger.filter
            && tiers.remove(&Tier::Stranger)
        {
            notes.warn(
                "trigger",
                "(dm) names stranger, which only the agent's own skills may; that tier is ignored",
            );
        }
    }
    triggers.retain(|trigger| !matches!(&trigger.filter, TriggerFilter::Dm(tiers) if tiers.is_empty()));
}

/// Whether this is the trigger tag of a type that the codec does not know.
pub(super) fn is_of_unknown_type(tag: &Tag) -> bool {
    let kind = tag.content().unwrap_or_default().trim();
    tag.kind() == "trigger" && !kind.is_empty() && !TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known))
}

/// The types of trigger that are read.
const TYPES: [&str; 6] = ["dm", "cron", "subscription", "nostr-subscription", "webhook", "chain"];

/// What to do where none of them is named.
const GIVE_TYPE: &str = "give dm, cron, subscription, webhook or chain";

/// Tells of those that any webhook fires. It is no fault: the author may mean it.
pub(super) fn tell_of_any_webhook<'a>(
    filters: impl IntoIterator<Item = &'a TriggerFilter>,
    notes: &mut Notes<'_>,
) {
    if filters.into_iter().any(|filter| *filter == TriggerFilter::Webhook(None)) {
        notes
            .warn("trigger", "(webhook) names no slug and means any webhook; name one, unless that is meant");
    }
}

impl TriggerFilter {
    /// Its canonical tag: type, and filter where there is one.
    #[must_use]
    pub fn tag(&self) -> Tag {
        let (kind, filter) = match self {
            Self::Dm(tiers) => {
                let names: Vec<&str> = tiers.iter().rev().map(|tier| tier.as_str()).collect();
                ("dm", Some(names.join(",")))
            }
            Self::Cron(expression) => ("cron", expression.clone()),
            Self::Subscription(filter) => ("subscription", Some(filter.clone())),
            Self::Webhook(slug) => ("webhook", slug.clone()),
            Self::Chain(d) => ("chain", Some(d.clone())),
        };
        Tag::custom("trigger", std::iter::once(kind.to_owned()).chain(filter))
    }
}

/// A trigger tag, with the filter that may stand in a tag of its own.
struct Raw<'a> {
    kind: &'a str,
    filter: Option<&'a str>,
    params: &'a [String],
}

fn raw<'a>(tags: &'a Tags, notes: &mut Notes<'_>) -> Vec<Raw<'a>> {
    let mut raws: Vec<Raw<'a>> = Vec::new();
    for tag in tags.iter() {
        match (tag.kind(), tag.as_slice()) {
            ("trigger", [_, kind, rest @ ..]) if !kind.trim().is_empty() => raws.push(Raw {
                kind: kind.trim(),
                filter: rest.first().map(|filter| filter.trim()).filter(|filter| !filter.is_empty()),
                params: rest.get(1..).unwrap_or_default(),
            }),
            ("trigger", _) => {
                notes.warn("trigger", &format!("names no type and is ignored; {GIVE_TYPE}"));
            }
            ("filter", [_, filter, ..]) => {
                match raws.last_mut() {
                    Some(raw) if raw.filter.is_none() => raw.filter = Some(filter.trim()),
                    Some(_) => notes
                        .warn("filter", "follows a trigger that has one, and is ignored; keep one of them"),
                    None => notes
                        .warn("filter", "stands before any trigger and is ignored; put it after its trigger"),
                }
            }
            ("filter", _) => notes.warn("filter", "is empty and is ignored; remove it"),
            _ => {}
        }
    }
    raws
}

fn filter(raw: &Raw<'_>, has_max_runs: bool, notes: &mut Notes<'_>) -> Option<TriggerFilter> {
    let filter = raw.filter.filter(|filter| !filter.is_empty());
    let text = filter.map(str::to_owned);
    match raw.kind.to_ascii_lowercase().as_str() {
        "dm" => tiers(filter, notes).map(TriggerFilter::Dm),
        "cron" => {
            let checked = filter.map_or(Ok(()), cron::check);
            if let Err(fault) = checked {
                notes.warn("trigger", &format!("(cron) {fault}; it is ignored until then"));
            }
            checked.is_ok().then_some(TriggerFilter::Cron(text))
        }
        "subscription" | "nostr-subscription" => {
            let checked =
                filter.map_or(Err("needs a filter"), |filter| filters::subscription(filter, has_max_runs));
            if let Err(fault) = checked {
                notes.warn("trigger", &format!("(subscription) {fault}; it is ignored until then"));
            }
            text.filter(|_| checked.is_ok()).map(TriggerFilter::Subscription)
        }
        "webhook" => Some(TriggerFilter::Webhook(text)),
        "chain" => {
            if text.is_none() {
                notes.warn("trigger", "(chain) needs the d tag of the skill it follows and is ignored");
            }
            text.map(TriggerFilter::Chain)
        }
        _ => {
            notes.warn("trigger", &format!("has a type that is not known and is ignored; {GIVE_TYPE}"));
            None
        }
    }
}

/// A comma list of tiers; none means those that the agent trusts. Strangers must be named.
fn tiers(filter: Option<&str>, notes: &mut Notes<'_>) -> Option<BTreeSet<Tier>> {
    let Some(filter) = filter else { return Some([Tier::Admin, Tier::Wot].into()) };
    let mut tiers = BTreeSet::new();
    for name in filter.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match [Tier::Admin, Tier::Wot, Tier::Stranger]
            .into_iter()
            .find(|tier| tier.as_str().eq_ignore_ascii_case(name))
        {
            Some(tier) => drop(tiers.insert(tier)),
            None => notes.warn(
                "trigger",
                "(dm) names a tier that is not admin, wot or stranger; that tier is ignored",
            ),
        }
    }
    if tiers.is_empty() {
        notes.warn("trigger", "(dm) names no tier that is left and is ignored");
        return None;
    }
    Some(tiers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use crate::skill::tests::signed;

    fn filters(tags: &[&[&str]]) -> (Vec<TriggerFilter>, Vec<String>) {
        let event = signed(1, kinds::PUBLIC_SKILL, tags, "");
        let mut warnings = Vec::new();
        let mut notes = Notes { skill: "s".to_owned(), warnings: &mut warnings };
        let filters =
            parse(&event.tags, false, &mut notes).into_iter().map(|trigger| trigger.filter).collect();
        (filters, warnings)
    }

    #[test]
    fn a_separate_filter_belongs_to_the_trigger_before_it() {
        let (filters, warnings) = filters(&[
            &["filter", "lost"],
            &["trigger", "nostr-subscription"],
            &["filter", "{\"#t\":[\"x\"]}"],
            &["trigger", "webhook", "ci"],
            &["filter", "other"],
            &["trigger", "chain", "daily:news"],
            &["trigger", "webhook"],
        ]);
        assert_eq!(
            filters,
            [
                TriggerFilter::Subscription("{\"#t\":[\"x\"]}".to_owned()),
                TriggerFilter::Webhook(Some("ci".to_owned())),
                TriggerFilter::Chain("daily:news".to_owned()),
                TriggerFilter::Webhook(None),
            ]
        );
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        skill s: tag "filter" stands before any trigger and is ignored; put it after its trigger
        skill s: tag "filter" follows a trigger that has one, and is ignored; keep one of them
        "#);
    }

    #[test]
    fn without_a_filter_a_dm_trigger_means_admin_and_wot() {
        let trusted = [TriggerFilter::Dm([Tier::Admin, Tier::Wot].into())];
        assert_eq!(filters(&[&["trigger", "dm"]]).0, trusted);
        assert_eq!(filters(&[&["trigger", "DM", ""]]).0, trusted);
        assert_eq!(
            filters(&[&["trigger", "dm", "stranger"]]).0,
            [TriggerFilter::Dm([Tier::Stranger].into())]
        );
    }

    #[test]
    fn a_skill_is_enabled_unless_it_says_false() {
        let enabled = |value: &[&str]| {
            let event = signed(1, kinds::PUBLIC_SKILL, &[value], "");
            super::enabled(&event.tags, &mut Notes { skill: String::new(), warnings: &mut Vec::new() })
        };
        assert!(enabled(&["x"]) && enabled(&["enabled", "true"]) && enabled(&["enabled"]));
        assert!(!enabled(&["enabled", " False "]));
    }
}
