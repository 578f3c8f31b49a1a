//! The event kinds that the agent knows, each named once (design §3).

use nostr::prelude::Kind;

/// Profile (NIP-01).
pub const PROFILE: Kind = Kind::Custom(0);
/// Note (NIP-01).
pub const NOTE: Kind = Kind::Custom(1);
/// Contacts (NIP-02): an admin's web of trust.
pub const CONTACTS: Kind = Kind::Custom(3);
/// Direct message of NIP-04.
pub const DM_NIP04: Kind = Kind::Custom(4);
/// Deletion request (NIP-09).
pub const DELETION: Kind = Kind::Custom(5);
/// Seal (NIP-59).
pub const SEAL: Kind = Kind::Custom(13);
/// Chat rumor (NIP-17).
pub const CHAT: Kind = Kind::Custom(14);
/// File message rumor (NIP-17).
pub const FILE: Kind = Kind::Custom(15);
/// Gift wrap (NIP-59).
pub const GIFT_WRAP: Kind = Kind::Custom(1059);
/// Mute list (NIP-51).
pub const MUTE_LIST: Kind = Kind::Custom(10000);
/// Relay list (NIP-65).
pub const RELAY_LIST: Kind = Kind::Custom(10002);
/// Relays for private messages (NIP-17).
pub const INBOX_RELAYS: Kind = Kind::Custom(10050);
/// Didactyl's adoption list.
pub const ADOPTION_LIST: Kind = Kind::Custom(10123);
/// Didactyl's soul.
pub const SOUL: Kind = Kind::Custom(31120);
/// Didactyl's public skill.
pub const PUBLIC_SKILL: Kind = Kind::Custom(31123);
/// Didactyl's private skill.
pub const PRIVATE_SKILL: Kind = Kind::Custom(31124);
