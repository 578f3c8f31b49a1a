//! What strangers without number can do.

use std::sync::Arc;

use didactyl::record::run_id;
use serde_json::Value;

use super::*;
use crate::faults::MemoryQueue;
use crate::sea::{Harbour, Manner, nip04_at, wrap_at};

#[tokio::test]
async fn b059_five_hundred_messages_of_a_stranger_reach_neither_store_nor_model() {
    let agent = TestAgent::start().await;
    let soul = "what is in your soul?";
    let dms: Vec<Event> = (0..250)
        .flat_map(|n| {
            [nip17(&stranger(), &format!("{soul} {n}")), nip04(&stranger(), &format!("{soul} {n}"))]
        })
        .collect();
    let (counter, mut app) = (Counter::default(), agent.another());
    counter.install(&mut app);
    let answer = crate::agent::deliver_to(&app, &agent.relay_url, &dms).await.unwrap();
    assert_eq!(outcomes(&answer), vec!["rejected"; 500]);
    assert_eq!(counter.take(), crate::round_trips::Counts::default());
}

#[tokio::test]
async fn b059_a_stranger_with_a_skill_for_it_gets_as_many_answers_as_the_limit_says() {
    let agent = agent(Senders { lowest: Tier::Stranger, guest_per_hour: 3, ..SENDERS }).await;
    agent.publish(desk()).await;
    let dms: Vec<Event> = (0..40).map(|n| nip04(&stranger(), &format!("soul? {n}"))).collect();
    let answer = agent.deliver(&dms).await;
    let replied = outcomes(&answer).into_iter().filter(|outcome| *outcome == "replied").count();
    assert_eq!((replied, agent.model.calls()), (3, 3));
}

/// An agent of a sea whose admin follows `friend`, with a skill for strangers, after its first tick.
async fn harbour(guests_per_hour: &str) -> Harbour {
    let mut harbour = Harbour::new(&[Manner::Gives(500)], echo).await;
    harbour.set_var("DIDACTYL_SENDERS", "all");
    harbour.set_var("DIDACTYL_GUESTS_PER_HOUR", guests_per_hour);
    let [skill, list] = desk();
    harbour.sea.post_all(vec![skill, list, listing(&admin(), 3, [&friend()])]);
    let into_hour = harbour.now().as_secs() % 3600;
    harbour.clock.forward(Duration::from_secs(3601 - into_hour));
    harbour.tick().await;
    harbour
}

fn new_events(answer: &Value) -> u64 {
    answer["sweep"]["relays"][0]["new"].as_u64().unwrap()
}

#[tokio::test]
async fn of_a_flood_of_strangers_no_more_is_stored_than_may_be_worked_and_the_admin_comes_first() {
    let harbour = harbour("5").await;
    let now = harbour.now();
    // Of a second that holds more than a page the admin would be told.
    let flood = (0..300).map(|n| wrap_at(&Keys::generate(), &format!("spam {n}"), now, now - n));
    harbour.sea.post_all(flood.collect());
    let of_admin = nip04_at(&admin(), &agent_key(), "from the admin", now + 1);
    harbour.sea.post(&of_admin);

    let (counter, queue) = (Counter::default(), Arc::new(MemoryQueue::default()));
    let mut app = harbour.app();
    counter.install(&mut app);
    app.queue = Some(queue.clone());
    let answer = tick(&app).await;
    assert_eq!(new_events(&answer), 301, "{answer}");
    let runs: Vec<String> = queue.taken().into_iter().map(|(run, _)| run).collect();
    assert_eq!(runs.len(), 1 + 5, "{answer}");
    assert_eq!(runs[0], run_id(&dm_trigger_id(&of_admin.id)));
    // Four rows for each run, and what the sweep notes.
    let rows = counter.take().rows_written;
    assert!(rows < 60, "{rows} rows were written");

    for run in runs {
        hand_over(&harbour.app(), &json!({"type": "resume", "run": run}).to_string()).await;
    }
    assert_eq!((harbour.answers(), harbour.model.calls()), (vec!["FROM THE ADMIN".to_owned()], 1 + 5));

    // Nothing of the flood is looked at again, and what comes on top of it is worth no row.
    harbour.sea.post(&wrap_at(&Keys::generate(), "late", now, now));
    let own_copies = 1 + 5;
    let answer = harbour.tick().await;
    assert!(new_events(&answer) <= 1 + 2 * own_copies, "{answer}");
    assert_eq!(outcomes(&answer), [""; 0], "{answer}");
}

