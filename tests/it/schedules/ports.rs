//! The ports of a schedule's invocations: they do their work, and note what the promises are judged by.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest, FinishReason, Role, ToolCall};
use didactyl::clock::Clock;
use didactyl::llm::{Llm, LlmError};
use didactyl::queue::{Queue, QueueError};
use didactyl::store::{Change, Key, Range, Row, Store, StoreError, Write, keys};
use proptest::prelude::prop::sample::Index;
use serde_json::Value;
use tokio::time::Instant;

use crate::faults::Fault;

/// Answers a message in capitals; of some it first looks at a tool.
#[derive(Default)]
pub struct Echo {
    /// What it was asked, in order.
    pub asked: Mutex<Vec<String>>,
}

#[async_trait]
impl Llm for Echo {
    async fn complete(&self, request: &ChatRequest<'_>, _until: Instant) -> Result<ChatAnswer, LlmError> {
        let text = question(request);
        let has_looked = request.messages.last().is_some_and(|message| message.role == Role::Tool);
        let looks = text.ends_with('0') && !has_looked;
        let call = || ToolCall::new(String::new(), "agent_identity".to_owned(), "{}".to_owned());
        let content = if looks { String::new() } else { text.to_uppercase() };
        self.asked.lock().unwrap().push(text);
        Ok(ChatAnswer {
            content,
            tool_calls: if looks { vec![call()] } else { Vec::new() },
            finish_reason: if looks { FinishReason::ToolCalls } else { FinishReason::Stop },
            usage: None,
            model: request.model.to_owned(),
        })
    }
}

fn question(request: &ChatRequest<'_>) -> String {
    let last = request.messages.iter().rfind(|message| message.role == Role::User);
    last.map(|message| message.content.clone()).unwrap_or_default()
}

/// The version of the flags' row, where that says that the agent is stopped.
async fn stopped(store: &dyn Store) -> Option<u64> {
    let row = store.read(&[keys::flags()]).await.unwrap().remove(0)?;
    let flags: Value = serde_json::from_slice(&row.value).unwrap();
    (!flags["stopped_at"].is_null()).then_some(row.version)
}

/// What is noted of one invocation.
pub struct Invocation {
    fault: Arc<Fault>,
    /// The `/stop` that held when it began.
    born_stopped: Option<u64>,
    /// The partitions of the runs whose records it wrote.
    runs: Mutex<BTreeSet<String>>,
    /// Whether the clock was set forward meanwhile: others may have taken its runs.
    overslept: AtomicBool,
    /// What its model was asked under which `/stop`.
    while_stopped: Mutex<BTreeMap<(u64, String), usize>>,
    /// What it was asked and should not have been.
    wrongly: Mutex<Vec<String>>,
}

impl Invocation {
    /// Puts it in front of the app's ports, and the fault in front of it.
    pub async fn install(app: &mut App, fault: Arc<Fault>) -> Arc<Self> {
        let own = Arc::new(Self {
            fault,
            born_stopped: stopped(app.store.as_ref()).await,
            runs: Mutex::default(),
            overslept: AtomicBool::new(false),
            while_stopped: Mutex::default(),
            wrongly: Mutex::default(),
        });
        let (llm, store) = (Arc::clone(&app.llm), Arc::clone(&app.store));
        app.llm = Arc::new(Asking { llm, store: store.clone(), own: Arc::clone(&own) });
        app.store = Arc::new(Noting { store, own: Arc::clone(&own) });
        own.fault.install(app);
        own
    }

    pub fn oversleep(&self) {
        self.overslept.store(true, Ordering::SeqCst);
    }

    /// It ends; if it sleeps, it wakes.
    pub fn wake(&self) {
        self.fault.wake();
    }

    /// See [`Fault::until_crash`].
    pub async fn until_crash<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.fault.until_crash(work).await
    }

    /// What its model was asked though the agent was stopped: one that worked before that ends its present step, and no
    /// other asks a model.
    pub fn wrongly_asked(&self) -> Vec<String> {
        self.wrongly.lock().unwrap().clone()
    }

    /// Whether it may have used up an attempt at this run in vain.
    pub fn disturbed(&self, run: &str) -> bool {
        let is_disturbed = self.fault.costs_an_attempt() || self.overslept.load(Ordering::SeqCst);
        is_disturbed && self.runs.lock().unwrap().contains(&keys::run_partition(run))
    }
}

struct Asking {
    llm: Arc<dyn Llm>,
    store: Arc<dyn Store>,
    own: Arc<Invocation>,
}

#[async_trait]
impl Llm for Asking {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        if let Some(stop) = stopped(self.store.as_ref()).await {
            let (own, text) = (&self.own, question(request));
            let mut while_stopped = own.while_stopped.lock().unwrap();
            let times = while_stopped.entry((stop, text.clone())).or_default();
            *times += 1;
            if *times > 1 || own.born_stopped == Some(stop) {
                own.wrongly.lock().unwrap().push(text);
            }
        }
        self.llm.complete(request, until).await
    }
}

struct Noting {
    store: Arc<dyn Store>,
    own: Arc<Invocation>,
}

#[async_trait]
impl Store for Noting {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.store.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        let is_record = |write: &&Write| {
            matches!(write.change, Change::Put { .. }) && write.key.sort == keys::record("").sort
        };
        let mut runs: BTreeSet<String> =
            writes.iter().filter(is_record).map(|write| write.key.partition.clone()).collect();
        // Before it is done: who asks for it may be dead by then.
        runs.retain(|run| self.own.runs.lock().unwrap().insert(run.clone()));
        let result = self.store.write(writes).await;
        if result.is_err() {
            self.own.runs.lock().unwrap().retain(|run| !runs.contains(run));
        }
        result
    }
}

/// A queue in this process: it brings a run in its time or later, in any order.
pub struct Post {
    clock: Clock,
    /// The runs, each with when it may be brought, Unix milliseconds.
    letters: Mutex<Vec<(u64, String)>>,
}

impl Post {
    pub fn new(clock: Clock) -> Self {
        Self { clock, letters: Mutex::default() }
    }

    /// Takes one out that may be brought: this, or the first.
    pub fn take(&self, which: Option<Index>) -> Option<String> {
        let mut letters = self.letters.lock().unwrap();
        let now_ms = self.clock.now_ms();
        let ready: Vec<usize> = (0..letters.len()).filter(|n| letters[*n].0 <= now_ms).collect();
        let place = which.filter(|_| !ready.is_empty()).map(|which| *which.get(&ready));
        place.or(ready.first().copied()).map(|place| letters.remove(place).1)
    }

    /// It comes again.
    pub fn put_back(&self, run: String) {
        self.letters.lock().unwrap().push((self.clock.now_ms(), run));
    }
}

#[async_trait]
impl Queue for Post {
    async fn enqueue(&self, run_id: &str, delay: Duration) -> Result<(), QueueError> {
        let at_ms = self.clock.now_ms() + u64::try_from(delay.as_millis()).unwrap();
        self.letters.lock().unwrap().push((at_ms, run_id.to_owned()));
        Ok(())
    }
}
