//! How often events may fire a skill in a UTC day (`["max_runs","N"]`): counted in the write that stores the trigger.
//!
//! What is over the limit is dropped and leaves no row of its own, since strangers could make the agent write one per event:
//! its id goes into the set of seen ones, and the admin is told once.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::counter::{DAY_SECS, forgotten_at};
use crate::error::Error;
use crate::record::{self, FORMAT, RunRecord, read_clear, to_json};
use crate::store::{Expect, StoreError, Write, keys};
use crate::sweep::subscriptions::{Subscriber, Subscriptions};
use crate::trigger::{Source, Trigger};

/// How often a trigger is counted anew where others counted at the same time.
const ROUNDS: usize = 20;

/// What was counted on one day, as read.
#[derive(Debug, Clone)]
pub(crate) struct Today {
    /// Days since 1970.
    day: u64,
    /// What the row must be for the next write.
    expect: Expect,
    /// By the skill's address.
    runs: BTreeMap<String, u32>,
}

/// The row.
#[derive(Serialize, Deserialize)]
struct TodayRow {
    format: u32,
    runs: BTreeMap<String, u32>,
}

/// What became of a trigger.
#[derive(Debug)]
pub(crate) struct Counted {
    /// Its run, and the trigger as it was stored; `None` where it has no skill left.
    pub(crate) stored: Option<(RunRecord, Trigger)>,
    /// The skills that ran as often as they may.
    pub(crate) over: Vec<Subscriber>,
}

impl Today {
    /// Reads the counter of this day.
    ///
    /// # Errors
    /// [`Error::Transient`] where the store is unavailable; [`Error::Newer`] where the row is a newer binary's.
    pub(crate) async fn read(app: &App) -> Result<Self, Error> {
        let day = app.clock.now().as_secs() / DAY_SECS;
        let rows = app.store.read(&[keys::skill_runs(day)]).await?;
        match rows.iter().flatten().next() {
            None => Ok(Self { day, expect: Expect::Absent, runs: BTreeMap::new() }),
            Some(row) => {
                let TodayRow { runs, .. } = read_clear(row)?;
                Ok(Self { day, expect: Expect::Version(row.version), runs })
            }
        }
    }

    /// Stores the trigger of an event for those of its skills that may run once more, and counts them, in one write. If
    /// nobody begins it, it is due at `due_at` (Unix seconds). One that is stored already counts no second time.
    ///
    /// # Errors
    /// As [`record::store`].
    pub(crate) async fn store(
        &mut self,
        app: &App,
        subscriptions: &Subscriptions,
        trigger: &Trigger,
        due_at: u64,
    ) -> Result<Counted, Error> {
        let Source::Subscription(subscription) = &trigger.source else {
            return Err(Error::Permanent("only what an event fires is counted here".to_owned()));
        };
        let skills = subscription.fires.iter().flatten().filter_map(|skill| subscriptions.subscriber(skill));
        let skills: Vec<&Subscriber> = skills.collect();
        for _ in 0..ROUNDS {
            let (over, fired): (Vec<&Subscriber>, Vec<&Subscriber>) =
                skills.iter().partition(|skill| self.runs_of(&skill.skill) >= skill.runs_per_day);
            let over = over.into_iter().cloned().collect();
            if fired.is_empty() {
                return Ok(Counted { stored: None, over });
            }
            let fired: Vec<String> = fired.into_iter().map(|skill| skill.skill.clone()).collect();
            let counted = self.with(&fired);
            let trigger = trigger.clone().firing(fired);
            let (record, mut writes) = record::storing(app, &trigger, due_at)?;
            writes.push(counted.write()?);
            match app.store.write(&writes).await {
                Ok(()) => {
                    self.runs = counted.runs;
                    self.expect = Expect::Version(self.expect.written());
                    return Ok(Counted { stored: Some((record, trigger)), over });
                }
                Err(StoreError::Conflict { key, .. }) if key == keys::skill_runs(self.day) => {
                    *self = Self::read(app).await?;
                }
                Err(StoreError::Conflict { current: Some(row), .. }) => {
                    return Ok(Counted { stored: Some((read_clear(&row)?, trigger)), over });
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Transient("too many events are counted at the same time".to_owned()))
    }

    fn runs_of(&self, skill: &str) -> u32 {
        self.runs.get(skill).copied().unwrap_or_default()
    }

    fn with(&self, skills: &[String]) -> Self {
        let mut counted = self.clone();
        for skill in skills {
            let runs = counted.runs.entry(skill.clone()).or_default();
            *runs = runs.saturating_add(1);
        }
        counted
    }

    fn write(&self) -> Result<Write, Error> {
        let value = to_json(&TodayRow { format: FORMAT, runs: self.runs.clone() })?;
        Ok(Write::put(keys::skill_runs(self.day), self.expect, value, Some(forgotten_at(self.day))))
    }
}
