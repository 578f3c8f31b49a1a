//! The agent's world: who writes to it, what becomes of its invocations, and what must be true in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use didactyl::app::{App, LEASE_MARGIN};
use didactyl::aws::sqs;
use didactyl::clock::Deadline;
use didactyl::config::Config;
use didactyl::handler;
use didactyl::queue::Queue;
use didactyl::record::{self, MAX_ATTEMPTS, RunRecord, Status, dm_trigger_id};
use didactyl::store::sqlite::Sqlite;
use didactyl::store::{Range, Store, keys};
use nostr::prelude::{Event, EventId, Keys, Timestamp};
use proptest::sample::Index;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::ports::{Echo, Invocation, Post};
use super::{Act, Order, Trouble, Wrong};
use crate::agent::{BUDGET, TestClock, agent_key, config, dm_id, secret};
use crate::faults::{Fault, Side};
use crate::sea::{Manner, Sea, nip04_at, wrap_at};

/// Each is an admin, so that no limit of guests counts.
const PEERS: usize = 4;
const MESSAGES: usize = 20;
const WORKERS: usize = 3;

/// What an answer begins with that is none.
const APOLOGY: &str = "I could not answer this message";

/// What answers to messages and orders begin with; all else the agent tells of its own accord.
const ANSWERS: [&str; 10] = [
    "MESSAGE ",
    APOLOGY,
    "Stopped.",
    "I go on.",
    "I was not stopped.",
    "Nothing was done",
    "Cancelled: ",
    "No run that",
    "Its answer is on its way",
    "A new conversation.",
];

/// A message that somebody wrote.
struct Written {
    event: Event,
    run: String,
    at: Timestamp,
    /// What it says; not of an order, which no model hears.
    text: Option<String>,
}

/// An invocation that has not ended.
struct Running {
    invocation: Arc<Invocation>,
    /// What it answered, if it lived so long.
    work: JoinHandle<Option<Value>>,
    /// The run that the queue brought, and whether that comes again in any case.
    letter: Option<(String, bool)>,
}

pub struct World {
    /// Looks at what the others do.
    observer: App,
    model: Arc<Echo>,
    sea: Arc<Sea>,
    clock: TestClock,
    queue: Option<Arc<Post>>,
    /// Those that were written so far.
    written: Vec<Written>,
    /// The messages that an order to cancel them was written for.
    cancelled: BTreeSet<usize>,
    /// Pairs of one conversation, the first of which is older and was in the store when the second was written.
    in_order: Vec<(usize, usize)>,
    running: Vec<Running>,
    ended: Vec<Arc<Invocation>>,
    /// The apologies of runs that were run again.
    taken_back: BTreeSet<EventId>,
    /// How far the clock is behind the latest time that it showed; not above 0.
    behind_secs: i64,
}

fn peer(n: usize) -> Keys {
    secret(2 + u8::try_from(n % PEERS).unwrap())
}

fn tick() -> String {
    json!({"type": "tick"}).to_string()
}

impl World {
    pub async fn new(has_queue: bool) -> Self {
        let clock = TestClock::default();
        // The clock may go back so far.
        clock.forward(Duration::from_secs(100_000));
        let sea = Arc::new(Sea::new(clock.clock(), &[Manner::Gives(500), Manner::Gives(500)]));
        let store: Arc<dyn Store> = Arc::new(Sqlite::open(":memory:", clock.clock()).unwrap());
        let (relays, model) = (sea.clone(), Arc::new(Echo::default()));
        let observer = App::with_ports(Self::config(), store, relays, model.clone(), clock.clock());
        let mut world = Self {
            observer,
            model,
            sea,
            queue: has_queue.then(|| Arc::new(Post::new(clock.clock()))),
            clock,
            written: Vec::new(),
            cancelled: BTreeSet::new(),
            in_order: Vec::new(),
            running: Vec::new(),
            ended: Vec::new(),
            taken_back: BTreeSet::new(),
            behind_secs: 0,
        };
        world.begin(tick(), None, None).await;
        world.wait().await;
        world.clock.forward(Duration::from_secs(1_000));
        world
    }

    fn config() -> Config {
        let admins: Vec<String> = (0..PEERS).map(|n| peer(n).public_key().to_hex()).collect();
        let vars = BTreeMap::from([
            ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
            ("DIDACTYL_ADMIN", admins.join(",")),
            ("DIDACTYL_RELAYS", "ws://127.0.0.1:1,ws://127.0.0.1:2".to_owned()),
            ("DIDACTYL_LLM", "scripted/test".to_owned()),
            ("DIDACTYL_HELLO", "false".to_owned()),
            ("SCRIPTED_BASE_URL", "http://127.0.0.1:9/v1".to_owned()),
        ]);
        config(&vars)
    }

    fn app(&self) -> App {
        let App { config, store, relays, llm, clock, .. } = &self.observer;
        let mut app =
            App::with_ports(config.clone(), store.clone(), relays.clone(), llm.clone(), clock.clone());
        app.queue = self.queue.clone().map(|queue| queue as Arc<dyn Queue>);
        app
    }

