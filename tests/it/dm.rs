//! A DM, from the event to the reply on the relay.

use std::time::Duration;

use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::Status;
use didactyl::trigger::Tier;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, Tag, Timestamp, UnsignedEvent};
use serde_json::{Value, json};

use crate::agent::{
    BUDGET, TestAgent, agent_key, deliver_to, echo, nip04, nip17, nip17_at, outcomes, rumor, secret,
};
use crate::fake_relay::FakeRelay;

fn texts(replies: Vec<(nostr::prelude::EventId, String)>) -> Vec<String> {
    replies.into_iter().map(|(_, text)| text).collect()
}

#[tokio::test]
async fn a_nip17_message_is_answered_by_a_nip17_message_and_a_copy_to_ourselves() {
    let agent = TestAgent::start().await;
    let created_at = Timestamp::now();
    let answer = agent.deliver(&[nip17_at(&secret(2), "hello", created_at)]).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");

    let replies = agent.replies().await;
    assert_eq!(texts(replies.clone()), ["HELLO"]);
    let copies = agent.on_relay(Filter::new().kind(Kind::from(1059)).pubkey(agent_key())).await;
    assert_eq!(copies.len(), 1, "the copy to ourselves");

    let id = rumor(&secret(2), "hello", created_at).compute_id();
    let record = agent.record(&format!("dm:{id}")).await;
    assert_eq!(record.status, Status::Done);
    assert_eq!((record.tier, record.tainted), (Tier::Admin, false));
    assert_eq!(record.reply_ids, [replies[0].0]);
    assert!(record.deliveries.iter().all(|delivery| delivery.refused.is_none()), "{:?}", record.deliveries);
    assert_eq!(
        agent.history(secret(2).public_key()).await,
        [("peer", "hello".to_owned()), ("agent", "HELLO".to_owned())]
    );
}

#[tokio::test]
async fn a_nip04_message_is_answered_by_a_kind_4_event_that_names_it() {
    let agent = TestAgent::start().await;
    let message = nip04(&secret(2), "hello");
    // As one bare signed event, the form of a direct invocation.
    let payload = serde_json::to_string(&message).unwrap();
    let answer = handler::handle(&agent.app, &payload, Deadline::after(BUDGET)).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");

    let filter = Filter::new().kind(Kind::from(4)).author(agent_key()).pubkey(secret(2).public_key());
    let replies = agent.on_relay(filter).await;
    assert_eq!(replies.len(), 1);
    assert_eq!(replies[0].tags.event_ids().collect::<Vec<_>>(), [message.id]);
    assert_eq!(texts(agent.replies().await), ["HELLO"]);
}

/// Tells the whole context that the model saw.
fn tell_context(asked: &Asked) -> Answer {
    let seen: Vec<String> = asked
        .messages()
        .iter()
        .map(|message| {
            format!("{}: {}", message["role"].as_str().unwrap(), message["content"].as_str().unwrap())
        })
        .collect();
    Answer::Text(seen.join("\n----\n"))
}

#[tokio::test]
async fn the_model_sees_soul_skills_admin_and_the_conversation_so_far() {
    let agent = TestAgent::with_script(tell_context).await;
    let now = Timestamp::now();
    let note = EventBuilder::new(Kind::from(1), "GM from the admin").finalize(&secret(2)).unwrap();
    agent.publish([note]).await;
    agent.deliver(&[nip17_at(&secret(2), "first", now - 20)]).await;
    agent.deliver(&[nip17_at(&secret(2), "second", now - 10)]).await;
    // Both answers may bear the same second.
    let replies = texts(agent.replies().await);
    let context = replies.iter().find(|text| text.ends_with("user: second")).unwrap();
    for part in [
        "system: You are Didactyl, a sovereign agent living on Nostr.",
        "system: Administrator profile (JSON): {\"name\":\"satoshi\",\"about\":\"Runs an agent.\"}",
        "# Didactyl\n\n## Chat",
        "Your name is Didactyl and your key is npub1",
        "user: first\n----\nassistant: system: You are",
        "GM from the admin",
    ] {
        assert!(context.contains(part), "{part:?} in\n{context}");
    }
    assert!(!context.contains("Once a day"), "a cron skill is no part of a DM:\n{context}");
}

