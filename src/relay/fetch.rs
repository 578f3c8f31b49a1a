//! Reading from one relay: a subscription until its end of stored events, and which of the events count.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nostr::prelude::{ClientMessage, Event, EventId, Filter, MatchEventOptions, SubscriptionId};
use tokio::time::Instant;

use super::frame::{Frame, asks_for_auth, refusal, says_bad_request, says_too_much};
use super::pool::Exchange;
use super::websocket::Connection;
use super::{RelayError, Unopened};

/// How long a relay that counts too many subscriptions is given to notice that others were closed.
const CROWDED_PAUSE: Duration = Duration::from_millis(250);

/// Relays search in their own ways (NIP-50 leaves it to them), so what they found is not searched again.
pub(crate) const MATCHING: MatchEventOptions = MatchEventOptions { nip50: false, ..MatchEventOptions::new() };

/// The verified events of one read, from all its relays.
#[derive(Default)]
pub(crate) struct Seen(Mutex<HashMap<EventId, Event>>);

impl Seen {
    /// Takes an event whose id and signature hold; says whether they do. What another relay gave already, to the
    /// last byte, is not verified again.
    fn admit(&self, event: Event) -> bool {
        let known = self.lock().get(&event.id).is_some_and(|known| *known == event);
        if known {
            return true;
        }
        let genuine = event.verify().is_ok();
        if genuine {
            self.lock().entry(event.id).or_insert(event);
        }
        genuine
    }

    /// Every event once, in no order.
    pub(crate) fn into_events(self) -> Vec<Event> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<EventId, Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a read puts its events.
pub(crate) enum Sink<'a> {
    /// Among those of other relays, once verified.
    Verified(&'a Seen),
    /// In a list, as they come.
    AsTheyCome(Vec<Event>),
}

impl Sink<'_> {
    /// Whether the event was taken; `known` says that one of the same id was.
    fn take(&mut self, event: Event, known: bool) -> bool {
        match self {
            Self::Verified(seen) => seen.admit(event),
            Self::AsTheyCome(events) => {
                // A forged event may bear the id of a real one, and hides it not.
                if !known || !events.contains(&event) {
                    events.push(event);
                }
                true
            }
        }
    }
}

/// One relay's part of a read.
pub(crate) struct Read<'a> {
    /// The filters, and whether an event matched them.
    questions: Vec<(&'a Filter, bool)>,
    sink: Sink<'a>,
    max_events: usize,
    until: Instant,
    taken: HashSet<EventId>,
    skipped: usize,
    unread: usize,
    unopened: Vec<(usize, Unopened)>,
}

/// Why a subscription ended early.
enum Ended {
    /// The relay wants us to authenticate.
    Unauthenticated(String),
    /// The relay has too many subscriptions or filters of ours.
    Crowded(String),
    Failed(RelayError),
}

impl From<RelayError> for Ended {
    fn from(error: RelayError) -> Self {
        Self::Failed(error)
    }
}

impl<'a> Read<'a> {
    /// Asks for `filters`; takes at most `max_events` into `sink`.
    pub(crate) fn new(filters: &'a [Filter], sink: Sink<'a>, max_events: usize, until: Instant) -> Self {
        let questions = filters.iter().map(|filter| (filter, false)).collect();
        Self {
            questions,
            sink,
            max_events,
            until,
            taken: HashSet::new(),
            skipped: 0,
            unread: 0,
            unopened: Vec::new(),
        }
    }

    /// Events taken from this relay.
    pub(crate) fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Frames passed over.
    pub(crate) fn skipped(&self) -> usize {
        self.skipped
    }

    /// Those of them that were too large or malformed.
    pub(crate) fn unread(&self) -> usize {
        self.unread
    }

    /// The events, where it took them as they came, and what came between them and was not opened.
    pub(crate) fn into_events(self) -> (Vec<Event>, Vec<(usize, Unopened)>) {
        match self.sink {
            Sink::AsTheyCome(events) => (events, self.unopened),
            Sink::Verified(_) => (Vec::new(), self.unopened),
        }
    }

