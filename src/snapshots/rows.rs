//! Snapshots as rows: sealed, forgotten after a week, and listed newest first, per run and over all.
//!
//! A run's first snapshot also writes the row by which the run is found. The texts of the rolling log are rows too,
//! named after their snapshot: `log-t001`.

use serde::{Deserialize, Serialize};

use super::Snapshot;
use crate::app::App;
use crate::error::Error;
use crate::store::{Range, Row, Write, keys};

/// How long snapshots are kept, in seconds.
const LIFE_SECS: u64 = 7 * 24 * 60 * 60;

/// The most bytes of text in one row: as JSON it has at most twice as many, and is sealed after.
const MAX_PART_BYTES: usize = 160_000;

/// A run of whose context there are snapshots. A run that was begun anew has one for each time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRun {
    /// The run's id.
    pub run_id: String,
    /// When the first of these snapshots was taken: Unix milliseconds.
    pub begin_ms: u64,
}

/// A snapshot as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSnapshot {
    /// When it was taken: Unix milliseconds.
    pub at_ms: u64,
    /// `init`, `t001` and so on, and `log-…` for the log's entry of each.
    pub name: String,
    /// The text.
    pub text: String,
}

/// What the row of a run holds: it says all by its key.
#[derive(Serialize, Deserialize)]
struct Begun {}

pub(super) async fn write(app: &App, run_id: &str, begin_ms: u64, snapshot: Snapshot) -> Result<(), Error> {
    let at_ms = app.clock.now_ms();
    let expires_at = Some((at_ms / 1000).saturating_add(LIFE_SECS));
    let text = parts(app, run_id, at_ms, &snapshot.name, &snapshot.text, expires_at)?;
    if snapshot.name == "init" {
        let run = app.put_sealed(keys::context_run(begin_ms, run_id), &Begun {}, expires_at)?;
        app.store.write(&[text, vec![run]].concat()).await?;
    } else {
        app.store.write(&text).await?;
    }
    if let Some(entry) = &snapshot.entry {
        let name = format!("log-{}", snapshot.name);
        app.store.write(&parts(app, run_id, at_ms, &name, entry, expires_at)?).await?;
    }
    Ok(())
}

/// A text in as many rows as it needs: one write, so that there are all of them or none.
fn parts(
    app: &App,
    run_id: &str,
    at_ms: u64,
    name: &str,
    text: &str,
    expires_at: Option<u64>,
) -> Result<Vec<Write>, Error> {
    let mut writes = Vec::new();
    let mut rest = text;
    while writes.is_empty() || !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(MAX_PART_BYTES));
        let key = keys::context_part(run_id, at_ms, name, writes.len());
        writes.push(app.put_sealed(key, &part, expires_at)?);
        rest = after;
    }
    Ok(writes)
}

/// The newest `limit` runs of whose contexts there are snapshots, the newest first.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn runs(app: &App, limit: usize) -> Result<Vec<SnapshotRun>, Error> {
    let rows = app.store.list(&Range::newest(keys::CONTEXT_PARTITION, limit)).await?;
    let run = |row: &Row| {
        let (begin_ms, run_id) = keys::context_run_of(&row.key)?;
        Some(SnapshotRun { run_id: run_id.to_owned(), begin_ms })
    };
    Ok(rows.iter().filter_map(run).collect())
}

/// All snapshots of a run, the newest first.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Permanent`] where a row cannot be read.
pub async fn of_run(app: &App, run_id: &str) -> Result<Vec<StoredSnapshot>, Error> {
    let mut snapshots: Vec<StoredSnapshot> = Vec::new();
    for row in app.store.list(&Range::whole(keys::context_partition(run_id))).await? {
        let Some((at_ms, name)) = keys::context_snapshot_of(&row.key) else { continue };
        let text: String = app.open_sealed(&row)?;
        match snapshots.last_mut() {
            Some(last) if last.at_ms == at_ms && last.name == name => last.text.push_str(&text),
            _ => snapshots.push(StoredSnapshot { at_ms, name: name.to_owned(), text }),
        }
    }
    snapshots.reverse();
    Ok(snapshots)
}
