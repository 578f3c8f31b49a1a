//! How often a message makes the agent wait: the table of docs/ARCHITECTURE.md, counted.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::llm::{Llm, LlmError};
use didactyl::relay::listen::Ear;
use didactyl::relay::{Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target};
use didactyl::store::{Key, Range, Row, Store, StoreError, Write};
use nostr::prelude::Filter;
use tokio::time::Instant;

use crate::agent::{TestAgent, deliver_to, echo, nip17, outcomes, secret};
use crate::ground::{On, on_each_store};

on_each_store! {
    a_warm_message_makes_five_waits_three_of_them_for_the_store,
    the_first_message_makes_three_waits_more_to_read_the_relays_to_note_that_and_to_look_whether_it_was_stopped,
}

/// What an app asked of its ports. Opening and closing connections does not count: nobody waits for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// One begins with a call while no other is under way.
    pub waits: usize,
    pub store_calls: usize,
    /// The same for calls of the store alone.
    pub store_rounds: usize,
    pub rows_read: usize,
    pub rows_written: usize,
    pub model_calls: usize,
    pub relay_reads: usize,
    pub publishes: usize,
    under_way: usize,
    store_calls_under_way: usize,
}

/// Counts the calls of an [`App`].
#[derive(Clone, Default)]
pub struct Counter(Arc<Mutex<Counts>>);

impl Counter {
    /// Puts itself in front of the app's ports.
    pub fn install(&self, app: &mut App) {
        app.store = Arc::new(Counted { port: Arc::clone(&app.store), counter: self.clone() });
        app.relays = Arc::new(Counted { port: Arc::clone(&app.relays), counter: self.clone() });
        app.llm = Arc::new(Counted { port: Arc::clone(&app.llm), counter: self.clone() });
    }

    /// The counts since it was last asked.
    pub fn take(&self) -> Counts {
        self.note(std::mem::take)
    }

    fn note<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap())
    }

    async fn around<T>(&self, of: fn(&mut Counts) -> &mut usize, call: impl Future<Output = T>) -> T {
        self.note(|counts| {
            *of(counts) += 1;
            counts.waits += usize::from(counts.under_way == 0);
            counts.under_way += 1;
        });
        let result = call.await;
        self.note(|counts| counts.under_way -= 1);
        result
    }

    async fn around_store<T>(&self, call: impl Future<Output = T>) -> T {
        self.note(|counts| {
            counts.store_rounds += usize::from(counts.store_calls_under_way == 0);
            counts.store_calls_under_way += 1;
        });
        let result = self.around(|counts| &mut counts.store_calls, call).await;
        self.note(|counts| counts.store_calls_under_way -= 1);
        result
    }
}

struct Counted<P: ?Sized> {
    port: Arc<P>,
    counter: Counter,
}

#[async_trait]
impl Store for Counted<dyn Store> {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        let rows = self.counter.around_store(self.port.read(keys)).await?;
        self.counter.note(|counts| counts.rows_read += rows.iter().flatten().count());
        Ok(rows)
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        let rows = self.counter.around_store(self.port.list(range)).await?;
        self.counter.note(|counts| counts.rows_read += rows.len());
        Ok(rows)
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.counter.note(|counts| counts.rows_written += writes.len());
        self.counter.around_store(self.port.write(writes)).await
    }
}

#[async_trait]
impl Relays for Counted<dyn Relays> {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], until: Instant) -> Fetched {
        self.counter.around(|counts| &mut counts.relay_reads, self.port.fetch(targets, filters, until)).await
    }

    async fn page(&self, target: &Target, filters: &[Filter], until: Instant) -> Page {
        self.counter.around(|counts| &mut counts.relay_reads, self.port.page(target, filters, until)).await
    }

    async fn subscribe(
        &self,
        target: &Target,
        filters: &[Filter],
        ear: &Ear,
        until: Instant,
    ) -> Result<(), RelayError> {
        self.port.subscribe(target, filters, ear, until).await
    }

    async fn publish(&self, outgoing: &[Outgoing], until: Instant) -> Vec<Vec<PublishReport>> {
        self.counter.around(|counts| &mut counts.publishes, self.port.publish(outgoing, until)).await
    }

    async fn open(&self, targets: &[Target], until: Instant) {
        self.port.open(targets, until).await;
    }

    async fn close(&self) {
        self.port.close().await;
    }
}

#[async_trait]
impl Llm for Counted<dyn Llm> {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        self.counter.around(|counts| &mut counts.model_calls, self.port.complete(request, until)).await
    }
}

/// The rows of the agent's state: its events, its admin's, and the mark that says when they were read.
pub const STATE_ROWS: usize = 8 + 3 + 1;

/// What a message makes of calls, in a process that has just begun.
async fn counts_of(agent: &TestAgent, text: &str) -> Counts {
    let counter = Counter::default();
    let mut app = agent.another();
    counter.install(&mut app);
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), text)]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    counter.take()
}

async fn a_warm_message_makes_five_waits_three_of_them_for_the_store(on: On) {
    let agent = TestAgent::over(on, echo).await;
    counts_of(&agent, "first").await;
    let counts = counts_of(&agent, "second").await;
    let expected = Counts {
        // The rows of the table.
        waits: 5,
        // Claim and three reads; the reply; the record.
        store_calls: 4 + 1 + 1,
        store_rounds: 3,
        // Record, due row, floor, trigger, row among all runs, question; record, floor, reply, answer; record, due row.
        rows_written: 6 + 4 + 2,
        model_calls: 1,
        relay_reads: 0,
        publishes: 1,
        under_way: 0,
        store_calls_under_way: 0,
        // The reads may or may not see the claim beside them.
        rows_read: counts.rows_read,
    };
    assert_eq!(counts, expected);
}

async fn the_first_message_makes_three_waits_more_to_read_the_relays_to_note_that_and_to_look_whether_it_was_stopped(
    on: On,
) {
    let agent = TestAgent::over(on, echo).await;
    let counts = counts_of(&agent, "first").await;
    // What the relays told: the state, and a mark that the conversation was asked for.
    let learned = STATE_ROWS + 1;
    let expected = Counts {
        // What was learned is kept while the model is asked, which takes longer elsewhere: row by row, then the marks.
        waits: 8,
        // Claim and three reads; the flags; what was learned, row by row; the reply; the record.
        store_calls: 4 + 1 + learned + 1 + 1,
        store_rounds: 6,
        rows_written: 6 + learned + 4 + 2,
        model_calls: 1,
        relay_reads: 1,
        publishes: 1,
        under_way: 0,
        store_calls_under_way: 0,
        rows_read: counts.rows_read,
    };
    assert_eq!(counts, expected);
}
