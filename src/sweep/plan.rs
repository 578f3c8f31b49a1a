//! What a relay is asked next, and when it has told everything: cursors, windows and pages.
//!
//! A relay gives its newest events first and no more than it likes at a time (NIP-01's `limit` and its own), so a window
//! is read downwards: what comes next is older than the oldest event so far. Nothing here does I/O or knows a clock.

use std::collections::{BTreeMap, BTreeSet};

use nostr::prelude::EventId;
use serde::{Deserialize, Serialize};

/// How far back of the last complete sweep wraps are asked for: two days by which NIP-59 dates a wrap early, and an hour
/// of slack.
pub const FAR_REACH_SECS: u64 = 49 * 60 * 60;

/// How far back a subscription looks that was cut off so often: a relay shows a live event only where it matches `since`, and
/// wraps are dated early.
pub(crate) fn look_back_secs(cuts: u32) -> u64 {
    FAR_REACH_SECS.checked_shr(cuts).unwrap_or(0)
}

/// How far back of the last complete sweep the rest is asked for.
const NEAR_REACH_SECS: u64 = 60 * 60;

/// How often everything is asked for as far back, reckoned from the last such sweep: so a message that was held up on its
/// way for two days is found.
const DEEP_EVERY_SECS: u64 = 24 * 60 * 60;

/// The most events that one filter asks for.
const PAGE_LIMIT: usize = 500;

/// The same for a second that filled a page: as many as relays give at the most.
const SECOND_LIMIT: usize = 1000;

/// Fewer events than this in one second are not taken for a full page: no relay in use gives fewer at a time.
const SMALLEST_PAGE: usize = 20;

/// How far ahead of the begin of a sweep what it reads is dated at the latest: the two days of a wrap, and an hour of slack.
const AHEAD_SECS: u64 = FAR_REACH_SECS;

/// So many events that come newest first do so by their relay's order: by chance one page of 5,040 would.
const PROVING_EVENTS: usize = 7;

/// What a relay is asked for; each is paged for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Stream {
    /// Gift wraps to the agent (kind 1059).
    Wraps,
    /// NIP-04 messages to the agent (kind 4).
    Dms,
    /// NIP-04 messages that the agent wrote.
    Sent,
    /// What matches a filter of the skills' subscriptions, which goes by this number. An event may be of several such streams.
    Subscribed(u64),
}

/// What the names of subscribed streams begin with.
const SUBSCRIBED: &str = "sub:";

impl From<Stream> for String {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Wraps => "wraps".to_owned(),
            Stream::Dms => "dms".to_owned(),
            Stream::Sent => "sent".to_owned(),
            Stream::Subscribed(number) => format!("{SUBSCRIBED}{number:016x}"),
        }
    }
}

impl TryFrom<String> for Stream {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        match name.as_str() {
            "wraps" => Ok(Self::Wraps),
            "dms" => Ok(Self::Dms),
            "sent" => Ok(Self::Sent),
            other => other
                .strip_prefix(SUBSCRIBED)
                .and_then(|number| u64::from_str_radix(number, 16).ok())
                .map(Self::Subscribed)
                .ok_or("not the name of a stream"),
        }
    }
}

/// What is known of one relay between two ticks. Times are Unix seconds of our clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// When its last complete sweep began; `None` where there was none.
    pub complete_at: Option<u64>,
    /// The same of the last one that went as far back for everything.
    pub deep_at: Option<u64>,
    /// The sweep that is under way, where one tick was not enough.
    pub sweep: Option<Sweep>,
    /// The most events of one stream that it was seen to give at a time, since the last such deep sweep began.
    #[serde(default)]
    most: usize,
}

/// A sweep of one relay: from its begin until its window is covered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// When it began.
    pub started_at: u64,
    deep: bool,
    places: BTreeMap<Stream, Place>,
    /// The most events of one stream that a page brought.
    #[serde(default)]
    most: usize,
    /// Fewer events than this, all of them known, are no page that was filled up.
    #[serde(default)]
    small: usize,
    /// What is asked for alone, since answers to more than that are cut off before they tell anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    narrow: Option<Narrow>,
}

