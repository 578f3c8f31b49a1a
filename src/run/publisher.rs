//! How a tool's event goes out: dated, signed, saved under its call, and only then sent.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use async_trait::async_trait;
use nostr::prelude::{Coordinate, Event, EventBuilder, EventId, Filter, FinalizeEvent, Timestamp};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::app::App;
use crate::error::Error;
use crate::events::{next_created_at, supersedes};
use crate::load;
use crate::record::Delivery;
use crate::record::delivery::{self, Sending};
use crate::relay::{Outgoing, PublishReport};
use crate::run::driver::Driver;
use crate::store::keys::Place;
use crate::tools::{Draft, Publisher, ToolError};

/// Publishes for one tool call: the event is in the journal before any relay sees it.
pub(super) struct CallPublisher<'a> {
    pub(super) driver: &'a Driver<'a>,
    /// Where in the journal the event lies.
    pub(super) place: Place,
    /// The event that an earlier attempt signed.
    pub(super) saved: Option<&'a Event>,
    /// When the call must have ended.
    pub(super) until: Instant,
    /// The event that it sends, once it does.
    pub(super) sent: OnceLock<EventId>,
}

/// The newest version of each address that a run has published. Held while a new version is dated, so that two calls of
/// one turn cannot date theirs alike.
pub(super) type Versions = Mutex<BTreeMap<Coordinate, Event>>;

#[async_trait]
impl Publisher for CallPublisher<'_> {
    async fn publish(&self, draft: Draft) -> Result<(Event, Vec<PublishReport>), ToolError> {
        let driver = self.driver;
        let event = match self.saved {
            Some(event) => event.clone(),
            None => self.sign_and_save(draft).await?,
        };
        let outgoing = Outgoing { event, targets: load::write_targets(driver.app, driver.state) };
        self.sent.get_or_init(|| outgoing.event.id);
        self.note_sending(&outgoing).await;
        let reports = driver.app.relays.publish(std::slice::from_ref(&outgoing), self.until).await;
        let reports = reports.into_iter().next().unwrap_or_default();
        self.note(&outgoing.event, &reports).await;
        Ok((outgoing.event, reports))
    }
}

impl CallPublisher<'_> {
    /// What relays said to the event of the call, as far as is known.
    pub(super) async fn deliveries(&self) -> Vec<Delivery> {
        match self.sent.get() {
            Some(event) => delivery::of_event(&self.driver.deliveries.lock().await, *event),
            None => Vec::new(),
        }
    }

    /// A call that is broken off while it sends leaves the rest to the outbox.
    async fn note_sending(&self, outgoing: &Outgoing) {
        let (event, now) = (outgoing.event.id, self.driver.app.clock.now());
        delivery::note_sending(&mut *self.driver.deliveries.lock().await, event, &outgoing.targets, now);
    }

    async fn note(&self, event: &Event, reports: &[PublishReport]) {
        let now = self.driver.app.clock.now();
        let sent = Sending { event: event.id, written_at: event.created_at, is_public: true };
        let mut deliveries = self.driver.deliveries.lock().await;
        delivery::note(&mut deliveries, sent, reports, now, |deliveries| {
            delivery::is_anywhere(deliveries, event.id)
        });
    }

    async fn sign_and_save(&self, draft: Draft) -> Result<Event, ToolError> {
        let driver = self.driver;
        let now = driver.app.clock.now();
        let Some(address) = draft.address(driver.app.agent()) else {
            let event = sign(driver.app, draft, now)?;
            driver.append(self.place, &event).await?;
            return Ok(event);
        };
        let mut versions = driver.versions.lock().await;
        let previous = match versions.get(&address) {
            Some(event) => Some(event.clone()),
            None => self.newest_on_relays(&address).await,
        };
        let deletion = driver.state.events.deleted_until(&address);
        let created_at = next_created_at(now, previous.as_ref(), deletion)
            .map_err(|error| ToolError::Model(error.to_string()))?;
        let event = sign(driver.app, draft, created_at)?;
        driver.append(self.place, &event).await?;
        versions.insert(address, event.clone());
        Ok(event)
    }

    /// The version that a new one replaces, as far as our relays tell.
    async fn newest_on_relays(&self, address: &Coordinate) -> Option<Event> {
        let driver = self.driver;
        let filter =
            Filter::new().kind(address.kind).author(address.public_key).identifier(&address.identifier);
        let fetched = driver.app.relays.fetch(&driver.read_targets, &[filter], self.until).await;
        fetched.events.into_iter().reduce(|a, b| if supersedes(&a, &b) { a } else { b })
    }
}

fn sign(app: &App, draft: Draft, created_at: Timestamp) -> Result<Event, ToolError> {
    EventBuilder::new(draft.kind, draft.content)
        .tags(draft.tags)
        .custom_created_at(created_at)
        .finalize(app.keys())
        .map_err(|_| ToolError::Run(Error::Permanent("the agent's key cannot sign an event".to_owned())))
}
