//! Everything that a try without account, key or network needs: whatever of it the environment does not name is
//! started on loopback, and ends with the value.

use std::collections::BTreeMap;
use std::time::Duration;

use nostr::prelude::{Event, Keys, PublicKey, RelayUrl, Timestamp};
use nostr_relay_builder::builder::{RateLimit, RelayBuilder};
use nostr_relay_builder::local::LocalRelay;
use tempfile::TempDir;
use tokio::time::Instant;

use super::seed;
use crate::app::App;
use crate::config::Config;
use crate::llm::scripted::{self, Scripted};
use crate::relay::pool::{Limits, Pool};
use crate::relay::{Outgoing, Relays, Target, Trust};

/// How long publishing and reading of the sandbox itself may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The embedded parts and the configuration that uses them.
pub struct Sandbox {
    /// The configuration: the environment's, completed.
    pub config: Config,
    /// The admin's keys, where they are the sandbox's own.
    pub admin: Option<Keys>,
    /// Whether the model is the scripted one.
    pub scripted: bool,
    // Held for as long as the sandbox lives.
    _relay: Option<LocalRelay>,
    _model: Option<Scripted>,
    _folder: TempDir,
}

/// The bearer token that a sandbox takes where the environment names none; known to everybody.
pub const PUBLISHED_TOKEN: &str = "published-token-of-the-samples";

/// Whose keys a sandbox uses where the environment names none.
pub enum Identity {
    /// New ones.
    Fresh,
    /// The published test keys, which signed the samples in `events/`: secret keys 1 (agent) and 2 (admin).
    Published,
    /// Those too, for a command that sends nothing: then it harms nobody where a key of one's own meets an admin whom
    /// everybody knows.
    Onlooker,
}

type Failure = Box<dyn std::error::Error>;

impl Sandbox {
    /// Starts what `env` does not name.
    ///
    /// # Errors
    /// A sentence that says which part could not be started, or what is wrong in the environment.
    pub async fn start(env: &dyn Fn(&str) -> Option<String>, identity: Identity) -> Result<Self, Failure> {
        let (agent, admin) = match identity {
            Identity::Fresh => (Keys::generate(), Keys::generate()),
            Identity::Published | Identity::Onlooker => (published_key(1)?, published_key(2)?),
        };
        let mut filled = BTreeMap::new();
        let unset = |name: &str| env(name).is_none_or(|value| value.trim().is_empty());

        // A key of one's own never meets an admin or a token that everybody has.
        let own_keys = unset("DIDACTYL_NSEC") && unset("DIDACTYL_ADMIN");
        let may_mix = matches!(identity, Identity::Onlooker);
        if may_mix && !own_keys && (unset("DIDACTYL_NSEC") || unset("DIDACTYL_ADMIN")) {
            tracing::warn!(
                "DIDACTYL_NSEC or DIDACTYL_ADMIN is not set: a key that everybody knows stands for it"
            );
        }
        if own_keys || may_mix {
            filled.insert("DIDACTYL_NSEC", agent.secret_key().to_secret_hex());
            filled.insert("DIDACTYL_ADMIN", admin.public_key().to_hex());
        }
        let folder = TempDir::with_prefix("didactyl-")?;
        if unset("DIDACTYL_RELAYS") {
            // With relays of one's own the documented default stands, since what is forgotten is answered again.
            let store = folder.path().join("agent.sqlite");
            filled.insert("DIDACTYL_STORE", format!("sqlite:{}", store.display()));
        }
        if unset("DIDACTYL_NSEC") {
            filled.insert("DIDACTYL_API_TOKEN", PUBLISHED_TOKEN.to_owned());
        }
        if !own_keys && unset("DIDACTYL_RELAYS") {
            tracing::warn!(
                "DIDACTYL_RELAYS is not set: nothing is known of what the agent and its admin have published"
            );
        }
        let relay = if unset("DIDACTYL_RELAYS") {
            let relay = embedded_relay().await?;
            filled.insert("DIDACTYL_RELAYS", relay.url().await.to_string());
            Some(relay)
        } else {
            None
        };
        let model = if unset("DIDACTYL_LLM") {
            let model = Scripted::start(scripted::demo).await?;
            filled.insert("DIDACTYL_LLM", "scripted/demo".to_owned());
            filled.insert("SCRIPTED_BASE_URL", model.base_url.clone());
            Some(model)
        } else {
            None
        };
        let vars = |name: &str| {
            env(name).filter(|value| !value.trim().is_empty()).or_else(|| filled.get(name).cloned())
        };
        Ok(Self {
            config: Config::from_vars(&vars)?,
            admin: own_keys.then_some(admin),
            scripted: model.is_some(),
            _relay: relay,
            _model: model,
            _folder: folder,
        })
    }

