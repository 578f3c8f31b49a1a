//! The claim on a trigger, and what only its owner writes.

use nostr::prelude::PublicKey;

use super::line::{self, Holder, floor_of};
use super::{Earlier, RunRecord, Status, earlier, put_run, read_clear, trigger_rows};
use crate::app::App;
use crate::chain::Followers;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::history;
use crate::letter::Letter;
use crate::load::Stored;
use crate::store::{Change, Expect, Key, Row, StoreError, Write, keys};
use crate::trigger::{Tier, Trigger, cut};

/// A run that is ours: the record as we wrote it, and the version that later writes depend on.
#[derive(Debug)]
pub struct Claim {
    /// The record.
    pub record: RunRecord,
    version: u64,
    /// Where a word lies that the sender was told and that is not needed any more.
    told: Vec<Key>,
    /// The version of its conversation's floor, where this claim took it.
    floor: Option<u64>,
    /// Whether another run had the floor while this one was claimed.
    met_holder: bool,
    others_wait: bool,
    /// The runs that follow, stored with its answer.
    pub(crate) followers: Vec<Trigger>,
}

impl Claim {
    fn new(record: RunRecord, version: u64, floor: Option<u64>) -> Self {
        Self {
            record,
            version,
            told: Vec::new(),
            floor,
            met_holder: false,
            others_wait: false,
            followers: Vec::new(),
        }
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
    /// It is stored, and waits in the line of its conversation.
    Waits {
        /// The run.
        run: String,
        /// The run that has the floor.
        behind: RunRecord,
    },
}

/// How often it is tried to claim. Each round answers to one change by another worker; a conversation whose messages come
/// in a flood, to many workers, changes as fast as its floor goes from one to the next.
const MAX_ROUNDS: usize = 32;

/// Claims a trigger: from this write on it is durable, and ours until the lease runs out. The trigger itself and its
/// message in the conversation are part of the same write. Where another run has the floor of its conversation, it is as
/// durable, and waits: see the module `line`.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable, [`Error::Permanent`] where a row is not to be read.
pub async fn claim(app: &App, trigger: &Trigger, lease_until_ms: u64) -> Result<Claimed, Error> {
    let mut bid = Bid::new(app, trigger, lease_until_ms)?;
    for _ in 0..MAX_ROUNDS {
        let (record, writes) = bid.writes(app, trigger)?;
        let (key, current) = match app.store.write(&writes).await {
            Ok(()) => return Ok(bid.won(record)),
            // Our own write, whose answer was lost.
            Err(StoreError::Conflict { key, current: Some(row) })
                if key == bid.key() && is_written(&writes, &row) =>
            {
                return Ok(bid.won(record));
            }
            Err(StoreError::Conflict { key, current }) => (key, current.map(|row| *row)),
            Err(error) => return Err(error.into()),
        };
        if key != bid.key() {
            bid.holder = bid.look_at_the_floor(app, key, current).await?;
            bid.met_holder = true;
            continue;
        }
        let Some(row) = current else { return Err(Error::TakenOver) };
        let found: RunRecord = read_clear(&row)?;
        if found.status.is_final() {
            return Ok(Claimed::Finished(found));
        }
        if found.held {
            return Ok(Claimed::Held(found));
        }
        if found.free_at_ms() > app.clock.now_ms() {
            return Ok(Claimed::Busy(found));
        }
        bid.found = Some((found, row.version));
    }
    Err(Error::Transient("the run changes hands too fast".to_owned()))
}

/// What a claim is about to write, by what it knows of the store.
struct Bid {
    /// The record of a new run of ours.
    ours: RunRecord,
    /// The record that is there, and its version.
    found: Option<(RunRecord, u64)>,
    /// The run that has the floor.
    holder: Option<Holder>,
    met_holder: bool,
}

impl Bid {
    fn new(app: &App, trigger: &Trigger, lease_until_ms: u64) -> Result<Self, Error> {
        let due_at = Some(lease_until_ms / 1000 + 1);
        let ours = RunRecord { attempt: 1, lease_until_ms, due_at, ..RunRecord::waiting(app, trigger)? };
        Ok(Self { ours, found: None, holder: None, met_holder: false })
    }

