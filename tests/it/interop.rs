//! Clients that others wrote, as the admin: nostr-tools (JavaScript) and nostr-sdk (Python), in `tests/interop/`.
//!
//! Each is a process that takes a JSON request and answers with JSON:
//!
//! | command | request | answer |
//! | --- | --- | --- |
//! | `send` | `relay`, `secret_key`, `to`, `protocol` (`nip04`, `nip17`), `text` | `null`, once the relay has it |
//! | `read` | `relay`, `secret_key`, `from`, `protocol` | `[{kind, text, tags}]`, oldest first |
//! | `verify` | `relay` | the ids of the events there whose id and signature hold |
//!
//! A client that cannot decrypt something, or finds a signature or a seal's author wrong, fails.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::sync::Once;
use std::time::Duration;

use didactyl::dm;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::publish::MAX_PART_BYTES;
use didactyl::trigger::Protocol;
use nostr::prelude::{EventId, Filter, Kind};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::agent::{TestAgent, agent_key, outcomes, secret};

macro_rules! suite {
    ($($case:ident),+ $(,)?) => {
        mod nostr_tools {$(
            #[tokio::test]
            async fn $case() {
                if let Some(client) = super::client("node", "with_nostr_tools.mjs") {
                    super::$case(client).await;
                }
            }
        )+}

        mod nostr_sdk {$(
            #[tokio::test]
            async fn $case() {
                if let Some(client) = super::client("python3", "with_nostr_sdk.py") {
                    super::$case(client).await;
                }
            }
        )+}
    };
}

suite! {
    a_nip17_message_and_its_answer_are_the_same_text_at_both_ends,
    a_nip04_message_and_its_answer_are_the_same_text_at_both_ends,
    a_long_nip17_answer_arrives_whole_and_in_order,
    a_long_nip04_answer_arrives_whole_and_in_order,
    every_event_on_the_relay_verifies,
}

/// A client of somebody else's.
pub struct Foreign {
    program: &'static str,
    script: String,
}

/// The client, or `None` where none is installed.
pub fn client(program: &'static str, script: &str) -> Option<Foreign> {
    folder().map(|folder| Foreign { program, script: format!("{folder}/{script}") })
}

/// The folder of what others wrote, or `None` where it is not installed.
pub fn folder() -> Option<String> {
    static TOLD: Once = Once::new();
    if let Ok(folder) = std::env::var("DIDACTYL_TEST_INTEROP") {
        return Some(folder);
    }
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "the interop tests need their clients: run make interop"
    );
    // Not by a macro: the test harness would keep it to itself.
    TOLD.call_once(|| {
        let note = "note: the interop tests are NOT RUN, they need npm: run make interop\n";
        std::io::stderr().write_all(note.as_bytes()).unwrap();
    });
    None
}

/// A message as a client read it.
#[derive(Debug, Deserialize)]
struct Read {
    kind: u16,
    text: String,
    tags: Vec<Vec<String>>,
}

impl Foreign {
    /// What the process answers to `request`.
    pub async fn run(&self, command: &str, request: Value) -> Value {
        let mut child = Command::new(self.program)
            .args([&self.script, command])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.program));
        child.stdin.take().unwrap().write_all(request.to_string().as_bytes()).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(120), child.wait_with_output()).await;
        let output = ended.unwrap_or_else(|_| panic!("{} {command} does not end", self.script)).unwrap();
        assert!(output.status.success(), "{} {command}: {}", self.script, output.status);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Writes to the agent as the admin.
    pub async fn send(&self, agent: &TestAgent, protocol: Protocol, text: &str) {
        let request = json!({
            "relay": agent.relay_url,
            "secret_key": secret(2).secret_key().to_secret_hex(),
            "to": agent_key(),
            "protocol": protocol,
            "text": text,
        });
        assert_eq!(self.run("send", request).await, Value::Null);
    }

    /// What the agent wrote to the admin, oldest first.
    async fn read(&self, agent: &TestAgent, protocol: Protocol) -> Vec<Read> {
        let request = json!({
            "relay": agent.relay_url,
            "secret_key": secret(2).secret_key().to_secret_hex(),
            "from": agent_key(),
            "protocol": protocol,
        });
        serde_json::from_value(self.run("read", request).await).unwrap()
    }
}

