use super::*;
use crate::clock::parse_utc;
use crate::tools::time::iso;

fn at(text: &str) -> Timestamp {
    parse_utc(text).unwrap()
}

fn schedule(expression: &str) -> Schedule {
    Schedule::parse(expression).unwrap()
}

/// The instants after `from`, one a line, those marked that stand for a time that does not exist.
fn next(expression: &str, from: &str, count: usize) -> String {
    let schedule = schedule(expression);
    let instants = std::iter::successors(schedule.next_after(at(from)), |at| schedule.next_after(*at));
    let told =
        |at: Timestamp| format!("{}{}", iso(at), if schedule.is_shifted(at) { " shifted" } else { "" });
    instants.take(count).map(told).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_fixed_time_that_does_not_exist_is_at_the_first_instant_after_the_gap() {
    insta::assert_snapshot!(next("TZ=America/New_York 40 2 * * *", "2027-03-13T06:00:00Z", 3), @r"
    2027-03-13T07:40:00Z
    2027-03-14T07:00:00Z shifted
    2027-03-15T06:40:00Z
    ");
    insta::assert_snapshot!(next("TZ=Europe/Madrid 40 2 * * *", "2027-03-27T12:00:00Z", 2), @r"
    2027-03-28T01:00:00Z shifted
    2027-03-29T00:40:00Z
    ");
    // Midnight itself is in the gap.
    insta::assert_snapshot!(next("TZ=America/Santiago @daily", "2027-09-04T12:00:00Z", 2), @r"
    2027-09-05T04:00:00Z shifted
    2027-09-06T03:00:00Z
    ");
    // Half an hour only.
    insta::assert_snapshot!(next("TZ=Australia/Lord_Howe 15 2 * * *", "2027-10-02T00:00:00Z", 2), @r"
    2027-10-02T15:30:00Z shifted
    2027-10-03T15:15:00Z
    ");
    // A day that a zone left out.
    insta::assert_snapshot!(next("TZ=Pacific/Apia 0 12 30 12 *", "2011-12-01T00:00:00Z", 2), @r"
    2011-12-30T10:00:00Z shifted
    2012-12-29T22:00:00Z
    ");
}

#[test]
fn several_fixed_times_in_one_gap_are_one_instant() {
    insta::assert_snapshot!(next("TZ=America/New_York 0,20,40 2,3 * * *", "2027-03-14T06:30:00Z", 4), @r"
    2027-03-14T07:00:00Z
    2027-03-14T07:20:00Z
    2027-03-14T07:40:00Z
    2027-03-15T06:00:00Z
    ");
}

#[test]
fn a_fixed_time_that_exists_twice_is_at_the_first_of_both() {
    insta::assert_snapshot!(next("TZ=America/New_York 0,30 1 * * *", "2027-11-07T03:00:00Z", 3), @r"
    2027-11-07T05:00:00Z
    2027-11-07T05:30:00Z
    2027-11-08T06:00:00Z
    ");
    insta::assert_snapshot!(next("TZ=Australia/Lord_Howe 45 1 * * *", "2027-04-03T00:00:00Z", 2), @r"
    2027-04-03T14:45:00Z
    2027-04-04T15:15:00Z
    ");
}

#[test]
fn a_star_in_minute_or_hour_follows_real_time() {
    insta::assert_snapshot!(next("TZ=America/New_York */30 1 * * *", "2027-11-07T03:00:00Z", 5), @r"
    2027-11-07T05:00:00Z
    2027-11-07T05:30:00Z
    2027-11-07T06:00:00Z
    2027-11-07T06:30:00Z
    2027-11-08T06:00:00Z
    ");
    insta::assert_snapshot!(next("TZ=America/New_York 40 * * * *", "2027-03-14T06:00:00Z", 2), @r"
    2027-03-14T06:40:00Z
    2027-03-14T07:40:00Z
    ");
    // The clock is set forward by half an hour: 02:15 does not exist, 02:45 does.
    insta::assert_snapshot!(next("TZ=Australia/Lord_Howe 15,45 * * * *", "2027-10-02T14:45:00Z", 3), @r"
    2027-10-02T15:15:00Z
    2027-10-02T15:45:00Z
    2027-10-02T16:15:00Z
    ");
}

#[test]
fn of_two_days_that_are_both_given_either_counts() {
    insta::assert_snapshot!(next("0 9 13 * FRI", "2027-08-01T00:00:00Z", 5), @r"
    2027-08-06T09:00:00Z
    2027-08-13T09:00:00Z
    2027-08-20T09:00:00Z
    2027-08-27T09:00:00Z
    2027-09-03T09:00:00Z
    ");
    insta::assert_snapshot!(next("0 9 */2 * MON", "2027-08-01T00:00:00Z", 3), @r"
    2027-08-09T09:00:00Z
    2027-08-23T09:00:00Z
    2027-09-13T09:00:00Z
    ");
    insta::assert_snapshot!(next("0 9 * * 0", "2027-08-01T09:00:00Z", 1), @"2027-08-08T09:00:00Z");
    assert_eq!(next("0 9 * * 7", "2027-08-01T09:00:00Z", 9), next("0 9 * * SUN", "2027-08-01T09:00:00Z", 9));
}

#[test]
fn days_that_are_rare_are_found() {
    insta::assert_snapshot!(next("0 0 29 2 *", "2096-03-01T00:00:00Z", 1), @"2104-02-29T00:00:00Z");
    insta::assert_snapshot!(next("0 0 * 2 MON#5", "2080-03-01T00:00:00Z", 1), @"2112-02-29T00:00:00Z");
    insta::assert_snapshot!(next("0 0 L * *", "2027-02-01T00:00:00Z", 1), @"2027-02-28T00:00:00Z");
    assert_eq!(
        schedule("0 0 29 2 *").last_before(at("2104-02-29T00:00:00Z")),
        Some(at("2096-02-29T00:00:00Z"))
    );
}

#[test]
fn what_is_next_and_what_was_last_agree() {
    for expression in [
        "TZ=America/New_York 0,30 1-3 * * *",
        "TZ=Europe/Berlin */20 2 * * *",
        "TZ=Australia/Lord_Howe 10,40 * * * *",
        "TZ=America/Havana 15 0 * * *",
        "7 7 * * 1-5",
    ] {
        let schedule = schedule(expression);
        let (mut from, end) = (at("2027-01-01T00:00:00Z"), at("2028-01-01T00:00:00Z"));
        while let Some(next) = schedule.next_within(from, end) {
            assert!(next > from, "{expression} after {}", iso(from));
            assert_eq!(schedule.last_before(next + 1), Some(next), "{expression} {}", iso(next));
            let before = schedule.last_before(next);
            assert!(
                before.is_none_or(|before| schedule.next_after(before) == Some(next)),
                "{expression} {}",
                iso(next)
            );
            from = next;
        }
        assert!(from > end - 4 * 24 * 60 * 60, "{expression}");
    }
}

#[test]
fn any_moment_is_asked_without_fear() {
    let schedule = schedule("TZ=Europe/Berlin 0 9 * * *");
    for secs in [0, u64::from(u32::MAX), 253_402_300_000, u64::MAX / 1000, u64::MAX] {
        let at = Timestamp::from(secs);
        let _ = (schedule.next_after(at), schedule.last_before(at), schedule.is_shifted(at));
        assert_eq!(schedule.next_within(at, Timestamp::from(0)), None);
    }
}
