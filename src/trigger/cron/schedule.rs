//! The instants that an expression names, in its zone.
//!
//! Twice a year a clock on the wall skips some times and shows others twice. A *fixed* time (neither minute nor hour begins
//! with a star) that is skipped is at the first instant after the gap, and one that is shown twice is at the first of both: a
//! daily run is daily. Anything else follows real time: each minute that exists, and each as often as it is there.

use std::ops::Range;

use croner::CronPattern;
use croner::time::Weekday;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};
use nostr::prelude::Timestamp;

use super::fields::Fields;
use super::{NO_ZONE, split};

const HOUR: i64 = 60 * 60;
const DAY: i64 = 24 * HOUR;

/// The longest expression, in bytes: ranges and steps say more than lists.
const MAX_BYTES: usize = 500;

/// How many days are looked through: February has five Mondays each 28 years, and 40 where a leap year is left out.
const MAX_DAYS: i64 = 41 * 366;

/// An expression, read, with the zone that it is meant in.
#[derive(Debug, Clone)]
pub struct Schedule {
    pattern: CronPattern,
    /// Seconds of the day, and of the hour.
    hours: Vec<i64>,
    minutes: Vec<i64>,
    follows_real_time: bool,
    zone: TimeZone,
}

impl Schedule {
    /// Reads an expression.
    ///
    /// # Errors
    /// What is wrong and what to do, as the rest of a warning.
    pub fn parse(expression: &str) -> Result<Self, &'static str> {
        let expression = super::normalise(expression);
        if expression.len() > MAX_BYTES {
            return Err("is longer than 500 characters; use ranges and steps, or several triggers");
        }
        let (zone, fields) = split(&expression);
        let Fields { pattern, follows_real_time } = Fields::read(&fields.collect::<Vec<_>>())?;
        let zone = match zone {
            Some(name) => zone_of(name).ok_or(NO_ZONE)?,
            None => TimeZone::UTC,
        };
        let hours = (0..24_u32).filter(|hour| pattern.hour_match(*hour).unwrap_or_default());
        let hours = hours.map(|hour| i64::from(hour) * HOUR).collect();
        let minutes = (0..60_u32).filter(|minute| pattern.minute_match(*minute).unwrap_or_default());
        let minutes = minutes.map(|minute| i64::from(minute) * 60).collect();
        Ok(Self { pattern, hours, minutes, follows_real_time, zone })
    }

    /// The first instant after `at`; `None` where the next forty years have none.
    #[must_use]
    pub fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        let first = self.first_day(seconds(at)?)?;
        self.first_of(first..first.saturating_add(MAX_DAYS), at)
    }

    /// The first instant after `at` and no later than `until`.
    #[must_use]
    pub fn next_within(&self, at: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let days = self.first_day(seconds(at)?)?..self.last_day(seconds(until)?)?.saturating_add(1);
        self.first_of(days, at).filter(|found| *found <= until)
    }

    fn first_of(&self, mut days: Range<i64>, after: Timestamp) -> Option<Timestamp> {
        let after = seconds(after)?;
        let found = days.find_map(|day| if self.names(day) { self.first_on(day, after) } else { None })?;
        u64::try_from(found).ok().map(Timestamp::from)
    }

    /// The first day that may have an instant after `at`: a clock that is about to be set back may show the day before again.
    fn first_day(&self, at: i64) -> Option<i64> {
        let offset = self.offset(at)?.min(self.offset(at.checked_add(DAY)?)?);
        Some(at.saturating_add(offset).div_euclid(DAY))
    }

    /// The last day that may have an instant before `at`: the clock may have been set back since.
    fn last_day(&self, at: i64) -> Option<i64> {
        let offset = self.offset(at)?.max(self.offset(at.checked_sub(DAY)?)?);
        Some(at.saturating_add(offset).div_euclid(DAY))
    }

    /// The last instant before `at`; `None` where the forty years before have none.
    #[must_use]
    pub fn last_before(&self, at: Timestamp) -> Option<Timestamp> {
        let at = seconds(at)?;
        let last = self.last_day(at)?;
        let mut days = (last.saturating_sub(MAX_DAYS)..=last).rev();
        let found = days.find_map(|day| if self.names(day) { self.last_on(day, at) } else { None })?;
        u64::try_from(found).ok().map(Timestamp::from)
    }

    /// Whether an instant of the schedule stands for a time that its day does not have.
    #[must_use]
    pub fn is_shifted(&self, at: Timestamp) -> bool {
        let local = seconds(at).and_then(|at| Some(at.saturating_add(self.offset(at)?)));
        let is_named = |local: i64| {
            let time = local.rem_euclid(DAY);
            let (hour, minute) = (time - time.rem_euclid(HOUR), time.rem_euclid(HOUR));
            self.hours.contains(&hour) && self.minutes.contains(&minute)
        };
        !local.is_some_and(is_named)
    }

    /// The offset from UTC at an instant, in seconds.
    fn offset(&self, at: i64) -> Option<i64> {
        let at = jiff::Timestamp::from_second(at).ok()?;
        Some(i64::from(self.zone.to_offset(at).seconds()))
    }

    /// Whether the expression names a day, counted since 1970.
    fn names(&self, day: i64) -> bool {
        let Some(date) = civil(day.saturating_mul(DAY)).map(|civil| civil.date()) else { return false };
        let number = |number: i8| u32::from(number.unsigned_abs());
        let weekday = Weekday::from_days_from_sunday(number(date.weekday().to_sunday_zero_offset()));
        let (year, month, day) = (i32::from(date.year()), number(date.month()), number(date.day()));
        let is_month = self.pattern.month_match(month).unwrap_or_default();
        is_month && self.pattern.day_match(year, month, day, weekday).unwrap_or_default()
    }

    fn first_on(&self, day: i64, after: i64) -> Option<i64> {
        match self.steady_midnight(day) {
            Some(midnight) => {
                let hours = self.hours.iter().map(|hour| midnight.saturating_add(*hour));
                let hours = hours.filter(|hour| hour.saturating_add(HOUR) > after);
                let times = hours.flat_map(|hour| self.minutes.iter().map(move |m| hour.saturating_add(*m)));
                times.into_iter().find(|time| *time > after)
            }
            None => self.on_changing(day).into_iter().find(|time| *time > after),
        }
    }

    fn last_on(&self, day: i64, before: i64) -> Option<i64> {
        match self.steady_midnight(day) {
            Some(midnight) => {
                let hours = self.hours.iter().rev().map(|hour| midnight.saturating_add(*hour));
                let hours = hours.filter(|hour| *hour < before);
                let times =
                    hours.flat_map(|hour| self.minutes.iter().rev().map(move |m| hour.saturating_add(*m)));
                times.into_iter().find(|time| *time < before)
            }
            None => self.on_changing(day).into_iter().rev().find(|time| *time < before),
        }
    }

    /// When a day begins whose clock does not change: that of most days. Its neighbours' does not change either, so that
    /// no offset of a zone can hide a change.
    fn steady_midnight(&self, day: i64) -> Option<i64> {
        let midnight = day.checked_mul(DAY)?;
        let before = self.offset(midnight.checked_sub(DAY)?)?;
        let after = self.offset(midnight.checked_add(2 * DAY)?)?;
        (before == after).then_some(midnight.saturating_sub(before))
    }

    /// The instants of a day whose clock may change, in order.
    fn on_changing(&self, day: i64) -> Vec<i64> {
        let midnight = day.saturating_mul(DAY);
        let times = self.hours.iter().flat_map(|hour| self.minutes.iter().map(move |minute| hour + minute));
        let mut instants: Vec<i64> =
            times.flat_map(|time| self.resolve(midnight.saturating_add(time))).flatten().collect();
        instants.sort_unstable();
        instants.dedup();
        instants
    }

    /// When the clock on the wall shows `local`: seconds as though it were UTC.
    fn resolve(&self, local: i64) -> [Option<i64>; 2] {
        let Some(civil) = civil(local) else { return [None, None] };
        let at = |offset: Offset| local.saturating_sub(i64::from(offset.seconds()));
        match self.zone.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => [Some(at(offset)), None],
            AmbiguousOffset::Fold { before, after } => {
                [Some(at(before)), self.follows_real_time.then(|| at(after))]
            }
            AmbiguousOffset::Gap { .. } if self.follows_real_time => [None, None],
            AmbiguousOffset::Gap { after, .. } => [self.change_after(at(after)), None],
        }
    }

    /// When the clock is changed next.
    fn change_after(&self, at: i64) -> Option<i64> {
        let at = jiff::Timestamp::from_second(at).ok()?;
        self.zone.following(at).next().map(|change| change.timestamp().as_second())
    }
}

fn seconds(at: Timestamp) -> Option<i64> {
    i64::try_from(at.as_secs()).ok()
}

/// Date and time of `local`: seconds as though it were UTC.
fn civil(local: i64) -> Option<jiff::civil::DateTime> {
    Some(Offset::UTC.to_datetime(jiff::Timestamp::from_second(local).ok()?))
}

/// A time zone by its name, in any case.
pub(super) fn zone_of(name: &str) -> Option<TimeZone> {
    // That of the library, never the machine's: the same input has the same result everywhere.
    TimeZoneDatabase::bundled().get(name).ok()
}

#[cfg(test)]
mod tests;
