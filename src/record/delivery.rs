//! What each relay said to each event that a run sends, and whether and when it is asked again. Pure.
//!
//! A relay that refuses for good is not asked again. One that fails for now is, with growing delays: a few times where the
//! event has arrived elsewhere, so that a dead relay does not cost for ever, and for [`UNDELIVERED_LIMIT`] where it has not.

use std::time::Duration;

use nostr::prelude::{EventId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::relay::{PublishReport, RelayError, Target};

/// How long an event that has not arrived is sent again, from when it was written: long enough for a relay that is down over
/// a weekend, and short enough that nobody reads an answer to what was settled long ago.
const UNDELIVERED_LIMIT: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// How often a relay is asked to take an event that has arrived elsewhere: over almost three hours.
const MAX_TRIES: u32 = 6;

/// How long it waits after the first try.
const FIRST_DELAY: Duration = Duration::from_secs(30);

/// The longest that it waits.
const LONGEST_DELAY: Duration = Duration::from_secs(6 * 60 * 60);

/// The most entries where an event of a tool adds some. Those of a reply are bounded by its parts and the relays of one list.
const MAX_OF_TOOLS: usize = 128;

/// What one relay said to one event of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// The event: a kind 4 event, a wrap, or what a tool publishes.
    pub event: EventId,
    /// The relay.
    pub relay: String,
    /// How often it was sent there.
    #[serde(default)]
    pub tries: u32,
    /// Why it was not accepted the last time; `None` where it was, and where nobody knows.
    pub refused: Option<String>,
    /// When it is sent there again, Unix seconds; `None` where it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try: Option<u64>,
}

impl Delivery {
    /// Whether the relay has the event.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.refused.is_none() && self.next_try.is_none()
    }
}

/// An event that is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sending {
    /// Its id.
    pub(crate) event: EventId,
    /// When it was written: a wrap is dated otherwise.
    pub(crate) written_at: Timestamp,
    /// Whether a tool publishes it.
    pub(crate) is_public: bool,
}

/// How long it is until the next try of an event that has not arrived, after so many.
pub(crate) fn delay(tries: u32) -> Duration {
    growing(2, tries)
}

fn growing(factor: u32, tries: u32) -> Duration {
    FIRST_DELAY.saturating_mul(factor.saturating_pow(tries.saturating_sub(1))).min(LONGEST_DELAY)
}

/// Whether an event that was written then is sent no more, wherever it has arrived or not.
pub(crate) fn is_too_old(written_at: Timestamp, now: Timestamp) -> bool {
    written_at + UNDELIVERED_LIMIT <= now
}

/// Notes that a tool's event is about to be sent to these relays: what dies before it hears of them, sends again. Where there
/// is no room for all of them, none is noted: an event is told of whole or not at all.
pub(crate) fn note_sending(
    deliveries: &mut Vec<Delivery>,
    event: EventId,
    targets: &[Target],
    now: Timestamp,
) {
    if deliveries.iter().any(|known| known.event == event) || !has_room(deliveries, targets.len()) {
        return;
    }
    deliveries.extend(targets.iter().map(|target| Delivery {
        event,
        relay: target.url.to_string(),
        tries: 0,
        refused: None,
        next_try: Some(now.as_secs()),
    }));
}

/// Takes up what an earlier attempt at the run heard of one event of a tool, where nothing is known of it.
pub(crate) fn recall(deliveries: &mut Vec<Delivery>, heard: &[Delivery]) {
    let is_known = |event| deliveries.iter().any(|known| known.event == event);
    if heard.iter().all(|heard| !is_known(heard.event)) && has_room(deliveries, heard.len()) {
        deliveries.extend_from_slice(heard);
    }
}

/// What is known of one event.
pub(crate) fn of_event(deliveries: &[Delivery], event: EventId) -> Vec<Delivery> {
    deliveries.iter().filter(|known| known.event == event).cloned().collect()
}

/// Whether a tool's event may add so many entries.
fn has_room(deliveries: &[Delivery], entries: usize) -> bool {
    deliveries.len().saturating_add(entries) <= MAX_OF_TOOLS
}

