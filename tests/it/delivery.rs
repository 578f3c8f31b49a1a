//! Sweep, listener and bridge together, in any order and any number of times: each message is answered once.

use std::collections::BTreeMap;
use std::time::Duration;

use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::tick;
use nostr::prelude::Event;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use crate::agent::{BUDGET, TestAgent, agent_key, echo, nip17, secret};
use crate::faults::{Fault, Side};
use crate::process::Process;
use crate::sea::{Harbour, Manner, nip04_at, wrap_at};
use crate::serve::{replies, serve};

const TOKEN: &str = "SEKRIT-token-of-the-bridge";

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// A message of either kind, written now.
fn message(harbour: &Harbour, number: u64) -> Event {
    let (now, text) = (harbour.now(), format!("message {number:02}"));
    if number.is_multiple_of(2) {
        wrap_at(&secret(2), &text, now, now - number * 60 * 60)
    } else {
        nip04_at(&secret(2), &agent_key(), &text, now)
    }
}

/// As a bridge does it, in a process of the agent's own.
async fn push(harbour: &Harbour, events: &[Event]) {
    let payload = json!({"type": "relay", "events": events}).to_string();
    // Where a run is in other hands, or fails for now, the sweep has it.
    let app = harbour.app();
    let _ = Box::pin(handler::handle(&app, &payload, Deadline::after(BUDGET))).await;
}

/// A tick that listens until `scene` is over.
async fn listen(harbour: &Harbour, scene: impl Future<Output = ()>) {
    let until = Some(Instant::now() + BUDGET);
    let scene = async { timeout(BUDGET / 2, scene).await.unwrap_or_default() };
    let app = harbour.app();
    // Boxed: several of them are one future, too large for a thread's stack.
    let tick = Box::pin(tick::run_and_listen(&app, None, Deadline::after(2 * BUDGET), until, scene));
    tick.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_delivers_a_message_and_however_often_it_is_answered_once() {
    const ROUNDS: u64 = 12;
    let harbour = Harbour::new(&[Manner::Gives(500), Manner::Gives(500)], echo).await;
    let mut dice = Dice(5);
    // All is written after the agent's start.
    harbour.tick().await;
    harbour.clock.forward(Duration::from_secs(60));
    for round in 0..ROUNDS {
        let events = [message(&harbour, 2 * round), message(&harbour, 2 * round + 1)];
        if dice.below(3) == 0 {
            // A worker dies at some point, with whatever it had in hand.
            let side = if dice.below(2) == 0 { Side::Before } else { Side::After };
            let fault = Fault::crash(1 + usize::try_from(dice.below(8)).unwrap(), side);
            let mut victim = harbour.app();
            fault.install(&mut victim);
            let payload = json!({"type": "relay", "events": events}).to_string();
            fault.until_crash(Box::pin(handler::handle(&victim, &payload, Deadline::after(BUDGET)))).await;
        }
        // Two listeners hear them at once, while a bridge pushes them one by one and together, and a tick comes.
        let heard_by = |listeners| harbour.sea.listened_to(usize::try_from(4 * round + listeners).unwrap());
        let inner = async {
            heard_by(4).await;
            harbour.sea.post_all(events.to_vec());
            let pushes = async {
                tokio::join!(
                    push(&harbour, &events[..1]),
                    push(&harbour, &events),
                    push(&harbour, &events[1..])
                );
            };
            tokio::join!(pushes, Box::pin(harbour.tick()));
        };
        let outer = async {
            heard_by(2).await;
            listen(&harbour, Box::pin(inner)).await;
        };
        listen(&harbour, Box::pin(outer)).await;
        harbour.clock.forward(Duration::from_secs(3 * 60));
    }
    for _ in 0..5 {
        harbour.clock.forward(Duration::from_secs(3 * 60));
        harbour.tick().await;
    }
    let expected: Vec<String> = (0..2 * ROUNDS).map(|number| format!("MESSAGE {number:02}")).collect();
    assert_eq!(harbour.answers(), expected);
}

#[tokio::test]
async fn bridges_that_are_killed_and_started_again_at_random_lose_and_double_nothing() {
    const MESSAGES: usize = 12;
    let agent = TestAgent::start().await;
    let (mut process, url) = serve(&agent, &["--every", "5"]).await;
    process.says("the tick listens").await;
    let vars = BTreeMap::from([("DIDACTYL_BRIDGE_TOKEN", TOKEN.to_owned())]);
    let (relay, npub) = (agent.relay_url.to_string(), agent_key().to_hex());
    let start = || Process::start(&["bridge", "--relays", &relay, "--agent", &npub, "--to", &url], &vars);
    // Two, so that what one of them pushes the other pushes too, beside listener and sweep.
    let (mut dice, mut bridges) = (Dice(8), [Some(start()), Some(start())]);
    for number in 0..MESSAGES {
        agent.publish([nip17(&secret(2), &format!("message {number:02}"))]).await;
        let which = usize::try_from(dice.below(2)).unwrap();
        match bridges[which].take() {
            Some(bridge) => bridge.kill().await,
            None => bridges[which] = Some(start()),
        }
        // At whatever point a bridge is then.
        sleep(Duration::from_millis(dice.below(400))).await;
    }
    let mut answers = replies(&agent, MESSAGES).await;
    answers.sort();
    let expected: Vec<String> = (0..MESSAGES).map(|number| format!("MESSAGE {number:02}")).collect();
    assert_eq!(answers, expected);
    assert!(process.end().await.success());
    assert_eq!((agent.replies().await.len(), agent.model.calls()), (MESSAGES, MESSAGES));
}
