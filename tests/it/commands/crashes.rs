//! The process dies anywhere in a command: it happens once and is answered once.

use std::time::Duration;

use didactyl::app::LEASE_MARGIN;
use didactyl::record::{dm_trigger_id, run_id};
use nostr::prelude::{Event, Timestamp};

use super::{order, texts};
use crate::agent::{BUDGET, TestAgent, deliver_to, dm_id, echo, nip17_at, outcomes, secret};
use crate::faults::{Fault, Side};
use crate::ground::{On, on_each_store};
use crate::sea::tick;

on_each_store! {
    a_stop_whose_process_dies_at_any_call_happens_once_and_not_after_a_later_start,
    a_cancel_whose_process_dies_at_any_call_ends_what_came_before_it_and_nothing_later,
    what_waits_behind_a_run_whose_process_died_at_any_call_is_due_as_soon_as_that_is_cancelled,
}

/// Hands `dm` to a process that dies at its `at`-th call; whether it came so far.
async fn crash(agent: &TestAgent, dm: &Event, at: usize, side: Side) -> bool {
    let fault = Fault::crash(at, side);
    let mut app = agent.another();
    fault.install(&mut app);
    fault.until_crash(deliver_to(&app, &agent.relay_url, std::slice::from_ref(dm))).await;
    fault.was_reached()
}

/// Hands it to a new process once nobody can hold the lease any more.
async fn redeliver(agent: &TestAgent, dm: &Event) {
    agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
    let answer = deliver_to(&agent.another(), &agent.relay_url, std::slice::from_ref(dm)).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
}

/// Every call on either side, until one is not reached; over DynamoDB every third, since the emulator is slow.
async fn every_crash(on: On, story: impl AsyncFn(usize, Side) -> bool) {
    let step = if on == On::Sqlite { 1 } else { 3 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        while story(at, side).await {
            at += step;
        }
        // Claim and two reads; what it is decided on; the answer, its sending, the record, closing.
        assert!(at > 7, "{side:?}: it ended after {at} calls");
    }
}

fn count(texts: &[String], beginning: &str) -> usize {
    texts.iter().filter(|text| text.starts_with(beginning)).count()
}

async fn a_stop_whose_process_dies_at_any_call_happens_once_and_not_after_a_later_start(on: On) {
    every_crash(on, async |at, side| {
        let what = format!("crash {side:?} call {at}");
        let agent = TestAgent::over(on, echo).await;
        order(&agent, "first").await;
        let now = Timestamp::now();
        let (stop, start) = (nip17_at(&secret(2), "/stop", now), nip17_at(&secret(2), "/start", now + 1));
        let was_reached = crash(&agent, &stop, at, side).await;
        redeliver(&agent, &start).await;
        redeliver(&agent, &stop).await;
        let told = texts(&agent).await;
        let stops = count(&told, "Stopped.") + count(&told, "Nothing was done");
        let starts = count(&told, "I go on.") + count(&told, "I was not stopped.");
        assert_eq!((told.len(), stops, starts), (3, 1, 1), "{what}: {told:?}");
        assert_eq!(order(&agent, "last").await, "LAST", "{what}");
        was_reached
    })
    .await;
}

async fn a_cancel_whose_process_dies_at_any_call_ends_what_came_before_it_and_nothing_later(on: On) {
    every_crash(on, async |at, side| {
        let what = format!("crash {side:?} call {at}");
        let agent = TestAgent::over(on, echo).await;
        let now = Timestamp::now();
        let [stop, early, cancel, late] = [("/stop", 0), ("early", 0), ("/cancel", 0), ("late", 2)]
            .map(|(text, after)| nip17_at(&secret(2), text, now + after));
        redeliver(&agent, &stop).await;
        agent.deliver(&[early]).await;
        let was_reached = crash(&agent, &cancel, at, side).await;
        agent.clock.forward(Duration::from_secs(2));
        agent.deliver(&[late]).await;
        redeliver(&agent, &cancel).await;
        order(&agent, "/start").await;
        assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"], "{what}");
        let told = texts(&agent).await;
        assert_eq!(
            (told.len(), count(&told, "Cancelled: "), count(&told, "LATE")),
            (4, 1, 1),
            "{what}: {told:?}"
        );
        assert_eq!(agent.model.calls(), 1, "{what}");
        was_reached
    })
    .await;
}

async fn what_waits_behind_a_run_whose_process_died_at_any_call_is_due_as_soon_as_that_is_cancelled(on: On) {
    every_crash(on, async |at, side| {
        let what = format!("crash {side:?} call {at}");
        let agent = TestAgent::over(on, echo).await;
        let now = Timestamp::now();
        let [one, two] = [(9, "one"), (6, "two")].map(|(ago, text)| nip17_at(&secret(2), text, now - ago));
        let was_reached = crash(&agent, &one, at, side).await;
        agent.deliver(&[two]).await;
        let id = run_id(&dm_trigger_id(&dm_id(&one)));
        let told = order(&agent, &format!("/cancel {}", &id[..8])).await;
        // No lease is over yet.
        tick(&agent.another()).await;
        let texts = texts(&agent).await;
        assert_eq!(count(&texts, "TWO"), 1, "{what}: {told}: {texts:?}");
        if told.starts_with("Cancelled: ") {
            assert_eq!(count(&texts, "ONE"), 0, "{what}: {texts:?}");
        }
        was_reached
    })
    .await;
}
