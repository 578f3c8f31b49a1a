//! A run that does not fit into one invocation goes on in the next ones, from the journal alone, and ends with a word
//! whatever happens. Time is simulated: an hour costs a test nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest, FinishReason, Role, ToolCall};
use didactyl::clock::{Clock, Deadline};
use didactyl::handler;
use didactyl::llm::{Llm, LlmError};
use didactyl::record::{self, RunRecord, Status};
use didactyl::relay::listen::Ear;
use didactyl::relay::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target};
use didactyl::store::sqlite::Sqlite;
use didactyl::store::{Change, Key, Range, Row, Store, StoreError, Write, keys};
use nostr::prelude::{Event, EventId, Filter};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until};

use crate::agent::{self, dm_id, nip17, outcomes, secret};
use crate::faults::MemoryQueue;

/// A model that asks for so many tools, one after another, and then answers. Each answer takes its time.
struct Model {
    turns: usize,
    takes: Duration,
    /// The tool results that it has seen with each request.
    asked: Mutex<Vec<usize>>,
}

#[async_trait]
impl Llm for Model {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let seen = request.messages.iter().filter(|message| message.role == Role::Tool).count();
        self.asked.lock().unwrap().push(seen);
        if Instant::now() + self.takes > until {
            sleep_until(until).await;
            return Err(LlmError::Transient { reason: "its time is up".into(), retry_after: None });
        }
        sleep(self.takes).await;
        let call = |n: usize| {
            ToolCall::new("", "nostr_query", json!({"kinds": [1], "limit": 1, "since": n}).to_string())
        };
        Ok(ChatAnswer {
            content: if seen < self.turns { String::new() } else { "all done".to_owned() },
            tool_calls: if seen < self.turns { vec![call(seen)] } else { Vec::new() },
            finish_reason: FinishReason::Stop,
            usage: None,
            model: request.model.to_owned(),
        })
    }
}

/// Relays that have nothing and take everything; or hang when something is published.
#[derive(Default)]
struct Quiet {
    hangs: AtomicBool,
    reads: AtomicUsize,
    sent: Mutex<Vec<EventId>>,
}

fn nothing(target: &Target) -> FetchReport {
    FetchReport {
        url: target.url.clone(),
        outcome: Ok(()),
        events: 0,
        skipped: 0,
        unread: 0,
        took: Duration::ZERO,
    }
}

#[async_trait]
impl Relays for Quiet {
    async fn fetch(&self, targets: &[Target], _: &[Filter], _: Instant) -> Fetched {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Fetched { events: Vec::new(), reports: targets.iter().map(nothing).collect() }
    }

    async fn page(&self, target: &Target, _: &[Filter], _: Instant) -> Page {
        Page { events: Vec::new(), unopened: Vec::new(), report: nothing(target) }
    }

    async fn subscribe(&self, _: &Target, _: &[Filter], _: &Ear, _: Instant) -> Result<(), RelayError> {
        unreachable!("nobody listens")
    }

    async fn publish(&self, outgoing: &[Outgoing], _: Instant) -> Vec<Vec<PublishReport>> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.sent.lock().unwrap().extend(outgoing.iter().map(|outgoing| outgoing.event.id));
        let report = |target: &Target| PublishReport {
            url: target.url.clone(),
            outcome: Ok(()),
            took: Duration::ZERO,
        };
        outgoing.iter().map(|outgoing| outgoing.targets.iter().map(report).collect()).collect()
    }

    async fn open(&self, _: &[Target], _: Instant) {}

    async fn close(&self) {}
}

/// A store that counts the bytes that are written.
struct Meter(Sqlite, AtomicUsize);

#[async_trait]
impl Store for Meter {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.0.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.0.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        let bytes = writes.iter().map(|write| match &write.change {
            Change::Put { value, .. } => value.len(),
            Change::Delete | Change::Check => 0,
        });
        self.1.fetch_add(bytes.sum(), Ordering::SeqCst);
        self.0.write(writes).await
    }
}

