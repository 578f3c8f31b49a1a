//! Cron expressions as text: five fields or a name such as `@daily`, with an optional `TZ=Area/City ` in front. When one
//! is due is not told here.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use croner::time::Weekday;

/// The names, and the fields that they stand for.
const NAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// One spelling for what is written in several: single spaces, fields in lower case, names as their fields, and no time
/// zone for UTC. Two skills with equal results are due at the same instants.
#[must_use]
pub fn normalise(expression: &str) -> String {
    let mut words = expression.split_whitespace().peekable();
    let zone = words.next_if(|word| word.starts_with("TZ=")).filter(|zone| !is_utc(zone));
    let fields = words.collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    let named = NAMES.iter().find(|(name, _)| *name == fields).map(|(_, fields)| (*fields).to_owned());
    let fields = named.unwrap_or(fields);
    zone.map_or_else(|| fields.clone(), |zone| format!("{zone} {fields}"))
}

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

/// Whether there are instants that the expression names; the fault as the rest of a warning. Whether its time zone exists
/// is not asked.
///
/// # Errors
/// What is wrong, and what to do.
pub fn check(expression: &str) -> Result<(), &'static str> {
    let expression = normalise(expression);
    let mut words = expression.split(' ').peekable();
    let zone = words.next_if(|word| word.starts_with("TZ="));
    let fields: Vec<&str> = words.collect();
    let is_known = |c: u8| c.is_ascii_alphanumeric() || b"*,-/?#".contains(&c);
    if fields.len() != FIELDS.len()
        || !fields.iter().all(|field| field.bytes().all(is_known))
        || !zone.is_none_or(is_zone_shaped)
    {
        return Err(
            "is neither five fields such as \"0 9 * * *\" nor a name such as @daily, after an optional \
                    TZ=Area/City",
        );
    }
    for (at, (field, (fault, names))) in fields.iter().zip(FIELDS).enumerate() {
        // With stars in the others, only this one can be wrong.
        let alone: Vec<&str> =
            (0..FIELDS.len()).map(|other| if other == at { *field } else { "*" }).collect();
        if !is_well_written(field, names) || parse(&alone.join(" ")).is_none() {
            return Err(fault);
        }
    }
    let is_possible = parse(&fields.join(" ")).is_some_and(|cron| has_a_day(&cron));
    is_possible.then_some(()).ok_or("names a day that no year has, such as 31 February")
}

