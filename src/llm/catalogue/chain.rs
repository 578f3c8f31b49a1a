//! Chains of models: a comma list of `provider/model`, split at the first `/`, since model names hold slashes of their
//! own.

use std::fmt;
use std::str::FromStr;

/// `provider/model`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelId {
    /// The provider's name, lower case.
    pub provider: String,
    /// The model's name, as the provider spells it.
    pub model: String,
}

impl fmt::Display for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.model)
    }
}

impl FromStr for ModelId {
    type Err = ChainError;

    fn from_str(text: &str) -> Result<Self, ChainError> {
        let (provider, model) =
            text.split_once('/').ok_or_else(|| ChainError::NoProvider(text.to_owned()))?;
        let provider = provider.trim().to_ascii_lowercase();
        let model = model.trim();
        if !is_provider_name(&provider) {
            return Err(ChainError::BadProvider(text.to_owned()));
        }
        if model.is_empty() || model.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(ChainError::BadModel(text.to_owned()));
        }
        Ok(Self { provider, model: model.to_owned() })
    }
}

/// Whether a provider may have this name.
pub(super) fn is_provider_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    !name.is_empty() && name.chars().all(allowed)
}

/// A fallback chain: models in the order of preference. That of the configuration has at least one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain(pub(super) Vec<ModelId>);

impl Chain {
    /// Its entries, the preferred one first.
    #[must_use]
    pub fn entries(&self) -> &[ModelId] {
        &self.0
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&entries.join(", "))
    }
}

impl FromStr for Chain {
    type Err = ChainError;

    fn from_str(text: &str) -> Result<Self, ChainError> {
        let entries: Vec<ModelId> = text
            .split(',')
            .map(str::trim)
            .filter(|e| !e.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        if entries.is_empty() { Err(ChainError::Empty) } else { Ok(Self(entries)) }
    }
}

/// Why a text is no chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// No entry at all.
    #[error("the model chain is empty; write for example `openai/gpt-6-luna`")]
    Empty,
    /// No slash.
    #[error("the entry `{0}` of the model chain names no provider; write `provider/model`")]
    NoProvider(String),
    /// A provider that is no name.
    #[error("the entry `{0}` of the model chain has a provider that is not made of letters, digits, - and _")]
    BadProvider(String),
    /// Nothing behind the slash, or spaces in it.
    #[error("the entry `{0}` of the model chain has no model name behind the slash, or one with spaces")]
    BadModel(String),
}

impl ChainError {
    /// The same of a variable's value, without the entry's text: it may be a key in the wrong place.
    #[must_use]
    pub fn of_variable(&self) -> &'static str {
        match self {
            Self::Empty => "names no model: give provider/model",
            Self::NoProvider(_) => {
                "has an entry without a provider: give provider/model, or a keyword that DIDACTYL_MODELS has"
            }
            Self::BadProvider(_) => "has a provider that is not made of letters, digits, - and _",
            Self::BadModel(_) => "has an entry without a model, or one with spaces: give provider/model",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_split_at_commas_and_each_entry_at_its_first_slash() {
        let chain: Chain = " OpenRouter/meta-llama/llama-4:free , openai/gpt-6-luna,".parse().unwrap();
        let ids: Vec<String> = chain.entries().iter().map(ToString::to_string).collect();
        assert_eq!(ids, ["openrouter/meta-llama/llama-4:free", "openai/gpt-6-luna"]);
        assert_eq!(chain.entries()[0].model, "meta-llama/llama-4:free");
    }

    #[test]
    fn a_text_that_is_no_chain_is_refused_with_what_to_write() {
        let table = ["", " , ", "gpt-5", "/gpt-5", "open ai/gpt-5", "openai/", "openai/gpt 5"];
        let errors: Vec<String> =
            table.iter().map(|text| text.parse::<Chain>().unwrap_err().to_string()).collect();
        insta::assert_snapshot!(errors.join("\n"), @r"
        the model chain is empty; write for example `openai/gpt-6-luna`
        the model chain is empty; write for example `openai/gpt-6-luna`
        the entry `gpt-5` of the model chain names no provider; write `provider/model`
        the entry `/gpt-5` of the model chain has a provider that is not made of letters, digits, - and _
        the entry `open ai/gpt-5` of the model chain has a provider that is not made of letters, digits, - and _
        the entry `openai/` of the model chain has no model name behind the slash, or one with spaces
        the entry `openai/gpt 5` of the model chain has no model name behind the slash, or one with spaces
        ");
    }
}
