//! The same message again and again, one after another and at once, in one process and in many: one model call, one
//! reply.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use didactyl::app::{App, LEASE_MARGIN};
use didactyl::llm::scripted::Answer;
use didactyl::record::{self, Status, dm_trigger_id};
use futures_util::future::join_all;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::prelude::{Event, Filter, FinalizeEvent, Kind, RelayUrl, Timestamp};
use serde_json::{Value, json};

use crate::agent::{
    BUDGET, TestAgent, agent_key, deliver_to, dm_id, echo, nip04, nip17, nip17_at, outcomes, rumor, secret,
};
use crate::ground::{On, on_each_store};
use crate::runtime_api::Function;
use crate::sea::tick;

on_each_store! {
    a_message_that_comes_ten_times_is_answered_once,
    a_message_that_comes_ten_times_at_once_is_answered_once,
    a_message_that_comes_to_several_processes_at_once_is_answered_once,
    a_message_that_comes_twice_in_one_payload_is_answered_once,
    our_own_copies_come_back_and_change_nothing,
    a_flood_of_messages_each_three_times_in_any_order_gets_a_reply_to_each,
}

/// One message in the forms that it may be delivered in.
fn messages() -> [Vec<Event>; 3] {
    let author = secret(2);
    let rumor = rumor(&author, "hello", Timestamp::now());
    let wrap = || GiftWrapBuilder::new(agent_key(), rumor.clone()).finalize(&author).unwrap();
    [vec![nip04(&author, "hello")], vec![nip17(&author, "hello")], vec![wrap(), wrap()]]
}

/// One model call, one reply, both sides in the conversation, and a record that says so.
async fn assert_answered_once(agent: &TestAgent, message: &Event) {
    assert_eq!((agent.model.calls(), agent.model.refusals()), (1, vec![]));
    let replies = agent.replies().await;
    let [(id, text)] = replies.as_slice() else { panic!("{replies:?}") };
    assert_eq!(text, "HELLO");
    let record = agent.record(&dm_trigger_id(&dm_id(message))).await;
    assert_eq!((record.status, record.attempt), (Status::Done, 1));
    assert_eq!(record.reply_ids, [*id]);
    assert_eq!(
        agent.history(secret(2).public_key()).await,
        [("peer", "hello".to_owned()), ("agent", "HELLO".to_owned())]
    );
}

/// What a delivery may say while others are at the same message.
fn assert_replied_or_busy(answers: &[Value]) {
    let told: BTreeSet<&str> = answers.iter().flat_map(outcomes).collect();
    assert!(told.contains("replied") && told.is_subset(&BTreeSet::from(["replied", "busy"])), "{told:?}");
}

async fn a_message_that_comes_ten_times_is_answered_once(on: On) {
    for copies in messages() {
        let agent = TestAgent::over(on, echo).await;
        for (_, copy) in (0..10).zip(copies.iter().cycle()) {
            let answer = agent.deliver(std::slice::from_ref(copy)).await;
            assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        }
        assert_answered_once(&agent, &copies[0]).await;
    }
}

async fn a_message_that_comes_ten_times_at_once_is_answered_once(on: On) {
    for copies in messages() {
        let agent = TestAgent::over(on, echo).await;
        let apps = others(&agent, 4);
        let tasks = (0..10).zip(apps.iter().cycle()).zip(copies.iter().cycle()).map(|((_, app), copy)| {
            tokio::spawn(deliver(Arc::clone(app), agent.relay_url.clone(), copy.clone()))
        });
        let answers: Vec<Value> = join_all(tasks).await.into_iter().map(Result::unwrap).collect();
        assert_replied_or_busy(&answers);
        assert_answered_once(&agent, &copies[0]).await;
    }
}

async fn a_message_that_comes_to_several_processes_at_once_is_answered_once(on: On) {
    for copies in messages() {
        let agent = TestAgent::over(on, echo).await;
        let vars = agent.vars();
        let mut functions = join_all((0..4).map(|_| Function::start(&vars))).await;
        let mut answers = Vec::new();
        for (_, copy) in (0..3).zip(copies.iter().cycle()) {
            let payload =
                json!({"type": "relay", "events": [copy], "relay": agent.relay_url.to_string()}).to_string();
            let round = join_all(functions.iter_mut().map(|function| function.invoke(&payload))).await;
            answers.extend(round.into_iter().map(Result::unwrap));
        }
        assert_replied_or_busy(&answers);
        assert_answered_once(&agent, &copies[0]).await;
    }
}

