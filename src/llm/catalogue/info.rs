//! What is known of a model: sizes, price, abilities, and how its provider spells the request.

use std::time::Duration;

use crate::chat::Usage;

/// How a provider spells the most tokens that an answer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenLimit {
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

impl TokenLimit {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }

    /// The other spelling.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::MaxTokens => Self::MaxCompletionTokens,
            Self::MaxCompletionTokens => Self::MaxTokens,
        }
    }
}

/// How a provider spells the sampling seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeedName {
    /// `seed`.
    Seed,
    /// `random_seed`.
    RandomSeed,
}

impl SeedName {
    /// The name on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::RandomSeed => "random_seed",
        }
    }
}

/// What becomes of the seal that a provider puts on the thoughts behind a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signatures {
    /// It is not sent: nobody but who made it can read it.
    Unsent,
    /// It goes back with its call.
    Sent,
    /// The same, and a batch of calls that another model made is refused without one: it gets a stand-in.
    Demanded,
}

impl Signatures {
    /// The name in `DIDACTYL_MODELS`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsent => "unsent",
            Self::Sent => "sent",
            Self::Demanded => "demanded",
        }
    }
}

/// Micro-dollars per million tokens, which is also dollars per million million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    /// Of the request.
    pub input: u64,
    /// Of that part of the request that came from the provider's cache.
    pub cached_input: u64,
    /// Of the answer.
    pub output: u64,
}

impl Price {
    /// What these tokens cost, in micro-dollars, rounded up. A part that nobody told costs nothing here: who must not
    /// spend too much puts an estimate in its place first.
    #[must_use]
    pub fn of(&self, usage: &Usage) -> u64 {
        let input = usage.input_tokens.unwrap_or(0);
        let cached = usage.cached_input_tokens.unwrap_or(0).min(input);
        let parts = [
            (input.saturating_sub(cached), self.input),
            (cached, self.cached_input),
            (usage.output_tokens.unwrap_or(0), self.output),
        ];
        let sum = parts.iter().fold(0_u128, |sum, (tokens, price)| {
            sum.saturating_add(u128::from(*tokens).saturating_mul(u128::from(*price)))
        });
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// What is known of a model, or assumed where nothing is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Tokens that request and answer may have together.
    pub context_window: u32,
    /// Tokens that an answer may have.
    pub max_output: u32,
    /// What it costs; the dearest known where nobody knows (design §7).
    pub price: Price,
    /// Whether that is its own price.
    pub is_price_known: bool,
    /// Whether it calls tools at all. Where not, none are sent.
    pub tools: bool,
    /// Whether it heeds `tool_choice: "none"`. Where not, the schemas are left out instead.
    pub tool_choice_none: bool,
    /// Whether it may ask for several calls at once. Where not, the request says so.
    pub parallel_tool_calls: bool,
    /// Whether system messages must all be in front. They are moved there, in their order.
    pub system_first: bool,
    /// Whether the roles must take turns. What one role says in several messages is then one message.
    pub alternate_roles: bool,
    /// Whether it takes a temperature.
    pub temperature: bool,
    /// How it spells the most tokens of an answer.
    pub token_limit: TokenLimit,
    /// How it spells the seed.
    pub seed: SeedName,
    /// Whether an assistant's message without text has `null` for it, and not an empty text.
    pub null_content: bool,
    /// What becomes of the signatures of its calls.
    pub thought_signatures: Signatures,
    /// Whether it may think. Where not, the request says so, in the one spelling that there is (`thinking`).
    pub thinking: bool,
    /// Whether its answers are streamed.
    pub stream: bool,
    /// Whether a stream must be asked to tell the usage.
    pub stream_usage: bool,
    /// How long a stream may be silent before its first token.
    pub first_token: Duration,
    /// How long it may be silent after that.
    pub idle: Duration,
}

/// The fewest tokens that an answer may have, whatever the estimate says is left of the window.
const MIN_ANSWER_TOKENS: u32 = 256;

impl ModelInfo {
    /// The most tokens that an answer may have where `wanted` are asked for: no more than the model can give.
    #[must_use]
    pub fn answer_limit(&self, wanted: u32) -> u32 {
        wanted.min(self.max_output)
    }

    /// The same, where the request leaves `left` tokens of the window. That is an estimate: a few are left in any case.
    #[must_use]
    pub fn answer_limit_within(&self, wanted: u32, left: usize) -> u32 {
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        self.answer_limit(wanted).min(left.max(MIN_ANSWER_TOKENS))
    }
}

/// Some of a [`ModelInfo`]: what one layer of the catalogue says. The sizes are never zero, the prices both or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) context_window: Option<u32>,
    pub(super) max_output: Option<u32>,
    pub(super) price: Option<Price>,
    pub(super) tools: Option<bool>,
    pub(super) tool_choice_none: Option<bool>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) system_first: Option<bool>,
    pub(super) alternate_roles: Option<bool>,
    pub(super) temperature: Option<bool>,
    pub(super) token_limit: Option<TokenLimit>,
    pub(super) seed: Option<SeedName>,
    pub(super) null_content: Option<bool>,
    pub(super) thought_signatures: Option<Signatures>,
    pub(super) thinking: Option<bool>,
    pub(super) stream: Option<bool>,
    pub(super) stream_usage: Option<bool>,
    pub(super) first_token: Option<Duration>,
    pub(super) idle: Option<Duration>,
}

