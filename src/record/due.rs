//! The due list: every run that is not over has one row in it, which says when somebody must look at the run again. The row
//! is written and removed together with the run's record, so neither is there without the other. The rows of held runs lie
//! behind all others: however many there are, none that is due waits for them.

use std::time::Duration;

use super::{RunRecord, Status, put_run, read_clear};
use crate::app::App;
use crate::clock::Deadline;
use crate::error::Error;
use crate::queue::QUEUE_GRACE;
use crate::store::{Change, Expect, Key, Range, Row, Write, keys, write_or_leave};
use crate::trigger::{Tier, Trigger};

/// Where a run's row lies; `None` where nobody need look at it again.
pub(super) fn due_key(record: &RunRecord) -> Option<Key> {
    let (at, run) = (record.due_at?, &record.run_id);
    Some(if record.held { keys::held(record.tier == Tier::Admin, at, run) } else { keys::due(at, run) })
}

/// A due row and what is known of its run.
#[derive(Debug)]
pub struct Due {
    /// Its record.
    pub record: RunRecord,
    /// Its trigger.
    pub trigger: Trigger,
    version: u64,
}

/// The most due runs that are taken up at once.
pub(crate) const MAX_DUE: usize = 50;

/// The most due rows that are looked at for them.
const MAX_LOOKED_AT: usize = 1000;

/// Why a run is given up that has no trigger,
const GONE: &str = "its trigger is gone from the store";
/// and one whose trigger is there and of no use.
const UNREADABLE: &str = "its trigger cannot be read: another key sealed it, or it is damaged";

/// The first due rows, for [`due`].
#[must_use]
pub fn first_due() -> Range {
    Range { limit: Some(MAX_DUE), ..Range::whole(keys::DUE_PARTITION) }
}

/// The `wanted` among the runs that are due by `by` (Unix seconds) and that nobody has, the earliest first. `rows` are
/// those of [`first_due`]; rows that cannot be taken up hide none behind them. A row that speaks of nothing any more is
/// removed.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn due(app: &App, rows: &[Row], by: u64, wanted: impl Fn(&Due) -> bool) -> Result<Vec<Due>, Error> {
    let mut runs = take_up(app, rows, by).await?;
    runs.retain(&wanted);
    let is_full = rows.len() >= MAX_DUE && rows.last().is_some_and(|row| is_due(row, by).is_some());
    if is_full && runs.len() < MAX_DUE {
        let more = Range { limit: Some(MAX_LOOKED_AT), ..first_due() };
        let more = app.store.list(&more).await?;
        let known = |row: &&Row| !rows.iter().any(|known| known.key == row.key);
        let more: Vec<Row> = more.iter().filter(known).cloned().collect();
        for rows in more.chunks(MAX_DUE) {
            if runs.len() >= MAX_DUE {
                break;
            }
            runs.extend(take_up(app, rows, by).await?.into_iter().filter(&wanted));
        }
        runs.truncate(MAX_DUE);
    }
    Ok(runs)
}

/// The first of the held runs: the admins' before the guests', of each the earliest first. `rows` are those of
/// [`first_due`].
///
/// # Errors
/// As [`due`].
pub async fn held(app: &App, rows: &[Row]) -> Result<Vec<Due>, Error> {
    let more;
    let rows = if rows.len() < MAX_DUE {
        rows
    } else {
        let held = Range { prefix: keys::HELD_PREFIX.to_owned(), ..first_due() };
        more = app.store.list(&held).await?;
        &more
    };
    let runs = rows.iter().filter_map(|row| Some((&row.key, keys::held_run(&row.key)?)));
    look_up(app, runs.collect(), is_stale).await
}

/// When a row is due and its run, if that is by `by`.
fn is_due(row: &Row, by: u64) -> Option<(u64, &str)> {
    keys::due_place(&row.key).filter(|(at, _)| *at <= by)
}

/// Of these rows' runs those that are due.
async fn take_up(app: &App, rows: &[Row], by: u64) -> Result<Vec<Due>, Error> {
    let runs = rows.iter().filter_map(|row| is_due(row, by).map(|(_, run)| (&row.key, run)));
    look_up(app, runs.collect(), is_stale).await
}

/// Whether a row speaks of nothing any more: its run is over, or is due at another time.
fn is_stale(record: &RunRecord, key: &Key) -> bool {
    record.status.is_final() || due_key(record).as_ref() != Some(key)
}

