//! What strangers can do to a tick: floods and forgeries.

use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::json;

use crate::agent::{agent_key, echo, outcomes, secret};
use crate::sea::{Harbour, Manner, wrap_at};

use super::MINUTE;

const HOUR: u64 = 60 * 60;

/// Wraps that verify and that nobody can open, so many seconds apart.
pub(super) fn junk(count: u64, now: Timestamp, apart: u64) -> Vec<Event> {
    let signer = Keys::generate();
    // As long as NIP-44 payloads are, and begins as they do.
    let content = |number: u64| format!("Ag{:0>20}{}", number, "Ju1k/+".repeat(160));
    let wrap =
        |number| EventBuilder::new(Kind::from(1059), content(number)).tag(Tag::public_key(agent_key()));
    (0..count)
        .map(|number| wrap(number).custom_created_at(now - number * apart).finalize(&signer).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_junk_delays_a_message_and_costs_nothing_twice() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    let now = harbour.now();
    harbour.sea.post_all(junk(20_000, now, 7));
    harbour.sea.post(&wrap_at(&secret(2), "from the admin", now, now - 47 * HOUR));

    let mut ticks = 0;
    while harbour.answers().is_empty() {
        ticks += 1;
        assert!(ticks <= 25, "the message is not answered");
        let pages = harbour.sea.pages(1);
        let answer = harbour.tick().await;
        // The share of a tick, and the page that fills it.
        assert!(answer["sweep"]["relays"][0]["new"].as_u64().unwrap() <= 1_500, "{answer}");
        // The run asks for the conversation besides.
        assert!(harbour.sea.pages(1) - pages <= 9, "{answer}");
        harbour.clock.forward(MINUTE);
    }
    assert!(ticks > 10, "the flood took no time");
    // A whole sweep more: what was opened once is not opened again.
    let mut new = 0;
    for _ in 0..25 {
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

#[tokio::test]
async fn what_is_new_of_the_state_hides_no_message_where_a_relay_counts_all_of_an_answer() {
    let harbour = Harbour::new(&[Manner::GivesInAll(20)], echo).await;
    let now = harbour.now();
    let note = |n: u64| {
        let note = EventBuilder::new(Kind::from(31123), "a skill").tag(Tag::identifier(format!("{n}")));
        note.custom_created_at(now - n).finalize(&secret(1)).unwrap()
    };
    harbour.sea.post_all((0..30).map(note).collect());
    harbour.sea.post(&wrap_at(&secret(2), "below", now, now - HOUR));
    let answer = harbour.tick().await;
    assert_eq!(
        (outcomes(&answer), harbour.answers()),
        (vec!["replied"], vec!["BELOW".to_owned()]),
        "{answer}"
    );
}
