//! The stores under test, each empty and with a clock that the test sets.

use std::any::Any;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once};

use async_trait::async_trait;
use aws_sdk_dynamodb::config::{BehaviorVersion, Credentials, Region};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use aws_sdk_dynamodb::{Client, Config};
use didactyl::clock::Clock;
use didactyl::store::dynamodb::DynamoDb;
use didactyl::store::sqlite::Sqlite;
use didactyl::store::{Key, Range, Row, Store, StoreError, Write};

/// An empty store and its time.
pub(super) struct Bed {
    pub(super) store: Arc<dyn Store>,
    pub(super) time: Time,
    /// What must live as long as the store.
    _ground: Box<dyn Any + Send>,
}

/// The time that a store is told, in Unix seconds; 1000 at first.
#[derive(Clone)]
pub(super) struct Time(Arc<AtomicU64>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(1000)))
    }

    pub(super) fn set(&self, seconds: u64) {
        self.0.store(seconds, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let time = self.clone();
        // The last moment of the second: a store that rounds up would be early.
        Clock::from_fn(move || time.0.load(Ordering::SeqCst) * 1000 + 999)
    }
}

pub(super) fn sqlite_in_memory() -> Bed {
    let time = Time::new();
    let store = Sqlite::open(":memory:", time.clock()).unwrap();
    Bed { store: Arc::new(store), time, _ground: Box::new(()) }
}

/// Four connections to one file; each call goes to the next of them.
pub(super) fn sqlite_in_a_file() -> Bed {
    let time = Time::new();
    let folder = tempfile::tempdir().unwrap();
    let open = |_| Sqlite::open(folder.path().join("store.sqlite"), time.clock()).unwrap();
    let store = Turns { stores: [0; 4].map(open), calls: AtomicUsize::new(0) };
    Bed { store: Arc::new(store), time, _ground: Box::new(folder) }
}

struct Turns {
    stores: [Sqlite; 4],
    calls: AtomicUsize,
}

impl Turns {
    fn next(&self) -> &Sqlite {
        &self.stores[self.calls.fetch_add(1, Ordering::SeqCst) % self.stores.len()]
    }
}

#[async_trait]
impl Store for Turns {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.next().read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.next().list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.next().write(writes).await
    }
}

/// A table of its own on the emulator, or `None` where none runs.
pub(super) async fn dynamodb() -> Option<Bed> {
    let client = client(&emulator()?);
    let table = create_table(&client).await;
    let time = Time::new();
    let store = DynamoDb::new(client, table, time.clock());
    Some(Bed { store: Arc::new(store), time, _ground: Box::new(()) })
}

/// The emulator's URL.
pub(crate) fn emulator() -> Option<String> {
    static TOLD: Once = Once::new();
    if let Ok(url) = std::env::var("DIDACTYL_TEST_AWS") {
        return Some(url);
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "the tests against AWS need its emulator: run make test"
    );
    // Not by a macro: the test harness would keep it to itself.
    TOLD.call_once(|| {
        let note = "note: the tests against AWS are NOT RUN, they need its emulator: run make test\n";
        std::io::stderr().write_all(note.as_bytes()).unwrap();
    });
    None
}

/// A client for `endpoint`. It has no timeouts and no second attempts, so that a slow machine changes no result.
pub(crate) fn client(endpoint: &str) -> Client {
    let config = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "test"))
        .endpoint_url(endpoint)
        .retry_config(aws_config::retry::RetryConfig::disabled())
        .timeout_config(aws_config::timeout::TimeoutConfig::disabled())
        .http_client(didactyl::aws::http::client())
        .build();
    Client::from_conf(config)
}

/// Creates an empty table with the key that the store asks for, and returns its name.
pub(crate) async fn create_table(client: &Client) -> String {
    static TABLES: AtomicUsize = AtomicUsize::new(0);
    let table = format!("test-{}-{}", std::process::id(), TABLES.fetch_add(1, Ordering::SeqCst));
    let mut call = client.create_table().table_name(&table).billing_mode(BillingMode::PayPerRequest);
    for (name, role) in [("pk", KeyType::Hash), ("sk", KeyType::Range)] {
        let attribute =
            AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S);
        let key = KeySchemaElement::builder().attribute_name(name).key_type(role);
        call = call.attribute_definitions(attribute.build().unwrap()).key_schema(key.build().unwrap());
    }
    call.send().await.unwrap();
    table
}
