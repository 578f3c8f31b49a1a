//! `didactyl bridge` as a process: what it pushes, how often it tries, and what it says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use didactyl::aws::Aws;
use didactyl::trigger::payload::Payload;
use nostr::prelude::{Event, EventBuilder, EventId, FinalizeEvent, Kind, RelayUrl, Tag};
use nostr_relay_builder::local::LocalRelay;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::agent::{BUDGET, agent_key, nip04, nip17, secret};
use crate::fake_relay::FakeRelay;
use crate::process::Process;
use crate::store::beds;
use didactyl::cli::sandbox;
use didactyl::relay::pool::{Limits, Pool};

const TOKEN: &str = "SEKRIT-token-of-the-bridge";

/// An agent's door that remembers what was pushed, and answers as it is told; with 200 when it is told nothing more.
struct Door {
    url: String,
    heard: Arc<Heard>,
    _server: JoinSet<()>,
}

struct Heard {
    pushed: watch::Sender<Vec<(u16, Value)>>,
    answers: Mutex<VecDeque<u16>>,
}

impl Door {
    async fn answering(answers: impl IntoIterator<Item = u16>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::new(Heard {
            pushed: watch::Sender::default(),
            answers: Mutex::new(answers.into_iter().collect()),
        });
        let router = Router::new().route("/bridge", post(take)).with_state(Arc::clone(&heard));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, heard, _server: server }
    }

    /// The first `count` pushes: what each was answered, and its events.
    async fn pushed(&self, count: usize) -> Vec<(u16, Vec<EventId>)> {
        let mut pushed = self.heard.pushed.subscribe();
        let waited = timeout(BUDGET, pushed.wait_for(|pushed| pushed.len() >= count)).await;
        let pushed = waited.expect("it is pushed").unwrap().clone();
        pushed.into_iter().take(count).map(|(status, payload)| (status, ids(&payload))).collect()
    }

    /// The first payload.
    fn first(&self) -> Value {
        self.heard.pushed.borrow()[0].1.clone()
    }
}

async fn take(State(heard): State<Arc<Heard>>, headers: HeaderMap, body: String) -> StatusCode {
    let is_ours = headers.get("authorization").is_some_and(|value| *value == format!("Bearer {TOKEN}"));
    let told = heard.answers.lock().unwrap().pop_front().unwrap_or(200);
    let status = if is_ours { told } else { 401 };
    let payload: Value = serde_json::from_str(&body).unwrap();
    heard.pushed.send_modify(|pushed| pushed.push((status, payload)));
    StatusCode::from_u16(status).unwrap()
}

fn ids(payload: &Value) -> Vec<EventId> {
    let events: Vec<Event> = serde_json::from_value(payload["events"].clone()).unwrap();
    events.iter().map(|event| event.id).collect()
}

struct Relay {
    url: RelayUrl,
    client: Pool,
    _relay: LocalRelay,
}

impl Relay {
    async fn start() -> Self {
        didactyl::install_crypto_provider();
        let relay = sandbox::embedded_relay().await.unwrap();
        let url = RelayUrl::parse(&relay.url().await.to_string()).unwrap();
        Self { url, client: Pool::new(secret(2), Limits::default()), _relay: relay }
    }

    async fn take(&self, event: &Event) {
        sandbox::publish(&self.client, &self.url, event.clone()).await.unwrap();
    }
}

fn start(relays: &str, to: &str, token: Option<&str>) -> Process {
    let agent = agent_key().to_hex();
    let vars = token.map(|token| ("DIDACTYL_BRIDGE_TOKEN", token.to_owned()));
    let arguments = ["bridge", "--relays", relays, "--agent", &agent, "--to", to];
    Process::start(&arguments, &BTreeMap::from_iter(vars))
}

