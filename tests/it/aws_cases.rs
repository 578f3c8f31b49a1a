//! Faults of other agents on AWS, as inputs for this one, over both stores. Each test names its row of the case list;
//! the rows about throttling are in `wire.rs`.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::config::{Builder, Credentials, Region};
use didactyl::aws::Aws;
use didactyl::clock::Deadline;
use didactyl::handler;
use didactyl::kinds;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::NOTE;
use didactyl::publish::MAX_PART_BYTES;
use didactyl::record::{self, Status, dm_trigger_id, run_id};
use didactyl::run::journal::Journal;
use didactyl::state::AgentState;
use didactyl::store::dynamodb::DynamoDb;
use futures_util::future::join_all;
use nostr::nips::nip04 as encryption;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::agent::{
    TestAgent, agent_key, app_over, config, deliver_to, dm_id, echo, kind4, load_from_store, nip17, nip17_at,
    outcomes, secret, trigger,
};
use crate::dm_cases::remember;
use crate::fake_relay::FakeRelay;
use crate::ground::{On, on_each_store};
use crate::round_trips::{Counter, STATE_ROWS};

on_each_store! {
    b045_twelve_messages_of_one_second_worked_by_twelve_processes_are_all_in_the_conversation,
    b047_tool_results_larger_than_a_row_are_cut_and_the_reply_is_sent,
    b047_a_final_answer_larger_than_a_row_is_sent_in_parts_and_its_end_is_marked,
    b047_an_answer_with_calls_that_is_larger_than_a_row_is_cut_and_the_model_hears_of_it,
    b047_a_message_that_grows_in_its_row_is_answered,
    b047_of_a_long_conversation_a_run_reads_the_newest_rows_alone,
    b111_empty_and_repeated_tags_come_back_from_the_store_as_they_were,
    b111_a_list_that_becomes_empty_takes_its_skills_along,
    b115_a_payload_that_comes_three_times_after_failures_posts_one_note,
}

fn admin() -> Keys {
    secret(2)
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

async fn b045_twelve_messages_of_one_second_worked_by_twelve_processes_are_all_in_the_conversation(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let now = Timestamp::now();
    let tasks = (0..12).map(|n| {
        let (app, relay) = (agent.another(), agent.relay_url.clone());
        let dm = nip17_at(&admin(), &format!("message {n:02}"), now);
        tokio::spawn(async move { deliver_to(&app, &relay, &[dm]).await.unwrap() })
    });
    for answer in join_all(tasks).await {
        let answer = answer.unwrap();
        // Whoever comes while another message is answered leaves its own to that worker.
        assert!(matches!(outcomes(&answer)[..], ["replied" | "busy"]), "{answer}");
    }
    let mut history = agent.history(admin().public_key()).await;
    history.sort();
    let said = |who, what: &str| (0..12).map(|n| (who, format!("{what} {n:02}"))).collect::<Vec<_>>();
    assert_eq!(history, [said("agent", "MESSAGE"), said("peer", "message")].concat());
    let mut replies = texts(&agent).await;
    replies.sort();
    assert!(replies.iter().eq(history.iter().take(12).map(|(_, text)| text)), "{replies:?}");
}

/// The run's record and its journal.
async fn run_of(agent: &TestAgent, dm: &Event) -> (record::RunRecord, Journal) {
    let id = dm_trigger_id(&dm_id(dm));
    let earlier = record::earlier(&agent.app, &run_id(&id)).await.unwrap();
    (agent.record(&id).await, earlier.journal)
}

async fn b047_tool_results_larger_than_a_row_are_cut_and_the_reply_is_sent(on: On) {
    // As much as a relay takes in one event, and together far more than a row.
    let notes = [("x", 50_000, 9), ("🦀", 14_000, 10)];
    for (piece, count, events) in notes {
        let agent = TestAgent::over(on, |asked| match asked.result() {
            None => Answer::call("nostr_query", json!({"kinds": [1], "limit": 100})),
            Some(_) => echo(asked),
        })
        .await;
        let at = Timestamp::now();
        agent
            .publish((0..events).map(|n| {
                let note = EventBuilder::new(Kind::from(1), piece.repeat(count)).custom_created_at(at - n);
                note.finalize(&secret(3)).unwrap()
            }))
            .await;
        let dm = nip17(&admin(), "look");
        assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(&dm)).await), ["replied"]);
        assert_eq!(texts(&agent).await, ["LOOK"]);

        let (record, journal) = run_of(&agent, &dm).await;
        assert_eq!(record.status, Status::Done);
        let kept = &journal.result(1, 0).unwrap().content;
        assert!(kept.len() <= 16_000, "{} bytes", kept.len());
        let result: Value = serde_json::from_str(kept).unwrap();
        let first = &result["content"]["events"][0];
        assert_eq!(first["content_bytes_in_all"], piece.len() * count, "{result}");
        assert_eq!(first["content"], piece.repeat(4_000 / piece.len()));
        assert!(result["content"]["left_out"].as_str().unwrap().contains("did not fit"), "{result}");
        assert_eq!(agent.model.requests()[1].messages().last().unwrap()["content"], *kept);
    }
}