fn is_zone_shaped(zone: &str) -> bool {
    let name = zone.trim_start_matches("TZ=");
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_+-".contains(&b))
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

fn parse(fields: &str) -> Option<Cron> {
    let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).build();
    parser.parse(fields).ok()
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

fn is_utc(zone: &str) -> bool {
    matches!(zone, "TZ=UTC" | "TZ=Etc/UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_expressions_have_one_spelling() {
        for (written, normal) in [
            ("0 9 * * 1-5", "0 9 * * 1-5"),
            ("  0\t9  * * MON ", "0 9 * * mon"),
            ("@daily", "0 0 * * *"),
            ("@Midnight", "0 0 * * *"),
            ("TZ=Europe/Berlin   @weekly", "TZ=Europe/Berlin 0 0 * * 0"),
            ("TZ=UTC 0 9 * * *", "0 9 * * *"),
            ("TZ=Etc/UTC @hourly", "0 * * * *"),
            ("@reboot", "@reboot"),
            ("", ""),
        ] {
            assert_eq!(normalise(written), normal, "{written:?}");
        }
    }

    #[test]
    fn an_expression_that_names_an_instant_is_taken() {
        for good in [
            "* * * * *",
            "0 9\t* * 1-5",
            "*/5 0,12 1 JAN MON#1",
            "0 0 29 2 *",
            "0 0 31 1,2 *",
            "0 0 30 2 MON",
            "0 0 L * *",
            "0 0 15W,LW * ?",
            "0 0 * * 5L,sunL,0,7",
            "0-30/5 0-23 1-31 jan-mar,12 mon-fri",
            "@daily",
            "@Midnight",
            "TZ=Europe/Berlin 0 9 * * *",
            "TZ=UTC @hourly",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn any_other_expression_is_refused_with_what_to_do() {
        let refused = |bad: &str| format!("{bad:?}\n  {}\n", check(bad).err().unwrap_or("is taken"));
        let table: String = [
            "",
            "TZ=UTC",
            "TZ= 0 9 * * *",
            "TZ=a;b 0 9 * * *",
            "daily",
            "@",
            "@reboot",
            "@every 5m",
            "0 9 * *",
            "0 0 9 * * *",
            "0 9 * * $",
            "0\u{a0}9 * * x",
            "99 * * * *",
            "60 * * * *",
            "*/0 * * * *",
            "5-1 * * * *",
            ", * * * *",
            "MON * * * *",
            "* 24 * * *",
            "* 99999999999999999999 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * JAN * *",
            "* * * 13 *",
            "* * * JANFEB *",
            "* * * 1FEB *",
            "* * * JANUARY *",
            "* * * * 8",
            "* * * * MONTUE",
            "* * * * MON6",
            "* * * * L-3",
            "0 0 31 2 *",
            "0 0 30,31 2 *",
            "0 0 31 2,4,6,9,11 *",
        ]
        .map(refused)
        .concat();
        insta::assert_snapshot!(table, @r#"
        ""
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "TZ=UTC"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "TZ= 0 9 * * *"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "TZ=a;b 0 9 * * *"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "daily"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "@"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "@reboot"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "@every 5m"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "0 9 * *"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "0 0 9 * * *"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "0 9 * * $"
          is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City
        "0\u{a0}9 * * x"
          has a day of the week that cannot be read; use 0 to 7, or SUN to SAT
        "99 * * * *"
          has a minute that cannot be read; use 0 to 59
        "60 * * * *"
          has a minute that cannot be read; use 0 to 59
        "*/0 * * * *"
          has a minute that cannot be read; use 0 to 59
        "5-1 * * * *"
          has a minute that cannot be read; use 0 to 59
        ", * * * *"
          has a minute that cannot be read; use 0 to 59
        "MON * * * *"
          has a minute that cannot be read; use 0 to 59
        "* 24 * * *"
          has an hour that cannot be read; use 0 to 23
        "* 99999999999999999999 * * *"
          has an hour that cannot be read; use 0 to 23
        "* * 0 * *"
          has a day of the month that cannot be read; use 1 to 31, or L for the last
        "* * 32 * *"
          has a day of the month that cannot be read; use 1 to 31, or L for the last
        "* * JAN * *"
          has a day of the month that cannot be read; use 1 to 31, or L for the last
        "* * * 13 *"
          has a month that cannot be read; use 1 to 12, or JAN to DEC
        "* * * JANFEB *"
          has a month that cannot be read; use 1 to 12, or JAN to DEC
        "* * * 1FEB *"
          has a month that cannot be read; use 1 to 12, or JAN to DEC
        "* * * JANUARY *"
          has a month that cannot be read; use 1 to 12, or JAN to DEC
        "* * * * 8"
          has a day of the week that cannot be read; use 0 to 7, or SUN to SAT
        "* * * * MONTUE"
          has a day of the week that cannot be read; use 0 to 7, or SUN to SAT
        "* * * * MON6"
          has a day of the week that cannot be read; use 0 to 7, or SUN to SAT
        "* * * * L-3"
          has a day of the week that cannot be read; use 0 to 7, or SUN to SAT
        "0 0 31 2 *"
          names a day that no year has, such as 31 February
        "0 0 30,31 2 *"
          names a day that no year has, such as 31 February
        "0 0 31 2,4,6,9,11 *"
          names a day that no year has, such as 31 February
        "#);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_checked_and_normalised_without_fear(text in "([0-9A-Za-z*,/?#@=-]| |\t|\\PC){0,40}") {
            let normal = normalise(&text);
            proptest::prop_assert_eq!(normalise(&normal), normal.as_str());
            proptest::prop_assert_eq!(check(&text), check(&normal));
        }
    }
}
