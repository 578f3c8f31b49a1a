//! What an invocation leaves behind: the claim on a trigger, the saved reply, the outcome.
//!
//! Every rule that needs atomicity is decided here, in pure code over the record as read, and carried out by one
//! conditional write on the record's version: a worker whose lease ran out finds its next write refused
//! ([`Error::TakenOver`]). See `docs/ARCHITECTURE.md`, "What makes a DM answered once".

mod due;

use nostr::prelude::{EventId, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub(crate) use self::due::MAX_DUE;
pub use self::due::{Due, due, first_due, held};
use self::due::{due_key, due_rows};
use crate::app::App;
use crate::chat::Usage;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::hash::{hex, sha256};
use crate::history;
use crate::letter::Letter;
use crate::run::journal::Journal;
use crate::store::{Change, Expect, Key, Range, Row, StoreError, Write, keys, write_or_leave};
use crate::trigger::{Tier, Trigger};

/// The format of every value in the store; a binary reads its own and the one before.
pub const FORMAT: u32 = 1;

/// The most times a run is begun before it is given up.
pub const MAX_ATTEMPTS: u32 = 3;

/// A run's record: the claim on its trigger while it lasts, and what became of it. Holds no private text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// See [`FORMAT`].
    pub format: u32,
    /// The run's id: [`run_id`] of the trigger's.
    pub run_id: String,
    /// The trigger's id; what stands before its colon is the kind of trigger.
    pub trigger_id: String,
    /// The run's tier.
    pub tier: Tier,
    /// The run's taint flag.
    pub tainted: bool,
    /// How far it is.
    pub status: Status,
    /// Who works on it: the request id and a random part.
    pub owner: String,
    /// One more with every owner.
    pub fence: u64,
    /// How often work on it was begun.
    pub attempt: u32,
    /// How often of these it was put off, since it was not known yet whether its sender is answered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waits: u32,
    /// Until when the owner has it, Unix milliseconds.
    pub lease_until_ms: u64,
    /// Nobody begins it before, Unix seconds: it was given back, and what it failed of may last. A redelivery would only use
    /// up its attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_before: u64,
    /// Where its due row lies, Unix seconds: when somebody must look at it again, if nobody ended it by then. Written and
    /// removed together with this record.
    #[serde(default)]
    pub due_at: Option<u64>,
    /// Whether it counts among the messages of guests: see [`crate::guests`].
    #[serde(default)]
    pub counted: bool,
    /// Whether it came in standby: nobody works it before that is over, see [`crate::standby`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// When the trigger was first seen, Unix seconds.
    pub arrived_at: Timestamp,
    /// When the record was last written, Unix milliseconds.
    pub updated_at_ms: u64,
    /// From when on the store may forget it, Unix seconds; `None` is never.
    pub expires_at: Option<u64>,
    /// The skills that took part, as `kind:author:d`, with the event id of the version used.
    #[serde(default)]
    pub skills: Vec<(String, EventId)>,
    /// `provider/model` that gave the last answer.
    #[serde(default)]
    pub model: Option<String>,
    /// Model calls.
    #[serde(default)]
    pub turns: u32,
    /// The names of the tools that were called, in order.
    #[serde(default)]
    pub tool_calls: Vec<String>,
    /// Tokens, as far as providers told.
    #[serde(default)]
    pub usage: Usage,
    /// What all attempts cost, in micro-dollars: see [`Attempt::cost_micro_usd`].
    #[serde(default)]
    pub cost_micro_usd: u64,
    /// The models that were asked, with what came of it; of failures that cost nothing the first hundred.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// The ids of the reply's parts: kind 4 events or rumors.
    #[serde(default)]
    pub reply_ids: Vec<EventId>,
    /// What each relay said to each part.
    #[serde(default)]
    pub deliveries: Vec<Delivery>,
    /// Why it failed or was dropped, for the operator.
    #[serde(default)]
    pub reason: Option<String>,
    /// How long each step of the last attempt took, in milliseconds, in order.
    #[serde(default)]
    pub steps_ms: Vec<(String, u64)>,
}

