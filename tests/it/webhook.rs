//! Requests to webhooks: exact answers, nothing touched for a stranger, one run per delivery whatever happens.

use std::sync::Arc;
use std::time::Duration;

use didactyl::app::{App, LEASE_MARGIN};
use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::llm::scripted::Answer;
use didactyl::record::{self, Status};
use didactyl::store::{Range, keys};
use futures_util::future::join_all;
use hmac::{Hmac, KeyInit, Mac};
use nostr::prelude::Timestamp;
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::process::Command;

use crate::agent::{BUDGET, TestAgent, app_over, config, echo, hand_over};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::process::Process;
use crate::sea::tick;
use crate::skills::{SkillOf, agent_with, kept};

on_each_store! {
    a_delivery_that_comes_five_times_at_once_runs_once,
    a_replay_under_another_delivery_id_does_not_run,
    a_request_runs_once_whatever_call_the_process_dies_at,
    a_webhook_takes_so_many_an_hour_and_a_day,
}

const SECRETS: &str = r#"{
    "ci": {"form": "github", "secret": ["hook-secret-1", "hook-secret-2"]},
    "my/skill": {"form": "bearer", "secret": ["a-token-of-the-ci-000001"]},
    "pay": {"form": "stripe", "secret": ["whsec_test_1"]}
}"#;
const TOKEN: &str = "a-token-of-the-ci-000001";
const BODY: &str = r#"{"action":"opened","n":1}"#;
const SIGNED: &str = "sha256=c9e2e7837111f871372ff416361c325f1fd8a912bcb2fa76a2d6676929962654";

/// Fired by each of them.
const SKILL: SkillOf = ("note", &[&["trigger", "webhook"]], "Note it.");

async fn agent(on: On) -> TestAgent {
    let mut agent = agent_with(on, &[SKILL], |_| Answer::Text("noted".to_owned())).await;
    agent.app = another(&agent);
    agent
}

/// The same agent, with its webhooks, in another process.
fn another(agent: &TestAgent) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_WEBHOOK_SECRETS", SECRETS.to_owned());
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

fn post(path: &str, headers: &[(&str, &str)], body: &str) -> Value {
    let mut named = json!({"content-type": "application/json"});
    for (name, value) in headers {
        named[*name] = json!(value);
    }
    json!({
        "version": "2.0", "rawPath": path, "rawQueryString": "x=1&x=2&y", "headers": named,
        "requestContext": {"http": {"method": "POST"}, "stage": "$default"}, "body": body, "isBase64Encoded": false,
    })
}

fn hmac(secret: &str, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn github(delivery: &str, body: &str) -> Value {
    let signature = format!("sha256={}", hmac("hook-secret-1", body));
    post("/webhook/ci", &[("X-Hub-Signature-256", &signature), ("X-GitHub-Delivery", delivery)], body)
}

fn stripe(at: Timestamp, body: &str) -> Value {
    let header = format!("t={at},v1={}", hmac("whsec_test_1", &format!("{at}.{body}")));
    post("/webhook/pay", &[("Stripe-Signature", &header)], body)
}

fn bearer(headers: &[(&str, &str)], body: &str) -> Value {
    let authorization = format!("Bearer {TOKEN}");
    post("/webhook/my%2Fskill", &[&[("authorization", authorization.as_str())], headers].concat(), body)
}

/// The status of the answer and the run that it names.
async fn send(app: &App, request: &Value) -> (u64, Option<String>) {
    let answer = hand_over(app, &request.to_string()).await;
    let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
    (answer["statusCode"].as_u64().unwrap(), body["run"].as_str().map(str::to_owned))
}

async fn runs(agent: &TestAgent) -> Vec<String> {
    record::recent(&agent.app, 100).await.unwrap().into_iter().map(|record| record.run_id).collect()
}

async fn a_delivery_that_comes_five_times_at_once_runs_once(on: On) {
    let agent = agent(on).await;
    let now = agent.clock.clock().now();
    for (number, request) in
        [github("1", BODY), stripe(now, BODY), bearer(&[], BODY), bearer(&[("Idempotency-Key", "k")], BODY)]
            .into_iter()
            .enumerate()
    {
        let apps: Vec<App> = (0..5).map(|_| another(&agent)).collect();
        let answers = join_all(apps.iter().map(|app| send(app, &request))).await;
        let mut statuses: Vec<u64> = answers.iter().map(|(status, _)| *status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 200, 200, 200, 202], "{request}");
        assert!(answers.iter().all(|(_, run)| *run == answers[0].1 && run.is_some()), "{answers:?}");
        assert_eq!(runs(&agent).await.len(), number + 1);
    }
    tick(&agent.app).await;
    tick(&agent.app).await;
    assert_eq!(agent.model.calls(), 4);
}

