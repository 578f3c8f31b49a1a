//! One run, from the claim to the record: the same path for every door.
//!
//! ```text
//! trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! What comes before is in [`crate::handler`].

mod handover;

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use nostr::prelude::{PublicKey, ToBech32};
use tokio::time::{Instant, timeout_at};

use self::handover::{give_back, leave, suspend, taken_over};
use crate::app::App;
use crate::assemble::assemble;
use crate::chain::{self, Followers};
use crate::clock::{Deadline, Stopwatch};
use crate::commands::{self, Command};
use crate::context;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::guests;
use crate::letter::Letter;
use crate::load::{self, Loaded, Stored};
use crate::notices::{self, Fact};
use crate::outage;
use crate::outcome::{Outcome, Worked};
use crate::publish::{self, Route};
use crate::queue::enqueue_run;
use crate::record::{
    self, Claim, Claimed, Earlier, MAX_ATTEMPTS, RunRecord, Status, delivery, due_if_not_begun, line,
};
use crate::run::beginning::Beginning;
use crate::run::driver;
use crate::run::journal::Journal;
use crate::standby;
use crate::trigger::{Dm, Source, Tier, Trigger};

/// With less time left, or with none for a step, nothing is claimed: it would only be taken from whoever has time.
const MIN_TIME: Duration = Duration::from_secs(5);

/// So much of a sender's npub tells log lines apart.
const NPUB_SHOWN: usize = 12;

/// A run of an earlier invocation goes on, from what the store has of it.
pub(crate) async fn resume(app: &App, run_id: &str, deadline: Deadline) -> Worked {
    match record::stored_trigger(app, run_id).await {
        Ok(trigger) => work(app, trigger, deadline).await,
        Err(Error::Permanent(reason)) => Ok(Outcome::Rejected { reason }),
        Err(error) => Err(error),
    }
}

/// One trigger, what stands before and behind it in the line of its conversation, and what follows these: the same for
/// every door. Tells what became of this one.
pub async fn work(app: &App, trigger: Trigger, deadline: Deadline) -> Worked {
    if !has_time(deadline) {
        return Err(Error::Transient("the invocation's time is used up".to_owned()));
    }
    let mut followers = Vec::new();
    let outcome = work_in_order(app, trigger, deadline, &mut followers).await;
    follow(app, followers, deadline).await;
    outcome
}

/// Whether there is time to claim a run.
fn has_time(deadline: Deadline) -> bool {
    deadline.left() >= MIN_TIME && deadline.has_time_for_a_step()
}

async fn work_in_order(
    app: &App,
    trigger: Trigger,
    deadline: Deadline,
    followers: &mut Vec<Trigger>,
) -> Worked {
    let (mine, conversation) = (trigger.id.clone(), trigger.conversation());
    // Boxed: two of it in one future would be too large for a thread's stack.
    let (mut outcome, mut next) = Box::pin(work_one(app, trigger, deadline, false, followers)).await;
    let Some(peer) = conversation else { return outcome };
    while let Some(first) = next_in_line(app, &peer, &next, deadline).await {
        let is_mine = first.id == mine;
        let is_its_turn = next == Next::Line;
        let (worked, then) = Box::pin(work_one(app, first, deadline, is_its_turn, followers)).await;
        // Whatever became of it, others may wait behind it whom its end does not know of.
        next = if then == Next::Nobody { Next::Line } else { then };
        if is_mine {
            outcome = worked;
        }
    }
    outcome
}

/// The runs that follow: in the queue where there is one, else here while there is time. The rest is due when this
/// invocation is over.
async fn follow(app: &App, followers: Vec<Trigger>, deadline: Deadline) {
    let mut followers = VecDeque::from(followers);
    while let Some(trigger) = followers.pop_front() {
        let (run, mut more) = (record::run_id(&trigger.id), Vec::new());
        let worked = match &app.queue {
            Some(queue) => enqueue_run(queue.as_ref(), run.clone()).await,
            None if has_time(deadline) => {
                Box::pin(work_one(app, trigger, deadline, false, &mut more)).await.0
            }
            None => return,
        };
        followers.extend(more);
        if let Err(error) = worked {
            tracing::warn!(run.id = %run, %error, "a run that follows another one has to wait");
        }
    }
}

/// What is to be worked after a run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Next {
    /// It is not known to anybody here that others wait.
    Nobody,
    /// The line of its conversation.
    Line,
    /// This run, which nobody has and which it waits for.
    Ahead(String),
    /// Nothing now: it waits, and somebody else, or a later time, comes for it.
    Left,
}