/// One model that was asked once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The turn that it was asked for, from 1.
    pub turn: u32,
    /// `provider/model`.
    pub model: String,
    /// Whether it was asked for a summary and not for the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_summary: bool,
    /// Why it did not answer, in words of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The tokens of its answer, as far as its provider told.
    #[serde(default)]
    pub usage: Usage,
    /// What the answer, or what came of it, cost, in micro-dollars, by the catalogue's prices: those of the dearest model
    /// where nobody knows this one's, and of an estimate where the provider told no tokens.
    #[serde(default)]
    pub cost_micro_usd: u64,
    /// How long it took, in milliseconds; `None` where the answer of an earlier attempt at the run was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Somebody works on it, or did until the lease ran out.
    Running,
    /// The reply is signed and saved; no relay of the recipient is known to have it yet.
    Replying,
    /// The reply was accepted.
    Done,
    /// It was looked at and starts nothing.
    Dropped,
}

impl Status {
    /// Whether nothing more is to be done.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Dropped)
    }
}

/// What one relay said to one event of a reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The event sent: a kind 4 event or a wrap.
    pub event: EventId,
    /// The relay.
    pub relay: String,
    /// `None` where it was accepted, else why not.
    pub refused: Option<String>,
}

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

/// A run that is ours: the record as we wrote it, and the version that later writes depend on.
#[derive(Debug)]
pub struct Claim {
    /// The record.
    pub record: RunRecord,
    version: u64,
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
            Ok(()) => return Ok(Claimed::Ours(Claim { version: written_version(expect), record })),
            Err(StoreError::Conflict { current: Some(row), .. }) => row,
            Err(error) => return Err(error.into()),
        };
        let found: RunRecord = read_clear(&current)?;
        if found.owner == record.owner {
            // Our own write, whose answer was lost.
            return Ok(Claimed::Ours(Claim { record: found, version: current.version }));
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
    let mut writes = vec![put_record(&record, Expect::Absent)?];
    writes.extend(due_rows(&record, None)?);
    writes.extend(trigger_rows(app, trigger, &record)?);
    Ok((record, writes))
}

/// The trigger and its message in the conversation.
fn trigger_rows(app: &App, trigger: &Trigger, record: &RunRecord) -> Result<Vec<Write>, Error> {
    let mut writes = vec![app.put_sealed(keys::trigger(&record.run_id), trigger, record.expires_at)?];
    writes.extend(history::incoming(trigger).map(|(peer, message)| message.write(app, &peer)).transpose()?);
    Ok(writes)
}

impl RunRecord {
    /// A record of a trigger that nobody works on yet.
    fn waiting(app: &App, trigger: &Trigger) -> Result<Self, Error> {
        let record = Self::new(app, &trigger.id, trigger.tier, trigger.created_at(), trigger.arrived_at)?;
        Ok(Self { status: Status::Running, tainted: trigger.tainted, held: app.config.standby, ..record })
    }

    /// From when on somebody else may begin it, Unix milliseconds.
    #[must_use]
    pub fn free_at_ms(&self) -> u64 {
        self.lease_until_ms.max(self.not_before.saturating_mul(1000))
    }

    /// How often it was tried to work it.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.attempt.saturating_sub(self.waits)
    }

    /// Notes how long a step took.
    pub fn note_step(&mut self, step: &str, took_ms: u64) {
        self.steps_ms.push((step.to_owned(), took_ms));
    }

    /// A record that nobody works on.
    fn new(
        app: &App,
        trigger_id: &str,
        tier: Tier,
        created_at: Timestamp,
        arrived_at: Timestamp,
    ) -> Result<Self, Error> {
        Ok(Self {
            format: FORMAT,
            run_id: run_id(trigger_id),
            trigger_id: trigger_id.to_owned(),
            tier,
            tainted: false,
            status: Status::Dropped,
            owner: app.new_owner()?,
            fence: 1,
            attempt: 0,
            waits: 0,
            lease_until_ms: 0,
            not_before: 0,
            due_at: None,
            counted: false,
            held: false,
            arrived_at,
            updated_at_ms: app.clock.now_ms(),
            expires_at: app.claim_expiry(created_at),
            skills: Vec::new(),
            model: None,
            turns: 0,
            tool_calls: Vec::new(),
            usage: Usage::default(),
            cost_micro_usd: 0,
            attempts: Vec::new(),
            reply_ids: Vec::new(),
            deliveries: Vec::new(),
            reason: None,
            steps_ms: Vec::new(),
        })
    }
}

