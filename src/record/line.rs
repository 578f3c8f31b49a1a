//! One writer per conversation, and the line behind it.
//!
//! A conversation has one *floor*. A run is begun only with the floor, keeps it while it is given back, waits or is
//! suspended, and gives it up when its reply is saved, which makes it part of the conversation, or when it ends without
//! one: so nobody overtakes it. A reply that no relay takes holds nobody up. Every other run of the conversation without
//! an answer waits in the *line*, in the order in which the messages were written. Both are rows beside the run's record,
//! written and removed together with it as its due row is ([`place_rows`] is the one function that does so): a run has the
//! floor, or a place in the line, or has its answer or is held. So no crash leaves one without the other, and whatever
//! dies, each run that waits is also due.
//!
//! ```text
//! claim ─┬─ floor free: takes it, in the same write ─▶ … ─▶ reply saved: gives it up, in the same write
//!        └─ floor taken: joins the line, and marks the floor as awaited
//!                                             └▶ whoever gives up an awaited floor works the line
//! ```
//!
//! - Who marked the floor changed its row's version, which the write that gives it up expects: it is told by a conflict that
//!   somebody waits, and pays nothing where nobody does. One that took a run over does not know the version and looks.
//! - What guards a run's own writes is its record's version alone: a worker that was paused beyond its lease finds them
//!   refused, whoever has the floor by then.
//! - A floor names a run without an answer; only writes of that run's record give or take it. Whoever joins checks that
//!   record, since a row that was removed and written again has its old version again.
//! - A binary that knows no floor may end a run and leave its floor: [`holder`] clears it, once, by a write of that record.

use nostr::prelude::PublicKey;
use serde::{Deserialize, Serialize};

use super::due::look_up;
use super::{Due, FORMAT, RunRecord, Status, pointer, read_clear, to_json};
use crate::app::App;
use crate::error::Error;
use crate::inbox::MAX_AHEAD;
use crate::queue::enqueue_run;
use crate::store::{Expect, Key, Range, Row, Write, keys, write_or_leave};

/// The most of a line that are looked at together.
const MAX_WAITING: usize = 20;

/// Which run has the floor; a clear row.
#[derive(Debug, Serialize, Deserialize)]
struct FloorRow {
    format: u32,
    run: String,
    /// Whether somebody waits behind it: then the version was changed already.
    #[serde(default)]
    awaited: bool,
}

/// Where the row lies that says how a run stands in its conversation; `None` where it does not stand in one any more.
pub(super) fn place(record: &RunRecord) -> Option<Key> {
    let peer = record.conversation.filter(|_| record.status == Status::Running && !record.held)?;
    Some(if record.floor { keys::floor(&peer) } else { in_line(record, &peer) })
}

fn in_line(record: &RunRecord, peer: &PublicKey) -> Key {
    keys::in_line(peer, record.written_at, &record.run_id)
}

/// The floor that the run has.
pub(super) fn floor_of(record: &RunRecord) -> Option<Key> {
    place(record).filter(|_| record.floor)
}

/// The run's row moves from where it lay `before` to where the record says now. `floor` is what the floor's row must be,
/// where that is the one or the other.
pub(super) fn place_rows(
    record: &RunRecord,
    before: Option<&RunRecord>,
    floor: Expect,
) -> Result<Vec<Write>, Error> {
    let (before_key, now) = (before.and_then(place), place(record));
    if before_key == now {
        return Ok(Vec::new());
    }
    let had_floor = before.is_some_and(|before| before.floor);
    let gone = before_key.map(|key| Write::delete(key, if had_floor { floor } else { Expect::Anything }));
    let here = now.map(|key| -> Result<Write, Error> {
        if !record.floor {
            return pointer(key, record);
        }
        let row = FloorRow { format: FORMAT, run: record.run_id.clone(), awaited: false };
        Ok(Write::put(key, floor, to_json(&row)?, record.expires_at))
    });
    Ok(gone.into_iter().chain(here.transpose()?).collect())
}

/// The run that has the floor of a conversation, as read.
#[derive(Debug)]
pub(super) struct Holder {
    /// Its record.
    pub(super) record: RunRecord,
    record_version: u64,
    floor: Row,
    is_awaited: bool,
}

impl Holder {
    /// What the floor's row must be for a write that depends on it.
    pub(super) fn expect(&self) -> Expect {
        Expect::Version(self.floor.version)
    }

    /// The writes by which another run joins the line behind this one.
    pub(super) fn await_it(&self) -> Result<Vec<Write>, Error> {
        let (key, version) = (self.floor.key.clone(), self.floor.version);
        let mark = if self.is_awaited {
            Write::check(key, version)
        } else {
            let row = FloorRow { format: FORMAT, run: self.record.run_id.clone(), awaited: true };
            Write::put(key, self.expect(), to_json(&row)?, self.floor.expires_at)
        };
        Ok(vec![mark, Write::check(keys::record(&self.record.run_id), self.record_version)])
    }
}

