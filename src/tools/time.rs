//! `time`: our clock, for the model.

use async_trait::async_trait;
use nostr::prelude::Timestamp;
use serde_json::{Value, json};

use super::schema::{NoArguments, schema_of};
use super::{Class, Tool, ToolContext, ToolError};
use crate::trigger::Tier;

/// The tool.
pub(super) struct Time;

#[async_trait]
impl Tool for Time {
    fn name(&self) -> &'static str {
        "time"
    }

    fn description(&self) -> &'static str {
        "The current time, as ISO 8601 in UTC and in Unix seconds."
    }

    fn parameters(&self) -> Value {
        schema_of::<NoArguments>()
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn lowest_tier(&self) -> Tier {
        Tier::Stranger
    }

    fn is_variable(&self) -> bool {
        true
    }

    async fn call(&self, _arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        Ok(json!({"iso": iso(context.now), "unix": context.now.as_secs()}))
    }
}

/// A time as `2026-01-31T23:59:59Z`.
#[must_use]
pub fn iso(time: Timestamp) -> String {
    let (days, second) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Days since 1970 as year, month and day. Years are counted from March, so that the leap day is the last of its year
/// and the lengths of the months before it follow one rule.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // Day 0 is 0000-03-01. From a u64 of seconds there are far fewer days than overflow here.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        let table = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
        ];
        for (unix, expected) in table {
            assert_eq!(iso(Timestamp::from(unix)), expected);
        }
        assert!(iso(Timestamp::from(u64::MAX)).ends_with('Z'), "no time of an event is too large");
    }
}
