use nostr::prelude::{Nip19Coordinate, Tag, ToBech32};

use super::*;
use crate::relay::RelayError;
use crate::tools::fixture::{World, event};

/// The filters that a query becomes, or the error.
async fn filters(arguments: Value) -> String {
    let world = World::new();
    let result = world.call("nostr_query", arguments).await;
    let asked: Vec<String> =
        world.asked.lock().unwrap().iter().map(|f| serde_json::to_string(f).unwrap()).collect();
    result["error"].as_str().map_or_else(|| asked.join(" "), str::to_owned)
}

#[tokio::test]
async fn people_and_events_may_be_named_in_every_spelling() {
    let note = event(1, 1, 0, "hi");
    let npub = note.pubkey.to_bech32().unwrap();
    let address = format!("30023:{}:title", note.pubkey);
    let naddr = Nip19Coordinate::new(address.parse().unwrap(), []).to_bech32().unwrap();
    let mut told = Vec::new();
    for arguments in [
        json!({"kinds": [1, 0], "limit": 500, "since": 1, "until": 2}),
        json!({"authors": [npub, format!("nostr:{npub}"), note.pubkey.to_hex()], "limit": 0}),
        json!({"ids": [note.id.to_bech32().unwrap(), note.id.to_hex(), naddr]}),
        json!({"ids": [naddr], "kinds": []}),
        json!({"tags": {"#p": [npub], "e": [note.id.to_bech32().unwrap()], "a": [naddr, address], "t": ["nostr"]}}),
        json!({"kinds": null}),
        json!({"kinds": [], "tags": {"t": []}, "since": 5}),
        json!({"authors": ["bob"]}),
        json!({"authors": [naddr]}),
        json!({"ids": [npub]}),
        json!({"tags": {"e": [naddr]}}),
        json!({"tags": {"q": ["bob"], "a": ["bob"]}}),
        json!({"tags": {"emoji": ["x"]}}),
        json!({"authors": vec!["x"; 201]}),
        json!({"authors": ["nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"]}),
    ] {
        told.push(filters(arguments).await);
    }
    insta::assert_snapshot!(told.join("\n"), @r##"
    {"kinds":[0,1],"since":1,"until":2,"limit":100}
    {"authors":["79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"],"limit":1}
    {"authors":["79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"],"kinds":[30023],"limit":20,"#d":["title"]} {"ids":["d0b83f44917ce3fc8827fe977dead3aecd992f587cfc8cd1235d6bb955a551ff"],"limit":20}
    {"authors":["79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"],"kinds":[30023],"limit":20,"#d":["title"]}
    {"limit":20,"#a":["30023:79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798:title"],"#e":["d0b83f44917ce3fc8827fe977dead3aecd992f587cfc8cd1235d6bb955a551ff"],"#p":["79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"],"#t":["nostr"]}
    name at least one of kinds, authors, ids and tags
    name at least one of kinds, authors, ids and tags
    `bob` is not a person: npub, nprofile or hex
    `naddr1qqzhg6t5d3jsygrehen8a7wuhwk9tgrzjh8gwzc8q2dlekedec5djk0js9d3d7qhnqpsgqqqw4` is not a person: npub, nprofile or hex
    `npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d` is not an event: note, nevent, naddr or hex
    `naddr1qqzhg6t5d3jsygrehen8a7wuhwk9tgrzjh8gwzc8q2dlekedec5djk0js9d3d7qhnqpsgqqqw4` is not an event's id: note, nevent or hex
    `bob` is not an address: naddr or kind:pubkey:d
    `emoji` is not a tag of one letter
    more than 200 authors, ids and tag values; ask for fewer
    that is a secret key; it names nobody and must not be sent
    "##);
}

#[tokio::test]
async fn events_come_newest_first_and_compact() {
    let mut world = World::new();
    world.events =
        vec![event(3, 1, 10, "old"), event(3, 1059, 30, "sealed"), event(3, 1, 20, "ne\u{202e}w\u{0}")];
    let result = world.call("nostr_query", json!({"kinds": [1], "limit": 2})).await;
    insta::assert_snapshot!(result.to_string(), @r#"{"success":true,"content":{"count":2,"events":[{"id":"3dff21939c49ec0276c3ffedb6fcb39ffa5148b9060d0331dd26ff572102f7e0","kind":1059,"author":"f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9","created_at":30,"created_at_iso":"1970-01-01T00:00:30Z","content":"sealed","tags":[]},{"id":"7ebff4bb8ac589bc12d0321157bea213386419bf50f81742f9c2080dc4558a8b","kind":1,"author":"f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9","created_at":20,"created_at_iso":"1970-01-01T00:00:20Z","content":"new","tags":[]}],"complete":true}}"#);
}

#[tokio::test]
async fn what_is_missing_is_said() {
    let mut world = World::new();
    world.events = vec![event(3, 1, 1, "hi")];
    world.outcomes = vec![Ok(()), Err(RelayError::Timeout)];
    let result = world.call("nostr_query", json!({"kinds": [1]})).await;
    assert_eq!(result["content"]["complete"], false);
    assert_eq!(result["content"]["relays_failed"], json!(["wss://r2.test: timed out"]));

    world.events.clear();
    world.outcomes = vec![Err(RelayError::Connect("refused".into())), Err(RelayError::Timeout)];
    let result = world.call("nostr_query", json!({"kinds": [1]})).await;
    let error = "no relay answered: wss://r1.test: cannot connect: refused; wss://r2.test: timed out";
    assert_eq!(result, json!({"success": false, "error": error}));

    world.targets.clear();
    let result = world.call("nostr_query", json!({"kinds": [1]})).await;
    assert_eq!(result["error"], "no relay is configured to read from");
}

#[tokio::test]
async fn many_and_large_events_are_cut_to_a_result_that_is_still_json() {
    let mut world = World::new();
    world.events = (0..100).map(|n| event(3, 1, n, &"\"ü".repeat(5000))).collect();
    let result = world.call("nostr_query", json!({"kinds": [1], "limit": 100})).await;
    let content = &result["content"];
    let events = content["events"].as_array().unwrap();
    assert_eq!(events[0]["created_at"], 99);
    assert_eq!(events[0]["content_bytes_in_all"], 15_000);
    assert!(!events.is_empty() && result.to_string().len() <= NostrQuery.max_result_bytes());
    assert_eq!(
        content["left_out"],
        format!("{} older events did not fit; ask with `until`", 100 - events.len())
    );
}

#[test]
fn a_list_with_a_thousand_tags_is_shown_by_its_first() {
    let keys = nostr::prelude::Keys::generate();
    let tags = (0..1000).map(|n| Tag::parse(["t".to_owned(), n.to_string()]).unwrap());
    let event = nostr::prelude::EventBuilder::new(Kind::from(3), "").tags(tags);
    let event = nostr::prelude::FinalizeEvent::finalize(event, &keys).unwrap();
    let value = json!(Compact::of(&event));
    assert_eq!((value["tags"].as_array().unwrap().len(), &value["tags_in_all"]), (MAX_TAGS, &json!(1000)));
}
