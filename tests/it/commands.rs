//! What an admin orders by DM: it holds in every process at once, happens once whatever dies, and no model hears of it.

mod crashes;
mod dead;
mod reports;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::llm::{Llm, LlmError};
use didactyl::record::{Status, dm_trigger_id, run_id};
use didactyl::store::{Range, keys};
use nostr::prelude::{Event, EventBuilder, EventId, Filter, FinalizeEvent, Kind, Tag, Timestamp};
use serde_json::json;
use tokio::time::Instant;

use crate::agent::{
    TestAgent, agent_key, app_over, config, deliver_to, dm_id, echo, hand_over, nip04, nip17, nip17_at,
    outcomes, secret,
};
use crate::faults::MemoryQueue;
use crate::ground::{On, on_each_store};
use crate::sea::{Harbour, Manner, tick, wrap_at};

on_each_store! {
    while_stopped_nothing_runs_and_what_waits_is_worked_after_the_start,
    a_run_that_is_stopped_between_two_steps_goes_on_from_there,
    a_run_that_is_cancelled_at_work_ends_at_its_next_step,
    cancel_ends_what_waits_in_this_conversation_and_nothing_else,
    what_waits_behind_a_run_that_is_cancelled_at_work_is_worked_with_it,
    what_waits_behind_a_cancelled_run_is_due_at_once,
    a_new_conversation_hides_the_old_one_and_no_command_is_part_of_any,
}

const MINUTE: Duration = Duration::from_secs(60);

/// What a model does for `post`: a note, and then a word.
fn poster(asked: &Asked) -> Answer {
    match asked.last_text("user") {
        _ if asked.result().is_some() => Answer::Text("posted".to_owned()),
        "post" => Answer::call("nostr_post", json!({"content": "a note"})),
        text => Answer::Text(text.to_uppercase()),
    }
}

