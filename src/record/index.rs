//! Which runs there are, without looking through the table: all of them by the time when their triggers were first seen,
//! and by the due list those that are not over.
//!
//! A run's row among all is part of the write that first stores the run, so no run is missing, and it is never written
//! again: how far the run is says its record alone.

use super::{MAX_DUE, RunRecord, read_clear};
use crate::app::App;
use crate::error::Error;
use crate::store::{Key, Range, Row, keys};

/// The most rows that are looked at for one answer.
const MAX_LOOKED_AT: usize = 1000;

/// The shortest beginning of an id that names a run.
pub(crate) const MIN_PREFIX: usize = 4;

/// A run as found.
#[derive(Debug)]
pub struct Unfinished {
    /// Its record.
    pub record: RunRecord,
    /// The version that a write depends on which is decided by it.
    pub(crate) version: u64,
}

/// What the beginning of an id stands for.
#[derive(Debug)]
pub enum Named {
    /// This run.
    One(Box<RunRecord>),
    /// Several runs.
    Several,
    /// None.
    Nothing,
}

/// The newest runs, the last first.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn recent(app: &App, limit: usize) -> Result<Vec<RunRecord>, Error> {
    let runs = records(app, &Range::newest(keys::RUNS_PARTITION, limit)).await?;
    Ok(runs.into_iter().map(|run| run.record).collect())
}

/// The runs that are not over, those first that are due first; of more than a thousand the first.
///
/// # Errors
/// As [`recent`].
pub async fn unfinished(app: &App) -> Result<Vec<Unfinished>, Error> {
    let due = Range { limit: Some(MAX_LOOKED_AT), ..Range::whole(keys::DUE_PARTITION) };
    let mut runs = records(app, &due).await?;
    runs.retain(|run| !run.record.status.is_final());
    Ok(runs)
}

/// The run whose id is `id` or, among the newest thousand, begins with it.
///
/// # Errors
/// As [`recent`].
pub async fn named(app: &App, id: &str) -> Result<Named, Error> {
    let id = id.to_ascii_lowercase();
    if id.len() < MIN_PREFIX {
        return Ok(Named::Nothing);
    }
    let one =
        |record: Option<RunRecord>| record.map_or(Named::Nothing, |record| Named::One(Box::new(record)));
    if let Some(record) = super::find(app, &id).await? {
        return Ok(one(Some(record)));
    }
    let rows = app.store.list(&Range::newest(keys::RUNS_PARTITION, MAX_LOOKED_AT)).await?;
    let mut runs = rows.iter().filter_map(|row| run_of(&row.key)).filter(|run| run.starts_with(&id));
    match (runs.next(), runs.next()) {
        (Some(run), None) => super::find(app, run).await.map(one),
        (Some(_), Some(_)) => Ok(Named::Several),
        _ => Ok(Named::Nothing),
    }
}

/// The records of the runs that the rows of a range point to, in their order. One that cannot be read is passed over.
pub(super) async fn records(app: &App, range: &Range) -> Result<Vec<Unfinished>, Error> {
    let rows = app.store.list(range).await?;
    let wanted: Vec<Key> = rows.iter().filter_map(|row| run_of(&row.key)).map(keys::record).collect();
    let mut runs = Vec::new();
    for keys in wanted.chunks(MAX_DUE) {
        runs.extend(app.store.read(keys).await?.iter().flatten().filter_map(read));
    }
    Ok(runs)
}

fn read(row: &Row) -> Option<Unfinished> {
    match read_clear(row) {
        Ok(record) => Some(Unfinished { record, version: row.version }),
        Err(error) => {
            tracing::warn!(%error, "a run is passed over");
            None
        }
    }
}

/// The run that a row points to.
fn run_of(key: &Key) -> Option<&str> {
    keys::due_place(key).map(|(_, run)| run).or_else(|| keys::held_run(key))
}
