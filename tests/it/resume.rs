//! A run is taken over from what its journal says, whatever has changed meanwhile, and whoever wrote it: a version of long
//! ago, or a newer one that is left alone.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, Status, dm_trigger_id, run_id};
use didactyl::store::{Expect, Key, Range, Row, Write, keys};
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Kind, Tag, Timestamp};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::agent::{
    Log, TestAgent, agent_key, deliver_to, dm_id, hand_over, load, nip17, outcomes, secret, trigger,
};
use crate::ground::{On, on_each_store};

on_each_store! {
    whoever_takes_a_run_over_asks_the_model_the_very_same,
    a_message_that_needs_no_tool_leaves_no_journal,
    a_journal_of_the_first_format_is_taken_over,
    a_run_of_a_newer_format_is_left_alone_and_told,
}

/// Asks for the time, and dies on its way to the answer: the second request is never answered.
fn dies_at_the_second(reached: Arc<Notify>) -> impl Fn(&Asked) -> Answer + Send + Sync + 'static {
    move |asked| match asked.number {
        1 => Answer::call("time", json!({})),
        2 => {
            reached.notify_one();
            Answer::Hang
        }
        _ => Answer::Text("found".to_owned()),
    }
}

async fn whoever_takes_a_run_over_asks_the_model_the_very_same(on: On) {
    let reached = Arc::new(Notify::new());
    let agent = TestAgent::over(on, dies_at_the_second(reached.clone())).await;
    let dm = nip17(&secret(2), "What time is it?");
    let victim = agent.another();
    tokio::select! {
        biased;
        () = reached.notified() => {}
        answer = deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm)) => panic!("{answer:?}"),
    }

    // Meanwhile the agent becomes somebody else, and its store knows.
    agent.clock.forward(Duration::from_secs(120));
    let soul = EventBuilder::new(Kind::from(31120), "You are somebody else.")
        .tag(Tag::identifier("soul"))
        .custom_created_at(Timestamp::now() + 60)
        .finalize(&secret(1))
        .unwrap();
    agent.publish([soul]).await;
    load(&agent.app, &trigger(&agent.app, &dm)).await;
    agent.clock.forward(Duration::from_secs(120));

    agent.end_the_lease(&dm).await;
    let answer = deliver_to(&agent.another(), &agent.relay_url, &[dm]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let bodies: Vec<String> = agent.model.requests().iter().map(|asked| asked.body.to_string()).collect();
    assert_eq!(bodies.len(), 3);
    assert_eq!(bodies[2], bodies[1]);
    assert!(!bodies[2].contains("somebody else"));
    // A run that begins now has the new soul.
    agent.deliver(&[nip17(&secret(2), "And you are?")]).await;
    assert!(agent.model.requests()[3].body.to_string().contains("somebody else"));
}

async fn run_rows(agent: &TestAgent, run: &str) -> Vec<Row> {
    agent.app.store.list(&Range::whole(keys::run_partition(run))).await.unwrap()
}

async fn a_message_that_needs_no_tool_leaves_no_journal(on: On) {
    let agent = TestAgent::over(on, crate::agent::echo).await;
    let dm = nip17(&secret(2), "hello");
    assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(&dm)).await), ["replied"]);
    let rows = run_rows(&agent, &run_id(&dm_trigger_id(&dm_id(&dm)))).await;
    let sorts: Vec<&str> = rows.iter().map(|row| row.key.sort.as_str()).collect();
    assert_eq!(sorts, ["RECORD", "REPLY#000", "TRIGGER"]);
}

/// Puts the rows of a file in `journals/` into the store; the run that they tell of.
async fn put_rows(agent: &TestAgent, file: &str) -> String {
    let file: Value = serde_json::from_str(file).unwrap();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    for row in file["rows"].as_array().unwrap() {
        let value = match row.get("clear") {
            Some(clear) => serde_json::to_vec(clear).unwrap(),
            None => BASE64.decode(text(row, "sealed")).unwrap(),
        };
        let key = Key::new(text(row, "partition"), text(row, "sort"));
        agent.app.store.write(&[Write::put(key, Expect::Absent, value, None)]).await.unwrap();
    }
    text(&file, "run")
}

