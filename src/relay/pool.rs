//! Many relays at once: who is asked, over which connection, and what each of them did.
//!
//! A connection is taken out of the pool, used by one exchange, and put back if it is in order, so nothing on it can
//! be mistaken for the answer to something else. There are no tasks in the background: between two calls the pool
//! does nothing, and a sandbox may freeze.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use nostr::prelude::{Event, EventId, Filter, Keys};
use tokio::time::{Instant, timeout};

use super::dial::{Challenger, Dialer};
use super::fetch::{Read, Seen, Sink};
use super::listen::{Ear, Subscription};
use super::publish::{Publication, Verdict};
use super::websocket::Connection;
use super::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target, Trust};

/// How long closing may take, all connections together.
const CLOSE_TIME: Duration = Duration::from_millis(250);

/// What one relay may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Larger frames are skipped, so an event is a few bytes smaller than this.
    pub max_event_bytes: usize,
    /// Larger frames end the connection: they are not even read, since a frame is held in memory as a whole. Many times what
    /// relays take, since one that a relay gives would hide all behind it.
    pub max_frame_bytes: usize,
    /// The most events, good and bad, in one read.
    pub max_events: usize,
    /// The same in one page, which may hold what several filters ask for.
    pub max_page_events: usize,
    /// The most bytes in one read, and of the live events of one subscription.
    pub max_bytes: usize,
    /// The most bytes before a subscription's live events. More, since relays may ignore `limit`; nothing of it is kept.
    pub max_stored_bytes: usize,
    /// For name, TCP, TLS and WebSocket together.
    pub connect_timeout: Duration,
    /// For a read, connecting included.
    pub fetch_timeout: Duration,
    /// For a publication, connecting included: a relay that never says OK must not hold up what follows.
    pub publish_timeout: Duration,
    /// For a challenge to come and our answer to be taken.
    pub auth_timeout: Duration,
    /// How long the very first read of a relay waits for a challenge behind all else that it says; at least for one more
    /// round trip.
    pub first_challenge_timeout: Duration,
    /// How long a connection that is listened to may say nothing. Then it is asked whether it lives, and given up where it
    /// says nothing to that for as long.
    pub max_silence: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_event_bytes: 256 * 1024,
            max_frame_bytes: 8 * 1024 * 1024,
            max_events: 1000,
            max_page_events: 2500,
            max_bytes: 16 * 1024 * 1024,
            max_stored_bytes: 32 * 1024 * 1024,
            connect_timeout: Duration::from_secs(5),
            fetch_timeout: Duration::from_secs(10),
            publish_timeout: Duration::from_secs(6),
            auth_timeout: Duration::from_secs(3),
            first_challenge_timeout: Duration::from_millis(250),
            max_silence: Duration::from_secs(45),
        }
    }
}

/// One thing done over one connection.
pub(crate) trait Exchange: Send {
    /// Does it. May be called again, with another connection, where the first one turned out to be dead.
    fn run(&mut self, connection: &mut Connection) -> impl Future<Output = Result<(), RelayError>> + Send;
}

/// The relays, over WebSockets.
pub struct Pool {
    dialer: Arc<Dialer>,
    /// At most one per relay. The lock is never held across an await.
    idle: Mutex<HashMap<Target, Connection>>,
}

impl Pool {
    /// An empty pool. `keys` sign the `AUTH` for relays of our own that ask for it.
    #[must_use]
    pub fn new(keys: Keys, limits: Limits) -> Self {
        Self::over(Dialer::new(Some(keys), limits))
    }

    /// An empty pool that authenticates to nobody.
    #[must_use]
    pub fn without_key(limits: Limits) -> Self {
        Self::over(Dialer::new(None, limits))
    }

