//! The conversation with one peer: one sealed row per message, whichever protocol it travelled by, and nothing but input
//! for the context. What is here is never sent.

use std::collections::HashSet;

use nostr::prelude::{Event, EventId, Filter, PublicKey, Timestamp};
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::chat::Role;
use crate::commands::Command;
use crate::context::HistoryMessage;
use crate::dm::{self, Content, Opened, ReplyPart};
use crate::error::Error;
use crate::kinds;
use crate::letter::Letter;
use crate::store::{Key, Write, keys};
use crate::trigger::{Protocol, Source, Trigger};

/// The most messages of one kind that a first read of a conversation asks for.
const FIRST_READ_LIMIT: usize = 100;

/// One message of a conversation, as stored (sealed).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMessage {
    /// The kind 4 event's id, or the rumor's.
    pub id: EventId,
    /// Written by the agent, or by its peer.
    pub from_agent: bool,
    /// How it travelled.
    pub protocol: Protocol,
    /// When its author says it was written.
    pub created_at: Timestamp,
    /// Our clock when we first saw it.
    pub arrived_at: Timestamp,
    /// The text.
    pub text: String,
    /// Whether a run of this store wrote it: an answer to that run's message, and to no other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_run: bool,
    /// Whether it is the answer to a command: no part of what the model sees.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub aside: bool,
}

impl StoredMessage {
    /// Its place in the conversation: one that is dated ahead does not stay the last for ever.
    pub(crate) fn at(&self) -> Timestamp {
        self.created_at.min(self.arrived_at)
    }

    /// Where it lies in the conversation with `peer`.
    #[must_use]
    pub fn key(&self, peer: &PublicKey) -> Key {
        keys::message(peer, self.at(), &self.id)
    }

    /// The write that puts it into the conversation with `peer`. The same message is the same row however often it
    /// comes.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it cannot be sealed.
    pub fn write(&self, app: &App, peer: &PublicKey) -> Result<Write, Error> {
        app.put_sealed(self.key(peer), self, None)
    }
}

/// The message of a trigger, and the peer it is from; `None` where it is not part of a conversation, or has no text for a
/// model.
#[must_use]
pub fn incoming(trigger: &Trigger) -> Option<(PublicKey, StoredMessage)> {
    let Source::Dm(dm) = &trigger.source else { return None };
    let message = StoredMessage {
        id: dm.message_id,
        from_agent: false,
        protocol: dm.protocol,
        created_at: dm.created_at,
        arrived_at: trigger.arrived_at,
        text: dm.text.clone(),
        of_run: false,
        aside: false,
    };
    dm.fixed_answer.is_none().then_some((dm.peer, message))
}

/// A part of what the agent sends; `aside` where it answers a command.
#[must_use]
pub fn outgoing(letter: &Letter, part: &ReplyPart, aside: bool) -> StoredMessage {
    StoredMessage {
        id: part.id,
        from_agent: true,
        protocol: letter.protocol,
        created_at: part.created_at,
        arrived_at: part.created_at,
        text: part.text.clone(),
        of_run: true,
        aside,
    }
}

/// A message that lies on a relay; `None` where it has no text.
#[must_use]
pub fn found(app: &App, opened: Opened) -> Option<StoredMessage> {
    let Content::Text(text) = opened.content else { return None };
    let from_agent = opened.author == app.agent();
    Some(StoredMessage {
        id: opened.id,
        from_agent,
        protocol: opened.protocol,
        created_at: opened.created_at,
        // The parts of a reply are dated seconds ahead; seen again at once, each must fall on the row that it has.
        arrived_at: if from_agent { opened.created_at } else { app.clock.now() },
        text,
        of_run: false,
        aside: false,
    })
}

/// What to ask relays for at the first contact with `peer`. Who a wrap is from is told by opening it alone.
#[must_use]
pub fn filters(agent: &PublicKey, peer: &PublicKey) -> Vec<Filter> {
    let between = |from: &PublicKey, to: &PublicKey| {
        Filter::new().author(*from).kind(kinds::DM_NIP04).pubkey(*to).limit(FIRST_READ_LIMIT)
    };
    vec![
        between(peer, agent),
        between(agent, peer),
        Filter::new().kind(kinds::GIFT_WRAP).pubkey(*agent).limit(FIRST_READ_LIMIT),
    ]
}

/// The messages with `peer` among the events, without those that are `known`. A message of the peer that is newer than
/// the triggering one is no history: it is work that will come by itself.
#[must_use]
pub fn of_conversation(
    app: &App,
    trigger: &Trigger,
    peer: &PublicKey,
    known: &[StoredMessage],
    events: &[Event],
) -> Vec<StoredMessage> {
    let mut seen: HashSet<EventId> = known.iter().map(|message| message.id).collect();
    let opened = events.iter().filter_map(|event| dm::open(app.keys(), event).ok());
    opened
        .filter(|opened| opened.peer == *peer)
        .filter(|opened| opened.author == app.agent() || opened.created_at <= trigger.created_at())
        .filter(|opened| seen.insert(opened.id))
        .filter_map(|opened| found(app, opened))
        .collect()
}

/// The conversation in order, each message once, without the one that the run answers.
#[must_use]
pub fn in_order(mut messages: Vec<StoredMessage>, trigger: &Trigger) -> Vec<StoredMessage> {
    messages.sort_by_key(|message| (message.at(), message.id));
    let mut seen = match &trigger.source {
        Source::Dm(dm) => HashSet::from([dm.message_id]),
        _ => HashSet::new(),
    };
    // A message dated ahead that was seen twice lies in two rows.
    messages.retain(|message| seen.insert(message.id));
    messages
}

