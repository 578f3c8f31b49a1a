//! The tool loop under all that models, providers and time may do to it: whatever comes, each request is one that the
//! strictest provider takes, the run ends in its time, and it ends with a text or an honest reason that there is none.
//!
//! Time is simulated: a model that thinks for a minute costs a test nothing.

mod unrepeatable;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::assemble::assemble;
use didactyl::chat::{
    ChatAnswer, ChatRequest, FinishReason, Message, Params, Role, ToolCall, ToolChoice, ToolSchema, Usage,
};
use didactyl::clock::{Clock, Deadline};
use didactyl::config::Config;
use didactyl::context::Context;
use didactyl::context::compaction::{Compaction, Limits};
use didactyl::error::Error;
use didactyl::llm::scripted::strict;
use didactyl::llm::{Llm, LlmError};
use didactyl::load;
use didactyl::record::{self, Claim, Claimed};
use didactyl::relay::listen::Ear;
use didactyl::relay::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target};
use didactyl::run::beginning::Beginning;
use didactyl::run::{Run, Step, ToolResult, driver};
use didactyl::store::sqlite::Sqlite;
use didactyl::trigger::Trigger;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Kind};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::agent::{self, nip17, secret};

/// Runs of each property.
const RUNS: u32 = 1000;

/// A request as a provider would get it, with nothing mended. Ids get a spelling that all providers take, each its own.
fn body(request: &ChatRequest<'_>) -> Value {
    let mut ids: HashMap<String, String> = HashMap::new();
    let mut id = |id: &str| {
        let next = format!("id{:07}", ids.len());
        if id.is_empty() { String::new() } else { ids.entry(id.to_owned()).or_insert(next).clone() }
    };
    let mut message = |m: &Message| {
        let mut out = json!({"role": m.role.as_str(), "content": m.content});
        if !m.tool_calls.is_empty() {
            let call = |c: &ToolCall| json!({"id": id(&c.id), "type": "function", "function": {"name": c.name, "arguments": c.arguments}});
            out["tool_calls"] = m.tool_calls.iter().map(call).collect();
        }
        if let Some(call) = &m.tool_call_id {
            out["tool_call_id"] = id(call).into();
        }
        out
    };
    let mut body = json!({"model": request.model, "messages": request.messages.iter().map(&mut message).collect::<Vec<_>>()});
    if !request.tools.is_empty() {
        let tool = |t: &ToolSchema| json!({"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}});
        body["tools"] = request.tools.iter().map(tool).collect();
        body["tool_choice"] = if request.tool_choice == ToolChoice::None { "none" } else { "auto" }.into();
    }
    if let Some(max_tokens) = request.params.max_tokens {
        body["max_tokens"] = max_tokens.into();
    }
    body
}

/// What a model does when it is asked.
#[derive(Debug, Clone)]
enum Move {
    Say(String),
    Call(Vec<ToolCall>),
    Fail(LlmError),
    /// Nothing, and it does not mind the time that it was given.
    Hang,
    After(Duration, Box<Move>),
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall::new(id, name, arguments)
}

fn answer(model: &str, content: &str, tool_calls: Vec<ToolCall>, usage: Option<Usage>) -> ChatAnswer {
    ChatAnswer {
        content: content.into(),
        tool_calls,
        finish_reason: FinishReason::Stop,
        usage,
        model: model.into(),
    }
}

fn transient(retry_after: Option<Duration>) -> LlmError {
    LlmError::Transient { reason: "429".into(), retry_after }
}

/// Models that follow a script, again and again from its beginning, and look at each request as the strictest would.
#[derive(Default)]
struct Script {
    moves: Vec<Move>,
    at: Mutex<usize>,
    /// What summaries are; none means that nobody writes one.
    summary: Option<String>,
    /// The request, counted from 0, at which the process is to be ended.
    hang_at: Mutex<Option<usize>>,
    requests: Mutex<Vec<Value>>,
    faults: Mutex<Vec<String>>,
}

impl Script {
    fn of(moves: Vec<Move>) -> Self {
        Self { moves, ..Self::default() }
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }

    fn next(&self, request: &ChatRequest<'_>, until: Instant) -> Move {
        let body = body(request);
        let mut faults = self.faults.lock().unwrap();
        faults.extend(strict::check(&body).err());
        if Instant::now() > until {
            faults.push("it was asked after its time".into());
        }
        let number = self.requests.lock().unwrap().len();
        let mut hang_at = self.hang_at.lock().unwrap();
        if *hang_at == Some(number) {
            *hang_at = None;
            return Move::Hang;
        }
        self.requests.lock().unwrap().push(body);
        if request.tools.is_empty() {
            return self.summary.clone().map_or(Move::Fail(transient(None)), Move::Say);
        }
        let mut at = self.at.lock().unwrap();
        let next = self.moves.get(*at % self.moves.len().max(1)).cloned();
        *at += 1;
        next.unwrap_or(Move::Say("done".into()))
    }
}

#[async_trait]
impl Llm for Script {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        let mut next = self.next(request, until);
        loop {
            match next {
                Move::Say(text) => return Ok(answer(request.model, &text, vec![], None)),
                Move::Call(calls) => return Ok(answer(request.model, "", calls, None)),
                Move::Fail(error) => return Err(error),
                Move::Hang => std::future::pending().await,
                Move::After(wait, then) => {
                    if Instant::now() + wait > until {
                        sleep_until(until).await;
                        return Err(transient(None));
                    }
                    sleep(wait).await;
                    next = *then;
                }
            }
        }
    }
}

/// Relays that have as many long notes as they are asked for. Asked for 99, they hang.
struct Notes;

fn note() -> &'static Event {
    static NOTE: OnceLock<Event> = OnceLock::new();
    NOTE.get_or_init(|| {
        EventBuilder::new(Kind::from(1), "a long note ".repeat(200)).finalize(&secret(3)).unwrap()
    })
}

