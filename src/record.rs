//! What an invocation leaves behind: the claim on a trigger, the saved reply, the outcome.
//!
//! Every rule that needs atomicity is decided here, in pure code over the record as read, and carried out by one
//! conditional write on the record's version: a worker whose lease ran out finds its next write refused
//! ([`Error::TakenOver`]). See `docs/ARCHITECTURE.md`, "What makes a DM answered once".

mod cancel;
mod claim;
mod dead;
pub(crate) mod delivery;
mod due;
mod index;
pub(crate) mod line;
pub(crate) mod outbox;
mod run;

use nostr::prelude::{EventId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use self::cancel::{cancel_writes, note_work};
pub use self::claim::{Claim, Claimed, claim};
pub use self::dead::{dead, retry};
pub use self::delivery::Delivery;
use self::due::due_key;
pub use self::due::{Due, due, first_due, held};
pub(crate) use self::due::{MAX_DUE, due_after, due_if_not_begun};
pub(crate) use self::index::{MIN_PREFIX, Unfinished};
pub use self::index::{Named, named, recent, unfinished};
pub use self::run::{Attempt, Outage, RunRecord, Status};
use crate::app::App;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::hash::{hex, sha256};
use crate::history;
use crate::run::journal::Journal;
use crate::store::{Expect, Key, Range, Row, StoreError, Write, keys, write_or_leave};
use crate::trigger::{Tier, Trigger};

/// The format of every value in the store; a binary reads its own and the one before.
pub const FORMAT: u32 = 1;

/// The most times a run is begun before it is given up.
pub const MAX_ATTEMPTS: u32 = 3;

/// A run's id: the first 16 bytes of the trigger id's SHA-256, in hex. Whoever meets the trigger computes the same.
#[must_use]
pub fn run_id(trigger_id: &str) -> String {
    hex(&sha256(trigger_id.as_bytes())).chars().take(32).collect()
}

/// The trigger id of a DM: of its kind 4 event, or of the rumor as computed by us.
#[must_use]
pub fn dm_trigger_id(message: &EventId) -> String {
    format!("dm:{message}")
}

/// Makes a trigger durable without working it: whoever claims it next has it at once. If nobody did, it is due at `due_at`
/// (Unix seconds). Returns the record as it stands then, an earlier one where there is one.
///
/// # Errors
/// As [`claim`].
pub async fn store(app: &App, trigger: &Trigger, due_at: u64) -> Result<RunRecord, Error> {
    let (record, writes) = storing(app, trigger, due_at)?;
    match app.store.write(&writes).await {
        Ok(()) => Ok(record),
        Err(StoreError::Conflict { current: Some(row), .. }) => read_clear(&row),
        Err(error) => Err(error.into()),
    }
}

/// The writes that [`store`] makes, for whoever has more to write in the same call.
///
/// # Errors
/// As [`claim`], without asking the store.
pub fn store_writes(app: &App, trigger: &Trigger, due_at: u64) -> Result<Vec<Write>, Error> {
    Ok(storing(app, trigger, due_at)?.1)
}

fn storing(app: &App, trigger: &Trigger, due_at: u64) -> Result<(RunRecord, Vec<Write>), Error> {
    let record = RunRecord { due_at: Some(due_at), ..RunRecord::waiting(app, trigger)? };
    let mut writes = put_run(&record, Expect::Absent, None, Expect::Anything)?;
    writes.extend(trigger_rows(app, trigger, &record)?);
    Ok((record, writes))
}

/// The trigger, its message in the conversation, and the run among all runs.
fn trigger_rows(app: &App, trigger: &Trigger, record: &RunRecord) -> Result<Vec<Write>, Error> {
    let mut writes = vec![
        app.put_sealed(keys::trigger(&record.run_id), trigger, record.expires_at)?,
        pointer(keys::run(record.arrived_at.as_secs(), &record.run_id), record)?,
    ];
    writes.extend(history::incoming(trigger).map(|(peer, message)| message.write(app, &peer)).transpose()?);
    Ok(writes)
}

/// What earlier attempts at a run left behind.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Model answers, tool results and the events that tools published.
    pub journal: Journal,
    /// The signed word that the answer has to wait, in order; empty where it was not said, or is out.
    pub note: Vec<ReplyPart>,
    /// The signed reply, in order; empty where none was saved.
    pub reply: Vec<ReplyPart>,
}

/// What a run has saved: journal and reply.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Newer`] or [`Error::Permanent`] where a row cannot be read.
pub async fn earlier(app: &App, run_id: &str) -> Result<Earlier, Error> {
    let mut earlier = Earlier::default();
    for row in app.store.list(&Range::whole(keys::run_partition(run_id))).await? {
        if row.key.sort.starts_with(keys::REPLY_PREFIX) {
            earlier.reply.push(app.open_sealed(&row)?);
        } else if row.key.sort.starts_with(keys::NOTE_PREFIX) {
            earlier.note.push(app.open_sealed(&row)?);
        } else {
            earlier.journal.add(app, &row)?;
        }
    }
    Ok(earlier)
}

