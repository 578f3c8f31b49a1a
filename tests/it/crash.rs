//! The process dies anywhere, or a port fails at any call: a DM is still answered once, what it asks for is done once, and
//! both sides are in its conversation once.

mod bed;
mod effect;

use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::{Strategy, prop};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use self::bed::{Bed, Story};
use crate::agent::outcomes;
use crate::faults::{Fault, Side};
use crate::ground::{On, on_each_store};
use crate::runtime_api::Function;

on_each_store! {
    a_nip17_message_is_answered_once_after_a_crash_at_any_call,
    a_nip04_message_is_answered_once_after_a_crash_at_any_call,
    a_note_is_posted_once_after_a_crash_at_any_call,
    a_message_is_answered_once_when_the_store_fails_at_any_call,
    a_message_is_answered_once_after_crashes_in_a_row,
    a_task_is_done_once_after_a_crash_at_any_call,
    a_task_is_done_once_when_any_port_fails_at_any_call,
    a_task_is_done_once_after_the_process_is_killed_at_any_time,
}

/// Tries a fault at every call in turn, on either side of it, until the story ends before it comes to it: after `at_least`
/// calls. The slow emulator sees the short stories from the far side alone: a call that never starts leaves what the one before
/// it left.
async fn at_every_call(on: On, story: Story, at_least: usize, fault: impl Fn(usize, Side) -> Arc<Fault>) {
    let is_whole = on == On::Sqlite || matches!(story, Story::Task);
    let sides: &[Side] = if is_whole { &[Side::Before, Side::After] } else { &[Side::After] };
    for &side in sides {
        for at in 1.. {
            let (bed, fault) = (Bed::new(on, story).await, fault(at, side));
            let what = format!("{story:?}, {side:?} call {at}");
            bed.meet(&fault, &what).await;
            bed.go_on(&what).await;
            bed.check(usize::from(fault.was_reached()), &what).await;
            if !fault.was_reached() {
                assert!(at > at_least, "{side:?}: the story ended after {at} calls");
                break;
            }
        }
    }
}

/// Claim, two reads, the model, the reply's save, its sending, the record, closing.
const CALLS_OF_A_MESSAGE: usize = 8;

async fn a_nip17_message_is_answered_once_after_a_crash_at_any_call(on: On) {
    at_every_call(on, Story::Nip17, CALLS_OF_A_MESSAGE, Fault::crash).await;
}

async fn a_nip04_message_is_answered_once_after_a_crash_at_any_call(on: On) {
    at_every_call(on, Story::Nip04, CALLS_OF_A_MESSAGE, Fault::crash).await;
}

async fn a_note_is_posted_once_after_a_crash_at_any_call(on: On) {
    at_every_call(on, Story::Post, CALLS_OF_A_MESSAGE, Fault::crash).await;
}

async fn a_message_is_answered_once_when_the_store_fails_at_any_call(on: On) {
    // Those of the store alone.
    at_every_call(on, Story::Post, 6, Fault::unavailable).await;
}

/// Claim, reads, four models, three results, a note saved and sent, the reply saved and sent, the end.
const CALLS_OF_A_TASK: usize = 20;

async fn a_task_is_done_once_after_a_crash_at_any_call(on: On) {
    at_every_call(on, Story::Task, CALLS_OF_A_TASK, Fault::crash).await;
}

async fn a_task_is_done_once_when_any_port_fails_at_any_call(on: On) {
    at_every_call(on, Story::Task, CALLS_OF_A_TASK, Fault::failing).await;
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
        let (bed, what) = (Bed::new(on, story).await, format!("{story:?}, crashes {crashes:?}"));
        for &(at, side) in &crashes {
            bed.meet(&Fault::crash(at, side), &what).await;
            bed.end_all_leases();
        }
        bed.go_on(&what).await;
        bed.check(crashes.len(), &what).await;
    }
}

/// How often the real process is killed; the kills are spread over one task's length.
const KILLS: u32 = 10;

async fn a_task_is_done_once_after_the_process_is_killed_at_any_time(on: On) {
    let length = {
        let bed = Bed::new(on, Story::Task).await;
        let mut function = Function::start(&bed.agent.vars()).await;
        function.hand_out(&bed.payload()).await;
        let began = Instant::now();
        function.answer().await.unwrap();
        began.elapsed()
    };
    for i in 0..KILLS {
        let bed = Bed::new(on, Story::Task).await;
        let mut victim = Function::start(&bed.agent.vars()).await;
        victim.hand_out(&bed.payload()).await;
        tokio::time::sleep(length * i / KILLS).await;
        victim.kill().await;

        bed.agent.end_the_lease(&bed.dm).await;
        bed.rename_the_agent().await;
        let mut heir = Function::start(&bed.agent.vars()).await;
        let answer = heir.invoke(&bed.payload()).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "kill {i}: {answer}");
        bed.check(1, &format!("kill {i}")).await;
    }
}
