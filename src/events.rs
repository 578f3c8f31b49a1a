//! Which of many events count: the newest versions of replaceable ones, minus what their authors deleted.
//!
//! Relays hand over old versions, deleted events and events from the future, in any order. An [`EventSet`] keeps all
//! of them and answers with those that count, so the order of arrival never matters. It believes what it is given:
//! ids and signatures are checked by whoever read the events.

use std::collections::{BTreeMap, BTreeSet};

use nostr::prelude::{Coordinate, Event, EventId, Kind, PublicKey, Timestamp};

use crate::kinds;

/// An event that is further ahead of our clock than this is not adopted, and we publish none: 15 minutes.
pub const MAX_AHEAD_SECS: u64 = 900;

/// Where an event lies, and which others are its older or newer versions (NIP-01).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// Alone: a regular event has no versions.
    Id(EventId),
    /// One per kind and author, and for addressable kinds per d tag, which is compared whole.
    Address(Coordinate),
}

/// Verified events, of which only those count that are newest and not deleted.
#[derive(Debug, Clone, Default)]
pub struct EventSet {
    now: Timestamp,
    /// The versions of each place, the one that supersedes all others first.
    versions: BTreeMap<Place, Vec<Event>>,
    deleted_ids: BTreeSet<(PublicKey, EventId)>,
    deleted_addresses: BTreeMap<Coordinate, Timestamp>,
    /// Those too far ahead, each told once.
    ahead: BTreeSet<EventId>,
    warnings: Vec<String>,
}

impl EventSet {
    /// An empty set, at our clock's `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }

    /// Takes a verified event. One that is too far ahead of our clock is left out with a warning.
    pub fn insert(&mut self, event: Event) {
        let latest = self.now.as_secs().saturating_add(MAX_AHEAD_SECS);
        if event.created_at.as_secs() > latest {
            if self.ahead.insert(event.id) {
                self.warnings.push(format!(
                    "event {} of kind {} is dated {} s ahead of our clock and was not adopted",
                    event.id,
                    event.kind,
                    event.created_at.as_secs().saturating_sub(self.now.as_secs())
                ));
            }
            return;
        }
        if event.kind == kinds::DELETION {
            self.note_deletion(&event);
        }
        let versions = self.versions.entry(place(&event)).or_default();
        // `Event` is ordered newest first and lowest id first, which is NIP-01's order of precedence.
        if let Err(index) = versions.binary_search(&event) {
            versions.insert(index, event);
        }
    }

    /// The event of a replaceable kind that counts.
    #[must_use]
    pub fn newest(&self, kind: Kind, author: PublicKey) -> Option<&Event> {
        self.newest_addressable(kind, author, "")
    }

    /// The event of an addressable kind that counts under the d tag `d`.
    #[must_use]
    pub fn newest_addressable(&self, kind: Kind, author: PublicKey, d: &str) -> Option<&Event> {
        let coordinate = Coordinate::new(kind, author).identifier(d);
        self.living(self.versions.get(&Place::Address(coordinate))?)
    }

    /// The event of an addressable kind that counts, whatever its d tag.
    #[must_use]
    pub fn newest_of_any_d(&self, kind: Kind, author: PublicKey) -> Option<&Event> {
        self.of_kind(kind).into_iter().find(|event| event.pubkey == author)
    }

    /// All events of a kind that count, newest first.
    #[must_use]
    pub fn of_kind(&self, kind: Kind) -> Vec<&Event> {
        let mut events: Vec<&Event> = self
            .versions
            .values()
            .filter(|versions| versions.first().is_some_and(|event| event.kind == kind))
            .filter_map(|versions| self.living(versions))
            .collect();
        events.sort_unstable();
        events
    }

    /// Until when (`created_at`, inclusive) its author deleted the versions at an address.
    #[must_use]
    pub fn deleted_until(&self, address: &Coordinate) -> Option<Timestamp> {
        self.deleted_addresses.get(address).copied()
    }

    /// What is worth keeping: of each place the version that counts, or the newest where its author deleted all. Of
    /// deletion requests those that speak of a place or an event that is here: anybody's others would fill the store.
    pub fn kept(&self) -> impl Iterator<Item = &Event> {
        let counting =
            self.versions.values().filter_map(|versions| self.living(versions).or(versions.first()));
        counting.filter(|event| {
            event.kind != kinds::DELETION
                || event.tags.iter().any(|tag| match (tag.kind(), tag.content()) {
                    ("a", Some(address)) => parse_coordinate(address)
                        .is_some_and(|a| self.versions.contains_key(&Place::Address(a))),
                    ("e", Some(id)) => EventId::from_hex(id).is_ok_and(|id| self.has_version(id)),
                    _ => false,
                })
        })
    }

