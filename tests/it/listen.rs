//! What comes while a tick still has time is heard and answered at once, and once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest, FinishReason};
use didactyl::clock::Deadline;
use didactyl::llm::{Llm, LlmError};
use didactyl::record::{dm_trigger_id, run_id};
use didactyl::relay::RelayError;
use didactyl::relay::listen::{Heard, listen};
use didactyl::relay::pool::{Limits, Pool};
use didactyl::tick;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Kind, RelayUrl, Tag, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};

use crate::agent::{BUDGET, TestAgent, agent_key, dm_id, echo, nip04, nip17, secret};
use crate::fake_relay::FakeRelay;
use crate::faults::MemoryQueue;
use crate::sea::{Harbour, Manner, tick as silent_tick, wrap_at};

/// A tick that listens until `scene` is over.
pub async fn listening(app: &App, scene: impl Future<Output = ()>) -> Value {
    let until = Some(Instant::now() + BUDGET);
    // The scene ends in time, or the test fails by what it finds.
    let scene = async { timeout(BUDGET / 2, scene).await.unwrap_or_default() };
    tick::run_and_listen(app, None, Deadline::after(2 * BUDGET), until, scene).await.unwrap()
}

/// The outcomes of what was heard.
fn heard(answer: &Value) -> Vec<&str> {
    let results = answer["listen"]["results"].as_array().unwrap();
    results.iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

fn wrap(harbour: &Harbour, text: &str) -> Event {
    wrap_at(&secret(2), text, harbour.now(), harbour.now() - 40 * 60 * 60)
}

#[tokio::test]
async fn a_message_that_comes_after_the_sweep_is_answered_by_the_same_tick_and_by_no_later_one() {
    let harbour = Harbour::new(&[Manner::Gives(500), Manner::Gives(500)], echo).await;
    let scene = async {
        harbour.sea.listened_to(2).await;
        harbour.sea.post(&wrap(&harbour, "by wrap"));
        harbour.sea.post(&nip04(&secret(2), "by kind 4"));
        harbour.sea.post(&nip17(&secret(3), "a stranger's"));
        harbour.sea.replied(&secret(2), 2).await;
    };
    let answer = listening(&harbour.app(), scene).await;
    assert_eq!(heard(&answer), ["replied", "replied"], "{answer}");
    assert_eq!(answer["listen"]["heard"]["work"], json!(2), "{answer}");

    // Both relays tell all of it again, to the sweep and to the listener behind it.
    for _ in 0..2 {
        let answer = listening(&harbour.app(), harbour.sea.listened_to(4)).await;
        assert_eq!(answer["results"], json!([]), "{answer}");
        assert_eq!(answer["listen"], json!({"heard": {"events": 0, "work": 0}, "results": []}), "{answer}");
    }
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["BY KIND 4".into(), "BY WRAP".into()], 2));
}

#[tokio::test]
async fn what_came_while_the_sweep_read_is_heard_as_it_is_among_the_newest() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    // Written after the agent's start.
    harbour.tick().await;
    harbour.clock.forward(Duration::from_secs(60));
    // The sweep's only page does not have it, and the subscription does.
    harbour.sea.after_page(1, wrap(&harbour, "in between"));
    let answer = listening(&harbour.app(), harbour.sea.replied(&secret(2), 1)).await;
    assert_eq!(heard(&answer), ["replied"], "{answer}");
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["IN BETWEEN".to_owned()], 1));
}

/// A model whose answers wait for `open`, and which counts how many are waited for.
struct Gate {
    open: Semaphore,
    waiting: AtomicUsize,
    most: AtomicUsize,
    entered: Semaphore,
}

impl Gate {
    fn install(app: &mut App) -> Arc<Self> {
        let gate = Arc::new(Self {
            open: Semaphore::new(0),
            waiting: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            entered: Semaphore::new(0),
        });
        app.llm = Arc::clone(&gate) as Arc<dyn Llm>;
        gate
    }
}

