//! `DIDACTYL_MODELS`: what the operator adds to the catalogue, and says otherwise.
//!
//! ```json
//! {
//!   "providers": {"home": {"base_url": "http://192.168.1.7:8000/v1", "context_window": 16384}},
//!   "models": {"openai/gpt-6-luna": {"input_usd": 0.1, "cached_input_usd": 0.01, "output_usd": 0.5}},
//!   "keywords": {"cheap": "openai/gpt-6-luna, groq/openai/gpt-oss-120b"}
//! }
//! ```
//!
//! A fault is told by place and by the field's name; what the text says is never shown, since a secret may have got
//! there by mistake.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::chain::{Chain, ChainError, ModelId, is_provider_name};
use super::info::{Price, SeedName, Settings, Signatures, TokenLimit};
use super::{checked_base_url, known};

/// Words for a kind of model (design §6.8).
pub const KEYWORDS: [&str; 5] = ["cheap", "fast", "smart", "long-context", "private"];

/// The fields of a model and, beside its own, of a provider.
const FIELDS: &str = "context_window, max_output, input_usd, cached_input_usd, output_usd, tools, \
    tool_choice_none, parallel_tool_calls, system_first, alternate_roles, temperature, token_limit, seed, \
    null_content, thought_signatures, thinking, stream, stream_usage, first_token_seconds, idle_seconds";

/// The operator's part of the catalogue.
#[derive(Debug, Clone, Default)]
pub struct Custom {
    pub(super) providers: BTreeMap<String, CustomProvider>,
    pub(super) models: Vec<(ModelId, Settings)>,
    pub(super) keywords: BTreeMap<&'static str, Chain>,
}

/// A provider that is added or changed.
#[derive(Debug, Clone)]
pub(super) struct CustomProvider {
    pub(super) base_url: Option<String>,
    pub(super) key_variable: Option<String>,
    pub(super) settings: Settings,
}

impl Custom {
    /// Reads the JSON text.
    ///
    /// # Errors
    /// The first fault: half a sentence that follows the variable's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let json = serde_json::from_str(text)
            .map_err(|error| format!("is not JSON: line {}, column {}", error.line(), error.column()))?;
        let Value::Object(parts) = json else { return Err("is not a JSON object".to_owned()) };
        let mut custom = Self::default();
        for (place, (name, part)) in parts.iter().enumerate() {
            let Value::Object(entries) = part else {
                return Err(format!("has a field {} that is not an object", place + 1));
            };
            let read = match name.as_str() {
                "providers" => Self::read_provider,
                "models" => Self::read_model,
                // Their chains may name models of the other parts.
                "keywords" => continue,
                _ => {
                    return Err(format!(
                        "has a field {} that is none of providers, models, keywords",
                        place + 1
                    ));
                }
            };
            custom.read_entries(name, entries, read)?;
        }
        if let Some(Value::Object(entries)) = parts.get("keywords") {
            custom.read_entries("keywords", entries, Self::read_keyword)?;
        }
        Ok(custom)
    }

    /// The chain of `DIDACTYL_LLM`: as [`Chain`] is read, and an entry without `/` may be a keyword that is configured or
    /// a model that the catalogue knows.
    ///
    /// # Errors
    /// [`ChainError`] of the first entry that is neither.
    pub fn chain(&self, text: &str) -> Result<Chain, ChainError> {
        let mut models = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match self.named(entry) {
                Some(named) => models.extend(named),
                None => models.push(entry.parse()?),
            }
        }
        if models.is_empty() { Err(ChainError::Empty) } else { Ok(Chain(models)) }
    }

    /// What a word without `/` stands for: a configured keyword, or a model that the catalogue knows.
    pub(super) fn named(&self, word: &str) -> Option<Vec<ModelId>> {
        if let Some(chain) = self.keywords.get(word) {
            return Some(chain.0.clone());
        }
        let provider = known::provider_of(word)?.to_owned();
        Some(vec![ModelId { provider, model: word.to_owned() }])
    }

    fn read_entries(
        &mut self,
        part: &str,
        entries: &Map<String, Value>,
        read: fn(&mut Self, &str, &Value) -> Result<(), String>,
    ) -> Result<(), String> {
        for (place, (name, value)) in entries.iter().enumerate() {
            read(self, name, value).map_err(|fault| format!("{part}, entry {}: {fault}", place + 1))?;
        }
        Ok(())
    }

    fn read_provider(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if !is_provider_name(name) {
            return Err("its name is not made of lower case letters, digits, - and _".to_owned());
        }
        let mut fields = fields(value)?;
        let text = |value: Value, field: &str| match value {
            Value::String(text) => Ok(text),
            _ => Err(format!("{field} is not a text")),
        };
        let base_url = match fields.shift_remove("base_url") {
            None => None,
            Some(url) => {
                let url = text(url, "base_url")?;
                Some(checked_base_url(&url).map_err(|reason| format!("base_url {reason}"))?)
            }
        };
        let key_variable =
            fields.shift_remove("key_variable").map(|name| text(name, "key_variable")).transpose()?;
        let is_variable = |name: &String| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        };
        if key_variable.as_ref().is_some_and(|name| !is_variable(name)) {
            return Err(
                "key_variable is not the name of a variable: the key itself goes into that one".to_owned()
            );
        }
        let settings = settings(&fields, "base_url, key_variable, ")?;
        self.providers.insert(name.to_owned(), CustomProvider { base_url, key_variable, settings });
        Ok(())
    }

    fn read_model(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let id = name.parse().map_err(|_| "its name is not provider/model".to_owned())?;
        self.models.push((id, settings(&fields(value)?, "")?));
        Ok(())
    }

    fn read_keyword(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let keyword = KEYWORDS.into_iter().find(|known| *known == name);
        let keyword = keyword.ok_or_else(|| format!("it is none of {}", KEYWORDS.join(", ")))?;
        let chain =
            value.as_str().ok_or("its chain is not a text such as \"provider/model, provider/model\"")?;
        let chain: Chain =
            chain.parse().map_err(|_| "its chain is not of the form provider/model, provider/model")?;
        self.keywords.insert(keyword, chain);
        Ok(())
    }
}

