//! The schedule's tick: the relays are swept, and what is due is taken up. One bounded invocation; whatever does not fit
//! waits for the next one. Ticks that overlap, come twice or come late are harmless.
//!
//! Where `DIDACTYL_LISTEN_SECONDS` says so, it then listens for what comes while it works.
//!
//! With a queue a tick only stores and queues; without one it also works what it found, in the time that is left.

use std::cmp::Reverse;
use std::future::pending;
use std::time::Duration;

use nostr::prelude::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::app::App;
use crate::clock::Deadline;
use crate::commands::{self, Flags};
use crate::error::Error;
use crate::handler;
use crate::notices::Board;
use crate::outcome::{Worked, told};
use crate::queue::{LONGEST_DELAY, Queue, enqueue_run};
use crate::record::{self, Due, Status, due_after, due_if_not_begun};
use crate::standby;
use crate::store::{Range, Row, keys};
use crate::sweep::listen::{self, Ears};
use crate::sweep::{self, ledger};
use crate::trigger::Trigger;

/// A tick that comes later than this leaves the relays to the ones behind it.
const LATE: Duration = Duration::from_secs(2 * 60);

/// What a sweep came to, as the tick's answer tells it, and what comes of it.
struct Swept {
    told: Value,
    triggers: Vec<Trigger>,
    ears: Option<Ears>,
    /// See [`sweep::Found::settled_start`].
    start_at: Option<Timestamp>,
    failure: Option<Error>,
}

impl Swept {
    /// No sweep.
    fn not(told: Value) -> Self {
        Self { told, triggers: Vec::new(), ears: None, start_at: None, failure: None }
    }
}

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
    let (due, notices) = (record::first_due(), Board::range());
    let (mut swept, due, board, flags) = if is_late {
        let flags = [keys::flags()];
        let (due, notices, flags) =
            tokio::join!(app.store.list(&due), app.store.list(&notices), app.store.read(&flags));
        let flags = Flags::of(flags?.first().and_then(Option::as_ref));
        (Swept::not(json!("late")), due?, Board::read(app, notices?), flags)
    } else {
        let (sweep, state) = (Range::whole(keys::SWEEP_PARTITION), Range::whole(keys::STATE_PARTITION));
        let (held, sweep, state, due, notices) = tokio::join!(
            ledger::take_lease(app),
            app.store.list(&sweep),
            app.store.list(&state),
            app.store.list(&due),
            app.store.list(&notices)
        );
        let mut board = Board::read(app, notices?);
        let state = state?;
        let flags = Flags::of(state.iter().find(|row| row.key == keys::flags()));
        let swept = match held? {
            None => Swept::not(json!("held")),
            Some(held) => sweep_all(app, held, &sweep?, &state, &mut board, deadline).await,
        };
        (swept, due?, board, flags)
    };
    let due = due_runs(app, &due, swept.start_at, &flags).await;
    let notice = board.tell(app, due_if_not_begun(app, deadline)).await;
    let ears = swept.ears.take();
    let listen = async {
        match (ears, listen_until.and_then(|until| listen::until(until, deadline))) {
            (Some(ears), Some(until)) => Some(listen::run(app, ears, deadline, until, stop).await),
            _ => None,
        }
    };
    let (mut answer, heard) = tokio::join!(take_up(app, swept, due, notice, deadline), listen);
    if let Some((report, results)) = heard
        && let Some(answer) = answer.as_object_mut()
    {
        answer.insert("listen".to_owned(), json!({"heard": report, "results": told(results)}));
    }
    tracing::info!(%answer, "the tick is over");
    Ok(answer)
}

async fn sweep_all(
    app: &App,
    held: ledger::Held,
    sweep: &[Row],
    state: &[Row],
    board: &mut Board,
    deadline: Deadline,
) -> Swept {
    match sweep::run(app, held, sweep, state, board, deadline).await {
        Ok(found) => Swept {
            told: json!(found.report),
            triggers: found.triggers,
            ears: found.ears,
            start_at: found.settled_start,
            failure: found.failure,
        },
        Err(error) => Swept { failure: Some(error), ..Swept::not(json!({})) },
    }
}

/// The runs that are to be taken up. In standby there are none, and those that there would be are held. While the agent is
/// stopped they stay where they are, but for those that ask no model: commands, notices, replies that are signed.
async fn due_runs(
    app: &App,
    rows: &[Row],
    start_at: Option<Timestamp>,
    flags: &Flags,
) -> Result<Vec<Due>, Error> {
    if app.config.standby {
        standby::hold_due(app, record::due(app, rows, u64::MAX, |_| true).await?).await;
        return Ok(Vec::new());
    }
    let is_stopped = flags.stopped_at().is_some();
    let passes = |due: &Due| {
        !is_stopped || due.record.status == Status::Replying || commands::passes_a_stop(app, &due.trigger)
    };
    let mut due = record::due(app, rows, app.clock.now().as_secs(), passes).await?;
    if let Some(start_at) = start_at {
        standby::release(app, rows, start_at, &mut due).await?;
    }
    Ok(due)
}

/// Queues what was found, what is due and what the admin is told, or works it here.
async fn take_up(
    app: &App,
    swept: Swept,
    due: Result<Vec<Due>, Error>,
    notice: Result<Option<Trigger>, Error>,
    deadline: Deadline,
) -> Value {
    let mut success = true;
    let mut failed = |error: Error, what: &str| {
        tracing::warn!(%error, "a part of the tick failed: {what}");
        success = false;
        json!(error.to_string())
    };
    let Swept { told: mut swept, mut triggers, failure, .. } = swept;
    if let Some(error) = failure {
        let error = failed(error, "the sweep");
        swept.as_object_mut().map(|told| told.insert("error".to_owned(), error));
    }
    let (mut due, due_told) = match due {
        Ok(due) => {
            let count = json!(due.len());
            (due, count)
        }
        Err(error) => (Vec::new(), json!({"error": failed(error, "what is due")})),
    };
    match notice {
        Ok(notice) => triggers.extend(notice),
        Err(error) => drop(failed(error, "what the admin is to be told")),
    }
    // The admins' first: guests wait.
    triggers.sort_by_key(|trigger| Reverse(trigger.tier));
    due.sort_by_key(|due| Reverse(due.trigger.tier));
    let results = match &app.queue {
        Some(queue) if !app.config.standby => queue_all(app, queue.as_ref(), triggers, due).await,
        _ => work_all(app, triggers, due, deadline).await,
    };
    json!({"success": success, "sweep": swept, "due": due_told, "results": told(results)})
}

async fn queue_all(app: &App, queue: &dyn Queue, triggers: Vec<Trigger>, due: Vec<Due>) -> Vec<Worked> {
    let mut results = Vec::new();
    for trigger in triggers {
        results.push(enqueue_run(queue, record::run_id(&trigger.id)).await);
    }
    for mut due in due {
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