#[async_trait]
impl Llm for Gate {
    async fn complete(&self, request: &ChatRequest<'_>, _until: Instant) -> Result<ChatAnswer, LlmError> {
        let waiting = self.waiting.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(waiting, Ordering::SeqCst);
        self.entered.add_permits(1);
        self.open.acquire().await.unwrap().forget();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        let text = request.messages.last().map(|message| message.content.to_uppercase());
        Ok(ChatAnswer {
            content: text.unwrap_or_default(),
            tool_calls: vec![],
            finish_reason: FinishReason::Stop,
            usage: None,
            model: request.model.to_owned(),
        })
    }
}

#[tokio::test]
async fn a_run_does_not_stop_listening_and_conversations_are_worked_side_by_side() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let mut app = harbour.app();
    app.config.admins.push(secret(4).public_key());
    let gate = Gate::install(&mut app);
    let scene = async {
        harbour.sea.listened_to(1).await;
        harbour.sea.post(&wrap(&harbour, "first"));
        gate.entered.acquire().await.unwrap().forget();
        // Heard while the first run waits for its model.
        harbour.sea.post(&nip17(&secret(4), "second"));
        gate.entered.acquire().await.unwrap().forget();
        gate.open.add_permits(2);
        harbour.sea.replied(&secret(2), 1).await;
        harbour.sea.replied(&secret(4), 1).await;
    };
    let answer = listening(&app, scene).await;
    assert_eq!(heard(&answer), ["replied", "replied"], "{answer}");
    assert_eq!(gate.most.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn the_messages_of_one_conversation_are_worked_one_after_another() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let mut app = harbour.app();
    let gate = Gate::install(&mut app);
    let scene = async {
        harbour.sea.listened_to(1).await;
        for text in ["one", "two", "three"] {
            harbour.sea.post(&wrap(&harbour, text));
        }
        for answered in 1..=3 {
            gate.entered.acquire().await.unwrap().forget();
            gate.open.add_permits(1);
            harbour.sea.replied(&secret(2), answered).await;
        }
    };
    let answer = listening(&app, scene).await;
    assert_eq!(heard(&answer), ["replied"; 3], "{answer}");
    assert_eq!(gate.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn work_that_was_begun_is_ended_after_listening_has() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let mut app = harbour.app();
    let gate = Gate::install(&mut app);
    let scene = async {
        harbour.sea.listened_to(1).await;
        harbour.sea.post(&wrap(&harbour, "hello"));
        gate.entered.acquire().await.unwrap().forget();
        // With this the listening is over, and the model has not answered yet.
        gate.open.add_permits(1);
    };
    let answer = listening(&app, scene).await;
    assert_eq!(heard(&answer), ["replied"], "{answer}");
    assert_eq!(harbour.answers(), ["HELLO"]);
}

#[tokio::test]
async fn with_a_queue_what_is_heard_is_stored_and_queued() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let queue = Arc::new(MemoryQueue::default());
    let mut app = harbour.app();
    app.queue = Some(queue.clone());
    // What is a second older than the agent's start would be left to the sweep.
    harbour.tick().await;
    let dm = wrap(&harbour, "hello");
    let scene = async {
        harbour.sea.listened_to(1).await;
        harbour.sea.post(&dm);
        while queue.taken().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let answer = listening(&app, scene).await;
    assert_eq!((heard(&answer), harbour.model.calls()), (vec!["queued"], 0), "{answer}");
    assert_eq!(queue.taken(), [(run_id(&dm_trigger_id(&dm_id(&dm))), Duration::ZERO)]);
}

#[tokio::test]
async fn what_was_written_before_the_agents_start_is_left_to_the_sweep() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let old = wrap_at(&secret(2), "long ago", harbour.now() - 7 * 60 * 60, harbour.now());
    let scene = async {
        harbour.sea.listened_to(1).await;
        harbour.sea.post(&old);
        harbour.sea.post(&wrap(&harbour, "now"));
        harbour.sea.replied(&secret(2), 1).await;
    };
    listening(&harbour.app(), scene).await;
    harbour.tick().await;
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["NOW".to_owned()], 1));
    let history: Vec<String> = harbour.history().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(history, ["long ago", "now", "NOW"]);
}

