//! `didactyl serve` as a process, against the embedded relay.

use std::collections::BTreeMap;
use std::time::Duration;

use didactyl::llm::scripted::Answer;
use didactyl::trigger::Protocol;
use nostr::prelude::ToBech32;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::agent::{BUDGET, TestAgent, echo, nip04, nip17, secret, wrap};
use crate::interop;
use crate::process::Process;

const TOKEN: &str = "SEKRIT-token-of-the-bridge";

/// Starts it as this agent; returns with the URL of its API.
pub async fn serve(agent: &TestAgent, arguments: &[&str]) -> (Process, String) {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_LOG", "info".to_owned());
    vars.insert("DIDACTYL_API_TOKEN", format!("bridge={TOKEN}"));
    let arguments: Vec<&str> = ["serve", "--port", "0"].iter().chain(arguments).copied().collect();
    let mut process = Process::start(&arguments, &vars);
    let line = process.says("url ").await;
    let url = line.split_whitespace().last().unwrap().to_owned();
    (process, url)
}

/// Writes to the agent by a client that somebody else wrote, where one is installed.
async fn write(agent: &TestAgent, text: &str) {
    match interop::client("node", "with_nostr_tools.mjs") {
        Some(client) => client.send(agent, Protocol::Nip17, text).await,
        None => agent.publish([nip17(&secret(2), text)]).await,
    }
}

/// Waits until the agent wrote so many messages.
pub async fn replies(agent: &TestAgent, count: usize) -> Vec<String> {
    let replied = async {
        loop {
            let replies: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
            if replies.len() >= count {
                return replies;
            }
        }
    };
    timeout(BUDGET, replied).await.expect("it replies")
}

#[tokio::test]
async fn what_comes_between_two_ticks_is_answered_by_the_listener() {
    let agent = TestAgent::start().await;
    // The next tick is later than this test waits for anything.
    let (mut process, _) = serve(&agent, &["--every", "240"]).await;
    process.says("the tick listens").await;
    write(&agent, "hello").await;
    assert_eq!(replies(&agent, 1).await, ["HELLO"]);
    agent.publish([nip04(&secret(2), "again")]).await;
    assert_eq!(replies(&agent, 2).await.len(), 2);

    assert!(process.end().await.success());
    let said = process.said.join("\n");
    for shown in [
        "agent   npub1",
        "admin   npub1",
        "relays  ws://127.0.0.1:",
        "model   scripted/test",
        "store   sqlite:",
    ] {
        assert!(said.contains(shown), "{shown}: {said}");
    }
    let nsec = secret(1).secret_key().to_secret_hex();
    assert!(!said.contains("SEKRIT") && !said.contains(&nsec), "{said}");
    // Its log comes on another line.
    assert!(said.lines().any(|line| line == "ended"), "{said}");
    assert_eq!(agent.model.calls(), 2);
}

#[tokio::test]
async fn with_the_listener_off_a_message_is_answered_by_a_later_tick() {
    let agent = TestAgent::start().await;
    let (mut process, _) = serve(&agent, &["--every", "2", "--no-listener"]).await;
    process.says("the tick is over").await;
    write(&agent, "hello").await;
    assert_eq!(replies(&agent, 1).await, ["HELLO"]);
    assert!(process.end().await.success());
    assert!(!process.said.join("\n").contains("the tick listens"));
    assert_eq!(agent.replies().await.len(), 1);
}

#[tokio::test]
async fn its_api_is_that_of_the_function_url() {
    let agent = TestAgent::start().await;
    let (_process, url) = serve(&agent, &["--every", "240", "--no-listener"]).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let health = http.get(format!("{url}/health")).send().await.unwrap();
    assert_eq!(
        (health.status().as_u16(), health.headers()["content-type"].to_str().unwrap()),
        (200, "application/json")
    );
    assert_eq!(health.json::<Value>().await.unwrap(), json!({"success": true, "status": "ok"}));

    let push = json!({"type": "relay", "events": [nip17(&secret(2), "hello")]});
    let refused = http.post(format!("{url}/bridge")).json(&push).send().await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["www-authenticate"].to_str().unwrap()),
        (401, "Bearer")
    );
    for _ in 0..2 {
        let taken = http.post(format!("{url}/bridge")).bearer_auth(TOKEN).json(&push).send().await.unwrap();
        assert_eq!(taken.status().as_u16(), 200);
        assert_eq!(taken.json::<Value>().await.unwrap()["results"][0]["outcome"], json!("replied"));
    }
    assert_eq!((agent.replies().await.len(), agent.model.calls()), (1, 1));
}

