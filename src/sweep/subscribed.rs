//! Asking one relay for what the skills subscribe to: beside the messages where it takes that, else behind them, and always
//! within a share of its own. Whatever comes of it, messages are read.

use std::collections::BTreeMap;

use nostr::prelude::{Event, EventId, Filter, Timestamp};
use serde::Serialize;
use tokio::time::Instant;

use super::ledger::{Ledger, SubscribedNotes};
use super::plan::{Disordered, End, Found, Page, Paging, Stream, Sweep};
use super::questions::Question;
use super::read::{Share, is_refusal};
use crate::app::App;
use crate::dm;
use crate::inbox;
use crate::relay::{FetchReport, MATCHING, RelayError, Target, Unopened};

/// Its share of a tick: pages,
const MAX_PAGES: usize = 6;
/// events that nobody knew,
const MAX_NEW: usize = 500;
/// and bytes of them.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// With more filters than this it does not stand beside others: many relays take few in one request.
const MAX_BESIDE: usize = 10;

/// What one relay showed of it.
#[derive(Debug)]
pub(crate) struct SubscribedHeard {
    /// Events that nobody has dealt with, unverified.
    pub(crate) events: Vec<Event>,
    /// Ids that are known, with their times.
    pub(crate) known: Vec<(EventId, u64)>,
    /// How far it was read.
    pub(crate) sweep: Sweep,
    /// Whether that is all.
    pub(crate) covered: bool,
    /// Whether it was asked and did not answer.
    pub(crate) failed: bool,
    /// Seconds that held more than it gives.
    pub(crate) gaps: Vec<u64>,
    /// What the operator hears of it.
    pub(crate) told: SubscribedTold,
}

/// What the operator hears of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct SubscribedTold {
    /// Events that it showed,
    events: usize,
    /// and those of them that nobody knew.
    new: usize,
    complete: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// One relay's reading of it, within one tick.
pub(super) struct Subscribed {
    questions: BTreeMap<Stream, Filter>,
    begun: Sweep,
    paging: Paging,
    share: Share,
    /// Whether it is not asked beside anything else.
    is_apart: bool,
    failed: bool,
    reason: Option<String>,
}

impl Subscribed {
    /// Goes on where the last tick ended; `oldest` is the earliest second of any interest (Unix seconds).
    pub(super) fn new(questions: &[Question], notes: &SubscribedNotes, now: u64, oldest: u64) -> Self {
        let streams: Vec<Stream> = questions.iter().map(|question| question.stream).collect();
        let mut sweep = notes.cursor.begin(now, &streams, None);
        for Question { stream, since, .. } in questions {
            sweep.not_before(*stream, since.as_secs().max(oldest));
        }
        Self {
            questions: questions.iter().map(|one| (one.stream, one.filter.clone())).collect(),
            begun: sweep.clone(),
            paging: Paging::new(sweep),
            share: Share::default(),
            is_apart: notes.failures > 0,
            failed: false,
            reason: None,
        }
    }

    /// What is asked for beside the messages; empty where it stands apart.
    pub(super) fn beside(&self, now: Timestamp) -> Vec<(Stream, Filter)> {
        let asked = if self.is_apart { Vec::new() } else { self.asks(now) };
        if asked.len() > MAX_BESIDE { Vec::new() } else { asked }
    }

    /// The relay did not take it beside the messages.
    pub(super) fn stand_apart(&mut self) {
        self.is_apart = true;
    }

    fn asks(&self, now: Timestamp) -> Vec<(Stream, Filter)> {
        let asks = self.paging.asks().into_iter();
        asks.filter_map(|ask| {
            let filter = self.questions.get(&ask.stream)?.clone();
            let until = ask.until.map_or_else(|| now + inbox::MAX_AHEAD, Timestamp::from);
            Some((ask.stream, filter.since(Timestamp::from(ask.since)).until(until).limit(ask.limit)))
        })
        .collect()
    }

