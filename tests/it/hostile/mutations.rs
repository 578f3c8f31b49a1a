//! Good events and payloads, changed at random.

use std::collections::BTreeSet;
use std::sync::Arc;

use didactyl::app::App;
use didactyl::dm;
use didactyl::inbox::{self, Inbound};
use didactyl::llm::openai::OpenAi;
use didactyl::relay::pool::{Limits, Pool};
use didactyl::store::sqlite::Sqlite;
use didactyl::trigger::payload::Payload;
use nostr::prelude::{Event, Timestamp};
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::agent::{TestClock, agent_key, config, kind4, nip04, nip17, rumor, seal, secret, wrap, wrapped};

/// One change of a JSON text. Places are taken modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Cut(usize),
    Swap(usize, usize),
    Put(usize, Value),
    Drop(usize),
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let value = prop_oneof![
        Just(json!(null)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(u64::MAX)),
        Just(json!(-1)),
        Just(json!(0.5)),
        any::<String>().prop_map(Value::from),
        Just(json!(agent_key())),
    ];
    let change = prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        any::<usize>().prop_map(Change::Cut),
        any::<(usize, usize)>().prop_map(|(a, b)| Change::Swap(a, b)),
        (any::<usize>(), value).prop_map(|(at, value)| Change::Put(at, value)),
        any::<usize>().prop_map(Change::Drop),
    ];
    prop::collection::vec(change, 1..4)
}

fn changed(mut text: String, changes: &[Change]) -> String {
    for change in changes {
        text = match change {
            Change::Byte(at, byte) => {
                let mut bytes = text.into_bytes();
                let at = at % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(1).for_each(|old| *old = *byte);
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Change::Cut(at) => text.chars().take(at % text.len().max(1)).collect(),
            structural => match serde_json::from_str::<Value>(&text) {
                Ok(mut value) => {
                    restructure(&mut value, structural);
                    value.to_string()
                }
                Err(_) => text,
            },
        };
    }
    text
}

fn restructure(root: &mut Value, change: &Change) {
    let mut paths = Vec::new();
    collect(root, String::new(), &mut paths);
    let path = |at: usize| paths[at % paths.len()].clone();
    match change {
        Change::Swap(a, b) => {
            let (a, b) = (path(*a), path(*b));
            let (first, second) = (root.pointer(&a).cloned(), root.pointer(&b).cloned());
            for (path, value) in [(a, second), (b, first)] {
                if let (Some(place), Some(value)) = (root.pointer_mut(&path), value) {
                    *place = value;
                }
            }
        }
        Change::Put(at, value) => *root.pointer_mut(&path(*at)).unwrap() = value.clone(),
        Change::Drop(at) => {
            let path = path(*at);
            let (parent, key) = path.rsplit_once('/').unwrap_or_default();
            match root.pointer_mut(parent) {
                Some(Value::Object(fields)) => drop(fields.remove(key)),
                Some(Value::Array(entries)) => entries.clear(),
                _ => {}
            }
        }
        Change::Byte(..) | Change::Cut(_) => {}
    }
}

/// The JSON pointers of all values, the root's among them.
fn collect(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| {
                collect(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), paths);
            });
        }
        Value::Array(entries) => {
            entries.iter().enumerate().for_each(|(i, value)| collect(value, format!("{path}/{i}"), paths));
        }
        _ => {}
    }
    paths.push(path);
}

/// An agent that never does I/O here, in a folder that must outlive it.
fn offline() -> (TempDir, App) {
    didactyl::install_crypto_provider();
    let folder = TempDir::with_prefix("didactyl-test-").unwrap();
    let vars = [
        ("DIDACTYL_NSEC", secret(1).secret_key().to_secret_hex()),
        ("DIDACTYL_ADMIN", secret(2).public_key().to_hex()),
        ("DIDACTYL_RELAYS", "ws://127.0.0.1:1".to_owned()),
        ("DIDACTYL_LLM", "ollama/none".to_owned()),
    ];
    let config = config(&vars.into());
    let clock = TestClock::default().clock();
    let store = Arc::new(Sqlite::open(folder.path().join("agent.sqlite"), clock.clone()).unwrap());
    let relays = Arc::new(Pool::new(config.keys.clone(), Limits::default()));
    let llm = Arc::new(OpenAi::new(reqwest::Client::new(), config.providers.clone()));
    (folder, App::with_ports(config, store, relays, llm, clock))
}

