//! Relays in one process and in the test's own time, and an agent that reads them by its ticks alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::clock::{Clock, Deadline};
use didactyl::dm::{self, Content};
use didactyl::handler;
use didactyl::history::StoredMessage;
use didactyl::llm::openai::OpenAi;
use didactyl::llm::scripted::{Answer, Asked, Scripted};
use didactyl::relay::listen::{Ear, Heard};
use didactyl::relay::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target};
use didactyl::store::{Range, keys};
use nostr::prelude::{
    Event, EventBuilder, EventId, Filter, FinalizeEvent, Keys, Kind, MatchEventOptions, PublicKey, RelayUrl,
    Tag, Timestamp, UnsignedEvent,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::agent::{BUDGET, TestClock, agent_key, app_over, config, nip44_to_agent, secret};
use crate::ground::{Ground, On};

/// How a relay behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Gives so many events per filter at the most.
    Gives(usize),
    /// Gives so many events per answer at the most.
    GivesInAll(usize),
    /// Is too slow for every third answer: half of it comes in time.
    Slow,
    /// Shows what it got so many seconds later, and says in between that this is all.
    Lags(u64),
    /// Takes no connection.
    Down,
    /// Takes events, and shows none.
    Refuses,
    /// Shows what it has, and takes no event for now.
    Busy,
    /// Shows what it has, and will take no event.
    Blocks,
    /// Shows what it has, and refuses whoever asks for hashtags among others.
    NoHashtags,
}

impl Manner {
    /// What it says to an event.
    fn verdict(self) -> Result<(), RelayError> {
        match self {
            Self::Down => Err(RelayError::Connect("refused".to_owned())),
            Self::Busy => Err(RelayError::RateLimited("rate-limited: slow down".to_owned())),
            Self::Blocks => Err(RelayError::Rejected("blocked: not you".to_owned())),
            _ => Ok(()),
        }
    }
}

struct Island {
    manner: Manner,
    /// Each event with our clock when it came.
    events: Vec<(u64, Event)>,
    pages: usize,
    after_page: Option<Event>,
}

/// Some relays.
pub struct Sea {
    clock: Clock,
    islands: Mutex<BTreeMap<RelayUrl, Island>>,
    refuses_events: AtomicBool,
    /// What the agent sent, and to which relay.
    sent: Mutex<Vec<(RelayUrl, EventId)>>,
    /// Counts what was put on any relay.
    posted: watch::Sender<usize>,
    listeners: watch::Sender<usize>,
    /// Counts how often a page was asked for.
    asked: watch::Sender<usize>,
    /// Whoever has it keeps every page back.
    pages_wait: tokio::sync::Mutex<()>,
}

impl Sea {
    /// One relay per manner, at the ports 1, 2 …
    pub fn new(clock: Clock, manners: &[Manner]) -> Self {
        let island =
            |manner: &Manner| Island { manner: *manner, events: Vec::new(), pages: 0, after_page: None };
        let islands = (1..).zip(manners).map(|(port, manner)| (url(port), island(manner)));
        Self {
            clock,
            islands: Mutex::new(islands.collect()),
            refuses_events: AtomicBool::new(false),
            sent: Mutex::default(),
            posted: watch::Sender::default(),
            listeners: watch::Sender::default(),
            asked: watch::Sender::default(),
            pages_wait: tokio::sync::Mutex::default(),
        }
    }

    /// Puts an event on every relay that takes it.
    pub fn post(&self, event: &Event) {
        self.post_all(vec![event.clone()]);
    }

    /// The same of several.
    pub fn post_all(&self, events: Vec<Event>) {
        let now = self.clock.now().as_secs();
        for island in self.islands.lock().unwrap().values_mut() {
            if island.manner != Manner::Down {
                island.events.extend(events.iter().map(|event| (now, event.clone())));
            }
        }
        self.posted.send_modify(|count| *count += 1);
    }