#[async_trait]
impl Relays for Notes {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], _until: Instant) -> Fetched {
        let limit = filters.iter().filter_map(|filter| filter.limit).max().unwrap_or_default();
        sleep(Duration::from_millis(if limit == 99 { 600_000 } else { 50 })).await;
        let report = |target: &Target| FetchReport {
            url: target.url.clone(),
            outcome: Ok(()),
            events: limit,
            skipped: 0,
            unread: 0,
            took: Duration::ZERO,
        };
        Fetched { events: vec![note().clone(); limit], reports: targets.iter().map(report).collect() }
    }

    async fn page(&self, _target: &Target, _filters: &[Filter], _until: Instant) -> Page {
        unreachable!("no tool reads page by page")
    }

    async fn subscribe(&self, _: &Target, _: &[Filter], _: &Ear, _: Instant) -> Result<(), RelayError> {
        unreachable!("no tool listens")
    }

    async fn publish(&self, outgoing: &[Outgoing], _until: Instant) -> Vec<Vec<PublishReport>> {
        let report = |target: &Target| PublishReport {
            url: target.url.clone(),
            outcome: Ok(()),
            took: Duration::ZERO,
        };
        outgoing.iter().map(|outgoing| outgoing.targets.iter().map(report).collect()).collect()
    }

    async fn open(&self, _targets: &[Target], _until: Instant) {}

    async fn close(&self) {}
}

/// Three models with windows of this many tokens.
fn three_models(windows: [u32; 3]) -> Config {
    let provider = |window: u32| json!({"base_url": "http://127.0.0.1:9/v1", "context_window": window});
    let [a, b, c] = windows.map(provider);
    let vars = [
        ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
        ("DIDACTYL_RELAYS", "ws://127.0.0.1:9".to_owned()),
        ("DIDACTYL_LLM", "a/m, b/m, c/m".to_owned()),
        ("DIDACTYL_MODELS", json!({"providers": {"a": a, "b": b, "c": c}}).to_string()),
    ];
    agent::config(&vars.into_iter().collect())
}

/// An agent in simulated time.
struct Scene {
    app: App,
    script: Arc<Script>,
    trigger: Trigger,
    claim: Claim,
    /// What a skill asks for.
    max_tokens: Option<u32>,
}

impl Scene {
    async fn new(config: Config, script: Script) -> Self {
        static DM: OnceLock<Event> = OnceLock::new();
        let dm = DM.get_or_init(|| nip17(&secret(2), "Find out what they wrote."));
        let script = Arc::new(script);
        let store = Arc::new(Sqlite::open(":memory:", Clock::system()).unwrap());
        let app = App::with_ports(config, store, Arc::new(Notes), script.clone(), Clock::system());
        let trigger = agent::trigger(&app, dm);
        let Claimed::Ours(claim) = record::claim(&app, &trigger, u64::MAX).await.unwrap() else {
            panic!("nobody else is there")
        };
        Self { app, script, trigger, claim, max_tokens: None }
    }