/// The id of the message that an event would put to work or into the history.
fn taken(app: &App, json: &str) -> Option<String> {
    match inbox::read(app, json, None).ok()? {
        Inbound::Work(trigger) => trigger.id.strip_prefix("dm:").map(str::to_owned),
        Inbound::Own(opened) | Inbound::Past(opened) => Some(opened.id.to_hex()),
    }
}

/// Messages of the admin's and the agent's own: both protocols.
fn originals() -> Vec<String> {
    let own = json!(rumor(&secret(1), "noted", Timestamp::now())).to_string();
    [
        nip04(&secret(2), "good"),
        nip17(&secret(2), "good"),
        kind4(&secret(1), &secret(2).public_key(), nip04(&secret(2), "mine").content),
        wrapped(&secret(1), &own),
    ]
    .iter()
    .map(Event::as_json)
    .collect()
}

#[test]
fn a_changed_event_never_panics_and_is_never_taken_for_another_message() {
    let (_folder, app) = offline();
    let originals = originals();
    let known: BTreeSet<String> = originals.iter().filter_map(|json| taken(&app, json)).collect();
    assert_eq!(known.len(), originals.len(), "the originals themselves are good");

    proptest!(ProptestConfig::with_cases(256), |(changes in changes(), at in 0usize..4)| {
        let text = changed(originals[at].clone(), &changes);
        if let Some(id) = taken(&app, &text) {
            let event: Event = serde_json::from_str(&text).unwrap();
            prop_assert!(event.verify().is_ok() && known.contains(&id), "{}", text);
        }
        // What is behind the signature check must hold without it as well.
        if let Ok(event) = serde_json::from_str::<Event>(&text) {
            let _ = dm::open(app.keys(), &event);
        }
    });
}

#[test]
fn a_changed_payload_never_panics_and_yields_only_the_messages_that_were_in_it() {
    let (_folder, app) = offline();
    let originals = originals();
    let known: BTreeSet<String> = originals.iter().filter_map(|json| taken(&app, json)).collect();
    let payload = super::batch(originals.iter().map(String::as_str));

    proptest!(ProptestConfig::with_cases(256), |(changes in changes())| {
        if let Ok(Payload::Relay(batch)) = Payload::parse(&changed(payload.clone(), &changes)) {
            for id in batch.events.iter().filter_map(|event| taken(&app, event.get())) {
                prop_assert!(known.contains(&id));
            }
        }
    });
}

#[test]
fn whatever_a_stranger_seals_it_never_becomes_work() {
    let (_folder, app) = offline();
    let (admin, stranger) = (secret(2), secret(3));
    let theirs = json!(rumor(&admin, "obey", Timestamp::now())).to_string();
    let sealed = seal(&admin, &theirs).as_json();

    proptest!(ProptestConfig::with_cases(256), |(changes in changes(), layer in 0..3)| {
        let event = match layer {
            // A rumor that names the admin, in the stranger's seal.
            0 => Some(changed(theirs.clone(), &changes)).filter(|t| !t.is_empty()).map(|t| wrapped(&stranger, &t)),
            // The admin's seal, changed, in a new wrap.
            1 => Some(changed(sealed.clone(), &changes)).filter(|t| !t.is_empty()).map(|t| wrap(&t)),
            // Any text in the stranger's kind 4.
            _ => Some(kind4(&stranger, &agent_key(), changed(sealed.clone(), &changes))),
        };
        if let Some(event) = event {
            let id = taken(&app, &event.as_json());
            // A seal that the changes left as it was is the admin's own word.
            let original = rumor_id(&theirs);
            prop_assert!(id.is_none() || (layer == 1 && id == Some(original)), "{:?}", id);
        }
    });
}

fn rumor_id(json: &str) -> String {
    nostr::prelude::UnsignedEvent::from_json(json).unwrap().compute_id().to_hex()
}
