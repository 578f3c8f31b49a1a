//! Ending a run from outside. The one conditional write that ends it also takes it from whoever is at work: the worker's
//! next write is refused, as if the run had been taken over, and nothing of it leaves any more.

use super::{RunRecord, Status, Unfinished, put_record, put_run, read_clear};
use crate::app::App;
use crate::error::Error;
use crate::store::{Expect, Write, keys, write_or_leave};

/// Why a run ended that an admin cancelled.
const CANCELLED: &str = "cancelled by the admin";

/// The writes that end a run, if it is still as it was found.
///
/// # Errors
/// Never, for a value of ours.
pub(crate) fn cancel_writes(app: &App, run: &Unfinished) -> Result<Vec<Write>, Error> {
    let found = &run.record;
    let record = RunRecord {
        status: Status::Dropped,
        due_at: None,
        updated_at_ms: app.clock.now_ms(),
        reason: Some(CANCELLED.to_owned()),
        ..found.clone()
    };
    put_run(&record, Expect::Version(run.version), Some(found), Expect::Anything)
}

/// What a worker did for a run that was cancelled under its hands goes into the record: it cost something all the same.
/// `ours` is the record as the worker has it. Returns the record where that is what happened.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn note_work(app: &App, ours: &RunRecord) -> Result<Option<RunRecord>, Error> {
    let rows = app.store.read(&[keys::record(&ours.run_id)]).await?;
    let Some(row) = rows.first().and_then(Option::as_ref) else { return Ok(None) };
    let found: RunRecord = read_clear(row)?;
    let is_cancelled = found.status == Status::Dropped && found.reason.as_deref() == Some(CANCELLED);
    if !is_cancelled || (&found.owner, found.fence) != (&ours.owner, ours.fence) {
        return Ok(None);
    }
    let record = RunRecord {
        status: found.status,
        due_at: None,
        reason: found.reason,
        updated_at_ms: app.clock.now_ms(),
        ..ours.clone()
    };
    let write = put_record(&record, Expect::Version(row.version))?;
    write_or_leave(app.store.as_ref(), &[write]).await?;
    Ok(Some(record))
}
