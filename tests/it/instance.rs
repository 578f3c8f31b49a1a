//! Another instance that uses the agent's key is told of once, and the agent never takes itself for one.

use std::time::Duration;

use didactyl::app::App;
use didactyl::notices::{Fact, raise};
use didactyl::store::{Expect, Range, Write, keys};
use nostr::prelude::{Event, Filter, Kind, Timestamp};
use serde_json::json;

use crate::agent::{TestAgent, agent_key, echo, hand_over, nip17, outcomes, secret};
use crate::faults::{Judge, Verdict};
use crate::ground::{On, on_each_store};
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

on_each_store! {
    our_own_messages_by_any_door_are_no_sign_of_another_instance,
}

/// The facts that were raised.
async fn facts(app: &App) -> Vec<String> {
    let rows = app.store.list(&Range::whole(keys::NOTICES_PARTITION)).await.unwrap();
    rows.into_iter().map(|row| row.key.sort).collect()
}

async fn our_own_messages_by_any_door_are_no_sign_of_another_instance(on: On) {
    let agent = TestAgent::over(on, echo).await;
    tick(&agent.app).await;
    agent.clock.forward(HOUR);
    // An answer, and a notice.
    agent.publish([nip17(&secret(2), "hello")]).await;
    raise(&agent.app, &Fact::NoTriggers).await.unwrap();
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"; 2]);
    tick(&agent.another()).await;
    let own = agent.on_relay(Filter::new().kind(Kind::from(1059)).pubkey(agent_key())).await;
    for event in &own {
        hand_over(&agent.another(), &serde_json::to_string(event).unwrap()).await;
    }
    assert!(own.len() >= 3, "{own:?}");
    assert_eq!(facts(&agent.app).await, ["older-rule"]);

    // What the history has forgotten is too old to be news.
    let range = Range::whole(keys::conversation(&secret(2).public_key()));
    let rows = agent.app.store.list(&range).await.unwrap();
    let gone: Vec<Write> = rows.into_iter().map(|row| Write::delete(row.key, Expect::Anything)).collect();
    agent.app.store.write(&gone).await.unwrap();
    agent.clock.forward(2 * DAY);
    let payload = json!({"type": "relay", "events": own}).to_string();
    hand_over(&agent.another(), &payload).await;
    tick(&agent.another()).await;
    assert_eq!(facts(&agent.app).await, ["older-rule"]);
}

/// An agent that has run for an hour, and another instance with another store.
async fn two_instances() -> (Harbour, App, crate::ground::Ground) {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.clock.forward(HOUR);
    let (other, ground) = harbour.elsewhere().await;
    (harbour, other, ground)
}

fn message(harbour: &Harbour, text: &str) -> Event {
    wrap_at(&secret(2), text, harbour.now(), harbour.now())
}

#[tokio::test]
async fn another_instance_is_told_of_once() {
    let (harbour, other, _ground) = two_instances().await;
    for number in 0..3 {
        harbour.sea.post(&message(&harbour, &format!("message {number}")));
        tick(&other).await;
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    assert_eq!(facts(&harbour.app()).await, ["instance"]);
    let told = |text: &String| text.starts_with("Somebody else writes with my key");
    assert_eq!(harbour.answers().iter().filter(|text| told(text)).count(), 1, "{:?}", harbour.answers());
}

/// The bridge is faster than the sweep, which then finds the message known.
#[tokio::test]
async fn another_instance_shows_by_any_door() {
    let (harbour, ..) = two_instances().await;
    let sent = nip04_at(&secret(1), &secret(2).public_key(), "the other's", harbour.now());
    let app = harbour.app();
    let answer = hand_over(&app, &serde_json::to_string(&sent).unwrap()).await;
    assert_eq!(outcomes(&answer), ["recorded"], "{answer}");
    assert_eq!(facts(&app).await, ["instance"]);
}

#[tokio::test]
async fn a_process_that_ends_once_the_message_is_kept_hides_no_other_instance() {
    let (harbour, ..) = two_instances().await;
    let sent = nip04_at(&secret(1), &secret(2).public_key(), "the other's", harbour.now());
    let sent = serde_json::to_string(&sent).unwrap();
    let mut app = harbour.app();
    let conversation = keys::conversation(&secret(2).public_key());
    let died = Judge::install(&mut app, move |writes| {
        let is_kept = writes.iter().any(|write| write.key.partition == conversation);
        if is_kept { Verdict::DieAfter } else { Verdict::Pass }
    });
    tokio::select! {
        () = died.notified() => {}
        answer = hand_over(&app, &sent) => panic!("{answer}"),
    }
    hand_over(&harbour.app(), &sent).await;
    assert_eq!(
        (facts(&harbour.app()).await, harbour.history().await.len()),
        (vec!["instance".to_owned()], 1)
    );
}

#[tokio::test]
async fn another_instance_shows_in_what_a_run_reads_of_its_conversation() {
    let (harbour, ..) = two_instances().await;
    harbour.sea.post(&nip04_at(&secret(1), &secret(2).public_key(), "the other's", harbour.now()));
    harbour.clock.forward(MINUTE);
    let app = harbour.app();
    let answer = hand_over(&app, &serde_json::to_string(&message(&harbour, "hello")).unwrap()).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!((facts(&app).await, harbour.history().await.len()), (vec!["instance".to_owned()], 3));
}

#[tokio::test]
async fn what_was_written_before_the_start_or_while_it_changed_hands_is_no_sign() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let own = |text: &str, at: Timestamp| nip04_at(&secret(1), &secret(2).public_key(), text, at);
    harbour.sea.post(&own("before", harbour.now() - 600));
    harbour.tick().await;
    harbour.clock.forward(10 * MINUTE);
    harbour.sea.post(&own("an old process still at work", harbour.now()));
    harbour.tick().await;
    assert_eq!(facts(&harbour.app()).await, [""; 0]);
    assert_eq!(harbour.history().await.len(), 2);
    harbour.clock.forward(10 * MINUTE);
    harbour.sea.post(&own("now", harbour.now()));
    harbour.tick().await;
    assert_eq!(facts(&harbour.app()).await, ["instance"]);
}

#[tokio::test]
async fn in_standby_and_of_that_time_another_instance_is_what_one_expects() {
    let (mut harbour, other, _ground) = two_instances().await;
    harbour.set_var("DIDACTYL_STANDBY", "true");
    harbour.sea.post(&message(&harbour, "one"));
    tick(&other).await;
    harbour.tick().await;
    harbour.clock.forward(HOUR);
    harbour.sea.post(&message(&harbour, "two"));
    tick(&other).await;
    harbour.clock.forward(MINUTE);
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.tick().await;
    assert_eq!(facts(&harbour.app()).await, [""; 0]);
    assert_eq!(harbour.answers(), ["ONE", "TWO"]);
    // From then on it is not.
    harbour.clock.forward(HOUR);
    harbour.sea.post(&message(&harbour, "three"));
    tick(&other).await;
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    assert_eq!(facts(&harbour.app()).await, ["instance"]);
}
