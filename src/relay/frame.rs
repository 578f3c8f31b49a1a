//! What relays send, read leniently: one bad frame says nothing about the next one.
//!
//! Texts of relays are strangers' words that end up in logs and reports, so they are cut to one short line here,
//! where they come in. What a frame means for a read or a publication is left to `fetch` and `publish`.

use nostr::prelude::{Event, EventId, MachineReadablePrefix};
use serde_json::value::RawValue;

use super::{RelayError, Unopened};

/// The most characters of a relay's words that are kept.
const MAX_WORDS: usize = 120;

/// Challenges are random strings; a longer one is something else.
const MAX_CHALLENGE_BYTES: usize = 1024;

/// One frame from a relay (NIP-01, NIP-42), as far as a client that reads and publishes needs it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// An event for a subscription, not verified yet.
    Event {
        /// The subscription it is for.
        subscription: String,
        /// The event.
        event: Box<Event>,
    },
    /// An event that cannot be read as one, with what can be told of it.
    Malformed(Option<Unopened>),
    /// A frame with more bytes than an event may have.
    TooLarge {
        /// How many.
        bytes: usize,
        /// What can be told of the event in it.
        event: Option<Unopened>,
    },
    /// End of stored events.
    Eose(String),
    /// The relay ended a subscription.
    Closed {
        /// The subscription.
        subscription: String,
        /// Why.
        reason: String,
    },
    /// The answer to an `EVENT` or `AUTH`.
    Ok {
        /// The event.
        id: EventId,
        /// Whether it was taken.
        accepted: bool,
        /// Why not.
        reason: String,
    },
    /// Words for people.
    Notice(String),
    /// A challenge to authenticate by.
    Auth(String),
    /// Anything else.
    Unreadable,
}

impl Frame {
    /// Reads a frame; never fails. Of one of more than `max_bytes` only which event it is is looked for.
    pub(crate) fn parse(text: &str, max_bytes: usize) -> Self {
        if text.len() > max_bytes {
            let parts: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            let event = parts.get(2).and_then(|event| glimpse(event.get()));
            return Self::TooLarge { bytes: text.len(), event };
        }
        Self::try_parse(text).unwrap_or(Self::Unreadable)
    }

    fn try_parse(text: &str) -> Option<Self> {
        let parts: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let raw = |index: usize| parts.get(index).map(|part| part.get());
        let string = |index: usize| raw(index).and_then(|part| serde_json::from_str::<String>(part).ok());
        Some(match string(0)?.as_str() {
            "EVENT" => {
                let subscription = string(1)?;
                match Event::from_json(raw(2)?) {
                    Ok(event) => Self::Event { subscription, event: Box::new(event) },
                    Err(_) => Self::Malformed(glimpse(raw(2)?)),
                }
            }
            "EOSE" => Self::Eose(string(1)?),
            "CLOSED" => {
                Self::Closed { subscription: string(1)?, reason: words(&string(2).unwrap_or_default()) }
            }
            "OK" => Self::Ok {
                id: EventId::from_hex(&string(1)?).ok()?,
                accepted: raw(2)? == "true",
                reason: words(&string(3).unwrap_or_default()),
            },
            "NOTICE" => Self::Notice(words(&string(1)?)),
            "AUTH" => Self::Auth(string(1).filter(|challenge| challenge.len() <= MAX_CHALLENGE_BYTES)?),
            _ => return None,
        })
    }
}

/// What can be told of an event that is not read as one.
fn glimpse(json: &str) -> Option<Unopened> {
    serde_json::from_str(json).ok()
}

/// A relay's words as one short line: no control or direction characters, at most 120 characters.
pub(crate) fn words(text: &str) -> String {
    let plain = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let breaks = matches!(c, '\u{2028}' | '\u{2029}');
        if c.is_control() || turns || breaks { ' ' } else { c }
    };
    let line: String = text.trim().chars().take(MAX_WORDS).map(plain).collect();
    line.trim().to_owned()
}

/// Whether an `OK` or `CLOSED` asks for authentication (NIP-42).
pub(crate) fn asks_for_auth(reason: &str) -> bool {
    MachineReadablePrefix::parse(reason) == Some(MachineReadablePrefix::AuthRequired)
}

/// What the reason of an `OK false` or `CLOSED` means, by its prefix (NIP-01, NIP-42).
pub(crate) fn refusal(reason: &str) -> RelayError {
    use MachineReadablePrefix as Prefix;
    let reason = reason.to_owned();
    match MachineReadablePrefix::parse(&reason) {
        Some(Prefix::AuthRequired) => RelayError::Auth(reason),
        Some(Prefix::RateLimited) => RelayError::RateLimited(reason),
        Some(Prefix::Blocked | Prefix::Invalid | Prefix::Pow | Prefix::Restricted | Prefix::Unsupported) => {
            RelayError::Rejected(reason)
        }
        Some(Prefix::Custom(_)) if reason.starts_with("replaced:") => RelayError::Replaced(reason),
        _ => RelayError::Failed(reason),
    }
}

