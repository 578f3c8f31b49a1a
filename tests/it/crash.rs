//! The process dies anywhere: a DM is still answered once, and both sides are in its conversation once.

mod effect;
mod task;

use std::time::{Duration, Instant};

use didactyl::app::LEASE_MARGIN;
use didactyl::dm::ReplyPart;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, MAX_ATTEMPTS, RunRecord, Status};
use didactyl::store::Range;
use didactyl::store::{Key, keys};
use nostr::prelude::{Event, EventId, Filter, Kind};
use proptest::prelude::{Strategy, prop};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::json;

use crate::agent::{BUDGET, TestAgent, agent_key, deliver_to, dm_id, nip04, nip17, outcomes, secret};
use crate::faults::{Fault, Side};
use crate::ground::{On, on_each_store};
use crate::runtime_api::Function;

on_each_store! {
    a_nip17_message_is_answered_once_after_a_crash_at_any_call,
    a_nip04_message_is_answered_once_after_a_crash_at_any_call,
    a_note_is_posted_once_after_a_crash_at_any_call,
    a_message_is_answered_once_when_the_store_fails_at_any_call,
    a_message_is_answered_once_after_crashes_in_a_row,
    a_message_is_answered_once_after_the_process_is_killed_at_any_time,
}

/// What the crashes are tried on.
#[derive(Debug, Clone, Copy)]
enum Story {
    Nip17,
    Nip04,
    /// The model posts a note before it answers.
    Post,
}

impl Story {
    fn message(self) -> Event {
        match self {
            Self::Nip17 => nip17(&secret(2), "hello"),
            Self::Nip04 => nip04(&secret(2), "hello"),
            Self::Post => nip17(&secret(2), "post"),
        }
    }

    fn exchange(self) -> (&'static str, &'static str) {
        match self {
            Self::Nip17 | Self::Nip04 => ("hello", "HELLO"),
            Self::Post => ("post", "posted"),
        }
    }
}

fn script(asked: &Asked) -> Answer {
    match asked.last_text("user") {
        _ if asked.result().is_some() => Answer::Text("posted".to_owned()),
        "post" => Answer::call("nostr_post", json!({"content": "a note"})),
        text => Answer::Text(text.to_uppercase()),
    }
}

/// An agent and one DM to it, which also lies on the relay.
struct Bed {
    agent: TestAgent,
    story: Story,
    dm: Event,
}

impl Bed {
    async fn new(on: On, story: Story) -> Self {
        let agent = TestAgent::over(on, script).await;
        let dm = story.message();
        agent.publish([dm.clone()]).await;
        Self { agent, story, dm }
    }

    /// Hands the DM to a process that dies at its `at`-th call; whether it came so far.
    async fn crash(&self, at: usize, side: Side) -> bool {
        let fault = Fault::crash(at, side);
        let mut app = self.agent.another();
        fault.install(&mut app);
        tokio::select! {
            biased;
            () = fault.crashed() => {}
            _ = deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm)) => {}
        }
        self.check_promises(&format!("crash {side:?} call {at}")).await;
        fault.was_reached()
    }

    /// Hands it to a process whose `at`-th call of the store answers that it is unavailable; whether it came so far.
    async fn lose_a_store_answer(&self, at: usize, side: Side) -> bool {
        let fault = Fault::unavailable(at, side);
        let mut app = self.agent.another();
        fault.install(&mut app);
        // An answer or an error: what counts is what the next delivery finds.
        let _ = deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm)).await;
        self.check_promises(&format!("no answer {side:?} store call {at}")).await;
        fault.was_reached()
    }

    /// A record tells of a reply exactly where one is saved. One read sees all: what the dead process asked of the
    /// database may still be on its way.
    async fn check_promises(&self, what: &str) {
        let record = self.record_key();
        let rows = self.agent.app.store.list(&Range::whole(record.partition.clone())).await.unwrap();
        let Some(row) = rows.iter().find(|row| row.key == record) else { return };
        let record: RunRecord = serde_json::from_slice(&row.value).unwrap();
        let saved = rows.iter().filter(|row| row.key.sort.starts_with(keys::REPLY_PREFIX));
        let saved: Vec<EventId> =
            saved.map(|row| self.agent.app.open_sealed::<ReplyPart>(row).unwrap().id).collect();
        assert_eq!(record.reply_ids, saved, "{what}");
        assert_eq!(record.status == Status::Running, saved.is_empty(), "{what}: {:?}", record.status);
    }

    fn record_key(&self) -> Key {
        keys::record(&record::run_id(&record::dm_trigger_id(&dm_id(&self.dm))))
    }

    /// Hands it to a new process once nobody can hold the lease any more.
    async fn redeliver(&self) {
        self.agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
        let app = self.agent.another();
        let answer = deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm)).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    }

    /// One reply, one note if any, both sides in the conversation, and the record says so. After as many crashes as
    /// there are attempts, the reply may be the word that there is none.
    async fn check(&self, crashes: usize, what: &str) {
        let (question, answer) = self.story.exchange();
        let replies = self.agent.replies().await;
        let [(id, text)] = replies.as_slice() else { panic!("{what}: {replies:?}") };
        let gave_up = crashes >= MAX_ATTEMPTS as usize && text.starts_with("I could not answer this message");
        assert!(text == answer || gave_up, "{what}: {text}");
        let expected = [("peer", question.to_owned()), ("agent", text.clone())];
        assert_eq!(self.agent.history(secret(2).public_key()).await, expected, "{what}");

        let record = self.agent.record(&record::dm_trigger_id(&dm_id(&self.dm))).await;
        let ended = if gave_up { Status::Dead } else { Status::Done };
        assert_eq!((record.status, record.reply_ids.as_slice()), (ended, [*id].as_slice()), "{what}");
        assert_eq!(record.reason.is_some(), gave_up, "{what}: {:?}", record.reason);
        assert_eq!(self.agent.model.refusals(), [""; 0], "{what}");

        let notes = self.notes().await;
        match self.story {
            Story::Nip17 | Story::Nip04 => assert_eq!(notes, [], "{what}"),
            Story::Post if gave_up => assert!(notes.len() <= 1, "{what}: {notes:?}"),
            Story::Post => assert_eq!(notes.len(), 1, "{what}"),
        }
    }

    async fn notes(&self) -> Vec<EventId> {
        let filter = Filter::new().kind(Kind::from(1)).author(agent_key());
        self.agent.on_relay(filter).await.into_iter().map(|event| event.id).collect()
    }
}

