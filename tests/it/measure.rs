//! Measures the release binary beside a bare echo function: `make measure`. Asserts nothing about time.

#![allow(clippy::print_stdout, reason = "a measurement tells its figures")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aws_sdk_dynamodb::Client;
use serde_json::json;

use crate::agent::{TestAgent, nip17, outcomes, secret};
use crate::runtime_api::Function;
use crate::slices;
use crate::store::beds::{client, create_table, emulator};

/// Fresh processes of each function, in turn, that do nothing but start.
const INITS: usize = 60;

/// The same, that also answer a message.
const STARTS: usize = 15;

/// After how many messages to one process its memory is looked at.
const MESSAGES: [usize; 3] = [1, 100, 1_000];

/// A release binary of `make measure`.
fn binary(name: &str) -> PathBuf {
    let folder = std::env::var("DIDACTYL_MEASURE").expect("make measure names the folder of the binaries");
    Path::new(&folder).join(name)
}

fn least(samples: Vec<Duration>) -> Duration {
    samples.into_iter().min().unwrap()
}

fn median(mut samples: Vec<Duration>) -> Duration {
    samples.sort();
    samples[samples.len() / 2]
}

/// One start, up to the first request for work.
struct Init {
    wall: Duration,
    /// Time on a processor of the main thread; no other works.
    cpu: Duration,
    peak_kib: u64,
}

/// Starts the process and sees it ask for work. By sockets of the standard library: the emulation of the runtime API
/// takes longer in a debug build than what is measured.
fn init(binary: &Path, vars: &BTreeMap<&'static str, String>) -> Init {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(binary);
    command
        .env_clear()
        .envs(vars)
        .env("AWS_LAMBDA_RUNTIME_API", listener.local_addr().unwrap().to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "didactyl")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    let (mut asking, _) = listener.accept().unwrap();
    assert!(asking.read(&mut [0; 1024]).unwrap() > 0, "it asks for work");
    let wall = began.elapsed();
    let on_cpu = std::fs::read_to_string(format!("/proc/{}/schedstat", child.id())).unwrap();
    let cpu = Duration::from_nanos(on_cpu.split(' ').next().unwrap().parse().unwrap());
    let peak_kib = peak_kib(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    Init { wall, cpu, peak_kib }
}

/// The URL of a DynamoDB that has no rows and says so at once.
fn instant_store() -> String {
    const NO_ROW: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: 2\r\n\r\n{}";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // The other end is killed at any time.
            while stream.read(&mut [0; 8192]).is_ok_and(|read| read > 0) && stream.write_all(NO_ROW).is_ok() {
            }
        }
    });
    url
}

/// From the start of the process until it asks for work, and until it has answered, over the emulations.
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

/// The most memory that a process ever held (`VmHWM`), in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
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

    let mut alone = vars.clone();
    alone.insert("AWS_ENDPOINT_URL", instant_store());
    let (mut echo_inits, mut our_inits) = (Vec::new(), Vec::new());
    for _ in 0..INITS {
        echo_inits.push(init(&echo, &BTreeMap::new()));
        our_inits.push(init(&ours, &alone));
    }
    let (mut echo_starts, mut our_starts) = (Vec::new(), Vec::new());
    for i in 0..STARTS {
        echo_starts.push(cold_start(&echo, &BTreeMap::new(), "{}").await);
        our_starts.push(cold_start(&ours, &vars, &payload(i)).await);
    }

    let mut echo_peaks = Vec::new();
    let mut function = Function::start_binary(&echo, &BTreeMap::new()).await;
    for i in 1..=MESSAGES[2] {
        function.invoke("{}").await.unwrap();
        if MESSAGES.contains(&i) {
            echo_peaks.push(peak_kib(function.pid()));
        }
    }
    function.kill().await;

    let (mut our_peaks, mut warm) = (Vec::new(), Vec::new());
    let mut function = Function::start_binary(&ours, &vars).await;
    for i in 1..=MESSAGES[2] {
        let payload = payload(STARTS + i);
        let began = Instant::now();
        let answer = function.invoke(&payload).await.unwrap();
        warm.push(began.elapsed());
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
        if MESSAGES.contains(&i) {
            our_peaks.push(peak_kib(function.pid()));
        }
        if i % 25 == 0 {
            forget_runs(&aws, &name).await;
        }
    }
    function.kill().await;

    let size = |path: &Path| std::fs::metadata(path).unwrap().len() / 1024;
    let ms = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let row = |what: &str, echo: f64, ours: f64| {
        println!("| {what} | {echo:.1} | {ours:.1} | {:.1} |", ours / echo)
    };
    println!("| | echo | didactyl-lambda | ratio |\n| --- | --- | --- | --- |");
    row("binary, KiB", size(&echo) as f64, size(&ours) as f64);
    let inits = |what: &str, of: fn(&Init) -> Duration, pick: fn(Vec<Duration>) -> Duration| {
        let picked = |inits: &[Init]| ms(pick(inits.iter().map(of).collect()));
        row(what, picked(&echo_inits), picked(&our_inits));
    };
    inits("start to first `GET /next`, ms: the least", |init| init.wall, least);
    inits("… the median", |init| init.wall, median);
    inits("… processor time, ms: the least", |init| init.cpu, least);
    inits("… the median", |init| init.cpu, median);
    let starts = |what: &str, of: fn(&(Duration, Duration)) -> Duration| {
        let picked = |starts: &[(Duration, Duration)]| ms(median(starts.iter().map(of).collect()));
        row(what, picked(&echo_starts), picked(&our_starts));
    };
    starts("start to first `GET /next` by the emulators, ms", |start| start.0);
    starts("start to first answer by the emulators, ms", |start| start.1);
    let peak = |inits: &[Init]| inits.iter().map(|init| init.peak_kib).max().unwrap() as f64;
    row("peak memory after the start, KiB", peak(&echo_inits), peak(&our_inits));
    for (messages, (echo, ours)) in MESSAGES.into_iter().zip(echo_peaks.into_iter().zip(our_peaks)) {
        row(&format!("… after {messages} messages"), echo as f64, ours as f64);
    }
    println!("| warm DM by the emulators, ms (median) | | {:.1} | |", ms(median(warm)));
}

/// What a run of so many tool turns leaves in the store. Each invocation has time for 28 of them.
#[test]
#[ignore = "a measurement: make measure"]
fn of_a_journal() {
    println!("| tool turns | rows | bytes of the journal | all bytes written | … per turn |");
    println!("| --- | --- | --- | --- | --- |");
    for turns in [10, 50, 200] {
        let (rows, bytes, written) = slices::journal_of(turns);
        println!("| {turns} | {rows} | {bytes} | {written} | {} |", written / turns);
    }
}
