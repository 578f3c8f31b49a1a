//! The five fields as text: which are written as cron has it, and what is wrong with the others.

use croner::parser::{CronParser, Seconds, Year};
use croner::time::Weekday;
use croner::{Cron, CronPattern};

/// The fields in order: what each is, and what stands in it.
const FIELDS: [(&str, &str); 5] = [
    ("has a minute that cannot be read; use 0 to 59", ""),
    ("has an hour that cannot be read; use 0 to 23", ""),
    ("has a day of the month that cannot be read; use 1 to 31, or L for the last", "L W LW"),
    (
        "has a month that cannot be read; use 1 to 12, or JAN to DEC",
        "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC",
    ),
    ("has a day of the week that cannot be read; use 0 to 7, or SUN to SAT", "L SUN MON TUE WED THU FRI SAT"),
];

/// What stands in the place of five fields that cannot be told apart.
const SHAPE: &str = "is neither five fields such as \"0 9 * * *\" nor a name such as @daily, after an optional \
                     TZ=Area/City";

/// Five fields, read.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    pub(super) pattern: CronPattern,
    /// Whether minute or hour begin with a star: then real time counts, and no fixed time of the clock on the wall.
    pub(super) follows_real_time: bool,
}

impl Fields {
    /// Reads `fields`, which are of normal spelling.
    pub(super) fn read(fields: &[&str]) -> Result<Self, &'static str> {
        let is_known = |c: u8| c.is_ascii_alphanumeric() || b"*,-/?#".contains(&c);
        let &[minute, hour, day, _, weekday] = fields else { return Err(SHAPE) };
        if !fields.iter().all(|field| field.bytes().all(is_known)) {
            return Err(SHAPE);
        }
        for (at, (field, (fault, names))) in fields.iter().zip(FIELDS).enumerate() {
            // With stars in the others, only this one can be wrong.
            let alone: Vec<&str> =
                (0..FIELDS.len()).map(|other| if other == at { *field } else { "*" }).collect();
            if !is_well_written(field, names) || parse(&alone.join(" "), false).is_none() {
                return Err(fault);
            }
        }
        // Vixie's rule: of two days that are both given, either counts; one that begins with a star only narrows the other.
        let both_days = [day, weekday].into_iter().any(is_star);
        let cron = parse(&fields.join(" "), both_days).filter(has_a_day);
        let cron = cron.ok_or("names a day that no year has, such as 31 February")?;
        Ok(Self { pattern: cron.pattern, follows_real_time: [minute, hour].into_iter().any(is_star) })
    }
}

fn is_star(field: &str) -> bool {
    field.starts_with(['*', '?'])
}

/// Whether a field is written as cron has it: the parser would take an empty part for none, the name of a month for a
/// minute, and JANFEB for 12. Words are of `names`, perhaps with the L of a last weekday, and stand apart from numbers.
fn is_well_written(field: &str, names: &str) -> bool {
    let field = field.to_ascii_uppercase();
    let is_name = |word: &str| {
        word.is_empty() || names.split(' ').any(|name| name == word || word.strip_suffix('L') == Some(name))
    };
    let words = field.split(|c: char| !c.is_ascii_alphanumeric());
    let are_names = words.into_iter().all(|part| {
        let word = part.trim_matches(|c: char| c.is_ascii_digit());
        // 15W and 5L: a number may stand in front of what is no name.
        is_name(word) && (word == part || word.len() <= 1 && part.ends_with(word))
    });
    are_names && field.split(',').all(|part| !part.is_empty())
}

fn parse(fields: &str, both_days: bool) -> Option<Cron> {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed);
    parser.dom_and_dow(both_days).build().parse(fields).ok()
}

/// Whether any year has a day that it names. Each day of a leap year is tried on each day of the week.
fn has_a_day(cron: &Cron) -> bool {
    const LEAP_YEAR: i32 = 2024;
    let is_month = |month: &u32| cron.pattern.month_match(*month).unwrap_or_default();
    (1..=12).filter(is_month).any(|month| {
        (1..=croner::time::days_in_month(LEAP_YEAR, month)).any(|day| {
            (0..7).any(|weekday| {
                let weekday = Weekday::from_days_from_sunday(weekday);
                cron.pattern.day_match(LEAP_YEAR, month, day, weekday).unwrap_or_default()
            })
        })
    })
}
