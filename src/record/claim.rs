//! The claim on a trigger, and what only its owner writes.

use super::dead::dead_row;
use super::due::{due_key, due_rows};
use super::outbox::mail_rows;
use super::{Earlier, RunRecord, Status, earlier, put_record, read_clear, trigger_rows};
use crate::app::App;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::history;
use crate::letter::Letter;
use crate::store::{Change, Expect, Key, Row, StoreError, Write, keys};
use crate::trigger::{Tier, Trigger};

/// A run that is ours: the record as we wrote it, and the version that later writes depend on.
#[derive(Debug)]
pub struct Claim {
    /// The record.
    pub record: RunRecord,
    version: u64,
    /// Where a word lies that the sender was told and that is not needed any more.
    told: Vec<Key>,
}

impl Claim {
    fn new(record: RunRecord, version: u64) -> Self {
        Self { record, version, told: Vec::new() }
    }
}

/// What [`claim`] found.
#[derive(Debug)]
pub enum Claimed {
    /// Ours to work.
    Ours(Claim),
    /// Over: the outcome of the first time.
    Finished(RunRecord),
    /// Another worker has it, or it was given back and waits.
    Busy(RunRecord),
    /// It came in standby, and is not to be worked yet.
    Held(RunRecord),
}

/// Claims a trigger: from this write on it is durable, and ours until the lease runs out. The trigger itself and its
/// message in the conversation are part of the same write.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable, [`Error::Permanent`] where a row is not to be read.
pub async fn claim(app: &App, trigger: &Trigger, lease_until_ms: u64) -> Result<Claimed, Error> {
    let due_at = Some(lease_until_ms / 1000 + 1);
    let mut record = RunRecord { attempt: 1, lease_until_ms, due_at, ..RunRecord::waiting(app, trigger)? };
    let (mut expect, mut due_before) = (Expect::Absent, None);
    // Each round answers to one change by another worker; three in a row mean that others are busy with it.
    for _ in 0..3 {
        let mut writes = vec![put_record(&record, expect)?];
        writes.extend(due_rows(&record, due_before)?);
        if expect == Expect::Absent {
            writes.extend(trigger_rows(app, trigger, &record)?);
        }
        let current = match app.store.write(&writes).await {
            Ok(()) => return Ok(Claimed::Ours(Claim::new(record, written_version(expect)))),
            Err(StoreError::Conflict { current: Some(row), .. }) => row,
            Err(error) => return Err(error.into()),
        };
        let found: RunRecord = read_clear(&current)?;
        if found.owner == record.owner {
            // Our own write, whose answer was lost.
            return Ok(Claimed::Ours(Claim::new(found, current.version)));
        }
        if found.status.is_final() {
            return Ok(Claimed::Finished(found));
        }
        if found.held {
            return Ok(Claimed::Held(found));
        }
        if found.free_at_ms() > app.clock.now_ms() {
            return Ok(Claimed::Busy(found));
        }
        (expect, due_before) = (Expect::Version(current.version), due_key(&found));
        record = taken_over(found, &record);
    }
    Err(Error::Transient("the run changes hands too fast".to_owned()))
}

/// The record of a run whose worker died, in new hands.
fn taken_over(found: RunRecord, ours: &RunRecord) -> RunRecord {
    RunRecord {
        owner: ours.owner.clone(),
        fence: found.fence.saturating_add(1),
        // A saved reply only has to be sent.
        attempt: found.attempt.saturating_add(u32::from(found.status == Status::Running)),
        lease_until_ms: ours.lease_until_ms,
        not_before: 0,
        due_at: ours.due_at,
        updated_at_ms: ours.updated_at_ms,
        ..found
    }
}

impl Claim {
    /// Writes `record` in the place of ours and `more` rows, if the run is still ours. Until then ours stays as it was:
    /// it never tells of what was not written.
    async fn save(&mut self, app: &App, record: RunRecord, more: Vec<Write>) -> Result<(), Error> {
        if self.try_save(app, record, more).await? { Ok(()) } else { Err(Error::TakenOver) }
    }

