//! What a bridge heard and nobody took yet: batches in the order they came, with bounds on count, bytes and age. Pure: time
//! is an argument.
//!
//! Whatever is dropped here lies on its relay, where the sweep finds it.

use std::collections::VecDeque;
use std::time::Duration;

use nostr::prelude::RelayUrl;
use serde_json::value::RawValue;
use tokio::time::Instant;

/// How long the first event of a batch waits for company.
const BRIEFLY: Duration = Duration::from_millis(200);

/// The most events of a batch,
const MAX_EVENTS: usize = 50;
/// and bytes, so that one more of the largest still fits into a message of SQS (256 KiB in its older limit).
const MAX_BYTES: usize = 96 * 1024;

/// The most that waits, in bytes.
const MAX_WAITING_BYTES: usize = 32 * 1024 * 1024;

/// After so long the sweep has found it.
const MAX_AGE: Duration = Duration::from_secs(60 * 60);

/// How long the other end is left alone when it took nothing, the first time; each time twice as long,
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// and never longer than this.
const LONGEST_DELAY: Duration = Duration::from_secs(5 * 60);

/// Events of one relay that are pushed together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) relay: RelayUrl,
    pub(super) events: Vec<Box<RawValue>>,
    bytes: usize,
    begun: Instant,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.events.len() >= MAX_EVENTS || self.bytes >= MAX_BYTES
    }
}

/// The batches.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<Batch>,
    bytes: usize,
    failures: u32,
    not_before: Option<Instant>,
}

impl Outbox {
    /// Adds an event. Returns how many older ones had to go for it.
    pub(super) fn add(&mut self, relay: &RelayUrl, event: Box<RawValue>, now: Instant) -> usize {
        let size = event.get().len();
        self.bytes = self.bytes.saturating_add(size);
        match self.waiting.iter_mut().rev().find(|batch| batch.relay == *relay && !batch.is_full()) {
            Some(batch) => {
                batch.bytes = batch.bytes.saturating_add(size);
                batch.events.push(event);
            }
            None => self.waiting.push_back(Batch {
                relay: relay.clone(),
                events: vec![event],
                bytes: size,
                begun: now,
            }),
        }
        let mut dropped = 0;
        while self.bytes > MAX_WAITING_BYTES && self.waiting.len() > 1 {
            dropped += self.drop_first();
        }
        dropped
    }

    /// Drops what nobody took for an hour. Returns how many events that were.
    pub(super) fn drop_old(&mut self, now: Instant) -> usize {
        let mut dropped = 0;
        while self.waiting.front().is_some_and(|batch| now.saturating_duration_since(batch.begun) > MAX_AGE) {
            dropped += self.drop_first();
        }
        dropped
    }

    fn drop_first(&mut self) -> usize {
        let Some(batch) = self.waiting.pop_front() else { return 0 };
        self.bytes = self.bytes.saturating_sub(batch.bytes);
        batch.events.len()
    }

