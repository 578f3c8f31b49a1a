use nostr::prelude::{FromBech32, Timestamp};

use super::*;
use crate::tools::fixture::World;

async fn post(arguments: Value) -> Result<Event, String> {
    let world = World::new();
    let result = world.call("nostr_post", arguments).await;
    let published = world.published.lock().unwrap().pop();
    assert_eq!(result["success"] == true, published.is_some(), "{result}");
    published.ok_or_else(|| result["error"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_note_is_signed_now_and_every_relays_word_is_told() {
    let mut world = World::new();
    world.outcomes = vec![Ok(()), Err(RelayError::Rejected("blocked: no".into()))];
    let result = world.call("nostr_post", json!({"content": "hi", "tags": [["t", "nostr"]]})).await;
    let event = world.published.lock().unwrap().pop().unwrap();
    assert!(event.verify().is_ok());
    assert_eq!((event.kind, event.content.as_str()), (Kind::from(1), "hi"));
    assert_eq!((event.pubkey, event.created_at), (world.agent.public_key(), Timestamp::from(1_767_225_600)));
    let content = &result["content"];
    assert_eq!(content["id"], event.id.to_hex());
    let nevent = Nip19Event::from_bech32(content["nevent"].as_str().unwrap()).unwrap();
    assert_eq!((nevent.event_id, nevent.author), (event.id, Some(event.pubkey)));
    let relays = json!([
        {"relay": "wss://r1.test", "accepted": true},
        {"relay": "wss://r2.test", "accepted": false, "reason": "rejected: blocked: no"},
    ]);
    assert_eq!((&content["accepted_by"], &content["relays"]), (&json!(1), &relays));
}

#[tokio::test]
async fn the_model_learns_when_no_relay_took_it_or_one_has_a_newer_version() {
    let mut world = World::new();
    let arguments = json!({"kind": 30023, "content": "text", "tags": [["d", "t"]]});
    world.outcomes = vec![Ok(()), Err(RelayError::Replaced("have newer".into()))];
    let result = world.call("nostr_post", arguments.clone()).await;
    assert_eq!(result["content"]["note"], "a relay holds a newer version, so there this one changes nothing");

    world.outcomes = vec![Err(RelayError::Timeout), Err(RelayError::Replaced("have newer".into()))];
    let result = world.call("nostr_post", arguments.clone()).await;
    let id = world.published.lock().unwrap()[0].id;
    let error = format!(
        "no relay accepted the event {id} yet. It is saved and sent again by itself for up to three days, so do not post it \
         again: wss://r1.test: timed out; wss://r2.test: replaced: have newer"
    );
    assert_eq!(result["error"], error);

    world.outcomes = [1, 2].map(|_| Err(RelayError::Rejected("blocked: no".into()))).to_vec();
    let result = world.call("nostr_post", arguments.clone()).await;
    let told = result["error"].as_str().unwrap();
    assert!(
        told.ends_with(": wss://r1.test: rejected: blocked: no; wss://r2.test: rejected: blocked: no"),
        "{told}"
    );
    assert!(!told.contains("again"), "{told}");

    world.targets.clear();
    let result = world.call("nostr_post", arguments).await;
    assert!(result["error"].as_str().unwrap().ends_with("there is no relay to publish to"));
}

#[tokio::test]
async fn kinds_that_are_not_the_models_to_publish_are_refused() {
    let table =
        [0, 3, 4, 5, 7, 13, 14, 41, 1059, 10_000, 10_123, 19_999, 22_242, 24_133, 24_242, 27_235, 30_000];
    let mut told = Vec::new();
    for kind in table.into_iter().chain([30_024, 30_078, 31_120, 31_123, 31_124, 39_999]) {
        told.push(post(json!({"kind": kind, "content": "x", "tags": [["d", "x"]]})).await.unwrap_err());
    }
    insta::assert_snapshot!(told.join("\n"), @r"
    kind 0 is not published with nostr_post: it would replace what the agent has published before
    kind 3 is not published with nostr_post: it would replace what the agent has published before
    kind 4 is not published with nostr_post: private messages are sealed and sent by the agent itself
    kind 5 is not published with nostr_post: deleting is not posting
    kind 7 is not published with nostr_post: reactions are not posted as free events
    kind 13 is not published with nostr_post: private messages are sealed and sent by the agent itself
    kind 14 is not published with nostr_post: private messages are sealed and sent by the agent itself
    kind 41 is not published with nostr_post: it would replace what the agent has published before
    kind 1059 is not published with nostr_post: private messages are sealed and sent by the agent itself
    kind 10000 is not published with nostr_post: it would replace what the agent has published before
    kind 10123 is not published with nostr_post: it would replace what the agent has published before
    kind 19999 is not published with nostr_post: it would replace what the agent has published before
    kind 22242 is not published with nostr_post: it would let others act in the agent's name
    kind 24133 is not published with nostr_post: it would let others act in the agent's name
    kind 24242 is not published with nostr_post: it would let others act in the agent's name
    kind 27235 is not published with nostr_post: it would let others act in the agent's name
    kind 30000 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 30024 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 30078 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 31120 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 31123 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 31124 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    kind 39999 is not published with nostr_post: it may replace what the agent has published before; of such kinds only 30023 is open
    ");
    for kind in [1, 6, 1111, 9802, 20_000, 40_000] {
        assert_eq!(post(json!({"kind": kind, "content": "x"})).await.unwrap().kind, Kind::from(kind));
    }
}

#[tokio::test]
async fn tags_take_npubs_and_notes_and_leave_in_hex() {
    let key = World::new().admin.public_key();
    let npub = key.to_bech32().unwrap();
    let tags = json!([["p", npub, "wss://r.test"], ["t", npub], ["-"], ["q", format!("30023:{key}:x")]]);
    let event = post(json!({"content": "hi", "tags": tags})).await.unwrap();
    let tags: Vec<Vec<String>> = event.tags.iter().map(|tag| tag.as_slice().to_vec()).collect();
    let hex = key.to_hex();
    assert_eq!(
        json!(tags),
        json!([["p", hex, "wss://r.test"], ["t", npub], ["-"], ["q", format!("30023:{hex}:x")]])
    );
}

#[tokio::test]
async fn a_post_that_is_malformed_or_too_large_is_refused() {
    let p = |n: usize| vec![json!(["p", World::new().admin.public_key().to_hex()]); n];
    assert!(post(json!({"content": "hi", "tags": p(10)})).await.is_ok());
    let mut told = Vec::new();
    for arguments in [
        json!({"content": "hi", "tags": p(11)}),
        json!({"content": " \n"}),
        json!({"content": "x".repeat(MAX_CONTENT_BYTES + 1)}),
        json!({"content": "hi", "tags": [[]]}),
        json!({"content": "hi", "tags": [["", "x"]]}),
        json!({"content": "hi", "tags": [["p", "bob"]]}),
        json!({"content": "hi", "tags": [["e", "not an id"]]}),
        json!({"content": "hi", "tags": vec![["t", "x"]; 101]}),
        json!({"content": "hi", "tags": [["t", "x".repeat(MAX_TAG_BYTES)]]}),
        json!({"content": "hi", "kind": 30023}),
        json!({"content": "hi", "kind": 30023, "tags": [["d", ""]]}),
    ] {
        told.push(post(arguments).await.unwrap_err());
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    more than 10 p tags: so many people are not notified at once
    the content is empty
    the content has 32001 bytes; at most 32000 go out
    a tag is empty or has no name
    a tag is empty or has no name
    `bob` is not a person: npub, nprofile or hex
    `not an id` is not an event: note, nevent, naddr or hex
    more than 100 tags, or 16000 bytes of them
    more than 100 tags, or 16000 bytes of them
    an article needs a d tag that names it, for example ["d","my-title"]
    an article needs a d tag that names it, for example ["d","my-title"]
    "#);
}
