//! What a sweep leaves for the next one: the lease, how far each relay was read, the ids that were dealt with, and the
//! events that were being opened when a process died.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use nostr::prelude::{EventId, RelayUrl, Timestamp};
use serde::{Deserialize, Serialize};

use super::plan::Cursor;
use super::seen::{Change, Seen};
use super::subscriptions::{Subscriptions, names};
use crate::app::App;
use crate::error::Error;
use crate::hash::{hex, sha256};
use crate::record::{FORMAT, read_clear, to_json};
use crate::state::AgentState;
use crate::store::{Expect, MAX_CALL_BYTES, MAX_WRITES, Row, StoreError, Write, keys};

/// How long a sweep has the lease. A tick that dies holds up the next one, and no more.
pub(crate) const LEASE: Duration = Duration::from_secs(55);

/// How long before the agent's start a message may have been written that is still answered.
pub(crate) const BEFORE_START_SECS: u64 = 6 * 60 * 60;

/// How long relays have to tell which messages from before the start were answered already.
const SETTLING_SECS: u64 = 10 * 60;

/// How long after the start the messages from before it are looked for.
const STARTING_SECS: u64 = 24 * 60 * 60;

/// How far each relay was read; a clear row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cursors {
    format: u32,
    /// When this agent first swept: Unix seconds.
    pub(crate) start_at: u64,
    /// When all relays had told what they have of the time before the start.
    pub(crate) settled_at: Option<u64>,
    /// Whether the agent was in standby. The first sweep after that is its start.
    #[serde(default)]
    standby: bool,
    /// Whether it has yet to say hello: a store that older versions swept says nothing.
    #[serde(default)]
    pub(crate) greets: bool,
    /// When the agent first saw each subscription of its skills, by its name: Unix seconds.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    subscriptions: BTreeMap<String, u64>,
    relays: BTreeMap<String, RelayNotes>,
}

/// What is known of one relay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RelayNotes {
    /// How far it was read.
    pub(crate) cursor: Cursor,
    /// When it last told what is new of the agent's state.
    pub(crate) state_at: Option<u64>,
    /// When it last told all of it.
    pub(crate) full_state_at: Option<u64>,
    /// Ticks in a row that it failed.
    pub(crate) failures: u32,
    /// When it is asked again, where it failed too often.
    pub(crate) retry_at: Option<u64>,
    /// The last second that held more than it gives at a time.
    pub(crate) gap_at: Option<u64>,
    /// Whether it sends challenges (NIP-42): then it is waited for. `None` where nobody waited for one yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) challenges: Option<bool>,
    /// The same of what the skills subscribe to, as long as they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subscribed: Option<SubscribedNotes>,
}

/// What is known of one relay as to the skills' subscriptions. They have a cursor of their own: neither a flood of them nor a
/// relay that does not show them holds up messages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SubscribedNotes {
    /// How far they were read.
    pub(crate) cursor: Cursor,
    /// Ticks in a row that it did not show them.
    #[serde(default)]
    pub(crate) failures: u32,
    /// When it is asked for them again, where that was too often.
    #[serde(default)]
    pub(crate) retry_at: Option<u64>,
}

impl RelayNotes {
    /// It sends challenges, and was believed before one came: what it told so far may not be all.
    pub(crate) fn doubt(&mut self, oldest: u64) {
        self.challenges = Some(true);
        self.cursor = self.cursor.of_something_doubtful(oldest);
        (self.state_at, self.full_state_at) = (None, None);
        if let Some(notes) = &mut self.subscribed {
            notes.cursor = notes.cursor.of_something_doubtful(oldest);
        }
    }

    /// The second before which no later sweep of the relay looks; `None` where that is not known yet. `oldest` is that before
    /// which no subscription is looked for.
    fn horizon(&self, floor: Option<u64>, oldest: u64) -> Option<u64> {
        let of_messages = self.cursor.horizon(floor)?;
        let of_subscribed = self
            .subscribed
            .as_ref()
            .map_or(u64::MAX, |notes| notes.cursor.horizon(None).unwrap_or_default().max(oldest));
        Some(of_messages.min(of_subscribed))
    }
}

/// Events that are being dealt with, each with the time that it bears and what speaks against it. Where they are found by
/// the next tick, this one died.
pub(crate) type Suspects = BTreeMap<EventId, (u64, u32)>;

/// The most suspects that are kept: they are one row.
const MAX_SUSPECTS: usize = 3000;

/// A clear row with the suspects. It goes when there are none.
#[derive(Debug, Serialize, Deserialize)]
struct Batch {
    format: u32,
    #[serde(default)]
    suspects: Suspects,
}

#[derive(Serialize, Deserialize)]
struct Lease {
    format: u32,
    owner: String,
}

