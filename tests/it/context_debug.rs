//! Context snapshots of real runs: as files beside an embedded store, as sealed rows elsewhere, and never in the way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::chat::{ChatAnswer, ChatRequest};
use didactyl::config::StoreChoice;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::llm::{Llm, LlmError};
use didactyl::snapshots::{of_run, runs};
use didactyl::store::{Key, Range, Row, Store, StoreError, Write, keys};
use nostr::prelude::ToBech32;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::agent::{TestAgent, app_over, config, deliver_to, echo, nip17, outcomes, secret};
use crate::ground::{On, on_each_store};

on_each_store! {
    switched_off_there_is_no_row_and_no_file,
    rows_hold_the_texts_of_the_files_and_are_listed_newest_first,
    a_long_text_is_put_together_from_its_rows,
    snapshots_are_forgotten_after_a_week,
}

/// The same agent in a process that takes snapshots, as files in `dir`.
fn with_files(agent: &TestAgent, mode: &str, dir: &Path) -> App {
    with_vars(agent, &[("DIDACTYL_CONTEXT_DEBUG", mode), ("DIDACTYL_CONTEXT_DIR", dir.to_str().unwrap())])
}

/// The same agent in a process that takes snapshots as rows, whatever its store is.
fn with_rows(agent: &TestAgent, mode: &str) -> App {
    let mut app = with_vars(agent, &[("DIDACTYL_CONTEXT_DEBUG", mode)]);
    app.config.store = StoreChoice::DynamoDb("stands for any store that is not embedded".to_owned());
    app
}

