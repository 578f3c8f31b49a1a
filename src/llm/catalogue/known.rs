//! The built-in part of the catalogue: where the usual providers are and how they spell a request; sizes and prices of
//! the usual models. What changed since is told by `DIDACTYL_MODELS`; `docs/MODELS.md` shows both tables.

use super::info::{Price, SeedName, Settings, Signatures, TokenLimit};

/// The day on which the sizes and prices were looked up.
pub const KNOWN_SINCE: &str = "2026-11-30";

/// A provider that works with nothing but its key, if that.
pub(super) struct KnownProvider {
    pub(super) name: &'static str,
    /// `{region}` stands for `AWS_REGION`.
    pub(super) base_url: &'static str,
    /// Where it is not `NAME_API_KEY`.
    pub(super) key_variable: Option<&'static str>,
    pub(super) needs_key: bool,
    pub(super) settings: Settings,
}

/// In alphabetical order.
pub(super) const PROVIDERS: [KnownProvider; 13] = [
    cloud("anthropic", "https://api.anthropic.com/v1", Settings::NONE),
    KnownProvider {
        key_variable: Some("AWS_BEARER_TOKEN_BEDROCK"),
        ..cloud(
            "bedrock",
            "https://bedrock-runtime.{region}.amazonaws.com/openai/v1",
            Settings { tool_choice_none: Some(false), ..Settings::NONE },
        )
    },
    // A model of it that thinks refuses its own calls without the thoughts behind them, and those are not kept.
    cloud(
        "deepseek",
        "https://api.deepseek.com/v1",
        Settings { system_first: Some(false), thinking: Some(false), ..Settings::NONE },
    ),
    // From the third generation on its models refuse calls without a signature.
    cloud(
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        Settings { thought_signatures: Some(Signatures::Demanded), ..Settings::NONE },
    ),
    cloud("groq", "https://api.groq.com/openai/v1", Settings { system_first: Some(false), ..Settings::NONE }),
    local("llamacpp", "http://127.0.0.1:8080/v1", TEMPLATED),
    // It tells the usage unasked, and refuses to be asked.
    cloud(
        "mistral",
        "https://api.mistral.ai/v1",
        Settings { seed: Some(SeedName::RandomSeed), stream_usage: Some(false), ..Settings::NONE },
    ),
    // It passes over `tool_choice`.
    local("ollama", "http://127.0.0.1:11434/v1", Settings { tool_choice_none: Some(false), ..FREE }),
    cloud(
        "openai",
        "https://api.openai.com/v1",
        // Its reasoning models refuse the older spelling, its other models take both.
        Settings {
            token_limit: Some(TokenLimit::MaxCompletionTokens),
            system_first: Some(false),
            ..Settings::NONE
        },
    ),
    cloud("openrouter", "https://openrouter.ai/api/v1", Settings::NONE),
    cloud("together", "https://api.together.xyz/v1", Settings::NONE),
    local("vllm", "http://127.0.0.1:8000/v1", TEMPLATED),
    cloud("xai", "https://api.x.ai/v1", Settings { system_first: Some(false), ..Settings::NONE }),
];

