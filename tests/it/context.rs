//! What the model sees, read as a person reads it: through `didactyl context`.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::assemble::assemble;
use didactyl::cli::context::{self, Format, Request};
use didactyl::clock::Deadline;
use didactyl::load;
use didactyl::tools::registry::Registry;
use didactyl::tools::{Class, Tool, ToolContext, ToolError};
use didactyl::trigger::Tier;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Barrier;

use crate::agent::{TestAgent, nip04, nip17, nip17_at, secret, trigger};
use crate::round_trips::Counter;

/// Didactyl's default template, below a personality.
const DEFAULT_SOUL: &str = include_str!("../../src/cli/seed/soul.md");

fn signed(keys: &Keys, kind: u16, tags: &[&[&str]], content: &str, created_at: u64) -> Event {
    EventBuilder::new(Kind::from(kind), content)
        .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
        .custom_created_at(Timestamp::from(created_at))
        .finalize(keys)
        .unwrap()
}

/// A time that makes each event newer than those of the seed.
fn later(by: u64) -> u64 {
    Timestamp::now().as_secs() + by
}

async fn publish_soul(agent: &TestAgent, by: u64, content: &str) {
    agent.publish([signed(&secret(1), 31120, &[&["d", "soul"]], content, later(by))]).await;
    // What was read before is no longer fresh.
    agent.clock.forward(Duration::from_secs(61));
}

async fn show(
    app: &App,
    payload: Option<&str>,
    format: Format,
) -> Result<String, Box<dyn std::error::Error>> {
    context::show(app, payload, &Request { format, ..Request::default() }).await
}

async fn parts(agent: &TestAgent, payload: Option<&str>) -> Value {
    serde_json::from_str(&show(&agent.app, payload, Format::Parts).await.unwrap()).unwrap()
}

/// The sections with their roles, one line each, repetitions counted.
fn outline(parts: &Value) -> Vec<String> {
    let mut lines: Vec<(String, usize)> = Vec::new();
    for section in parts["sections"].as_array().unwrap() {
        let role = if section["name"] == "dm_history" { "expand" } else { section["role"].as_str().unwrap() };
        let line = format!("{} {role}", section["name"].as_str().unwrap());
        match lines.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => lines.push((line, 1)),
        }
    }
    let times = |(line, times): (String, usize)| if times > 1 { format!("{line} ×{times}") } else { line };
    lines.into_iter().map(times).collect()
}

/// A conversation of `turns` messages and as many answers.
async fn converse(agent: &TestAgent, turns: usize) {
    for turn in 0..turns {
        let at = agent.app.clock.now();
        agent.deliver(&[nip17_at(&secret(2), &format!("message {turn}"), at)]).await;
        agent.clock.forward(Duration::from_secs(10));
    }
}

/// The admin has a note, so that no section of the template is empty.
async fn publish_note(agent: &TestAgent) {
    agent.publish([signed(&secret(2), 1, &[], "gm", later(0))]).await;
}

#[tokio::test]
async fn a_soul_without_a_template_gets_the_built_in_order() {
    let agent = TestAgent::start().await;
    publish_note(&agent).await;
    publish_soul(&agent, 1, "You are Didactyl.").await;
    converse(&agent, 7).await;
    let parts = parts(&agent, None).await;
    assert_eq!(
        outline(&parts),
        [
            "system_prompt system",
            "agent_identity system",
            "sender_verification system",
            "admin_identity system",
            "admin_profile system",
            "admin_relay_list system",
            "startup_events system",
            "adopted_skills system",
            "dm_history expand ×12",
            "admin_notes system",
            "current_message user",
        ]
    );
    assert_eq!(parts["warnings"], json!([]));
}

