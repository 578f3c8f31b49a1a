//! `didactyl triggers`: what would fire when, by the agent's state as the store has it; and why a trigger is off.

use std::io::Write;
use std::iter;

use clap::Args;
use nostr::prelude::Timestamp;
use serde::Serialize;

use super::CliResult;
use crate::app::App;
use crate::config::Config;
use crate::load::Stored;
use crate::skill::{Skill, TriggerFilter};
use crate::state::AgentState;
use crate::store::{Range, keys};
use crate::tools::time::iso;
use crate::trigger::cron::{Schedule, normalise};
use crate::webhooks::Webhooks;

/// How many instants are told of a cron trigger.
const INSTANTS: usize = 10;

/// How it is shown.
#[derive(Debug, Args)]
pub(super) struct Request {
    /// Prints it as JSON.
    #[arg(long)]
    json: bool,
}

/// What may fire an adopted skill.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Told {
    /// The skill's d tag.
    skill: String,
    #[serde(rename = "type")]
    kind: &'static str,
    /// As the tag has it; for cron, the normal spelling.
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    /// The next instants of cron, UTC.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<String>,
    /// What else there is to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Why it is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    off: Option<String>,
}

/// Everything that is told.
#[derive(Debug, Serialize)]
struct Report {
    triggers: Vec<Told>,
    /// What could not be read of skills and list, and is ignored.
    warnings: Vec<String>,
}

/// Carries the request out over the store that `env` names.
pub(super) async fn run(
    request: &Request,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
) -> CliResult {
    let app = App::new(Config::from_vars(env)?).await?;
    let rows = app.store.list(&Range::whole(keys::STATE_PARTITION)).await?;
    let stored = Stored::of_state(&rows);
    let halt = if app.config.standby {
        Some("the agent is in standby".to_owned())
    } else {
        stored
            .flags
            .stopped_at()
            .map(|at| format!("the agent is stopped since {}: /start lets it go on", iso(at)))
    };
    let view = View { halt: halt.as_deref(), webhooks: &app.config.webhooks, now: app.clock.now() };
    let report = report(&stored.state(&app), &view);
    if request.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
        return Ok(());
    }
    print(&report, out)?;
    Ok(())
}

/// What counts beside the skills.
struct View<'a> {
    /// Why nothing is fired at all.
    halt: Option<&'a str>,
    webhooks: &'a Webhooks,
    now: Timestamp,
}

fn report(state: &AgentState, view: &View<'_>) -> Report {
    let triggers = state.skills.iter().flat_map(|skill| of_skill(skill, state, view)).collect();
    Report { triggers, warnings: state.warnings.clone() }
}

/// The triggers of one skill; of one that has none, that.
fn of_skill(skill: &Skill, state: &AgentState, view: &View<'_>) -> Vec<Told> {
    let told = |kind, filter| Told {
        skill: skill.d().to_owned(),
        kind,
        filter,
        next: Vec::new(),
        note: None,
        off: if skill.enabled {
            view.halt.map(str::to_owned)
        } else {
            Some("the skill is disabled".to_owned())
        },
    };
    if skill.triggers.is_empty() {
        let note = if state.lacks_triggers() {
            "no adopted skill has a trigger that can be read: all of them speak in the admin's messages"
        } else {
            "it has no trigger that can be read: it is part of a context only where another skill names it"
        };
        return vec![Told { note: Some(note.to_owned()), ..told("none", None) }];
    }
    let one = |filter: &TriggerFilter| match filter {
        TriggerFilter::Dm(tiers) => {
            let tiers: Vec<&str> = tiers.iter().rev().map(|tier| tier.as_str()).collect();
            told("dm", Some(tiers.join(",")))
        }
        TriggerFilter::Cron(None) => {
            Told { note: Some("joins every cron run".to_owned()), ..told("cron", None) }
        }
        TriggerFilter::Cron(Some(expression)) => {
            Told { next: next(expression, view.now), ..told("cron", Some(normalise(expression))) }
        }
        TriggerFilter::Subscription(filter) => told("subscription", Some(filter.clone())),
        TriggerFilter::Webhook(None) => {
            Told { note: Some("any slug that has a secret".to_owned()), ..told("webhook", None) }
        }
        TriggerFilter::Webhook(Some(slug)) => {
            let is_open = view.webhooks.get(slug).is_some();
            let closed = "DIDACTYL_WEBHOOK_SECRETS has no secret for this slug".to_owned();
            let told = told("webhook", Some(slug.clone()));
            let note = is_open.then(|| "a secret is configured".to_owned());
            Told { note, off: told.off.clone().or((!is_open).then_some(closed)), ..told }
        }
        TriggerFilter::Chain(d) => {
            let is_there = state.skill(d).is_some();
            let missing = "no adopted skill has this d tag, so nothing comes before it".to_owned();
            let told = told("chain", Some(d.clone()));
            Told { off: told.off.clone().or((!is_there).then_some(missing)), ..told }
        }
    };
    skill.triggers.iter().map(|trigger| one(&trigger.filter)).collect()
}

fn next(expression: &str, now: Timestamp) -> Vec<String> {
    let Ok(schedule) = Schedule::parse(expression) else { return Vec::new() };
    let after = |at: &Timestamp| schedule.next_after(*at);
    let shown = |at: Timestamp| {
        let shifted = if schedule.is_shifted(at) { " (its own time does not exist on that day)" } else { "" };
        format!("{}{shifted}", iso(at))
    };
    iter::successors(after(&now), after).take(INSTANTS).map(shown).collect()
}

