//! Which providers and models there are, what is known of them, and which model of a chain can be asked.
//!
//! Every provider speaks OpenAI chat completions; the differences are fields of [`ModelInfo`]. What is known lies in
//! layers, the first that speaks counts: the operator's word on a model, the built-in one on it, then both on its provider,
//! then what is safe with anybody. Nothing here reads the environment or the network: variables come through a lookup.

mod chain;
mod custom;
mod info;
mod known;

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Url;
use reqwest::header::HeaderValue;

pub use self::chain::{Chain, ChainError, ModelId};
pub use self::custom::{Custom, KEYWORDS};
pub use self::info::{ModelInfo, Price, SeedName, Signatures, TokenLimit};
pub use self::known::KNOWN_SINCE;
use crate::secret::Secret;

/// A provider that can be asked.
#[derive(Debug, Clone)]
pub struct Provider {
    /// Its name in chains, lower case.
    pub name: String,
    /// Where `/chat/completions` hangs, without a slash at the end.
    pub base_url: String,
    /// The bearer key, where there is one.
    pub key: Option<Secret>,
}

/// A model that can be asked.
#[derive(Debug, Clone)]
pub struct Model {
    /// Who answers for it.
    pub provider: Provider,
    /// Its name, as the provider spells it.
    pub name: String,
    /// What is known of it.
    pub info: ModelInfo,
}

impl Model {
    /// `provider/model`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}", self.provider.name, self.name)
    }
}

/// The providers of the catalogue, of the operator and of the configured chain; for each what it needs, or what it
/// lacks.
#[derive(Debug, Clone)]
pub struct Providers {
    resolved: BTreeMap<String, Result<Provider, String>>,
    custom: Custom,
}

impl Providers {
    /// Resolves the catalogue's providers and those that `chain` names, with nothing of the operator's.
    ///
    /// `NAME_BASE_URL` moves a provider or adds one; a provider so named needs no key, but `NAME_API_KEY` is used
    /// where it is set. In variables a provider's `-` is `_`.
    #[must_use]
    pub fn resolve(chain: &Chain, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        Self::with_custom(chain, Custom::default(), lookup)
    }

    /// The same, with the operator's part of the catalogue.
    #[must_use]
    pub fn with_custom(chain: &Chain, custom: Custom, lookup: &dyn Fn(&str) -> Option<String>) -> Self {
        let chains = custom.keywords.values().chain([chain]).flat_map(Chain::entries);
        let mut names: BTreeSet<&str> = chains.map(|id| id.provider.as_str()).collect();
        names.extend(known::PROVIDERS.iter().map(|known| known.name));
        names.extend(custom.providers.keys().map(String::as_str));
        let resolved =
            names.into_iter().map(|name| (name.to_owned(), resolve(name, &custom, lookup))).collect();
        Self { resolved, custom }
    }

    /// The keys of all providers.
    pub fn keys(&self) -> impl Iterator<Item = &Secret> {
        self.resolved.values().flatten().filter_map(|provider| provider.key.as_ref())
    }

    /// The model behind `id`.
    ///
    /// # Errors
    /// What its provider lacks: names of variables, never their values.
    pub fn model(&self, id: &ModelId) -> Result<Model, String> {
        match self.resolved.get(&id.provider) {
            Some(Ok(provider)) => {
                Ok(Model { provider: provider.clone(), name: id.model.clone(), info: self.info(id) })
            }
            Some(Err(lacks)) => Err(lacks.clone()),
            None => Err(unknown(&id.provider)),
        }
    }

    /// Each provider by its name: what it needs, or what it lacks.
    pub fn all(&self) -> impl Iterator<Item = (&str, Result<&Provider, &str>)> {
        self.resolved
            .iter()
            .map(|(name, resolved)| (name.as_str(), resolved.as_ref().map_err(String::as_str)))
    }

    /// The models that the catalogue knows, the operator's first.
    pub fn known_models(&self) -> impl Iterator<Item = ModelId> {
        let custom = self.custom.models.iter().map(|(id, _)| id.clone());
        custom.chain(known::MODELS.iter().filter_map(|(name, _)| name.parse().ok()))
    }

