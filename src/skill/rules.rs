//! How often a skill may run, what it may cost, and what its runs may do beyond answering: our own additions to
//! Didactyl's tags. They count in the agent's own skills alone.

use nostr::prelude::Tags;

use super::Notes;

/// What a skill says of its own runs; where it is silent, the agent's defaults stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunRules {
    /// The most runs in a UTC day (`["max_runs","N"]`); see [`RunRules::runs_per_day`].
    pub max_runs: Option<u32>,
    /// Whether the agent's own events may fire its subscriptions (`["allow_self","true"]`).
    pub allow_self: bool,
    /// Whether the answer of a run that no DM started also goes to the admin by DM (`["reply","admin"]`).
    pub reply_to_admin: bool,
    /// What its runs may cost, in millionths of a US dollar (`["budget","USD"]`).
    pub budget_micro_usd: Option<u64>,
}

/// The most runs in a UTC day of a skill that names no number (design §3).
pub const DEFAULT_MAX_RUNS: u32 = 50;

/// More runs than this are a slip of the pen.
const MOST_RUNS: u32 = 1_000_000;

/// The highest budget, in US dollars.
const MOST_USD: u64 = 1_000_000;

/// A dollar's millionths.
const MICRO: u64 = 1_000_000;

impl RunRules {
    /// The most runs in a UTC day.
    #[must_use]
    pub fn runs_per_day(&self) -> u32 {
        self.max_runs.unwrap_or(DEFAULT_MAX_RUNS)
    }

    /// Reads a skill's tags; of two tags of one name the later wins.
    pub(super) fn parse(tags: &Tags, notes: &mut Notes<'_>) -> Self {
        let mut rules = Self::default();
        for tag in tags.iter() {
            let value = tag.content().unwrap_or_default().trim();
            let refused = match tag.kind() {
                "max_runs" => match whole(value).filter(|runs| *runs <= MOST_RUNS) {
                    Some(runs) => take(&mut rules.max_runs, Some(runs)),
                    None => {
                        Some("is not a whole number of runs per day and is ignored; give for example \"24\"")
                    }
                },
                "allow_self" => match super::tags::boolean(value) {
                    Some(allowed) => take(&mut rules.allow_self, allowed),
                    None => Some("is neither true nor false and is ignored"),
                },
                "reply" if value.eq_ignore_ascii_case("admin") => take(&mut rules.reply_to_admin, true),
                "reply" => Some("can only name admin and is ignored"),
                "budget" => match micro_usd(value) {
                    Some(micro) => take(&mut rules.budget_micro_usd, Some(micro)),
                    None => Some(
                        "is not an amount of US dollars and is ignored; give digits with up to six decimals, \
                         for example \"0.25\"",
                    ),
                },
                _ => None,
            };
            if let Some(what) = refused {
                notes.warn(tag.kind(), what);
            }
        }
        rules
    }
}

/// Sets a slot; nothing was refused.
fn take<T>(slot: &mut T, value: T) -> Option<&'static str> {
    *slot = value;
    None
}

/// Digits alone: `parse` would also take a sign.
fn whole(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// An amount of dollars as millionths, read digit by digit: a float would round.
fn micro_usd(text: &str) -> Option<u64> {
    let (dollars, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if dollars.is_empty() || fraction.is_empty() || fraction.len() > 6 {
        return None;
    }
    let dollars = u64::from(whole(dollars)?);
    let micro = u64::from(whole(&format!("{fraction:0<6}"))?);
    (dollars <= MOST_USD).then(|| dollars.saturating_mul(MICRO).saturating_add(micro))
}

/// An amount in millionths as [`RunRules::parse`] reads it.
pub(super) fn usd(micro: u64) -> String {
    let text = format!("{}.{:06}", micro / MICRO, micro % MICRO);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(tags: &[&[&str]]) -> (RunRules, Vec<String>) {
        let tags = Tags::parse(tags.iter().map(|tag| tag.iter().copied())).unwrap();
        let mut warnings = Vec::new();
        let rules = RunRules::parse(&tags, &mut Notes { skill: "s".to_owned(), warnings: &mut warnings });
        (rules, warnings)
    }

    #[test]
    fn rules_are_read_from_their_tags() {
        let (rules, warnings) =
            parse(&[&["max_runs", " 24 "], &["allow_self", "TRUE"], &["reply", "Admin"], &["budget", "0.5"]]);
        assert_eq!(warnings, [""; 0]);
        assert_eq!(
            rules,
            RunRules {
                max_runs: Some(24),
                allow_self: true,
                reply_to_admin: true,
                budget_micro_usd: Some(500_000)
            }
        );
        assert_eq!(rules.runs_per_day(), 24);
        assert_eq!(RunRules::default().runs_per_day(), 50);
        assert_eq!(parse(&[&["max_runs", "0"]]).0.runs_per_day(), 0);
    }

    #[test]
    fn what_is_no_rule_is_ignored_with_a_warning() {
        for (name, value) in [
            ("max_runs", ""),
            ("max_runs", "-1"),
            ("max_runs", "+1"),
            ("max_runs", "1.5"),
            ("max_runs", "NaN"),
            ("max_runs", "1000001"),
            ("max_runs", "99999999999999999999"),
            ("allow_self", "yes"),
            ("allow_self", ""),
            ("reply", "everybody"),
            ("reply", ""),
            ("budget", ""),
            ("budget", "-1"),
            ("budget", "+1"),
            ("budget", "."),
            ("budget", "1."),
            ("budget", ".5"),
            ("budget", "$1"),
            ("budget", "1e3"),
            ("budget", "NaN"),
            ("budget", "inf"),
            ("budget", "1,5"),
            ("budget", "0.1234567"),
            ("budget", "1.-5"),
            ("budget", "1000001"),
            ("budget", "99999999999999999999"),
        ] {
            let (rules, warnings) = parse(&[&[name, value]]);
            assert_eq!((rules, warnings.len()), (RunRules::default(), 1), "{name} {value}");
        }
    }

    #[test]
    fn an_unreadable_rule_does_not_undo_a_readable_one() {
        let (rules, warnings) =
            parse(&[&["max_runs", "3"], &["max_runs"], &["budget", "1"], &["budget", "x"]]);
        assert_eq!((rules.max_runs, rules.budget_micro_usd), (Some(3), Some(1_000_000)));
        insta::assert_snapshot!(warnings.join("\n"), @r#"
        skill s: tag "max_runs" is not a whole number of runs per day and is ignored; give for example "24"
        skill s: tag "budget" is not an amount of US dollars and is ignored; give digits with up to six decimals, for example "0.25"
        "#);
    }

    #[test]
    fn dollars_become_exact_millionths_and_back() {
        for (text, micro) in [
            ("0", 0),
            ("0.1", 100_000),
            ("0.000001", 1),
            ("2.50", 2_500_000),
            ("1000000", 1_000_000_000_000),
            ("7.000100", 7_000_100),
        ] {
            assert_eq!(micro_usd(text), Some(micro), "{text}");
            assert_eq!(micro_usd(&usd(micro)), Some(micro), "{text}");
        }
        assert_eq!([0, 1, 100_000, 2_500_000, 7_000_000].map(usd), ["0", "0.000001", "0.1", "2.5", "7"]);
    }
}