/// The trigger of the run whose turn it is, if there is one and time for it.
async fn next_in_line(app: &App, peer: &PublicKey, next: &Next, deadline: Deadline) -> Option<Trigger> {
    let has_time = has_time(deadline);
    let found = match next {
        Next::Nobody | Next::Left => return None,
        Next::Ahead(run) if has_time => record::stored_trigger(app, run).await.map(Some),
        Next::Line if has_time => line::first_waiting(app, peer).await.map(|due| due.map(|due| due.trigger)),
        Next::Ahead(_) | Next::Line => line::hand_on(app, peer).await.map(|()| None),
    };
    found.unwrap_or_else(|error| {
        tracing::warn!(%error, "a run that waits in its conversation cannot be worked now");
        None
    })
}

/// One run, from the claim to the record. `is_its_turn`: whether it is known to stand first in the line, if in one. A panic
/// is an error of this run alone.
async fn work_one(
    app: &App,
    trigger: Trigger,
    deadline: Deadline,
    is_its_turn: bool,
    followers: &mut Vec<Trigger>,
) -> (Worked, Next) {
    if matches!(trigger.source, Source::Prompt(_)) {
        let reason = "runs of prompts are not built yet".to_owned();
        return (Ok(Outcome::Rejected { reason }), Next::Nobody);
    }
    if app.config.standby {
        return (standby::hold(app, &trigger).await, Next::Left);
    }
    // What is not written down by then is found when the lease is over.
    let worked = Box::pin(claim_and_answer(app, &trigger, deadline, is_its_turn, followers));
    timeout_at(deadline.record_until(), worked).await.unwrap_or_else(|_| {
        let run = record::run_id(&trigger.id);
        tracing::error!(run.id = %run, "the run is left: the store or a relay did not answer in the time there was");
        let error = Error::Transient("the store or a relay did not answer in the time there was".to_owned());
        (Err(error), Next::Left)
    })
}

async fn claim_and_answer(
    app: &App,
    trigger: &Trigger,
    deadline: Deadline,
    is_its_turn: bool,
    followers: &mut Vec<Trigger>,
) -> (Worked, Next) {
    let mut watch = Stopwatch::start();
    let lease_until_ms = app.lease_until_ms(deadline);
    let (claimed, stored) =
        tokio::join!(record::claim(app, trigger, lease_until_ms), load::stored(app, trigger));
    let mut claim = match claimed {
        Ok(Claimed::Ours(claim)) => claim,
        Ok(Claimed::Finished(record)) => return (Ok(Outcome::of(record)), Next::Nobody),
        Ok(Claimed::Busy(record)) => {
            return (Ok(leave(app, record.run_id.clone(), record.free_at_ms(), None).await), Next::Nobody);
        }
        Ok(Claimed::Held(record)) => return (Ok(Outcome::Standby { run: record.run_id }), Next::Left),
        Ok(Claimed::Waits { run, behind }) => return wait(app, run, behind).await,
        Err(error) => return (Err(error), Next::Left),
    };
    let run = claim.record.run_id.clone();
    let stored = match stored {
        Ok(read) if claim.may_succeed_another(&read) => load::stored(app, trigger).await,
        stored => stored,
    };
    // Also of one that had the floor before: who gave it that may have died before it saw the line.
    if !is_its_turn
        && claim.has_floor()
        && let Ok(stored) = &stored
        && line::is_preceded(&claim.record, &stored.line)
    {
        let given = claim.give_way(app).await;
        return (given.map(|()| Outcome::Busy { run, waits_for: None }), Next::Line);
    }
    claim.record.note_step("claim", watch.lap_ms());
    // On the heap: what a run awaits nests deep, and all of it would lie in the futures of every door.
    let answer = Box::pin(async { answer(app, trigger, stored?, &mut claim, deadline, watch).await });
    let result = AssertUnwindSafe(answer).catch_unwind().await;
    followers.append(&mut claim.followers);
    let others_wait = claim.others_wait();
    let next = |otherwise| if others_wait { Next::Line } else { otherwise };
    match result.unwrap_or_else(|_| Err(Error::Transient("the run panicked".to_owned()))) {
        Ok(()) => (Ok(Outcome::of(claim.record)), next(Next::Nobody)),
        // It may have been cancelled: then nobody else comes to those behind it.
        Err(Error::TakenOver) => (taken_over(app, claim).await, Next::Line),
        Err(Error::Stopped) => {
            claim.put_off(app).await;
            (Ok(Outcome::Stopped { run }), next(Next::Left))
        }
        Err(Error::OutOfTime { has_progress: true }) => (suspend(app, claim).await, next(Next::Left)),
        Err(error) => (give_back(app, claim, error).await, next(Next::Left)),
    }
}