/// The admin sends this, a second after all else; what the agent answered to it.
async fn order(agent: &TestAgent, text: &str) -> String {
    let before = agent.replies().await;
    agent.clock.forward(Duration::from_secs(1));
    let message = nip17_at(&secret(2), text, agent.clock.clock().now());
    let answer = deliver_to(&agent.another(), &agent.relay_url, &[message]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let mut replies = agent.replies().await;
    replies.retain(|reply| !before.contains(reply));
    let [(_, told)] = replies.as_slice() else { panic!("{text}: {replies:?}") };
    told.clone()
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

async fn notes(agent: &TestAgent) -> Vec<EventId> {
    let filter = Filter::new().kind(Kind::from(1)).author(agent_key());
    agent.on_relay(filter).await.into_iter().map(|event| event.id).collect()
}

type Deed = Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A model during whose `at`-th call something happens.
struct Meanwhile {
    port: Arc<dyn Llm>,
    at: usize,
    calls: AtomicUsize,
    deed: Deed,
}

#[async_trait]
impl Llm for Meanwhile {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let answer = self.port.complete(request, until).await;
        if self.calls.fetch_add(1, Ordering::SeqCst) + 1 == self.at {
            (self.deed)().await;
        }
        answer
    }
}

/// A process of the agent's, during whose `at`-th model call the admin writes `text` to another one.
fn interrupted(agent: &TestAgent, at: usize, text: &str) -> App {
    interrupted_by(agent, at, vec![(nip17(&secret(2), text), "replied")])
}

/// The same with these messages, of each of which that becomes.
fn interrupted_by(agent: &TestAgent, at: usize, messages: Vec<(Event, &'static str)>) -> App {
    let mut app = agent.another();
    let (other, relay, messages) = (Arc::new(agent.another()), agent.relay_url.clone(), Arc::new(messages));
    let deed: Deed = Box::new(move || {
        let (other, relay, messages) = (Arc::clone(&other), relay.clone(), Arc::clone(&messages));
        Box::pin(async move {
            for (message, outcome) in messages.iter() {
                let answer = deliver_to(&other, &relay, std::slice::from_ref(message)).await.unwrap();
                assert_eq!(outcomes(&answer), [*outcome], "{answer}");
            }
        })
    });
    app.llm = Arc::new(Meanwhile { port: Arc::clone(&app.llm), at, calls: AtomicUsize::new(0), deed });
    app
}

async fn while_stopped_nothing_runs_and_what_waits_is_worked_after_the_start(on: On) {
    let agent = TestAgent::over(on, echo).await;
    tick(&agent.another()).await;
    assert_eq!(order(&agent, "hello").await, "HELLO");
    let told = order(&agent, "/stop").await;
    assert!(told.contains("no run waits and no run ends its present step"), "{told}");

    let (wrap, old) = (nip17_at(&secret(2), "by wrap", Timestamp::now() - 5), nip04(&secret(2), "by kind 4"));
    for _ in 0..2 {
        let answer = deliver_to(&agent.another(), &agent.relay_url, &[wrap.clone(), old.clone()]).await;
        // The second one waits for the first.
        assert_eq!(outcomes(&answer.unwrap()), ["stopped", "busy"]);
    }
    let now = agent.clock.clock().now();
    agent.publish([wrap_at(&secret(2), "from the relay", now, now)]).await;
    assert_eq!(outcomes(&tick(&agent.another()).await), ["busy"]);
    // From then on it waits, and costs nothing.
    let answer = tick(&agent.another()).await;
    assert_eq!((outcomes(&answer), &answer["due"]), (vec![], &json!(0)), "{answer}");
    // A tick that is late knows it as well.
    let late = Some(Timestamp::from(agent.clock.clock().now().as_secs() - 600));
    let deadline = didactyl::clock::Deadline::after(MINUTE);
    let answer = didactyl::tick::run(&agent.another(), late, deadline).await.unwrap();
    assert_eq!(answer["due"], json!(0), "{answer}");
    assert_eq!(agent.model.calls(), 1);

    let told = order(&agent, "/status").await;
    assert!(told.contains("stopped since") && told.contains("0 in work, 3 waiting"), "{told}");
    let told = order(&agent, "/stop").await;
    assert!(told.contains("3 runs wait"), "{told}");
    let told = order(&agent, "/start").await;
    assert!(told.contains("3 runs wait"), "{told}");
    let answer = tick(&agent.another()).await;
    assert_eq!(outcomes(&answer), ["replied"], "those behind it are worked with it: {answer}");
    assert_eq!(agent.model.calls(), 4);
    let record = agent.record(&dm_trigger_id(&dm_id(&wrap))).await;
    assert_eq!((record.status, record.tries()), (Status::Done, 1));
    assert_eq!(order(&agent, "/start").await, "I was not stopped.");
    let mut answers = texts(&agent).await;
    answers.retain(|text| !text.contains(' ') || text.to_uppercase() == *text);
    answers.sort();
    assert_eq!(answers, ["BY KIND 4", "BY WRAP", "FROM THE RELAY", "HELLO"]);
}

async fn a_run_that_is_stopped_between_two_steps_goes_on_from_there(on: On) {
    let agent = TestAgent::over(on, poster).await;
    let dm = nip17(&secret(2), "post");
    let app = interrupted(&agent, 1, "/stop");
    let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
    assert_eq!(outcomes(&answer), ["stopped"], "{answer}");
    // The model was asked for it and answered: the answer is kept, the tool was not called.
    assert_eq!((agent.model.calls(), notes(&agent).await.len(), texts(&agent).await.len()), (1, 0, 1));

    order(&agent, "/start").await;
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"]);
    assert_eq!((agent.model.calls(), notes(&agent).await.len()), (2, 1));
    assert!(texts(&agent).await.contains(&"posted".to_owned()));
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!((record.status, record.tries(), record.turns), (Status::Done, 1, 2));
}

async fn a_run_that_is_cancelled_at_work_ends_at_its_next_step(on: On) {
    for (at, text) in [(1, "post"), (2, "post"), (1, "hello")] {
        let agent = TestAgent::over(on, poster).await;
        let dm = nip17(&secret(2), text);
        let app = interrupted(&agent, at, "/cancel");
        let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
        assert_eq!(answer["results"][0]["reason"], json!("cancelled by the admin"), "{answer}");
        let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
        assert_eq!((record.status, record.due_at, record.reply_ids.len()), (Status::Dropped, None, 0));
        // What it cost is known all the same.
        assert_eq!(
            (record.turns, record.model.as_deref()),
            (u32::try_from(at).unwrap(), Some("scripted/test"))
        );
        assert_eq!(texts(&agent).await, [format!("Cancelled: {}.", record.short_id())]);
        assert_eq!(notes(&agent).await.len(), at - 1);

        agent.clock.forward(10 * MINUTE);
        assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);
        assert_eq!(agent.deliver(std::slice::from_ref(&dm)).await["results"], answer["results"]);
        assert_eq!(agent.model.calls(), at);
    }
}

async fn cancel_ends_what_waits_in_this_conversation_and_nothing_else(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let mut vars = agent.vars();
    vars.insert(
        "DIDACTYL_ADMIN",
        format!("{},{}", secret(2).public_key().to_hex(), secret(4).public_key().to_hex()),
    );
    let app = || app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let send = async |events: &[Event]| {
        let answer = deliver_to(&app(), &agent.relay_url, events).await.unwrap();
        outcomes(&answer).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(order(&agent, "/cancel").await, "Nothing of this conversation is in work or waits.");
    order(&agent, "/stop").await;
    let now = Timestamp::now();
    let mine =
        [(9, "one"), (6, "two"), (3, "three")].map(|(ago, text)| nip17_at(&secret(2), text, now - ago));
    let others = nip17(&secret(4), "four");
    assert_eq!(send(&mine).await, ["stopped", "busy", "busy"]);
    assert_eq!(send(std::slice::from_ref(&others)).await, ["stopped"]);

    let id = |dm: &Event| run_id(&dm_trigger_id(&dm_id(dm)));
    for (text, told) in [
        (format!("/cancel {}", &id(&mine[0])[..8]), format!("Cancelled: {}.", &id(&mine[0])[..8])),
        ("/cancel 00".to_owned(), "No run that is in work or waits has an id".to_owned()),
        (format!("/cancel {}", id(&mine[0])), "No run that is in work or waits has an id".to_owned()),
    ] {
        let answer = order(&agent, &text).await;
        assert!(answer.starts_with(&told), "{answer}");
    }
    let told = order(&agent, "/cancel").await;
    assert!(told.contains(&id(&mine[1])[..8]) && told.contains(&id(&mine[2])[..8]), "{told}");
    assert!(!told.contains(&id(&mine[0])[..8]) && !told.contains(&id(&others)[..8]), "{told}");

    order(&agent, "/start").await;
    let answer = tick(&app()).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(agent.model.calls(), 1);
    assert_eq!(agent.record(&dm_trigger_id(&dm_id(&others))).await.status, Status::Done);
}

async fn what_waits_behind_a_run_that_is_cancelled_at_work_is_worked_with_it(on: On) {
    let agent = TestAgent::over(on, poster).await;
    let now = Timestamp::now();
    let [post, two, three] =
        [(9, "post"), (6, "two"), (3, "three")].map(|(ago, text)| nip17_at(&secret(2), text, now - ago));
    let id = run_id(&dm_trigger_id(&dm_id(&post)));
    let cancel = nip17(&secret(2), &format!("/cancel {}", &id[..8]));
    let meanwhile = vec![(three.clone(), "busy"), (two.clone(), "busy"), (cancel, "replied")];
    let app = interrupted_by(&agent, 1, meanwhile);
    let answer = deliver_to(&app, &agent.relay_url, &[post]).await.unwrap();
    assert_eq!(answer["results"][0]["reason"], json!("cancelled by the admin"), "{answer}");
    let asked: Vec<String> =
        agent.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect();
    assert_eq!(asked, ["post", "two", "three"]);
    assert_eq!(notes(&agent).await, []);
    let mut told = texts(&agent).await;
    told.sort();
    assert_eq!(told, [format!("Cancelled: {}.", &id[..8]), "THREE".to_owned(), "TWO".to_owned()]);
    for dm in [&two, &three] {
        let record = agent.record(&dm_trigger_id(&dm_id(dm))).await;
        assert_eq!((record.status, record.tries()), (Status::Done, 1));
    }
}

async fn what_waits_behind_a_cancelled_run_is_due_at_once(on: On) {
    let agent = TestAgent::over(on, |asked| match asked.last_text("user") {
        "one" => Answer::Refusal(503, vec![], json!({"error": {"message": "ill"}}).to_string()),
        text => Answer::Text(text.to_uppercase()),
    })
    .await;
    let now = Timestamp::now();
    let [one, two] = [(9, "one"), (6, "two")].map(|(ago, text)| nip17_at(&secret(2), text, now - ago));
    // The model is out of order: the first waits for it for half an hour by now, and the second behind the first.
    agent.try_deliver(std::slice::from_ref(&one)).await.unwrap_err();
    for _ in 0..8 {
        agent.clock.forward(20 * MINUTE);
        tick(&agent.another()).await;
    }
    assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(&two)).await), ["busy"]);
    assert_eq!(outcomes(&tick(&agent.another()).await), [""; 0]);
    let id = run_id(&dm_trigger_id(&dm_id(&one)));
    assert_eq!(order(&agent, &format!("/cancel {}", &id[..8])).await, format!("Cancelled: {}.", &id[..8]));
    assert_eq!(outcomes(&tick(&agent.another()).await), ["replied"]);
    assert!(texts(&agent).await.contains(&"TWO".to_owned()));
}

