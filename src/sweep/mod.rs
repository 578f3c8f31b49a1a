//! The sweep: what lies on the relays and nobody delivered is found, and nothing that was found is worked twice.
//!
//! ```text
//! lease ─▶ read all relays ─▶ open what is new ─▶ store it ─▶ save how far it came, give the lease back
//! ```
//!
//! - [`plan`]: what a relay is asked next, and when its window is covered. Pure.
//! - [`seen`]: the ids that were dealt with. Pure.
//! - [`subscriptions`]: what the skills subscribe to; [`questions`]: that as few filters. Pure.
//! - `ledger`: where both lie between two ticks; `read`: the relays, `subscribed`: the part of the subscriptions in that; `settle`: what becomes of each message;
//!   `door`: which guests' messages are work.
//! - `listen`: what comes afterwards, while the tick still has time.
//!
//! Whatever dies on the way, nothing counts as read that is not durable: the next tick reads it again.

pub(crate) mod door;
pub(crate) mod ledger;
pub(crate) mod listen;
pub mod plan;
pub mod questions;
pub(crate) mod read;
pub mod seen;
pub(crate) mod settle;
mod subscribed;
pub mod subscriptions;
mod told;

use std::collections::BTreeSet;
use std::time::Duration;

use nostr::prelude::{Event, EventId, Filter, RelayUrl, SingleLetterTag, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use self::door::Door;
use self::ledger::{Held, Ledger};
use self::listen::Ears;
use self::read::{Heard, Inbox, Told};
use self::seen::Seen;
use self::settle::{End, Settled};
use self::subscribed::SubscribedHeard;
use self::subscriptions::Subscriptions;
use crate::app::App;
use crate::clock::Deadline;
use crate::error::Error;
use crate::events::address;
use crate::kinds;
use crate::load::{self, Stored};
use crate::notices::{Board, Fact};
use crate::relay::Target;
use crate::state::AgentState;
use crate::store::{Row, Write};
use crate::trigger::Trigger;

/// How long the relays may take.
const READ_TIME: Duration = Duration::from_secs(25);

/// After so much of the lease nothing more is opened: what is left of it is for saving.
const OPEN_TIME: Duration = Duration::from_secs(45);

/// So many ticks in a row a relay may fail before it is spared.
const MAX_FAILURES: u32 = 5;

/// How long it is spared: nine ticks of a minute.
const SPARED_SECS: u64 = 9 * 60 + 30;

/// What a sweep came to, for the operator.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    relays: Vec<Told>,
    /// Messages that are work.
    work: usize,
    /// Messages that went into the history alone.
    kept: usize,
    /// Events whose skills ran as often as they may today.
    #[serde(skip_serializing_if = "read::is_zero")]
    over_limit: usize,
    /// Events that were given up.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quarantined: Vec<EventId>,
}

/// What a sweep found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Work that is stored and that nobody has begun.
    pub(crate) triggers: Vec<Trigger>,
    /// For the operator.
    pub(crate) report: Report,
    /// With which this tick may listen; `None` where the sweep was not saved.
    pub(crate) ears: Option<Ears>,
    /// When the agent started, if it is known what was answered before that, and in the history.
    pub(crate) settled_start: Option<Timestamp>,
    /// Whether it is the first sweep after a standby.
    pub(crate) wakes: bool,
    /// Why the next sweep begins where this one did: the store failed, or another tick swept meanwhile.
    pub(crate) failure: Option<Error>,
}