/// A run that stands in the line behind another one: that one goes first.
async fn wait(app: &App, run: String, behind: RunRecord) -> (Worked, Next) {
    let is_free = behind.free_at_ms() <= app.clock.now_ms() && !behind.held;
    if is_free {
        let outcome = Outcome::Busy { run, waits_for: Some(behind.run_id.clone()) };
        return (Ok(outcome), Next::Ahead(behind.run_id));
    }
    (Ok(leave(app, run, behind.free_at_ms(), Some(behind.run_id)).await), Next::Left)
}

/// The reply of an earlier attempt, or a new one; saved before it is sent; recorded after.
async fn answer(
    app: &App,
    trigger: &Trigger,
    mut stored: Stored,
    claim: &mut Claim,
    deadline: Deadline,
    mut watch: Stopwatch,
) -> Result<(), Error> {
    let (saved, note, past) = match claim.earlier(app).await {
        Ok(Earlier { journal, note, reply }) => (reply, note, Past::of(journal)),
        // Nobody knows what was done already: nothing is done again, and the sender is told.
        Err(error @ Error::Permanent(_)) if claim.record.status == Status::Running => {
            (Vec::new(), Vec::new(), Err(error))
        }
        Err(error) => return Err(error),
    };
    let until = deadline.slice(load::SLICE);
    let command = commands::said(app, trigger).filter(|_| saved.is_empty());
    let (parts, route) = if let Some((dm, command)) = command {
        let answered = Box::pin(obey(app, trigger, (dm, &command), stored, claim, until)).await?;
        claim.record.note_step("command", watch.lap_ms());
        answered
    } else if saved.is_empty() {
        if stored.flags.stopped_at().is_some() && !commands::passes_a_stop(app, trigger) {
            return Err(Error::Stopped);
        }
        let found = stored.outage.take().filter(|_| trigger.fixed_text().is_none());
        let outage = outage::Known { found, note };
        let Some((trigger, mut loaded)) = Box::pin(admit(app, trigger, stored, claim, &past, until)).await?
        else {
            return Ok(());
        };
        outage.meet(&mut claim.record);
        claim.record.note_step("load", watch.lap_ms());
        let destination = destination(app, &trigger, &mut loaded).await?;
        let targets = destination.as_ref().map(|(_, route)| route.all()).unwrap_or_default();
        let unsaved = std::mem::take(&mut loaded.unsaved);
        if loaded.asked
            && !commands::passes_a_stop(app, &trigger)
            && let Err(error) = commands::flags::check(app).await
        {
            load::keep(app, unsaved).await;
            return Err(error);
        }
        // While the model thinks, what the relays told is kept and the connections for the reply are opened.
        let respond = alongside(
            Box::pin(respond(app, &trigger, &loaded, claim, past, deadline)),
            app.relays.open(&targets, deadline.work_until()),
        );
        let ((), text) = tokio::join!(load::keep(app, unsaved), respond);
        let is_out = text.as_ref().is_err_and(is_outage);
        match &destination {
            Some((letter, route)) => outage.settle(app, letter, route, claim, is_out, deadline).await?,
            None if is_out => {
                outage::meet(&mut claim.record, app.clock.now_ms());
            }
            None => {}
        }
        let text = text?;
        watch.lap_ms();
        let due_at = due_if_not_begun(app, deadline);
        let after = chain::followers(app, &trigger, &loaded.state, &claim.record, &text, due_at)?;
        let Some((letter, route)) = destination else {
            claim.finish_with(app, &text, after).await?;
            return Ok(());
        };
        let parts = publish::sign(app, &letter, &text, app.clock.now())?;
        claim.save_reply(app, &letter, &parts, after).await?;
        claim.record.note_step("save", watch.lap_ms());
        (parts, route)
    } else {
        if publish::was_sent(&saved, &claim.record.deliveries) {
            let peer = trigger.peer().unwrap_or(trigger.admin);
            load::reread_relay_lists(app, trigger, peer, &mut stored, deadline.slice(load::SLICE)).await?;
        }
        let loaded = stored.into_loaded(app, trigger);
        let letter = Letter::of(trigger, &loaded).as_written(&saved);
        (saved, publish::route(app, &loaded.state, &letter))
    };
    let deliveries = &mut claim.record.deliveries;
    let has_arrived = publish::send(app, &route, &parts, deliveries, deadline.publish_until()).await;
    claim.record.note_step("publish", watch.lap_ms());
    if has_arrived {
        claim.finish(app).await?;
        tell_answered(trigger, claim);
        return Ok(());
    }
    if publish::is_given_up(&parts, app.clock.now()) {
        return end_undelivered(app, trigger, claim).await;
    }
    Err(Error::Transient("no relay of the recipient accepted the reply; it is saved".to_owned()))
}