    /// Asks all `filters` in one subscription. A relay that wants authentication is asked again after it; one that
    /// finds it too much is asked once more, filter by filter.
    async fn ask(&mut self, connection: &mut Connection, filters: Vec<&Filter>) -> Result<(), RelayError> {
        let mut waiting = VecDeque::from([filters]);
        let mut crowded = false;
        while let Some(group) = waiting.front() {
            match self.subscribe(connection, group).await {
                Ok(()) => {
                    waiting.pop_front();
                }
                // Fails on the second time, since a connection authenticates once.
                Err(Ended::Unauthenticated(reason)) => connection.authenticate(&reason, self.until).await?,
                Err(Ended::Crowded(_)) if !crowded => {
                    crowded = true;
                    waiting = group.iter().map(|filter| vec![*filter]).collect();
                    tokio::time::sleep_until(self.until.min(Instant::now() + CROWDED_PAUSE)).await;
                }
                Err(Ended::Crowded(words)) => return Err(RelayError::RateLimited(words)),
                Err(Ended::Failed(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// One subscription, from `REQ` to its end.
    async fn subscribe(&mut self, connection: &mut Connection, filters: &[&Filter]) -> Result<(), Ended> {
        let id = connection.new_subscription();
        let filters: Vec<Filter> = filters.iter().copied().cloned().collect();
        connection.send(&ClientMessage::req(id.clone(), filters), self.until).await?;
        loop {
            match connection.next(self.until).await? {
                Frame::Event { subscription, event } => {
                    self.make_room()?;
                    if subscription != id.as_str() || !self.take(*event) {
                        self.skipped = self.skipped.saturating_add(1);
                    }
                }
                Frame::TooLarge { event, .. } | Frame::Malformed(event) => self.pass_over(event)?,
                Frame::Unreadable => self.pass_over(None)?,
                Frame::Eose(subscription) if subscription == id.as_str() => {
                    self.unsubscribe(connection, id).await;
                    return Ok(());
                }
                Frame::Closed { subscription, reason } if subscription == id.as_str() => {
                    return match reason.as_str() {
                        "" => Ok(()),
                        reason if asks_for_auth(reason) => Err(Ended::Unauthenticated(reason.to_owned())),
                        reason if says_too_much(reason) => Err(Ended::Crowded(reason.to_owned())),
                        reason => Err(refusal(reason).into()),
                    };
                }
                // A notice names no subscription, but this one is the only one we wait for.
                Frame::Notice(words) if says_too_much(&words) => {
                    self.unsubscribe(connection, id).await;
                    return Err(Ended::Crowded(words));
                }
                Frame::Notice(words) if says_bad_request(&words) => {
                    self.unsubscribe(connection, id).await;
                    return Err(RelayError::Rejected(words).into());
                }
                Frame::Eose(_)
                | Frame::Closed { .. }
                | Frame::Ok { .. }
                | Frame::Notice(_)
                | Frame::Auth(_) => {}
            }
        }
    }

    /// Closes a subscription that has its answer; a connection that breaks now is found out at its next use.
    async fn unsubscribe(&self, connection: &mut Connection, id: SubscriptionId) {
        let _ = connection.send(&ClientMessage::close(id), self.until).await;
    }

    /// Counts what is not opened.
    fn pass_over(&mut self, event: Option<Unopened>) -> Result<(), RelayError> {
        self.make_room()?;
        self.skipped = self.skipped.saturating_add(1);
        self.unread = self.unread.saturating_add(1);
        if let (Sink::AsTheyCome(events), Some(event)) = (&self.sink, event) {
            self.unopened.push((events.len(), event));
        }
        Ok(())
    }

    /// Junk counts too: to look at it costs the same.
    fn make_room(&self) -> Result<(), RelayError> {
        if self.taken.len().saturating_add(self.skipped) < self.max_events {
            return Ok(());
        }
        Err(RelayError::Cut(format!("it sent more than {} events", self.max_events)))
    }

    /// Takes the event if it matches a filter and is genuine.
    fn take(&mut self, event: Event) -> bool {
        let matches: Vec<bool> =
            self.questions.iter().map(|(filter, _)| filter.match_event(&event, MATCHING)).collect();
        let id = event.id;
        if !matches.contains(&true) || !self.sink.take(event, self.taken.contains(&id)) {
            return false;
        }
        self.taken.insert(id);
        for ((_, answered), matches) in self.questions.iter_mut().zip(matches) {
            *answered |= matches;
        }
        true
    }
}

impl Exchange for Read<'_> {
    async fn run(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        let all = self.questions.iter().map(|(filter, _)| *filter).collect();
        self.ask(connection, all).await?;
        // Some relays hide what needs authentication instead of saying so: a challenge, then an end without events.
        let silent: Vec<&Filter> =
            self.questions.iter().filter(|(_, answered)| !answered).map(|(filter, _)| *filter).collect();
        if silent.is_empty() {
            return Ok(());
        }
        connection.hear_out(self.until).await;
        if !connection.may_withhold() {
            return Ok(());
        }
        connection.authenticate("nothing is shown without it", self.until).await?;
        self.ask(connection, silent).await
    }
}
