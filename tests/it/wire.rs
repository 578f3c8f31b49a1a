//! The network between the agent and its table: each call may be throttled, lost or stuck, before the table has seen it
//! or after. The calls that go through are answered by the emulator.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Builder;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use didactyl::app::App;
use didactyl::aws::Aws;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{Status, dm_trigger_id, run_id};
use didactyl::store::dynamodb::DynamoDb;
use nostr::prelude::{Event, Filter, Kind};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::agent::{TestAgent, agent_key, deliver_to, dm_id, hand_over, nip17, outcomes, secret};
use crate::ground::{Ground, On};
use crate::store::beds;

/// The codes by which DynamoDB throttles, in the spellings that were met.
const THROTTLES: [&str; 3] = [
    "com.amazon.coral.availability#ThrottlingException",
    "ThrottlingException",
    "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException",
];

/// What becomes of one call.
#[derive(Debug, Clone, Copy)]
enum Mishap {
    /// The table refuses it with this code.
    Throttled(&'static str),
    /// The connection ends before the table has seen it.
    LostBefore,
    /// The table has done it, and the connection ends.
    LostAfter,
    /// Nothing happens any more.
    StuckBefore,
    /// The table has done it, and nothing happens any more.
    StuckAfter,
}

/// Decides about a call by its number, counted from 1, and its operation.
type Plan = dyn Fn(usize, &str) -> Option<Mishap> + Send + Sync;

/// A way to the emulator; it ends with the value.
struct Wire {
    url: String,
    calls: Arc<AtomicUsize>,
    _accepting: JoinSet<()>,
}

impl Wire {
    async fn new(plan: impl Fn(usize, &str) -> Option<Mishap> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (plan, calls): (Arc<Plan>, Arc<AtomicUsize>) = (Arc::new(plan), Arc::default());
        let count = Arc::clone(&calls);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut serving = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                serving.spawn(serve(stream, Arc::clone(&plan), Arc::clone(&count)));
            }
        });
        Self { url, calls, _accepting: accepting }
    }

    /// The plan in which the `at`-th call has this mishap.
    async fn with(at: usize, mishap: Mishap) -> Self {
        Self::new(move |call, _| (call == at).then_some(mishap)).await
    }

    /// Whether so many calls came.
    fn reached(&self, at: usize) -> bool {
        self.calls.load(Ordering::SeqCst) >= at
    }

    /// The agent in a process that makes each call once.
    fn app_without_retries(&self, agent: &TestAgent) -> App {
        self.app(agent, beds::client(&self.url))
    }

    /// The agent with the client of the function, but for the time that it waits for an answer.
    async fn app_of_the_function(&self, agent: &TestAgent) -> App {
        let timeouts = TimeoutConfig::builder().operation_attempt_timeout(Duration::from_secs(1)).build();
        let config = Builder::from(Aws::default().config().await).timeout_config(timeouts);
        self.app(agent, Client::from_conf(config.endpoint_url(&self.url).build()))
    }

    fn app(&self, agent: &TestAgent, client: Client) -> App {
        let Ground::Table(_, table) = &agent.ground else { panic!("there is no wire to a file") };
        agent.another_over(Arc::new(DynamoDb::new(client, table, agent.clock.clock())))
    }
}

/// One call per connection, as the emulator has it.
async fn serve(mut stream: TcpStream, plan: Arc<Plan>, calls: Arc<AtomicUsize>) -> Option<()> {
    let request = read_request(&mut stream).await?;
    let text = String::from_utf8_lossy(&request);
    let operation = text.split_once("DynamoDB_20120810.")?.1.split_whitespace().next()?;
    match plan(calls.fetch_add(1, Ordering::SeqCst) + 1, operation) {
        None => {
            let answer = forward(&request).await;
            stream.write_all(&answer).await.ok()?;
        }
        Some(Mishap::Throttled(code)) => {
            let body = json!({"__type": code, "message": "over capacity"}).to_string();
            let head = format!("HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\n\r\n", body.len());
            stream.write_all((head + &body).as_bytes()).await.ok()?;
        }
        Some(Mishap::LostBefore) => {}
        Some(Mishap::LostAfter) => drop(forward(&request).await),
        Some(Mishap::StuckBefore) => std::future::pending().await,
        Some(Mishap::StuckAfter) => {
            forward(&request).await;
            std::future::pending().await
        }
    }
    Some(())
}

