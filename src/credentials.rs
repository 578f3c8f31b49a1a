//! The secrets that may change while the process lives: providers' keys, the HTTP API's tokens, and those of webhooks.
//!
//! Where they lie in SSM parameters, they are read again after ten minutes and when a provider refuses its key. All
//! else of the configuration, the agent's key above all, stays as it was at the cold start.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use nostr::prelude::PublicKey;

use crate::clock::Clock;
use crate::config::{ApiToken, Config};
use crate::environment::Environment;
use crate::llm::catalogue::{Model, ModelId, Providers};
use crate::secret::{Mask, Secret};
use crate::webhooks::{Hook, Webhooks};

/// How long what was read is believed.
const MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// How long reading again may take. The old secrets are likely to be right still, and somebody waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// Providers' keys, API tokens and secrets of webhooks, as they were last read.
#[derive(Debug)]
pub struct Credentials {
    current: RwLock<Current>,
    source: Option<Source>,
}

#[derive(Debug)]
struct Current {
    providers: Providers,
    api_tokens: Vec<ApiToken>,
    webhooks: Webhooks,
    /// All secrets that were ever read: an older one may stand in a text still.
    secrets: Mask,
}

/// Where to read again.
#[derive(Debug)]
struct Source {
    environment: Environment,
    clock: Clock,
    agent: PublicKey,
    read_at_ms: AtomicU64,
}

impl Credentials {
    /// Those of `config`, which was read from `environment` just now.
    #[must_use]
    pub fn new(config: &Config, environment: Environment, clock: Clock) -> Self {
        let source = environment.refers_to_parameters().then(|| Source {
            environment,
            agent: config.keys.public_key(),
            read_at_ms: AtomicU64::new(clock.now_ms()),
            clock,
        });
        let current = Current {
            providers: config.providers.clone(),
            api_tokens: config.api_tokens.clone(),
            webhooks: config.webhooks.clone(),
            secrets: config.secrets.clone(),
        };
        Self { current: RwLock::new(current), source }
    }

    /// These, for as long as the process lives; no webhook is open.
    #[must_use]
    pub fn fixed(providers: Providers, api_tokens: Vec<ApiToken>) -> Self {
        let secrets = Mask::new(providers.keys().cloned());
        let webhooks = Webhooks::default();
        Self { current: RwLock::new(Current { providers, api_tokens, webhooks, secrets }), source: None }
    }

    /// Who may use the HTTP API.
    #[must_use]
    pub fn api_tokens(&self) -> Vec<ApiToken> {
        self.current().api_tokens.clone()
    }

    /// The webhook of this slug, if it is open.
    #[must_use]
    pub fn webhook(&self, slug: &str) -> Option<Hook> {
        self.current().webhooks.get(slug).cloned()
    }

    /// What is secret of them, now or earlier.
    #[must_use]
    pub fn secrets(&self) -> Mask {
        self.current().secrets.clone()
    }

    /// The model behind `id`, with its provider's key.
    ///
    /// # Errors
    /// What its provider lacks: names of variables, never their values.
    pub fn model(&self, id: &ModelId) -> Result<Model, String> {
        self.current().providers.model(id)
    }

    /// At the start of an invocation: reads again what is older than ten minutes.
    pub async fn refresh(&self) {
        let Some(source) = &self.source else { return };
        let age_ms = source.clock.now_ms().saturating_sub(source.read_at_ms.load(Ordering::Relaxed));
        if Duration::from_millis(age_ms) >= MAX_AGE {
            self.read(source).await;
        }
    }

    /// The model behind `id` with another key than the one that its provider just refused, if there is one by now.
    pub async fn renewed(&self, id: &ModelId, refused: Option<&Secret>) -> Option<Model> {
        let source = self.source.as_ref()?;
        let renewed = || {
            let model = self.model(id).ok()?;
            (model.provider.key.as_ref().map(Secret::expose) != refused.map(Secret::expose)).then_some(model)
        };
        // A run beside this one may have read it already.
        if let Some(model) = renewed() {
            return Some(model);
        }
        self.read(source).await;
        renewed()
    }

    /// Where that fails, what we have stays, and the next try is due as after a success: no invocation waits long for a
    /// service that is down.
    async fn read(&self, source: &Source) {
        let read = tokio::time::timeout(PATIENCE, source.environment.config()).await;
        source.read_at_ms.store(source.clock.now_ms(), Ordering::Relaxed);
        match read {
            Ok(Ok(config)) => {
                if config.keys.public_key() != source.agent {
                    tracing::warn!("DIDACTYL_NSEC has changed: it counts from the next cold start on");
                }
                let Config { providers, api_tokens, webhooks, secrets, .. } = config;
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                let secrets = std::mem::take(&mut current.secrets).and(secrets);
                *current = Current { providers, api_tokens, webhooks, secrets };
            }
            Ok(Err(error)) => tracing::warn!(%error, "the secrets could not be read again"),
            Err(_) => tracing::warn!("the secrets could not be read again in the time there was"),
        }
    }

    fn current(&self) -> RwLockReadGuard<'_, Current> {
        // Nobody panics while writing one value over another.
        self.current.read().unwrap_or_else(PoisonError::into_inner)
    }
}
