//! What becomes of the messages that the relays showed: each is opened, and what it asks for is made durable, before its
//! id counts as dealt with.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures_util::StreamExt;
use nostr::prelude::{Event, EventId, PublicKey, RelayUrl, Timestamp};
use tokio::time::Instant;

use super::door::Door;
use super::ledger::{BEFORE_START_SECS, Ledger};
use super::read::Heard;
use crate::app::App;
use crate::clock::Deadline;
use crate::dm::{self, Opened};
use crate::error::Error;
use crate::guests::Counters;
use crate::handler::keep_message;
use crate::heed::Refusal;
use crate::history::{self, StoredMessage};
use crate::inbox::{self, Inbound, MAX_AHEAD, Rejection, Swept};
use crate::max_runs::{Counted, Today};
use crate::notices::{self, Fact};
use crate::record::{self, RunRecord, due_if_not_begun};
use crate::store::{Key, Range, keys};
use crate::trigger::{Source, Tier, Trigger};

/// How many are made durable at the same time.
const AT_ONCE: usize = 8;

/// The most that are opened alone in one tick.
const MAX_ALONE: usize = 50;

/// The most that are opened together: their ids are one row.
const MAX_BATCH: usize = 1000;

/// What speaks against an event that is opened alone, until it is open: only a death leaves it standing.
const OPENING: u32 = 3;

/// The same while what it asks for is stored: a store that fails leaves it standing too.
const STORING: u32 = 1;

/// So much speaks against an event that it is given up: it was opened alone twice without coming open.
const GIVEN_UP: u32 = 2 * OPENING;

/// Opening is work for the processor: after so many others get their turn.
const OPENED_PER_TURN: usize = 16;

/// The most messages of a conversation that are looked through for an answer.
const MAX_LOOKED_THROUGH: usize = 60;

/// A message, with every copy that differs: a relay may show a forged one under its id.
#[derive(Debug)]
struct Candidate {
    id: EventId,
    at: u64,
    copies: Vec<(RelayUrl, Event)>,
}

/// How a message ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// It is genuine, and what it asks for is durable: it need not be looked at again.
    Dealt,
    /// It is no message of anybody, or not decided yet. It may be shown again.
    Left,
    /// It could not be dealt with: the relays that showed it are read here again.
    Open,
}

/// What became of all messages of a tick.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    /// Each by its id.
    pub(crate) ends: HashMap<EventId, End>,
    /// The work among them that is stored and that nobody has begun.
    pub(crate) triggers: Vec<Trigger>,
    /// What guests have had, with that work.
    pub(crate) counters: Counters,
    /// Messages that went into the history alone.
    pub(crate) kept: usize,
    /// Events that start nothing.
    pub(crate) passed_over: usize,
    /// Events whose skills ran as often as they may today.
    pub(crate) over_limit: usize,
    /// Events that were given up: opening them ended the process.
    pub(crate) quarantined: Vec<EventId>,
    /// Why not all were dealt with: the store failed.
    pub(crate) failure: Option<Error>,
}

impl Settled {
    /// How this one ended.
    pub(crate) fn end(&self, id: &EventId) -> End {
        self.ends.get(id).copied().unwrap_or(End::Open)
    }

    /// Whether none of these is to be read again.
    pub(crate) fn has_closed(&self, events: &[Event]) -> bool {
        events.iter().all(|event| self.end(&event.id) != End::Open)
    }
}

/// Deals with the messages that `heard` has. One that could not be dealt with by `until` is left open. `was_settled` says
/// whether an earlier sweep found all that there is from before the start.
pub(crate) async fn settle(
    door: Door<'_>,
    ledger: &mut Ledger,
    heard: &[Heard],
    was_settled: bool,
    deadline: Deadline,
    until: Instant,
) -> Settled {
    let is_settled = ledger.cursors.settled_at.is_some();
    let (mut suspected, others): (Vec<_>, Vec<_>) = candidates(shown(heard))
        .into_iter()
        .partition(|candidate| ledger.suspects.contains_key(&candidate.id));
    let points = |candidate: &Candidate| ledger.suspects.get(&candidate.id).map(|(_, points)| *points);
    // Those that were never alone first: the one that ends the process shall not hold up its neighbours.
    suspected.sort_by_key(points);
    let mut settled = Settled::default();
    let app = door.app;
    let desk = Desk { app, door, deadline, until };
    if let Err(error) = desk.deal_alone(ledger, suspected, was_settled, &mut settled).await {
        settled.failure = Some(error);
        return settled;
    }
    // Of several batches none sees the agent's own messages in the others: what these decide is decided by the next sweep.
    let is_settled = was_settled || (is_settled && others.len() <= MAX_BATCH);
    for batch in others.chunks(MAX_BATCH) {
        ledger.suspects.extend(batch.iter().map(|candidate| (candidate.id, (candidate.at, 0))));
        match ledger.note_suspects(app).await {
            Ok(()) => {
                let orders = desk.open_all(batch, &mut settled).await;
                desk.carry_out_all(orders, is_settled, &mut settled).await;
            }
            Err(error) => settled.failure = Some(error),
        }
        ledger.suspects.retain(|id, _| !batch.iter().any(|candidate| candidate.id == *id));
        if settled.failure.is_some() {
            break;
        }
    }
    settled.summarize();
    settled
}

