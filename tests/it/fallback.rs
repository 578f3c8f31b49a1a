//! The fallback chain through the real client: over HTTP, from the DM to the record.

use std::time::Duration;

use didactyl::app::App;
use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::{NOTE, PATIENCE};
use didactyl::record::{Attempt, dm_trigger_id};
use nostr::prelude::Event;
use serde_json::{Value, json};

use crate::agent::{TestAgent, app_over, config, dm_id, echo, nip17, outcomes, secret};

/// Each model as its name says.
fn by_name(asked: &Asked) -> Answer {
    let refusal = |status: u16, headers: &[(&str, &str)]| {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Answer::Refusal(status, headers, json!({"error": {"message": "private words"}}).to_string())
    };
    match asked.body["model"].as_str().unwrap() {
        "busy" => refusal(429, &[("retry-after", "1")]),
        "ill" => refusal(503, &[]),
        "keyless" => refusal(401, &[]),
        "silent" => Answer::Hang,
        _ => echo(asked),
    }
}

/// The same agent with this chain.
fn with_chain(agent: &TestAgent, chain: &str) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_LLM", chain.to_owned());
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

async fn deliver(
    agent: &TestAgent,
    app: &App,
    dm: &Event,
    budget: u64,
) -> Result<Value, didactyl::error::Error> {
    let payload = json!({"type": "relay", "events": [dm], "relay": agent.relay_url.to_string()}).to_string();
    handler::handle(app, &payload, Deadline::after(Duration::from_secs(budget))).await
}

fn told(attempts: &[Attempt]) -> String {
    let line =
        |a: &Attempt| format!("turn {} {}: {}", a.turn, a.model, a.failure.as_deref().unwrap_or("answered"));
    attempts.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_chain_of_429_timeout_and_success_answers_and_the_record_tells_how() {
    let agent = TestAgent::with_script(by_name).await;
    let app = with_chain(&agent, "scripted/busy, scripted/silent, scripted/well");
    let dm = nip17(&secret(2), "hello");
    let answer = deliver(&agent, &app, &dm, 8).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let replies = agent.replies().await;
    assert_eq!(replies.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["HELLO"]);
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!(record.model.as_deref(), Some("scripted/well"));
    insta::assert_snapshot!(told(&record.attempts), @r"
    turn 1 scripted/busy: the model is unavailable for now
    turn 1 scripted/silent: the model is unavailable for now
    turn 1 scripted/well: answered
    ");
    // The sum is that of the attempts, and nothing of the providers' words is in the record.
    assert_eq!(record.cost_micro_usd, record.attempts.iter().map(|a| a.cost_micro_usd).sum::<u64>());
    assert!(record.usage.input_tokens > Some(0));
    assert!(!serde_json::to_string(&record).unwrap().contains("private words"));
}

#[tokio::test]
async fn a_chain_that_is_down_is_tried_whole_each_time_and_ends_in_one_honest_reply() {
    let agent = TestAgent::with_script(by_name).await;
    let app = with_chain(&agent, "scripted/busy, scripted/keyless, scripted/ill");
    let dm = nip17(&secret(2), "hello");
    for wait in [Duration::from_secs(60), PATIENCE] {
        let error = deliver(&agent, &app, &dm, 12).await.unwrap_err();
        assert_eq!(error.to_string(), "the model is unavailable for now");
        agent.clock.forward(wait);
    }
    let answer = deliver(&agent, &app, &dm, 12).await.unwrap();
    assert_eq!(answer["results"][0]["failure"], "the model is unavailable for now", "{answer}");
    let replies = agent.replies().await;
    let texts: Vec<&str> = replies.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, [NOTE, "I could not answer this message: the model is unavailable for now."]);
    let asked: Vec<Value> = agent.model.requests().iter().map(|asked| asked.body["model"].clone()).collect();
    // A 503 is asked again by nobody.
    assert_eq!(asked, ["busy", "keyless", "ill"].repeat(3));
}
