//! Configuration: what the variables mean. [`crate::environment`] has them.
//!
//! [`Config::from_vars`] checks everything at once and reports every fault together. A message names the variable and
//! what is wrong with it; no value is ever echoed, since any of them may be a secret in the wrong place.
//! `docs/CONFIGURATION.md` lists each variable with default and secrecy.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nostr::prelude::{FromBech32, FromMnemonic, Keys, Nip19Profile, PublicKey, RelayUrl, ToBech32};
use tracing_subscriber::EnvFilter;

use crate::aws;
use crate::hash::sha256;
use crate::llm::catalogue::{Chain, ChainError, Custom, Providers};
use crate::relay::address;
use crate::secret::{Mask, Secret};

/// The checked configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The agent's keys (`DIDACTYL_NSEC`).
    pub keys: Keys,
    /// The admins, in order; never empty (`DIDACTYL_ADMIN`).
    pub admins: Vec<PublicKey>,
    /// The configured relays, normalised, without repetitions; never empty (`DIDACTYL_RELAYS`).
    pub relays: Vec<RelayUrl>,
    /// Where state is kept (`DIDACTYL_STORE`).
    pub store: StoreChoice,
    /// The model chain (`DIDACTYL_LLM`).
    pub llm: Chain,
    /// The providers that have what they need, at the cold start; [`crate::credentials`] has their keys of now.
    pub providers: Providers,
    /// The agent's name where its profile has none (`DIDACTYL_AGENT_NAME`).
    pub agent_name: Option<String>,
    /// Who may use the HTTP API (`DIDACTYL_API_TOKEN`), at the cold start; [`crate::credentials`] knows who may now.
    pub api_tokens: Vec<ApiToken>,
    /// The URL of the SQS queue that takes unfinished runs (`DIDACTYL_QUEUE_URL`).
    pub queue_url: Option<String>,
    /// The log filter (`DIDACTYL_LOG`).
    pub log: String,
    /// How old a message may be to be worked; `None` is any age (`DIDACTYL_MAX_AGE`).
    pub max_age: Option<Duration>,
    /// The most model calls of a run that may use tools, where no request asks for fewer or more
    /// (`DIDACTYL_MAX_TURNS`).
    pub max_turns: u32,
    /// Whether what the model is asked is written down for people (`DIDACTYL_CONTEXT_DEBUG`).
    pub context_debug: ContextDebug,
    /// Where it is written down as files (`DIDACTYL_CONTEXT_DIR`); none is the working directory.
    pub context_dir: Option<PathBuf>,
    /// All that is secret in the variables, in each spelling that may come to stand in a text.
    pub secrets: Mask,
}

/// How much of what the model is asked is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContextDebug {
    /// Nothing.
    Off,
    /// The context that a run begins with.
    Init,
    /// That, and the messages of each turn.
    Full,
}

impl ContextDebug {
    /// Its name in the variable and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Init => "init",
            Self::Full => "full",
        }
    }
}

impl FromStr for ContextDebug {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Off, Self::Init, Self::Full]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or_else(|| "is not a mode: give off, init or full".to_owned())
    }
}

/// A store by its kind and place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// `sqlite:PATH`.
    Sqlite(PathBuf),
    /// `dynamodb:TABLE`.
    DynamoDb(String),
}

/// A bearer token of the HTTP API: `[scope=]TOKEN` or `[scope=]sha256:HEX`.
#[derive(Debug, Clone)]
pub struct ApiToken {
    /// What it opens.
    pub scope: Scope,
    /// SHA-256 of the token.
    pub sha256: [u8; 32],
}

/// What a bearer token opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Everything.
    All,
    /// Only what reads.
    Read,
    /// Only `POST /bridge`.
    Bridge,
}

/// Everything that is wrong with the environment, one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {} fault(s):\n{}", .0.len(), .0.iter().map(|f| format!("- {f}")).collect::<Vec<_>>().join("\n"))]
pub struct ConfigError(pub Vec<String>);

