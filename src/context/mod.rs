//! The context: all that the model sees, assembled from the state, a trigger and the values fetched for it.
//!
//! The order of work is list, fetch, render. [`names`] tells which tools the templates need, the caller asks them all
//! at once, and [`assemble`] renders. Nothing here does I/O or reads a clock: the same input gives the same bytes,
//! which providers' prompt caches reward.
//!
//! Fired skills form one markdown document, the soul's template decides what stands around it, and the current
//! message comes last. Compaction and the model's window are left to the run.

#[cfg(test)]
mod adversarial;
pub mod compaction;
mod document;
pub mod excerpt;
mod layers;
pub(crate) mod markdown;
pub mod parts;
#[cfg(test)]
mod properties;
mod render;
mod settings;
pub mod snapshot;
mod soul;
mod template;
#[cfg(test)]
mod tests;
pub mod tokens;
pub mod transcript;
mod value;
mod variables;

use std::collections::{BTreeMap, BTreeSet};

use nostr::prelude::{Coordinate, EventId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::render::Renderer;
use self::soul::{Body, Section, Soul};
use self::template::{Piece, pieces};
use crate::chat::{Message, Params, Role, ToolSchema};
use crate::skill::Skill;
use crate::state::AgentState;
use crate::trigger::{Tier, Trigger};
use crate::warnings;

/// The skill of an agent that has none, for people it trusts.
const CHAT: &str = include_str!("prompts/chat.md");

/// What stands around the document where the soul brings no template.
const TEMPLATE: &str = include_str!("prompts/template.txt");

/// How many messages of history are shown where no section sets a limit.
pub const DEFAULT_HISTORY: usize = 12;

/// What a context is made from.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// What the agent knows.
    pub state: &'a AgentState,
    /// What started the run.
    pub trigger: &'a Trigger,
    /// The conversation before the trigger's message, oldest first.
    pub history: &'a [HistoryMessage],
    /// The tools that variables may ask, and the lowest tier that each is for.
    pub entries: &'a BTreeMap<String, Tier>,
    /// What those that [`names`] told have answered, by tool name.
    pub values: &'a BTreeMap<String, Value>,
    /// The agent's own settings.
    pub defaults: &'a Defaults,
    /// The tools on offer in this run.
    pub tools: &'a [ToolSchema],
}

/// A message of the conversation's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryMessage {
    /// [`Role::User`] for the other side, [`Role::Assistant`] for the agent.
    pub role: Role,
    /// Its text.
    pub text: String,
}

/// The agent's own settings, which skills may change for their runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// The models to try, in order (`DIDACTYL_LLM`).
    pub model_chain: String,
    /// Model parameters.
    pub params: Params,
    /// The most model calls that may use tools (`DIDACTYL_MAX_TURNS`); skills may only lower it.
    pub max_turns: u32,
}

/// All that the model sees, and how it came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Context {
    /// The markdown document of the skills, before it became messages: for people who look into it.
    pub document: String,
    /// The messages; the current one is the last.
    pub messages: Vec<Message>,
    /// The section that each message belongs to.
    pub sections: Vec<String>,
    /// The tools on offer.
    pub tools: Vec<ToolSchema>,
    /// Model parameters.
    pub params: Params,
    /// The models to try, in order.
    pub model_chain: String,
    /// The most model calls that may use tools.
    pub max_turns: u32,
    /// The skills of layer 1, in order.
    pub skills: Vec<FiredSkill>,
    /// What became of each variable.
    pub variables: BTreeMap<String, Variable>,
    /// What was left out, and why, in sentences that hold no message text.
    pub warnings: Vec<String>,
}

/// A skill that took part in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FiredSkill {
    /// Kind, author and d tag.
    pub coordinate: Coordinate,
    /// The version that was read.
    pub event_id: EventId,
}

/// A variable of the templates, and what stands in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// Where its value came from.
    pub origin: Origin,
    /// How often it stands in the context.
    pub times: usize,
    /// The bytes of all that stands in its places.
    pub bytes: usize,
    /// What stands in the first place where it is not empty, as it stands there.
    pub text: String,
}

/// Where a variable's value came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// What the agent knows.
    Agent,
    /// The current message.
    Message,
    /// The document of all fired skills.
    Document,
    /// The tool of this name.
    Tool(String),
    /// The adopted skill at this coordinate.
    Skill(String),
    /// The sender may not see it, so it is empty.
    AboveTier,
    /// Nobody knows it, or it has no value there, so it is empty.
    Nothing,
}

/// The skills that a trigger fires, in list order; perhaps none.
#[must_use]
pub fn fired<'a>(state: &'a AgentState, trigger: &Trigger) -> Vec<&'a Skill> {
    layers::layer1(state, trigger, &mut Vec::new()).into_iter().map(|fired| fired.skill).collect()
}

/// The tools whose values [`assemble`] will need: at most 64, and none above the run's tier.
#[must_use]
pub fn names(state: &AgentState, trigger: &Trigger, entries: &BTreeMap<String, Tier>) -> BTreeSet<String> {
    let defaults = Defaults { model_chain: String::new(), params: Params::default(), max_turns: 1 };
    let values = BTreeMap::new();
    let input =
        Input { state, trigger, history: &[], entries, values: &values, defaults: &defaults, tools: &[] };
    let context = render(&input, true);
    let tool = |variable: Variable| if let Origin::Tool(name) = variable.origin { Some(name) } else { None };
    context.variables.into_values().filter_map(tool).collect()
}

