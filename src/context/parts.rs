//! A context taken apart for people: each section with its size, what became of each variable, and what was left out.
//!
//! This is what `didactyl context --format parts` prints and `GET /api/context/parts` answers. Tokens are estimates.

use std::collections::BTreeMap;

use nostr::prelude::EventId;
use serde::Serialize;
use serde_json::Value;

use super::{Context, FiredSkill, Origin, tokens};
use crate::chat::{Message, Params, ToolSchema};

/// A context in its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parts<'a> {
    /// `provider/model` that is asked first; none where none of the chain can be used.
    pub model: Option<&'a str>,
    /// The models to try, in order, as skills and configuration name them.
    pub model_chain: &'a str,
    /// How the model is asked.
    pub parameters: Parameters<'a>,
    /// The skills of layer 1, in order.
    pub skills: Vec<SkillPart<'a>>,
    /// The messages in their order.
    pub sections: Vec<SectionPart<'a>>,
    /// What became of each variable, by name.
    pub variables: BTreeMap<&'a str, VariablePart<'a>>,
    /// The tools on offer, in order.
    pub tools: Vec<ToolPart<'a>>,
    /// The sums.
    pub totals: Totals,
    /// What was left out, and why.
    pub warnings: &'a [String],
}

/// Parameters of the request and of the run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Parameters<'a> {
    /// Those that go to the model.
    #[serde(flatten)]
    pub model: &'a Params,
    /// The most model calls that may use tools.
    pub max_turns: u32,
}

/// A skill of layer 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SkillPart<'a> {
    /// `kind:author:d`.
    pub coordinate: String,
    /// The version that was read.
    pub event_id: &'a EventId,
}

/// A message.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SectionPart<'a> {
    /// The section of the soul's template, or what the agent calls the message.
    pub name: &'a str,
    /// Who speaks.
    pub role: &'static str,
    /// The bytes of its text.
    pub bytes: usize,
    /// The tokens that it costs.
    pub tokens_estimate: usize,
    /// Its text.
    pub content: &'a str,
}

/// A variable.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VariablePart<'a> {
    /// Where its value came from.
    pub origin: &'a Origin,
    /// How often it stands in the context.
    pub times: usize,
    /// The bytes of all that stands in its places.
    pub bytes: usize,
    /// The tokens that one of them costs.
    pub tokens_estimate: usize,
    /// What stands there.
    pub text: &'a str,
}

/// A tool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolPart<'a> {
    /// Its name.
    pub name: &'a str,
    /// The bytes of its schema as JSON.
    pub bytes: usize,
    /// The tokens that it costs.
    pub tokens_estimate: usize,
}

/// Sums over the parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Messages.
    pub messages: usize,
    /// The bytes of their texts.
    pub bytes: usize,
    /// The tokens of the messages.
    pub messages_tokens_estimate: usize,
    /// The tokens of the tools' schemas.
    pub tools_tokens_estimate: usize,
    /// Both.
    pub tokens_estimate: usize,
}

/// Takes a context apart. `model` is the one that is asked first.
#[must_use]
pub fn parts<'a>(context: &'a Context, model: Option<&'a str>) -> Parts<'a> {
    let named = context.messages.iter().zip(&context.sections);
    let sections: Vec<SectionPart<'_>> = named.map(|(message, name)| section(message, name)).collect();
    let tools: Vec<ToolPart<'_>> = context.tools.iter().map(tool).collect();
    let messages_tokens = sections.iter().map(|section| section.tokens_estimate).sum::<usize>();
    let tools_tokens = tools.iter().map(|tool| tool.tokens_estimate).sum::<usize>();
    Parts {
        model,
        model_chain: &context.model_chain,
        parameters: Parameters { model: &context.params, max_turns: context.max_turns },
        skills: context.skills.iter().map(skill).collect(),
        variables: context
            .variables
            .iter()
            .map(|(name, variable)| {
                let part = VariablePart {
                    origin: &variable.origin,
                    times: variable.times,
                    bytes: variable.bytes,
                    tokens_estimate: tokens::estimate(&variable.text),
                    text: &variable.text,
                };
                (name.as_str(), part)
            })
            .collect(),
        totals: Totals {
            messages: sections.len(),
            bytes: sections.iter().map(|section| section.bytes).sum(),
            messages_tokens_estimate: messages_tokens,
            tools_tokens_estimate: tools_tokens,
            tokens_estimate: messages_tokens.saturating_add(tools_tokens),
        },
        sections,
        tools,
        warnings: &context.warnings,
    }
}

fn skill(skill: &FiredSkill) -> SkillPart<'_> {
    SkillPart { coordinate: skill.coordinate.to_string(), event_id: &skill.event_id }
}

fn section<'a>(message: &'a Message, name: &'a str) -> SectionPart<'a> {
    SectionPart {
        name,
        role: message.role.as_str(),
        bytes: message.content.len(),
        tokens_estimate: tokens::of_message(message),
        content: &message.content,
    }
}

fn tool(tool: &ToolSchema) -> ToolPart<'_> {
    let schema: Value = serde_json::to_value(tool).unwrap_or_default();
    let json = schema.to_string();
    ToolPart { name: &tool.name, bytes: json.len(), tokens_estimate: tokens::estimate(&json) }
}