/// Where no `DIDACTYL_STORE` is set.
const DEFAULT_STORE: &str = "sqlite:didactyl.sqlite";
/// Where no `DIDACTYL_MAX_AGE` is set.
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Where no `DIDACTYL_MAX_TURNS` is set.
const DEFAULT_MAX_TURNS: &str = "16";
/// A claim outlives its message; of a longer age the stores could not express when it ends.
const LONGEST_MAX_AGE: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);
/// A shorter plain token can be guessed.
const MIN_TOKEN_CHARS: usize = 22;

impl Config {
    /// Reads variables from `vars`. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault.
    pub fn from_vars(vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader { vars, faults: Vec::new() };
        let keys = reader.required("DIDACTYL_NSEC", "the agent's secret key", parse_keys);
        let admins = reader.required("DIDACTYL_ADMIN", "the key that commands the agent", parse_admins);
        let relays = reader.required("DIDACTYL_RELAYS", "at least one relay", parse_relays);
        let store = reader.or_default("DIDACTYL_STORE", DEFAULT_STORE, parse_store);
        let custom = reader.or_default("DIDACTYL_MODELS", "{}", Custom::parse);
        let models = reader.required("DIDACTYL_LLM", "a model such as openai/gpt-4o-mini", |text| {
            parse_llm(text, custom.unwrap_or_default(), vars)
        });
        let agent_name = reader.get("DIDACTYL_AGENT_NAME").map(|name| name.trim().to_owned());
        let api_tokens = reader.or_default("DIDACTYL_API_TOKEN", "", parse_tokens);
        let queue_url = reader.optional("DIDACTYL_QUEUE_URL", aws::sqs::checked_url);
        let log = reader.or_default("DIDACTYL_LOG", "info", |filter| match EnvFilter::try_new(filter) {
            Ok(_) => Ok(filter.to_owned()),
            Err(_) => Err("is not a log filter: give for example info or didactyl=debug,info".to_owned()),
        });
        let max_age = reader.optional("DIDACTYL_MAX_AGE", parse_age).unwrap_or(Some(DEFAULT_MAX_AGE));
        let max_turns = reader.or_default("DIDACTYL_MAX_TURNS", DEFAULT_MAX_TURNS, parse_turns);
        let context_debug = reader.or_default("DIDACTYL_CONTEXT_DEBUG", "off", str::parse);
        let context_dir = reader.get("DIDACTYL_CONTEXT_DIR").map(PathBuf::from);

        let admin_is_agent =
            matches!((&keys, &admins), (Some(keys), Some(admins)) if admins.contains(&keys.public_key()));
        if admin_is_agent {
            reader
                .faults
                .push("DIDACTYL_ADMIN names the agent's own key: it needs a key of yours".to_owned());
        }
        match (keys, admins, relays, store, models, api_tokens, log, max_turns, context_debug) {
            (
                Some(keys),
                Some(admins),
                Some(relays),
                Some(store),
                Some((llm, providers)),
                Some(api_tokens),
                Some(log),
                Some(max_turns),
                Some(context_debug),
            ) if reader.faults.is_empty() => Ok(Self {
                secrets: secrets(&reader, &keys, &providers),
                keys,
                admins,
                relays,
                store,
                llm,
                providers,
                agent_name,
                api_tokens,
                queue_url,
                log,
                max_age,
                max_turns,
                context_debug,
                context_dir,
            }),
            _ => Err(ConfigError(reader.faults)),
        }
    }

    /// The agent's keys and the configured relays: all that a command needs that only signs and sends.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault of these two.
    pub fn keys_and_relays(
        vars: &dyn Fn(&str) -> Option<String>,
    ) -> Result<(Keys, Vec<RelayUrl>), ConfigError> {
        let mut reader = Reader { vars, faults: Vec::new() };
        let keys = reader.required("DIDACTYL_NSEC", "the agent's secret key", parse_keys);
        let relays = reader.required("DIDACTYL_RELAYS", "at least one relay", parse_relays);
        match (keys, relays) {
            (Some(keys), Some(relays)) => Ok((keys, relays)),
            _ => Err(ConfigError(reader.faults)),
        }
    }
}

/// Reads variables one by one and collects what is wrong.
struct Reader<'a> {
    vars: &'a dyn Fn(&str) -> Option<String>,
    faults: Vec<String>,
}

