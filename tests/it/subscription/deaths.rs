//! The process dies anywhere, the store fails anywhere, ticks come twice: an event still fires once.

use didactyl::app::LEASE_MARGIN;
use didactyl::clock::Deadline;
use didactyl::tick;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::agent::BUDGET;
use crate::faults::{Fault, MemoryQueue, Side};
use crate::sea::tick as silent_tick;

/// Each event fired one run, which is over.
async fn check(harbour: &Harbour, events: &[Event], what: &str) {
    for event in events {
        let record = run_of(harbour, event).await.unwrap_or_else(|| panic!("{what}: no run"));
        assert_eq!(record.status, Status::Done, "{what}: {record:?}");
    }
    let runs = record::recent(&harbour.app(), 10).await.unwrap();
    assert_eq!(runs.len(), events.len(), "{what}");
    let counted = harbour
        .app()
        .store
        .read(&[didactyl::store::keys::skill_runs(harbour.now().as_secs() / DAY.as_secs())])
        .await
        .unwrap()
        .remove(0)
        .unwrap();
    let counted: Value = serde_json::from_slice(&counted.value).unwrap();
    let skill = format!("31123:{}:reader", agent_key());
    assert_eq!(counted["runs"], json!({skill: events.len()}), "{what}");
}

/// An agent at noon, so that all of a test happens on one day.
async fn at_noon() -> Harbour {
    let harbour = Harbour::new(&[Manner::Gives(500); 2], done).await;
    let today = harbour.now().as_secs() / DAY.as_secs();
    harbour.clock.set(Timestamp::from((today + 1) * DAY.as_secs() + DAY.as_secs() / 2));
    subscribe(&harbour, &[]).await;
    harbour
}

async fn every_fault(fault: fn(usize, Side) -> std::sync::Arc<Fault>) {
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let what = format!("{side:?} call {at}");
            let harbour = at_noon().await;
            let events = [note(&harbour, "one"), note(&harbour, "two")];
            harbour.sea.post_all(events.to_vec());
            let fault = fault(at, side);
            let mut victim = harbour.app();
            fault.install(&mut victim);
            fault.until_crash(silent_tick_or_error(&victim)).await;
            for _ in 0..2 {
                harbour.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
                harbour.tick().await;
            }
            check(&harbour, &events, &what).await;
            if !fault.was_reached() {
                break;
            }
            at += 1;
        }
        assert!(at > 12, "{side:?}: the tick ended after {at} calls");
    }
}

async fn silent_tick_or_error(app: &didactyl::app::App) {
    let _ = tick::run(app, None, Deadline::after(BUDGET)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_fires_once_whatever_call_the_tick_dies_at() {
    every_fault(Fault::crash).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_fires_once_whatever_call_of_the_store_fails() {
    every_fault(Fault::unavailable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_event_fires_once_however_many_ticks_come_at_once() {
    let harbour = at_noon().await;
    let events = [note(&harbour, "one"), note(&harbour, "two")];
    harbour.sea.post_all(events.to_vec());
    let apps: Vec<_> = (0..4).map(|_| harbour.app()).collect();
    for _ in 0..2 {
        join_all(apps.iter().map(silent_tick)).await;
    }
    check(&harbour, &events, "four at once").await;
    assert_eq!(harbour.model.calls(), 2);
}

#[tokio::test]
async fn with_a_queue_an_event_is_stored_and_queued() {
    let harbour = at_noon().await;
    let event = note(&harbour, "hello");
    harbour.sea.post(&event);
    let queue = std::sync::Arc::new(MemoryQueue::default());
    let mut app = harbour.app();
    app.queue = Some(queue.clone());
    silent_tick(&app).await;
    let run = run_of(&harbour, &event).await.unwrap();
    assert_eq!((queue.taken(), harbour.model.calls()), (vec![(run.run_id, Duration::ZERO)], 0));
}

#[tokio::test]
async fn what_comes_while_a_tick_listens_fires_at_once_and_once() {
    let harbour = at_noon().await;
    let event = note(&harbour, "heard");
    let scene = async {
        harbour.sea.listened_to(2).await;
        harbour.sea.post(&event);
        while run_of(&harbour, &event).await.is_none_or(|run| run.status != Status::Done) {
            tokio::task::yield_now().await;
        }
    };
    let until = Some(Instant::now() + BUDGET);
    let scene = async { tokio::time::timeout(BUDGET / 2, scene).await.unwrap_or_default() };
    let answer =
        tick::run_and_listen(&harbour.app(), None, Deadline::after(2 * BUDGET), until, scene).await.unwrap();
    assert_eq!(answer["listen"]["heard"]["work"], json!(1), "{answer}");
    harbour.tick().await;
    check(&harbour, &[event], "heard").await;
    assert_eq!(harbour.model.calls(), 1);
}
