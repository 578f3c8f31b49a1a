//! How the model is asked: parameters, model chain, turns and tools (design §6.7).

use std::collections::BTreeSet;

use super::Defaults;
use super::layers::Fired;
use crate::chat::{Params, ToolSchema};
use crate::skill::SkillParams;
use crate::trigger::prompt::{self, Prompt};
use crate::trigger::{Source, Trigger};

/// The outcome of all fired skills' parameters.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) model_chain: String,
    pub(crate) params: Params,
    pub(crate) max_turns: u32,
}

/// The agent's defaults, then the fired skills in list order: the later wins, per parameter. A trigger tag's own
/// parameters come after those of its skill, and what a request asks for comes last.
pub(crate) fn settings(fired: &[Fired<'_>], trigger: &Trigger, defaults: &Defaults) -> Settings {
    let mut set = SkillParams::default();
    for fired in fired {
        set.apply(&fired.skill.params);
        if let Some(trigger) = fired.by {
            set.apply(&trigger.params);
        }
    }
    let prompt = if let Source::Prompt(prompt) = &trigger.source { Some(prompt) } else { None };
    let asked = |prompt: &Prompt| prompt.max_turns.map(|turns| turns.clamp(1, prompt::MAX_TURNS));
    // Of the host's own limit a skill may have less and not more; a request that names a number was sent by an admin, who may.
    let usual = if prompt.is_some() { prompt::DEFAULT_TURNS } else { defaults.max_turns };
    let by_skills = set.max_turns.unwrap_or(usual).min(defaults.max_turns);
    Settings {
        model_chain: prompt
            .and_then(|prompt| prompt.model.clone())
            .or(set.llm)
            .unwrap_or_else(|| defaults.model_chain.clone()),
        params: Params {
            temperature: set.temperature.or(defaults.params.temperature),
            max_tokens: set.max_tokens.or(defaults.params.max_tokens),
            seed: set.seed.or(defaults.params.seed),
        },
        max_turns: prompt.and_then(asked).unwrap_or(by_skills),
    }
}

/// The tools on offer that the skills in the context ask for; all of them where none asks.
pub(crate) fn tools(
    offered: &[ToolSchema],
    required: &BTreeSet<String>,
    warnings: &mut Vec<String>,
) -> Vec<ToolSchema> {
    if required.is_empty() {
        return offered.to_vec();
    }
    for name in required {
        if !offered.iter().any(|tool| tool.name == *name) {
            warnings.push(format!("the tool {name} that a skill asks for is not on offer in this run"));
        }
    }
    offered.iter().filter(|tool| required.contains(&tool.name)).cloned().collect()
}