/// An agent in simulated time, and a message to it.
struct Scene {
    app: App,
    model: Arc<Model>,
    relays: Arc<Quiet>,
    store: Arc<Meter>,
    dm: Event,
    run: String,
}

impl Scene {
    fn new(turns: usize, takes: Duration) -> Self {
        let vars = [
            ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
            ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
            ("DIDACTYL_RELAYS", "ws://127.0.0.1:9".to_owned()),
            ("DIDACTYL_LLM", "a/m".to_owned()),
            ("DIDACTYL_HELLO", "false".to_owned()),
            ("DIDACTYL_MAX_TURNS", "1000".to_owned()),
            (
                "DIDACTYL_MODELS",
                json!({"providers": {"a": {"base_url": "http://127.0.0.1:9/v1", "context_window": 1_000_000}}}).to_string(),
            ),
        ];
        let (start_ms, start) = (Clock::system().now_ms(), Instant::now());
        let clock = Clock::from_fn(move || start_ms + u64::try_from(start.elapsed().as_millis()).unwrap());
        let model = Arc::new(Model { turns, takes, asked: Mutex::default() });
        let relays = Arc::new(Quiet::default());
        let store = Arc::new(Meter(Sqlite::open(":memory:", clock.clone()).unwrap(), AtomicUsize::new(0)));
        let config = agent::config(&vars.into_iter().collect());
        let app = App::with_ports(config, store.clone(), relays.clone(), model.clone(), clock);
        let dm = nip17(&secret(2), "Read them all.");
        let run = record::run_id(&record::dm_trigger_id(&dm_id(&dm)));
        Self { app, model, relays, store, dm, run }
    }

    /// What an invocation answers to this payload, which never takes longer than its budget.
    async fn invoke(&self, payload: &Value, budget: Duration) -> Value {
        let start = Instant::now();
        let answer = handler::handle(&self.app, &payload.to_string(), Deadline::after(budget)).await;
        assert!(start.elapsed() < budget, "{:?} of {budget:?}", start.elapsed());
        answer.unwrap_or_else(|error| json!({"results": [{"outcome": "error", "reason": error.to_string()}]}))
    }

    async fn deliver(&self, budget: Duration) -> Value {
        self.invoke(&json!({"type": "relay", "events": [self.dm]}), budget).await
    }

    async fn resume(&self, budget: Duration) -> Value {
        self.invoke(&json!({"type": "resume", "run": self.run}), budget).await
    }

    /// The same agent in another process.
    fn restart(&mut self) {
        let App { config, store, relays, llm, clock, queue, .. } = &self.app;
        let (store, relays, llm) = (Arc::clone(store), Arc::clone(relays), Arc::clone(llm));
        let mut app = App::with_ports(config.clone(), store, relays, llm, clock.clone());
        app.queue = queue.clone();
        self.app = app;
    }

    /// Invocations until the run is over, each in a process of its own; how many there were.
    async fn run_to_the_end(&mut self, budget: Duration) -> usize {
        let mut answer = self.deliver(budget).await;
        for invocations in 1..100 {
            match outcomes(&answer)[..] {
                ["replied"] => return invocations,
                ["suspended"] => {}
                _ => panic!("{answer}"),
            }
            self.restart();
            answer = self.resume(budget).await;
        }
        panic!("the run has no end");
    }

    async fn record(&self) -> RunRecord {
        record::find(&self.app, &self.run).await.unwrap().unwrap()
    }

    /// What the run has said, all parts in one.
    async fn said(&self) -> String {
        let earlier = record::earlier(&self.app, &self.run).await.unwrap();
        earlier.reply.into_iter().map(|part| part.text).collect()
    }

    /// The rows of the journal: how many there are, and their bytes.
    async fn journal(&self) -> (usize, usize) {
        let rows = self.store.list(&Range::whole(keys::run_partition(&self.run))).await.unwrap();
        let rows = rows.iter().filter(|row| keys::journal_place(&row.key).is_some());
        rows.fold((0, 0), |(count, bytes), row| (count + 1, bytes + row.value.len()))
    }
}

