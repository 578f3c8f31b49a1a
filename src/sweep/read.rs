//! Asking the relays: all at once, each page after page, until its window is covered or its share of the tick is used up.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use nostr::prelude::{Event, EventId, Filter, Kind, PublicKey, RelayUrl, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::ledger::Ledger;
use super::plan::{Ask, Disordered, End, Found, Page, Paging, Stream, Sweep};
use crate::app::App;
use crate::commands::Flags;
use crate::inbox;
use crate::kinds;
use crate::load;
use crate::publish::own_list;
use crate::relay::{FetchReport, RelayError, Target, Unopened};
use crate::state::AgentState;

/// One relay's share of a tick: pages,
const MAX_PAGES: usize = 8;
/// events that nobody knew,
const MAX_NEW: usize = 1000;
/// and bytes of them.
const MAX_BYTES: usize = 16 * 1024 * 1024;

/// How often each relay is asked for all of the agent's state.
const FULL_STATE_SECS: u64 = 60 * 60;

/// How far back of the last time it is asked for what is new.
const STATE_SLACK_SECS: u64 = 60 * 60;

/// A relay where the agent is written to.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    /// The relay.
    pub(crate) target: Target,
    streams: Vec<Stream>,
}

impl Inbox {
    /// The kinds in which the agent is written to here.
    pub(crate) fn incoming(&self) -> impl Iterator<Item = Kind> {
        self.streams.iter().filter_map(|stream| match stream {
            Stream::Wraps => Some(kinds::GIFT_WRAP),
            Stream::Dms => Some(kinds::DM_NIP04),
            Stream::Sent => None,
        })
    }
}

/// The agent's inbox relays: the configured ones for everything, its 10050 for wraps, what it reads by its 10002 for
/// NIP-04.
pub(crate) fn inboxes(app: &App, state: &AgentState) -> Vec<Inbox> {
    use Stream::{Dms, Sent, Wraps};
    let agent = app.agent();
    let mut inboxes: Vec<Inbox> = Vec::new();
    let sources = [
        (app.own_targets(), &[Wraps, Dms, Sent][..]),
        (own_list(&state.inbox_relays(agent)), &[Wraps]),
        (own_list(&state.read_relays(agent)), &[Dms, Sent]),
    ];
    for (targets, streams) in sources {
        for target in targets {
            match inboxes.iter_mut().find(|inbox| inbox.target.url == target.url) {
                Some(inbox) => inbox.streams.extend(streams),
                None => inboxes.push(Inbox { target, streams: streams.to_vec() }),
            }
        }
    }
    for inbox in &mut inboxes {
        inbox.streams.sort_unstable();
        inbox.streams.dedup();
    }
    inboxes
}

/// What one relay told.
#[derive(Debug)]
pub(crate) struct Heard {
    /// The relay.
    pub(crate) url: RelayUrl,
    /// Messages that nobody has dealt with, unverified.
    pub(crate) messages: Vec<Event>,
    /// Ids that are known from other relays, with their times.
    pub(crate) known: Vec<(EventId, u64)>,
    /// Events of the agent's state, unverified.
    pub(crate) state: Vec<Event>,
    /// Whether that was all that it was asked for of the state; `None` where it did not answer that.
    pub(crate) full_state: Option<bool>,
    /// How far it was read.
    pub(crate) sweep: Sweep,
    /// Whether that is all.
    pub(crate) covered: bool,
    /// Seconds that held more than it gives.
    pub(crate) gaps: Vec<u64>,
    /// What the operator hears of it.
    pub(crate) told: Told,
    /// Why it failed, where it did.
    pub(crate) failure: Option<RelayError>,
}

/// What the operator hears of one relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Told {
    relay: String,
    /// Messages that it showed,
    events: usize,
    /// and those of them that nobody knew.
    new: usize,
    pages: usize,
    /// What was dropped unopened: it is too large or malformed.
    #[serde(skip_serializing_if = "is_zero")]
    unread: usize,
    pub(crate) complete: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
}

