//! What the agent tells its admin of its own accord: once, whatever dies and however often ticks come.

use std::sync::Arc;
use std::time::Duration;

use didactyl::app::App;
use didactyl::history::StoredMessage;
use didactyl::notices::{Fact, raise};
use didactyl::record::{RunRecord, Status};
use didactyl::store::{Expect, Range, Write, keys};
use nostr::prelude::{Event, EventBuilder, EventId, FinalizeEvent, Kind, Tag, Timestamp};
use serde_json::{Value, json};

use crate::agent::{TestAgent, agent_key, app_over, config, echo, hand_over, outcomes, secret};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

on_each_store! {
    a_new_store_makes_one_hello_however_often_and_however_many_ticks_come,
    facts_are_told_once_in_one_message,
}

/// A process of this agent's, which says hello.
fn greeting(agent: &TestAgent) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_HELLO", "true".to_owned());
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

async fn a_new_store_makes_one_hello_however_often_and_however_many_ticks_come(on: On) {
    let agent = TestAgent::over(on, echo).await;
    for _ in 0..3 {
        let (one, two) = (greeting(&agent), greeting(&agent));
        tokio::join!(tick(&one), tick(&two));
    }
    let replies = agent.replies().await;
    let [(id, text)] = replies.as_slice() else { panic!("{replies:?}") };
    assert!(text.contains(&agent.relay_url.to_string()) && text.contains("\nSkills: \""), "{text}");
    assert_eq!(agent.history(secret(2).public_key()).await, [("agent", text.clone())]);
    assert_eq!(agent.model.calls(), 0);
    // The admin reads NIP-17.
    let wraps = nostr::prelude::Filter::new().kind(Kind::from(1059)).pubkey(secret(2).public_key());
    let wraps = agent.on_relay(wraps).await;
    let opened: Vec<EventId> =
        wraps.iter().map(|wrap| didactyl::dm::open(&secret(2), wrap).unwrap().id).collect();
    assert_eq!(opened, [*id]);
}

async fn facts_are_told_once_in_one_message(on: On) {
    let agent = TestAgent::over(on, echo).await;
    tick(&agent.app).await;
    let poison = |n: u8| Fact::Poison(EventId::from_byte_array([n; 32]));
    for n in [1, 2, 1, 3] {
        raise(&agent.app, &poison(n)).await.unwrap();
    }
    let (one, two) = (agent.another(), agent.another());
    tokio::join!(tick(&one), tick(&two));
    let expected = [1, 2, 3].map(|n| poison(n).text()).join("\n\n");
    let texts = async || agent.replies().await.into_iter().map(|(_, text)| text).collect::<Vec<_>>();
    assert_eq!(texts().await, std::slice::from_ref(&expected));

    // While they are remembered they are no news.
    agent.clock.forward(29 * DAY);
    raise(&agent.app, &poison(2)).await.unwrap();
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);
    agent.clock.forward(2 * DAY);
    raise(&agent.app, &poison(2)).await.unwrap();
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"]);
    assert_eq!(texts().await, [expected, poison(2).text()]);
}

async fn harbour(manners: &[Manner]) -> Harbour {
    let mut harbour = Harbour::new(manners, echo).await;
    harbour.set_var("DIDACTYL_HELLO", "true");
    harbour
}

#[tokio::test]
async fn a_hello_tells_relays_model_skills_and_how_to_stop_it() {
    let harbour = harbour(&[Manner::Gives(500), Manner::Down]).await;
    harbour.sea.post_all(own_skill(&[&["trigger", "dm"]]));
    // Nobody knows yet whether the other relay has more to say.
    assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
    harbour.clock.forward(10 * MINUTE);
    assert_eq!(outcomes(&harbour.tick().await), ["replied"]);
    insta::assert_snapshot!(harbour.answers().join("\n---\n"), @r#"
    Hello, I am Didactyl Agent, and I am running. Write me an encrypted message, and I answer.

    Relays: ws://127.0.0.1:1, ws://127.0.0.1:2 (not read yet)
    Model: scripted/test
    Skills: "greet"

    To stop me, write /stop; /help lists what else I obey. To silence me for good, set DIDACTYL_STANDBY=true. I say this once.
    "#);
}

/// A skill of the agent's with these tags, and the list that adopts it.
fn own_skill(tags: &[&[&str]]) -> Vec<Event> {
    let parsed = |tags: &[&[&str]]| {
        tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()).collect::<Vec<_>>()
    };
    let address = format!("31123:{}:greet", agent_key());
    vec![
        EventBuilder::new(Kind::from(31123), "Greet everybody.")
            .tags(parsed(&[&["d", "greet"]]))
            .tags(parsed(tags))
            .finalize(&secret(1))
            .unwrap(),
        EventBuilder::new(Kind::from(10123), "")
            .tags(parsed(&[&["a", &address]]))
            .finalize(&secret(1))
            .unwrap(),
    ]
}

