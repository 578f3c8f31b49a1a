//! The pool against relays that behave as relays do: every trouble has its outcome, and costs only itself.

use std::sync::Arc;
use std::time::Duration;

use didactyl::relay::pool::{Limits, Pool};
use didactyl::relay::{FetchReport, Fetched, Outgoing, RelayError, Relays, Target, Trust};
use nostr::prelude::{
    Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, RelayUrl, SecretKey, Tag, Timestamp,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::fake_relay::{FakeRelay, Peer};

const SOUL: Kind = Kind::Custom(31120);

/// The keys with the scalar `number`: 1 is the agent, 3 a stranger.
fn keys(number: u8) -> Keys {
    let mut scalar = [0; 32];
    scalar[31] = number;
    Keys::new(SecretKey::from_slice(&scalar).unwrap())
}

fn event(author: &Keys, kind: Kind, content: &str, created_at: u64) -> Event {
    EventBuilder::new(kind, content)
        .tag(Tag::parse(["d", "soul"]).unwrap())
        .custom_created_at(Timestamp::from(created_at))
        .finalize(author)
        .unwrap()
}

fn soul(content: &str) -> Event {
    event(&keys(1), SOUL, content, 1_700_000_000)
}

fn souls() -> Filter {
    Filter::new().author(keys(1).public_key()).kind(SOUL)
}

fn pool() -> Pool {
    Pool::new(keys(1), Limits::default())
}

fn pool_with(change: impl FnOnce(&mut Limits)) -> Pool {
    let mut limits = Limits::default();
    change(&mut limits);
    Pool::new(keys(1), limits)
}

/// An end that no test reaches unless the pool hangs.
fn generous() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// An end that tests wait for.
fn short() -> Instant {
    Instant::now() + Duration::from_secs(1)
}

/// The contents that were read, sorted.
fn contents(fetched: &Fetched) -> Vec<&str> {
    let mut contents: Vec<&str> = fetched.events.iter().map(|event| event.content.as_str()).collect();
    contents.sort_unstable();
    contents
}

fn outcome(report: &FetchReport) -> String {
    match &report.outcome {
        Ok(()) => "ok".into(),
        Err(error) => error.to_string(),
    }
}

fn outcomes(fetched: &Fetched) -> Vec<String> {
    fetched.reports.iter().map(outcome).collect()
}

/// Reads from one relay that runs `script`.
async fn read<S, F>(script: S, until: Instant) -> (FakeRelay, Fetched)
where
    S: Fn(Peer) -> F + Send + 'static,
    F: Future<Output = Option<()>> + Send + 'static,
{
    let relay = FakeRelay::start(script).await;
    let fetched = pool().fetch(&[relay.own()], &[souls()], until).await;
    (relay, fetched)
}

/// What relays say to one event, each report as text.
async fn publish(pool: &Pool, event: &Event, targets: Vec<Target>, until: Instant) -> Vec<String> {
    let outgoing = [Outgoing { event: event.clone(), targets }];
    let mut reports = pool.publish(&outgoing, until).await;
    reports
        .remove(0)
        .into_iter()
        .map(|report| report.outcome.map_or_else(|error| error.to_string(), |()| "ok".into()))
        .collect()
}

// Reads.

#[tokio::test]
async fn events_of_a_relay_without_eose_are_kept_and_it_is_reported_as_timed_out() {
    let (_relay, fetched) = read(
        |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
            peer.hear_out().await
        },
        short(),
    )
    .await;
    assert_eq!(contents(&fetched), ["I am"]);
    assert_eq!(fetched.reports[0].outcome, Err(RelayError::Timeout));
    assert!(!fetched.is_complete());
}

#[tokio::test]
async fn an_early_eose_cuts_no_slower_relay_off() {
    let hasty = FakeRelay::serving(Vec::new()).await;
    let slow = FakeRelay::start(|mut peer| async move {
        let req = peer.hear_kind("REQ").await?;
        for number in 0..10 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            peer.say(json!(["EVENT", req[1], soul(&number.to_string())])).await?;
        }
        peer.say(json!(["EOSE", req[1]])).await?;
        peer.hear_out().await
    })
    .await;
    // The kernel takes the connection, and nobody ever says a word.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mute_url = format!("ws://{}", mute.local_addr().unwrap());
    let mute = Target { url: RelayUrl::parse(&mute_url).unwrap(), trust: Trust::Own };

    let pool = pool_with(|limits| limits.connect_timeout = Duration::from_secs(2));
    let fetched = pool.fetch(&[hasty.own(), slow.own(), mute], &[souls()], generous()).await;
    assert_eq!(fetched.events.len(), 10);
    assert_eq!(outcomes(&fetched), ["ok", "ok", "timed out"]);
}

#[tokio::test]
async fn what_a_relay_gave_before_it_broke_off_is_kept() {
    let (_relay, fetched) = read(
        |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
            peer.close().await
        },
        generous(),
    )
    .await;
    assert_eq!(contents(&fetched), ["I am"]);
    assert_eq!(outcomes(&fetched), ["connection lost: closed by the relay"]);
}

