//! What a skill's tags say, whoever signed it and whatever its content is.

use nostr::prelude::{Kind, Tags};

use super::{Notes, RunRules, SkillParams, SkillTrigger, triggers};
use crate::kinds;

/// The longest description, in characters; what is longer is cut.
const MAX_DESCRIPTION_CHARS: usize = 1000;

/// Everything that the tags say.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) description: Option<String>,
    pub(super) triggers: Vec<SkillTrigger>,
    pub(super) enabled: bool,
    pub(super) params: SkillParams,
    pub(super) rules: RunRules,
    pub(super) required_tools: Vec<String>,
}

impl Said {
    /// Reads the tags of a skill of the agent's own.
    pub(super) fn own(kind: Kind, tags: &Tags, notes: &mut Notes<'_>) -> Self {
        let rules = RunRules::parse(tags, notes);
        check_scope(kind, tags, notes);
        Self {
            description: description(tags, notes),
            triggers: triggers::parse(tags, rules.max_runs.is_some(), notes),
            enabled: triggers::enabled(tags, notes),
            params: SkillParams::parse(tags, notes),
            rules,
            required_tools: required_tools(tags, notes),
        }
    }

    /// Reads those tags that count in another author's skill: an author elsewhere must not decide whom the agent
    /// answers or what it costs (design §3).
    pub(super) fn foreign(tags: &Tags, notes: &mut Notes<'_>) -> Self {
        let mut triggers = triggers::parse(tags, false, notes);
        triggers::restrict_foreign(&mut triggers, notes);
        Self {
            description: description(tags, notes),
            triggers,
            enabled: true,
            required_tools: required_tools(tags, notes),
            ..Self::default()
        }
    }
}

/// What `scope` names: a word for the kind, which alone decides who can read the content.
pub(super) fn scope(kind: Kind) -> &'static str {
    if kind == kinds::PRIVATE_SKILL { "private" } else { "public" }
}

/// `true` or `false`, in any case.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn check_scope(kind: Kind, tags: &Tags, notes: &mut Notes<'_>) {
    for tag in tags.iter().filter(|tag| tag.kind() == "scope") {
        let value = tag.content().unwrap_or_default().trim().to_ascii_lowercase();
        match value.as_str() {
            "public" | "private" if value == scope(kind) => {}
            "private" => notes.warn(
                "scope",
                "says private, but the skill is public by its kind, 31123, or by another scope tag; correct one of them",
            ),
            "public" => notes.warn("scope", "says public, but the skill is private by its kind, 31124; correct one of them"),
            _ => notes.warn("scope", "is neither public nor private and is ignored; give one of them"),
        }
    }
}

fn description(tags: &Tags, notes: &mut Notes<'_>) -> Option<String> {
    let text = tags.iter().find(|tag| tag.kind() == "description")?.content()?;
    let line = one_line(text);
    let short: String = line.chars().take(MAX_DESCRIPTION_CHARS).collect();
    if short.len() < line.len() {
        notes.warn("description", "has more than 1000 characters and is cut there; write a shorter one");
    }
    Some(short.trim_end().to_owned()).filter(|text| !text.is_empty())
}

/// A text as one line, without control characters.
pub(super) fn one_line(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// The tools that all `requires_tool` tags name, each once.
fn required_tools(tags: &Tags, notes: &mut Notes<'_>) -> Vec<String> {
    let mut tools: Vec<String> = Vec::new();
    const NO_TOOL: &str = "names no tool and is ignored; give the name of one, such as time";
    for tag in tags.iter().filter(|tag| tag.kind() == "requires_tool") {
        let names = tag.as_slice().get(1..).unwrap_or_default();
        for tool in names.iter().map(|name| name.trim()) {
            if !is_tool_name(tool) {
                notes.warn("requires_tool", NO_TOOL);
            } else if !tools.iter().any(|known| known == tool) {
                tools.push(tool.to_owned());
            }
        }
        if names.is_empty() {
            notes.warn("requires_tool", NO_TOOL);
        }
    }
    tools
}

/// What providers take for a function's name.
fn is_tool_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}
