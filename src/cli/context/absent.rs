//! The adopted skills that are not in a context, and why: whoever looks for one wants to know.

use crate::context::{Context, Origin};
use crate::skill::{self, Skill};
use crate::state::AgentState;

/// A sentence for each.
pub(super) fn absent(state: &AgentState, context: &Context) -> Vec<String> {
    let is_fired = |skill: &Skill| context.skills.iter().any(|fired| fired.coordinate == skill.coordinate);
    let is_embedded = |skill: &Skill| {
        let coordinate = skill.coordinate.to_string();
        context.variables.values().any(|v| matches!(&v.origin, Origin::Skill(other) if *other == coordinate))
    };
    let absent = state.skills.iter().filter(|skill| !is_fired(skill) && !is_embedded(skill));
    absent.map(|skill| format!("skill {} {}", skill::name(skill.d()), reason(skill))).collect()
}

fn reason(skill: &Skill) -> String {
    if !skill.enabled {
        return "has [\"enabled\",\"false\"]".to_owned();
    }
    let tags: Vec<String> = skill
        .triggers
        .iter()
        .map(|trigger| serde_json::to_string(trigger.filter.tag().as_slice()).unwrap_or_default())
        .collect();
    match tags.as_slice() {
        [] => "has no trigger that can be read, and no skill that is here refers to it".to_owned(),
        tags => format!("is fired by {} alone; give such an event with --event", tags.join(" and ")),
    }
}
