//! What starts a run. A DM, a tick or a webhook differ only until they are a [`Trigger`]; from there on one path
//! serves them all.

pub mod payload;

use nostr::prelude::{EventId, PublicKey, RelayUrl, Timestamp};
use serde::{Deserialize, Serialize};

/// What started a run, with all that the run needs to know of it. Stored (sealed) with the run's claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// One id from the trigger's content (`dm:` and the event id, or the rumor id for NIP-17): what is claimed.
    pub id: String,
    /// What happened.
    pub source: Source,
    /// What its sender may do.
    pub tier: Tier,
    /// Whether text that nobody trusted wrote takes part in the run.
    pub tainted: bool,
    /// "The admin" of the run: whose profile, history and notices are meant.
    pub admin: PublicKey,
    /// Our clock when it was first seen.
    pub arrived_at: Timestamp,
}

/// The kinds of trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Source {
    /// An encrypted direct message.
    Dm(Dm),
}

/// A direct message, verified and decrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dm {
    /// The other side of the conversation: the author of a message to the agent.
    pub peer: PublicKey,
    /// The protocol it came in, and that the answer goes out in.
    pub protocol: Protocol,
    /// The kind 4 event's id, or the rumor's id as computed by us.
    pub message_id: EventId,
    /// When its author says it was written.
    pub created_at: Timestamp,
    /// The text.
    pub text: String,
    /// Set where the message is answered with a fixed text and never reaches the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
    /// The relay it came from, where that is one of our inbox relays.
    pub relay: Option<RelayUrl>,
}

/// A fixed answer to a heeded sender's message that the agent cannot work (design §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// A file message (kind 15).
    CannotReadFiles,
    /// A room with others; told once a day.
    OneToOneOnly,
}

impl Notice {
    /// What the sender is told.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::CannotReadFiles => "I cannot read files. Please send me text.",
            Self::OneToOneOnly => "I answer one-to-one messages only, not rooms with others.",
        }
    }
}

/// How a direct message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Kind 4 (NIP-04).
    Nip04,
    /// Kind 14 in 13 in 1059 (NIP-17).
    Nip17,
}

/// What a sender may do. Ordered: a higher tier may do all that a lower one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Anybody.
    Stranger,
    /// In an admin's contact list.
    Wot,
    /// One of the keys in `DIDACTYL_ADMIN`.
    Admin,
}

impl Tier {
    /// The name in skills, records and contexts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Wot => "wot",
            Self::Admin => "admin",
        }
    }
}

impl Trigger {
    /// The text that becomes the run's user message.
    #[must_use]
    pub fn message(&self) -> &str {
        match &self.source {
            Source::Dm(dm) => &dm.text,
        }
    }

    /// The other side of the conversation that this trigger belongs to, if any.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        match &self.source {
            Source::Dm(dm) => Some(dm.peer),
        }
    }

    /// When its author says it happened.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        match &self.source {
            Source::Dm(dm) => dm.created_at,
        }
    }
}
