//! Guests, who are no admins: what they have had is counted in the store, and whether a message of theirs is worked is
//! decided before any model is asked. The decision itself is [`crate::heed`]'s.
//!
//! A run counts once: the counters and the word that it was counted are one conditional write.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use nostr::prelude::PublicKey;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::app::App;
use crate::error::Error;
use crate::heed::{Heed, Refusal, Usage, judge, verdict};
use crate::history;
use crate::load::{self, Loaded, Stored};
use crate::record::{Claim, FORMAT, read_clear, to_json};
use crate::state::AgentState;
use crate::store::{Expect, Row, Write, keys};
use crate::trigger::{Tier, Trigger};

/// How often a run is counted anew where others counted at the same time.
const ROUNDS: usize = 20;

/// How long a message waits for lists that no relay has told yet, reckoned from its arrival: then it is decided by what is
/// known.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(6 * 60 * 60);

const HOURS_PER_DAY: u64 = 24;
const HOUR_SECS: u64 = 60 * 60;

/// When a day's counters may be forgotten: a day after its end.
const KEPT_DAYS: u64 = 2;

/// What guests have had today, as read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    /// Hours since 1970.
    hour: u64,
    all: Counter,
    guests: HashMap<PublicKey, Counter>,
}

/// A day's counter and what its row must be for the next write.
#[derive(Debug, Clone)]
struct Counter {
    expect: Expect,
    hours: BTreeMap<u64, u32>,
}

/// The row.
#[derive(Serialize, Deserialize)]
struct CounterRow {
    format: u32,
    hours: BTreeMap<u64, u32>,
}

/// Whose message it is, where that is no admin as things stand.
pub(crate) fn guest(app: &App, trigger: &Trigger) -> Option<PublicKey> {
    trigger.sender().filter(|sender| !app.config.admins.contains(sender))
}

/// Reads the counters of all guests together and of `guests`.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Permanent`] where a row is a newer binary's.
pub(crate) async fn counters(app: &App, guests: &[PublicKey]) -> Result<Counters, Error> {
    let hour = app.clock.now().as_secs() / HOUR_SECS;
    let day = hour / HOURS_PER_DAY;
    let each = guests.iter().map(|guest| keys::guest_counter(day, Some(guest)));
    let wanted: Vec<_> = std::iter::once(keys::guest_counter(day, None)).chain(each).collect();
    let mut rows = app.store.read(&wanted).await?.into_iter();
    let all = Counter::read(rows.next().flatten())?;
    let each = rows.zip(guests).map(|(row, guest)| Ok::<_, Error>((*guest, Counter::read(row)?)));
    Ok(Counters { hour, all, guests: each.collect::<Result<_, _>>()? })
}

impl Counters {
    pub(crate) fn usage(&self, guest: &PublicKey) -> Usage {
        let counter = self.guests.get(guest);
        Usage {
            guest_hour: counter.map_or(0, |counter| counter.of_hour(self.hour)),
            guest_day: counter.map_or(0, |counter| {
                counter.hours.values().fold(0, |sum: u32, hour| sum.saturating_add(*hour))
            }),
            guests_hour: self.all.of_hour(self.hour),
        }
    }

    /// With what was counted here alone since `earlier` was read: of each hour of this day the larger number, since the
    /// store may show some of it by now.
    pub(crate) fn with(mut self, earlier: &Self) -> Self {
        let day = self.hour / HOURS_PER_DAY;
        self.all.raise(&earlier.all, day);
        for (guest, counter) in &earlier.guests {
            self.guests.entry(*guest).or_default().raise(counter, day);
        }
        self
    }

    /// Counts one more message, here alone.
    pub(crate) fn add(&mut self, guest: PublicKey) {
        for counter in [&mut self.all, self.guests.entry(guest).or_default()] {
            let hour = counter.hours.entry(self.hour).or_default();
            *hour = hour.saturating_add(1);
        }
    }