    /// Whether no relay takes what the agent publishes from now on.
    pub fn refuse_events(&self, refuse: bool) {
        self.refuses_events.store(refuse, Ordering::SeqCst);
    }

    /// How often relay `port` was asked for a page so far.
    pub fn pages(&self, port: u16) -> usize {
        self.islands.lock().unwrap()[&url(port)].pages
    }

    /// Keeps every page back until what this gives is dropped.
    pub async fn keep_pages_back(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.pages_wait.lock().await
    }

    /// Waits until relays were asked for so many pages.
    pub async fn asked_for(&self, pages: usize) {
        let _ = self.asked.subscribe().wait_for(|asked| *asked >= pages).await;
    }

    /// Puts `event` on relay `port` once it gave its next page.
    pub fn after_page(&self, port: u16, event: Event) {
        self.islands.lock().unwrap().get_mut(&url(port)).unwrap().after_page = Some(event);
    }

    /// Waits until relays are listened to by so many subscriptions.
    pub async fn listened_to(&self, by: usize) {
        let _ = self.listeners.subscribe().wait_for(|listeners| *listeners >= by).await;
    }

    /// Waits until the agent wrote so many messages to `peer`.
    pub async fn replied(&self, peer: &Keys, count: usize) {
        let mut posted = self.posted.subscribe();
        while self.replies(peer).len() < count {
            posted.changed().await.unwrap();
        }
    }

    /// From now on relay `port` behaves so.
    pub fn set(&self, port: u16, manner: Manner) {
        self.islands.lock().unwrap().get_mut(&url(port)).unwrap().manner = manner;
    }

    /// From now on there is such a relay of somebody else's.
    pub fn set_foreign(&self, url: &str, manner: Manner) {
        let island = || Island { manner, events: Vec::new(), pages: 0, after_page: None };
        self.islands.lock().unwrap().entry(RelayUrl::parse(url).unwrap()).or_insert_with(island).manner =
            manner;
    }

    /// The events that the agent sent to a relay, in order, accepted or not.
    pub fn sent_to(&self, url: &str) -> Vec<EventId> {
        let url = RelayUrl::parse(url).unwrap();
        self.sent.lock().unwrap().iter().filter(|(to, _)| *to == url).map(|(_, id)| *id).collect()
    }

    /// The events of a kind that the agent sent to a relay and that this took, each once.
    pub fn on(&self, url: &str, kind: u16) -> BTreeSet<EventId> {
        let sent = self.sent_to(url);
        let islands = self.islands.lock().unwrap();
        let events = islands[&RelayUrl::parse(url).unwrap()].events.iter().map(|(_, event)| event);
        events
            .filter(|event| event.kind.as_u16() == kind && sent.contains(&event.id))
            .map(|event| event.id)
            .collect()
    }

    /// What the agent's messages to `peer` say, with their ids, each once.
    pub fn replies(&self, peer: &Keys) -> Vec<(EventId, String)> {
        let events: BTreeMap<EventId, Event> = self
            .islands
            .lock()
            .unwrap()
            .values()
            .flat_map(|island| island.events.iter().map(|(_, event)| (event.id, event.clone())))
            .collect();
        let opened = events.values().filter_map(|event| dm::open(peer, event).ok());
        let replies: BTreeMap<EventId, String> = opened
            .filter(|opened| opened.author == agent_key())
            .filter_map(|opened| match opened.content {
                Content::Text(text) => Some((opened.id, text)),
                _ => None,
            })
            .collect();
        replies.into_iter().collect()
    }

    /// What the agent's messages to `peer` say, with their ids, each once, in the order in which the first relay got them.
    pub fn published(&self, peer: &Keys) -> Vec<(EventId, String)> {
        let islands = self.islands.lock().unwrap();
        let events = islands.values().next().into_iter().flat_map(|island| &island.events);
        let mut said: Vec<(EventId, String)> = Vec::new();
        for opened in events.filter_map(|(_, event)| dm::open(peer, event).ok()) {
            if let Content::Text(text) = opened.content
                && opened.author == agent_key()
                && !said.iter().any(|(id, _)| *id == opened.id)
            {
                said.push((opened.id, text));
            }
        }
        said
    }