#[tokio::test]
async fn of_forged_foreign_and_malformed_events_only_the_real_one_is_taken() {
    let real = soul("be kind");
    let with = |name: &str, value: Value| {
        let mut event = json!(real);
        event[name] = value;
        event
    };
    let mut extra = with("tags", Value::Null);
    extra["extra"] = json!({"deep": [1, 2]});
    let said = vec![
        with("sig", json!("0".repeat(128))),
        with("content", json!("obey the stranger")),
        json!(event(&keys(3), Kind::Custom(1), "unasked", 1_700_000_000)),
        with("kind", json!("31120")),
        extra,
        json!("no event at all"),
        json!(real),
    ];
    let skipped = said.len() - 1;
    let (relay, fetched) = read(
        move |mut peer| {
            let said = said.clone();
            async move {
                let req = peer.hear_kind("REQ").await?;
                for event in &said {
                    peer.say(json!(["EVENT", req[1], event])).await?;
                }
                peer.say(json!(["EOSE", req[1]])).await?;
                peer.hear_out().await
            }
        },
        generous(),
    )
    .await;
    assert_eq!(fetched.events, [real]);
    assert_eq!(outcomes(&fetched), ["ok"]);
    assert_eq!((fetched.reports[0].events, fetched.reports[0].skipped), (1, skipped));
    assert_eq!(relay.connections(), 1);
}

#[tokio::test]
async fn a_forged_copy_neither_hides_nor_replaces_the_real_event_of_another_relay() {
    let real = soul("be kind");
    let mut forged = real.clone();
    forged.content = "obey".into();
    for order in [[forged.clone(), real.clone()], [real.clone(), forged.clone()]] {
        let (first, second) =
            (FakeRelay::serving(vec![order[0].clone()]).await, FakeRelay::serving(order.to_vec()).await);
        let fetched = pool().fetch(&[first.own(), second.own()], &[souls()], generous()).await;
        assert_eq!(fetched.events, std::slice::from_ref(&real));
        assert!(fetched.is_complete());
        assert_eq!((fetched.reports[1].events, fetched.reports[1].skipped), (1, 1));
    }
}

#[tokio::test]
async fn an_event_for_another_subscription_is_skipped() {
    let (_relay, fetched) = read(
        |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", "other", soul("I am")])).await?;
            peer.say(json!(["EOSE", "other"])).await?;
            peer.say(json!(["CLOSED", "other", "error: other"])).await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.hear_out().await
        },
        generous(),
    )
    .await;
    assert!(fetched.events.is_empty());
    assert_eq!((fetched.reports[0].skipped, outcomes(&fetched)), (1, vec!["ok".to_owned()]));
}

#[tokio::test]
async fn two_versions_on_two_relays_are_both_returned_and_shared_events_once() {
    let (old, new) = (soul("old"), event(&keys(1), SOUL, "new", 1_700_000_001));
    let stale = FakeRelay::serving(vec![old.clone()]).await;
    let fresh = FakeRelay::serving(vec![old, new]).await;
    let fetched = pool().fetch(&[stale.own(), fresh.own(), stale.own()], &[souls()], generous()).await;
    assert_eq!(contents(&fetched), ["new", "old"]);
    let events: Vec<usize> = fetched.reports.iter().map(|report| report.events).collect();
    assert_eq!(events, [1, 2], "a relay named twice is asked once");
}

#[tokio::test]
async fn a_closed_subscription_is_complete_only_without_a_reason() {
    for (reason, expected) in [
        ("", "ok"),
        ("rate-limited: slow down", "rate limited: rate-limited: slow down"),
        ("blocked: no\r\nforged line", "rejected: blocked: no  forged line"),
        ("restricted: members only", "rejected: restricted: members only"),
        ("error: disk full", "relay error: error: disk full"),
    ] {
        let (_relay, fetched) = read(
            move |mut peer| async move {
                let req = peer.hear_kind("REQ").await?;
                peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
                peer.say(json!(["CLOSED", req[1], reason])).await?;
                peer.hear_out().await
            },
            generous(),
        )
        .await;
        assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec![expected.to_owned()]));
    }
}

#[tokio::test]
async fn garbage_is_counted_and_the_connection_lives_on() {
    let (relay, fetched) = read(
        |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["NOTICE", "welcome to the relay, mind the maximum"])).await?;
            for garbage in ["", "garbage", "[", "{}", "[[[[", "[\"EVENT\"]", "[\"WHAT\",1]"] {
                peer.say_text(garbage.into()).await?;
            }
            peer.say_text(format!("[\"EVENT\",{},{}", req[1], "[".repeat(50_000))).await?;
            peer.say_bytes(vec![0xff; 100]).await?;
            peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.hear_out().await
        },
        generous(),
    )
    .await;
    assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]));
    assert_eq!((fetched.reports[0].skipped, relay.connections()), (9, 1));
}

