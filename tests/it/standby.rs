//! Standby: every door records and none answers; after it nothing is lost and nothing is answered twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::app::App;
use didactyl::config::{ApiToken, Scope};
use didactyl::credentials::Credentials;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::NOTE;
use didactyl::record::{self, RunRecord, Status, dm_trigger_id, run_id};
use nostr::prelude::{Event, PublicKey, Timestamp};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::agent::{
    TestAgent, agent_key, app_over, config, deliver_to, dm_id, echo, hand_over, nip04, nip17, outcomes,
    secret, trigger,
};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::listen::listening;
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: u64 = 60 * 60;
const TOKEN: &str = "a-token-of-the-bridge-0001";

on_each_store! {
    in_standby_every_door_records_and_none_answers,
}

fn waiting(agent: &TestAgent) -> App {
    waiting_for(agent, "admin")
}

fn waiting_for(agent: &TestAgent, senders: &str) -> App {
    app_for(agent, senders, "true")
}

fn app_for(agent: &TestAgent, senders: &str, standby: &str) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_SENDERS", senders.to_owned());
    vars.insert("DIDACTYL_STANDBY", standby.to_owned());
    vars.insert("DIDACTYL_HELLO", "true".to_owned());
    let mut app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let token = ApiToken { scope: Scope::Bridge, sha256: Sha256::digest(TOKEN).into() };
    app.credentials = Arc::new(Credentials::fixed(app.config.providers.clone(), vec![token]));
    app
}

fn bridge(events: &[Event]) -> String {
    let body = json!({"type": "relay", "events": events}).to_string();
    json!({
        "version": "2.0", "rawPath": "/bridge", "headers": {"authorization": format!("Bearer {TOKEN}")},
        "requestContext": {"http": {"method": "POST", "path": "/bridge"}}, "body": body, "isBase64Encoded": false,
    })
    .to_string()
}

fn sqs(body: &str) -> String {
    json!({"Records": [{"messageId": "m", "receiptHandle": "h", "body": body, "eventSource": "aws:sqs"}]})
        .to_string()
}

