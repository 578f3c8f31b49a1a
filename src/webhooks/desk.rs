//! Where an authentic request becomes a stored run: once, however often and however many at a time it comes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::signature::{Claim, Delivery};
use crate::app::App;
use crate::clock::Deadline;
use crate::counter::{Counter, HOUR_SECS, HOURS_PER_DAY};
use crate::error::Error;
use crate::handler;
use crate::outcome::Worked;
use crate::queue::QUEUE_GRACE;
use crate::record::{self, FORMAT, due_after, read_clear, run_id, to_json};
use crate::store::{Expect, Write, keys, write_or_leave};
use crate::trigger::Trigger;
use crate::trigger::webhook::Webhook;

/// How often it is tried where others store requests to the same webhook at the same time.
const ROUNDS: usize = 32;

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is a run of its own now.
    New(Box<Trigger>),
    /// It came before; the id of its run.
    Known(String),
    /// Its webhook has had as many as it may; how long that holds.
    TooMany(Duration),
}

/// The row of a [`Claim`].
#[derive(Serialize, Deserialize)]
struct ClaimRow {
    format: u32,
    run: String,
}

/// Stores a request, with what it claims and the counter of its webhook, in one write. It is due at once, or where the queue
/// does not bring it soon.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable, [`Error::Permanent`] where the request cannot be stored.
pub(crate) async fn take(app: &App, webhook: Webhook, delivery: &Delivery) -> Result<Taken, Error> {
    let (now, slug) = (app.clock.now(), webhook.slug.clone());
    let hour = now.as_secs() / HOUR_SECS;
    let day = hour / HOURS_PER_DAY;
    let trigger = Trigger::webhook(webhook, &delivery.id, app.admin(), now);
    let run = run_id(&trigger.id);
    let counter_key = keys::webhook_counter(day, &slug);
    let claim = delivery.claim.as_ref().map(|claim| (keys::webhook_claim(&slug, &claim.mark), claim));
    let mut wanted = vec![keys::record(&run), counter_key.clone()];
    wanted.extend(claim.iter().map(|(key, _)| key.clone()));
    let grace = if app.working_queue().is_some() { QUEUE_GRACE } else { Duration::ZERO };
    let stored = record::store_writes(app, &trigger, due_after(app, grace))?;
    for _ in 0..ROUNDS {
        let mut rows = app.store.read(&wanted).await?.into_iter();
        if rows.next().flatten().is_some() {
            return Ok(Taken::Known(run));
        }
        let mut counter = Counter::read(rows.next().flatten())?;
        if let Some(claimed) = rows.next().flatten() {
            return Ok(Taken::Known(read_clear::<ClaimRow>(&claimed)?.run));
        }
        if let Some(wait) = too_many(app, &counter, now.as_secs()) {
            return Ok(Taken::TooMany(wait));
        }
        counter.add(hour);
        let mut writes = stored.clone();
        writes.push(counter.write(counter_key.clone(), day)?);
        if let Some((key, Claim { lasts, .. })) = &claim {
            let row = to_json(&ClaimRow { format: FORMAT, run: run.clone() })?;
            writes.push(Write::put(key.clone(), Expect::Absent, row, Some((now + *lasts).as_secs())));
        }
        if write_or_leave(app.store.as_ref(), &writes).await? {
            return Ok(Taken::New(Box::new(trigger)));
        }
    }
    Err(Error::Transient("too many requests to this webhook come at the same time".to_owned()))
}

/// Until when nothing more is taken, where that is so.
fn too_many(app: &App, counter: &Counter, now_secs: u64) -> Option<Duration> {
    let limits = app.config.webhook_limits;
    let until_next = |period: u64| Duration::from_secs(period - now_secs % period);
    if counter.of_day() >= limits.per_day {
        return Some(until_next(HOURS_PER_DAY * HOUR_SECS));
    }
    (counter.of_hour(now_secs / HOUR_SECS) >= limits.per_hour).then(|| until_next(HOUR_SECS))
}

/// A request that somebody handed over by direct invocation, which authenticates it. `id` tells it from others.
pub(crate) async fn work(app: &App, webhook: Webhook, id: String, deadline: Deadline) -> Worked {
    match take(app, webhook, &Delivery { id, claim: None }).await? {
        Taken::New(trigger) => handler::begin(app, *trigger, deadline).await,
        Taken::Known(run) => {
            let trigger = record::stored_trigger(app, &run).await?;
            handler::begin(app, trigger, deadline).await
        }
        // Nothing is stored: whoever hands it over again may be taken later.
        Taken::TooMany(_) => {
            Err(Error::Transient("this webhook has had as many requests as it may".to_owned()))
        }
    }
}