/// Notes what relays said to an event, and when those that did not take it are asked again. `has_arrived` is asked whether
/// it lies where it shall, as far as is known after that. Relays that a tool's event adds need room, as in [`note_sending`].
pub(crate) fn note(
    deliveries: &mut Vec<Delivery>,
    sent: Sending,
    reports: &[PublishReport],
    now: Timestamp,
    has_arrived: impl FnOnce(&[Delivery]) -> bool,
) {
    let may_add = !sent.is_public || has_room(deliveries, reports.len());
    for report in reports {
        let at = find(deliveries, sent.event, report.url.as_str());
        let tries = at.and_then(|at| deliveries.get(at)).map_or(0, |known| known.tries);
        let noted = Delivery {
            event: sent.event,
            relay: report.url.to_string(),
            tries: tries.saturating_add(u32::from(report.outcome != Err(RelayError::Untried))),
            refused: report.outcome.as_ref().err().map(ToString::to_string),
            next_try: None,
        };
        match at.and_then(|at| deliveries.get_mut(at)) {
            Some(known) => *known = noted,
            None if may_add => deliveries.push(noted),
            None => {}
        }
    }
    let has_arrived = has_arrived(deliveries);
    for report in reports {
        let Err(error) = &report.outcome else { continue };
        if let Some(known) =
            find(deliveries, sent.event, report.url.as_str()).and_then(|at| deliveries.get_mut(at))
        {
            known.next_try = next_try(known.tries, error, has_arrived, sent.written_at, now);
        }
    }
}

fn find(deliveries: &[Delivery], event: EventId, relay: &str) -> Option<usize> {
    deliveries.iter().position(|known| known.event == event && known.relay == relay)
}

fn next_try(
    tries: u32,
    error: &RelayError,
    has_arrived: bool,
    written_at: Timestamp,
    now: Timestamp,
) -> Option<u64> {
    if error.is_for_good() || is_too_old(written_at, now) || (has_arrived && tries >= MAX_TRIES) {
        return None;
    }
    let wait = if has_arrived { growing(4, tries) } else { delay(tries) };
    Some((now + wait).as_secs())
}

/// Of these relays those that have not taken an event and may yet.
pub(crate) fn open(deliveries: &[Delivery], event: EventId, targets: &[Target]) -> Vec<Target> {
    let is_open = |known: &Delivery| known.next_try.is_some();
    targets.iter().filter(|target| known(deliveries, event, target).is_none_or(is_open)).cloned().collect()
}

/// Of these relays those that do not have an event, also where they refused it for good.
pub(crate) fn lacking(deliveries: &[Delivery], event: EventId, targets: &[Target]) -> Vec<Target> {
    let lacks = |known: &Delivery| !known.is_accepted();
    targets.iter().filter(|target| known(deliveries, event, target).is_none_or(lacks)).cloned().collect()
}

fn known<'a>(deliveries: &'a [Delivery], event: EventId, target: &Target) -> Option<&'a Delivery> {
    find(deliveries, event, target.url.as_str()).and_then(|at| deliveries.get(at))
}

/// Whether any relay has the event.
pub(crate) fn is_anywhere(deliveries: &[Delivery], event: EventId) -> bool {
    deliveries.iter().any(|known| known.event == event && known.is_accepted())
}

#[cfg(test)]
mod tests {
    use nostr::prelude::RelayUrl;

    use super::*;
    use crate::relay::Trust;

    const NOW: Timestamp = Timestamp::from_secs(1_803_902_400);

    fn target(name: &str) -> Target {
        Target { url: RelayUrl::parse(&format!("wss://{name}.test")).unwrap(), trust: Trust::Own }
    }

    fn event() -> EventId {
        EventId::from_byte_array([7; 32])
    }

    fn said(name: &str, outcome: Result<(), RelayError>) -> PublishReport {
        PublishReport { url: target(name).url, outcome, took: Duration::ZERO }
    }

    fn noted(deliveries: &mut Vec<Delivery>, reports: &[PublishReport], now: Timestamp, has_arrived: bool) {
        let sent = Sending { event: event(), written_at: NOW, is_public: false };
        note(deliveries, sent, reports, now, |_| has_arrived);
    }