impl Reader<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.vars)(name).filter(|value| !value.trim().is_empty())
    }

    fn optional<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let text = self.get(name)?;
        self.parsed(name, parse(text.trim()))
    }

    fn required<T>(
        &mut self,
        name: &str,
        what: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.get(name).is_none() {
            self.faults.push(format!("{name} is not set: give {what}"));
        }
        self.optional(name, parse)
    }

    fn or_default<T>(
        &mut self,
        name: &str,
        default: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.get(name).unwrap_or_else(|| default.to_owned());
        self.parsed(name, parse(text.trim()))
    }

    fn parsed<T>(&mut self, name: &str, parsed: Result<T, String>) -> Option<T> {
        parsed.map_err(|fault| self.faults.push(format!("{name} {fault}"))).ok()
    }
}

/// An nsec, 64 hex digits, or 12 or 24 words (NIP-06).
fn parse_keys(text: &str) -> Result<Keys, String> {
    let words = text.split_whitespace().collect::<Vec<_>>();
    if words.len() > 1 {
        if words.len() != 12 && words.len() != 24 {
            return Err(format!("has {} words: a seed phrase has 12 or 24", words.len()));
        }
        return Keys::from_mnemonic(words.join(" "), None)
            .map_err(|_| "is not a seed phrase of the English word list: check each word".to_owned());
    }
    Keys::parse(text)
        .map_err(|_| "is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words".to_owned())
}

/// One or several npub, nprofile or hex keys, separated by commas or spaces.
fn parse_admins(text: &str) -> Result<Vec<PublicKey>, String> {
    let mut admins = Vec::new();
    for (i, word) in list(text).enumerate() {
        if word.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("nsec")) {
            return Err(format!("entry {} is a secret key: give the admin's npub", i + 1));
        }
        let key = PublicKey::parse(word)
            .or_else(|_| Nip19Profile::from_bech32(word).map(|profile| profile.public_key))
            .ok()
            // The crate reads the first 64 digits of a longer text.
            .filter(|_| {
                word.len() == 64 || ["npub", "nprofile", "nostr:"].iter().any(|p| word.starts_with(p))
            })
            .filter(|key| key.xonly().is_ok())
            .ok_or_else(|| {
                format!("entry {} is not a public key: give an npub, nprofile or 64 hex digits", i + 1)
            })?;
        if !admins.contains(&key) {
            admins.push(key);
        }
    }
    if admins.is_empty() { Err("names no key".to_owned()) } else { Ok(admins) }
}

fn parse_relays(text: &str) -> Result<Vec<RelayUrl>, String> {
    let mut relays = BTreeSet::new();
    let mut ordered = Vec::new();
    for (i, word) in list(text).enumerate() {
        let url = address::normalize(word)
            .ok_or_else(|| format!("entry {} is not a relay: give wss://… or ws://…", i + 1))?;
        if relays.insert(url.to_string()) {
            ordered.push(url);
        }
    }
    if ordered.is_empty() { Err("names no relay".to_owned()) } else { Ok(ordered) }
}

