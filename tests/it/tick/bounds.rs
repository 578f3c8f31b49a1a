//! What strangers can do to a tick: floods, and messages that end the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::record::{dm_trigger_id, run_id};
use didactyl::store::{Key, Range, Row, Store, StoreError, Write, keys};
use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind, Tag};
use serde_json::json;
use tokio::sync::Notify;

use crate::agent::{agent_key, dm_id, echo, outcomes, secret};
use crate::sea::{Harbour, Manner, tick, wrap_at};

use super::MINUTE;

const HOUR: u64 = 60 * 60;

/// Wraps that verify and that nobody can open: 6,000 of them, since 20,000 signatures take long without optimisation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_junk_delays_a_message_and_costs_nothing_twice() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let (signer, now) = (Keys::generate(), harbour.now());
    let junk = |number: u64| {
        EventBuilder::new(Kind::from(1059), format!("junk {number}"))
            .tag(Tag::public_key(agent_key()))
            .custom_created_at(now - number * 7)
            .finalize(&signer)
            .unwrap()
    };
    harbour.sea.post_all((0..6_000).map(junk).collect());
    harbour.sea.post(&wrap_at(&secret(2), "from the admin", now, now - 47 * HOUR));

    let mut ticks = 0;
    while harbour.answers().is_empty() {
        ticks += 1;
        assert!(ticks <= 10, "the message is not answered");
        let pages = harbour.sea.pages(1);
        let answer = harbour.tick().await;
        // The share of a tick, and the page that fills it.
        assert!(answer["sweep"]["relays"][0]["new"].as_u64().unwrap() <= 1_500, "{answer}");
        // The run asks for the conversation besides.
        assert!(harbour.sea.pages(1) - pages <= 9, "{answer}");
        harbour.clock.forward(MINUTE);
    }
    assert!(ticks > 2, "the flood took no time");
    // A whole sweep more: what was opened once is not opened again.
    let mut new = 0;
    for _ in 0..5 {
        new += harbour.tick().await["sweep"]["relays"][0]["new"].as_u64().unwrap();
        harbour.clock.forward(MINUTE);
    }
    // Its own copy of the reply.
    assert!(new <= 1, "{new} events were opened again");
    assert_eq!(harbour.answers(), ["FROM THE ADMIN"]);
}

/// Else a forged event could keep the real one out.
#[tokio::test]
async fn a_forged_event_never_counts_as_dealt_with() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let real = wrap_at(&secret(2), "hello", harbour.now(), harbour.now());
    let mut forged = json!(real);
    forged["content"] = json!("forged");
    harbour.sea.post(&serde_json::from_value(forged).unwrap());
    for _ in 0..2 {
        let answer = harbour.tick().await;
        assert_eq!(answer["sweep"]["relays"][0]["new"], json!(1), "{answer}");
    }
    harbour.sea.post(&real);
    assert_eq!(outcomes(&harbour.tick().await), ["replied"]);
}

/// Ends the process whenever a row of this run is written.
struct Deadly {
    store: Arc<dyn Store>,
    partition: String,
    died: Arc<Notify>,
    armed: Arc<AtomicBool>,
}

#[async_trait]
impl Store for Deadly {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.store.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.iter().any(|write| write.key.partition == self.partition)
            && self.armed.load(Ordering::SeqCst)
        {
            self.died.notify_one();
            std::future::pending::<()>().await;
        }
        self.store.write(writes).await
    }
}

#[tokio::test]
async fn a_message_that_ends_the_process_costs_three_ticks_and_its_neighbours_are_answered() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let now = harbour.now();
    harbour.tick().await;
    let wraps = ["before", "poison", "after"].map(|text| wrap_at(&secret(2), text, now, now - HOUR));
    harbour.sea.post_all(wraps.to_vec());
    let run = run_id(&dm_trigger_id(&dm_id(&wraps[1])));
    let armed = Arc::new(AtomicBool::new(true));
    let mut deaths = 0;
    for _ in 0..8 {
        let died = Arc::new(Notify::new());
        let app: App = {
            let mut app = harbour.app();
            app.store = Arc::new(Deadly {
                store: app.store.clone(),
                partition: keys::run_partition(&run),
                died: died.clone(),
                armed: armed.clone(),
            });
            app
        };
        tokio::select! {
            biased;
            () = died.notified() => deaths += 1,
            answer = tick(&app) => {
                if answer["sweep"]["quarantined"] == json!([wraps[1].id]) {
                    break;
                }
            }
        }
        harbour.clock.forward(2 * MINUTE);
    }
    assert_eq!(deaths, 3);
    // It is reported once, and what it left is taken up.
    for _ in 0..3 {
        harbour.clock.forward(2 * MINUTE);
        let answer = harbour.tick().await;
        assert!(answer["sweep"].get("quarantined").is_none(), "{answer}");
    }
    let [after, before, notice] = &harbour.answers()[..] else { panic!("{:?}", harbour.answers()) };
    assert_eq!((after.as_str(), before.as_str()), ("AFTER", "BEFORE"));
    assert!(notice.starts_with(&format!("I gave up the event {}", wraps[1].id)), "{notice}");
    assert_eq!(outcomes(&harbour.tick().await), [""; 0]);
}
