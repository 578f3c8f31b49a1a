//! From an event as it came to what is to be done with it.
//!
//! The order of the checks is that of design §1, cheapest first: size and shape; kind; for DMs the receiver; age, where it
//! is certain that what is too old is worth nothing; id and signature; decryption; and then who sent it. Nothing here does
//! I/O: where guests may be answered, [`crate::guests`] decides about them later. Whatever fails is a [`Rejection`] with
//! its reason, and stops no other event.

use std::time::Duration;

use nostr::prelude::{Event, EventId, Kind, PublicKey, RelayUrl, Timestamp};
use serde::Deserialize;

use crate::app::App;
use crate::dm::{self, Content, DmError, Opened};
use crate::events::MAX_AHEAD_SECS;
use crate::hash::is_lower_hex;
use crate::kinds;
use crate::record::dm_trigger_id;
use crate::sweep::subscriptions::{Idle, Subscriptions};
use crate::trigger::{Dm, FixedAnswer, Source, Tier, Trigger};

/// A larger event is dropped unopened.
pub const MAX_EVENT_BYTES: usize = 128 * 1024;

/// How far ahead of our clock a message may be dated.
pub const MAX_AHEAD: Duration = Duration::from_secs(MAX_AHEAD_SECS);

/// Gift wraps bear a random date up to two days early (NIP-59); some clients date them as much ahead.
const WRAP_DATING: Duration = Duration::from_secs(2 * 24 * 60 * 60);

/// What is to be done with an event.
#[derive(Debug)]
pub enum Inbound {
    /// It starts a run.
    Work(Box<Trigger>),
    /// The agent wrote it: it belongs into the conversation and is never work.
    Own(Opened),
    /// An admin's, too old to be work: it belongs into the conversation.
    Past(Opened),
}