async fn a_new_conversation_hides_the_old_one_and_no_command_is_part_of_any(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let ask = async |text: &str| {
        agent.clock.forward(MINUTE);
        let now = agent.clock.clock().now();
        let answer = agent.deliver(&[nip17_at(&secret(2), text, now)]).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    };
    for text in ["first", "/status", "second", "/etc/hosts holds what?", "/new", "third", "fourth"] {
        ask(text).await;
    }
    let heard = agent.model.requests().last().unwrap().body["messages"].to_string();
    for (text, is_heard) in [
        ("first", false),
        ("SECOND", false),
        ("hosts", false),
        ("third", true),
        ("THIRD", true),
        ("fourth", true),
        ("/new", false),
        ("A new conversation", false),
    ] {
        assert_eq!(heard.contains(text), is_heard, "{text}: {heard}");
    }
    let before = agent.model.requests()[2].body["messages"].to_string();
    assert!(before.contains("SECOND") && before.contains("/etc/hosts"), "{before}");
    assert!(!before.contains("/status") && !before.contains("Dead letters"), "{before}");
    // Nothing is gone.
    assert_eq!(agent.history(secret(2).public_key()).await.len(), 14);
    assert_eq!(agent.model.calls(), 5);

    // What the agent answered to commands it does not take for another instance's.
    let wraps = agent.on_relay(Filter::new().kind(Kind::from(1059)).pubkey(agent_key())).await;
    let answer = agent.deliver(&wraps).await;
    assert!(outcomes(&answer).iter().all(|outcome| *outcome == "recorded"), "{answer}");
    let notices = agent.app.store.list(&Range::whole(keys::NOTICES_PARTITION)).await.unwrap();
    assert_eq!(notices, []);
}

