//! Cron expressions: five fields or a name such as `@daily`, with an optional `TZ=Area/City ` in front.
//!
//! [`Schedule`] knows when one is due, and [`due`] what a tick does about that.

pub mod due;
mod fields;
mod schedule;

pub use self::schedule::Schedule;

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

/// One spelling for what is written in several: single spaces, fields in lower case, names as their fields, the zone as its
/// database writes it, and none for UTC. Two skills with equal results are due at the same instants.
#[must_use]
pub fn normalise(expression: &str) -> String {
    let (zone, fields) = split(expression);
    let fields = fields.collect::<Vec<_>>().join(" ").to_ascii_lowercase();
    let named = NAMES.iter().find(|(name, _)| *name == fields).map(|(_, fields)| (*fields).to_owned());
    let fields = named.unwrap_or(fields);
    let Some(zone) = zone else { return fields };
    let known = schedule::zone_of(zone);
    match known.as_ref().and_then(|zone| zone.iana_name()).unwrap_or(zone) {
        "UTC" | "Etc/UTC" => fields,
        zone => format!("{ZONE}{zone} {fields}"),
    }
}

/// What stands in front of a zone's name.
const ZONE: &str = "TZ=";

/// The name of the zone, where there is one, and the fields.
fn split(expression: &str) -> (Option<&str>, impl Iterator<Item = &str>) {
    let mut words = expression.split_whitespace().peekable();
    let zone =
        words.next_if(|word| word.starts_with(ZONE)).map(|zone| zone.strip_prefix(ZONE).unwrap_or_default());
    (zone, words)
}

/// Whether there are instants that the expression names; the fault as the rest of a warning.
///
/// # Errors
/// What is wrong, and what to do.
pub fn check(expression: &str) -> Result<(), &'static str> {
    Schedule::parse(expression).map(drop)
}

const NO_ZONE: &str =
    "names a time zone that is not known; use a name of the IANA database such as Europe/Berlin";

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
            ("TZ=utc @hourly", "0 * * * *"),
            ("TZ=europe/BERLIN 0 9 * * *", "TZ=Europe/Berlin 0 9 * * *"),
            ("TZ=Nowhere/Else 0 9 * * *", "TZ=Nowhere/Else 0 9 * * *"),
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
            "TZ=Europe/Atlantis 0 9 * * *",
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
          names a time zone that is not known; use a name of the IANA database such as Europe/Berlin
        "TZ=a;b 0 9 * * *"
          names a time zone that is not known; use a name of the IANA database such as Europe/Berlin
        "TZ=Europe/Atlantis 0 9 * * *"
          names a time zone that is not known; use a name of the IANA database such as Europe/Berlin
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

    #[test]
    fn an_endless_expression_is_refused() {
        let list = |repeats: usize| format!("{}0 9 * * *", "0,".repeat(repeats));
        assert_eq!(check(&list(245)), Ok(()));
        assert_eq!(
            check(&list(246)),
            Err("is longer than 500 characters; use ranges and steps, or several triggers")
        );
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
