//! Chains: what follows a run. Each skill that took part and that others follow starts one run of those, with the answer
//! as its message (design §4).
//!
//! They are stored with the answer, in one write: a run that has its answer has its followers, each once.

use crate::app::App;
use crate::error::Error;
use crate::record::{RunRecord, store_writes};
use crate::skill::TriggerFilter;
use crate::state::AgentState;
use crate::store::Write;
use crate::trigger::{Chain, MAX_TEXT_BYTES, Source, Trigger};

/// The most runs that follow one another.
pub const MAX_DEPTH: usize = 5;

/// The most runs that follow one: their rows are written together with its answer.
const MAX_FOLLOWERS: usize = 8;

/// The runs that follow one.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    /// What starts them.
    pub(crate) triggers: Vec<Trigger>,
    /// What makes them durable.
    pub(crate) writes: Vec<Write>,
}

/// What follows the run of `trigger`, which came to `answer`. They are due at `due_at` (Unix seconds), if nobody works them
/// before.
///
/// # Errors
/// [`Error::Permanent`] where a trigger cannot be written.
pub(crate) fn followers(
    app: &App,
    trigger: &Trigger,
    state: &AgentState,
    record: &RunRecord,
    answer: &str,
    due_at: u64,
) -> Result<Followers, Error> {
    let ran: Vec<&str> =
        record.skills.iter().filter_map(|(coordinate, _)| coordinate.splitn(3, ':').nth(2)).collect();
    let mut found = Followers::default();
    for path in paths(trigger, state, &ran) {
        let chain = Chain {
            from: path.last().cloned().unwrap_or_default(),
            run: record.run_id.clone(),
            final_response: answer
                .get(..answer.floor_char_boundary(MAX_TEXT_BYTES))
                .unwrap_or(answer)
                .to_owned(),
            path,
        };
        let follower = Trigger::chain(chain, trigger, app.clock.now());
        found.writes.extend(store_writes(app, &follower, due_at)?);
        found.triggers.push(follower);
    }
    Ok(found)
}

/// For each of the skills that `ran` and that others follow, the way from the first run of the chain to it.
fn paths(trigger: &Trigger, state: &AgentState, ran: &[&str]) -> Vec<Vec<String>> {
    let before = match &trigger.source {
        Source::Chain(chain) => chain.path.as_slice(),
        _ => &[],
    };
    let mut paths = Vec::new();
    for from in ran {
        let path: Vec<String> = before.iter().cloned().chain([(*from).to_owned()]).collect();
        let is_followed = state.skills.iter().any(|skill| {
            let follows = |filter: &TriggerFilter| matches!(filter, TriggerFilter::Chain(d) if d == from);
            skill.enabled
                && !path.iter().any(|ran| ran == skill.d())
                && skill.triggers.iter().any(|trigger| follows(&trigger.filter))
        });
        if !is_followed {
            continue;
        }
        if path.len() > MAX_DEPTH || paths.len() == MAX_FOLLOWERS {
            tracing::warn!(skill = %crate::skill::name(from), "the chain ends here: it is too long, or follows too many");
            continue;
        }
        paths.push(path);
    }
    paths
}

#[cfg(test)]
mod tests {
    use nostr::prelude::{Event, Timestamp};

    use super::*;
    use crate::kinds;
    use crate::skill::tests::{keys, signed};

    fn state(follows: &[(&str, &str)]) -> AgentState {
        let skills: Vec<Event> = follows
            .iter()
            .map(|(d, from)| {
                let trigger: &[&str] =
                    if from.is_empty() { &["trigger", "cron"] } else { &["trigger", "chain", from] };
                signed(1, kinds::PUBLIC_SKILL, &[&["d", d], trigger], "Do.")
            })
            .collect();
        let own = keys(1).public_key();
        let entries: Vec<[String; 2]> =
            follows.iter().map(|(d, _)| ["a".to_owned(), format!("31123:{own}:{d}")]).collect();
        let entries: Vec<Vec<&str>> =
            entries.iter().map(|entry| entry.iter().map(String::as_str).collect()).collect();
        let entries: Vec<&[&str]> = entries.iter().map(Vec::as_slice).collect();
        let list = signed(1, kinds::ADOPTION_LIST, &entries, "");
        AgentState::build(
            &keys(1),
            &[keys(2).public_key()],
            None,
            skills.into_iter().chain([list]),
            Timestamp::from(1_803_902_400),
        )
    }

    fn after(path: &[&str]) -> Trigger {
        let admin = keys(2).public_key();
        let cron = Trigger::cron("@daily", Timestamp::from(0), admin, Timestamp::from(0));
        let Some(from) = path.last() else { return cron };
        let chain = Chain {
            from: (*from).to_owned(),
            run: "r".to_owned(),
            final_response: String::new(),
            path: path.iter().map(|d| (*d).to_owned()).collect(),
        };
        Trigger::chain(chain, &cron, Timestamp::from(0))
    }

    #[test]
    fn each_skill_that_ran_and_is_followed_starts_one_run_and_no_skill_runs_twice_in_a_chain() {
        let state = state(&[("a", ""), ("b", "a"), ("c", "a"), ("a2", "b"), ("self", "self"), ("d", "")]);
        let paths = |path: &[&str], ran: &[&str]| {
            let paths = super::paths(&after(path), &state, ran);
            paths.iter().map(|path| path.join(">")).collect::<Vec<_>>()
        };
        assert_eq!(paths(&[], &["a", "d"]), ["a"]);
        assert_eq!(paths(&["a"], &["b", "c"]), ["a>b"]);
        assert_eq!(paths(&["a2"], &["b"]), [""; 0]);
        assert_eq!(paths(&[], &["self"]), [""; 0]);
        assert_eq!(paths(&["1", "2", "3", "4"], &["a"]), ["1>2>3>4>a"]);
        assert_eq!(paths(&["1", "2", "3", "4", "5"], &["a"]), [""; 0]);
    }

    #[test]
    fn of_the_skills_that_follow_one_those_that_ran_before_are_not_fired() {
        let state = state(&[("a", "b"), ("b", "a"), ("c", "a")]);
        let fired = |path: &[&str]| {
            let fired = crate::context::fired(&state, &after(path));
            fired.iter().map(|skill| skill.d().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(fired(&["a"]), ["b", "c"]);
        assert_eq!(fired(&["b", "a"]), ["c"]);
        assert_eq!(fired(&["a", "b"]), [""; 0]);
    }
}
