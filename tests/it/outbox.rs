//! What relays do not take at once: a reply is delivered where one of its recipient's relays takes it, the others are asked
//! again, and nothing is sent for ever.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, RunRecord, Status, dm_trigger_id, run_id};
use didactyl::store::{Expect, Range, Write, keys};
use nostr::prelude::{Event, EventBuilder, EventId, FinalizeEvent, Keys, Kind, Tag};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::agent::{dm_id, echo, hand_over, outcomes, secret};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The agent's own relay.
const OWN: &str = "ws://127.0.0.1:1";
const A: &str = "wss://a.test";
const B: &str = "wss://b.test";
const C: &str = "wss://c.test";

/// A relay list: kind 10050 or 10002.
fn relay_list(author: &Keys, kind: u16, relays: &[&str], harbour: &Harbour) -> Event {
    let name = if kind == 10_050 { "relay" } else { "r" };
    EventBuilder::new(Kind::from(kind), "")
        .tags(relays.iter().map(|url| Tag::parse([name, url]).unwrap()))
        .custom_created_at(harbour.now())
        .finalize(author)
        .unwrap()
}

/// An agent with one relay, whose admin reads NIP-17 messages on these relays of others.
async fn harbour(
    inbox: &[(&str, Manner)],
    script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> Harbour {
    let harbour = Harbour::new(&[Manner::Gives(500)], script).await;
    let urls: Vec<&str> = inbox.iter().map(|(url, _)| *url).collect();
    inbox.iter().for_each(|(url, manner)| harbour.sea.set_foreign(url, *manner));
    harbour.sea.post(&relay_list(&secret(2), 10_050, &urls, &harbour));
    harbour
}

/// A message that lies on the agent's own relay.
fn message(harbour: &Harbour, author: &Keys, text: &str) -> Event {
    let event = wrap_at(author, text, harbour.now(), harbour.now());
    harbour.sea.post(&event);
    event
}

async fn find(harbour: &Harbour, dm: &Event) -> RunRecord {
    record::find(&harbour.app(), &run_id(&dm_trigger_id(&dm_id(dm)))).await.unwrap().unwrap()
}

/// What the record tells of each relay that a wrap for the admin was sent to.
fn told(record: &RunRecord, harbour: &Harbour) -> String {
    let copies: BTreeSet<EventId> = harbour.sea.sent_to(OWN).into_iter().collect();
    let of_admin = record.deliveries.iter().filter(|delivery| !copies.contains(&delivery.event));
    let lines = of_admin.map(|delivery| {
        let said = delivery.refused.as_deref().unwrap_or("accepted");
        let then = if delivery.next_try.is_some() { ", again later" } else { "" };
        format!("{} {}: {said}{then}", delivery.relay, delivery.tries)
    });
    lines.collect::<Vec<_>>().join("\n")
}

async fn waiting_rows(harbour: &Harbour) -> usize {
    harbour.app().store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap().len()
}

/// Ticks, one a minute, until one has an outbox to tell of.
async fn tick_until_sent(harbour: &Harbour) -> Value {
    for _ in 0..20 {
        harbour.clock.forward(MINUTE);
        let answer = harbour.tick().await;
        if !answer["outbox"].is_null() {
            return answer["outbox"].clone();
        }
    }
    panic!("nothing was sent again");
}

#[tokio::test]
async fn a_reply_that_one_of_three_relays_took_is_delivered_and_offered_again_to_the_one_that_failed_for_now()
{
    let inbox = [(A, Manner::Blocks), (B, Manner::Busy), (C, Manner::Gives(500))];
    let harbour = harbour(&inbox, echo).await;
    let dm = message(&harbour, &secret(2), "hello");
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let record = find(&harbour, &dm).await;
    assert_eq!((record.status, waiting_rows(&harbour).await), (Status::Done, 1));
    insta::assert_snapshot!(told(&record, &harbour), @"
    wss://a.test 1: rejected: blocked: not you
    wss://b.test 1: rate limited: rate-limited: slow down, again later
    wss://c.test 1: accepted
    ");

    assert_eq!(tick_until_sent(&harbour).await, json!({"sent": 1, "accepted": 0}));
    harbour.sea.set_foreign(B, Manner::Gives(500));
    assert_eq!(tick_until_sent(&harbour).await, json!({"sent": 1, "accepted": 1}));
    assert_eq!(harbour.sea.on(B, 1059), harbour.sea.on(C, 1059));
    let record = find(&harbour, &dm).await;
    insta::assert_snapshot!(told(&record, &harbour), @"
    wss://a.test 1: rejected: blocked: not you
    wss://b.test 3: accepted
    wss://c.test 1: accepted
    ");
    let tried = [A, B, C].map(|url| harbour.sea.sent_to(url).len());
    assert_eq!((tried, waiting_rows(&harbour).await, harbour.model.calls()), ([1, 3, 1], 0, 1));
}

#[tokio::test]
async fn a_relay_that_never_comes_back_is_asked_six_times_in_all() {
    let harbour = harbour(&[(A, Manner::Down), (B, Manner::Gives(500))], echo).await;
    message(&harbour, &secret(2), "hello");
    for _ in 0..60 {
        harbour.tick().await;
        harbour.clock.forward(5 * MINUTE);
    }
    assert_eq!((harbour.sea.sent_to(A).len(), harbour.sea.sent_to(B).len()), (6, 1));
    assert_eq!(waiting_rows(&harbour).await, 0);
}

#[tokio::test]
async fn a_reply_that_all_relays_refuse_for_an_hour_is_delivered_after_it_as_the_same_event() {
    for manner in [Manner::Busy, Manner::Blocks, Manner::Down] {
        let harbour = harbour(&[(A, manner), (B, manner)], echo).await;
        let dm = message(&harbour, &secret(2), "hello");
        for _ in 0..60 {
            harbour.tick().await;
            assert_eq!(find(&harbour, &dm).await.status, Status::Replying);
            harbour.clock.forward(MINUTE);
        }
        let tries = harbour.sea.sent_to(A);
        // It waits longer each time: half a minute, then twice as long.
        assert_eq!((tries.len(), harbour.sea.sent_to(B).len()), (7, 7), "{manner:?}");
        for url in [A, B] {
            harbour.sea.set_foreign(url, Manner::Gives(500));
        }
        for _ in 0..10 {
            harbour.tick().await;
            harbour.clock.forward(MINUTE);
        }
        let ids: BTreeSet<EventId> = tries.into_iter().collect();
        assert_eq!((harbour.sea.on(A, 1059), ids.len()), (ids.clone(), 1), "{manner:?}");
        let record = find(&harbour, &dm).await;
        // The run was begun once: its answer was there all the time.
        assert_eq!((record.status, record.attempt, record.reason), (Status::Done, 1, None), "{manner:?}");
        assert_eq!((harbour.model.calls(), waiting_rows(&harbour).await), (1, 0), "{manner:?}");
    }
}

/// Design §7: it would show that the two talk, and not arrive.
#[tokio::test]
async fn a_wrap_for_somebody_without_an_inbox_list_never_goes_to_public_relays_however_often_it_is_sent() {
    let harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.sea.set_foreign(A, Manner::Gives(500));
    harbour.sea.post(&relay_list(&secret(2), 10_002, &[A], &harbour));
    harbour.sea.set(1, Manner::Busy);
    let dm = message(&harbour, &secret(2), "by wrap");
    for _ in 0..5 {
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    assert_eq!(find(&harbour, &dm).await.status, Status::Replying);
    harbour.sea.set(1, Manner::Gives(500));
    for _ in 0..5 {
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    assert_eq!(find(&harbour, &dm).await.status, Status::Done);
    assert_eq!(harbour.sea.sent_to(A), []);
    // The list is known: a reply to a kind 4 goes there.
    harbour.sea.post(&nip04_at(&secret(2), &secret(1).public_key(), "by kind 4", harbour.now()));
    harbour.tick().await;
    assert_eq!(harbour.sea.on(A, 4).len(), 1);
}

/// An agent that answers a contact of its admin's, who reads on a relay that is gone. The admin has no lists.
async fn harbour_with_a_guest(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> (Harbour, Event) {
    let mut harbour = Harbour::new(&[Manner::Gives(500)], script).await;
    harbour.set_var("DIDACTYL_SENDERS", "wot");
    let contacts = EventBuilder::new(Kind::from(3), "").tag(Tag::public_key(secret(3).public_key()));
    harbour.sea.post(&contacts.custom_created_at(harbour.now()).finalize(&secret(2)).unwrap());
    harbour.sea.set_foreign(A, Manner::Down);
    harbour.sea.post(&relay_list(&secret(3), 10_050, &[A], &harbour));
    let dm = message(&harbour, &secret(3), "hello");
    (harbour, dm)
}

#[tokio::test]
async fn a_reply_that_nobody_took_for_three_days_is_given_up_and_the_admin_is_told_once() {
    let (harbour, dm) = harbour_with_a_guest(echo).await;
    for _ in 0..4 * 24 {
        harbour.tick().await;
        harbour.clock.forward(60 * MINUTE);
    }
    let record = find(&harbour, &dm).await;
    assert_eq!((record.status, record.attempt), (Status::Undelivered, 1));
    let reason = "no relay of the recipient took the reply for three days";
    assert_eq!(record.reason.as_deref(), Some(reason));
    let tries = harbour.sea.sent_to(A).len();
    assert!((15..30).contains(&tries), "{tries}");
    let told = harbour.answers();
    let [notice] = told.as_slice() else { panic!("{told:?}") };
    assert!(notice.starts_with("I could not deliver an answer to npub1"), "{notice}");
    // Whoever brings the message again learns what became of it.
    harbour.sea.set_foreign(A, Manner::Gives(500));
    let payload = json!({"type": "relay", "events": [dm]}).to_string();
    let answer = hand_over(&harbour.app(), &payload).await;
    assert_eq!(answer["results"][0]["reason"], reason, "{answer}");
    assert_eq!((harbour.sea.sent_to(A).len(), waiting_rows(&harbour).await), (tries, 0));
}

/// A switch: while it is off, the model refuses for good.
#[derive(Clone, Default)]
struct Healed(Arc<AtomicBool>);

impl Healed {
    fn heal(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// As `script`, or a refusal.
    fn or_refusal(&self, script: fn(&Asked) -> Answer) -> impl Fn(&Asked) -> Answer + Send + Sync + 'static {
        let healed = self.clone();
        move |asked| match healed.0.load(Ordering::SeqCst) {
            true => script(asked),
            false => Answer::Refusal(401, vec![], json!({"error": {"message": "no such key"}}).to_string()),
        }
    }
}

#[tokio::test]
async fn a_word_of_no_answer_that_nobody_took_for_three_days_is_a_dead_letter_that_may_be_run_again() {
    let healed = Healed::default();
    let (harbour, dm) = harbour_with_a_guest(healed.or_refusal(echo)).await;
    for _ in 0..4 * 24 {
        harbour.tick().await;
        harbour.clock.forward(60 * MINUTE);
    }
    let record = find(&harbour, &dm).await;
    let reason = "the model's provider refused the key or the account; no relay of the recipient took the reply for three days";
    assert_eq!((record.status, record.reason.as_deref()), (Status::Dead, Some(reason)));
    assert_eq!(record::dead(&harbour.app(), 10).await.unwrap(), std::slice::from_ref(&record));

    healed.heal();
    harbour.sea.set_foreign(A, Manner::Gives(500));
    record::retry(&harbour.app(), &record.run_id).await.unwrap();
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    let replies: Vec<String> = harbour.sea.replies(&secret(3)).into_iter().map(|(_, text)| text).collect();
    let record = find(&harbour, &dm).await;
    assert_eq!((record.status, record.reason, replies), (Status::Done, None, vec!["HELLO".to_owned()]));
}

#[tokio::test]
async fn where_no_relay_of_a_list_takes_a_reply_the_list_is_read_again() {
    let (harbour, dm) = harbour_with_a_guest(echo).await;
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
    harbour.sea.set_foreign(B, Manner::Gives(500));
    harbour.sea.post(&relay_list(&secret(3), 10_050, &[B], &harbour));
    let answer = harbour.tick().await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!((harbour.sea.on(B, 1059).len(), find(&harbour, &dm).await.status), (1, Status::Done));
}

#[tokio::test]
async fn beside_a_queue_too_a_reply_that_no_relay_took_waits_for_its_time_in_the_due_list() {
    let harbour = harbour(&[(A, Manner::Busy)], echo).await;
    let dm = message(&harbour, &secret(2), "hello");
    let queue = Arc::new(MemoryQueue::default());
    let with_queue = || {
        let mut app = harbour.app();
        app.queue = Some(queue.clone());
        app
    };
    let resume = json!({"type": "resume", "run": run_id(&dm_trigger_id(&dm_id(&dm)))}).to_string();
    let mut outcomes_of_runs = Vec::new();
    for minute in 0..60 {
        if minute == 30 {
            harbour.sea.set_foreign(A, Manner::Gives(500));
        }
        tick(&with_queue()).await;
        if queue.taken().len() > outcomes_of_runs.len() {
            outcomes_of_runs.push(outcomes(&hand_over(&with_queue(), &resume).await)[0].to_owned());
        }
        harbour.clock.forward(MINUTE);
    }
    // Each time a tick queues it, until it is delivered; nobody else does.
    let (last, before) = outcomes_of_runs.split_last().unwrap();
    assert!(last == "replied" && before.iter().all(|outcome| outcome == "queued"), "{outcomes_of_runs:?}");
    assert!((3..10).contains(&before.len()), "{outcomes_of_runs:?}");
    assert_eq!((harbour.sea.on(A, 1059).len(), find(&harbour, &dm).await.attempt), (1, 1));
}

/// Whoever changes its list with every try makes the record no larger.
#[tokio::test]
async fn of_a_reply_that_has_not_arrived_the_record_tells_of_the_relays_of_the_newest_list() {
    let (harbour, dm) = harbour_with_a_guest(echo).await;
    for n in 0..10 {
        harbour.tick().await;
        harbour.clock.forward(60 * MINUTE);
        let relays: Vec<String> = (0..6).map(|relay| format!("wss://r{n}-{relay}.test")).collect();
        let relays: Vec<&str> = relays.iter().map(String::as_str).collect();
        harbour.sea.post(&relay_list(&secret(3), 10_050, &relays, &harbour));
    }
    harbour.clock.forward(60 * 6 * MINUTE);
    harbour.tick().await;
    let of_others = |record: RunRecord| -> Vec<String> {
        let relays = record.deliveries.into_iter().map(|delivery| delivery.relay);
        relays.filter(|relay| relay != OWN).collect()
    };
    let expected = [0, 1, 2, 3].map(|relay| format!("wss://r9-{relay}.test"));
    assert_eq!(of_others(find(&harbour, &dm).await), expected);
}

fn posts(asked: &Asked) -> Answer {
    match asked.result() {
        Some(_) => Answer::Text(asked.last_text("tool").to_owned()),
        None => Answer::call("nostr_post", json!({"content": "a note"})),
    }
}

#[tokio::test]
async fn a_note_that_no_relay_took_is_sent_again_by_later_ticks_as_the_same_event() {
    let harbour = harbour(&[(A, Manner::Gives(500))], posts).await;
    harbour.sea.set(1, Manner::Busy);
    let dm = message(&harbour, &secret(2), "post");
    assert_eq!(outcomes(&harbour.tick().await), ["replied"]);
    let said = harbour.answers();
    assert!(said[0].contains("saved and sent again by itself"), "{said:?}");
    assert_eq!((find(&harbour, &dm).await.status, harbour.sea.on(OWN, 1).len()), (Status::Done, 0));

    harbour.sea.set(1, Manner::Gives(500));
    // The note, and the copy of the reply to ourselves.
    assert_eq!(tick_until_sent(&harbour).await, json!({"sent": 2, "accepted": 2}));
    let notes = harbour.sea.on(OWN, 1);
    let first = harbour.sea.sent_to(OWN)[0];
    assert_eq!((notes, waiting_rows(&harbour).await), (BTreeSet::from([first]), 0));
}

#[tokio::test]
async fn of_a_note_that_no_relay_took_for_three_days_the_admin_is_told_once() {
    let harbour = harbour(&[(A, Manner::Gives(500))], posts).await;
    harbour.sea.set(1, Manner::Busy);
    message(&harbour, &secret(2), "post");
    harbour.tick().await;
    let note = harbour.sea.sent_to(OWN)[0];
    for _ in 0..4 * 4 {
        harbour.clock.forward(DAY / 4);
        harbour.tick().await;
    }
    let told = harbour.answers();
    let notices: Vec<&String> = told.iter().filter(|text| text.starts_with("I could not publish")).collect();
    assert_eq!(notices.len(), 1, "{told:?}");
    assert!(notices[0].contains(&note.to_hex()), "{told:?}");
}

/// How often the agent's own relay was sent its first event, which is the note.
fn note_sent(harbour: &Harbour) -> usize {
    let sent = harbour.sea.sent_to(OWN);
    sent.iter().filter(|id| **id == sent[0]).count()
}

async fn ticks(harbour: &Harbour, count: usize) {
    for _ in 0..count {
        harbour.clock.forward(10 * MINUTE);
        harbour.tick().await;
    }
}

#[tokio::test]
async fn a_note_that_a_relay_refused_for_good_is_not_offered_again_by_whoever_takes_the_run_over() {
    let reached = Arc::new(Notify::new());
    let at_second = Arc::clone(&reached);
    let script = move |asked: &Asked| match asked.number {
        2 => {
            at_second.notify_one();
            Answer::Hang
        }
        _ => posts(asked),
    };
    let harbour = harbour(&[(A, Manner::Gives(500))], script).await;
    harbour.sea.set(1, Manner::Blocks);
    let dm = message(&harbour, &secret(2), "post");
    let victim = harbour.app();
    tokio::select! {
        biased;
        () = reached.notified() => {}
        answer = tick(&victim) => panic!("{answer}"),
    }
    ticks(&harbour, 6).await;
    let record = find(&harbour, &dm).await;
    assert_eq!((record.status, record.attempt, note_sent(&harbour)), (Status::Done, 2, 1));
    let of_note = record.deliveries.iter().find(|delivery| delivery.event == harbour.sea.sent_to(OWN)[0]);
    let of_note = of_note.map(|delivery| (delivery.tries, delivery.refused.as_deref()));
    assert_eq!(of_note, Some((1, Some("rejected: blocked: not you"))));
}

#[tokio::test]
async fn a_note_that_the_outbox_saw_refused_for_good_is_not_offered_again_when_its_run_is_run_again() {
    let healed = Healed::default();
    let ill = healed.or_refusal(posts);
    let script = move |asked: &Asked| if asked.result().is_some() { ill(asked) } else { posts(asked) };
    let harbour = harbour(&[(A, Manner::Gives(500))], script).await;
    harbour.sea.set(1, Manner::Busy);
    let dm = message(&harbour, &secret(2), "post");
    harbour.tick().await;
    let dead = find(&harbour, &dm).await;
    assert_eq!((dead.status, note_sent(&harbour)), (Status::Dead, 1));
    harbour.sea.set(1, Manner::Blocks);
    tick_until_sent(&harbour).await;
    assert_eq!(note_sent(&harbour), 2);

    healed.heal();
    record::retry(&harbour.app(), &dead.run_id).await.unwrap();
    ticks(&harbour, 6).await;
    assert_eq!((find(&harbour, &dm).await.status, note_sent(&harbour)), (Status::Done, 2));
}

/// The tick that answers, or the one that sends again, dies at any call.
#[tokio::test]
async fn nothing_is_lost_or_doubled_when_a_tick_dies_at_any_call() {
    for (side, dies_at_first) in
        [(Side::Before, true), (Side::After, true), (Side::Before, false), (Side::After, false)]
    {
        let mut at = 0;
        loop {
            at += 1;
            let what = format!("crash {side:?} call {at}, first tick: {dies_at_first}");
            let harbour = harbour(&[(A, Manner::Gives(500)), (B, Manner::Busy)], posts).await;
            let dm = message(&harbour, &secret(2), "post");
            if !dies_at_first {
                harbour.tick().await;
                harbour.sea.set_foreign(B, Manner::Gives(500));
                harbour.clock.forward(MINUTE);
            }
            let fault = Fault::crash(at, side);
            let mut app = harbour.app();
            fault.install(&mut app);
            fault.until_crash(tick(&app)).await;
            harbour.sea.set_foreign(B, Manner::Gives(500));
            for _ in 0..3 {
                harbour.clock.forward(2 * MINUTE);
                harbour.tick().await;
            }
            assert_eq!(find(&harbour, &dm).await.status, Status::Done, "{what}");
            assert_eq!((harbour.sea.on(A, 1059).len(), harbour.answers().len()), (1, 1), "{what}");
            assert_eq!(harbour.sea.on(B, 1059), harbour.sea.on(A, 1059), "{what}");
            assert_eq!((harbour.sea.on(OWN, 1).len(), waiting_rows(&harbour).await), (1, 0), "{what}");
            if !fault.was_reached() {
                break;
            }
        }
        assert!(at > 10, "{side:?}: the tick ended after {at} calls");
    }
}

#[tokio::test]
async fn what_a_newer_version_sends_is_left_to_it_and_stops_nobody_elses_outbox() {
    let harbour = harbour(&[(A, Manner::Busy), (C, Manner::Gives(500))], echo).await;
    let [newer, ours] = ["of a newer version", "ours"].map(|text| message(&harbour, &secret(2), text));
    harbour.tick().await;
    assert_eq!(waiting_rows(&harbour).await, 2);
    let run = run_id(&dm_trigger_id(&dm_id(&newer)));
    let range = Range { prefix: keys::REPLY_PREFIX.to_owned(), ..Range::whole(keys::run_partition(&run)) };
    let reply = harbour.app().store.list(&range).await.unwrap().remove(0);
    let put = |value: &[u8]| Write::put(reply.key.clone(), Expect::Anything, value.to_vec(), None);
    let of_newer = [&[99], &reply.value[1..]].concat();
    harbour.app().store.write(&[put(&of_newer)]).await.unwrap();

    harbour.sea.set_foreign(A, Manner::Gives(500));
    assert_eq!(tick_until_sent(&harbour).await, json!({"sent": 1, "accepted": 1}));
    assert_eq!(waiting_rows(&harbour).await, 1);
    let record = find(&harbour, &ours).await;
    assert!(record.deliveries.iter().all(|delivery| delivery.refused.is_none()), "{:?}", record.deliveries);
    // The newer version, which can read it, sends the rest.
    harbour.app().store.write(&[put(&reply.value)]).await.unwrap();
    assert_eq!(tick_until_sent(&harbour).await, json!({"sent": 1, "accepted": 1}));
    assert_eq!(waiting_rows(&harbour).await, 0);
}