    /// The writes that count one more message of `guest`, if nobody counted since the counters were read.
    fn writes(&self, guest: PublicKey) -> Result<Vec<Write>, Error> {
        let mut counted = self.clone();
        counted.add(guest);
        let of_guest = counted.guests.remove(&guest).unwrap_or_default();
        let day = self.hour / HOURS_PER_DAY;
        let expires_at = day.saturating_add(KEPT_DAYS).saturating_mul(HOURS_PER_DAY * HOUR_SECS);
        [(None, counted.all), (Some(&guest), of_guest)]
            .into_iter()
            .map(|(whose, counter)| {
                let value = to_json(&CounterRow { format: FORMAT, hours: counter.hours })?;
                Ok(Write::put(keys::guest_counter(day, whose), counter.expect, value, Some(expires_at)))
            })
            .collect()
    }
}

impl Counter {
    fn read(row: Option<Row>) -> Result<Self, Error> {
        let Some(row) = row else { return Ok(Self::default()) };
        let CounterRow { hours, .. } = read_clear(&row)?;
        Ok(Self { expect: Expect::Version(row.version), hours })
    }

    fn raise(&mut self, earlier: &Self, day: u64) {
        for (hour, count) in earlier.hours.iter().filter(|(hour, _)| **hour / HOURS_PER_DAY == day) {
            let known = self.hours.entry(*hour).or_default();
            *known = (*known).max(*count);
        }
    }

    fn of_hour(&self, hour: u64) -> u32 {
        self.hours.get(&hour).copied().unwrap_or_default()
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self { expect: Expect::Absent, hours: BTreeMap::new() }
    }
}

/// Loads what a run needs and decides whether it goes on. The trigger comes back with its sender's true tier. `None`:
/// the sender is not answered, which is recorded.
///
/// # Errors
/// As [`load::refresh`]; [`Error::Transient`] where the lists that decide about the sender could not be read;
/// [`Error::TakenOver`] where the run is no longer ours.
pub(crate) async fn admit(
    app: &App,
    trigger: &Trigger,
    mut stored: Stored,
    claim: &mut Claim,
    until: Instant,
) -> Result<Option<(Trigger, Loaded)>, Error> {
    let Some(sender) = trigger.sender() else {
        return Ok(Some((trigger.clone(), load::refresh(app, trigger, stored, until).await?)));
    };
    if let Some(heed) = refused_at_once(app, trigger, &stored, claim) {
        let written_at = trigger.created_at().min(trigger.arrived_at);
        if !heed.refusal.is_some_and(Refusal::is_by_absence) || !stored.is_older_than(written_at) {
            put_down(app, trigger, heed, Vec::new(), claim).await?;
            return Ok(None);
        }
        // Whom an admin has just followed is not refused for good by a list from before that.
        stored.outdate();
    }
    let mut counters = stored.counters.clone();
    let mut loaded = match load::refresh(app, trigger, stored, until).await {
        Ok(loaded) => loaded,
        Err(error) => {
            count_waiting(app, trigger, counters, claim).await?;
            return Err(error);
        }
    };
    let is_over = app.clock.now() >= claim.record.arrived_at + MAX_WAIT;
    for _ in 0..ROUNDS {
        let used = usage(claim, &counters, sender);
        let heed = match judge(&app.config.senders, &loaded.state, loaded.lists, sender, used) {
            Ok(heed) => heed,
            Err(heed) if is_over => heed,
            Err(_) => {
                count_waiting(app, trigger, counters, claim).await?;
                load::keep(app, loaded.unsaved).await;
                let told = "the lists that say who is answered could not be read from all relays";
                return Err(Error::Transient(told.to_owned()));
            }
        };
        // A bot costs as much as a guest that is answered.
        let is_to_count = heed.tier < Tier::Admin && matches!(heed.refusal, None | Some(Refusal::Bot));
        let counted =
            if is_to_count && !claim.record.counted { counters.writes(sender)? } else { Vec::new() };
        if !put_down(app, trigger, heed, counted, claim).await? {
            counters = self::counters(app, &[sender]).await?;
            continue;
        }
        let Some(refusal) = heed.refusal else {
            return Ok(Some((trigger.clone().of_tier(heed.tier), loaded)));
        };
        let partition = keys::conversation(&sender);
        loaded.unsaved.retain(|write| refusal.keeps_message() || write.key.partition != partition);
        load::keep(app, loaded.unsaved).await;
        return Ok(None);
    }
    Err(too_many())
}

