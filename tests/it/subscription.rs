//! Events that skills subscribe to: each fires once, and only what should.

mod bounds;
mod deaths;

use std::path::Path;
use std::time::Duration;

use didactyl::events::EventSet;
use didactyl::kinds;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, RunRecord, Status, run_id};
use didactyl::skill::adoption::write::adopt as adopt_tags;
use didactyl::skill::draft;
use didactyl::versions;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};

use crate::agent::{agent_key, secret};
use crate::sea::{Harbour, Manner};
use crate::skills::{SkillOf, example};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// What most of these tests subscribe to.
const DIDACTYL: &str = r##"{"kinds":[1],"#t":["didactyl"]}"##;

/// A skill with this subscription.
fn skill<'a>(d: &'a str, tags: &'a [&'a [&'a str]]) -> SkillOf<'a> {
    (d, tags, "Say what it is about.")
}

fn done(_: &Asked) -> Answer {
    Answer::Text("done".to_owned())
}

/// Puts these skills and the list of them on the relays, in the place of those before.
fn adopt(harbour: &Harbour, skills: &[SkillOf<'_>]) {
    let now = harbour.now();
    let sign = |kind: Kind, tags: Vec<Tag>, content: &str| {
        EventBuilder::new(kind, content).tags(tags).custom_created_at(now).finalize(&secret(1)).unwrap()
    };
    for (d, tags, content) in skills {
        let d: &[&str] = &["d", d];
        let tags = [d].iter().chain(*tags).map(|tag| Tag::parse(tag.iter().copied()).unwrap()).collect();
        harbour.sea.post(&sign(kinds::PUBLIC_SKILL, tags, content));
    }
    let entry = |d: &str| Tag::parse(["a".to_owned(), format!("31123:{}:{d}", agent_key())]).unwrap();
    let entries = skills.iter().map(|(d, ..)| entry(d)).collect();
    harbour.sea.post(&sign(kinds::ADOPTION_LIST, entries, ""));
}

/// An agent that subscribes to [`DIDACTYL`] since a minute.
async fn subscribed(manners: &[Manner], tags: &[&[&str]]) -> Harbour {
    let harbour = Harbour::new(manners, done).await;
    subscribe(&harbour, tags).await;
    harbour
}

async fn subscribe(harbour: &Harbour, tags: &[&[&str]]) {
    let trigger: &[&str] = &["trigger", "subscription", DIDACTYL];
    let tags: Vec<&[&str]> = [trigger].into_iter().chain(tags.iter().copied()).collect();
    adopt(harbour, &[skill("reader", &tags)]);
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
}

/// A note with these tags.
fn note_at(author: &Keys, text: &str, tags: &[&[&str]], at: Timestamp) -> Event {
    let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(kinds::NOTE, text).tags(tags).custom_created_at(at).finalize(author).unwrap()
}

/// A note of the hashtag that is subscribed to, written now.
fn note(harbour: &Harbour, text: &str) -> Event {
    note_at(&secret(3), text, &[&["t", "didactyl"]], harbour.now())
}

/// The run that an event fired, if it did.
async fn run_of(harbour: &Harbour, event: &Event) -> Option<RunRecord> {
    record::find(&harbour.app(), &run_id(&format!("sub:{}", event.id))).await.unwrap()
}

/// The texts of the events that the model was asked about, in order.
fn asked_about(harbour: &Harbour) -> Vec<String> {
    let text = |asked: &Asked| {
        let event: Value = serde_json::from_str(asked.last_text("user")).unwrap();
        event["content"].as_str().unwrap().to_owned()
    };
    harbour.model.requests().iter().map(text).collect()
}

/// The example of TRIGGERS.md, published and adopted as it stands.
#[tokio::test]
async fn the_example_of_triggers_md_answers_the_admin_once_per_note() {
    let (harbour, agent) = (Harbour::new(&[Manner::Gives(500); 3], done).await, secret(1));
    let draft = draft::skill(Path::new("reader.md"), example("reader.md"), &agent).unwrap();
    assert_eq!((draft.faults, draft.remarks), (vec![], vec![]));
    let (known, now) = (EventSet::new(harbour.now()), harbour.now());
    let skill = versions::skill(&agent, &draft.definition, &known, now).unwrap();
    let tags = adopt_tags(vec![], &draft.definition.coordinate(agent.public_key()), None);
    harbour.sea.post_all(vec![skill, versions::adoption_list(&agent, tags, &known, now).unwrap()]);
    harbour.tick().await;
    harbour.sea.post(&note(&harbour, "How do I install it?"));
    for _ in 0..2 {
        harbour.tick().await;
    }
    assert_eq!((asked_about(&harbour).len(), harbour.answers()), (1, vec!["done".to_owned()]));
}

fn told(answer: &Value) -> &Value {
    &answer["sweep"]["relays"][0]["subscriptions"]
}

#[tokio::test]
async fn a_note_fires_once_over_three_relays_and_the_agents_own_never() {
    let harbour = subscribed(&[Manner::Gives(500); 3], &[]).await;
    let (first, second) = (note(&harbour, "first"), note(&harbour, "second"));
    let own = note_at(&secret(1), "own", &[&["t", "didactyl"]], harbour.now());
    harbour.sea.post_all(vec![first.clone(), second.clone(), own.clone()]);
    for _ in 0..3 {
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    let mut texts = asked_about(&harbour);
    texts.sort();
    assert_eq!(texts, ["first", "second"]);
    for event in [&first, &second] {
        let record = run_of(&harbour, event).await.unwrap();
        assert_eq!((record.status, record.tainted, record.attempt), (Status::Done, true, 1));
        assert_eq!(record.skills[0].0, format!("31123:{}:reader", agent_key()));
    }
    assert_eq!(run_of(&harbour, &own).await, None);
    assert_eq!(harbour.answers(), [""; 0], "it answers nobody");
}

#[tokio::test]
async fn an_own_note_fires_where_the_skill_allows_it_and_an_admins_taints_nothing() {
    let harbour = subscribed(&[Manner::Gives(500)], &[&["allow_self", "true"]]).await;
    let own = note_at(&secret(1), "own", &[&["t", "didactyl"]], harbour.now());
    let admins = note_at(&secret(2), "admin's", &[&["t", "didactyl"]], harbour.now());
    harbour.sea.post_all(vec![own.clone(), admins.clone()]);
    harbour.tick().await;
    assert!(run_of(&harbour, &own).await.unwrap().tainted);
    assert!(!run_of(&harbour, &admins).await.unwrap().tainted);
}

#[tokio::test]
async fn what_is_deleted_expired_old_dated_ahead_or_forged_fires_nothing() {
    let harbour = subscribed(&[Manner::Gives(500); 2], &[]).await;
    let (author, now) = (secret(3), harbour.now());
    let tagged = |text: &str, more: &[&[&str]], at| {
        let tag: &[&str] = &["t", "didactyl"];
        let tags: Vec<&[&str]> = [tag].into_iter().chain(more.iter().copied()).collect();
        note_at(&author, text, &tags, at)
    };
    let deletion = |by: &Keys, event: &Event| {
        let id = event.id.to_hex();
        let tag = Tag::parse(["e", &id]).unwrap();
        EventBuilder::new(kinds::DELETION, "").tag(tag).custom_created_at(now).finalize(by).unwrap()
    };
    let deleted = tagged("deleted", &[], now);
    let not_deleted = tagged("deleted by somebody else", &[], now);
    let expired = tagged("expired", &[&["expiration", &(now - 1).as_secs().to_string()]], now - 2);
    let not_expired = tagged("not expired", &[&["expiration", &(now + 60).as_secs().to_string()]], now);
    let ahead = tagged("ahead", &[], now + 3600);
    let hardly_ahead = tagged("hardly ahead", &[], now + 600);
    let before = tagged("before the adoption", &[], now - 3600);
    let other = note_at(&author, "of another hashtag", &[&["t", "didactyls"]], now);
    let mut forged = tagged("forged", &[], now);
    forged.content = "altered".to_owned();
    harbour.sea.post_all(vec![deletion(&author, &deleted), deletion(&secret(4), &not_deleted)]);
    harbour.sea.post_all(vec![deleted, not_deleted, expired, not_expired, ahead, hardly_ahead]);
    harbour.sea.post_all(vec![before, other, forged]);
    for _ in 0..2 {
        harbour.tick().await;
    }
    let mut texts = asked_about(&harbour);
    texts.sort();
    assert_eq!(texts, ["deleted by somebody else", "hardly ahead", "not expired"]);
    // Its time comes.
    harbour.clock.forward(Duration::from_secs(3600 - 800));
    harbour.tick().await;
    assert_eq!(asked_about(&harbour)[3..], ["ahead"]);
}

#[tokio::test]
async fn after_a_week_without_ticks_only_what_is_younger_than_the_maximum_age_fires() {
    let harbour = subscribed(&[Manner::Gives(500)], &[]).await;
    harbour.sea.post(&note(&harbour, "too old"));
    harbour.clock.forward(DAY);
    harbour.sea.post(&note(&harbour, "young enough"));
    harbour.clock.forward(6 * DAY + MINUTE);
    let answer = harbour.tick().await;
    assert_eq!(asked_about(&harbour), ["young enough"], "{answer}");
}

#[tokio::test]
async fn all_skills_that_an_event_fires_share_one_run() {
    let harbour = Harbour::new(&[Manner::Gives(500)], done).await;
    let filter = r##"{"#t":["didactyl","other"]}"##;
    adopt(
        &harbour,
        &[
            skill("one", &[&["trigger", "subscription", DIDACTYL]]),
            skill("two", &[&["trigger", "subscription", filter]]),
            skill("off", &[&["trigger", "subscription", filter], &["enabled", "false"]]),
        ],
    );
    harbour.tick().await;
    let event = note(&harbour, "for both");
    harbour.sea.post(&event);
    harbour.tick().await;
    let ran: Vec<String> =
        run_of(&harbour, &event).await.unwrap().skills.into_iter().map(|(skill, _)| skill).collect();
    assert_eq!(ran, ["one", "two"].map(|d| format!("31123:{}:{d}", agent_key())));
    assert_eq!(harbour.model.calls(), 1);
}

#[tokio::test]
async fn a_subscription_counts_from_the_time_at_which_the_agent_first_saw_it() {
    let harbour = Harbour::new(&[Manner::Gives(500)], done).await;
    harbour.tick().await;
    harbour.sea.post(&note(&harbour, "before it"));
    harbour.clock.forward(MINUTE);
    subscribe(&harbour, &[]).await;
    harbour.sea.post(&note(&harbour, "after it"));
    harbour.tick().await;
    assert_eq!(asked_about(&harbour), ["after it"]);

    // Another filter is another subscription.
    let trigger: &[&str] = &["trigger", "subscription", r##"{"kinds":[1],"#t":["didactyl","other"]}"##];
    let other = |text: &str| note_at(&secret(3), text, &[&["t", "other"]], harbour.now());
    harbour.sea.post(&other("before the edit"));
    harbour.clock.forward(MINUTE);
    adopt(&harbour, &[("reader", &[trigger], "Say it.")]);
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
    // Another text is not.
    adopt(&harbour, &[("reader", &[trigger], "Say it well.")]);
    harbour.sea.post(&other("after the edit"));
    harbour.tick().await;
    harbour.tick().await;
    assert_eq!(asked_about(&harbour)[1..], ["after the edit"]);
}

#[tokio::test]
async fn a_skill_that_came_later_is_not_fired_by_what_an_earlier_one_is_asked_for() {
    let harbour = subscribed(&[Manner::Gives(500)], &[]).await;
    // Too late to be seen before the other skill is there.
    harbour.sea.post(&note_at(&secret(3), "early", &[&["t", "other"]], harbour.now()));
    harbour.clock.forward(MINUTE);
    let other = r##"{"kinds":[1],"#t":["other"]}"##;
    adopt(
        &harbour,
        &[
            skill("reader", &[&["trigger", "subscription", DIDACTYL]]),
            skill("other", &[&["trigger", "subscription", other]]),
        ],
    );
    harbour.tick().await;
    harbour.tick().await;
    assert_eq!(asked_about(&harbour), [""; 0]);
    assert_eq!(told(&harbour.tick().await), &json!({"events": 1, "new": 0, "complete": true}));
}

#[tokio::test]
async fn in_standby_nothing_fires_and_what_came_then_does_not_fire_afterwards() {
    let mut harbour = subscribed(&[Manner::Gives(500)], &[]).await;
    harbour.set_var("DIDACTYL_STANDBY", "true");
    harbour.tick().await;
    harbour.sea.post(&note(&harbour, "in standby"));
    harbour.tick().await;
    harbour.clock.forward(MINUTE);
    harbour.set_var("DIDACTYL_STANDBY", "false");
    harbour.tick().await;
    harbour.sea.post(&note(&harbour, "after it"));
    harbour.tick().await;
    assert_eq!(asked_about(&harbour), ["after it"]);
}

#[tokio::test]
async fn an_authors_private_messages_fire_nothing_and_are_not_taken_for_ours() {
    let harbour = Harbour::new(&[Manner::Gives(500)], done).await;
    let filter = format!(r#"{{"authors":["{}"]}}"#, secret(3).public_key());
    adopt(&harbour, &[skill("reader", &[&["trigger", "subscription", &filter]])]);
    harbour.tick().await;
    let private = crate::sea::nip04_at(&secret(3), &secret(4).public_key(), "private", harbour.now());
    harbour.sea.post_all(vec![private, note(&harbour, "public")]);
    let answer = harbour.tick().await;
    assert_eq!(asked_about(&harbour), ["public"]);
    assert_eq!(answer["sweep"]["relays"][0]["events"], json!(0), "{answer}");
    assert_eq!(told(&harbour.tick().await)["new"], json!(0));
}