#[tokio::test]
async fn a_giant_frame_is_skipped_and_a_larger_one_fails_only_its_relay() {
    let giant = |bytes: usize| {
        FakeRelay::start(move |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EVENT", req[1], {"kind": 0, "content": "x".repeat(bytes)}])).await?;
            peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.hear_out().await
        })
    };
    let fetched = pool().fetch(&[giant(6_000_000).await.own()], &[souls()], generous()).await;
    assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]));

    let (giant, other) = (giant(9_000_000).await, FakeRelay::serving(vec![soul("I am")]).await);
    let fetched = pool().fetch(&[giant.own(), other.own()], &[souls()], generous()).await;
    assert_eq!(contents(&fetched), ["I am"]);
    assert_eq!(outcomes(&fetched), ["cut off: a frame has more than 8388608 bytes", "ok"]);
}

#[tokio::test]
async fn an_event_of_70_kb_is_taken_and_skipped_where_the_limit_is_lower() {
    let (large, small) = (soul(&"x".repeat(70_000)), soul("I am"));
    let relay = FakeRelay::serving(vec![large.clone(), small.clone()]).await;
    let fetched = pool().fetch(&[relay.own()], &[souls()], generous()).await;
    assert_eq!((fetched.events.len(), fetched.reports[0].skipped), (2, 0));

    let strict = pool_with(|limits| limits.max_event_bytes = 64 * 1024);
    let fetched = strict.fetch(&[relay.own()], &[souls()], generous()).await;
    assert_eq!(fetched.events, [small]);
    assert_eq!((fetched.reports[0].skipped, outcomes(&fetched)), (1, vec!["ok".to_owned()]));
}

#[tokio::test]
async fn a_flood_is_cut_off_and_what_was_taken_is_good() {
    let events: Vec<Event> = (0..5).map(|number| soul(&number.to_string())).collect();
    let relay = FakeRelay::serving(events).await;
    let few = pool_with(|limits| limits.max_events = 4);
    let fetched = few.fetch(&[relay.own()], &[souls()], generous()).await;
    assert_eq!(
        (fetched.events.len(), outcomes(&fetched)),
        (4, vec!["cut off: it sent more than 4 events".into()])
    );

    let exact = pool_with(|limits| limits.max_events = 5);
    assert!(exact.fetch(&[relay.own()], &[souls()], generous()).await.is_complete());

    let endless = FakeRelay::start(|mut peer| async move {
        peer.hear_kind("REQ").await?;
        loop {
            peer.say(json!(["NOTICE", ""])).await?;
        }
    })
    .await;
    let small = pool_with(|limits| limits.max_bytes = 100_000);
    let fetched = small.fetch(&[endless.own()], &[souls()], generous()).await;
    assert_eq!(outcomes(&fetched), ["cut off: it sent more than 100000 bytes"]);
}

#[tokio::test]
async fn when_all_relays_are_down_every_report_says_so() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", closed.local_addr().unwrap());
    drop(closed);
    let down = Target { url: RelayUrl::parse(&url).unwrap(), trust: Trust::Own };
    let fetched = pool().fetch(std::slice::from_ref(&down), &[souls()], generous()).await;
    assert!(matches!(fetched.reports[0].outcome, Err(RelayError::Connect(_))), "{:?}", fetched.reports);
    assert!(!fetched.is_complete());
    let said = publish(&pool(), &soul("I am"), vec![down], generous()).await;
    assert!(said[0].starts_with("cannot connect: "), "{said:?}");
}

#[tokio::test]
async fn a_foreign_relay_on_a_private_address_is_never_dialled() {
    let relay = FakeRelay::serving(vec![soul("I am")]).await;
    let mut by_name = relay.foreign();
    by_name.url = RelayUrl::parse(&by_name.url.as_str().replace("127.0.0.1", "localhost")).unwrap();
    let pool = pool();
    let targets = [relay.foreign(), by_name];
    pool.open(&targets, generous()).await;
    let fetched = pool.fetch(&targets, &[souls()], generous()).await;
    assert_eq!(
        outcomes(&fetched),
        ["not dialled: the host has no public address", "not dialled: the name is one of a private network"]
    );
    assert_eq!(relay.connections(), 0);
}

#[tokio::test]
async fn tls_needs_no_provider_of_the_process() {
    let relay = FakeRelay::serving(Vec::new()).await;
    let mut target = relay.own();
    target.url = RelayUrl::parse(&target.url.as_str().replace("ws://", "wss://")).unwrap();
    let fetched = pool().fetch(&[target], &[souls()], generous()).await;
    assert!(matches!(fetched.reports[0].outcome, Err(RelayError::Connect(_))), "{:?}", fetched.reports);
}

// Subscriptions.