fn simulated<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_task_ten_times_longer_than_an_invocation_ends_over_several_with_each_answer_asked_for_once() {
    simulated(async {
        let budget = 300 * SECOND;
        let mut scene = Scene::new(60, 50 * SECOND);
        let start = Instant::now();
        let invocations = scene.run_to_the_end(budget).await;
        assert!(start.elapsed() >= 10 * budget, "{:?}", start.elapsed());
        assert_eq!((invocations, scene.said().await), (13, "all done".to_owned()));

        let record = scene.record().await;
        assert_eq!((record.status, record.attempt, record.continuations), (Status::Done, 1, 12));
        assert_eq!((record.turns, record.tool_calls.len()), (61, 60));
        // What is cut off at the end of an invocation is asked for again in the next one, and nothing else.
        let mut asked = scene.model.asked.lock().unwrap().clone();
        assert_eq!(asked.len(), 61 + 12);
        asked.dedup();
        assert_eq!(asked, (0..=60).collect::<Vec<_>>());
        let model_ms = record.steps_ms.iter().find(|(step, _)| step == "model").unwrap().1;
        assert!((61 * 50_000..61 * 50_000 + 13 * 50_000).contains(&model_ms), "{:?}", record.steps_ms);
        assert_eq!(record.steps_ms.iter().filter(|(step, _)| step == "claim").count(), 1);

        // Once for what the agent knows; the others are the tool's.
        assert_eq!(scene.relays.reads.load(Ordering::SeqCst), 1 + 60);

        // A delivery after the end changes nothing.
        let sent = scene.relays.sent.lock().unwrap().len();
        assert_eq!(outcomes(&scene.deliver(budget).await), ["replied"]);
        assert_eq!(scene.relays.sent.lock().unwrap().len(), sent);
    });
}

/// The journal of a run with so many tool turns: its rows, their bytes, and all that the agent wrote.
pub fn journal_of(turns: usize) -> (usize, usize, usize) {
    simulated(async {
        let mut scene = Scene::new(turns, 10 * SECOND);
        scene.run_to_the_end(300 * SECOND).await;
        let (rows, bytes) = scene.journal().await;
        (rows, bytes, scene.store.1.load(Ordering::SeqCst))
    })
}

#[test]
fn the_journal_grows_with_each_turn_by_the_same_and_holds_the_beginning_once() {
    let sizes = [10, 30, 50].map(|turns| {
        let (rows, bytes, written) = journal_of(turns);
        assert_eq!(rows, 1 + 2 * turns, "the beginning, and an answer and a result per turn");
        assert!(written < 40_000 + 2_000 * turns, "{written} bytes for {turns} turns");
        bytes
    });
    let (first, second) = (sizes[1] - sizes[0], sizes[2] - sizes[1]);
    // Numbers have one digit or two.
    assert!(first.abs_diff(second) <= 20, "{sizes:?}");
    assert!(first < 20 * 1_000, "{sizes:?}");
}

#[test]
fn after_the_last_continuation_the_sender_hears_that_it_takes_too_long() {
    simulated(async {
        let mut scene = Scene::new(60, 10 * SECOND);
        scene.app.config.max_continuations = 2;
        assert_eq!(scene.run_to_the_end(30 * SECOND).await, 3);
        insta::assert_snapshot!(scene.said().await, @"I could not answer this message: it takes longer than I may work on one message.");
        assert_eq!(
            scene.record().await.reason.as_deref(),
            Some("it takes longer than I may work on one message")
        );
    });
}

/// Each invocation is too short for one answer.
#[test]
fn a_model_that_never_ends_in_time_is_an_honest_word_after_three_attempts() {
    simulated(async {
        let scene = Scene::new(0, 40 * SECOND);
        for _ in 0..2 {
            let answer = scene.deliver(30 * SECOND).await;
            assert_eq!(answer["results"][0]["reason"], "the time for it was used up", "{answer}");
            sleep(120 * SECOND).await;
        }
        let answer = scene.deliver(30 * SECOND).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        insta::assert_snapshot!(scene.said().await, @"I could not answer this message: the time for it was used up.");
        assert_eq!(scene.record().await.attempt, 3);
    });
}