#[tokio::test]
async fn a_template_names_orders_and_limits_the_sections() {
    let agent = TestAgent::start().await;
    publish_note(&agent).await;
    publish_soul(&agent, 1, DEFAULT_SOUL).await;
    converse(&agent, 7).await;
    let default = [
        "system_prompt system",
        "admin_identity system",
        "admin_profile system",
        "admin_relay_list system",
        "startup_events system",
        "adopted_skills system",
        "dm_history expand ×12",
        "admin_notes system",
        "current_message user",
    ];
    assert_eq!(outline(&parts(&agent, None).await), default);
    // The names are those of the readable form too.
    let readable = show(&agent.app, None, Format::Md).await.unwrap();
    let headers: Vec<&str> = readable.lines().filter(|line| line.starts_with("Section: ")).collect();
    assert_eq!(headers.len(), 20);
    assert_eq!(
        headers[..2],
        ["Section: system_prompt | role=system", "Section: admin_identity | role=system"]
    );

    // Admin notes above the adopted skills.
    let (head, notes) = DEFAULT_SOUL.split_once("- section: admin_notes").unwrap();
    let (before, skills) = head.split_once("- section: adopted_skills").unwrap();
    let moved = format!("{before}- section: admin_notes{notes}\n- section: adopted_skills{skills}");
    publish_soul(&agent, 2, &moved).await;
    let mut expected = default.to_vec();
    expected.remove(7);
    expected.insert(5, "admin_notes system");
    assert_eq!(outline(&parts(&agent, None).await), expected);

    // Four messages of history instead of twelve: the last four.
    publish_soul(&agent, 3, &DEFAULT_SOUL.replace("limit: 12", "limit: 4")).await;
    let limited = parts(&agent, None).await;
    let mut expected = default.to_vec();
    expected[6] = "dm_history expand ×4";
    assert_eq!(outline(&limited), expected);
    let history =
        limited["sections"].as_array().unwrap().iter().filter(|section| section["name"] == "dm_history");
    let texts: Vec<&str> = history.map(|section| section["content"].as_str().unwrap()).collect();
    assert_eq!(texts, ["message 5", "MESSAGE 5", "message 6", "MESSAGE 6"]);
}

/// A request to the function URL with this body.
fn http(body: &Value) -> String {
    json!({
        "version": "2.0",
        "rawPath": "/api/prompt/agent",
        "requestContext": {"http": {"method": "POST"}},
        "headers": {"content-type": "application/json"},
        "body": body.to_string(),
        "isBase64Encoded": false,
    })
    .to_string()
}

#[tokio::test]
async fn every_door_leads_to_the_same_context_byte_for_byte() {
    let agent = TestAgent::start().await;
    publish_note(&agent).await;
    publish_soul(&agent, 1, &format!("{DEFAULT_SOUL}\n- section: who\n  content: {{{{sender_pubkey}}}} {{{{sender_tier}}}} {{{{message}}}}")).await;
    converse(&agent, 3).await;
    let text = "What is on my relays? {{admin_pubkey}}";
    let dm = |event: Event| json!({"type": "relay", "events": [event]}).to_string();
    let prompt = json!({"type": "prompt", "message": text, "max_turns": 16});
    let doors = [
        dm(nip17(&secret(2), text)),
        serde_json::to_string(&nip04(&secret(2), text)).unwrap(),
        prompt.to_string(),
        http(&json!({"message": text, "max_turns": 16})),
    ];
    for format in [Format::Json, Format::Parts, Format::Md] {
        let first = show(&agent.app, Some(&doors[0]), format).await.unwrap();
        assert!(first.contains("MESSAGE 2") && first.contains(text), "{first}");
        for door in &doors[1..] {
            assert_eq!(show(&agent.app, Some(door), format).await.unwrap(), first, "{door}");
        }
    }
    // What a request asks for is its own affair, and where it asks for nothing it has four turns.
    let mut asking = parts(&agent, Some(&http(&json!({"message": text, "model": "scripted/other"})))).await;
    let plain = parts(&agent, Some(&doors[2])).await;
    assert_eq!((&asking["model"], &asking["parameters"]["max_turns"]), (&json!("scripted/other"), &json!(4)));
    for field in ["model", "model_chain", "parameters"] {
        asking[field] = plain[field].clone();
    }
    assert_eq!(asking, plain);
}