/// Whether a `NOTICE` or `CLOSED` says that we ask too much at once: too many subscriptions, or too many filters in
/// one. There is no prefix for it, only what relays in use say.
pub(crate) fn says_too_much(text: &str) -> bool {
    let text = text.to_lowercase();
    (text.contains("too many") || text.contains("maximum") || text.contains("max "))
        && ["req", "subscription", "filter"].iter().any(|word| text.contains(word))
}

/// Whether a `NOTICE` says that the relay could not read the request: no other answer will come.
pub(crate) fn says_bad_request(text: &str) -> bool {
    text.to_lowercase().contains("bad req")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_are_read_leniently() {
        let id = "00".repeat(32);
        let table = [
            r#"["EOSE","s"]"#.to_owned(),
            r#"["EOSE"]"#.to_owned(),
            r#"["CLOSED","s"]"#.to_owned(),
            r#"["CLOSED","s","blocked: no\r\nforged=log line\u202e"]"#.to_owned(),
            format!(r#"["OK","{id}",true]"#),
            format!(r#"["OK","{id}","true","x",{{"more":1}}]"#),
            r#"["OK","abc",true,""]"#.to_owned(),
            r#"["NOTICE",7]"#.to_owned(),
            r#"["EVENT","s",{"kind":"31120"}]"#.to_owned(),
            format!(r#"["EVENT","s",{{"id":"{id}","pubkey":"{id}","created_at":7,"kind":4,"tags":null}}]"#),
            format!(
                r#"["EVENT","s",{{"content":"{}","id":"{id}","pubkey":"{id}","created_at":7,"kind":4}}]"#,
                "x".repeat(4001)
            ),
            r#"["EVENT",{}]"#.to_owned(),
            r#"["AUTH","c1"]"#.to_owned(),
            format!(r#"["AUTH","{}"]"#, "c".repeat(2000)),
            r#"{"not":"a list"}"#.to_owned(),
            "garbage".to_owned(),
            "g".repeat(4001),
        ];
        let read: Vec<String> = table.iter().map(|text| format!("{:?}", Frame::parse(text, 4000))).collect();
        insta::assert_snapshot!(read.join("\n"), @r#"
        Eose("s")
        Unreadable
        Closed { subscription: "s", reason: "" }
        Closed { subscription: "s", reason: "blocked: no  forged=log line" }
        Ok { id: EventId(0000000000000000000000000000000000000000000000000000000000000000), accepted: true, reason: "" }
        Ok { id: EventId(0000000000000000000000000000000000000000000000000000000000000000), accepted: false, reason: "x" }
        Unreadable
        Unreadable
        Malformed(None)
        Malformed(Some(Unopened { id: EventId(0000000000000000000000000000000000000000000000000000000000000000), pubkey: PublicKey(0000000000000000000000000000000000000000000000000000000000000000), created_at: Timestamp(7), kind: EncryptedDirectMessage }))
        TooLarge { bytes: 4201, event: Some(Unopened { id: EventId(0000000000000000000000000000000000000000000000000000000000000000), pubkey: PublicKey(0000000000000000000000000000000000000000000000000000000000000000), created_at: Timestamp(7), kind: EncryptedDirectMessage }) }
        Unreadable
        Auth("c1")
        Unreadable
        Unreadable
        Unreadable
        TooLarge { bytes: 4001, event: None }
        "#);
    }

    #[test]
    fn a_refusal_says_who_must_act() {
        let table = [
            "auth-required: log in",
            "rate-limited: slow down",
            "blocked: spam",
            "invalid: bad",
            "pow: 20",
            "restricted: members",
            "unsupported: filter",
            "replaced: have newer",
            "error: disk",
            "shutting down",
        ];
        let read: Vec<String> = table.iter().map(|text| refusal(text).to_string()).collect();
        insta::assert_snapshot!(read.join("\n"), @r"
        authentication: auth-required: log in
        rate limited: rate-limited: slow down
        rejected: blocked: spam
        rejected: invalid: bad
        rejected: pow: 20
        rejected: restricted: members
        rejected: unsupported: filter
        replaced: replaced: have newer
        relay error: error: disk
        relay error: shutting down
        ");
    }

    #[test]
    fn asking_too_much_is_known_by_what_relays_say() {
        for text in [
            "ERROR: too many concurrent REQs",
            "ERROR: bad req: too many filters",
            "Too many subscriptions: Number of subscriptions must be less than or equal to 10",
            "Maximum concurrent subscription count reached",
        ] {
            assert!(says_too_much(text), "{text}");
        }
        for text in ["welcome", "too many events per minute", "requests are logged"] {
            assert!(!says_too_much(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_and_words_are_one_short_line(text in r#"\PC{0,200}|\["(EVENT|OK|CLOSED)",.{0,40}\]"#) {
            let _ = Frame::parse(&text, 100);
            let words = words(&text);
            prop_assert!(words.chars().count() <= MAX_WORDS);
            prop_assert!(!words.chars().any(char::is_control));
        }
    }
}