/// A part of one stream's window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Narrow {
    stream: Stream,
    /// Its lower end; the upper one is the stream's place.
    since: u64,
    /// The lower ends of the parts that it was halved out of, the smallest last: what cut them off lies in their lower halves
    /// if not in this.
    outer: Vec<u64>,
}

/// How far one stream was read: from the top of its window down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// The window's lower end.
    since: u64,
    /// All above was read; `None` before the first page.
    until: Option<u64>,
    /// A second of which a page may have shown a part only; it is asked for once more, beside what lies below.
    second: Option<u64>,
    /// Whether that answer may have been cut short by other events: then it is asked for alone.
    doubtful: bool,
    /// The most events of this stream that one page brought.
    largest: usize,
}

impl Cursor {
    /// The sweep to go on with: the one under way, or a new one that begins `now`. `floor` holds the window open to a time
    /// before the cursor.
    #[must_use]
    pub fn begin(&self, now: u64, streams: &[Stream], floor: Option<u64>) -> Sweep {
        if let Some(sweep) = self.sweep.as_ref().filter(|sweep| sweep.is_of(streams)) {
            return sweep.clone();
        }
        let deep = self.deep_at.is_none_or(|at| now.abs_diff(at) >= DEEP_EVERY_SECS);
        let base = self.base(now, floor);
        let place = |stream: Stream| {
            let since = match stream {
                _ if deep => self.deep_at.unwrap_or(base).min(base).saturating_sub(FAR_REACH_SECS),
                Stream::Wraps => base.saturating_sub(FAR_REACH_SECS),
                _ => base.saturating_sub(NEAR_REACH_SECS),
            };
            Place { since, until: None, second: None, doubtful: false, largest: 0 }
        };
        let places = streams.iter().map(|stream| (*stream, place(*stream))).collect();
        // A deep sweep believes no page to be whole: it looks again wherever an earlier one may have believed wrongly.
        let small = if deep { 0 } else { self.most.max(SMALLEST_PAGE) };
        Sweep { started_at: now, deep, places, most: 0, small, narrow: None }
    }

    /// The cursor of something that is asked for from now on: of what there was before the last complete sweep, nothing is wanted.
    #[must_use]
    pub fn of_something_new(&self) -> Self {
        Self { complete_at: self.complete_at, ..Self::default() }
    }

    /// The cursor of a relay that was believed too early, nobody knows since when: all from `oldest` on (Unix seconds) is read
    /// anew.
    #[must_use]
    pub fn of_something_doubtful(&self, oldest: u64) -> Self {
        Self { complete_at: self.complete_at.and(Some(oldest)), ..Self::default() }
    }

    /// The earlier of the last complete sweep, our clock (it may have been set back) and the floor.
    fn base(&self, now: u64, floor: Option<u64>) -> u64 {
        let base = self.complete_at.unwrap_or(now).min(now);
        floor.map_or(base, |floor| base.min(floor))
    }

    /// Takes in how far a sweep has come. The cursor moves only where its window is covered. A place that did not move is
    /// given up, and the next sweep begins at the top: what is new lies there.
    pub fn advance(&mut self, sweep: Sweep, covered: bool) {
        let forgets = sweep.deep && covered;
        self.most = if forgets { sweep.most } else { self.most.max(sweep.most) };
        if !covered {
            self.sweep = Some(sweep).filter(|sweep| self.sweep.as_ref() != Some(sweep));
            return;
        }
        self.complete_at = Some(sweep.started_at);
        if sweep.deep {
            self.deep_at = Some(sweep.started_at);
        }
        self.sweep = None;
    }

    /// The second before which no later sweep looks; `None` where that is not known yet.
    #[must_use]
    pub fn horizon(&self, floor: Option<u64>) -> Option<u64> {
        let base = self.base(self.complete_at?, floor);
        let base = self.deep_at.map_or(base, |at| at.min(base)).saturating_sub(FAR_REACH_SECS);
        let under_way = self.sweep.iter().flat_map(|sweep| sweep.places.values().map(|place| place.since));
        Some(under_way.fold(base, u64::min))
    }
}