/// How the peer wrote last.
#[must_use]
pub fn last_heard(messages: &[StoredMessage]) -> Option<Protocol> {
    messages.iter().rev().find(|message| !message.from_agent).map(|message| message.protocol)
}

/// Whether the last message, but for `this` one, which a run answers, has no reply: another run may be about to save it.
#[must_use]
pub fn lacks_a_reply(messages: &[StoredMessage], this: Option<EventId>) -> bool {
    let others = messages.iter().filter(|message| Some(message.id) != this);
    others.max_by_key(|message| (message.at(), message.id)).is_some_and(|last| !last.from_agent)
}

/// Of a conversation in order what the model sees: what came after `begin`, where somebody began it anew, and of an
/// admin's neither commands nor their answers.
#[must_use]
pub fn visible(
    mut messages: Vec<StoredMessage>,
    is_admins: bool,
    begin: Option<Timestamp>,
) -> Vec<StoredMessage> {
    let is_command = |message: &StoredMessage| {
        message.aside || (is_admins && !message.from_agent && Command::parse(&message.text).is_some())
    };
    messages.retain(|message| begin.is_none_or(|begin| message.at() > begin) && !is_command(message));
    messages
}

/// The conversation as the model sees it.
#[must_use]
pub fn as_chat(messages: &[StoredMessage]) -> Vec<HistoryMessage> {
    let role = |message: &StoredMessage| if message.from_agent { Role::Assistant } else { Role::User };
    messages.iter().map(|m| HistoryMessage { role: role(m), text: m.text.clone() }).collect()
}

#[cfg(test)]
mod tests {
    use nostr::prelude::Keys;

    use super::*;
    use crate::trigger::{Dm, Tier};

    #[test]
    fn a_message_that_lies_in_two_rows_is_in_the_conversation_once() {
        let peer = Keys::generate().public_key();
        let id = |n: u8| EventId::from_byte_array([n; 32]);
        let message = |n: u8, created_at: u64, arrived_at: u64| StoredMessage {
            id: id(n),
            from_agent: false,
            protocol: Protocol::Nip17,
            created_at: Timestamp::from(created_at),
            arrived_at: Timestamp::from(arrived_at),
            text: String::new(),
            of_run: false,
            aside: false,
        };
        let trigger = Trigger {
            id: String::new(),
            source: Source::Dm(Dm {
                peer,
                protocol: Protocol::Nip17,
                message_id: id(9),
                created_at: Timestamp::from(9),
                text: String::new(),
                fixed_answer: None,
                relay: None,
            }),
            tier: Tier::Admin,
            tainted: false,
            admin: peer,
            arrived_at: Timestamp::from(9),
        };
        // The first is dated ahead of both its arrivals, and another stands between them.
        let stored =
            vec![message(1, 8, 4), message(2, 3, 3), message(3, 2, 2), message(1, 8, 2), message(9, 9, 9)];
        let ids: Vec<EventId> = in_order(stored, &trigger).into_iter().map(|message| message.id).collect();
        assert_eq!(ids, [1, 3, 2].map(id));
    }

    #[test]
    fn a_reply_is_lacking_where_the_last_message_of_the_others_is_the_peers() {
        let message = |n: u8, at: u64, from_agent| StoredMessage {
            id: EventId::from_byte_array([n; 32]),
            from_agent,
            protocol: Protocol::Nip17,
            created_at: Timestamp::from(at),
            arrived_at: Timestamp::from(at),
            text: String::new(),
            of_run: from_agent,
            aside: false,
        };
        let lacks =
            |messages: &[StoredMessage]| lacks_a_reply(messages, Some(EventId::from_byte_array([9; 32])));
        let (one, reply, two, this) =
            (message(1, 1, false), message(2, 3, true), message(3, 4, false), message(9, 2, false));
        assert!(!lacks(&[]) && !lacks(std::slice::from_ref(&this)));
        assert!(lacks(&[one.clone(), this.clone()]));
        // Replies are dated when they are written: behind messages that came meanwhile.
        assert!(!lacks(&[one.clone(), this.clone(), reply.clone()]));
        assert!(lacks(&[reply, one, two, this]));
    }

    #[test]
    fn a_model_sees_what_came_after_a_new_begin_without_commands_and_their_answers() {
        let message = |n: u8, text: &str, from_agent, aside| StoredMessage {
            id: EventId::from_byte_array([n; 32]),
            from_agent,
            protocol: Protocol::Nip17,
            created_at: Timestamp::from(u64::from(n)),
            arrived_at: Timestamp::from(u64::from(n)),
            text: text.to_owned(),
            of_run: from_agent,
            aside,
        };
        let stored = vec![
            message(1, "hello", false, false),
            message(2, "/status", false, false),
            message(3, "Running.", true, true),
            message(4, "/etc/hosts", false, false),
            message(5, "/status is what I would write", true, false),
        ];
        let seen = |is_admins, begin: Option<u64>| {
            let begin = begin.map(Timestamp::from);
            let seen = visible(stored.clone(), is_admins, begin);
            seen.iter().map(|message| message.created_at.as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(seen(true, None), [1, 4, 5]);
        // Of others it is a text like any.
        assert_eq!(seen(false, None), [1, 2, 4, 5]);
        assert_eq!(seen(true, Some(4)), [5]);
        assert_eq!(seen(true, Some(9)), [0; 0]);
    }
}
