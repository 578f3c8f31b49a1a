//! Relays that hide, mislead or overflow: an incomplete read never counts as a complete one.

use std::sync::{Arc, Mutex};

use didactyl::app::App;
use didactyl::relay::Relays;
use didactyl::relay::pool::{Limits, Pool};
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Kind, MatchEventOptions, Tag, Timestamp};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::agent::{TestAgent, agent_key, app_over, config, echo, nip17, nip17_at, outcomes, secret};
use crate::fake_relay::{FakeRelay, Peer};
use crate::faults::{Fault, Side};
use crate::sea::{nip04_at, tick, wrap_at};

use super::time::Dice;

/// Answers a `REQ` with these events, filters unread, and takes what is published.
async fn serve(peer: &mut Peer, frame: &Value, events: &[Event]) -> Option<()> {
    match frame[0].as_str() {
        Some("REQ") => {
            for event in events {
                peer.say(json!(["EVENT", frame[1], event])).await?;
            }
            peer.say(json!(["EOSE", frame[1]])).await
        }
        Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], true, ""])).await,
        _ => Some(()),
    }
}

/// Like a relay: what matches one of the filters, newest first.
fn matching(events: &[Event], frame: &Value) -> Vec<Event> {
    let filters: Vec<Filter> =
        frame.as_array().unwrap()[2..].iter().map(|f| serde_json::from_value(f.clone()).unwrap()).collect();
    let options = MatchEventOptions::new();
    let mut matching: Vec<Event> =
        events.iter().filter(|e| filters.iter().any(|f| f.match_event(e, options))).cloned().collect();
    matching.sort_unstable();
    matching
}

async fn agent_on(relay: &FakeRelay) -> TestAgent {
    TestAgent::bare_on(relay.own().url, echo).await
}

/// Whether a filter asks for the newest wraps.
fn is_top(filter: &Value) -> bool {
    let until = filter["until"].as_u64();
    filter["kinds"] == json!([1059]) && until.is_some_and(|until| until > Timestamp::now().as_secs())
}

fn told(answer: &Value) -> (bool, &str) {
    let relay = &answer["sweep"]["relays"][0];
    (relay["complete"].as_bool().unwrap(), relay["reason"].as_str().unwrap_or_default())
}