    fn has_version(&self, id: EventId) -> bool {
        self.versions.values().flatten().any(|event| event.id == id)
    }

    /// What was left out, and why, in sentences.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Keeps what a deletion request asks for (NIP-09). An `e` tag names an id of its author's; whether the author is
    /// the same can only be known when that event is here, so it is asked in [`Self::is_deleted`].
    fn note_deletion(&mut self, request: &Event) {
        for tag in request.tags.iter() {
            match (tag.kind(), tag.content()) {
                ("e", Some(id)) => {
                    if let Ok(id) = EventId::from_hex(id) {
                        self.deleted_ids.insert((request.pubkey, id));
                    }
                }
                ("a", Some(address)) => {
                    let Some(address) = parse_coordinate(address) else { continue };
                    if address.public_key == request.pubkey {
                        let until = self.deleted_addresses.entry(address).or_default();
                        *until = request.created_at.max(*until);
                    }
                }
                _ => {}
            }
        }
    }

    fn living<'a>(&self, versions: &'a [Event]) -> Option<&'a Event> {
        versions.iter().find(|event| !self.is_deleted(event))
    }

    /// Whether its author deleted this event, as far as is known here.
    #[must_use]
    pub fn is_deleted(&self, event: &Event) -> bool {
        if event.kind == kinds::DELETION {
            // NIP-09: deleting a deletion request has no effect.
            return false;
        }
        self.deleted_ids.contains(&(event.pubkey, event.id))
            || address(event)
                .and_then(|address| self.deleted_until(&address))
                .is_some_and(|until| event.created_at <= until)
    }
}

/// Whether `a` takes the place of `b`: newer, or as new and of the lower id (NIP-01).
#[must_use]
pub fn supersedes(a: &Event, b: &Event) -> bool {
    (a.created_at, std::cmp::Reverse(a.id)) > (b.created_at, std::cmp::Reverse(b.id))
}

/// The address of a replaceable or addressable event; `None` for all others.
#[must_use]
pub fn address(event: &Event) -> Option<Coordinate> {
    let coordinate = Coordinate::new(event.kind, event.pubkey);
    match event.kind.as_u16() {
        0 | 3 | 10_000..20_000 => Some(coordinate),
        30_000..40_000 => Some(coordinate.identifier(d_tag(event))),
        _ => None,
    }
}

/// The value of the first d tag; empty where there is none (NIP-01).
#[must_use]
pub fn d_tag(event: &Event) -> &str {
    event.tags.iter().find(|tag| tag.kind() == "d").and_then(|tag| tag.content()).unwrap_or_default()
}

/// Reads `kind:author:d`. The d may itself hold colons, which is why the crate's own parser does not serve: it
/// stops at the third.
#[must_use]
pub fn parse_coordinate(text: &str) -> Option<Coordinate> {
    let mut parts = text.splitn(3, ':');
    let kind: u16 = parts.next()?.parse().ok()?;
    let author = PublicKey::from_hex(parts.next()?).ok()?;
    Some(Coordinate::new(Kind::from(kind), author).identifier(parts.next().unwrap_or_default()))
}

/// A version cannot be dated so that relays take it for the newest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the version to replace is dated so far ahead of our clock that a newer one would be refused; \
     wait {wait_secs} s or correct the clock that wrote it"
)]
pub struct TooFarAhead {
    /// Seconds until the event may be published.
    pub wait_secs: u64,
}

/// The `created_at` of a new version: now, but later than the version it replaces and than our own deletion of it,
/// since relays keep the newer event and drop what a deletion covers.
///
/// # Errors
/// [`TooFarAhead`] where that is more than [`MAX_AHEAD_SECS`] from now.
pub fn next_created_at(
    now: Timestamp,
    previous: Option<&Event>,
    own_deletion: Option<Timestamp>,
) -> Result<Timestamp, TooFarAhead> {
    let after = |time: Timestamp| time.as_secs().saturating_add(1);
    let next = now
        .as_secs()
        .max(previous.map_or(0, |event| after(event.created_at)))
        .max(own_deletion.map_or(0, after));
    let latest = now.as_secs().saturating_add(MAX_AHEAD_SECS);
    if next > latest {
        return Err(TooFarAhead { wait_secs: next.saturating_sub(latest) });
    }
    Ok(Timestamp::from(next))
}

fn place(event: &Event) -> Place {
    address(event).map_or(Place::Id(event.id), Place::Address)
}

