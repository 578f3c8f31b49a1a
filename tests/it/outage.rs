//! The model is out of order for hours: its runs wait, nobody's attempts are used up, and each conversation hears of it once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::app::LEASE_MARGIN;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::{NOTE, PATIENCE};
use didactyl::record::{RunRecord, Status, dm_trigger_id};
use didactyl::store::{Change, Write, keys};
use nostr::prelude::{Event, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore};

use crate::agent::{
    BUDGET, TestAgent, deliver_to, dm_id, echo, hand_over, nip17, nip17_at, outcomes, secret,
};
use crate::faults::{Fault, Judge, Side, Verdict};
use crate::ground::{On, on_each_store};

on_each_store! {
    while_the_model_is_down_for_hours_there_is_one_note_and_then_the_answers,
    two_outages_are_two_notes,
    after_a_day_there_is_an_honest_word_and_for_later_messages_at_once,
    the_note_is_sent_once_whatever_dies,
    a_worker_that_slept_beyond_its_lease_does_not_end_an_outage_that_lasts,
}

/// A switch: while it is on, the model refuses for now.
#[derive(Clone, Default)]
struct Down(Arc<AtomicBool>);

impl Down {
    fn set(&self, is_down: bool) {
        self.0.store(is_down, Ordering::SeqCst);
    }

    fn script(&self) -> impl Fn(&Asked) -> Answer + Send + Sync + 'static {
        let down = self.clone();
        move |asked| match down.0.load(Ordering::SeqCst) {
            true => Answer::Refusal(503, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
            false => echo(asked),
        }
    }
}

async fn agent(on: On) -> (TestAgent, Down) {
    let down = Down::default();
    down.set(true);
    let agent = TestAgent::over(on, down.script()).await;
    (agent, down)
}

async fn tick(agent: &TestAgent) -> Value {
    hand_over(&agent.another(), r#"{"type":"tick"}"#).await
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

async fn record_of(agent: &TestAgent, dm: &Event) -> RunRecord {
    agent.record(&dm_trigger_id(&dm_id(dm))).await
}

/// Ticks at the times at which the run is due, until it is over or `hours` have gone by; how often it asked.
async fn wait_for(agent: &TestAgent, dm: &Event, hours: u64) -> usize {
    let end_ms = agent.clock.clock().now_ms() + hours * 3_600_000;
    for ticks in 0..1000 {
        let record = record_of(agent, dm).await;
        let Some(due_at) = record.due_at.filter(|_| record.status == Status::Running) else { return ticks };
        agent.clock.set(Timestamp::from(due_at + 1).max(agent.clock.clock().now()));
        if agent.clock.clock().now_ms() >= end_ms {
            return ticks;
        }
        tick(agent).await;
    }
    panic!("the run asks without end");
}

async fn while_the_model_is_down_for_hours_there_is_one_note_and_then_the_answers(on: On) {
    let (agent, down) = agent(on).await;
    let now = Timestamp::now();
    let dms = [nip17_at(&secret(2), "first", now - 2), nip17_at(&secret(2), "second", now - 1)];
    let error = agent.try_deliver(&dms[..1]).await.unwrap_err();
    assert_eq!(error.to_string(), "the model is unavailable for now");
    // The second message stands behind the first.
    assert_eq!(outcomes(&agent.deliver(&dms[1..]).await), ["busy"]);
    assert_eq!(texts(&agent).await, [NOTE]);
    let asked = wait_for(&agent, &dms[0], 5).await;
    // At 0:30, 1:00, 2:00 and so on, and then every half hour.
    assert!((14..=20).contains(&asked), "{asked}");
    assert_eq!(texts(&agent).await, [NOTE]);
    for (dm, meets_it) in dms.iter().zip([true, false]) {
        let record = record_of(&agent, dm).await;
        assert_eq!((record.status, record.attempt, record.tries()), (Status::Running, 0, 0));
        assert_eq!(record.waits_for_model_since_ms().is_some(), meets_it);
    }

    down.set(false);
    agent.clock.forward(Duration::from_secs(40 * 60));
    assert_eq!(outcomes(&tick(&agent).await)[0], "replied");
    // Both may be of the same second.
    let (mut said, mut answers) = (texts(&agent).await, Vec::new());
    answers.extend(said.drain(1..));
    answers.sort();
    assert_eq!((said, answers), (vec![NOTE.to_owned()], vec!["FIRST".to_owned(), "SECOND".to_owned()]));
    let record = record_of(&agent, &dms[0]).await;
    let outage = record.outage.unwrap();
    assert_eq!((record.status, record.attempt), (Status::Done, 1));
    assert!(outage.until_ms.unwrap() - outage.since_ms > 5 * 3_600_000, "{outage:?}");
    // The model is not told what was said in its absence.
    let requests = agent.model.requests();
    assert!(requests.iter().all(|asked| !asked.body.to_string().contains("unavailable for now")));
    let last: Vec<&str> =
        requests[requests.len() - 2..].iter().map(|asked| asked.last_text("user")).collect();
    assert_eq!(last, ["first", "second"]);
    let said = agent.history(secret(2).public_key()).await;
    assert_eq!((said.len(), &said[2]), (5, &("agent", NOTE.to_owned())), "it is part of the conversation");
}

async fn two_outages_are_two_notes(on: On) {
    let (agent, down) = agent(on).await;
    for (n, notes) in [(1, 1), (2, 2)] {
        down.set(true);
        let dm = nip17(&secret(2), &format!("message {n}"));
        agent.try_deliver(std::slice::from_ref(&dm)).await.unwrap_err();
        down.set(false);
        wait_for(&agent, &dm, 1).await;
        let texts = texts(&agent).await;
        assert_eq!(texts.iter().filter(|text| *text == NOTE).count(), notes, "{texts:?}");
        assert!(texts.contains(&format!("MESSAGE {n}")), "{texts:?}");
    }
}

async fn after_a_day_there_is_an_honest_word_and_for_later_messages_at_once(on: On) {
    const WORD: &str = "I could not answer this message: the model is unavailable for now.";
    let (agent, down) = agent(on).await;
    let dm = nip17(&secret(2), "hello");
    agent.try_deliver(std::slice::from_ref(&dm)).await.unwrap_err();
    agent.clock.forward(PATIENCE - Duration::from_secs(60));
    assert_eq!(outcomes(&tick(&agent).await), ["unfinished"]);
    assert_eq!(texts(&agent).await, [NOTE]);
    agent.clock.forward(Duration::from_secs(40 * 60));
    let answer = tick(&agent).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(answer["results"][0]["failure"], "the model is unavailable for now");
    assert_eq!(texts(&agent).await, [NOTE, WORD]);

    let later = nip17_at(&secret(2), "anybody?", agent.clock.clock().now());
    assert_eq!(outcomes(&agent.deliver(&[later]).await), ["replied"]);
    assert_eq!(texts(&agent).await, [NOTE, WORD, WORD]);
    down.set(false);
    let last = nip17_at(&secret(2), "hello again", agent.clock.clock().now());
    assert_eq!(outcomes(&agent.deliver(&[last]).await), ["replied"]);
    // Of the same second as the word before it, perhaps.
    assert!(texts(&agent).await.contains(&"HELLO AGAIN".to_owned()));
}

/// A process dies at any call while it meets the outage; the next one meets it too, and then the model is back.
async fn the_note_is_sent_once_whatever_dies(on: On) {
    // The emulator is slow.
    let step = if on == On::Sqlite { 1 } else { 3 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let (agent, down) = agent(on).await;
            let dm = nip17(&secret(2), "hello");
            agent.publish([dm.clone()]).await;
            let fault = Fault::crash(at, side);
            let mut victim = agent.another();
            fault.install(&mut victim);
            fault.until_crash(deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm))).await;
            agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
            let error = agent.try_deliver(std::slice::from_ref(&dm)).await.unwrap_err();
            assert_eq!(error.to_string(), "the model is unavailable for now");
            assert_eq!(texts(&agent).await, [NOTE], "{side:?} call {at}");
            down.set(false);
            wait_for(&agent, &dm, 1).await;
            assert_eq!(texts(&agent).await, [NOTE, "HELLO"], "{side:?} call {at}");
            if !fault.was_reached() {
                break;
            }
            at += step;
        }
        assert!(at > 8, "{side:?}: the run was given back after {at} calls");
    }
}

