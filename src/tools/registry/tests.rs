use async_trait::async_trait;

use super::*;
use crate::tools::fixture::{World, event};

fn offered(tier: Tier, tainted: bool) -> Vec<String> {
    Registry::standard().schemas(tier, tainted).into_iter().map(|schema| schema.name).collect()
}

#[test]
fn a_run_is_offered_what_its_tier_may_use_by_name_and_a_tainted_one_only_reads() {
    let all = ["agent_identity", "nostr_admin_profile", "nostr_post", "nostr_query", "time"];
    assert_eq!(offered(Tier::Admin, false), all);
    assert_eq!(offered(Tier::Admin, true), ["agent_identity", "nostr_admin_profile", "nostr_query", "time"]);
    assert_eq!(offered(Tier::Wot, false), ["agent_identity", "nostr_query", "time"]);
    assert_eq!(offered(Tier::Stranger, true), ["agent_identity", "nostr_query", "time"]);
}

#[test]
fn schemas_are_plain_objects_that_every_provider_takes() {
    let schemas = Registry::standard().schemas(Tier::Admin, false);
    let lines: Vec<String> = schemas.iter().map(|s| format!("{}: {}", s.name, s.parameters)).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    agent_identity: {"type":"object","properties":{}}
    nostr_admin_profile: {"type":"object","properties":{}}
    nostr_post: {"type":"object","required":["content"],"properties":{"kind":{"type":"integer","description":"The event's kind: 1 (a note) by default; 30023 for an article."},"content":{"type":"string","description":"The text."},"tags":{"type":"array","items":{"type":"array","items":{"type":"string"}},"description":"Tags, for example [[\"t\",\"nostr\"],[\"p\",\"npub1…\"],[\"e\",\"note1…\"]]."}}}
    nostr_query: {"type":"object","properties":{"kinds":{"type":"array","items":{"type":"integer"},"description":"Event kinds, for example [1] for notes, [0] for profiles, [30023] for articles."},"authors":{"type":"array","items":{"type":"string"},"description":"Authors: npub, nprofile or hex."},"ids":{"type":"array","items":{"type":"string"},"description":"Events: note, nevent, naddr or hex."},"tags":{"type":"object","additionalProperties":{"type":"array","items":{"type":"string"}},"description":"Tag values by the tag's letter, for example {\"t\": [\"nostr\"], \"p\": [\"npub1…\"]}."},"since":{"type":"integer","description":"Only events from this time on, in Unix seconds."},"until":{"type":"integer","description":"Only events up to this time, in Unix seconds."},"limit":{"type":"integer","description":"The most events, newest first: 20 by default, at most 100."}}}
    time: {"type":"object","properties":{}}
    "#);
}

