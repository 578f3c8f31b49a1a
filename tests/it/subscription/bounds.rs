//! How much of it there may be: runs a day, pages a tick, and what relays refuse.

use didactyl::store::{Range, keys};
use nostr::prelude::Event;
use serde_json::json;

use super::*;
use crate::agent::outcomes;
use crate::round_trips::Counter;
use crate::sea::{nip04_at, tick};

#[tokio::test]
async fn a_skill_is_fired_as_often_a_day_as_it_may_and_the_admin_is_told_once() {
    let harbour = subscribed(&[Manner::Gives(500)], &[&["max_runs", "2"]]).await;
    // The day is long enough for all of it.
    let next_day = |harbour: &Harbour| {
        let today = harbour.now().as_secs() / DAY.as_secs();
        harbour.clock.set(Timestamp::from((today + 1) * DAY.as_secs()));
    };
    next_day(&harbour);
    let notes: Vec<Event> = (1..=4)
        .map(|n| note_at(&secret(3), &format!("note {n}"), &[&["t", "didactyl"]], harbour.now() + n))
        .collect();
    harbour.sea.post_all(notes[..3].to_vec());
    let answer = harbour.tick().await;
    assert_eq!(answer["sweep"]["over_limit"], json!(1), "{answer}");
    harbour.sea.post(&notes[3]);
    harbour.tick().await;
    let about = |harbour: &Harbour| {
        let requests = harbour.model.requests();
        requests.iter().filter(|asked| asked.last_text("user").contains("note ")).count()
    };
    assert_eq!(about(&harbour), 2);
    let mut ran = Vec::new();
    for event in &notes {
        ran.push(run_of(&harbour, event).await.is_some());
    }
    assert_eq!(ran, [true, true, false, false]);
    let said = harbour.answers();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("My skill \"reader\" was fired by 2 events today"), "{said:?}");

    next_day(&harbour);
    harbour.sea.post(&note(&harbour, "note 5"));
    harbour.tick().await;
    harbour.tick().await;
    assert_eq!((about(&harbour), harbour.answers().len()), (3, 1));
}

#[tokio::test]
async fn a_run_has_only_the_skills_that_may_run_once_more() {
    let harbour = Harbour::new(&[Manner::Gives(500)], done).await;
    let trigger: &[&str] = &["trigger", "subscription", DIDACTYL];
    adopt(&harbour, &[skill("often", &[trigger]), skill("never", &[trigger, &["max_runs", "0"]])]);
    harbour.tick().await;
    let event = note(&harbour, "hello");
    harbour.sea.post(&event);
    harbour.tick().await;
    let ran: Vec<String> =
        run_of(&harbour, &event).await.unwrap().skills.into_iter().map(|(skill, _)| skill).collect();
    assert_eq!(ran, [format!("31123:{}:often", agent_key())]);
}

#[tokio::test]
async fn a_tick_with_nothing_to_do_makes_two_rounds_to_the_store_and_asks_each_relay_once() {
    let harbour = subscribed(&[Manner::Gives(500); 2], &[]).await;
    harbour.sea.post(&note(&harbour, "known"));
    harbour.tick().await;
    harbour.tick().await;
    let (counter, mut app) = (Counter::default(), harbour.app());
    counter.install(&mut app);
    let answer = tick(&app).await;
    assert_eq!(told(&answer), &json!({"events": 1, "new": 0, "complete": true}), "{answer}");
    let counts = counter.take();
    assert_eq!((counts.store_rounds, counts.store_calls, counts.relay_reads), (2, 6, 2), "{counts:?}");
}

#[tokio::test]
async fn a_flood_of_events_is_read_within_its_share_and_holds_up_no_message() {
    let harbour = subscribed(&[Manner::Gives(100)], &[&["max_runs", "3"]]).await;
    let began = harbour.now();
    let flood =
        (0..2_000).map(|n| note_at(&secret(3), &format!("{n}"), &[&["t", "didactyl"]], began + n / 4));
    harbour.clock.forward(Duration::from_secs(500));
    harbour.sea.post_all(flood.collect());
    harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "hello", harbour.now()));
    let answer = harbour.tick().await;
    let relay = &answer["sweep"]["relays"][0];
    assert_eq!((&relay["complete"], &relay["new"]), (&json!(true), &json!(1)), "{relay}");
    assert_eq!(relay["subscriptions"]["complete"], json!(false), "{relay}");
    let mut ticks = 1;
    loop {
        let answer = harbour.tick().await;
        ticks += 1;
        if told(&answer)["complete"] == json!(true) {
            break;
        }
        assert!(ticks < 20, "{answer}");
    }
    // Nothing is left out, and nothing is shown as new again.
    assert_eq!(told(&harbour.tick().await)["new"], json!(0));
    let records = harbour.app().store.list(&Range::whole(keys::RUNS_PARTITION)).await.unwrap();
    let notice = 1;
    assert_eq!(records.len(), 3 + 1 + notice);
}

#[tokio::test]
async fn a_relay_that_refuses_the_subscription_still_shows_messages_and_is_spared_it_after_a_while() {
    let harbour = subscribed(&[Manner::NoHashtags], &[]).await;
    let mut pages = Vec::new();
    for minute in 0..8 {
        let text = format!("hello {minute}");
        harbour.sea.post(&nip04_at(&secret(2), &agent_key(), &text, harbour.now()));
        let before = harbour.sea.pages(1);
        let answer = harbour.tick().await;
        pages.push(harbour.sea.pages(1) - before);
        assert_eq!(answer["sweep"]["relays"][0]["complete"], json!(true), "{answer}");
        harbour.clock.forward(MINUTE);
    }
    assert_eq!(harbour.model.calls(), 8);
    // What it shows is told, and what it refuses.
    let answer = harbour.tick().await;
    assert_eq!(told(&answer), &json!(null), "{answer} {pages:?}");
    // It changes its mind.
    harbour.sea.set(1, Manner::Gives(500));
    harbour.sea.post(&note(&harbour, "late"));
    harbour.clock.forward(10 * MINUTE);
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["done"], "{answer}");
}

#[tokio::test]
async fn what_no_relay_takes_beside_the_messages_is_asked_for_alone() {
    let harbour = Harbour::new(&[Manner::Gives(500)], done).await;
    // Too many different filters for one request.
    let filters: Vec<String> = (0..15).map(|n| format!(r##"{{"kinds":[{n}1],"#t":["x{n}"]}}"##)).collect();
    let triggers: Vec<[&str; 3]> = filters.iter().map(|filter| ["trigger", "subscription", filter]).collect();
    let tags: Vec<&[&str]> = triggers.iter().map(|tag| &tag[..]).collect();
    adopt(&harbour, &[skill("reader", &tags)]);
    harbour.tick().await;
    let event = EventBuilder::new(Kind::from(71), "the eighth")
        .tag(Tag::parse(["t", "x7"]).unwrap())
        .custom_created_at(harbour.now())
        .finalize(&secret(3))
        .unwrap();
    harbour.sea.post(&event);
    harbour.tick().await;
    assert_eq!(asked_about(&harbour), ["the eighth"]);
}