/// A run's record, if there is such a run.
///
/// # Errors
/// As [`earlier`].
pub async fn find(app: &App, run_id: &str) -> Result<Option<RunRecord>, Error> {
    let rows = app.store.read(&[keys::record(run_id)]).await?;
    rows.iter().flatten().next().map(read_clear).transpose()
}

/// The answer that a run kept which answers nobody.
///
/// # Errors
/// As [`earlier`].
pub async fn kept_answer(app: &App, run_id: &str) -> Result<Option<String>, Error> {
    let rows = app.store.read(&[keys::answer(run_id)]).await?;
    rows.iter().flatten().next().map(|row| app.open_sealed(row)).transpose()
}

/// Records that an event starts nothing, so that it is told the same way when it comes again. A claim that is there
/// already stays as it is.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn drop_event(
    app: &App,
    event: &EventId,
    created_at: Timestamp,
    reason: &str,
) -> Result<(), Error> {
    let record = RunRecord {
        reason: Some(reason.to_owned()),
        ..RunRecord::new(app, &dm_trigger_id(event), Tier::Stranger, created_at, app.clock.now())?
    };
    write_or_leave(app.store.as_ref(), &[put_record(&record, Expect::Absent)?]).await?;
    Ok(())
}

/// Records that a message is not answered, and keeps it in the conversation. A run that is there already stays as it is.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn refuse(app: &App, trigger: &Trigger, reason: &str) -> Result<(), Error> {
    let record = RunRecord {
        reason: Some(reason.to_owned()),
        ..RunRecord::new(app, &trigger.id, trigger.tier, trigger.created_at(), trigger.arrived_at)?
    };
    let mut writes = vec![put_record(&record, Expect::Absent)?];
    writes.extend(history::incoming(trigger).map(|(peer, message)| message.write(app, &peer)).transpose()?);
    write_or_leave(app.store.as_ref(), &writes).await?;
    Ok(())
}

/// A run's record and trigger, to take it over without the event that started it.
///
/// # Errors
/// [`Error::Permanent`] where there is no such run; as [`earlier`].
pub async fn stored_trigger(app: &App, run_id: &str) -> Result<Trigger, Error> {
    let rows = app.store.read(&[keys::trigger(run_id)]).await?;
    let row =
        rows.iter().flatten().next().ok_or_else(|| Error::Permanent("there is no such run".to_owned()))?;
    app.open_sealed(row)
}

/// A run's record, with the rows by which it is found, each by the module that it belongs to: they move from where they lay
/// `before`. `floor` is what the row of
/// its conversation's floor must be, where that is among them.
fn put_run(
    record: &RunRecord,
    expect: Expect,
    before: Option<&RunRecord>,
    floor: Expect,
) -> Result<Vec<Write>, Error> {
    let mut writes = vec![put_record(record, expect)?];
    writes.extend(move_pointer(record, before, due_key)?);
    writes.extend(line::place_rows(record, before, floor)?);
    writes.extend(move_pointer(record, before, outbox::mail_key)?);
    writes.extend(move_pointer(record, before, dead::dead_key)?);
    Ok(writes)
}

/// A row whose place `place` tells moves from where it lay `before` to where the record says now.
fn move_pointer(
    record: &RunRecord,
    before: Option<&RunRecord>,
    place: fn(&RunRecord) -> Option<Key>,
) -> Result<Vec<Write>, Error> {
    let (before, now) = (before.and_then(place), place(record));
    if before == now {
        return Ok(Vec::new());
    }
    let gone = before.map(|key| Write::delete(key, Expect::Anything));
    let here = now.map(|key| pointer(key, record)).transpose()?;
    Ok(gone.into_iter().chain(here).collect())
}

fn put_record(record: &RunRecord, expect: Expect) -> Result<Write, Error> {
    Ok(Write::put(keys::record(&record.run_id), expect, to_json(record)?, record.expires_at))
}

/// A row that points to a run, and goes when its record does.
fn pointer(key: Key, record: &RunRecord) -> Result<Write, Error> {
    Ok(Write::put(key, Expect::Anything, to_json(&Pointer { format: FORMAT })?, record.expires_at))
}

/// What such a row holds: its key says the rest.
#[derive(Serialize)]
struct Pointer {
    format: u32,
}

/// A value as the bytes of its row.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|_| Error::Permanent("a row cannot be written as JSON".to_owned()))
}

/// A row that is not sealed. One of a newer format is left to newer binaries.
pub(crate) fn read_clear<T: DeserializeOwned>(row: &Row) -> Result<T, Error> {
    check_format(&row.key, &row.value)?;
    serde_json::from_slice(&row.value).map_err(|_| unreadable(&row.key))
}

/// Refuses a row's text if it is of a newer format.
pub(crate) fn check_format(key: &Key, text: &[u8]) -> Result<(), Error> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    match serde_json::from_slice::<Versioned>(text) {
        Ok(Versioned { format }) if format > FORMAT => Err(Error::Newer(format!(
            "the row {}/{} has format {format}, this version reads up to {FORMAT}: it is left to a newer version",
            key.partition, key.sort
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn unreadable(key: &Key) -> Error {
    Error::Permanent(format!(
        "the row {}/{} cannot be read: it was written by another key, or is damaged",
        key.partition, key.sort
    ))
}