#[tokio::test]
async fn what_is_new_genuine_and_for_the_agent_is_pushed_once_with_its_relay() {
    let (relay, door) = (Relay::start().await, Door::answering([]).await);
    let note = EventBuilder::new(Kind::from(1), "hello").tag(Tag::public_key(agent_key()));
    relay.take(&nip17(&secret(2), "from before")).await;
    let mut bridge = start(&relay.url.to_string(), &door.url, Some(TOKEN));
    bridge.says("heard").await;
    let (wrap, dm) = (nip17(&secret(2), "by wrap"), nip04(&secret(3), "by kind 4, of whomever"));
    for event in [&note.finalize(&secret(2)).unwrap(), &wrap, &dm] {
        relay.take(event).await;
    }
    let mut pushed: Vec<EventId> = Vec::new();
    for count in 1.. {
        pushed = door.pushed(count).await.into_iter().flat_map(|(_, ids)| ids).collect();
        if pushed.len() >= 2 {
            break;
        }
    }
    assert_eq!(pushed, [wrap.id, dm.id]);
    let payload = door.first();
    assert_eq!((&payload["type"], &payload["relay"]), (&json!("relay"), &json!(relay.url.to_string())));
    assert!(matches!(Payload::parse(&payload.to_string()), Ok(Payload::Relay(_))));

    assert!(bridge.end().await.success());
    assert!(!bridge.said.concat().contains("SEKRIT"), "{:?}", bridge.said);
    assert_eq!(bridge.said.last().unwrap(), "bridge: ended");
}

#[tokio::test]
async fn what_the_agent_did_not_take_is_pushed_again_and_what_it_never_will_is_not() {
    let (relay, door) = (Relay::start().await, Door::answering([503, 401, 200, 400]).await);
    let mut bridge = start(&relay.url.to_string(), &door.url, Some(TOKEN));
    bridge.says("heard").await;
    let first = nip17(&secret(2), "one");
    relay.take(&first).await;
    let expected: Vec<(u16, Vec<EventId>)> = [503, 401, 200].map(|status| (status, vec![first.id])).into();
    assert_eq!(door.pushed(3).await, expected);
    bridge.says("the agent takes events again").await;

    let (second, third) = (nip17(&secret(2), "two"), nip17(&secret(2), "three"));
    relay.take(&second).await;
    bridge.says("1 event(s) dropped: the agent answers 400. The agent's sweep finds them").await;
    relay.take(&third).await;
    assert_eq!(door.pushed(5).await[3..], [(400, vec![second.id]), (200, vec![third.id])]);
    let all = bridge.said.join("\n");
    assert!(all.contains("the agent answers 503; pushed again later"), "{all}");
    assert!(all.contains("DIDACTYL_BRIDGE_TOKEN is not one that"), "{all}");
}

#[tokio::test]
async fn what_came_while_a_relay_was_away_is_pushed_and_forged_events_are_not() {
    didactyl::install_crypto_provider();
    let door = Door::answering([]).await;
    let before = nip17(&secret(2), "from before");
    let (one, two) = (nip17(&secret(2), "one"), nip17(&secret(2), "two"));
    let mut forged = serde_json::to_value(nip04(&secret(2), "real")).unwrap();
    forged["content"] = json!("forged");
    let (first, second) = (one.clone(), two.clone());
    let relay = FakeRelay::start(move |mut peer| {
        let (before, one, two, forged) = (before.clone(), first.clone(), second.clone(), forged.clone());
        async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", req[1], before])).await?;
            if peer.connection == 1 {
                peer.say(json!(["EOSE", req[1]])).await?;
                peer.say(json!(["EVENT", req[1], forged])).await?;
                peer.say(json!(["EVENT", req[1], one])).await?;
                return None;
            }
            peer.say(json!(["EVENT", req[1], one])).await?;
            peer.say(json!(["EVENT", req[1], two])).await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.hear_out().await
        }
    })
    .await;
    let url = relay.own().url.to_string();
    let mut bridge = start(&url, &door.url, Some(TOKEN));
    assert_eq!(door.pushed(2).await, [(200, vec![one.id]), (200, vec![two.id])]);
    bridge.says("is not heard, and tried again").await;
    bridge.says(&format!("{url}: heard")).await;
}