async fn a_replay_under_another_delivery_id_does_not_run(on: On) {
    let agent = agent(on).await;
    let (status, first) = send(&agent.app, &github("1", BODY)).await;
    assert_eq!((status, first.is_some()), (202, true));
    tick(&agent.app).await;
    assert_eq!(kept(&agent, first.as_deref().unwrap()).await.as_deref(), Some("noted"));
    let unnamed = post("/webhook/ci", &[("x-hub-signature-256", SIGNED)], BODY);
    for replay in [github("2", BODY), unnamed, github("1", BODY)] {
        assert_eq!(send(&another(&agent), &replay).await, (200, first.clone()), "{replay}");
        agent.clock.forward(Duration::from_secs(24 * 60 * 60));
    }
    tick(&agent.app).await;
    assert_eq!((runs(&agent).await.len(), agent.model.calls()), (1, 1));
    assert_eq!(send(&agent.app, &github("2", r#"{"action":"opened","n":2}"#)).await.0, 202);
}

/// The request comes again, as its sender has no answer; then the ticks do what is left.
async fn a_request_runs_once_whatever_call_the_process_dies_at(on: On) {
    let step = if on == On::Sqlite { 1 } else { 4 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let what = format!("crash {side:?} call {at}");
            let agent = agent(on).await;
            let request = github("1", BODY);
            let fault = Fault::crash(at, side);
            let mut app = another(&agent);
            fault.install(&mut app);
            let work = async {
                send(&app, &request).await;
                tick(&app).await;
            };
            fault.until_crash(work).await;
            let (status, run) = send(&another(&agent), &request).await;
            assert!([200, 202].contains(&status), "{what}: {status}");
            for _ in 0..2 {
                agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
                tick(&another(&agent)).await;
            }
            let run = run.unwrap();
            assert_eq!(runs(&agent).await, std::slice::from_ref(&run), "{what}");
            let record = record::find(&agent.app, &run).await.unwrap().unwrap();
            assert_eq!((record.status, record.tainted), (Status::Done, true), "{what}: {record:?}");
            assert_eq!(kept(&agent, &run).await.as_deref(), Some("noted"), "{what}");
            if !fault.was_reached() {
                break;
            }
            at += step;
        }
        assert!(at > 10, "{side:?}: the run ended after {at} calls");
    }
}

async fn a_webhook_takes_so_many_an_hour_and_a_day(on: On) {
    let mut agent = agent(on).await;
    (agent.app.config.webhook_limits.per_hour, agent.app.config.webhook_limits.per_day) = (2, 3);
    // Half an hour after a midnight: the clock runs on.
    let day = 24 * 60 * 60;
    let midnight = (agent.clock.clock().now().as_secs() / day + 1) * day;
    agent.clock.set(Timestamp::from(midnight + 30 * 60));
    let number = |n: u32| github(&n.to_string(), &format!("[{n}]"));
    let refused = async |n: u32, least: u64, most: u64| {
        let answer = hand_over(&agent.app, &number(n).to_string()).await;
        let wait: u64 = answer["headers"]["retry-after"].as_str().unwrap().parse().unwrap();
        assert_eq!(answer["statusCode"], json!(429), "{answer}");
        assert!((least..=most).contains(&wait), "{wait}");
    };
    assert_eq!(send(&agent.app, &number(1)).await.0, 202);
    assert_eq!(send(&agent.app, &number(2)).await.0, 202);
    refused(3, 1, 30 * 60).await;
    // What came before is told, and counts no more; another webhook has a counter of its own.
    assert_eq!(send(&agent.app, &number(1)).await.0, 200);
    assert_eq!(send(&agent.app, &bearer(&[], BODY)).await.0, 202);
    agent.clock.forward(Duration::from_secs(60 * 60));
    assert_eq!(send(&agent.app, &number(3)).await.0, 202);
    refused(4, 20 * 60 * 60, 23 * 60 * 60).await;
    agent.clock.forward(Duration::from_secs(day));
    assert_eq!(send(&agent.app, &number(4)).await.0, 202);
    assert_eq!(runs(&agent).await.len(), 5);
}

#[tokio::test]
async fn each_request_gets_its_exact_status_and_a_refused_one_touches_no_store_and_no_relay() {
    let mut agent = agent(On::Sqlite).await;
    let untouched = Fault::crash(usize::MAX, Side::Before);
    untouched.install(&mut agent.app);
    let signed = [("X-HUB-SIGNATURE-256", SIGNED)];
    let deep = "[".repeat(200_000) + &"]".repeat(200_000);
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(900_000));
    let huge = " ".repeat(5_900_000);
    let said_small = |body: &str| {
        let signature = format!("sha256={}", hmac("hook-secret-1", body));
        post("/webhook/ci", &[("x-hub-signature-256", &signature), ("content-length", "100")], body)
    };
    let zeros = format!("sha256={}", "0".repeat(64));
    let mut get = post("/webhook/ci", &signed, BODY);
    get["requestContext"]["http"]["method"] = json!("GET");
    let mut broken = post("/webhook/ci", &signed, "%%%");
    broken["isBase64Encoded"] = json!(true);
    let cases = [
        (post("/webhook/ci", &[], BODY), 401),
        (post("/webhook/ci", &[("x-hub-signature-256", &zeros)], BODY), 401),
        (post("/webhook/ci", &[("x-hub-signature-256", "sha1=00")], BODY), 401),
        (post("/webhook/ci", &[("x-hub-signature-256", &format!("{SIGNED},{SIGNED}"))], BODY), 401),
        (post("/webhook/my%2Fskill", &[("authorization", "Bearer hook-secret-1")], BODY), 401),
        // A skill may fire on any webhook: one without a secret is closed all the same.
        (post("/webhook/other", &signed, BODY), 401),
        (post("/webhook/..%2f..%2fadmin", &signed, BODY), 401),
        (post("/webhook/my%252Fskill", &[("authorization", &format!("Bearer {TOKEN}"))], BODY), 401),
        (stripe(agent.clock.clock().now() - 400, BODY), 401),
        (stripe(agent.clock.clock().now() + 400, BODY), 401),
        (post("/webhook/%zz", &signed, BODY), 400),
        (broken, 400),
        (said_small(&deep), 413),
        (said_small(&large), 413),
        (said_small(&huge), 413),
        (get, 405),
        (post("/webhook/", &signed, BODY), 404),
        (post("/webhook/ci/more", &signed, BODY), 404),
        (post("/prod/webhook/ci", &signed, BODY), 404),
    ];
    let answered = cases.len();
    for (request, status) in cases {
        let answer = hand_over(&agent.app, &request.to_string()).await;
        let (path, headers) = (&request["rawPath"], &request["headers"]);
        assert_eq!(answer["statusCode"], json!(status), "{path} {headers}: {answer}");
        if status == 401 {
            // Which webhooks there are is not told.
            let told = r#"{"success":false,"error":"the request is not signed as this webhook's are"}"#;
            assert_eq!(answer["body"], json!(told), "{path}");
        }
    }
    // Each invocation ends with the call that closes its connections.
    assert_eq!(untouched.calls(), answered);
}

#[tokio::test]
async fn a_right_request_is_taken_in_each_of_its_spellings() {
    let agent = agent(On::Sqlite).await;
    let first = send(&agent.app, &post("/webhook/ci", &[("X-HUB-SIGNATURE-256", SIGNED)], BODY)).await.1;
    let mut staged = post("/prod/webhook/ci", &[("x-hub-signature-256", SIGNED)], BODY);
    staged["requestContext"]["stage"] = json!("prod");
    let mut encoded = post("/webhook/ci", &[("X-Hub-Signature-256", SIGNED)], "");
    encoded["body"] = json!("eyJhY3Rpb24iOiJvcGVuZWQiLCJuIjoxfQ==");
    encoded["isBase64Encoded"] = json!(true);
    let upper = SIGNED.to_ascii_uppercase().replace("SHA256=", "sha256=");
    for request in [
        staged,
        encoded,
        post("/webhook//ci/", &[("x-hub-signature-256", SIGNED)], BODY),
        post("/webhook/%63i", &[("x-hub-signature-256", &upper)], BODY),
    ] {
        assert_eq!(send(&agent.app, &request).await, (200, first.clone()), "{request}");
    }
    let deep = "[".repeat(60_000) + &"]".repeat(60_000);
    for body in [&deep, "not json", "", "{\"msg\":\"\\ud800\"}"] {
        assert_eq!(send(&agent.app, &github("", body)).await.0, 202);
    }
    tick(&agent.app).await;
    assert_eq!(agent.model.calls(), 5);
}

#[tokio::test]
async fn the_model_is_told_what_was_posted_and_is_offered_tools_that_only_read() {
    let agent = agent_with(On::Sqlite, &[SKILL], echo).await;
    let app = another(&agent);
    let run = send(&app, &github("1", BODY)).await.1.unwrap();
    tick(&app).await;
    let asked = agent.model.requests();
    let message = r#"{"trigger":"webhook","slug":"ci","content_type":"application/json","body":{"action":"opened","n":1}}"#;
    assert_eq!((asked.len(), asked[0].last_text("user")), (1, message));
    let tools = asked[0].body["tools"].to_string();
    assert!(tools.contains("nostr_query") && !tools.contains("nostr_post"), "{tools}");
    assert_eq!(kept(&agent, &run).await, Some(message.to_uppercase()));
    assert_eq!(agent.replies().await, []);
}

#[tokio::test]
async fn a_body_without_an_id_runs_again_after_ten_minutes_and_an_event_of_stripes_never() {
    let agent = agent(On::Sqlite).await;
    let minutes = |n: u64| agent.clock.forward(Duration::from_secs(n * 60));
    let first = send(&agent.app, &bearer(&[], BODY)).await;
    minutes(9);
    assert_eq!(send(&agent.app, &bearer(&[], BODY)).await, (200, first.1.clone()));
    minutes(2);
    let second = send(&agent.app, &bearer(&[], BODY)).await;
    assert_eq!((second.0, second.1 != first.1), (202, true));
    assert_eq!(send(&agent.app, &bearer(&[("Idempotency-Key", "1")], BODY)).await.0, 202);

    let event = r#"{"id":"evt_1"}"#;
    let now = || agent.clock.clock().now();
    let first = send(&agent.app, &stripe(now(), event)).await;
    assert_eq!(first.0, 202);
    minutes(60);
    assert_eq!(send(&agent.app, &stripe(now(), event)).await, (200, first.1));
}

#[tokio::test]
async fn with_a_queue_a_request_is_stored_and_queued_and_what_the_queue_loses_a_tick_finds() {
    let mut agent = agent(On::Sqlite).await;
    let queue = Arc::new(MemoryQueue::default());
    agent.app.queue = Some(queue.clone());
    let (status, run) = send(&agent.app, &github("1", BODY)).await;
    let taken: Vec<String> = queue.taken().into_iter().map(|(run, _)| run).collect();
    assert_eq!((status, run), (202, taken.first().cloned()));
    assert_eq!((taken.len(), agent.model.calls()), (1, 0));
    agent.clock.forward(Duration::from_secs(3 * 60));
    tick(&another(&agent)).await;
    assert_eq!((agent.model.calls(), kept(&agent, &taken[0]).await), (1, Some("noted".to_owned())));
}

#[tokio::test]
async fn a_request_by_direct_invocation_runs_at_once_and_once_for_its_id() {
    let agent = agent(On::Sqlite).await;
    let invoke = async |payload: &Value, request: &str| {
        let deadline = Deadline::after(BUDGET);
        let answer =
            handler::handle_request(&agent.app, &payload.to_string(), deadline, Some(request)).await.unwrap();
        answer["results"][0]["run"].as_str().map(str::to_owned)
    };
    let unnamed = json!({"type": "webhook", "slug": "any", "body": {"n": 1}});
    let first = invoke(&unnamed, "r1").await;
    assert_eq!(kept(&agent, first.as_deref().unwrap()).await.as_deref(), Some("noted"));
    assert_eq!(invoke(&unnamed, "r1").await, first);
    assert_ne!(invoke(&unnamed, "r2").await, first);
    let named = json!({"type": "webhook", "slug": "any", "body": {"n": 1}, "id": "7"});
    let third = invoke(&named, "r3").await;
    assert_eq!(invoke(&named, "r4").await, third);
    assert_eq!((runs(&agent).await.len(), agent.model.calls()), (3, 3));
}

#[tokio::test]
async fn secrets_are_neither_shown_nor_stored() {
    let agent = agent(On::Sqlite).await;
    send(&agent.app, &bearer(&[], BODY)).await;
    let shown = format!("{:?} {:?}", agent.app.config, agent.app.credentials);
    assert!(!shown.contains(TOKEN) && !shown.contains("hook-secret-1"));
    assert_eq!(agent.app.secrets().redact(&format!("it was {TOKEN}")), "it was [redacted]");
    let run = runs(&agent).await.remove(0);
    for range in [Range::whole(keys::run_partition(&run)), Range::whole("HOOKS")] {
        let rows = agent.app.store.list(&range).await.unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            let value = String::from_utf8_lossy(&row.value).into_owned();
            assert!(!value.contains(TOKEN) && !value.contains("opened"), "{:?}", row.key);
        }
    }
}

