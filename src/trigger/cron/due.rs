//! What is due at a tick, and what was missed.
//!
//! A book has for each schedule how far its instants are dealt with. Of those since then the newest runs, if it is within the
//! grace; all others are *missed*: written down, and never run. So whoever was away for an hour gets one run of a schedule of
//! every minute and not sixty, and a morning's briefing does not come at midnight.
//!
//! A schedule that is new begins now: what it would have been due at before is not due. That holds for a new skill, an
//! edited one and a new store alike. While nothing is due the book stays as it is, but for once a day.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::time::Duration;

use nostr::prelude::{PublicKey, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Schedule, normalise};
use crate::skill::{Skill, SkillTrigger, TriggerFilter};

/// The most schedules that are kept: their book is one row.
pub const MAX_SCHEDULES: usize = 500;

/// The most entries of missed instants that are kept: older ones make way.
pub const MAX_MISSED: usize = 20;

/// Up to so many missed instants are counted one by one; it is told that there are "so many or more".
pub const MAX_COUNTED: u32 = 1000;

/// Instants of a schedule that are missed within so long of each other are one entry: seconds.
const ONE_ENTRY: u64 = 24 * 60 * 60;

/// After so many seconds a schedule of which nothing was due counts as dealt with: what is looked through stays short.
const LOOKED_THROUGH: u64 = 24 * 60 * 60;

/// How far the instants of each schedule are dealt with, and what was missed. A clear row holds it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// The last instant that was dealt with, or a time up to which there was none: Unix seconds.
    schedules: BTreeMap<String, u64>,
    /// The last that was missed, the newest at the end.
    #[serde(default)]
    pub missed: Vec<Missed>,
}

/// Instants of a schedule that passed without a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// The expression, as [`normalise`] has it.
    pub schedule: String,
    /// The first of them.
    pub first: Timestamp,
    /// The last of them.
    pub last: Timestamp,
    /// How many; [`MAX_COUNTED`] of one outage stands for as many or more.
    pub count: u32,
}

/// An instant that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The expression, as [`normalise`] has it.
    pub schedule: String,
    /// The minute that it names.
    pub at: Timestamp,
    /// Whether it stands for a time that its day does not have, because the clock was set forward.
    pub is_shifted: bool,
}

/// A schedule with its expression, as [`normalise`] has it.
pub type Named = (String, Schedule);

/// The most schedules of one skill that count: whoever wrote it may be somebody else, and each costs runs.
const MAX_PER_SKILL: usize = 8;

/// The distinct schedules of enabled skills, in the order of the skills, `agent`'s own before those of others, and of each
/// skill the first eight: those that may be due. A cron trigger without one joins the runs of others and makes none.
#[must_use]
pub fn schedules(skills: &[Skill], agent: PublicKey) -> Vec<Named> {
    let enabled = || skills.iter().filter(|skill| skill.enabled);
    let own = enabled().filter(|skill| skill.author() == agent);
    let skills = own.chain(enabled().filter(|skill| skill.author() != agent));
    let expression = |trigger: &SkillTrigger| match &trigger.filter {
        TriggerFilter::Cron(Some(expression)) => Some(normalise(expression)),
        _ => None,
    };
    let expressions =
        skills.flat_map(|skill| skill.triggers.iter().filter_map(expression).take(MAX_PER_SKILL));
    let mut known = BTreeSet::new();
    let distinct = expressions.filter(|expression| known.insert(expression.clone()));
    let read =
        distinct.filter_map(|expression| Some((expression.clone(), Schedule::parse(&expression).ok()?)));
    read.collect()
}

impl Book {
    /// The book as it is after a tick at `now`, and what is due then, the earliest first. Of `schedules` at most `limit` are
    /// due; the others are as they were, and due for whoever asks again.
    #[must_use]
    pub fn advance(
        &self,
        schedules: &[Named],
        now: Timestamp,
        grace: Duration,
        limit: usize,
    ) -> (Self, Vec<Due>) {
        let mut book = self.closed();
        let mut due = Vec::new();
        for (expression, schedule) in schedules {
            let known = self.schedules.get(expression).copied();
            let dealt_with = match known.filter(|_| due.len() < limit) {
                None => known.unwrap_or(now.as_secs()),
                Some(since) => match Passed::of(schedule, Timestamp::from(since), now) {
                    None if since.saturating_add(LOOKED_THROUGH) < now.as_secs() => now.as_secs(),
                    None => since,
                    Some(Passed { first, newest }) => {
                        let is_due = newest + grace >= minute(now);
                        due.extend(is_due.then(|| Due::of(expression, schedule, newest)));
                        let last = if is_due { schedule.last_before(newest) } else { Some(newest) };
                        last.filter(|last| *last >= first)
                            .map(|last| Missed::of(expression, schedule, first, last))
                            .into_iter()
                            .for_each(|missed| book.note(missed));
                        newest.as_secs()
                    }
                },
            };
            book.schedules.insert(expression.clone(), dealt_with);
        }
        due.sort_by_key(|due| due.at);
        (book, due)
    }

    /// The book of an agent that is not at work: whatever comes until it is, is not due then.
    #[must_use]
    pub fn closed(&self) -> Self {
        Self { schedules: BTreeMap::new(), missed: self.missed.clone() }
    }

    fn note(&mut self, missed: Missed) {
        let known = self.missed.iter().position(|known| {
            known.schedule == missed.schedule
                && known.last.as_secs().saturating_add(ONE_ENTRY) >= missed.first.as_secs()
        });
        let missed = match known.map(|at| self.missed.remove(at)) {
            Some(known) => {
                Missed { first: known.first, count: known.count.saturating_add(missed.count), ..missed }
            }
            None => missed,
        };
        self.missed.push(missed);
        let over = self.missed.len().saturating_sub(MAX_MISSED);
        self.missed.drain(..over);
    }
}

/// The first and the last instant of a schedule that have passed since it was looked at.
struct Passed {
    first: Timestamp,
    newest: Timestamp,
}

impl Passed {
    /// `None` where there are none: that of most ticks.
    fn of(schedule: &Schedule, since: Timestamp, now: Timestamp) -> Option<Self> {
        let first = schedule.next_within(since, now)?;
        let newest = schedule.last_before(now + 1).unwrap_or(first);
        Some(Self { first, newest })
    }
}

impl Due {
    fn of(expression: &str, schedule: &Schedule, at: Timestamp) -> Self {
        Self { schedule: expression.to_owned(), at, is_shifted: schedule.is_shifted(at) }
    }
}

impl Missed {
    /// Those from `first` to `last`.
    fn of(expression: &str, schedule: &Schedule, first: Timestamp, last: Timestamp) -> Self {
        let after = |at: &Timestamp| schedule.next_within(*at, last);
        let count = iter::successors(Some(first), after).zip(0..MAX_COUNTED).count();
        let count = u32::try_from(count).unwrap_or(MAX_COUNTED);
        Self { schedule: expression.to_owned(), first, last, count }
    }
}

/// The minute that a moment is in.
fn minute(at: Timestamp) -> Timestamp {
    Timestamp::from(at.as_secs() - at.as_secs() % 60)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod year;