    fn over(dialer: Dialer) -> Self {
        Self { dialer: Arc::new(dialer), idle: Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<Target, Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an exchange over an idle connection or a new one. An idle one may have died unnoticed: if it breaks
    /// before any answer, a new one is tried.
    async fn exchange(
        &self,
        target: &Target,
        until: Instant,
        exchange: &mut impl Exchange,
    ) -> Result<(), RelayError> {
        let idle = self.idle().remove(target);
        if let Some(mut connection) = idle {
            connection.renew();
            let outcome = exchange.run(&mut connection).await;
            let dead = matches!(outcome, Err(RelayError::Lost(_))) && !connection.has_answered();
            if !dead {
                self.keep(connection, &outcome);
                return outcome;
            }
        }
        let mut connection = self.dialer.connect(target, until).await?;
        let outcome = exchange.run(&mut connection).await;
        self.keep(connection, &outcome);
        outcome
    }

    /// Puts a connection back, unless something may still come that belongs to this exchange.
    fn keep(&self, connection: Connection, outcome: &Result<(), RelayError>) {
        let in_order = match outcome {
            Ok(()) => true,
            // The relay's own last word.
            Err(
                RelayError::Auth(_)
                | RelayError::RateLimited(_)
                | RelayError::Rejected(_)
                | RelayError::Replaced(_)
                | RelayError::Failed(_),
            ) => true,
            Err(
                RelayError::Refused(_)
                | RelayError::Connect(_)
                | RelayError::Lost(_)
                | RelayError::Timeout
                | RelayError::Untried
                | RelayError::Cut(_),
            ) => false,
        };
        if in_order && !connection.is_unanswered() {
            self.idle().insert(connection.target().clone(), connection);
        }
    }

    /// Carries a read out, and tells what the relay did.
    async fn read(&self, target: &Target, until: Instant, read: &mut Read<'_>) -> FetchReport {
        let started = Instant::now();
        let outcome = self.exchange(target, until, read).await;
        FetchReport {
            url: target.url.clone(),
            outcome,
            events: read.taken(),
            skipped: read.skipped(),
            unread: read.unread(),
            took: started.elapsed(),
        }
    }

    async fn fetch_one(
        &self,
        target: &Target,
        filters: &[Filter],
        until: Instant,
        seen: &Seen,
    ) -> FetchReport {
        let limits = self.dialer.limits();
        let until = until.min(Instant::now() + limits.fetch_timeout);
        let mut read = Read::new(filters, Sink::Verified(seen), limits.max_events, until);
        self.read(target, until, &mut read).await
    }

    async fn publish_to(
        &self,
        target: &Target,
        events: &[&Event],
        until: Instant,
    ) -> Vec<(EventId, Verdict)> {
        let until = until.min(Instant::now() + self.dialer.limits().publish_timeout);
        let mut publication = Publication::new(events, until);
        if Instant::now() >= until {
            return publication.into_verdicts(&Err(RelayError::Untried));
        }
        let outcome = self.exchange(target, until, &mut publication).await;
        publication.into_verdicts(&outcome)
    }
}

#[async_trait]
impl Relays for Pool {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched {
        let seen = Seen::default();
        let mut relays: Vec<&Target> = Vec::new();
        for target in targets {
            if !relays.contains(&target) {
                relays.push(target);
            }
        }
        let reads = relays.into_iter().map(|target| self.fetch_one(target, filters, until, &seen));
        let reports = join_all(reads).await;
        Fetched { events: seen.into_events(), reports }
    }

    async fn page(&self, target: &Target, filters: &[Filter], until: Instant) -> Page {
        let limits = self.dialer.limits();
        let until = until.min(Instant::now() + limits.fetch_timeout);
        let mut read = Read::new(filters, Sink::AsTheyCome(Vec::new()), limits.max_page_events, until);
        let report = self.read(target, until, &mut read).await;
        let (events, unopened) = read.into_events();
        Page { events, unopened, report }
    }

    async fn subscribe(
        &self,
        target: &Target,
        filters: &[Filter],
        ear: &Ear,
        until: Instant,
    ) -> Result<(), RelayError> {
        let mut subscription = Subscription::new(filters, ear, self.dialer.limits(), until);
        self.exchange(target, until, &mut subscription).await
    }

    async fn publish(&self, outgoing: &[Outgoing], until: Instant) -> Vec<Vec<PublishReport>> {
        // One connection per relay, so first all that it shall have.
        let mut mail: HashMap<&Target, Vec<&Event>> = HashMap::new();
        for Outgoing { event, targets } in outgoing {
            for target in targets {
                let events = mail.entry(target).or_default();
                if !events.iter().any(|other| other.id == event.id) {
                    events.push(event);
                }
            }
        }
        let posts = mail.iter().map(|(target, events)| async move {
            let verdicts = self.publish_to(target, events, until).await;
            verdicts.into_iter().map(|(id, verdict)| ((*target, id), verdict)).collect::<Vec<_>>()
        });
        let verdicts: HashMap<(&Target, EventId), Verdict> =
            join_all(posts).await.into_iter().flatten().collect();

        let report = |target: &Target, event: &Event| {
            let verdict = verdicts.get(&(target, event.id)).cloned();
            let (outcome, took) = verdict.unwrap_or((Err(RelayError::Timeout), Duration::ZERO));
            PublishReport { url: target.url.clone(), outcome, took }
        };
        outgoing
            .iter()
            .map(|out| out.targets.iter().map(|target| report(target, &out.event)).collect())
            .collect()
    }

    fn expect_challenge(&self, target: &Target, known: Option<bool>) {
        let mut challengers = self.dialer.challengers();
        match known {
            // A foreign relay never learns who we are: it is not waited for.
            _ if target.trust == Trust::Foreign => {}
            Some(true) => drop(challengers.insert(target.clone(), Challenger::Known)),
            None => drop(challengers.entry(target.clone()).or_insert(Challenger::Possible)),
            // This process may know better.
            Some(false) => {}
        }
    }

    fn sends_challenges(&self, target: &Target) -> Option<bool> {
        self.idle().get_mut(target).map(Connection::catch_up);
        match self.dialer.challengers().get(target) {
            Some(Challenger::Known) => Some(true),
            Some(Challenger::Possible) => None,
            None => Some(false),
        }
    }

    fn challenged_late(&self, target: &Target) -> bool {
        self.idle().get_mut(target).is_some_and(|connection| {
            connection.catch_up();
            connection.was_believed_too_early()
        })
    }

    async fn open(&self, targets: &[Target], until: Instant) {
        let dial = |target: &Target| {
            let (dialer, target) = (Arc::clone(&self.dialer), target.clone());
            let known = self.idle().contains_key(&target);
            // Each is kept as soon as it is there: whoever waits for all of them may give up first.
            async move {
                if !known && let Ok(connection) = dialer.connect(&target, until).await {
                    self.keep(connection, &Ok(()));
                }
            }
        };
        join_all(targets.iter().map(dial)).await;
    }

    async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle());
        let goodbyes = join_all(idle.into_values().map(Connection::close));
        // Whoever does not take our goodbye in time finds the connection gone.
        let _ = timeout(CLOSE_TIME, goodbyes).await;
    }
}