    /// Takes what came of a page that was `asked` for it.
    ///
    /// # Errors
    /// As [`Paging::took`].
    pub(super) fn took(
        &mut self,
        asked: &[(Stream, Filter)],
        events: &[Event],
        unopened: &[(usize, Unopened)],
        came: usize,
        end: End,
        ledger: &Ledger,
    ) -> Result<(), Disordered> {
        let (mut found, mut matching, mut news) = (Vec::new(), 0_usize, 0);
        let mut unopened = unopened.iter().peekable();
        // Of what was not opened only a relay that is asked for one stream tells what it matches.
        let only = asked.first().map(|(stream, _)| *stream).filter(|_| is_of_one_stream(asked));
        for (number, event) in events.iter().enumerate() {
            while let Some((_, event)) = unopened.next_if(|(before, _)| *before <= number) {
                found.extend(only.map(|stream| place(event, stream)));
                matching += usize::from(only.is_some());
            }
            let at = event.created_at.as_secs();
            let mut streams: Vec<Stream> = asked
                .iter()
                .filter(|(_, filter)| filter.match_event(event, MATCHING))
                .map(|(stream, _)| *stream)
                .collect();
            streams.dedup();
            if streams.is_empty() {
                continue;
            }
            matching += 1;
            found.extend(streams.into_iter().map(|stream| Found { id: event.id, stream, at }));
            // Messages are found as such.
            if !dm::is_dm(event.kind) {
                news += usize::from(self.share.take(event.clone(), ledger));
            }
        }
        for (_, event) in unopened {
            found.extend(only.map(|stream| place(event, stream)));
            matching += usize::from(only.is_some());
        }
        let others = came.saturating_sub(matching);
        self.paging.took(&Page { events: &found, news, others, end })
    }

    /// Asks for what is left.
    pub(super) async fn go_on(
        &mut self,
        app: &App,
        target: &Target,
        ledger: &Ledger,
        now: Timestamp,
        until: Instant,
    ) {
        let mut pages = 0;
        while !self.paging.is_covered() {
            if pages >= MAX_PAGES || self.share.events.len() >= MAX_NEW || self.share.bytes >= MAX_BYTES {
                self.reason = Some("there is more: the next tick goes on".to_owned());
                break;
            }
            let asked = self.asks(now);
            let filters: Vec<Filter> = asked.iter().map(|(_, filter)| filter.clone()).collect();
            let page = app.relays.page(target, &filters, until).await;
            pages += 1;
            let FetchReport { outcome, skipped, unread, .. } = page.report;
            let end = match outcome {
                Ok(()) => End::Whole,
                Err(RelayError::Cut(_)) => End::Cut,
                // It may be too many filters for it.
                Err(error) if is_refusal(&error) && !is_of_one_stream(&asked) => {
                    self.paging.narrow();
                    continue;
                }
                Err(error) => {
                    self.fail(&error);
                    break;
                }
            };
            let came = page.events.len().saturating_add(unread);
            let took = self.took(&asked, &page.events, &page.unopened, came, end, ledger);
            if let Err(disordered) = took {
                if !is_of_one_stream(&asked) || (end == End::Cut && skipped <= unread) {
                    self.paging.narrow();
                    continue;
                }
                self.reason = Some(disordered.to_string());
                break;
            }
            if self.paging.is_covered() && skipped > unread {
                self.reason = Some("it sends what was not asked for".to_owned());
            }
        }
    }

    /// The relay did not answer.
    pub(super) fn fail(&mut self, error: &RelayError) {
        (self.failed, self.reason) = (true, Some(error.to_string()));
    }

    /// What came of it.
    pub(super) fn end(self) -> SubscribedHeard {
        let is_covered = self.paging.is_covered();
        let covered = is_covered && self.reason.is_none();
        let (sweep, gaps) = self.paging.end();
        let Share { events, known, shown, .. } = self.share;
        let told =
            SubscribedTold { events: shown, new: events.len(), complete: covered, reason: self.reason };
        // Whoever stands at the end of a window that was not read begins anew.
        let sweep = if is_covered && !covered { self.begun } else { sweep };
        SubscribedHeard { events, known, sweep, covered, failed: self.failed, gaps, told }
    }
}

fn is_of_one_stream(asked: &[(Stream, Filter)]) -> bool {
    asked.windows(2).all(|two| matches!(two, [(one, _), (other, _)] if one == other))
}

fn place(event: &Unopened, stream: Stream) -> Found {
    Found { id: event.id, stream, at: event.created_at.as_secs() }
}