impl Settled {
    /// One line for all events that start nothing, however many a flood has.
    fn summarize(&self) {
        if self.passed_over > 0 {
            tracing::info!(
                events = self.passed_over,
                "events that were found start nothing: DIDACTYL_LOG=debug names them"
            );
        }
    }
}

/// Deals with messages that were heard outside of a sweep; `counters` are those that came of what was dealt with before.
/// What is decided with the whole of an agent's past in view is left to the sweep.
pub(crate) async fn heard(
    door: Door<'_>,
    events: &[(RelayUrl, Event)],
    counters: Counters,
    deadline: Deadline,
) -> Settled {
    let desk = Desk { app: door.app, door, deadline, until: deadline.work_until() };
    let mut settled = Settled { counters, ..Settled::default() };
    let events = events.iter().map(|(relay, event)| (relay, event));
    let orders = desk.open_all(&candidates(events), &mut settled).await;
    desk.carry_out_all(orders, false, &mut settled).await;
    settled.summarize();
    settled
}

/// The events of all relays that nobody had dealt with, as often as they were shown.
pub(super) fn shown(heard: &[Heard]) -> impl Iterator<Item = (&RelayUrl, &Event)> {
    heard.iter().flat_map(|relay| {
        let subscribed = relay.subscribed.iter().flat_map(|part| &part.events);
        relay.messages.iter().chain(subscribed).map(|event| (&relay.url, event))
    })
}

/// The messages of all relays, each once, the oldest first.
fn candidates<'a>(shown: impl Iterator<Item = (&'a RelayUrl, &'a Event)>) -> Vec<Candidate> {
    let mut by_id: BTreeMap<EventId, Candidate> = BTreeMap::new();
    for (relay, event) in shown {
        let candidate = by_id.entry(event.id).or_insert_with(|| Candidate {
            id: event.id,
            at: event.created_at.as_secs(),
            copies: Vec::new(),
        });
        if !candidate.copies.iter().any(|(_, copy)| copy == event) {
            candidate.copies.push((relay.clone(), event.clone()));
        }
    }
    let mut candidates: Vec<Candidate> = by_id.into_values().collect();
    candidates.sort_by_key(|candidate| (candidate.at, candidate.id));
    candidates
}

/// What dealing with messages needs.
struct Desk<'a> {
    app: &'a App,
    door: Door<'a>,
    deadline: Deadline,
    until: Instant,
}

/// When the agent wrote to whom.
type OwnTimes = HashMap<PublicKey, Vec<u64>>;

/// What is to be made durable.
pub(super) enum Order {
    /// Somebody's message, to be answered.
    Work(Box<Trigger>),
    /// A message for the history.
    Message(Opened),
    /// Work from before the start that was answered then.
    Answered(Box<Trigger>),
    /// A message of a guest who has had its answers.
    Refused(Box<Trigger>, Refusal),
}

impl Order {
    /// Whether an event that skills subscribe to asks for it.
    fn is_of_subscription(&self) -> bool {
        matches!(self, Self::Work(trigger) if matches!(trigger.source, Source::Subscription(_)))
    }

    /// Whose messages come first.
    fn tier(&self) -> Tier {
        match self {
            Self::Work(trigger) => trigger.tier,
            _ => Tier::Admin,
        }
    }
}

/// With the event that it came by.
pub(super) struct Placed {
    pub(super) id: EventId,
    pub(super) at: Timestamp,
    pub(super) order: Order,
}

