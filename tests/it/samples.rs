//! The sample payloads of `events/`, as `make invoke` hands them over.

use std::time::Duration;

use didactyl::clock::Deadline;
use didactyl::handler;

use crate::agent::{TestAgent, outcomes};

#[tokio::test]
async fn every_sample_payload_is_answered() {
    let mut names = Vec::new();
    let mut agent = TestAgent::start().await;
    agent.app.config.max_age = None;
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/events")).unwrap() {
        let path = file.unwrap().path();
        let payload = std::fs::read_to_string(&path).unwrap();
        let answer =
            handler::handle(&agent.app, &payload, Deadline::after(Duration::from_secs(60))).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{}: {answer}", path.display());
        names.push(path.file_stem().unwrap().to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["dm", "dm-event", "dm-nip04"]);
    let texts: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts.len(), 3, "{texts:?}");
    for text in ["WHAT TIME IS IT?", "WHAT IS MY PROFILE?", "HELLO!"] {
        assert!(texts.iter().any(|t| t == text), "{text} in {texts:?}");
    }
}
