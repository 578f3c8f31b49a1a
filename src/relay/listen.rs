//! A subscription that stays open: what one connection hands on, and how it is opened again where it breaks.

use std::time::Duration;

use nostr::prelude::{ClientMessage, Event, Filter, MatchEventOptions, RelayUrl, SubscriptionId};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::frame::{Frame, asks_for_auth, refusal, says_bad_request, says_too_much};
use super::pool::{Exchange, Limits};
use super::websocket::Connection;
use super::{RelayError, Relays, Target};

/// How long a subscription that broke is left alone, the first time; each time twice as long,
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// and never longer than this. One that lasted so long was in order.
const LONGEST_DELAY: Duration = Duration::from_secs(60);

/// For how much of what a relay has already a subscription asks: so little that the largest frames stay within
/// [`Limits::max_stored_bytes`], else whoever fills a relay with large events would keep everybody from hearing it.
pub const MAX_STORED: usize = 30;

/// What a subscription tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// An event that matches one of the filters. Neither id nor signature was looked at.
    Event(Box<Event>),
    /// What was there before the subscription has been told: what follows is new.
    EndOfStored,
    /// It is open, and the relay may hold back what it shows only to those who authenticate.
    MayWithhold(RelayError),
    /// It broke; it is opened again.
    Broken(RelayError),
}

/// Where subscriptions say what they hear, with the relay that said it.
pub type Ear = Sender<(RelayUrl, Heard)>;

/// Keeps a subscription open on `target` until `until`, or until nobody hears what it tells. Where it breaks it is opened
/// again, each time after a longer wait: a relay that floods, and so is cut off, is heard at that pace alone.
///
/// `filters` hears how often in a row the relay was cut off, and is to look back half as far each time: else one that heeds no
/// `limit` would never come to what is new.
pub async fn listen(
    relays: &dyn Relays,
    target: &Target,
    filters: impl Fn(u32) -> Vec<Filter>,
    ear: &Ear,
    until: Instant,
) {
    let (mut delay, mut cuts) = (FIRST_DELAY, 0);
    loop {
        let begun = Instant::now();
        let Err(error) = relays.subscribe(target, &filters(cuts), ear, until).await else { return };
        if Instant::now() >= until {
            return;
        }
        if begun.elapsed() >= LONGEST_DELAY {
            (delay, cuts) = (FIRST_DELAY, 0);
        } else if matches!(error, RelayError::Cut(_)) {
            cuts = cuts.saturating_add(1);
        }
        let again = Instant::now() + delay;
        let told = ear.send((target.url.clone(), Heard::Broken(error))).await;
        if told.is_err() || again >= until {
            return;
        }
        sleep_until(again).await;
        delay = delay.saturating_mul(2).min(LONGEST_DELAY);
    }
}

/// A subscription on one connection.
pub(crate) struct Subscription<'a> {
    filters: &'a [Filter],
    ear: &'a Ear,
    until: Instant,
    /// Events that it handed on or passed over, stored and live ones each for themselves: there is room for so many.
    events: usize,
    limits: &'a Limits,
    /// Of the current subscription: whether it showed anything, and whether its stored events are over.
    shown: bool,
    stored_told: bool,
}

impl<'a> Subscription<'a> {
    /// A subscription to `filters` that ends at `until`, and with an error where it is beyond `limits`.
    pub(crate) fn new(filters: &'a [Filter], ear: &'a Ear, limits: &'a Limits, until: Instant) -> Self {
        Self { filters, ear, until, events: 0, limits, shown: false, stored_told: false }
    }

    async fn open(&mut self, connection: &mut Connection) -> Result<SubscriptionId, RelayError> {
        (self.shown, self.stored_told) = (false, false);
        self.allow(connection, self.limits.max_stored_bytes);
        let id = connection.new_subscription();
        connection.send(&ClientMessage::req(id.clone(), self.filters.to_vec()), self.until).await?;
        Ok(id)
    }

    /// The next frame; `None` when the time is up.
    async fn next(&self, connection: &mut Connection) -> Result<Option<Frame>, RelayError> {
        let mut asked_at = None;
        loop {
            let quiet_since = asked_at.unwrap_or_else(|| connection.heard_at());
            match connection.next((quiet_since + self.limits.max_silence).min(self.until)).await {
                Ok(frame) => return Ok(Some(frame)),
                Err(RelayError::Timeout) if Instant::now() >= self.until => return Ok(None),
                Err(RelayError::Timeout) => {}
                Err(error) => return Err(error),
            }
            asked_at = match asked_at {
                Some(at) if connection.heard_at() < at => {
                    return Err(RelayError::Lost("it says nothing any more".into()));
                }
                Some(_) => None,
                None => {
                    let now = Instant::now();
                    connection.ping(self.until).await?;
                    Some(now)
                }
            };
        }
    }

