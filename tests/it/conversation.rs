//! Runs of one conversation, one after another in the order in which its messages were written, whichever worker meets
//! which of them, and whatever dies.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::{App, LEASE_MARGIN};
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::llm::{Llm, LlmError};
use didactyl::outage::NOTE;
use didactyl::record::{self, Status, dm_trigger_id, run_id};
use didactyl::store::{Expect, Range, Write, keys};
use futures_util::future::join_all;
use nostr::prelude::{Event, Timestamp};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::agent::{BUDGET, TestAgent, deliver_to, dm_id, echo, nip17_at, outcomes, secret, trigger};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::listen::listening;
use crate::sea::{Harbour, Manner, tick, wrap_at};

on_each_store! {
    a_worker_that_was_paused_beyond_its_lease_finds_its_writes_refused,
    a_message_that_waits_is_answered_as_soon_as_the_one_before_it,
    stored_messages_that_come_to_three_workers_at_once_are_answered_in_the_order_written,
    an_earlier_message_that_waits_is_answered_before_one_that_comes_later,
    whoever_comes_after_a_death_works_the_run_of_the_dead_first,
    a_run_that_was_given_back_holds_up_the_messages_behind_it,
    a_crash_of_whoever_has_the_floor_loses_and_doubles_nothing,
    a_crash_of_whoever_joins_the_line_loses_and_doubles_nothing,
    a_floor_that_an_older_version_left_behind_is_cleared,
}

/// A model that is asked only when the test lets it.
struct Pause {
    model: Arc<dyn Llm>,
    entered: Semaphore,
    open: Semaphore,
}

impl Pause {
    fn install(app: &mut App) -> Arc<Self> {
        let model = Arc::clone(&app.llm);
        let pause = Arc::new(Self { model, entered: Semaphore::new(0), open: Semaphore::new(0) });
        app.llm = Arc::clone(&pause) as Arc<dyn Llm>;
        pause
    }

    async fn is_entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    /// From now on it answers at once.
    fn end(&self) {
        self.open.add_permits(Semaphore::MAX_PERMITS / 2);
    }
}

#[async_trait]
impl Llm for Pause {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        self.entered.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        self.model.complete(request, until).await
    }
}

/// The admin's messages with these texts, each written a second after the one before.
fn messages<const N: usize>(texts: [&str; N]) -> [Event; N] {
    let mut at = Timestamp::now() - Duration::from_secs(100);
    texts.map(|text| {
        at = at + Duration::from_secs(1);
        nip17_at(&secret(2), text, at)
    })
}

async fn deliver(app: &App, agent: &TestAgent, dm: &Event) -> Value {
    deliver_to(app, &agent.relay_url, std::slice::from_ref(dm)).await.unwrap()
}

fn run_of(dm: &Event) -> String {
    run_id(&dm_trigger_id(&dm_id(dm)))
}

/// What the model was asked, in this order.
fn asked(agent: &TestAgent) -> Vec<String> {
    agent.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect()
}

/// Each message was answered once, in this order, with all that was answered before in view; and nobody waits.
async fn assert_answered_in_order(agent: &TestAgent, texts: &[&str]) {
    assert_eq!(asked(agent), texts);
    for (number, request) in agent.model.requests().iter().enumerate() {
        let body = request.body.to_string();
        for earlier in &texts[..number] {
            assert!(body.contains(&earlier.to_uppercase()), "{earlier} in {body}");
        }
    }
    assert_eq!(sorted_replies(agent).await, sorted(texts.iter().map(|text| text.to_uppercase())));
    assert_nobody_waits(&agent.app).await;
}

async fn sorted_replies(agent: &TestAgent) -> Vec<String> {
    sorted(agent.replies().await.into_iter().map(|(_, text)| text))
}

fn sorted(texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut texts: Vec<String> = texts.into_iter().collect();
    texts.sort();
    texts
}

/// Nobody has the floor of the admin's conversation or stands in its line, and nothing is due.
async fn assert_nobody_waits(app: &App) {
    for partition in [keys::line_partition(&secret(2).public_key()), keys::DUE_PARTITION.to_owned()] {
        let rows = app.store.list(&Range::whole(partition)).await.unwrap();
        assert!(rows.is_empty(), "{rows:?}");
    }
}

/// Stands for waiting until nobody can have a lease any more.
fn end_all_leases(agent: &TestAgent) {
    agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
}

