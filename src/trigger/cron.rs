//! Cron expressions as text: five fields or a name such as `@daily`, with an optional `TZ=Area/City ` in front.

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
}