#[tokio::test]
async fn a_tick_without_time_for_a_run_does_not_listen_and_one_listens_as_long_as_it_is_told() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let (hasty, deadline) = (harbour.app(), Deadline::after(Duration::from_secs(30)));
    let until = Some(Instant::now() + 10 * BUDGET);
    let short = tick::run_and_listen(&hasty, None, deadline, until, std::future::pending());
    let short = timeout(BUDGET, short).await.unwrap().unwrap();
    assert_eq!(short.get("listen"), None, "{short}");

    let mut app = harbour.app();
    let silent = silent_tick(&app).await;
    assert_eq!(silent.get("listen"), None, "{silent}");
    app.config.listen = Some(Duration::from_millis(50));
    let answer = timeout(BUDGET, silent_tick(&app)).await.unwrap();
    assert_eq!(answer["listen"]["results"], json!([]), "{answer}");
}

#[tokio::test]
async fn a_tick_that_does_not_sweep_does_not_listen() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let late = Some(harbour.now() - 150);
    let app = harbour.app();
    let until = Some(Instant::now() + BUDGET);
    let answer = tick::run_and_listen(&app, late, Deadline::after(BUDGET), until, std::future::pending());
    let answer = timeout(BUDGET, answer).await.unwrap().unwrap();
    assert_eq!((&answer["sweep"], answer.get("listen")), (&json!("late"), None));
}

/// What a subscription to the agent's wraps tells, until `enough`.
async fn told(pool: &Pool, relay: &FakeRelay, enough: impl Fn(&[Heard]) -> bool) -> Vec<Heard> {
    let (ear, mut heard) = mpsc::channel(16);
    let target = relay.own();
    let filters = |cuts: u32| {
        let since = Timestamp::now() - ((49 * 3600) >> cuts);
        vec![Filter::new().kind(Kind::from(1059)).pubkey(agent_key()).since(since)]
    };
    let collect = async {
        let mut all = Vec::new();
        while !enough(&all) {
            let (url, heard): (RelayUrl, Heard) = heard.recv().await.unwrap();
            assert_eq!(url, target.url);
            all.push(heard);
        }
        all
    };
    tokio::select! {
        all = collect => all,
        () = listen(pool, &target, filters, &ear, Instant::now() + BUDGET) => panic!("it ended"),
    }
}

fn events(heard: &[Heard]) -> usize {
    heard.iter().filter(|heard| matches!(heard, Heard::Event(_))).count()
}

#[tokio::test]
async fn a_relay_that_drops_the_connection_is_heard_again() {
    didactyl::install_crypto_provider();
    let (first, second) = (nip17(&secret(2), "first"), nip17(&secret(2), "second"));
    let (one, two) = (first.clone(), second.clone());
    let relay = FakeRelay::start(move |mut peer| {
        let (first, second) = (one.clone(), two.clone());
        async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", req[1], first])).await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            if peer.connection == 1 {
                return None;
            }
            peer.say(json!(["EVENT", req[1], second])).await?;
            peer.hear_out().await
        }
    })
    .await;
    let pool = Pool::new(secret(1), Limits::default());
    let told = told(&pool, &relay, |all| events(all) == 3).await;
    let event = |event: &Event| Heard::Event(Box::new(event.clone()));
    let broken = Heard::Broken(RelayError::Lost("closed by the relay".into()));
    let is_broken = |heard: &Heard| matches!(heard, Heard::Broken(RelayError::Lost(_)));
    assert!(is_broken(&told[2]), "{told:?}");
    let mut told = told;
    told[2] = broken.clone();
    let expected =
        [event(&first), Heard::EndOfStored, broken, event(&first), Heard::EndOfStored, event(&second)];
    assert_eq!(told, expected);
}