#[tokio::test]
async fn a_relay_that_wants_the_agents_key_is_named() {
    didactyl::install_crypto_provider();
    let door = Door::answering([]).await;
    let refusing = |reason: &'static str| {
        FakeRelay::start(move |mut peer| async move {
            peer.say(json!(["AUTH", "c1"])).await?;
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["CLOSED", req[1], reason])).await?;
            peer.hear_out().await
        })
    };
    let (auth, restricted) =
        (refusing("auth-required: members").await, refusing("restricted: members").await);
    let relays = format!("{},{}", auth.own().url, restricted.own().url);
    let mut bridge = start(&relays, &door.url, Some(TOKEN));
    for _ in 0..2 {
        bridge.says("cannot be heard without the agent's key: the sweep reads it").await;
    }
    let all = bridge.said.join("\n");
    assert!([&auth, &restricted].iter().all(|relay| all.contains(relay.own().url.as_str())), "{all}");
    assert!([auth, restricted].iter().all(|relay| relay.heard("AUTH").is_empty()));
}

#[tokio::test]
async fn what_waits_when_it_is_told_to_end_is_pushed_before() {
    let (relay, door) = (Relay::start().await, Door::answering([503]).await);
    let mut bridge = start(&relay.url.to_string(), &door.url, Some(TOKEN));
    bridge.says("heard").await;
    let dm = nip17(&secret(2), "hello");
    relay.take(&dm).await;
    bridge.says("pushed again later").await;
    assert!(bridge.end().await.success());
    assert_eq!(door.pushed(2).await, [(503, vec![dm.id]), (200, vec![dm.id])]);
}

#[tokio::test]
async fn what_is_missing_or_wrong_is_told_without_showing_it() {
    let cases = [
        ("wss://relay.test", "https://agent.test", None, "DIDACTYL_BRIDGE_TOKEN is not set"),
        ("wss://relay.test", "https://agent.test", Some("short-SEKRIT"), "DIDACTYL_BRIDGE_TOKEN is shorter"),
        (
            "wss://relay.test",
            "https://agent.test",
            Some("nsec1-SEKRIT"),
            "DIDACTYL_BRIDGE_TOKEN is a secret key",
        ),
        ("https://relay.test", "https://agent.test", Some(TOKEN), "--relays entry 1 is not a relay"),
        ("wss://relay.test", "http://agent.test", Some(TOKEN), "--to would show the token"),
    ];
    for (relays, to, token, fault) in cases {
        let mut bridge = start(relays, to, token);
        assert!(!bridge.ended().await.success());
        let said = bridge.said.concat();
        assert!(said.contains(fault) && !said.contains("SEKRIT"), "{said}");
    }
}

#[tokio::test]
async fn a_queue_takes_what_the_function_would() {
    if beds::emulator().is_none() {
        return;
    }
    let relay = Relay::start().await;
    let client = aws_sdk_sqs::Client::new(Aws::default().config().await);
    let name = format!("bridge-{}", std::process::id());
    let queue = client.create_queue().queue_name(name).send().await.unwrap().queue_url.unwrap();
    let aws = ["AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"];
    let vars = BTreeMap::from(aws.map(|name| (name, std::env::var(name).expect("set beside the emulator"))));
    let (relays, agent) = (relay.url.to_string(), agent_key().to_hex());
    let mut bridge =
        Process::start(&["bridge", "--relays", &relays, "--agent", &agent, "--to", &queue], &vars);
    bridge.says("heard").await;
    let dm = nip17(&secret(2), "hello");
    relay.take(&dm).await;
    // The emulator answers one call at a time: a long poll would keep the bridge out.
    let receive = async {
        loop {
            let received = client.receive_message().queue_url(&queue).send().await.unwrap();
            if let Some(message) = received.messages().first() {
                return message.body().unwrap().to_owned();
            }
        }
    };
    let body = timeout(BUDGET, receive).await.expect("it is pushed");
    let payload: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(ids(&payload), [dm.id]);
}
