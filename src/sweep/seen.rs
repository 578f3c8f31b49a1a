//! The ids that a relay showed and that were dealt with: to meet one again costs no cryptography.
//!
//! Packed into few rows, by the time that the events bear: a row covers six hours and is dropped as a whole once no later
//! sweep looks there. An id enters only after it held and what became of it is durable; for an event that starts nothing
//! being here is its record.

use std::collections::{BTreeMap, HashSet};

use nostr::prelude::EventId;

/// The time that one row covers.
const BUCKET_SECS: u64 = 6 * 60 * 60;

/// The most ids of one row: 64 KB.
const PART_IDS: usize = 4096;

/// The most ids of one relay: 2 MB, which each tick reads. In a flood that has more, those beyond are met again by each sweep
/// until older ones go: they are opened anew, and what was begun for them is known by its claim.
const MAX_IDS: usize = 32 * PART_IDS;

/// So much of an id is kept: nobody finds a second event with the same.
const ID_BYTES: usize = 16;

/// The first byte of a row.
const FORMAT: u8 = 1;

type ShortId = [u8; ID_BYTES];

/// Which row: six hours, and a number where one row is not enough.
pub type Part = (u64, u32);

/// One relay's set.
#[derive(Debug, Default)]
pub struct Seen {
    ids: HashSet<ShortId>,
    rows: BTreeMap<Part, Row>,
}

#[derive(Debug, Default)]
struct Row {
    ids: Vec<ShortId>,
    stored: bool,
    changed: bool,
    dropped: bool,
}

/// What is to be written of a set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The row's bytes.
    Put(Vec<u8>),
    /// The row goes.
    Delete,
}

impl Seen {
    /// Takes a stored row. One that cannot be read counts for nothing: its ids are met anew.
    pub fn load(&mut self, part: Part, bytes: &[u8]) {
        let ids: Vec<ShortId> = match bytes.split_first() {
            Some((&FORMAT, packed)) => packed.as_chunks().0.to_vec(),
            _ => Vec::new(),
        };
        self.ids.extend(&ids);
        self.rows.insert(part, Row { ids, stored: true, changed: false, dropped: false });
    }

    /// Whether the id is in it.
    #[must_use]
    pub fn contains(&self, id: &EventId) -> bool {
        self.ids.contains(&short(id))
    }

    /// Whether there is no room for another id.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ids.len() >= MAX_IDS
    }

    /// Adds the id of an event that bears the time `at`, if there is room.
    pub fn add(&mut self, id: &EventId, at: u64) {
        let id = short(id);
        if self.is_full() || !self.ids.insert(id) {
            return;
        }
        let bucket = at / BUCKET_SECS;
        let last = self.rows.range((bucket, 0)..=(bucket, u32::MAX)).next_back();
        let part = match last {
            Some((part, row)) if row.ids.len() < PART_IDS => *part,
            Some(((_, number), _)) => (bucket, number.saturating_add(1)),
            None => (bucket, 0),
        };
        let row = self.rows.entry(part).or_default();
        row.ids.push(id);
        row.changed = true;
        row.dropped = false;
    }

    /// Drops the rows that lie before `horizon` as a whole.
    pub fn drop_before(&mut self, horizon: u64) {
        let first = (horizon / BUCKET_SECS, 0);
        for row in self.rows.range_mut(..first).map(|(_, row)| row) {
            for id in row.ids.drain(..) {
                self.ids.remove(&id);
            }
            row.dropped = true;
        }
    }

    /// What the store does not have yet.
    pub fn changes(&self) -> impl Iterator<Item = (Part, Change)> {
        self.rows.iter().filter_map(|(part, row)| match row {
            Row { dropped: true, stored, .. } => stored.then_some((*part, Change::Delete)),
            Row { changed: true, ids, .. } => Some((*part, Change::Put(pack(ids)))),
            _ => None,
        })
    }
}

fn short(id: &EventId) -> ShortId {
    id.as_bytes().first_chunk().copied().unwrap_or_default()
}

fn pack(ids: &[ShortId]) -> Vec<u8> {
    std::iter::once(FORMAT).chain(ids.iter().flatten().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> EventId {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        EventId::from_byte_array(bytes)
    }

    /// The set as another process reads it.
    fn stored(seen: &Seen) -> Seen {
        let mut read = Seen::default();
        for (part, change) in seen.changes() {
            let Change::Put(bytes) = change else { panic!("{part:?} is dropped") };
            read.load(part, &bytes);
        }
        read
    }

    #[test]
    fn what_is_stored_is_read_back_and_not_written_again() {
        let mut seen = Seen::default();
        for n in 0..5_000 {
            seen.add(&id(n), 1_000);
            seen.add(&id(n), 99_000);
        }
        seen.add(&id(5_000), 99_000);
        let parts: Vec<(Part, usize)> = seen
            .changes()
            .map(|(part, change)| match change {
                Change::Put(bytes) => (part, bytes.len()),
                Change::Delete => (part, 0),
            })
            .collect();
        assert_eq!(parts, [((0, 0), 1 + 4_096 * 16), ((0, 1), 1 + 904 * 16), ((4, 0), 1 + 16)]);

        let mut read = stored(&seen);
        assert!((0..=5_000).all(|n| read.contains(&id(n))) && !read.contains(&id(5_001)));
        assert_eq!(read.changes().count(), 0);
        // Of all rows only the one that takes it is written.
        read.add(&id(5_001), 1_000);
        assert_eq!(read.changes().map(|(part, _)| part).collect::<Vec<_>>(), [(0, 1)]);
    }

    #[test]
    fn ids_go_with_their_six_hours_and_no_sooner() {
        let mut seen = Seen::default();
        seen.add(&id(1), 0);
        seen.add(&id(2), BUCKET_SECS);
        let mut seen = stored(&seen);
        seen.drop_before(BUCKET_SECS - 1);
        assert_eq!(seen.changes().count(), 0);
        seen.drop_before(BUCKET_SECS);
        assert!(!seen.contains(&id(1)) && seen.contains(&id(2)));
        assert_eq!(seen.changes().collect::<Vec<_>>(), [((0, 0), Change::Delete)]);
        // One that comes after all is not lost with the row.
        seen.add(&id(3), 0);
        assert_eq!(seen.changes().count(), 1);
        assert!(stored(&seen).contains(&id(3)));
    }

    #[test]
    fn a_flood_fills_the_set_and_makes_it_no_larger_until_its_hours_are_over() {
        let mut seen = Seen::default();
        let most = u32::try_from(MAX_IDS).unwrap();
        for n in 0..most + 500 {
            seen.add(&id(n), 1_000);
        }
        assert!(seen.is_full() && seen.contains(&id(most - 1)) && !seen.contains(&id(most)));
        assert_eq!(seen.changes().count(), MAX_IDS / PART_IDS);
        seen.drop_before(BUCKET_SECS);
        seen.add(&id(most), BUCKET_SECS);
        assert!(!seen.is_full() && seen.contains(&id(most)));
    }

    #[test]
    fn a_row_of_another_format_counts_for_nothing() {
        let mut seen = Seen::default();
        seen.load((0, 0), &[2, 1, 1, 1]);
        seen.load((0, 1), &[]);
        seen.add(&id(1), 0);
        assert!(seen.contains(&id(1)));
    }
}