/// What breaks between languages: characters outside the basic plane, joined and combined ones, right to left, both
/// kinds of line ends that are none, and all that JSON escapes.
const TEXT: &str = concat!(
    "Emoji: 🤖 👩\u{200d}👩\u{200d}👧\u{200d}👦 🇺🇳 👍🏽\n",
    "CJK: 你好，世界。こんにちは 안녕하세요 𠮷野家\n",
    "Right to left: שלום עולם\u{200f} مرحبا بالعالم!\n",
    "Combining: e\u{301} a\u{30a}\u{323} Z\u{351}\u{36b}\u{343} ก็ \u{1100}\u{1161}\u{11a8}\n",
    "\tTab, \"double\", 'single', `back`, \\n, \\u0041, </script>, ${x}, {{x}}, %s\n",
    "\n",
    "Odd spaces:\u{a0}|\u{3000}|\u{2028}|\u{2029}|\u{feff}|, the last of all: \u{10ffff}.",
);

/// The model repeats what it was asked.
fn repeat(asked: &Asked) -> Answer {
    Answer::Text(asked.last_text("user").to_owned())
}

/// Runs the handler on what lies on the relay for the agent, and returns the message's id.
async fn answer(agent: &TestAgent, protocol: Protocol) -> EventId {
    let to_agent = Filter::new().kind(kind(protocol)).pubkey(agent_key());
    let events = agent.on_relay(to_agent).await;
    let [event] = events.as_slice() else { panic!("{} events", events.len()) };
    let answer = agent.deliver(&events).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    dm::open(&secret(1), event).unwrap().id
}

/// The kind of the event that a relay sees.
fn kind(protocol: Protocol) -> Kind {
    Kind::from(match protocol {
        Protocol::Nip04 => 4,
        Protocol::Nip17 => 1059,
    })
}

async fn a_nip17_message_and_its_answer_are_the_same_text_at_both_ends(client: Foreign) {
    the_text_is_the_same_at_both_ends(&client, Protocol::Nip17, 14).await;
}

async fn a_nip04_message_and_its_answer_are_the_same_text_at_both_ends(client: Foreign) {
    the_text_is_the_same_at_both_ends(&client, Protocol::Nip04, 4).await;
}

async fn the_text_is_the_same_at_both_ends(client: &Foreign, protocol: Protocol, kind: u16) {
    let agent = TestAgent::with_script(repeat).await;
    client.send(&agent, protocol, TEXT).await;
    let id = answer(&agent, protocol).await;

    let messages = client.read(&agent, protocol).await;
    let [message] = messages.as_slice() else { panic!("{messages:?}") };
    assert_eq!((message.kind, message.text.as_str()), (kind, TEXT));
    let tags = [["p".to_owned(), secret(2).public_key().to_hex()], ["e".to_owned(), id.to_hex()]];
    assert_eq!(message.tags, tags);
}

async fn a_long_nip17_answer_arrives_whole_and_in_order(client: Foreign) {
    a_long_answer_arrives_whole_and_in_order(&client, Protocol::Nip17).await;
}

async fn a_long_nip04_answer_arrives_whole_and_in_order(client: Foreign) {
    a_long_answer_arrives_whole_and_in_order(&client, Protocol::Nip04).await;
}

async fn a_long_answer_arrives_whole_and_in_order(client: &Foreign, protocol: Protocol) {
    let lines: Vec<String> = (0..1_000).map(|n| format!("{n}: \"größer\" 更大 أكبر 🤖")).collect();
    let long = lines.join("\n");
    let agent = TestAgent::with_script(move |_| Answer::Text(long.clone())).await;
    client.send(&agent, protocol, "Tell me everything.").await;
    answer(&agent, protocol).await;

    let messages = client.read(&agent, protocol).await;
    assert_eq!(messages.len(), 3);
    assert!(messages.iter().all(|message| message.text.len() <= MAX_PART_BYTES));
    assert_eq!(messages.iter().flat_map(|message| message.text.lines()).collect::<Vec<_>>(), lines);
}

async fn every_event_on_the_relay_verifies(client: Foreign) {
    let agent = TestAgent::with_script(|asked| match asked.result() {
        None => {
            Answer::call("nostr_post", json!({"content": TEXT, "tags": [["t", "größer"], ["alt", TEXT]]}))
        }
        Some(_) => Answer::Text(TEXT.to_owned()),
    })
    .await;
    for protocol in [Protocol::Nip17, Protocol::Nip04] {
        client.send(&agent, protocol, "Post it.").await;
        answer(&agent, protocol).await;
    }

    let events = agent.on_relay(Filter::new()).await;
    let kinds: BTreeSet<u16> = events.iter().map(|event| event.kind.as_u16()).collect();
    assert_eq!(kinds, BTreeSet::from([0, 1, 4, 1059, 10002, 10050, 10123, 31120, 31123]));
    let ids: BTreeSet<EventId> = events.iter().map(|event| event.id).collect();
    let verified = client.run("verify", json!({"relay": agent.relay_url})).await;
    assert_eq!(serde_json::from_value::<BTreeSet<EventId>>(verified).unwrap(), ids);
}