/// The chain, and the providers that it and the skills may name; one entry at least must be usable.
fn parse_llm(
    text: &str,
    custom: Custom,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<(Chain, Providers), String> {
    let chain = custom.chain(text).map_err(|error| match error {
        ChainError::Empty => "names no model: give provider/model",
        // These hold the entry's text, which may be a key in the wrong place.
        ChainError::NoProvider(_) => "has an entry without a provider: give provider/model",
        ChainError::BadProvider(_) => "has a provider that is not made of letters, digits, - and _",
        ChainError::BadModel(_) => "has an entry without a model, or one with spaces: give provider/model",
    })?;
    let providers = Providers::with_custom(&chain, custom, vars);
    if providers.first_usable(&chain).is_err() {
        let lacks = chain.entries().iter().enumerate().map(|(i, id)| {
            let lack = match providers.model(id) {
                Err(lack) if providers.is_catalogued(&id.provider) => lack,
                // Its name may be a key in the wrong place.
                _ => "its provider is not in the catalogue: set a valid NAME_BASE_URL for it".to_owned(),
            };
            format!("entry {}: {lack}", i + 1)
        });
        return Err(format!("has no model that can be used: {}", lacks.collect::<Vec<_>>().join("; ")));
    }
    Ok((chain, providers))
}

/// What no text for people may hold. The agent's key counts in each spelling, not only in the one that was given.
fn secrets(reader: &Reader<'_>, keys: &Keys, providers: &Providers) -> Mask {
    let mut secrets = vec![keys.secret_key().to_secret_hex()];
    secrets.extend(keys.secret_key().to_bech32());
    let upper: Vec<String> = secrets.iter().map(|key| key.to_ascii_uppercase()).collect();
    secrets.extend(upper);
    secrets
        .extend(reader.get("DIDACTYL_NSEC").map(|key| key.split_whitespace().collect::<Vec<_>>().join(" ")));
    let tokens = reader.get("DIDACTYL_API_TOKEN").unwrap_or_default();
    secrets.extend(list(&tokens).filter_map(|entry| token_of(entry).ok()).map(|(_, token)| token.to_owned()));
    secrets.extend(["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].iter().filter_map(|name| reader.get(name)));
    Mask::new(secrets.into_iter().map(Secret::new).chain(providers.keys().cloned()))
}

fn parse_store(text: &str) -> Result<StoreChoice, String> {
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(StoreChoice::Sqlite(path.into())),
        Some(("dynamodb", table)) if !table.is_empty() => Ok(StoreChoice::DynamoDb(table.to_owned())),
        _ => Err("names no store: give sqlite:PATH or dynamodb:TABLE".to_owned()),
    }
}

/// Seconds, or a number with `s`, `m`, `h` or `d`; 0 is any age.
fn parse_age(text: &str) -> Result<Option<Duration>, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 's')) => (text.get(..at), 1),
        Some((at, 'm')) => (text.get(..at), 60),
        Some((at, 'h')) => (text.get(..at), 60 * 60),
        Some((at, 'd')) => (text.get(..at), 24 * 60 * 60),
        _ => (Some(text), 1),
    };
    let seconds = digits
        .and_then(|digits| digits.trim().parse::<u64>().ok())
        .and_then(|number| number.checked_mul(unit))
        .ok_or("is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age")?;
    if seconds > LONGEST_MAX_AGE.as_secs() {
        return Err("is longer than 36500 days: give 0 for any age".to_owned());
    }
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

fn parse_turns(text: &str) -> Result<u32, String> {
    let turns = text.parse().ok().filter(|turns| (1..=1000).contains(turns));
    turns.ok_or_else(|| "is not a whole number from 1 to 1000".to_owned())
}

fn parse_tokens(text: &str) -> Result<Vec<ApiToken>, String> {
    list(text)
        .enumerate()
        .map(|(i, entry)| parse_token(entry).map_err(|fault| format!("entry {} {fault}", i + 1)))
        .collect()
}

/// The scope and the token of an entry.
fn token_of(entry: &str) -> Result<(Scope, &str), String> {
    match entry.split_once('=') {
        Some(("all", token)) => Ok((Scope::All, token)),
        Some(("read", token)) => Ok((Scope::Read, token)),
        Some(("bridge", token)) => Ok((Scope::Bridge, token)),
        // A base64 token may end in `=`; only a word that is followed by more is a scope.
        Some((_, rest)) if !rest.trim_matches('=').is_empty() => {
            Err("has an unknown scope: all, read and bridge are known".to_owned())
        }
        _ => Ok((Scope::All, entry)),
    }
}