/// The lease, while it is ours.
#[derive(Debug)]
pub(crate) struct Held {
    owner: String,
    version: u64,
}

/// Takes the lease; `None` where another tick has it.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn take_lease(app: &App) -> Result<Option<Held>, Error> {
    let owner = app.new_owner()?;
    let value = to_json(&Lease { format: FORMAT, owner: owner.clone() })?;
    let until = (app.clock.now() + LEASE).as_secs();
    let write = Write::put(keys::sweep_lease(), Expect::Absent, value, Some(until));
    match app.store.write(&[write]).await {
        // The row is gone when nobody holds it; where it is left of a tick that died, the version is found out later.
        Ok(()) => Ok(Some(Held { owner, version: 1 })),
        Err(StoreError::Conflict { current: Some(row), .. }) if owns(&owner, &row) => {
            Ok(Some(Held { owner, version: row.version }))
        }
        Err(StoreError::Conflict { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn owns(owner: &str, row: &Row) -> bool {
    read_clear::<Lease>(row).is_ok_and(|lease| lease.owner == owner)
}

/// When the agent started, as far as the last sweep knew; `None` where none ended, and in standby.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Permanent`] where the row is a newer binary's.
pub(crate) async fn started_at(app: &App) -> Result<Option<Timestamp>, Error> {
    let rows = app.store.read(&[keys::sweep_cursors()]).await?;
    let cursors = rows.iter().flatten().next().map(read_clear::<Cursors>).transpose()?;
    Ok(cursors.filter(|cursors| !cursors.standby).map(|cursors| Timestamp::from(cursors.start_at)))
}

/// What is known of each relay, by its URL; nothing before the first sweep ended.
///
/// # Errors
/// As [`started_at`].
pub(crate) async fn relays(app: &App) -> Result<BTreeMap<String, RelayNotes>, Error> {
    let rows = app.store.read(&[keys::sweep_cursors()]).await?;
    let cursors = rows.iter().flatten().next().map(read_clear::<Cursors>).transpose()?;
    Ok(cursors.map(|cursors| cursors.relays).unwrap_or_default())
}

/// The ids that were dealt with, of all relays.
#[derive(Debug)]
pub(crate) struct Known(Vec<Seen>);

impl Known {
    /// Whether it is one of them.
    pub(crate) fn contains(&self, id: &EventId) -> bool {
        self.0.iter().any(|seen| seen.contains(id))
    }
}

/// The rows of the sweep's partition, as one tick works with them.
#[derive(Debug)]
pub(crate) struct Ledger {
    held: Held,
    pub(crate) cursors: Cursors,
    version: Option<u64>,
    /// Left by a tick that died.
    pub(crate) suspects: Suspects,
    /// Those that the row names.
    noted: Suspects,
    seen: BTreeMap<String, Seen>,
}

impl Ledger {
    /// Reads the rows.
    ///
    /// # Errors
    /// [`Error::Permanent`] where they are a newer binary's.
    pub(crate) fn read(held: Held, rows: &[Row], now: u64) -> Result<Self, Error> {
        let begin = Cursors {
            format: FORMAT,
            start_at: now,
            settled_at: None,
            standby: false,
            greets: true,
            subscriptions: BTreeMap::new(),
            relays: BTreeMap::new(),
        };
        let mut ledger = Self {
            held,
            cursors: begin,
            version: None,
            suspects: Suspects::new(),
            noted: Suspects::new(),
            seen: BTreeMap::new(),
        };
        for row in rows {
            if row.key == keys::sweep_cursors() {
                ledger.cursors = read_clear(row)?;
                ledger.version = Some(row.version);
            } else if row.key == keys::sweep_batch() {
                ledger.suspects = read_clear::<Batch>(row).map(|batch| batch.suspects).unwrap_or_default();
                ledger.noted = ledger.suspects.clone();
            } else if let Some((relay, part)) = keys::seen_place(&row.key) {
                ledger.seen.entry(relay.to_owned()).or_default().load(part, &row.value);
            }
        }
        Ok(ledger)
    }

    /// What is known of a relay.
    pub(crate) fn notes(&mut self, relay: &RelayUrl) -> &mut RelayNotes {
        self.cursors.relays.entry(relay.to_string()).or_default()
    }

    /// The ids of one relay.
    pub(crate) fn seen(&mut self, relay: &RelayUrl) -> &mut Seen {
        self.seen.entry(short(relay)).or_default()
    }

    /// Whether an event was dealt with, whichever relay showed it.
    pub(crate) fn knows(&self, id: &EventId) -> bool {
        self.seen.values().any(|seen| seen.contains(id))
    }

    /// How far a relay's window is held open for the time before the agent's start.
    pub(crate) fn floor(&self, relay: &RelayUrl, now: u64) -> Option<u64> {
        let complete_at =
            self.cursors.relays.get(&relay.to_string()).and_then(|notes| notes.cursor.complete_at);
        let is_done = self.cursors.settled_at.is_some_and(|at| complete_at.is_some_and(|done| done > at));
        let is_over = now > self.cursors.start_at.saturating_add(STARTING_SECS);
        (!is_done && !is_over).then(|| self.cursors.start_at.saturating_sub(BEFORE_START_SECS))
    }

    /// Notes whether the agent is in standby. Until the first sweep after it, it has not started. Whether this is that sweep.
    pub(crate) fn stand_by(&mut self, now: u64, standby: bool) -> bool {
        let was_standby = std::mem::replace(&mut self.cursors.standby, standby);
        if standby || was_standby {
            (self.cursors.start_at, self.cursors.settled_at) = (now, None);
        }
        was_standby && !standby
    }

    /// What the skills subscribe to. What was not known before counts from now on. In standby it is nothing: another instance
    /// hears of it, and what comes until then is none of this one's business afterwards.
    pub(crate) fn subscriptions(&mut self, state: &AgentState, now: Timestamp) -> Subscriptions {
        let known = std::mem::take(&mut self.cursors.subscriptions);
        if !self.cursors.standby {
            let since = |name: &String| known.get(name).copied().unwrap_or(now.as_secs());
            self.cursors.subscriptions =
                names(state).map(|name| (since(&name), name)).map(|(at, name)| (name, at)).collect();
        }
        Subscriptions::of(state, now, |name| self.cursors.subscriptions.get(name).copied())
    }

    /// Notes whether all `relays` told what there was before the start.
    pub(crate) fn settle(&mut self, now: u64, is_complete: bool) {
        let is_late = now >= self.cursors.start_at.saturating_add(SETTLING_SECS);
        if self.cursors.settled_at.is_none() && !self.cursors.standby && (is_complete || is_late) {
            self.cursors.settled_at = Some(now);
        }
    }

    /// Makes the suspects durable, as they stand.
    ///
    /// # Errors
    /// [`Error::Transient`] where the store is unavailable.
    pub(crate) async fn note_suspects(&mut self, app: &App) -> Result<(), Error> {
        app.store.write(&[self.batch_write()?]).await?;
        self.noted = self.suspects.clone();
        Ok(())
    }

    /// Notes what speaks against a suspect while it is dealt with. Where that fails, what was known of it still stands: we
    /// live.
    ///
    /// # Errors
    /// As [`Ledger::note_suspects`].
    pub(crate) async fn mark(&mut self, app: &App, id: EventId, mark: (u64, u32)) -> Result<(), Error> {
        let known = self.suspects.insert(id, mark);
        let noted = self.note_suspects(app).await;
        if noted.is_err() {
            self.suspects.extend(known.map(|known| (id, known)));
        }
        noted
    }

    /// Notes that no more speaks against a suspect than what was `known` before it was dealt with. What the store does not
    /// take now is written with the next save.
    pub(crate) async fn unmark(&mut self, app: &App, id: EventId, known: (u64, u32)) {
        self.suspects.insert(id, known);
        if let Err(error) = self.note_suspects(app).await {
            tracing::warn!(event.id = %id, %error, "what speaks against an event is not taken back yet");
        }
    }

    /// Of too many suspects those count that most speaks against.
    fn batch_write(&self) -> Result<Write, Error> {
        if self.suspects.is_empty() {
            return Ok(Write::delete(keys::sweep_batch(), Expect::Anything));
        }
        let mut suspects: Vec<(EventId, (u64, u32))> =
            self.suspects.iter().map(|(id, known)| (*id, *known)).collect();
        suspects.sort_by_key(|(_, (_, points))| Reverse(*points));
        suspects.truncate(MAX_SUSPECTS);
        let batch = Batch { format: FORMAT, suspects: suspects.into_iter().collect() };
        Ok(Write::put(keys::sweep_batch(), Expect::Anything, to_json(&batch)?, None))
    }

    /// The second before which none of `relays` is read again; `None` where that is not known yet.
    fn horizon<'a>(
        &mut self,
        mut relays: impl Iterator<Item = &'a RelayUrl>,
        now: u64,
        oldest: u64,
    ) -> Option<u64> {
        relays.try_fold(u64::MAX, |earliest, relay| {
            let floor = self.floor(relay, now);
            self.notes(relay).horizon(floor, oldest).map(|horizon| earliest.min(horizon))
        })
    }

    /// Drops what lies before a relay's horizon, saves everything and gives the lease back; `more` goes into the same
    /// write. `inboxes` are the relays that are read now: what none of them will show again is suspected no longer. What is
    /// known then is handed back.
    ///
    /// # Errors
    /// [`Error::TakenOver`] where the lease or the cursors are another tick's by now: then nothing is saved but ids.
    pub(crate) async fn save(
        mut self,
        app: &App,
        inboxes: impl Iterator<Item = &RelayUrl>,
        more: Vec<Write>,
    ) -> Result<Known, Error> {
        let now = app.clock.now().as_secs();
        let oldest = oldest(app);
        if let Some(horizon) = self.horizon(inboxes, now, oldest) {
            self.suspects.retain(|_, (at, _)| *at >= horizon);
        }
        for relay in
            self.cursors.relays.keys().filter_map(|url| RelayUrl::parse(url).ok()).collect::<Vec<_>>()
        {
            let floor = self.floor(&relay, now);
            if let Some(horizon) = self.notes(&relay).horizon(floor, oldest) {
                self.seen(&relay).drop_before(horizon);
            }
        }
        let expect = self.version.map_or(Expect::Absent, Expect::Version);
        let mut writes = vec![Write::put(keys::sweep_cursors(), expect, to_json(&self.cursors)?, None)];
        writes.extend(more);
        if self.suspects != self.noted {
            writes.push(self.batch_write()?);
        }
        let (first, calls) = in_calls(writes, self.seen_writes());
        // Ids before cursors: to know too much of what is durable harms nothing.
        for writes in calls {
            app.store.write(&writes).await?;
        }
        let known = Known(std::mem::take(&mut self.seen).into_values().collect());
        self.give_back(app, first).await?;
        Ok(known)
    }

    fn seen_writes(&self) -> Vec<Write> {
        let changes = self.seen.iter().flat_map(|(relay, seen)| seen.changes().map(move |c| (relay, c)));
        changes
            .map(|(relay, (part, change))| match (keys::sweep_seen(relay, part), change) {
                (key, Change::Put(bytes)) => Write::put(key, Expect::Anything, bytes, None),
                (key, Change::Delete) => Write::delete(key, Expect::Anything),
            })
            .collect()
    }

    async fn give_back(mut self, app: &App, mut writes: Vec<Write>) -> Result<(), Error> {
        loop {
            writes.push(Write::delete(keys::sweep_lease(), Expect::Version(self.held.version)));
            match app.store.write(&writes).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Conflict { key, current: Some(row) })
                    if key == keys::sweep_lease()
                        && row.version != self.held.version
                        && owns(&self.held.owner, &row) =>
                {
                    self.held.version = row.version;
                    writes.pop();
                }
                // Another tick saved between our reading and our lease: what it found stands.
                Err(StoreError::Conflict { key, .. }) if key == keys::sweep_cursors() => writes.clear(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The writes of seen rows that still fit beside `writes`, and the calls for the rest.
fn in_calls(mut writes: Vec<Write>, seen: Vec<Write>) -> (Vec<Write>, Vec<Vec<Write>>) {
    let most = MAX_WRITES.saturating_sub(1);
    let size = |writes: &[Write]| {
        writes
            .iter()
            .map(|write| match &write.change {
                crate::store::Change::Put { value, .. } => value.len(),
                _ => 0,
            })
            .sum::<usize>()
    };
    let fits = |call: &[Write], write: &Write| {
        call.len() < most && size(call).saturating_add(size(std::slice::from_ref(write))) <= MAX_CALL_BYTES
    };
    let mut calls: Vec<Vec<Write>> = Vec::new();
    for write in seen {
        if fits(&writes, &write) {
            writes.push(write);
        } else if let Some(call) = calls.last_mut().filter(|call| fits(call, &write)) {
            call.push(write);
        } else {
            calls.push(vec![write]);
        }
    }
    (writes, calls)
}

/// The second before which an event is too old to fire anything.
pub(super) fn oldest(app: &App) -> u64 {
    app.config.max_age.map_or(0, |age| app.clock.now().as_secs().saturating_sub(age.as_secs()))
}

/// What a relay's rows go by.
fn short(relay: &RelayUrl) -> String {
    hex(&sha256(relay.to_string().as_bytes())).chars().take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Key;

    #[test]
    fn what_does_not_fit_into_one_call_goes_before_it() {
        let write = |n: usize, bytes| {
            Write::put(Key::new("p", format!("{n}")), Expect::Anything, vec![0; bytes], None)
        };
        let counts = |seen: Vec<Write>| {
            let (first, calls) = in_calls(vec![write(1_000, 10)], seen);
            (first.len(), calls.iter().map(Vec::len).collect::<Vec<_>>())
        };
        assert_eq!(counts((0..5).map(|n| write(n, 65_537)).collect()), (6, vec![]));
        assert_eq!(counts((0..250).map(|n| write(n, 10)).collect()), (99, vec![99, 53]));
        assert_eq!(counts((0..60).map(|n| write(n, 65_537)).collect()), (54, vec![7]));
    }
}
