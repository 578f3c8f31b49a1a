//! What the admin is shown, by DM and at the terminal.

use didactyl::record::dm_trigger_id;
use nostr::prelude::Event;

use super::{order, poster};
use crate::agent::{TestAgent, dm_id, echo, nip17, secret};
use crate::process::Process;
use crate::sea::tick;

/// Without what differs each time.
fn stable(text: &str) -> String {
    text.split('\n')
        .map(|line| line.split(' ').map(masked).collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n")
}

fn masked(word: &str) -> String {
    let bare = word.trim_end_matches([':', ',', ';', '.']);
    let rest = &word[bare.len()..];
    let is_hex = bare.bytes().all(|byte| byte.is_ascii_hexdigit());
    let name = match bare {
        _ if bare.starts_with("ws://") => "[relay]",
        // Of the relay's port in the context as well.
        _ if bare.starts_with('$') => "[cost]",
        _ if bare.len() == 20 && bare.ends_with('Z') => "[time]",
        _ if is_hex && bare.len() == 8 => "[id]",
        _ => bare,
    };
    format!("{name}{rest}")
}

#[tokio::test]
async fn a_status_tells_how_the_agent_is() {
    let agent = TestAgent::with_script(echo).await;
    insta::assert_snapshot!(stable(&order(&agent, "/status").await));
    tick(&agent.app).await;
    order(&agent, "hello").await;
    insta::assert_snapshot!(stable(&order(&agent, "/status").await));
}

#[tokio::test]
async fn runs_are_told_in_one_line_each_the_last_first_without_commands() {
    let agent = TestAgent::with_script(poster).await;
    assert_eq!(order(&agent, "/runs").await, "No run yet.");
    for text in ["hello", "/help", "post"] {
        order(&agent, text).await;
        agent.clock.forward(super::MINUTE);
    }
    insta::assert_snapshot!(stable(&order(&agent, "/runs").await));
    for _ in 0..12 {
        order(&agent, "again").await;
    }
    assert_eq!(order(&agent, "/runs").await.lines().count(), 10);
}

#[tokio::test]
async fn what_is_no_command_yet_or_never_is_told_so_and_asks_no_model() {
    let agent = TestAgent::with_script(echo).await;
    let mut told = String::new();
    for text in ["/help", "/foo bar", "/spend", "/undo", "/new what is the time?", "/cancel a b", "/refresh"]
    {
        told.push_str(&format!("{text}\n{}\n\n", order(&agent, text).await));
    }
    insta::assert_snapshot!(told);
    assert_eq!(agent.model.calls(), 0);
    assert_eq!(order(&agent, "/etc/hosts").await, "/ETC/HOSTS");
}

/// What `didactyl` says with these arguments, and whether it ended well.
async fn said(agent: &TestAgent, arguments: &[&str]) -> (String, bool) {
    let mut process = Process::start(arguments, &agent.vars());
    let status = process.ended().await;
    (process.said.join("\n"), status.success())
}

#[tokio::test]
async fn at_the_terminal_runs_are_listed_and_one_is_shown_whole() {
    let agent = TestAgent::with_script(poster).await;
    assert_eq!(said(&agent, &["runs"]).await, ("no runs".to_owned(), true));
    let dm: Event = nip17(&secret(2), "post");
    agent.deliver(std::slice::from_ref(&dm)).await;
    order(&agent, "/help").await;
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;

    let (list, _) = said(&agent, &["runs"]).await;
    assert!(
        list.lines().any(|line| line.starts_with(record.short_id()) && line.contains("2 turns")),
        "{list}"
    );
    assert!(list.lines().any(|line| line.contains(" /help done")), "{list}");
    let (one, is_well) = said(&agent, &["runs", record.short_id()]).await;
    assert!(is_well, "{one}");
    for told in [
        format!("run        {}", record.run_id),
        format!("trigger    {}", record.trigger_id),
        "tools      nostr_post".to_owned(),
        format!("reply      {}", record.reply_ids[0]),
        "turns      2".to_owned(),
        "asked      turn 1: scripted/test answered".to_owned(),
        format!("skill      {} {}", record.skills[0].0, record.skills[0].1),
        "steps      claim ".to_owned(),
    ] {
        assert!(one.contains(&told), "{told}: {one}");
    }
    assert!(one.lines().any(|line| line.starts_with("relay ") && line.ends_with(" accepted")), "{one}");
    assert!(!one.contains("posted") && !one.contains("a note"), "{one}");
    let (json, _) = said(&agent, &["runs", &record.run_id, "--json"]).await;
    assert_eq!(serde_json::from_str::<didactyl::record::RunRecord>(&json).unwrap(), record);

    let (told, is_well) = said(&agent, &["runs", "ffff"]).await;
    assert!(!is_well && told.starts_with("didactyl: no run's id begins so"), "{told}");
    let (told, is_well) = said(&agent, &["runs", "retry", record.short_id()]).await;
    assert!(!is_well && told.contains("the run is no dead letter, it is: done"), "{told}");
}
