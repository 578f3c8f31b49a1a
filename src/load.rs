//! What a run needs to know, gathered: soul, adoption list, skills, profiles, relay lists, deletions, and the
//! conversation so far. From the store first; from the relays where that is empty or stale; what was read is kept.
//!
//! A read in which a relay failed may add to what is known, and never takes anything away.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use nostr::prelude::{Event, EventId, Filter, Kind, PublicKey, SingleLetterTag, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::app::App;
use crate::commands::{Begin, Flags};
use crate::dm;
use crate::error::Error;
use crate::events::supersedes;
use crate::guests::{self, Counters};
use crate::heed::Lists;
use crate::history::{self, StoredMessage};
use crate::kinds;
use crate::notices::instance;
use crate::outage;
use crate::publish::{distinct, own_list};
use crate::record::{FORMAT, line, read_clear, to_json};
use crate::relay::{Fetched, Target};
use crate::state::AgentState;
use crate::store::{Change, Expect, Key, Range, Row, StoreError, Write, keys};
use crate::trigger::{Protocol, Trigger};

/// How long what the relays told about the agent counts as fresh: a tick each minute keeps it so, also where one comes
/// late.
const FRESH: Duration = Duration::from_secs(90);

/// How long the relays may take to tell what they know.
pub const SLICE: Duration = Duration::from_secs(4);

/// The most messages of a conversation that a run looks at.
const MAX_MESSAGES: usize = 60;

/// The most notes of an admin that are kept.
const MAX_NOTES: usize = 20;

/// The rows of a conversation that are no messages: where it began anew, the read mark, that of an outage, and what a guest
/// published of itself.
const BESIDE_MESSAGES: usize = 3 + PERSON.len();

/// What the agent wants to know of whoever it talks to.
const PERSON: [Kind; 3] = [kinds::PROFILE, kinds::RELAY_LIST, kinds::INBOX_RELAYS];

/// How long what a guest published of itself, its relay lists among it, counts as fresh: nobody keeps it so but its own
/// messages.
const GUEST_FRESH: Duration = Duration::from_secs(6 * 60 * 60);

/// A longer note, as JSON, is not kept: all of an admin's lie in one row.
const MAX_NOTE_BYTES: usize = 8_000;

/// After an incomplete read of a conversation the relays are asked again, but not for every message.
const HISTORY_RETRY: Duration = Duration::from_secs(10 * 60);

/// What the store knows, before the relays are asked.
#[derive(Debug, Default)]
pub struct Stored {
    events: Vec<Event>,
    versions: BTreeMap<Key, (u64, EventId)>,
    read: Option<StateMark>,
    messages: Vec<StoredMessage>,
    history_read: Option<HistoryMark>,
    /// The floor of its conversation, and the first run in its line.
    pub(crate) line: Vec<Row>,
    /// Whether the relays are to be asked for the state though it is fresh.
    is_outdated: bool,
    /// Where an admin began the conversation anew.
    begin: Option<Timestamp>,
    /// What an admin ordered for all runs.
    pub(crate) flags: Flags,
    /// The message that the run answers.
    message: Option<EventId>,
    /// The outage that the conversation waits for to end.
    pub(crate) outage: Option<outage::Found>,
    /// What guests have had, where the trigger is one's.
    pub(crate) counters: Counters,
}

/// What a run knows.
#[derive(Debug)]
pub struct Loaded {
    /// The agent, its skills and its people.
    pub state: AgentState,
    /// The conversation as the model may see it, without the triggering message, oldest first.
    pub history: Vec<StoredMessage>,
    /// How the peer wrote last.
    pub last_heard: Option<Protocol>,
    /// Whether relays were asked, which takes its time.
    pub asked: bool,
    /// What is known of who is answered.
    pub lists: Lists,
    /// What the relays told and the store does not have yet, for [`keep`].
    pub unsaved: Vec<Write>,
}