impl Sweep {
    /// A stream is not read below this second.
    pub fn not_before(&mut self, stream: Stream, second: u64) {
        if let Some(place) = self.places.get_mut(&stream) {
            place.since = place.since.max(second);
        }
    }

    fn is_of(&self, streams: &[Stream]) -> bool {
        self.places.len() == streams.len() && streams.iter().all(|s| self.places.contains_key(s))
    }
}

/// One filter of the next page: events of `stream` from `since` to `until`, both included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// What is asked for.
    pub stream: Stream,
    /// The earliest second.
    pub since: u64,
    /// The latest second; `None` for no end.
    pub until: Option<u64>,
    /// The most events.
    pub limit: usize,
}

/// One answer, as far as paging looks at it.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// Its messages, in the order in which they came. One that is of several streams stands here for each.
    pub events: &'a [Found],
    /// How many of them nobody knew.
    pub news: usize,
    /// What else came: other filters stood beside those of [`Paging::asks`], or it could not be read.
    pub others: usize,
    /// How it ended.
    pub end: End,
}

/// An event of a page, as far as paging looks at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its id, as the relay says it.
    pub id: EventId,
    /// What it was asked for as.
    pub stream: Stream,
    /// Its own time.
    pub at: u64,
}

/// How a page ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The relay said that this is all.
    Whole,
    /// We stopped listening: it was too much.
    Cut,
}

/// Why a page does not help to go on. Its events are good, its order proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what it sends does not tell how far it was read: it is too much, and not the newest first")]
pub struct Disordered;

/// One relay's sweep within one tick.
#[derive(Debug)]
pub struct Paging {
    sweep: Sweep,
    largest_page: usize,
    /// The streams that a page which was cut off did not show: they are asked for alone next.
    hidden: Vec<Stream>,
    gaps: Vec<u64>,
    covered: bool,
}

impl Paging {
    /// Goes on with a sweep.
    #[must_use]
    pub fn new(sweep: Sweep) -> Self {
        let mut paging =
            Self { sweep, largest_page: 0, hidden: Vec::new(), gaps: Vec::new(), covered: false };
        // Its lower end may have been raised meanwhile.
        paging.go_on();
        paging
    }

    /// What to ask for next; empty once the window is covered.
    #[must_use]
    pub fn asks(&self) -> Vec<Ask> {
        let mut asks = Vec::new();
        if self.covered {
            return asks;
        }
        if let Some((&stream, place)) = self.sweep.places.iter().find(|(_, place)| place.doubtful) {
            return place.ask_second(stream).into_iter().collect();
        }
        for (&stream, place) in self.sweep.places.iter().filter(|(stream, _)| self.is_asked(stream)) {
            asks.extend(place.ask_second(stream));
            let since = self.sweep.narrow.as_ref().map_or(place.since, |narrow| narrow.since);
            if place.until.is_none_or(|until| until >= since) {
                asks.push(Ask { stream, since, until: place.until, limit: PAGE_LIMIT });
            }
        }
        asks
    }

