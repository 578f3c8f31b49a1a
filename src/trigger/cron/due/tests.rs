use super::*;
use crate::clock::parse_utc;
use crate::tools::time::iso;

const GRACE: Duration = Duration::from_secs(15 * 60);

pub(super) fn named(expressions: &[&str]) -> Vec<Named> {
    expressions
        .iter()
        .map(|expression| (normalise(expression), Schedule::parse(expression).unwrap()))
        .collect()
}

/// One tick after another, over the same schedules.
struct Ticks {
    book: Book,
    schedules: Vec<Named>,
    limit: usize,
}

impl Ticks {
    fn new(first: &str, expressions: &[&str]) -> Self {
        let mut ticks = Self { book: Book::default(), schedules: named(expressions), limit: usize::MAX };
        assert_eq!(ticks.at(first), "");
        ticks
    }

    /// What is due at a tick, one a line.
    fn at(&mut self, now: &str) -> String {
        let (book, due) = self.book.advance(&self.schedules, parse_utc(now).unwrap(), GRACE, self.limit);
        self.book = book;
        let told = |due: &Due| {
            format!("{} {}{}", due.schedule, iso(due.at), if due.is_shifted { " shifted" } else { "" })
        };
        due.iter().map(told).collect::<Vec<_>>().join("\n")
    }