#[tokio::test]
async fn messages_that_lie_on_the_relay_are_history_at_the_first_contact() {
    let agent = TestAgent::with_script(tell_context).await;
    let now = Timestamp::now();
    let own = GiftWrapBuilder::new(
        agent_key(),
        UnsignedEvent::new(
            agent_key(),
            now - 300,
            Kind::from(14),
            [Tag::public_key(secret(2).public_key())],
            "an answer of another instance",
        ),
    );
    let old = nip17_at(&secret(2), "an old question", now - 400);
    let unanswered = nip17_at(&secret(2), "a message that is still to come", now);
    let foreign = nip17_at(&secret(3), "a stranger's word", now - 350);
    agent.publish([own.finalize(&secret(1)).unwrap(), old, unanswered.clone(), foreign]).await;

    agent.deliver(&[nip17_at(&secret(2), "now", now - 100)]).await;
    let context = texts(agent.replies().await).remove(0);
    assert!(
        context.contains("user: an old question\n----\nassistant: an answer of another instance"),
        "{context}"
    );
    assert!(!context.contains("still to come"), "work is no history:\n{context}");
    assert!(!context.contains("stranger"), "a conversation is that of two:\n{context}");

    agent.deliver(&[unanswered]).await;
    let replies = texts(agent.replies().await);
    assert!(
        replies.iter().any(|text| text.ends_with("user: a message that is still to come")),
        "{replies:?}"
    );
}

#[tokio::test]
async fn a_changed_soul_is_seen_after_a_minute_and_a_relay_that_is_down_takes_nothing_away() {
    let agent = TestAgent::start().await;
    let new_soul = |text: &str, at: Timestamp| {
        let event = EventBuilder::new(Kind::from(31120), text).tag(Tag::identifier("soul"));
        event.custom_created_at(at).finalize(&secret(1)).unwrap()
    };
    let now = Timestamp::now();
    agent.deliver(&[nip17_at(&secret(2), "one", now - 9)]).await;
    agent.publish([new_soul("I am the second soul.", now + 1)]).await;
    agent.deliver(&[nip17_at(&secret(2), "two", now - 8)]).await;
    agent.clock.forward(Duration::from_secs(91));
    agent.deliver(&[nip17_at(&secret(2), "three", now - 7)]).await;

    // From here on no relay can be read: what is known stays known.
    agent.clock.forward(Duration::from_secs(91));
    let closed = FakeRelay::start(|mut peer| async move {
        loop {
            let frame = peer.hear().await?;
            match frame[0].as_str() {
                Some("REQ") => peer.say(json!(["CLOSED", frame[1], "error: shutting down"])).await?,
                Some("EVENT") => peer.say(json!(["OK", frame[1]["id"], true, ""])).await?,
                _ => {}
            }
        }
    })
    .await;
    let mut cut_off = agent.another();
    cut_off.config.relays = vec![closed.own().url];
    let answer = deliver_to(&cut_off, &agent.relay_url, &[nip17_at(&secret(2), "four", now - 6)]).await;
    assert_eq!(outcomes(&answer.unwrap()), ["replied"]);

    let requests = agent.model.requests();
    let first_lines: Vec<&str> = requests.iter().map(first_line).collect();
    let seed = "You are Didactyl, a sovereign agent living on Nostr. You are calm, exact and brief.";
    assert_eq!(first_lines, [seed, seed, "I am the second soul.", "I am the second soul."]);
}

fn first_line(asked: &Asked) -> &str {
    asked.messages()[0]["content"].as_str().unwrap().lines().next().unwrap()
}

#[tokio::test]
async fn a_file_is_answered_with_a_fixed_text_and_a_room_once_a_day() {
    let agent = TestAgent::start().await;
    let send = |kind: u16, to: &[Keys], text: &str| -> Event {
        let tags: Vec<Tag> = to.iter().map(|key| Tag::public_key(key.public_key())).collect();
        let rumor =
            UnsignedEvent::new(secret(2).public_key(), Timestamp::now(), Kind::from(kind), tags, text);
        GiftWrapBuilder::new(agent_key(), rumor).finalize(&secret(2)).unwrap()
    };
    let file = send(15, &[secret(1)], "https://files.example/x");
    let room = [1, 2].map(|i| send(14, &[secret(1), secret(3)], &format!("hello room {i}")));
    let reaction = send(7, &[secret(1)], "+");
    let answer = agent.deliver(&[file, room[0].clone(), room[1].clone(), reaction]).await;
    assert_eq!(outcomes(&answer), ["replied", "replied", "replied", "rejected"], "{answer}");
    assert_eq!(answer["results"][1]["run"], answer["results"][2]["run"], "one note a day");

    let mut replies = texts(agent.replies().await);
    replies.sort();
    assert_eq!(
        replies,
        [
            "I answer one-to-one messages only, not rooms with others.",
            "I cannot read files. Please send me text."
        ]
    );
    assert_eq!(agent.model.calls(), 0);
}