/// At most twenty. A dated name (`…-2025-08-07`, `…-20251001`) is the same model.
///
/// Windows, longest answers and prices as of [`KNOWN_SINCE`]. Where a price depends on the request's length or on the hour,
/// it is the higher one; where writing into the provider's cache costs more than reading the request, and that happens
/// unasked, it is that price.
pub(super) const MODELS: [(&str, Settings); 20] = [
    ("anthropic/claude-haiku-4-5", model(200_000, 64_000, [1_000_000, 100_000, 5_000_000])),
    ("anthropic/claude-haiku-5-5", reasoning(model(1_000_000, 128_000, [500_000, 50_000, 2_500_000]))),
    ("anthropic/claude-opus-5-5", reasoning(model(1_000_000, 128_000, [4_000_000, 200_000, 20_000_000]))),
    ("anthropic/claude-sonnet-5-5", reasoning(model(1_000_000, 128_000, [2_000_000, 100_000, 10_000_000]))),
    ("deepseek/deepseek-v4-flash", model(1_000_000, 393_216, [300_000, 6_000, 1_200_000])),
    ("deepseek/deepseek-v4-pro", model(1_000_000, 393_216, [1_320_000, 44_000, 3_960_000])),
    ("gemini/gemini-2.5-flash-lite", unsigned(model(1_048_576, 65_536, [100_000, 10_000, 400_000]))),
    ("gemini/gemini-3.5-flash-lite", model(1_048_576, 65_536, [300_000, 30_000, 2_500_000])),
    ("gemini/gemini-3.8-flash", reasoning(model(1_048_576, 65_536, [750_000, 75_000, 3_750_000]))),
    ("gemini/gemini-4-argon", model(1_048_576, 1_048_576, [2_000_000, 100_000, 10_000_000])),
    ("groq/openai/gpt-oss-120b", model(131_072, 65_536, [150_000, 75_000, 600_000])),
    ("groq/openai/gpt-oss-20b", model(131_072, 65_536, [75_000, 37_500, 300_000])),
    // The name has moved from one model to the next before: the larger price and the smaller window of the last two.
    ("mistral/mistral-large-latest", model(262_144, 262_144, [700_000, 70_000, 2_100_000])),
    ("mistral/mistral-small-latest", model(262_144, 262_144, [150_000, 15_000, 600_000])),
    ("openai/gpt-5.4-mini", reasoning(model(400_000, 128_000, [750_000, 75_000, 4_500_000]))),
    ("openai/gpt-6-luna", reasoning(model(1_050_000, 128_000, [250_000, 20_000, 750_000]))),
    ("openai/gpt-6.1-sol", reasoning(model(1_050_000, 128_000, [5_000_000, 200_000, 15_000_000]))),
    ("openai/gpt-6.1-terra", reasoning(model(1_050_000, 128_000, [2_500_000, 100_000, 7_500_000]))),
    ("xai/grok-4.20", model(1_000_000, 1_000_000, [2_500_000, 400_000, 5_000_000])),
    ("xai/grok-4.7", model(500_000, 500_000, [4_000_000, 1_000_000, 12_000_000])),
];

/// Of one's own machine.
const FREE: Settings =
    Settings { price: Some(Price { input: 0, cached_input: 0, output: 0 }), ..Settings::NONE };

/// The same by a server that applies the model's own chat template: those of some families (Gemma, Mistral, Llama 2)
/// refuse roles that do not take turns.
const TEMPLATED: Settings = Settings { alternate_roles: Some(true), ..FREE };

const fn cloud(name: &'static str, base_url: &'static str, settings: Settings) -> KnownProvider {
    KnownProvider { name, base_url, key_variable: None, needs_key: true, settings }
}

const fn local(name: &'static str, base_url: &'static str, settings: Settings) -> KnownProvider {
    KnownProvider { needs_key: false, ..cloud(name, base_url, settings) }
}

/// Window, most output, and prices of input, cached input and output in micro-dollars per million tokens.
const fn model(context_window: u32, max_output: u32, [input, cached_input, output]: [u64; 3]) -> Settings {
    Settings {
        context_window: Some(context_window),
        max_output: Some(max_output),
        price: Some(Price { input, cached_input, output }),
        ..Settings::NONE
    }
}

/// It takes no temperature.
const fn reasoning(settings: Settings) -> Settings {
    Settings { temperature: Some(false), ..settings }
}

/// It signs its calls, and takes those of others unsigned.
const fn unsigned(settings: Settings) -> Settings {
    Settings { thought_signatures: Some(Signatures::Sent), ..settings }
}

/// The provider of this name.
pub(super) fn provider(name: &str) -> Option<&'static KnownProvider> {
    PROVIDERS.iter().find(|known| known.name == name)
}

/// What is known of `provider/model`. A model that OpenRouter hands on is looked up under its own provider.
pub(super) fn model_settings(provider: &str, model: &str) -> Option<&'static Settings> {
    let id = match provider {
        "openrouter" => model.to_owned(),
        provider => format!("{provider}/{model}"),
    };
    let is_dated = |rest: &str| rest.starts_with("-20");
    let found = MODELS
        .iter()
        .find(|(known, _)| id.strip_prefix(known).is_some_and(|rest| rest.is_empty() || is_dated(rest)));
    found.map(|(_, settings)| settings)
}

/// The provider of a model that is known by this name alone.
pub(super) fn provider_of(model: &str) -> Option<&'static str> {
    let named = |provider: &&KnownProvider| {
        provider.name != "openrouter" && model_settings(provider.name, model).is_some()
    };
    PROVIDERS.iter().find(named).map(|provider| provider.name)
}

/// Of each part the highest price in the table.
pub(super) fn dearest() -> Price {
    let highest = |part: fn(&Price) -> u64| {
        MODELS.iter().filter_map(|(_, settings)| settings.price.as_ref()).map(part).max().unwrap_or(0)
    };
    Price {
        input: highest(|p| p.input),
        cached_input: highest(|p| p.cached_input),
        output: highest(|p| p.output),
    }
}
