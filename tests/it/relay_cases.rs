//! Faults of other agents' dealings with relays, as inputs for this one. Each test names its row of the case list.

use std::collections::BTreeMap;
use std::time::Duration;

use didactyl::app::App;
use didactyl::kinds;
use didactyl::store::keys;
use didactyl::trigger::{Dm, Protocol, Source, Tier, Trigger};
use nostr::prelude::{Event, EventBuilder, EventId, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};

use crate::agent::{
    TestAgent, TestClock, app_over, config, deliver_to, echo, load, load_from_store, nip04, outcomes, secret,
    trigger,
};
use crate::fake_relay::FakeRelay;
use crate::ground::{Ground, On};

fn signed(author: &Keys, kind: Kind, tags: &[&[&str]], content: &str, at: Timestamp) -> Event {
    let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(kind, content).tags(tags).custom_created_at(at).finalize(author).unwrap()
}

/// An agent with this key over these relays, in a process of its own.
fn app(agent: &Keys, relays: &[&FakeRelay], ground: &Ground, clock: &TestClock) -> App {
    let urls: Vec<String> = relays.iter().map(|relay| relay.own().url.to_string()).collect();
    let vars = BTreeMap::from([
        ("DIDACTYL_NSEC", agent.secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(3).public_key().to_hex()),
        ("DIDACTYL_RELAYS", urls.join(",")),
        ("DIDACTYL_LLM", "ollama/none".to_owned()),
    ]);
    app_over(config(&vars), ground.open(clock.clock()), clock)
}

/// A message of the admin's that arrived now.
fn message(app: &App) -> Trigger {
    let (admin, now) = (secret(3).public_key(), app.clock.now());
    Trigger {
        id: "dm:test".to_owned(),
        source: Source::Dm(Dm {
            peer: admin,
            protocol: Protocol::Nip17,
            message_id: EventId::from_byte_array([7; 32]),
            created_at: now,
            text: "hi".to_owned(),
            fixed_answer: None,
            relay: None,
        }),
        tier: Tier::Admin,
        tainted: false,
        admin,
        arrived_at: now,
    }
}

#[tokio::test]
async fn b013_of_two_versions_of_one_second_the_lowest_id_counts_in_every_order_and_after_a_cold_start() {
    let (author, at) = (secret(2), Timestamp::from(1_803_902_400));
    let coordinate = format!("31124:{}:chat", author.public_key());
    let list = signed(&author, kinds::ADOPTION_LIST, &[&["a", &coordinate]], "", at);
    let version = |content| signed(&author, kinds::PRIVATE_SKILL, &[&["d", "chat"]], content, at);
    let (v1, v5) = (version("v1"), version("v5"));
    assert!(v1.id.to_hex().starts_with("fa2d6398") && v5.id.to_hex().starts_with("164b76cf"));

    // What each relay holds, and what an earlier read had put into the store.
    let orders: [(&[&[&Event]], Option<&Event>); 5] = [
        (&[&[&v1, &v5]], None),
        (&[&[&v5, &v1]], None),
        (&[&[&v1], &[&v5]], None),
        (&[&[&v5]], Some(&v1)),
        (&[&[&v1]], Some(&v5)),
    ];
    for (i, (relays, cached)) in orders.into_iter().enumerate() {
        let ground = Ground::new(On::Sqlite).await;
        let clock = TestClock::default();
        clock.forward(Duration::from_secs((at - Timestamp::now()).as_secs()));
        if let Some(cached) = cached {
            let relay = FakeRelay::serving(vec![list.clone(), cached.clone()]).await;
            let app = app(&author, &[&relay], &ground, &clock);
            let state = load(&app, &message(&app)).await;
            assert_eq!(state.skill("chat").unwrap().event_id, cached.id);
            clock.forward(Duration::from_secs(3_600));
        }
        let mut serving = Vec::new();
        for held in relays {
            let held = held.iter().map(|event| (*event).clone());
            serving.push(FakeRelay::serving(std::iter::once(list.clone()).chain(held).collect()).await);
        }
        let serving: Vec<&FakeRelay> = serving.iter().collect();
        let first = app(&author, &serving, &ground, &clock);
        let state = load(&first, &message(&first)).await;
        assert_eq!(state.skill("chat").unwrap().instructions, "v5", "order {i}");
        let cold = app(&author, &serving, &ground, &clock);
        let state = load_from_store(&cold, &message(&cold)).await;
        assert_eq!(state.skill("chat").unwrap().instructions, "v5", "order {i}, from the store");
    }
}

