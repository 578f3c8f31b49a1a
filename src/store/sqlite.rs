//! The store of a laptop: one SQLite file that several processes may use at once, or `:memory:`.
//!
//! A write is one `BEGIN IMMEDIATE` transaction, so that its expectations and its changes see the same rows. Calls run on
//! tokio's blocking threads; a call whose future is dropped still ends its transaction, whole or not at all. The file
//! can be read with `sqlite3` (private values are sealed, see [`super::seal`]).

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{
    Connection, ErrorCode, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use tokio::sync::Mutex;

use super::limits::{check_keys, check_range, check_writes};
use super::{Change, Expect, Key, Range, Row, Store, StoreError, Write};
use crate::clock::Clock;

/// The layout of the file, kept in its `user_version`.
const FORMAT: i64 = 1;

/// How long a call waits for another process that holds the file.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// How long after its expiry a row may be removed, as with DynamoDB's time to live. Until then its version counts on.
const REMOVE_AFTER_SECONDS: u64 = 2 * 24 * 60 * 60;

const CREATE: &str = "
    CREATE TABLE rows (
        partition  TEXT    NOT NULL COLLATE BINARY,
        sort       TEXT    NOT NULL COLLATE BINARY,
        version    INTEGER NOT NULL,
        expires_at INTEGER,
        value      BLOB    NOT NULL,
        PRIMARY KEY (partition, sort)
    ) WITHOUT ROWID;
    CREATE INDEX rows_expiring ON rows (expires_at) WHERE expires_at IS NOT NULL;";

const SELECT: &str = "SELECT version, expires_at, value FROM rows WHERE partition = ?1 AND sort = ?2";

const LIST: &str = "SELECT sort, version, expires_at, value FROM rows
    WHERE partition = ?1 AND sort >= ?2 AND sort < ?3 AND (expires_at IS NULL OR expires_at > ?4)";

const PUT: &str = "INSERT INTO rows (partition, sort, version, expires_at, value) VALUES (?1, ?2, 1, ?3, ?4)
    ON CONFLICT DO UPDATE SET version = version + 1, expires_at = excluded.expires_at, value = excluded.value";

const DELETE: &str = "DELETE FROM rows WHERE partition = ?1 AND sort = ?2";

/// Rows in an SQLite database.
#[derive(Debug)]
pub struct Sqlite {
    connection: Arc<Mutex<Connection>>,
    clock: Clock,
}

impl Sqlite {
    /// Opens the file at `path`, or creates it, readable by its owner alone. `:memory:` is a store that ends with the
    /// process. Blocks, at most while another process creates the same file.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] where the folder is missing or the file is not ours or of a newer version;
    /// [`StoreError::Unavailable`] where another process holds it.
    pub fn open(path: impl AsRef<Path>, clock: Clock) -> Result<Self, StoreError> {
        let path = path.as_ref();
        create_file(path)?;
        // Without SQLITE_OPEN_URI: a path that begins with `file:` is a path.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let now = clock.now().as_secs();
        let connection = patiently(|| {
            let mut connection = Connection::open_with_flags(path, flags)?;
            connection.busy_timeout(BUSY_WAIT)?;
            prepare(&mut connection, now)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.pragma_update(None, "synchronous", "FULL")?;
            Ok(connection)
        })
        .map_err(|failure| failure.about(path))?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), clock })
    }

    /// Runs `work` on a blocking thread with the connection. The guard goes along, so that a dropped future frees the
    /// connection only when its transaction has ended.
    async fn with<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Fn(&mut Connection, &Clock) -> Result<T, Failure> + Send + 'static,
    {
        let mut connection = Arc::clone(&self.connection).lock_owned().await;
        let clock = self.clock.clone();
        tokio::task::spawn_blocking(move || patiently(|| work(&mut connection, &clock)))
            .await
            .map_err(|_| StoreError::Unavailable("the thread of the database ended early".into()))?
            .map_err(Failure::into_store_error)
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        check_keys(keys)?;
        let keys = keys.to_vec();
        self.with(move |connection, clock| {
            // One transaction: the rows are of one moment.
            let transaction = connection.transaction()?;
            let now = clock.now().as_secs();
            keys.iter().map(|key| Ok(find(&transaction, key)?.filter(|row| lives(row, now)))).collect()
        })
        .await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        check_range(range)?;
        let range = range.clone();
        self.with(move |connection, clock| Ok(list(connection, &range, clock.now().as_secs())?)).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        check_writes(writes)?;
        let writes = writes.to_vec();
        self.with(move |connection, clock| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Only now: the transaction may have waited for another process.
            let now = clock.now().as_secs();
            for write in &writes {
                check(&transaction, write, now)?;
            }
            for write in &writes {
                apply(&transaction, write)?;
            }
            Ok(transaction.commit()?)
        })
        .await
    }
}