    /// What the run comes to, with this history in its context.
    async fn drive(&mut self, history: &[Message], budget: Duration) -> Result<String, Error> {
        let deadline = Deadline::after(budget);
        let earlier = record::earlier(&self.app, &self.claim.record.run_id).await.unwrap();
        let loaded =
            load::stored(&self.app, &self.trigger).await.unwrap().into_loaded(&self.app, &self.trigger);
        let mut context: Context = assemble(&self.app, &self.trigger, &loaded, deadline).await;
        context.messages.splice(1..1, history.iter().cloned());
        context.params.max_tokens = self.max_tokens;
        let known = earlier.journal.beginning().unwrap();
        let beginning = known.unwrap_or_else(|| Beginning::new(context, &self.trigger));
        let (claim, journal) = (&mut self.claim, earlier.journal);
        driver::drive(&self.app, &self.trigger, &loaded.state, beginning, claim, journal, deadline).await
    }

    /// Another process: what was only in memory is gone.
    fn restart(&mut self) {
        let App { config, store, relays, llm, clock, .. } = &self.app;
        self.app = App::with_ports(
            config.clone(),
            Arc::clone(store),
            Arc::clone(relays),
            Arc::clone(llm),
            clock.clone(),
        );
    }

    fn attempts(&self) -> Vec<(&str, Option<&str>)> {
        self.claim.record.attempts.iter().map(|a| (a.model.as_str(), a.failure.as_deref())).collect()
    }
}

fn simulated<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(work)
}

const UNAVAILABLE: Option<&str> = Some("the model is unavailable for now");

#[test]
fn a_chain_of_429_timeout_and_success_answers_in_time_and_the_record_tells_how() {
    simulated(async {
        let script = Script::of(vec![
            Move::Fail(transient(Some(Duration::from_secs(1)))),
            Move::Hang,
            Move::Call(vec![call("", "time", "{}")]),
            Move::Say("found".into()),
        ]);
        let mut scene = Scene::new(three_models([100_000; 3]), script).await;
        let start = Instant::now();
        assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "found");
        // 52 seconds of work: the silent one gets half of it.
        assert_eq!((Instant::now() - start).as_secs(), 26);
        let expected = [("a/m", UNAVAILABLE), ("b/m", UNAVAILABLE), ("c/m", None), ("c/m", None)];
        assert_eq!(scene.attempts(), expected, "the run stays with the model that answered");
        assert_eq!(scene.claim.record.model.as_deref(), Some("c/m"));
        assert!(scene.claim.record.cost_micro_usd > 0, "an unknown price is that of the dearest");
    });
}

#[test]
fn a_chain_that_is_down_ends_in_an_honest_reason_in_time() {
    simulated(async {
        let down = Move::Fail(transient(Some(Duration::from_secs(20))));
        let mut scene =
            Scene::new(three_models([100_000; 3]), Script::of(vec![Move::Hang, down.clone(), down])).await;
        let start = Instant::now();
        let error = scene.drive(&[], Duration::from_secs(120)).await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer { transient: true, .. }), "{error:?}");
        assert_eq!(error.to_string(), "the model is unavailable for now");
        assert!(Instant::now() - start <= Duration::from_secs(112), "{:?}", Instant::now() - start);
        // The last one was waited for once: then it hung, until the end.
        assert_eq!(scene.attempts().len(), 4);
    });
}

