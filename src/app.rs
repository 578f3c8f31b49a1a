//! `App`: keys, configuration and clients, built once per cold start and lent to every invocation.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use nostr::prelude::{Keys, PublicKey, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::aws::Aws;
use crate::aws::sqs::Sqs;
use crate::clock::{Clock, Deadline};
use crate::config::{Config, StoreChoice};
use crate::context::tokens::Calibration;
use crate::credentials::Credentials;
use crate::environment::Environment;
use crate::error::Error;
use crate::hash::hex;
use crate::https::{self, Protocol};
use crate::llm::Llm;
use crate::llm::openai::OpenAi;
use crate::queue::Queue;
use crate::record::{FORMAT, check_format, to_json, unreadable};
use crate::relay::pool::{Limits, Pool};
use crate::relay::{Relays, Target, Trust};
use crate::secret::Mask;
use crate::store::dynamodb::DynamoDb;
use crate::store::seal::{SealError, Vault};
use crate::store::{Expect, Key, Row, Store, Write, keys};
use crate::tools::registry::Registry;

/// What an invocation works with.
pub struct App {
    /// The checked configuration.
    pub config: Config,
    /// What of it may change while the process lives.
    pub credentials: Arc<Credentials>,
    /// Seals what is private before it reaches the store.
    pub vault: Vault,
    /// State.
    pub store: Arc<dyn Store>,
    /// Relays.
    pub relays: Arc<dyn Relays>,
    /// Models.
    pub llm: Arc<dyn Llm>,
    /// What was learned of the models' tokenizers since the cold start.
    pub calibration: Mutex<Calibration>,
    /// Takes runs that could not be ended, where there is one.
    pub queue: Option<Arc<dyn Queue>>,
    /// What the model can do.
    pub tools: Registry,
    /// Our clock.
    pub clock: Clock,
    /// How long a lease outlives its invocation's deadline: clocks differ a little between sandboxes.
    pub lease_margin: Duration,
}

/// What is sealed: a value and the format that it is written in.
#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    format: u32,
    value: T,
}

/// See [`App::lease_margin`].
pub const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// How long [`App::warm_up`] may take of the ten seconds that Lambda gives a cold start.
const WARM_UP_LIMIT: Duration = Duration::from_secs(2);

/// How long it may take to reach a provider of models.
const MODEL_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The shortest time that a claim is remembered.
const MIN_CLAIM_LIFE: Duration = Duration::from_secs(14 * DAY_SECS);
/// How much longer than a message may be old.
const CLAIM_SLACK: Duration = Duration::from_secs(7 * DAY_SECS);
const DAY_SECS: u64 = 24 * 60 * 60;

impl App {
    /// Builds the clients that the configuration names. Its secrets are not read again.
    ///
    /// # Errors
    /// [`Error::Permanent`] where the store cannot be opened; the message says why and what to do.
    pub async fn new(config: Config) -> Result<Self, Error> {
        Self::in_environment(config, Environment::default()).await
    }

    /// Builds the clients that the configuration names, which was read from `environment`.
    ///
    /// # Errors
    /// [`Error::Permanent`] where the store cannot be opened; the message says why and what to do.
    pub async fn in_environment(config: Config, environment: Environment) -> Result<Self, Error> {
        let clock = Clock::system();
        let aws = environment.aws();
        let store = open_store(&config.store, aws, clock.clone()).await?;
        let queue = match &config.queue_url {
            Some(url) => Some(Arc::new(Sqs::new(aws.config().await, url)) as Arc<dyn Queue>),
            None => None,
        };
        let relays = Arc::new(Pool::new(config.keys.clone(), Limits::default()));
        let credentials = Arc::new(Credentials::new(&config, environment, clock.clone()));
        let http = https::http_client(Protocol::Http2, MODEL_CONNECT_TIMEOUT)
            .map_err(|why| Error::Permanent(format!("the HTTP client cannot be built: {why}")))?;
        let llm = Arc::new(OpenAi::with_credentials(http, Arc::clone(&credentials)));
        Ok(Self { queue, credentials, ..Self::with_ports(config, store, relays, llm, clock) })
    }