/// Sweeps all inbox relays. `rows` are those of the sweep's partition, `stored` what the store has of the agent, and `known`
/// what that says. What the admin is to be told of it goes onto the `board`.
///
/// # Errors
/// [`Error::Permanent`] where the rows are a newer binary's. Where the store fails later, what was found is told with it.
pub(crate) async fn run(
    app: &App,
    held: Held,
    rows: &[Row],
    (mut stored, known): (Stored, &AgentState),
    board: &mut Board,
    deadline: Deadline,
) -> Result<Found, Error> {
    let begun = app.clock.now();
    let now = begun.as_secs();
    let open_until = deadline.slice(OPEN_TIME);
    let mut ledger = Ledger::read(held, rows, now)?;
    let wakes = ledger.stand_by(now, app.config.standby);
    let (asked, spared): (Vec<Inbox>, Vec<Inbox>) = read::inboxes(app, known)
        .into_iter()
        .partition(|inbox| ledger.notes(&inbox.target.url).retry_at.is_none_or(|at| at <= now));

    let flags = stored.flags.clone();
    let mut subscriptions = ledger.subscriptions(known, begun);
    let read_until = deadline.slice(READ_TIME);
    let mut heard =
        read::read_all(app, (known, &flags), &subscriptions, &mut ledger, &asked, read_until).await;
    subscriptions.learn(deletions(app, &asked, &subscriptions, &heard, read_until).await);
    let is_all = spared.is_empty() && heard.iter().all(|relay| relay.covered);
    let was_settled = ledger.cursors.settled_at.is_some();
    ledger.settle(now, is_all);
    let learned = learn(app, &mut stored, &heard)?;
    let mut more = Vec::new();
    // A relay that is only written to was not asked: then a run asks for itself.
    let is_asked = |target: &Target| asked.iter().chain(&spared).any(|inbox| inbox.target.url == target.url);
    let has_all = load::read_targets(app, known).iter().all(is_asked);
    if has_all && heard.iter().any(|relay| relay.full_state.is_some()) {
        let is_complete = heard.iter().all(|relay| relay.full_state.is_some() || is_dead(&mut ledger, relay));
        more.push(stored.note_read(app, begun, is_complete)?);
    }
    // What a skill that is new subscribes to counts from now on, and is asked for by the next sweep.
    if !learned.is_empty() {
        ledger.subscriptions(&stored.state(app), begun);
    }
    let start_at = ledger.cursors.start_at;
    let door = Door { app, stored: &stored, subscriptions: Some(&subscriptions), start_at };
    let settled = settle::settle(door, &mut ledger, &heard, was_settled, deadline, open_until);
    let (settled, ()) = tokio::join!(settled, load::keep(app, learned));

    let challenges: Vec<Option<bool>> =
        asked.iter().map(|inbox| app.relays.sends_challenges(&inbox.target)).collect();
    read::doubt(app, &asked, &mut heard);
    for (relay, challenges) in heard.iter().zip(challenges) {
        take_note(&mut ledger, relay, &settled, now);
        let notes = ledger.notes(&relay.url);
        notes.challenges = challenges;
        if relay.doubted {
            notes.doubt(ledger::oldest(app));
        }
    }
    let is_dealt_with = settled.failure.is_none() && settled.ends.values().all(|end| *end != End::Open);
    let settled_start =
        ledger.cursors.settled_at.filter(|_| is_dealt_with).map(|_| Timestamp::from(start_at));
    let facts = facts(app, &mut ledger, &stored, &heard, &settled);
    let inboxes = asked.iter().chain(&spared).map(|inbox| &inbox.target.url);
    // Before the cursors: what is told of is not met again.
    let saved = async {
        for fact in &facts {
            board.raise(app, fact).await?;
        }
        ledger.save(app, inboxes, more).await
    }
    .await;
    let Settled { triggers, counters, kept, over_limit, quarantined, failure, .. } = settled;
    let met = settle::shown(&heard).map(|(_, event)| event.id).collect();
    let is_subscribed = |relay: &&Heard| relay.subscribed.as_ref().is_some_and(|part| !part.failed);
    let subscribed = heard.iter().filter(is_subscribed).map(|relay| relay.url.clone()).collect();
    let (ears, unsaved) = match saved {
        Ok(known) => {
            let inboxes = asked;
            let ears = Ears { inboxes, subscribed, known, met, stored, subscriptions, counters, start_at };
            (Some(ears), None)
        }
        Err(error) => (None, Some(error)),
    };

    let spared = spared.iter().map(|inbox| {
        Told::not_asked(&inbox.target.url, "it failed five times in a row: it is asked every tenth time")
    });
    let relays = heard.into_iter().map(|relay| relay.told).chain(spared).collect();
    let report = Report { relays, work: triggers.len(), kept, over_limit, quarantined };
    Ok(Found { triggers, report, ears, settled_start, wakes, failure: failure.or(unsaved) })
}

/// What the admin is to be told. What the agent is, is looked at when a relay has just told all of it and none was silent.
fn facts(app: &App, ledger: &mut Ledger, stored: &Stored, heard: &[Heard], settled: &Settled) -> Vec<Fact> {
    let mut facts: Vec<Fact> = told::of_relays(heard, settled).collect();
    let is_greeting = ledger.cursors.greets && ledger.cursors.settled_at.is_some();
    let is_whole = heard.iter().all(|relay| relay.full_state.is_some())
        && heard.iter().any(|relay| relay.full_state == Some(true));
    if is_greeting || is_whole {
        let state = stored.state(app);
        if is_greeting && app.config.hello {
            facts.push(told::hello(app, &state, heard));
        }
        if is_whole && state.lacks_triggers() {
            facts.push(Fact::NoTriggers);
        }
    }
    ledger.cursors.greets &= !is_greeting;
    facts
}

/// Whether a relay has now failed so often that guests wait for its lists no longer.
fn is_dead(ledger: &mut Ledger, relay: &Heard) -> bool {
    relay.failure.is_some() && ledger.notes(&relay.url).failures.saturating_add(1) >= MAX_FAILURES
}

