//! New versions of what the agent is: a skill, its soul, its adoption list. Each is dated after the version that it
//! replaces and after the agent's own deletion of it, sealed where it is private, and signed.

use nostr::prelude::{Coordinate, Event, EventBuilder, FinalizeEvent, Keys, Tag, Timestamp, nip44};

use crate::events::{self, EventSet, TooFarAhead};
use crate::kinds;
use crate::skill::{Definition, WriteError};

/// The d tag under which we write the soul (design §3).
pub const SOUL_D: &str = "soul";

/// The largest event that we sign, as JSON in bytes: our own readers take little more (`relay::pool::Limits`), and
/// many relays take less.
pub const MAX_EVENT_BYTES: usize = 250_000;

/// Why there is no new version.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// The skill cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// It cannot be dated.
    #[error(transparent)]
    TooFarAhead(#[from] TooFarAhead),
    /// It would not be read again.
    #[error(
        "as an event it has {0} bytes, and at most {MAX_EVENT_BYTES} are read again; shorten or split it"
    )]
    TooLarge(usize),
    /// NIP-44 failed.
    #[error("it cannot be sealed for the agent")]
    Seal,
    /// Signing failed.
    #[error("it cannot be signed")]
    Sign,
}

/// Signs a skill. `known` holds the version that it replaces, and deletions, where there are any.
///
/// # Errors
/// [`VersionError`].
pub fn skill(
    keys: &Keys,
    definition: &Definition,
    known: &EventSet,
    now: Timestamp,
) -> Result<Event, VersionError> {
    let tags = definition.write()?;
    // NIP-44 has no empty plaintext, and there is nothing to hide in it.
    let content = if definition.private && !definition.content.is_empty() {
        nip44::encrypt(keys.secret_key(), &keys.public_key(), &definition.content, nip44::Version::V2)
            .map_err(|_| VersionError::Seal)?
    } else {
        definition.content.clone()
    };
    let address = definition.coordinate(keys.public_key());
    let previous = known.newest_addressable(address.kind, address.public_key, &address.identifier);
    sign(keys, &address, previous, known, now, tags, content)
}

/// Signs the soul. It is dated after the newest soul of any d tag, since that is the one that counts, and keeps its tags.
///
/// # Errors
/// [`VersionError`].
pub fn soul(keys: &Keys, text: &str, known: &EventSet, now: Timestamp) -> Result<Event, VersionError> {
    let agent = keys.public_key();
    let previous = known.newest_of_any_d(kinds::SOUL, agent);
    let kept =
        previous.into_iter().flat_map(|soul| soul.tags.iter()).filter(|tag| tag.kind() != "d").cloned();
    let tags = std::iter::once(Tag::identifier(SOUL_D)).chain(kept).collect();
    let address = Coordinate::new(kinds::SOUL, agent).identifier(SOUL_D);
    sign(keys, &address, previous, known, now, tags, text.to_owned())
}

/// Signs the adoption list with these tags (see [`crate::skill::adoption::write`]); its content stays.
///
/// # Errors
/// [`VersionError`].
pub fn adoption_list(
    keys: &Keys,
    tags: Vec<Tag>,
    known: &EventSet,
    now: Timestamp,
) -> Result<Event, VersionError> {
    let address = Coordinate::new(kinds::ADOPTION_LIST, keys.public_key());
    let previous = known.newest(address.kind, address.public_key);
    let content = previous.map(|list| list.content.clone()).unwrap_or_default();
    sign(keys, &address, previous, known, now, tags, content)
}

fn sign(
    keys: &Keys,
    address: &Coordinate,
    previous: Option<&Event>,
    known: &EventSet,
    now: Timestamp,
    tags: Vec<Tag>,
    content: String,
) -> Result<Event, VersionError> {
    let created_at = events::next_created_at(now, previous, known.deleted_until(address))?;
    let event = EventBuilder::new(address.kind, content)
        .tags(tags)
        .custom_created_at(created_at)
        .finalize(keys)
        .map_err(|_| VersionError::Sign)?;
    match event.as_json().len() {
        bytes if bytes > MAX_EVENT_BYTES => Err(VersionError::TooLarge(bytes)),
        _ => Ok(event),
    }
}
