//! How the model is asked: parameters, model chain, turns and tools (design §6.7).

use std::collections::BTreeSet;

use super::Defaults;
use super::layers::Fired;
use crate::chat::{Params, ToolSchema};
use crate::skill::SkillParams;

/// The outcome of all fired skills' parameters.
#[derive(Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) model_chain: String,
    pub(crate) params: Params,
    pub(crate) max_turns: u32,
}

/// The agent's defaults, then the fired skills in list order: the later wins, per parameter. A trigger tag's own
/// parameters come after those of its skill.
pub(crate) fn settings(fired: &[Fired<'_>], defaults: &Defaults) -> Settings {
    let mut set = SkillParams::default();
    for fired in fired {
        set.apply(&fired.skill.params);
        if let Some(trigger) = fired.by {
            set.apply(&trigger.params);
        }
    }
    Settings {
        model_chain: set.llm.unwrap_or_else(|| defaults.model_chain.clone()),
        params: Params {
            temperature: set.temperature.or(defaults.params.temperature),
            max_tokens: set.max_tokens.or(defaults.params.max_tokens),
            seed: set.seed.or(defaults.params.seed),
        },
        max_turns: set.max_turns.unwrap_or(defaults.max_turns).min(defaults.max_turns),
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
