//! While a relay that may have the lists is silent: no friend is lost, no muted one answered, and limits hold.

use std::sync::Arc;

use didactyl::record::{find, run_id};

use super::*;
use crate::faults::MemoryQueue;
use crate::sea::{Harbour, Manner, nip04_at};

const MINUTE: Duration = Duration::from_secs(60);

/// An agent of two relays at the beginning of an hour: the second, which alone has `lists`, is down.
async fn harbour(senders: &str, lists: Vec<Event>) -> Harbour {
    let mut harbour = Harbour::new(&[Manner::Down, Manner::Gives(500)], echo).await;
    harbour.set_var("DIDACTYL_SENDERS", senders);
    harbour.sea.post_all(lists);
    harbour.sea.set(1, Manner::Gives(500));
    harbour.sea.set(2, Manner::Down);
    let into_hour = harbour.now().as_secs() % 3600;
    harbour.clock.forward(Duration::from_secs(3601 - into_hour));
    harbour
}

fn dm(author: &Keys, text: &str, at: Timestamp) -> Event {
    nip04_at(author, &agent_key(), text, at)
}

fn friends() -> Event {
    listing(&admin(), 3, [&friend()])
}

fn said(harbour: &Harbour, to: &Keys) -> Vec<String> {
    harbour.sea.replies(to).into_iter().map(|(_, text)| text).collect()
}

async fn ticks(harbour: &Harbour, count: usize) {
    for _ in 0..count {
        harbour.clock.forward(MINUTE);
        harbour.tick().await;
    }
}

async fn record(harbour: &Harbour, dm: &Event) -> Option<RunRecord> {
    find(&harbour.app(), &run_id(&dm_trigger_id(&dm.id))).await.unwrap()
}

#[tokio::test]
async fn what_a_friend_wrote_before_the_start_is_answered_once_the_contacts_are_known() {
    let harbour = harbour("all", vec![friends()]).await;
    harbour.sea.post_all(desk().to_vec());
    let of_stranger = dm(&stranger(), "a stranger's", harbour.now() - 600);
    harbour.sea.post_all(vec![dm(&friend(), "a friend's", harbour.now() - 600), of_stranger]);
    harbour.tick().await;
    assert_eq!(harbour.model.calls(), 0);
    harbour.sea.set(2, Manner::Gives(500));
    ticks(&harbour, 2).await;
    assert_eq!(
        (said(&harbour, &friend()), said(&harbour, &stranger())),
        (vec!["A FRIEND'S".to_owned()], vec![])
    );
}

#[tokio::test]
async fn what_a_friend_writes_in_a_standby_is_held_while_the_contacts_are_unknown() {
    let mut harbour = harbour("all", vec![friends()]).await;
    harbour.sea.post_all(desk().to_vec());
    harbour.set_var("DIDACTYL_STANDBY", "true");
    let of_friend = dm(&friend(), "a friend's", harbour.now());
    harbour.sea.post(&of_friend);
    harbour.tick().await;
    assert!(record(&harbour, &of_friend).await.unwrap().held);
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.sea.set(2, Manner::Gives(500));
    ticks(&harbour, 2).await;
    assert_eq!(said(&harbour, &friend()), ["A FRIEND'S"]);
}

#[tokio::test]
async fn strangers_use_up_the_hour_and_a_friend_behind_them_is_not_taken_for_one() {
    let mut harbour = harbour("wot", vec![friends(), listing(&admin(), 10000, [])]).await;
    harbour.set_var("DIDACTYL_GUESTS_PER_HOUR", "5");
    harbour.tick().await;
    let now = harbour.now();
    let flood = |text: &str, at| (0..20).map(|_| dm(&Keys::generate(), text, at)).collect::<Vec<_>>();
    harbour.sea.post_all(flood("spam", now));
    let of_friend = dm(&friend(), "a friend's", now + 1);
    harbour.sea.post(&of_friend);
    harbour.tick().await;
    assert!(record(&harbour, &of_friend).await.is_none());
    // They are counted: the next ones are worth no row.
    let (queue, mut app) = (Arc::new(MemoryQueue::default()), harbour.app());
    app.queue = Some(queue.clone());
    harbour.sea.post_all(flood("more spam", now));
    tick(&app).await;
    assert_eq!((queue.taken().len(), harbour.model.calls()), (0, 0));

    harbour.sea.set(2, Manner::Gives(500));
    ticks(&harbour, 2).await;
    let record = record(&harbour, &of_friend).await.unwrap();
    assert_eq!((record.status, record.tier), (Status::Dropped, Tier::Wot));
    harbour.clock.forward(60 * MINUTE);
    harbour.sea.post(&dm(&friend(), "the next hour", harbour.now()));
    harbour.tick().await;
    assert_eq!(said(&harbour, &friend()), ["THE NEXT HOUR"]);
}

#[tokio::test]
async fn a_friend_waits_for_the_mute_list() {
    for muted in [vec![friend()], vec![stranger()]] {
        let harbour = harbour("wot", vec![listing(&admin(), 10000, &muted)]).await;
        harbour.sea.post(&friends());
        harbour.tick().await;
        harbour.sea.post(&dm(&friend(), "hello", harbour.now()));
        ticks(&harbour, 2).await;
        assert_eq!(harbour.model.calls(), 0, "it is not known whom the admin muted");
        harbour.sea.set(2, Manner::Gives(500));
        ticks(&harbour, 4).await;
        let is_muted = muted[0].public_key() == friend().public_key();
        let expected: &[&str] = if is_muted { &[] } else { &["HELLO"] };
        assert_eq!(said(&harbour, &friend()), expected);
    }
}

#[tokio::test]
async fn a_relay_that_is_dead_for_good_keeps_no_guest_waiting() {
    let harbour = harbour("wot", vec![]).await;
    harbour.sea.post(&friends());
    harbour.tick().await;
    harbour
        .sea
        .post_all(vec![dm(&friend(), "first", harbour.now()), dm(&stranger(), "me too", harbour.now())]);
    ticks(&harbour, 12).await;
    harbour.sea.post(&dm(&friend(), "second", harbour.now()));
    harbour.tick().await;
    let mut answers = said(&harbour, &friend());
    answers.sort();
    assert_eq!(
        (answers, said(&harbour, &stranger())),
        (vec!["FIRST".to_owned(), "SECOND".to_owned()], vec![])
    );
}