#[test]
fn with_a_queue_a_suspended_run_is_queued_at_once_and_without_one_the_next_tick_goes_on() {
    simulated(async {
        let mut scene = Scene::new(6, 10 * SECOND);
        let queue = Arc::new(MemoryQueue::default());
        assert_eq!(outcomes(&scene.deliver(30 * SECOND).await), ["suspended"]);
        let record = scene.record().await;
        assert_eq!(
            (record.lease_until_ms, record.not_before, record.attempt, record.continuations),
            (0, 0, 0, 1)
        );

        scene.app.queue = Some(queue.clone());
        assert_eq!(outcomes(&scene.resume(30 * SECOND).await), ["suspended"]);
        assert_eq!(queue.taken(), [(scene.run.clone(), Duration::ZERO)]);
        scene.app.queue = None;
        sleep(180 * SECOND).await;
        for outcome in ["suspended", "replied"] {
            let answer = scene.invoke(&json!({"type": "tick"}), 30 * SECOND).await;
            let results = answer["results"].as_array().unwrap();
            let of_run =
                results.iter().find(|result| result["run"] == scene.run.as_str()).expect("it is due");
            assert_eq!(of_run["outcome"], outcome, "{answer}");
        }
        assert_eq!(scene.said().await, "all done");
    });
}

/// A process that dies in the middle of a continuation costs an attempt; one that is suspended does not.
#[test]
fn a_worker_that_dies_uses_up_an_attempt_and_one_that_is_suspended_does_not() {
    simulated(async {
        let mut scene = Scene::new(6, 10 * SECOND);
        assert_eq!(outcomes(&scene.deliver(30 * SECOND).await), ["suspended"]);
        for attempt in 1..=2 {
            scene.restart();
            let died = tokio::time::timeout(15 * SECOND, scene.resume(30 * SECOND)).await;
            assert!(died.is_err(), "{died:?}");
            assert_eq!(scene.record().await.attempt, attempt);
            sleep(120 * SECOND).await;
        }
        let mut answer = scene.resume(30 * SECOND).await;
        while outcomes(&answer) == ["suspended"] {
            answer = scene.resume(30 * SECOND).await;
        }
        assert_eq!((outcomes(&answer), scene.said().await), (vec!["replied"], "all done".to_owned()));
        assert_eq!(scene.record().await.attempt, 3);
    });
}

#[test]
fn b049_whatever_takes_too_long_the_invocation_ends_in_its_time_and_the_run_with_a_word() {
    simulated(async {
        let limit = 30 * SECOND;
        // A model slower than the function: see above for its end.
        let scene = Scene::new(0, 40 * SECOND);
        assert_eq!(outcomes(&scene.deliver(limit).await), ["error"]);
        assert_eq!(scene.record().await.lease_until_ms, 0, "it is given back");

        // Relays that hang when they are to take the reply.
        let scene = Scene::new(0, SECOND);
        scene.relays.hangs.store(true, Ordering::SeqCst);
        assert_eq!(outcomes(&scene.deliver(limit).await), ["error"]);
        let saved = scene.record().await;
        assert_eq!((saved.status, saved.reply_ids.len()), (Status::Replying, 1));
        scene.relays.hangs.store(false, Ordering::SeqCst);
        sleep(120 * SECOND).await;
        assert_eq!(outcomes(&scene.deliver(limit).await), ["replied"]);
        assert_eq!(
            (scene.record().await.reply_ids, scene.model.asked.lock().unwrap().len()),
            (saved.reply_ids, 1)
        );

        // Sixteen turns of three seconds.
        let mut scene = Scene::new(15, 3 * SECOND);
        assert!((2..=4).contains(&scene.run_to_the_end(limit).await));
        assert_eq!(scene.said().await, "all done");
    });
}