/// To whom the answer goes, and how: that of a message to who wrote it. Any other run keeps its answer, unless one of its
/// skills says that the admin is to have it.
async fn destination(
    app: &App,
    trigger: &Trigger,
    loaded: &mut Loaded,
) -> Result<Option<(Letter, Route)>, Error> {
    if trigger.peer().is_none() {
        let fired = context::fired(&loaded.state, trigger);
        if !fired.iter().any(|skill| skill.rules.reply_to_admin) {
            return Ok(None);
        }
        loaded.last_heard = load::last_heard(app, trigger.admin).await?;
    }
    let letter = Letter::of(trigger, loaded);
    let route = publish::route(app, &loaded.state, &letter);
    Ok(Some((letter, route)))
}

fn tell_answered(trigger: &Trigger, claim: &Claim) {
    let sender = trigger.sender().and_then(|sender| sender.to_bech32().ok()).unwrap_or_default();
    tracing::info!(run.id = %claim.record.run_id, sender = sender.get(..NPUB_SHOWN), "a message is answered");
}

/// The reply is sent no more, and the admin is told: first, since nobody comes back to a run that is over. Of a message that
/// itself only tells the admin something, there would be no end.
async fn end_undelivered(app: &App, trigger: &Trigger, claim: &mut Claim) -> Result<(), Error> {
    if !matches!(trigger.source, Source::Notice(_)) {
        let peer = trigger.peer().unwrap_or(trigger.admin);
        notices::raise(app, &Fact::Undelivered(peer, claim.record.run_id.clone())).await?;
    }
    claim.finish_undelivered(app, "no relay of the recipient took the reply for three days").await
}

/// What earlier invocations have left of a run.
struct Past {
    journal: Journal,
    /// What it began with, where that is decided.
    beginning: Option<Beginning>,
}

impl Past {
    fn of(journal: Journal) -> Result<Self, Error> {
        Ok(Self { beginning: journal.beginning()?, journal })
    }
}

/// Loads what the run needs and decides whether its sender is answered, as [`guests::admit`]. Of a run that goes on that is
/// decided, and what it began with is known: the store has what tools and reply need, and no relay is asked.
async fn admit(
    app: &App,
    trigger: &Trigger,
    stored: Stored,
    claim: &mut Claim,
    past: &Result<Past, Error>,
    until: Instant,
) -> Result<Option<(Trigger, Loaded)>, Error> {
    let tier = match past {
        Ok(Past { beginning: Some(beginning), .. }) => Some(beginning.tier),
        _ => None,
    };
    // Whoever is no admin any more commands nothing further.
    let is_revoked = tier == Some(Tier::Admin) && guests::guest(app, trigger).is_some();
    match tier {
        Some(tier) if stored.was_read(trigger) && !is_revoked => {
            let trigger = trigger.clone();
            let trigger = if trigger.sender().is_some() { trigger.of_tier(tier) } else { trigger };
            let loaded = stored.into_loaded(app, &trigger);
            Ok(Some((trigger, loaded)))
        }
        _ if trigger.peer().is_none() => admit_to_skills(app, trigger, stored, claim, until).await,
        _ => guests::admit(app, trigger, stored, claim, until).await,
    }
}

/// Loads what a run of skills needs. `None`: no adopted skill is fired by the trigger, which is recorded.
async fn admit_to_skills(
    app: &App,
    trigger: &Trigger,
    stored: Stored,
    claim: &mut Claim,
    until: Instant,
) -> Result<Option<(Trigger, Loaded)>, Error> {
    let loaded = load::refresh(app, trigger, stored, until).await?;
    if !context::fired(&loaded.state, trigger).is_empty() {
        return Ok(Some((trigger.clone(), loaded)));
    }
    load::keep(app, loaded.unsaved).await;
    if !loaded.lists.skills && app.clock.now() < claim.record.arrived_at + guests::MAX_WAIT {
        claim.record.waits = claim.record.waits.saturating_add(1);
        return Err(Error::Transient("no relay has told the agent's skills yet".to_owned()));
    }
    claim.turn_away(app, trigger.tier, "no adopted skill is fired by it", Vec::new()).await?;
    Ok(None)
}