#[tokio::test]
async fn a_command_is_obeyed_before_what_came_with_it() {
    let agent = TestAgent::with_script(echo).await;
    let (question, stop) = (nip17(&secret(2), "hello"), nip17(&secret(2), "/stop"));
    assert_eq!(outcomes(&agent.deliver(&[question, stop]).await), ["stopped", "replied"]);
    assert_eq!(agent.model.calls(), 0);
}

#[tokio::test]
async fn with_a_queue_what_is_stopped_is_not_queued_again_before_the_start() {
    let agent = TestAgent::with_script(echo).await;
    let queue = Arc::new(MemoryQueue::default());
    let with_queue = || {
        let mut app = agent.another();
        app.queue = Some(queue.clone());
        app
    };
    order(&agent, "/stop").await;
    let answer = deliver_to(&with_queue(), &agent.relay_url, &[nip17(&secret(2), "hello")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["queued"]);
    let (run, _) = queue.taken().remove(0);
    let answer = hand_over(&with_queue(), &json!({"type": "resume", "run": run}).to_string()).await;
    assert_eq!(outcomes(&answer), ["stopped"], "{answer}");
    agent.clock.forward(10 * MINUTE);
    assert_eq!(outcomes(&tick(&with_queue()).await), [""; 0]);
    assert_eq!(queue.taken().len(), 1);

    order(&agent, "/start").await;
    assert_eq!(outcomes(&tick(&with_queue()).await), ["queued"]);
    let answer = hand_over(&with_queue(), &json!({"type": "resume", "run": run}).to_string()).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!((queue.taken().len(), agent.model.calls()), (2, 1));
}

#[tokio::test]
async fn a_model_that_failed_is_not_followed_by_another_once_the_agent_is_stopped() {
    let agent = TestAgent::with_script(|_| {
        Answer::Refusal(503, vec![], json!({"error": {"message": "ill"}}).to_string())
    })
    .await;
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_LLM", "scripted/one,scripted/two".to_owned());
    let mut app = interrupted(&agent, 1, "/stop");
    app.config = config(&vars);
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), "hello")]).await.unwrap();
    assert_eq!((outcomes(&answer), agent.model.calls()), (vec!["stopped"], 1), "{answer}");
}