/// A crash at every call in turn, until a run ends before it comes to its crash. The emulator is slow: of the longer
/// stories it sees every third call.
async fn every_crash(on: On, story: Story) {
    let step = if on == On::Sqlite || matches!(story, Story::Nip17) { 1 } else { 3 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let bed = Bed::new(on, story).await;
            let reached = bed.crash(at, side).await;
            bed.redeliver().await;
            bed.check(1, &format!("{story:?}, crash {side:?} call {at}")).await;
            if !reached {
                break;
            }
            at += step;
        }
        // At the least: claim, two reads, the model, the reply's save, its sending, the record, closing.
        assert!(at > 8, "{side:?}: the run ended after {at} calls");
    }
}

async fn a_nip17_message_is_answered_once_after_a_crash_at_any_call(on: On) {
    every_crash(on, Story::Nip17).await;
}

async fn a_nip04_message_is_answered_once_after_a_crash_at_any_call(on: On) {
    every_crash(on, Story::Nip04).await;
}

async fn a_note_is_posted_once_after_a_crash_at_any_call(on: On) {
    every_crash(on, Story::Post).await;
}

async fn a_message_is_answered_once_when_the_store_fails_at_any_call(on: On) {
    for side in [Side::Before, Side::After] {
        let mut at = 0;
        loop {
            at += 1;
            let bed = Bed::new(on, Story::Post).await;
            let reached = bed.lose_a_store_answer(at, side).await;
            bed.redeliver().await;
            bed.check(1, &format!("no answer {side:?} store call {at}")).await;
            if !reached {
                break;
            }
        }
        assert!(at > 6, "{side:?}: the run ended after {at} store calls");
    }
}

/// Up to three crashes in a row, each on either side of any call.
async fn a_message_is_answered_once_after_crashes_in_a_row(on: On) {
    let cases = match on {
        On::Sqlite => 32,
        // The emulator is slow.
        On::DynamoDb => 8,
    };
    let sides = prop::sample::select(vec![Side::Before, Side::After]);
    let crashes = prop::collection::vec((1usize..24, sides), 1..=3);
    let stories = prop::sample::select(vec![Story::Nip17, Story::Nip04, Story::Post]);
    let mut runner = TestRunner::default();
    for _ in 0..cases {
        let (crashes, story) = (&crashes, &stories).new_tree(&mut runner).unwrap().current();
        let bed = Bed::new(on, story).await;
        for &(at, side) in &crashes {
            bed.crash(at, side).await;
            bed.agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
        }
        bed.redeliver().await;
        bed.check(crashes.len(), &format!("{story:?}, crashes {crashes:?}")).await;
    }
}

/// How often the real process is killed; the kills are spread over one run's length.
const KILLS: u32 = 10;

async fn a_message_is_answered_once_after_the_process_is_killed_at_any_time(on: On) {
    let length = {
        let bed = Bed::new(on, Story::Post).await;
        let mut function = Function::start(&bed.agent.vars()).await;
        function.hand_out(&bed.payload()).await;
        let began = Instant::now();
        function.answer().await.unwrap();
        began.elapsed()
    };
    for i in 0..KILLS {
        let bed = Bed::new(on, Story::Post).await;
        let mut victim = Function::start(&bed.agent.vars()).await;
        victim.hand_out(&bed.payload()).await;
        tokio::time::sleep(length * i / KILLS).await;
        victim.kill().await;

        bed.agent.end_the_lease(&bed.dm).await;
        let mut heir = Function::start(&bed.agent.vars()).await;
        let answer = heir.invoke(&bed.payload()).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "kill {i}: {answer}");
        bed.check(1, &format!("kill {i}")).await;
    }
}

impl Bed {
    fn payload(&self) -> String {
        json!({"type": "relay", "events": [self.dm], "relay": self.agent.relay_url.to_string()}).to_string()
    }
}
