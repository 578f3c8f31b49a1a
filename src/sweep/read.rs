//! Asking the relays: all at once, each page after page, until its window is covered or its share of the tick is used up.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use nostr::filter::MatchEventOptions;
use nostr::prelude::{Event, EventId, Filter, Kind, PublicKey, RelayUrl, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::ledger::{self, Ledger, RelayNotes, SubscribedNotes};
use super::plan::{Ask, Disordered, End, Found, Page, Paging, Stream, Sweep};
use super::subscribed::{Subscribed, SubscribedHeard, SubscribedTold};
use super::subscriptions::Subscriptions;
use crate::app::App;
use crate::commands::Flags;
use crate::dm;
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
            Stream::Sent | Stream::Subscribed(_) => None,
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
    /// What it showed of what the skills subscribe to; `None` where it was not asked.
    pub(crate) subscribed: Option<SubscribedHeard>,
    /// Whether it was believed too early: what it told so far is good, and may not be all.
    pub(crate) doubted: bool,
}

/// Doubts what the relays told whose challenge came after that.
pub(crate) fn doubt(app: &App, inboxes: &[Inbox], heard: &mut [Heard]) {
    for (inbox, relay) in inboxes.iter().zip(heard) {
        if app.relays.challenged_late(&inbox.target) {
            (relay.doubted, relay.covered, relay.full_state) = (true, false, None);
            relay.told.complete = false;
            relay.told.reason =
                Some("it asked for authentication after it had told that there is nothing".to_owned());
        }
    }
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
    /// The same of what the skills subscribe to.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriptions: Option<SubscribedTold>,
}

impl Told {
    /// Of a relay that is not asked this time.
    pub(crate) fn not_asked(relay: &RelayUrl, reason: &str) -> Self {
        let reason = Some(reason.to_owned());
        Self {
            relay: relay.to_string(),
            events: 0,
            new: 0,
            pages: 0,
            unread: 0,
            complete: false,
            reason,
            subscriptions: None,
        }
    }
}

/// As serde asks for it.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
pub(super) fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Asks all of `inboxes` at once.
pub(crate) async fn read_all(
    app: &App,
    (state, flags): (&AgentState, &Flags),
    subscriptions: &Subscriptions,
    ledger: &mut Ledger,
    inboxes: &[Inbox],
    until: Instant,
) -> Vec<Heard> {
    let begun = app.clock.now();
    let now = begun.as_secs();
    let oldest = ledger::oldest(app);
    let plans: Vec<(&Inbox, Plan)> = inboxes
        .iter()
        .map(|inbox| {
            let notes = ledger.notes(&inbox.target.url);
            let is_challenger = app.relays.sends_challenges(&inbox.target) == Some(true);
            // This process met it after the last sweep was saved.
            if is_challenger && notes.challenges != Some(true) {
                notes.doubt(oldest);
            }
            app.relays.expect_challenge(&inbox.target, notes.challenges);
            let floor = ledger.floor(&inbox.target.url, now);
            let notes = ledger.notes(&inbox.target.url);
            let is_full = notes.full_state_at.is_none_or(|at| {
                now.abs_diff(at) >= FULL_STATE_SECS || flags.asks_to_refresh(Timestamp::from(at))
            });
            let since = notes.state_at.filter(|_| !is_full).map(|at| at.saturating_sub(STATE_SLACK_SECS));
            let questions = Questions { filters: state_filters(app, state, since), is_full: since.is_none() };
            let sweep = notes.cursor.begin(now, &inbox.streams, floor);
            (inbox, Plan { sweep, questions, subscribed: subscribed(subscriptions, notes, now, oldest) })
        })
        .collect();
    let ledger = &*ledger;
    let reads = plans
        .into_iter()
        .map(async |(inbox, plan)| read_one(app, &inbox.target, plan, ledger, begun, until).await);
    let mut heard = join_all(reads).await;
    doubt(app, inboxes, &mut heard);
    heard
}

/// What is read of one relay.
struct Plan {
    sweep: Sweep,
    questions: Questions,
    subscribed: Option<Subscribed>,
}

