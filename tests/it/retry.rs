//! A run that fails comes again: through the queue, or by another delivery. It ends in one reply, if only in an honest
//! word that there is no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::app::App;
use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::NOTE;
use didactyl::record::{Status, dm_trigger_id};
use nostr::prelude::{Event, EventId};
use serde_json::{Value, json};

use crate::agent::{BUDGET, TestAgent, deliver_to, dm_id, echo, nip17, outcomes, secret};
use crate::fake_relay::FakeRelay;
use crate::faults::{Fault, FullQueue, MemoryQueue, Side};

/// How long a run that failed for the first time waits, at most: where it is the model that failed, up to an eighth more than
/// half a minute.
const FIRST_DELAY: Duration = Duration::from_secs(34);

/// The model is ill for its first `times` requests.
fn ill(times: usize) -> impl Fn(&Asked) -> Answer + Send + Sync + 'static {
    move |asked| match asked.number <= times {
        true => Answer::Refusal(500, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
        false => echo(asked),
    }
}

/// An agent with a queue.
fn with_queue(agent: &TestAgent) -> (App, Arc<MemoryQueue>) {
    let queue = Arc::new(MemoryQueue::default());
    let mut app = agent.another();
    app.queue = Some(queue.clone());
    (app, queue)
}

async fn resume(app: &App, run: &str) -> Value {
    let payload = json!({"type": "resume", "run": run}).to_string();
    handler::handle(app, &payload, Deadline::after(BUDGET)).await.unwrap()
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn a_run_that_fails_for_now_is_queued_and_answered_when_it_is_resumed() {
    let agent = TestAgent::with_script(ill(1)).await;
    let (app, queue) = with_queue(&agent);
    let dm = nip17(&secret(2), "hello");
    let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
    assert_eq!(outcomes(&answer), ["queued"], "{answer}");
    let (run, _) = queue.taken().remove(0);
    assert_eq!(outcomes(&resume(&app, &run).await), ["queued"]);
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    let taken = queue.taken();
    assert_eq!(taken.len(), 2);
    assert!(taken[1].0 == run && (30..34).contains(&taken[1].1.as_secs()), "{taken:?}");
    assert_eq!((record.status, record.lease_until_ms), (Status::Running, 0));
    assert_eq!(texts(&agent).await, [NOTE]);
    // Whoever comes earlier uses up no attempt, and comes again.
    assert_eq!(outcomes(&resume(&app, &record.run_id).await), ["busy"]);
    let taken = queue.taken();
    let (again, wait) = taken.last().unwrap();
    assert!(again == &record.run_id && (28..34).contains(&wait.as_secs()), "{wait:?}");
    agent.clock.forward(FIRST_DELAY);

    // Another process, which knows nothing but the run's id. SQS may hand it over twice.
    for _ in 0..2 {
        let answer = resume(&agent.another(), &record.run_id).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        // It was answered: the first attempt's failure is history.
        assert_eq!(answer["results"][0].get("failure"), None, "{answer}");
        assert_eq!(texts(&agent).await, [NOTE, "HELLO"]);
    }
    assert_eq!(agent.model.calls(), 2);
}

#[tokio::test]
async fn without_a_queue_the_invocation_fails_and_another_delivery_is_answered() {
    let agent = TestAgent::with_script(ill(1)).await;
    let dm = [nip17(&secret(2), "hello")];
    let error = agent.try_deliver(&dm).await.unwrap_err();
    insta::assert_snapshot!(error, @"the model is unavailable for now");
    assert_eq!(texts(&agent).await, [NOTE]);
    for _ in 0..5 {
        assert_eq!(outcomes(&agent.deliver(&dm).await), ["busy"]);
    }
    let record = agent.record(&dm_trigger_id(&dm_id(&dm[0]))).await;
    assert_eq!((record.attempt, agent.model.calls()), (0, 1));
    agent.clock.forward(FIRST_DELAY);
    for _ in 0..2 {
        assert_eq!(outcomes(&agent.deliver(&dm).await), ["replied"]);
        assert_eq!(texts(&agent).await, [NOTE, "HELLO"]);
    }
    assert_eq!(agent.model.calls(), 2);
}

#[tokio::test]
async fn a_queue_that_takes_nothing_makes_the_invocation_fail() {
    let agent = TestAgent::with_script(ill(1)).await;
    let mut app = agent.another();
    app.queue = Some(Arc::new(FullQueue));
    let dm = [nip17(&secret(2), "hello")];
    // The message is stored, but nobody would come for it.
    deliver_to(&app, &agent.relay_url, &dm).await.unwrap_err();
    assert_eq!(agent.model.calls(), 0);
    // Another delivery meets a model that is ill, and then one that is well.
    agent.try_deliver(&dm).await.unwrap_err();
    agent.clock.forward(FIRST_DELAY);
    assert_eq!(outcomes(&agent.deliver(&dm).await), ["replied"]);
    assert_eq!(texts(&agent).await, [NOTE, "HELLO"]);
}

/// Whoever came earlier would find the run taken, and its message would be gone from the queue.
#[tokio::test]
async fn a_run_that_cannot_be_given_back_is_queued_for_the_end_of_its_lease() {
    let dm = [nip17(&secret(2), "hello")];
    // Giving back is the last that an attempt asks of the store.
    let last = {
        let agent = TestAgent::with_script(ill(1)).await;
        let fault = Fault::unavailable(usize::MAX, Side::Before);
        let (mut app, queue) = with_queue(&agent);
        deliver_to(&app, &agent.relay_url, &dm).await.unwrap();
        fault.install(&mut app);
        resume(&app, &queue.taken().remove(0).0).await;
        fault.calls()
    };
    let agent = TestAgent::with_script(ill(1)).await;
    let (mut app, queue) = with_queue(&agent);
    deliver_to(&app, &agent.relay_url, &dm).await.unwrap();
    Fault::unavailable(last, Side::Before).install(&mut app);
    let answer = resume(&app, &queue.taken().remove(0).0).await;
    assert_eq!(outcomes(&answer), ["queued"], "{answer}");

    let (run, delay) = queue.taken().remove(1);
    assert_eq!(outcomes(&resume(&agent.another(), &run).await), ["busy"]);
    agent.clock.forward(delay);
    assert_eq!(outcomes(&resume(&agent.another(), &run).await), ["replied"]);
    assert_eq!(texts(&agent).await, [NOTE, "HELLO"]);
}

#[tokio::test]
async fn a_model_that_refuses_for_good_is_one_honest_reply() {
    let agent = TestAgent::with_script(|_| {
        Answer::Refusal(401, vec![], json!({"error": {"message": "no such key"}}).to_string())
    })
    .await;
    let dm = [nip17(&secret(2), "hello")];
    let first = agent.deliver(&dm).await;
    assert_eq!(outcomes(&first), ["replied"], "{first}");
    assert_eq!(agent.deliver(&dm).await, first);

    let failure = first["results"][0]["failure"].as_str().unwrap();
    insta::assert_snapshot!(failure, @"the model's provider refused the key or the account");
    insta::assert_snapshot!(texts(&agent).await.join("\n"), @"I could not answer this message: the model's provider refused the key or the account.");
    assert_eq!(agent.model.calls(), 1);
}

/// A relay that keeps nothing, and that takes events only while the switch is on.
async fn choosy_relay(takes: Arc<AtomicBool>) -> FakeRelay {
    FakeRelay::start(move |mut peer| {
        let takes = Arc::clone(&takes);
        async move {
            loop {
                let frame = peer.hear().await?;
                match frame[0].as_str() {
                    Some("REQ") => peer.say(json!(["EOSE", frame[1]])).await?,
                    Some("EVENT") if takes.load(Ordering::SeqCst) => {
                        peer.say(json!(["OK", frame[1]["id"], true, ""])).await?;
                    }
                    Some("EVENT") => {
                        peer.say(json!(["OK", frame[1]["id"], false, "blocked: not today"])).await?;
                    }
                    _ => {}
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_reply_that_no_relay_accepts_is_sent_again_and_not_made_again() {
    let takes = Arc::new(AtomicBool::new(false));
    let relay = choosy_relay(Arc::clone(&takes)).await;
    let agent = TestAgent::bare_on(relay.own().url, echo).await;
    let dm = [nip17(&secret(2), "hello")];
    let error = agent.try_deliver(&dm).await.unwrap_err();
    insta::assert_snapshot!(error, @"no relay of the recipient accepted the reply; it is saved");
    let record = agent.record(&dm_trigger_id(&dm_id(&dm[0]))).await;
    assert_eq!((record.status, record.reply_ids.len()), (Status::Replying, 1));
    let refused = sent(&relay);
    assert_eq!(refused.len(), 2, "the reply and the copy to ourselves");

    takes.store(true, Ordering::SeqCst);
    agent.clock.forward(FIRST_DELAY);
    let answer = deliver_to(&agent.another(), &agent.relay_url, &dm).await.unwrap();
    assert_eq!(answer["results"][0]["reply"], json!(record.reply_ids), "{answer}");
    assert_eq!(answer["results"][0].get("failure"), None, "{answer}");
    // The very same events, not new wraps of the same reply.
    // The copy, which was refused for good and which nobody waits for, is left.
    assert_eq!(sent(&relay), [refused.as_slice(), &refused[..1]].concat());
    assert_eq!(agent.model.calls(), 1);

    assert_eq!(outcomes(&agent.deliver(&dm).await), ["replied"]);
    assert_eq!(sent(&relay).len(), 3, "nothing more was sent");
    assert_eq!(
        agent.history(secret(2).public_key()).await,
        [("peer", "hello".to_owned()), ("agent", "HELLO".to_owned())]
    );
}

/// The ids of the events that the relay was sent, in order.
fn sent(relay: &FakeRelay) -> Vec<EventId> {
    let events = relay.heard("EVENT").into_iter();
    events.map(|frame| serde_json::from_value::<Event>(frame[1].clone()).unwrap().id).collect()
}