/// A relay that shows messages only to who has authenticated, and says so or hides it.
async fn hiding(dm: Event, says_so: bool, takes_auth: bool) -> FakeRelay {
    FakeRelay::start(move |mut peer| {
        let dm = dm.clone();
        async move {
            peer.say(json!(["AUTH", "c1"])).await?;
            let mut is_known = false;
            loop {
                let frame = peer.hear().await?;
                match frame[0].as_str() {
                    Some("AUTH") => {
                        is_known = takes_auth;
                        peer.say(json!(["OK", frame[1]["id"], takes_auth, "restricted: members"])).await?;
                    }
                    Some("REQ") if !is_known && says_so => {
                        peer.say(json!(["CLOSED", frame[1], "auth-required: log in"])).await?;
                    }
                    Some("REQ") if !is_known => peer.say(json!(["EOSE", frame[1]])).await?,
                    _ => {
                        let events = if frame[0] == "REQ" {
                            matching(std::slice::from_ref(&dm), &frame)
                        } else {
                            vec![]
                        };
                        serve(&mut peer, &frame, &events).await?;
                    }
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn an_inbox_relay_that_wants_authentication_is_read_whether_it_says_so_or_hides() {
    for says_so in [true, false] {
        let relay = hiding(nip17(&secret(2), "hello"), says_so, true).await;
        let agent = agent_on(&relay).await;
        let answer = tick(&agent.app).await;
        assert_eq!(outcomes(&answer), ["replied"], "says so: {says_so}: {answer}");
        assert_eq!(told(&answer), (true, ""));
    }
}

#[tokio::test]
async fn a_relay_that_does_not_take_our_authentication_was_not_read() {
    for says_so in [true, false] {
        let relay = hiding(nip17(&secret(2), "hello"), says_so, false).await;
        let agent = agent_on(&relay).await;
        let answer = tick(&agent.app).await;
        // That the admin should know of it waits until some relay can be read.
        assert_eq!(outcomes(&answer), ["unfinished"]);
        let (complete, reason) = told(&answer);
        assert!(!complete && reason.starts_with("authentication:"), "{answer}");
    }
}

/// A new process of an agent that has another relay beside its own.
fn beside(agent: &TestAgent, other: &FakeRelay) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_RELAYS", format!("{},{}", agent.relay_url, other.own().url));
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

/// Its tick.
async fn tick_beside(agent: &TestAgent, other: &FakeRelay) -> Value {
    tick(&beside(agent, other)).await
}

/// A relay that says that there is nothing, and asks for authentication behind its answer to the ping by which it is heard out,
/// when `gate` lets it. Then it tells that it `said` so. It hides these events until it was answered. Its first `open`
/// connections ask for nothing, and show nothing.
async fn challenging_late(
    hidden: Vec<Event>,
    open: usize,
    gate: Arc<Notify>,
    said: Arc<Notify>,
) -> FakeRelay {
    FakeRelay::start(move |mut peer| {
        let (hidden, gate, said) = (hidden.clone(), Arc::clone(&gate), Arc::clone(&said));
        async move {
            let mut is_to_ask = peer.connection > open;
            if is_to_ask {
                let asked = peer.hear_kind("REQ").await?;
                peer.say(json!(["EOSE", asked[1]])).await?;
                peer.hear_ping().await?;
                peer.say(json!(["NOTICE", "here"])).await?;
            }
            let mut shown = &[][..];
            loop {
                let frame = tokio::select! {
                    biased;
                    () = gate.notified(), if is_to_ask => {
                        is_to_ask = false;
                        gate.notify_one();
                        peer.say(json!(["AUTH", "c1"])).await?;
                        said.notify_one();
                        continue;
                    }
                    frame = peer.hear() => frame?,
                };
                if frame[0] == "AUTH" {
                    peer.say(json!(["OK", frame[1]["id"], true, ""])).await?;
                    shown = &hidden;
                }
                let events = if frame[0] == "REQ" { matching(shown, &frame) } else { vec![] };
                serve(&mut peer, &frame, &events).await?;
            }
        }
    })
    .await
}

/// A relay without secrets. On its first connection it answers no frame of this kind before `gate` lets it.
async fn holding_up(kind: &'static str, events: Vec<Event>, gate: Arc<Notify>) -> FakeRelay {
    FakeRelay::start(move |mut peer| {
        let (events, gate) = (events.clone(), Arc::clone(&gate));
        async move {
            let mut is_shut = peer.connection == 1;
            loop {
                let frame = peer.hear().await?;
                if frame[0] == kind && std::mem::take(&mut is_shut) {
                    gate.notified().await;
                }
                let events = if frame[0] == "REQ" { matching(&events, &frame) } else { vec![] };
                serve(&mut peer, &frame, &events).await?;
            }
        }
    })
    .await
}

/// A message that is older than what a second sweep asks for.
fn old() -> Event {
    nip04_at(&secret(2), &agent_key(), "old", Timestamp::now() - 8 * 60 * 60)
}

#[tokio::test]
async fn a_read_that_was_over_before_the_relay_asked_for_authentication_is_incomplete_and_the_next_goes_back_behind_it()
 {
    let (gate, said) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    gate.notify_one();
    let hidden = vec![old(), nip17(&secret(2), "hello")];
    let relay = challenging_late(hidden, 1, gate, Arc::clone(&said)).await;
    // That sweep lasts until the challenge has come.
    let slower = holding_up("REQ", vec![], said).await;
    let agent = agent_on(&relay).await;
    assert_eq!(told(&tick(&agent.app).await), (true, ""));
    let answer = tick_beside(&agent, &slower).await;
    let reason = "it asked for authentication after it had told that there is nothing";
    assert_eq!((outcomes(&answer), told(&answer)), (vec![], (false, reason)), "{answer}");
    // Another process, and it waits.
    let answer = tick_beside(&agent, &slower).await;
    assert_eq!((outcomes(&answer), told(&answer)), (vec!["replied"], (true, "")), "{answer}");
    assert_eq!(agent.history(secret(2).public_key()).await[0], ("peer", "old".to_owned()));
}

#[tokio::test]
async fn where_the_challenge_comes_after_the_sweep_was_saved_the_next_of_that_process_goes_back_behind_it() {
    let (model_asked, said) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let relay = challenging_late(vec![old()], 0, Arc::clone(&model_asked), Arc::clone(&said)).await;
    // That tick lasts until the challenge has come.
    let other = holding_up("EVENT", vec![nip17(&secret(2), "hello")], said).await;
    let agent = TestAgent::bare_on(relay.own().url, move |asked| {
        model_asked.notify_one();
        echo(asked)
    })
    .await;
    let app = beside(&agent, &other);
    let answer = tick(&app).await;
    assert_eq!((outcomes(&answer), told(&answer)), (vec!["replied"], (true, "")), "{answer}");
    let answer = tick(&app).await;
    assert_eq!((outcomes(&answer), told(&answer)), (vec![], (true, "")), "{answer}");
    assert_eq!(agent.history(secret(2).public_key()).await[0], ("peer", "old".to_owned()));
}

#[tokio::test]
async fn what_a_relay_lists_of_other_people_is_passed_over_and_its_word_that_this_was_all_is_not_taken() {
    let note = EventBuilder::new(Kind::from(1), "spam").finalize(&secret(5)).unwrap();
    let mut events: Vec<Event> = vec![note; 3];
    // Written after the agent's start: else it waits until all relays told what was answered before.
    events.push(nip17_at(&secret(2), "hello", Timestamp::now() + 60));
    let relay = FakeRelay::serving(events).await;
    let agent = agent_on(&relay).await;
    let answer = tick(&agent.app).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(told(&answer), (false, "it sends what was not asked for"));
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);
    // It is asked from the top each time.
    let asked = relay.heard("REQ");
    let tops = asked.iter().filter(|req| req.as_array().is_some_and(|f| f[2..].iter().any(is_top))).count();
    assert!(tops >= 2, "{asked:?}");
}

/// Anybody can put such events on a relay that takes them.
#[tokio::test]
async fn what_is_too_large_or_malformed_is_dropped_unopened_and_keeps_no_window_open() {
    let signer = secret(5);
    let to_agent =
        || EventBuilder::new(Kind::from(1059), "x".repeat(300_000)).tag(Tag::public_key(agent_key()));
    let large = json!(to_agent().finalize(&signer).unwrap());
    let mut malformed = json!(nip17(&secret(2), "malformed"));
    malformed["sig"] = json!("none");
    let dm = json!(nip17(&secret(2), "hello"));
    let relay = FakeRelay::start(move |mut peer| {
        let events = [large.clone(), malformed.clone(), json!("no event"), dm.clone()];
        async move {
            loop {
                let frame = peer.hear().await?;
                let is_top = frame[0] == "REQ" && frame.as_array()?[2..].iter().any(is_top);
                for event in events.iter().filter(|_| is_top) {
                    peer.say(json!(["EVENT", frame[1], event])).await?;
                }
                serve(&mut peer, &frame, &[]).await?;
            }
        }
    })
    .await;
    let agent = agent_on(&relay).await;
    for expected in [vec!["replied"], vec![]] {
        let answer = tick(&agent.another()).await;
        assert_eq!((outcomes(&answer), told(&answer)), (expected, (true, "")), "{answer}");
        assert_eq!(answer["sweep"]["relays"][0]["unread"], json!(3), "{answer}");
    }
}

#[tokio::test]
async fn a_relay_that_breaks_off_is_read_again_from_the_same_place() {
    let dm = nip17_at(&secret(2), "hello", Timestamp::now() + 60);
    let relay = {
        let dm = dm.clone();
        FakeRelay::start(move |mut peer| {
            let dm = dm.clone();
            async move {
                let is_first = peer.connection == 1;
                loop {
                    let frame = peer.hear().await?;
                    if frame[0] == "REQ" && is_first {
                        peer.say(json!(["EVENT", frame[1], dm])).await?;
                        return None;
                    }
                    let events =
                        if frame[0] == "REQ" { matching(std::slice::from_ref(&dm), &frame) } else { vec![] };
                    serve(&mut peer, &frame, &events).await?;
                }
            }
        })
        .await
    };
    let agent = agent_on(&relay).await;
    let answer = tick(&agent.app).await;
    // What came before the break is answered.
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let (complete, reason) = told(&answer);
    assert!(!complete && reason.starts_with("connection lost"), "{answer}");
    let answer = tick(&agent.another()).await;
    assert_eq!((outcomes(&answer), told(&answer)), (vec![], (true, "")));
}

#[tokio::test]
async fn a_page_shows_events_as_they_come_and_a_forged_one_hides_no_real_one() {
    let real = nip17(&secret(2), "hello");
    let mut forged = json!(real);
    forged["content"] = json!("forged");
    let forged: Event = serde_json::from_value(forged).unwrap();
    let relay = FakeRelay::serving(vec![forged.clone(), real.clone(), real.clone()]).await;
    let pool = Pool::new(secret(1), Limits::default());
    let until = tokio::time::Instant::now() + crate::agent::BUDGET;
    let filter = Filter::new().kind(Kind::from(1059));
    let page = pool.page(&relay.own(), &[filter], until).await;
    assert_eq!(page.events, [forged, real]);
    assert!(page.report.outcome.is_ok());
    pool.close().await;

    let agent = agent_on(&relay).await;
    assert_eq!(outcomes(&tick(&agent.app).await), ["replied"]);
}

#[tokio::test]
async fn an_idle_tick_asks_all_relays_at_the_same_time_and_each_once() {
    // Each answers when the other one is asked.
    let gates = [Arc::new(Notify::new()), Arc::new(Notify::new())];
    let relay = |own: usize| {
        let gates = gates.clone();
        FakeRelay::start(move |mut peer| {
            let gates = gates.clone();
            async move {
                loop {
                    let frame = peer.hear().await?;
                    if frame[0] == "REQ" {
                        gates[1 - own].notify_one();
                        gates[own].notified().await;
                    }
                    serve(&mut peer, &frame, &[]).await?;
                }
            }
        })
    };
    let relays = [relay(0).await, relay(1).await];
    let agent = agent_on(&relays[0]).await;
    for ticks in 1..=3 {
        let answer = tick_beside(&agent, &relays[1]).await;
        assert_eq!((outcomes(&answer), told(&answer)), (vec![], (true, "")), "{answer}");
        assert_eq!(relays.each_ref().map(|relay| relay.heard("REQ").len()), [ticks, ticks]);
        agent.clock.forward(super::MINUTE);
    }
}

/// The silence test's short sister, with sockets: of the relays one is down, one breaks off every third connection, and has
/// only what is old. Some ticks come twice at once, some die midway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_ticks_over_sockets_answer_every_message_once() {
    const MESSAGES: u32 = 20;
    let old: Arc<Mutex<Vec<Event>>> = Arc::default();
    let breaking = {
        let old = Arc::clone(&old);
        FakeRelay::start(move |mut peer| {
            let old = Arc::clone(&old);
            async move {
                loop {
                    let frame = peer.hear().await?;
                    if frame[0] == "REQ" && peer.connection.is_multiple_of(3) {
                        return None;
                    }
                    let events = old.lock().unwrap().clone();
                    let events = if frame[0] == "REQ" { matching(&events, &frame) } else { vec![] };
                    serve(&mut peer, &frame, &events).await?;
                }
            }
        })
        .await
    };
    let agent = TestAgent::start().await;
    let mut vars = agent.vars();
    // Nobody listens at the last one.
    let relays = format!("{},{},ws://127.0.0.1:1", agent.relay_url, breaking.own().url);
    vars.insert("DIDACTYL_RELAYS", relays);
    let process = || app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let (mut dice, mut sent) = (Dice(60), Vec::new());
    for minute in 0..60 {
        if minute % 3 == 0 {
            let (number, now) = (minute / 3, Timestamp::now());
            let text = format!("message {number}");
            let dm = match number % 2 {
                0 => wrap_at(&secret(2), &text, now, now - dice.below(2 * 24 * 60 * 60)),
                _ => nip04_at(&secret(2), &agent_key(), &text, now),
            };
            agent.publish([dm.clone()]).await;
            sent.push(dm);
            *old.lock().unwrap() = sent[..sent.len() / 2].to_vec();
        }
        let app = process();
        match minute % 20 {
            7 => {
                let other = process();
                tokio::join!(tick(&app), tick(&other));
            }
            13 => {
                let fault = Fault::crash(1 + usize::try_from(dice.below(16)).unwrap(), Side::After);
                let mut victim = app;
                fault.install(&mut victim);
                fault.until_crash(tick(&victim)).await;
            }
            _ => drop(tick(&app).await),
        }
        agent.clock.forward(super::MINUTE);
    }
    // What the last ones left is due after their lease.
    for _ in 0..5 {
        tick(&process()).await;
        agent.clock.forward(super::MINUTE);
    }
    let mut texts: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    texts.sort();
    let mut expected: Vec<String> = (0..MESSAGES).map(|number| format!("MESSAGE {number}")).collect();
    expected.sort();
    assert_eq!(texts, expected);
}