/// Why an event starts nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// More than [`MAX_EVENT_BYTES`].
    #[error("the event has more than {MAX_EVENT_BYTES} bytes")]
    TooLarge,
    /// Not the JSON of a signed event.
    #[error("not a signed event")]
    NotAnEvent,
    /// No trigger listens to this kind.
    #[error("events of kind {0} start nothing")]
    UnsupportedKind(u16),
    /// Its `p` tags do not name the agent, and the agent did not write it.
    #[error("the message is not for this agent")]
    NotForUs,
    /// Older than `DIDACTYL_MAX_AGE`.
    #[error("the message is older than DIDACTYL_MAX_AGE")]
    TooOld,
    /// Dated more than [`MAX_AHEAD`] ahead: it may be delivered again when its time has come.
    #[error("the message is dated in the future: deliver it again after its time")]
    TooEarly,
    /// The id is not the hash of the content, or the signature does not hold.
    #[error("the event's id or signature does not hold")]
    Forged,
    /// It is properly signed but cannot be opened, or holds nothing to answer.
    #[error(transparent)]
    Unopened(#[from] DmError),
    /// No skill is fired by it.
    #[error(transparent)]
    Idle(#[from] Idle),
    /// Its sender is of a tier that the agent does not heed.
    #[error("the agent does not heed a sender of tier {}", .0.as_str())]
    NotHeeded(Tier),
}

/// A rejected event: the reason, and which event, where that is known for certain.
#[derive(Debug)]
pub struct Rejected {
    /// Why.
    pub reason: Rejection,
    /// The event's id, or a rumor's, and its time: set only after id and signature held. Such a rejection is final and is
    /// to be recorded.
    pub verified: Option<(EventId, Timestamp)>,
}

impl From<Rejection> for Rejected {
    fn from(reason: Rejection) -> Self {
        Self { reason, verified: None }
    }
}

/// Reads one event.
///
/// # Errors
/// [`Rejected`] where it starts nothing.
pub fn read(app: &App, json: &str, relay: Option<&RelayUrl>) -> Result<Inbound, Rejected> {
    let event = parse(json)?;
    let now = app.clock.now();
    check_envelope(app, &event, now)?;
    event.verify().map_err(|_| Rejection::Forged)?;

    let final_for =
        |id: EventId, reason: Rejection| Rejected { reason, verified: Some((id, event.created_at)) };
    let opened = dm::open(app.keys(), &event).map_err(|error| final_for(event.id, error.into()))?;
    if opened.author == app.agent() {
        return Ok(Inbound::Own(opened));
    }
    // Who is heeded is configuration: the same message may be heeded tomorrow.
    let tier = heeded(app, &opened.author)?;
    if opened.created_at > now + MAX_AHEAD {
        return Err(Rejection::TooEarly.into());
    }
    Ok(in_time(app, opened, tier, relay, now)?)
}

/// What a sweep makes of an event.
#[derive(Debug)]
pub struct Swept {
    /// Whether its id and signature held: only then it need not be looked at again.
    pub genuine: bool,
    /// What is to be done with it.
    pub verdict: Result<Inbound, Rejection>,
}

/// Reads an event that a sweep found. Where a message is pushed whose time has not come, whoever pushed it is told to come
/// again; here it is work that waits for its time.
pub fn sweep(app: &App, event: &Event, relay: Option<&RelayUrl>) -> Swept {
    let now = app.clock.now();
    if let Err(reason) = check_swept(app, event, now) {
        return Swept { genuine: false, verdict: Err(reason) };
    }
    Swept { genuine: true, verdict: open_swept(app, event, relay, now) }
}

/// Reads an event that was found for the skills' subscriptions: by the same rules, whoever showed it.
pub(crate) fn subscribed(app: &App, subscriptions: &Subscriptions, event: &Event) -> Swept {
    let now = app.clock.now();
    let flaw = if event.as_json().len() > MAX_EVENT_BYTES {
        Some(Rejection::TooLarge)
    } else if event.created_at > latest(event.kind, now) {
        Some(Rejection::TooEarly)
    } else {
        event.verify().is_err().then_some(Rejection::Forged)
    };
    let verdict = match flaw {
        Some(reason) => return Swept { genuine: false, verdict: Err(reason) },
        None if is_too_old(app, event.created_at, now) => Err(Rejection::TooOld),
        None => subscriptions.fired_by(event, now).map_err(Rejection::from).map(|skills| {
            let trigger = Trigger::subscription(event.clone(), app.agent(), &app.config.admins, now);
            Inbound::Work(Box::new(trigger.firing(skills)))
        }),
    };
    Swept { genuine: true, verdict }
}

fn check_swept(app: &App, event: &Event, now: Timestamp) -> Result<(), Rejection> {
    if event.as_json().len() > MAX_EVENT_BYTES {
        return Err(Rejection::TooLarge);
    }
    check_kind_and_keys(app, event)?;
    if event.created_at > latest(event.kind, now) {
        return Err(Rejection::TooEarly);
    }
    event.verify().map_err(|_| Rejection::Forged)
}

fn open_swept(
    app: &App,
    event: &Event,
    relay: Option<&RelayUrl>,
    now: Timestamp,
) -> Result<Inbound, Rejection> {
    let opened = dm::open(app.keys(), event)?;
    if opened.author == app.agent() {
        return Ok(Inbound::Own(opened));
    }
    let tier = heeded(app, &opened.author)?;
    if tier < Tier::Admin && opened.created_at > now + MAX_AHEAD {
        return Err(Rejection::TooEarly);
    }
    in_time(app, opened, tier, relay, now)
}

/// A message of a sender who is heeded: work, or history if it is too old. What is kept for an admin, guests could fill the
/// store with.
fn in_time(
    app: &App,
    opened: Opened,
    tier: Tier,
    relay: Option<&RelayUrl>,
    now: Timestamp,
) -> Result<Inbound, Rejection> {
    if !is_too_old(app, opened.created_at, now) {
        return Ok(Inbound::Work(Box::new(trigger(app, opened, tier, relay, now))));
    }
    if tier < Tier::Admin { Err(Rejection::TooOld) } else { Ok(Inbound::Past(opened)) }
}

fn parse(json: &str) -> Result<Event, Rejection> {
    if json.len() > MAX_EVENT_BYTES {
        return Err(Rejection::TooLarge);
    }
    let event = dm::read_object(json).ok_or(Rejection::NotAnEvent)?;
    let spelling: Spelling<'_> = dm::read_object(json).ok_or(Rejection::NotAnEvent)?;
    if spelling.is_canonical() { Ok(event) } else { Err(Rejection::NotAnEvent) }
}

/// The fields that NIP-01 spells in lower-case hex alone. The crate's types read upper case, bech32 and hex with more
/// behind it too, and so would take what no relay takes.
#[derive(Deserialize)]
struct Spelling<'a> {
    id: &'a str,
    pubkey: &'a str,
    sig: &'a str,
}