    /// What was missed, one a line.
    fn missed(&self) -> String {
        let told = |missed: &Missed| {
            format!("{} {} {}..{}", missed.schedule, missed.count, iso(missed.first), iso(missed.last))
        };
        self.book.missed.iter().map(told).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn a_daily_time_that_its_day_does_not_have_is_due_once_right_after_the_gap() {
    for (expression, from, minutes, due) in [
        (
            "TZ=America/New_York 40 2 * * *",
            "2027-03-14T06:00:00Z",
            25 * 60,
            "TZ=America/New_York 40 2 * * * 2027-03-14T07:00:00Z shifted\n\
             TZ=America/New_York 40 2 * * * 2027-03-15T06:40:00Z",
        ),
        (
            "TZ=Europe/Madrid 40 2 * * *",
            "2027-03-28T00:00:00Z",
            24 * 60,
            "TZ=Europe/Madrid 40 2 * * * 2027-03-28T01:00:00Z shifted",
        ),
        (
            "TZ=America/Santiago 0 0 * * *",
            "2027-09-05T03:30:00Z",
            23 * 60,
            "TZ=America/Santiago 0 0 * * * 2027-09-05T04:00:00Z shifted",
        ),
    ] {
        let mut ticks = Ticks::new(from, &[expression]);
        let start = parse_utc(from).unwrap();
        let told = (1..=minutes).map(|minute| ticks.at(&iso(start + minute * 60)));
        assert_eq!(told.filter(|told| !told.is_empty()).collect::<Vec<_>>().join("\n"), due);
        assert_eq!(ticks.missed(), "");
    }
}

#[test]
fn what_ran_is_not_due_again_however_many_ticks_there_are() {
    let mut ticks = Ticks::new("2027-03-01T11:00:00Z", &["TZ=Asia/Tokyo 0 21 * * *"]);
    assert_eq!(ticks.at("2027-03-01T12:00:03Z"), "TZ=Asia/Tokyo 0 21 * * * 2027-03-01T12:00:00Z");
    for again in
        ["2027-03-01T12:00:03Z", "2027-03-01T12:25:10Z", "2027-03-01T12:25:10Z", "2027-03-01T12:25:40Z"]
    {
        assert_eq!(ticks.at(again), "");
    }
    assert_eq!(ticks.missed(), "");
}

#[test]
fn after_an_outage_the_newest_within_the_grace_runs_and_the_rest_is_missed() {
    let hours = [
        "0 6", "30 6", "0 7", "30 7", "0 8", "15 8", "30 8", "0 9", "30 9", "0 10", "15 10", "30 10", "0 11",
    ];
    let expressions: Vec<String> = hours.iter().map(|hour| format!("{hour} * * *")).collect();
    let mut expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    expressions.push("* * * * *");
    let mut ticks = Ticks::new("2027-03-01T05:00:00Z", &expressions);
    assert_eq!(ticks.at("2027-03-01T23:55:00Z"), "* * * * * 2027-03-01T23:55:00Z");
    insta::assert_snapshot!(ticks.missed(), @r"
    0 6 * * * 1 2027-03-01T06:00:00Z..2027-03-01T06:00:00Z
    30 6 * * * 1 2027-03-01T06:30:00Z..2027-03-01T06:30:00Z
    0 7 * * * 1 2027-03-01T07:00:00Z..2027-03-01T07:00:00Z
    30 7 * * * 1 2027-03-01T07:30:00Z..2027-03-01T07:30:00Z
    0 8 * * * 1 2027-03-01T08:00:00Z..2027-03-01T08:00:00Z
    15 8 * * * 1 2027-03-01T08:15:00Z..2027-03-01T08:15:00Z
    30 8 * * * 1 2027-03-01T08:30:00Z..2027-03-01T08:30:00Z
    0 9 * * * 1 2027-03-01T09:00:00Z..2027-03-01T09:00:00Z
    30 9 * * * 1 2027-03-01T09:30:00Z..2027-03-01T09:30:00Z
    0 10 * * * 1 2027-03-01T10:00:00Z..2027-03-01T10:00:00Z
    15 10 * * * 1 2027-03-01T10:15:00Z..2027-03-01T10:15:00Z
    30 10 * * * 1 2027-03-01T10:30:00Z..2027-03-01T10:30:00Z
    0 11 * * * 1 2027-03-01T11:00:00Z..2027-03-01T11:00:00Z
    * * * * * 1000 2027-03-01T05:01:00Z..2027-03-01T23:54:00Z
    ");
}

#[test]
fn the_grace_is_counted_in_whole_minutes() {
    let mut ticks = Ticks::new("2027-03-01T08:00:00Z", &["0 9 * * *"]);
    assert_eq!(ticks.at("2027-03-01T09:15:59Z"), "0 9 * * * 2027-03-01T09:00:00Z");
    assert_eq!(ticks.at("2027-03-02T09:16:00Z"), "");
    assert_eq!(ticks.missed(), "0 9 * * * 1 2027-03-02T09:00:00Z..2027-03-02T09:00:00Z");
}

#[test]
fn a_new_or_edited_schedule_begins_now() {
    let mut ticks = Ticks::new("2027-03-01T08:50:00Z", &["0 9 * * *"]);
    ticks.schedules = named(&["1 9 * * *"]);
    assert_eq!(ticks.at("2027-03-01T09:05:00Z"), "");
    // It was out of the book in between: also one that comes back is new.
    ticks.schedules = named(&["0 9 * * *", "1 9 * * *"]);
    assert_eq!(ticks.at("2027-03-02T09:05:00Z"), "1 9 * * * 2027-03-02T09:01:00Z");
    assert_eq!((ticks.at("2027-03-02T09:06:00Z"), ticks.missed()), (String::new(), String::new()));
}

#[test]
fn what_is_beyond_the_limit_stays_due_for_later_ticks() {
    let mut ticks = Ticks::new("2027-03-01T08:00:00Z", &["0 9 * * *", "1 9 * * *", "2 9 * * *"]);
    ticks.limit = 2;
    assert_eq!(
        ticks.at("2027-03-01T09:05:00Z"),
        "0 9 * * * 2027-03-01T09:00:00Z\n1 9 * * * 2027-03-01T09:01:00Z"
    );
    assert_eq!(ticks.at("2027-03-01T09:06:00Z"), "2 9 * * * 2027-03-01T09:02:00Z");
    assert_eq!((ticks.at("2027-03-01T09:07:00Z"), ticks.missed()), (String::new(), String::new()));
}

#[test]
fn the_book_changes_only_when_there_is_something_to_write() {
    let mut ticks = Ticks::new("2027-03-01T08:00:00Z", &["0 9 * * MON"]);
    let mut changes = Vec::new();
    for minutes in 1..8 * 24 * 60 {
        let now = iso(parse_utc("2027-03-01T08:00:00Z").unwrap() + minutes * 60);
        let before = ticks.book.clone();
        let due = ticks.at(&now);
        if ticks.book != before {
            changes.push((minutes, due.is_empty()));
        }
    }
    let idle: Vec<u64> =
        changes.iter().filter(|(_, is_idle)| *is_idle).map(|(minutes, _)| *minutes).collect();
    assert_eq!(changes.len(), idle.len() + 2, "{changes:?}");
    // Once a day, and a minute later each time.
    assert_eq!(idle, [1501, 2942, 4383, 5824, 7265, 8706]);
}

#[test]
fn the_list_of_what_was_missed_is_short_and_has_the_newest() {
    let mut ticks = Ticks::new("2027-03-01T00:30:00Z", &["0 * * * *", "0 12 * * *"]);
    // Each day one of the second kind alone, three days apart; the first kind is one entry.
    for day in 0..40_u64 {
        ticks.at(&iso(parse_utc("2027-03-01T20:30:00Z").unwrap() + day * 3 * 24 * 60 * 60));
    }
    let lines = ticks.missed().lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("0 * * * * 2828 2027-03-01T01:00:00Z..2027-06-26T20:00:00Z"), "{lines:?}");
    let mut ticks = Ticks::new("2027-03-01T00:30:00Z", &["0 12 1 * *"]);
    for month in 1..30_u64 {
        ticks.at(&iso(parse_utc("2027-03-01T20:30:00Z").unwrap() + month * 31 * 24 * 60 * 60));
    }
    assert_eq!(ticks.missed().lines().count(), MAX_MISSED);
}

#[test]
fn a_closed_book_forgets_schedules_and_keeps_what_was_missed() {
    let mut ticks = Ticks::new("2027-03-01T08:00:00Z", &["0 9 * * *"]);
    assert_eq!(ticks.at("2027-03-01T10:00:00Z"), "");
    let missed = ticks.missed();
    ticks.book = ticks.book.closed();
    assert_eq!((ticks.at("2027-03-02T09:05:00Z"), ticks.missed()), (String::new(), missed));
}

#[test]
fn schedules_are_those_of_enabled_skills_each_once_in_list_order() {
    use crate::skill::tests::{keys, signed};
    let by = |author: u8, d: &str, tags: &[&[&str]]| {
        let named = ["d", d];
        let tags: Vec<&[&str]> = [&named as &[&str]].into_iter().chain(tags.iter().copied()).collect();
        Skill::parse(&signed(author, crate::kinds::PUBLIC_SKILL, &tags, "text"), &keys(1), &mut Vec::new())
            .unwrap()
    };
    let skill = |d: &str, tags: &[&[&str]]| by(1, d, tags);
    let many: Vec<String> = (0..10).map(|minute| format!("{minute} 1 * * *")).collect();
    let many: Vec<[&str; 3]> = many.iter().map(|schedule| ["trigger", "cron", schedule]).collect();
    let many: Vec<&[&str]> = many.iter().map(<[&str; 3]>::as_slice).collect();
    let skills = [
        by(3, "foreign", &many),
        skill("b", &[&["trigger", "cron", "@daily"], &["trigger", "cron", "TZ=europe/berlin 0 9 * * *"]]),
        skill("off", &[&["trigger", "cron", "1 1 * * *"], &["enabled", "false"]]),
        skill("joins", &[&["trigger", "cron"], &["trigger", "dm"]]),
        skill("a", &[&["trigger", "cron", "0  0 * * *"], &["trigger", "cron", "5 5 * * *"]]),
    ];
    let names = schedules(&skills, keys(1).public_key()).into_iter().map(|(name, _)| name);
    let (own, foreign): (Vec<_>, Vec<_>) = names.enumerate().partition(|(at, _)| *at < 3);
    let own: Vec<&str> = own.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(own, ["0 0 * * *", "TZ=Europe/Berlin 0 9 * * *", "5 5 * * *"]);
    // Of somebody else's, which stands first in the list, the first eight.
    let foreign: Vec<&str> = foreign.iter().map(|(_, name)| name.split_once(' ').unwrap().0).collect();
    assert_eq!(foreign, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}
