//! Ports that break: the real ones, with one call of theirs that ends the process or whose answer is lost.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::llm::{Llm, LlmError};
use didactyl::queue::{Queue, QueueError};
use didactyl::relay::listen::Ear;
use didactyl::relay::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target};
use didactyl::store::{Key, Range, Row, Store, StoreError, Write};
use nostr::prelude::Filter;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// On which side of a call it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The call never starts.
    Before,
    /// The call takes effect, and nobody hears of it.
    After,
}

/// What the caller sees of the break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing any more: the call never returns, and the test drops the caller.
    Crash,
    /// The store is unavailable. Calls of other ports do not count.
    Unavailable,
    /// Whichever port it is fails: the store and the model are unavailable, no relay can be reached.
    Failing,
    /// It takes long: until [`Fault::wake`].
    Pause,
}

/// One break: at the `at`-th call, counted from 1 over all ports of an [`App`].
#[derive(Debug)]
pub struct Fault {
    effect: Effect,
    side: Side,
    at: usize,
    calls: AtomicUsize,
    /// Whether what failed was a model.
    failed_model: AtomicBool,
    reached: Notify,
    woken: Notify,
}

impl Fault {
    pub fn crash(at: usize, side: Side) -> Arc<Self> {
        Self::new(Effect::Crash, at, side)
    }

    pub fn unavailable(at: usize, side: Side) -> Arc<Self> {
        Self::new(Effect::Unavailable, at, side)
    }

    pub fn failing(at: usize, side: Side) -> Arc<Self> {
        Self::new(Effect::Failing, at, side)
    }

    /// The process sleeps there.
    pub fn pause(at: usize, side: Side) -> Arc<Self> {
        Self::new(Effect::Pause, at, side)
    }

    /// Ends the sleep, also one that is still to come.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    fn new(effect: Effect, at: usize, side: Side) -> Arc<Self> {
        Arc::new(Self {
            effect,
            side,
            at,
            calls: AtomicUsize::new(0),
            failed_model: AtomicBool::new(false),
            reached: Notify::new(),
            woken: Notify::new(),
        })
    }

    /// Puts the fault in front of the app's ports.
    pub fn install(self: &Arc<Self>, app: &mut App) {
        app.store = Arc::new(Faulty { port: Arc::clone(&app.store), fault: Arc::clone(self) });
        app.relays = Arc::new(Faulty { port: Arc::clone(&app.relays), fault: Arc::clone(self) });
        app.llm = Arc::new(Faulty { port: Arc::clone(&app.llm), fault: Arc::clone(self) });
        if let Some(port) = app.queue.take() {
            app.queue = Some(Arc::new(Faulty { port, fault: Arc::clone(self) }));
        }
    }

    /// Returns at the moment of the crash.
    pub async fn crashed(&self) {
        self.reached.notified().await;
    }

    /// What `work` comes to, if the process does not die before.
    pub async fn until_crash<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.crashed() => None,
            done = work => Some(done),
        }
    }

    pub fn was_reached(&self) -> bool {
        self.calls() >= self.at
    }

    /// Whether it came so far and may have used up an attempt at a run: a model that fails does not.
    pub fn costs_an_attempt(&self) -> bool {
        self.was_reached() && !self.failed_model.load(Ordering::SeqCst)
    }

    /// The calls so far.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    fn is_now(&self) -> bool {
        self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.at
    }

    async fn crash_in<T>(&self, call: impl Future<Output = T>) -> T {
        if self.side == Side::After {
            call.await;
        }
        self.reached.notify_one();
        pending().await
    }

    async fn around<T>(&self, call: impl Future<Output = T>) -> T {
        match self.effect {
            Effect::Crash if self.is_now() => self.crash_in(call).await,
            Effect::Pause if self.is_now() => self.sleep_around(call).await,
            _ => call.await,
        }
    }

    async fn sleep_around<T>(&self, call: impl Future<Output = T>) -> T {
        match self.side {
            Side::Before => {
                self.woken.notified().await;
                call.await
            }
            Side::After => {
                let result = call.await;
                self.woken.notified().await;
                result
            }
        }
    }

    /// As [`Fault::around`]; where the port fails, its caller hears what `failure` says.
    async fn around_or<T>(&self, call: impl Future<Output = T>, failure: impl FnOnce() -> T) -> T {
        if self.effect != Effect::Failing {
            return self.around(call).await;
        }
        if !self.is_now() {
            return call.await;
        }
        if self.side == Side::After {
            drop(call.await);
        }
        failure()
    }

    async fn around_store<T>(
        &self,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match self.effect {
            _ if !self.is_now() => call.await,
            Effect::Crash => self.crash_in(call).await,
            Effect::Pause => self.sleep_around(call).await,
            Effect::Unavailable | Effect::Failing => {
                if self.side == Side::After {
                    let _ = call.await;
                }
                Err(StoreError::Unavailable("its answer was lost".to_owned()))
            }
        }
    }
}

fn unreachable() -> RelayError {
    RelayError::Connect("its answer was lost".to_owned())
}

fn unread(targets: &[Target]) -> Fetched {
    Fetched { events: Vec::new(), reports: targets.iter().map(|target| no_page(target).report).collect() }
}

