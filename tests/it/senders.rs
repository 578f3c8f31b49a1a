//! Who is answered, over every door: admins, those whom they follow, and strangers.

mod flood;
mod limits;
mod unsettled;

use std::time::Duration;

use didactyl::app::App;
use didactyl::dm::{self, Content};
use didactyl::heed::Senders;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{RunRecord, Status, dm_trigger_id};
use didactyl::trigger::Tier;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::json;

use crate::agent::{TestAgent, agent_key, dm_id, echo, hand_over, nip04, nip17, outcomes, secret};
use crate::faults::{Fault, Side};
use crate::ground::{On, on_each_store};
use crate::round_trips::Counter;
use crate::sea::{tick, wrap_at};

on_each_store! {
    over_every_door_each_setting_answers_its_tiers_alone,
    a_warm_guest_costs_one_wait_more_than_an_admin,
}

fn admin() -> Keys {
    secret(2)
}

fn stranger() -> Keys {
    secret(3)
}

/// Whom the admin follows.
fn friend() -> Keys {
    secret(4)
}

fn signed(author: &Keys, kind: u16, tags: &[&[&str]], content: &str) -> Event {
    let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    // Newer than what the agent and the admin begin with.
    let at = Timestamp::now() + 1;
    EventBuilder::new(Kind::from(kind), content).tags(tags).custom_created_at(at).finalize(author).unwrap()
}

/// A list of people: kind 3 are contacts, kind 10000 the muted.
fn listing<'a>(author: &Keys, kind: u16, whom: impl IntoIterator<Item = &'a Keys>) -> Event {
    let whom: Vec<String> = whom.into_iter().map(|keys| keys.public_key().to_hex()).collect();
    let tags: Vec<[&str; 2]> = whom.iter().map(|hex| ["p", hex.as_str()]).collect();
    signed(author, kind, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>(), "")
}

/// A skill for strangers beside the one for the admin, and the list that adopts both.
fn desk() -> [Event; 2] {
    let address = |d: &str| format!("31123:{}:{d}", agent_key());
    let (desk, chat) = (address("desk"), address("chat"));
    [
        signed(&secret(1), 31123, &[&["d", "desk"], &["trigger", "dm", "stranger"]], "# Desk\n\nBe polite."),
        signed(&secret(1), 10123, &[&["a", &desk], &["a", &chat]], ""),
    ]
}

const SENDERS: Senders = Senders { lowest: Tier::Wot, guest_per_hour: 10, guests_per_hour: 60 };