/// Serves `events` to at most `most` open subscriptions of one connection; for more it has only a notice.
async fn counting(peer: &mut Peer, most: usize, events: &[Event]) -> Option<()> {
    let mut open = Vec::new();
    loop {
        let frame = peer.hear().await?;
        match frame[0].as_str() {
            Some("CLOSE") => open.retain(|id| *id != frame[1]),
            Some("REQ") if open.len() >= most => {
                peer.say(json!(["NOTICE", "ERROR: too many concurrent REQs"])).await?;
            }
            Some("REQ") => {
                open.push(frame[1].clone());
                for event in events {
                    peer.say(json!(["EVENT", frame[1], event])).await?;
                }
                peer.say(json!(["EOSE", frame[1]])).await?;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn many_reads_of_many_filters_need_one_connection_and_one_open_subscription() {
    let relay =
        FakeRelay::start(|mut peer| async move { counting(&mut peer, 1, &[soul("I am")]).await }).await;
    let pool = pool();
    for _ in 0..12 {
        let filters: Vec<Filter> =
            (0..25).map(|n| souls().identifier(n.to_string())).chain([souls()]).collect();
        let fetched = pool.fetch(&[relay.own()], &filters, generous()).await;
        assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]));
    }
    assert_eq!((relay.connections(), relay.heard("REQ").len()), (1, 12));
}

#[tokio::test]
async fn a_relay_that_finds_it_too_much_is_asked_once_more_filter_by_filter() {
    let complaints: [fn(&Value) -> Value; 2] = [
        |_| json!(["NOTICE", "ERROR: too many concurrent REQs"]),
        |id| json!(["CLOSED", id, "error: too many filters"]),
    ];
    for complaint in complaints {
        let (relay, fetched) = read_many(move |mut peer| async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(complaint(&req[1])).await?;
            counting(&mut peer, 1, &[soul("I am")]).await
        })
        .await;
        assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]));
        let filters: Vec<usize> =
            relay.heard("REQ").iter().map(|req| req.as_array().unwrap().len() - 2).collect();
        assert_eq!(filters, [3, 1, 1, 1]);
    }
}

#[tokio::test]
async fn a_relay_that_finds_everything_too_much_fails_fast() {
    let (relay, fetched) = read_many(|mut peer| async move { counting(&mut peer, 0, &[]).await }).await;
    assert_eq!(outcomes(&fetched), ["rate limited: ERROR: too many concurrent REQs"]);
    assert_eq!(relay.heard("REQ").len(), 2);
}

#[tokio::test]
async fn a_notice_of_a_bad_request_fails_fast() {
    let (_relay, fetched) = read(
        |mut peer| async move {
            peer.hear_kind("REQ").await?;
            peer.say(json!(["NOTICE", "ERROR: bad req: unknown field"])).await?;
            peer.hear_out().await
        },
        generous(),
    )
    .await;
    assert_eq!(outcomes(&fetched), ["rejected: ERROR: bad req: unknown field"]);
}

async fn read_many<S, F>(script: S) -> (FakeRelay, Fetched)
where
    S: Fn(Peer) -> F + Send + 'static,
    F: Future<Output = Option<()>> + Send + 'static,
{
    let relay = FakeRelay::start(script).await;
    let filters = [souls(), souls().identifier("a"), souls().identifier("b")];
    let fetched = pool().fetch(&[relay.own()], &filters, generous()).await;
    (relay, fetched)
}

// Connections.

#[tokio::test]
async fn reads_and_publications_share_one_connection_opened_ahead() {
    let relay = FakeRelay::serving(vec![soul("I am")]).await;
    let pool = pool();
    pool.open(&[relay.own()], generous()).await;
    assert_eq!(relay.connections(), 1);
    pool.open(&[relay.own()], generous()).await;
    assert!(pool.fetch(&[relay.own()], &[souls()], generous()).await.is_complete());
    assert_eq!(publish(&pool, &soul("I am"), vec![relay.own()], generous()).await, ["ok"]);
    assert!(pool.fetch(&[relay.own()], &[souls()], generous()).await.is_complete());
    assert_eq!(relay.connections(), 1);
}

#[tokio::test]
async fn an_idle_connection_that_died_is_replaced_once() {
    let relay = FakeRelay::start(|mut peer| async move {
        let frame = peer.hear().await?;
        match frame[0].as_str() {
            Some("REQ") => peer.say(json!(["EOSE", frame[1]])).await?,
            _ => peer.say(json!(["OK", frame[1]["id"], true, ""])).await?,
        }
        peer.hear_kind("CLOSE").await?;
        peer.close().await
    })
    .await;
    let pool = pool();
    for _ in 0..3 {
        assert!(pool.fetch(&[relay.own()], &[souls()], generous()).await.is_complete());
    }
    assert_eq!(publish(&pool, &soul("I am"), vec![relay.own()], generous()).await, ["ok"]);
    assert_eq!(relay.connections(), 4);
}