fn fields(value: &Value) -> Result<Map<String, Value>, String> {
    value.as_object().cloned().ok_or_else(|| "it is not an object".to_owned())
}

/// `more` names the fields that the caller knows beside these.
fn settings(fields: &Map<String, Value>, more: &str) -> Result<Settings, String> {
    let mut settings = Settings::NONE;
    let [mut input, mut cached_input, mut output] = [None; 3];
    for (place, (field, value)) in fields.iter().enumerate() {
        let flag = || value.as_bool().ok_or_else(|| format!("{field} is neither true nor false"));
        let count = || {
            let count = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0);
            count.ok_or_else(|| format!("{field} is not a whole number above 0"))
        };
        let seconds = || count().map(|seconds| Duration::from_secs(seconds.into()));
        match field.as_str() {
            "context_window" => settings.context_window = Some(count()?),
            "max_output" => settings.max_output = Some(count()?),
            "input_usd" => input = Some(micro_dollars(field, value)?),
            "cached_input_usd" => cached_input = Some(micro_dollars(field, value)?),
            "output_usd" => output = Some(micro_dollars(field, value)?),
            "tools" => settings.tools = Some(flag()?),
            "tool_choice_none" => settings.tool_choice_none = Some(flag()?),
            "parallel_tool_calls" => settings.parallel_tool_calls = Some(flag()?),
            "system_first" => settings.system_first = Some(flag()?),
            "alternate_roles" => settings.alternate_roles = Some(flag()?),
            "temperature" => settings.temperature = Some(flag()?),
            "null_content" => settings.null_content = Some(flag()?),
            "thinking" => settings.thinking = Some(flag()?),
            "stream" => settings.stream = Some(flag()?),
            "stream_usage" => settings.stream_usage = Some(flag()?),
            "first_token_seconds" => settings.first_token = Some(seconds()?),
            "idle_seconds" => settings.idle = Some(seconds()?),
            "token_limit" => {
                let known = [TokenLimit::MaxTokens, TokenLimit::MaxCompletionTokens];
                settings.token_limit = Some(one_of(known, TokenLimit::as_str, field, value)?);
            }
            "thought_signatures" => {
                let known = [Signatures::Unsent, Signatures::Sent, Signatures::Demanded];
                settings.thought_signatures = Some(one_of(known, Signatures::as_str, field, value)?);
            }
            "seed" => {
                settings.seed =
                    Some(one_of([SeedName::Seed, SeedName::RandomSeed], SeedName::as_str, field, value)?);
            }
            _ => return Err(format!("its field {} is not known; known are {more}{FIELDS}", place + 1)),
        }
    }
    settings.price = match (input, output) {
        (Some(input), Some(output)) => {
            Some(Price { input, cached_input: cached_input.unwrap_or(input), output })
        }
        (None, None) if cached_input.is_none() => None,
        _ => return Err("a price needs both input_usd and output_usd".to_owned()),
    };
    Ok(settings)
}

fn one_of<T: Copy, const N: usize>(
    known: [T; N],
    spelled: fn(T) -> &'static str,
    field: &str,
    value: &Value,
) -> Result<T, String> {
    let found = known.into_iter().find(|known| value.as_str() == Some(spelled(*known)));
    found.ok_or_else(|| format!("{field} is none of {}", known.map(spelled).join(", ")))
}