impl Spelling<'_> {
    fn is_canonical(&self) -> bool {
        is_lower_hex(self.id, 64) && is_lower_hex(self.pubkey, 64) && is_lower_hex(self.sig, 128)
    }
}

/// What can be told without a signature: kind, receiver, age. Of a wrap only its inside tells who wrote it, and when: an
/// old one is opened like a new one, which anybody can send as well.
fn check_envelope(app: &App, event: &Event, now: Timestamp) -> Result<(), Rejection> {
    check_kind_and_keys(app, event)?;
    if event.created_at > latest(event.kind, now) {
        return Err(Rejection::TooEarly);
    }
    let is_kept = |author| author == app.agent() || app.config.admins.contains(&author);
    let tells_author = event.kind != kinds::GIFT_WRAP;
    if tells_author && !is_kept(event.pubkey) && is_too_old(app, event.created_at, now) {
        return Err(Rejection::TooOld);
    }
    Ok(())
}

/// The latest date of an event of this kind whose time has come.
pub(crate) fn latest(kind: Kind, now: Timestamp) -> Timestamp {
    now + MAX_AHEAD.saturating_add(slack(kind))
}

/// By how much the date of an event of this kind may be off on purpose.
fn slack(kind: Kind) -> Duration {
    if kind == kinds::GIFT_WRAP { WRAP_DATING } else { Duration::ZERO }
}

fn check_kind_and_keys(app: &App, event: &Event) -> Result<(), Rejection> {
    if !dm::is_dm(event.kind) {
        return Err(Rejection::UnsupportedKind(event.kind.as_u16()));
    }
    let agent = app.agent();
    let to_agent = dm::receivers(&event.tags).contains(&agent);
    if !to_agent && event.pubkey != agent {
        return Err(Rejection::NotForUs);
    }
    Ok(())
}

/// Whether a message of this time is older than `DIDACTYL_MAX_AGE`.
fn is_too_old(app: &App, created_at: Timestamp, now: Timestamp) -> bool {
    app.config.max_age.is_some_and(|max_age| now - created_at > Timestamp::from(max_age.as_secs()))
}

/// The sender's tier as far as it is told without the agent's state: a guest counts as a stranger until that is known
/// ([`crate::guests::admit`]).
fn heeded(app: &App, author: &PublicKey) -> Result<Tier, Rejection> {
    let tier = if app.config.admins.contains(author) { Tier::Admin } else { Tier::Stranger };
    if tier < Tier::Admin && !app.config.senders.include_guests() {
        return Err(Rejection::NotHeeded(tier));
    }
    Ok(tier)
}

fn trigger(app: &App, opened: Opened, tier: Tier, relay: Option<&RelayUrl>, now: Timestamp) -> Trigger {
    let (id, text, fixed_answer) = match opened.content {
        Content::Text(text) => (dm_trigger_id(&opened.id), text, None),
        Content::File => (dm_trigger_id(&opened.id), String::new(), Some(FixedAnswer::CannotReadFiles)),
        Content::Room => {
            let day = opened.created_at.as_secs() / (24 * 60 * 60);
            (format!("room:{}:{day}", opened.author), String::new(), Some(FixedAnswer::OneToOneOnly))
        }
    };
    Trigger {
        id,
        tier,
        tainted: tier.taints(),
        admin: if tier == Tier::Admin { opened.author } else { app.admin() },
        arrived_at: now,
        source: Source::Dm(Dm {
            peer: opened.peer,
            protocol: opened.protocol,
            message_id: opened.id,
            created_at: opened.created_at,
            text,
            fixed_answer,
            relay: relay.cloned(),
        }),
    }
}
