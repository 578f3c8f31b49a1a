//! Direct messages: opened as they come in (NIP-04, NIP-17), and written as they go out.
//!
//! [`open`] expects an event whose id and signature held. Which senders are heeded is [`crate::inbox`]'s affair, where
//! an answer is sent that of [`crate::publish`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::nips::{nip04, nip44};
use nostr::prelude::{
    Event, EventBuilder, EventId, FinalizeEvent, Keys, Kind, PublicKey, Tag, Tags, Timestamp, UnsignedEvent,
};
use serde::{Deserialize, Serialize};

use crate::kinds;
use crate::letter::Letter;
use crate::trigger::Protocol;

/// A message that was opened: who wrote it to whom, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Who wrote it: the signer of the kind 4 event, or of the seal.
    pub author: PublicKey,
    /// The other key of the conversation: the author, or whom the agent wrote to.
    pub peer: PublicKey,
    /// How it came.
    pub protocol: Protocol,
    /// The kind 4 event's id, or the rumor's id as computed by us.
    pub id: EventId,
    /// When its author says it was written.
    pub created_at: Timestamp,
    /// What it is.
    pub content: Content,
}

/// What a message holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text; never empty.
    Text(String),
    /// A file (kind 15).
    File,
    /// A message to a room: more keys than the agent and one other take part.
    Room,
}

/// Why a message cannot be opened. No text of the message is in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DmError {
    /// Neither to the agent nor by it.
    #[error("the message is not for this agent")]
    NotForUs,
    /// The ciphertext or what is inside is not what the protocol says.
    #[error("malformed DM: {0}")]
    Malformed(&'static str),
    /// Somebody lies about who wrote it.
    #[error("forged DM: {0}")]
    Forged(&'static str),
    /// Nothing to answer.
    #[error("the message is empty")]
    Empty,
    /// A rumor of a kind that starts nothing.
    #[error("a rumor of kind {0} starts nothing")]
    NotAMessage(u16),
}

/// Opens a kind 4 or kind 1059 event.
///
/// # Errors
/// See [`DmError`].
pub fn open(keys: &Keys, event: &Event) -> Result<Opened, DmError> {
    let mut opened =
        if event.kind == kinds::GIFT_WRAP { open_wrap(keys, event) } else { open_nip04(keys, event) }?;
    if let Content::Text(text) = &mut opened.content {
        *text = printable(text);
        if text.trim().is_empty() {
            return Err(DmError::Empty);
        }
    }
    Ok(opened)
}

/// The text without what no client shows, and what takes six bytes for one in JSON, so that a message that may come in
/// would not fit into its row: control characters but newline and tab.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

fn open_nip04(keys: &Keys, event: &Event) -> Result<Opened, DmError> {
    let Some(Parties::Two(peer)) = parties(keys.public_key(), event.pubkey, &receivers(&event.tags)) else {
        return Err(DmError::NotForUs);
    };
    let text = decrypt(keys, &peer, &event.content)?;
    Ok(Opened {
        author: event.pubkey,
        peer,
        protocol: Protocol::Nip04,
        id: event.id,
        created_at: event.created_at,
        content: Content::Text(text),
    })
}

/// NIP-59's three layers: the wrap's signer is random, the seal's is the author, the rumor has no signature.
fn open_wrap(keys: &Keys, wrap: &Event) -> Result<Opened, DmError> {
    let seal = nip44::decrypt(keys.secret_key(), &wrap.pubkey, &wrap.content)
        .map_err(|_| DmError::Malformed("the wrap cannot be decrypted"))?;
    let seal: Event = read_object(&seal).ok_or(DmError::Malformed("the wrap holds no signed event"))?;
    if seal.kind != kinds::SEAL {
        return Err(DmError::Malformed("the wrap holds an event that is not a seal"));
    }
    seal.verify().map_err(|_| DmError::Forged("the seal's signature does not hold"))?;
    let rumor = nip44::decrypt(keys.secret_key(), &seal.pubkey, &seal.content)
        .map_err(|_| DmError::Malformed("the seal cannot be decrypted"))?;
    let rumor = read_rumor(&rumor)?;
    if rumor.pubkey != seal.pubkey {
        return Err(DmError::Forged("the rumor names another author than the seal's signer"));
    }
    open_rumor(keys, rumor)
}

/// What counts of a rumor. Its own `id` and `sig` mean nothing: clients leave them out, empty or wrong, and the id is
/// computed by us.
#[derive(Deserialize)]
struct Rumor {
    pubkey: PublicKey,
    created_at: Timestamp,
    kind: Kind,
    tags: Tags,
    content: String,
}

fn read_rumor(json: &str) -> Result<UnsignedEvent, DmError> {
    let rumor: Rumor = read_object(json).ok_or(DmError::Malformed("the seal holds no rumor"))?;
    Ok(UnsignedEvent::new(rumor.pubkey, rumor.created_at, rumor.kind, rumor.tags, rumor.content))
}

/// Reads a struct from a JSON object; serde alone would take an array of its fields as well.
pub(crate) fn read_object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    if !json.trim_start().starts_with('{') {
        return None;
    }
    serde_json::from_str(json).ok()
}