/// Of these runs, each with its row, those that nobody has. A stale row is removed, as is that of a run without a record. A
/// run whose trigger is gone, or cannot be opened by this key, is given up; one of a newer format is a newer binary's.
pub(super) async fn look_up(
    app: &App,
    due: Vec<(&Key, &str)>,
    is_stale: fn(&RunRecord, &Key) -> bool,
) -> Result<Vec<Due>, Error> {
    let now_ms = app.clock.now_ms();
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let wanted: Vec<Key> = due.iter().flat_map(|(_, run)| [keys::record(run), keys::trigger(run)]).collect();
    let found = app.store.read(&wanted).await?;
    let mut runs = Vec::new();
    for ((key, run), rows) in due.into_iter().zip(found.chunks(2)) {
        let [record, trigger] = rows else { continue };
        let read = record.as_ref().map(|row| Ok::<_, Error>((read_clear::<RunRecord>(row)?, row.version)));
        match (read.transpose(), trigger) {
            (Ok(Some((record, version))), _) if is_stale(&record, key) => {
                remove_stale(app, key, run, Expect::Version(version)).await?;
            }
            // Somebody has it. In standby nobody does: it is taken from a process that began it before.
            (Ok(Some((record, _))), _) if record.lease_until_ms > now_ms && !app.config.standby => {}
            (Ok(Some((record, version))), Some(row)) => match app.open_sealed(row) {
                Ok(trigger) => runs.push(Due { record, trigger, version }),
                Err(Error::Permanent(_)) => give_up(app, record, version, UNREADABLE).await?,
                Err(error) => tracing::warn!(run.id = %run, %error, "a stored run is passed over"),
            },
            (Ok(Some((record, version))), None) => give_up(app, record, version, GONE).await?,
            (Ok(None), _) => remove_stale(app, key, run, Expect::Absent).await?,
            // Of a newer format: it is a newer binary's.
            (Err(error), _) => tracing::warn!(run.id = %run, %error, "a stored run is passed over"),
        }
    }
    Ok(runs)
}

/// Removes a row that speaks of nothing any more, if its run's record is still as it was found: a row that was put back
/// meanwhile is the only one by which the run is found.
pub(super) async fn remove_stale(app: &App, key: &Key, run: &str, record: Expect) -> Result<(), Error> {
    let as_found = Write { key: keys::record(run), expect: record, change: Change::Check };
    write_or_leave(app.store.as_ref(), &[Write::delete(key.clone(), Expect::Anything), as_found]).await?;
    Ok(())
}

/// Ends a run that nobody can work, for this reason: it is among the dead letters.
async fn give_up(app: &App, found: RunRecord, version: u64, reason: &str) -> Result<(), Error> {
    tracing::error!(run.id = %found.run_id, "a run is given up: {reason}");
    let record = RunRecord {
        status: Status::Dead,
        due_at: None,
        updated_at_ms: app.clock.now_ms(),
        reason: Some(reason.to_owned()),
        ..found.clone()
    };
    let writes = put_run(&record, Expect::Version(version), Some(&found), Expect::Anything)?;
    write_or_leave(app.store.as_ref(), &writes).await?;
    Ok(())
}

/// When stored work is due that somebody is to begin now, if nobody does: Unix seconds.
pub(crate) fn due_if_not_begun(app: &App, deadline: Deadline) -> u64 {
    match app.queue {
        Some(_) => due_after(app, QUEUE_GRACE),
        // Until then this invocation may come to it.
        None => app.lease_until_ms(deadline) / 1000 + 1,
    }
}

/// So long from now, as due rows tell time: Unix seconds.
pub(crate) fn due_after(app: &App, wait: Duration) -> u64 {
    (app.clock.now() + wait).as_secs()
}

impl Due {
    /// Moves the run to a later time, if it is still as it was found: somebody was asked to work it.
    ///
    /// # Errors
    /// [`Error::TakenOver`] where somebody has it; [`Error::Transient`] where the store is unavailable.
    pub async fn postpone(&mut self, app: &App, due_at: u64) -> Result<(), Error> {
        let record = RunRecord { due_at: Some(due_at), ..self.record.clone() };
        self.save(app, record).await
    }

    /// Writes `record` in the place of the one that was found, if that is still there.
    ///
    /// # Errors
    /// As [`Due::postpone`].
    pub async fn save(&mut self, app: &App, record: RunRecord) -> Result<(), Error> {
        let record = RunRecord { updated_at_ms: app.clock.now_ms(), ..record };
        let expect = Expect::Version(self.version);
        app.store.write(&put_run(&record, expect, Some(&self.record), Expect::Anything)?).await?;
        (self.record, self.version) = (record, self.version.saturating_add(1));
        Ok(())
    }
}