/// Refuses a write whose row is not as it expects. A transaction that ends here is rolled back.
fn check(transaction: &Transaction<'_>, write: &Write, now: u64) -> Result<(), Failure> {
    if write.expect == Expect::Anything {
        return Ok(());
    }
    let current = find(transaction, &write.key)?.filter(|row| lives(row, now));
    let holds = match write.expect {
        Expect::Anything => true,
        Expect::Absent => current.is_none(),
        Expect::Version(version) => current.as_ref().is_some_and(|row| row.version == version),
    };
    if holds {
        return Ok(());
    }
    let conflict = StoreError::Conflict { key: write.key.clone(), current: current.map(Box::new) };
    Err(Failure::Refused(conflict))
}

fn apply(transaction: &Transaction<'_>, write: &Write) -> rusqlite::Result<()> {
    let Key { partition, sort } = &write.key;
    match &write.change {
        Change::Put { value, expires_at } => {
            let expires_at = expires_at.map(integer);
            transaction.prepare_cached(PUT)?.execute(params![partition, sort, expires_at, value])?;
        }
        Change::Delete => {
            transaction.prepare_cached(DELETE)?.execute([partition, sort])?;
        }
        Change::Check => {}
    }
    Ok(())
}

/// The row as it lies in the file, expired or not.
fn find(connection: &Connection, key: &Key) -> rusqlite::Result<Option<Row>> {
    let mut statement = connection.prepare_cached(SELECT)?;
    statement.query_row([&key.partition, &key.sort], |found| row(key.clone(), found)).optional()
}

