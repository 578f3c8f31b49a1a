//! The ids that a bridge met last: a set with a bound. What falls out of it is pushed once more at the worst, and the agent
//! knows it.

use std::collections::{HashSet, VecDeque};

use nostr::prelude::EventId;

/// So many are remembered.
const MAX_IDS: usize = 10_000;

/// The set.
#[derive(Debug, Default)]
pub(super) struct Recent {
    ids: HashSet<EventId>,
    order: VecDeque<EventId>,
}

impl Recent {
    /// Whether the id was met.
    pub(super) fn contains(&self, id: &EventId) -> bool {
        self.ids.contains(id)
    }

    /// Remembers the id; the oldest is forgotten where there are too many.
    pub(super) fn add(&mut self, id: EventId) {
        if !self.ids.insert(id) {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MAX_IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ids_are_forgotten_beyond_the_bound() {
        let id = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            EventId::from_byte_array(bytes)
        };
        let mut recent = Recent::default();
        (0..=MAX_IDS).chain([MAX_IDS]).for_each(|n| recent.add(id(n)));
        assert!(!recent.contains(&id(0)) && (1..=MAX_IDS).all(|n| recent.contains(&id(n))));
        assert_eq!((recent.ids.len(), recent.order.len()), (MAX_IDS, MAX_IDS));
    }
}