/// A guest's message that is not decided yet counts from its first look on: it costs as much as one that is answered. That
/// it was looked at in vain is no attempt at the run.
async fn count_waiting(
    app: &App,
    trigger: &Trigger,
    mut counters: Counters,
    claim: &mut Claim,
) -> Result<(), Error> {
    let Some(guest) = guest(app, trigger) else { return Ok(()) };
    claim.record.waits = claim.record.waits.saturating_add(1);
    for _ in 0..ROUNDS {
        if claim.record.counted || claim.admit(app, trigger, counters.writes(guest)?).await? {
            return Ok(());
        }
        counters = self::counters(app, &[guest]).await?;
    }
    Err(too_many())
}

fn too_many() -> Error {
    Error::Transient("too many guests are counted at the same time".to_owned())
}

/// The refusal of a guest whom what is stored refuses: that costs no read of the relays.
fn refused_at_once(app: &App, trigger: &Trigger, stored: &Stored, claim: &Claim) -> Option<Heed> {
    let guest = guest(app, trigger)?;
    let (state, used) = (stored.state(app), usage(claim, &stored.counters, guest));
    let lists = stored.lists(&state);
    let heed = judge(&app.config.senders, &state, lists, guest, used).ok()?;
    let refusal = heed.refusal?;
    let is_final = if stored.is_stale(app, app.clock.now()) {
        // Whom no list names must not make the agent ask the relays again and again while they tell nothing.
        refusal.is_limit() && !lists.tell_tier(heed.tier)
    } else {
        // A bot counts, and its profile may say something else by now.
        refusal != Refusal::Bot
    };
    is_final.then_some(heed)
}

/// Nothing counts against a run that was counted.
fn usage(claim: &Claim, counters: &Counters, sender: PublicKey) -> Usage {
    if claim.record.counted { Usage::default() } else { counters.usage(&sender) }
}

/// Writes the decision down, with the counters that it changes. A run without an answer is over; of whoever is not answered
/// at all, the message does not stay either. False where a counter changed meanwhile: then nothing was written.
async fn put_down(
    app: &App,
    trigger: &Trigger,
    heed: Heed,
    mut writes: Vec<Write>,
    claim: &mut Claim,
) -> Result<bool, Error> {
    let Some(refusal) = heed.refusal else {
        return claim.admit(app, &trigger.clone().of_tier(heed.tier), writes).await;
    };
    tracing::info!(run.id = %claim.record.run_id, reason = %refusal, "a message is not answered");
    if !refusal.keeps_message()
        && let Some((peer, message)) = history::incoming(trigger)
    {
        writes.push(Write::delete(message.key(&peer), Expect::Anything));
    }
    claim.turn_away(app, heed.tier, &refusal.to_string(), writes).await
}

/// The trigger with its sender's tier, as far as that is told by what the agent knows, and without counting anything.
///
/// # Errors
/// Why the sender is not answered.
pub fn preview(app: &App, trigger: Trigger, state: &AgentState) -> Result<Trigger, Refusal> {
    let Some(sender) = trigger.sender() else { return Ok(trigger) };
    let Heed { tier, refusal } = verdict(&app.config.senders, state, sender, Usage::default());
    refusal.map_or_else(|| Ok(trigger.of_tier(tier)), Err)
}