    /// The chain that is configured for a keyword.
    #[must_use]
    pub fn keyword(&self, keyword: &str) -> Option<&Chain> {
        self.custom.keywords.get(keyword)
    }

    /// Whether the provider's name is one of the catalogue, the operator's part among it: no secret in a wrong place.
    #[must_use]
    pub fn is_catalogued(&self, provider: &str) -> bool {
        known::provider(provider).is_some() || self.custom.providers.contains_key(provider)
    }

    /// What is known of the model `id`, or assumed where nothing is.
    #[must_use]
    pub fn info(&self, id: &ModelId) -> ModelInfo {
        let custom_model =
            self.custom.models.iter().find(|(custom, _)| custom == id).map(|(_, settings)| settings);
        let custom_provider = self.custom.providers.get(&id.provider).map(|custom| &custom.settings);
        let known_provider = known::provider(&id.provider).map(|known| &known.settings);
        let layers =
            [custom_model, known::model_settings(&id.provider, &id.model), custom_provider, known_provider];
        info::merged(&layers.into_iter().flatten().collect::<Vec<_>>(), known::dearest())
    }

    /// The chain of a skill or a request. What cannot be read is passed over.
    ///
    /// An entry without `/` is a keyword, else a model that the catalogue knows, else a model of the provider of
    /// `default`'s first entry. A keyword that is not configured stands for `default`, but for `private`, which must
    /// not end in a cloud.
    #[must_use]
    pub fn chain(&self, text: &str, default: &Chain) -> Chain {
        // A keyword is one however it is written: `Private` must not become a model of some cloud.
        let keyword = |entry: &str| KEYWORDS.into_iter().find(|keyword| keyword.eq_ignore_ascii_case(entry));
        let entry = |entry: &str| match self.custom.named(keyword(entry).unwrap_or(entry)) {
            Some(models) => models,
            None if keyword(entry) == Some("private") => Vec::new(),
            None if keyword(entry).is_some() => default.0.clone(),
            None if entry.contains('/') => entry.parse().into_iter().collect(),
            None => {
                let of_first = |first: &ModelId| format!("{}/{entry}", first.provider).parse().ok();
                default.0.first().and_then(of_first).into_iter().collect()
            }
        };
        Chain(text.split(',').map(str::trim).filter(|text| !text.is_empty()).flat_map(entry).collect())
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

fn resolve(name: &str, custom: &Custom, lookup: &dyn Fn(&str) -> Option<String>) -> Result<Provider, String> {
    let set = |variable: &str| lookup(variable).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
    let known = known::provider(name);
    let custom = custom.providers.get(name);
    let url_variable = variable(name, "BASE_URL");
    let given_url = set(&url_variable)
        .map(|url| checked_base_url(&url).map_err(|reason| format!("{url_variable} {reason}")))
        .transpose()?
        .or_else(|| custom.and_then(|custom| custom.base_url.clone()));

    let custom_key = custom.and_then(|custom| custom.key_variable.clone());
    let known_key = || known.and_then(|known| known.key_variable).map(str::to_owned);
    let key_variable = custom_key.or_else(known_key).unwrap_or_else(|| variable(name, "API_KEY"));
    let key = set(&key_variable).map(Secret::new);
    let needs_key = given_url.is_none() && known.is_some_and(|known| known.needs_key);
    if needs_key && key.is_none() {
        return Err(format!("{key_variable} is not set"));
    }
    if key.as_ref().is_some_and(|k| HeaderValue::from_str(k.expose()).is_err()) {
        return Err(format!("{key_variable} has characters that no HTTP header can carry"));
    }
    let base_url = match (given_url, known) {
        (Some(url), _) => url,
        (None, Some(known)) => in_region(known.base_url, set("AWS_REGION"))?,
        (None, None) => return Err(unknown(name)),
    };
    Ok(Provider { name: name.to_owned(), base_url, key })
}

/// The base URL of a provider that has one per region of AWS.
fn in_region(base_url: &str, region: Option<String>) -> Result<String, String> {
    if !base_url.contains("{region}") {
        return Ok(base_url.to_owned());
    }
    let is_region =
        |region: &String| region.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    match region.filter(is_region) {
        Some(region) => Ok(base_url.replace("{region}", &region)),
        None => Err("AWS_REGION is not set, or names no region".to_owned()),
    }
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
    fn a_skills_chain_is_read_leniently_and_private_never_becomes_a_cloud() {
        let default: Chain = "openai/gpt-6-luna, groq/qwen/qwen3".parse().unwrap();
        let providers = Providers::resolve(&default, &|_| None);
        let custom =
            Custom::parse(r#"{"keywords": {"private": "ollama/qwen3", "fast": "xai/a, xai/b"}}"#).unwrap();
        let with_keywords = Providers::with_custom(&default, custom, &|_| None);
        let chain = with_keywords.chain("private, a/b, fast, smart", &default).to_string();
        assert_eq!(chain, "ollama/qwen3, a/b, xai/a, xai/b, openai/gpt-6-luna, groq/qwen/qwen3");
        for (text, chain) in [
            ("anthropic/claude, cheap", "anthropic/claude, openai/gpt-6-luna, groq/qwen/qwen3"),
            ("gpt-6", "openai/gpt-6"),
            ("claude-haiku-4-5-20251001, grok-4.7", "anthropic/claude-haiku-4-5-20251001, xai/grok-4.7"),
            ("ollama/qwen3, private", "ollama/qwen3"),
            ("/x, openai/, private, ,", ""),
            ("Private, PRIVATE, Cheap", "openai/gpt-6-luna, groq/qwen/qwen3"),
        ] {
            assert_eq!(providers.chain(text, &default).to_string(), chain, "{text}");
        }
    }

    #[test]
    fn the_first_entry_that_has_its_key_is_taken() {
        let model = usable("openai/gpt-6-luna,groq/qwen/qwen3", &[("GROQ_API_KEY", " gsk-1\n")]).unwrap();
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
        assert_eq!(moved.info.token_limit, TokenLimit::MaxCompletionTokens);
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

    fn info_of(custom: &str, id: &str) -> ModelInfo {
        let chain = "ollama/m".parse().unwrap();
        let providers = Providers::with_custom(&chain, Custom::parse(custom).unwrap(), &|_| None);
        providers.info(&id.parse().unwrap())
    }

    #[test]
    fn an_unknown_model_has_safe_defaults_and_the_dearest_price() {
        let info = info_of("{}", "nobody/knows");
        let price = Price { input: 5_000_000, cached_input: 1_000_000, output: 20_000_000 };
        assert_eq!((info.price, info.is_price_known), (price, false));
        assert_eq!((info.context_window, info.max_output), (32_768, 4_096));
        assert!(info.system_first && info.tools && info.stream);
    }

    #[test]
    fn a_known_model_is_known_under_a_dated_name_and_behind_openrouter() {
        let known = info_of("{}", "openai/gpt-6-luna");
        assert_eq!(
            (known.context_window, known.price.output, known.temperature),
            (1_050_000, 750_000, false)
        );
        assert_eq!(info_of("{}", "openai/gpt-6-luna-2026-08-07"), known);
        let routed = info_of("{}", "openrouter/openai/gpt-6-luna");
        assert_eq!((routed.price, routed.token_limit), (known.price, TokenLimit::MaxTokens));
        assert!(!info_of("{}", "openai/gpt-6-luna-high").is_price_known);
    }

    #[test]
    fn what_runs_on_the_own_machine_costs_nothing() {
        for id in ["ollama/qwen3", "vllm/m", "llamacpp/m"] {
            let info = info_of("{}", id);
            assert_eq!((info.price.input, info.price.output, info.is_price_known), (0, 0, true), "{id}");
        }
    }

    #[test]
    fn the_operator_has_the_last_word_on_a_model_and_on_a_provider_before_the_catalogue() {
        let custom = r#"{
            "models": {"openai/gpt-6-luna": {"context_window": 9000, "temperature": true}},
            "providers": {"openai": {"max_output": 7, "token_limit": "max_tokens"}, "home": {"stream": false}}
        }"#;
        let info = info_of(custom, "openai/gpt-6-luna");
        assert_eq!((info.context_window, info.max_output, info.temperature), (9_000, 128_000, true));
        assert_eq!(info.token_limit, TokenLimit::MaxTokens);
        assert_eq!(info_of(custom, "openai/other").max_output, 7);
        assert!(!info_of(custom, "home/m").stream);
    }

    #[test]
    fn the_operator_adds_a_provider_with_its_address_and_its_keys_variable() {
        let custom =
            r#"{"providers": {"home": {"base_url": "https://llm.example/v1/", "key_variable": "HOME_KEY"}}}"#;
        let chain: Chain = "home/m".parse().unwrap();
        let model = |name: &str, value: &str| {
            let lookup = |asked: &str| (asked == name).then(|| value.to_owned());
            let providers = Providers::with_custom(&chain, Custom::parse(custom).unwrap(), &lookup);
            providers.model(&chain.entries()[0]).unwrap().provider
        };
        assert_eq!(model("HOME_KEY", "k").key.unwrap().expose(), "k");
        assert_eq!(model("HOME_KEY", "k").base_url, "https://llm.example/v1");
        assert_eq!(model("HOME_BASE_URL", "http://other/v1").base_url, "http://other/v1");
    }

    #[test]
    fn bedrock_is_asked_in_the_functions_region() {
        let key = ("AWS_BEARER_TOKEN_BEDROCK", "k");
        let model = usable("bedrock/m", &[key, ("AWS_REGION", "eu-central-1")]).unwrap();
        assert_eq!(model.provider.base_url, "https://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1");
        let lacks = [usable("bedrock/m", &[key]), usable("bedrock/m", &[key, ("AWS_REGION", "x/SEKRIT")])];
        for lack in lacks.map(Result::unwrap_err) {
            assert!(lack.contains("AWS_REGION") && !lack.contains("SEKRIT"), "{lack}");
        }
    }

    #[test]
    fn the_documentation_shows_the_catalogue_as_it_is() {
        let docs = include_str!("../../../docs/MODELS.md");
        let thousands = |count: u32| {
            let digits = count.to_string();
            let groups: Vec<&str> =
                digits.as_bytes().rchunks(3).rev().map(|g| str::from_utf8(g).unwrap()).collect();
            groups.join(",")
        };
        let dollars = |micro: u64| {
            let text = format!("{}.{:06}", micro / 1_000_000, micro % 1_000_000);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        };
        for (name, settings) in &known::MODELS {
            let price = settings.price.unwrap();
            let sizes = [settings.context_window, settings.max_output].map(|size| thousands(size.unwrap()));
            let prices = [price.input, price.cached_input, price.output].map(dollars);
            let row = format!("| `{name}` | {} | {} |", sizes.join(" | "), prices.join(" | "));
            assert!(docs.contains(&row), "{row}");
        }
        for provider in &known::PROVIDERS {
            let url = provider.base_url.replace("{region}", "{`AWS_REGION`}");
            let row = docs.lines().find(|line| line.starts_with(&format!("| `{}` |", provider.name)));
            assert!(
                row.is_some_and(|row| row.ends_with(&format!("| {url} |"))),
                "{}: {row:?}",
                provider.name
            );
        }
        assert!(docs.contains(KNOWN_SINCE));
        let rows = docs
            .lines()
            .filter(|line| line.starts_with("| `") && line.contains('/') && !line.contains("http"));
        assert_eq!(rows.filter(|line| line.matches('|').count() == 7).count(), known::MODELS.len());
    }

    #[test]
    fn the_table_is_in_order_and_every_provider_in_it_is_known() {
        let names: Vec<&str> = known::PROVIDERS.iter().map(|known| known.name).collect();
        assert!(names.is_sorted() && known::MODELS.is_sorted_by_key(|(name, _)| *name));
        assert!(known::MODELS.len() <= 20);
        for (name, _) in &known::MODELS {
            assert!(known::provider(&name.parse::<ModelId>().unwrap().provider).is_some(), "{name}");
        }
    }
}
