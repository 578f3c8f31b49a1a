//! The rows by which runs are found that are over, and of which something is to be sent again. Like a due row, one is written
//! and removed together with the run's record. They lie behind all others of their partition, so a tick that looks for work
//! sees them too, and they hide none.

use std::collections::BTreeMap;

use nostr::prelude::{Event, EventId, Timestamp};

use super::due::remove_stale;
use super::{Delivery, RunRecord, earlier, put_run, read_clear};
use crate::app::App;
use crate::error::Error;
use crate::store::{Expect, Key, Range, Row, keys, write_or_leave};

/// The most runs of which something is sent again at once.
const MAX_MAILS: usize = 50;

/// Where a run's row lies; `None` where nothing is to be sent again, or by the run itself.
pub(super) fn mail_key(record: &RunRecord) -> Option<Key> {
    let is_over = record.status.is_final();
    let at = record.deliveries.iter().filter(|_| is_over).filter_map(|delivery| delivery.next_try).min()?;
    Some(keys::mail(at, &record.run_id))
}

/// A run that is over, and what of it is sent.
#[derive(Debug)]
pub(crate) struct Mail {
    /// Its record.
    pub(crate) record: RunRecord,
    version: u64,
    /// Its reply with the copies to ourselves, and what its tools published.
    pub(crate) events: BTreeMap<EventId, SentEvent>,
}

/// One event of a [`Mail`].
#[derive(Debug)]
pub(crate) struct SentEvent {
    /// As signed.
    pub(crate) event: Event,
    /// When it was written: a wrap is dated otherwise.
    pub(crate) written_at: Timestamp,
    /// Whether a tool published it.
    pub(crate) is_public: bool,
}

/// The rows of the outbox that are due. `rows` are those of [`super::first_due`]; where these are as many as were asked for,
/// there may be more behind them.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn due_mails(app: &App, rows: &[Row]) -> Result<Vec<Key>, Error> {
    let more;
    let rows = if rows.len() < super::MAX_DUE {
        rows
    } else {
        let prefix = keys::MAIL_PREFIX.to_owned();
        let range = Range { prefix, limit: Some(MAX_MAILS), ..Range::whole(keys::DUE_PARTITION) };
        more = app.store.list(&range).await?;
        &more
    };
    let now = app.clock.now().as_secs();
    let is_due = |row: &&Row| keys::mail_place(&row.key).is_some_and(|(at, _)| at <= now);
    Ok(rows.iter().filter(is_due).map(|row| row.key.clone()).collect())
}

/// What is to be sent again of the runs that these rows name. A row that speaks of nothing any more is removed.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn mails(app: &App, due: &[Key]) -> Result<Vec<Mail>, Error> {
    let places: Vec<(&Key, &str)> =
        due.iter().filter_map(|key| Some((key, keys::mail_place(key)?.1))).collect();
    let records: Vec<Key> = places.iter().map(|(_, run)| keys::record(run)).collect();
    let mut mails = Vec::new();
    for ((key, run), row) in places.into_iter().zip(app.store.read(&records).await?) {
        let read = row.map(|row| Ok::<_, Error>((read_clear::<RunRecord>(&row)?, row.version))).transpose();
        match read {
            Ok(Some((record, version))) if mail_key(&record).as_ref() == Some(key) => {
                match events(app, run).await {
                    Ok(events) => mails.push(Mail { record, version, events }),
                    Err(error @ Error::Newer(_)) => pass_over(run, &error),
                    Err(error) => return Err(error),
                }
            }
            Ok(found) => {
                let as_found = found.map_or(Expect::Absent, |(_, version)| Expect::Version(version));
                remove_stale(app, key, run, as_found).await?;
            }
            Err(error) => pass_over(run, &error),
        }
    }
    Ok(mails)
}

/// Of a newer format: it is a newer binary's.
fn pass_over(run: &str, error: &Error) {
    tracing::warn!(run.id = %run, %error, "what is to be sent again is passed over");
}

/// What a run sends. What cannot be read is not sent.
async fn events(app: &App, run: &str) -> Result<BTreeMap<EventId, SentEvent>, Error> {
    let earlier = match earlier(app, run).await {
        Ok(earlier) => earlier,
        Err(error @ Error::Permanent(_)) => {
            tracing::warn!(run.id = %run, %error, "what a run sent cannot be read, and is not sent again");
            return Ok(BTreeMap::new());
        }
        Err(error) => return Err(error),
    };
    let reply = earlier.reply.into_iter().flat_map(|part| {
        let written_at = part.created_at;
        let events = std::iter::once(part.to_peer).chain(part.to_self);
        events.map(move |event| SentEvent { event, written_at, is_public: false })
    });
    let published = earlier.journal.effects().map(|event| SentEvent {
        event: event.clone(),
        written_at: event.created_at,
        is_public: true,
    });
    Ok(reply.chain(published).map(|sent| (sent.event.id, sent)).collect())
}

impl Mail {
    /// Saves what relays said meanwhile, if nobody wrote the record since; whether it was saved.
    ///
    /// # Errors
    /// [`Error::Transient`] where the store is unavailable.
    pub(crate) async fn save(self, app: &App, deliveries: Vec<Delivery>) -> Result<bool, Error> {
        let record = RunRecord { deliveries, updated_at_ms: app.clock.now_ms(), ..self.record.clone() };
        let writes = put_run(&record, Expect::Version(self.version), Some(&self.record), Expect::Anything)?;
        Ok(write_or_leave(app.store.as_ref(), &writes).await?)
    }
}
