//! Which providers there are, and which model of a chain can be asked.
//!
//! A chain is a comma list of `provider/model`, split at the first `/`: model names hold slashes of their own.
//! Every provider speaks OpenAI chat completions; the few differences are fields of [`Provider`]. Nothing here reads
//! the environment or the network: variables come through a lookup.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use reqwest::Url;
use reqwest::header::HeaderValue;

use crate::secret::Secret;

/// One line of the built-in catalogue.
struct Known {
    name: &'static str,
    base_url: &'static str,
    needs_key: bool,
    limit: TokenLimit,
}

/// The providers that work with nothing but a key. Their key variable is `NAME_API_KEY`.
const KNOWN: [Known; 10] = [
    cloud("anthropic", "https://api.anthropic.com/v1"),
    cloud("deepseek", "https://api.deepseek.com/v1"),
    cloud("gemini", "https://generativelanguage.googleapis.com/v1beta/openai"),
    cloud("groq", "https://api.groq.com/openai/v1"),
    cloud("mistral", "https://api.mistral.ai/v1"),
    Known { needs_key: false, ..cloud("ollama", "http://127.0.0.1:11434/v1") },
    // OpenAI's reasoning models refuse the older spelling, its other models take both.
    Known { limit: TokenLimit::MaxCompletionTokens, ..cloud("openai", "https://api.openai.com/v1") },
    cloud("openrouter", "https://openrouter.ai/api/v1"),
    cloud("together", "https://api.together.xyz/v1"),
    cloud("xai", "https://api.x.ai/v1"),
];

/// Whether a provider works with nothing but its key.
#[must_use]
pub fn is_known(provider: &str) -> bool {
    KNOWN.iter().any(|known| known.name == provider)
}

const fn cloud(name: &'static str, base_url: &'static str) -> Known {
    Known { name, base_url, needs_key: true, limit: TokenLimit::MaxTokens }
}

/// How a provider spells the most tokens that an answer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenLimit {
    /// `max_tokens`.
    MaxTokens,
    /// `max_completion_tokens`.
    MaxCompletionTokens,
}

/// A provider that can be asked.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its name in chains, lower case.
    pub name: String,
    /// Where `/chat/completions` hangs, without a slash at the end.
    pub base_url: String,
    /// The bearer key, where there is one.
    pub key: Option<Secret>,
    /// How it spells the token limit.
    pub token_limit: TokenLimit,
}

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
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if provider.is_empty() || !provider.chars().all(word) {
            return Err(ChainError::BadProvider(text.to_owned()));
        }
        if model.is_empty() || model.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(ChainError::BadModel(text.to_owned()));
        }
        Ok(Self { provider, model: model.to_owned() })
    }
}

/// A fallback chain: models in the order of preference, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain(Vec<ModelId>);

impl Chain {
    /// Its entries, the preferred one first.
    #[must_use]
    pub fn entries(&self) -> &[ModelId] {
        &self.0
    }
}

/// Words for a kind of model (design §6.8). No models are configured for them yet.
const KEYWORDS: [&str; 5] = ["cheap", "fast", "smart", "long-context", "private"];

impl Chain {
    /// A skill's chain: an entry that cannot be read is passed over, and one without a provider is of the provider of
    /// `default`'s first entry. A keyword stands for `default`, but for `private`, which must not end in a cloud.
    #[must_use]
    pub fn lenient(text: &str, default: &Self) -> Self {
        let entry = |entry: &str| match entry {
            "private" => Vec::new(),
            keyword if KEYWORDS.contains(&keyword) => default.0.clone(),
            model if model.contains('/') => model.parse().into_iter().collect(),
            model => {
                let first = default.0.first();
                first
                    .map(|id| ModelId { provider: id.provider.clone(), model: model.to_owned() })
                    .into_iter()
                    .collect()
            }
        };
        Self(text.split(',').map(str::trim).filter(|text| !text.is_empty()).flat_map(entry).collect())
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
    #[error("the model chain is empty; write for example `openai/gpt-5-mini`")]
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

/// A model that can be asked.
#[derive(Debug, Clone)]
pub struct Model {
    /// Who answers for it.
    pub provider: Provider,
    /// Its name, as the provider spells it.
    pub name: String,
}

impl Model {
    /// `provider/model`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.provider.name, self.name)
    }
}

/// The providers of the catalogue and of the configured chain; for each what it needs, or what it lacks.
#[derive(Debug, Clone)]
pub struct Providers(BTreeMap<String, Result<Provider, String>>);

impl Providers {
    /// Resolves the catalogue's providers and those that `chain` names.
    ///
    /// `NAME_BASE_URL` moves a provider or adds one; a provider so named needs no key, but `NAME_API_KEY` is used
    /// where it is set. In variables a provider's `-` is `_`.
    #[must_use]
    pub fn resolve(chain: &Chain, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let known = KNOWN.iter().map(|k| k.name);
        let named = chain.entries().iter().map(|e| e.provider.as_str());
        Self(known.chain(named).map(|name| (name.to_owned(), resolve(name, lookup))).collect())
    }