/// The commands of docs/TRIGGERS.md, as a reader types them: `didactyl serve` with the secrets that it shows, and curl.
#[tokio::test]
async fn the_examples_of_triggers_md_fire_a_skill_at_once() {
    let document = include_str!("../../docs/TRIGGERS.md");
    let section = document.split("\n## ").find(|section| section.starts_with("Webhook\n")).unwrap();
    let shells: Vec<&str> =
        section.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    let [secrets, calls @ ..] = shells.as_slice() else { panic!("no example") };
    let secrets = secrets.trim().strip_prefix("export DIDACTYL_WEBHOOK_SECRETS='").unwrap();
    let agent = agent(On::Sqlite).await;
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_WEBHOOK_SECRETS", secrets.strip_suffix('\'').unwrap().to_owned());
    vars.insert("DIDACTYL_LOG", "info".to_owned());
    let mut process = Process::start(&["serve", "--port", "0", "--every", "240", "--no-listener"], &vars);
    let line = process.says("url ").await;
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().trim_end_matches(',');
    assert_eq!(calls.len(), 3);
    for (number, call) in calls.iter().enumerate() {
        let call = call.replace("http://127.0.0.1:8787", url);
        let output = Command::new("sh")
            .args(["-euc", &call])
            .env_remove("http_proxy")
            .env_remove("all_proxy")
            .env_remove("ALL_PROXY")
            .output()
            .await
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let answer: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{call}: {said}"));
        let run = answer["run"].as_str().unwrap_or_else(|| panic!("{call}: {said}")).to_owned();
        let deadline = tokio::time::Instant::now() + BUDGET;
        while kept(&agent, &run).await.is_none() {
            assert!(tokio::time::Instant::now() < deadline, "{number}: {run}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert_eq!(agent.model.calls(), 3);
    assert!(process.end().await.success());
    assert!(!process.said.join("\n").contains("a-secret-of"), "a secret is in the log");
}