#[tokio::test]
async fn what_is_shown_is_what_is_sent_and_showing_it_sends_nothing() {
    let mut agent = TestAgent::start().await;
    converse(&agent, 2).await;
    let counter = Counter::default();
    counter.install(&mut agent.app);
    let dm = json!({"type": "relay", "events": [nip17(&secret(2), "What time is it?")]}).to_string();
    let shown = show(&agent.app, Some(&dm), Format::Json).await.unwrap();
    for format in [Format::Md, Format::Parts] {
        show(&agent.app, Some(&dm), format).await.unwrap();
    }
    let counts = counter.take();
    assert_eq!((counts.rows_written, counts.model_calls, counts.publishes), (0, 0, 0), "{counts:?}");
    assert!(counts.rows_read > 0);
    didactyl::handler::handle(&agent.app, &dm, Deadline::after(crate::agent::BUDGET)).await.unwrap();
    let sent = agent.model.requests().pop().unwrap().body;
    assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), sent);
    assert_eq!(shown, serde_json::to_string_pretty(&sent).unwrap());
}

#[tokio::test]
async fn secrets_of_the_configuration_never_show() {
    let agent = TestAgent::start().await;
    let secret_key = secret(1).secret_key().to_secret_hex();
    publish_soul(&agent, 1, &format!("My key is {secret_key}.")).await;
    for format in [Format::Md, Format::Json, Format::Parts] {
        let shown = show(&agent.app, None, format).await.unwrap();
        assert!(!shown.contains(&secret_key) && shown.contains("My key is [redacted]."), "{shown}");
        assert!(!shown.contains("arrived_at") && !shown.contains("message_id"), "{shown}");
    }
}