/// The bytes of a request; `None` where the client changes its mind.
async fn read_request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let (mut request, mut length) = (Vec::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).await.ok().filter(|bytes| *bytes > 0)?;
        request.extend_from_slice(line.as_bytes());
        if line == "\r\n" {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let head = request.len();
    request.resize(head + length, 0);
    reader.read_exact(&mut request[head..]).await.ok()?;
    Some(request)
}

/// What the emulator answers; it closes the connection behind its answer.
async fn forward(request: &[u8]) -> Vec<u8> {
    let emulator = beds::emulator().unwrap();
    let mut stream = TcpStream::connect(emulator.trim_start_matches("http://")).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

/// The model posts what it is told to post, and says so.
fn script(asked: &Asked) -> Answer {
    let text = asked.last_text("user");
    match asked.result() {
        Some(_) => Answer::Text(text.to_uppercase()),
        None if text.starts_with("post") => Answer::call("nostr_post", json!({"content": text})),
        None => Answer::Text(text.to_uppercase()),
    }
}

/// An agent over a table, whose state and conversation are known from a first message.
async fn warm_agent() -> Option<TestAgent> {
    beds::emulator()?;
    let agent = TestAgent::over(On::DynamoDb, script).await;
    assert_eq!(outcomes(&agent.deliver(&[nip17(&secret(2), "first")]).await), ["replied"]);
    Some(agent)
}

/// What the admin wrote after the first message was answered once, each, and stands in the conversation once, with its
/// answer; each note was posted once.
async fn check(agent: &TestAgent, dms: &[(String, Event)], what: &str) {
    let mut answers: Vec<String> = dms.iter().map(|(text, _)| text.to_uppercase()).collect();
    answers.push("FIRST".to_owned());
    answers.sort();
    let replies = agent.replies().await;
    let mut texts: Vec<&String> = replies.iter().map(|(_, text)| text).collect();
    texts.sort();
    assert!(texts.iter().copied().eq(&answers), "{what}: {texts:?}");

    let mut expected: Vec<(&str, String)> = answers.into_iter().map(|text| ("agent", text)).collect();
    expected.extend(dms.iter().map(|(text, _)| ("peer", text.clone())));
    expected.push(("peer", "first".to_owned()));
    expected.sort();
    let mut history = agent.history(secret(2).public_key()).await;
    history.sort();
    assert_eq!(history, expected, "{what}");

    for (text, dm) in dms {
        let record = agent.record(&dm_trigger_id(&dm_id(dm))).await;
        let reply = replies.iter().find(|(_, reply)| *reply == text.to_uppercase()).unwrap();
        assert_eq!((record.status, record.reply_ids), (Status::Done, vec![reply.0]), "{what}: {text}");
    }
    let notes = agent.on_relay(Filter::new().kind(Kind::from(1)).author(agent_key())).await;
    let mut notes: Vec<String> = notes.into_iter().map(|note| note.content).collect();
    notes.sort();
    let mut posts: Vec<String> =
        dms.iter().map(|(text, _)| text.clone()).filter(|text| text.starts_with("post")).collect();
    posts.sort();
    assert_eq!(notes, posts, "{what}");
    assert_eq!(agent.model.refusals(), [""; 0], "{what}");
}

/// Each call of a run with a tool in turn is refused or lost; whatever the first delivery came to, the second ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_once_when_any_call_is_throttled_or_lost() {
    let mishaps = THROTTLES.map(Mishap::Throttled).into_iter().chain([Mishap::LostBefore, Mishap::LostAfter]);
    for mishap in mishaps {
        let Some(agent) = warm_agent().await else { return };
        let mut dms = Vec::new();
        for at in 1.. {
            let text = format!("post {at}");
            let dm = nip17(&secret(2), &text);
            let wire = Wire::with(at, mishap).await;
            let app = wire.app_without_retries(&agent);
            // An answer or an error: what counts is what the next delivery finds.
            let _ = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await;
            agent.end_the_lease(&dm).await;
            let answer = agent.deliver(std::slice::from_ref(&dm)).await;
            assert_eq!(outcomes(&answer), ["replied"], "{mishap:?} {at}: {answer}");
            dms.push((text, dm));
            if !wire.reached(at) {
                break;
            }
        }
        // Claim, three reads; the model's answer, the note and the result, each with a look at the flags; the reply, the
        // record.
        assert_eq!(dms.len(), 13, "{mishap:?}: the last had no mishap");
        check(&agent, &dms, &format!("{mishap:?}")).await;
    }
}

