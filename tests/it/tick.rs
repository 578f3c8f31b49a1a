//! The schedule's tick: nobody pushes anything, and every message is answered once.

mod bounds;
mod cases;
mod deaths;
mod due;
mod relays;
mod time;

use std::sync::Arc;
use std::time::Duration;

use didactyl::llm::scripted::Answer;
use didactyl::record::{Status, dm_trigger_id, run_id};
use didactyl::store::{Range, keys};
use nostr::prelude::Timestamp;
use serde_json::json;

use crate::agent::{
    TestAgent, agent_key, deliver_to, dm_id, echo, hand_over, nip04, nip17, outcomes, secret,
};
use crate::faults::{Fault, FullQueue, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::round_trips::Counter;
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

const MINUTE: Duration = Duration::from_secs(60);

on_each_store! {
    a_message_of_either_kind_is_found_and_answered_by_a_tick_alone,
    a_tick_with_nothing_to_do_makes_two_rounds_to_the_store_and_asks_each_relay_once,
    a_run_whose_process_died_is_taken_up_by_a_tick_after_its_lease,
}

async fn a_message_of_either_kind_is_found_and_answered_by_a_tick_alone(on: On) {
    let agent = TestAgent::over(on, echo).await;
    agent.publish([nip17(&secret(2), "by wrap"), nip04(&secret(2), "by kind 4")]).await;
    agent.publish([nip17(&secret(3), "a stranger's")]).await;
    let answer = tick(&agent.app).await;
    assert_eq!(outcomes(&answer), ["replied", "replied"], "{answer}");
    let relay = &answer["sweep"]["relays"][0];
    assert_eq!((&relay["new"], &relay["complete"]), (&json!(3), &json!(true)), "{answer}");
    let mut texts: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    texts.sort();
    assert_eq!(texts, ["BY KIND 4", "BY WRAP"]);

    // What it answered itself it finds once; after that nothing is new.
    for new in [2, 0, 0] {
        let answer = tick(&agent.another()).await;
        assert_eq!(outcomes(&answer), [""; 0], "{answer}");
        assert_eq!(answer["sweep"]["relays"][0]["new"], json!(new), "{answer}");
    }
    assert_eq!(agent.model.calls(), 2);
    assert_eq!(agent.history(secret(2).public_key()).await.len(), 4);
    assert!(due_rows(&agent).await.is_empty());
}

async fn a_tick_with_nothing_to_do_makes_two_rounds_to_the_store_and_asks_each_relay_once(on: On) {
    let agent = TestAgent::over(on, echo).await;
    // The second one meets the schedule of a skill that the first one read.
    tick(&agent.app).await;
    tick(&agent.app).await;
    let (counter, mut app) = (Counter::default(), agent.another());
    counter.install(&mut app);
    let answer = tick(&app).await;
    assert_eq!(answer["sweep"]["relays"][0]["complete"], json!(true), "{answer}");
    let counts = counter.take();
    // The lease beside four reads; the cursors, the mark of the state, and the lease back.
    assert_eq!((counts.store_rounds, counts.store_calls, counts.rows_written), (2, 6, 1 + 3), "{counts:?}");
    assert_eq!((counts.relay_reads, counts.model_calls, counts.publishes), (1, 0, 0), "{counts:?}");

    // The state that it read counts for the message that comes next.
    let (counter, mut app) = (Counter::default(), agent.another());
    counter.install(&mut app);
    let dm = [nip17(&secret(2), "first")];
    deliver_to(&app, &agent.relay_url, &dm).await.unwrap();
    let asked_for_the_conversation = 1;
    assert_eq!(counter.take().relay_reads, asked_for_the_conversation);
    let (counter, mut app) = (Counter::default(), agent.another());
    counter.install(&mut app);
    deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), "second")]).await.unwrap();
    assert_eq!(counter.take().relay_reads, 0);
}

async fn a_run_whose_process_died_is_taken_up_by_a_tick_after_its_lease(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let dm = nip17(&secret(2), "hello");
    // At the model, with the claim made.
    let fault = Fault::crash(6, Side::Before);
    let mut victim = agent.another();
    fault.install(&mut victim);
    tokio::select! {
        () = fault.crashed() => {}
        answer = deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm)) => panic!("{answer:?}"),
    }
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0], "its lease is not over");
    agent.clock.forward(2 * MINUTE);
    let answer = tick(&agent.another()).await;
    assert_eq!((outcomes(&answer), &answer["due"]), (vec!["replied"], &json!(1)), "{answer}");
    assert_eq!(agent.replies().await.len(), 1);
    assert!(due_rows(&agent).await.is_empty());
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!((record.status, record.due_at), (Status::Done, None));
}

/// The runs that are due at some time.
async fn due_rows(agent: &TestAgent) -> Vec<String> {
    let rows = agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
    rows.into_iter().map(|row| row.key.sort).collect()
}