fn open_rumor(keys: &Keys, rumor: UnsignedEvent) -> Result<Opened, DmError> {
    if rumor.kind != kinds::CHAT && rumor.kind != kinds::FILE {
        return Err(DmError::NotAMessage(rumor.kind.as_u16()));
    }
    let (peer, content) = match parties(keys.public_key(), rumor.pubkey, &receivers(&rumor.tags)) {
        None => return Err(DmError::NotForUs),
        Some(Parties::Room) => (rumor.pubkey, Content::Room),
        Some(Parties::Two(peer)) if rumor.kind == kinds::FILE => (peer, Content::File),
        Some(Parties::Two(peer)) => (peer, Content::Text(readable(keys, &peer, &rumor.content))),
    };
    Ok(Opened {
        author: rumor.pubkey,
        peer,
        protocol: Protocol::Nip17,
        id: rumor.compute_id(),
        created_at: rumor.created_at,
        content,
    })
}

/// Some clients put an encrypted blob into the rumor. The model gets its text, or is told that it cannot be read.
fn readable(keys: &Keys, peer: &PublicKey, content: &str) -> String {
    if !is_nip44(content) && !is_nip04(content) {
        return content.to_owned();
    }
    decrypt(keys, peer, content).unwrap_or_else(|_| "[an encrypted text that cannot be read]".to_owned())
}

/// Decrypts by the shape of the text: some clients put NIP-44 into kind 4.
fn decrypt(keys: &Keys, peer: &PublicKey, content: &str) -> Result<String, DmError> {
    if is_nip44(content) {
        nip44::decrypt(keys.secret_key(), peer, content)
            .map_err(|_| DmError::Malformed("the NIP-44 text cannot be decrypted"))
    } else {
        nip04::decrypt(keys.secret_key(), peer, content)
            .map_err(|_| DmError::Malformed("the NIP-04 text cannot be decrypted"))
    }
}

/// `BASE64?iv=BASE64`.
fn is_nip04(content: &str) -> bool {
    content.split_once("?iv=").is_some_and(|(text, iv)| {
        !text.is_empty()
            && text.bytes().chain(iv.bytes()).all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    })
}

/// Base64 whose first byte is version 2, and at least as long as the shortest payload of NIP-44.
fn is_nip44(content: &str) -> bool {
    const SHORTEST_BYTES: usize = 99;
    BASE64.decode(content).is_ok_and(|bytes| bytes.len() >= SHORTEST_BYTES && bytes.first() == Some(&2))
}

/// The keys of the `p` tags.
pub(crate) fn receivers(tags: &Tags) -> Vec<PublicKey> {
    tags.iter()
        .filter(|tag| tag.kind() == "p")
        .filter_map(|tag| tag.content())
        // The crate reads the first 64 digits of a longer text.
        .filter(|hex| hex.len() == 64)
        .filter_map(|hex| PublicKey::from_hex(hex).ok())
        .collect()
}

/// Who takes part in a message.
enum Parties {
    /// The agent and this key (its own, in a note to itself).
    Two(PublicKey),
    /// More than two keys.
    Room,
}