async fn in_standby_every_door_records_and_none_answers(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let (app, admin) = (waiting(&agent), secret(2));
    // A run from before the standby, whose process died with the claim made.
    let begun = nip17(&admin, "begun before");
    let fault = Fault::crash(5, Side::Before);
    let mut victim = agent.another();
    fault.install(&mut victim);
    tokio::select! {
        () = fault.crashed() => {}
        answer = deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&begun)) => panic!("{answer:?}"),
    }
    agent.clock.forward(2 * MINUTE);
    let begun_run = run_id(&dm_trigger_id(&dm_id(&begun)));

    let event = nip17(&admin, "a bare event");
    let answer = hand_over(&app, &serde_json::to_string(&event).unwrap()).await;
    assert_eq!(outcomes(&answer), ["standby"], "{answer}");
    let answer = deliver_to(&app, &agent.relay_url, &[nip04(&admin, "relay form")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["standby"], "{answer}");
    let answer = hand_over(&app, &bridge(&[nip17(&admin, "bridge")])).await;
    assert_eq!(answer["statusCode"], json!(202), "{answer}");
    let body = json!({"type": "relay", "events": [nip17(&admin, "queue")]}).to_string();
    assert_eq!(hand_over(&app, &sqs(&body)).await, json!({"batchItemFailures": []}));
    let stored = sqs(&didactyl::aws::sqs::body(&begun_run));
    assert_eq!(hand_over(&app, &stored).await, json!({"batchItemFailures": []}));
    let answer = hand_over(&app, &json!({"type": "resume", "run": begun_run}).to_string()).await;
    assert_eq!(outcomes(&answer), ["standby"], "{answer}");
    // With a queue nothing is queued.
    let mut queued = waiting(&agent);
    let queue = Arc::new(MemoryQueue::default());
    queued.queue = Some(queue.clone());
    let answer = deliver_to(&queued, &agent.relay_url, &[nip17(&admin, "queued")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["standby"], "{answer}");
    agent.publish([nip17(&admin, "on the relay")]).await;
    for app in [&queued, &app] {
        tick(app).await;
    }
    assert_eq!((queue.taken(), agent.model.calls(), agent.replies().await), (vec![], 0, vec![]));
    assert!(record::find(&app, &begun_run).await.unwrap().unwrap().held);
    let said = ["begun before", "a bare event", "relay form", "bridge", "queue", "queued", "on the relay"];
    assert_eq!(sorted(&agent).await, sorted_texts(&said));

    // Awake: whoever brings a message before the first sweep is told that it waits.
    let awake = agent.another();
    let answer = hand_over(&awake, &serde_json::to_string(&event).unwrap()).await;
    assert_eq!((outcomes(&answer), agent.model.calls()), (vec!["standby"], 0), "{answer}");
    for _ in 0..2 {
        agent.clock.forward(MINUTE);
        tick(&agent.another()).await;
    }
    let mut answers: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    answers.sort();
    let mut expected: Vec<String> = said.iter().map(|text| text.to_uppercase()).collect();
    expected.sort();
    assert_eq!(answers, expected);
    assert_eq!(agent.model.calls(), said.len());
}

async fn sorted(agent: &TestAgent) -> Vec<String> {
    let history = agent.history(secret(2).public_key()).await;
    sorted_texts(&history.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>())
}

fn sorted_texts(texts: &[&str]) -> Vec<String> {
    let mut texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    texts.sort();
    texts
}

fn admin() -> PublicKey {
    secret(2).public_key()
}

async fn record(harbour: &Harbour, dm: &Event) -> RunRecord {
    record::find(&harbour.app(), &run_id(&dm_trigger_id(&dm_id(dm)))).await.unwrap().unwrap()
}

#[tokio::test]
async fn after_a_standby_only_what_is_recent_and_nobody_answered_is_worked() {
    let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.set_var("DIDACTYL_STANDBY", "true");
    let at = harbour.now();
    let old = wrap_at(&secret(2), "old", at, at - HOUR);
    harbour.sea.post(&old);
    harbour.tick().await;
    harbour.clock.forward(Duration::from_secs(7 * HOUR));
    harbour.tick().await;
    let at = harbour.now();
    let answered = nip04_at(&secret(2), &agent_key(), "answered elsewhere", at);
    harbour.sea.post(&answered);
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
    // Somebody else's answer, which only the first sweep after the standby finds.
    harbour.sea.post(&nip04_at(&secret(1), &admin(), "the other's answer", harbour.now()));
    harbour.clock.forward(MINUTE);
    let open = wrap_at(&secret(2), "open", harbour.now(), at - 20 * HOUR);
    harbour.sea.post(&open);
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
    harbour.tick().await;

    assert_eq!(harbour.answers(), ["OPEN", "the other's answer"]);
    assert_eq!(harbour.model.calls(), 1);
    let (old, answered) = (record(&harbour, &old).await, record(&harbour, &answered).await);
    insta::assert_snapshot!(
        format!("{}\n{}", old.reason.as_deref().unwrap_or("-"), answered.reason.as_deref().unwrap_or("-")),
        @r"
    it is more than six hours older than the end of the standby
    the agent wrote to its sender after it and before the end of the standby
    "
    );
    assert_eq!((old.status, answered.status), (Status::Dropped, Status::Dropped));
    assert_eq!((old.due_at, answered.due_at, answered.held), (None, None, false));
    let texts: Vec<String> = harbour.history().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["old", "answered elsewhere", "the other's answer", "open", "OPEN"]);
}

#[tokio::test]
async fn what_the_awake_agent_answers_before_its_first_sweep_answers_nothing_that_was_held() {
    for is_silent in [false, true] {
        let mut harbour = Harbour::new(&[Manner::Gives(500), Manner::Gives(500)], echo).await;
        harbour.tick().await;
        harbour.set_var("DIDACTYL_STANDBY", "true");
        harbour.clock.forward(MINUTE);
        harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "held", harbour.now()));
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
        // The sweep after the standby is the first to find this one.
        harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "unseen", harbour.now()));
        harbour.set_var("DIDACTYL_STANDBY", "false");
        harbour.clock.forward(MINUTE);
        let pushed = nip04_at(&secret(2), &agent_key(), "pushed", harbour.now());
        let answer = hand_over(&harbour.app(), &serde_json::to_string(&pushed).unwrap()).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        if is_silent {
            harbour.sea.set(2, Manner::Down);
            harbour.clock.forward(MINUTE);
            harbour.tick().await;
            assert_eq!(harbour.answers(), ["PUSHED"]);
            harbour.sea.set(2, Manner::Gives(500));
        }
        for _ in 0..2 {
            harbour.clock.forward(MINUTE);
            harbour.tick().await;
        }
        assert_eq!(harbour.answers(), ["HELD", "PUSHED", "UNSEEN"], "{is_silent}");
    }
}

#[tokio::test]
async fn a_run_that_a_process_from_before_a_standby_has_is_taken_from_it() {
    let agent = TestAgent::start().await;
    tick(&agent.app).await;
    let dm = nip17(&secret(2), "hello");
    let fault = Fault::crash(5, Side::Before);
    let mut old = agent.another();
    fault.install(&mut old);
    tokio::select! {
        () = fault.crashed() => {}
        answer = deliver_to(&old, &agent.relay_url, std::slice::from_ref(&dm)) => panic!("{answer:?}"),
    }
    let run = run_id(&dm_trigger_id(&dm_id(&dm)));
    let before = record::find(&agent.app, &run).await.unwrap().unwrap();
    assert!(before.lease_until_ms > agent.app.clock.now_ms() && !before.held);
    tick(&waiting(&agent)).await;
    let held = record::find(&agent.app, &run).await.unwrap().unwrap();
    assert!(held.held && held.lease_until_ms == 0);
}

