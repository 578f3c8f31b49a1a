//! Skills of any text beside one of known text, whose blocks must begin where they begin alone.
#![no_main]

use didactyl_fuzz::context;
use libfuzzer_sys::fuzz_target;
use pulldown_cmark::{Event, Parser};
use serde_json::json;

const SKILL: &str = "Before.\n\n# Title\n\n```\n# code\n```\n\n- one\n  - two\n\nAfter.";
const PREPARED: &str = "\n\nBefore.\n\n## Title\n\n```\n# code\n```\n\n- one\n  - two\n\nAfter.";

fuzz_target!(|parts: (String, String, String)| {
    let (first, embedded, value) = parts;
    let skills = [("first", first.as_str()), ("middle", SKILL), ("embedded", embedded.as_str())];
    let context = context(None, &skills, &json!(value));
    let document = &context.messages[0].content;
    if context.warnings.iter().any(|warning| warning.contains("was cut")) {
        return;
    }
    let at = document.rfind(PREPARED).expect("another skill changed the text of this one");
    assert_eq!(blocks(document, at), blocks(&format!("a{PREPARED}"), 1));
});

fn blocks(text: &str, from: usize) -> Vec<(usize, String)> {
    Parser::new(text)
        .into_offset_iter()
        .filter(|(event, range)| {
            matches!(event, Event::Start(_)) && (from..from + PREPARED.len()).contains(&range.start)
        })
        .map(|(event, range)| (range.start - from, format!("{event:?}")))
        .collect()
}
