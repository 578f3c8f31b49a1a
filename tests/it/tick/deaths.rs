//! Messages that end the process, and a store that fails: who dies of a message, and who only lived through an outage.

use std::sync::{Arc, Mutex};

use didactyl::record::{self, Status, dm_trigger_id, run_id};
use didactyl::store::{Change, StoreError, Write, keys};
use nostr::prelude::Event;
use serde_json::{Value, json};

use crate::agent::{dm_id, echo, outcomes, secret};
use crate::faults::{Judge, Verdict};
use crate::sea::{Harbour, Manner, tick, wrap_at};

use super::MINUTE;

const HOUR: u64 = 60 * 60;

/// What speaks against a message once it is being opened, by the row that is written for it.
fn points(writes: &[Write], message: &Event) -> Option<u64> {
    let batch = writes.iter().find(|write| write.key == keys::sweep_batch())?;
    let Change::Put { value, .. } = &batch.change else { return None };
    serde_json::from_slice::<Value>(value).unwrap()["suspects"][message.id.to_hex()][1].as_u64()
}

/// A message that ends each process which opens it.
struct Poison {
    message: Event,
    marked: Arc<Mutex<Option<u64>>>,
}

impl Poison {
    fn new(message: &Event) -> Self {
        Self { message: message.clone(), marked: Arc::default() }
    }

    /// One tick; its answer, or `None` where the process ended.
    async fn tick(&self, harbour: &Harbour) -> Option<Value> {
        let mut app = harbour.app();
        let (message, marked) = (self.message.clone(), Arc::clone(&self.marked));
        let died = Judge::install(&mut app, move |writes| {
            let Some(points) = points(writes, &message) else { return Verdict::Pass };
            // What is noted of it is that it is about to be opened, and not some other suspect.
            let before = marked.lock().unwrap().replace(points);
            if before.is_none_or(|before| points > before) { Verdict::DieAfter } else { Verdict::Pass }
        });
        tokio::select! {
            biased;
            () = died.notified() => None,
            answer = tick(&app) => Some(answer),
        }
    }
}

/// Three messages, of which the middle one is `poison`, on a relay of an agent that has begun.
async fn three_messages() -> (Harbour, [Event; 3]) {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let now = harbour.now();
    harbour.tick().await;
    let wraps = ["before", "poison", "after"].map(|text| wrap_at(&secret(2), text, now, now - HOUR));
    harbour.sea.post_all(wraps.to_vec());
    (harbour, wraps)
}

/// The message is reported once, its neighbours are answered, and nothing is left to do.
async fn assert_over(harbour: &Harbour, poison: &Event) {
    for _ in 0..3 {
        harbour.clock.forward(2 * MINUTE);
        let answer = harbour.tick().await;
        assert!(answer["sweep"].get("quarantined").is_none(), "{answer}");
    }
    let [after, before, notice] = &harbour.answers()[..] else { panic!("{:?}", harbour.answers()) };
    assert_eq!((after.as_str(), before.as_str()), ("AFTER", "BEFORE"));
    assert!(notice.starts_with(&format!("I gave up the event {}", poison.id)), "{notice}");
    assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
}

#[tokio::test]
async fn a_message_that_ends_the_process_costs_three_ticks_and_its_neighbours_are_answered() {
    let (harbour, wraps) = three_messages().await;
    let poison = Poison::new(&wraps[1]);
    let mut deaths = 0;
    for _ in 0..8 {
        match poison.tick(&harbour).await {
            None => deaths += 1,
            Some(answer) if answer["sweep"]["quarantined"] == json!([wraps[1].id]) => break,
            Some(_) => {}
        }
        harbour.clock.forward(2 * MINUTE);
    }
    assert_eq!(deaths, 3);
    assert_over(&harbour, &wraps[1]).await;
}

#[tokio::test]
async fn what_speaks_against_a_message_is_not_forgotten_while_its_relay_is_not_heard() {
    let (harbour, wraps) = three_messages().await;
    let poison = Poison::new(&wraps[1]);
    for _ in 0..2 {
        assert!(poison.tick(&harbour).await.is_none());
        harbour.clock.forward(2 * MINUTE);
        harbour.sea.set(1, Manner::Down);
        harbour.tick().await;
        harbour.clock.forward(2 * MINUTE);
        harbour.sea.set(1, Manner::Gives(500));
    }
    assert!(poison.tick(&harbour).await.is_none());
    harbour.clock.forward(2 * MINUTE);
    let answer = poison.tick(&harbour).await.unwrap();
    assert_eq!(answer["sweep"]["quarantined"], json!([wraps[1].id]), "{answer}");
    assert_over(&harbour, &wraps[1]).await;
}

