//! `TestAgent`: the real handler over a real relay, a scripted model and a store of its own, all on loopback.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aes::cipher::{BlockModeEncrypt, KeyIvInit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use didactyl::app::App;
use didactyl::cli::{sandbox, seed};
use didactyl::clock::{Clock, Deadline};
use didactyl::config::Config;
use didactyl::dm::{self, Content};
use didactyl::error::Error;
use didactyl::handler;
use didactyl::history::StoredMessage;
use didactyl::inbox::{self, Inbound};
use didactyl::llm::openai::OpenAi;
use didactyl::llm::scripted::{Answer, Asked, Scripted};
use didactyl::load;
use didactyl::record::{self, RunRecord};
use didactyl::relay::Relays;
use didactyl::relay::pool::{Limits, Pool};
use didactyl::state::AgentState;
use didactyl::store::{Expect, Range, Store, Write, keys};
use didactyl::trigger::Trigger;
use nostr::nips::nip04;
use nostr::nips::nip44;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::prelude::{
    Event, EventBuilder, EventId, Filter, FinalizeEvent, Keys, Kind, PublicKey, RelayUrl, Tag, Timestamp,
    UnsignedEvent,
};
use nostr_relay_builder::local::LocalRelay;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::ground::{Ground, On};

/// How long an invocation of a test may take: far longer than any needs.
pub const BUDGET: Duration = Duration::from_secs(60);

/// Secret key `scalar`: 1 is the agent's, 2 the admin's, 3 a stranger's.
pub fn secret(scalar: u8) -> Keys {
    sandbox::published_key(scalar).unwrap()
}

pub fn agent_key() -> PublicKey {
    secret(1).public_key()
}

/// A clock that runs, and that a test can set.
#[derive(Clone, Default)]
pub struct TestClock(Arc<AtomicU64>);

impl TestClock {
    pub fn clock(&self) -> Clock {
        let ahead_ms = Arc::clone(&self.0);
        Clock::from_fn(move || Clock::system().now_ms() + ahead_ms.load(Ordering::SeqCst))
    }