async fn b047_a_final_answer_larger_than_a_row_is_sent_in_parts_and_its_end_is_marked(on: On) {
    for piece in ["x", "🦀"] {
        let agent = TestAgent::over(on, move |_| Answer::Text(piece.repeat(399_000 / piece.len()))).await;
        let dm = nip17(&admin(), "tell me everything");
        assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(&dm)).await), ["replied"]);
        let mut expected = vec![piece.repeat(MAX_PART_BYTES / piece.len()); 15];
        expected.push("[the rest of this answer was too long to send]".to_owned());
        assert_eq!(texts(&agent).await, expected);

        let (record, _) = run_of(&agent, &dm).await;
        assert_eq!((record.status, record.reply_ids.len()), (Status::Done, 16));
        let history = agent.history(admin().public_key()).await;
        assert!(history.iter().skip(1).map(|(_, text)| text).eq(&expected));
        assert_eq!(history[0], ("peer", "tell me everything".to_owned()));
    }
}

async fn b047_an_answer_with_calls_that_is_larger_than_a_row_is_cut_and_the_model_hears_of_it(on: On) {
    let long = |asked: &Asked| match asked.result() {
        None => Answer::Calls(vec![
            ("nostr_post".to_owned(), json!({"content": "x".repeat(399_000)})),
            ("time".to_owned(), json!({})),
        ]),
        Some(_) => echo(asked),
    };
    let agent = TestAgent::over(on, long).await;
    let dm = nip17(&admin(), "post it");
    let answer = agent.deliver(std::slice::from_ref(&dm)).await;
    assert_eq!(answer["results"][0].get("failure"), None, "{answer}");
    assert_eq!(texts(&agent).await, ["POST IT"]);
    assert_eq!(agent.on_relay(Filter::new().kind(Kind::from(1)).author(agent_key())).await, []);

    // What the model heard is what a later attempt would hear from the journal.
    let (_, journal) = run_of(&agent, &dm).await;
    let kept = journal.answer(1).unwrap();
    let requests = agent.model.requests();
    let [.., asked, refused, time] = requests[1].messages() else { panic!("a call and two results") };
    assert_eq!(asked["tool_calls"].as_array().unwrap().len(), kept.tool_calls.len());
    assert!(kept.tool_calls[0].arguments.len() < 350_000);
    assert_eq!(kept.tool_calls[1].arguments, "{}");
    assert!(
        refused["content"].as_str().unwrap().contains("they were cut off; send a shorter call"),
        "{refused}"
    );
    assert!(time["content"].as_str().unwrap().starts_with(r#"{"success":true"#), "{time}");
    assert_eq!(agent.model.refusals(), [""; 0]);
}

/// A control character is six bytes of JSON.
async fn b047_a_message_that_grows_in_its_row_is_answered(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let text = format!("hello{}", "\u{1}".repeat(90_000));
    let content = encryption::encrypt(admin().secret_key(), &agent_key(), text).unwrap();
    assert_eq!(outcomes(&agent.deliver(&[kind4(&admin(), &agent_key(), content)]).await), ["replied"]);
    assert_eq!(texts(&agent).await, ["HELLO"]);
}

async fn b047_of_a_long_conversation_a_run_reads_the_newest_rows_alone(on: On) {
    let rows = match on {
        On::Sqlite => 5_000,
        // The emulator is slow.
        On::DynamoDb => 500,
    };
    let agent = TestAgent::over(on, echo).await;
    agent.deliver(&[nip17(&admin(), "one")]).await;
    let counter = Counter::default();
    let mut app = agent.another();
    counter.install(&mut app);
    remember(&agent, rows).await;
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&admin(), "two")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    // The state as ever, sixty messages, and as many rows as may stand beside them: a new begin, the read mark, that of an
    // outage and what a guest published. The claim beside it may show that the run has the floor.
    let rows_read = counter.take().rows_read - STATE_ROWS;
    assert!((66..=67).contains(&rows_read), "{rows_read}");
    assert_eq!(agent.model.calls(), 2);
    assert_eq!(agent.history(admin().public_key()).await.len(), rows + 4);
}

/// Rows that relays may fill and no store holds. What cannot be kept is no reason to answer nobody.
#[tokio::test]
async fn b047_what_relays_tell_beyond_the_size_of_a_row_keeps_no_message_from_its_answer() {
    let (now, somebody) = (Timestamp::now(), secret(3).public_key().to_hex());
    let mut events: Vec<Event> = (0..20)
        .map(|n| {
            let tags = std::iter::repeat_n(Tag::parse(["p", somebody.as_str()]).unwrap(), 300);
            let note = EventBuilder::new(Kind::from(1), format!("note {n}")).tags(tags);
            note.custom_created_at(now - 100 - n).finalize(&admin()).unwrap()
        })
        .collect();
    let old = encryption::encrypt(admin().secret_key(), &agent_key(), "\"".repeat(180_000)).unwrap();
    events.push(kind4(&admin(), &agent_key(), old));
    let small = signed(&admin(), kinds::NOTE, &[], now - 200);
    events.push(small.clone());
    let relay = FakeRelay::serving(events).await;
    let agent = TestAgent::bare_on(relay.own().url, echo).await;
    let answer = agent.deliver(&[nip17_at(&admin(), "hello", now + 1)]).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    // The old message alone is larger than the window: it is summed up first.
    assert_eq!(agent.model.calls(), 2);
    assert_eq!(
        agent.history(admin().public_key()).await,
        [("peer", "hello".to_owned()), ("agent", "HELLO".to_owned())]
    );
    assert_eq!(stored_state(&agent).await.events.of_kind(kinds::NOTE), [&small]);
}

fn signed(author: &Keys, kind: Kind, tags: &[&[&str]], at: Timestamp) -> Event {
    let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(kind, "content").tags(tags).custom_created_at(at).finalize(author).unwrap()
}

/// What another process knows from the store alone.
async fn stored_state(agent: &TestAgent) -> AgentState {
    let app = agent.another();
    load_from_store(&app, &trigger(&app, &nip17(&admin(), "any"))).await
}

async fn b111_empty_and_repeated_tags_come_back_from_the_store_as_they_were(on: On) {
    let (agent_keys, now) = (secret(1), Timestamp::now());
    let odd: &[&[&str]] = &[&[""], &["t", ""], &["t"], &["t", "a", "a"], &["t", "a", "a"], &["d", "odd"]];
    let skill = format!("31123:{}:odd", agent_key());
    let events = [
        signed(&agent_keys, kinds::ADOPTION_LIST, &[&["a", &skill], &["a", &skill], &[""]], now),
        // No `requires_tool`, and nothing else either.
        signed(&agent_keys, kinds::PUBLIC_SKILL, odd, now),
        signed(&agent_keys, kinds::PROFILE, &[], now),
        signed(&admin(), kinds::NOTE, &[], now),
        signed(&admin(), kinds::NOTE, odd, now),
    ];
    let agent = TestAgent::bare_over(on, echo).await;
    agent.publish(events.clone()).await;
    // The message has no tags but its receiver, and the conversation keeps none.
    assert_eq!(outcomes(&agent.deliver(&[nip17(&admin(), "hello")]).await), ["replied"]);

    let state = stored_state(&agent).await;
    let mut kept: Vec<&Event> = state.events.kept().collect();
    kept.sort();
    let mut published: Vec<&Event> = events.iter().collect();
    published.sort();
    assert_eq!(kept, published);
    assert!(kept.iter().zip(published).all(|(kept, published)| kept.tags == published.tags));
    let skills: Vec<&str> = state.skills.iter().map(|skill| skill.d()).collect();
    assert_eq!(skills, ["odd"]);
}

async fn b111_a_list_that_becomes_empty_takes_its_skills_along(on: On) {
    let (agent_keys, now) = (secret(1), Timestamp::now());
    let agent = TestAgent::bare_over(on, echo).await;
    let skill = format!("31123:{}:chat", agent_key());
    agent
        .publish([
            signed(&agent_keys, kinds::PUBLIC_SKILL, &[&["d", "chat"]], now - 10),
            signed(&agent_keys, kinds::ADOPTION_LIST, &[&["a", &skill]], now - 10),
        ])
        .await;
    agent.deliver(&[nip17(&admin(), "one")]).await;
    assert_eq!(stored_state(&agent).await.skills.len(), 1);

    let empty = signed(&agent_keys, kinds::ADOPTION_LIST, &[], now);
    agent.publish([empty.clone()]).await;
    agent.clock.forward(Duration::from_secs(91));
    agent.deliver(&[nip17(&admin(), "two")]).await;
    let state = stored_state(&agent).await;
    assert_eq!(state.events.newest(kinds::ADOPTION_LIST, agent_key()), Some(&empty));
    assert!(state.skills.is_empty());
}

/// A relay that says OK to an event a second and a half later.
#[tokio::test]
async fn b051_nothing_that_an_invocation_began_is_still_under_way_when_it_answers() {
    let relay = FakeRelay::start(|mut peer| async move {
        loop {
            let frame = peer.hear().await?;
            match frame[0].as_str() {
                Some("REQ") => peer.say(json!(["EOSE", frame[1]])).await?,
                Some("EVENT") => {
                    tokio::time::sleep(Duration::from_millis(1500)).await;
                    peer.say(json!(["OK", frame[1]["id"], true, ""])).await?;
                }
                _ => {}
            }
        }
    })
    .await;
    let agent = TestAgent::bare_on(relay.own().url, echo).await;
    let (app, url, dm) = (agent.another(), agent.relay_url.clone(), nip17(&admin(), "hello"));
    let sent = dm.clone();
    // The function's own runtime, which the host freezes with the answer.
    let function = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let answer = runtime.block_on(deliver_to(&app, &url, &[sent])).unwrap();
        (answer, runtime.metrics().num_alive_tasks())
    });
    let (answer, alive) = function.await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!(record.status, Status::Done);
    assert!(record.deliveries.iter().all(|delivery| delivery.refused.is_none()), "{:?}", record.deliveries);
    // The connection to the model, which waits for the next invocation, and the clock by which its pool would end it.
    assert!(alive <= 2, "{alive} tasks are alive");
}

