//! The `Store` port: rows under a partition and a sort key, and conditional writes.
//!
//! A store knows nothing of runs or DMs. It has three calls; whatever needs atomicity is one [`Store::write`]
//! whose [`Expect`]s name the versions it was decided on. So each rule of the agent is pure Rust in one place
//! (see [`crate::record`]), and every store keeps it the same way: DynamoDB with condition expressions, SQLite with
//! one transaction. Reads are strongly consistent.

pub mod dynamodb;
mod item;
pub mod keys;
mod limits;
pub mod seal;
#[cfg(feature = "local")]
pub mod sqlite;

use async_trait::async_trait;

/// Where a row lies.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The partition; never empty.
    pub partition: String,
    /// The place inside the partition, compared byte by byte; never empty.
    pub sort: String,
}

impl Key {
    /// A key from its two parts.
    #[must_use]
    pub fn new(partition: impl Into<String>, sort: impl Into<String>) -> Self {
        Self { partition: partition.into(), sort: sort.into() }
    }
}

/// A row as read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Where it lies.
    pub key: Key,
    /// 1 when first written, one more with each later write of the same row. A row that expired counts on when it is
    /// written again, so that whoever still holds its old version stays refused; one that was deleted, or that the
    /// store removed days after it expired, starts again at 1.
    pub version: u64,
    /// Unix seconds from which on the row counts as absent.
    pub expires_at: Option<u64>,
    /// The bytes, at most [`MAX_VALUE_BYTES`].
    pub value: Vec<u8>,
}

/// The largest value that every store takes (a DynamoDB item ends at 400 KB with its names).
pub const MAX_VALUE_BYTES: usize = 350_000;

/// The most writes in one call (a DynamoDB transaction ends at 100).
pub const MAX_WRITES: usize = 100;

/// The most bytes that the values of one call may have together (a DynamoDB transaction ends at 4 MB with its names).
pub const MAX_CALL_BYTES: usize = 3_500_000;

/// What a write asks of the row as it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Anything,
    /// The row is absent or expired.
    Absent,
    /// The row has this version.
    Version(u64),
}

impl Expect {
    /// The version that a write with this expectation gives its row. One that expired counts on: of such a row nobody may know
    /// it by this.
    #[must_use]
    pub fn written(self) -> u64 {
        match self {
            Self::Version(version) => version.saturating_add(1),
            Self::Absent | Self::Anything => 1,
        }
    }
}

/// One change of a [`Store::write`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// The row.
    pub key: Key,
    /// What must hold before.
    pub expect: Expect,
    /// What is done.
    pub change: Change,
}

/// What a [`Write`] does to its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Write the value.
    Put {
        /// The bytes.
        value: Vec<u8>,
        /// Unix seconds from which on the row counts as absent; `None` keeps it for ever.
        expires_at: Option<u64>,
    },
    /// Remove the row.
    Delete,
    /// Leave it: only [`Write::expect`] counts.
    Check,
}

impl Write {
    /// Writes `value`.
    #[must_use]
    pub fn put(key: Key, expect: Expect, value: Vec<u8>, expires_at: Option<u64>) -> Self {
        Self { key, expect, change: Change::Put { value, expires_at } }
    }

    /// Removes the row.
    #[must_use]
    pub fn delete(key: Key, expect: Expect) -> Self {
        Self { key, expect, change: Change::Delete }
    }

    /// Only asks for the version.
    #[must_use]
    pub fn check(key: Key, version: u64) -> Self {
        Self { key, expect: Expect::Version(version), change: Change::Check }
    }
}

/// Rows of one partition, by sort key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The partition.
    pub partition: String,
    /// Only sort keys that begin with this; empty for all.
    pub prefix: String,
    /// Last first.
    pub newest_first: bool,
    /// The most rows; `None` for all.
    pub limit: Option<usize>,
}

impl Range {
    /// All rows of a partition.
    #[must_use]
    pub fn whole(partition: impl Into<String>) -> Self {
        Self { partition: partition.into(), prefix: String::new(), newest_first: false, limit: None }
    }

    /// The last `limit` rows of a partition, last first.
    #[must_use]
    pub fn newest(partition: impl Into<String>, limit: usize) -> Self {
        Self { newest_first: true, limit: Some(limit), ..Self::whole(partition) }
    }
}

/// What can go wrong in a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row was not as expected; nothing was written. Decide again from `current`, or leave it.
    #[error("the row {}/{} was changed by another writer", .key.partition, .key.sort)]
    Conflict {
        /// The first row that was not as expected.
        key: Key,
        /// That row as it stands; `None` where it is absent.
        current: Option<Box<Row>>,
    },
    /// The store could not be reached, is busy or throttles; whether a write was applied is unknown.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The call itself is wrong: too large, too many, an empty key. A retry changes nothing.
    #[error("the store refused the call: {0}")]
    Invalid(String),
}

/// The port. All calls are safe to repeat: a repeated [`Store::write`] whose first try was applied ends in a
/// [`StoreError::Conflict`] whose current row is the one that was to be written.
#[async_trait]
pub trait Store: Send + Sync {
    /// The rows of `keys`, in their order; `None` where a row is absent or expired.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Invalid`].
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError>;

    /// The rows of a range, in the order of their sort keys (or the reverse); expired ones are left out.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::Invalid`].
    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError>;

    /// Does all of `writes` or none. At most [`MAX_WRITES`] with [`MAX_CALL_BYTES`] together, each row once.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] where a row is not as expected; [`StoreError::Unavailable`]; [`StoreError::Invalid`].
    async fn write(&self, writes: &[Write]) -> Result<(), StoreError>;
}

/// Does all of `writes` or none; whether they were done. Where a row is not as expected, somebody was faster, and what is
/// there stands.
///
/// # Errors
/// [`StoreError::Unavailable`], [`StoreError::Invalid`].
pub async fn write_or_leave(store: &dyn Store, writes: &[Write]) -> Result<bool, StoreError> {
    match store.write(writes).await {
        Ok(()) => Ok(true),
        Err(StoreError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
