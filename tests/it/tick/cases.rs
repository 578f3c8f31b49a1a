//! Faults of other agents that read relays on a schedule, as inputs for this one. Each test names its row of the case list.

use didactyl::clock::Deadline;
use didactyl::handler::handle;
use didactyl::store::keys;
use nostr::prelude::{
    Event, EventBuilder, EventId, FinalizeEvent, Keys, Kind, Tag, Timestamp, UnsignedEvent,
};
use serde_json::{Value, json};

use crate::agent::{BUDGET, Log, TestAgent, agent_key, echo, nip04, nip44_to_agent, outcomes, secret};
use crate::doors::{batch, record, relay_form};
use crate::sea::{Harbour, Manner, nip04_at, wrap_at};

use super::MINUTE;
use super::bounds::junk;

const HOUR: u64 = 60 * 60;

/// When the only relay was last read in full.
async fn complete_at(harbour: &Harbour) -> u64 {
    let rows = harbour.app().store.read(&[keys::sweep_cursors()]).await.unwrap();
    let cursors: Value = serde_json::from_slice(&rows[0].as_ref().unwrap().value).unwrap();
    cursors["relays"].as_object().unwrap().values().next().unwrap()["cursor"]["complete_at"].as_u64().unwrap()
}

#[tokio::test]
async fn b005_wraps_dated_two_days_early_or_ahead_are_read_and_the_cursor_is_our_own_clock() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let last = Timestamp::from(1_803_902_400);
    for tick_at in [last - 24 * HOUR, last] {
        harbour.clock.set(tick_at);
        harbour.tick().await;
    }
    let written = Timestamp::from(1_803_902_395);
    harbour.sea.post(&wrap_at(&secret(2), "early", written, Timestamp::from(1_803_730_000)));
    harbour.sea.post(&wrap_at(&secret(2), "ahead", written, Timestamp::from(1_804_070_000)));
    let before = harbour.now().as_secs();
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied", "replied"], "{answer}");
    assert_eq!(harbour.answers(), ["AHEAD", "EARLY"]);
    let cursor = complete_at(&harbour).await;
    assert!((before..=harbour.now().as_secs()).contains(&cursor), "{cursor}");
}

#[tokio::test]
async fn b007_two_hundred_wraps_that_nobody_can_open_are_tried_once_and_hold_up_nothing() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let now = harbour.now();
    harbour.sea.post_all(junk(200, now, 800));
    harbour.sea.post(&wrap_at(&secret(2), "good", now + 1, now - HOUR));
    let mut new = Vec::new();
    for _ in 0..3 {
        let answer = harbour.tick().await;
        new.push(answer["sweep"]["relays"][0]["new"].as_u64().unwrap());
        assert_eq!(harbour.answers(), ["GOOD"]);
        harbour.clock.forward(MINUTE);
    }
    // The agent's own copy of its reply, and nothing more.
    assert_eq!(new, [201, 1, 0]);
}

#[tokio::test]
async fn b009_one_message_that_a_bridge_replays_eleven_times_over_three_cold_starts_is_answered_once() {
    let agent = TestAgent::start().await;
    let at = agent.app.clock.now() - 61_200;
    let dm = nip04_at(&secret(2), &agent_key(), "hello", at);
    let hand_over = async |app: &didactyl::app::App, copy: usize| {
        let body = relay_form(std::slice::from_ref(&dm));
        let payload = batch(&[record(&format!("copy-{copy}"), &body)]).to_string();
        handle(app, &payload, Deadline::after(BUDGET)).await.unwrap()
    };
    let (first, second, third) = (agent.another(), agent.another(), agent.another());
    for copy in 0..3 {
        hand_over(&first, copy).await;
    }
    tokio::join!(hand_over(&second, 3), hand_over(&second, 4), hand_over(&second, 5), hand_over(&second, 6));
    for copy in 7..11 {
        hand_over(&third, copy).await;
    }
    assert_eq!((agent.model.calls(), agent.replies().await.len()), (1, 1));
}

#[tokio::test]
async fn b009_a_message_above_the_age_limit_is_history_and_not_answered() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    let written = harbour.now() + 1;
    harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "old", written));
    // The sweep did not come for eight days.
    harbour.clock.forward(8 * 24 * 60 * MINUTE);
    assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
    assert_eq!(harbour.model.calls(), 0);
    assert_eq!(harbour.history().await, [(false, "old".to_owned())]);
}