    pub fn forward(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// As far as it was set forward before.
    pub fn back(&self, by: Duration) {
        self.0.fetch_sub(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Sets it forward to this second.
    pub fn set(&self, at: Timestamp) {
        self.forward(Duration::from_secs((at - self.clock().now()).as_secs()));
    }
}

pub struct TestAgent {
    pub app: App,
    pub relay_url: RelayUrl,
    pub model: Scripted,
    pub clock: TestClock,
    pub ground: Ground,
    client: Pool,
    /// Held for as long as the agent lives.
    relay: Option<LocalRelay>,
}

/// No test asks the model for what a provider would refuse, or leaves a conversation in disorder.
impl Drop for TestAgent {
    fn drop(&mut self) {
        record(&self.model);
        if !std::thread::panicking() {
            assert_eq!(self.model.refusals(), Vec::<String>::new());
            self.ground.check_lines();
        }
    }
}

/// Leaves what a model was asked in the folder that `tests/interop/with-clients.sh` set, if it did, for its check.
pub fn record(model: &Scripted) {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let Some(folder) = std::env::var_os("DIDACTYL_TEST_REQUESTS") else { return };
    let lines: String = model.requests().iter().map(|asked| format!("{}\n", asked.body)).collect();
    let name = format!("{}-{}.jsonl", std::process::id(), FILES.fetch_add(1, Ordering::Relaxed));
    std::fs::write(std::path::Path::new(&folder).join(name), lines).unwrap();
}

impl TestAgent {
    /// An agent whose profile, soul, skills and relay lists are on the relay, as the admin's are; the model answers
    /// with what it was asked.
    pub async fn start() -> Self {
        Self::with_script(echo).await
    }

    pub async fn with_script(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::over(On::Sqlite, script).await
    }

    /// The same over a store of this kind.
    pub async fn over(on: On, script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let agent = Self::bare_over(on, script).await;
        let now = Timestamp::now();
        agent.publish(seed::agent_events(&secret(1), &agent.relay_url, now).unwrap()).await;
        agent.publish(seed::admin_events(&secret(2), &agent.relay_url, now).unwrap()).await;
        agent
    }

    /// An agent that has nothing on the relay.
    pub async fn bare(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        Self::bare_over(On::Sqlite, script).await
    }

    /// The same over a store of this kind.
    pub async fn bare_over(on: On, script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        let relay = sandbox::embedded_relay().await.unwrap();
        let relay_url = RelayUrl::parse(&relay.url().await.to_string()).unwrap();
        let mut agent = Self::on_ground(Ground::new(on).await, relay_url, script).await;
        agent.relay = Some(relay);
        agent
    }

    /// An agent that has nothing on `relay_url`, a relay of the test's own.
    pub async fn bare_on(
        relay_url: RelayUrl,
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::on_ground(Ground::new(On::Sqlite).await, relay_url, script).await
    }

    async fn on_ground(
        ground: Ground,
        relay_url: RelayUrl,
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        didactyl::install_crypto_provider();
        let model = Scripted::start(script).await.unwrap();
        let clock = TestClock::default();
        let config = config(&vars(&relay_url, &model, &ground));
        let app = app_over(config, ground.open(clock.clock()), &clock);
        let client = Pool::new(secret(2), Limits::default());
        Self { app, relay_url, model, clock, ground, client, relay: None }
    }

    /// The variables of a process that is this agent.
    pub fn vars(&self) -> BTreeMap<&'static str, String> {
        vars(&self.relay_url, &self.model, &self.ground)
    }

    /// The same agent in another process: the same store and relay, nothing in memory.
    pub fn another(&self) -> App {
        self.another_over(self.ground.open(self.clock.clock()))
    }

    /// The same agent in another process, which reaches its store in another way.
    pub fn another_over(&self, store: Arc<dyn Store>) -> App {
        app_over(config(&self.vars()), store, &self.clock)
    }

    pub async fn publish(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            sandbox::publish(&self.client, &self.relay_url, event).await.unwrap();
        }
        self.client.close().await;
    }

    pub async fn on_relay(&self, filter: Filter) -> Vec<Event> {
        let target = sandbox::target(&self.relay_url);
        let fetched = self.client.fetch(&[target], &[filter], Instant::now() + BUDGET).await;
        self.client.close().await;
        assert!(fetched.is_complete(), "{:?}", fetched.reports);
        fetched.events
    }

    /// What the handler answers to these events, as a bridge pushes them.
    pub async fn deliver(&self, events: &[Event]) -> Value {
        self.try_deliver(events).await.unwrap()
    }

    pub async fn try_deliver(&self, events: &[Event]) -> Result<Value, Error> {
        deliver_to(&self.app, &self.relay_url, events).await
    }

    /// The texts that the admin can read on the relay, oldest first, each with its id, each id once.
    pub async fn replies(&self) -> Vec<(EventId, String)> {
        let admin = secret(2);
        let filter = Filter::new().kinds([Kind::from(4), Kind::from(1059)]).pubkey(admin.public_key());
        let opened =
            self.on_relay(filter).await.into_iter().filter_map(|event| dm::open(&admin, &event).ok());
        let replies: BTreeSet<(Timestamp, EventId, String)> = opened
            .filter(|opened| opened.author == agent_key())
            .filter_map(|opened| match opened.content {
                Content::Text(text) => Some((opened.created_at, opened.id, text)),
                _ => None,
            })
            .collect();
        replies.into_iter().map(|(_, id, text)| (id, text)).collect()
    }

    pub async fn record(&self, trigger_id: &str) -> RunRecord {
        record::find(&self.app, &record::run_id(trigger_id)).await.unwrap().expect("the trigger was claimed")
    }

    /// Stands for waiting until this message's run is free again.
    pub async fn end_the_lease(&self, dm: &Event) {
        let key = keys::record(&record::run_id(&record::dm_trigger_id(&dm_id(dm))));
        let Some(row) = self.app.store.read(std::slice::from_ref(&key)).await.unwrap().remove(0) else {
            return;
        };
        let mut record: RunRecord = serde_json::from_slice(&row.value).unwrap();
        (record.lease_until_ms, record.not_before) = (0, 0);
        let value = serde_json::to_vec(&record).unwrap();
        let write = Write::put(key, Expect::Version(row.version), value, row.expires_at);
        self.app.store.write(&[write]).await.unwrap();
    }

    /// The stored conversation with `peer`: who spoke, and what.
    pub async fn history(&self, peer: PublicKey) -> Vec<(&'static str, String)> {
        let range = Range {
            partition: keys::conversation(&peer),
            prefix: String::new(),
            newest_first: false,
            limit: None,
        };
        let rows = self.app.store.list(&range).await.unwrap();
        rows.iter()
            .filter(|row| !row.key.sort.starts_with('~'))
            .map(|row| self.app.open_sealed::<StoredMessage>(row).unwrap())
            .map(|message| (if message.from_agent { "agent" } else { "peer" }, message.text))
            .collect()
    }
}

/// What the handler answers to this payload.
pub async fn hand_over(app: &App, payload: &str) -> Value {
    handler::handle(app, payload, Deadline::after(BUDGET)).await.unwrap()
}

pub async fn deliver_to(app: &App, relay: &RelayUrl, events: &[Event]) -> Result<Value, Error> {
    let payload = json!({"type": "relay", "events": events, "relay": relay.to_string()});
    handler::handle(app, &payload.to_string(), Deadline::after(BUDGET)).await
}

fn vars(relay: &RelayUrl, model: &Scripted, ground: &Ground) -> BTreeMap<&'static str, String> {
    let mut vars = ground.vars();
    vars.extend([
        ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
        ("DIDACTYL_RELAYS", relay.to_string()),
        ("DIDACTYL_LLM", "scripted/test".to_owned()),
        // A hello would be among the answers of every first tick.
        ("DIDACTYL_HELLO", "false".to_owned()),
        ("SCRIPTED_BASE_URL", model.base_url.clone()),
    ]);
    vars
}