    async fn begin(&mut self, payload: String, letter: Option<(String, bool)>, wrong: Wrong) {
        if self.running.len() >= WORKERS {
            self.wait().await;
        }
        let mut app = self.app();
        let fault = match wrong {
            Some((Trouble::Crash, at, side)) => Fault::crash(at, side),
            Some((Trouble::Failing, at, side)) => Fault::failing(at, side),
            Some((Trouble::Pause, at, side)) => Fault::pause(at, side),
            None => Fault::pause(usize::MAX, Side::Before),
        };
        let invocation = Invocation::install(&mut app, fault).await;
        let own = Arc::clone(&invocation);
        let work = tokio::spawn(async move {
            own.until_crash(handler::handle(&app, &payload, Deadline::after(BUDGET))).await?.ok()
        });
        self.running.push(Running { invocation, work, letter });
        // The others go on as well.
        tokio::task::yield_now().await;
    }

    /// The oldest invocation ends; if it sleeps, it wakes.
    async fn wait(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let Running { invocation, work, letter } = self.running.remove(0);
        invocation.wake();
        let answer = work.await.unwrap();
        self.ended.push(invocation);
        let (Some((run, again)), Some(queue)) = (letter, &self.queue) else { return };
        if again || answer.is_none_or(|answer| answer != json!({"batchItemFailures": []})) {
            queue.put_back(run);
        }
    }

    async fn wait_for_all(&mut self) {
        while !self.running.is_empty() {
            self.wait().await;
        }
    }

    pub async fn act(&mut self, act: &Act) {
        match act {
            Act::Push { again, wrong } => {
                let event = match again {
                    Some(index) if !self.written.is_empty() => index.get(&self.written).event.clone(),
                    _ if self.messages() < MESSAGES => self.write(None).await,
                    _ => return,
                };
                self.push(&event, *wrong).await;
            }
            Act::Order { order, wrong } => {
                let Some(text) = self.order(order) else { return };
                let event = self.write(Some(text)).await;
                self.push(&event, *wrong).await;
            }
            Act::Bring { which, again, wrong } => drop(self.bring(Some(*which), *again, *wrong).await),
            Act::Tick { wrong } => self.begin(tick(), None, *wrong).await,
            Act::Wait => self.wait().await,
            Act::Clock(seconds) => self.step(*seconds),
        }
    }

    async fn push(&mut self, event: &Event, wrong: Wrong) {
        self.begin(json!({"type": "relay", "events": [event]}).to_string(), None, wrong).await;
    }

    /// Whether there was something to bring.
    async fn bring(&mut self, which: Option<Index>, again: bool, wrong: Wrong) -> bool {
        let Some(run) = self.queue.as_ref().and_then(|queue| queue.take(which)) else { return false };
        let record = json!({"eventSource": "aws:sqs", "messageId": "one", "body": sqs::body(&run)});
        self.begin(json!({"Records": [record]}).to_string(), Some((run, again)), wrong).await;
        true
    }

    /// The clock steps, and is never more than ten minutes behind what it showed before.
    fn step(&mut self, seconds: i64) {
        let seconds = seconds.max(-600 - self.behind_secs);
        self.behind_secs = (self.behind_secs + seconds).min(0);
        let by = Duration::from_secs(seconds.unsigned_abs());
        if seconds < 0 {
            return self.clock.back(by);
        }
        self.clock.forward(by);
        self.running.iter().for_each(|running| running.invocation.oversleep());
    }

    /// How many messages there are that are no orders.
    fn messages(&self) -> usize {
        self.written.iter().filter(|written| written.text.is_some()).count()
    }

    /// The order's text, where there is something to order.
    fn order(&mut self, order: &Order) -> Option<String> {
        Some(match order {
            Order::Stop => "/stop".to_owned(),
            Order::Start => "/start".to_owned(),
            Order::New => "/new".to_owned(),
            Order::Cancel(which) => {
                let messages = (0..self.written.len()).filter(|n| self.written[*n].text.is_some());
                let messages: Vec<usize> = messages.collect();
                if messages.is_empty() {
                    return None;
                }
                let number = *which.get(&messages);
                self.cancelled.insert(number);
                format!("/cancel {}", &self.written[number].run[..8])
            }
        })
    }

    /// Somebody writes the next message, or this order; it lies on the relays.
    async fn write(&mut self, order: Option<String>) -> Event {
        let (new, now) = (self.written.len(), self.clock.clock().now());
        if order.is_none() {
            for earlier in (0..new).filter(|n| n % PEERS == new % PEERS) {
                let Written { text, at, run, .. } = &self.written[earlier];
                let is_older = text.is_some() && *at < now;
                if is_older && record::find(&self.observer, run).await.unwrap().is_some() {
                    self.in_order.push((earlier, new));
                }
            }
        }
        let text = order.clone().unwrap_or_else(|| format!("message {new}"));
        let event = match new % 3 {
            0 => wrap_at(&peer(new), &text, now, now),
            _ => nip04_at(&peer(new), &agent_key(), &text, now),
        };
        self.sea.post(&event);
        let run = record::run_id(&dm_trigger_id(&dm_id(&event)));
        let text = order.is_none().then_some(text);
        self.written.push(Written { event: event.clone(), run, at: now, text });
        event
    }