async fn a_worker_that_was_paused_beyond_its_lease_finds_its_writes_refused(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let [one, two] = messages(["one", "two"]);
    let (mut sleeper, other) = (agent.another(), agent.another());
    let pause = Pause::install(&mut sleeper);
    let heir = async {
        pause.is_entered().await;
        end_all_leases(&agent);
        let answer = deliver(&other, &agent, &two).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        assert_answered_in_order(&agent, &["one", "two"]).await;
        pause.end();
    };
    let (answer, ()) = tokio::join!(deliver(&sleeper, &agent, &one), heir);
    // It asked its model once more, and nothing came of that.
    assert_eq!(outcomes(&answer), ["busy"], "{answer}");
    assert_eq!(asked(&agent), ["one", "two", "one"]);
    assert_eq!(sorted_replies(&agent).await, ["ONE", "TWO"]);
    assert_eq!(agent.history(secret(2).public_key()).await.len(), 4);
    assert_nobody_waits(&agent.app).await;
}

async fn a_message_that_waits_is_answered_as_soon_as_the_one_before_it(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let [one, two, three] = messages(["one", "two", "three"]);
    let (mut first, second) = (agent.another(), agent.another());
    let pause = Pause::install(&mut first);
    let others = async {
        pause.is_entered().await;
        for dm in [&three, &two] {
            let answer = deliver(&second, &agent, dm).await;
            let expected = json!({"outcome": "busy", "run": run_of(dm), "waits_for": run_of(&one)});
            assert_eq!(answer["results"], json!([expected]));
        }
        pause.end();
    };
    let (answer, ()) = tokio::join!(deliver(&first, &agent, &one), others);
    assert_eq!(answer["results"][0]["run"], json!(run_of(&one)), "{answer}");
    assert_answered_in_order(&agent, &["one", "two", "three"]).await;
}

async fn stored_messages_that_come_to_three_workers_at_once_are_answered_in_the_order_written(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let dms = messages(["one", "two", "three", "four", "five", "six"]);
    for dm in dms.iter().rev() {
        let due_at = agent.app.clock.now().as_secs() + 60;
        record::store(&agent.app, &trigger(&agent.app, dm), due_at).await.unwrap();
    }
    let workers = (0..3).map(|worker| {
        let (app, runs): (App, Vec<String>) =
            (agent.another(), dms.iter().rev().skip(worker).step_by(3).map(run_of).collect());
        tokio::spawn(async move {
            for run in runs {
                let payload = json!({"type": "resume", "run": run}).to_string();
                handler::handle(&app, &payload, Deadline::after(BUDGET)).await.unwrap();
            }
        })
    });
    join_all(workers).await.into_iter().for_each(Result::unwrap);
    assert_answered_in_order(&agent, &["one", "two", "three", "four", "five", "six"]).await;
}

async fn an_earlier_message_that_waits_is_answered_before_one_that_comes_later(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let [one, two] = messages(["one", "two"]);
    let due_at = agent.app.clock.now().as_secs() + 60;
    record::store(&agent.app, &trigger(&agent.app, &one), due_at).await.unwrap();
    let answer = deliver(&agent.app, &agent, &two).await;
    assert_eq!(answer["results"][0]["run"], json!(run_of(&two)), "{answer}");
    assert_answered_in_order(&agent, &["one", "two"]).await;
    // Neither used up an attempt in vain.
    for dm in [&one, &two] {
        assert_eq!(agent.record(&dm_trigger_id(&dm_id(dm))).await.attempt, 1);
    }
}

async fn whoever_comes_after_a_death_works_the_run_of_the_dead_first(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let [one, two] = messages(["one", "two"]);
    let mut victim = agent.another();
    let pause = Pause::install(&mut victim);
    tokio::select! {
        () = pause.is_entered() => {}
        answer = deliver(&victim, &agent, &one) => panic!("{answer}"),
    }
    let answer = deliver(&agent.app, &agent, &two).await;
    assert_eq!((outcomes(&answer), agent.model.calls()), (vec!["busy"], 0), "it may be alive");
    end_all_leases(&agent);
    let answer = deliver(&agent.app, &agent, &two).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_answered_in_order(&agent, &["one", "two"]).await;
}