#[tokio::test]
async fn a_relay_that_always_breaks_is_dialled_once() {
    let (relay, fetched) = read(|mut peer| async move { peer.hear().await.map(|_| ()) }, generous()).await;
    assert!(matches!(fetched.reports[0].outcome, Err(RelayError::Lost(_))), "{:?}", fetched.reports);
    assert_eq!(relay.connections(), 1);
}

#[tokio::test]
async fn closing_says_goodbye() {
    let (left, gone) = oneshot::channel::<()>();
    let left = std::sync::Mutex::new(Some(left));
    let relay = FakeRelay::start(move |mut peer| {
        let left = left.lock().unwrap().take();
        async move {
            peer.hear_out().await;
            left.unwrap().send(()).ok()
        }
    })
    .await;
    let pool = pool();
    pool.open(&[relay.own()], generous()).await;
    pool.close().await;
    gone.await.unwrap();
    assert_eq!(relay.heard("goodbye").len(), 1);
}

// Authentication.

/// Waits for `AUTH` with this challenge and the relay's URL in its normal spelling, and takes it.
async fn take_auth(peer: &mut Peer, challenge: &str) -> Option<()> {
    let auth = peer.hear_kind("AUTH").await?;
    let event: Event = serde_json::from_value(auth[1].clone()).unwrap();
    event.verify().unwrap();
    assert_eq!((event.kind, event.pubkey), (Kind::Authentication, keys(1).public_key()));
    let tags: Vec<&[String]> = event.tags.iter().map(|tag| tag.as_slice()).collect();
    assert!(tags.contains(&["challenge".to_owned(), challenge.to_owned()].as_slice()), "{tags:?}");
    peer.say(json!(["OK", event.id, true, ""])).await
}

/// After authentication: accepts events and gives the soul.
async fn serve_members(peer: &mut Peer) -> Option<()> {
    loop {
        let frame = peer.hear().await?;
        match frame[0].as_str() {
            Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], true, ""])).await?,
            Some("REQ") => {
                peer.say(json!(["EVENT", frame[1], soul("I am")])).await?;
                peer.say(json!(["EOSE", frame[1]])).await?;
            }
            _ => {}
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Challenge {
    Before,
    After,
}

#[derive(Clone, Copy, Debug)]
enum Refusal {
    Closed,
    EmptyEose,
}

#[tokio::test]
async fn a_read_is_repeated_after_authentication_in_whatever_order_the_relay_asks_for_it() {
    let orders = [
        (Challenge::Before, Refusal::Closed),
        (Challenge::After, Refusal::Closed),
        (Challenge::Before, Refusal::EmptyEose),
        (Challenge::After, Refusal::EmptyEose),
    ];
    for (challenge, refusal) in orders {
        let (relay, fetched) = read(
            move |mut peer| async move {
                let req = peer.hear_kind("REQ").await?;
                let refusal = match refusal {
                    Refusal::Closed => json!(["CLOSED", req[1], "auth-required: log in"]),
                    Refusal::EmptyEose => json!(["EOSE", req[1]]),
                };
                let (first, second) = match challenge {
                    Challenge::Before => (json!(["AUTH", "c1"]), refusal),
                    Challenge::After => (refusal, json!(["AUTH", "c1"])),
                };
                peer.say(first).await?;
                peer.say(second).await?;
                take_auth(&mut peer, "c1").await?;
                serve_members(&mut peer).await
            },
            generous(),
        )
        .await;
        let what = format!("{challenge:?} {refusal:?}");
        assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]), "{what}");
        assert_eq!((relay.heard("AUTH").len(), relay.heard("REQ").len()), (1, 2), "{what}");
    }
}

/// What a relay says after all its answers counts for the next read.
#[tokio::test]
async fn a_relay_that_challenges_only_after_the_read_is_over_is_waited_for_by_the_next() {
    let said = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&said);
    let relay = FakeRelay::start(move |mut peer| {
        let told = Arc::clone(&told);
        async move {
            let req = peer.hear_kind("REQ").await?;
            peer.say(json!(["EOSE", req[1]])).await?;
            peer.hear_kind("CLOSE").await?;
            // The ping behind it is answered before the challenge is sent.
            let _ = tokio::time::timeout(Duration::from_millis(100), peer.hear()).await;
            peer.say(json!(["AUTH", "c1"])).await?;
            told.notify_one();
            take_auth(&mut peer, "c1").await?;
            serve_members(&mut peer).await
        }
    })
    .await;
    let pool = pool();
    let fetched = pool.fetch(&[relay.own()], &[souls()], generous()).await;
    assert_eq!(contents(&fetched), [""; 0]);
    said.notified().await;
    pool.close().await;
    let fetched = pool.fetch(&[relay.own()], &[souls()], generous()).await;
    assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am"], vec!["ok".to_owned()]));
    assert_eq!(relay.connections(), 2);
}