/// A crash at every call of the first tick: on the store, at a relay, before and after it took effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_is_said_once_after_a_crash_at_any_call() {
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let harbour = harbour(&[Manner::Gives(500)]).await;
            let fault = Fault::crash(at, side);
            let mut victim = harbour.app();
            fault.install(&mut victim);
            fault.until_crash(tick(&victim)).await;
            for _ in 0..2 {
                harbour.clock.forward(2 * MINUTE);
                harbour.tick().await;
            }
            assert_one_notice(&harbour, &format!("crash {side:?} call {at}")).await;
            if !fault.was_reached() {
                break;
            }
            at += 1;
        }
        // Lease and four reads, a page, the fact, the cursors, the list, the message, claim and two reads, the
        // conversation, the signed reply, its sending, the record.
        assert!(at > 14, "{side:?}: the tick ended after {at} calls");
    }
}

/// The same where the store fails and the process lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hello_is_said_once_when_the_store_fails_at_any_call() {
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let harbour = harbour(&[Manner::Gives(500)]).await;
            let fault = Fault::unavailable(at, side);
            let mut app = harbour.app();
            fault.install(&mut app);
            let payload = json!({"type": "tick"}).to_string();
            let deadline = didactyl::clock::Deadline::after(crate::agent::BUDGET);
            let _ = didactyl::handler::handle(&app, &payload, deadline).await;
            for _ in 0..2 {
                harbour.clock.forward(2 * MINUTE);
                harbour.tick().await;
            }
            assert_one_notice(&harbour, &format!("no answer {side:?} call {at}")).await;
            if !fault.was_reached() {
                break;
            }
            at += 1;
        }
        assert!(at > 10, "{side:?}: the tick ended after {at} store calls");
    }
}

/// One message, as sent and in the history; its run is over and no other is left.
async fn assert_one_notice(harbour: &Harbour, what: &str) {
    let sent = harbour.sea.replies(&secret(2));
    let [(id, text)] = sent.as_slice() else { panic!("{what}: {sent:?}") };
    assert!(text.starts_with("Hello, I am "), "{what}: {text}");
    assert_eq!(history_ids(harbour).await, [*id], "{what}");
    let due = harbour.app().store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
    assert_eq!(due, [], "{what}");
}

async fn history_ids(harbour: &Harbour) -> Vec<EventId> {
    let app = harbour.app();
    let range = Range::whole(keys::conversation(&secret(2).public_key()));
    let rows = app.store.list(&range).await.unwrap();
    let messages = rows.iter().filter(|row| !row.key.sort.starts_with('~'));
    messages.map(|row| app.open_sealed::<StoredMessage>(row).unwrap().id).collect()
}

#[tokio::test]
async fn a_store_that_an_older_version_swept_says_no_hello() {
    let harbour = harbour(&[Manner::Down]).await;
    harbour.tick().await;
    let app = harbour.app();
    let row = app.store.read(&[keys::sweep_cursors()]).await.unwrap().remove(0).unwrap();
    let mut cursors: Value = serde_json::from_slice(&row.value).unwrap();
    assert_eq!(cursors["greets"], json!(true));
    // As the older version wrote it.
    for field in ["greets", "standby"] {
        cursors.as_object_mut().unwrap().remove(field);
    }
    let value = serde_json::to_vec(&cursors).unwrap();
    app.store.write(&[Write::put(row.key, Expect::Anything, value, None)]).await.unwrap();
    harbour.sea.set(1, Manner::Gives(500));
    for _ in 0..2 {
        harbour.clock.forward(10 * MINUTE);
        assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
    }
    assert_eq!(harbour.answers(), [""; 0]);
}

#[tokio::test]
async fn a_hello_that_is_switched_off_is_not_made_up_for_later() {
    let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.set_var("DIDACTYL_HELLO", "true");
    harbour.tick().await;
    assert_eq!(harbour.answers(), [""; 0]);
}