    /// Whether relay and keys are the sandbox's own: only then may it publish for them.
    #[must_use]
    pub fn is_embedded(&self) -> bool {
        self._relay.is_some() && self.admin.is_some()
    }

    /// The first configured relay.
    ///
    /// # Errors
    /// Never, for a checked configuration.
    pub fn relay(&self) -> Result<RelayUrl, Failure> {
        self.config.relays.first().cloned().ok_or_else(|| "no relay is configured".into())
    }

    /// Publishes the agent's and the admin's events.
    ///
    /// # Errors
    /// Where the relay refuses one.
    pub async fn seed(&self) -> Result<(), Failure> {
        let (relay, now) = (self.relay()?, Timestamp::now());
        self.seed_with(seed::agent_events(&self.config.keys, &relay, now)?).await
    }

    /// The same without soul and skills, for drafts that are to stand alone.
    ///
    /// # Errors
    /// Where the relay refuses one.
    pub async fn seed_profiles(&self) -> Result<(), Failure> {
        let (relay, now) = (self.relay()?, Timestamp::now());
        self.seed_with(seed::agent_profile(&self.config.keys, &relay, now)?).await
    }

    async fn seed_with(&self, mut events: Vec<Event>) -> Result<(), Failure> {
        let (relay, now) = (self.relay()?, Timestamp::now());
        if let Some(admin) = &self.admin {
            events.extend(seed::admin_events(admin, &relay, now)?);
        }
        let client = self.client(&self.config.keys);
        for event in events {
            publish(&client, &relay, event).await?;
        }
        client.close().await;
        Ok(())
    }

    /// The real agent over the sandbox's parts.
    ///
    /// # Errors
    /// Where the store cannot be opened.
    pub async fn app(&self) -> Result<App, Failure> {
        Ok(App::new(self.config.clone()).await?)
    }

    /// A Nostr client of its own, with `keys`.
    #[must_use]
    pub fn client(&self, keys: &Keys) -> Pool {
        Pool::new(keys.clone(), Limits::default())
    }
}

/// Sends `event` to `relay`.
///
/// # Errors
/// Where the relay does not accept it.
pub async fn publish(client: &Pool, relay: &RelayUrl, event: Event) -> Result<(), Failure> {
    let outgoing = Outgoing { event, targets: vec![target(relay)] };
    let reports = client.publish(&[outgoing], Instant::now() + PATIENCE).await;
    match reports.into_iter().flatten().next() {
        Some(report) => Ok(report.outcome.map_err(|error| format!("the relay {relay}: {error}"))?),
        None => Err("the relay was not asked".into()),
    }
}

/// The relay as one of our own.
#[must_use]
pub fn target(relay: &RelayUrl) -> Target {
    Target { url: relay.clone(), trust: Trust::Own }
}

/// A relay on loopback that keeps everything in memory.
///
/// # Errors
/// Where no port can be had.
pub async fn embedded_relay() -> Result<LocalRelay, Failure> {
    // The crate's default limits are meant for strangers on the internet.
    let unlimited = RateLimit { max_reqs: 1_000, notes_per_minute: 1_000_000 };
    let relay = LocalRelay::new(RelayBuilder::default().rate_limit(unlimited));
    relay.run().await?;
    Ok(relay)
}

/// Secret key `scalar`, known to everybody.
///
/// # Errors
/// For 0.
pub fn published_key(scalar: u8) -> Result<Keys, Failure> {
    Ok(Keys::parse(&format!("{scalar:064x}"))?)
}

/// The key that reads `peer`'s side of a conversation, for messages shown to people.
#[must_use]
pub fn short(key: &PublicKey) -> String {
    key.to_hex().chars().take(8).collect()
}