/// Also what ends the process only after it came open is found out, if later.
#[tokio::test]
async fn a_message_that_ends_the_process_while_it_is_stored_is_given_up_in_the_end() {
    let (harbour, wraps) = three_messages().await;
    let run = keys::run_partition(&run_id(&dm_trigger_id(&dm_id(&wraps[1]))));
    let mut deaths = 0;
    for _ in 0..10 {
        let (mut app, run) = (harbour.app(), run.clone());
        let died = Judge::install(&mut app, move |writes| {
            let is_its = writes.iter().any(|write| write.key.partition == run);
            if is_its { Verdict::DieBefore } else { Verdict::Pass }
        });
        tokio::select! {
            biased;
            () = died.notified() => deaths += 1,
            answer = tick(&app) => if answer["sweep"]["quarantined"] == json!([wraps[1].id]) {
                break;
            }
        }
        harbour.clock.forward(2 * MINUTE);
    }
    assert_eq!(deaths, 1 + 6);
    assert_over(&harbour, &wraps[1]).await;
}

#[tokio::test]
async fn a_message_for_which_the_store_fails_again_and_again_is_answered_when_it_works() {
    let (harbour, wraps) = three_messages().await;
    // One death makes each of them a suspect.
    assert!(Poison::new(&wraps[1]).tick(&harbour).await.is_none());
    for _ in 0..4 {
        harbour.clock.forward(2 * MINUTE);
        let mut app = harbour.app();
        Judge::install(&mut app, |writes| {
            let noted = [keys::sweep_batch(), keys::sweep_lease()];
            if writes.len() == 1 && noted.contains(&writes[0].key) {
                return Verdict::Pass;
            }
            Verdict::Fail(StoreError::Unavailable("it is ill".to_owned()))
        });
        let answer = tick(&app).await;
        assert_eq!((&answer["success"], outcomes(&answer)), (&json!(false), vec![]), "{answer}");
    }
    harbour.clock.forward(2 * MINUTE);
    let answer = harbour.tick().await;
    assert!(answer["sweep"].get("quarantined").is_none(), "{answer}");
    assert_eq!(harbour.answers(), ["AFTER", "BEFORE", "POISON"]);
}

/// Also one alone, which would be tried in each tick.
#[tokio::test]
async fn a_single_message_is_not_given_up_however_long_the_store_fails() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    let message = wrap_at(&secret(2), "poison", harbour.now(), harbour.now() - HOUR);
    harbour.sea.post(&message);
    assert!(Poison::new(&message).tick(&harbour).await.is_none());
    for _ in 0..9 {
        harbour.clock.forward(2 * MINUTE);
        let mut app = harbour.app();
        Judge::install(&mut app, |writes| {
            let noted = [keys::sweep_batch(), keys::sweep_lease()];
            if writes.len() == 1 && noted.contains(&writes[0].key) {
                return Verdict::Pass;
            }
            Verdict::Fail(StoreError::Unavailable("it is ill".to_owned()))
        });
        let answer = tick(&app).await;
        assert!(answer["sweep"].get("quarantined").is_none(), "{answer}");
    }
    harbour.clock.forward(2 * MINUTE);
    harbour.tick().await;
    assert_eq!(harbour.answers(), ["POISON"]);
}

#[tokio::test]
async fn what_was_found_is_worked_although_the_sweep_could_not_be_saved() {
    let (harbour, _) = three_messages().await;
    let mut app = harbour.app();
    Judge::install(&mut app, |writes| {
        let is_save = writes.iter().any(|write| write.key == keys::sweep_cursors());
        if is_save { Verdict::Fail(StoreError::Unavailable("it is ill".to_owned())) } else { Verdict::Pass }
    });
    let answer = tick(&app).await;
    assert_eq!((&answer["success"], outcomes(&answer)), (&json!(false), vec!["replied"; 3]), "{answer}");
    assert_eq!(answer["sweep"]["error"], json!("the store is unavailable: it is ill"));
    harbour.clock.forward(2 * MINUTE);
    assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
    assert_eq!((harbour.answers().len(), harbour.model.calls()), (3, 3));
}

#[tokio::test]
async fn a_message_that_can_never_be_stored_is_dropped_with_a_reason_and_holds_no_window_open() {
    let (harbour, wraps) = three_messages().await;
    let run = keys::run_partition(&run_id(&dm_trigger_id(&dm_id(&wraps[1]))));
    for new in [3, 2] {
        let (mut app, run) = (harbour.app(), run.clone());
        Judge::install(&mut app, move |writes| {
            let is_its = writes.iter().any(|write| write.key.partition == run);
            let error = StoreError::Invalid("the row is too large".to_owned());
            if is_its { Verdict::Fail(error) } else { Verdict::Pass }
        });
        let answer = tick(&app).await;
        let relay = &answer["sweep"]["relays"][0];
        // Two copies of replies come back.
        assert_eq!((&relay["complete"], &relay["new"]), (&json!(true), &json!(new)), "{answer}");
    }
    assert_eq!(harbour.answers(), ["AFTER", "BEFORE"]);
    let dropped = record::find(&harbour.app(), &run_id(&dm_trigger_id(&wraps[1].id))).await.unwrap().unwrap();
    assert_eq!((dropped.status, dropped.reason.as_deref()), (Status::Dropped, Some("it cannot be stored")));
}
