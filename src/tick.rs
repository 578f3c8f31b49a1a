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
use crate::cron;
use crate::error::Error;
use crate::handler;
use crate::load::Stored;
use crate::notices::Board;
use crate::outbox;
use crate::outcome::{Worked, told};
use crate::queue::{LONGEST_DELAY, Queue, enqueue_run};
use crate::record::{self, Due, Status, due_after, due_if_not_begun};
use crate::standby;
use crate::state::AgentState;
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
    /// See [`sweep::Found::wakes`].
    wakes: bool,
    failure: Option<Error>,
}

impl Swept {
    /// No sweep.
    fn not(told: Value) -> Self {
        Self { told, triggers: Vec::new(), ears: None, start_at: None, wakes: false, failure: None }
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
    let Begun { mut swept, cron, due: due_rows, board, flags, state } =
        Box::pin(begin(app, is_late, deadline)).await?;
    // Who does not sweep leaves the relays alone. Boxed, as is the sweep: what happens side by side is one future, which a
    // thread's stack must hold.
    let send = Box::pin(async {
        match &state {
            Some(state) => outbox::run(app, &due_rows, state, deadline).await,
            None => Ok(None),
        }
    });
    let due = Box::pin(due_runs(app, &due_rows, &swept, &flags)).await;
    let notice = board.tell(app, due_if_not_begun(app, deadline)).await;
    let ears = swept.ears.take();
    let listen = async {
        match (ears, listen_until.and_then(|until| listen::until(until, deadline))) {
            (Some(ears), Some(until)) => Some(Box::pin(listen::run(app, ears, deadline, until, stop)).await),
            _ => None,
        }
    };
    let (mut answer, heard, sent) =
        tokio::join!(Box::pin(take_up(app, swept, cron, due, notice, deadline)), listen, send);
    if let Some(answer) = answer.as_object_mut() {
        let heard = heard.map(|(report, results)| json!({"heard": report, "results": told(results)}));
        answer.extend(heard.map(|heard| ("listen".to_owned(), heard)));
        if let Err(error) = &sent {
            tracing::warn!(%error, "a part of the tick failed: what is sent again");
            answer.insert("success".to_owned(), json!(false));
        }
        let sent = sent.map(|report| report.map(|report| json!(report)));
        let sent = sent.unwrap_or_else(|error| Some(json!({"error": error.to_string()})));
        answer.extend(sent.map(|sent| ("outbox".to_owned(), sent)));
    }
    tracing::info!(%answer, "the tick is over");
    Ok(answer)
}

/// What a tick begins with.
struct Begun {
    swept: Swept,
    /// What cron stored.
    cron: Result<Vec<Trigger>, Error>,
    /// The first due rows.
    due: Vec<Row>,
    board: Board,
    /// What an admin ordered.
    flags: Flags,
    /// The rows of the state, where it sweeps.
    state: Option<Vec<Row>>,
}

/// Reads the store, stores what cron has, and sweeps the relays if it is time and nobody else does.
async fn begin(app: &App, is_late: bool, deadline: Deadline) -> Result<Begun, Error> {
    let (due, notices) = (record::first_due(), Board::range());
    let (sweep, state) = (Range::whole(keys::SWEEP_PARTITION), Range::whole(keys::STATE_PARTITION));
    let cron_due_at = due_if_not_begun(app, deadline);
    if is_late {
        let book = [keys::cron()];
        let (due, notices, state, book) = tokio::try_join!(
            app.store.list(&due),
            app.store.list(&notices),
            app.store.list(&state),
            app.store.read(&book)
        )?;
        let (board, stored) = (Board::read(app, notices), Stored::of_state(&state));
        let (known, flags) = (stored.state(app), stored.flags);
        let book = book.first().and_then(Option::as_ref);
        let cron = cron::begin(app, book, (&known, &flags), cron_due_at).await;
        return Ok(Begun { swept: Swept::not(json!("late")), cron, due, board, flags, state: None });
    }
    let (held, sweep, state, due, notices) = tokio::join!(
        ledger::take_lease(app),
        app.store.list(&sweep),
        app.store.list(&state),
        app.store.list(&due),
        app.store.list(&notices)
    );
    let (mut board, sweep, state) = (Board::read(app, notices?), sweep?, state?);
    let stored = Stored::of_state(&state);
    let (known, flags) = (stored.state(app), stored.flags.clone());
    let book = sweep.iter().find(|row| row.key == keys::cron());
    // Both boxed: see `run_and_listen`.
    let cron = Box::pin(cron::begin(app, book, (&known, &flags), cron_due_at));
    let (swept, cron, state) = match held? {
        None => (Swept::not(json!("held")), cron.await, None),
        Some(held) => {
            let swept = Box::pin(sweep_all(app, held, &sweep, (stored, &known), &mut board, deadline));
            let (swept, cron) = tokio::join!(swept, cron);
            (swept, cron, Some(state))
        }
    };
    Ok(Begun { swept, cron, due: due?, board, flags, state })
}

async fn sweep_all(
    app: &App,
    held: ledger::Held,
    sweep: &[Row],
    state: (Stored, &AgentState),
    board: &mut Board,
    deadline: Deadline,
) -> Swept {
    match sweep::run(app, held, sweep, state, board, deadline).await {
        Ok(found) => Swept {
            told: json!(found.report),
            triggers: found.triggers,
            ears: found.ears,
            start_at: found.settled_start,
            wakes: found.wakes,
            failure: found.failure,
        },
        Err(error) => Swept { failure: Some(error), ..Swept::not(json!({})) },
    }
}

/// The runs that are to be taken up. In standby there are none, and those that there would be are held; so are those that a
/// process from before it gave back since, when it ends. While the agent is stopped they stay where they are, but for those
/// that ask no model: commands, notices, replies that are signed.
async fn due_runs(app: &App, rows: &[Row], swept: &Swept, flags: &Flags) -> Result<Vec<Due>, Error> {
    let is_stopped = flags.stopped_at().is_some();
    let passes = |due: &Due| {
        !is_stopped || due.record.status == Status::Replying || commands::passes_a_stop(app, &due.trigger)
    };
    let mut due = Vec::new();
    if app.config.standby || swept.wakes {
        standby::hold_due(app, record::due(app, rows, u64::MAX, |_| true).await?).await;
    } else {
        due = record::due(app, rows, app.clock.now().as_secs(), passes).await?;
    }
    if let Some(start_at) = swept.start_at {
        standby::release(app, rows, start_at, &mut due).await?;
    }
    Ok(due)
}

/// Queues what was found, what is due and what the admin is told, or works it here.
async fn take_up(
    app: &App,
    swept: Swept,
    cron: Result<Vec<Trigger>, Error>,
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
    let cron_told = match cron {
        Ok(cron) => {
            let count = json!(cron.len());
            triggers.extend(cron);
            count
        }
        Err(error) => json!({"error": failed(error, "cron")}),
    };
    match notice {
        Ok(notice) => triggers.extend(notice),
        Err(error) => drop(failed(error, "what the admin is to be told")),
    }
    // The admins' first: guests wait.
    triggers.sort_by_key(|trigger| Reverse(trigger.tier));
    due.sort_by_key(|due| Reverse(due.trigger.tier));
    let results = match app.working_queue() {
        Some(queue) => queue_all(app, queue, triggers, due).await,
        None => work_all(app, triggers, due, deadline).await,
    };
    json!({"success": success, "sweep": swept, "cron": cron_told, "due": due_told, "results": told(results)})
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
