//! The stores that an agent is tried over: each test of [`on_each_store`] runs once over an SQLite file and once over a
//! DynamoDB table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use didactyl::clock::Clock;
use didactyl::record::RunRecord;
use didactyl::store::dynamodb::DynamoDb;
use didactyl::store::sqlite::Sqlite;
use didactyl::store::{Store, keys};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::store::beds;

/// A kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    Sqlite,
    DynamoDb,
}

/// Runs each test of the list, a function of [`On`], over both stores. Over DynamoDB it needs the emulator. One that is
/// missing from the list is an unused function, which clippy refuses.
macro_rules! on_each_store {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                super::$case($crate::ground::On::Sqlite).await;
            }
        )+}

        mod dynamodb {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
            async fn $case() {
                if $crate::store::beds::emulator().is_some() {
                    super::$case($crate::ground::On::DynamoDb).await;
                }
            }
        )+}
    };
}
pub(crate) use on_each_store;

/// An empty store of one agent; any number of processes may open it.
pub enum Ground {
    /// A file in a folder that goes with the value.
    File(TempDir),
    /// A table on the emulator.
    Table(Client, String),
}

impl Ground {
    pub async fn new(on: On) -> Self {
        match on {
            On::Sqlite => Self::File(TempDir::with_prefix("didactyl-test-").unwrap()),
            On::DynamoDb => {
                let client = beds::client(&beds::emulator().expect("the emulator runs"));
                let table = beds::create_table(&client).await;
                Self::Table(client, table)
            }
        }
    }

    /// The store, as another process would open it.
    pub fn open(&self, clock: Clock) -> Arc<dyn Store> {
        match self {
            Self::File(folder) => Arc::new(Sqlite::open(folder.path().join("agent.sqlite"), clock).unwrap()),
            Self::Table(client, table) => Arc::new(DynamoDb::new(client.clone(), table, clock)),
        }
    }

    /// Every run that is not over stands in its conversation as its record says, and nothing else does.
    pub fn check_lines(&self) {
        // A table is looked at by the tests of conversations alone: to ask it takes a runtime.
        let Self::File(folder) = self else { return };
        let path = folder.path().join("agent.sqlite");
        if !path.exists() {
            return;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
        let mut file = Connection::open_with_flags(path, flags).unwrap();
        file.busy_timeout(Duration::from_secs(5)).unwrap();
        // One moment: a process that the test has ended may still be writing.
        let file = file.transaction().unwrap();
        let mut rows = file
            .prepare("SELECT partition, sort, value FROM rows WHERE partition LIKE 'LINE#%' OR sort = 'RECORD'")
            .unwrap();
        let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
        let (mut standing, mut expected) = (BTreeSet::new(), BTreeSet::new());
        for row in rows {
            let (partition, sort, value): (String, String, Vec<u8>) = row.unwrap();
            let Ok(value) = serde_json::from_slice::<Value>(&value) else { continue };
            if partition.starts_with("LINE#") {
                standing.insert((partition, sort, value.get("run").cloned()));
            } else if let Ok(record) = serde_json::from_value::<RunRecord>(value)
                && let Some(peer) = record.conversation
                && !record.status.is_final()
                && !record.held
            {
                let (key, run) = match record.floor {
                    true => (keys::floor(&peer), Some(json!(record.run_id))),
                    false => (keys::in_line(&peer, record.written_at, &record.run_id), None),
                };
                expected.insert((key.partition, key.sort, run));
            }
        }
        assert_eq!(standing, expected);
    }

    /// The variables by which a process finds it.
    pub fn vars(&self) -> BTreeMap<&'static str, String> {
        match self {
            Self::File(folder) => {
                let path = folder.path().join("agent.sqlite");
                BTreeMap::from([("DIDACTYL_STORE", format!("sqlite:{}", path.display()))])
            }
            Self::Table(_, table) => {
                let aws = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"];
                let aws = aws.map(|name| (name, std::env::var(name).expect("set beside the emulator")));
                BTreeMap::from(aws)
                    .into_iter()
                    .chain([("DIDACTYL_STORE", format!("dynamodb:{table}"))])
                    .collect()
            }
        }
    }
}