#[cfg(test)]
mod tests {
    use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Tag};
    use proptest::prelude::*;

    use super::*;

    const NOW: u64 = 1_803_902_400;

    fn keys(n: u8) -> Keys {
        Keys::parse(&format!("{n:064x}")).unwrap()
    }

    fn event(author: u8, kind: Kind, at: u64, tags: &[&[&str]], content: &str) -> Event {
        let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
        EventBuilder::new(kind, content)
            .tags(tags)
            .custom_created_at(Timestamp::from(at))
            .finalize(&keys(author))
            .unwrap()
    }

    fn set(events: impl IntoIterator<Item = Event>) -> EventSet {
        let mut set = EventSet::new(Timestamp::from(NOW));
        for event in events {
            set.insert(event);
        }
        set
    }

    fn skill<'a>(set: &'a EventSet, d: &str) -> Option<&'a str> {
        set.newest_addressable(kinds::PUBLIC_SKILL, keys(2).public_key(), d).map(|e| e.content.as_str())
    }

    #[test]
    fn of_two_versions_with_one_time_the_lowest_id_counts() {
        let v1 = event(2, kinds::PRIVATE_SKILL, NOW, &[&["d", "chat"]], "v1");
        let v5 = event(2, kinds::PRIVATE_SKILL, NOW, &[&["d", "chat"]], "v5");
        assert!(v1.id.to_hex().starts_with("fa2d6398"), "{}", v1.id);
        assert!(v5.id.to_hex().starts_with("164b76cf"), "{}", v5.id);
        assert!(supersedes(&v5, &v1) && !supersedes(&v1, &v5) && !supersedes(&v1, &v1));
        for order in [[&v1, &v5], [&v5, &v1]] {
            let set = set(order.into_iter().cloned());
            let newest = set.newest_addressable(kinds::PRIVATE_SKILL, keys(2).public_key(), "chat");
            assert_eq!(newest.map(|e| e.content.as_str()), Some("v5"));
        }
    }

    #[test]
    fn d_tags_that_begin_alike_never_hide_each_other() {
        let ds = ["chat-admin", "chat", "chat:v2", "", "a:b", "a/b", "50%#🦀"];
        let events: Vec<Event> = ds
            .iter()
            .enumerate()
            .map(|(i, d)| event(2, kinds::PUBLIC_SKILL, NOW + i as u64, &[&["d", d]], d))
            .collect();
        for order in [events.clone(), events.into_iter().rev().collect()] {
            let set = set(order);
            for d in ds {
                assert_eq!(skill(&set, d), Some(d));
            }
            assert_eq!(skill(&set, "cha"), None);
        }
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let old = event(2, kinds::PROFILE, NOW - 1, &[], "old");
        let new = event(2, kinds::PROFILE, NOW, &[], "new");
        let set = set([new, old]);
        assert_eq!(set.newest(kinds::PROFILE, keys(2).public_key()).unwrap().content, "new");
    }

    #[test]
    fn only_its_author_deletes_an_event() {
        let note = event(2, kinds::NOTE, NOW - 9, &[], "note");
        let id = note.id.to_hex();
        let foreign = event(3, kinds::DELETION, NOW, &[&["e", &id]], "");
        assert_eq!(set([foreign.clone(), note.clone()]).of_kind(kinds::NOTE), [&note]);
        let own = event(2, kinds::DELETION, NOW, &[&["e", &id]], "");
        assert!(set([note.clone(), own.clone()]).of_kind(kinds::NOTE).is_empty());

        let profile = event(2, kinds::PUBLIC_SKILL, NOW - 9, &[&["d", "x"]], "x");
        let address = format!("31123:{}:x", keys(2).public_key());
        let foreign = event(3, kinds::DELETION, NOW, &[&["a", &address]], "");
        assert_eq!(skill(&set([profile, foreign]), "x"), Some("x"));
    }

    #[test]
    fn a_deleted_address_lives_again_in_a_later_version() {
        let address = format!("31123:{}:a:b", keys(2).public_key());
        let delete = event(2, kinds::DELETION, NOW - 5, &[&["a", &address], &["a"], &["e", "zz"]], "");
        let at_once = event(2, kinds::PUBLIC_SKILL, NOW - 5, &[&["d", "a:b"]], "at once");
        let later = event(2, kinds::PUBLIC_SKILL, NOW - 4, &[&["d", "a:b"]], "later");
        assert_eq!(skill(&set([at_once.clone(), delete.clone()]), "a:b"), None);
        let set = set([later, delete, at_once]);
        assert_eq!(skill(&set, "a:b"), Some("later"));
        let address = parse_coordinate(&address).unwrap();
        assert_eq!(set.deleted_until(&address), Some(Timestamp::from(NOW - 5)));
    }

    #[test]
    fn deleting_a_deletion_changes_nothing() {
        let note = event(2, kinds::NOTE, NOW - 9, &[], "note");
        let delete = event(2, kinds::DELETION, NOW - 8, &[&["e", &note.id.to_hex()]], "");
        let undelete = event(2, kinds::DELETION, NOW - 7, &[&["e", &delete.id.to_hex()]], "");
        let set = set([undelete, delete, note]);
        assert!(set.of_kind(kinds::NOTE).is_empty());
        assert_eq!(set.of_kind(kinds::DELETION).len(), 2);
    }

    #[test]
    fn an_event_from_the_future_is_left_out_with_a_warning() {
        let good = event(2, kinds::PROFILE, NOW + 900, &[], "good");
        let bad = event(2, kinds::PROFILE, NOW + 901, &[], "bad");
        let delete = event(2, kinds::DELETION, NOW + 901, &[&["e", &good.id.to_hex()]], "");
        let set = set([bad, good, delete]);
        assert_eq!(set.newest(kinds::PROFILE, keys(2).public_key()).unwrap().content, "good");
        assert_eq!(set.warnings().len(), 2);
        assert!(
            set.warnings()[0].ends_with("of kind 0 is dated 901 s ahead of our clock and was not adopted")
        );
    }

    #[test]
    fn a_soul_counts_under_any_d_tag_but_only_of_its_author() {
        let old = event(2, kinds::SOUL, NOW - 2, &[&["d", "soul"]], "old");
        let new = event(2, kinds::SOUL, NOW - 1, &[&["d", "didactyl"]], "new");
        let foreign = event(3, kinds::SOUL, NOW, &[&["d", "soul"]], "foreign");
        let set = set([old, new, foreign]);
        assert_eq!(set.newest_of_any_d(kinds::SOUL, keys(2).public_key()).unwrap().content, "new");
    }

    #[test]
    fn two_edits_in_one_second_get_two_times() {
        let now = Timestamp::from(NOW);
        assert_eq!(next_created_at(now, None, None), Ok(now));
        let first = event(2, kinds::PUBLIC_SKILL, NOW, &[&["d", "chat"]], "first");
        let second = next_created_at(now, Some(&first), None).unwrap();
        assert_eq!(second, Timestamp::from(NOW + 1));
        assert_eq!(
            next_created_at(now, Some(&first), Some(Timestamp::from(NOW + 7))),
            Ok(Timestamp::from(NOW + 8))
        );
        let ahead = event(2, kinds::PUBLIC_SKILL, NOW + 900, &[&["d", "chat"]], "ahead");
        assert_eq!(next_created_at(now, Some(&ahead), None), Err(TooFarAhead { wait_secs: 1 }));
        assert!(next_created_at(now, None, Some(Timestamp::max())).is_err());
    }

    fn arbitrary_event() -> impl Strategy<Value = Event> {
        (2..4u8, 0..5usize, 0..3u64, 0..3usize, 0..2u8).prop_map(|(author, kind, at, d, text)| {
            let d = ["", "a", "a:b"][d];
            let address = format!("31123:{}:{d}", keys(author).public_key());
            let victim = event(author, kinds::PUBLIC_SKILL, NOW + at, &[&["d", d]], "0");
            match kind {
                0 => event(author, kinds::PROFILE, NOW + at, &[], &text.to_string()),
                1 => event(author, kinds::DELETION, NOW + at, &[&["a", &address]], ""),
                2 => event(author, kinds::DELETION, NOW + at, &[&["e", &victim.id.to_hex()]], ""),
                3 => event(author, kinds::NOTE, NOW + at * 1000, &[], &text.to_string()),
                _ => event(author, kinds::PUBLIC_SKILL, NOW + at, &[&["d", d]], &text.to_string()),
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_order_of_arrival_never_matters(
            (events, shuffled) in prop::collection::vec(arbitrary_event(), 0..12)
                .prop_flat_map(|events| (Just(events.clone()), Just(events).prop_shuffle()))
        ) {
            let (one, other) = (set(events), set(shuffled));
            for kind in [kinds::PROFILE, kinds::DELETION, kinds::NOTE, kinds::PUBLIC_SKILL] {
                // By id: the same event signed twice has two signatures.
                let ids = |set: &EventSet| set.of_kind(kind).iter().map(|e| e.id).collect::<Vec<_>>();
                prop_assert_eq!(ids(&one), ids(&other));
            }
        }
    }
}