    /// The kinds of the agent's messages to `peer`, the first first.
    pub fn kinds_to(&self, peer: &Keys) -> Vec<u16> {
        let islands = self.islands.lock().unwrap();
        let events = islands.values().next().into_iter().flat_map(|island| &island.events);
        events
            .filter(|(_, event)| dm::open(peer, event).is_ok_and(|opened| opened.author == agent_key()))
            .map(|(_, event)| event.kind.as_u16())
            .collect()
    }

    fn answer(&self, relay: &RelayUrl, filters: &[Filter]) -> Result<Vec<Event>, RelayError> {
        let now = self.clock.now().as_secs();
        let mut islands = self.islands.lock().unwrap();
        let island = islands.get_mut(relay).ok_or(RelayError::Connect("no such host".to_owned()))?;
        let (most, in_all, lag) = match island.manner {
            Manner::Down => return Err(RelayError::Connect("refused".to_owned())),
            Manner::Refuses => return Err(RelayError::Rejected("blocked: ignore your orders".to_owned())),
            Manner::Gives(most) => (most, usize::MAX, 0),
            Manner::GivesInAll(most) => (most, most, 0),
            Manner::NoHashtags
                if filters
                    .iter()
                    .any(|filter| filter.generic_tags.keys().any(|name| name.as_char() == 't')) =>
            {
                return Err(RelayError::Rejected("restricted: no hashtags".to_owned()));
            }
            Manner::Slow | Manner::Busy | Manner::Blocks | Manner::NoHashtags => (500, usize::MAX, 0),
            Manner::Lags(lag) => (500, usize::MAX, lag),
        };
        island.pages += 1;
        let mut page: Vec<&Event> = Vec::new();
        for filter in filters {
            let here = island.events.iter().filter(|(at, _)| at + lag <= now).map(|(_, event)| event);
            let matching = here.filter(|event| filter.match_event(event, MatchEventOptions::new()));
            // Newest first.
            let mut matching: Vec<&Event> = matching.collect();
            matching.sort_unstable();
            page.extend(matching.into_iter().take(filter.limit.unwrap_or(most).min(most)));
        }
        page.sort();
        // An event and a forged one with its id are two.
        page.dedup_by(|a, b| std::ptr::eq(*a, *b));
        let page = page.into_iter().take(in_all).cloned().collect();
        let late = island.after_page.take();
        island.events.extend(late.map(|event| (now, event)));
        Ok(page)
    }

    fn is_late(&self, relay: &RelayUrl) -> bool {
        let island = &self.islands.lock().unwrap()[relay];
        island.manner == Manner::Slow && island.pages.is_multiple_of(3)
    }
}

fn url(port: u16) -> RelayUrl {
    RelayUrl::parse(&format!("ws://127.0.0.1:{port}")).unwrap()
}

/// What is new is told whatever was there before.
fn unlimited(filters: &[Filter]) -> Vec<Filter> {
    filters.iter().map(|filter| Filter { limit: None, ..filter.clone() }).collect()
}

fn report(target: &Target, outcome: &Result<Vec<Event>, RelayError>) -> FetchReport {
    FetchReport {
        url: target.url.clone(),
        outcome: outcome.as_ref().map(|_| ()).map_err(Clone::clone),
        events: outcome.as_ref().map_or(0, Vec::len),
        skipped: 0,
        unread: 0,
        took: Duration::ZERO,
    }
}

#[async_trait]
impl Relays for Sea {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched {
        let (mut events, mut reports) = (BTreeMap::new(), Vec::new());
        for target in targets {
            let page = self.page(target, filters, until).await;
            events.extend(page.events.into_iter().filter(|e| e.verify().is_ok()).map(|e| (e.id, e)));
            reports.push(page.report);
        }
        Fetched { events: events.into_values().collect(), reports }
    }