impl Desk<'_> {
    /// Opens and deals with suspects one by one: the first ones, the others stay open.
    ///
    /// That one is being opened is durable before, and that it is open before anything is stored: so an event for which the
    /// store fails is not taken for one that ends the process. One that ends it later is found out too, after more deaths.
    async fn deal_alone(
        &self,
        ledger: &mut Ledger,
        suspected: Vec<Candidate>,
        is_settled: bool,
        settled: &mut Settled,
    ) -> Result<(), Error> {
        for (number, candidate) in suspected.into_iter().enumerate() {
            let known = ledger.suspects.get(&candidate.id).copied().unwrap_or_default();
            let marked = |more: u32| (candidate.at, known.1.saturating_add(more));
            if known.1 >= GIVEN_UP {
                if self.quarantine(&candidate, settled).await {
                    ledger.suspects.remove(&candidate.id);
                }
                continue;
            }
            if number >= MAX_ALONE || Instant::now() >= self.until {
                settled.ends.insert(candidate.id, End::Open);
                continue;
            }
            ledger.mark(self.app, candidate.id, marked(OPENING)).await?;
            let orders = self.open_all(std::slice::from_ref(&candidate), settled).await;
            if !orders.is_empty() {
                ledger.mark(self.app, candidate.id, marked(STORING)).await?;
                self.carry_out_all(orders, is_settled, settled).await;
            }
            if settled.ends.get(&candidate.id) == Some(&End::Open) {
                // We live: that it was tried once more speaks against nothing but the store.
                ledger.unmark(self.app, candidate.id, known).await;
            } else {
                ledger.suspects.remove(&candidate.id);
            }
        }
        Ok(())
    }

    /// Opens all of `candidates`; returns what those of them ask for that ask for anything.
    async fn open_all(&self, candidates: &[Candidate], settled: &mut Settled) -> Vec<Placed> {
        let mut orders = Vec::new();
        for (number, candidate) in candidates.iter().enumerate() {
            if number.is_multiple_of(OPENED_PER_TURN) {
                tokio::task::yield_now().await;
            }
            if Instant::now() >= self.until {
                settled.ends.insert(candidate.id, End::Open);
                continue;
            }
            let Swept { genuine, verdict } = self.open(candidate);
            let order = match verdict {
                Ok(Inbound::Work(trigger)) => Order::Work(trigger),
                Ok(Inbound::Own(opened) | Inbound::Past(opened)) => Order::Message(opened),
                Err(reason) => {
                    tracing::debug!(event.id = %candidate.id, %reason, "an event that the sweep found starts nothing");
                    settled.passed_over += 1;
                    settled.ends.insert(candidate.id, if genuine { End::Dealt } else { End::Left });
                    continue;
                }
            };
            orders.push(Placed { id: candidate.id, at: Timestamp::from(candidate.at), order });
        }
        orders
    }

    /// Makes durable what all of `orders` ask for.
    async fn carry_out_all(&self, orders: Vec<Placed>, is_settled: bool, settled: &mut Settled) {
        let orders = self.door.sift(orders, settled).await;
        let (fired, mut orders): (Vec<Placed>, Vec<Placed>) =
            orders.into_iter().partition(|placed| placed.order.is_of_subscription());
        self.carry_out_fired(fired, settled).await;
        orders.sort_by_key(|placed| Reverse(placed.order.tier()));
        let own = match self.own_times(&orders).await {
            Ok(own) => own,
            Err(error) => {
                tracing::warn!(%error, "what the sweep found is left for the next tick");
                settled.ends.extend(orders.into_iter().map(|placed| (placed.id, End::Open)));
                return;
            }
        };
        let done = futures_util::stream::iter(orders)
            .map(async |Placed { id, at, order }| match self.carry_out(order, &own, is_settled).await {
                Err(error) if !error.is_transient() => (id, self.give_up(id, at, &error).await),
                result => (id, result),
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        for (id, result) in done {
            let end = match result {
                Ok(Done::Stored(trigger)) => {
                    if let Some(trigger) = trigger {
                        if let Some(guest) = self.door.guest(&trigger) {
                            settled.counters.add(guest);
                        }
                        settled.triggers.push(*trigger);
                    }
                    End::Dealt
                }
                Ok(Done::Kept) => {
                    settled.kept += 1;
                    End::Dealt
                }
                Ok(Done::Dropped) => End::Dealt,
                Ok(Done::Undecided) => End::Left,
                Err(error) => {
                    tracing::warn!(event.id = %id, %error, "a message that the sweep found is left for the next tick");
                    End::Open
                }
            };
            settled.ends.insert(id, end);
        }
    }

    /// Makes durable what events fire, one after another: each is counted, and nobody else counts beside.
    async fn carry_out_fired(&self, orders: Vec<Placed>, settled: &mut Settled) {
        let Some(subscriptions) = self.door.subscriptions.filter(|_| !orders.is_empty()) else { return };
        let mut today = match Today::read(self.app).await {
            Ok(today) => today,
            Err(error) => {
                tracing::warn!(%error, "what events fire is left for the next tick");
                settled.ends.extend(orders.into_iter().map(|placed| (placed.id, End::Open)));
                return;
            }
        };
        let mut over_limit = BTreeSet::new();
        for Placed { id, at, order } in orders {
            let Order::Work(trigger) = order else { continue };
            let due_at = due_if_not_begun(self.app, self.deadline);
            let end = match today.store(self.app, subscriptions, &trigger, due_at).await {
                Ok(Counted { stored, over }) => {
                    over_limit.extend(over);
                    match stored {
                        None => settled.over_limit += 1,
                        Some((record, trigger)) if is_free(self.app, &record) => {
                            settled.triggers.push(trigger)
                        }
                        Some(_) => {}
                    }
                    End::Dealt
                }
                Err(error) if !error.is_transient() => {
                    self.give_up(id, at, &error).await.map_or(End::Open, |_| End::Dealt)
                }
                Err(error) => {
                    tracing::warn!(event.id = %id, %error, "an event that the sweep found is left for the next tick");
                    End::Open
                }
            };
            settled.ends.insert(id, end);
        }
        for skill in over_limit {
            if let Err(error) = notices::raise(self.app, &Fact::MaxRuns(skill)).await {
                tracing::warn!(%error, "the admin is not told yet that a skill ran as often as it may");
            }
        }
    }

    /// Records that what a message asks for can never be stored: else it would hold its relays' windows open for ever.
    async fn give_up(&self, id: EventId, at: Timestamp, error: &Error) -> Result<Done, Error> {
        tracing::error!(event.id = %id, %error, "a message that the sweep found is dropped: it cannot be stored");
        record::drop_event(self.app, &id, at, "it cannot be stored").await.map(|()| Done::Dropped)
    }

    /// The first copy that is genuine counts.
    fn open(&self, candidate: &Candidate) -> Swept {
        let mut last = Swept { genuine: false, verdict: Err(Rejection::Forged) };
        for (relay, event) in &candidate.copies {
            last = match self.door.subscriptions {
                Some(subscriptions) if !dm::is_dm(event.kind) => {
                    inbox::subscribed(self.app, subscriptions, event)
                }
                _ => inbox::sweep(self.app, event, Some(relay)),
            };
            if last.genuine {
                break;
            }
        }
        last
    }

    async fn carry_out(&self, order: Order, own: &OwnTimes, is_settled: bool) -> Result<Done, Error> {
        let order = match order {
            Order::Work(trigger) => match self.decide(trigger, own, is_settled).await? {
                Some(order) => order,
                None => return Ok(Done::Undecided),
            },
            other => other,
        };
        match order {
            Order::Work(trigger) => Ok(Done::Stored(self.store(trigger).await?)),
            Order::Refused(trigger, refusal) => {
                record::refuse(self.app, &trigger, &refusal.to_string()).await.map(|()| Done::Kept)
            }
            Order::Message(opened) => keep_message(self.app, opened).await.map(|_| Done::Kept),
            Order::Answered(trigger) => {
                if let Some((peer, message)) = history::incoming(&trigger) {
                    self.app.store.write(&[message.write(self.app, &peer)?]).await?;
                }
                Ok(Done::Kept)
            }
        }
    }

    /// Of the messages from before the agent's first sweep only the last hours' are work, and of these only what no later
    /// message of the agent answers; which that are is known when every relay has told what it has.
    async fn decide(
        &self,
        trigger: Box<Trigger>,
        own: &OwnTimes,
        is_settled: bool,
    ) -> Result<Option<Order>, Error> {
        let at = trigger.created_at().as_secs();
        if at >= self.door.start_at {
            return Ok(Some(Order::Work(trigger)));
        }
        if at.saturating_add(BEFORE_START_SECS) < self.door.start_at {
            return Ok(Some(Order::Answered(trigger)));
        }
        if self.app.config.standby {
            // It is held, and decided after the standby.
            return Ok(Some(Order::Work(trigger)));
        }
        if !is_settled {
            return Ok(None);
        }
        let Some(peer) = trigger.peer() else { return Ok(Some(Order::Work(trigger))) };
        // What it wrote since answers something else.
        let answers = |written: u64| (at..self.door.start_at).contains(&written);
        let is_answered = own.get(&peer).is_some_and(|times| times.iter().copied().any(answers))
            || has_written(self.app, &peer, at..self.door.start_at).await?;
        Ok(Some(if is_answered { Order::Answered(trigger) } else { Order::Work(trigger) }))
    }

    /// When the agent wrote to each peer, by the messages of its own among the orders: not those of this store's runs, which
    /// answer what they answer. Nothing is read where nothing is decided by it.
    async fn own_times(&self, orders: &[Placed]) -> Result<OwnTimes, Error> {
        let start = self.door.start_at;
        let is_decided = |placed: &Placed| matches!(&placed.order, Order::Work(work) if work.created_at().as_secs() < start);
        if !orders.iter().any(is_decided) {
            return Ok(OwnTimes::new());
        }
        let own: Vec<(PublicKey, StoredMessage)> = orders
            .iter()
            .filter_map(|placed| match &placed.order {
                Order::Message(opened) if opened.author == self.app.agent() => Some(opened),
                _ => None,
            })
            .filter_map(|opened| Some((opened.peer, history::found(self.app, opened.clone())?)))
            .collect();
        let places: Vec<Key> = own.iter().map(|(peer, message)| message.key(peer)).collect();
        let rows = if places.is_empty() { Vec::new() } else { self.app.store.read(&places).await? };
        let mut times = OwnTimes::new();
        for ((peer, message), row) in own.into_iter().zip(rows) {
            let known = row.and_then(|row| self.app.open_sealed::<StoredMessage>(&row).ok());
            if !known.is_some_and(|known| known.of_run) {
                times.entry(peer).or_default().push(message.created_at.as_secs());
            }
        }
        Ok(times)
    }

    /// Makes work durable. Returned where somebody should begin it now.
    async fn store(&self, trigger: Box<Trigger>) -> Result<Option<Box<Trigger>>, Error> {
        let app = self.app;
        let its_time = trigger.created_at().as_secs().saturating_sub(MAX_AHEAD.as_secs());
        let is_early = its_time > app.clock.now().as_secs();
        let due_at = if is_early { its_time } else { due_if_not_begun(app, self.deadline) };
        let record = record::store(app, &trigger, due_at).await?;
        Ok((!is_early && is_free(app, &record)).then_some(trigger))
    }

    /// Gives an event up that ends every process which opens it; whether that is recorded.
    async fn quarantine(&self, candidate: &Candidate, settled: &mut Settled) -> bool {
        tracing::error!(event.id = %candidate.id, "opening this event ended the process again and again: it is given up");
        let genuine = candidate.copies.iter().map(|(_, event)| event).find(|event| event.verify().is_ok());
        let recorded = match genuine {
            Some(event) => {
                let reason = "opening it ended the process again and again";
                record::drop_event(self.app, &event.id, event.created_at, reason).await
            }
            None => Ok(()),
        };
        if let Err(error) = &recorded {
            tracing::warn!(event.id = %candidate.id, %error, "that it is given up could not be recorded");
        }
        settled.ends.insert(candidate.id, if recorded.is_ok() { End::Dealt } else { End::Open });
        settled.quarantined.push(candidate.id);
        recorded.is_ok()
    }
}

/// Whether the agent wrote to `peer` in that time (Unix seconds), but for what runs of this store wrote: those answer what
/// they answer.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn has_written(
    app: &App,
    peer: &PublicKey,
    time: std::ops::Range<u64>,
) -> Result<bool, Error> {
    let rows = app.store.list(&Range::newest(keys::conversation(peer), MAX_LOOKED_THROUGH)).await?;
    Ok(rows
        .iter()
        .filter_map(|row| app.open_sealed::<StoredMessage>(row).ok())
        .filter(|message| message.from_agent && !message.of_run)
        .any(|message| time.contains(&message.created_at.as_secs())))
}

/// What became of an order.
enum Done {
    /// Work; with its trigger where somebody should begin it now.
    Stored(Option<Box<Trigger>>),
    /// Part of the history.
    Kept,
    /// It can never be stored.
    Dropped,
    /// It is too early to tell.
    Undecided,
}

/// Whether somebody may begin this run.
fn is_free(app: &App, record: &RunRecord) -> bool {
    !record.status.is_final() && record.free_at_ms() <= app.clock.now_ms()
}