#[tokio::test]
async fn a_notice_that_no_relay_took_goes_out_at_a_later_tick_with_the_same_id() {
    let harbour = harbour(&[Manner::Gives(500)]).await;
    harbour.sea.refuse_events(true);
    assert_eq!(outcomes(&harbour.tick().await), ["unfinished"]);
    let saved = history_ids(&harbour).await;
    assert_eq!((saved.len(), harbour.answers()), (1, vec![]));

    // The admin's way of writing is another by now: what is signed stays as it is.
    let now = harbour.now();
    harbour.sea.post(&wrap_at(&secret(2), "hello", now, now));
    harbour.sea.refuse_events(false);
    harbour.clock.forward(MINUTE);
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied", "replied"], "{answer}");
    let sent = harbour.sea.replies(&secret(2));
    assert!(sent.iter().any(|(id, text)| *id == saved[0] && text.starts_with("Hello")), "{sent:?}");
    assert_eq!(sent.len(), 2);
}

#[tokio::test]
async fn with_a_queue_a_notice_is_queued_like_any_run() {
    let harbour = harbour(&[Manner::Gives(500)]).await;
    let queue = Arc::new(MemoryQueue::default());
    let mut app = harbour.app();
    app.queue = Some(queue.clone());
    assert_eq!(outcomes(&tick(&app).await), ["queued"]);
    assert_eq!(harbour.answers(), [""; 0]);
    let (run, _) = queue.taken().remove(0);
    for _ in 0..2 {
        let answer = hand_over(&app, &json!({"type": "resume", "run": run}).to_string()).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    }
    assert_eq!(harbour.answers().len(), 1);
    let record = didactyl::record::find(&app, &run).await.unwrap().unwrap();
    assert_eq!((record.status, record.turns, record.due_at), (Status::Done, 0, None));
}

#[tokio::test]
async fn a_notice_travels_as_the_admins_last_message_did() {
    for is_wrap in [true, false] {
        let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
        let now = harbour.now();
        harbour.sea.post(&match is_wrap {
            true => wrap_at(&secret(2), "hello", now, now),
            false => nip04_at(&secret(2), &agent_key(), "hello", now),
        });
        harbour.tick().await;
        raise(&harbour.app(), &Fact::NoTriggers).await.unwrap();
        harbour.tick().await;
        let rows = harbour.app().store.list(&Range::whole("NOTICES")).await.unwrap();
        assert_eq!(rows.iter().map(|row| row.key.sort.as_str()).collect::<Vec<_>>(), ["older-rule"]);
        assert_eq!(harbour.sea.kinds_to(&secret(2)), [if is_wrap { 1059 } else { 4 }; 2]);
    }
}

#[tokio::test]
async fn a_relay_that_refuses_and_a_second_that_is_not_shown_whole_are_told_once_each() {
    let harbour = Harbour::new(&[Manner::Gives(20), Manner::Refuses], echo).await;
    harbour.tick().await;
    let now = harbour.now();
    // More wraps in one second than a page has; nobody can open any.
    let junk = |n: u8| {
        EventBuilder::new(Kind::from(1059), format!("junk {n}"))
            .tag(Tag::public_key(agent_key()))
            .custom_created_at(now)
            .finalize(&secret(9))
            .unwrap()
    };
    harbour.sea.post_all((0..30).map(junk).collect());
    for _ in 0..8 {
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
    }
    let answers = harbour.answers();
    let [gap, refused] = answers.as_slice() else { panic!("{answers:?}") };
    assert!(refused.starts_with("The relay ws://127.0.0.1:2 does not let me read"), "{refused}");
    assert!(gap.starts_with("The relay ws://127.0.0.1:1 has more messages of one second"), "{gap}");
    assert!(!answers.concat().contains("orders"), "a relay's own words stay outside");
}

#[tokio::test]
async fn that_no_skill_has_a_trigger_is_told_once() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.sea.post_all(own_skill(&[]));
    for _ in 0..3 {
        harbour.tick().await;
        harbour.clock.forward(61 * MINUTE);
    }
    let answers = harbour.answers();
    assert_eq!(answers, [Fact::NoTriggers.text()]);

    let with_trigger = Harbour::new(&[Manner::Gives(500)], echo).await;
    with_trigger.sea.post_all(own_skill(&[&["trigger", "dm"]]));
    with_trigger.tick().await;
    assert_eq!(with_trigger.answers(), [""; 0]);
}

/// A record that an older version wrote has no mark of a standby.
#[test]
fn a_record_without_the_mark_of_a_standby_is_not_held() {
    let record = json!({
        "format": 1, "run_id": "1", "trigger_id": "dm:1", "tier": "admin", "tainted": false, "status": "running",
        "owner": "", "fence": 1, "attempt": 1, "lease_until_ms": 0, "arrived_at": 0, "updated_at_ms": 0, "expires_at": null,
    });
    let record: RunRecord = serde_json::from_value(record).unwrap();
    assert!(!record.held && record.arrived_at == Timestamp::from(0));
}