async fn a_run_that_was_given_back_holds_up_the_messages_behind_it(on: On) {
    let ill_once = |asked: &Asked| match asked.number {
        1 => Answer::Refusal(500, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
        _ => echo(asked),
    };
    let agent = TestAgent::over(on, ill_once).await;
    let [one, two] = messages(["one", "two"]);
    agent.try_deliver(std::slice::from_ref(&one)).await.unwrap_err();
    for _ in 0..2 {
        let answer = deliver(&agent.app, &agent, &two).await;
        assert_eq!(answer["results"][0]["waits_for"], json!(run_of(&one)), "{answer}");
    }
    assert_eq!(agent.model.calls(), 1);
    // Half a minute, and up to an eighth more.
    agent.clock.forward(Duration::from_secs(40));
    // A tick finds both due.
    let answer = tick(&agent.another()).await;
    assert_eq!(outcomes(&answer), ["replied", "replied"], "{answer}");
    assert_eq!(asked(&agent), ["one", "one", "two"]);
    assert_eq!(sorted_replies(&agent).await, ["ONE", "TWO", NOTE]);
    assert_nobody_waits(&agent.app).await;
}

/// Which worker dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Holder,
    Comer,
}

/// Two messages wait behind one that is being answered; one of the two workers dies at its `at`-th call. Whether it came
/// so far.
async fn crash(on: On, victim: Victim, at: usize, side: Side) -> bool {
    let what = format!("{victim:?}, crash {side:?} call {at}");
    let agent = TestAgent::over(on, echo).await;
    let [one, two, three] = messages(["one", "two", "three"]);
    let (mut holder, mut comer) = (agent.another(), agent.another());
    let pause = Pause::install(&mut holder);
    let fault = Fault::crash(at, side);
    fault.install(if victim == Victim::Holder { &mut holder } else { &mut comer });
    let holds = async {
        tokio::select! {
            biased;
            () = fault.crashed(), if victim == Victim::Holder => {}
            _ = deliver(&holder, &agent, &one) => {}
        }
        pause.entered.add_permits(1);
    };
    let comes = async {
        pause.is_entered().await;
        let both = async {
            deliver(&comer, &agent, &two).await;
            deliver(&comer, &agent, &three).await;
        };
        tokio::select! {
            biased;
            () = fault.crashed(), if victim == Victim::Comer => {}
            () = both => {}
        }
        pause.end();
    };
    tokio::join!(holds, comes);
    end_all_leases(&agent);
    for dm in [&three, &two, &one] {
        let answer = deliver(&agent.another(), &agent, dm).await;
        assert_eq!(outcomes(&answer), ["replied"], "{what}: {answer}");
    }
    assert_eq!(sorted_replies(&agent).await, ["ONE", "THREE", "TWO"], "{what}");
    assert_eq!(agent.history(secret(2).public_key()).await.len(), 6, "{what}");
    for dm in [&one, &two, &three] {
        assert_eq!(agent.record(&dm_trigger_id(&dm_id(dm))).await.status, Status::Done, "{what}");
    }
    assert_nobody_waits(&agent.app).await;
    fault.was_reached()
}

/// At every call in turn, until a run ends before it comes to its crash. The emulator is slow: it sees every fifth.
async fn every_crash(on: On, victim: Victim, at_least: usize) {
    let step = if on == On::Sqlite { 1 } else { 5 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        while Box::pin(crash(on, victim, at, side)).await {
            at += step;
        }
        assert!(at > at_least, "{side:?}: it ended after {at} calls");
    }
}

async fn a_crash_of_whoever_has_the_floor_loses_and_doubles_nothing(on: On) {
    // Three runs of a claim, reads, a reply, its sending and the record; and the line in between.
    every_crash(on, Victim::Holder, 20).await;
}

async fn a_crash_of_whoever_joins_the_line_loses_and_doubles_nothing(on: On) {
    // Two claims that find the floor taken, the record of its holder, and two that join; and reads beside them.
    every_crash(on, Victim::Comer, 10).await;
}

