//! One relay and one agent in simulated time.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::seen::{Change, Part, Seen};
use super::*;

const STREAMS: [Stream; 3] = [Stream::Wraps, Stream::Dms, Stream::Sent];

fn id(n: u32) -> EventId {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    EventId::from_byte_array(bytes)
}

/// An event that lies on the relay from `arrives` on.
#[derive(Debug, Clone)]
struct Sent {
    found: Found,
    arrives: u64,
}

/// A relay that gives `cap` events at the most, per filter or per page.
#[derive(Debug, Clone)]
struct Relay {
    events: Vec<Sent>,
    cap: usize,
    per_page: bool,
    /// Whether it goes through all filters at once and not filter by filter.
    merges: bool,
    /// After so many events we no longer listen.
    cut_at: usize,
    /// So many others match the filters that stand beside.
    state: usize,
    /// Events at which we stop listening: they are too large to be received.
    oversized: Vec<Found>,
}

/// What it answers: messages, others, how that ended.
type Answer = (Vec<Found>, usize, End);

impl Relay {
    /// One that hides and cuts nothing.
    fn plain(events: Vec<Sent>, cap: usize) -> Self {
        Self {
            events,
            cap,
            per_page: false,
            merges: true,
            cut_at: usize::MAX,
            state: 0,
            oversized: Vec::new(),
        }
    }

    /// `beside` says whether it is asked for the state too.
    fn answer(&self, asks: &[Ask], beside: bool, now: u64) -> Answer {
        let mut page: Vec<Found> = Vec::new();
        for ask in asks {
            let mut matching: Vec<&Found> = self
                .events
                .iter()
                .filter(|event| event.arrives <= now)
                .map(|event| &event.found)
                .chain(&self.oversized)
                .filter(|found| found.stream == ask.stream)
                .filter(|found| found.at >= ask.since && ask.until.is_none_or(|until| found.at <= until))
                .collect();
            matching.sort_by_key(|found| (std::cmp::Reverse(found.at), found.id));
            page.extend(matching.into_iter().take(ask.limit.min(self.cap)).cloned());
        }
        if self.merges {
            page.sort_by_key(|found| (std::cmp::Reverse(found.at), found.id));
        }
        let mut ids = BTreeSet::new();
        page.retain(|found| ids.insert(found.id));
        // The worst: what stands beside comes first.
        let mut others = if beside { self.state } else { 0 };
        let mut trim = |most: usize| {
            let all = others + page.len();
            others = others.min(most);
            page.truncate(most - others);
            all > most
        };
        if self.per_page {
            trim(self.cap);
        }
        let mut end = if trim(self.cut_at) { End::Cut } else { End::Whole };
        if let Some(first) = page.iter().position(|found| self.oversized.contains(found)) {
            page.truncate(first);
            end = End::Cut;
        }
        (page, others, end)
    }
}

/// What outlives a tick.
#[derive(Debug, Default)]
struct Agent {
    cursor: Cursor,
    seen: BTreeMap<Part, Vec<u8>>,
    claimed: BTreeSet<EventId>,
    /// Ids that a tick dealt with that then saved how far it came.
    saved: BTreeSet<EventId>,
    /// Those of them that a later tick took for new: only their claims keep them from being run twice.
    again: Vec<EventId>,
    gaps: BTreeSet<u64>,
}

/// Where a tick dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    Never,
    /// After it worked this many events.
    After(usize),
    /// After it worked all of them, before it saved how far it came.
    BeforeSaving,
}

