//! What the agent is about to send, before there is a text: to whom, how, and in answer to what. A DM gives it for its
//! answer; what the agent begins goes to the run's admin (design §4).

use nostr::prelude::{EventId, PublicKey, RelayUrl, Timestamp};

use crate::dm::ReplyPart;
use crate::load::Loaded;
use crate::trigger::{Dm, Protocol, Source, Trigger};

/// To whom a message goes, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Who is to read it.
    pub peer: PublicKey,
    /// How it travels.
    pub protocol: Protocol,
    /// The message that it answers: its `e` tag.
    pub in_reply_to: Option<EventId>,
    /// Where the message which it answers came from, as whoever handed it over says: [`crate::publish::route`] believes
    /// only our inbox relays.
    pub relay: Option<RelayUrl>,
    /// Clients order by time: it is dated after this, as far as our clock has come.
    pub not_before: Option<Timestamp>,
}

impl Letter {
    /// One that answers nothing.
    #[must_use]
    pub fn new(peer: PublicKey, protocol: Protocol) -> Self {
        Self { peer, protocol, in_reply_to: None, relay: None, not_before: None }
    }

    /// The answer to a DM: the way that it came.
    #[must_use]
    pub fn answer_to(dm: &Dm) -> Self {
        Self {
            in_reply_to: Some(dm.message_id),
            relay: dm.relay.clone(),
            not_before: Some(dm.created_at),
            ..Self::new(dm.peer, dm.protocol)
        }
    }

    /// What a run sends: a DM's answer to its sender, all else to the run's admin, by the protocol of that admin's last
    /// message; without one by NIP-17, if it is known where the admin reads that.
    #[must_use]
    pub fn of(trigger: &Trigger, loaded: &Loaded) -> Self {
        if let Source::Dm(dm) = &trigger.source {
            return Self::answer_to(dm);
        }
        let admin = trigger.admin;
        let protocol = match loaded.last_heard {
            Some(protocol) => protocol,
            None if loaded.state.inbox_relays(admin).is_empty() => Protocol::Nip04,
            None => Protocol::Nip17,
        };
        Self::new(admin, protocol)
    }

    /// The same, as these parts of it were written: a later attempt may have come to another protocol.
    #[must_use]
    pub fn as_written(self, parts: &[ReplyPart]) -> Self {
        Self { protocol: parts.first().map_or(self.protocol, ReplyPart::protocol), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dm;
    use crate::history::{self, StoredMessage};
    use crate::kinds;
    use crate::skill::tests::{keys, signed};
    use crate::state::AgentState;

    const NOW: u64 = 1_803_902_400;

    fn loaded(messages: &[(bool, Protocol)], has_inbox: bool) -> Loaded {
        let list = has_inbox.then(|| signed(2, kinds::INBOX_RELAYS, &[&["relay", "wss://dm.test"]], ""));
        let admins = [keys(2).public_key()];
        let history = (1..).zip(messages).map(|(n, (from_agent, protocol))| StoredMessage {
            of_run: false,
            id: EventId::from_byte_array([n; 32]),
            from_agent: *from_agent,
            protocol: *protocol,
            created_at: Timestamp::from(NOW),
            arrived_at: Timestamp::from(NOW),
            text: String::new(),
            aside: false,
        });
        let history: Vec<StoredMessage> = history.collect();
        Loaded {
            state: AgentState::build(&keys(1), &admins, None, list, Timestamp::from(NOW)),
            last_heard: history::last_heard(&history),
            history,
            asked: false,
            lists: crate::heed::Lists::default(),
            unsaved: Vec::new(),
        }
    }

    #[test]
    fn what_the_agent_begins_travels_as_the_admins_last_message_did_or_as_the_admin_can_read_it() {
        use Protocol::{Nip04, Nip17};
        let trigger = Trigger::notice(String::new(), "1", keys(2).public_key(), Timestamp::from(NOW));
        let table = [
            (&[][..], false, Nip04),
            (&[], true, Nip17),
            (&[(false, Nip04)], true, Nip04),
            (&[(false, Nip17)], false, Nip17),
            (&[(false, Nip04), (false, Nip17)], false, Nip17),
            // What the agent wrote is no sign of what the admin reads.
            (&[(false, Nip04), (true, Nip17)], true, Nip04),
            (&[(true, Nip17)], false, Nip04),
        ];
        for (messages, has_inbox, expected) in table {
            let letter = Letter::of(&trigger, &loaded(messages, has_inbox));
            assert_eq!(letter, Letter::new(keys(2).public_key(), expected), "{messages:?}, {has_inbox}");
        }
    }

    #[test]
    fn what_is_signed_goes_the_way_that_it_was_signed_for() {
        let new = |protocol| Letter::new(keys(2).public_key(), protocol);
        for signed_for in [Protocol::Nip04, Protocol::Nip17] {
            let part = dm::write(&keys(1), &new(signed_for), "hello", Timestamp::from(NOW)).unwrap();
            for protocol in [Protocol::Nip04, Protocol::Nip17] {
                assert_eq!(new(protocol).as_written(std::slice::from_ref(&part)), new(signed_for));
                assert_eq!(new(protocol).as_written(&[]), new(protocol));
            }
        }
    }
}