pub fn config(vars: &BTreeMap<&'static str, String>) -> Config {
    Config::from_vars(&|name| vars.get(name).cloned()).unwrap()
}

/// An agent over this store, at this clock.
pub fn app_over(config: Config, store: Arc<dyn Store>, clock: &TestClock) -> App {
    let relays = Arc::new(Pool::new(config.keys.clone(), Limits::default()));
    let llm = Arc::new(OpenAi::new(reqwest::Client::new(), config.providers.clone()));
    App::with_ports(config, store, relays, llm, clock.clock())
}

/// Answers with the last message in capitals.
pub fn echo(asked: &Asked) -> Answer {
    Answer::Text(asked.last_text("user").to_uppercase())
}

/// A rumor of kind 14 from `author` to the agent.
pub fn rumor(author: &Keys, text: &str, created_at: Timestamp) -> UnsignedEvent {
    UnsignedEvent::new(author.public_key(), created_at, Kind::from(14), [Tag::public_key(agent_key())], text)
}

/// A NIP-17 message to the agent.
pub fn nip17(author: &Keys, text: &str) -> Event {
    nip17_at(author, text, Timestamp::now())
}

pub fn nip17_at(author: &Keys, text: &str, created_at: Timestamp) -> Event {
    GiftWrapBuilder::new(agent_key(), rumor(author, text, created_at)).finalize(author).unwrap()
}

/// The id by which the agent knows a message to it: the event's, or that of the rumor inside.
pub fn dm_id(event: &Event) -> EventId {
    dm::open(&secret(1), event).unwrap().id
}