/// When the relays were last asked for the agent's state; a clear row.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct StateMark {
    format: u32,
    read_at: Timestamp,
    /// Whether they were also asked for what decides about guests.
    #[serde(default)]
    guests: bool,
    /// The admins of whom every relay has told all its lists at one time: those that were not at hand then were nowhere. An
    /// incomplete read proves no absence, and takes back none that is proven.
    #[serde(default)]
    told: Vec<PublicKey>,
}

/// When the relays were last asked for a conversation, and whether each told all it has; a clear row.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct HistoryMark {
    format: u32,
    read_at: Timestamp,
    complete: bool,
}

/// How `peer` wrote last, by what the store has of the conversation.
///
/// # Errors
/// As [`crate::store::Store::list`].
pub(crate) async fn last_heard(app: &App, peer: PublicKey) -> Result<Option<Protocol>, Error> {
    let newest = Range::newest(keys::conversation(&peer), MAX_MESSAGES + BESIDE_MESSAGES);
    let mut stored = Stored::default();
    app.store.list(&newest).await?.iter().for_each(|row| stored.add_message(app, row));
    stored.messages.sort_by_key(|message| (message.at(), message.id));
    Ok(history::last_heard(&stored.messages))
}

/// Reads the store: queries of the state, the conversation and its line at once, and the counters beside them where the
/// trigger is a guest's.
///
/// # Errors
/// As [`crate::store::Store::list`].
pub async fn stored(app: &App, trigger: &Trigger) -> Result<Stored, Error> {
    let state = Range::whole(keys::STATE_PARTITION);
    let messages = async {
        let Some(peer) = trigger.peer() else { return Ok(Vec::new()) };
        app.store.list(&Range::newest(keys::conversation(&peer), MAX_MESSAGES + BESIDE_MESSAGES)).await
    };
    let line = async {
        let Some(peer) = trigger.conversation() else { return Ok(Vec::new()) };
        app.store.list(&line::first_in_line(&peer)).await
    };
    let counters = async {
        match guests::guest(app, trigger) {
            Some(guest) => guests::counters(app, &[guest]).await,
            None => Ok(Counters::default()),
        }
    };
    let (line, rows, messages, counters) = tokio::join!(line, app.store.list(&state), messages, counters);
    let (rows, messages) = (rows?, messages?);
    let message = history::incoming(trigger).map(|(_, message)| message.id);
    let mut stored = Stored { line: line?, counters: counters?, message, ..Stored::default() };
    rows.iter().for_each(|row| stored.add_state(row));
    messages.iter().for_each(|row| stored.add_message(app, row));
    Ok(stored)
}

impl Stored {
    /// What the rows of the state's partition tell, without any conversation.
    #[must_use]
    pub fn of_state(rows: &[Row]) -> Self {
        let mut stored = Self::default();
        rows.iter().for_each(|row| stored.add_state(row));
        stored
    }

    /// Whether this event is among the state's.
    #[must_use]
    pub fn has_event(&self, id: &EventId) -> bool {
        self.events.iter().any(|event| event.id == *id)
    }

    /// Adds verified events to the state. Returns what is to be kept of them by [`keep`].
    ///
    /// # Errors
    /// [`Error::Permanent`] where a row cannot be written.
    pub fn learn(&mut self, app: &App, events: Vec<Event>) -> Result<Vec<Write>, Error> {
        self.events.extend(events);
        let state = self.state(app);
        let mut writes = new_versions(&state, &self.versions, None)?;
        writes.extend(newest_notes(app, &state)?);
        Ok(writes)
    }

    fn add_state(&mut self, row: &Row) {
        if row.key == keys::state_read() {
            self.read = read_clear(row).ok();
        } else if row.key == keys::flags() {
            self.flags = Flags::of(Some(row));
        } else if row.key.sort.starts_with(keys::NOTES_PREFIX) {
            self.events.extend(read_clear::<Vec<Event>>(row).unwrap_or_default());
        } else {
            self.add_event(row);
        }
    }