/// It sleeps where it writes that the first outage is over. Meanwhile its run is answered by another, and there is a second one.
async fn a_worker_that_slept_beyond_its_lease_does_not_end_an_outage_that_lasts(on: On) {
    let (agent, down) = agent(on).await;
    let now = Timestamp::now();
    let [first, second] =
        [("first", 2), ("second", 1)].map(|(text, ago)| [nip17_at(&secret(2), text, now - ago)]);
    agent.try_deliver(&first).await.unwrap_err();
    down.set(false);
    agent.clock.forward(Duration::from_secs(60));

    let (asleep, open) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (falls_asleep, opens) = (Arc::clone(&asleep), Arc::clone(&open));
    let mut sleeper = agent.another();
    Judge::install(&mut sleeper, move |writes| {
        let ends_outage =
            |write: &Write| write.key.sort == keys::OUTAGE_SORT && write.change == Change::Delete;
        if !writes.iter().any(ends_outage) {
            return Verdict::Pass;
        }
        falls_asleep.notify_one();
        Verdict::WaitFor(Arc::clone(&opens))
    });
    let meanwhile = async {
        asleep.notified().await;
        agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
        let answer = deliver_to(&agent.another(), &agent.relay_url, &first).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        down.set(true);
        deliver_to(&agent.another(), &agent.relay_url, &second).await.unwrap_err();
        open.add_permits(1);
    };
    let (answer, ()) = tokio::join!(deliver_to(&sleeper, &agent.relay_url, &first), meanwhile);
    assert_eq!(outcomes(&answer.unwrap()), ["busy"]);

    // Whoever works the second message next knows that its sender was told.
    agent.clock.forward(Duration::from_secs(60));
    assert_eq!(outcomes(&tick(&agent).await), ["unfinished"]);
    let mut said = texts(&agent).await;
    said.sort();
    assert_eq!(said, ["FIRST", NOTE, NOTE]);
}