/// `None` where the agent takes no part. Some clients tag the author too; that makes no room.
fn parties(agent: PublicKey, author: PublicKey, receivers: &[PublicKey]) -> Option<Parties> {
    let mut others = receivers.iter().filter(|key| **key != agent && **key != author);
    let (first, more) = (others.next(), others.next().is_some());
    let to_agent = receivers.contains(&agent);
    match first {
        None if to_agent => Some(Parties::Two(author)),
        Some(peer) if author == agent && !more => Some(Parties::Two(*peer)),
        Some(_) if author == agent || to_agent => Some(Parties::Room),
        _ => None,
    }
}

/// One part of a reply, signed: what the recipient gets, and for NIP-17 the copy that goes to ourselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyPart {
    /// The kind 4 event's id, or the rumor's.
    pub id: EventId,
    /// The text of this part.
    pub text: String,
    /// When we wrote it.
    pub created_at: Timestamp,
    /// For the recipient.
    pub to_peer: Event,
    /// For our other clients (NIP-17 only).
    pub to_self: Option<Event>,
}

impl ReplyPart {
    /// Whether it is sent as this event, to its recipient or to ourselves.
    pub(crate) fn is_sent_as(&self, event: EventId) -> bool {
        self.to_peer.id == event || self.to_self.as_ref().is_some_and(|copy| copy.id == event)
    }
}

/// A reply could not be encrypted or signed; says which step failed, and nothing of the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the reply cannot be {0}")]
pub struct WriteError(&'static str);

impl From<WriteError> for crate::error::Error {
    fn from(error: WriteError) -> Self {
        Self::Permanent(error.to_string())
    }
}

impl ReplyPart {
    /// How it travels.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        if self.to_peer.kind == kinds::DM_NIP04 { Protocol::Nip04 } else { Protocol::Nip17 }
    }
}

/// Writes one part of what goes out as `letter`; what it answers becomes its `e` tag.
///
/// # Errors
/// [`WriteError`], which no text within [`crate::publish::MAX_PART_BYTES`] causes.
pub fn write(keys: &Keys, letter: &Letter, text: &str, now: Timestamp) -> Result<ReplyPart, WriteError> {
    let peer = letter.peer;
    let tags: Vec<Tag> =
        std::iter::once(Tag::public_key(peer)).chain(letter.in_reply_to.map(Tag::event)).collect();
    match letter.protocol {
        Protocol::Nip04 => {
            let content =
                nip04::encrypt(keys.secret_key(), &peer, text).map_err(|_| WriteError("encrypted"))?;
            let event = EventBuilder::new(kinds::DM_NIP04, content)
                .tags(tags)
                .custom_created_at(now)
                .finalize(keys)
                .map_err(|_| WriteError("signed"))?;
            Ok(ReplyPart {
                id: event.id,
                text: text.to_owned(),
                created_at: now,
                to_peer: event,
                to_self: None,
            })
        }
        Protocol::Nip17 => {
            let mut rumor = UnsignedEvent::new(keys.public_key(), now, kinds::CHAT, tags, text);
            let id = rumor.id();
            let wrap = |receiver| {
                GiftWrapBuilder::new(receiver, rumor.clone())
                    .finalize(keys)
                    .map_err(|_| WriteError("wrapped"))
            };
            let to_peer = wrap(peer)?;
            let to_self = wrap(keys.public_key())?;
            Ok(ReplyPart { id, text: text.to_owned(), created_at: now, to_peer, to_self: Some(to_self) })
        }
    }
}

/// Whether a kind is one that [`open`] takes.
#[must_use]
pub fn is_dm(kind: Kind) -> bool {
    kind == kinds::DM_NIP04 || kind == kinds::GIFT_WRAP
}

#[cfg(test)]
mod tests {
    use nostr::nips::nip44::Nonce;
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_803_902_400;

    fn keys(n: u8) -> Keys {
        Keys::parse(&format!("{n:064x}")).unwrap()
    }

    #[test]
    fn a_nip44_text_is_known_by_its_version_whatever_its_nonce() {
        // The first base64 digits hold the version and the nonce's beginning.
        for first in (0..=u8::MAX).step_by(16) {
            let nonce = Nonce::V2([first; 32]);
            let (agent, peer) = (keys(1), keys(2).public_key());
            let sealed = nip44::encrypt_with_nonce(agent.secret_key(), &peer, "hello", nonce).unwrap();
            assert_eq!(readable(&agent, &peer, &sealed), "hello", "{sealed}");
        }
    }