    fn key(&self) -> Key {
        keys::record(&self.ours.run_id)
    }

    /// Whose conversation it is. One that an older version stored does not know.
    fn conversation(&self) -> Option<PublicKey> {
        self.found.as_ref().and_then(|(found, _)| found.conversation).or(self.ours.conversation)
    }

    /// The run that is in front of this one: it has the floor.
    fn ahead(&self) -> Option<&Holder> {
        self.holder.as_ref().filter(|holder| holder.record.run_id != self.ours.run_id)
    }

    /// The record as it shall be, and the writes that make it so.
    fn writes(&self, app: &App, trigger: &Trigger) -> Result<(RunRecord, Vec<Write>), Error> {
        let (before, expect) = match &self.found {
            Some((found, version)) => (Some(found), Expect::Version(*version)),
            None => (None, Expect::Absent),
        };
        let record = match self.ahead() {
            Some(ahead) => joined(before, &self.ours, ahead, app.clock.now_ms()),
            None => before.map_or_else(|| self.ours.clone(), |found| taken_over(found.clone(), &self.ours)),
        };
        let conversation = self.conversation();
        let floor = conversation.is_some() && self.ahead().is_none();
        let record = RunRecord { conversation, written_at: self.ours.written_at, floor, ..record };
        let mut writes = put_run(&record, expect, before, self.floor_expect())?;
        if before.is_none() {
            writes.extend(trigger_rows(app, trigger, &record)?);
        }
        if let Some(ahead) = self.ahead() {
            writes.extend(ahead.await_it()?);
        }
        Ok((record, writes))
    }

    fn floor_expect(&self) -> Expect {
        self.holder.as_ref().map_or(Expect::Absent, Holder::expect)
    }

    /// Who has the floor, after a conflict at this row, which is the floor's or its holder's.
    async fn look_at_the_floor(
        &self,
        app: &App,
        key: Key,
        current: Option<Row>,
    ) -> Result<Option<Holder>, Error> {
        let Some(peer) = self.conversation() else { return Err(Error::TakenOver) };
        let floor = if key == keys::floor(&peer) { current } else { line::floor_row(app, &peer).await? };
        match floor {
            Some(floor) => line::holder(app, floor).await,
            None => Ok(None),
        }
    }