#[tokio::test]
async fn the_very_first_read_of_a_relay_waits_for_a_challenge_behind_all_else_and_a_later_one_does_not() {
    let other = FakeRelay::serving(Vec::new()).await;
    for (known, expected) in [(None, vec!["I am"]), (Some(false), vec![])] {
        let said = Arc::new(tokio::sync::Notify::new());
        let told = Arc::clone(&said);
        let relay = FakeRelay::start(move |mut peer| {
            let told = Arc::clone(&told);
            async move {
                let req = peer.hear_kind("REQ").await?;
                peer.say(json!(["EOSE", req[1]])).await?;
                peer.hear_ping().await?;
                peer.say(json!(["NOTICE", "here"])).await?;
                peer.say(json!(["AUTH", "c1"])).await?;
                told.notify_one();
                take_auth(&mut peer, "c1").await?;
                serve_members(&mut peer).await
            }
        })
        .await;
        let pool = pool_with(|limits| limits.first_challenge_timeout = Duration::from_secs(20));
        pool.expect_challenge(&relay.own(), known);
        let fetched = pool.fetch(&[relay.own()], &[souls()], generous()).await;
        said.notified().await;
        // What was said by now has come when this has.
        pool.fetch(&[other.own()], &[souls()], generous()).await;
        assert_eq!((contents(&fetched), outcomes(&fetched)), (expected, vec!["ok".to_owned()]));
        assert_eq!(pool.sends_challenges(&relay.own()), Some(true), "known: {known:?}");
        assert_eq!(pool.challenged_late(&relay.own()), known.is_some());
    }
}

#[tokio::test]
async fn a_relay_that_sent_no_challenge_when_it_was_waited_for_is_not_waited_for_again() {
    let relay = FakeRelay::serving(Vec::new()).await;
    let pool = pool_with(|limits| limits.first_challenge_timeout = Duration::ZERO);
    pool.expect_challenge(&relay.own(), None);
    assert_eq!(pool.sends_challenges(&relay.own()), None);
    assert!(pool.fetch(&[relay.own()], &[souls()], generous()).await.is_complete());
    assert_eq!(pool.sends_challenges(&relay.own()), Some(false));
}

#[tokio::test]
async fn only_the_filters_without_an_answer_are_asked_again_after_a_challenge() {
    let relay = FakeRelay::start(|mut peer| async move {
        peer.say(json!(["AUTH", "c1"])).await?;
        let req = peer.hear_kind("REQ").await?;
        peer.say(json!(["EVENT", req[1], soul("I am")])).await?;
        peer.say(json!(["EOSE", req[1]])).await?;
        take_auth(&mut peer, "c1").await?;
        let req = peer.hear_kind("REQ").await?;
        peer.say(json!(["EVENT", req[1], event(&keys(3), Kind::GiftWrap, "sealed", 5)])).await?;
        peer.say(json!(["EOSE", req[1]])).await?;
        peer.hear_out().await
    })
    .await;
    let wraps = Filter::new().kind(Kind::GiftWrap);
    let fetched = pool().fetch(&[relay.own()], &[souls(), wraps.clone()], generous()).await;
    assert_eq!((contents(&fetched), outcomes(&fetched)), (vec!["I am", "sealed"], vec!["ok".to_owned()]));
    assert_eq!(relay.heard("REQ")[1].as_array().unwrap()[2..], [json!(wraps)]);
}

#[tokio::test]
async fn an_event_is_sent_again_after_authentication_with_the_challenge_before_or_after() {
    for challenge in [Challenge::Before, Challenge::After] {
        let relay = FakeRelay::start(move |mut peer| async move {
            let sent = peer.hear_kind("EVENT").await?;
            let refusal = json!(["OK", sent[1]["id"], false, "auth-required: log in"]);
            let (first, second) = match challenge {
                Challenge::Before => (json!(["AUTH", "c1"]), refusal),
                Challenge::After => (refusal, json!(["AUTH", "c1"])),
            };
            peer.say(first).await?;
            peer.say(second).await?;
            take_auth(&mut peer, "c1").await?;
            serve_members(&mut peer).await
        })
        .await;
        assert_eq!(publish(&pool(), &soul("I am"), vec![relay.own()], generous()).await, ["ok"]);
        let sent = relay.heard("EVENT");
        assert_eq!((sent.len(), &sent[0]), (2, &sent[1]), "the same event twice");
        assert_eq!(relay.heard("AUTH").len(), 1);
    }
}

#[tokio::test]
async fn the_answers_to_other_events_are_not_lost_while_one_waits_for_authentication() {
    let relay = FakeRelay::start(|mut peer| async move {
        peer.say(json!(["AUTH", "c1"])).await?;
        let first = peer.hear_kind("EVENT").await?;
        let second = peer.hear_kind("EVENT").await?;
        peer.say(json!(["OK", first[1]["id"], false, "auth-required: log in"])).await?;
        peer.say(json!(["OK", second[1]["id"], true, ""])).await?;
        take_auth(&mut peer, "c1").await?;
        serve_members(&mut peer).await
    })
    .await;
    let outgoing: Vec<Outgoing> =
        ["a", "b"].iter().map(|text| Outgoing { event: soul(text), targets: vec![relay.own()] }).collect();
    let reports = pool().publish(&outgoing, generous()).await;
    assert!(reports.iter().flatten().all(|report| report.outcome.is_ok()), "{reports:?}");
    assert_eq!(relay.heard("EVENT").len(), 3);
}

