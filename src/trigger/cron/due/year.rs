//! A year of minutes, with ticks that come twice, not at all, or die: each instant once, against the calendar itself.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::{Date, Time};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use nostr::prelude::Timestamp;

use super::tests::named;
use super::*;

/// The first minute of 2027, and the one behind its last: Unix minutes, UTC.
const YEAR: std::ops::Range<u64> = 29_979_360..30_504_960;

const GRACE_MINUTES: u64 = 15;

/// What the calendar says of a schedule, with nothing of the code under test.
struct Plan {
    fields: &'static str,
    hours: Vec<i8>,
    minutes: Vec<i8>,
    follows_real_time: bool,
}

fn plans() -> Vec<Plan> {
    let plan = |fields, hours, minutes, follows_real_time| Plan { fields, hours, minutes, follows_real_time };
    vec![
        plan("30 2 * * *", vec![2], vec![30], false),
        plan("0,15,45 1-3 * * *", vec![1, 2, 3], vec![0, 15, 45], false),
        plan("*/20 * * * *", (0..24).collect(), vec![0, 20, 40], true),
    ]
}

/// The minutes of the year at which the plan is due: a fixed time of a day is when the clock on the wall first reaches it.
fn instants(plan: &Plan, zone: &TimeZone) -> Vec<u64> {
    let mut found = BTreeSet::new();
    let mut reached: BTreeSet<(Date, Time)> = BTreeSet::new();
    let mut today = None;
    for minute in YEAR.start - 3 * 24 * 60..YEAR.end {
        let local =
            zone.to_datetime(jiff::Timestamp::from_second(i64::try_from(minute).unwrap() * 60).unwrap());
        let (date, time) = (local.date(), local.time());
        if plan.follows_real_time {
            let is_named = plan.hours.contains(&time.hour()) && plan.minutes.contains(&time.minute());
            found.extend((is_named).then_some(minute));
        } else {
            if today != Some(date) {
                today = Some(date);
                let times = plan.hours.iter().flat_map(|hour| {
                    plan.minutes.iter().map(|minute| Time::new(*hour, *minute, 0, 0).unwrap())
                });
                // Of a day that the clock meets twice, what it has reached stays reached.
                reached.extend(times.map(|time| (date, time)));
            }
            while reached.first().is_some_and(|at| *at <= (date, time)) {
                reached.pop_first();
                found.insert(minute);
            }
        }
    }
    found.into_iter().filter(|minute| YEAR.contains(minute)).collect()
}

/// The same numbers each time.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Whose runs and misses each schedule came to.
type Account = BTreeMap<String, (Vec<u64>, u64)>;

fn unix_minute(at: Timestamp) -> u64 {
    assert_eq!(at.as_secs() % 60, 0);
    at.as_secs() / 60
}

/// A year of ticks, over a store that holds one book and lets the first writer win.
fn a_year_of_ticks(zone: &str) {
    let rules = TimeZoneDatabase::bundled().get(zone).unwrap();
    let plans = plans();
    let expressions: Vec<String> = plans.iter().map(|plan| format!("TZ={zone} {}", plan.fields)).collect();
    let schedules = named(&expressions.iter().map(String::as_str).collect::<Vec<_>>());
    let planned: Vec<Vec<u64>> = plans.iter().map(|plan| instants(plan, &rules)).collect();
    let grace = Duration::from_secs(GRACE_MINUTES * 60);
    let at = |minute: u64, second: u64| Timestamp::from(minute * 60 + second);

    let mut dice = Dice(zone.len() as u64);
    let mut book = Book::default().advance(&schedules, at(YEAR.start, 0) - 1, grace, 1).0;
    let (mut account, mut expected) = (Account::new(), Account::new());
    let (mut last, mut off_until) = (YEAR.start - 1, 0);
    for minute in YEAR {
        if dice.roll(400) == 0 {
            off_until = minute + dice.roll(90);
        }
        // The last minutes have a tick that lives, so that all is accounted for.
        let is_over = minute + 1 == 30_504_960;
        if (minute < off_until || dice.roll(20) == 0) && !is_over {
            continue;
        }
        let now = at(minute, dice.roll(60));
        let (next, due) = book.advance(&schedules, now, grace, usize::MAX);
        // Killed before the write: nothing of it is there.
        if dice.roll(20) == 0 && !is_over {
            continue;
        }
        let mut write = |next: Book, due: Vec<Due>| {
            for missed in &next.missed {
                account.entry(missed.schedule.clone()).or_default().1 += u64::from(missed.count);
            }
            for due in due {
                account.entry(due.schedule).or_default().0.push(unix_minute(due.at));
            }
            Book { missed: Vec::new(), ..next }
        };
        book = write(next, due);
        // Another tick of the same minute, which finds what the first one wrote.
        if dice.roll(10) == 0 {
            let (next, due) = book.advance(&schedules, now, grace, usize::MAX);
            book = write(next, due);
        }
        for ((name, _), planned) in schedules.iter().zip(&planned) {
            let passed = &planned
                [planned.partition_point(|at| *at <= last)..planned.partition_point(|at| *at <= minute)];
            let Some(newest) = passed.last() else { continue };
            let (ran, missed) = expected.entry(name.clone()).or_default();
            let runs = newest + GRACE_MINUTES >= minute;
            ran.extend(runs.then_some(*newest));
            *missed += passed.len() as u64 - u64::from(runs);
        }
        last = minute;
    }
    for ((name, _), planned) in schedules.iter().zip(&planned) {
        let (ran, missed) = &account[name];
        assert_eq!((ran, missed), (&expected[name].0, &expected[name].1), "{name}");
        assert_eq!(ran.len() as u64 + missed, planned.len() as u64, "{name}");
        assert!(!ran.is_empty() && ran.is_sorted_by(|one, next| one < next), "{name}");
    }
    // Not every minute's luck is the same: some were missed, and most were not.
    let missed: u64 = account.values().map(|(_, missed)| missed).sum();
    assert!((100..5_000).contains(&missed), "{missed}");
}

#[test]
fn each_instant_of_a_year_in_new_york_is_dealt_with_once() {
    a_year_of_ticks("America/New_York");
}

#[test]
fn each_instant_of_a_year_in_berlin_is_dealt_with_once() {
    a_year_of_ticks("Europe/Berlin");
}

#[test]
fn each_instant_of_a_year_on_lord_howe_is_dealt_with_once() {
    a_year_of_ticks("Australia/Lord_Howe");
}

#[test]
fn each_instant_of_a_year_in_utc_is_dealt_with_once() {
    a_year_of_ticks("UTC");
}