impl Agent {
    /// One tick of at most `pages` pages; returns how many there were.
    fn tick(&mut self, relay: &Relay, real: u64, clock: u64, pages: usize, crash: Crash) -> usize {
        let mut seen = Seen::default();
        self.seen.iter().for_each(|(part, bytes)| seen.load(*part, bytes));
        let mut paging = Paging::new(self.cursor.begin(clock, &STREAMS, None));
        let mut news: Vec<Found> = Vec::new();
        let (mut asked, mut was_beside) = (0, false);
        while asked < pages && !paging.is_covered() {
            let beside = !was_beside && !paging.is_alone();
            was_beside |= beside;
            let (mut page, others, end) = relay.answer(&paging.asks(), beside, real);
            asked += 1;
            let unknown = page.iter().filter(|found| !seen.contains(&found.id)).count();
            let took = paging.took(&Page { events: &page, news: unknown, others, end });
            page.retain(|found| !seen.contains(&found.id) && !news.contains(found));
            news.extend(page);
            match took {
                Err(Disordered) if !beside && end == End::Cut => paging.narrow(),
                Err(Disordered) if !beside => break,
                _ => {}
            }
        }
        for (worked, found) in news.iter().enumerate() {
            if crash == Crash::After(worked) {
                return asked;
            }
            self.claimed.insert(found.id);
            self.again.extend(Some(found.id).filter(|id| self.saved.contains(id)));
            seen.add(&found.id, found.at);
        }
        let covered = paging.is_covered();
        let (sweep, gaps) = paging.end();
        self.gaps.extend(gaps);
        if crash != Crash::Never {
            return asked;
        }
        self.saved.extend(news.iter().map(|found| found.id));
        self.cursor.advance(sweep, covered);
        if let Some(horizon) = self.cursor.horizon(None) {
            seen.drop_before(horizon);
        }
        for (part, change) in seen.changes() {
            match change {
                Change::Put(bytes) => drop(self.seen.insert(part, bytes)),
                Change::Delete => drop(self.seen.remove(&part)),
            }
        }
        asked
    }
}

const DAY: u64 = 24 * 60 * 60;
const BEGIN: u64 = 1_803_902_400;

impl Relay {
    /// The seconds that may be given up: they hold as much of a stream as fills a page, or what cannot be received.
    fn unreadable_seconds(&self) -> BTreeSet<u64> {
        let mut counts: BTreeMap<(Stream, u64), usize> = BTreeMap::new();
        for Sent { found, .. } in &self.events {
            *counts.entry((found.stream, found.at)).or_default() += 1;
        }
        let full = counts.into_iter().filter(|(_, count)| *count >= SMALLEST_PAGE).map(|((_, at), _)| at);
        full.chain(self.oversized.iter().map(|found| found.at)).collect()
    }
}

/// Events of a day and a half: wraps back-dated up to two days, others held up on their way; many in the same second.
fn events() -> impl Strategy<Value = Vec<Sent>> {
    prop_oneof![4 => Just(600), 1 => Just(4 * 60 * 60)].prop_flat_map(events_in_steps_of)
}

/// Half of them bear times that are multiples of `step`.
fn events_in_steps_of(step: u64) -> impl Strategy<Value = Vec<Sent>> {
    let event = (0..3 * DAY / 2, 0..2 * DAY, 0usize..3, any::<bool>()).prop_map(
        move |(arrives, early, kind, near)| {
            let arrives = BEGIN + arrives;
            let stream = STREAMS[kind];
            // Most clients are prompt; some messages wait for a day on a phone without a network.
            let early = if stream == Stream::Wraps || !near { early } else { early % 2400 };
            // However far it is rounded down, it is not older than two days.
            let at = arrives - if near { early } else { early.min(2 * DAY - step) };
            (stream, if near { at } else { at - at % step }, arrives)
        },
    );
    prop::collection::vec(event, 0..400).prop_map(|events| {
        (0u32..)
            .zip(events)
            .map(|(n, (stream, at, arrives))| Sent { found: Found { id: id(n), stream, at }, arrives })
            .collect()
    })
}

fn crashes() -> impl Strategy<Value = Vec<(u8, Crash)>> {
    let crash = prop_oneof![(0usize..30).prop_map(Crash::After), Just(Crash::BeforeSaving)];
    prop::collection::vec((any::<u8>(), crash), 0..40)
}

