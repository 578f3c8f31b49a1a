//! How many tokens a text has, roughly: no tokenizer's data is at hand at a cold start.
//!
//! The estimate errs on the high side; `tests/it/tokens.rs` holds it against real tokenizers and prints the error. What
//! it does not know of a model's own tokenizer, a process learns from the usage that providers report ([`Calibration`]).

use std::collections::BTreeMap;

use crate::chat::{Message, ToolSchema};

/// What a message costs beside its text: its role, and what separates it from the next.
const MESSAGE_OVERHEAD: usize = 4;

/// What a tool's schema costs beside its text.
const TOOL_OVERHEAD: usize = 8;

/// What tokenizers treat alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// ASCII letters and digits.
    Word,
    Space,
    /// Other ASCII: punctuation, control characters.
    Mark,
    Other,
}

impl Class {
    fn of(c: char) -> Self {
        match c {
            ' ' | '\n' | '\r' | '\t' => Self::Space,
            c if c.is_ascii_alphanumeric() => Self::Word,
            c if c.is_ascii() => Self::Mark,
            _ => Self::Other,
        }
    }
}

/// An estimate that errs on the high side, for prose, code, JSON, hex ids and any script.
#[must_use]
pub fn estimate(text: &str) -> usize {
    let mut cents = 0_usize;
    let mut rest = text;
    while let Some(class) = rest.chars().next().map(Class::of) {
        let end = rest.find(|c| Class::of(c) != class).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        let length = run.len();
        let cost = match class {
            Class::Word => word(run.as_bytes()),
            // A space in front of a word is part of the word's token.
            Class::Space if run == " " => 0,
            Class::Space => length.saturating_mul(3).saturating_add(100),
            Class::Mark => length.saturating_mul(60).saturating_add(40),
            Class::Other => run.chars().map(letter).fold(0, usize::saturating_add),
        };
        cents = cents.saturating_add(cost);
        rest = tail;
    }
    cents.div_ceil(100)
}

/// Of a run of letters and digits, in hundredths of a token. Ids and keys mix them, and have no syllables.
fn word(run: &[u8]) -> usize {
    let digits = run.iter().filter(|b| b.is_ascii_digit()).count();
    let capitals = run.iter().skip(1).any(u8::is_ascii_uppercase);
    let per_byte = match (digits > 0, capitals) {
        _ if digits == run.len() => 40,
        (true, true) => 74,
        (true, false) => 64,
        (false, true) => 40,
        // A word, of a language that a tokenizer may not have met often.
        (false, false) => return run.len().saturating_sub(4).saturating_mul(24).saturating_add(100),
    };
    run.len().saturating_mul(per_byte).max(100)
}

/// Of a character outside ASCII, in hundredths of a token, as the older of today's tokenizers have it.
fn letter(c: char) -> usize {
    match u32::from(c) {
        0x0080..=0x024f => 130,
        0x0250..=0x036f => 100,
        // Greek.
        0x0370..=0x03ff => 110,
        // Cyrillic.
        0x0400..=0x052f => 55,
        // Armenian, Hebrew, Arabic.
        0x0530..=0x06ff => 90,
        // The scripts of India, Thai, Tibetan.
        0x0900..=0x0fff => 130,
        0x2000..=0x206f => 100,
        0x3040..=0x30ff => 105,
        // Chinese characters.
        0x3400..=0x9fff => 130,
        // Korean syllables.
        0xac00..=0xd7af => 145,
        0xfe00..=0xfe0f => 100,
        // Emoji.
        0x1_f000.. => 300,
        _ => 200,
    }
}

/// The same of a message, its calls included.
#[must_use]
pub fn of_message(message: &Message) -> usize {
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| {
            let signature = call.signature.as_deref().map_or(0, estimate);
            estimate(&call.name).saturating_add(estimate(&call.arguments)).saturating_add(signature)
        })
        .sum();
    estimate(&message.content).saturating_add(calls).saturating_add(MESSAGE_OVERHEAD)
}

/// The same of the tools on offer.
#[must_use]
pub fn of_tools(tools: &[ToolSchema]) -> usize {
    let of = |tool: &ToolSchema| {
        let texts = estimate(&tool.name).saturating_add(estimate(&tool.description));
        texts.saturating_add(estimate(&tool.parameters.to_string())).saturating_add(TOOL_OVERHEAD)
    };
    tools.iter().map(of).fold(0, usize::saturating_add)
}