fn parse_token(entry: &str) -> Result<ApiToken, String> {
    let (scope, token) = token_of(entry)?;
    let sha256 = match token.strip_prefix("sha256:") {
        Some(hex) => unhex32(hex).ok_or("has a sha256 that is not 64 hex digits")?,
        None if token.chars().count() < MIN_TOKEN_CHARS => {
            return Err(format!("is shorter than {MIN_TOKEN_CHARS} characters: it could be guessed"));
        }
        None => sha256(token.as_bytes()),
    };
    Ok(ApiToken { scope, sha256 })
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

fn unhex32(text: &str) -> Option<[u8; 32]> {
    // The number parser below would take a sign for a digit.
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use nostr::prelude::ToBech32;
    use proptest::prelude::*;

    use super::*;

    // Test vectors of NIP-06, and the key of the first.
    const WORDS_12: &str = "leader monkey parrot ring guide accident before fence cannon height naive bean";
    const WORDS_24: &str = "what bleak badge arrange retreat wolf trade produce cricket blur garlic valid proud rude \
                            strong choose busy staff weather area salt hollow arm fade";
    const KEY_12: &str = "7f7ff03d123792d6ac594bfa67bf6d0c0ab55b6b1fdb6249303fe861f1ccba9a";
    const KEY_24: &str = "c15d739894c81a2fcfd3a2df85a0d2c0dbc47a280d092799f144d73d7ae78add";

    const ADMIN: &str = "c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5";

    fn good() -> BTreeMap<&'static str, String> {
        [
            ("DIDACTYL_NSEC", KEY_12),
            ("DIDACTYL_ADMIN", ADMIN),
            ("DIDACTYL_RELAYS", "wss://in.test"),
            ("DIDACTYL_LLM", "openai/gpt-5-mini"),
            ("OPENAI_API_KEY", "sk-test"),
        ]
        .map(|(name, value)| (name, value.to_owned()))
        .into()
    }

    fn read(vars: &BTreeMap<&'static str, String>) -> Result<Config, ConfigError> {
        Config::from_vars(&|name| vars.get(name).cloned())
    }

    /// The good variables with one of another value.
    fn with(name: &'static str, value: &str) -> Result<Config, ConfigError> {
        let mut vars = good();
        vars.insert(name, value.to_owned());
        read(&vars)
    }

    /// The one fault of that value.
    fn fault(name: &'static str, value: &str) -> String {
        let ConfigError(faults) = with(name, value).expect_err(value);
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.into_iter().next().unwrap_or_default()
    }

    #[test]
    fn the_defaults_are_those_that_the_documentation_names() {
        let config = read(&good()).unwrap();
        assert_eq!(config.keys.secret_key().to_secret_hex(), KEY_12);
        assert_eq!(config.admins, [PublicKey::from_hex(ADMIN).unwrap()]);
        assert_eq!(config.store, StoreChoice::Sqlite("didactyl.sqlite".into()));
        assert_eq!(config.max_age, Some(Duration::from_secs(604_800)));
        assert_eq!(config.max_turns, 16);
        assert_eq!((config.log.as_str(), config.agent_name, config.api_tokens.len()), ("info", None, 0));
        assert_eq!((config.context_debug, config.context_dir), (ContextDebug::Off, None));
    }

    #[test]
    fn context_snapshots_have_three_modes() {
        let mode = |text: &str| with("DIDACTYL_CONTEXT_DEBUG", text).unwrap().context_debug;
        assert_eq!(
            ["off", "init", " full "].map(mode),
            [ContextDebug::Off, ContextDebug::Init, ContextDebug::Full]
        );
        let told = fault("DIDACTYL_CONTEXT_DEBUG", "on");
        assert_eq!(told, "DIDACTYL_CONTEXT_DEBUG is not a mode: give off, init or full");
    }

    #[test]
    fn the_agents_key_is_secret_in_each_of_its_spellings() {
        let secrets = with("DIDACTYL_NSEC", &WORDS_12.replace(' ', "\n")).unwrap().secrets;
        let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
        for spelling in [WORDS_12, KEY_12, &KEY_12.to_uppercase(), &nsec, &nsec.to_uppercase(), "sk-test"] {
            assert_eq!(secrets.redact(&format!("<{spelling}>")), "<[redacted]>");
        }
        assert_eq!(secrets.redact(ADMIN), ADMIN);
    }

    #[test]
    fn an_empty_environment_is_told_everything_that_it_lacks_at_once() {
        insta::assert_snapshot!(read(&BTreeMap::new()).unwrap_err(), @r"
        the configuration has 4 fault(s):
        - DIDACTYL_NSEC is not set: give the agent's secret key
        - DIDACTYL_ADMIN is not set: give the key that commands the agent
        - DIDACTYL_RELAYS is not set: give at least one relay
        - DIDACTYL_LLM is not set: give a model such as openai/gpt-4o-mini
        ");
    }

    #[test]
    fn the_turns_of_a_run_are_limited_by_a_number() {
        assert_eq!(with("DIDACTYL_MAX_TURNS", " 3 ").unwrap().max_turns, 3);
        for text in ["0", "1001", "-1", "many", "4.0"] {
            assert_eq!(
                fault("DIDACTYL_MAX_TURNS", text),
                "DIDACTYL_MAX_TURNS is not a whole number from 1 to 1000"
            );
        }
    }

    #[test]
    fn all_faults_are_reported_together() {
        let vars = [
            ("DIDACTYL_NSEC", "nsec1"),
            ("DIDACTYL_ADMIN", "npub1"),
            ("DIDACTYL_RELAYS", "https://in.test"),
            ("DIDACTYL_STORE", "redis:x"),
            ("DIDACTYL_LLM", "openai/gpt-5-mini"),
            ("DIDACTYL_API_TOKEN", "short"),
            ("DIDACTYL_MAX_AGE", "soon"),
        ];
        let error = read(&vars.map(|(name, value)| (name, value.to_owned())).into()).unwrap_err();
        insta::assert_snapshot!(error, @r"
        the configuration has 7 fault(s):
        - DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        - DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
        - DIDACTYL_RELAYS entry 1 is not a relay: give wss://… or ws://…
        - DIDACTYL_STORE names no store: give sqlite:PATH or dynamodb:TABLE
        - DIDACTYL_LLM has no model that can be used: entry 1: OPENAI_API_KEY is not set
        - DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
        - DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        ");
    }

    #[test]
    fn a_secret_key_is_an_nsec_hex_or_words() {
        let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
        let spaced = format!("  {}\n", WORDS_12.replace(' ', "  \n "));
        for (value, key) in [
            (nsec.as_str(), KEY_12),
            (KEY_12, KEY_12),
            (WORDS_12, KEY_12),
            (&spaced, KEY_12),
            (WORDS_24, KEY_24),
        ] {
            assert_eq!(with("DIDACTYL_NSEC", value).unwrap().keys.secret_key().to_secret_hex(), key);
        }
    }

    #[test]
    fn what_is_no_secret_key_is_refused_with_what_to_give() {
        let npub = PublicKey::from_hex(ADMIN).unwrap().to_bech32().unwrap();
        let zero = "0".repeat(64);
        let beyond = "f".repeat(64);
        let longer = format!("{KEY_12}00");
        let eleven = WORDS_12.rsplit_once(' ').unwrap().0;
        let swapped = WORDS_12.replace("leader monkey", "monkey leader");
        let misspelled = WORDS_12.replace("bean", "beam");
        let table: Vec<String> =
            [npub.as_str(), &zero, &beyond, &longer, "abc", eleven, &swapped, &misspelled]
                .iter()
                .map(|value| fault("DIDACTYL_NSEC", value))
                .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
        DIDACTYL_NSEC has 11 words: a seed phrase has 12 or 24
        DIDACTYL_NSEC is not a seed phrase of the English word list: check each word
        DIDACTYL_NSEC is not a seed phrase of the English word list: check each word
        ");
    }

    #[test]
    fn admins_are_npubs_nprofiles_or_hex_each_once_in_order() {
        let second = Keys::parse(KEY_12.replace('7', "8").as_str()).unwrap().public_key();
        let npub = second.to_bech32().unwrap();
        let profile =
            Nip19Profile::new(second, [RelayUrl::parse("wss://in.test").unwrap()]).to_bech32().unwrap();
        let value = format!("{npub}, {ADMIN}\n{profile} nostr:{npub},,{}", ADMIN.to_uppercase());
        let admins = with("DIDACTYL_ADMIN", &value).unwrap().admins;
        assert_eq!(admins, [second, PublicKey::from_hex(ADMIN).unwrap()]);
    }

    #[test]
    fn what_is_no_admin_is_refused_with_its_place() {
        let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
        let agent = Keys::parse(KEY_12).unwrap().public_key().to_hex();
        let off_curve = format!("{ADMIN} {}", "f".repeat(64));
        let longer = format!("{ADMIN}00");
        let table: Vec<String> =
            [nsec.as_str(), &nsec.to_uppercase(), &agent, &off_curve, &longer, ADMIN.get(..63).unwrap(), ","]
                .iter()
                .map(|value| fault("DIDACTYL_ADMIN", value))
                .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        DIDACTYL_ADMIN entry 1 is a secret key: give the admin's npub
        DIDACTYL_ADMIN entry 1 is a secret key: give the admin's npub
        DIDACTYL_ADMIN names the agent's own key: it needs a key of yours
        DIDACTYL_ADMIN entry 2 is not a public key: give an npub, nprofile or 64 hex digits
        DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
        DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
        DIDACTYL_ADMIN names no key
        ");
    }

    #[test]
    fn relays_are_taken_in_one_spelling_each_once_in_order() {
        let relays =
            with("DIDACTYL_RELAYS", "wss://B.test/, ws://127.0.0.1:7777\nwss://b.test:443").unwrap().relays;
        let relays: Vec<String> = relays.iter().map(ToString::to_string).collect();
        assert_eq!(relays, ["wss://b.test", "ws://127.0.0.1:7777"]);
        assert_eq!(
            fault("DIDACTYL_RELAYS", "wss://a.test, wss://user:secret@b.test"),
            "DIDACTYL_RELAYS entry 2 is not a relay: give wss://… or ws://…"
        );
    }

    #[test]
    fn a_store_is_named_by_its_kind_and_place() {
        let store = |value| with("DIDACTYL_STORE", value).unwrap().store;
        assert_eq!(store("sqlite:/var/a:b.sqlite"), StoreChoice::Sqlite("/var/a:b.sqlite".into()));
        assert_eq!(store("dynamodb:didactyl"), StoreChoice::DynamoDb("didactyl".to_owned()));
        for value in ["sqlite", "sqlite:", "dynamodb:", "SQLITE:x", "postgres://user:secret@db"] {
            assert_eq!(
                fault("DIDACTYL_STORE", value),
                "DIDACTYL_STORE names no store: give sqlite:PATH or dynamodb:TABLE"
            );
        }
    }

    #[test]
    fn an_age_is_a_number_with_or_without_a_unit() {
        let age = |value| with("DIDACTYL_MAX_AGE", value).unwrap().max_age.map(|age| age.as_secs());
        for (value, seconds) in [("90", 90), ("90s", 90), ("2m", 120), ("3 h", 10_800), (" 7d ", 604_800)] {
            assert_eq!(age(value), Some(seconds), "{value}");
        }
        assert_eq!((age("0"), age("0d")), (None, None));
        let table: Vec<String> =
            ["d", "7w", "-1", "1.5d", "7dd", "∞", "18446744073709551615d", "18446744073709551615"]
                .iter()
                .map(|value| fault("DIDACTYL_MAX_AGE", value))
                .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
        DIDACTYL_MAX_AGE is longer than 36500 days: give 0 for any age
        ");
    }

    #[test]
    fn tokens_open_what_their_scope_says_and_are_kept_as_hashes() {
        let plain = "a-token-of-22-characters";
        let hex = crate::hash::hex(&sha256(plain.as_bytes()));
        let value = format!("{plain}, read={plain} bridge=sha256:{hex},all=sha256:{}", hex.to_uppercase());
        let tokens = with("DIDACTYL_API_TOKEN", &value).unwrap().api_tokens;
        let scopes: Vec<Scope> = tokens.iter().map(|token| token.scope).collect();
        assert_eq!(scopes, [Scope::All, Scope::Read, Scope::Bridge, Scope::All]);
        assert!(tokens.iter().all(|token| token.sha256 == sha256(plain.as_bytes())));
        // A base64 token ends in `=`.
        let padded = with("DIDACTYL_API_TOKEN", "YS10b2tlbi1vZi0yMi1jaGFyYWN0ZXJz==").unwrap();
        assert_eq!(padded.api_tokens.len(), 1);
    }

    #[test]
    fn a_token_that_can_be_guessed_or_misread_is_refused() {
        let signs = format!("sha256:{}", "+1".repeat(32));
        let table: Vec<String> =
            ["short", "read=short", "write=a-token-of-22-characters", "sha256:00", &signs, "read=sha256:zz"]
                .iter()
                .map(|value| fault("DIDACTYL_API_TOKEN", value))
                .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
        DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
        DIDACTYL_API_TOKEN entry 1 has an unknown scope: all, read and bridge are known
        DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
        DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
        DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
        ");
    }

    #[test]
    fn a_chain_that_cannot_be_used_is_told_by_places_and_variables_not_by_its_text() {
        let table: Vec<String> = [
            "sk-ant-SEKRIT",
            "/SEKRIT",
            "sk SEKRIT/model",
            "openai/SEK RIT",
            "groq/SEKRIT, sk-SEKRIT/model",
            ",",
        ]
        .iter()
        .map(|value| fault("DIDACTYL_LLM", value))
        .collect();
        insta::assert_snapshot!(table.join("\n"), @r"
        DIDACTYL_LLM has an entry without a provider: give provider/model
        DIDACTYL_LLM has a provider that is not made of letters, digits, - and _
        DIDACTYL_LLM has a provider that is not made of letters, digits, - and _
        DIDACTYL_LLM has an entry without a model, or one with spaces: give provider/model
        DIDACTYL_LLM has no model that can be used: entry 1: GROQ_API_KEY is not set; entry 2: its provider is not in the catalogue: set a valid NAME_BASE_URL for it
        DIDACTYL_LLM names no model: give provider/model
        ");
    }

    #[test]
    fn what_a_configuration_prints_holds_no_secret() {
        let mut vars = good();
        vars.insert("DIDACTYL_API_TOKEN", "a-token-of-22-characters".to_owned());
        let printed = format!("{:?}", read(&vars).unwrap());
        for secret in [KEY_12, "sk-test", "a-token-of-22-characters"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }

    /// Values of every shape that a variable expects, and what of each is random: of letters that no message has in a row.
    fn values() -> impl Strategy<Value = (String, String)> {
        let random = prop_oneof!["[0-9qxz]{6,70}", "[QXZ0-9_-]{6,40}", "\\PC{0,60}", "[0-9a-f]{60,66}"];
        let around = prop_oneof![
            Just(("", "")),
            Just(("nsec1", "")),
            Just(("npub1", "")),
            Just(("wss://", "")),
            Just(("wss://user:", "@in.test")),
            Just(("", "/model")),
            Just(("openai/", "")),
            Just(("openai/x,", "/y")),
            Just(("sqlite:", "")),
            Just(("", ":table")),
            Just(("read=", "")),
            Just(("", "=token")),
            Just(("sha256:", "")),
            Just(("", "d")),
            Just(("https://", "/v1?key=x")),
            Just(("{\"models\":{\"a/b\":{\"", "\":1}}}")),
            Just(("{\"models\":{\"a/b\":{\"tools\":\"", "\"}}}")),
        ];
        (around, random).prop_map(|((before, after), random)| (format!("{before}{random}{after}"), random))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn no_value_is_ever_echoed(values in prop::collection::vec(prop::option::of(values()), 12)) {
            const NAMES: [&str; 12] = [
                "DIDACTYL_NSEC", "DIDACTYL_ADMIN", "DIDACTYL_RELAYS", "DIDACTYL_STORE", "DIDACTYL_LLM",
                "DIDACTYL_AGENT_NAME", "DIDACTYL_API_TOKEN", "DIDACTYL_LOG", "DIDACTYL_MAX_AGE", "OPENAI_API_KEY",
                "OPENAI_BASE_URL", "DIDACTYL_MODELS",
            ];
            let (vars, random): (BTreeMap<_, _>, Vec<String>) = NAMES
                .into_iter()
                .zip(values)
                .filter_map(|(name, value)| value.map(|(value, random)| ((name, value), random)))
                .unzip();
            if let Err(error) = read(&vars) {
                let error = error.to_string().to_lowercase();
                for random in random {
                    let chars: Vec<char> = random.to_lowercase().chars().collect();
                    for piece in chars.windows(6) {
                        let piece: String = piece.iter().collect();
                        prop_assert!(!error.contains(&piece), "{:?}: {}", piece, error);
                    }
                }
            }
        }
    }
}