/// What is new of the agent's state, verified; to be kept.
fn learn(app: &App, stored: &mut Stored, heard: &[Heard]) -> Result<Vec<Write>, Error> {
    let mut new: Vec<Event> = Vec::new();
    for event in heard.iter().flat_map(|relay| &relay.state) {
        let is_known = stored.has_event(&event.id) || new.iter().any(|known| known.id == event.id);
        if !is_known && event.verify().is_ok() {
            new.push(event.clone());
        }
    }
    if new.is_empty() { Ok(Vec::new()) } else { stored.learn(app, new) }
}

/// What is known of a relay after this tick. It was read so far only if everything that it showed was dealt with.
fn take_note(ledger: &mut Ledger, relay: &Heard, settled: &Settled, now: u64) {
    let seen = ledger.seen(&relay.url);
    see(seen, &relay.messages, &relay.known, settled);
    if seen.is_full() {
        tracing::warn!(relay.url = %relay.url, "a flood fills the set of seen ids: what it does not hold is opened again by each sweep");
    }

    let notes = ledger.notes(&relay.url);
    if settled.has_closed(&relay.messages) {
        notes.cursor.advance(relay.sweep.clone(), relay.covered);
    }
    if let Some(gap) = relay.gaps.iter().max() {
        tracing::warn!(relay.url = %relay.url, second = gap, "a second holds more messages than the relay gives at a time");
        notes.gap_at = Some(*gap);
    }
    if let Some(is_full) = relay.full_state {
        notes.state_at = Some(now);
        if is_full {
            notes.full_state_at = Some(now);
        }
    }
    if let Some(part) = &relay.subscribed {
        note_subscribed(ledger, &relay.url, part, settled, now);
    }
    let notes = ledger.notes(&relay.url);
    match &relay.failure {
        None => (notes.failures, notes.retry_at) = (0, None),
        Some(error) => {
            if notes.failures == 0 {
                tracing::warn!(relay.url = %relay.url, %error, "a relay could not be read");
            }
            notes.failures = notes.failures.saturating_add(1);
            notes.retry_at = spared_until(notes.failures, now);
        }
    }
}

/// Adds to the `seen` ids those of `events` that were dealt with, and those that were `known`.
fn see(seen: &mut Seen, events: &[Event], known: &[(EventId, u64)], settled: &Settled) {
    for event in events.iter().filter(|event| settled.end(&event.id) == End::Dealt) {
        seen.add(&event.id, event.created_at.as_secs());
    }
    known.iter().for_each(|(id, at)| seen.add(id, *at));
}

/// Until when what failed so often is asked no more.
fn spared_until(failures: u32, now: u64) -> Option<u64> {
    (failures >= MAX_FAILURES).then(|| now.saturating_add(SPARED_SECS))
}

/// The same of what the skills subscribe to.
fn note_subscribed(
    ledger: &mut Ledger,
    relay: &RelayUrl,
    part: &SubscribedHeard,
    settled: &Settled,
    now: u64,
) {
    see(ledger.seen(relay), &part.events, &part.known, settled);
    if let Some(gap) = part.gaps.iter().max() {
        tracing::warn!(relay.url = %relay, second = gap, "a second holds more events for skills than the relay gives at a time");
    }
    let notes = ledger.notes(relay).subscribed.get_or_insert_default();
    if settled.has_closed(&part.events) {
        notes.cursor.advance(part.sweep.clone(), part.covered);
    }
    notes.failures = if part.failed { notes.failures.saturating_add(1) } else { 0 };
    notes.retry_at = spared_until(notes.failures, now);
}

/// What the authors of new events that would fire a skill took back of them, as far as the relays tell: asked only where there
/// are such events.
async fn deletions(
    app: &App,
    asked: &[Inbox],
    subscriptions: &Subscriptions,
    heard: &[Heard],
    until: Instant,
) -> Vec<Event> {
    let now = app.clock.now();
    let shown = heard.iter().filter_map(|relay| relay.subscribed.as_ref()).flat_map(|part| &part.events);
    let firing: Vec<&Event> = shown.filter(|event| subscriptions.fired_by(event, now).is_ok()).collect();
    if firing.is_empty() {
        return Vec::new();
    }
    let deletions = || Filter::new().kind(kinds::DELETION);
    let mut filters = vec![deletions().events(firing.iter().map(|event| event.id))];
    let addresses: BTreeSet<String> =
        firing.iter().filter_map(|event| address(event)).map(|address| address.to_string()).collect();
    if !addresses.is_empty() {
        filters.push(deletions().custom_tags(SingleLetterTag::LOWERCASE_A, addresses));
    }
    let targets: Vec<Target> = asked.iter().map(|inbox| inbox.target.clone()).collect();
    app.relays.fetch(&targets, &filters, until).await.events
}

// What is opened in time can be saved in time.
const _: () = assert!(OPEN_TIME.as_secs() < ledger::LEASE.as_secs());