    /// Whether the next page is to be asked for without other filters beside it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.sweep.places.values().any(|place| place.doubtful)
    }

    fn is_asked(&self, stream: &Stream) -> bool {
        match &self.sweep.narrow {
            Some(narrow) => narrow.stream == *stream,
            None => self.hidden.is_empty() || self.hidden.contains(stream),
        }
    }

    /// Asks for less after an answer that was cut off and told nothing: for one stream alone, then for the upper half of what
    /// was asked for, and so on. A second that cannot be read by itself is left out as a gap: so one event that is too large
    /// to be received hides nothing but its own second.
    ///
    /// To be called where [`Paging::took`] failed on such an answer.
    pub fn narrow(&mut self) {
        self.hidden.clear();
        let top = self.sweep.started_at.saturating_add(AHEAD_SECS);
        let Some(mut narrow) = self.sweep.narrow.take() else {
            let first =
                self.sweep.places.iter_mut().find(|(_, place)| place.second.is_some() || place.is_open());
            if let Some((&stream, place)) = first {
                // The second is asked for with the rest: it may be that one.
                place.until = Some(place.second.take().or(place.until).unwrap_or(top));
                self.sweep.narrow = Some(Narrow { stream, since: place.since, outer: Vec::new() });
            }
            self.go_on();
            return;
        };
        let Some(place) = self.sweep.places.get_mut(&narrow.stream) else { return };
        let until = place.second.take().or(place.until).unwrap_or(top);
        place.until = Some(until);
        if until > narrow.since {
            let middle = narrow.since.saturating_add((until - narrow.since) / 2);
            narrow.outer.push(narrow.since);
            narrow.since = middle.saturating_add(1);
            self.sweep.narrow = Some(narrow);
        } else {
            self.gaps.push(until);
            // What hid the rest is found: nothing speaks against asking for all that is left.
            narrow.outer.clear();
            self.leave_part(narrow);
        }
        self.go_on();
    }

    /// The part of a window that was asked for alone is over: what lies below it comes next.
    fn leave_part(&mut self, mut narrow: Narrow) {
        let Some(place) = self.sweep.places.get_mut(&narrow.stream) else { return };
        if narrow.since > place.since {
            (place.second, place.doubtful) = (None, false);
            place.until = Some(narrow.since.saturating_sub(1));
            narrow.since = narrow.outer.pop().unwrap_or(place.since);
            self.sweep.narrow = Some(narrow);
        } else {
            place.end();
            self.sweep.narrow = None;
        }
    }

    /// Takes in a page.
    ///
    /// One that brings nothing from further down is the last, unless the seconds that were asked for again may have filled
    /// it. A relay may count events per filter or per page, so a stream that brought nothing beside others that did is
    /// asked again.
    ///
    /// A page of few events that are all known is believed to be whole. A relay may cap its answers at any number: but not
    /// below what it was seen to give, and no relay in use below twenty. Where one does so after all, or has
    /// lowered its cap, what it held back is older than all that it showed, and the next deep sweep, which believes
    /// nothing, still reaches it.
    ///
    /// # Errors
    /// [`Disordered`]: no place has moved. Where other filters stood beside, they may have filled the page.
    pub fn took(&mut self, page: &Page<'_>) -> Result<(), Disordered> {
        let is_cut = page.end == End::Cut;
        let mut ids = BTreeSet::new();
        let each_once: Vec<u64> =
            page.events.iter().filter(|event| ids.insert(event.id)).map(|event| event.at).collect();
        let size = each_once.len().saturating_add(page.others);
        if let Some(place) = self.sweep.places.values_mut().find(|place| place.doubtful) {
            self.gaps.extend(place.leave_second(if is_cut { usize::MAX } else { size }));
            self.go_on();
            return Ok(());
        }
        let mut streams: BTreeMap<Stream, Vec<u64>> = BTreeMap::new();
        for event in page.events {
            streams.entry(event.stream).or_default().push(event.at);
        }
        let is_full = is_cut || size >= self.largest_page.max(SMALLEST_PAGE);
        let hidden = std::mem::take(&mut self.hidden);
        let narrow = self.sweep.narrow.clone();
        let asked = |stream: &Stream| match &narrow {
            Some(narrow) => narrow.stream == *stream,
            None => hidden.is_empty() || hidden.contains(stream),
        };
        let (mut stayed, mut goes_on) = (Vec::new(), false);
        // Some relays go filter by filter, others through all at once.
        let is_ordered = is_newest_first(each_once.iter().copied());
        for (stream, place) in self.sweep.places.iter_mut().filter(|(stream, _)| asked(stream)) {
            let times = streams.get(stream).map_or(&[][..], Vec::as_slice);
            self.sweep.most = self.sweep.most.max(place.below(times).count());
            let is_proven = is_ordered || is_newest_first(times.iter().copied());
            if is_cut && !(is_proven && place.is_top(times)) {
                stayed.push(*stream);
                continue;
            }
            let before = place.until;
            self.gaps.extend(place.take(times, is_full));
            goes_on |= place.until != before || place.doubtful;
        }
        self.largest_page = self.largest_page.max(each_once.len());
        if goes_on && is_cut && narrow.is_none() {
            stayed.retain(|stream| self.sweep.places.get(stream).is_some_and(Place::is_open));
            self.hidden = stayed;
        } else if !goes_on && (is_cut || (page.others > 0 && is_full)) {
            return Err(Disordered);
        }
        let is_whole = !is_cut && page.news == 0 && size < self.sweep.small;
        if !goes_on || is_whole {
            if let Some(narrow) = narrow.clone() {
                self.leave_part(narrow);
            } else {
                let places = self.sweep.places.iter_mut().filter(|(stream, _)| asked(stream));
                places.for_each(|(_, place)| place.end());
            }
        }
        self.go_on();
        Ok(())
    }

    /// Sees whether there is anything left to ask for.
    fn go_on(&mut self) {
        if let Some(narrow) = self.sweep.narrow.clone()
            && self.asks().is_empty()
        {
            self.leave_part(narrow);
        }
        self.covered = self.asks().is_empty();
    }

    /// Whether the window is covered.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.covered
    }

    /// How far it has come, and the seconds that held more than a page.
    #[must_use]
    pub fn end(self) -> (Sweep, Vec<u64>) {
        (self.sweep, self.gaps)
    }
}