/// The function's own client makes up for each of them, so that the message needs no second delivery.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_answered_at_once_although_a_call_is_throttled_lost_or_stuck() {
    let Some(agent) = warm_agent().await else { return };
    let others = [Mishap::LostBefore, Mishap::LostAfter, Mishap::StuckBefore, Mishap::StuckAfter];
    let mut dms = Vec::new();
    for mishap in THROTTLES.map(Mishap::Throttled).into_iter().chain(others) {
        // Claim, three reads, the reply, the record.
        for at in 1..=6 {
            let text = format!("{mishap:?} at {at}").to_lowercase();
            let dm = nip17(&secret(2), &text);
            let wire = Wire::with(at, mishap).await;
            let app = wire.app_of_the_function(&agent).await;
            let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
            assert_eq!(outcomes(&answer), ["replied"], "{text}: {answer}");
            assert!(wire.reached(7), "{text}: a call was repeated");
            assert_eq!(agent.record(&dm_trigger_id(&dm_id(&dm))).await.attempt, 1, "{text}");
            dms.push((text, dm));
        }
    }
    check(&agent, &dms, "the function's client").await;
    assert_eq!(agent.model.calls(), dms.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn b113_a_claim_that_is_throttled_three_times_is_made_in_the_same_invocation() {
    let Some(agent) = warm_agent().await else { return };
    let mut dms = Vec::new();
    for code in THROTTLES {
        let claims = AtomicUsize::new(0);
        let wire = Wire::new(move |_, operation| {
            let throttled = operation == "TransactWriteItems" && claims.fetch_add(1, Ordering::SeqCst) < 3;
            throttled.then_some(Mishap::Throttled(code))
        })
        .await;
        let app = wire.app_of_the_function(&agent).await;
        let text = code.to_lowercase();
        let dm = nip17(&secret(2), &text);
        let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{code}: {answer}");
        // The six of any message, and the three.
        assert!(wire.reached(9) && !wire.reached(10), "{code}");
        dms.push((text, dm));
    }
    check(&agent, &dms, "three throttles").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn b113_where_the_claim_cannot_be_written_no_model_is_asked_and_the_caller_is_told_to_retry() {
    let Some(agent) = warm_agent().await else { return };
    for code in THROTTLES {
        let text = code.to_lowercase();
        let dm = nip17(&secret(2), &text);
        let asked = agent.model.calls();
        let wire = Wire::new(move |_, operation| {
            (operation == "TransactWriteItems").then_some(Mishap::Throttled(code))
        })
        .await;
        let app = wire.app_of_the_function(&agent).await;
        let error = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap_err();
        assert!(matches!(error, didactyl::error::Error::Transient(_)), "{error}");

        let body = json!({"type": "relay", "events": [dm]}).to_string();
        let record = json!({"eventSource": "aws:sqs", "messageId": "m1", "body": body});
        let answer = hand_over(&app, &json!({"Records": [record]}).to_string()).await;
        assert_eq!(answer, json!({"batchItemFailures": [{"itemIdentifier": "m1"}]}));

        assert_eq!(agent.model.calls(), asked, "{code}");
        let run = run_id(&dm_trigger_id(&dm_id(&dm)));
        assert_eq!(didactyl::record::find(&agent.app, &run).await.unwrap(), None);
        let answer: Value = agent.deliver(&[dm]).await;
        assert_eq!(outcomes(&answer), ["replied"], "{code}: {answer}");
    }
    assert_eq!(agent.replies().await.len(), 1 + THROTTLES.len());
}
