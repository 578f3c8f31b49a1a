//! The reply's way out: cut into parts, signed once, and sent to where the recipient reads (design §7).
//!
//! What is sent here was saved before (see `record/claim.rs`); a later attempt sends the very same
//! events again, to the relays that may yet take them. What is left once a reply has arrived is [`crate::outbox`]'s.

mod split;

use std::time::Duration;

use nostr::prelude::{EventId, RelayUrl, Timestamp};

use crate::app::App;
use crate::dm::{self, ReplyPart, WriteError};
use crate::letter::Letter;
use crate::load;
use crate::record::Delivery;
use crate::record::delivery::{self, Sending};
use crate::relay::{Outgoing, Target, Trust, address};
use crate::state::AgentState;
use crate::trigger::Protocol;

/// A longer reply is cut into several messages.
pub const MAX_PART_BYTES: usize = 16_000;

/// A reply of more parts is cut off, with a word that says so: its rows must fit into one store transaction.
const MAX_PARTS: usize = 16;

/// The most relays of somebody else's list that one message is sent to.
const MAX_FOREIGN: usize = 4;

/// The most relays of one of the agent's own lists that are used.
const MAX_OWN: usize = 16;

/// Signs what the agent sends: one message, or several in order where the text is long.
///
/// # Errors
/// [`WriteError`].
pub fn sign(app: &App, letter: &Letter, text: &str, now: Timestamp) -> Result<Vec<ReplyPart>, WriteError> {
    // Clients order by time and then by id: a reply within the message's own second could stand above it.
    let first = letter.not_before.map_or(now, |at| now.max(at.min(now) + 1));
    let mut parts = parts_of(&dm::printable(text));
    if parts.is_empty() {
        parts.push("(an empty answer)".to_owned());
    }
    parts.into_iter().zip(0u64..).map(|(part, i)| dm::write(app.keys(), letter, &part, first + i)).collect()
}

/// Where a letter goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// For the recipient.
    pub to_peer: Vec<Target>,
    /// Those of them that the recipient is known to read; one of these must accept. Empty where none is known: then
    /// any will do.
    pub inbox: Vec<RelayUrl>,
    /// For our own copy of a NIP-17 message.
    pub to_self: Vec<Target>,
}

impl Route {
    /// All relays of the route, each once.
    #[must_use]
    pub fn all(&self) -> Vec<Target> {
        distinct(self.to_peer.iter().chain(&self.to_self).cloned())
    }
}

/// Where `letter` goes. A wrap goes to the recipient's 10050 relays alone; where it has none, to the relay that
/// the message came from and to ours, and never to the public relays of its 10002, where it would show that the
/// two talk and not arrive.
#[must_use]
pub fn route(app: &App, state: &AgentState, letter: &Letter) -> Route {
    let own = app.own_targets();
    let ours: Vec<RelayUrl> = load::read_targets(app, state).into_iter().map(|target| target.url).collect();
    let listed = |list: Vec<String>| address::usable(list.iter().map(String::as_str), &ours, MAX_FOREIGN);
    let inbox = match letter.protocol {
        Protocol::Nip17 => listed(state.inbox_relays(letter.peer)),
        Protocol::Nip04 => listed(state.read_relays(letter.peer)),
    };
    if letter.protocol == Protocol::Nip17 && inbox.is_empty() {
        tracing::info!(
            "the recipient names no inbox relay: the message goes where the one it answers came from, and to ours"
        );
    }
    // Whoever pushed the message may name any relay: only one of the agent's inbox relays is believed (design §2).
    let lists = [state.inbox_relays(app.agent()), state.read_relays(app.agent())];
    let mut inboxes = own.iter().cloned().chain(lists.iter().flat_map(|list| own_list(list)));
    let fallback = letter.relay.as_ref().and_then(|url| inboxes.find(|inbox| inbox.url == *url));
    let to_peer = match letter.protocol {
        Protocol::Nip17 if !inbox.is_empty() => inbox.clone(),
        Protocol::Nip17 => distinct(fallback.into_iter().chain(own.clone())),
        Protocol::Nip04 => distinct(inbox.iter().cloned().chain(own.clone())),
    };
    Route {
        to_peer,
        inbox: inbox.into_iter().map(|target| target.url).collect(),
        to_self: own_inbox(app, state).unwrap_or(own),
    }
}

/// The agent's own 10050 relays.
fn own_inbox(app: &App, state: &AgentState) -> Option<Vec<Target>> {
    Some(own_list(&state.inbox_relays(app.agent()))).filter(|targets| !targets.is_empty())
}

/// Relays of a list that the agent itself signed.
pub(crate) fn own_list(list: &[String]) -> Vec<Target> {
    distinct(
        list.iter()
            .filter_map(|url| address::normalize(url))
            .take(MAX_OWN)
            .map(|url| Target { url, trust: Trust::Own }),
    )
}

/// Each relay once, in order.
pub(crate) fn distinct(targets: impl Iterator<Item = Target>) -> Vec<Target> {
    let mut seen = Vec::new();
    for target in targets {
        if !seen.iter().any(|known: &Target| known.url == target.url) {
            seen.push(target);
        }
    }
    seen
}