#[tokio::test]
async fn what_serve_is_told_wrong_it_tells_and_a_body_that_is_too_large_is_refused_in_json() {
    let agent = TestAgent::start().await;
    let mut vars = agent.vars();
    vars.extend([("DIDACTYL_LOG", "info".to_owned()), ("DIDACTYL_SENDER", "SEKRIT".to_owned())]);
    let mut process = Process::start(&["serve", "--port", "0", "--every", "240"], &vars);
    let said = process.says("unknown ").await;
    assert!(
        said.contains("DIDACTYL_SENDER: did you mean DIDACTYL_SENDERS?") && !said.contains("SEKRIT"),
        "{said}"
    );
    let line = process.says("url ").await;
    // The door is closed; the size is looked at first.
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().trim_end_matches(',');
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let large =
        http.post(format!("{url}/bridge")).body(vec![b' '; 6 * 1024 * 1024 + 1]).send().await.unwrap();
    assert_eq!(large.status().as_u16(), 413);
    let answer = large.json::<Value>().await.unwrap();
    assert_eq!((&answer["success"], answer["error"].is_string()), (&json!(false), true), "{answer}");

    process.says("the tick listens").await;
    agent.publish([wrap("junk"), nip17(&secret(2), "hello")]).await;
    let answered = process.says("a message is answered").await;
    let npub: String = secret(2).public_key().to_bech32().unwrap().chars().take(12).collect();
    assert!(answered.contains(&npub) && !answered.to_lowercase().contains("hello"), "{answered}");
    assert!(process.end().await.success());
    let said = process.said.join("\n");
    assert!(said.contains("start nothing") && !said.contains("starts nothing"), "{said}");
}

#[tokio::test]
async fn a_client_that_hangs_up_ends_no_run_and_the_end_waits_for_it() {
    let agent =
        TestAgent::with_script(|asked| Answer::After(Duration::from_secs(2), Box::new(echo(asked)))).await;
    let (mut process, url) = serve(&agent, &["--every", "240", "--no-listener"]).await;
    process.says("the tick is over").await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let push = json!({"type": "relay", "events": [nip17(&secret(2), "hello")]});
    let request = http.post(format!("{url}/bridge")).bearer_auth(TOKEN).json(&push).send();
    let asked = async {
        while agent.model.calls() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        answer = request => panic!("{answer:?}"),
        asked = timeout(BUDGET, asked) => asked.expect("the model is asked"),
    }
    drop(http);
    assert!(process.end().await.success());
    assert_eq!(replies(&agent, 1).await, ["HELLO"]);
}

#[tokio::test]
async fn without_a_configuration_it_says_what_to_set() {
    let mut process = Process::start(&["serve"], &BTreeMap::new());
    assert!(!process.ended().await.success());
    insta::assert_snapshot!(process.said.join("\n"), @r"
    didactyl: the configuration has 4 fault(s):
    - DIDACTYL_NSEC is not set: give the agent's secret key
    - DIDACTYL_ADMIN is not set: give the key that commands the agent
    - DIDACTYL_RELAYS is not set: give at least one relay
    - DIDACTYL_LLM is not set: give a model such as openai/gpt-6-luna
    ");
}

/// How long it takes from a message's sending to its answer's lying on the relay, ten times each.
#[tokio::test]
#[ignore = "a measurement: cargo test --test it serve:: -- --ignored --nocapture"]
#[allow(clippy::print_stdout, reason = "a measurement is printed")]
async fn answering_takes_so_long_with_the_listener_and_without() {
    for (what, arguments) in
        [("listener", &["--every", "240"][..]), ("ticks of 10 s", &["--every", "10", "--no-listener"])]
    {
        let agent = TestAgent::start().await;
        let (mut process, _) = serve(&agent, arguments).await;
        process.says(if what == "listener" { "the tick listens" } else { "the tick is over" }).await;
        let mut times = Vec::new();
        for number in 1..=10 {
            let sent = nip17(&secret(2), &format!("message {number}"));
            let begun = std::time::Instant::now();
            agent.publish([sent]).await;
            replies(&agent, number).await;
            times.push(begun.elapsed().as_millis());
        }
        times.sort_unstable();
        println!("{what}: {times:?} ms");
    }
}