#[tokio::test]
async fn an_answered_command_that_comes_again_does_nothing_again() {
    let agent = TestAgent::with_script(echo).await;
    let now = Timestamp::now();
    let (stop, start) = (nip17_at(&secret(2), "/stop", now), nip17_at(&secret(2), "/start", now));
    let first = agent.deliver(std::slice::from_ref(&stop)).await;
    agent.deliver(std::slice::from_ref(&start)).await;
    assert_eq!(agent.deliver(std::slice::from_ref(&stop)).await, first);
    agent.publish([stop, start]).await;
    tick(&agent.another()).await;
    assert_eq!(order(&agent, "hello").await, "HELLO");
    assert_eq!(agent.replies().await.len(), 3);
}

#[tokio::test]
async fn a_command_that_comes_after_a_later_one_changes_nothing() {
    let agent = TestAgent::with_script(echo).await;
    let now = Timestamp::now();
    for (text, at) in [("/start", now), ("/stop", now - 60)] {
        let answer = agent.deliver(&[nip17_at(&secret(2), text, at)]).await;
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    }
    assert_eq!(order(&agent, "hello").await, "HELLO");
    assert!(
        texts(&agent)
            .await
            .contains(&"Nothing was done: you have written a later /stop or /start.".to_owned())
    );
}

#[tokio::test]
async fn of_others_a_command_is_a_text_like_any() {
    let agent = TestAgent::with_script(echo).await;
    let friend = secret(4);
    let contacts = EventBuilder::new(Kind::from(3), "")
        .tag(Tag::public_key(friend.public_key()))
        .custom_created_at(Timestamp::now() + 1)
        .finalize(&secret(2))
        .unwrap();
    agent.publish([contacts]).await;
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_SENDERS", "wot".to_owned());
    let app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&friend, "/stop")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(agent.model.requests().last().unwrap().last_text("user"), "/stop");
    // It stopped nothing.
    assert_eq!(order(&agent, "hello").await, "HELLO");
}

#[tokio::test]
async fn after_a_refresh_the_next_sweep_finds_what_is_older_than_its_last_look() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.tick().await;
    // Published while the relay was not asked for all, with a date from before.
    let soul = EventBuilder::new(Kind::from(31120), "Be brief.")
        .tag(Tag::parse(["d", "soul"]).unwrap())
        .custom_created_at(harbour.now() - 3 * 60 * 60)
        .finalize(&secret(1))
        .unwrap();
    harbour.sea.post(&soul);
    let knows_it = async || {
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
        harbour.app().store.read(&[keys::event(&soul)]).await.unwrap()[0].is_some()
    };
    assert!(!knows_it().await);
    let now = harbour.now();
    harbour.sea.post(&nip17_at(&secret(2), "/refresh", now));
    // The tick that obeys it has swept already.
    knows_it().await;
    assert!(knows_it().await);
}