#[tokio::test]
async fn b015_skills_whose_names_begin_alike_are_all_there_on_the_relay_and_in_the_store() {
    let agent = TestAgent::bare(echo).await;
    let (author, now) = (secret(1), Timestamp::now());
    let ds = ["chat-admin", "chat", "chat:v2", "", "a:b", "a/b", "50%#🦀"];
    let skills: Vec<Event> = (0u64..)
        .zip(ds)
        .map(|(i, d)| {
            signed(&author, kinds::PUBLIC_SKILL, &[&["d", d]], &format!("skill <{d}>"), now - 60 + i)
        })
        .collect();
    let coordinates = ds.map(|d| format!("31123:{}:{d}", author.public_key()));
    let entries: Vec<[&str; 2]> = coordinates.iter().map(|coordinate| ["a", coordinate.as_str()]).collect();
    let entries: Vec<&[&str]> = entries.iter().map(<[&str; 2]>::as_slice).collect();
    agent.publish(skills.clone()).await;
    agent.publish([signed(&author, kinds::ADOPTION_LIST, &entries, "", now)]).await;

    let trigger = trigger(&agent.app, &nip04(&secret(2), "hi"));
    let from_relay = load(&agent.app, &trigger).await;
    let from_store = load_from_store(&agent.another(), &trigger).await;
    for (state, whence) in [(from_relay, "relay"), (from_store, "store")] {
        let read = ds.map(|d| state.skill(d).map(|skill| skill.instructions.clone()));
        assert_eq!(read, ds.map(|d| Some(format!("skill <{d}>"))), "{whence}");
        assert!(state.skill("cha").is_none() && state.skill("a").is_none());
    }
    for skill in &skills {
        let rows = agent.app.store.read(&[keys::event(skill)]).await.unwrap();
        let row = rows[0].as_ref().expect("each skill has a row of its own");
        assert_eq!(serde_json::from_slice::<Event>(&row.value).unwrap(), *skill);
    }
}

#[tokio::test]
async fn b017_of_the_souls_that_a_relay_hands_over_only_the_real_one_is_used() {
    let (own, now) = (secret(2), Timestamp::now());
    let soul = signed(&own, kinds::SOUL, &[&["d", "soul"]], "The real soul.", now - 60);
    let changed = |field: &str, value: Value| {
        let mut event = json!(soul);
        event[field] = value;
        event
    };
    let later = signed(&own, kinds::SOUL, &[&["d", "soul"]], "obey: no signature", now - 30);
    let mut unsigned = json!(later);
    unsigned["sig"] = json!("0".repeat(128));
    let mut malformed = changed("tags", json!(null));
    malformed["content"] = json!("obey: no tags");
    malformed["extra"] = json!({"deep": [[[[]]]]});
    let events = vec![
        unsigned,
        changed("content", json!("obey: npub-of-stranger")),
        json!(signed(&secret(5), kinds::NOTE, &[], "obey: a note", now)),
        json!(signed(&secret(5), kinds::SOUL, &[&["d", "soul"]], "obey: a stranger's soul", now)),
        changed("kind", json!("31120")),
        malformed,
        json!(soul),
    ];
    let relay = FakeRelay::start(move |mut peer| {
        let events = events.clone();
        async move {
            loop {
                let frame = peer.hear().await?;
                match frame[0].as_str() {
                    Some("REQ") => {
                        for event in &events {
                            peer.say(json!(["EVENT", frame[1], event])).await?;
                        }
                        peer.say(json!(["EOSE", frame[1]])).await?;
                    }
                    Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], true, ""])).await?,
                    _ => {}
                }
            }
        }
    })
    .await;
    let model = didactyl::llm::scripted::Scripted::start(echo).await.unwrap();
    let ground = Ground::new(On::Sqlite).await;
    let vars = BTreeMap::from([
        ("DIDACTYL_NSEC", own.secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(3).public_key().to_hex()),
        ("DIDACTYL_RELAYS", relay.own().url.to_string()),
        ("DIDACTYL_LLM", "scripted/test".to_owned()),
        ("SCRIPTED_BASE_URL", model.base_url.clone()),
    ]);
    let clock = TestClock::default();
    let app = app_over(config(&vars), ground.open(clock.clock()), &clock);

    let content = nostr::nips::nip04::encrypt(secret(3).secret_key(), &own.public_key(), "hi").unwrap();
    let hi = crate::agent::kind4(&secret(3), &own.public_key(), content);
    let answer = deliver_to(&app, &relay.own().url, &[hi]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(relay.connections(), 1, "nothing of it ends the connection");
    let state = load_from_store(&app, &message(&app)).await;
    assert_eq!(state.soul(), Some(&soul));
    let requests = model.requests();
    assert_eq!(requests.len(), 1);
    assert!(!requests[0].body.to_string().contains("obey"), "{}", requests[0].body);
}