#[tokio::test]
async fn a_run_that_is_given_back_after_the_last_tick_of_a_standby_is_not_worked_where_somebody_answered() {
    for is_answered in [true, false] {
        let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
        let old = harbour.app();
        let dm = nip04_at(&secret(2), &agent_key(), "hello", harbour.now());
        harbour.set_var("DIDACTYL_STANDBY", "true");
        harbour.tick().await;
        let given_back = record::store(&old, &trigger(&old, &dm), harbour.now().as_secs()).await.unwrap();
        assert!(!given_back.held);
        harbour.clock.forward(MINUTE);
        if is_answered {
            harbour.sea.post(&nip04_at(&secret(1), &admin(), "the other's", harbour.now()));
        }
        harbour.set_var("DIDACTYL_STANDBY", "false");
        for _ in 0..3 {
            harbour.clock.forward(MINUTE);
            harbour.tick().await;
        }
        let expected = if is_answered { "the other's" } else { "HELLO" };
        assert_eq!(harbour.answers(), [expected]);
    }
}

#[tokio::test]
async fn while_a_relay_is_silent_after_a_standby_nothing_of_it_is_answered() {
    let mut harbour = Harbour::new(&[Manner::Gives(500), Manner::Gives(500)], echo).await;
    harbour.tick().await;
    harbour.set_var("DIDACTYL_STANDBY", "true");
    harbour.sea.post(&nip04_at(&secret(2), &agent_key(), "hello", harbour.now()));
    harbour.tick().await;
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.sea.set(2, Manner::Down);
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    assert_eq!(harbour.model.calls(), 0, "the silent relay may know of an answer");
    harbour.sea.set(2, Manner::Gives(500));
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    assert_eq!(harbour.answers(), ["HELLO"]);
}

#[tokio::test]
async fn a_reply_that_was_saved_before_a_standby_is_sent_after_it_unless_somebody_else_answered() {
    for is_answered in [true, false] {
        let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
        harbour.sea.refuse_events(true);
        let dm = nip04_at(&secret(2), &agent_key(), "hello", harbour.now());
        harbour.sea.post(&dm);
        harbour.tick().await;
        let saved = record(&harbour, &dm).await;
        assert_eq!((saved.status, saved.held), (Status::Replying, false));

        harbour.sea.refuse_events(false);
        harbour.set_var("DIDACTYL_STANDBY", "true");
        for _ in 0..3 {
            harbour.clock.forward(MINUTE);
            harbour.tick().await;
        }
        assert_eq!(harbour.answers(), [""; 0]);
        if is_answered {
            harbour.sea.post(&nip04_at(&secret(1), &admin(), "the other's", harbour.now()));
        }
        harbour.set_var("DIDACTYL_STANDBY", "false");
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
        let expected = if is_answered { "the other's" } else { "HELLO" };
        assert_eq!((harbour.answers(), harbour.model.calls()), (vec![expected.to_owned()], 1));
        let ids = harbour.sea.replies(&secret(2));
        assert!(is_answered || ids[0].0 == saved.reply_ids[0]);
    }
}