/// What a process has learned of models: how far their tokenizers are from the estimate, and which requests were too
/// long for them. Amounts are estimates of this module unless they are called reported.
#[derive(Debug, Default)]
pub struct Calibration(BTreeMap<String, Learned>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Learned {
    /// Reported tokens for a thousand estimated ones.
    permille: usize,
    /// A request this long did not fit.
    too_long: Option<usize>,
}

impl Default for Learned {
    fn default() -> Self {
        Self { permille: 1000, too_long: None }
    }
}

/// How far a tokenizer is believed to be from the estimate. Downwards not far: the next text may be of another kind.
const PERMILLE: std::ops::RangeInclusive<usize> = 800..=4000;

/// Of shorter requests what a provider adds itself is too large a part.
const MIN_LEARNED_FROM: usize = 200;

/// The most models that are remembered.
const MAX_MODELS: usize = 200;

impl Calibration {
    /// A model reported `reported` tokens for a request that was estimated at `estimated`. More than expected is believed
    /// at once, fewer bit by bit.
    pub fn learn(&mut self, model: &str, estimated: usize, reported: u64) {
        if estimated < MIN_LEARNED_FROM || reported == 0 {
            return;
        }
        let reported = usize::try_from(reported).unwrap_or(usize::MAX);
        let seen = reported.saturating_mul(1000).checked_div(estimated).unwrap_or(1000);
        let seen = seen.clamp(*PERMILLE.start(), *PERMILLE.end());
        self.update(model, |learned| {
            let blend = learned.permille.saturating_mul(3).saturating_add(seen) / 4;
            learned.permille = seen.max(blend);
        });
    }

    /// A request that was estimated at `estimated` did not fit the model's window.
    pub fn overflowed(&mut self, model: &str, estimated: usize) {
        self.update(model, |learned| {
            learned.too_long = Some(learned.too_long.map_or(estimated, |before| before.min(estimated)));
        });
    }

    /// How much fits into the model, whose window is `window` tokens of its own.
    #[must_use]
    pub fn room(&self, model: &str, window: usize) -> usize {
        let learned = self.0.get(model).copied().unwrap_or_default();
        let room = window.saturating_mul(1000).checked_div(learned.permille).unwrap_or(window);
        room.min(learned.too_long.unwrap_or(room))
    }

    /// How many of the model's own tokens its window has left beside a request that is estimated at `estimated`.
    #[must_use]
    pub fn left(&self, model: &str, window: usize, estimated: usize) -> usize {
        let learned = self.0.get(model).copied().unwrap_or_default();
        self.room(model, window).saturating_sub(estimated).saturating_mul(learned.permille) / 1000
    }

    fn update(&mut self, model: &str, change: impl FnOnce(&mut Learned)) {
        if self.0.len() < MAX_MODELS || self.0.contains_key(model) {
            change(self.0.entry(model.to_owned()).or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Role, ToolCall};

    #[test]
    fn a_message_counts_its_text_its_calls_and_itself() {
        let call = ToolCall::new("c", "time", "{}");
        assert_eq!(of_message(&Message::assistant("how now", vec![call])), 2 + 1 + 2 + 4);
        assert_eq!(of_message(&Message::text(Role::User, "")), 4);
        let signed = ToolCall { signature: Some("seal".to_owned()), ..ToolCall::new("c", "time", "{}") };
        assert_eq!(of_message(&Message::assistant("", vec![signed])), 1 + 2 + 1 + 4);
    }

    #[test]
    fn a_model_that_counts_more_has_less_room_at_once_and_one_that_counts_less_gets_more_slowly() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.room("m", 10_000), 10_000);
        calibration.learn("m", 1000, 2000);
        assert_eq!(calibration.room("m", 10_000), 5000);
        calibration.learn("m", 1000, 1000);
        assert_eq!(calibration.room("m", 10_000), 5714);
        calibration.learn("m", 10, 1_000_000);
        assert_eq!(calibration.room("m", 10_000), 5714, "a short request teaches nothing");
        for _ in 0..50 {
            calibration.learn("m", 1000, 1);
        }
        assert!((12_000..=12_500).contains(&calibration.room("m", 10_000)), "{calibration:?}");
        assert_eq!(calibration.room("other", 10_000), 10_000);
    }

    #[test]
    fn what_a_window_has_left_is_counted_in_the_models_own_tokens() {
        let mut calibration = Calibration::default();
        assert_eq!(calibration.left("m", 10_000, 4_000), 6_000);
        assert_eq!(calibration.left("m", 10_000, 40_000), 0);
        calibration.learn("m", 1000, 2000);
        // 4,000 estimated ones are 8,000 of its own.
        assert_eq!(calibration.left("m", 10_000, 4_000), 2_000);
    }

    #[test]
    fn what_did_not_fit_is_the_end_of_the_room() {
        let mut calibration = Calibration::default();
        calibration.overflowed("m", 3000);
        calibration.overflowed("m", 4000);
        assert_eq!(calibration.room("m", 10_000), 3000);
    }
}
