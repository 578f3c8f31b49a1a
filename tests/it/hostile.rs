//! Payloads and events that somebody made to break the agent: each is rejected for its own reason, costs no model
//! call and no reply, and keeps no good message from its answer.

mod events;
mod messages;
mod mutations;
mod payloads;

use std::collections::BTreeSet;

use nostr::prelude::RelayUrl;
use serde_json::{Value, json};

use crate::agent::{TestAgent, hand_over, nip04, nip17, outcomes, secret};

/// One attack: what it is, the JSON, and the exact reason of its rejection.
struct Case {
    name: &'static str,
    json: String,
    reason: &'static str,
}

/// Events that each must be rejected, wherever they stand.
fn event_cases() -> Vec<Case> {
    events::cases().into_iter().chain(messages::cases()).collect()
}

fn case(name: &'static str, json: impl Into<String>, reason: &'static str) -> Case {
    Case { name, json: json.into(), reason }
}

/// The relay form around these events, as they stand.
fn batch<'a>(events: impl IntoIterator<Item = &'a str>) -> String {
    let events: Vec<&str> = events.into_iter().collect();
    format!(r#"{{"type":"relay","events":[{}]}}"#, events.join(","))
}

/// Fails unless nothing was asked of the model and nothing was sent, and a good message is answered now.
async fn assert_unharmed(agent: &TestAgent) {
    assert_eq!(agent.model.calls(), 0, "an attack reached the model");
    assert_eq!(agent.replies().await, [], "an attack was answered");
    let answer = agent.deliver(&[nip17(&secret(2), "still there?")]).await;
    assert_eq!(outcomes(&answer), ["replied"]);
    assert_eq!(agent.model.calls(), 1);
    assert_eq!(texts(agent).await, ["STILL THERE?"]);
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

#[test]
fn every_attack_is_another() {
    let cases: Vec<Case> = event_cases().into_iter().chain(payloads::cases()).collect();
    let names: BTreeSet<_> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
    assert!(cases.len() >= 150, "{}", cases.len());
}

#[tokio::test]
async fn every_hostile_event_is_rejected_for_its_own_reason() {
    let agent = TestAgent::start().await;
    for Case { name, json, reason } in event_cases() {
        let answer = hand_over(&agent.app, &batch([json.as_str()])).await;
        let rejected = json!({"success": true, "results": [{"outcome": "rejected", "reason": reason}]});
        assert_eq!(answer, rejected, "{name}");
    }
    assert_unharmed(&agent).await;
}

#[tokio::test]
async fn a_hostile_event_is_rejected_the_same_way_when_it_comes_again_and_when_it_comes_bare() {
    let agent = TestAgent::start().await;
    let is_bare_event = |json: &str| {
        let value: Option<Value> = serde_json::from_str(json).ok();
        value.is_some_and(|v| ["id", "pubkey", "kind", "sig"].iter().all(|key| v.get(key).is_some()))
    };
    for Case { name, json, reason } in event_cases().into_iter().filter(|case| is_bare_event(&case.json)) {
        if json.matches(r#""content":"#).count() > 1 {
            // Repeated keys at the top level are refused before that; see the payloads.
            continue;
        }
        let rejected = json!({"success": true, "results": [{"outcome": "rejected", "reason": reason}]});
        for _ in 0..2 {
            assert_eq!(hand_over(&agent.app, &json).await, rejected, "{name}");
        }
    }
    assert_unharmed(&agent).await;
}

#[tokio::test]
async fn good_messages_among_all_hostile_events_of_one_batch_are_answered() {
    let agent = TestAgent::start().await;
    let cases = event_cases();
    let good = [nip04(&secret(2), "first").as_json(), nip17(&secret(2), "second").as_json()];
    let mut events: Vec<&str> = cases.iter().map(|case| case.json.as_str()).collect();
    events.insert(0, &good[0]);
    events.insert(events.len() / 2, &good[1]);

    let answer = hand_over(&agent.app, &batch(events.iter().copied())).await;
    let outcomes = outcomes(&answer);
    assert_eq!(outcomes.len(), events.len());
    for (event, outcome) in events.iter().zip(outcomes) {
        let expected = if good.iter().any(|good| good == event) { "replied" } else { "rejected" };
        assert_eq!(outcome, expected);
    }
    assert_eq!(agent.model.calls(), good.len());
    let mut texts = texts(&agent).await;
    texts.sort();
    assert_eq!(texts, ["FIRST", "SECOND"]);
}

#[tokio::test]
async fn every_hostile_payload_is_rejected_for_its_own_reason() {
    let agent = TestAgent::start().await;
    for Case { name, json, reason } in payloads::cases() {
        let rejected = json!({"success": false, "error": reason});
        assert_eq!(hand_over(&agent.app, &json).await, rejected, "{name}");
    }
    assert_unharmed(&agent).await;
}

#[tokio::test]
async fn a_thousand_hostile_events_fit_into_one_payload() {
    let agent = TestAgent::start().await;
    let forged = events::forged();
    let answer = hand_over(&agent.app, &batch(vec![forged.as_str(); 1_000])).await;
    assert_eq!(outcomes(&answer), vec!["rejected"; 1_000]);
    assert_unharmed(&agent).await;
}

#[tokio::test]
async fn a_run_that_does_not_exist_does_not_go_on() {
    let agent = TestAgent::start().await;
    let payload = json!({"type": "resume", "run": "0123456789abcdef0123456789abcdef"});
    let answer = hand_over(&agent.app, &payload.to_string()).await;
    let reason = "there is no such run";
    assert_eq!(answer, json!({"success": true, "results": [{"outcome": "rejected", "reason": reason}]}));
    assert_unharmed(&agent).await;
}

#[tokio::test]
async fn a_relay_field_that_names_none_of_our_relays_is_not_believed_and_loses_no_message() {
    let agent = TestAgent::start().await;
    let stranger = RelayUrl::parse("ws://127.0.0.1:1").unwrap();
    let fields = [json!(7), json!(null), json!([agent.relay_url]), json!({}), json!(""), json!(stranger)];
    for (i, relay) in fields.iter().enumerate() {
        let event = nip17(&secret(2), &format!("message {i}"));
        let payload = json!({"type": "relay", "events": [event], "relay": relay});
        let answer = hand_over(&agent.app, &payload.to_string()).await;
        assert_eq!(outcomes(&answer), ["replied"], "{relay}");
        let run = answer["results"][0]["run"].as_str().unwrap();
        let record = didactyl::record::find(&agent.app, run).await.unwrap().unwrap();
        let ours = agent.relay_url.to_string();
        assert!(record.deliveries.iter().all(|delivery| delivery.relay == ours), "{:?}", record.deliveries);
    }
}