#[tokio::test]
async fn a_long_answer_arrives_in_parts_and_in_order() {
    let paragraphs: Vec<String> =
        (0..30).map(|i| format!("{i:02} {}", "word ".repeat(300).trim_end())).collect();
    let long = paragraphs.join("\n\n");
    let script = long.clone();
    let agent = TestAgent::with_script(move |_| Answer::Text(script.clone())).await;
    let answer = agent.deliver(&[nip17(&secret(2), "tell me everything")]).await;
    assert_eq!(answer["results"][0]["reply"].as_array().unwrap().len(), 3);
    assert_eq!(texts(agent.replies().await).concat(), long);
}

#[tokio::test]
async fn two_versions_of_an_article_from_one_turn_are_dated_apart_and_the_second_counts() {
    let article =
        |text: &str| json!({"kind": 30023, "content": text, "tags": [["d", "chat"], ["title", "T"]]});
    let script = move |asked: &Asked| match asked.result() {
        None => Answer::Calls(vec![
            ("nostr_post".to_owned(), article("first text")),
            ("nostr_post".to_owned(), article("second text")),
        ]),
        Some(_) => Answer::Text("done".to_owned()),
    };
    let agent = TestAgent::with_script(script).await;
    let older =
        EventBuilder::new(Kind::from(30023), "an older version, dated ahead").tag(Tag::identifier("chat"));
    let ahead = Timestamp::now() + 600;
    agent.publish([older.custom_created_at(ahead).finalize(&secret(1)).unwrap()]).await;

    agent.deliver(&[nip17(&secret(2), "write it")]).await;
    let articles = agent.on_relay(Filter::new().kind(Kind::from(30023)).author(agent_key())).await;
    let versions: Vec<(&str, Timestamp)> =
        articles.iter().map(|event| (event.content.as_str(), event.created_at)).collect();
    assert_eq!(versions, [("second text", ahead + 2)]);
}

#[tokio::test]
async fn tool_results_are_heard_by_the_model_and_named_in_the_record() {
    let script = |asked: &Asked| match asked.result() {
        None => Answer::call("nostr_query", json!({"kinds": [1], "limit": 5})),
        Some(result) => Answer::Text(format!("I found: {}", result["content"])),
    };
    let agent = TestAgent::with_script(script).await;
    let note = EventBuilder::new(Kind::from(1), "a note to find").finalize(&secret(3)).unwrap();
    agent.publish([note]).await;
    let answer = agent.deliver(&[nip17(&secret(2), "look")]).await;

    assert!(texts(agent.replies().await)[0].contains("a note to find"));
    let run = answer["results"][0]["run"].as_str().unwrap();
    let record = didactyl::record::find(&agent.app, run).await.unwrap().unwrap();
    assert_eq!((record.turns, record.tool_calls), (2, vec!["nostr_query".to_owned()]));
    assert_eq!(record.model.as_deref(), Some("scripted/test"));
    assert_eq!(record.skills.len(), 1, "the chat skill");
}

#[tokio::test]
async fn a_bare_agent_answers_with_the_built_in_skill() {
    let agent = TestAgent::bare(echo).await;
    let answer: Value = agent.deliver(&[nip17(&secret(2), "anybody there?")]).await;
    assert_eq!(outcomes(&answer), ["replied"]);
    assert_eq!(texts(agent.replies().await), ["ANYBODY THERE?"]);
    let system = agent.model.requests()[0].messages()[0]["content"].as_str().unwrap().to_owned();
    assert!(system.starts_with("# Didactyl Agent"), "{system}");
}