    /// When the next batch is to be pushed.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let first = self.waiting.front()?;
        let ready = if first.is_full() { first.begun } else { first.begun + BRIEFLY };
        Some(self.not_before.map_or(ready, |at| at.max(ready)))
    }

    /// The next batch, if its time has come.
    pub(super) fn take(&mut self, now: Instant) -> Option<Batch> {
        self.next_at().filter(|at| *at <= now)?;
        self.pop()
    }

    /// The next batch, whatever the time.
    pub(super) fn pop(&mut self) -> Option<Batch> {
        let batch = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(batch.bytes);
        Some(batch)
    }

    /// The other end took something: nothing needs to wait any more.
    pub(super) fn took(&mut self) {
        (self.failures, self.not_before) = (0, None);
    }

    /// The other end did not take `batch`: it is pushed again, later, and where the other end asks for a `wait`, not before
    /// that is over.
    pub(super) fn refused(&mut self, batch: Batch, wait: Duration, now: Instant) {
        self.bytes = self.bytes.saturating_add(batch.bytes);
        let place = self.waiting.iter().take_while(|other| other.begun < batch.begun).count();
        self.waiting.insert(place, batch);
        let delay = FIRST_DELAY.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_DELAY);
        // Several pushes at once that fail are one failure.
        if self.not_before.is_none_or(|at| at <= now) {
            self.failures = self.failures.saturating_add(1);
            self.not_before = Some(now + delay);
        }
        let asked = now + wait.min(LONGEST_DELAY);
        self.not_before = self.not_before.map(|at| at.max(asked));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str) -> RelayUrl {
        RelayUrl::parse(&format!("wss://{name}.test")).unwrap()
    }

    fn event(bytes: usize) -> Box<RawValue> {
        RawValue::from_string(format!("\"{}\"", "x".repeat(bytes - 2))).unwrap()
    }

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    /// Sizes of the batches that are taken, each with its relay.
    fn taken(outbox: &mut Outbox, now: Instant) -> Vec<(String, usize)> {
        std::iter::from_fn(|| outbox.take(now))
            .map(|batch| (batch.relay.to_string(), batch.events.len()))
            .collect()
    }

    #[test]
    fn events_of_one_relay_wait_briefly_for_each_other_and_a_full_batch_for_nobody() {
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        for (name, at) in [("a", 0), ("b", 50), ("a", 150)] {
            outbox.add(&relay(name), event(100), after(start, at));
        }
        assert_eq!(taken(&mut outbox, after(start, 199)), []);
        assert_eq!(taken(&mut outbox, after(start, 200)), [("wss://a.test".to_owned(), 2)]);
        assert_eq!(taken(&mut outbox, after(start, 250)), [("wss://b.test".to_owned(), 1)]);
        for _ in 0..MAX_EVENTS + 1 {
            outbox.add(&relay("a"), event(100), start);
        }
        assert_eq!(taken(&mut outbox, start), [("wss://a.test".to_owned(), MAX_EVENTS)]);
        outbox.add(&relay("b"), event(MAX_BYTES), start);
        assert_eq!(taken(&mut outbox, after(start, 200)).len(), 2);
    }

    #[test]
    fn what_was_refused_is_pushed_again_in_its_order_each_time_later_until_an_hour_is_over() {
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        outbox.add(&relay("a"), event(100), start);
        outbox.add(&relay("b"), event(100), after(start, 1));
        let (mut now, mut waits) = (after(start, 500), Vec::new());
        loop {
            let batch = outbox.take(now).unwrap();
            assert_eq!(batch.relay, relay("a"));
            outbox.refused(batch, Duration::ZERO, now);
            let next = outbox.next_at().unwrap();
            waits.push((next - now).as_secs());
            now = next;
            if outbox.drop_old(now) > 0 {
                break;
            }
        }
        assert_eq!(waits[..10], [1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
        assert!((3600..3900).contains(&waits.iter().sum::<u64>()), "{waits:?}");
        assert_eq!((outbox.waiting.len(), outbox.bytes), (0, 0));
    }

    #[test]
    fn a_wait_that_the_other_end_asks_for_is_kept_within_bounds() {
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        outbox.add(&relay("a"), event(100), start);
        let mut now = after(start, 200);
        for (asked, waited) in [(30, 30), (0, 2), (3, 4), (86_400, 300)] {
            let batch = outbox.take(now).unwrap();
            outbox.refused(batch, Duration::from_secs(asked), now);
            let next = outbox.next_at().unwrap();
            assert_eq!((next - now).as_secs(), waited);
            now = next;
        }
    }

    #[test]
    fn once_something_is_taken_nothing_waits() {
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        for name in ["a", "b", "c"] {
            outbox.add(&relay(name), event(100), start);
        }
        let now = after(start, 200);
        let (a, b) = (outbox.take(now).unwrap(), outbox.take(now).unwrap());
        outbox.refused(b, Duration::ZERO, now);
        outbox.refused(a, Duration::ZERO, now);
        assert_eq!(outbox.next_at(), Some(after(start, 1200)));
        assert_eq!(taken(&mut outbox, after(start, 1199)), []);
        outbox.took();
        let names: Vec<String> =
            taken(&mut outbox, after(start, 1199)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 3);
        assert_eq!(names[2], "wss://c.test");
    }

    #[test]
    fn what_waits_has_a_bound_and_the_oldest_goes_first() {
        let (mut outbox, start) = (Outbox::default(), Instant::now());
        let large = 128 * 1024;
        let dropped: usize = (0..300).map(|n| outbox.add(&relay("a"), event(large), after(start, n))).sum();
        assert_eq!(dropped, 300 - MAX_WAITING_BYTES / large);
        assert!(outbox.bytes <= MAX_WAITING_BYTES);
        assert_eq!(outbox.waiting.front().unwrap().begun, after(start, dropped as u64));
    }
}