    #[test]
    fn a_plain_text_that_looks_a_little_like_ciphertext_stays_as_it_is() {
        for text in ["Ag", "Agreed", "is this ok?iv=yes, it is", "?iv=abc", "QUJD", &"A".repeat(200)] {
            assert_eq!(readable(&keys(1), &keys(2).public_key(), text), text);
        }
    }

    #[test]
    fn who_takes_part_is_told_by_author_and_p_tags_alone() {
        let [agent, peer, third] = [1, 2, 3].map(|n| keys(n).public_key());
        let table = [
            (peer, vec![agent], "2 peer"),
            (peer, vec![agent, peer, agent], "2 peer"),
            (peer, vec![agent, third], "room"),
            (peer, vec![third], "none"),
            (peer, vec![peer], "none"),
            (peer, vec![], "none"),
            (agent, vec![peer], "2 peer"),
            (agent, vec![peer, agent], "2 peer"),
            (agent, vec![agent], "2 agent"),
            (agent, vec![peer, third], "room"),
            (agent, vec![], "none"),
        ];
        for (author, receivers, expected) in table {
            let found = match parties(agent, author, &receivers) {
                Some(Parties::Two(key)) if key == peer => "2 peer",
                Some(Parties::Two(key)) if key == agent => "2 agent",
                Some(Parties::Two(_)) => "2 others",
                Some(Parties::Room) => "room",
                None => "none",
            };
            assert_eq!(found, expected, "{author} to {receivers:?}");
        }
    }

    #[test]
    fn a_file_and_a_room_are_told_apart_from_a_text() {
        let (agent, peer) = (keys(1), keys(2));
        let open = |kind: Kind, tags: &[&Keys]| {
            let tags = tags.iter().map(|keys| Tag::public_key(keys.public_key()));
            let rumor = UnsignedEvent::new(peer.public_key(), Timestamp::from(NOW), kind, tags, "text");
            let wrap = GiftWrapBuilder::new(agent.public_key(), rumor).finalize(&peer).unwrap();
            super::open(&agent, &wrap).unwrap().content
        };
        assert_eq!(open(kinds::CHAT, &[&agent]), Content::Text("text".to_owned()));
        assert_eq!(open(kinds::FILE, &[&agent]), Content::File);
        assert_eq!(open(kinds::CHAT, &[&agent, &keys(3)]), Content::Room);
        assert_eq!(open(kinds::FILE, &[&agent, &keys(3)]), Content::Room);
    }

    #[test]
    fn a_struct_is_read_from_an_object_alone() {
        let rumor = format!(r#"["{}",1,14,[],"text"]"#, keys(2).public_key());
        assert!(serde_json::from_str::<Rumor>(&rumor).is_ok(), "serde itself takes the list");
        assert!(read_object::<Rumor>(&rumor).is_none());
    }

    proptest! {
        #[test]
        fn what_is_written_is_opened_by_the_recipient_and_by_ourselves(
            text in "\\PC{1,200}",
            protocol in prop_oneof![Just(Protocol::Nip04), Just(Protocol::Nip17)],
            answers: bool,
        ) {
            prop_assume!(!text.trim().is_empty());
            let (agent, peer) = (keys(1), keys(2));
            let now = Timestamp::from(NOW);
            let in_reply_to = answers.then(|| EventId::from_byte_array([7; 32]));
            let letter = Letter { in_reply_to, ..Letter::new(peer.public_key(), protocol) };
            let part = write(&agent, &letter, &text, now).unwrap();
            prop_assert_eq!(part.protocol(), protocol);
            let expected = Opened {
                author: agent.public_key(),
                peer: peer.public_key(),
                protocol,
                id: part.id,
                created_at: now,
                content: Content::Text(text),
            };
            let ours = part.to_self.as_ref().unwrap_or(&part.to_peer);
            prop_assert_eq!(&open(&agent, ours).unwrap(), &expected);
            let theirs = open(&peer, &part.to_peer).unwrap();
            prop_assert_eq!(theirs, Opened { peer: agent.public_key(), ..expected });
            prop_assert!(part.to_peer.verify().is_ok());
        }
    }
}