proptest! {
    #[test]
    fn no_id_is_lost_but_in_seconds_that_cannot_be_read_and_none_is_taken_for_new_after_it_was_saved(
        events in events(),
        cap in 20usize..80,
        (per_page, merges) in any::<(bool, bool)>(),
        // Three streams of which each shows too little to prove its order.
        cut_at in prop_oneof![3 * PROVING_EVENTS - 2..60, Just(usize::MAX)],
        state in 0usize..100,
        pages in 2usize..7,
        crashes in crashes(),
        oversized in prop::collection::vec((0..DAY, 0usize..3), 0..3),
        steps in prop::collection::vec(-600i64..=600, 1..8),
    ) {
        let oversized = (u32::MAX - 9..)
            .zip(oversized)
            .map(|(n, (at, stream))| Found { id: id(n), stream: STREAMS[stream], at: BEGIN + at })
            .collect();
        let relay = Relay { events, cap, per_page, merges, cut_at, state, oversized };
        let mut agent = Agent::default();
        // Ticks of ten minutes: twelve times the load of each.
        for (number, real) in (BEGIN..BEGIN + 4 * DAY).step_by(600).enumerate() {
            let clock = real.saturating_add_signed(steps[number / 40 % steps.len()]);
            let crash = crashes.iter().find(|(at, _)| usize::from(*at) == number);
            agent.tick(&relay, real, clock, pages, crash.map_or(Crash::Never, |(_, crash)| *crash));
        }
        let lost: Vec<&Sent> = relay
            .events
            .iter()
            .filter(|event| !agent.claimed.contains(&event.found.id) && !agent.gaps.contains(&event.found.at))
            .collect();
        prop_assert!(lost.is_empty(), "{lost:?}");
        let none: [EventId; 0] = [];
        prop_assert_eq!(agent.again, none);
        let (gaps, unreadable) = (agent.gaps, relay.unreadable_seconds());
        prop_assert!(gaps.is_subset(&unreadable), "{:?}", gaps.difference(&unreadable));
    }
}

#[test]
fn an_empty_window_is_covered_by_one_page_and_a_short_one_by_two() {
    let relay = |events| Relay::plain(events, 500);
    let sent = |n, at| Sent { found: Found { id: id(n), stream: Stream::Wraps, at }, arrives: 0 };
    let mut agent = Agent::default();
    assert_eq!(agent.tick(&relay(vec![]), BEGIN, BEGIN, 9, Crash::Never), 1);
    assert_eq!(
        agent.tick(&relay(vec![sent(1, BEGIN), sent(2, BEGIN - 9)]), BEGIN, BEGIN, 9, Crash::Never),
        2
    );
    // Nothing of it is new, and no relay gives as few at a time.
    assert_eq!(agent.tick(&relay(vec![sent(1, BEGIN)]), BEGIN, BEGIN, 9, Crash::Never), 1);
}

/// So many a minute, newest last, from `until` down.
fn wraps(ids: std::ops::Range<u32>, until: u64) -> Vec<Sent> {
    let at = |n: u32| until - 60 * u64::from(n);
    ids.map(|n| Sent { found: Found { id: id(n), stream: Stream::Wraps, at: at(n) }, arrives: 0 }).collect()
}

#[test]
fn a_known_page_is_asked_about_again_where_the_relay_was_not_seen_to_give_more() {
    let mut agent = Agent::default();
    let mut ticks = |from: u64, events: &[Sent]| {
        let relay = Relay::plain(events.to_vec(), 500);
        [0, 60, 120].map(|later| agent.tick(&relay, from + later, from + later, 9, Crash::Never))
    };
    let many = wraps(0..40, BEGIN);
    assert_eq!(ticks(BEGIN, &many), [2, 2, 2], "forty are the most that it gave");
    assert_eq!(ticks(BEGIN + 300, &many[..39]), [1, 1, 1]);
    // The daily sweep believes nothing, and what it was seen to give yesterday no longer counts.
    assert_eq!(ticks(BEGIN + DAY, &many[..39]), [2, 2, 2]);
}