impl Told {
    /// Of a relay that is not asked this time.
    pub(crate) fn not_asked(relay: &RelayUrl, reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self { relay: relay.to_string(), events: 0, new: 0, pages: 0, unread: 0, complete: false, reason }
    }
}

/// As serde asks for it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Asks all of `inboxes` at once.
pub(crate) async fn read_all(
    app: &App,
    (state, flags): (&AgentState, &Flags),
    ledger: &mut Ledger,
    inboxes: &[Inbox],
    until: Instant,
) -> Vec<Heard> {
    let begun = app.clock.now();
    let now = begun.as_secs();
    let plans: Vec<(&Inbox, Sweep, Questions)> = inboxes
        .iter()
        .map(|inbox| {
            let floor = ledger.floor(&inbox.target.url, now);
            let notes = ledger.notes(&inbox.target.url);
            let is_full = notes.full_state_at.is_none_or(|at| {
                now.abs_diff(at) >= FULL_STATE_SECS || flags.asks_to_refresh(Timestamp::from(at))
            });
            let since = notes.state_at.filter(|_| !is_full).map(|at| at.saturating_sub(STATE_SLACK_SECS));
            let questions = Questions { filters: state_filters(app, state, since), is_full: since.is_none() };
            (inbox, notes.cursor.begin(now, &inbox.streams, floor), questions)
        })
        .collect();
    let ledger = &*ledger;
    let reads = plans.into_iter().map(async |(inbox, sweep, questions)| {
        read_one(app, &inbox.target, sweep, questions, ledger, begun, until).await
    });
    join_all(reads).await
}

/// What one relay is asked of the agent's state.
struct Questions {
    filters: Vec<Filter>,
    is_full: bool,
}

/// What is new of the state since then, or all of it. A newly adopted skill of somebody else may be old.
fn state_filters(app: &App, state: &AgentState, since: Option<u64>) -> Vec<Filter> {
    let mut filters = load::state_filters(app);
    filters.extend(load::foreign_filters(&load::adopted_foreign(state)));
    if let Some(since) = since {
        filters = filters.into_iter().map(|filter| filter.since(Timestamp::from(since))).collect();
        filters.extend(load::foreign_filters(state.wanted_foreign()));
        filters.extend(load::guest_list_filters(app, state));
    }
    filters
}

async fn read_one(
    app: &App,
    target: &Target,
    sweep: Sweep,
    questions: Questions,
    ledger: &Ledger,
    now: Timestamp,
    until: Instant,
) -> Heard {
    let agent = app.agent();
    let begun = sweep.clone();
    let mut paging = Paging::new(sweep);
    let mut shown = Shown::default();
    let (mut full_state, mut failure, mut reason) = (None, None, None);
    let (mut pages, mut state_asked) = (0, false);
    while !paging.is_covered() {
        if pages >= MAX_PAGES || shown.messages.len() >= MAX_NEW || shown.bytes >= MAX_BYTES {
            reason = Some("there is more: the next tick goes on".to_owned());
            break;
        }
        let is_beside = !state_asked && !paging.is_alone();
        state_asked |= is_beside;
        let mut filters = if is_beside { questions.filters.clone() } else { Vec::new() };
        filters.extend(paging.asks().iter().map(|ask| filter(ask, agent, now)));
        let page = app.relays.page(target, &filters, until).await;
        pages += 1;
        let FetchReport { outcome, skipped, unread, .. } = page.report;
        let came = page.events.len().saturating_add(unread);
        let (found, news) = shown.take(page.events, page.unopened, agent, ledger);
        shown.unread = shown.unread.saturating_add(unread);
        let end = match outcome {
            Ok(()) => End::Whole,
            Err(RelayError::Cut(_)) => End::Cut,
            Err(error) => {
                reason = Some(error.to_string());
                failure = Some(error);
                break;
            }
        };
        if is_beside && end == End::Whole {
            full_state = Some(questions.is_full);
        }
        let others = came.saturating_sub(found.len());
        match paging.took(&Page { events: &found, news, others, end }) {
            Ok(()) => {}
            // The state may have filled the answer: once more without it.
            Err(Disordered) if is_beside => continue,
            // One event that is too large to be received must not hide all behind it.
            Err(Disordered) if end == End::Cut && skipped <= unread => {
                paging.narrow();
                continue;
            }
            Err(disordered) => {
                reason = Some(disordered.to_string());
                break;
            }
        }
        // Who fills an answer with something else may have left out what was asked for. What is too large or malformed may
        // be just that: it is dropped unopened, and keeps no window open.
        if paging.is_covered() && skipped > unread {
            reason = Some("it sends what was not asked for".to_owned());
        }
    }
    let is_misled = paging.is_covered() && reason.is_some();
    let covered = paging.is_covered() && reason.is_none();
    let (sweep, gaps) = paging.end();
    // Whoever stands at the end of a window that was not read begins anew.
    let sweep = if is_misled { begun } else { sweep };
    let told = Told {
        relay: target.url.to_string(),
        events: shown.events,
        new: shown.messages.len(),
        pages,
        unread: shown.unread,
        complete: covered,
        reason,
    };
    let Shown { messages, known, state, .. } = shown;
    Heard { url: target.url.clone(), messages, known, state, full_state, sweep, covered, gaps, told, failure }
}

