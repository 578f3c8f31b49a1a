//! How a model names people and events: hex, or the spellings of NIP-19, with or without `nostr:`.

use nostr::prelude::{Coordinate, EventId, FromBech32, Nip19, PublicKey};

use super::ToolError;

/// An event, by what it is or by where its newest version lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EventReference {
    /// `note`, `nevent`, hex.
    Id(EventId),
    /// `naddr`.
    Address(Coordinate),
}

/// A public key.
///
/// # Errors
/// [`ToolError::Model`] that says what is accepted.
pub(super) fn person(text: &str) -> Result<PublicKey, ToolError> {
    if let Ok(key) = PublicKey::from_hex(text) {
        return Ok(key);
    }
    match entity(text)? {
        Some(Nip19::Pubkey(key)) => Ok(key),
        Some(Nip19::Profile(profile)) => Ok(profile.public_key),
        _ => Err(unreadable(text, "a person: npub, nprofile or hex")),
    }
}

/// An event.
///
/// # Errors
/// [`ToolError::Model`] that says what is accepted.
pub(super) fn event(text: &str) -> Result<EventReference, ToolError> {
    if let Ok(id) = EventId::from_hex(text) {
        return Ok(EventReference::Id(id));
    }
    match entity(text)? {
        Some(Nip19::EventId(id)) => Ok(EventReference::Id(id)),
        Some(Nip19::Event(event)) => Ok(EventReference::Id(event.event_id)),
        Some(Nip19::Coordinate(address)) => Ok(EventReference::Address(address.coordinate)),
        _ => Err(unreadable(text, "an event: note, nevent, naddr or hex")),
    }
}

/// A tag's value: what `p`, `e`, `a` and `q` tags hold in hex may be given as NIP-19; anything else stays as it is.
///
/// # Errors
/// [`ToolError::Model`] where a value cannot be what the tag's name says.
pub(super) fn tag_value(name: &str, text: &str) -> Result<String, ToolError> {
    match name {
        "p" | "P" => Ok(person(text)?.to_hex()),
        "e" | "E" => match event(text)? {
            EventReference::Id(id) => Ok(id.to_hex()),
            EventReference::Address(_) => Err(unreadable(text, "an event's id: note, nevent or hex")),
        },
        "a" | "A" => address(text).ok_or_else(|| unreadable(text, "an address: naddr or kind:pubkey:d")),
        // It holds an id or an address (NIP-18).
        "q" => address(text).map_or_else(|| tag_value("e", text), Ok),
        _ => Ok(text.to_owned()),
    }
}

/// `kind:pubkey:d` from that, or from an `naddr`.
fn address(text: &str) -> Option<String> {
    Coordinate::parse(text).ok().map(|address| address.to_string())
}

/// What a NIP-19 text names, if it is one. A secret key is refused, and never quoted: the answer is kept.
fn entity(text: &str) -> Result<Option<Nip19>, ToolError> {
    let text = text.strip_prefix("nostr:").unwrap_or(text);
    if text.to_ascii_lowercase().starts_with("nsec1") {
        return Err(ToolError::Model("that is a secret key; it names nobody and must not be sent".into()));
    }
    Ok(Nip19::from_bech32(text).ok())
}

fn unreadable(text: &str, expected: &str) -> ToolError {
    let shown: String = text.chars().take(80).collect();
    ToolError::Model(format!("`{shown}` is not {expected}"))
}
