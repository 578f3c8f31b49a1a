//! Layer 1: the adopted skills that a trigger fires, in list order.

use crate::skill::{Skill, SkillTrigger};
use crate::state::AgentState;
use crate::trigger::{Source, Tier, Trigger};

/// A skill of layer 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Fired<'a> {
    pub(crate) skill: &'a Skill,
    /// The trigger of its own that matched; `None` by the older generation's rule.
    pub(crate) by: Option<&'a SkillTrigger>,
}

/// The skills that `trigger` fires. Perhaps none.
pub(crate) fn layer1<'a>(
    state: &'a AgentState,
    trigger: &Trigger,
    warnings: &mut Vec<String>,
) -> Vec<Fired<'a>> {
    if state.lacks_triggers() && is_admin_dm(trigger) {
        warnings.push(
            "no adopted skill has a trigger that can be read, so all of them speak in the admin's DMs; \
             give each skill a trigger tag"
                .to_owned(),
        );
        let enabled = state.skills.iter().filter(|skill| skill.enabled);
        return enabled.map(|skill| Fired { skill, by: None }).collect();
    }
    let fired = |skill: &'a Skill| skill.fired_by(trigger).map(|by| Fired { skill, by: Some(by) });
    state.skills.iter().filter_map(fired).collect()
}

/// Whether a trigger that fires no skill still runs, with the soul or the built-in chat skill.
pub(crate) fn is_trusted_dm(trigger: &Trigger) -> bool {
    is_message(trigger) && trigger.tier >= Tier::Wot
}

fn is_admin_dm(trigger: &Trigger) -> bool {
    is_message(trigger) && trigger.tier == Tier::Admin
}

/// A prompt is the admin's message by another door, and what the model sees does not depend on the door.
fn is_message(trigger: &Trigger) -> bool {
    matches!(trigger.source, Source::Dm(_) | Source::Prompt(_))
}