    /// The keys of all providers.
    pub fn keys(&self) -> impl Iterator<Item = &Secret> {
        self.0.values().flatten().filter_map(|provider| provider.key.as_ref())
    }

    /// The model behind `id`.
    ///
    /// # Errors
    /// What its provider lacks: names of variables, never their values.
    pub fn model(&self, id: &ModelId) -> Result<Model, String> {
        match self.0.get(&id.provider) {
            Some(Ok(provider)) => Ok(Model { provider: provider.clone(), name: id.model.clone() }),
            Some(Err(lacks)) => Err(lacks.clone()),
            None => Err(unknown(&id.provider)),
        }
    }

    /// The first model of `chain` that has what it needs.
    ///
    /// # Errors
    /// [`NoUsableModel`] with what each entry lacks.
    pub fn first_usable(&self, chain: &Chain) -> Result<Model, NoUsableModel> {
        let mut lacks = Vec::new();
        for id in chain.entries() {
            match self.model(id) {
                Ok(model) => return Ok(model),
                Err(reason) => lacks.push(format!("{id}: {reason}")),
            }
        }
        Err(NoUsableModel(lacks))
    }
}

/// No entry of a chain can be asked; one text per entry says what it lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no model of the chain can be used: {}", .0.join("; "))]
pub struct NoUsableModel(pub Vec<String>);

fn variable(provider: &str, suffix: &str) -> String {
    format!("{}_{suffix}", provider.to_ascii_uppercase().replace('-', "_"))
}

fn unknown(provider: &str) -> String {
    format!("the provider is not in the catalogue; set {} to use it", variable(provider, "BASE_URL"))
}

fn resolve(name: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Provider, String> {
    let set = |variable: &str| lookup(variable).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
    let known = KNOWN.iter().find(|k| k.name == name);
    let url_variable = variable(name, "BASE_URL");
    let given_url = set(&url_variable);
    let key_variable = variable(name, "API_KEY");
    let key = set(&key_variable).map(Secret::new);

    let needs_key = given_url.is_none() && known.is_some_and(|k| k.needs_key);
    if needs_key && key.is_none() {
        return Err(format!("{key_variable} is not set"));
    }
    if key.as_ref().is_some_and(|k| HeaderValue::from_str(k.expose()).is_err()) {
        return Err(format!("{key_variable} has characters that no HTTP header can carry"));
    }
    let base_url = given_url.or(known.map(|k| k.base_url.to_owned())).ok_or_else(|| unknown(name))?;
    Ok(Provider {
        name: name.to_owned(),
        base_url: checked_base_url(&base_url).map_err(|reason| format!("{url_variable} {reason}"))?,
        key,
        token_limit: known.map_or(TokenLimit::MaxTokens, |k| k.limit),
    })
}

/// A base URL as text to hang a path on. Credentials and queries are refused: they would end up in logs.
fn checked_base_url(text: &str) -> Result<String, &'static str> {
    let url = Url::parse(text).map_err(|_| "is not a URL")?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("is not an http or https URL");
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err("must not hold credentials, a query or a fragment");
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usable(chain: &str, variables: &[(&str, &str)]) -> Result<Model, String> {
        let chain: Chain = chain.parse().map_err(|e: ChainError| e.to_string())?;
        let lookup =
            |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Providers::resolve(&chain, &lookup).first_usable(&chain).map_err(|e| e.to_string())
    }

    #[test]
    fn a_chain_is_split_at_commas_and_each_entry_at_its_first_slash() {
        let chain: Chain = " OpenRouter/meta-llama/llama-4:free , openai/gpt-5-mini,".parse().unwrap();
        let ids: Vec<String> = chain.entries().iter().map(ToString::to_string).collect();
        assert_eq!(ids, ["openrouter/meta-llama/llama-4:free", "openai/gpt-5-mini"]);
        assert_eq!(chain.entries()[0].model, "meta-llama/llama-4:free");
    }

    #[test]
    fn a_skills_chain_is_read_leniently_and_private_never_becomes_a_cloud() {
        let default: Chain = "openai/gpt-5-mini, groq/qwen/qwen3".parse().unwrap();
        for (text, chain) in [
            ("anthropic/claude, cheap", "anthropic/claude, openai/gpt-5-mini, groq/qwen/qwen3"),
            ("gpt-4o-mini", "openai/gpt-4o-mini"),
            ("ollama/qwen3, private", "ollama/qwen3"),
            ("/x, openai/, private, ,", ""),
        ] {
            assert_eq!(Chain::lenient(text, &default).to_string(), chain, "{text}");
        }
    }

    #[test]
    fn a_text_that_is_no_chain_is_refused_with_what_to_write() {
        let table = ["", " , ", "gpt-5", "/gpt-5", "open ai/gpt-5", "openai/", "openai/gpt 5"];
        let errors: Vec<String> =
            table.iter().map(|text| text.parse::<Chain>().unwrap_err().to_string()).collect();
        insta::assert_snapshot!(errors.join("\n"), @r"
        the model chain is empty; write for example `openai/gpt-5-mini`
        the model chain is empty; write for example `openai/gpt-5-mini`
        the entry `gpt-5` of the model chain names no provider; write `provider/model`
        the entry `/gpt-5` of the model chain has a provider that is not made of letters, digits, - and _
        the entry `open ai/gpt-5` of the model chain has a provider that is not made of letters, digits, - and _
        the entry `openai/` of the model chain has no model name behind the slash, or one with spaces
        the entry `openai/gpt 5` of the model chain has no model name behind the slash, or one with spaces
        ");
    }

    #[test]
    fn the_first_entry_that_has_its_key_is_taken() {
        let model = usable("openai/gpt-5-mini,groq/qwen/qwen3", &[("GROQ_API_KEY", " gsk-1\n")]).unwrap();
        assert_eq!(model.id(), "groq/qwen/qwen3");
        assert_eq!(model.provider.base_url, "https://api.groq.com/openai/v1");
        assert_eq!(model.provider.key.unwrap().expose(), "gsk-1");
    }

    #[test]
    fn ollama_needs_no_key() {
        let model = usable("ollama/qwen3", &[]).unwrap();
        assert_eq!(model.provider.base_url, "http://127.0.0.1:11434/v1");
        assert!(model.provider.key.is_none());
    }

    #[test]
    fn a_base_url_moves_a_provider_and_adds_one_and_makes_its_key_optional() {
        let moved = usable("openai/m", &[("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")]).unwrap();
        assert_eq!(moved.provider.base_url, "http://127.0.0.1:9/v1");
        assert_eq!(moved.provider.token_limit, TokenLimit::MaxCompletionTokens);
        let variables = [("MY_LLM_BASE_URL", "https://llm.example/v1"), ("MY_LLM_API_KEY", "k")];
        let added = usable("my-llm/m", &variables).unwrap();
        assert_eq!(added.provider.base_url, "https://llm.example/v1");
        assert_eq!(added.provider.key.unwrap().expose(), "k");
    }

    #[test]
    fn the_error_says_what_each_entry_lacks_and_shows_no_value() {
        let variables = [
            ("XAI_API_KEY", "ke\ny-SEKRIT"),
            ("OPENAI_BASE_URL", "https://me:SEKRIT@llm.example/v1"),
            ("GROQ_BASE_URL", "ftp://SEKRIT"),
            ("TOGETHER_BASE_URL", "SEKRIT"),
            ("MISTRAL_API_KEY", "  "),
        ];
        let error = usable("mistral/a,xai/b,openai/c,groq/d,together/e,home/f", &variables).unwrap_err();
        insta::assert_snapshot!(error.replace("; ", "\n"), @r"
        no model of the chain can be used: mistral/a: MISTRAL_API_KEY is not set
        xai/b: XAI_API_KEY has characters that no HTTP header can carry
        openai/c: OPENAI_BASE_URL must not hold credentials, a query or a fragment
        groq/d: GROQ_BASE_URL is not an http or https URL
        together/e: TOGETHER_BASE_URL is not a URL
        home/f: the provider is not in the catalogue
        set HOME_BASE_URL to use it
        ");
    }

    #[test]
    fn a_key_is_not_part_of_what_a_provider_prints() {
        let model = usable("openai/m", &[("OPENAI_API_KEY", "sk-SEKRIT")]).unwrap();
        assert!(!format!("{model:?}").contains("SEKRIT"));
    }
}