/// Builds what the model sees.
#[must_use]
pub fn assemble(input: &Input<'_>) -> Context {
    render(input, false)
}

fn render(input: &Input<'_>, is_listing: bool) -> Context {
    let Input { state, trigger, .. } = *input;
    let mut warnings = Vec::new();
    let fired = layers::layer1(state, trigger, &mut warnings);
    let soul = state.soul().map(|event| Soul::parse(&event.content, &mut warnings));
    let sections = soul.as_ref().map(|soul| sections(soul, trigger, &mut warnings)).unwrap_or_default();
    if fired.is_empty() && !layers::is_trusted_dm(trigger) {
        warnings.push("no adopted skill is fired by this trigger: it starts no run".to_owned());
    }
    // Other triggers belong to no conversation.
    let history = if trigger.peer().is_some() { input.history } else { &[] };

    let mut renderer = Renderer::new(input, is_listing, warnings);
    let is_bare = fired.is_empty() && soul.is_none() && layers::is_trusted_dm(trigger);
    let document = renderer.document(&fired, is_bare.then_some(CHAT));
    let mut parts = Messages::default();
    match &soul {
        None => {
            parts.push("skills", Role::System, document.clone());
            parts.history("dm_history", history, None);
        }
        Some(soul) => {
            parts.push("system_prompt", Role::System, renderer.personality(&soul.personality));
            if !document.is_empty() && !sections.iter().any(inserts_document) {
                renderer.warnings.push(
                    "soul template: no section inserts {{adopted_skills_content}}, so the skills follow the \
                     personality"
                        .to_owned(),
                );
                parts.push("skills", Role::System, document.clone());
            }
            for section in &sections {
                match &section.body {
                    Body::History => parts.history(&section.name, history, section.limit),
                    Body::Text(role, text) => {
                        parts.push(&section.name, *role, renderer.section(text, section.limit));
                    }
                }
            }
        }
    }
    parts.add("current_message", Role::User, renderer.current_message(&fired));

    let settings = settings::settings(&fired, trigger, input.defaults);
    let Renderer { variables, required_tools, mut warnings, .. } = renderer;
    let tools = settings::tools(input.tools, &required_tools, &mut warnings);
    warnings::limit(&mut warnings);
    Context {
        document,
        messages: parts.messages,
        sections: parts.sections,
        tools,
        params: settings.params,
        model_chain: settings.model_chain,
        max_turns: settings.max_turns,
        skills: fired
            .iter()
            .map(|fired| FiredSkill {
                coordinate: fired.skill.coordinate.clone(),
                event_id: fired.skill.event_id,
            })
            .collect(),
        variables,
        warnings,
    }
}

/// What cannot be read in a soul of this content, for an author who wants to know before publishing it.
#[must_use]
pub fn soul_warnings(content: &str) -> Vec<String> {
    let mut warnings = Vec::new();
    Soul::parse(content, &mut warnings);
    warnings
}

/// What can be read in a soul of this content and perhaps says something other than its author meant.
#[cfg(feature = "local")]
#[must_use]
pub fn soul_remarks(content: &str) -> Vec<String> {
    soul::remarks(content)
}

/// The sections of the soul's template, or of the built-in one. That says nothing of the admin below tier admin, and
/// vouches for no sender where there is none.
fn sections(soul: &Soul, trigger: &Trigger, warnings: &mut Vec<String>) -> Vec<Section> {
    if let Some(sections) = &soul.sections {
        return sections.clone();
    }
    let mut sections = soul::parse_sections(TEMPLATE.lines(), warnings);
    if trigger.tier < Tier::Admin {
        sections.retain(|section| !section.name.starts_with("admin_") && section.name != "startup_events");
    }
    if trigger.peer().is_none() {
        sections.retain(|section| section.name != "sender_verification");
    }
    sections
}

fn inserts_document(section: &Section) -> bool {
    let is_document = |name: &str| variables::alias(name).unwrap_or(name) == render::DOCUMENT;
    matches!(&section.body, Body::Text(_, text)
        if pieces(text).iter().any(|piece| matches!(piece, Piece::Variable(name) if is_document(name))))
}

/// Messages with the names of their sections.
#[derive(Default)]
struct Messages {
    messages: Vec<Message>,
    sections: Vec<String>,
}

impl Messages {
    fn add(&mut self, section: &str, role: Role, text: String) {
        self.messages.push(Message::text(role, text));
        self.sections.push(section.to_owned());
    }

    /// Adds a message unless it would be empty.
    fn push(&mut self, section: &str, role: Role, text: String) {
        if !text.trim().is_empty() {
            self.add(section, role, text);
        }
    }

    fn history(&mut self, section: &str, history: &[HistoryMessage], limit: Option<usize>) {
        let skipped = history.len().saturating_sub(limit.unwrap_or(DEFAULT_HISTORY));
        for message in history.iter().skip(skipped) {
            self.push(section, message.role, message.text.clone());
        }
    }
}