#[tokio::test]
async fn what_got_no_time_was_not_tried() {
    let relay = FakeRelay::serving(Vec::new()).await;
    let untried = "not tried: no time was left";
    assert_eq!(publish(&pool(), &soul("I am"), vec![relay.own()], Instant::now()).await, [untried]);
    assert_eq!(relay.connections(), 0);

    // One that never reads: no more is sent than the buffers between us hold.
    let deaf = FakeRelay::start(|peer| async move {
        std::future::pending::<()>().await;
        drop(peer);
        None
    })
    .await;
    let event = |number: u64| event(&keys(1), SOUL, &"a".repeat(1024 * 1024), number);
    let outgoing: Vec<Outgoing> =
        (0..24).map(|number| Outgoing { event: event(number), targets: vec![deaf.own()] }).collect();
    let reports = pool().publish(&outgoing, Instant::now() + Duration::from_secs(3)).await;
    let outcomes = [&reports[0][0].outcome, &reports[23][0].outcome];
    assert_eq!(outcomes, [&Err(RelayError::Timeout), &Err(RelayError::Untried)]);
}

#[tokio::test]
async fn the_tag_of_authentication_names_the_relay_in_its_normal_spelling() {
    let relay = FakeRelay::start(|mut peer| async move {
        let req = peer.hear_kind("REQ").await?;
        peer.say(json!(["AUTH", "c1"])).await?;
        peer.say(json!(["CLOSED", req[1], "auth-required: log in"])).await?;
        take_auth(&mut peer, "c1").await?;
        serve_members(&mut peer).await
    })
    .await;
    let normal = relay.own().url.to_string();
    let slash = Target { url: RelayUrl::parse(&format!("{normal}/")).unwrap(), trust: Trust::Own };
    assert!(pool().fetch(&[slash], &[souls()], generous()).await.is_complete());
    let tags = relay.heard("AUTH")[0][1]["tags"].clone();
    assert!(tags.as_array().unwrap().contains(&json!(["relay", normal])), "{tags}");
}

#[tokio::test]
async fn a_relay_that_asks_again_after_authentication_has_the_last_word() {
    for (last, expected) in [
        ("auth-required: again", "authentication: auth-required: again"),
        ("restricted: members only", "rejected: restricted: members only"),
    ] {
        let relay = FakeRelay::start(move |mut peer| async move {
            peer.say(json!(["AUTH", "c1"])).await?;
            let mut reason = "auth-required: log in";
            loop {
                let frame = peer.hear().await?;
                match frame[0].as_str() {
                    Some("REQ") => peer.say(json!(["CLOSED", frame[1], reason])).await?,
                    Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], false, reason])).await?,
                    Some("AUTH") => {
                        reason = last;
                        peer.say(json!(["OK", frame[1]["id"], true, ""])).await?;
                    }
                    _ => {}
                }
            }
        })
        .await;
        let reader = pool();
        let fetched = reader.fetch(&[relay.own()], &[souls()], generous()).await;
        assert_eq!(outcomes(&fetched), [expected]);
        assert_eq!((relay.heard("AUTH").len(), relay.heard("REQ").len()), (1, 2));
        let said = publish(&pool(), &soul("I am"), vec![relay.own()], generous()).await;
        assert_eq!(said, [expected]);
        assert_eq!((relay.heard("AUTH").len(), relay.heard("EVENT").len()), (2, 2));
    }
}

#[tokio::test]
async fn refused_or_impossible_authentication_is_final_and_not_tried_again_on_the_connection() {
    let relay = FakeRelay::start(|mut peer| async move {
        peer.say(json!(["AUTH", "c1"])).await?;
        loop {
            let frame = peer.hear().await?;
            match frame[0].as_str() {
                Some("REQ") => peer.say(json!(["EOSE", frame[1]])).await?,
                Some("AUTH") => {
                    peer.say(json!(["OK", frame[1]["id"], false, "restricted: members only"])).await?;
                }
                _ => {}
            }
        }
    })
    .await;
    let pool = pool();
    for _ in 0..2 {
        let fetched = pool.fetch(&[relay.own()], &[souls()], generous()).await;
        assert_eq!(outcomes(&fetched), ["authentication: ours was refused (restricted: members only)"]);
    }
    assert_eq!((relay.heard("AUTH").len(), relay.connections()), (1, 1));

    let silent = FakeRelay::start(|mut peer| async move {
        let req = peer.hear_kind("REQ").await?;
        peer.say(json!(["CLOSED", req[1], "auth-required: log in"])).await?;
        peer.hear_out().await
    })
    .await;
    let impatient = pool_with(|limits| limits.auth_timeout = Duration::from_millis(200));
    // It did not say no: another connection is tried.
    for connections in 1..=2 {
        let fetched = impatient.fetch(&[silent.own()], &[souls()], generous()).await;
        assert_eq!(outcomes(&fetched), ["authentication: it sent no challenge"]);
        assert_eq!(silent.connections(), connections);
    }
}