    #[test]
    fn a_relay_is_asked_again_only_where_that_can_help() {
        let errors = [
            RelayError::Refused("address".into()),
            RelayError::Connect("refused".into()),
            RelayError::Lost("reset".into()),
            RelayError::Timeout,
            RelayError::Untried,
            RelayError::Auth("auth-required: no".into()),
            RelayError::RateLimited("rate-limited: slow".into()),
            RelayError::Rejected("blocked: spam".into()),
            RelayError::Replaced("replaced: newer".into()),
            RelayError::Failed("error: disk".into()),
            RelayError::Cut("too much".into()),
        ];
        let told: Vec<String> = errors
            .iter()
            .map(|error| match next_try(1, error, false, NOW, NOW) {
                Some(at) => format!("{error} -> in {} s", at - NOW.as_secs()),
                None => format!("{error} -> not again"),
            })
            .collect();
        insta::assert_snapshot!(told.join("\n"), @r"
        not dialled: address -> not again
        cannot connect: refused -> in 30 s
        connection lost: reset -> in 30 s
        timed out -> in 30 s
        not tried: no time was left -> in 30 s
        authentication: auth-required: no -> not again
        rate limited: rate-limited: slow -> in 30 s
        rejected: blocked: spam -> not again
        replaced: replaced: newer -> not again
        relay error: error: disk -> in 30 s
        cut off: too much -> in 30 s
        ");
    }

    #[test]
    fn it_waits_longer_each_time_and_gives_up_sooner_where_the_event_has_arrived() {
        let waits = |has_arrived: bool| -> Vec<u64> {
            let (mut now, mut waits) = (NOW, Vec::new());
            while let Some(at) =
                next_try(u32::try_from(waits.len()).unwrap() + 1, &RelayError::Timeout, has_arrived, NOW, now)
            {
                waits.push(at - now.as_secs());
                now = Timestamp::from(at);
            }
            waits
        };
        assert_eq!(waits(true), [30, 120, 480, 1920, 7680]);
        let waits = waits(false);
        assert_eq!(waits[..12], [30, 60, 120, 240, 480, 960, 1920, 3840, 7680, 15360, 21600, 21600]);
        assert_eq!(waits.len(), 21);
        assert!(waits.iter().sum::<u64>() >= UNDELIVERED_LIMIT.as_secs());
    }

    #[test]
    fn each_relay_has_one_entry_that_counts_its_tries_and_tells_its_last_word() {
        let mut deliveries = Vec::new();
        note_sending(&mut deliveries, event(), &[target("a"), target("b")], NOW);
        noted(&mut deliveries, &[said("a", Err(RelayError::Timeout)), said("b", Ok(()))], NOW, true);
        let entry = |relay: &str, tries, refused: Option<&str>, next_try| Delivery {
            event: event(),
            relay: target(relay).url.to_string(),
            tries,
            refused: refused.map(str::to_owned),
            next_try,
        };
        let at = NOW.as_secs();
        assert_eq!(deliveries, [entry("a", 1, Some("timed out"), Some(at + 30)), entry("b", 1, None, None)]);
        noted(&mut deliveries, &[said("a", Ok(()))], NOW + 30, true);
        assert_eq!(deliveries, [entry("a", 2, None, None), entry("b", 1, None, None)]);
    }

    #[test]
    fn a_try_that_was_not_made_does_not_count_and_is_made_up_for() {
        let mut deliveries = Vec::new();
        noted(&mut deliveries, &[said("a", Err(RelayError::Timeout))], NOW, true);
        for minute in 1..20 {
            noted(&mut deliveries, &[said("a", Err(RelayError::Untried))], NOW + minute * 60, true);
        }
        let [known] = &deliveries[..] else { panic!("{deliveries:?}") };
        assert_eq!((known.tries, known.next_try), (1, Some(NOW.as_secs() + 19 * 60 + 30)));
    }

    #[test]
    fn of_relays_those_are_open_that_are_new_or_failed_for_now() {
        let names = ["has it", "failed", "refused", "new"].map(|name| name.replace(' ', "-"));
        let all = names.clone().map(|name| target(&name));
        let [has_it, failed, refused, _] = &names;
        let mut deliveries = Vec::new();
        let reports = [
            said(has_it, Ok(())),
            said(failed, Err(RelayError::Timeout)),
            said(refused, Err(RelayError::Rejected("blocked: no".into()))),
        ];
        noted(&mut deliveries, &reports, NOW, true);
        let [_, failed, refused, new] = all.clone();
        assert_eq!(open(&deliveries, event(), &all), [failed.clone(), new.clone()]);
        assert_eq!(lacking(&deliveries, event(), &all), [failed, refused, new]);
    }

    #[test]
    fn of_events_of_tools_a_bounded_number_is_told_of_each_with_all_its_relays() {
        let names = ["a", "b", "c"];
        let mut deliveries = Vec::new();
        for n in 0..100 {
            let sent = Sending { event: EventId::from_byte_array([n; 32]), written_at: NOW, is_public: true };
            note_sending(&mut deliveries, sent.event, &names.map(target), NOW);
            note(&mut deliveries, sent, &names.map(|name| said(name, Ok(()))), NOW, |_| true);
        }
        assert_eq!(deliveries.len(), MAX_OF_TOOLS / 3 * 3);
        // Relays that its list has gained meanwhile need room too.
        let first = Sending { event: EventId::from_byte_array([0; 32]), written_at: NOW, is_public: true };
        note(&mut deliveries, first, &["d", "e", "f"].map(|name| said(name, Ok(()))), NOW, |_| true);
        assert_eq!(deliveries.len(), MAX_OF_TOOLS / 3 * 3);
        // A reply is bounded otherwise: what its relays say is always noted.
        let reply = Sending { event: EventId::from_byte_array([200; 32]), is_public: false, ..first };
        note(&mut deliveries, reply, &names.map(|name| said(name, Ok(()))), NOW, |_| true);
        assert_eq!(deliveries.len(), MAX_OF_TOOLS / 3 * 3 + 3);
    }
}