/// Sends all parts, the copies to ourselves among them, to all relays at once that may yet take them, and notes what each
/// said; what relays said that are no longer on the route is forgotten. Whether every part lies where the recipient reads, now or since an earlier attempt.
pub async fn send(
    app: &App,
    route: &Route,
    parts: &[ReplyPart],
    deliveries: &mut Vec<Delivery>,
    until: tokio::time::Instant,
) -> bool {
    // A list that changes with every try must not grow the record.
    let relays: Vec<RelayUrl> = route.all().into_iter().map(|target| target.url).collect();
    deliveries.retain(|known| {
        part_of(parts, known.event).is_none() || relays.iter().any(|url| url.as_str() == known.relay)
    });
    let to_peer = parts.iter().map(|part| Outgoing {
        event: part.to_peer.clone(),
        targets: to_peer(route, part.to_peer.id, deliveries),
    });
    let copies = parts.iter().filter_map(|part| part.to_self.as_ref()).map(|event| Outgoing {
        event: event.clone(),
        targets: delivery::open(deliveries, event.id, &route.to_self),
    });
    let outgoing: Vec<Outgoing> = to_peer.chain(copies).collect();
    let reports = app.relays.publish(&outgoing, until).await;

    let now = app.clock.now();
    for (sent, reports) in outgoing.iter().zip(&reports) {
        let event = sent.event.id;
        let Some(part) = part_of(parts, event) else { continue };
        let sending = Sending { event, written_at: part.created_at, is_public: false };
        let is_copy = part.to_peer.id != event;
        delivery::note(deliveries, sending, reports, now, |deliveries| match is_copy {
            true => delivery::is_anywhere(deliveries, event),
            false => has_arrived(route, event, deliveries),
        });
    }
    !parts.is_empty() && parts.iter().all(|part| has_arrived(route, part.to_peer.id, deliveries))
}

/// The part that an event is, or whose copy it is.
fn part_of(parts: &[ReplyPart], event: EventId) -> Option<&ReplyPart> {
    parts.iter().find(|part| part.is_sent_as(event))
}

/// Whether any part was sent before, as far as is known.
pub(crate) fn was_sent(parts: &[ReplyPart], deliveries: &[Delivery]) -> bool {
    deliveries.iter().any(|delivery| parts.iter().any(|part| part.to_peer.id == delivery.event))
}

/// How long a reply waits that has not arrived, until it is sent again.
pub(crate) fn delay(deliveries: &[Delivery]) -> Duration {
    delivery::delay(deliveries.iter().map(|delivery| delivery.tries).max().unwrap_or_default())
}

/// Whether a reply that has not arrived is sent no more.
pub(crate) fn is_given_up(parts: &[ReplyPart], now: Timestamp) -> bool {
    parts.iter().all(|part| delivery::is_too_old(part.created_at, now))
}

/// Whether one of the relays took it that the recipient reads; where none is known, any.
fn has_arrived(route: &Route, event: EventId, deliveries: &[Delivery]) -> bool {
    deliveries
        .iter()
        .filter(|delivery| delivery.event == event && delivery.is_accepted())
        .any(|delivery| counts(route, &delivery.relay))
}

/// Whether a message has arrived that this relay took.
fn counts(route: &Route, relay: &str) -> bool {
    route.inbox.is_empty() || route.inbox.iter().any(|inbox| inbox.as_str() == relay)
}

/// Where a part is sent now: to the relays that may yet take it. Where it has not arrived and all that count refused it for
/// good, they are asked again: nothing else is left to try, and whoever blocks a key today may admit it tomorrow.
fn to_peer(route: &Route, event: EventId, deliveries: &[Delivery]) -> Vec<Target> {
    let open = delivery::open(deliveries, event, &route.to_peer);
    if has_arrived(route, event, deliveries) || open.iter().any(|target| counts(route, target.url.as_str())) {
        return open;
    }
    delivery::lacking(deliveries, event, &route.to_peer)
}

/// The text in as many messages as it needs; of too many the last says that there would be more.
fn parts_of(text: &str) -> Vec<String> {
    const CUT_OFF: &str = "[the rest of this answer was too long to send]";
    let mut parts: Vec<String> = split::split(text, MAX_PART_BYTES).take(MAX_PARTS + 1).collect();
    if parts.len() > MAX_PARTS {
        parts.truncate(MAX_PARTS - 1);
        parts.push(CUT_OFF.to_owned());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_too_many_parts_ends_with_a_word_that_says_so() {
        let parts = parts_of(&"x".repeat(MAX_PARTS * MAX_PART_BYTES));
        assert!(parts.len() == MAX_PARTS && parts.iter().all(|part| part.len() == MAX_PART_BYTES));
        let parts = parts_of(&"x".repeat(MAX_PARTS * MAX_PART_BYTES + 1));
        assert_eq!(parts.len(), MAX_PARTS);
        assert_eq!(parts.last().unwrap(), "[the rest of this answer was too long to send]");
    }
}