/// The record of a run whose worker died, in new hands.
fn taken_over(found: RunRecord, ours: &RunRecord) -> RunRecord {
    RunRecord {
        owner: ours.owner.clone(),
        fence: found.fence.saturating_add(1),
        attempt: found.attempt.saturating_add(1),
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

    /// Records that the reply was accepted: the run is over.
    ///
    /// # Errors
    /// [`Error::TakenOver`] where the run is no longer ours; [`Error::Transient`] where the store is unavailable.
    pub async fn finish(&mut self, app: &App) -> Result<(), Error> {
        let record = RunRecord { status: Status::Done, due_at: None, ..self.record.clone() };
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
    /// written. If nobody comes, it is due at `due_at` (both Unix seconds).
    pub async fn release(mut self, app: &App, reason: &str, not_before: u64, due_at: u64) -> bool {
        let due_at = Some(due_at);
        let mut record = RunRecord { lease_until_ms: 0, not_before, due_at, ..self.record.clone() };
        // Of a saved reply the reason says whether it is an answer.
        if record.status == Status::Running {
            record.reason = Some(reason.to_owned());
        }
        let released = self.save(app, record, Vec::new()).await;
        if let Err(error) = &released {
            tracing::warn!(run.id = %self.record.run_id, %error, "the run could not be given back before its lease ends");
        }
        released.is_ok()
    }

    /// What earlier attempts saved; nothing is read on the first.
    ///
    /// # Errors
    /// As [`earlier`].
    pub async fn earlier(&self, app: &App) -> Result<Earlier, Error> {
        if self.record.attempt > 1 { earlier(app, &self.record.run_id).await } else { Ok(Earlier::default()) }
    }

    /// Saves the signed reply, before anything is sent: status, parts and our side of the conversation in one write.
    ///
    /// # Errors
    /// As [`Claim::finish`]; [`Error::Permanent`] where a part cannot be sealed.
    pub async fn save_reply(&mut self, app: &App, letter: &Letter, parts: &[ReplyPart]) -> Result<(), Error> {
        let record = RunRecord {
            status: Status::Replying,
            reply_ids: parts.iter().map(|part| part.id).collect(),
            ..self.record.clone()
        };
        let mut writes = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            writes.push(app.put_sealed(keys::reply(&self.record.run_id, i), part, self.record.expires_at)?);
            writes.push(history::outgoing(letter, part).write(app, &letter.peer)?);
        }
        self.save(app, record, writes).await
    }
}

/// What earlier attempts at a run left behind.
#[derive(Debug, Default)]
pub struct Earlier {
    /// Model answers, tool results and the events that tools published.
    pub journal: Journal,
    /// The signed reply, in order; empty where none was saved.
    pub reply: Vec<ReplyPart>,
}

/// What a run has saved: journal and reply.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Permanent`] where a row cannot be read.
pub async fn earlier(app: &App, run_id: &str) -> Result<Earlier, Error> {
    let mut earlier = Earlier::default();
    for row in app.store.list(&Range::whole(keys::run_partition(run_id))).await? {
        if row.key.sort.starts_with(keys::REPLY_PREFIX) {
            earlier.reply.push(app.open_sealed(&row)?);
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

fn put_record(record: &RunRecord, expect: Expect) -> Result<Write, Error> {
    Ok(Write::put(keys::record(&record.run_id), expect, to_json(record)?, record.expires_at))
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

/// As serde asks for it.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

/// A value as the bytes of its row.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    serde_json::to_vec(value).map_err(|_| Error::Permanent("a row cannot be written as JSON".to_owned()))
}

/// A row that is not sealed. One of a newer format is left to newer binaries.
pub(crate) fn read_clear<T: DeserializeOwned>(row: &Row) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct Versioned {
        format: u32,
    }
    if serde_json::from_slice::<Versioned>(&row.value).is_ok_and(|row| row.format > FORMAT) {
        return Err(unreadable(&row.key));
    }
    serde_json::from_slice(&row.value).map_err(|_| unreadable(&row.key))
}

pub(crate) fn unreadable(key: &Key) -> Error {
    Error::Permanent(format!(
        "the row {}/{} cannot be read: it was written by another key or a newer version",
        key.partition, key.sort
    ))
}
