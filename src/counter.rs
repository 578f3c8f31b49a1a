//! What was let happen on a day, by its hours: one row of the store. Who counts reads it, decides, and writes it back if
//! nobody counted meanwhile.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::record::{FORMAT, read_clear, to_json};
use crate::store::{Expect, Key, Row, Write};

/// Seconds.
pub(crate) const HOUR_SECS: u64 = 60 * 60;

/// Hours of a day.
pub(crate) const HOURS_PER_DAY: u64 = 24;

/// Seconds.
pub(crate) const DAY_SECS: u64 = HOURS_PER_DAY * HOUR_SECS;

/// When what was counted on a day may be forgotten: a day after its end. Unix seconds.
pub(crate) fn forgotten_at(day: u64) -> u64 {
    day.saturating_add(2).saturating_mul(DAY_SECS)
}

/// A day's counter and what its row must be for the next write. Hours count from 1970.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    expect: Expect,
    hours: BTreeMap<u64, u32>,
}

/// The row.
#[derive(Serialize, Deserialize)]
struct CounterRow {
    format: u32,
    hours: BTreeMap<u64, u32>,
}

impl Counter {
    /// The counter in `row`; one without a row has counted nothing.
    ///
    /// # Errors
    /// [`Error::Newer`] where a newer binary wrote it, [`Error::Permanent`] where it is damaged.
    pub(crate) fn read(row: Option<Row>) -> Result<Self, Error> {
        let Some(row) = row else { return Ok(Self::default()) };
        let CounterRow { hours, .. } = read_clear(&row)?;
        Ok(Self { expect: Expect::Version(row.version), hours })
    }

    /// Of each hour of `day` the larger number.
    pub(crate) fn raise(&mut self, earlier: &Self, day: u64) {
        for (hour, count) in earlier.hours.iter().filter(|(hour, _)| **hour / HOURS_PER_DAY == day) {
            let known = self.hours.entry(*hour).or_default();
            *known = (*known).max(*count);
        }
    }

    pub(crate) fn of_hour(&self, hour: u64) -> u32 {
        self.hours.get(&hour).copied().unwrap_or_default()
    }

    /// The sum of its hours.
    pub(crate) fn of_day(&self) -> u32 {
        self.hours.values().fold(0, |sum: u32, hour| sum.saturating_add(*hour))
    }

    /// Counts one more, here alone.
    pub(crate) fn add(&mut self, hour: u64) {
        let count = self.hours.entry(hour).or_default();
        *count = count.saturating_add(1);
    }

    /// The write that puts it in the place of the row that was read.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it cannot be written.
    pub(crate) fn write(self, key: Key, day: u64) -> Result<Write, Error> {
        let value = to_json(&CounterRow { format: FORMAT, hours: self.hours })?;
        Ok(Write::put(key, self.expect, value, Some(forgotten_at(day))))
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self { expect: Expect::Absent, hours: BTreeMap::new() }
    }
}