/// The part of the skills' subscriptions, where there are any and the relay is not spared them.
fn subscribed(
    subscriptions: &Subscriptions,
    notes: &mut RelayNotes,
    now: u64,
    oldest: u64,
) -> Option<Subscribed> {
    let questions = subscriptions.questions();
    if questions.is_empty() {
        notes.subscribed = None;
        return None;
    }
    let begin = || SubscribedNotes { cursor: notes.cursor.of_something_new(), ..SubscribedNotes::default() };
    let notes = notes.subscribed.get_or_insert_with(begin);
    let is_asked = notes.retry_at.is_none_or(|at| at <= now);
    is_asked.then(|| Subscribed::new(questions, notes, now, oldest))
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
    Plan { sweep, questions, mut subscribed }: Plan,
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
        if pages >= MAX_PAGES || shown.messages.events.len() >= MAX_NEW || shown.messages.bytes >= MAX_BYTES {
            reason = Some("there is more: the next tick goes on".to_owned());
            break;
        }
        let is_beside = !state_asked && !paging.is_alone();
        state_asked |= is_beside;
        let mut filters = if is_beside { questions.filters.clone() } else { Vec::new() };
        filters.extend(paging.asks().iter().filter_map(|ask| filter(ask, agent, now)));
        let beside =
            subscribed.as_ref().filter(|_| is_beside).map(|part| part.beside(now)).unwrap_or_default();
        filters.extend(beside.iter().map(|(_, filter)| filter.clone()));
        let page = app.relays.page(target, &filters, until).await;
        pages += 1;
        if let Some(part) = subscribed.as_mut().filter(|_| !beside.is_empty()) {
            // From here on it is asked alone.
            part.stand_apart();
            let end = match &page.report.outcome {
                Ok(()) => Some(End::Whole),
                Err(RelayError::Cut(_)) => Some(End::Cut),
                Err(_) => None,
            };
            let came = page.events.len().saturating_add(page.report.unread);
            if let Some(end) = end {
                // In disorder, it is asked once more alone.
                let _ = part.took(&beside, &page.events, &page.unopened, came, end, ledger);
            } else if page.report.outcome.as_ref().is_err_and(is_refusal) {
                state_asked = false;
                continue;
            }
        }
        let FetchReport { outcome, skipped, unread, .. } = page.report;
        let came = page.events.len().saturating_add(unread);
        let state_filters = if is_beside { &questions.filters[..] } else { &[] };
        let (found, news) = shown.take(page.events, page.unopened, agent, state_filters, ledger);
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
    if let Some(part) = &mut subscribed {
        match &failure {
            None => part.go_on(app, target, ledger, now, until).await,
            // It may be what failed: next time it stands apart.
            Some(error) => part.fail(error),
        }
    }
    let subscribed = subscribed.map(Subscribed::end);
    let is_misled = paging.is_covered() && reason.is_some();
    let covered = paging.is_covered() && reason.is_none();
    let (sweep, gaps) = paging.end();
    // Whoever stands at the end of a window that was not read begins anew.
    let sweep = if is_misled { begun } else { sweep };
    let told = Told {
        relay: target.url.to_string(),
        events: shown.messages.shown,
        new: shown.messages.events.len(),
        pages,
        unread: shown.unread,
        complete: covered,
        reason,
        subscriptions: subscribed.as_ref().map(|part| part.told.clone()),
    };
    let Shown { messages, state, .. } = shown;
    let Share { events: messages, known, .. } = messages;
    let url = target.url.clone();
    Heard {
        url,
        messages,
        known,
        state,
        full_state,
        sweep,
        covered,
        gaps,
        told,
        failure,
        subscribed,
        doubted: false,
    }
}

/// Whether a relay that answers so may answer to less: it will not have what it was asked for, or not so much.
pub(super) fn is_refusal(error: &RelayError) -> bool {
    matches!(
        error,
        RelayError::Rejected(_) | RelayError::RateLimited(_) | RelayError::Auth(_) | RelayError::Failed(_)
    )
}

/// What a relay showed so far in this tick.
#[derive(Default)]
struct Shown {
    messages: Share,
    state: Vec<Event>,
    unread: usize,
}

/// Events that were shown and asked for as one thing.
#[derive(Default)]
pub(super) struct Share {
    /// Those that nobody has dealt with, unverified.
    pub(super) events: Vec<Event>,
    /// Ids that are known, with their times.
    pub(super) known: Vec<(EventId, u64)>,
    /// How many different ones were shown.
    pub(super) shown: usize,
    /// What the texts of those that are not known come to.
    pub(super) bytes: usize,
    ids: BTreeMap<EventId, usize>,
}

impl Share {
    /// Takes an event; whether nobody has dealt with it.
    pub(super) fn take(&mut self, event: Event, ledger: &Ledger) -> bool {
        let times = self.ids.entry(event.id).or_default();
        *times += 1;
        self.shown += usize::from(*times == 1);
        if ledger.knows(&event.id) {
            self.known.push((event.id, event.created_at.as_secs()));
            return false;
        }
        // A relay may show a forged one under its id.
        if *times == 1 || !self.events.contains(&event) {
            self.bytes = self.bytes.saturating_add(event.content.len());
            self.events.push(event);
        }
        true
    }
}

impl Shown {
    /// Sorts a page's events. Returns the messages as paging looks at them, and how many are to be dealt with.
    fn take(
        &mut self,
        events: Vec<Event>,
        unopened: Vec<(usize, Unopened)>,
        agent: PublicKey,
        state_filters: &[Filter],
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
            // Somebody's message to somebody else may stand among what the skills subscribe to.
            let is_ours = || event.pubkey == agent || dm::receivers(&event.tags).contains(&agent);
            if let Some(stream) = stream(event.kind, event.pubkey, agent).filter(|_| is_ours()) {
                found.push(Found { id: event.id, stream, at: event.created_at.as_secs() });
                news += usize::from(self.messages.take(event, ledger));
            } else if state_filters.iter().any(|filter| filter.match_event(&event, MatchEventOptions::new()))
            {
                self.state.push(event);
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

/// What is dated ahead is not asked for before its time comes: the window still reaches it then. `None` for what the skills
/// subscribe to, which [`Subscribed`] asks for.
fn filter(ask: &Ask, agent: PublicKey, now: Timestamp) -> Option<Filter> {
    let kind = if ask.stream == Stream::Wraps { kinds::GIFT_WRAP } else { kinds::DM_NIP04 };
    let filter = match ask.stream {
        Stream::Wraps | Stream::Dms => Filter::new().kind(kind).pubkey(agent),
        Stream::Sent => Filter::new().kind(kind).author(agent),
        Stream::Subscribed(_) => return None,
    };
    let until = ask.until.map_or_else(|| inbox::latest(kind, now), Timestamp::from);
    Some(filter.since(Timestamp::from(ask.since)).until(until).limit(ask.limit))
}
