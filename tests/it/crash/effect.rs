//! A tool whose effect cannot be repeated: whatever dies at whatever point, it is called once at the most, and where nobody knows
//! what came of it the model is told so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::{App, LEASE_MARGIN};
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record;
use didactyl::tools::registry::Registry;
use didactyl::tools::{Class, Tool, ToolContext, ToolError};
use didactyl::trigger::Tier;
use nostr::prelude::Event;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::agent::{BUDGET, TestAgent, deliver_to, dm_id, nip17, outcomes, secret};
use crate::faults::{Fault, Side};
use crate::ground::{On, on_each_store};
use crate::process::Process;

on_each_store! {
    an_effect_that_cannot_be_repeated_happens_once_at_most_after_a_crash_at_any_call,
    an_effect_that_died_with_its_process_is_unknown_to_the_model_and_in_the_record,
}

/// Opens a gate: who is at the door may come in twice.
#[derive(Clone, Default)]
struct Gate {
    opened: Arc<AtomicUsize>,
    /// Where there is one, the process dies with the gate open.
    dies: Option<Arc<Notify>>,
}

#[async_trait]
impl Tool for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }
    fn description(&self) -> &'static str {
        "Opens the gate."
    }
    fn parameters(&self) -> Value {
        json!({"type": "object", "properties": {}})
    }
    fn class(&self) -> Class {
        Class::Write
    }
    fn lowest_tier(&self) -> Tier {
        Tier::Admin
    }
    fn is_repeatable(&self) -> bool {
        false
    }
    async fn call(&self, _: Value, _: &ToolContext<'_>) -> Result<Value, ToolError> {
        self.opened.fetch_add(1, Ordering::SeqCst);
        if let Some(dies) = &self.dies {
            dies.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(json!("open"))
    }
}

impl Gate {
    fn install(&self, mut app: App) -> App {
        app.tools = Registry::of(vec![Box::new(self.clone())]);
        app
    }

    fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

/// Says what the tool said.
fn script(asked: &Asked) -> Answer {
    match asked.result() {
        None => Answer::call("gate", json!({})),
        Some(result) if result["success"] == true => Answer::Text("it is open".to_owned()),
        Some(result) => Answer::Text(result["error"].as_str().unwrap().to_owned()),
    }
}

const UNKNOWN: &str = "it is not known whether this was done";

/// The reply of whoever takes the message up after the lease.
async fn reply(agent: &TestAgent, gate: &Gate, dm: &Event) -> String {
    agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
    let app = gate.install(agent.another());
    let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(dm)).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let replies = agent.replies().await;
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies[0].1.clone()
}

async fn an_effect_that_cannot_be_repeated_happens_once_at_most_after_a_crash_at_any_call(on: On) {
    // The emulator is slow.
    let step = if on == On::Sqlite { 1 } else { 5 };
    let (mut known, mut unknown) = (0, 0);
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let (agent, gate) = (TestAgent::over(on, script).await, Gate::default());
            let dm = nip17(&secret(2), "open the gate");
            agent.publish([dm.clone()]).await;
            let fault = Fault::crash(at, side);
            let mut victim = gate.install(agent.another());
            fault.install(&mut victim);
            fault.until_crash(deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm))).await;
            let (what, opened) = (format!("{side:?} call {at}"), gate.opened());
            let text = reply(&agent, &gate, &dm).await;
            let record = agent.record(&record::dm_trigger_id(&dm_id(&dm))).await;
            if text == "it is open" {
                assert_eq!((gate.opened(), record.unknown_calls), (1, vec![]), "{what}");
                known += 1;
            } else {
                assert!(text.starts_with(UNKNOWN), "{what}: {text}");
                // Nobody has opened it since.
                assert_eq!((gate.opened(), record.unknown_calls), (opened, unknown_gate()), "{what}");
                unknown += 1;
            }
            if !fault.was_reached() {
                break;
            }
            at += step;
        }
    }
    assert!(known > 0 && (on == On::DynamoDb || unknown > 0), "{known} known, {unknown} unknown");
}

fn unknown_gate() -> Vec<(u32, String)> {
    vec![(1, "gate".to_owned())]
}

async fn an_effect_that_died_with_its_process_is_unknown_to_the_model_and_in_the_record(on: On) {
    let (agent, gate) = (TestAgent::over(on, script).await, Gate::default());
    let dies = Arc::new(Notify::new());
    let fatal = Gate { dies: Some(Arc::clone(&dies)), ..gate.clone() };
    let dm = nip17(&secret(2), "open the gate");
    let victim = fatal.install(agent.another());
    tokio::select! {
        biased;
        () = dies.notified() => {}
        answer = deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm)) => panic!("{answer:?}"),
    }
    let text = reply(&agent, &gate, &dm).await;
    assert!(text.starts_with(UNKNOWN), "{text}");
    let record = agent.record(&record::dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!((gate.opened(), record.unknown_calls.clone()), (1, unknown_gate()));

    let mut process = Process::start(&["runs", record.short_id()], &agent.vars());
    process.says("unknown    turn 1: whether gate took effect").await;
    assert!(process.ended().await.success());
}