/// The price of asking once: a day.
#[test]
fn what_a_relay_that_lowered_its_cap_held_back_is_found_by_the_next_daily_sweep() {
    let mut agent = Agent::default();
    let mut tick = |now: u64, cap: usize, events: &[Sent]| {
        agent.tick(&Relay::plain(events.to_vec(), cap), now, now, 9, Crash::Never);
        agent.claimed.len()
    };
    let mut events = wraps(0..40, BEGIN);
    assert_eq!(tick(BEGIN, 500, &events), 40);
    // Back-dated, below all that the relay still gives.
    let below = Found { id: id(99), stream: Stream::Wraps, at: BEGIN - 47 * 3600 };
    events.push(Sent { found: below, arrives: BEGIN + 60 });
    assert_eq!(tick(BEGIN + 60, 10, &events), 40);
    assert_eq!(tick(BEGIN + DAY, 10, &events), 41);
}

/// Large wraps, with some NIP-04 messages between them.
#[test]
fn a_flood_that_is_cut_off_freezes_no_window_and_holds_up_no_other_stream() {
    for merges in [true, false] {
        let mut events = wraps(0..900, BEGIN - 30);
        events.extend((0..5).map(|n| Sent {
            found: Found { id: id(5_000 + n), stream: Stream::Dms, at: BEGIN - 500 * 60 * u64::from(n) },
            arrives: 0,
        }));
        let relay = Relay { cut_at: 30, merges, ..Relay::plain(events, 500) };
        let mut agent = Agent::default();
        agent.tick(&relay, BEGIN, BEGIN, 8, Crash::Never);
        assert!((0..5).all(|n| agent.claimed.contains(&id(5_000 + n))), "merges: {merges}");
        let mut ticks = 1;
        while agent.cursor.complete_at.is_none() {
            ticks += 1;
            assert!(ticks < 12, "the window is frozen; merges: {merges}");
            agent.tick(&relay, BEGIN + 60 * ticks, BEGIN + 60 * ticks, 8, Crash::Never);
        }
        assert_eq!((agent.claimed.len(), agent.gaps.len()), (905, 0));
    }
}

/// A relay that counts all of an answer together, and has more of the state than it gives at a time.
#[test]
fn what_stands_beside_and_fills_a_page_is_left_out_of_the_next_one() {
    for cut_at in [usize::MAX, 30] {
        let relay = Relay { per_page: true, state: 60, cut_at, ..Relay::plain(wraps(0..5, BEGIN), 40) };
        let mut agent = Agent::default();
        assert_eq!(agent.tick(&relay, BEGIN, BEGIN, 9, Crash::Never), 3);
        assert_eq!((agent.claimed.len(), agent.cursor.complete_at), (5, Some(BEGIN)));
    }
}

#[test]
fn the_cursor_is_our_clock_at_the_begin_of_a_sweep_and_moves_at_its_end() {
    let events = (0..1200).map(|n| Sent {
        found: Found { id: id(n), stream: Stream::Wraps, at: BEGIN - u64::from(n) },
        arrives: 0,
    });
    let relay = Relay::plain(events.collect(), 500);
    let mut agent = Agent::default();
    for minute in 0..4 {
        assert_eq!(agent.cursor.complete_at, None);
        let now = BEGIN + minute * 60;
        assert_eq!(agent.tick(&relay, now, now, 1, Crash::Never), 1);
    }
    assert_eq!((agent.cursor.complete_at, agent.cursor.sweep.clone()), (Some(BEGIN), None));
    assert_eq!(agent.claimed.len(), 1200);

    let since = |cursor: &Cursor, now| {
        let asks = Paging::new(cursor.begin(now, &STREAMS, None)).asks();
        asks.iter().map(|ask| now - ask.since).collect::<Vec<_>>()
    };
    assert_eq!(since(&agent.cursor, BEGIN + 60), [60 + 49 * 3600, 60 + 3600, 60 + 3600]);
    assert_eq!(since(&agent.cursor, BEGIN + DAY), [DAY + 49 * 3600; 3]);
    assert_eq!(agent.cursor.horizon(None), Some(BEGIN - 49 * 3600));
}