/// Dollars per million tokens as micro-dollars.
fn micro_dollars(field: &str, value: &Value) -> Result<u64, String> {
    let dollars = value.as_f64().filter(|dollars| (0.0..=1_000_000.0).contains(dollars));
    let micro = dollars.map(|dollars| (dollars * 1_000_000.0).round() as u64);
    micro.ok_or_else(|| format!("{field} is not a number of dollars per million tokens"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_told_by_its_place_and_field_and_shows_no_value() {
        let table = [
            "SEKRIT",
            "[]",
            r#"{"SEKRIT": {}}"#,
            r#"{"models": []}"#,
            r#"{"models": {"SEKRIT": {}}}"#,
            r#"{"models": {"a/b": {}, "a/SEKRIT": "SEKRIT"}}"#,
            r#"{"models": {"a/b": {"context_window": "SEKRIT"}}}"#,
            r#"{"models": {"a/b": {"max_output": 0}}}"#,
            r#"{"models": {"a/b": {"input_usd": 1}}}"#,
            r#"{"models": {"a/b": {"input_usd": -1, "output_usd": 1}}}"#,
            r#"{"models": {"a/b": {"temperature": 1}}}"#,
            r#"{"models": {"a/b": {"token_limit": "SEKRIT"}}}"#,
            r#"{"models": {"a/b": {"tools": true, "SEKRIT": 1}}}"#,
            r#"{"providers": {"SE KRIT": {}}}"#,
            r#"{"providers": {"a": {"base_url": "ftp://SEKRIT"}}}"#,
            r#"{"providers": {"a": {"base_url": 7}}}"#,
            r#"{"providers": {"a": {"key_variable": "sk-SEKRIT"}}}"#,
            r#"{"keywords": {"SEKRIT": "a/b"}}"#,
            r#"{"keywords": {"cheap": "SEKRIT"}}"#,
            r#"{"keywords": {"cheap": []}}"#,
        ];
        let faults: Vec<String> = table.iter().map(|text| Custom::parse(text).unwrap_err()).collect();
        let faults = faults.join("\n");
        assert!(!faults.contains("SEKRIT"), "{faults}");
        insta::assert_snapshot!(faults, @r#"
        is not JSON: line 1, column 1
        is not a JSON object
        has a field 1 that is none of providers, models, keywords
        has a field 1 that is not an object
        models, entry 1: its name is not provider/model
        models, entry 2: it is not an object
        models, entry 1: context_window is not a whole number above 0
        models, entry 1: max_output is not a whole number above 0
        models, entry 1: a price needs both input_usd and output_usd
        models, entry 1: input_usd is not a number of dollars per million tokens
        models, entry 1: temperature is neither true nor false
        models, entry 1: token_limit is none of max_tokens, max_completion_tokens
        models, entry 1: its field 2 is not known; known are context_window, max_output, input_usd, cached_input_usd, output_usd, tools, tool_choice_none, parallel_tool_calls, system_first, alternate_roles, temperature, token_limit, seed, null_content, thought_signatures, thinking, stream, stream_usage, first_token_seconds, idle_seconds
        providers, entry 1: its name is not made of lower case letters, digits, - and _
        providers, entry 1: base_url is not an http or https URL
        providers, entry 1: base_url is not a text
        providers, entry 1: key_variable is not the name of a variable: the key itself goes into that one
        keywords, entry 1: it is none of cheap, fast, smart, long-context, private
        keywords, entry 1: its chain is not of the form provider/model, provider/model
        keywords, entry 1: its chain is not a text such as "provider/model, provider/model"
        "#);
    }

    #[test]
    fn the_operators_chain_may_name_keywords_and_known_models() {
        let custom = Custom::parse(r#"{"keywords": {"cheap": "home/a, home/b"}}"#).unwrap();
        let chain = custom.chain("gpt-6-luna, cheap, x/y").unwrap();
        assert_eq!(chain.to_string(), "openai/gpt-6-luna, home/a, home/b, x/y");
        assert_eq!(custom.chain("fast"), Err(ChainError::NoProvider("fast".into())));
        assert_eq!(custom.chain(" ,"), Err(ChainError::Empty));
    }

    #[test]
    fn a_price_in_dollars_is_kept_in_micro_dollars() {
        let custom = Custom::parse(r#"{"models": {"a/b": {"input_usd": 0.075, "output_usd": 3}}}"#).unwrap();
        let price = Price { input: 75_000, cached_input: 75_000, output: 3_000_000 };
        assert_eq!(custom.models[0].1.price, Some(price));
    }
}