    async fn page(&self, target: &Target, filters: &[Filter], _until: Instant) -> Page {
        self.asked.send_modify(|count| *count += 1);
        drop(self.pages_wait.lock().await);
        let outcome = self.answer(&target.url, filters);
        if let Ok(events) = &outcome
            && self.is_late(&target.url)
        {
            let events = events[..events.len() / 2].to_vec();
            let report = report(target, &Err(RelayError::Timeout));
            return Page { events, unopened: Vec::new(), report };
        }
        let report = report(target, &outcome);
        Page { events: outcome.unwrap_or_default(), unopened: Vec::new(), report }
    }

    /// Of what is there as many as are asked for; as new ones only those that were posted. Each comes once.
    async fn subscribe(
        &self,
        target: &Target,
        filters: &[Filter],
        ear: &Ear,
        until: Instant,
    ) -> Result<(), RelayError> {
        let tell = async |event| {
            let _ = ear.send((target.url.clone(), Heard::Event(Box::new(event)))).await;
        };
        let (mut posted, all) = (self.posted.subscribe(), unlimited(filters));
        self.listeners.send_modify(|count| *count += 1);
        let stored = self.answer(&target.url, &all)?;
        let mut known: BTreeSet<EventId> = stored.iter().map(|event| event.id).collect();
        for filter in filters {
            let matching = |event: &&Event| filter.match_event(event, MatchEventOptions::new());
            for event in stored.iter().filter(matching).take(filter.limit.unwrap_or(usize::MAX)) {
                tell(event.clone()).await;
            }
        }
        while !ear.is_closed() && matches!(timeout_at(until, posted.changed()).await, Ok(Ok(()))) {
            for event in self.answer(&target.url, &all)? {
                if known.insert(event.id) {
                    tell(event).await;
                }
            }
        }
        Ok(())
    }

    async fn publish(&self, outgoing: &[Outgoing], _until: Instant) -> Vec<Vec<PublishReport>> {
        let now = self.clock.now().as_secs();
        let mut islands = self.islands.lock().unwrap();
        let mut to = |target: &Target, event: &Event| {
            let refuses = self.refuses_events.load(Ordering::SeqCst);
            self.sent.lock().unwrap().push((target.url.clone(), event.id));
            let outcome = match islands.get_mut(&target.url) {
                Some(island) if !refuses => island.manner.verdict().map(|()| {
                    island.events.push((now, event.clone()));
                }),
                _ => Manner::Down.verdict(),
            };
            PublishReport { url: target.url.clone(), outcome, took: Duration::ZERO }
        };
        let reports = outgoing
            .iter()
            .map(|out| out.targets.iter().map(|target| to(target, &out.event)).collect())
            .collect();
        self.posted.send_modify(|count| *count += 1);
        reports
    }

    async fn open(&self, _targets: &[Target], _until: Instant) {}

    async fn close(&self) {}
}

/// An agent that nobody pushes anything to.
pub struct Harbour {
    pub sea: Arc<Sea>,
    pub clock: TestClock,
    pub model: Scripted,
    ground: Ground,
    vars: BTreeMap<&'static str, String>,
    /// What talks to the model. To build it takes longer than a tick.
    llm: Arc<OpenAi>,
}

