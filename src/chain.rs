//! Chains: what follows a run. Each skill that took part and that others follow starts one run of those, with the answer
//! as its message (design §4).
//!
//! They are stored with the answer, in one write: a run that has its answer has its followers, each once.

use crate::app::App;
use crate::error::Error;
use crate::events::parse_coordinate;
use crate::record::{RunRecord, store_writes};
use crate::skill::TriggerFilter;
use crate::state::AgentState;
use crate::store::Write;
use crate::trigger::{Chain, Source, Trigger, cut};

/// The most runs that follow one another.
pub const MAX_DEPTH: usize = 5;

/// The most runs that follow one, and those that follow these, all together: skills that follow one another crosswise would
/// be thousands.
const MAX_RUNS: usize = 20;

/// The most runs that follow one at once: their rows are written together with its answer.
const MAX_FOLLOWERS: usize = 8;

/// The runs that follow one.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    /// What starts them.
    pub(crate) triggers: Vec<Trigger>,
    /// What makes them durable.
    pub(crate) writes: Vec<Write>,
}

/// What follows the run of `trigger`, which came to `answer`; nothing where that only says why there is none.
/// They are due at `due_at` (Unix seconds), if nobody works them before.
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
    if record.reason.is_some() {
        return Ok(Followers::default());
    }
    let ran = record.skills.iter().filter_map(|(coordinate, _)| parse_coordinate(coordinate));
    let ran: Vec<String> = ran.map(|coordinate| coordinate.identifier).collect();
    let answer = cut(answer.to_owned(), "the answer");
    let mut found = Followers::default();
    let (paths, left) = paths(trigger, state, &ran);
    for path in paths {
        let chain = Chain {
            from: path.last().cloned().unwrap_or_default(),
            run: record.run_id.clone(),
            final_response: answer.clone(),
            path,
            left,
        };
        let follower = Trigger::chain(chain, trigger, app.clock.now());
        found.writes.extend(store_writes(app, &follower, due_at)?);
        found.triggers.push(follower);
    }
    Ok(found)
}

/// For each of the skills that `ran` and that others follow, the way from the first run of the chain to it; and how many runs
/// may follow each of these runs.
fn paths(trigger: &Trigger, state: &AgentState, ran: &[String]) -> (Vec<Vec<String>>, usize) {
    let (before, left) = match &trigger.source {
        Source::Chain(chain) => (chain.path.as_slice(), chain.left),
        _ => (&[][..], MAX_RUNS),
    };
    let mut paths = Vec::new();
    for from in ran {
        let path: Vec<String> = before.iter().cloned().chain([from.clone()]).collect();
        let is_followed = state.skills.iter().any(|skill| {
            let follows = |filter: &TriggerFilter| matches!(filter, TriggerFilter::Chain(d) if d == from);
            skill.enabled
                && !path.iter().any(|ran| ran == skill.d())
                && skill.triggers.iter().any(|trigger| follows(&trigger.filter))
        });
        if !is_followed {
            continue;
        }
        if path.len() > MAX_DEPTH || paths.len() >= MAX_FOLLOWERS.min(left) {
            tracing::warn!(skill = %crate::skill::name(from), "the chain ends here: it is too long, or follows too many");
            continue;
        }
        paths.push(path);
    }
    let left = left.saturating_sub(paths.len()).checked_div(paths.len()).unwrap_or_default();
    (paths, left)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nostr::prelude::Timestamp;

    use super::*;
    use crate::kinds;
    use crate::skill::tests::{keys, signed};

    /// Skills with what each follows; nothing is a cron trigger.
    fn state(follows: &[(&str, &str)]) -> AgentState {
        state_of(&follows.iter().map(|(d, from)| (*d, vec![*from])).collect::<Vec<_>>())
    }

    fn state_of(follows: &[(&str, Vec<&str>)]) -> AgentState {
        let own = keys(1).public_key();
        let (mut events, mut entries) = (Vec::new(), Vec::new());
        for (d, from) in follows {
            let named = ["d", d];
            let triggers: Vec<[&str; 3]> = from.iter().map(|from| ["trigger", "chain", from]).collect();
            let mut tags: Vec<&[&str]> = triggers.iter().map(<[&str; 3]>::as_slice).collect();
            if from.contains(&"") {
                tags = vec![&["trigger", "cron"]];
            }
            tags.push(&named);
            events.push(signed(1, kinds::PUBLIC_SKILL, &tags, "Do."));
            entries.push(["a".to_owned(), format!("31123:{own}:{d}")]);
        }
        let entries: Vec<Vec<&str>> =
            entries.iter().map(|entry| entry.iter().map(String::as_str).collect()).collect();
        let entries: Vec<&[&str]> = entries.iter().map(Vec::as_slice).collect();
        events.push(signed(1, kinds::ADOPTION_LIST, &entries, ""));
        AgentState::build(&keys(1), &[keys(2).public_key()], None, events, Timestamp::from(1_803_902_400))
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
            left: MAX_RUNS,
        };
        Trigger::chain(chain, &cron, Timestamp::from(0))
    }

    #[test]
    fn each_skill_that_ran_and_is_followed_starts_one_run_and_no_skill_runs_twice_in_a_chain() {
        let state = state(&[("a", ""), ("b", "a"), ("c", "a"), ("a2", "b"), ("self", "self"), ("d", "")]);
        let paths = |path: &[&str], ran: &[&str]| {
            let ran: Vec<String> = ran.iter().map(|d| (*d).to_owned()).collect();
            let (paths, _) = super::paths(&after(path), &state, &ran);
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
    fn skills_that_follow_one_another_crosswise_have_a_bounded_number_of_runs() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let crosswise: Vec<(&str, &str)> =
            names.iter().flat_map(|d| names.iter().map(move |from| (*d, *from))).collect();
        let mut of_skill: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        crosswise.iter().for_each(|(d, from)| of_skill.entry(*d).or_default().push(*from));
        let state = state_of(&of_skill.into_iter().collect::<Vec<_>>());
        let mut runs = vec![after(&[])];
        let mut at = 0;
        while let Some(trigger) = runs.get(at).cloned() {
            let (paths, left) = super::paths(&trigger, &state, &names.map(str::to_owned));
            for path in paths {
                let from = path.last().cloned().unwrap();
                let chain = Chain { from, run: at.to_string(), final_response: String::new(), path, left };
                runs.push(Trigger::chain(chain, &trigger, Timestamp::from(0)));
            }
            at += 1;
        }
        assert!((9..=1 + MAX_RUNS).contains(&runs.len()), "{}", runs.len());
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