/// An agent whose admin follows `friend`, at the beginning of a day: no test crosses the end of an hour.
async fn agent_for(
    on: On,
    senders: Senders,
    script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> TestAgent {
    let mut agent = TestAgent::over(on, script).await;
    agent.app.config.senders = senders;
    agent.publish([listing(&admin(), 3, [&friend()])]).await;
    let day = 24 * 60 * 60;
    let now = agent.clock.clock().now().as_secs();
    agent.clock.forward(Duration::from_secs(day - now % day + 1));
    agent
}

async fn agent(senders: Senders) -> TestAgent {
    agent_for(On::Sqlite, senders, echo).await
}

/// The same agent in another process.
fn another(agent: &TestAgent) -> App {
    let mut app = agent.another();
    app.config.senders = agent.app.config.senders;
    app
}

/// What the agent answered `reader`, in alphabetical order.
async fn replies_to(agent: &TestAgent, reader: &Keys) -> Vec<String> {
    let filter = Filter::new().kinds([Kind::from(4), Kind::from(1059)]).pubkey(reader.public_key());
    let events = agent.on_relay(filter).await;
    let opened = events.iter().filter_map(|event| dm::open(reader, event).ok());
    let mut texts: Vec<String> = opened
        .filter(|opened| opened.author == agent_key())
        .filter_map(|opened| match opened.content {
            Content::Text(text) => Some(text),
            _ => None,
        })
        .collect();
    texts.sort();
    texts
}

async fn record_of(agent: &TestAgent, message: &Event) -> RunRecord {
    agent.record(&dm_trigger_id(&dm_id(message))).await
}

#[derive(Debug, Clone, Copy)]
enum Door {
    Relay,
    Sqs,
    Tick,
}

async fn through(agent: &TestAgent, door: Door, events: &[Event]) {
    let relay = json!({"type": "relay", "events": events, "relay": agent.relay_url});
    match door {
        Door::Relay => drop(hand_over(&agent.app, &relay.to_string()).await),
        Door::Sqs => {
            let record = json!({"eventSource": "aws:sqs", "messageId": "m", "body": relay.to_string()});
            let answer = hand_over(&agent.app, &json!({"Records": [record]}).to_string()).await;
            assert_eq!(answer, json!({"batchItemFailures": []}));
        }
        Door::Tick => {
            agent.publish(events.to_vec()).await;
            tick(&agent.app).await;
        }
    }
}

async fn over_every_door_each_setting_answers_its_tiers_alone(on: On) {
    let settings = [
        (Tier::Admin, true, vec!["admin"]),
        (Tier::Wot, true, vec!["admin", "friend"]),
        (Tier::Stranger, false, vec!["admin", "friend"]),
        (Tier::Stranger, true, vec!["admin", "friend", "stranger"]),
    ];
    for (lowest, has_desk, expected) in settings {
        for door in [Door::Relay, Door::Sqs, Door::Tick] {
            let case = format!("{lowest:?} with a desk: {has_desk}, by {door:?}");
            let agent = agent_for(on, Senders { lowest, ..SENDERS }, echo).await;
            if has_desk {
                agent.publish(desk()).await;
            }
            // The sweep's first tick only answers what is new.
            tick(&agent.app).await;
            let now = agent.clock.clock().now();
            let people = [("admin", admin()), ("friend", friend()), ("stranger", stranger())];
            let dms = people.each_ref().map(|(name, keys)| wrap_at(keys, name, now, now));
            through(&agent, door, &dms).await;

            let mut asked: Vec<String> =
                agent.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect();
            asked.sort();
            assert_eq!(asked, expected, "{case}");
            for ((name, keys), dm) in people.iter().zip(&dms) {
                let is_answered = expected.contains(name);
                let replies = if is_answered { vec![name.to_uppercase()] } else { vec![] };
                assert_eq!(replies_to(&agent, keys).await, replies, "{case}");
                if is_answered {
                    let record = record_of(&agent, dm).await;
                    let tier = [("admin", Tier::Admin), ("friend", Tier::Wot), ("stranger", Tier::Stranger)]
                        .into_iter()
                        .find_map(|(of, tier)| (of == *name).then_some(tier));
                    assert_eq!((record.status, Some(record.tier)), (Status::Done, tier), "{case}");
                }
            }
            let kept = agent.history(stranger().public_key()).await.len();
            assert_eq!(kept, if expected.len() == 3 { 2 } else { 0 }, "{case}");
        }
    }
}

async fn a_warm_guest_costs_one_wait_more_than_an_admin(on: On) {
    let agent = agent_for(on, SENDERS, echo).await;
    agent.deliver(&[nip17(&friend(), "first")]).await;
    let (counter, mut app) = (Counter::default(), another(&agent));
    counter.install(&mut app);
    let dm = nip17(&friend(), "second");
    let answer = crate::agent::deliver_to(&app, &agent.relay_url, &[dm]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let counts = counter.take();
    // Claim, three reads and the counters; counted; the reply; the record.
    assert_eq!((counts.waits, counts.store_calls, counts.store_rounds), (6, 5 + 1 + 1 + 1, 4), "{counts:?}");
    assert_eq!((counts.relay_reads, counts.model_calls, counts.publishes), (0, 1, 1), "{counts:?}");
}

/// Design §6: nothing private in a stranger's context, though the soul and the store are full of it.
#[tokio::test]
async fn a_stranger_meets_its_skill_and_nothing_of_the_admins() {
    let agent = agent(Senders { lowest: Tier::Stranger, ..SENDERS }).await;
    agent.publish(desk()).await;
    agent.publish([signed(&admin(), 1, &[], "GM from the admin")]).await;
    agent.deliver(&[nip17(&admin(), "our secret plan")]).await;
    agent.deliver(&[nip17(&friend(), "a friend's word")]).await;
    agent.deliver(&[nip17(&stranger(), "who are you?")]).await;

    let requests = agent.model.requests();
    let [of_admin, of_friend, of_stranger] = &requests[..] else { panic!("{}", requests.len()) };
    let private = ["satoshi", "Runs an agent", "GM from the admin", "secret plan"];
    let body = of_admin.body.to_string();
    assert!(private.iter().all(|text| body.contains(text)), "{body}");

    let body = of_stranger.body.to_string();
    for text in private.into_iter().chain(["a friend's word", "nostr_post", "nostr_admin_profile", "Chat"]) {
        assert!(!body.contains(text), "{text:?} in {body}");
    }
    assert!(body.contains("Be polite.") && body.contains("who are you?"), "{body}");
    // Whoever writes is not shown as the admin.
    assert!(body.contains(&format!("Admin pubkey (hex): {}", admin().public_key())), "{body}");

    let body = of_friend.body.to_string();
    for text in private.into_iter().chain(["Be polite.", "nostr_post", "nostr_admin_profile"]) {
        assert!(!body.contains(text), "{text:?} in {body}");
    }
}

#[tokio::test]
async fn a_muted_friend_and_a_bot_get_no_answer_and_a_muted_admin_stays_admin() {
    let agent = agent(SENDERS).await;
    let bot = secret(5);
    agent
        .publish([
            listing(&admin(), 3, [&friend(), &bot]),
            listing(&admin(), 10000, [&friend(), &admin()]),
            signed(&bot, 0, &[], &json!({"name": "b", "bot": true}).to_string()),
            signed(&admin(), 0, &[], &json!({"name": "a", "bot": true}).to_string()),
        ])
        .await;
    let dms = [nip17(&friend(), "muted"), nip04(&bot, "a bot"), nip17(&admin(), "the admin")];
    let answer = agent.deliver(&dms).await;
    assert_eq!(outcomes(&answer), ["rejected", "rejected", "replied"], "{answer}");
    assert_eq!(answer["results"][0]["reason"], "an admin has muted the sender");
    assert_eq!(answer["results"][1]["reason"], "the sender's profile says that it is a bot");
    // The same from what is stored, without asking a relay.
    let again = [nip17(&friend(), "muted again"), nip04(&bot, "a bot again")];
    assert_eq!(outcomes(&agent.deliver(&again).await), ["rejected", "rejected"]);
    assert_eq!(agent.model.calls(), 1);
    assert_eq!((replies_to(&agent, &friend()).await, replies_to(&agent, &bot).await), (vec![], vec![]));
    // Of whom the admin does not want to hear, nothing stays.
    assert_eq!(agent.history(friend().public_key()).await, []);
    assert_eq!(agent.history(bot.public_key()).await.len(), 2);
    let record = record_of(&agent, &dms[0]).await;
    assert_eq!((record.status, record.tier, record.due_at), (Status::Dropped, Tier::Wot, None));
}

#[tokio::test]
async fn who_is_no_friend_any_more_is_not_answered_and_who_becomes_one_is() {
    let agent = agent(SENDERS).await;
    let both = |n: u8| [nip17(&friend(), &format!("friend {n}")), nip17(&stranger(), &format!("new {n}"))];
    assert_eq!(outcomes(&agent.deliver(&both(1)).await), ["replied", "rejected"]);
    let list = EventBuilder::new(Kind::from(3), "")
        .tag(Tag::public_key(stranger().public_key()))
        .custom_created_at(Timestamp::now() + 2)
        .finalize(&admin());
    agent.publish([list.unwrap()]).await;
    agent.clock.forward(Duration::from_secs(120));
    assert_eq!(outcomes(&agent.deliver(&both(2)).await), ["rejected", "replied"]);
}

#[tokio::test]
async fn a_file_of_a_guest_is_answered_with_the_fixed_word_and_counts() {
    let agent = agent(Senders { guest_per_hour: 1, ..SENDERS }).await;
    let file = nostr::prelude::UnsignedEvent::new(
        friend().public_key(),
        Timestamp::now(),
        Kind::from(15),
        [Tag::public_key(agent_key())],
        "https://files.test/1",
    );
    let file = crate::agent::wrapped(&friend(), &json!(file).to_string());
    let answer = agent.deliver(&[file]).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(outcomes(&agent.deliver(&[nip17(&friend(), "and now?")]).await), ["rejected"]);
    assert_eq!(replies_to(&agent, &friend()).await, ["I cannot read files. Please send me text."]);
    assert_eq!(agent.model.calls(), 0);
}

/// An incomplete read proves no absence.
#[tokio::test]
async fn a_friend_whose_list_no_relay_told_yet_is_not_given_up_at_once() {
    let mut agent = TestAgent::start().await;
    agent.app.config.senders = SENDERS;
    // One of its two relays cannot be reached.
    agent.app.config.relays.push(nostr::prelude::RelayUrl::parse("ws://127.0.0.1:1").unwrap());
    let dms = [nip17(&friend(), "hello?"), nip17(&stranger(), "hello!")];
    for dm in &dms {
        let error = agent.try_deliver(std::slice::from_ref(dm)).await.unwrap_err();
        assert!(error.to_string().contains("could not be read from all relays"), "{error}");
    }
    agent.publish([listing(&admin(), 3, [&friend()]), listing(&admin(), 10000, [])]).await;
    agent.clock.forward(Duration::from_secs(120));
    // The lists are known now, and the stranger is in none.
    assert_eq!(outcomes(&agent.deliver(&dms).await), ["replied", "rejected"]);
    assert_eq!((replies_to(&agent, &friend()).await.len(), agent.model.calls()), (1, 1));
}

#[tokio::test]
async fn after_six_hours_a_guest_whose_lists_no_relay_told_is_judged_by_what_is_known() {
    let mut agent = TestAgent::start().await;
    agent.app.config.senders = SENDERS;
    agent.app.config.relays.push(nostr::prelude::RelayUrl::parse("ws://127.0.0.1:1").unwrap());
    let dm = nip17(&stranger(), "hello!");
    for _ in 0..5 {
        agent.try_deliver(std::slice::from_ref(&dm)).await.unwrap_err();
        // It is given back for ever longer times.
        agent.clock.forward(Duration::from_secs(10 * 60));
    }
    let record = record_of(&agent, &dm).await;
    assert_eq!((record.attempt, record.tries(), record.counted), (5, 0, true));
    assert_eq!(limits::counted(&agent, Some(&stranger())).await, 1);
    agent.clock.forward(Duration::from_secs(6 * 60 * 60));
    assert_eq!(outcomes(&agent.deliver(&[dm]).await), ["rejected"]);
}

#[tokio::test]
async fn a_run_of_a_guest_that_died_at_the_model_goes_on_and_counts_once() {
    let agent = agent(Senders { guest_per_hour: 1, ..SENDERS }).await;
    agent.deliver(&[nip17(&admin(), "warm")]).await;
    let dm = nip17(&friend(), "hello");
    // Before the model: claim, state, conversation, counters; relays; counted.
    let fault = Fault::crash(7, Side::Before);
    let mut victim = another(&agent);
    fault.install(&mut victim);
    tokio::select! {
        () = fault.crashed() => {}
        answer = crate::agent::deliver_to(&victim, &agent.relay_url, std::slice::from_ref(&dm)) => {
            panic!("{answer:?}")
        }
    }
    agent.end_the_lease(&dm).await;
    assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(&dm)).await), ["replied"]);
    let record = record_of(&agent, &dm).await;
    assert_eq!((record.attempt, record.counted, record.tier), (2, true, Tier::Wot));
    assert_eq!(limits::counted(&agent, Some(&friend())).await, 1);
}