/// Answers whatever has a tool's result.
fn posted(asked: &Asked) -> Answer {
    let result = asked.result().expect("the journal has the first answer and its result");
    assert_eq!(result["success"], true, "{result}");
    Answer::Text("posted".to_owned())
}

const FIRST_FORMAT: &str = include_str!("journals/format-1.json");

async fn a_journal_of_the_first_format_is_taken_over(on: On) {
    let agent = TestAgent::over(on, posted).await;
    let run = put_rows(&agent, FIRST_FORMAT).await;
    let note =
        run_rows(&agent, &run).await.into_iter().find(|row| row.key.sort == "TURN#0001#E#000").unwrap();
    let note: Event = agent.app.open_sealed(&note).unwrap();

    // The due list brings it.
    let answer = hand_over(&agent.another(), r#"{"type":"tick"}"#).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(agent.model.calls(), 1);
    assert_eq!(agent.replies().await.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), ["posted"]);
    assert_eq!(note.content, "a note of long ago");
    // Its result was there: nothing was posted again.
    assert!(agent.on_relay(Filter::new().kind(Kind::from(1)).author(agent_key())).await.is_empty());
    let record = record::find(&agent.app, &run).await.unwrap().unwrap();
    assert_eq!(
        (record.status, record.attempt, record.tool_calls),
        (Status::Done, 2, vec!["nostr_post".to_owned()])
    );
}

/// The same rows as a later version might write them: the record first, and then a row of the journal.
async fn a_run_of_a_newer_format_is_left_alone_and_told(on: On) {
    let log = Log::default();
    let _guard = log.clone().start();
    for newer in ["RECORD", "TURN#0001#A"] {
        let agent = TestAgent::over(on, posted).await;
        let run = put_rows(&agent, FIRST_FORMAT).await;
        let row = run_rows(&agent, &run).await.into_iter().find(|row| row.key.sort == newer).unwrap();
        let value = if newer == "RECORD" {
            let mut record: Value = serde_json::from_slice(&row.value).unwrap();
            record["format"] = json!(record::FORMAT + 1);
            record["a_field_of_tomorrow"] = json!(true);
            serde_json::to_vec(&record).unwrap()
        } else {
            let vault = didactyl::store::seal::Vault::new(secret(1).secret_key());
            let value = json!({"format": record::FORMAT + 1, "value": {"a_field_of_tomorrow": true}});
            vault.seal(&row.key, value.to_string().as_bytes()).unwrap()
        };
        agent.app.store.write(&[Write::put(row.key, Expect::Anything, value, None)]).await.unwrap();
        let before = run_rows(&agent, &run).await;

        // More often than there are attempts.
        for _ in 0..4 {
            hand_over(&agent.another(), r#"{"type":"tick"}"#).await;
            agent.clock.forward(Duration::from_secs(60 * 60));
        }
        let payload = json!({"type": "resume", "run": run}).to_string();
        if newer == "RECORD" {
            let answer = hand_over(&agent.another(), &payload).await;
            assert_eq!(answer["success"], false);
            let reason = answer["results"][0]["reason"].as_str().unwrap();
            assert!(
                reason.ends_with("this version reads up to 1: it is left to a newer version"),
                "{reason}"
            );
        }
        let rows = |rows: Vec<Row>| {
            rows.into_iter().filter(move |row| newer == "RECORD" || row.key.sort != "RECORD")
        };
        assert_eq!(
            rows(run_rows(&agent, &run).await).collect::<Vec<_>>(),
            rows(before).collect::<Vec<_>>(),
            "{newer}"
        );
        assert_eq!((agent.model.calls(), agent.replies().await.len()), (0, 0), "{newer}");
        if newer != "RECORD" {
            let record = record::find(&agent.app, &run).await.unwrap().unwrap();
            // Each of the four began it, and none of them counts.
            assert_eq!((record.status, record.attempt, record.fence), (Status::Running, 1, 5));
        }
        assert!(log.text().contains("it is left to a newer version"), "{}", log.text());
    }
}