#[tokio::test]
async fn what_a_run_may_not_use_is_refused_even_when_it_is_called() {
    let world = World::new();
    let post = r#"{"content":"hi"}"#;
    for (name, tier, tainted) in [
        ("nostr_post", Tier::Wot, false),
        ("nostr_post", Tier::Admin, true),
        ("nostr_admin_profile", Tier::Wot, false),
    ] {
        let result = world.try_call(name, post, tier, tainted).await.unwrap();
        assert_eq!(result, r#"{"success":false,"error":"this tool may not be used in this run"}"#);
    }
    assert!(world.published.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_call_that_makes_no_sense_is_answered_in_words_for_the_model() {
    let world = World::new();
    let mut results = Vec::new();
    for (name, arguments) in [
        ("nothing", "{}"),
        ("time", "{\"a"),
        ("time", "[]"),
        ("nostr_post", "{}"),
        ("nostr_post", r#"{"content":"hi","kind":70000}"#),
        ("nostr_query", r#"{"kinds":[1],"search":"x"}"#),
    ] {
        results.push(world.try_call(name, arguments, Tier::Admin, false).await.unwrap());
    }
    insta::assert_snapshot!(results.join("\n"), @r#"
    {"success":false,"error":"there is no such tool"}
    {"success":false,"error":"invalid JSON arguments: EOF while parsing a string at line 1 column 3"}
    {"success":false,"error":"invalid JSON arguments: invalid type: sequence, expected a map at line 1 column 0"}
    {"success":false,"error":"invalid arguments: missing field `content`"}
    {"success":false,"error":"invalid arguments: invalid value: integer `70000`, expected u16"}
    {"success":false,"error":"invalid arguments: unknown field `search`, expected one of `kinds`, `authors`, `ids`, `tags`, `since`, `until`, `limit`"}
    "#);
}

#[tokio::test]
async fn the_small_tools_tell_what_they_know() {
    let mut world = World::new();
    let mut results = vec![world.call("nostr_admin_profile", json!({})).await];
    world.learn([event(2, 0, 1, "not JSON")]);
    results.push(world.call("nostr_admin_profile", json!({})).await);
    let hidden = "{\"name\":\"Ada\u{202e}\",\"about\":\"a\\u0007b\"}";
    world.learn([event(3, 0, 9, r#"{"name":"Eve"}"#), event(2, 0, 2, hidden)]);
    results.push(world.call("nostr_admin_profile", json!({"dummy": ""})).await);
    results.push(world.call("agent_identity", json!({})).await);
    results.push(world.call("time", json!({})).await);
    let lines: Vec<String> = results.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    {"success":false,"error":"no readable profile of the admin was found on the relays"}
    {"success":false,"error":"no readable profile of the admin was found on the relays"}
    {"success":true,"content":{"name":"Ada","about":"ab"}}
    {"success":true,"content":{"npub":"npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d","hex":"79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798","name":"Dido"}}
    {"success":true,"content":{"iso":"2026-01-01T00:00:00Z","unix":1767225600}}
    "#);
}

#[tokio::test]
async fn an_error_of_the_agent_ends_the_attempt_and_is_not_shown_to_the_model() {
    let world = World { can_save: false, ..World::new() };
    let error = world.try_call("nostr_post", r#"{"content":"hi"}"#, Tier::Admin, false).await.unwrap_err();
    assert!(matches!(error, Error::Transient(_)), "{error}");
}

struct Long(&'static str);

#[async_trait]
impl Tool for Long {
    fn name(&self) -> &'static str {
        "long"
    }
    fn description(&self) -> &'static str {
        ""
    }
    fn parameters(&self) -> Value {
        json!({"type": "object", "properties": {}})
    }
    fn class(&self) -> Class {
        Class::Read
    }
    fn lowest_tier(&self) -> Tier {
        Tier::Stranger
    }
    fn max_result_bytes(&self) -> usize {
        500
    }
    async fn call(&self, _: Value, _: &ToolContext<'_>) -> Result<Value, ToolError> {
        Ok(json!([self.0.repeat(1000)]))
    }
}

#[test]
fn a_long_result_is_cut_to_valid_json_within_the_cap_and_says_so() {
    for piece in ["x", "\"", "ü", "\n", "👩"] {
        let tool = Long(piece);
        let content = json!([piece.repeat(1000)]);
        let result = excerpt::content_in(&content, tool.max_result_bytes());
        assert!(result.len() <= 500, "{} bytes of {piece:?}", result.len());
        let cut: Value = serde_json::from_str(&result).unwrap();
        let shown = cut["content"].as_str().unwrap();
        let (whole, true_size) =
            (content.to_string(), format!(" of {} bytes left out …]\n", content.to_string().len()));
        let (head, tail) = shown.split_once("\n[… ").unwrap();
        let (_, tail) = tail.split_once(&true_size).unwrap();
        assert!(head.len() > tail.len() && whole.starts_with(head) && whole.ends_with(tail), "{result}");
        assert!(cut["note"].as_str().unwrap().contains("call again for a smaller part"), "{result}");
    }
}

#[test]
fn b047_a_result_far_larger_than_a_row_is_cut_by_its_bytes() {
    for (piece, count) in [("x", 450_000), ("🦀", 140_000)] {
        let result = excerpt::content_in(&json!(piece.repeat(count)), Long(piece).max_result_bytes());
        assert!(result.len() <= 500, "{} bytes of {piece:?}", result.len());
        let cut: Value = serde_json::from_str(&result).unwrap();
        let shown = cut["content"].as_str().unwrap();
        assert!(shown.starts_with(piece) && shown.ends_with(piece), "{result}");
        assert!(shown.contains(&format!(" of {} bytes left out …]", piece.len() * count)), "{result}");
    }
}