    /// Hands something on; whether anybody still hears.
    async fn tell(&self, connection: &Connection, heard: Heard) -> bool {
        let told = self.ear.send((connection.target().url.clone(), heard));
        matches!(timeout_at(self.until, told).await, Ok(Ok(())))
    }

    /// What a relay does that hides what needs authentication: a challenge, then an end without events. Where we cannot
    /// authenticate, what it shows is heard as it is.
    async fn uncover(
        &mut self,
        connection: &mut Connection,
        id: SubscriptionId,
    ) -> Result<SubscriptionId, RelayError> {
        match connection.authenticate("nothing is shown without it", self.until).await {
            Ok(()) => {
                connection.send(&ClientMessage::close(id), self.until).await?;
                self.open(connection).await
            }
            Err(error @ RelayError::Auth(_)) => {
                // Told once in a subscription.
                self.shown = true;
                self.tell(connection, Heard::MayWithhold(error)).await;
                Ok(id)
            }
            Err(error) => Err(error),
        }
    }

    /// What was received counts no longer; of what follows, so many bytes may come.
    fn allow(&mut self, connection: &mut Connection, max_bytes: usize) {
        self.events = 0;
        connection.allow(max_bytes);
    }

    fn make_room(&mut self) -> Result<(), RelayError> {
        self.events = self.events.saturating_add(1);
        let max = self.limits.max_events;
        if self.events <= max {
            Ok(())
        } else {
            Err(RelayError::Cut(format!("it sent more than {max} events")))
        }
    }
}

/// Closes a subscription; a connection that breaks now is found out at its next use.
async fn unsubscribe(connection: &mut Connection, id: SubscriptionId) {
    let _ = connection.send(&ClientMessage::close(id), Instant::now() + FIRST_DELAY).await;
}

/// Why a relay ended a subscription.
fn closed(reason: &str) -> RelayError {
    if reason.is_empty() { RelayError::Failed("it closed the subscription".into()) } else { refusal(reason) }
}

impl Exchange for Subscription<'_> {
    async fn run(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        let mut id = self.open(connection).await?;
        while let Some(frame) = self.next(connection).await? {
            match frame {
                Frame::Event { subscription, event } => {
                    self.make_room()?;
                    let matches = |filter: &Filter| filter.match_event(&event, MatchEventOptions::new());
                    if subscription == id.as_str() && self.filters.iter().any(matches) {
                        self.shown = true;
                        if !self.tell(connection, Heard::Event(event)).await {
                            break;
                        }
                    }
                }
                Frame::TooLarge { .. } | Frame::Malformed(_) | Frame::Unreadable => self.make_room()?,
                Frame::Eose(subscription) if subscription == id.as_str() => {
                    if !self.stored_told {
                        self.stored_told = true;
                        self.allow(connection, self.limits.max_bytes);
                    }
                    if !self.tell(connection, Heard::EndOfStored).await {
                        break;
                    }
                }
                Frame::Closed { subscription, reason } if subscription == id.as_str() => {
                    if !asks_for_auth(&reason) {
                        return Err(closed(&reason));
                    }
                    // Fails on the second time, since a connection authenticates once.
                    connection.authenticate(&reason, self.until).await?;
                    id = self.open(connection).await?;
                }
                // A notice names no subscription: this one may live on.
                Frame::Notice(words) if says_too_much(&words) => {
                    unsubscribe(connection, id).await;
                    return Err(RelayError::RateLimited(words));
                }
                Frame::Notice(words) if says_bad_request(&words) => {
                    unsubscribe(connection, id).await;
                    return Err(RelayError::Rejected(words));
                }
                Frame::Eose(_)
                | Frame::Closed { .. }
                | Frame::Ok { .. }
                | Frame::Notice(_)
                | Frame::Auth(_) => {}
            }
            if self.stored_told && !self.shown && connection.may_withhold() {
                id = self.uncover(connection, id).await?;
            }
        }
        unsubscribe(connection, id).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_of_the_stored_events_is_never_too_much() {
        let limits = Limits::default();
        assert!(MAX_STORED * limits.max_event_bytes < limits.max_stored_bytes);
        assert!(MAX_STORED < limits.max_events);
    }
}