// Publications.

#[tokio::test]
async fn every_answer_to_an_event_has_its_outcome() {
    let table = [
        (json!([true, ""]), "ok"),
        (json!([true, "duplicate: have it"]), "ok"),
        (json!([false, "duplicate: have it"]), "ok"),
        (json!([false, "replaced: have newer"]), "replaced: replaced: have newer"),
        (json!([false, "rate-limited: slow down"]), "rate limited: rate-limited: slow down"),
        (json!([false, "blocked: spam"]), "rejected: blocked: spam"),
        (json!([false, "invalid: bad tag"]), "rejected: invalid: bad tag"),
        (json!([false, "pow: 28 bits"]), "rejected: pow: 28 bits"),
        (json!([false, "error: disk full"]), "relay error: error: disk full"),
        (json!([false, ""]), "relay error: "),
    ];
    let mut relays = Vec::new();
    for (answer, _) in table.clone() {
        let relay = FakeRelay::start(move |mut peer| {
            let answer = answer.clone();
            async move {
                let sent = peer.hear_kind("EVENT").await?;
                peer.say(json!(["OK", "00".repeat(32), false, "error: of another event"])).await?;
                peer.say(json!(["OK", sent[1]["id"], answer[0], answer[1]])).await?;
                peer.hear_out().await
            }
        })
        .await;
        relays.push(relay);
    }
    let targets = relays.iter().map(FakeRelay::own).collect();
    let said = publish(&pool(), &soul("I am"), targets, generous()).await;
    assert_eq!(said, table.map(|(_, expected)| expected));
}

#[tokio::test]
async fn a_relay_that_never_answers_times_out_alone() {
    let mute = FakeRelay::start(|mut peer| async move { peer.hear_out().await }).await;
    let good = FakeRelay::serving(Vec::new()).await;
    let broken = FakeRelay::start(|mut peer| async move { peer.hear().await.map(|_| ()) }).await;
    let targets = vec![mute.own(), good.own(), broken.own(), good.foreign()];
    let said = publish(&pool(), &soul("I am"), targets, short()).await;
    assert_eq!(said[..2], ["timed out", "ok"]);
    assert!(said[2].starts_with("connection lost: "), "{said:?}");
    assert_eq!(said[3], "not dialled: the host has no public address");
}

#[tokio::test]
async fn events_go_out_one_behind_the_other_and_answers_are_matched_by_id() {
    let relay = FakeRelay::start(|mut peer| async move {
        let mut ids = Vec::new();
        while ids.len() < 3 {
            ids.push(peer.hear_kind("EVENT").await?[1]["id"].clone());
        }
        peer.say(json!(["OK", ids[2], false, "blocked: third"])).await?;
        peer.say(json!(["OK", ids[0], true, ""])).await?;
        peer.say(json!(["OK", ids[1], false, "pow: second"])).await?;
        peer.hear_out().await
    })
    .await;
    let outgoing: Vec<Outgoing> = ["a", "b", "c", "a"]
        .iter()
        .map(|text| Outgoing { event: soul(text), targets: vec![relay.own()] })
        .collect();
    let reports = pool().publish(&outgoing, generous()).await;
    let said: Vec<String> = reports.iter().flatten().map(|report| format!("{:?}", report.outcome)).collect();
    assert_eq!(
        said,
        ["Ok(())", r#"Err(Rejected("pow: second"))"#, r#"Err(Rejected("blocked: third"))"#, "Ok(())"]
    );
    assert_eq!((relay.connections(), relay.heard("EVENT").len()), (1, 3), "the same event once");
}

// A real relay.

#[tokio::test]
async fn a_relay_that_wants_authentication_for_everything_takes_and_gives_back_an_event() {
    use nostr_relay_builder::prelude::{LocalRelay, RelayBuilder, RelayBuilderNip42, RelayBuilderNip42Mode};

    let nip42 = RelayBuilderNip42 { mode: RelayBuilderNip42Mode::Both };
    let relay = LocalRelay::new(RelayBuilder::default().nip42(nip42));
    relay.run().await.unwrap();
    let url = RelayUrl::parse(&relay.url().await.to_string()).unwrap();
    let target = Target { url, trust: Trust::Own };

    let pool = pool();
    let sent = soul("I am");
    assert_eq!(publish(&pool, &sent, vec![target.clone()], generous()).await, ["ok"]);
    let fetched = pool.fetch(&[target], &[souls()], generous()).await;
    assert!(fetched.is_complete(), "{:?}", fetched.reports);
    assert_eq!(fetched.events, [sent]);
    pool.close().await;
}