#[tokio::test]
async fn each_run_that_is_not_over_has_one_due_row() {
    let agent = TestAgent::with_script(|asked| match asked.number {
        1 => Answer::Refusal(500, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
        _ => echo(asked),
    })
    .await;
    let dm = nip17(&secret(2), "hello");
    agent.try_deliver(std::slice::from_ref(&dm)).await.unwrap_err();
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    let rows = due_rows(&agent).await;
    assert_eq!(rows, [format!("{:012}#{}", record.due_at.unwrap(), record.run_id)]);
    // It waits half a minute, however many ticks there are.
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);
    agent.clock.forward(MINUTE);
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"]);
    assert!(due_rows(&agent).await.is_empty());
}

#[tokio::test]
async fn with_a_queue_a_tick_only_stores_and_queues() {
    let agent = TestAgent::start().await;
    let queue = Arc::new(MemoryQueue::default());
    let mut app = agent.another();
    app.queue = Some(queue.clone());
    let dm = nip17(&secret(2), "hello");
    agent.publish([dm.clone()]).await;
    let answer = tick(&app).await;
    assert_eq!(outcomes(&answer), ["queued"], "{answer}");
    let run = run_id(&dm_trigger_id(&dm_id(&dm)));
    assert_eq!((queue.taken(), agent.model.calls()), (vec![(run.clone(), Duration::ZERO)], 0));

    // The queue lost it: it is asked again, and then not each minute.
    agent.clock.forward(3 * MINUTE);
    assert_eq!(outcomes(&tick(&app).await), ["queued"]);
    agent.clock.forward(3 * MINUTE);
    assert_eq!(outcomes(&tick(&app).await), [""; 0]);
    assert_eq!(queue.taken().len(), 2);

    let resumed = hand_over(&app, &json!({"type": "resume", "run": run}).to_string()).await;
    assert_eq!(outcomes(&resumed), ["replied"]);
    assert!(due_rows(&agent).await.is_empty());
}

#[tokio::test]
async fn what_no_queue_took_is_queued_by_a_later_tick() {
    let agent = TestAgent::start().await;
    let mut app = agent.another();
    app.queue = Some(Arc::new(FullQueue));
    agent.publish([nip17(&secret(2), "hello")]).await;
    let answer = tick(&app).await;
    assert_eq!(outcomes(&answer), ["unfinished"], "{answer}");

    let queue = Arc::new(MemoryQueue::default());
    app.queue = Some(queue.clone());
    agent.clock.forward(3 * MINUTE);
    assert_eq!(outcomes(&tick(&app).await), ["queued"]);
    assert_eq!(queue.taken().len(), 1);
}

#[tokio::test]
async fn of_two_ticks_at_once_one_sweeps_and_each_message_is_answered_once() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.sea.post(&wrap_at(&secret(2), "hello", harbour.now(), harbour.now()));
    let pages = harbour.sea.keep_pages_back().await;
    let (sweeps, finds_it_held) = tokio::join!(harbour.tick(), async {
        harbour.sea.asked_for(1).await;
        let answer = harbour.tick().await;
        drop(pages);
        answer
    });
    assert_eq!(outcomes(&sweeps), ["replied"], "{sweeps}");
    assert_eq!((&finds_it_held["sweep"], outcomes(&finds_it_held)), (&json!("held"), vec![""; 0]));
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["HELLO".to_owned()], 1));
}

#[tokio::test]
async fn a_tick_that_comes_late_leaves_the_relays_alone() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let (app, now) = (harbour.app(), harbour.now());
    let at = |time: Timestamp| {
        let time = didactyl::tools::time::iso(time);
        json!({"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": time}).to_string()
    };
    assert_eq!(hand_over(&app, &at(now - 150)).await["sweep"], json!("late"));
    assert_eq!(harbour.sea.pages(1), 0);
    assert_eq!(hand_over(&app, &at(now - 60)).await["sweep"]["relays"][0]["complete"], json!(true));
    assert_eq!(harbour.sea.pages(1), 1);
}

#[tokio::test]
async fn a_reply_that_no_relay_took_is_sent_again_by_a_later_tick() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.sea.post(&wrap_at(&secret(2), "hello", harbour.now(), harbour.now()));
    harbour.sea.refuse_events(true);
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["unfinished"], "{answer}");
    assert_eq!(harbour.answers(), [""; 0]);

    harbour.sea.refuse_events(false);
    harbour.clock.forward(MINUTE);
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["HELLO".to_owned()], 1));
}

#[tokio::test]
async fn a_message_that_is_dated_ahead_waits_for_its_time() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let now = harbour.now();
    harbour.sea.post(&wrap_at(&secret(2), "a wrap ahead", now + 3600, now - 3600));
    harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "a kind 4 ahead", now + 3600));
    let next_year = now + 365 * 24 * 3600;
    harbour.sea.post(&nip04_at(&secret(3), &agent_key(), "a stranger's", next_year));
    let mut shown = Vec::new();
    for _ in 0..2 {
        let answer = harbour.tick().await;
        assert_eq!(outcomes(&answer), [""; 0]);
        shown.push(answer["sweep"]["relays"][0]["events"].as_u64().unwrap());
    }
    // What no sweep can deal with yet is not read again and again.
    assert_eq!(shown, [1, 1]);
    harbour.clock.forward(Duration::from_secs(3600 - 800));
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied", "replied"], "{answer}");
    assert_eq!(harbour.answers(), ["A KIND 4 AHEAD", "A WRAP AHEAD"]);
}