/// Who has the floor, which is `floor` as it was read; `None` where it is free, or changed meanwhile.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Permanent`] where a row is a newer binary's.
pub(super) async fn holder(app: &App, floor: Row) -> Result<Option<Holder>, Error> {
    let FloorRow { run, awaited, .. } = read_clear(&floor)?;
    let row = read_one(app, keys::record(&run)).await?;
    let record = row.as_ref().map(read_clear::<RunRecord>).transpose()?;
    match (record, &row) {
        (Some(record), Some(row)) if record.status == Status::Running => {
            Ok(Some(Holder { record, record_version: row.version, floor, is_awaited: awaited }))
        }
        _ => {
            clear(app, floor, row).await?;
            Ok(None)
        }
    }
}

/// Removes a floor that was left behind by a run which has its answer, whose record is `record`.
async fn clear(app: &App, floor: Row, record: Option<Row>) -> Result<(), Error> {
    // The record is read after the floor: only a floor that outlives it was left behind.
    if read_one(app, floor.key.clone()).await?.as_ref() != Some(&floor) {
        return Ok(());
    }
    tracing::warn!(row = %floor.key.partition, "a floor is cleared that an older version left behind");
    let mut writes = vec![Write::delete(floor.key, Expect::Version(floor.version))];
    // By this a second one that clears it is refused: it might meet the floor of the next run.
    writes.extend(
        record.map(|row| Write::put(row.key, Expect::Version(row.version), row.value, row.expires_at)),
    );
    write_or_leave(app.store.as_ref(), &writes).await?;
    Ok(())
}

/// The floor's row, if somebody has it.
pub(super) async fn floor_row(app: &App, peer: &PublicKey) -> Result<Option<Row>, Error> {
    read_one(app, keys::floor(peer)).await
}

async fn read_one(app: &App, key: Key) -> Result<Option<Row>, Error> {
    Ok(app.store.read(&[key]).await?.into_iter().flatten().next())
}

/// What to list for [`is_preceded`] and [`shows_another`]: the floor and the first that waits.
#[must_use]
pub(crate) fn first_in_line(peer: &PublicKey) -> Range {
    Range { limit: Some(2), ..Range::whole(keys::line_partition(peer)) }
}

/// Whether a message that was written before this run's waits in the line, by the rows of [`first_in_line`].
#[must_use]
pub(crate) fn is_preceded(record: &RunRecord, rows: &[Row]) -> bool {
    let Some(peer) = record.conversation else { return false };
    rows.iter().any(|row| keys::line_place(&row.key).is_some() && row.key < in_line(record, &peer))
}

/// Whether another run than this has the floor, by the same rows.
pub(super) fn shows_another(record: &RunRecord, rows: &[Row]) -> bool {
    let mut floors = rows.iter().filter(|row| row.key.sort == keys::FLOOR);
    floors.any(|row| read_clear::<FloorRow>(row).is_ok_and(|floor| floor.run != record.run_id))
}

/// The runs that wait in the line of a conversation and that nobody has, in order. A message that is dated ahead waits for
/// its time and holds nobody up.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
async fn waiting(app: &App, peer: &PublicKey) -> Result<Vec<Due>, Error> {
    let rows = line(app, peer).await?;
    take_up(app, &rows).await
}

/// The first of them. One that somebody has stands first for a moment only: few are looked at.
///
/// # Errors
/// As [`waiting`].
pub(crate) async fn first_waiting(app: &App, peer: &PublicKey) -> Result<Option<Due>, Error> {
    let rows = line(app, peer).await?;
    let (first, others) = rows.split_at(rows.len().min(1));
    for rows in [first, others] {
        if let Some(due) = take_up(app, rows).await?.into_iter().next() {
            return Ok(Some(due));
        }
    }
    Ok(None)
}

/// Leaves those that wait to the queue, or to the next tick: nobody here works them, or has time to.
///
/// # Errors
/// As [`waiting`].
pub(crate) async fn hand_on(app: &App, peer: &PublicKey) -> Result<(), Error> {
    for mut due in waiting(app, peer).await? {
        let run = due.record.run_id.clone();
        let handed = match &app.queue {
            Some(queue) => enqueue_run(queue.as_ref(), run.clone()).await.map(drop),
            None => due.postpone(app, app.clock.now().as_secs()).await,
        };
        if let Err(error) = handed {
            tracing::info!(run.id = %run, %error, "a run that waits is not due at once");
        }
    }
    Ok(())
}

/// The rows of a line, in order, without messages that are dated ahead.
async fn line(app: &App, peer: &PublicKey) -> Result<Vec<Row>, Error> {
    let line = Range { limit: Some(MAX_WAITING), ..Range::whole(keys::line_partition(peer)) };
    let mut rows = app.store.list(&line).await?;
    let latest = app.clock.now() + MAX_AHEAD;
    rows.retain(|row| keys::line_place(&row.key).is_some_and(|(at, _)| at <= latest));
    Ok(rows)
}

/// Of these rows' runs those that nobody has.
async fn take_up(app: &App, rows: &[Row]) -> Result<Vec<Due>, Error> {
    let runs = rows.iter().filter_map(|row| keys::line_place(&row.key).map(|(_, run)| (&row.key, run)));
    // The row of a run without an answer may come back: whoever removed it would remove that one.
    let is_stale = |record: &RunRecord, _: &Key| record.status != Status::Running;
    let mut found = look_up(app, runs.collect(), is_stale).await?;
    let now_ms = app.clock.now_ms();
    found.retain(|due| due.record.free_at_ms() <= now_ms);
    Ok(found)
}