/// What a relay showed so far in this tick.
#[derive(Default)]
struct Shown {
    messages: Vec<Event>,
    known: Vec<(EventId, u64)>,
    state: Vec<Event>,
    events: usize,
    bytes: usize,
    ids: BTreeMap<EventId, usize>,
    unread: usize,
}

impl Shown {
    /// Sorts a page's events. Returns the messages as paging looks at them, and how many are to be dealt with.
    fn take(
        &mut self,
        events: Vec<Event>,
        unopened: Vec<(usize, Unopened)>,
        agent: PublicKey,
        ledger: &Ledger,
    ) -> (Vec<Found>, usize) {
        let (mut found, mut news) = (Vec::new(), 0);
        let mut unopened = unopened.into_iter().peekable();
        let place = |event: Unopened| {
            let stream = stream(event.kind, event.pubkey, agent)?;
            Some(Found { id: event.id, stream, at: event.created_at.as_secs() })
        };
        for (number, event) in events.into_iter().enumerate() {
            while let Some((_, event)) = unopened.next_if(|(before, _)| *before <= number) {
                found.extend(place(event));
            }
            let Some(stream) = stream(event.kind, event.pubkey, agent) else {
                self.state.push(event);
                continue;
            };
            let at = event.created_at.as_secs();
            found.push(Found { id: event.id, stream, at });
            let times = self.ids.entry(event.id).or_default();
            *times += 1;
            self.events += usize::from(*times == 1);
            if ledger.knows(&event.id) {
                self.known.push((event.id, at));
                continue;
            }
            news += 1;
            if *times == 1 || !self.messages.contains(&event) {
                self.bytes = self.bytes.saturating_add(event.content.len());
                self.messages.push(event);
            }
        }
        found.extend(unopened.filter_map(|(_, event)| place(event)));
        (found, news)
    }
}

/// What an event was asked for as; `None` for one of the state.
fn stream(kind: Kind, author: PublicKey, agent: PublicKey) -> Option<Stream> {
    match kind {
        kind if kind == kinds::GIFT_WRAP => Some(Stream::Wraps),
        kind if kind != kinds::DM_NIP04 => None,
        _ if author == agent => Some(Stream::Sent),
        _ => Some(Stream::Dms),
    }
}

/// What is dated ahead is not asked for before its time comes: the window still reaches it then.
fn filter(ask: &Ask, agent: PublicKey, now: Timestamp) -> Filter {
    let kind = if ask.stream == Stream::Wraps { kinds::GIFT_WRAP } else { kinds::DM_NIP04 };
    let filter = match ask.stream {
        Stream::Wraps | Stream::Dms => Filter::new().kind(kind).pubkey(agent),
        Stream::Sent => Filter::new().kind(kind).author(agent),
    };
    let until = ask.until.map_or_else(|| inbox::latest(kind, now), Timestamp::from);
    filter.since(Timestamp::from(ask.since)).until(until).limit(ask.limit)
}