    /// What it came to that `record` is written.
    fn won(self, record: RunRecord) -> Claimed {
        let took_floor = floor_of(&record).is_some()
            && self.found.as_ref().is_none_or(|(found, _)| floor_of(found).is_none());
        let floor = took_floor.then(|| self.floor_expect().written());
        let expect = self.found.as_ref().map_or(Expect::Absent, |(_, version)| Expect::Version(*version));
        let is_behind = self.ahead().is_some();
        match self.holder {
            Some(holder) if is_behind => Claimed::Waits { run: record.run_id, behind: holder.record },
            _ => {
                let claim = Claim::new(record, expect.written(), floor);
                Claimed::Ours(Claim { met_holder: self.met_holder, ..claim })
            }
        }
    }
}

/// The record of a run that waits behind another one. If nobody comes to it, it is due when that one is free.
fn joined(found: Option<&RunRecord>, ours: &RunRecord, ahead: &Holder, now_ms: u64) -> RunRecord {
    let free_at_ms = ahead.record.free_at_ms();
    let due_at_ms = if free_at_ms > now_ms { free_at_ms } else { ours.lease_until_ms };
    RunRecord {
        due_at: Some(due_at_ms / 1000 + 1),
        updated_at_ms: now_ms,
        ..found.cloned().unwrap_or_else(|| RunRecord { attempt: 0, lease_until_ms: 0, ..ours.clone() })
    }
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
        // The floor, where this write gives it up.
        let given_up = floor_of(&self.record).filter(|_| floor_of(&record).is_none());
        let mut floor = self.floor.map_or(Expect::Anything, Expect::Version);
        loop {
            let expect = Expect::Version(self.version);
            let mut writes = put_run(&record, expect, Some(&self.record), floor)?;
            writes.extend(more.iter().cloned());
            match app.store.write(&writes).await {
                Ok(()) => break,
                Err(StoreError::Conflict { key, .. })
                    if floor != Expect::Anything && given_up.as_ref() == Some(&key) =>
                {
                    floor = Expect::Anything;
                }
                // Two runs may have written a counter alike: only of its record a run knows what it wrote.
                Err(StoreError::Conflict { key, .. }) if key != keys::record(&record.run_id) => {
                    return Ok(false);
                }
                // A write whose answer was lost and that was tried again.
                Err(StoreError::Conflict { current: Some(row), .. }) if is_written(&writes, &row) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.others_wait |= given_up.is_some() && floor == Expect::Anything;
        self.record = record;
        self.version = self.version.saturating_add(1);
        Ok(true)
    }

    /// Whether others wait for the floor of its conversation, or may do so, now that it was given up.
    pub(crate) fn others_wait(&self) -> bool {
        self.others_wait
    }

    /// Whether it has the floor of its conversation.
    pub(crate) fn has_floor(&self) -> bool {
        floor_of(&self.record).is_some()
    }

    /// Whether another run may have had the floor until now, by what the claim met and by what was `read` beside it: then that
    /// may lack the reply of that run.
    pub(crate) fn may_succeed_another(&self, read: &Stored) -> bool {
        let shows_another = || line::shows_another(&self.record, &read.line) || read.lacks_a_reply();
        self.floor.is_some() && (self.met_holder || shows_another())
    }

    /// Leaves the floor to those that stand in the line before it: it was not begun.
    ///
    /// # Errors
    /// As [`Claim::finish`].
    pub(crate) async fn give_way(&mut self, app: &App) -> Result<(), Error> {
        let attempt = self.record.attempt.saturating_sub(1);
        let record = RunRecord { attempt, lease_until_ms: 0, floor: false, ..self.record.clone() };
        self.save(app, record, Vec::new()).await
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

    /// Records that no relay of the recipient took the reply for too long: the run is over. Where that was to say why there is
    /// no answer, it is a dead letter, with both reasons.
    ///
    /// # Errors
    /// As [`Claim::finish`].
    pub(crate) async fn finish_undelivered(&mut self, app: &App, reason: &str) -> Result<(), Error> {
        let (status, reason) = match &self.record.reason {
            Some(failure) => (Status::Dead, format!("{failure}; {reason}")),
            None => (Status::Undelivered, reason.to_owned()),
        };
        let record = RunRecord { status, due_at: None, reason: Some(reason), ..self.record.clone() };
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
        let RunRecord { attempt, continuations, outage, status, run_id, .. } = &self.record;
        let is_first = *attempt <= 1 && *continuations == 0 && outage.is_none() && *status == Status::Running;
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
    pub(crate) async fn save_reply(
        &mut self,
        app: &App,
        letter: &Letter,
        parts: &[ReplyPart],
        after: Followers,
    ) -> Result<(), Error> {
        if !self.save_answer(app, letter, parts, after.writes).await? {
            return Err(Error::TakenOver);
        }
        self.followers = after.triggers;
        Ok(())
    }

    /// Keeps the answer of a run that answers nobody: the run is over. One that says why there is no answer makes it a dead
    /// letter.
    ///
    /// # Errors
    /// As [`Claim::finish`]; [`Error::Permanent`] where the answer cannot be sealed.
    pub(crate) async fn finish_with(
        &mut self,
        app: &App,
        answer: &str,
        after: Followers,
    ) -> Result<(), Error> {
        if self.record.reason.is_some() {
            return self.finish(app).await;
        }
        let record = RunRecord { status: Status::Done, due_at: None, ..self.record.clone() };
        let key = keys::answer(&record.run_id);
        let answer = cut(answer.to_owned(), "the answer");
        let mut writes = vec![app.put_sealed(key, &answer, record.expires_at)?];
        writes.extend(after.writes);
        self.save(app, record, writes).await?;
        self.followers = after.triggers;
        Ok(())
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

/// A claim outlives the age at which its trigger is still taken, so an expired one, whose version would count on, is never
/// claimed again.
fn is_written(writes: &[Write], row: &Row) -> bool {
    writes.iter().any(|write| {
        write.key == row.key
            && write.expect != Expect::Anything
            && write.expect.written() == row.version
            && matches!(&write.change, Change::Put { value, .. } if *value == row.value)
    })
}