fn list(connection: &Connection, range: &Range, now: u64) -> rusqlite::Result<Vec<Row>> {
    let order = if range.newest_first { "DESC" } else { "ASC" };
    let mut statement = connection.prepare_cached(&format!("{LIST} ORDER BY sort {order} LIMIT ?5"))?;
    // Where no text lies behind all that begin with the prefix, a blob does: SQLite sorts them after every text.
    let end = after(&range.prefix).map_or(Value::Blob(Vec::new()), Value::Text);
    // A negative limit is none.
    let limit = range.limit.map_or(-1, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
    let parameters = params![range.partition, range.prefix, end, integer(now), limit];
    let rows = statement.query_map(parameters, |found| {
        row(Key { partition: range.partition.clone(), sort: found.get("sort")? }, found)
    })?;
    rows.collect()
}

fn row(key: Key, found: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok(Row {
        key,
        version: unsigned(found.get("version")?),
        expires_at: found.get::<_, Option<i64>>("expires_at")?.map(unsigned),
        value: found.get("value")?,
    })
}

fn lives(row: &Row, now: u64) -> bool {
    row.expires_at.is_none_or(|at| at > now)
}

/// The first text behind all that begin with `prefix`, or `None` where nothing can lie there. UTF-8 sorts by bytes as
/// by characters, so the last character is replaced by the next one, or dropped where it is the last of all.
fn after(prefix: &str) -> Option<String> {
    let mut characters = prefix.chars();
    while let Some(last) = characters.next_back() {
        // Skips the surrogates, which are no characters.
        if let Some(next) = (last..=char::MAX).nth(1) {
            return Some(characters.as_str().to_owned() + next.encode_utf8(&mut [0; 4]));
        }
    }
    None
}

/// SQLite's integers have a sign. Versions count up from 1, and later expiries are refused by [`check_writes`].
fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Makes an empty file before SQLite does, since SQLite would let others read it. The files that it lays beside a
/// database get that database's permissions.
fn create_file(path: &Path) -> Result<(), StoreError> {
    if path == Path::new(":memory:") {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(StoreError::Invalid(format!(
            "the folder of {} does not exist: create it or name another file",
            path.display()
        ))),
        Err(error) => Err(StoreError::Invalid(format!("{} could not be created: {error}", path.display()))),
    }
}

/// Creates the table in a new file, refuses files that are not ours, and removes what expired long ago.
fn prepare(connection: &mut Connection, now: u64) -> Result<(), Failure> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let format: i64 = transaction.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    match format {
        FORMAT => {}
        0 => {
            let tables: i64 =
                transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables > 0 {
                return refused("it is another program's database: name another file".into());
            }
            transaction.execute_batch(CREATE)?;
            transaction.pragma_update(None, "user_version", FORMAT)?;
        }
        newer => {
            return refused(format!(
                "it has format {newer}, this version reads format {FORMAT}: use the version that wrote it, or name \
                 another file"
            ));
        }
    }
    let long_ago = integer(now.saturating_sub(REMOVE_AFTER_SECONDS));
    transaction.execute("DELETE FROM rows WHERE expires_at <= ?1", [long_ago])?;
    Ok(transaction.commit()?)
}

/// Why a call failed.
#[derive(Debug)]
enum Failure {
    /// By our own rules.
    Refused(StoreError),
    /// By SQLite's word.
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Failure {
    fn is_busy(&self) -> bool {
        let Self::Sql(error) = self else { return false };
        matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    fn into_store_error(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    let seconds = BUSY_WAIT.as_secs();
                    StoreError::Unavailable(format!(
                        "another process has held the file for {seconds} seconds"
                    ))
                }
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                    StoreError::Invalid(format!("the file is not a sound SQLite database: {error}"))
                }
                _ => StoreError::Unavailable(error.to_string()),
            },
        }
    }

    /// The same, with the file's name before it.
    fn about(self, path: &Path) -> StoreError {
        let path = path.display();
        match self.into_store_error() {
            StoreError::Invalid(why) => StoreError::Invalid(format!("{path}: {why}")),
            StoreError::Unavailable(why) => StoreError::Unavailable(format!("{path}: {why}")),
            conflict @ StoreError::Conflict { .. } => conflict,
        }
    }
}

fn refused(why: String) -> Result<(), Failure> {
    Err(Failure::Refused(StoreError::Invalid(why)))
}