    fn add_event(&mut self, row: &Row) {
        if let Ok(event) = serde_json::from_slice::<Event>(&row.value) {
            self.versions.insert(row.key.clone(), (row.version, event.id));
            self.events.push(event);
        } else {
            tracing::warn!(row = %row.key.sort, "a stored event cannot be read and is passed over");
        }
    }

    fn add_message(&mut self, app: &App, row: &Row) {
        if row.key.sort.starts_with(keys::GUEST_EVENT_PREFIX) {
            self.add_event(row);
            return;
        }
        if row.key.sort == keys::BEGIN_SORT {
            self.begin = read_clear::<Begin>(row).ok().map(|begin| begin.at);
            return;
        }
        if row.key.sort.starts_with('~') {
            match row.key.sort.as_str() {
                keys::OUTAGE_SORT => self.outage = outage::Found::read(row),
                _ => self.history_read = read_clear(row).ok(),
            }
            return;
        }
        match app.open_sealed::<StoredMessage>(row) {
            Ok(message) => self.messages.push(message),
            Err(error) => tracing::warn!(%error, "a stored message is passed over"),
        }
    }

    /// Whether the relays are to be asked for the state.
    pub(crate) fn is_stale(&self, app: &App, now: Timestamp) -> bool {
        let needs_guests = app.config.senders.include_guests();
        self.is_outdated
            || self.read.as_ref().is_none_or(|mark| {
                mark.read_at + FRESH < now
                    || (needs_guests && !mark.guests)
                    || self.flags.asks_to_refresh(mark.read_at)
            })
    }

    /// Whether the relays were last asked for the state before `at`.
    pub(crate) fn is_older_than(&self, at: Timestamp) -> bool {
        self.read.as_ref().is_none_or(|mark| mark.read_at < at)
    }

    /// From here on it counts as stale.
    pub(crate) fn outdate(&mut self) {
        self.is_outdated = true;
    }

    /// Whether the relays were ever asked for what a run on this trigger needs.
    pub(crate) fn was_read(&self, trigger: &Trigger) -> bool {
        self.read.is_some() && (trigger.peer().is_none() || self.history_read.is_some())
    }

    /// Whether the relays are to be asked for the conversation: never yet, or some time ago and not all of them told. Of a
    /// guest they also tell what it published of itself, which may change.
    fn lacks_peer(&self, is_guest: bool, now: Timestamp) -> bool {
        self.history_read.is_none_or(|mark| {
            (!mark.complete && mark.read_at + HISTORY_RETRY < now)
                || (is_guest && mark.read_at + GUEST_FRESH < now)
        })
    }

    /// Notes that the relays were asked for the state, and whether those told all that they have that are to be waited for.
    /// Returns the row.
    ///
    /// # Errors
    /// Never, for a value of ours.
    pub(crate) fn note_read(&mut self, app: &App, now: Timestamp, complete: bool) -> Result<Write, Error> {
        let guests = app.config.senders.include_guests();
        let told = if complete && guests {
            app.config.admins.clone()
        } else {
            self.read.take().map(|mark| mark.told).unwrap_or_default()
        };
        let mark = StateMark { format: FORMAT, read_at: now, guests, told };
        let write = Write::put(keys::state_read(), Expect::Anything, to_json(&mark)?, None);
        (self.read, self.is_outdated) = (Some(mark), false);
        Ok(write)
    }

    /// What is known of who is answered.
    #[must_use]
    pub(crate) fn lists(&self, state: &AgentState) -> Lists {
        let told = self.read.as_ref().map_or(&[][..], |mark| &mark.told);
        let has = |kind: Kind, author: PublicKey| state.events.newest(kind, author).is_some();
        let knows = |kind: Kind| state.admins.iter().all(|admin| has(kind, *admin) || told.contains(admin));
        Lists {
            contacts: knows(kinds::CONTACTS),
            mutes: knows(kinds::MUTE_LIST),
            skills: has(kinds::ADOPTION_LIST, state.agent) || !told.is_empty(),
        }
    }

