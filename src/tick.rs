//! The schedule's tick: the relays are swept, and what is due is taken up. One bounded invocation; whatever does not fit
//! waits for the next one. Ticks that overlap, come twice or come late are harmless.
//!
//! Where `DIDACTYL_LISTEN_SECONDS` says so, it then listens for what comes while it works.
//!
//! With a queue a tick only stores and queues; without one it also works what it found, in the time that is left.

use std::future::pending;
use std::time::Duration;

use nostr::prelude::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::app::App;
use crate::clock::Deadline;
use crate::error::Error;
use crate::handler::{self, LONGEST_DELAY, due_after, enqueue_run};
use crate::outcome::{Worked, told};
use crate::queue::Queue;
use crate::record::{self, Due};
use crate::store::{Range, Row, keys};
use crate::sweep::listen::{self, Ears};
use crate::sweep::{self, ledger};
use crate::trigger::Trigger;

/// A tick that comes later than this leaves the relays to the ones behind it.
const LATE: Duration = Duration::from_secs(2 * 60);

/// The most due runs that one tick takes up.
const MAX_DUE: usize = 50;

/// What a sweep came to, as the tick's answer tells it; with its ears, where there was one.
type Swept = Result<(Vec<Trigger>, Value, Option<Ears>), Error>;

/// One tick, which listens as long as the configuration says. The answer tells what each part of it came to.
///
/// # Errors
/// [`Error::Transient`] where the store cannot be read at all.
pub async fn run(app: &App, scheduled_at: Option<Timestamp>, deadline: Deadline) -> Result<Value, Error> {
    let listen_until = app.config.listen.map(|time| Instant::now() + time);
    run_and_listen(app, scheduled_at, deadline, listen_until, pending()).await
}

/// One tick, which listens until `listen_until`, if that is given, or until `stop` is over.
///
/// # Errors
/// [`Error::Transient`] where the store cannot be read at all.
pub async fn run_and_listen(
    app: &App,
    scheduled_at: Option<Timestamp>,
    deadline: Deadline,
    listen_until: Option<Instant>,
    stop: impl Future<Output = ()>,
) -> Result<Value, Error> {
    let is_late = scheduled_at.is_some_and(|at| at + LATE < app.clock.now());
    let due = Range { limit: Some(MAX_DUE), ..Range::whole(keys::DUE_PARTITION) };
    let (swept, due) = if is_late {
        (Ok((Vec::new(), json!("late"), None)), app.store.list(&due).await?)
    } else {
        let (sweep, state) = (Range::whole(keys::SWEEP_PARTITION), Range::whole(keys::STATE_PARTITION));
        let (held, sweep, state, due) = tokio::join!(
            ledger::take_lease(app),
            app.store.list(&sweep),
            app.store.list(&state),
            app.store.list(&due)
        );
        let swept = match held? {
            None => Ok((Vec::new(), json!("held"), None)),
            Some(held) => sweep_all(app, held, &sweep?, &state?, deadline).await,
        };
        (swept, due?)
    };
    let due = record::due(app, &due).await;
    let (triggers, swept, ears) = match swept {
        Ok((triggers, swept, ears)) => (triggers, Ok(swept), ears),
        Err(error) => (Vec::new(), Err(error), None),
    };
    let listen = async {
        match (ears, listen_until.and_then(|until| listen::until(until, deadline))) {
            (Some(ears), Some(until)) => Some(listen::run(app, ears, deadline, until, stop).await),
            _ => None,
        }
    };
    let (mut answer, heard) = tokio::join!(take_up(app, triggers, swept, due, deadline), listen);
    if let Some((report, results)) = heard {
        if let Some(answer) = answer.as_object_mut() {
            answer.insert("listen".to_owned(), json!({"heard": report, "results": told(results)}));
        }
    }
    tracing::info!(%answer, "the tick is over");
    Ok(answer)
}

async fn sweep_all(app: &App, held: ledger::Held, sweep: &[Row], state: &[Row], deadline: Deadline) -> Swept {
    let found = sweep::run(app, held, sweep, state, deadline).await?;
    Ok((found.triggers, json!(found.report), Some(found.ears)))
}

/// Queues what was found and what is due, or works it here.
async fn take_up(
    app: &App,
    triggers: Vec<Trigger>,
    swept: Result<Value, Error>,
    due: Result<Vec<Due>, Error>,
    deadline: Deadline,
) -> Value {
    let mut success = true;
    let mut failed = |error: Error, what: &str| {
        tracing::warn!(%error, "a part of the tick failed: {what}");
        success = false;
        json!({"error": error.to_string()})
    };
    let swept = swept.unwrap_or_else(|error| failed(error, "the sweep"));
    let (due, due_told) = match due {
        Ok(due) => {
            let count = json!(due.len());
            (due, count)
        }
        Err(error) => (Vec::new(), failed(error, "what is due")),
    };
    let results = match &app.queue {
        Some(queue) => queue_all(app, queue.as_ref(), triggers, due).await,
        None => work_all(app, triggers, due, deadline).await,
    };
    json!({"success": success, "sweep": swept, "due": due_told, "results": told(results)})
}

async fn queue_all(app: &App, queue: &dyn Queue, triggers: Vec<Trigger>, due: Vec<Due>) -> Vec<Worked> {
    let mut results = Vec::new();
    for trigger in triggers {
        results.push(enqueue_run(queue, record::run_id(&trigger.id)).await);
    }
    for due in due {
        let queued = enqueue_run(queue, due.record.run_id.clone()).await;
        // Else each tick would queue it again until a worker comes to it.
        if queued.is_ok()
            && let Err(error) = due.postpone(app, due_after(app, LONGEST_DELAY)).await
        {
            tracing::info!(run.id = %due.record.run_id, %error, "a queued run is due again at once");
        }
        results.push(queued);
    }
    results
}

async fn work_all(app: &App, triggers: Vec<Trigger>, due: Vec<Due>, deadline: Deadline) -> Vec<Worked> {
    let mut all: Vec<Trigger> = triggers;
    for due in due {
        if !all.iter().any(|trigger| trigger.id == due.trigger.id) {
            all.push(due.trigger);
        }
    }
    let placed = all.into_iter().enumerate().collect();
    handler::work_all(app, placed, deadline).await.into_iter().map(|(_, worked)| worked).collect()
}