impl Settings {
    /// A layer that says nothing.
    pub(super) const NONE: Self = Self {
        context_window: None,
        max_output: None,
        price: None,
        tools: None,
        tool_choice_none: None,
        parallel_tool_calls: None,
        system_first: None,
        alternate_roles: None,
        temperature: None,
        token_limit: None,
        seed: None,
        null_content: None,
        thought_signatures: None,
        thinking: None,
        stream: None,
        stream_usage: None,
        first_token: None,
        idle: None,
    };
}

/// What the layers say together, the first that speaks on something; else what is safe.
pub(super) fn merged(layers: &[&Settings], dearest: Price) -> ModelInfo {
    fn first<T>(layers: &[&Settings], part: impl Fn(&Settings) -> Option<T>) -> Option<T> {
        layers.iter().find_map(|layer| part(layer))
    }
    let flag = |part: fn(&Settings) -> Option<bool>, otherwise| first(layers, part).unwrap_or(otherwise);
    let price = first(layers, |s| s.price);
    ModelInfo {
        context_window: first(layers, |s| s.context_window).unwrap_or(32_768),
        max_output: first(layers, |s| s.max_output).unwrap_or(4_096),
        price: price.unwrap_or(dearest),
        is_price_known: price.is_some(),
        tools: flag(|s| s.tools, true),
        tool_choice_none: flag(|s| s.tool_choice_none, true),
        parallel_tool_calls: flag(|s| s.parallel_tool_calls, true),
        // Many chat templates refuse a system message further down; none refuses one in front.
        system_first: flag(|s| s.system_first, true),
        alternate_roles: flag(|s| s.alternate_roles, false),
        temperature: flag(|s| s.temperature, true),
        token_limit: first(layers, |s| s.token_limit).unwrap_or(TokenLimit::MaxTokens),
        seed: first(layers, |s| s.seed).unwrap_or(SeedName::Seed),
        null_content: flag(|s| s.null_content, true),
        thought_signatures: first(layers, |s| s.thought_signatures).unwrap_or(Signatures::Unsent),
        thinking: flag(|s| s.thinking, true),
        stream: flag(|s| s.stream, true),
        stream_usage: flag(|s| s.stream_usage, true),
        // A reasoning model may be silent for long before it speaks.
        first_token: first(layers, |s| s.first_token).unwrap_or(Duration::from_secs(90)),
        idle: first(layers, |s| s.idle).unwrap_or(Duration::from_secs(30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_as_long_as_asked_for_where_the_model_and_its_window_allow_it() {
        let sizes = Settings { context_window: Some(10_000), max_output: Some(4_000), ..Settings::NONE };
        let price = Price { input: 0, cached_input: 0, output: 0 };
        let info = merged(&[&sizes], price);
        let limits = [100, 4_000, 9_999].map(|wanted| info.answer_limit(wanted));
        assert_eq!(limits, [100, 4_000, 4_000]);
        let within = [(100, 9_000), (4_000, 3_000), (4_000, 9), (4_000, 0), (9, 0), (9_999, usize::MAX)];
        let limits = within.map(|(wanted, left)| info.answer_limit_within(wanted, left));
        assert_eq!(limits, [100, 3_000, 256, 256, 9, 4_000]);
    }

    #[test]
    fn the_cost_counts_cached_input_apart_and_is_rounded_up() {
        let price = Price { input: 3_000_000, cached_input: 300_000, output: 15_000_000 };
        let cost = |input, cached, output| {
            price.of(&Usage { input_tokens: input, cached_input_tokens: cached, output_tokens: output })
        };
        assert_eq!(cost(Some(1_000), None, Some(100)), 3_000 + 1_500);
        assert_eq!(cost(Some(1_000), Some(900), Some(100)), 300 + 270 + 1_500);
        // A provider that tells more cached tokens than there were is not believed.
        assert_eq!(cost(Some(10), Some(900), None), 3);
        assert_eq!(cost(None, Some(5), None), 0);
        let tiny = Price { input: 1, cached_input: 1, output: 1 };
        assert_eq!(tiny.of(&Usage { input_tokens: Some(1), ..Usage::default() }), 1);
        assert_eq!(
            Price { input: u64::MAX, ..tiny }.of(&Usage { input_tokens: Some(u64::MAX), ..Usage::default() }),
            u64::MAX
        );
    }

    #[test]
    fn the_first_layer_that_speaks_counts() {
        let window = |tokens| Settings { context_window: Some(tokens), ..Settings::NONE };
        let dearest = Price { input: 9, cached_input: 9, output: 9 };
        let info = merged(&[&Settings::NONE, &window(8), &window(9)], dearest);
        assert_eq!((info.context_window, info.price, info.is_price_known), (8, dearest, false));
    }
}