#[tokio::test]
async fn each_kind_of_trigger_has_its_context() {
    let agent = TestAgent::bare(crate::agent::echo).await;
    let author = secret(1).public_key();
    let skill = |d: &str, trigger: &[&str], content: &str| {
        let trigger: Vec<&str> = ["trigger"].into_iter().chain(trigger.iter().copied()).collect();
        signed(&secret(1), 31123, &[&["d", d], &trigger], content, 1_796_000_000)
    };
    let names = ["dm", "cron", "note", "hook", "chain"];
    let coordinates: Vec<String> = names.iter().map(|d| format!("31123:{author}:{d}")).collect();
    let entries: Vec<Vec<&str>> = coordinates.iter().map(|entry| vec!["a", entry.as_str()]).collect();
    let entries: Vec<&[&str]> = entries.iter().map(Vec::as_slice).collect();
    agent
        .publish([
            signed(&secret(1), 0, &[], r#"{"name":"Didactyl"}"#, 1_796_000_000),
            signed(&secret(1), 31120, &[&["d", "soul"]], "You are Didactyl.", 1_796_000_000),
            skill("dm", &["dm"], "# Chat\n\nAnswer {{sender_tier}}."),
            skill(
                "cron",
                &["cron", "0 9 * * *"],
                "# Daily\n\nWrite a note. No sender: [{{sender_tier}}{{sender_pubkey}}]",
            ),
            skill("note", &["subscription", "{\"kinds\":[1],\"#t\":[\"nostr\"]}"], "# Watch\n\nSum it up."),
            skill(
                "hook",
                &["webhook", "deploy"],
                r#"{"template":"Tell me what was deployed.\nuser:\nA request: {{message}}"}"#,
            ),
            skill("chain", &["chain", "cron"], "# After the daily note\n\nCheck it."),
            signed(&secret(1), 10123, &entries, "", 1_796_000_000),
        ])
        .await;
    let note = signed(&secret(3), 1, &[&["t", "nostr"]], "gm {{admin_pubkey}}", 1_796_000_000);
    let triggers = [
        ("dm", json!({"type": "relay", "events": [nip17(&secret(2), "Hello!")]})),
        ("prompt", json!({"type": "prompt", "message": "Hello!"})),
        ("cron", json!({"trigger": "cron", "schedule": "0 9 * * *", "scheduled_at": 1_796_029_200})),
        ("subscription", serde_json::to_value(&note).unwrap()),
        (
            "webhook",
            json!({"type": "webhook", "slug": "deploy", "body": {"status": "done 🚀", "by": "{{soul}}"}}),
        ),
        (
            "chain",
            json!({"trigger": "chain", "from": "cron", "run": "run-1", "final_response": "I wrote a note."}),
        ),
    ];
    for (name, payload) in triggers {
        let payload = payload.to_string();
        let shown = show(&agent.app, Some(&payload), Format::Md).await.unwrap();
        insta::assert_snapshot!(format!("context_of_{name}"), shown.replace(&note.sig.to_string(), "SIG"));
        // Only what an admin wrote may move a tool that writes.
        let tools = &parts(&agent, Some(&payload)).await["tools"];
        let can_post = tools.as_array().unwrap().iter().any(|tool| tool["name"] == "nostr_post");
        assert_eq!(can_post, !matches!(name, "subscription" | "webhook"), "{name}");
    }
}

#[tokio::test]
async fn the_parts_tell_sizes_and_where_everything_came_from() {
    let agent = TestAgent::bare(crate::agent::echo).await;
    let author = secret(1).public_key();
    let at = 1_796_000_000;
    let content = "I am {{agent_name}}, of {{admin_profile}}. {{agent_identity}}{{nobody}}";
    agent
        .publish([
            signed(
                &secret(1),
                31123,
                &[
                    &["d", "chat"],
                    &["trigger", "dm"],
                    &["requires_tool", "time"],
                    &["max_turns", "3"],
                    &["temperature", "0.2"],
                ],
                content,
                at,
            ),
            signed(&secret(1), 10123, &[&["a", &format!("31123:{author}:chat")]], "", at),
        ])
        .await;
    let dm = json!({"type": "prompt", "message": "Hi"}).to_string();
    let mut parts = parts(&agent, Some(&dm)).await;
    // An id depends on a signature, which is made anew each time.
    parts["skills"][0]["event_id"] = json!("EVENT");
    insta::assert_snapshot!("parts", serde_json::to_string_pretty(&parts).unwrap());
}

#[tokio::test]
async fn what_starts_no_run_is_told_why() {
    let agent = TestAgent::start().await;
    let relay = |events: Value| json!({"type": "relay", "events": events});
    let (one, two) = (nip17(&secret(2), "one"), nip17(&secret(2), "two"));
    let get = json!({"version": "2.0", "rawPath": "/health", "requestContext": {"http": {"method": "GET"}}});
    let note = serde_json::to_value(signed(&secret(3), 1, &[], "gm", 1_796_000_000)).unwrap();
    let mut forged = note.clone();
    forged["content"] = json!("good night");
    let without = |field: &str| {
        let mut note = note.clone();
        note.as_object_mut().unwrap().shift_remove(field);
        note
    };
    let mut told = Vec::new();
    for payload in [
        json!({"type": "tick"}),
        json!({}),
        relay(json!([])),
        relay(json!([one, two])),
        relay(json!([nip17(&secret(3), "let me in")])),
        json!({"type": "resume", "run": "00000000000000000000000000000000"}),
        json!({"type": "prompt"}),
        get,
        serde_json::from_str(&http(&json!({"message": 7}))).unwrap(),
        forged,
        relay(json!([without("created_at")])),
        without("sig"),
        without("tags"),
        json!({"trigger": "cron", "schedule": "@daily"}),
        json!({"trigger": "cron", "scheduled_at": 1}),
        json!({"trigger": "cron", "schedule": "99 * * * *", "scheduled_at": 1}),
        json!({"trigger": "chain", "from": "x", "run": "r"}),
        json!({"trigger": "webhook", "slug": "x"}),
    ] {
        told.push(show(&agent.app, Some(&payload.to_string()), Format::Md).await.unwrap_err().to_string());
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    what a tick starts lies on the relays: give one of its messages
    the payload is of no known shape; its top-level keys are: none
    the payload starts no run: it has no events
    the payload starts 2 runs, each with a context of its own: give one event
    the payload starts no run: the agent does not heed a sender of tier stranger
    there is no such run
    the prompt payload cannot be read: `message` must be a text that is not empty
    this request starts no run that can be shown
    the body cannot be read: `message` must be a text that is not empty
    the payload starts no run: the event's id or signature does not hold
    the payload starts no run: not a signed event: `created_at` must be a time in Unix seconds
    the payload starts no run: not a signed event: `sig` must be 128 digits of lower-case hex
    the payload starts no run: not a signed event: `tags` must be a list of lists of texts
    the message cannot be read: `scheduled_at` must be a time in Unix seconds
    the message cannot be read: `schedule` must be a text
    the message cannot be read: `schedule` has a minute that cannot be read; use 0 to 59
    the message cannot be read: `final_response` must be a text
    the message cannot be read: `trigger` must be cron or chain. A webhook is {"type":"webhook","slug":…,"body":…}, and a subscription the signed event itself
    "#);
    let twice = format!(r#"{{"type":"relay","events":[{}]}}"#, serde_json::to_string(&one).unwrap());
    assert!(show(&agent.app, Some(&twice), Format::Md).await.unwrap().contains("\n\n    one\n"));
}

#[tokio::test]
async fn a_stored_run_shows_the_context_that_it_would_have_now() {
    let agent = TestAgent::start().await;
    let event = nip17(&secret(2), "Hello!");
    let trigger = trigger(&agent.app, &event);
    let run = didactyl::record::store(&agent.app, &trigger, 0).await.unwrap().run_id;
    let by_id =
        show(&agent.app, Some(&json!({"type": "resume", "run": run}).to_string()), Format::Json).await;
    let by_event = show(&agent.app, Some(&serde_json::to_string(&event).unwrap()), Format::Json).await;
    assert_eq!(by_id.unwrap(), by_event.unwrap());
}

#[tokio::test]
async fn drafts_are_laid_over_what_the_agent_has_and_new_ones_come_last() {
    let agent = TestAgent::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let request = Request {
        soul: Some(file("soul.md", "A drafted soul.")),
        skill: vec![
            file("identity.md", "[\"scope\",\"public\"]\n\nA drafted identity."),
            file("extra.md", "[\"trigger\",\"dm\"]\n\n# Extra\n\nOnly a draft.\n"),
        ],
        format: Format::Md,
        ..Request::default()
    };
    let before = agent.on_relay(nostr::prelude::Filter::new()).await.len();
    let shown = context::show(&agent.app, None, &request).await.unwrap();
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text} is not in {shown}"));
    assert!(at("A drafted soul.") < at("## Chat"));
    assert!(at("## Chat") < at("A drafted identity.") && at("A drafted identity.") < at("## Extra"));
    assert!(!shown.contains("sovereign agent living on Nostr"), "{shown}");
    // Nothing of it was published or kept.
    assert_eq!(agent.on_relay(nostr::prelude::Filter::new()).await.len(), before);
    assert!(!show(&agent.app, None, Format::Md).await.unwrap().contains("draft"));
    let faulty =
        Request { skill: vec![file("bad.md", "[\"trigger\",\"telepathy\"]\n\ntext")], ..Request::default() };
    let told = context::show(&agent.app, None, &faulty).await.unwrap_err().to_string();
    assert!(
        told.starts_with("correct the drafts:\n") && told.contains("has a type that is not known"),
        "{told}"
    );
    assert!(!told.contains("published"), "{told}");
}

#[tokio::test]
async fn a_skill_that_is_not_in_the_context_is_told_with_what_would_fire_it() {
    let agent = TestAgent::bare(crate::agent::echo).await;
    let drafts = [
        ("news.md", "[\"trigger\",\"cron\",\"@daily\"]\n[\"trigger\",\"webhook\"]\n# News"),
        ("off.md", "[\"trigger\",\"dm\"]\n[\"enabled\",\"false\"]\n# Off"),
        ("lost.md", "# Lost"),
        ("here.md", "[\"trigger\",\"dm\"]\n# Here\n\n{{within}}"),
        ("within.md", "Within."),
    ];
    let folder = tempfile::tempdir().unwrap();
    let skill = drafts.map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let request = |skill: &[std::path::PathBuf]| Request { skill: skill.to_vec(), ..Request::default() };
    let shown = context::show(&agent.app, None, &request(&skill)).await.unwrap();
    let (_, told) = shown.split_once("What can you do for me?\n").unwrap();
    insta::assert_snapshot!(told.replace(&*folder.path().to_string_lossy(), ""), @r#"

    Warning: skill "news": tag "trigger" (webhook) names no slug and means any webhook; name one, unless that is meant
    Not here: skill "news" is fired by ["trigger","cron","@daily"] and ["trigger","webhook"] alone; give such an event with --event
    Not here: skill "off" has ["enabled","false"]
    Not here: skill "lost" has no trigger that can be read, and no skill that is here refers to it
    "#);
    // Where none is fired the built-in skill stands there, and so the hint counts most.
    let shown = context::show(&agent.app, None, &request(&skill[..1])).await.unwrap();
    assert!(
        shown.contains("## Chat") && shown.contains("\nNot here: skill \"news\" is fired by "),
        "{shown}"
    );
}

/// The program in a folder of its own, with these variables alone.
fn program(folder: &std::path::Path, vars: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_didactyl"));
    command.args(arguments).current_dir(folder).kill_on_drop(true);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DIDACTYL_")) {
        command.env_remove(name);
    }
    command.envs(vars.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[tokio::test]
async fn drafts_are_shown_to_who_has_set_nothing_but_the_agents_key() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.md"), "[\"trigger\",\"dm\"]\n{{agent_pubkey}}, {{admin_profile}}.")
        .unwrap();
    let key = secret(7).secret_key().to_secret_hex();
    let arguments = ["context", "--skill", "x.md"];
    let output = program(folder.path(), &[("DIDACTYL_NSEC", &key)], &arguments).output().await.unwrap();
    let (shown, told) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(shown.contains(&format!("    {}, .\n", secret(7).public_key())), "{shown}{told}");
    assert!(told.contains("a key that everybody knows stands for it"), "{told}");
    assert!(told.contains("nothing is known of what the agent and its admin have published"), "{told}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_reader_that_goes_away_ends_the_program_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = program(folder.path(), &[], &["context"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_without_end_is_not_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, most) in [
        (["context", "--skill", "/dev/zero"], 262_144),
        (["context", "--soul", "/dev/zero"], 262_144),
        (["context", "--event", "/dev/zero"], 6_291_456),
    ] {
        let output = program(folder.path(), &[], &arguments).output().await.unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(&format!("/dev/zero: has more than {most} bytes; shorten it")), "{told}");
    }
}

/// A tool that templates may name, and what it does when it is asked.
struct Variable {
    name: &'static str,
    answer: Answer,
}

enum Answer {
    /// Waits for another one to be asked too.
    Together(Arc<Barrier>),
    Never,
    Fails,
}

#[async_trait]
impl Tool for Variable {
    fn name(&self) -> &'static str {
        self.name
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
    fn is_variable(&self) -> bool {
        true
    }
    async fn call(&self, _: Value, _: &ToolContext<'_>) -> Result<Value, ToolError> {
        match &self.answer {
            Answer::Together(barrier) => {
                barrier.wait().await;
            }
            Answer::Never => std::future::pending().await,
            Answer::Fails => return Err(ToolError::Model("quoting somebody's text".to_owned())),
        }
        Ok(json!(self.name))
    }
}

#[tokio::test]
async fn variables_are_fetched_side_by_side_and_one_that_is_late_or_fails_is_empty_with_a_warning() {
    let mut agent = TestAgent::start().await;
    let both = Arc::new(Barrier::new(2));
    let tool = |name, answer| Box::new(Variable { name, answer }) as Box<dyn Tool>;
    agent.app.tools = Registry::of(vec![
        tool("one", Answer::Together(Arc::clone(&both))),
        tool("two", Answer::Together(both)),
        tool("late", Answer::Never),
        tool("later", Answer::Never),
        tool("broken", Answer::Fails),
    ]);
    publish_soul(
        &agent,
        1,
        "---template---\n- section: s\n  content: [{{one}}{{two}}{{late}}{{later}}{{broken}}]",
    )
    .await;
    let trigger = trigger(&agent.app, &nip17(&secret(2), "Hello!"));
    let deadline = Deadline::after(Duration::from_secs(2));
    let stored = load::stored(&agent.app, &trigger).await.unwrap();
    let loaded = load::refresh(&agent.app, &trigger, stored, deadline.work_until()).await.unwrap();
    let context = assemble(&agent.app, &trigger, &loaded, deadline).await;
    assert_eq!(
        context.messages.iter().find(|message| message.content.starts_with('[')).unwrap().content,
        "[onetwo]"
    );
    let lacking = [
        "the tool broken failed, its variable is empty",
        "the tool late did not answer in time, its variable is empty",
        "the tool later did not answer in time, its variable is empty",
    ];
    assert!(context.warnings.iter().any(|warning| warning == lacking[0]));
    assert_eq!(context.warnings.iter().filter(|warning| lacking.contains(&warning.as_str())).count(), 3);
    assert!(!format!("{:?}", context.warnings).contains("quoting"));
}
