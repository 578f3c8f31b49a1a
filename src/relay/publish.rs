//! Publishing to one relay: the events one behind the other, and what the relay says to each.

use std::borrow::Cow;
use std::time::Duration;

use nostr::prelude::{ClientMessage, Event, EventId};
use tokio::time::Instant;

use super::RelayError;
use super::frame::{Frame, asks_for_auth, refusal};
use super::pool::Exchange;
use super::websocket::Connection;

/// What a relay said to an event, and after how long.
pub(crate) type Verdict = (Result<(), RelayError>, Duration);

/// One relay's part of a publication.
pub(crate) struct Publication<'a> {
    deliveries: Vec<Delivery<'a>>,
    started: Instant,
    until: Instant,
}

struct Delivery<'a> {
    event: &'a Event,
    /// Whether it was last sent on an authenticated connection; `None` where it was not sent.
    authenticated: Option<bool>,
    verdict: Option<Verdict>,
}

impl<'a> Publication<'a> {
    /// Publishes `events`, each named once.
    pub(crate) fn new(events: &[&'a Event], until: Instant) -> Self {
        let delivery = |event: &&'a Event| Delivery { event, authenticated: None, verdict: None };
        Self { deliveries: events.iter().map(delivery).collect(), started: Instant::now(), until }
    }

    /// The verdicts; what the relay left unanswered ends as the exchange itself did. What was not sent when the time was up,
    /// behind something that was, was not tried.
    pub(crate) fn into_verdicts(self, outcome: &Result<(), RelayError>) -> Vec<(EventId, Verdict)> {
        let took = self.started.elapsed();
        let is_open = self.deliveries.iter().any(|delivery| delivery.authenticated.is_some());
        let unanswered = |is_sent: bool| match outcome {
            Err(RelayError::Timeout) if is_open && !is_sent => Err(RelayError::Untried),
            outcome => outcome.clone().and(Err(RelayError::Timeout)),
        };
        let verdict = |delivery: Delivery<'_>| {
            let is_sent = delivery.authenticated.is_some();
            (delivery.event.id, delivery.verdict.unwrap_or_else(|| (unanswered(is_sent), took)))
        };
        self.deliveries.into_iter().map(verdict).collect()
    }

    /// Works on an answer. An event that was refused for want of authentication is sent once more after it.
    async fn answer(
        &mut self,
        connection: &mut Connection,
        id: EventId,
        accepted: bool,
        reason: &str,
    ) -> Result<(), RelayError> {
        let took = self.started.elapsed();
        let pending = |delivery: &&mut Delivery<'_>| delivery.event.id == id && delivery.verdict.is_none();
        let Some(delivery) = self.deliveries.iter_mut().find(pending) else { return Ok(()) };
        let outcome = if accepted || reason.starts_with("duplicate:") {
            Ok(())
        } else if asks_for_auth(reason) && delivery.authenticated != Some(true) {
            match log_in(connection, reason, self.until).await {
                Ok(()) => {
                    delivery.authenticated = Some(true);
                    return connection
                        .send(&ClientMessage::Event(Cow::Borrowed(delivery.event)), self.until)
                        .await;
                }
                // The relay's verdict on us. Anything else is the end of the connection.
                Err(error @ RelayError::Auth(_)) => Err(error),
                Err(error) => return Err(error),
            }
        } else {
            Err(refusal(reason))
        };
        delivery.verdict = Some((outcome, took));
        Ok(())
    }
}

/// Authenticates, unless an event before this one has led to it.
async fn log_in(connection: &mut Connection, reason: &str, until: Instant) -> Result<(), RelayError> {
    if connection.is_authenticated() {
        return Ok(());
    }
    connection.authenticate(reason, until).await
}

impl Exchange for Publication<'_> {
    async fn run(&mut self, connection: &mut Connection) -> Result<(), RelayError> {
        for delivery in &mut self.deliveries {
            let authenticated = connection.is_authenticated();
            connection.send(&ClientMessage::Event(Cow::Borrowed(delivery.event)), self.until).await?;
            delivery.authenticated = Some(authenticated);
        }
        while self.deliveries.iter().any(|delivery| delivery.verdict.is_none()) {
            if let Frame::Ok { id, accepted, reason } = connection.next(self.until).await? {
                self.answer(connection, id, accepted, &reason).await?;
            }
        }
        Ok(())
    }
}