    /// The state as far as it is known.
    #[must_use]
    pub fn state(&self, app: &App) -> AgentState {
        AgentState::build(
            app.keys(),
            &app.config.admins,
            app.config.agent_name.as_deref(),
            self.events.iter().cloned(),
            app.clock.now(),
        )
    }

    /// See [`history::lacks_a_reply`].
    pub(crate) fn lacks_a_reply(&self) -> bool {
        history::lacks_a_reply(&self.messages, self.message)
    }

    /// What is known without asking any relay.
    #[must_use]
    pub fn into_loaded(self, app: &App, trigger: &Trigger) -> Loaded {
        let state = self.state(app);
        self.with_state(state, trigger)
    }

    fn with_state(self, state: AgentState, trigger: &Trigger) -> Loaded {
        let lists = self.lists(&state);
        let messages = history::in_order(self.messages, trigger);
        let last_heard = history::last_heard(&messages);
        let is_admins = trigger.peer().is_some_and(|peer| state.admins.contains(&peer));
        let history = history::visible(messages, is_admins, self.begin);
        Loaded { state, history, last_heard, asked: false, lists, unsaved: Vec::new() }
    }
}

/// Asks the relays for what is missing or stale, and returns everything.
///
/// # Errors
/// [`Error::Transient`] where nothing was ever read and no relay answers, and where the store is unavailable;
/// [`Error::Permanent`] where a row cannot be written.
pub async fn refresh(
    app: &App,
    trigger: &Trigger,
    mut stored: Stored,
    until: Instant,
) -> Result<Loaded, Error> {
    let now = app.clock.now();
    let stale = stored.is_stale(app, now);
    let guest = guests::guest(app, trigger);
    let new_peer = trigger.peer().filter(|_| stored.lacks_peer(guest.is_some(), now));
    let mut state = stored.state(app);
    if !stale && new_peer.is_none() {
        return Ok(stored.with_state(state, trigger));
    }
    let targets = read_targets(app, &state);
    let mut filters = Vec::new();
    if stale {
        filters.extend(state_filters(app));
        filters.extend(foreign_filters(&adopted_foreign(&state)));
    }
    filters.extend(new_peer.iter().flat_map(|peer| history::filters(&app.agent(), peer)));
    filters.extend(guest.map(|guest| Filter::new().author(guest).kinds(PERSON)));

    let fetched = fetch(app, &targets, &filters, until).await;
    if stored.read.is_none() && fetched.reports.iter().all(|report| report.outcome.is_err()) {
        return Err(Error::Transient("no relay could be read".to_owned()));
    }
    if stale && fetched.reports.iter().all(|report| report.outcome.is_err()) {
        tracing::warn!("no relay could be read: what the store has of the agent is stale, and is used");
    }
    let complete = fetched.is_complete();
    let (dms, events): (Vec<Event>, Vec<Event>) =
        fetched.events.into_iter().partition(|event| dm::is_dm(event.kind));
    let mut writes = Vec::new();
    if let Some(peer) = new_peer {
        for message in history::of_conversation(app, trigger, &peer, &stored.messages, &dms) {
            if message.from_agent {
                instance::suspect(app, &peer, &message).await?;
            }
            writes.push(message.write(app, &peer)?);
            stored.messages.push(message);
        }
        let mark = HistoryMark { format: FORMAT, read_at: now, complete };
        writes.push(Write::put(keys::history_read(&peer), Expect::Anything, to_json(&mark)?, None));
    }
    stored.events.extend(events);
    state = stored.state(app);
    if stale {
        // A newly adopted skill of somebody else is known only once the list is read: then one more round.
        if !state.wanted_foreign().is_empty() {
            let missing = fetch(app, &targets, &foreign_filters(state.wanted_foreign()), until).await;
            stored.events.extend(missing.events);
            state = stored.state(app);
        }
        writes.extend(newest_notes(app, &state)?);
        writes.push(stored.note_read(app, now, complete)?);
    }
    writes.extend(new_versions(&state, &stored.versions, guest)?);
    Ok(Loaded { unsaved: writes, asked: true, ..stored.with_state(state, trigger) })
}