#[tokio::test]
async fn what_was_begun_before_a_standby_is_never_too_old_after_it() {
    let is_down = Arc::new(AtomicBool::new(false));
    let model_is_down = Arc::clone(&is_down);
    let script = move |asked: &Asked| match model_is_down.load(Ordering::SeqCst) {
        true => Answer::Refusal(503, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
        false => echo(asked),
    };
    let mut harbour = Harbour::new(&[Manner::Gives(500)], script).await;
    harbour.tick().await;
    let post = |harbour: &Harbour, text: &str| {
        let dm = nip04_at(&secret(2), &agent_key(), text, harbour.now());
        harbour.sea.post(&dm);
        dm
    };
    let saved = post(&harbour, "its reply is saved");
    harbour.sea.refuse_events(true);
    harbour.tick().await;
    is_down.store(true, Ordering::SeqCst);
    harbour.clock.forward(MINUTE);
    let waits = post(&harbour, "it waits for a model");
    for _ in 0..2 {
        harbour.tick().await;
        harbour.clock.forward(Duration::from_secs(4 * HOUR));
    }
    let [saved, waits] = [record(&harbour, &saved).await, record(&harbour, &waits).await];
    assert_eq!((saved.status, waits.status, waits.attempt), (Status::Replying, Status::Running, 0));

    harbour.set_var("DIDACTYL_STANDBY", "true");
    harbour.tick().await;
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.sea.refuse_events(false);
    is_down.store(false, Ordering::SeqCst);
    for _ in 0..2 {
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
    }
    let answers: Vec<String> = harbour.answers().into_iter().filter(|text| *text != NOTE).collect();
    assert_eq!(answers, ["IT WAITS FOR A MODEL", "ITS REPLY IS SAVED"]);
}

#[tokio::test]
async fn what_is_to_be_told_waits_for_the_end_of_the_standby() {
    let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.set_var("DIDACTYL_HELLO", "true");
    harbour.set_var("DIDACTYL_STANDBY", "true");
    for _ in 0..3 {
        harbour.tick().await;
        harbour.clock.forward(11 * MINUTE);
    }
    assert_eq!(harbour.answers(), [""; 0]);
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.tick().await;
    harbour.tick().await;
    assert_eq!(harbour.answers().len(), 1);
}

#[tokio::test]
async fn a_listener_in_standby_answers_nobody() {
    let agent = TestAgent::start().await;
    tick(&agent.app).await;
    let app = waiting(&agent);
    let dm = nip17(&secret(2), "hello");
    let run = run_id(&dm_trigger_id(&dm_id(&dm)));
    let scene = async {
        agent.publish([dm]).await;
        while record::find(&app, &run).await.unwrap().is_none() {}
    };
    let answer = listening(&app, scene).await;
    // Whether it came to the sweep or to the listener is the relay's affair.
    let told = [&answer["results"], &answer["listen"]["results"]].map(|results| results.to_string());
    assert_eq!(told.iter().filter(|told| told.contains("standby")).count(), 1, "{answer}");
    assert_eq!((agent.model.calls(), agent.replies().await.len()), (0, 0));
    tick(&app).await;
    agent.clock.forward(2 * MINUTE);
    tick(&agent.another()).await;
    assert_eq!(agent.replies().await.len(), 1);
}

#[tokio::test]
async fn held_messages_of_strangers_hide_no_other_work_and_the_admin_comes_first() {
    let agent = TestAgent::start().await;
    tick(&agent.app).await;
    let (app, open) = (waiting(&agent), waiting_for(&agent, "all"));
    let now = agent.app.clock.now().as_secs();
    for number in 10..130 {
        let stranger = trigger(&open, &nip17(&secret(number), "let me in"));
        assert!(record::store(&open, &stranger, now - 100).await.unwrap().held);
    }
    // An old process gave this one back: that another instance answers it meanwhile is not known to it.
    let begun = trigger(&agent.app, &nip17(&secret(2), "begun before"));
    let begun = record::store(&agent.app, &begun, now).await.unwrap();
    assert!(!begun.held);
    tick(&app).await;
    assert!(record::find(&app, &begun.run_id).await.unwrap().unwrap().held);
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), "held last")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["standby"]);

    // A late tick, which sweeps nothing, works what is due and leaves the held ones.
    agent.clock.forward(MINUTE);
    let retry = trigger(&open, &nip17(&secret(9), "a retry"));
    let retry = record::store(&agent.app, &retry, now).await.unwrap();
    let late = Some(Timestamp::from(now - 600));
    let deadline = didactyl::clock::Deadline::after(crate::agent::BUDGET);
    let answer = didactyl::tick::run(&app_for(&agent, "wot", "false"), late, deadline).await.unwrap();
    assert_eq!(answer["due"], json!(1), "{answer}");
    let retry = record::find(&app, &retry.run_id).await.unwrap().unwrap();
    assert_eq!((retry.status, agent.model.calls()), (Status::Dropped, 0));

    agent.clock.forward(MINUTE);
    let answer = tick(&app_for(&agent, "wot", "false")).await;
    assert_eq!(answer["due"], json!(50), "{answer}");
    let mut answers: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    answers.sort();
    assert_eq!(answers, ["BEGUN BEFORE", "HELD LAST"]);
    // The others follow as there is room.
    for due in [50, 22, 0] {
        agent.clock.forward(MINUTE);
        assert_eq!(tick(&app_for(&agent, "wot", "false")).await["due"], json!(due));
    }
}

#[tokio::test]
async fn of_what_strangers_push_in_standby_nothing_is_stored() {
    let agent = TestAgent::start().await;
    let app = waiting_for(&agent, "all");
    tick(&app).await;
    let stranger = nip17(&secret(9), "let me in");
    let answer = deliver_to(&app, &agent.relay_url, &[stranger.clone(), nip17(&secret(2), "hello")]).await;
    assert_eq!(outcomes(&answer.unwrap()), ["rejected", "standby"]);
    assert_eq!(record::find(&app, &run_id(&dm_trigger_id(&dm_id(&stranger)))).await.unwrap(), None);
    assert_eq!(agent.history(secret(9).public_key()).await, []);
}
