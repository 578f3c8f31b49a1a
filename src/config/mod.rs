//! Configuration: what the variables mean. [`crate::environment`] has them.
//!
//! [`Config::from_vars`] checks everything at once and reports every fault together. A message names the variable and
//! what is wrong with it; no value is ever echoed, since any of them may be a secret in the wrong place.
//! `docs/CONFIGURATION.md` lists each variable with default and secrecy.

mod parse;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nostr::prelude::{Keys, PublicKey, RelayUrl, ToBech32};
use tracing_subscriber::EnvFilter;

pub use self::parse::{public_key, relays, shown_token};
use crate::aws;
use crate::heed::Senders;
use crate::llm::catalogue::{Chain, Custom, Providers};
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
    /// Who is answered besides the admins, and how often (`DIDACTYL_SENDERS`, `DIDACTYL_GUEST_PER_HOUR`,
    /// `DIDACTYL_GUESTS_PER_HOUR`).
    pub senders: Senders,
    /// How long a tick listens after its sweep; `None` is not at all (`DIDACTYL_LISTEN_SECONDS`).
    pub listen: Option<Duration>,
    /// Whether a new store makes the agent say hello to its admin (`DIDACTYL_HELLO`).
    pub hello: bool,
    /// Whether it reads and records without answering anybody (`DIDACTYL_STANDBY`).
    pub standby: bool,
    /// The most model calls of a run that may use tools, where no request asks for fewer or more
    /// (`DIDACTYL_MAX_TURNS`).
    pub max_turns: u32,
    /// How often a run whose invocation is over goes on in another one (`DIDACTYL_MAX_CONTINUATIONS`).
    pub max_continuations: u32,
    /// Whether what the model is asked is written down for people (`DIDACTYL_CONTEXT_DEBUG`).
    pub context_debug: ContextDebug,
    /// Where it is written down as files (`DIDACTYL_CONTEXT_DIR`); none is the working directory.
    pub context_dir: Option<PathBuf>,
    /// How old an instant of cron may be to be run still: whole minutes (`DIDACTYL_CRON_GRACE_MINUTES`).
    pub cron_grace: Duration,
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
/// Where no `DIDACTYL_GUEST_PER_HOUR` is set.
const DEFAULT_GUEST_PER_HOUR: &str = "10";
/// Where no `DIDACTYL_GUESTS_PER_HOUR` is set.
const DEFAULT_GUESTS_PER_HOUR: &str = "60";
/// Where no `DIDACTYL_MAX_TURNS` is set.
const DEFAULT_MAX_TURNS: &str = "16";

/// Where no `DIDACTYL_CRON_GRACE_MINUTES` is set.
const DEFAULT_CRON_GRACE: Duration = Duration::from_secs(15 * 60);

/// Where no `DIDACTYL_MAX_CONTINUATIONS` is set.
const DEFAULT_MAX_CONTINUATIONS: u32 = 12;

impl Config {
    /// Reads variables from `vars`. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`ConfigError`] with every fault.
    pub fn from_vars(vars: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let mut reader = Reader { vars, faults: Vec::new() };
        let keys = reader.required("DIDACTYL_NSEC", "the agent's secret key", parse::keys);
        let admins = reader.required("DIDACTYL_ADMIN", "the key that commands the agent", parse::admins);
        let relays = reader.required("DIDACTYL_RELAYS", "at least one relay", parse::relays);
        let store = reader.or_default("DIDACTYL_STORE", DEFAULT_STORE, parse::store);
        let custom = reader.or_default("DIDACTYL_MODELS", "{}", Custom::parse);
        let models = reader.required("DIDACTYL_LLM", "a model such as openai/gpt-6-luna", |text| {
            parse::llm(text, custom.unwrap_or_default(), vars)
        });
        let agent_name = reader.get("DIDACTYL_AGENT_NAME").map(|name| name.trim().to_owned());
        let api_tokens = reader.or_default("DIDACTYL_API_TOKEN", "", parse::tokens);
        let queue_url = reader.optional("DIDACTYL_QUEUE_URL", aws::sqs::checked_url);
        let log = reader.or_default("DIDACTYL_LOG", "info", |filter| match EnvFilter::try_new(filter) {
            Ok(_) => Ok(filter.to_owned()),
            Err(_) => Err("is not a log filter: give for example info or didactyl=debug,info".to_owned()),
        });
        let max_age = reader.optional("DIDACTYL_MAX_AGE", parse::age).unwrap_or(Some(DEFAULT_MAX_AGE));
        let senders = reader.senders();
        let listen = reader.optional("DIDACTYL_LISTEN_SECONDS", parse::listen).flatten();
        let hello = reader.optional("DIDACTYL_HELLO", parse::switch).unwrap_or(true);
        let standby = reader.optional("DIDACTYL_STANDBY", parse::switch).unwrap_or(false);
        let max_turns = reader.or_default("DIDACTYL_MAX_TURNS", DEFAULT_MAX_TURNS, parse::turns);
        let max_continuations = reader
            .optional("DIDACTYL_MAX_CONTINUATIONS", parse::continuations)
            .unwrap_or(DEFAULT_MAX_CONTINUATIONS);
        let cron_grace =
            reader.optional("DIDACTYL_CRON_GRACE_MINUTES", parse::grace).unwrap_or(DEFAULT_CRON_GRACE);
        let context_debug = reader.or_default("DIDACTYL_CONTEXT_DEBUG", "off", str::parse);
        let context_dir = reader.get("DIDACTYL_CONTEXT_DIR").map(PathBuf::from);

        let admin_is_agent =
            matches!((&keys, &admins), (Some(keys), Some(admins)) if admins.contains(&keys.public_key()));
        if admin_is_agent {
            reader
                .faults
                .push("DIDACTYL_ADMIN names the agent's own key: it needs a key of yours".to_owned());
        }
        match (keys, admins, relays, store, models, api_tokens, log, senders, max_turns, context_debug) {
            (
                Some(keys),
                Some(admins),
                Some(relays),
                Some(store),
                Some((llm, providers)),
                Some(api_tokens),
                Some(log),
                Some(senders),
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
                senders,
                listen,
                hello,
                standby,
                max_turns,
                max_continuations,
                context_debug,
                context_dir,
                cron_grace,
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
        let keys = reader.required("DIDACTYL_NSEC", "the agent's secret key", parse::keys);
        let relays = reader.required("DIDACTYL_RELAYS", "at least one relay", parse::relays);
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

    fn senders(&mut self) -> Option<Senders> {
        let lowest = self.or_default("DIDACTYL_SENDERS", "admin", parse::senders);
        let guest = self.or_default("DIDACTYL_GUEST_PER_HOUR", DEFAULT_GUEST_PER_HOUR, parse::per_hour);
        let guests = self.or_default("DIDACTYL_GUESTS_PER_HOUR", DEFAULT_GUESTS_PER_HOUR, parse::per_hour);
        Some(Senders { lowest: lowest?, guest_per_hour: guest?, guests_per_hour: guests? })
    }

    fn parsed<T>(&mut self, name: &str, parsed: Result<T, String>) -> Option<T> {
        parsed.map_err(|fault| self.faults.push(format!("{name} {fault}"))).ok()
    }
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
    secrets.extend(parse::token_texts(&tokens).map(str::to_owned));
    secrets.extend(["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"].iter().filter_map(|name| reader.get(name)));
    Mask::new(secrets.into_iter().map(Secret::new).chain(providers.keys().cloned()))
}