/// Asks the relays where `peer` reads, however fresh what is known of that is: its relays took no message. What they tell is
/// added and kept.
pub(crate) async fn reread_relay_lists(
    app: &App,
    trigger: &Trigger,
    peer: PublicKey,
    stored: &mut Stored,
    until: Instant,
) -> Result<(), Error> {
    let filter = Filter::new().author(peer).kinds([kinds::RELAY_LIST, kinds::INBOX_RELAYS]);
    let fetched = fetch(app, &read_targets(app, &stored.state(app)), &[filter], until).await;
    stored.events.extend(fetched.events);
    let writes = new_versions(&stored.state(app), &stored.versions, guests::guest(app, trigger))?;
    keep(app, writes).await;
    Ok(())
}

async fn fetch(app: &App, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched {
    let fetched = app.relays.fetch(targets, filters, until).await;
    for report in &fetched.reports {
        if let Err(error) = &report.outcome {
            tracing::warn!(relay.url = %report.url, %error, events = report.events, "a relay could not be read in full");
        }
    }
    fetched
}

/// Our own relays to read from: the configured ones and the agent's own lists.
#[must_use]
pub fn read_targets(app: &App, state: &AgentState) -> Vec<Target> {
    let agent = app.agent();
    distinct(
        app.own_targets()
            .into_iter()
            .chain(own_list(&state.write_relays(agent)))
            .chain(own_list(&state.inbox_relays(agent))),
    )
}

/// Our own relays to publish to: the configured ones and the agent's NIP-65 write relays.
#[must_use]
pub fn write_targets(app: &App, state: &AgentState) -> Vec<Target> {
    distinct(app.own_targets().into_iter().chain(own_list(&state.write_relays(app.agent()))))
}

/// The adopted skills of others, at hand or not: author and d tag.
pub(crate) fn adopted_foreign(state: &AgentState) -> Vec<(PublicKey, String)> {
    let at_hand = state.skills.iter().map(|skill| (skill.author(), skill.d().to_owned()));
    at_hand
        .filter(|(author, _)| *author != state.agent)
        .chain(state.wanted_foreign().iter().cloned())
        .collect()
}

/// What the agent goes by: its own events and those of its admins.
pub(crate) fn state_filters(app: &App) -> Vec<Filter> {
    let agent = Filter::new().author(app.agent()).kinds([
        kinds::PROFILE,
        kinds::DELETION,
        kinds::RELAY_LIST,
        kinds::INBOX_RELAYS,
        kinds::ADOPTION_LIST,
        kinds::SOUL,
        kinds::PUBLIC_SKILL,
        kinds::PRIVATE_SKILL,
    ]);
    let of_admins = || Filter::new().authors(app.config.admins.iter().copied());
    let lists = if app.config.senders.include_guests() { &GUEST_LISTS[..] } else { &[] };
    let people = of_admins().kinds(PERSON.iter().chain(lists).copied());
    vec![agent, people, of_admins().kind(kinds::NOTE).limit(MAX_NOTES)]
}

/// An admin's lists that decide about guests.
const GUEST_LISTS: [Kind; 2] = [kinds::CONTACTS, kinds::MUTE_LIST];

/// Those lists of the admins whose contacts are not at hand, however old they are.
pub(crate) fn guest_list_filters(app: &App, state: &AgentState) -> Vec<Filter> {
    let lacks = |admin: &&PublicKey| state.events.newest(kinds::CONTACTS, **admin).is_none();
    let admins: Vec<PublicKey> = app.config.admins.iter().filter(lacks).copied().collect();
    let is_needed = app.config.senders.include_guests() && !admins.is_empty();
    is_needed.then(|| Filter::new().authors(admins).kinds(GUEST_LISTS)).into_iter().collect()
}

/// Adopted skills of others, and what their authors deleted.
pub(crate) fn foreign_filters(skills: &[(PublicKey, String)]) -> Vec<Filter> {
    if skills.is_empty() {
        return Vec::new();
    }
    let authors = || skills.iter().map(|(author, _)| *author);
    let addresses = skills.iter().map(|(author, d)| format!("{}:{author}:{d}", kinds::PUBLIC_SKILL.as_u16()));
    vec![
        Filter::new().authors(authors()).kind(kinds::PUBLIC_SKILL).identifiers(skills.iter().map(|(_, d)| d)),
        Filter::new()
            .authors(authors())
            .kind(kinds::DELETION)
            .custom_tags(SingleLetterTag::LOWERCASE_A, addresses),
    ]
}

/// The writes of events that the store does not have yet. What a guest published of itself lies with its conversation.
fn new_versions(
    state: &AgentState,
    versions: &BTreeMap<Key, (u64, EventId)>,
    guest: Option<PublicKey>,
) -> Result<Vec<Write>, Error> {
    let mut writes = Vec::new();
    for event in state.events.kept().filter(|event| event.kind != kinds::NOTE) {
        let key = match guest {
            Some(guest) if event.pubkey == guest && PERSON.contains(&event.kind) => {
                keys::guest_event(&guest, event.kind)
            }
            _ => keys::event(event),
        };
        let expect = match versions.get(&key) {
            Some((_, id)) if *id == event.id => continue,
            Some((version, _)) => Expect::Version(*version),
            None => Expect::Absent,
        };
        writes.push(Write::put(key, expect, to_json(event)?, None));
    }
    Ok(writes)
}

/// The writes of the admins' notes.
fn newest_notes(app: &App, state: &AgentState) -> Result<Vec<Write>, Error> {
    let notes = state.events.of_kind(kinds::NOTE);
    let mut writes = Vec::new();
    for admin in &app.config.admins {
        let by_admin =
            notes.iter().filter(|note| note.pubkey == *admin && note.as_json().len() <= MAX_NOTE_BYTES);
        let newest: Vec<&&Event> = by_admin.take(MAX_NOTES).collect();
        if !newest.is_empty() {
            writes.push(Write::put(keys::notes(admin), Expect::Anything, to_json(&newest)?, None));
        }
    }
    Ok(writes)
}

/// Writes each row for itself, several at once, and after them when the relays were asked. Where one fails, or the process
/// dies, nobody knows that they were, and they are asked again.
pub async fn keep(app: &App, writes: Vec<Write>) {
    let is_mark =
        |write: &Write| write.key == keys::state_read() || write.key.sort == keys::HISTORY_READ_SORT;
    let (marks, rows) = writes.into_iter().partition(is_mark);
    for writes in [rows, marks] {
        if let Err(error) = put_all(app, writes).await {
            tracing::warn!(%error, "what the relays told could not be kept");
            return;
        }
    }
}

async fn put_all(app: &App, writes: Vec<Write>) -> Result<(), Error> {
    const AT_ONCE: usize = 8;
    let written = futures_util::stream::iter(writes).map(|write| put_newest(app, write));
    let written: Vec<Result<(), Error>> = written.buffer_unordered(AT_ONCE).collect().await;
    written.into_iter().collect()
}

/// Writes an event's row unless another invocation has put a newer version there meanwhile.
async fn put_newest(app: &App, mut write: Write) -> Result<(), Error> {
    loop {
        let row = match app.store.write(std::slice::from_ref(&write)).await {
            Ok(()) => return Ok(()),
            Err(StoreError::Conflict { current: Some(row), .. }) => row,
            Err(StoreError::Conflict { current: None, .. }) => {
                write.expect = Expect::Absent;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let Change::Put { value, .. } = &write.change else { return Ok(()) };
        let (Ok(ours), Ok(theirs)) =
            (serde_json::from_slice::<Event>(value), serde_json::from_slice::<Event>(&row.value))
        else {
            return Ok(());
        };
        if !supersedes(&ours, &theirs) {
            return Ok(());
        }
        write.expect = Expect::Version(row.version);
    }
}
