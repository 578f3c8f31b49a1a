//! Dead letters: runs that were given up are kept with the reason, and may be run again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::llm::scripted::Answer;
use didactyl::record::{self, Status, dm_trigger_id};
use serde_json::json;

use super::{notes, order, texts};
use crate::agent::{TestAgent, dm_id, nip17, outcomes, secret};
use crate::ground::{On, on_each_store};
use crate::process::Process;
use crate::sea::tick;

on_each_store! {
    a_run_that_is_given_up_is_a_dead_letter_and_its_second_life_repeats_nothing,
}

async fn a_run_that_is_given_up_is_a_dead_letter_and_its_second_life_repeats_nothing(on: On) {
    let is_ill = Arc::new(AtomicBool::new(true));
    let model = Arc::clone(&is_ill);
    let agent = TestAgent::over(on, move |asked| {
        if asked.result().is_none() {
            return Answer::call("nostr_post", json!({"content": "a note"}));
        }
        match model.load(Ordering::SeqCst) {
            true => Answer::Refusal(401, vec![], json!({"error": {"message": "no"}}).to_string()),
            false => Answer::Text("posted".to_owned()),
        }
    })
    .await;
    let dm = nip17(&secret(2), "post");
    let answer = agent.deliver(std::slice::from_ref(&dm)).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let reason = "the model's provider refused the key or the account";
    assert_eq!(answer["results"][0]["failure"], json!(reason));
    let id = dm_trigger_id(&dm_id(&dm));
    let dead = agent.record(&id).await;
    assert_eq!((dead.status, dead.reason.as_deref(), dead.due_at), (Status::Dead, Some(reason), None));
    assert_eq!(record::dead(&agent.app, 10).await.unwrap(), std::slice::from_ref(&dead));
    let status = order(&agent, "/status").await;
    assert!(status.contains(&format!("- {}: {reason}", dead.short_id())), "{status}");
    // It is over: nobody takes it up.
    agent.clock.forward(Duration::from_secs(60 * 60));
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);

    is_ill.store(false, Ordering::SeqCst);
    let mut process = Process::start(&["runs", "retry", dead.short_id()], &agent.vars());
    process.says("is due again").await;
    assert!(process.ended().await.success());
    agent.clock.forward(Duration::from_secs(1));
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"]);
    let record = agent.record(&id).await;
    assert_eq!((record.status, record.tries(), record.reason, record.turns), (Status::Done, 1, None, 2));
    assert_eq!(record::dead(&agent.app, 10).await.unwrap(), []);
    assert_eq!(notes(&agent).await.len(), 1);
    // The note's call, two for what comes after it.
    assert_eq!(agent.model.calls(), 3);
    assert!(texts(&agent).await.contains(&"posted".to_owned()));
    let status = order(&agent, "/status").await;
    assert!(status.contains("Dead letters: none"), "{status}");
}
