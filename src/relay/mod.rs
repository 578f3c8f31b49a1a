//! The `Relays` port: read from and publish to many relays at once, with one result per relay.
//!
//! The real thing is [`pool::Pool`], our own short-lived client: a sandbox freezes between invocations, so no socket
//! outlives one. What a failed relay means (is the list complete? was the reply delivered?) is decided by the caller.

pub mod address;
mod dial;
mod fetch;
mod frame;
pub mod listen;
pub mod pool;
mod publish;
mod websocket;

pub(crate) use self::fetch::MATCHING;

use std::time::Duration;

use async_trait::async_trait;
use nostr::prelude::{Event, EventId, Filter, Kind, PublicKey, RelayUrl, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

use self::listen::Ear;

/// A relay to talk to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Its normalised URL.
    pub url: RelayUrl,
    /// Whose choice it was.
    pub trust: Trust,
}

/// Whose choice a relay was, and so what it is trusted with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// Ours: from `DIDACTYL_RELAYS` or the agent's own relay lists. May be on loopback; gets AUTH where it asks.
    Own,
    /// From somebody's relay list: only public addresses are dialled, and it never learns the agent's key by AUTH.
    Foreign,
}

/// What came back from a read.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Every event once, id and signature verified, each matching one of the filters. In no order.
    pub events: Vec<Event>,
    /// One report per relay asked, in the order of the targets.
    pub reports: Vec<FetchReport>,
}

impl Fetched {
    /// Whether every relay gave all it has. Only then does the absence of an event mean anything.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.reports.is_empty() && self.reports.iter().all(|r| r.outcome.is_ok())
    }
}

/// One answer of one relay, as it came.
#[derive(Debug)]
pub struct Page {
    /// Events that match one of the filters, in the order in which they came. Neither id nor signature was looked at: an
    /// event that is known already need not cost that again.
    pub events: Vec<Event>,
    /// What came between them and was not opened, each with the number of events before it.
    pub unopened: Vec<(usize, Unopened)>,
    /// What the relay did.
    pub report: FetchReport,
}

/// What is told of an event that was not opened: it is too large, or not an event in all its parts. Nothing of it is
/// verified.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Unopened {
    /// Its id.
    pub id: EventId,
    /// Who is said to have written it.
    pub pubkey: PublicKey,
    /// When.
    pub created_at: Timestamp,
    /// What it is.
    pub kind: Kind,
}

/// What one relay did in a read.
#[derive(Debug)]
pub struct FetchReport {
    /// The relay.
    pub url: RelayUrl,
    /// `Ok` where it said EOSE (or closed the subscription without complaint) within its time and nothing was cut.
    pub outcome: Result<(), RelayError>,
    /// Events taken from it.
    pub events: usize,
    /// Frames and events passed over: forged, malformed, beside the filter, too large.
    pub skipped: usize,
    /// Those of them that were too large or malformed: they may have been what was asked for.
    pub unread: usize,
    /// How long it took.
    pub took: Duration,
}

/// An event to publish, and where.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// The signed event.
    pub event: Event,
    /// The relays that shall have it.
    pub targets: Vec<Target>,
}

/// What one relay said to an event.
#[derive(Debug)]
pub struct PublishReport {
    /// The relay.
    pub url: RelayUrl,
    /// `Ok` where it has the event (`duplicate:` counts).
    pub outcome: Result<(), RelayError>,
    /// How long it took.
    pub took: Duration,
}

/// Why a relay did not do what was asked. The texts are the relay's own words, cut to one short line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The URL or the address behind it may not be dialled.
    #[error("not dialled: {0}")]
    Refused(String),
    /// No connection.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke or the relay broke the protocol.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Its time was up.
    #[error("timed out")]
    Timeout,
    /// Nothing was sent to it: there was no time left.
    #[error("not tried: no time was left")]
    Untried,
    /// It wants AUTH and did not take ours, or must not have it.
    #[error("authentication: {0}")]
    Auth(String),
    /// It asks us to slow down.
    #[error("rate limited: {0}")]
    RateLimited(String),
    /// It will not have this: blocked, invalid, restricted, pow. A retry changes nothing.
    #[error("rejected: {0}")]
    Rejected(String),
    /// It has a newer version of a replaceable event.
    #[error("replaced: {0}")]
    Replaced(String),
    /// It failed on its side.
    #[error("relay error: {0}")]
    Failed(String),
    /// More came than the caps allow; what was taken is good, but not all.
    #[error("cut off: {0}")]
    Cut(String),
}

impl RelayError {
    /// Whether the same would come of the same event again: the relay refuses it, may not be dialled, or must not know us.
    #[must_use]
    pub fn is_for_good(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Auth(_) | Self::Rejected(_) | Self::Replaced(_) => true,
            Self::Connect(_)
            | Self::Lost(_)
            | Self::Timeout
            | Self::Untried
            | Self::RateLimited(_)
            | Self::Failed(_)
            | Self::Cut(_) => false,
        }
    }
}

/// The port.
#[async_trait]
pub trait Relays: Send + Sync {
    /// Asks all `targets` at once for what matches any of `filters`, each until its end of stored events or `until`.
    async fn fetch(&self, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched;

    /// Asks one relay for one answer to `filters`, until its end of stored events or `until`.
    async fn page(&self, target: &Target, filters: &[Filter], until: Instant) -> Page;

    /// Keeps one subscription to `filters` open on one relay and hands on what it tells, until `until` or until nobody
    /// hears it.
    ///
    /// # Errors
    /// Why it ended before.
    async fn subscribe(
        &self,
        target: &Target,
        filters: &[Filter],
        ear: &Ear,
        until: Instant,
    ) -> Result<(), RelayError>;

    /// Sends each event to its targets, all at once; the outer order is that of `outgoing`, the inner one that of
    /// its targets.
    async fn publish(&self, outgoing: &[Outgoing], until: Instant) -> Vec<Vec<PublishReport>>;

    /// What earlier processes know of whether a relay of our own sends challenges (NIP-42): `None` where nobody waited for one
    /// yet. One that may is waited for before it is believed that it has nothing to show.
    fn expect_challenge(&self, _target: &Target, _known: Option<bool>) {}

    /// The same, as it is known now.
    fn sends_challenges(&self, _target: &Target) -> Option<bool> {
        Some(false)
    }

    /// Whether a relay was believed to have nothing to show, and sent its challenge after that.
    fn challenged_late(&self, _target: &Target) -> bool {
        false
    }

    /// Opens connections that a later call will use, so that the handshakes cost no time then. Failures show there.
    async fn open(&self, targets: &[Target], until: Instant);

    /// Closes every connection: the end of an invocation.
    async fn close(&self);
}