    /// Nothing goes wrong any more, and the agent is let go on.
    pub async fn settle(&mut self) {
        self.wait_for_all().await;
        while self.messages() < MESSAGES {
            self.write(None).await;
        }
        // Later than whatever was written.
        self.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(601));
        let start = self.write(Some("/start".to_owned())).await;
        self.push(&start, None).await;
        self.wait().await;
        self.work_all().await;
    }

    async fn work_all(&mut self) {
        for _ in 0..60 {
            self.begin(tick(), None, None).await;
            self.wait().await;
            while self.bring(None, false, None).await {
                self.wait().await;
            }
            if self.all_done().await {
                return;
            }
            self.clock.forward(Duration::from_secs(600));
        }
    }

    async fn record(&self, written: &Written) -> Option<RunRecord> {
        record::find(&self.observer, &written.run).await.unwrap()
    }

    async fn all_done(&self) -> bool {
        for written in &self.written {
            if self.record(written).await.is_none_or(|record| !record.status.is_final()) {
                return false;
            }
        }
        true
    }

    /// How often an attempt at a run may have been used up in vain.
    fn disturbed(&self, run: &str) -> usize {
        self.ended.iter().filter(|invocation| invocation.disturbed(run)).count()
    }

    /// Each message has the answer that it should have, once; nothing else was answered, and nothing is left to do.
    pub async fn check(&self) {
        let mut said = BTreeMap::new();
        for n in 0..PEERS {
            said.extend(self.sea.published(&peer(n)));
        }
        said.retain(|id, _| !self.taken_back.contains(id));
        let all = said.clone();
        for (n, written) in self.written.iter().enumerate() {
            let what = written.text.clone().unwrap_or_else(|| format!("order {n}"));
            let record = self.record(written).await;
            let is_cancelled =
                |record: &RunRecord| record.reason.as_deref() == Some("cancelled by the admin");
            match record {
                Some(record) if record.status == Status::Dropped && is_cancelled(&record) => {
                    assert!(self.cancelled.contains(&n) && record.reply_ids.is_empty(), "{what}: {record:?}");
                }
                Some(record) if !record.reply_ids.is_empty() => {
                    assert!(record.status.is_final() && record.reply_ids.len() == 1, "{what}: {record:?}");
                    let text = said.remove(&record.reply_ids[0]).unwrap_or_default();
                    if text.starts_with(APOLOGY) {
                        let disturbed = self.disturbed(&written.run);
                        let is_dead = record.status == Status::Dead;
                        let is_right = is_dead && disturbed >= MAX_ATTEMPTS as usize;
                        assert!(is_right, "{what}: {text} after {disturbed} faults: {record:?}");
                        continue;
                    }
                    assert_eq!(record.status, Status::Done, "{what}: {text}: {record:?}");
                    match &written.text {
                        Some(asked) => assert_eq!(text, asked.to_uppercase(), "{what}: {record:?}"),
                        None => assert!(ANSWERS[2..].iter().any(|begin| text.starts_with(begin)), "{text}"),
                    }
                }
                _ => {
                    // Ticks died while they opened it, time and again.
                    let id = written.event.id.to_hex();
                    assert!(all.values().any(|text| text.contains(&id)), "{what} is lost: {record:?}");
                }
            }
        }
        said.retain(|_, text| ANSWERS.iter().any(|begin| text.starts_with(begin)));
        assert!(said.is_empty(), "nobody knows of these answers: {said:?}");
        let wrongly: Vec<String> = self.ended.iter().flat_map(|ended| ended.wrongly_asked()).collect();
        assert_eq!(wrongly, [""; 0], "the model was asked while the agent was stopped");
        let due = self.observer.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
        assert!(!due.iter().any(|row| keys::due_place(&row.key).is_some()), "no run is due any more");
    }

    /// What waited in a conversation was worked in its order.
    pub fn check_order(&self) {
        let asked = self.model.asked.lock().unwrap().clone();
        let is = |n: usize| move |asked: &String| *asked == format!("message {n}");
        for (first, second) in &self.in_order {
            let (last, begin) = (asked.iter().rposition(is(*first)), asked.iter().position(is(*second)));
            let in_order = last.is_none() || begin.is_none() || last < begin;
            assert!(in_order, "message {second} was begun before {first} was over: {asked:?}");
        }
    }

    /// Whatever was given up is run again by hand, and has its answer then.
    pub async fn retry_the_dead(&mut self) {
        let dead = record::dead(&self.observer, 100).await.unwrap();
        if dead.is_empty() {
            return;
        }
        for record in dead {
            self.taken_back.extend(&record.reply_ids);
            record::retry(&self.observer, &record.run_id).await.unwrap();
        }
        self.work_all().await;
        assert_eq!(record::dead(&self.observer, 100).await.unwrap(), []);
        self.check().await;
    }
}
