//! Run parameters of a skill: the model chain and how the model is asked.

use std::str::FromStr;

use nostr::prelude::Tags;

use super::Notes;

/// What a skill sets; `None` leaves what was set before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillParams {
    /// The fallback chain: `provider/model`s and a keyword, separated by commas.
    pub llm: Option<String>,
    /// Sampling temperature, 0 to 2.
    pub temperature: Option<f64>,
    /// The most tokens of an answer.
    pub max_tokens: Option<u32>,
    /// Sampling seed.
    pub seed: Option<i64>,
    /// The most model calls of a run that may use tools.
    pub max_turns: Option<u32>,
}

const NAMES: [&str; 5] = ["llm", "temperature", "max_tokens", "seed", "max_turns"];

/// The longest model chain, in bytes.
const MAX_CHAIN_BYTES: usize = 1000;

impl SkillParams {
    /// Reads a skill's tags; of two tags of one name the later wins.
    pub(super) fn parse(tags: &Tags, notes: &mut Notes<'_>) -> Self {
        let mut params = Self::default();
        for name in NAMES {
            for tag in tags.iter().filter(|tag| tag.kind() == name) {
                params.set(name, tag.content().unwrap_or_default(), notes);
            }
        }
        params
    }

    /// Reads what follows type and filter on a trigger tag, where an older generation kept the parameters:
    /// `name=value` elements, or names and values in turn.
    pub(super) fn parse_trigger(elements: &[String], notes: &mut Notes<'_>) -> Self {
        let mut params = Self::default();
        let mut elements = elements.iter();
        while let Some(element) = elements.next() {
            let (name, value) = match element.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value)),
                None => (element.trim(), elements.next().map(String::as_str)),
            };
            match NAMES.into_iter().find(|known| *known == name) {
                Some(name) => params.set(name, value.unwrap_or_default(), notes),
                None => notes.warn("trigger", &unknown(name)),
            }
        }
        params
    }

    /// Lets `later` set what it sets.
    pub(crate) fn apply(&mut self, later: &Self) {
        self.llm = later.llm.clone().or(self.llm.take());
        self.temperature = later.temperature.or(self.temperature);
        self.max_tokens = later.max_tokens.or(self.max_tokens);
        self.seed = later.seed.or(self.seed);
        self.max_turns = later.max_turns.or(self.max_turns);
    }

    fn set(&mut self, name: &str, value: &str, notes: &mut Notes<'_>) {
        let value = value.trim();
        let refused = match name {
            "llm" => set(&mut self.llm, value, |chain: &String| {
                (1..=MAX_CHAIN_BYTES).contains(&chain.len())
                    && !chain.contains(char::is_control)
                    && chain.split(',').any(|entry| !entry.trim().is_empty())
            })
            .then_some("is not a model chain and is ignored; give for example \"openai/gpt-5-mini, cheap\""),
            "temperature" => set(&mut self.temperature, value, |t| (0.0..=2.0).contains(t))
                .then_some("is not a number from 0 to 2 and is ignored"),
            "max_tokens" => set(&mut self.max_tokens, value, |n| (1..=1_000_000).contains(n))
                .then_some("is not a whole number from 1 to 1000000 and is ignored"),
            "seed" => set(&mut self.seed, value, |_| true).then_some("is not a whole number and is ignored"),
            _ => set(&mut self.max_turns, value, |n| (1..=1000).contains(n))
                .then_some("is not a whole number from 1 to 1000 and is ignored"),
        };
        if let Some(what) = refused {
            notes.warn(name, what);
        }
    }
}

/// What to say of a parameter that is none.
fn unknown(name: &str) -> String {
    let (name, known) = (super::name(name), NAMES.join(", "));
    format!("has a parameter {name}, which is not known and is ignored; those of a trigger are {known}")
}

/// Sets `slot` where `value` reads well; whether it was refused.
fn set<T: FromStr>(slot: &mut Option<T>, value: &str, is_sane: impl Fn(&T) -> bool) -> bool {
    match value.parse().ok().filter(is_sane) {
        Some(value) => {
            *slot = Some(value);
            false
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_trigger(elements: &[&str]) -> (SkillParams, usize) {
        let mut warnings = Vec::new();
        let mut notes = Notes { skill: "s".to_owned(), warnings: &mut warnings };
        let elements: Vec<String> = elements.iter().map(|&e| e.to_owned()).collect();
        let params = SkillParams::parse_trigger(&elements, &mut notes);
        (params, warnings.len())
    }

    #[test]
    fn parameters_on_a_trigger_tag_are_read_in_both_spellings() {
        let expected = SkillParams {
            llm: Some("openai/gpt-4o-mini, cheap".to_owned()),
            temperature: Some(0.2),
            ..SkillParams::default()
        };
        assert_eq!(of_trigger(&["llm=openai/gpt-4o-mini, cheap", "temperature=0.2"]), (expected.clone(), 0));
        assert_eq!(
            of_trigger(&["llm", "openai/gpt-4o-mini, cheap", "temperature", "0.2"]),
            (expected.clone(), 0)
        );
        assert_eq!(
            of_trigger(&["colour", "red", "llm=openai/gpt-4o-mini, cheap", "temperature=0.2", "seed"]),
            (expected, 2)
        );
        assert_eq!(
            unknown("colour\n"),
            "has a parameter \"colour\\n\", which is not known and is ignored; those of a trigger are llm, temperature, \
             max_tokens, seed, max_turns"
        );
    }

    #[test]
    fn later_parameters_win_one_by_one() {
        let mut params =
            SkillParams { seed: Some(1), temperature: Some(0.1), llm: None, ..SkillParams::default() };
        params.apply(&SkillParams {
            llm: Some("cheap".to_owned()),
            temperature: Some(0.9),
            ..Default::default()
        });
        assert_eq!(
            params,
            SkillParams {
                llm: Some("cheap".to_owned()),
                temperature: Some(0.9),
                seed: Some(1),
                ..Default::default()
            }
        );
    }
}