async fn a_message_that_comes_twice_in_one_payload_is_answered_once(on: On) {
    for copies in messages() {
        let agent = TestAgent::over(on, echo).await;
        let batch: Vec<Event> = copies.iter().cycle().take(4).cloned().collect();
        assert_eq!(outcomes(&agent.deliver(&batch).await), ["replied"; 4]);
        assert_answered_once(&agent, &copies[0]).await;
    }
}

/// A bridge pushes what it finds, the agent's own copies too, and it may be faster than the clock's second.
async fn our_own_copies_come_back_and_change_nothing(on: On) {
    let paragraph = "word ".repeat(3_000);
    let long = [paragraph.trim_end(); 4].join("\n\n");
    let expected: Vec<(&str, String)> = [("peer", "hello".to_owned())]
        .into_iter()
        .chain(long.split_inclusive("\n\n").map(|part| ("agent", part.to_owned())))
        .collect();
    let agent = TestAgent::over(on, move |_| Answer::Text(long.clone())).await;
    agent.deliver(&[nip17(&secret(2), "hello")]).await;
    let copies = agent.on_relay(Filter::new().kind(Kind::from(1059)).pubkey(agent_key())).await;
    assert_eq!(copies.len(), 4);
    assert_eq!(outcomes(&agent.deliver(&copies).await), ["recorded"; 4]);
    assert_eq!(agent.model.calls(), 1);
    assert_eq!(agent.history(secret(2).public_key()).await, expected);
}

/// How many messages the flood has, and how often each is delivered. The emulator of DynamoDB answers one request at a time.
const TIMES: usize = 3;

fn messages_of_flood(on: On) -> usize {
    if on == On::Sqlite { 200 } else { 40 }
}

async fn a_flood_of_messages_each_three_times_in_any_order_gets_a_reply_to_each(on: On) {
    let count = messages_of_flood(on);
    let agent = TestAgent::over(on, echo).await;
    let now = Timestamp::now();
    let messages: Vec<Event> = (0..count)
        .map(|n| match n % 2 {
            0 => nip17_at(&secret(2), &format!("message {n}"), now),
            _ => nip04(&secret(2), &format!("message {n}")),
        })
        .collect();
    let mut deliveries: Vec<(usize, &Event)> =
        (0..TIMES).flat_map(|time| messages.iter().map(move |message| (time, message))).collect();
    // The ids differ each time, and so does the order.
    deliveries.sort_by_key(|(time, message)| {
        let mut hasher = DefaultHasher::new();
        (time, message.id).hash(&mut hasher);
        hasher.finish()
    });

    let apps = others(&agent, 8);
    let tasks = apps.into_iter().enumerate().map(|(worker, app)| {
        let share: Vec<Event> =
            deliveries.iter().skip(worker).step_by(8).map(|(_, message)| (*message).clone()).collect();
        let relay = agent.relay_url.clone();
        tokio::spawn(async move {
            let mut answers = Vec::new();
            for message in share {
                // An invocation that had no time left for it asks for another delivery: the ticks below.
                answers.extend(deliver_to(&app, &relay, &[message]).await);
            }
            answers
        })
    });
    let answers: Vec<Value> = join_all(tasks).await.into_iter().flat_map(Result::unwrap).collect();

    assert_replied_or_busy(&answers);
    // What slow workers left.
    for _ in 0..20 {
        if !record::unfinished(&agent.app).await.unwrap().is_empty() {
            agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
            tick(&agent.another()).await;
        }
    }
    // A worker that was cut off may have asked for an answer that it could not keep.
    let is_slow = answers.len() < count * TIMES;
    assert!(agent.model.calls() == count || is_slow && agent.model.calls() > count);
    let texts = |name: &'static str| (0..count).map(move |n| format!("{name} {n}")).collect::<BTreeSet<_>>();
    let replies = agent.replies().await;
    assert_eq!(replies.len(), count);
    assert_eq!(replies.into_iter().map(|(_, text)| text).collect::<BTreeSet<_>>(), texts("MESSAGE"));
    let history = agent.history(secret(2).public_key()).await;
    assert_eq!(history.len(), 2 * count);
    let said: BTreeSet<String> = history.into_iter().map(|(_, text)| text).collect();
    assert_eq!(said, texts("MESSAGE").union(&texts("message")).cloned().collect());
}

/// The same agent in `count` more processes.
fn others(agent: &TestAgent, count: usize) -> Vec<Arc<App>> {
    (0..count).map(|_| Arc::new(agent.another())).collect()
}

async fn deliver(app: Arc<App>, relay: RelayUrl, message: Event) -> Value {
    deliver_to(&app, &relay, &[message]).await.unwrap()
}