/// Does what a command orders. Its answer was saved with that; it goes back the way that the command came.
async fn obey(
    app: &App,
    trigger: &Trigger,
    (dm, command): (&Dm, &Command),
    stored: load::Stored,
    claim: &mut Claim,
    until: Instant,
) -> Result<(Vec<ReplyPart>, Route), Error> {
    let letter = Letter::answer_to(dm);
    let parts = match commands::obey(app, trigger, (dm, command), claim).await {
        Err(error) if is_final(app, &claim.record, &error) => {
            let text = apology(trigger, claim, &error);
            let parts = publish::sign(app, &letter, &text, app.clock.now())?;
            claim.save_reply(app, &letter, &parts, Followers::default()).await?;
            parts
        }
        other => other?,
    };
    let loaded = load::refresh(app, trigger, stored, until).await?;
    load::keep(app, loaded.unsaved).await;
    Ok((parts, publish::route(app, &loaded.state, &letter)))
}

/// The text of the answer: a fixed one, the model's, or an honest word that there is none.
async fn respond(
    app: &App,
    trigger: &Trigger,
    loaded: &Loaded,
    claim: &mut Claim,
    past: Result<Past, Error>,
    deadline: Deadline,
) -> Result<String, Error> {
    // What an earlier attempt failed of no longer counts.
    claim.record.reason = None;
    if let Some(text) = trigger.fixed_text() {
        return Ok(text.to_owned());
    }
    if let Ok(Past { journal, .. }) = &past {
        note_published(app, loaded, claim, journal);
        claim.record.unknown_calls = journal.unknown_calls();
    }
    let result = match past {
        Err(error) => Err(error),
        Ok(_) if claim.record.tries() > MAX_ATTEMPTS => Err(Error::NoAnswer {
            reason: "it was begun three times and never came to its end",
            transient: false,
        }),
        Ok(Past { journal, beginning }) => {
            let beginning = match beginning {
                Some(beginning) => beginning,
                None => Beginning::new(assemble(app, trigger, loaded, deadline).await, trigger),
            };
            Box::pin(driver::drive(app, trigger, &loaded.state, beginning, claim, journal, deadline)).await
        }
    };
    match result {
        Err(error) if is_final(app, &claim.record, &error) => Ok(apology(trigger, claim, &error)),
        other => other,
    }
}

/// Of the events of an earlier attempt that did not live to tell of them: what relays said to them, as far as the journal has
/// it, and that the others are sent again once the run is over, if not before.
fn note_published(app: &App, loaded: &Loaded, claim: &mut Claim, journal: &Journal) {
    let (targets, deliveries) = (load::write_targets(app, &loaded.state), &mut claim.record.deliveries);
    journal.deliveries().for_each(|heard| delivery::recall(deliveries, heard));
    for event in journal.effects() {
        delivery::note_sending(deliveries, event.id, &targets, app.clock.now());
    }
}

/// Whether a run that failed so is not tried again. What uses up its attempts is a worker that died, a store or a relay that
/// failed, and an invocation that was too short for a single step.
fn is_final(app: &App, record: &RunRecord, error: &Error) -> bool {
    match error {
        Error::TakenOver | Error::Stopped => false,
        Error::OutOfTime { has_progress: true } => record.continuations >= app.config.max_continuations,
        error if is_outage(error) => outage::is_over(record, app.clock.now_ms()),
        error => !error.is_transient() || record.tries() >= MAX_ATTEMPTS,
    }
}

fn is_outage(error: &Error) -> bool {
    matches!(error, Error::NoAnswer { transient: true, .. })
}

/// What the sender is told where there is no answer. What lies behind it is for the log.
fn apology(trigger: &Trigger, claim: &mut Claim, error: &Error) -> String {
    tracing::error!(run.id = %claim.record.run_id, %error, "the run failed");
    claim.record.reason = Some(shown(error).to_owned());
    match &trigger.source {
        Source::Dm(_) | Source::Prompt(_) | Source::Notice(_) => {
            format!("I could not answer this message: {}.", shown(error))
        }
        source => format!("A {} run failed: {}.", source.name(), shown(error)),
    }
}

/// A failure in words of ours: for the sender and for the record, which is not sealed.
fn shown(error: &Error) -> &'static str {
    match error {
        Error::NoAnswer { reason, .. } => reason,
        Error::OutOfTime { has_progress: true } => "it takes longer than I may work on one message",
        Error::OutOfTime { has_progress: false } => "the time for it was used up",
        _ => "something failed on my side",
    }
}

/// Does `main`, and `aside` as long as that takes.
async fn alongside<T>(main: impl Future<Output = T>, aside: impl Future<Output = ()>) -> T {
    tokio::pin!(main, aside);
    tokio::select! {
        result = &mut main => result,
        () = aside => main.await,
    }
}