    /// The same; false where the run is still ours and another of the rows is not as expected.
    async fn try_save(&mut self, app: &App, record: RunRecord, more: Vec<Write>) -> Result<bool, Error> {
        let record = RunRecord { updated_at_ms: app.clock.now_ms(), ..record };
        let mut writes = vec![put_record(&record, Expect::Version(self.version))?];
        writes.extend(due_rows(&record, due_key(&self.record))?);
        // A claim is on a run that is not over: of it there is no row in the outbox yet.
        writes.extend(mail_rows(&record, None)?);
        writes.extend(dead_row(&record)?);
        writes.extend(more);
        match app.store.write(&writes).await {
            Ok(()) => {}
            // Two runs may have written a counter alike: only of its record a run knows what it wrote.
            Err(StoreError::Conflict { key, .. }) if key != keys::record(&record.run_id) => return Ok(false),
            // A write whose answer was lost and that was tried again.
            Err(StoreError::Conflict { current: Some(row), .. }) if is_written(&writes, &row) => {}
            Err(error) => return Err(error.into()),
        }
        self.record = record;
        self.version = self.version.saturating_add(1);
        Ok(true)
    }

    /// Notes that the sender will be answered, with its tier in record and trigger, together with the counters that say so;
    /// without counters by the next write. False where one of
    /// them was changed since it was read: then nothing was written.
    ///
    /// # Errors
    /// As [`Claim::finish`].
    pub(crate) async fn admit(
        &mut self,
        app: &App,
        trigger: &Trigger,
        mut counters: Vec<Write>,
    ) -> Result<bool, Error> {
        (self.record.tier, self.record.tainted) = (trigger.tier, trigger.tainted);
        if counters.is_empty() {
            return Ok(true);
        }
        let record = RunRecord { counted: true, ..self.record.clone() };
        counters.push(app.put_sealed(keys::trigger(&record.run_id), trigger, record.expires_at)?);
        self.try_save(app, record, counters).await
    }

    /// Records that the sender, of `tier`, is not answered: the run is over. False as in [`Claim::admit`].
    ///
    /// # Errors
    /// As [`Claim::finish`].
    pub(crate) async fn turn_away(
        &mut self,
        app: &App,
        tier: Tier,
        reason: &str,
        more: Vec<Write>,
    ) -> Result<bool, Error> {
        let record = RunRecord {
            tier,
            status: Status::Dropped,
            due_at: None,
            reason: Some(reason.to_owned()),
            ..self.record.clone()
        };
        self.try_save(app, record, more).await
    }

    /// Records that the reply was accepted: the run is over. One that says why there is no answer makes it a dead letter.
    ///
    /// # Errors
    /// [`Error::TakenOver`] where the run is no longer ours; [`Error::Transient`] where the store is unavailable.
    pub async fn finish(&mut self, app: &App) -> Result<(), Error> {
        let status = if self.record.reason.is_some() { Status::Dead } else { Status::Done };
        let record = RunRecord { status, due_at: None, ..self.record.clone() };
        self.save(app, record, Vec::new()).await
    }

    /// Records that no relay of the recipient took the reply for too long: the run is over.
    ///
    /// # Errors
    /// As [`Claim::finish`].
    pub(crate) async fn finish_undelivered(&mut self, app: &App, reason: &str) -> Result<(), Error> {
        let record = RunRecord {
            status: Status::Undelivered,
            due_at: None,
            reason: Some(reason.to_owned()),
            ..self.record.clone()
        };
        self.save(app, record, Vec::new()).await
    }

    /// Writes rows of the run's journal, if the run is still ours.
    ///
    /// # Errors
    /// [`Error::TakenOver`] where it is not.
    pub async fn append(&self, app: &App, mut writes: Vec<Write>) -> Result<(), Error> {
        writes.push(Write::check(keys::record(&self.record.run_id), self.version));
        Ok(app.store.write(&writes).await?)
    }

    /// Gives the run back, so that the next worker waits until `not_before` and not for the lease; whether that was
    /// written. If nobody comes, it is due at `due_at` (both Unix seconds). A word that the sender was told is forgotten.
    pub async fn release(mut self, app: &App, reason: &str, not_before: u64, due_at: u64) -> bool {
        let told = std::mem::take(&mut self.told);
        let told = told.into_iter().map(|key| Write::delete(key, Expect::Anything)).collect();
        let due_at = Some(due_at);
        let mut record = RunRecord { lease_until_ms: 0, not_before, due_at, ..self.record.clone() };
        // Of a saved reply the reason says whether it is an answer.
        if record.status == Status::Running {
            record.reason = Some(reason.to_owned());
        }
        let released = self.save(app, record, told).await;
        if let Err(error) = &released {
            tracing::warn!(run.id = %self.record.run_id, %error, "the run could not be given back before its lease ends");
        }
        released.is_ok()
    }