/// A relay that shows its event only to who authenticated, in one of the ways that relays have.
async fn members_only(says_so: bool) -> FakeRelay {
    let dm = nip17(&secret(2), "hello");
    FakeRelay::start(move |mut peer| {
        let dm = dm.clone();
        async move {
            let mut is_member = false;
            if says_so {
                peer.say(json!(["AUTH", "c1"])).await?;
            }
            loop {
                let frame = peer.hear().await?;
                match (frame[0].as_str()?, is_member) {
                    ("REQ", false) if says_so => {
                        peer.say(json!(["CLOSED", frame[1], "auth-required: members only"])).await?;
                    }
                    ("REQ", false) => {
                        // An end first, and the challenge behind it.
                        peer.say(json!(["EOSE", frame[1]])).await?;
                        peer.say(json!(["AUTH", "c1"])).await?;
                    }
                    ("REQ", true) => {
                        peer.say(json!(["EVENT", frame[1], dm])).await?;
                        peer.say(json!(["EOSE", frame[1]])).await?;
                    }
                    ("AUTH", _) => {
                        is_member = true;
                        peer.say(json!(["OK", frame[1]["id"], true, ""])).await?;
                    }
                    _ => {}
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_relay_for_members_is_heard_with_the_key_and_named_without() {
    didactyl::install_crypto_provider();
    let (with, without) = (Pool::new(secret(1), Limits::default()), Pool::without_key(Limits::default()));
    for says_so in [true, false] {
        let relay = members_only(says_so).await;
        let all = told(&with, &relay, |all| events(all) == 1).await;
        assert!(
            !all.iter().any(|heard| matches!(heard, Heard::MayWithhold(_) | Heard::Broken(_))),
            "{all:?}"
        );

        let relay = members_only(says_so).await;
        let is_named = |heard: &Heard| {
            matches!(heard, Heard::MayWithhold(RelayError::Auth(_)) | Heard::Broken(RelayError::Auth(_)))
        };
        let all = told(&without, &relay, |all| all.iter().any(is_named)).await;
        assert_eq!(events(&all), 0);
        assert_eq!(relay.heard("AUTH"), [] as [Value; 0]);
    }
}

#[tokio::test]
async fn a_subscription_hands_on_only_what_it_asked_for_and_is_cut_off_by_a_flood() {
    didactyl::install_crypto_provider();
    let (ours, other) = (nip17(&secret(2), "ours"), nip04(&secret(2), "not asked for"));
    let relay = FakeRelay::start(move |mut peer| {
        let (ours, other) = (ours.clone(), other.clone());
        async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", "another", ours])).await?;
            peer.say(json!(["EVENT", req[1], other])).await?;
            peer.say(json!(["EVENT", req[1], {"no": "event"}])).await?;
            peer.say(json!(["EVENT", req[1], ours])).await?;
            loop {
                peer.say(json!(["EVENT", req[1], other])).await?;
            }
        }
    })
    .await;
    let limits = Limits { max_events: 50, ..Limits::default() };
    let told = told(&Pool::new(secret(1), limits), &relay, |all| all.len() == 2).await;
    assert_eq!(events(&told), 1);
    assert!(matches!(&told[1], Heard::Broken(RelayError::Cut(_))), "{told:?}");
}

#[tokio::test]
async fn a_relay_full_of_large_events_that_ignores_the_limit_is_heard() {
    didactyl::install_crypto_provider();
    let dm = nip17(&secret(2), "behind them");
    let live = dm.clone();
    let relay = FakeRelay::start(move |mut peer| {
        let live = live.clone();
        async move {
            let junk =
                EventBuilder::new(Kind::from(1059), "x".repeat(64_000)).tag(Tag::public_key(agent_key()));
            let junk = junk.finalize(&secret(3)).unwrap();
            let req = peer.hear_kind("REQ").await?;
            for _ in 0..200 {
                peer.say(json!(["EVENT", req[1], junk])).await?;
            }
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.say(json!(["EVENT", req[1], live])).await?;
            peer.hear_out().await
        }
    })
    .await;
    let pool = Pool::without_key(Limits::default());
    let is_over = |heard: &Heard| matches!(heard, Heard::Broken(_));
    let told = told(&pool, &relay, |all| all.len() == 202 || all.iter().any(is_over)).await;
    assert_eq!(told.last(), Some(&Heard::Event(Box::new(dm))));
}

#[tokio::test]
async fn a_relay_that_ignores_the_limit_is_asked_for_less_until_it_is_heard() {
    didactyl::install_crypto_provider();
    let now = Timestamp::now();
    let stored: Vec<Event> =
        (0..40).map(|hours| wrap_at(&secret(2), "stored", now, now - hours * 3600)).collect();
    let dm = wrap_at(&secret(2), "behind them", now, now);
    let live = dm.clone();
    let relay = FakeRelay::start(move |mut peer| {
        let (stored, live) = (stored.clone(), live.clone());
        async move {
            let req = peer.hear_kind("REQ").await?;
            let since = Timestamp::from(req[2]["since"].as_u64().unwrap());
            for event in stored.iter().filter(|event| event.created_at >= since) {
                peer.say(json!(["EVENT", req[1], event])).await?;
            }
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.say(json!(["EVENT", req[1], live])).await?;
            peer.hear_out().await
        }
    })
    .await;
    let limits = Limits { max_events: 20, ..Limits::default() };
    let live = Heard::Event(Box::new(dm));
    let told = told(&Pool::without_key(limits), &relay, |all| all.len() == 100 || all.contains(&live)).await;
    assert_eq!(told.last(), Some(&live));
    let breaks = told.iter().filter(|heard| matches!(heard, Heard::Broken(RelayError::Cut(_)))).count();
    assert_eq!((breaks, relay.connections()), (2, 3));
}

#[tokio::test]
async fn a_subscription_that_a_notice_ends_is_closed_before_another_one_is_opened() {
    didactyl::install_crypto_provider();
    let dm = nip17(&secret(2), "hello");
    let relay = FakeRelay::start(move |mut peer| {
        let dm = dm.clone();
        async move {
            let first = peer.hear_kind("REQ").await?;
            peer.say(json!(["NOTICE", "ERROR: too many concurrent REQs"])).await?;
            if peer.hear().await? != json!(["CLOSE", first[1]]) {
                return None;
            }
            let second = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", second[1], dm])).await?;
            peer.hear_out().await
        }
    })
    .await;
    let told = told(&Pool::new(secret(1), Limits::default()), &relay, |all| all.len() == 2).await;
    assert!(matches!(told[..], [Heard::Broken(RelayError::RateLimited(_)), Heard::Event(_)]), "{told:?}");
}

#[tokio::test]
async fn a_silent_connection_is_asked_whether_it_lives_and_given_up_where_it_does_not() {
    didactyl::install_crypto_provider();
    let silence = Duration::from_millis(500);
    let limits = Limits { max_silence: silence, ..Limits::default() };
    let pool = Pool::new(secret(1), limits);
    let dm = nip17(&secret(2), "after a while");
    let alive = FakeRelay::start(move |mut peer| {
        let dm = dm.clone();
        async move {
            let req = peer.hear_kind("REQ").await?;
            // It hears, and so answers each ping, for some silences.
            let _ = timeout(5 * silence, peer.hear_out()).await;
            peer.say(json!(["EVENT", req[1], dm])).await?;
            peer.hear_out().await
        }
    })
    .await;
    assert!(matches!(told(&pool, &alive, |all| !all.is_empty()).await[..], [Heard::Event(_)]));
    assert_eq!(alive.connections(), 1);

    let dead = FakeRelay::start(async |mut peer| {
        peer.hear_kind("REQ").await?;
        std::future::pending().await
    })
    .await;
    let lost = RelayError::Lost("it says nothing any more".into());
    assert_eq!(told(&pool, &dead, |all| !all.is_empty()).await, [Heard::Broken(lost)]);
}

#[tokio::test]
async fn over_real_sockets_a_message_is_heard_while_the_tick_listens() {
    let agent = TestAgent::start().await;
    let app = agent.another();
    // What is a second older than the agent's start would be left to the next sweep.
    silent_tick(&app).await;
    let scene = async {
        // Whether it comes to the sweep or to the listener is the relay's affair; it is answered once.
        agent.publish([nip17(&secret(2), "hello")]).await;
        while agent.replies().await.is_empty() {}
    };
    let answer = listening(&app, scene).await;
    app.relays.close().await;
    assert!(answer["listen"].is_object(), "{answer}");
    assert_eq!((agent.replies().await.len(), agent.model.calls()), (1, 1));
}
