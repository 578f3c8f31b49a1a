//! Dead letters: runs that were given up, kept with the reason until somebody runs them again or they expire. Each has a
//! row in a partition of its own, written together with its record.

use super::index::records;
use super::{Delivery, RunRecord, Status, put_run, read_clear};
use crate::app::App;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::store::{Expect, Key, Range, Write, keys};

/// Where the row lies of a run that is one.
pub(super) fn dead_key(record: &RunRecord) -> Option<Key> {
    (record.status == Status::Dead).then(|| keys::dead(record.arrived_at.as_secs(), &record.run_id))
}

/// The newest dead letters, the last first.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn dead(app: &App, limit: usize) -> Result<Vec<RunRecord>, Error> {
    let dead = records(app, &Range::newest(keys::DEAD_PARTITION, limit)).await?;
    Ok(dead.into_iter().map(|run| run.record).filter(|record| record.status == Status::Dead).collect())
}

/// Makes a dead letter due again, with three attempts. Its journal stays, so that nothing which was done is done again, and
/// what relays said to its tools' events; the reply that said why there is no answer makes way for the answer.
///
/// # Errors
/// [`Error::Permanent`] where there is no such run or it is no dead letter; [`Error::TakenOver`] where somebody else was
/// faster; [`Error::Transient`] where the store is unavailable.
pub async fn retry(app: &App, run_id: &str) -> Result<RunRecord, Error> {
    let rows = app.store.read(&[keys::record(run_id), keys::trigger(run_id)]).await?;
    let [Some(row), trigger] = rows.as_slice() else {
        return Err(Error::Permanent("there is no such run".to_owned()));
    };
    let found: RunRecord = read_clear(row)?;
    if found.status != Status::Dead {
        let state = found.state(app.clock.now_ms());
        return Err(Error::Permanent(format!("the run is no dead letter, it is: {state}")));
    }
    if trigger.is_none() {
        return Err(Error::Permanent("its trigger is gone from the store: nobody can run it".to_owned()));
    }
    let reply = Range { prefix: keys::REPLY_PREFIX.to_owned(), ..Range::whole(keys::run_partition(run_id)) };
    let reply = app.store.list(&reply).await?;
    let parts: Vec<ReplyPart> = reply.iter().filter_map(|row| app.open_sealed(row).ok()).collect();
    let is_of_reply = |delivery: &Delivery| parts.iter().any(|part| part.is_sent_as(delivery.event));
    let record = RunRecord {
        status: Status::Running,
        put_off: found.attempt.saturating_sub(found.waits),
        continuations: 0,
        outage: None,
        floor: false,
        lease_until_ms: 0,
        not_before: 0,
        due_at: Some(app.clock.now().as_secs()),
        updated_at_ms: app.clock.now_ms(),
        reply_ids: Vec::new(),
        deliveries: found.deliveries.iter().filter(|known| !is_of_reply(known)).cloned().collect(),
        reason: None,
        ..found.clone()
    };
    let mut writes = put_run(&record, Expect::Version(row.version), Some(&found), Expect::Anything)?;
    writes.extend(reply.into_iter().map(|row| Write::delete(row.key, Expect::Anything)));
    app.store.write(&writes).await?;
    Ok(record)
}