async fn b115_a_payload_that_comes_three_times_after_failures_posts_one_note(on: On) {
    let template = std::fs::read_to_string("template.yaml").unwrap();
    assert!(
        template.contains("EventInvokeConfig:\n        MaximumRetryAttempts: "),
        "the host's default is two"
    );

    let agent = TestAgent::over(on, |asked| match asked.number {
        1 => Answer::call("nostr_post", json!({"content": "a note"})),
        2 | 3 => Answer::Refusal(500, vec![], json!({"error": {"message": "overloaded"}}).to_string()),
        _ => echo(asked),
    })
    .await;
    let dm = [nip17(&admin(), "post it")];
    for minutes in [1, 2] {
        agent.try_deliver(&dm).await.unwrap_err();
        // So long the host waits before it comes again.
        agent.clock.forward(Duration::from_secs(60 * minutes));
    }
    assert_eq!(outcomes(&agent.deliver(&dm).await), ["replied"]);
    let notes = agent.on_relay(Filter::new().kind(Kind::from(1)).author(agent_key())).await;
    assert_eq!((notes.len(), texts(&agent).await), (1, vec![NOTE.to_owned(), "POST IT".to_owned()]));
}

/// Takes connections and never says a word.
async fn silent() -> (tokio::net::TcpListener, String) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