fn with_vars(agent: &TestAgent, more: &[(&'static str, &str)]) -> App {
    let mut vars = agent.vars();
    vars.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

/// The run's id.
async fn say(app: &App, agent: &TestAgent, text: &str) -> String {
    let answer = deliver_to(app, &agent.relay_url, &[nip17(&secret(2), text)]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    assert_eq!(agent.model.refusals(), [""; 0]);
    answer["results"][0]["run"].as_str().unwrap().to_owned()
}

/// Asks for the time, then answers.
fn tell_the_time(asked: &Asked) -> Answer {
    if asked.result().is_none() {
        Answer::call("time", json!({}))
    } else {
        Answer::Text("It is late.".into())
    }
}

/// What lies in the folder, by the names without what differs from run to run.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir.join("context.logs")).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some((stem, name)) = name.split_once('_') else { continue };
        let shape: String = stem.chars().map(|c| if c.is_ascii_hexdigit() { '0' } else { c }).collect();
        assert_eq!(shape, "00000000T000000.000Z-00000000", "{stem}");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(files.insert(name.to_owned(), text), None, "one run");
    }
    files
}

/// A provider may quote the prompt: its words go where the prompt itself may.
#[tokio::test]
async fn why_a_model_did_not_answer_is_told_in_its_providers_words_without_secrets() {
    let agent = TestAgent::with_script(|asked: &Asked| match asked.number {
        1 => {
            let words = "you wrote: What is new? with the key test-key-SEKRIT\n**forged**";
            let error = json!({"error": {"message": words, "type": "bad_prompt"}});
            Answer::Refusal(400, vec![], error.to_string())
        }
        2 => Answer::Refusal(503, vec![], String::new()),
        _ => echo(asked),
    })
    .await;
    let dir = TempDir::new().unwrap();
    let app = with_vars(
        &agent,
        &[
            ("DIDACTYL_CONTEXT_DEBUG", "init"),
            ("DIDACTYL_CONTEXT_DIR", dir.path().to_str().unwrap()),
            ("DIDACTYL_LLM", "scripted/a, scripted/b, scripted/c"),
            ("SCRIPTED_API_KEY", "test-key-SEKRIT"),
        ],
    );
    say(&app, &agent, "What is new?").await;
    let files = files(dir.path());
    assert_eq!(files.keys().collect::<Vec<_>>(), ["init.md", "t001_failed1.md", "t001_failed2.md"]);
    insta::assert_snapshot!([&files["t001_failed1.md"], &files["t001_failed2.md"]].map(String::as_str).join("\n"), @r"
    **The model did not answer**

    - **model**: scripted/a
    - **reason**: the provider refused the request: status 400, bad_prompt
    - **its provider's words**: you wrote: What is new? with the key [redacted] **forged**

    **The model did not answer**

    - **model**: scripted/b
    - **reason**: the model is unavailable for now: status 503
    ");
}

fn log(dir: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(dir.join("context.log.md")).unwrap();
    log.split("\n---\n\n").map(str::to_owned).collect()
}

#[tokio::test]
async fn full_writes_the_document_and_the_messages_of_each_turn() {
    let agent = TestAgent::with_script(tell_the_time).await;
    let dir = TempDir::new().unwrap();
    let app = with_files(&agent, "full", dir.path());
    let run = say(&app, &agent, "What time is it?").await;

    let files = files(dir.path());
    assert_eq!(files.keys().collect::<Vec<_>>(), ["init.md", "t001.md", "t002.md"]);
    assert!(files["init.md"].starts_with("# Didactyl\n\n## Chat\n\nAnswer your administrator"), "{files:?}");
    assert!(files["init.md"].contains("Your name is Didactyl and your key is npub1"), "{files:?}");

    let first = &files["t001.md"];
    assert!(
        first.starts_with("**Message 1 (system)**\n\n- **role**: system\n- **content**: You are Didactyl")
    );
    assert!(first.ends_with("(user)**\n\n- **role**: user\n- **content**: What time is it?\n"), "{first}");
    let second = files["t002.md"].strip_prefix(first.as_str()).expect("the first turn, and what came of it");
    assert!(
        second.contains("(assistant)**\n\n- **role**: assistant\n- **tool_calls**:\n  - **name**: time\n")
    );
    assert!(second.contains("- **tool_call_id**: scripted_1_0\n- **content**:\n  - **success**: true\n"));
    assert!(second.contains("\n  - **content**:\n    - **iso**: 2"), "{second}");
    let labels = files["t002.md"].lines().filter(|line| line.starts_with("**Message ")).count();
    assert_eq!(labels, agent.model.requests()[1].messages().len(), "all that the model was sent");

    let log = log(dir.path());
    assert_eq!(log.len(), 2);
    for (entry, name) in log.iter().zip(["_t002 | ", "_t001 | "]) {
        let head = entry.lines().next().unwrap();
        assert!(head.starts_with("**llm_chat_with_tools_messages | ") && head.contains(name), "{head}");
        assert!(entry.contains("\nSection: adopted_skills | role=system\n\n    # Didactyl\n\n    ## Chat\n"));
        assert!(entry.contains("\nSection: current_message | role=user\n\n    What time is it?\n"));
    }
    // What is ours alone stays inside.
    let record = didactyl::record::find(&app, &run).await.unwrap().unwrap();
    let ours = [record.trigger_id.trim_start_matches("dm:").to_owned(), run, "_ts".into(), "arrived".into()];
    for text in files.values().chain(&log) {
        assert!(ours.iter().all(|ours| !text.contains(ours.as_str())), "{text}");
    }
}

#[tokio::test]
async fn a_section_keeps_its_name_when_a_compaction_has_taken_messages_out() {
    let long = "So many words. ".repeat(400);
    let agent = TestAgent::with_script(move |asked| {
        if asked.messages().iter().any(|message| message["content"].to_string().contains("What time is it?"))
        {
            return tell_the_time(asked);
        }
        Answer::Text("Well, well. ".repeat(400))
    })
    .await;
    for n in 0..4 {
        say(&agent.app, &agent, &format!("{n} {long}")).await;
        agent.clock.forward(Duration::from_secs(10));
    }
    let dir = TempDir::new().unwrap();
    let mut vars = agent.vars();
    let url = vars["SCRIPTED_BASE_URL"].clone();
    let models = json!({"providers": {"scripted": {"base_url": url, "context_window": 9_000}}});
    vars.insert("DIDACTYL_MODELS", models.to_string());
    vars.insert("DIDACTYL_CONTEXT_DEBUG", "full".to_owned());
    vars.insert("DIDACTYL_CONTEXT_DIR", dir.path().to_str().unwrap().to_owned());
    let app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    say(&app, &agent, "What time is it?").await;
    let entry = log(dir.path()).remove(0);
    for (section, text) in [
        ("system_prompt | role=system", "You are Didactyl"),
        ("adopted_skills | role=system", "# Didactyl"),
        ("summary | role=user", "[A record of what came before"),
        ("current_message | role=user", "What time is it?"),
    ] {
        assert!(entry.contains(&format!("\nSection: {section}\n\n    {text}")), "{section}: {entry}");
    }
    assert!(entry.contains("\nSection: turn | role=assistant\nCalls: time"), "{entry}");
}

#[tokio::test]
async fn init_writes_only_what_the_run_begins_with() {
    let agent = TestAgent::with_script(tell_the_time).await;
    let dir = TempDir::new().unwrap();
    say(&with_files(&agent, "init", dir.path()), &agent, "What time is it?").await;
    assert_eq!(files(dir.path()).keys().collect::<Vec<_>>(), ["init.md"]);
    let log = log(dir.path());
    assert_eq!(log.len(), 1);
    assert!(log[0].lines().next().unwrap().contains("_init | "), "{log:?}");
    assert!(log[0].ends_with("Section: current_message | role=user\n\n    What time is it?\n"), "{log:?}");
}

async fn switched_off_there_is_no_row_and_no_file(on: On) {
    let agent = TestAgent::over(on, tell_the_time).await;
    let dir = TempDir::new().unwrap();
    let run = say(&with_files(&agent, "off", dir.path()), &agent, "What time is it?").await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(runs(&agent.app, 10).await.unwrap().is_empty());
    assert!(of_run(&agent.app, &run).await.unwrap().is_empty());
}

async fn rows_hold_the_texts_of_the_files_and_are_listed_newest_first(on: On) {
    let agent = TestAgent::over(on, tell_the_time).await;
    let first = say(&with_rows(&agent, "full"), &agent, "first").await;
    agent.clock.forward(Duration::from_secs(1));
    let second = say(&with_rows(&agent, "init"), &agent, "second").await;

    let listed = runs(&agent.app, 10).await.unwrap();
    assert_eq!(listed.iter().map(|run| &run.run_id).collect::<Vec<_>>(), [&second, &first]);
    assert!(listed[0].begin_ms > listed[1].begin_ms);
    assert_eq!(runs(&agent.app, 1).await.unwrap(), &listed[..1]);

    let snapshots = of_run(&agent.app, &first).await.unwrap();
    let mut names: Vec<&str> = snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
    assert_eq!(names.first(), Some(&"t002"), "the newest first: {names:?}");
    names.sort_unstable();
    assert_eq!(names, ["init", "log-t001", "log-t002", "t001", "t002"]);
    let text = |name: &str| &snapshots.iter().find(|snapshot| snapshot.name == name).unwrap().text;
    assert!(text("init").starts_with("# Didactyl\n\n## Chat\n"));
    assert!(text("t001").ends_with("- **role**: user\n- **content**: first\n"));
    assert!(text("t002").contains("  - **success**: true\n"));
    assert!(text("log-t001").contains("\nSection: current_message | role=user\n\n    first\n"));
    let names: Vec<String> =
        of_run(&agent.app, &second).await.unwrap().into_iter().map(|snapshot| snapshot.name).collect();
    assert_eq!(names, ["log-init", "init"]);

    // Nobody reads them in the store.
    for row in agent.app.store.list(&Range::whole(keys::context_partition(&first))).await.unwrap() {
        assert!(!String::from_utf8_lossy(&row.value).contains("Didactyl"), "{:?}", row.key);
    }
}

async fn a_long_text_is_put_together_from_its_rows(on: On) {
    let long = "\"é\\\n".repeat(20_000);
    let arguments = json!({"text": long});
    let agent = TestAgent::over(on, move |asked| {
        if asked.result().is_none() {
            Answer::call("time", arguments.clone())
        } else {
            Answer::Text("done".into())
        }
    })
    .await;
    let run = say(&with_rows(&agent, "full"), &agent, "long").await;
    let partition = keys::context_partition(&run);
    let rows = agent.app.store.list(&Range::whole(partition)).await.unwrap();
    assert!(rows.iter().any(|row| row.key.sort.ends_with("#t002#001")), "more than one row");
    let snapshots = of_run(&agent.app, &run).await.unwrap();
    let text = &snapshots.iter().find(|snapshot| snapshot.name == "t002").unwrap().text;
    assert!(text.contains(&json!({"text": "\"é\\\n".repeat(20_000)}).to_string()), "{}", text.len());
    assert_eq!(text.matches("**Message ").count(), agent.model.requests()[1].messages().len());
}

async fn snapshots_are_forgotten_after_a_week(on: On) {
    let agent = TestAgent::over(on, echo).await;
    let run = say(&with_rows(&agent, "full"), &agent, "hello").await;
    let day = Duration::from_secs(24 * 60 * 60);
    agent.clock.forward(day * 7 - Duration::from_secs(60));
    assert_eq!(of_run(&agent.app, &run).await.unwrap().len(), 3);
    agent.clock.forward(Duration::from_secs(120));
    assert!(of_run(&agent.app, &run).await.unwrap().is_empty());
    assert!(runs(&agent.app, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn no_secret_that_the_agent_was_told_stands_in_a_snapshot() {
    let agent = TestAgent::with_script(tell_the_time).await;
    let dir = TempDir::new().unwrap();
    let app = with_vars(
        &agent,
        &[
            ("DIDACTYL_CONTEXT_DEBUG", "full"),
            ("DIDACTYL_CONTEXT_DIR", dir.path().to_str().unwrap()),
            ("DIDACTYL_API_TOKEN", "read=a-token-that-only-reads-01,another-token-of-all-0002"),
            ("SCRIPTED_API_KEY", "sk-\"scripted\""),
            ("GROQ_API_KEY", "gsk-of-another-provider"),
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG"),
        ],
    );
    let key = secret(1).secret_key().clone();
    let secrets = [
        key.to_secret_hex(),
        key.to_bech32().unwrap(),
        key.to_bech32().unwrap().to_uppercase(),
        "a-token-that-only-reads-01".to_owned(),
        "another-token-of-all-0002".to_owned(),
        "sk-\"scripted\"".to_owned(),
        "sk-\\\"scripted\\\"".to_owned(),
        "gsk-of-another-provider".to_owned(),
        "wJalrXUtnFEMI/K7MDENG".to_owned(),
    ];
    say(&app, &agent, &format!("I know {}.", secrets.join(", "))).await;
    let log = log(dir.path());
    for text in files(dir.path()).values().chain(&log) {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret}: {text}");
        }
    }
    let masked = format!("I know {}.", ["[redacted]"; 9].join(", "));
    assert!(log[0].contains(&masked) && files(dir.path())["t001.md"].contains(&masked), "{}", log[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_processes_at_once_write_whole_snapshots_and_lose_none() {
    let agent = TestAgent::with_script(tell_the_time).await;
    let dir = TempDir::new().unwrap();
    // Two conversations: of one the runs come one after another.
    let speakers = [(secret(2), "one"), (secret(4), "two")];
    let admins = speakers.each_ref().map(|(keys, _)| keys.public_key().to_hex()).join(",");
    let both = speakers.map(async |(author, text)| {
        let dir = dir.path().to_str().unwrap();
        let vars = [
            ("DIDACTYL_CONTEXT_DEBUG", "full"),
            ("DIDACTYL_CONTEXT_DIR", dir),
            ("DIDACTYL_ADMIN", admins.as_str()),
        ];
        let app = with_vars(&agent, &vars);
        let answer = deliver_to(&app, &agent.relay_url, &[nip17(&author, text)]).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    });
    futures_util::future::join_all(both).await;
    let mut names: Vec<String> = std::fs::read_dir(dir.path().join("context.logs"))
        .unwrap()
        .filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.split_once('_')?.1.to_owned()))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["init.md", "init.md", "t001.md", "t001.md", "t002.md", "t002.md"]);
    let log = log(dir.path());
    assert_eq!(log.len(), 4);
    for text in ["one", "two"] {
        let end = format!("Section: current_message | role=user\n\n    {text}\n");
        assert_eq!(log.iter().filter(|entry| entry.contains(&end)).count(), 2, "{log:?}");
    }
}

#[tokio::test]
async fn a_message_that_is_answered_already_leaves_no_second_snapshot() {
    let agent = TestAgent::start().await;
    let dir = TempDir::new().unwrap();
    let app = with_files(&agent, "full", dir.path());
    let dm = nip17(&secret(2), "hello");
    for _ in 0..2 {
        deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
    }
    assert_eq!(files(dir.path()).len(), 2);
    assert_eq!(log(dir.path()).len(), 1);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_stops_no_run() {
    let agent = TestAgent::start().await;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a file");
    std::fs::write(&file, "").unwrap();
    say(&with_files(&agent, "full", &file), &agent, "hello").await;
    assert_eq!(agent.replies().await.len(), 1);
}

/// A store whose snapshots wait for a permit.
struct Gated {
    store: Arc<dyn Store>,
    gate: Arc<Semaphore>,
}

#[async_trait]
impl Store for Gated {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.store.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.iter().any(|write| write.key.partition.starts_with(keys::CONTEXT_PARTITION)) {
            let _permit = self.gate.acquire().await.unwrap();
            return self.store.write(writes).await;
        }
        self.store.write(writes).await
    }
}

/// A model that opens the gate when it is asked.
struct Opens {
    llm: Arc<dyn Llm>,
    gate: Arc<Semaphore>,
}

#[async_trait]
impl Llm for Opens {
    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        self.gate.add_permits(1);
        self.llm.complete(request, until).await
    }
}

fn gated(agent: &TestAgent) -> (App, Arc<Semaphore>) {
    let mut app = with_rows(agent, "full");
    let gate = Arc::new(Semaphore::new(0));
    app.store = Arc::new(Gated { store: Arc::clone(&app.store), gate: Arc::clone(&gate) });
    (app, gate)
}

#[tokio::test]
async fn the_model_is_asked_before_a_snapshot_is_written() {
    let agent = TestAgent::start().await;
    let (mut app, gate) = gated(&agent);
    app.llm = Arc::new(Opens { llm: Arc::clone(&app.llm), gate });
    let run = say(&app, &agent, "hello").await;
    assert_eq!(of_run(&app, &run).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_store_that_takes_no_snapshot_holds_a_run_up_for_a_while_only() {
    let agent = TestAgent::start().await;
    let (app, _closed) = gated(&agent);
    let run = say(&app, &agent, "hello").await;
    assert_eq!(agent.replies().await.len(), 1);
    assert!(of_run(&app, &run).await.unwrap().is_empty());
}