#[test]
fn a_place_that_does_not_move_is_given_up_for_the_top() {
    let mut cursor = Cursor::default();
    let top = cursor.begin(BEGIN, &STREAMS, None);
    let mut paging = Paging::new(top.clone());
    let found = Found { id: id(1), stream: Stream::Wraps, at: BEGIN - 9 };
    paging.took(&Page { events: &[found], news: 1, others: 0, end: End::Whole }).unwrap();
    let (place, _) = paging.end();
    cursor.advance(place.clone(), false);
    assert_eq!(cursor.begin(BEGIN + 60, &STREAMS, None), place);
    cursor.advance(place, false);
    let next = Paging::new(cursor.begin(BEGIN + 120, &STREAMS, None)).asks();
    assert!(next.iter().all(|ask| ask.until.is_none()), "{next:?}");
    assert_eq!((cursor.complete_at, cursor.begin(BEGIN, &STREAMS, None)), (None, top));
}

#[test]
fn a_second_that_holds_more_than_a_page_is_told_and_passed() {
    let second = BEGIN - 100;
    let mut events: Vec<Sent> = (0..70)
        .map(|n| Sent { found: Found { id: id(n), stream: Stream::Dms, at: second }, arrives: 0 })
        .collect();
    let below = Found { id: id(99), stream: Stream::Dms, at: second - 1 };
    events.push(Sent { found: below.clone(), arrives: 0 });
    for per_page in [false, true] {
        let relay = Relay { per_page, ..Relay::plain(events.clone(), 30) };
        let mut agent = Agent::default();
        agent.tick(&relay, BEGIN, BEGIN, 9, Crash::Never);
        assert_eq!(agent.gaps, BTreeSet::from([second]), "per page: {per_page}");
        assert!(agent.claimed.contains(&below.id));
        assert_eq!(agent.cursor.complete_at, Some(BEGIN));
    }
}

#[test]
fn an_event_that_is_too_large_to_be_received_hides_its_second_and_nothing_else() {
    let sent = |n, stream, at| Sent { found: Found { id: id(n), stream, at }, arrives: 0 };
    let large = |n, stream, at| Found { id: id(n), stream, at };
    let (wraps, dms) = (Stream::Wraps, Stream::Dms);
    let events: Vec<Sent> = (0..40)
        .map(|n| sent(n, wraps, BEGIN - u64::from(n) * 4_000))
        .chain((40..60).map(|n| sent(n, dms, BEGIN - u64::from(n - 40) * 150)))
        .collect();
    let oversized =
        vec![large(97, wraps, BEGIN + 10), large(98, wraps, BEGIN - 50_000), large(99, dms, BEGIN - 1_000)];
    let relay = Relay { oversized, ..Relay::plain(events.clone(), 500) };
    let mut agent = Agent::default();
    let mut ticks = 0;
    while agent.cursor.complete_at.is_none() {
        agent.tick(&relay, BEGIN, BEGIN, 8, Crash::Never);
        ticks += 1;
        assert!(ticks <= 20, "{:?}", agent.cursor);
    }
    assert_eq!(agent.claimed, events.iter().map(|event| event.found.id).collect());
    assert_eq!(agent.gaps, BTreeSet::from([BEGIN + 10, BEGIN - 50_000, BEGIN - 1_000]));
}