fn print(report: &Report, out: &mut dyn Write) -> std::io::Result<()> {
    if report.triggers.is_empty() {
        writeln!(out, "no adopted skill is known: a tick, or a message, reads them from the relays")?;
    }
    for told in &report.triggers {
        let filter = told.filter.as_ref().map(|filter| format!(" {filter}")).unwrap_or_default();
        writeln!(out, "{}: {}{filter}", crate::skill::name(&told.skill), told.kind)?;
        for line in
            told.off.iter().map(|why| format!("off: {why}")).chain(told.note.clone()).chain(told.next.clone())
        {
            writeln!(out, "  {line}")?;
        }
    }
    for warning in &report.warnings {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nostr::prelude::Event;

    use super::*;
    use crate::kinds;
    use crate::skill::tests::{keys, signed};

    /// What is shown of an agent with these skills, at noon of 1 March 2027.
    fn shown(skills: &[(&str, &[&[&str]])], halt: Option<&str>) -> String {
        let now = Timestamp::from(1_803_902_400);
        let agent = keys(1).public_key().to_hex();
        let mut events: Vec<Event> = Vec::new();
        let mut entries = Vec::new();
        for (d, tags) in skills {
            let named = ["d", d];
            let tags: Vec<&[&str]> = iter::once(&named as &[&str]).chain(tags.iter().copied()).collect();
            events.push(signed(1, kinds::PUBLIC_SKILL, &tags, "text"));
            entries.push(format!("31123:{agent}:{d}"));
        }
        let entries: Vec<[&str; 2]> = entries.iter().map(|entry| ["a", entry]).collect();
        let entries: Vec<&[&str]> = entries.iter().map(<[&str; 2]>::as_slice).collect();
        events.push(signed(1, kinds::ADOPTION_LIST, &entries, ""));
        let state = AgentState::build(&keys(1), &[keys(2).public_key()], None, events, now);
        let webhooks = r#"{"ci":{"form":"bearer","secret":["a-secret-of-the-job-000001"]}}"#;
        let webhooks = Webhooks::parse(webhooks).unwrap();
        let mut out = Vec::new();
        print(&report(&state, &View { halt, webhooks: &webhooks, now }), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_trigger_is_told_with_what_it_waits_for() {
        let told = shown(
            &[
                ("chat", &[&["trigger", "dm"]]),
                (
                    "brief",
                    &[&["trigger", "cron", "TZ=europe/berlin  40 2 * 3 SUN"], &["trigger", "webhook", "ci"]],
                ),
                ("joins", &[&["trigger", "cron"], &["trigger", "webhook"], &["trigger", "webhook", "shut"]]),
                ("notes", &[&["trigger", "subscription", "{\"kinds\":[1],\"#t\":[\"didactyl\"]}"]]),
                ("after", &[&["trigger", "chain", "brief"], &["trigger", "chain", "nobody"]]),
                ("off", &[&["trigger", "cron", "@daily"], &["enabled", "false"]]),
                ("bad", &[&["trigger", "cron", "0 0 31 2 *"], &["trigger", "cron", "TZ=Mars 0 0 * * *"]]),
            ],
            None,
        );
        insta::assert_snapshot!(told, @r##"
        "chat": dm admin,wot
        "brief": cron TZ=Europe/Berlin 40 2 * 3 sun
          2027-03-07T01:40:00Z
          2027-03-14T01:40:00Z
          2027-03-21T01:40:00Z
          2027-03-28T01:00:00Z (its own time does not exist on that day)
          2028-03-05T01:40:00Z
          2028-03-12T01:40:00Z
          2028-03-19T01:40:00Z
          2028-03-26T01:00:00Z (its own time does not exist on that day)
          2029-03-04T01:40:00Z
          2029-03-11T01:40:00Z
        "brief": webhook ci
          a secret is configured
        "joins": cron
          joins every cron run
        "joins": webhook
          any slug that has a secret
        "joins": webhook shut
          off: DIDACTYL_WEBHOOK_SECRETS has no secret for this slug
        "notes": subscription {"kinds":[1],"#t":["didactyl"]}
        "after": chain brief
        "after": chain nobody
          off: no adopted skill has this d tag, so nothing comes before it
        "off": cron 0 0 * * *
          off: the skill is disabled
          2027-03-02T00:00:00Z
          2027-03-03T00:00:00Z
          2027-03-04T00:00:00Z
          2027-03-05T00:00:00Z
          2027-03-06T00:00:00Z
          2027-03-07T00:00:00Z
          2027-03-08T00:00:00Z
          2027-03-09T00:00:00Z
          2027-03-10T00:00:00Z
          2027-03-11T00:00:00Z
        "bad": none
          it has no trigger that can be read: it is part of a context only where another skill names it
        warning: skill "joins": tag "trigger" (webhook) names no slug and means any webhook; name one, unless that is meant
        warning: skill "bad": tag "trigger" (cron) names a day that no year has, such as 31 February; it is ignored until then
        warning: skill "bad": tag "trigger" (cron) names a time zone that is not known; use a name of the IANA database such as Europe/Berlin; it is ignored until then
        "##);
    }

    #[test]
    fn what_holds_for_all_is_told_of_each() {
        let halt = Some("the agent is in standby");
        insta::assert_snapshot!(shown(&[("chat", &[&["trigger", "dm"]])], halt), @r#"
        "chat": dm admin,wot
          off: the agent is in standby
        "#);
        insta::assert_snapshot!(shown(&[("a", &[]), ("b", &[])], None), @r#"
        "a": none
          no adopted skill has a trigger that can be read: all of them speak in the admin's messages
        "b": none
          no adopted skill has a trigger that can be read: all of them speak in the admin's messages
        "#);
        insta::assert_snapshot!(
            shown(&[], None), @"no adopted skill is known: a tick, or a message, reads them from the relays");
    }
}