/// As a binary leaves them that knows neither floor nor line.
async fn a_floor_that_an_older_version_left_behind_is_cleared(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let [one, two, three] = messages(["one", "two", "three"]);
    deliver(&agent.app, &agent, &one).await;
    let peer = secret(2).public_key();
    let floor = json!({"format": 1, "run": run_of(&one)}).to_string().into_bytes();
    let leave_floor = Write::put(keys::floor(&peer), Expect::Absent, floor, None);
    agent.app.store.write(std::slice::from_ref(&leave_floor)).await.unwrap();
    assert_eq!(outcomes(&deliver(&agent.app, &agent, &two).await), ["replied"]);
    assert_answered_in_order(&agent, &["one", "two"]).await;

    let place = keys::in_line(&peer, Timestamp::from(1), &run_of(&one));
    let leave_place = Write::put(place, Expect::Absent, br#"{"format":1}"#.to_vec(), None);
    agent.app.store.write(&[leave_floor, leave_place]).await.unwrap();
    assert_eq!(outcomes(&deliver(&agent.app, &agent, &three).await), ["replied"]);
    assert_answered_in_order(&agent, &["one", "two", "three"]).await;
}

#[tokio::test]
async fn what_there_is_no_time_for_is_queued_or_due_at_once() {
    let without_time = async |has_queue: bool| {
        let agent = TestAgent::start().await;
        let [one, two] = messages(["one", "two"]);
        let mut first = agent.another();
        let pause = Pause::install(&mut first);
        let queue = Arc::new(MemoryQueue::default());
        if has_queue {
            first.queue = Some(queue.clone());
        }
        let trigger = trigger(&first, &one);
        record::store(&first, &trigger, first.clock.now().as_secs() + 60).await.unwrap();
        // Twice of what a run needs to be begun: as much to come to it as to end it.
        let deadline = Deadline::after(Duration::from_secs(10));
        let payload = json!({"type": "resume", "run": run_of(&one)}).to_string();
        let others = async {
            pause.is_entered().await;
            assert_eq!(outcomes(&deliver(&agent.app, &agent, &two).await), ["busy"]);
            tokio::time::sleep_until(Instant::now() + deadline.left().saturating_sub(Duration::from_secs(5)))
                .await;
            pause.end();
        };
        let (answer, ()) = tokio::join!(handler::handle(&first, &payload, deadline), others);
        assert_eq!(outcomes(&answer.unwrap()), ["replied"]);
        assert_eq!(asked(&agent), ["one"]);
        if has_queue {
            assert_eq!(queue.taken(), [(run_of(&two), Duration::ZERO)]);
        } else {
            let answer = tick(&agent.another()).await;
            assert_eq!((&answer["due"], outcomes(&answer)), (&json!(1), vec!["replied"]), "{answer}");
            assert_answered_in_order(&agent, &["one", "two"]).await;
        }
    };
    tokio::join!(without_time(false), without_time(true));
}

#[tokio::test]
async fn a_message_dated_ahead_waits_for_its_time_and_holds_nobody_up() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.clock.forward(Duration::from_secs(60));
    let (now, admin) = (harbour.now(), secret(2));
    harbour.sea.post(&wrap_at(&admin, "ahead", now + Duration::from_secs(60 * 60), now));
    harbour.tick().await;
    harbour.sea.post(&wrap_at(&admin, "now", now, now));
    harbour.tick().await;
    assert_eq!(harbour.answers(), ["NOW"]);
    harbour.clock.forward(Duration::from_secs(50 * 60));
    harbour.tick().await;
    assert_eq!(harbour.answers(), ["AHEAD", "NOW"]);
    assert_nobody_waits(&harbour.app()).await;
}

#[tokio::test]
async fn what_is_heard_waits_for_what_the_same_tick_found_in_its_conversation() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.clock.forward(Duration::from_secs(60));
    let mut app = harbour.app();
    let pause = Pause::install(&mut app);
    let wrap = |text, after| {
        let now = harbour.now();
        wrap_at(&secret(2), text, now + Duration::from_secs(after), now)
    };
    harbour.sea.post(&wrap("found", 0));
    let scene = async {
        pause.is_entered().await;
        harbour.sea.listened_to(1).await;
        harbour.sea.post(&wrap("heard", 1));
        // It stands in the line when the floor is marked.
        let floor = [keys::floor(&secret(2).public_key())];
        let other = harbour.app();
        while other.store.read(&floor).await.unwrap()[0].as_ref().is_none_or(|row| row.version == 1) {
            tokio::task::yield_now().await;
        }
        assert_eq!(harbour.model.calls(), 0);
        pause.end();
        harbour.sea.replied(&secret(2), 2).await;
    };
    let answer = listening(&app, scene).await;
    let texts: Vec<String> =
        harbour.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect();
    assert_eq!(texts, ["found", "heard"], "{answer}");
    assert!(harbour.model.requests()[1].body.to_string().contains("FOUND"));
    assert_nobody_waits(&harbour.app()).await;
}