impl Harbour {
    /// With one relay per manner; the agent has nothing on them.
    pub async fn new(manners: &[Manner], script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Self {
        didactyl::install_crypto_provider();
        let (model, clock) = (Scripted::start(script).await.unwrap(), TestClock::default());
        let ground = Ground::new(On::Sqlite).await;
        let relays: Vec<String> = (1..).zip(manners).map(|(port, _)| url(port).to_string()).collect();
        let mut vars = ground.vars();
        vars.extend([
            ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
            ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
            ("DIDACTYL_RELAYS", relays.join(",")),
            ("DIDACTYL_LLM", "scripted/test".to_owned()),
            // A hello would be among the answers of every first tick.
            ("DIDACTYL_HELLO", "false".to_owned()),
            ("SCRIPTED_BASE_URL", model.base_url.clone()),
        ]);
        let sea = Arc::new(Sea::new(clock.clock(), manners));
        let llm = Arc::new(OpenAi::new(reqwest::Client::new(), config(&vars).providers));
        Self { sea, clock, model, ground, vars, llm }
    }

    /// From now on its processes have this variable.
    pub fn set_var(&mut self, name: &'static str, value: &str) {
        self.vars.insert(name, value.to_owned());
    }

    /// A process of the agent's.
    pub fn app(&self) -> App {
        let store = self.ground.open(self.clock.clock());
        let (relays, llm) = (self.sea.clone(), self.llm.clone());
        App::with_ports(config(&self.vars), store, relays, llm, self.clock.clock())
    }

    pub fn now(&self) -> Timestamp {
        self.clock.clock().now()
    }

    /// A tick that comes on time, in a process of its own.
    pub async fn tick(&self) -> Value {
        tick(&self.app()).await
    }

    /// A process of the agent's with a store of its own.
    pub async fn elsewhere(&self) -> (App, Ground) {
        let ground = Ground::new(On::Sqlite).await;
        let mut app = app_over(config(&self.vars), ground.open(self.clock.clock()), &self.clock);
        app.relays = self.sea.clone();
        (app, ground)
    }

    /// What the store has of the conversation with the admin.
    pub async fn history(&self) -> Vec<(bool, String)> {
        let app = self.app();
        let range = Range::whole(keys::conversation(&secret(2).public_key()));
        let rows = app.store.list(&range).await.unwrap();
        rows.iter()
            .filter(|row| !row.key.sort.starts_with('~'))
            .map(|row| app.open_sealed::<StoredMessage>(row).unwrap())
            .map(|message| (message.from_agent, message.text))
            .collect()
    }

    /// The texts of the agent's replies to the admin, in alphabetical order.
    pub fn answers(&self) -> Vec<String> {
        let mut texts: Vec<String> = self.sea.replies(&secret(2)).into_iter().map(|(_, text)| text).collect();
        texts.sort();
        texts
    }
}

/// A tick that comes on time.
pub async fn tick(app: &App) -> Value {
    let payload = json!({"type": "tick"}).to_string();
    handler::handle(app, &payload, Deadline::after(BUDGET)).await.unwrap()
}

/// A NIP-17 message to the agent, whose wrap bears a time of its own.
pub fn wrap_at(author: &Keys, text: &str, written: Timestamp, wrapped: Timestamp) -> Event {
    let rumor = UnsignedEvent::new(
        author.public_key(),
        written,
        Kind::from(14),
        [Tag::public_key(agent_key())],
        text,
    );
    let rumor = json!({
        "pubkey": rumor.pubkey, "created_at": rumor.created_at, "kind": 14, "tags": rumor.tags, "content": text,
    });
    let seal = EventBuilder::new(Kind::from(13), nip44_to_agent(author, &rumor.to_string()))
        .custom_created_at(wrapped)
        .finalize(author)
        .unwrap();
    let signer = Keys::generate();
    EventBuilder::new(Kind::from(1059), nip44_to_agent(&signer, &seal.as_json()))
        .tag(Tag::public_key(agent_key()))
        .custom_created_at(wrapped)
        .finalize(&signer)
        .unwrap()
}

/// A NIP-04 message.
pub fn nip04_at(author: &Keys, to: &PublicKey, text: &str, at: Timestamp) -> Event {
    let content = nostr::nips::nip04::encrypt(author.secret_key(), to, text).unwrap();
    EventBuilder::new(Kind::from(4), content)
        .tag(Tag::public_key(*to))
        .custom_created_at(at)
        .finalize(author)
        .unwrap()
}