fn no_page(target: &Target) -> Page {
    let report = FetchReport {
        url: target.url.clone(),
        outcome: Err(unreachable()),
        events: 0,
        skipped: 0,
        unread: 0,
        took: Duration::ZERO,
    };
    Page { events: Vec::new(), unopened: Vec::new(), report }
}

fn unsent(outgoing: &[Outgoing]) -> Vec<Vec<PublishReport>> {
    let report = |target: &Target| PublishReport {
        url: target.url.clone(),
        outcome: Err(unreachable()),
        took: Duration::ZERO,
    };
    outgoing.iter().map(|sent| sent.targets.iter().map(report).collect()).collect()
}

fn unavailable() -> LlmError {
    LlmError::Transient { reason: "its answer was lost".into(), retry_after: None }
}

struct Faulty<P: ?Sized> {
    port: Arc<P>,
    fault: Arc<Fault>,
}

#[async_trait]
impl Store for Faulty<dyn Store> {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.fault.around_store(self.port.read(keys)).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.fault.around_store(self.port.list(range)).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.fault.around_store(self.port.write(writes)).await
    }
}

#[async_trait]
impl Relays for Faulty<dyn Relays> {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched {
        self.fault.around_or(self.port.fetch(targets, filters, until), || unread(targets)).await
    }

    async fn page(&self, target: &Target, filters: &[Filter], until: Instant) -> Page {
        self.fault.around_or(self.port.page(target, filters, until), || no_page(target)).await
    }

    async fn subscribe(
        &self,
        target: &Target,
        filters: &[Filter],
        ear: &Ear,
        until: Instant,
    ) -> Result<(), RelayError> {
        self.fault.around_or(self.port.subscribe(target, filters, ear, until), || Err(unreachable())).await
    }

    async fn publish(&self, outgoing: &[Outgoing], until: Instant) -> Vec<Vec<PublishReport>> {
        self.fault.around_or(self.port.publish(outgoing, until), || unsent(outgoing)).await
    }

    async fn open(&self, targets: &[Target], until: Instant) {
        self.fault.around(self.port.open(targets, until)).await;
    }

    async fn close(&self) {
        self.fault.around(self.port.close()).await;
    }
}

#[async_trait]
impl Llm for Faulty<dyn Llm> {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let failure = || {
            self.fault.failed_model.store(true, Ordering::SeqCst);
            Err(unavailable())
        };
        self.fault.around_or(self.port.complete(request, until), failure).await
    }
}

#[async_trait]
impl Queue for Faulty<dyn Queue> {
    async fn enqueue(&self, run_id: &str, delay: Duration) -> Result<(), QueueError> {
        let failure = || Err(QueueError("its answer was lost".to_owned()));
        self.fault.around_or(self.port.enqueue(run_id, delay), failure).await
    }
}

/// What is done to a write.
#[derive(Debug)]
pub enum Verdict {
    Pass,
    /// It fails so, and takes no effect.
    Fail(StoreError),
    /// It never starts, and the process ends.
    DieBefore,
    /// It takes effect, and the process ends.
    DieAfter,
    /// It starts as soon as there is a permit.
    WaitFor(Arc<Semaphore>),
}

/// A judge of every write of an app, who may end its process.
pub struct Judge<F> {
    store: Arc<dyn Store>,
    judge: F,
    died: Arc<Notify>,
}

impl<F: Fn(&[Write]) -> Verdict + Send + Sync + 'static> Judge<F> {
    /// Puts the judge in front of the app's store. What is returned is told when the process ends.
    pub fn install(app: &mut App, judge: F) -> Arc<Notify> {
        let died = Arc::new(Notify::new());
        app.store = Arc::new(Self { store: Arc::clone(&app.store), judge, died: Arc::clone(&died) });
        died
    }
}

#[async_trait]
impl<F: Fn(&[Write]) -> Verdict + Send + Sync> Store for Judge<F> {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.store.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        match (self.judge)(writes) {
            Verdict::Pass => return self.store.write(writes).await,
            Verdict::Fail(error) => return Err(error),
            Verdict::DieBefore => {}
            Verdict::DieAfter => self.store.write(writes).await?,
            Verdict::WaitFor(open) => {
                open.acquire().await.unwrap().forget();
                return self.store.write(writes).await;
            }
        }
        self.died.notify_one();
        pending().await
    }
}

/// A queue that remembers what it took: runs, and how long each shall wait.
#[derive(Default)]
pub struct MemoryQueue(Mutex<Vec<(String, Duration)>>);

impl MemoryQueue {
    pub fn taken(&self) -> Vec<(String, Duration)> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn enqueue(&self, run_id: &str, delay: Duration) -> Result<(), QueueError> {
        self.0.lock().unwrap().push((run_id.to_owned(), delay));
        Ok(())
    }
}

/// A queue that takes nothing.
pub struct FullQueue;

#[async_trait]
impl Queue for FullQueue {
    async fn enqueue(&self, _: &str, _: Duration) -> Result<(), QueueError> {
        Err(QueueError("it is full".to_owned()))
    }
}