/// A message of the agent's own, answering `to`, in the wrap that it sends to itself.
fn own_copy(text: &str, at: Timestamp, to: &EventId) -> Event {
    let admin = secret(2).public_key();
    let tags = [Tag::public_key(admin), Tag::event(*to)];
    let rumor = json!(UnsignedEvent::new(agent_key(), at, Kind::from(14), tags, text)).to_string();
    let seal = EventBuilder::new(Kind::from(13), nip44_to_agent(&secret(1), &rumor)).custom_created_at(at);
    let signer = Keys::generate();
    let content = nip44_to_agent(&signer, &seal.finalize(&secret(1)).unwrap().as_json());
    let wrap = EventBuilder::new(Kind::from(1059), content).tag(Tag::public_key(agent_key()));
    wrap.custom_created_at(at - HOUR).finalize(&signer).unwrap()
}

#[tokio::test]
async fn b069_a_first_start_on_a_key_with_forty_messages_answers_the_one_that_is_open() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let (admin, agent, now) = (secret(2), secret(1), harbour.now());
    for n in 0..40u64 {
        let at = now - (40 - n) * 4_300;
        let text = format!("message {n}");
        let is_wrap = n.is_multiple_of(2);
        let message = if is_wrap {
            wrap_at(&admin, &text, at, at - HOUR)
        } else {
            nip04_at(&admin, &agent_key(), &text, at)
        };
        harbour.sea.post(&message);
        let answer = format!("answer {n}");
        match n {
            39 => {}
            _ if is_wrap => harbour.sea.post(&own_copy(&answer, at + 60, &crate::agent::dm_id(&message))),
            _ => {
                let content = nostr::nips::nip04::encrypt(agent.secret_key(), &admin.public_key(), answer);
                let tags = [Tag::public_key(admin.public_key()), Tag::event(message.id)];
                let reply = EventBuilder::new(Kind::from(4), content.unwrap()).tags(tags);
                harbour.sea.post(&reply.custom_created_at(at + 60).finalize(&agent).unwrap());
            }
        }
    }
    for _ in 0..3 {
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    let asked: Vec<String> =
        harbour.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect();
    assert_eq!(asked, ["message 39"]);
    assert_eq!(harbour.history().await.len(), 40 + 39 + 1);
}

#[tokio::test]
async fn b075_a_soul_that_another_client_published_is_found_by_a_tick_and_kept_while_all_relays_fail() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let soul = |text: &str, at: u64| {
        let soul = EventBuilder::new(Kind::from(31120), text).tag(Tag::identifier("soul"));
        soul.custom_created_at(Timestamp::from(at)).finalize(&secret(1)).unwrap()
    };
    let asked = || {
        let requests = harbour.model.requests();
        requests.last().unwrap().messages()[0]["content"].as_str().unwrap().to_owned()
    };
    harbour.clock.set(Timestamp::from(1_803_000_060));
    harbour.sea.post(&soul("The first soul.", 1_803_000_000));
    harbour.tick().await;
    harbour.sea.post(&wrap_at(&secret(2), "one", harbour.now(), harbour.now()));
    harbour.tick().await;
    assert_eq!(asked(), "The first soul.");

    harbour.clock.set(Timestamp::from(1_803_900_060));
    harbour.sea.post(&soul("The second soul.", 1_803_900_000));
    harbour.tick().await;
    harbour.sea.post(&wrap_at(&secret(2), "two", harbour.now(), harbour.now()));
    harbour.tick().await;
    assert_eq!(asked(), "The second soul.");

    harbour.sea.set(1, Manner::Down);
    harbour.clock.forward(10 * MINUTE);
    let log = Log::default();
    let logged = log.clone().start();
    let at = harbour.now();
    let content = nip04(&secret(2), "three").content;
    let three = EventBuilder::new(Kind::from(4), content).tag(Tag::public_key(agent_key()));
    let three = three.custom_created_at(at).finalize(&secret(2)).unwrap();
    let _ = handle(&harbour.app(), &relay_form(&[three]), Deadline::after(BUDGET)).await;
    drop(logged);
    assert_eq!(asked(), "The second soul.");
    assert!(log.text().contains("is stale, and is used"), "{}", log.text());
}