impl Place {
    fn ask_second(&self, stream: Stream) -> Option<Ask> {
        let second = self.second?;
        Some(Ask { stream, since: second, until: Some(second), limit: SECOND_LIMIT })
    }

    /// Whether there is more of the window than a second that is asked for again.
    fn is_open(&self) -> bool {
        self.until.is_none_or(|until| until >= self.since)
    }

    /// Those of a page's times that lie below the second that was asked for again.
    fn below(&self, times: &[u64]) -> impl Iterator<Item = u64> {
        times.iter().copied().filter(|at| self.second.is_none_or(|second| *at < second))
    }

    /// Moves down by a page's times of this stream. Returns a second that is still not shown in full.
    ///
    /// A page that brings something below the second has shown it, in whichever order a relay goes about it.
    fn take(&mut self, times: &[u64], crowded: bool) -> Option<u64> {
        let (oldest, of_below) = (self.below(times).min(), self.below(times).count());
        let gap = if self.second.is_some() && oldest.is_none() && crowded {
            self.doubtful = true;
            None
        } else {
            self.leave_second(times.len() - of_below)
        };
        if let Some(oldest) = oldest {
            self.second = Some(oldest);
            self.until = Some(oldest.saturating_sub(1));
            // Nothing is older than the first second of all.
            self.since = self.since.max(u64::from(oldest == 0));
        }
        self.largest = self.largest.max(times.len());
        gap
    }

    /// Whether a page that goes newest first and was cut off shows the top of what was asked for, with the second that was
    /// asked for again.
    fn is_top(&self, times: &[u64]) -> bool {
        self.second.map_or(!times.is_empty(), |second| times.contains(&second))
    }

    /// All of the window was read.
    fn end(&mut self) {
        (self.second, self.doubtful) = (None, false);
        self.since = self.since.max(1);
        self.until = Some(self.since.saturating_sub(1));
    }

    /// The second was asked for once more and brought `count` events; it is returned where that is still a full page.
    fn leave_second(&mut self, count: usize) -> Option<u64> {
        self.doubtful = false;
        let second = self.second.take();
        second.filter(|_| count >= self.largest.max(SMALLEST_PAGE))
    }
}

/// Whether so many events came newest first that it is no chance.
fn is_newest_first(times: impl ExactSizeIterator<Item = u64>) -> bool {
    times.len() >= PROVING_EVENTS && times.is_sorted_by(|a, b| a >= b)
}

#[cfg(test)]
mod tests;
