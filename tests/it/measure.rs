//! Measures the release binary beside a bare echo function: `make measure`. Asserts nothing about time.

#![allow(clippy::print_stdout, reason = "a measurement tells its figures")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use serde_json::json;

use crate::agent::{TestAgent, nip17, outcomes, secret};
use crate::runtime_api::Function;
use crate::store::beds::{client, create_table, emulator};

/// Fresh processes of each function, in turn.
const STARTS: usize = 15;

/// Messages to one process.
const MESSAGES: usize = 1_000;

/// A release binary of `make measure`.
fn binary(name: &str) -> PathBuf {
    let folder = std::env::var("DIDACTYL_MEASURE").expect("make measure names the folder of the binaries");
    Path::new(&folder).join(name)
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

/// From the start of the process until it asks for work, and until it has answered.
async fn cold_start(
    binary: &Path,
    vars: &BTreeMap<&'static str, String>,
    payload: &str,
) -> (Duration, Duration) {
    let began = Instant::now();
    let mut function = Function::start_binary(binary, vars).await;
    function.hand_out(payload).await;
    let asked = began.elapsed();
    function.answer().await.unwrap();
    (asked, began.elapsed())
}

/// The most memory that the process ever held (`VmHWM`), in KiB.
fn peak_kib(function: &Function) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", function.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Takes away the rows of runs that are over. The emulator copies the whole table for each transaction, and with all rows
/// in it that would be what is measured.
async fn forget_runs(aws: &Client, table: &str) {
    let rows = aws.scan().table_name(table).projection_expression("pk, sk").send().await.unwrap();
    for key in rows.items().iter().filter(|key| key["pk"].as_s().unwrap().starts_with("RUN#")) {
        aws.delete_item().table_name(table).set_key(Some(key.clone())).send().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: make measure"]
async fn beside_an_echo_function() {
    let agent = TestAgent::start().await;
    let aws = client(&emulator().expect("make measure starts it"));
    let name = create_table(&aws).await;
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_STORE", format!("dynamodb:{name}"));
    for variable in ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"] {
        vars.insert(variable, std::env::var(variable).expect("with-moto.sh sets it"));
    }
    let payload = |i: usize| {
        let events = [nip17(&secret(2), &format!("message {i}"))];
        json!({"type": "relay", "events": events, "relay": agent.relay_url.to_string()}).to_string()
    };
    let (echo, ours) = (binary("examples/echo_lambda"), binary("didactyl-lambda"));
    let (mut echo_starts, mut our_starts) = (Vec::new(), Vec::new());
    for i in 0..STARTS {
        echo_starts.push(cold_start(&echo, &BTreeMap::new(), "{}").await);
        our_starts.push(cold_start(&ours, &vars, &payload(i)).await);
    }

    let mut function = Function::start_binary(&echo, &BTreeMap::new()).await;
    for _ in 0..MESSAGES {
        function.invoke("{}").await.unwrap();
    }
    let echo_kib = peak_kib(&function);
    function.kill().await;

    let mut function = Function::start_binary(&ours, &vars).await;
    let mut warm = Vec::new();
    for i in 0..MESSAGES {
        let payload = payload(STARTS + i);
        let began = Instant::now();
        let answer = function.invoke(&payload).await.unwrap();
        warm.push(began.elapsed());
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        if i % 25 == 0 {
            forget_runs(&aws, &name).await;
        }
    }
    let our_kib = peak_kib(&function);
    function.kill().await;

    let size = |path: &Path| std::fs::metadata(path).unwrap().len() / 1024;
    let of = |starts: &[(Duration, Duration)], which: fn(&(Duration, Duration)) -> Duration| {
        median(starts.iter().map(which).collect()).as_secs_f64() * 1000.0
    };
    let row = |what: &str, echo: f64, ours: f64| {
        println!("| {what} | {echo:.1} | {ours:.1} | {:.1} |", ours / echo)
    };
    println!("| | echo | didactyl-lambda | ratio |\n| --- | --- | --- | --- |");
    row("binary, KiB", size(&echo) as f64, size(&ours) as f64);
    row("start to first GET /next, ms", of(&echo_starts, |s| s.0), of(&our_starts, |s| s.0));
    row("start to first answer, ms", of(&echo_starts, |s| s.1), of(&our_starts, |s| s.1));
    row(&format!("peak memory after {MESSAGES} messages, KiB"), echo_kib as f64, our_kib as f64);
    println!("| warm DM, ms (median) | | {:.1} | |", median(warm).as_secs_f64() * 1000.0);
}