/// Repeats `work` while the file is busy, for at most [`BUSY_WAIT`]. SQLite waits by itself for most locks, but says
/// "busy" at once where waiting could be a deadlock, and while a file is turned to WAL.
fn patiently<T>(mut work: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let until = Instant::now() + BUSY_WAIT;
    loop {
        match work() {
            Err(failure) if failure.is_busy() && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(10));
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn open_error(path: &Path) -> String {
        Sqlite::open(path, Clock::system()).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = open_error(Path::new("/no/such/folder/store.sqlite"));
        insta::assert_snapshot!(error, @"the store refused the call: the folder of /no/such/folder/store.sqlite does not exist: create it or name another file");
    }

    #[test]
    fn files_that_are_not_ours_are_refused_and_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);

        std::fs::write(file("text"), "x".repeat(4096)).unwrap();
        let foreign = Connection::open(file("foreign")).unwrap();
        foreign.execute_batch("CREATE TABLE bookmarks (url TEXT)").unwrap();
        drop(Sqlite::open(file("newer"), Clock::system()).unwrap());
        let newer = Connection::open(file("newer")).unwrap();
        newer.pragma_update(None, "user_version", 2).unwrap();
        drop((foreign, newer));
        let names = ["text", "foreign", "newer"];
        let before = names.map(|name| std::fs::read(file(name)).unwrap());

        let errors =
            names.map(|name| open_error(&file(name)).replace(&*folder.path().to_string_lossy(), "…"));
        insta::assert_snapshot!(errors.join("\n"), @r"
        the store refused the call: …/text: the file is not a sound SQLite database: file is not a database
        the store refused the call: …/foreign: it is another program's database: name another file
        the store refused the call: …/newer: it has format 2, this version reads format 1: use the version that wrote it, or name another file
        ");
        assert!(names.map(|name| std::fs::read(file(name)).unwrap()) == before);
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn only_the_owner_can_read_the_files() {
        use std::os::unix::fs::PermissionsExt;

        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(folder.path().join("store"), Clock::system()).unwrap();
        store.write(&[Write::put(Key::new("p", "s"), Expect::Absent, vec![1], None)]).await.unwrap();
        let modes: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().permissions().mode() & 0o777)
            .collect();
        // The database, its write-ahead log and the log's index.
        assert_eq!(modes, [0o600, 0o600, 0o600]);
    }

    #[tokio::test]
    async fn every_commit_reaches_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let store = Sqlite::open(folder.path().join("store"), Clock::system()).unwrap();
        let connection = store.connection.lock().await;
        let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        let synchronous: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
        assert_eq!((mode.as_str(), synchronous), ("wal", 2));
    }

    #[tokio::test]
    async fn rows_that_expired_long_ago_are_removed_when_the_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let at = |seconds: u64| Clock::from_fn(move || seconds * 1000);
        let store = Sqlite::open(&path, at(0)).unwrap();
        let put = |sort, expires_at| Write::put(Key::new("p", sort), Expect::Absent, vec![], expires_at);
        let writes = [put("long ago", Some(100)), put("just now", Some(101)), put("never", None)];
        store.write(&writes).await.unwrap();
        drop(store);

        let store = Sqlite::open(&path, at(100 + REMOVE_AFTER_SECONDS)).unwrap();
        let connection = store.connection.lock().await;
        let mut statement = connection.prepare("SELECT sort FROM rows ORDER BY sort").unwrap();
        let kept: Vec<String> =
            statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(kept, ["just now", "never"]);
    }

    #[tokio::test]
    async fn a_write_whose_future_is_dropped_is_done_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = Sqlite::open(&path, Clock::system()).unwrap();
        let put = |sort| Write::put(Key::new("p", sort), Expect::Absent, vec![], None);
        let writes = [put("a"), put("b")];

        // Another connection keeps the write waiting, so that it cannot end before its future is dropped.
        let mut other = Connection::open(&path).unwrap();
        let held = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let mut write = store.write(&writes);
        assert!(futures_util::poll!(&mut write).is_pending());
        drop(write);
        drop(held);

        let rows = store.read(&writes.map(|write| write.key)).await.unwrap();
        assert!(rows.iter().all(Option::is_some));
    }

    proptest! {
        #[test]
        fn the_end_of_a_prefix_lies_behind_all_that_begin_with_it(prefix: String, text: String) {
            let Some(end) = after(&prefix) else { return Ok(()) };
            let inside = [prefix.clone() + &text, prefix.clone() + &char::MAX.to_string().repeat(3)];
            prop_assert!(inside.iter().all(|inside| *inside < end));
            // And nothing else lies between.
            if text >= prefix && text < end {
                prop_assert!(text.starts_with(&prefix));
            }
        }
    }

    #[test]
    fn the_last_character_has_none_behind_it() {
        let last = char::MAX;
        assert_eq!(after(""), None);
        assert_eq!(after(&last.to_string()), None);
        assert_eq!(after(&format!("a{last}")), Some("b".into()));
        assert_eq!(after("\u{d7ff}"), Some("\u{e000}".into()));
    }
}
