//! How often guests are answered.

use std::time::Duration;

use didactyl::heed::MAX_GUEST_ANSWERS_PER_DAY;
use didactyl::store::{Row, keys};
use futures_util::future::join_all;
use serde_json::Value;

use super::*;
use crate::agent::deliver_to;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// The messages of today and yesterday that were counted: of one guest, or of all.
pub(super) async fn counted(agent: &TestAgent, guest: Option<&Keys>) -> u64 {
    let today = agent.clock.clock().now().as_secs() / (24 * 60 * 60);
    let key = |day| keys::guest_counter(day, guest.map(|keys| keys.public_key()).as_ref());
    let rows = agent.app.store.read(&[key(today), key(today - 1)]).await.unwrap();
    let hours = |row: Row| serde_json::from_slice::<Value>(&row.value).unwrap()["hours"].take();
    let hours = rows.into_iter().flatten().map(hours);
    hours.flat_map(|hours| hours.as_object().unwrap().clone()).map(|(_, count)| count.as_u64().unwrap()).sum()
}

#[tokio::test]
async fn over_its_limit_a_guest_is_not_answered_its_message_stays_and_the_next_hour_it_is() {
    let agent = agent(Senders { guest_per_hour: 2, ..SENDERS }).await;
    let dms = ["one", "two", "three"].map(|text| nip17(&friend(), text));
    assert_eq!(outcomes(&agent.deliver(&dms[..2]).await), ["replied"; 2]);
    let answer = agent.deliver(&dms[2..]).await;
    assert_eq!(outcomes(&answer), ["rejected"]);
    let reason = "the sender has had its answers of the hour (DIDACTYL_GUEST_PER_HOUR)";
    assert_eq!(answer["results"][0]["reason"], reason);
    let record = record_of(&agent, &dms[2]).await;
    assert_eq!((record.status, record.reason.as_deref()), (Status::Dropped, Some(reason)));
    // Delivered again they are told the same way, and count once.
    assert_eq!(outcomes(&agent.deliver(&dms).await), ["replied", "replied", "rejected"]);
    assert_eq!((agent.model.calls(), counted(&agent, Some(&friend())).await), (2, 2));
    let said = agent.history(friend().public_key()).await;
    assert_eq!(said.iter().filter(|(who, _)| *who == "peer").count(), 3, "{said:?}");

    agent.clock.forward(HOUR);
    assert_eq!(outcomes(&agent.deliver(&[nip17(&friend(), "four")]).await), ["replied"]);
    // The one that was dropped stays so, and the model has read it.
    assert_eq!(outcomes(&agent.deliver(&dms[2..]).await), ["rejected"]);
    let last = agent.model.requests().pop().unwrap();
    assert!(last.body.to_string().contains("three"), "{}", last.body);
}

#[tokio::test]
async fn all_guests_together_have_a_limit_and_the_admin_has_none() {
    let agent = agent(Senders { guests_per_hour: 2, ..SENDERS }).await;
    let friends = [4, 5, 6].map(secret);
    agent.publish([listing(&admin(), 3, &friends)]).await;
    let mut told = Vec::new();
    for friend in &friends {
        let answer = agent.deliver(&[nip17(friend, "hello")]).await;
        told.extend(outcomes(&answer).into_iter().map(str::to_owned));
    }
    assert_eq!(told, ["replied", "replied", "rejected"]);
    for n in 0..3 {
        assert_eq!(outcomes(&agent.deliver(&[nip17(&admin(), &format!("order {n}"))]).await), ["replied"]);
    }
    assert_eq!(counted(&agent, None).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_guests_at_once_in_two_processes_as_many_are_answered_as_may_be() {
    let agent = agent(Senders { guests_per_hour: 3, ..SENDERS }).await;
    let friends: Vec<Keys> = (4..10).map(secret).collect();
    agent.publish([listing(&admin(), 3, &friends)]).await;
    agent.deliver(&[nip17(&admin(), "warm")]).await;
    let dms: Vec<Event> = friends.iter().map(|friend| nip17(friend, "hello")).collect();
    let apps = [another(&agent), another(&agent)];
    join_all(apps.iter().map(async |app| deliver_to(app, &agent.relay_url, &dms).await.unwrap())).await;
    // The admin's, and three.
    assert_eq!((agent.model.calls(), counted(&agent, None).await), (1 + 3, 3));
    let mut answered = 0;
    for friend in &friends {
        answered += replies_to(&agent, friend).await.len();
    }
    assert_eq!(answered, 3);
}

/// Else two agents that follow each other's owners would talk for ever (B011).
#[tokio::test]
async fn two_agents_that_answer_each_other_come_to_an_end() {
    let agent = agent(Senders { guest_per_hour: 100, ..SENDERS }).await;
    let mut said = "hello".to_owned();
    let mut answers = 0;
    loop {
        let answer = agent.deliver(&[nip17(&friend(), &said)]).await;
        if outcomes(&answer) != ["replied"] {
            assert_eq!(answer["results"][0]["reason"], "the sender has had its 20 answers of the day");
            break;
        }
        answers += 1;
        assert!(answers <= MAX_GUEST_ANSWERS_PER_DAY, "the agents talk for ever");
        said = format!("{} and so on", replies_to(&agent, &friend()).await.pop().unwrap());
    }
    assert_eq!(answers, MAX_GUEST_ANSWERS_PER_DAY);
    agent.clock.forward(24 * HOUR);
    assert_eq!(outcomes(&agent.deliver(&[nip17(&friend(), "a new day")]).await), ["replied"]);
}
