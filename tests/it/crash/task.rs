//! A task of three tool turns, one of which posts a note, and a reply in two parts: the process dies, or a port fails, at
//! any call, and ticks alone go on. Nothing is asked, posted or said twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use didactyl::cli::seed;
use nostr::prelude::Timestamp;
use serde_json::Value;

use super::*;
use crate::sea::tick;

on_each_store! {
    a_task_is_done_once_after_a_crash_at_any_call,
    a_task_is_done_once_when_any_port_fails_at_any_call,
}

/// The reply: two parts.
fn report() -> String {
    let paragraph = format!("{}\n\n", "word ".repeat(2_000).trim_end());
    paragraph.repeat(2).trim_end().to_owned()
}

fn parts() -> Vec<String> {
    report().split_inclusive("\n\n").map(str::to_owned).collect()
}

fn script(asked: &Asked) -> Answer {
    let results = asked.messages().iter().filter(|message| message["role"] == "tool").count();
    match results {
        0 => Answer::call("nostr_query", json!({"kinds": [0], "limit": 1})),
        1 => Answer::call("nostr_post", json!({"content": "a note"})),
        2 => Answer::call("agent_identity", json!({})),
        _ => Answer::Text(report()),
    }
}

/// The model calls that the task needs.
const CALLS: usize = 4;

struct Task {
    agent: TestAgent,
    dm: Event,
}

impl Task {
    async fn new(on: On) -> Self {
        let agent = TestAgent::over(on, script).await;
        let dm = nip17(&secret(2), "a task");
        agent.publish([dm.clone()]).await;
        Self { agent, dm }
    }

    /// Hands the message to a process with this fault, which dies there if the fault says so.
    async fn meet(&self, fault: &Arc<Fault>) -> bool {
        let mut app = self.agent.another();
        fault.install(&mut app);
        tokio::select! {
            biased;
            () = fault.crashed() => {}
            _ = deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm)) => {}
        }
        fault.was_reached()
    }

    /// Nobody hands the message over any more, and the agent's skills are others by now.
    async fn ticks(&self, what: &str) {
        self.agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
        let later = Timestamp::now() + 1;
        self.agent.publish(seed::agent_events(&secret(1), &self.agent.relay_url, later).unwrap()).await;
        for _ in 0..5 {
            let answer = tick(&self.agent.another()).await;
            assert_eq!(answer["success"], json!(true), "{what}: {answer}");
            self.agent.clock.forward(Duration::from_secs(60));
        }
    }

    /// `cut` are the model calls that nobody heard the answer of.
    async fn check(&self, cut: usize, what: &str) {
        let replies = self.agent.replies().await;
        let texts: Vec<&str> = replies.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, parts(), "{what}");
        let record = self.agent.record(&record::dm_trigger_id(&dm_id(&self.dm))).await;
        let ids: Vec<EventId> = replies.iter().map(|(id, _)| *id).collect();
        assert_eq!((record.status, record.reply_ids), (Status::Done, ids), "{what}");

        let mut expected = vec![("peer", "a task".to_owned())];
        expected.extend(parts().into_iter().map(|part| ("agent", part)));
        assert_eq!(self.agent.history(secret(2).public_key()).await, expected, "{what}");

        let notes = Filter::new().kind(Kind::from(1)).author(agent_key());
        assert_eq!(self.agent.on_relay(notes).await.len(), 1, "{what}");
        assert_eq!(self.agent.model.refusals(), [""; 0], "{what}");
        let calls = self.agent.model.calls();
        assert!((CALLS..=CALLS + cut).contains(&calls), "{what}: {calls} model calls");
        self.check_requests(what);
    }

    /// What is asked again, once there was an answer to go on from, is asked in the same words.
    fn check_requests(&self, what: &str) {
        let mut asked: BTreeMap<usize, Value> = BTreeMap::new();
        for request in self.agent.model.requests() {
            let results = request.messages().iter().filter(|message| message["role"] == "tool").count();
            let first = asked.entry(results).or_insert_with(|| request.body.clone());
            assert!(results == 0 || *first == request.body, "{what}: turn {}", results + 1);
        }
        let bodies: Vec<&Value> = asked.values().skip(1).collect();
        for pair in bodies.windows(2) {
            let (Some(before), Some(after)) = (pair[0]["messages"].as_array(), pair[1]["messages"].as_array())
            else {
                panic!("{what}: no messages")
            };
            assert!(after.starts_with(before), "{what}: a later turn has other messages");
        }
    }
}

/// Tries a fault at every call in turn, until the task ends before it comes to it. The emulator is slow: it sees every
/// seventh call.
async fn at_every_call(on: On, fault: impl Fn(usize, Side) -> Arc<Fault>) {
    let step = if on == On::Sqlite { 1 } else { 7 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let (task, fault) = (Task::new(on).await, fault(at, side));
            let what = format!("{side:?} call {at}");
            let reached = task.meet(&fault).await;
            task.ticks(&what).await;
            task.check(usize::from(reached), &what).await;
            if !reached {
                break;
            }
            at += step;
        }
        // Claim, reads, four models, three results, a note saved and sent, the reply saved and sent, the end.
        assert!(at > 20, "{side:?}: the task ended after {at} calls");
    }
}

async fn a_task_is_done_once_after_a_crash_at_any_call(on: On) {
    at_every_call(on, Fault::crash).await;
}

async fn a_task_is_done_once_when_any_port_fails_at_any_call(on: On) {
    at_every_call(on, Fault::failing).await;
}