#[test]
fn a_run_moves_on_when_its_model_fails_in_the_middle_and_compacts_for_a_smaller_window() {
    simulated(async {
        let long = Move::Call(vec![call("", "nostr_query", r#"{"kinds":[1],"limit":7}"#)]);
        let again = Move::Call(vec![call("", "nostr_query", r#"{"kinds":[1],"limit":8}"#)]);
        let moves =
            vec![long, again, Move::Fail(LlmError::Account("no money".into())), Move::Say("found".into())];
        let script = Script { summary: Some("They wrote notes.".into()), ..Script::of(moves) };
        let mut scene = Scene::new(three_models([100_000, 6_000, 6_000]), script).await;
        assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "found");
        let failed = Some("the model's provider refused the key or the account");
        let answers: Vec<_> = scene.attempts();
        assert_eq!(answers[..3], [("a/m", None), ("a/m", None), ("a/m", failed)]);
        assert_eq!(answers.last(), Some(&("b/m", None)));
        let sizes: Vec<usize> =
            scene.script.requests().iter().map(|r| r["messages"].to_string().len()).collect();
        assert!(sizes.last().unwrap() < &(sizes[2] / 2), "{sizes:?}");
        assert_eq!(scene.script.faults.lock().unwrap().as_slice(), [""; 0]);
    });
}

#[test]
fn an_overflow_is_compacted_and_asked_once_more_and_the_room_is_remembered() {
    simulated(async {
        let history: Vec<Message> =
            (0..20).map(|n| Message::text(Role::User, format!("{n} ").repeat(300))).collect();
        let moves = vec![Move::Fail(LlmError::Overflow("too long".into())), Move::Say("found".into())];
        let script = Script { summary: Some("Numbers.".into()), ..Script::of(moves) };
        let mut scene = Scene::new(three_models([100_000; 3]), script).await;
        assert_eq!(scene.drive(&history, Duration::from_secs(60)).await.unwrap(), "found");
        let requests = scene.script.requests();
        assert_eq!(requests.len(), 3, "the request, its summary, the smaller request");
        assert_eq!(requests[2]["model"], "a/m");
        assert!(requests[2].to_string().len() < requests[0].to_string().len() / 2);
        assert!(requests[2]["messages"].to_string().contains("Numbers."));
        // Where even that is too long, the next model is asked.
        let overflow = Move::Fail(LlmError::Overflow("too long".into()));
        let script = Script::of(vec![overflow.clone(), overflow, Move::Say("found".into())]);
        let mut scene = Scene::new(three_models([100_000; 3]), script).await;
        assert_eq!(scene.drive(&history, Duration::from_secs(60)).await.unwrap(), "found");
        assert_eq!(scene.script.requests().last().unwrap()["model"], "b/m");
    });
}

#[test]
fn what_came_of_an_answer_that_broke_off_is_told_where_nobody_does_better() {
    simulated(async {
        let broken = LlmError::Interrupted {
            reason: "the stream was cut".into(),
            partial: Box::new(answer("a/m", "They wrote", vec![call("", "time", "{")], None)),
        };
        let moves = vec![Move::Fail(broken), Move::Fail(transient(None)), Move::Fail(transient(None))];
        let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
        let text = scene.drive(&[], Duration::from_secs(60)).await.unwrap();
        assert_eq!(text, "They wrote\n\n[The model's answer broke off here.]");
    });
}

/// What the attempts of a run that its record lists cost together.
fn listed_cost(scene: &Scene) -> u64 {
    scene.claim.record.attempts.iter().map(|attempt| attempt.cost_micro_usd).sum()
}

#[test]
fn what_broke_off_is_billed_by_an_estimate_of_what_was_sent_and_of_what_came() {
    simulated(async {
        let bill = async |text: &str, usage| {
            let partial = Box::new(answer("a/m", text, vec![], usage));
            let broken = LlmError::Interrupted { reason: "cut".into(), partial };
            let moves = vec![Move::Fail(broken), Move::Say("found".into())];
            let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
            assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "found");
            assert_eq!(scene.claim.record.cost_micro_usd, listed_cost(&scene));
            let [broken, whole] = scene.claim.record.attempts.as_slice() else { panic!("two attempts") };
            assert_eq!(broken.failure.as_deref(), Some("the model's answer broke off"));
            (broken.cost_micro_usd, whole.cost_micro_usd)
        };
        let (short, whole) = bill("They", None).await;
        let (long, _) = bill(&"They wrote ".repeat(500), None).await;
        assert!(short > whole / 2 && long > short + 500 * 20, "{short} {long} {whole}");
        // What the provider told counts before any estimate.
        let used = Usage { input_tokens: Some(7), cached_input_tokens: None, output_tokens: Some(1) };
        assert_eq!(bill("They", Some(used)).await.0, 7 * 5 + 20);
    });
}

/// The process is killed after an answer and one that broke off; or all models fail, and the run is given back.
#[test]
fn the_record_of_a_resumed_run_shows_what_all_its_attempts_have_spent() {
    const BROKE_OFF: Option<&str> = Some("the model's answer broke off");
    let query =
        |n: usize| Move::Call(vec![call("", "nostr_query", &format!(r#"{{"kinds":[1],"limit":{n}}}"#))]);
    let broken = || {
        let partial = Box::new(answer("a/m", "", vec![call("", "time", "{")], None));
        Move::Fail(LlmError::Interrupted { reason: "cut".into(), partial })
    };
    let down = || Move::Fail(transient(None));
    let rest = || [query(2), Move::Say("found".into())];
    simulated(async {
        for (turn_2, is_killed) in
            [(vec![broken(), Move::Hang], true), (vec![broken(), down(), down()], false)]
        {
            let moves = [vec![query(1)], turn_2, rest().to_vec()].concat();
            let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
            let first = timeout(Duration::from_secs(10), scene.drive(&[], Duration::from_secs(600))).await;
            assert_eq!(first.is_err(), is_killed, "{first:?}");
            // Of a process that is killed, the journal alone knows.
            assert_eq!(scene.claim.record.cost_micro_usd == 0, is_killed);
            scene.restart();
            assert_eq!(scene.drive(&[], Duration::from_secs(600)).await.unwrap(), "found");
            let mut attempts = scene.attempts();
            attempts.retain(|(_, failure)| *failure != UNAVAILABLE);
            attempts.sort();
            assert_eq!(attempts, [("a/m", None), ("a/m", None), ("a/m", None), ("a/m", BROKE_OFF)]);
            assert_eq!(scene.claim.record.cost_micro_usd, listed_cost(&scene));
        }
    });
}

#[test]
fn an_answer_may_have_what_its_model_can_give_and_what_the_window_leaves() {
    simulated(async {
        let limit = async |wanted: u32, window: u32, history: usize| {
            let mut scene = Scene::new(three_models([window; 3]), Script::default()).await;
            let history = [Message::text(Role::User, "it was so ".repeat(history))];
            scene.max_tokens = Some(wanted);
            assert_eq!(scene.drive(&history, Duration::from_secs(60)).await.unwrap(), "done");
            scene.script.requests()[0]["max_tokens"].as_u64().unwrap()
        };
        assert_eq!(limit(512, 100_000, 0).await, 512);
        // Of an unknown model no answer is longer than 4,096 tokens.
        assert_eq!(limit(1_000_000, 100_000, 0).await, 4_096);
        let left = limit(4_000, 4_000, 100).await;
        assert!((256..4_000).contains(&left), "{left}");
    });
}

#[test]
fn a_tool_that_hangs_is_told_to_the_model_and_one_that_may_have_acted_as_unknown() {
    simulated(async {
        let calls = vec![call("", "nostr_query", r#"{"kinds":[1],"limit":99}"#), call("", "time", "{}")];
        let moves = vec![Move::Call(calls), Move::Say("found".into())];
        let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
        let start = Instant::now();
        assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "found");
        assert!(Instant::now() - start < Duration::from_secs(11));
        let requests = scene.script.requests();
        let messages = requests.last().unwrap()["messages"].as_array().unwrap().clone();
        let told = messages[messages.len() - 2]["content"].as_str().unwrap();
        assert_eq!(told, r#"{"success":false,"error":"it took too long; ask for less at a time"}"#);
    });
}

#[test]
fn calls_that_only_read_run_side_by_side_and_others_in_the_models_order() {
    simulated(async {
        let query = |n: usize| call("", "nostr_query", &format!(r#"{{"kinds":[1],"limit":{n}}}"#));
        let post = || call("", "nostr_post", r#"{"content":"hello"}"#);
        for (calls, took_ms) in [
            (vec![query(1), query(2), query(3)], 50),
            (vec![query(1), post(), query(2)], 100),
            (vec![post(), call("", "time", "{}")], 0),
        ] {
            let moves = vec![Move::Call(calls), Move::Say("found".into())];
            let mut scene = Scene::new(three_models([100_000; 3]), Script::of(moves)).await;
            let start = Instant::now();
            assert_eq!(scene.drive(&[], Duration::from_secs(60)).await.unwrap(), "found");
            // A timer wakes up to a millisecond late.
            let ms = (Instant::now() - start).as_millis();
            assert!((took_ms..=took_ms + 4).contains(&ms), "{ms} ms for {:?}", scene.claim.record.tool_calls);
        }
    });
}

/// Whatever request the process ends at, the next one comes to the same bytes and goes on from there.
#[test]
fn a_resumed_run_sends_the_requests_that_the_first_would_have_sent() {
    let moves = || -> Vec<Move> {
        let query = |n: usize| call("", "nostr_query", &format!(r#"{{"kinds":[1],"limit":{n}}}"#));
        let turns = (1..9).map(|n| Move::Call(vec![query(n), call("x", "time", &format!("{{\"n\":{n}}}"))]));
        turns.chain([Move::Say("found".into())]).collect()
    };
    let script = |hang_at| Script {
        moves: moves(),
        summary: Some("They wrote long notes.".into()),
        hang_at: Mutex::new(hang_at),
        ..Script::default()
    };
    simulated(async {
        let config = three_models([9_000; 3]);
        let mut whole = Scene::new(config.clone(), script(None)).await;
        whole.drive(&[], Duration::from_secs(600)).await.unwrap();
        let expected = whole.script.requests();
        let summaries = expected.iter().filter(|request| request.get("tools").is_none()).count();
        assert!(summaries >= 2, "{summaries}");
        for at in 0..expected.len() {
            let mut scene = Scene::new(config.clone(), script(Some(at))).await;
            let ended = timeout(Duration::from_secs(20), scene.drive(&[], Duration::from_secs(600))).await;
            assert!(ended.is_err(), "the process was to end at request {at}");
            scene.restart();
            // Whatever was said meanwhile: where something is decided, the run goes on with what it began with.
            let since = [Message::text(Role::User, "Something else.")];
            let since = if at == 0 { &[][..] } else { &since };
            assert_eq!(scene.drive(since, Duration::from_secs(600)).await.unwrap(), "found");
            let without_times = |requests: Vec<Value>| -> Vec<String> {
                requests.iter().map(|request| mask_times(&request.to_string())).collect()
            };
            assert_eq!(
                without_times(scene.script.requests()),
                without_times(expected.clone()),
                "request {at}"
            );
            assert_eq!(
                scene.claim.record.attempts.len(),
                expected.len(),
                "{:?}",
                scene.claim.record.attempts
            );
            assert_eq!(scene.claim.record.cost_micro_usd, whole.claim.record.cost_micro_usd);
        }
    });
}

/// It does not fit into one write of the store.
#[test]
fn a_very_long_beginning_is_kept_whole() {
    simulated(async {
        let history = [Message::text(Role::User, "it was \"so\" 🦀 ".repeat(260_000))];
        let query = Move::Call(vec![call("", "nostr_query", r#"{"kinds":[1],"limit":1}"#)]);
        let script =
            Script { hang_at: Mutex::new(Some(1)), ..Script::of(vec![query, Move::Say("found".into())]) };
        let mut scene = Scene::new(three_models([100_000_000; 3]), script).await;
        let ended = timeout(Duration::from_secs(20), scene.drive(&history, Duration::from_secs(600))).await;
        assert!(ended.is_err(), "the process was to end");
        scene.restart();
        assert_eq!(scene.drive(&[], Duration::from_secs(600)).await.unwrap(), "found");
        let requests = scene.script.requests();
        assert_eq!(requests.len(), 2);
        let (first, second) = (&requests[0]["messages"], &requests[1]["messages"]);
        assert!(first.to_string().len() > 4_000_000);
        let first = first.as_array().unwrap();
        assert!(first.iter().zip(second.as_array().unwrap()).all(|(one, other)| one == other));
    });
}

/// The one thing that differs between two runs is what the tool `time` says.
fn mask_times(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect()
}

fn any_call() -> impl Strategy<Value = ToolCall> {
    let id = prop_oneof![Just(""), Just("x"), Just("call_1_0"), Just("call_2_1"), Just("abcdefghi")];
    let name = prop_oneof![
        6 => Just("nostr_query"), 3 => Just("time"), 1 => Just("nostr_post"), 1 => Just("functions.time"),
        1 => Just("shell"), 1 => Just(""), 1 => Just("odd name, far too long ".repeat(9).leak() as &'static str),
    ];
    let arguments = prop_oneof![
        4 => (1_usize..4).prop_map(|n| format!(r#"{{"kinds":[1],"limit":{n}}}"#)),
        2 => Just("{}".to_owned()),
        1 => Just(r#"{"kinds":[1],"limit":99}"#.to_owned()),
        1 => Just(r#"{"kind":1,"content":"hello"}"#.to_owned()),
        1 => Just(r#"{"content":"Hello wor"#.to_owned()),
        1 => Just(String::new()),
        1 => Just("[]".to_owned()),
        1 => (1_usize..1500).prop_map(|n| format!(r#"{{"content":"{}"}}"#, "x".repeat(n))),
    ];
    (id, name, arguments).prop_map(|(id, name, arguments)| call(id, name, &arguments))
}

fn any_failure() -> impl Strategy<Value = LlmError> {
    let partial = |text: &str| LlmError::Interrupted {
        reason: "cut".into(),
        partial: Box::new(answer("a/m", text, vec![call("", "time", "{")], None)),
    };
    prop_oneof![
        Just(transient(None)),
        (0_u64..90).prop_map(|s| transient(Some(Duration::from_secs(s)))),
        Just(LlmError::Overflow("too long".into())),
        Just(LlmError::Account("no money".into())),
        Just(LlmError::Unreadable("html".into())),
        Just(LlmError::Permanent("404".into())),
        Just(partial("a beginning")),
        Just(partial("")),
    ]
}

fn any_move() -> impl Strategy<Value = Move> {
    let say = prop_oneof![
        Just(String::new()),
        Just(" \n".to_owned()),
        (1_usize..500).prop_map(|n| "word ".repeat(n))
    ];
    let plain = prop_oneof![
        1 => say.prop_map(Move::Say),
        6 => prop::collection::vec(any_call(), 1..5).prop_map(Move::Call),
        2 => any_failure().prop_map(Move::Fail),
        1 => Just(Move::Hang),
    ];
    (plain, prop_oneof![2 => Just(0), 1 => 0_u64..40_000]).prop_map(|(then, ms)| match ms {
        0 => then,
        ms => Move::After(Duration::from_millis(ms), Box::new(then)),
    })
}

fn any_summary() -> impl Strategy<Value = Option<String>> {
    prop_oneof![Just(None), Just(Some(String::new())), (1_usize..800).prop_map(|n| Some("so far ".repeat(n))),]
}

fn any_history() -> impl Strategy<Value = Vec<Message>> {
    let message = (any::<bool>(), 1_usize..150).prop_map(|(user, n)| {
        Message::text(if user { Role::User } else { Role::Assistant }, "it was so ".repeat(n))
    });
    prop::collection::vec(message, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: RUNS, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_models_and_time_do_a_run_ends_in_time_with_a_text_or_a_reason(
        moves in prop::collection::vec(any_move(), 1..12),
        summary in any_summary(),
        history in any_history(),
        windows in prop::array::uniform3(prop_oneof![3 => 800_u32..8_000, 1 => Just(100_000)]),
        budget in 5_u64..300,
        crashes in prop::collection::vec(0_u64..100_000, 0..3),
    ) {
        simulated(async {
            let script = Script { summary, ..Script::of(moves) };
            let mut scene = Scene::new(three_models(windows), script).await;
            let budget = Duration::from_secs(budget);
            let mut crashes = VecDeque::from(crashes);
            let result = loop {
                let start = Instant::now();
                let crash = crashes.pop_front().map_or(budget * 10, Duration::from_millis);
                let result = timeout(crash, scene.drive(&history, budget)).await;
                assert!(Instant::now() - start <= budget, "it took {:?} of {budget:?}", Instant::now() - start);
                match result {
                    Ok(result) => break result,
                    Err(_) => scene.restart(),
                }
            };
            match result {
                Ok(text) => assert!(!text.trim().is_empty()),
                Err(Error::NoAnswer { reason, .. }) => assert!(!reason.is_empty()),
                Err(Error::OutOfTime { .. }) => {}
                Err(other) => panic!("{other:?}"),
            }
            assert_eq!(scene.script.faults.lock().unwrap().as_slice(), [""; 0]);
        });
    }
}

/// What a run is told.
#[derive(Debug, Clone)]
enum Told {
    Answer(ChatAnswer),
    Results(Vec<ToolResult>),
    Compaction(Compaction),
}

fn tell(run: &mut Run, told: Told) {
    match told {
        Told::Answer(answer) => run.model_answered(answer),
        Told::Results(results) => run.tools_answered(results),
        Told::Compaction(compaction) => run.compact(&compaction),
    }
}

fn tool(name: &str) -> ToolSchema {
    let parameters = json!({"type": "object", "properties": {}});
    ToolSchema { name: name.into(), description: String::new(), parameters }
}

fn new_run(history: &[Message], max_turns: u32) -> Run {
    let system = [Message::text(Role::System, "You are Dido.")];
    let trigger = [Message::text(Role::User, "Find it.")];
    let messages = system.iter().chain(history).chain(&trigger).cloned().collect();
    let tools = ["time", "nostr_query", "nostr_post"].map(tool).to_vec();
    Run::new(messages, tools, Params::default(), "a/m".into(), max_turns)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: RUNS, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_machine_is_told_its_requests_are_valid_and_another_process_comes_to_the_same(
        answers in prop::collection::vec(
            (prop_oneof![Just(""), Just(" "), Just("text")], prop::collection::vec(any_call(), 0..4)), 20),
        sizes in prop::collection::vec(prop_oneof![0_usize..200, 0_usize..2000], 1..8),
        summary in any_summary(),
        history in any_history(),
        window in 300_usize..4_000,
        max_turns in 0..18_u32,
        one_by_one in any::<bool>(),
    ) {
        let mut run = new_run(&history, max_turns);
        let mut journal: Vec<Told> = Vec::new();
        let (mut answers, mut sizes) = (answers.into_iter(), sizes.into_iter().cycle());
        let limits = Limits::of(window);
        let mut model_calls = 0;
        loop {
            // As if each step were another process.
            run = serde_json::from_str(&serde_json::to_string(&run).unwrap()).unwrap();
            let told = match run.next() {
                Step::CallModel(request) => {
                    prop_assert_eq!(strict::check(&body(&request)), Ok(()));
                    if let Some(plan) = run.log().plan(0, limits) {
                        let asked = run.log().summary_request(&plan, limits);
                        let text = asked.and(summary.as_deref());
                        Told::Compaction(run.log().with_summary(plan, text, limits))
                    } else {
                        model_calls += 1;
                        let (text, calls) = answers.next().unwrap();
                        Told::Answer(answer("a/m", text, calls, None))
                    }
                }
                Step::CallTools(calls) => {
                    prop_assert!(!calls.is_empty());
                    let count = if one_by_one { 1 } else { calls.len() };
                    let result = |call: &ToolCall| {
                        let content = json!({"success": true, "content": "x y ".repeat(sizes.next().unwrap() / 4)});
                        ToolResult { call_id: call.id.clone(), content: content.to_string() }
                    };
                    Told::Results(calls.iter().take(count).map(result).collect())
                }
                Step::Done { text } => break prop_assert!(!text.trim().is_empty()),
                Step::Failed { reason } => panic!("{reason}"),
            };
            let before = run.log().tokens();
            tell(&mut run, told.clone());
            if matches!(told, Told::Compaction(_)) {
                prop_assert!(run.log().tokens() < before, "a compaction makes smaller");
            }
            journal.push(told);
        }
        prop_assert!(model_calls <= max_turns.max(1) + 2, "{} calls", model_calls);

        let mut replayed = new_run(&history, max_turns);
        journal.into_iter().for_each(|told| tell(&mut replayed, told));
        prop_assert_eq!(replayed, run);
    }
}

/// A compaction is refused between a call and its results.
#[test]
fn b095_a_batch_that_is_open_is_not_touched() {
    let history = [Message::text(Role::User, "it was so ".repeat(500))];
    let mut run = new_run(&history, 4);
    let plan = run.log().plan(0, Limits::of(1000)).unwrap();
    run.model_answered(answer(
        "a/m",
        "",
        vec![call("a", "time", "{}"), call("b", "nostr_query", "{}")],
        None,
    ));
    let open = run.clone();
    run.compact(&plan);
    assert_eq!(run, open);
    let result = |id: &str| ToolResult { call_id: id.into(), content: "found ".repeat(300) };
    run.tools_answered(vec![result("a")]);
    run.compact(&plan);
    run.tools_answered(vec![result("b")]);
    let plan = run.log().plan(0, Limits::of(1000)).unwrap();
    run.compact(&plan);
    let ids: Vec<&str> = run.messages().iter().filter_map(|m| m.tool_call_id.as_deref()).collect();
    assert_eq!(ids, ["a", "b"]);
    let Step::CallModel(request) = run.next() else { panic!("the model is next") };
    assert_eq!(strict::check(&body(&request)), Ok(()));
}