#[tokio::test(start_paused = true)]
async fn b117_a_server_that_never_answers_holds_an_invocation_up_for_no_longer_than_its_time() {
    let (_listener, address) = silent().await;
    for who in ["model", "relay", "store"] {
        // One that knows nothing yet, or it answers over the relays that it knows.
        let agent = TestAgent::start().await;
        let mut vars = agent.vars();
        let mut store = agent.ground.open(agent.clock.clock());
        match who {
            "model" => drop(vars.insert("SCRIPTED_BASE_URL", format!("http://{address}/v1"))),
            "relay" => drop(vars.insert("DIDACTYL_RELAYS", format!("ws://{address}"))),
            _ => {
                let config = Builder::from(Aws::default().config().await)
                    .region(Region::new("eu-central-1"))
                    .credentials_provider(Credentials::new("test", "test", None, None, "test"))
                    .endpoint_url(format!("http://{address}"));
                let client = aws_sdk_dynamodb::Client::from_conf(config.build());
                store = Arc::new(DynamoDb::new(client, "table", agent.clock.clock()));
            }
        }
        let app = app_over(config(&vars), store, &agent.clock);
        let begun = Instant::now();
        let payload = json!({"type": "relay", "events": [nip17(&admin(), who)]}).to_string();
        let answer = handler::handle(&app, &payload, Deadline::after(Duration::from_secs(25))).await;
        assert!(begun.elapsed() < Duration::from_secs(25), "{who}: {answer:?}");
        assert!(answer.is_err(), "{who}: {answer:?}");
    }
}