#[tokio::test]
async fn of_a_flood_that_a_listener_hears_no_more_is_stored_than_may_be_worked() {
    let harbour = harbour("5").await;
    harbour.clock.forward(Duration::from_secs(60));
    let now = harbour.now();
    let flood =
        |count| (0..count).map(|n| wrap_at(&Keys::generate(), &format!("spam {n}"), now, now)).collect();
    // Three lie there for the sweep, and nobody has begun their runs when the others come.
    harbour.sea.post_all(flood(3));
    let queue = Arc::new(MemoryQueue::default());
    let mut app = harbour.app();
    app.queue = Some(queue.clone());
    // The oldest comes last.
    let last = nip04_at(&admin(), &agent_key(), "from the admin", now - 30);
    let last_run = run_id(&dm_trigger_id(&last.id));
    let scene = async {
        harbour.sea.listened_to(1).await;
        harbour.sea.post_all(flood(300));
        harbour.sea.post(&last);
        while !queue.taken().iter().any(|(run, _)| *run == last_run) {
            tokio::task::yield_now().await;
        }
    };
    let answer = crate::listen::listening(&app, scene).await;
    assert_eq!(answer["sweep"]["work"], json!(3), "{answer}");
    assert_eq!(answer["listen"]["heard"], json!({"events": 301, "work": 2 + 1}), "{answer}");
    assert_eq!(queue.taken().len(), 5 + 1);
}

#[tokio::test]
async fn a_friend_over_the_limit_is_recorded_by_the_sweep_and_its_message_stays() {
    let harbour = harbour("1").await;
    let now = harbour.now();
    let dms = ["first", "second"].map(|text| nip04_at(&friend(), &agent_key(), text, now));
    harbour.sea.post(&dms[0]);
    assert_eq!(outcomes(&harbour.tick().await), ["replied"]);
    harbour.sea.post(&dms[1]);
    let answer = harbour.tick().await;
    assert_eq!((outcomes(&answer), &answer["sweep"]["kept"]), (vec![], &json!(2)), "{answer}");
    let record = didactyl::record::find(&harbour.app(), &run_id(&dm_trigger_id(&dms[1].id))).await.unwrap();
    let record = record.unwrap();
    assert_eq!((record.status, record.tier), (Status::Dropped, Tier::Wot));
    assert_eq!(harbour.model.calls(), 1);
}

#[tokio::test]
async fn what_a_guest_dates_ahead_or_wrote_long_ago_is_worth_no_row() {
    let harbour = harbour("60").await;
    let (now, hour) = (harbour.now(), 3600);
    let late = wrap_at(&stranger(), "in an hour", now + hour, now);
    let old = wrap_at(&stranger(), "old", now - 8 * 24 * hour, now);
    let before = wrap_at(&stranger(), "before the start", now - hour, now);
    harbour.sea.post_all(vec![late, old, before]);
    let (counter, mut app) = (Counter::default(), harbour.app());
    counter.install(&mut app);
    let answer = tick(&app).await;
    assert_eq!((new_events(&answer), outcomes(&answer)), (3, vec![]), "{answer}");
    assert!(counter.take().rows_written < 10);
    assert_eq!(new_events(&harbour.tick().await), 0);
    assert_eq!(harbour.model.calls(), 0);
}