    /// Gives the run back because the agent is stopped: it is due as soon as that is over, and this was no attempt.
    pub(crate) async fn put_off(mut self, app: &App) {
        let record = RunRecord {
            lease_until_ms: 0,
            put_off: self.record.put_off.saturating_add(1),
            due_at: Some(app.clock.now().as_secs()),
            ..self.record.clone()
        };
        if let Err(error) = self.save(app, record, Vec::new()).await {
            tracing::warn!(run.id = %self.record.run_id, %error, "a run waits for its lease, since the agent is stopped");
        }
    }

    /// What earlier attempts saved; nothing is read on the first.
    ///
    /// # Errors
    /// As [`earlier`].
    pub async fn earlier(&self, app: &App) -> Result<Earlier, Error> {
        let RunRecord { attempt, status, continuations, outage, run_id, .. } = &self.record;
        let is_first = *attempt <= 1 && *status == Status::Running && *continuations == 0 && outage.is_none();
        if is_first { Ok(Earlier::default()) } else { earlier(app, run_id).await }
    }

    /// Saves the signed word that the answer has to wait, before it is sent, and that it was said; in the conversation and
    /// in `mark`. False where another run of the conversation was faster: then nothing was written.
    ///
    /// # Errors
    /// As [`Claim::save_reply`].
    pub(crate) async fn save_note(
        &mut self,
        app: &App,
        letter: &Letter,
        parts: &[ReplyPart],
        mark: Write,
    ) -> Result<bool, Error> {
        let record = self.record.clone();
        let mut writes = vec![mark];
        for (i, part) in parts.iter().enumerate() {
            writes.push(app.put_sealed(keys::note(&record.run_id, i), part, record.expires_at)?);
            writes.push(history::outgoing(letter, part, true).write(app, &letter.peer)?);
        }
        self.try_save(app, record, writes).await
    }

    /// The word of `parts` parts is out: it need not be said again.
    pub(crate) fn note_is_out(&mut self, parts: usize) {
        self.told = (0..parts).map(|i| keys::note(&self.record.run_id, i)).collect();
    }

    /// Saves the signed reply, before anything is sent: status, parts and our side of the conversation in one write.
    ///
    /// # Errors
    /// As [`Claim::finish`]; [`Error::Permanent`] where a part cannot be sealed.
    pub async fn save_reply(&mut self, app: &App, letter: &Letter, parts: &[ReplyPart]) -> Result<(), Error> {
        if self.save_answer(app, letter, parts, Vec::new()).await? { Ok(()) } else { Err(Error::TakenOver) }
    }

    /// The same together with `more` writes: what a command does and its answer are one. False where another of the rows
    /// is not as expected: then nothing was written.
    ///
    /// # Errors
    /// As [`Claim::save_reply`].
    pub(crate) async fn save_answer(
        &mut self,
        app: &App,
        letter: &Letter,
        parts: &[ReplyPart],
        more: Vec<Write>,
    ) -> Result<bool, Error> {
        let record = RunRecord {
            status: Status::Replying,
            reply_ids: parts.iter().map(|part| part.id).collect(),
            ..self.record.clone()
        };
        let mut writes = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            writes.push(app.put_sealed(keys::reply(&self.record.run_id, i), part, self.record.expires_at)?);
            let message = history::outgoing(letter, part, record.command.is_some());
            writes.push(message.write(app, &letter.peer)?);
        }
        writes.extend(more);
        self.try_save(app, record, writes).await
    }
}

/// The version that a write with this expectation gives its row. A claim outlives the age at which its trigger is still
/// taken, so an expired one, whose version would count on, is never claimed again.
fn written_version(expect: Expect) -> u64 {
    match expect {
        Expect::Version(version) => version.saturating_add(1),
        Expect::Absent | Expect::Anything => 1,
    }
}

fn is_written(writes: &[Write], row: &Row) -> bool {
    writes.iter().any(|write| {
        write.key == row.key
            && write.expect != Expect::Anything
            && written_version(write.expect) == row.version
            && matches!(&write.change, Change::Put { value, .. } if *value == row.value)
    })
}