    /// Opens the store's connection by one cheap read, before the first invocation needs it. A failure is only logged:
    /// the store may be back by then.
    pub async fn warm_up(&self) {
        let keys = [keys::state_read()];
        let read = self.store.read(&keys);
        match tokio::time::timeout(WARM_UP_LIMIT, read).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the store did not answer the first read"),
            Err(_) => tracing::warn!("the store did not answer the first read in time"),
        }
    }

    /// An app over the given ports.
    #[must_use]
    pub fn with_ports(
        config: Config,
        store: Arc<dyn Store>,
        relays: Arc<dyn Relays>,
        llm: Arc<dyn Llm>,
        clock: Clock,
    ) -> Self {
        let vault = Vault::new(config.keys.secret_key());
        let credentials = Credentials::new(&config, Environment::default(), clock.clone());
        Self {
            config,
            credentials: Arc::new(credentials),
            vault,
            store,
            relays,
            llm,
            calibration: Mutex::default(),
            queue: None,
            tools: Registry::standard(),
            clock,
            lease_margin: LEASE_MARGIN,
        }
    }

    /// The agent's keys.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.config.keys
    }

    /// The agent's public key.
    #[must_use]
    pub fn agent(&self) -> PublicKey {
        self.config.keys.public_key()
    }

    /// "The admin" of runs that no admin started: the first of `DIDACTYL_ADMIN`.
    #[must_use]
    pub fn admin(&self) -> PublicKey {
        self.config.admins.first().copied().unwrap_or_else(|| self.agent())
    }

    /// All that is secret in the configuration, as it was at the start and as it was read again.
    #[must_use]
    pub fn secrets(&self) -> Mask {
        self.config.secrets.clone().and(self.credentials.secrets())
    }

    /// The queue, where it brings runs to workers: in standby there are none.
    #[must_use]
    pub(crate) fn working_queue(&self) -> Option<&dyn Queue> {
        self.queue.as_deref().filter(|_| !self.config.standby)
    }

    /// The relays of `DIDACTYL_RELAYS`.
    #[must_use]
    pub fn own_targets(&self) -> Vec<Target> {
        self.config.relays.iter().map(|url| Target { url: url.clone(), trust: Trust::Own }).collect()
    }

    /// Until when a claim made now is ours, Unix milliseconds: a little longer than the invocation can last.
    #[must_use]
    pub fn lease_until_ms(&self, deadline: Deadline) -> u64 {
        let lease = deadline.left().saturating_add(self.lease_margin).as_millis();
        self.clock.now_ms().saturating_add(u64::try_from(lease).unwrap_or(u64::MAX))
    }

    /// A name for a worker that no other has.
    ///
    /// # Errors
    /// [`Error::Transient`] where the system gives no random bytes.
    pub fn new_owner(&self) -> Result<String, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|_| Error::Transient("the system gives no random bytes".to_owned()))?;
        Ok(hex(&bytes))
    }

    /// Until when a claim on a trigger of this age must be remembered, Unix seconds; `None` is for ever. While a
    /// message is young enough to be worked, its claim is there (design §7).
    #[must_use]
    pub fn claim_expiry(&self, created_at: Timestamp) -> Option<u64> {
        let max_age = self.config.max_age?;
        let now = self.clock.now();
        Some((now.max(created_at) + max_age + CLAIM_SLACK).max(now + MIN_CLAIM_LIFE).as_secs())
    }

    /// The write that puts `value`, sealed, under `key`.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it cannot be sealed.
    pub fn put_sealed<T: Serialize>(
        &self,
        key: Key,
        value: &T,
        expires_at: Option<u64>,
    ) -> Result<Write, Error> {
        let sealed = self
            .vault
            .seal(&key, &to_json(&Sealed { format: FORMAT, value })?)
            .map_err(|error| Error::Permanent(error.to_string()))?;
        Ok(Write::put(key, Expect::Anything, sealed, expires_at))
    }

    /// A row that [`App::put_sealed`] wrote.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it was sealed by another key or is damaged, [`Error::Newer`] where it is of a newer format.
    pub fn open_sealed<T: DeserializeOwned>(&self, row: &Row) -> Result<T, Error> {
        let bytes = self.vault.open(&row.key, &row.value).map_err(|error| match error {
            SealError::UnknownFormat(_) => Error::Newer(error.to_string()),
            _ => unreadable(&row.key),
        })?;
        match serde_json::from_slice::<Sealed<T>>(&bytes) {
            Ok(sealed) if sealed.format <= FORMAT => Ok(sealed.value),
            _ => Err(check_format(&row.key, &bytes).err().unwrap_or_else(|| unreadable(&row.key))),
        }
    }
}

async fn open_store(choice: &StoreChoice, aws: &Aws, clock: Clock) -> Result<Arc<dyn Store>, Error> {
    match choice {
        #[cfg(feature = "local")]
        StoreChoice::Sqlite(path) => {
            let store = crate::store::sqlite::Sqlite::open(path, clock)
                .map_err(|error| Error::Permanent(format!("DIDACTYL_STORE: {error}")))?;
            Ok(Arc::new(store))
        }
        #[cfg(not(feature = "local"))]
        StoreChoice::Sqlite(_) => Err(Error::Permanent(
            "DIDACTYL_STORE: this build has no SQLite; set dynamodb:TABLE or build with the feature `local`"
                .to_owned(),
        )),
        StoreChoice::DynamoDb(table) => {
            let client = aws_sdk_dynamodb::Client::new(aws.config().await);
            Ok(Arc::new(DynamoDb::new(client, table, clock)))
        }
    }
}