/// A NIP-04 message to the agent.
pub fn nip04(author: &Keys, text: &str) -> Event {
    let content = nip04::encrypt(author.secret_key(), &agent_key(), text).unwrap();
    kind4(author, &agent_key(), content)
}

/// A kind 4 event with this very content.
pub fn kind4(author: &Keys, to: &PublicKey, content: impl Into<String>) -> Event {
    EventBuilder::new(Kind::from(4), content).tag(Tag::public_key(*to)).finalize(author).unwrap()
}

/// A seal (kind 13) to the agent, signed by `author`, around any text.
pub fn seal(author: &Keys, text: &str) -> Event {
    let content = nip44_to_agent(author, text);
    EventBuilder::new(Kind::from(13), content).finalize(author).unwrap()
}

/// A gift wrap to the agent, signed by a key of its own, around any text.
pub fn wrap(text: &str) -> Event {
    let signer = Keys::generate();
    let content = nip44_to_agent(&signer, text);
    EventBuilder::new(Kind::from(1059), content).tag(Tag::public_key(agent_key())).finalize(&signer).unwrap()
}

/// A well-formed wrap and seal by `author` around any text in the rumor's place.
pub fn wrapped(author: &Keys, rumor: &str) -> Event {
    wrap(&seal(author, rumor).as_json())
}

/// NIP-44 ciphertext from `author` to the agent.
pub fn nip44_to_agent(author: &Keys, text: &str) -> String {
    nip44::encrypt(author.secret_key(), &agent_key(), text, nip44::Version::V2).unwrap()
}

/// A NIP-44 payload with one bit of its MAC flipped.
pub fn with_wrong_mac(payload: &str) -> String {
    altered(payload, |bytes| *bytes.last_mut().unwrap() ^= 1)
}

/// A base64 text with other bytes.
pub fn altered(payload: &str, alter: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = BASE64.decode(payload).unwrap();
    alter(&mut bytes);
    BASE64.encode(bytes)
}

/// The trigger that the event becomes.
pub fn trigger(app: &App, event: &Event) -> Trigger {
    match inbox::read(app, &event.as_json(), None) {
        Ok(Inbound::Work(trigger)) => *trigger,
        other => panic!("the event is no work: {other:?}"),
    }
}

/// What a run on this trigger would know, as the relays and the store have it now.
pub async fn load(app: &App, trigger: &Trigger) -> AgentState {
    let stored = load::stored(app, trigger).await.unwrap();
    let loaded = load::refresh(app, trigger, stored, Instant::now() + BUDGET).await.unwrap();
    load::keep(app, loaded.unsaved).await;
    app.relays.close().await;
    loaded.state
}

/// What a run on this trigger would know if no relay could be asked.
pub async fn load_from_store(app: &App, trigger: &Trigger) -> AgentState {
    load::stored(app, trigger).await.unwrap().into_loaded(app, trigger).state
}

/// NIP-04 content of raw AES blocks: `plain` is enciphered as it stands, without padding.
///
/// The shared secret of NIP-04 is the x coordinate of secret key times public key. The agent's secret key is 1, so
/// it is the other's public key itself.
pub fn nip04_blocks(author: &Keys, plain: &[[u8; 16]]) -> String {
    let (key, iv) = (author.public_key().to_bytes(), [7u8; 16]);
    let mut blocks: Vec<_> = plain.iter().map(|block| (*block).into()).collect();
    cbc::Encryptor::<aes::Aes256>::new(&key.into(), &iv.into()).encrypt_blocks(&mut blocks);
    format!("{}?iv={}", BASE64.encode(blocks.concat()), BASE64.encode(iv))
}

/// The outcomes that an answer of the handler tells, in the order of the events.
pub fn outcomes(answer: &Value) -> Vec<&str> {
    answer["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

/// What is logged in this thread.
#[derive(Clone, Default)]
pub struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl Log {
    pub fn start(self) -> tracing::subscriber::DefaultGuard {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        tracing::subscriber::set_default(subscriber.with_writer(move || self.clone()).finish())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