#[test]
fn a_page_that_is_cut_off_counts_as_far_as_its_order_shows() {
    let found = |n: u32, at| Found { id: id(n), stream: Stream::Wraps, at };
    let paging = || Paging::new(Cursor::default().begin(BEGIN, &[Stream::Wraps], None));
    let took = |paging: &mut Paging, events: &[Found]| {
        paging.took(&Page { events, news: events.len(), others: 0, end: End::Cut })
    };
    let mut newest_first = paging();
    let page: Vec<Found> = (0..25).map(|n| found(n, BEGIN - u64::from(n))).collect();
    assert_eq!(took(&mut newest_first, &page), Ok(()));
    assert_eq!(newest_first.asks()[1].until, Some(BEGIN - 25));
    assert!(!newest_first.is_covered());
    // Not even all of the second that was asked for again: it is asked for alone, and told where that is cut off too.
    let asks = newest_first.asks();
    let second: Vec<Found> = (100..140).map(|n| found(n, BEGIN - 24)).collect();
    assert_eq!(took(&mut newest_first, &second), Ok(()));
    assert_eq!(newest_first.asks(), asks[..1]);
    assert_eq!(took(&mut newest_first, &second), Ok(()));
    assert_eq!(newest_first.asks(), asks[1..]);
    assert_eq!(newest_first.end().1, [BEGIN - 24]);

    let oldest_first: Vec<Found> = page.into_iter().rev().collect();
    assert_eq!(took(&mut paging(), &oldest_first), Err(Disordered));
    assert_eq!(took(&mut paging(), &[found(1, BEGIN)]), Err(Disordered));
    assert_eq!(took(&mut paging(), &[]), Err(Disordered));
}

#[test]
fn a_stream_is_read_back_from_its_name_and_the_names_of_messages_stay_as_they_were() {
    let name = |stream: Stream| serde_json::to_string(&stream).unwrap();
    assert_eq!(STREAMS.map(name), [r#""wraps""#, r#""dms""#, r#""sent""#]);
    for stream in STREAMS.into_iter().chain([0, 7, u64::MAX].map(Stream::Subscribed)) {
        assert_eq!(serde_json::from_str::<Stream>(&name(stream)).unwrap(), stream);
    }
    assert!(serde_json::from_str::<Stream>(r#""sub:x""#).is_err());
}

/// Two filters that some events match both of, read from a relay that gives few events per filter.
#[test]
fn an_event_of_several_streams_hides_nothing_of_either() {
    let (one, two) = (Stream::Subscribed(1), Stream::Subscribed(2));
    // The newest are of both; older ones alternate.
    let streams = |n: u32| match n {
        0..=60 => vec![one, two],
        n if n.is_multiple_of(2) => vec![one],
        _ => vec![two],
    };
    let at = |n: u32| BEGIN - u64::from(n);
    let mut paging = Paging::new(Cursor::default().begin(BEGIN, &[one, two], None));
    let mut shown = BTreeSet::new();
    for _ in 0..100 {
        if paging.is_covered() {
            break;
        }
        let mut page = Vec::new();
        for ask in paging.asks() {
            let fits = |n: &u32| {
                at(*n) >= ask.since
                    && ask.until.is_none_or(|until| at(*n) <= until)
                    && streams(*n).contains(&ask.stream)
            };
            page.extend((0..200).filter(fits).take(25).map(|n| (n, ask.stream)));
        }
        page.sort_unstable();
        page.dedup();
        let found: Vec<Found> =
            page.iter().map(|(n, stream)| Found { id: id(*n), stream: *stream, at: at(*n) }).collect();
        let news = page.iter().filter(|(n, _)| !shown.contains(n)).count();
        shown.extend(page.iter().map(|(n, _)| *n));
        paging.took(&Page { events: &found, news, others: 0, end: End::Whole }).unwrap();
    }
    assert!(paging.is_covered());
    assert_eq!(shown, (0..200).collect());
}
