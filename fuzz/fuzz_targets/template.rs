//! Souls, skills and values of any text: a context comes of them, within its limits, and it ends with the message.
#![no_main]

use didactyl_fuzz::{MESSAGE, context};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|parts: (String, String, String, String)| {
    let (soul, skill, embedded, value) = parts;
    let value: Value = serde_json::from_str(&value).unwrap_or_else(|_| json!(value));
    for soul in [None, Some(soul.as_str())] {
        let context = context(soul, &[("skill", &skill), ("embedded", &embedded)], &value);
        assert_eq!(context.messages.len(), context.sections.len());
        assert!(context.messages.last().is_some_and(|message| message.content.contains(MESSAGE)));
        assert!(context.messages.iter().all(|message| message.content.len() < 300_000));
        assert!(context.warnings.len() <= 101);
    }
});
