//! The documents' promises: examples are run, tables of values are tried, limits are met. What a document says and the
//! code does not do fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use didactyl::chat::{Params, Role};
use didactyl::cli::{sandbox, seed};
use didactyl::context::{self, Context, Defaults, HistoryMessage, Input, Origin};
use didactyl::kinds;
use didactyl::skill::{Definition, RunRules, SkillParams, TriggerFilter, draft};
use didactyl::state::AgentState;
use didactyl::tools::registry::Registry;
use didactyl::trigger::prompt::Prompt;
use didactyl::trigger::{Tier, Trigger};
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Kind, RelayUrl, Tag, Timestamp};
use pulldown_cmark::{CodeBlockKind, Event as Markdown, Options, Parser, Tag as Block};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::agent::{TestAgent, agent_key, echo, nip17, outcomes, secret};

const SKILLS: &str = include_str!("../../docs/SKILLS.md");
const CONTEXT: &str = include_str!("../../docs/CONTEXT.md");

/// What stands in an example for anything: within a line, or as a line of its own for any number of lines.
const ANYTHING: &str = "…";

/// The relay of examples that publish.
const RELAY: &str = "wss://relay.example";

// ── examples ──

/// The fenced blocks: what stands behind the opening fence, and the text.
fn blocks(document: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    let mut is_inside = false;
    for event in Parser::new_ext(document, Options::empty()) {
        match event {
            Markdown::Start(Block::CodeBlock(CodeBlockKind::Fenced(info))) => {
                blocks.push((info.to_string(), String::new()));
                is_inside = true;
            }
            Markdown::Text(text) if is_inside => blocks.last_mut().unwrap().1.push_str(&text),
            Markdown::End(_) => is_inside = false,
            _ => {}
        }
    }
    blocks
}

/// Whether the lines are those of an example.
fn lines_match(expected: &[&str], lines: &[&str]) -> bool {
    match (expected, lines) {
        ([], lines) => lines.is_empty(),
        ([first, rest @ ..], lines) if *first == ANYTHING => {
            (0..=lines.len()).any(|skipped| lines_match(rest, &lines[skipped..]))
        }
        ([first, rest @ ..], [line, others @ ..]) => line_matches(first, line) && lines_match(rest, others),
        _ => false,
    }
}

fn line_matches(expected: &str, line: &str) -> bool {
    let Some((head, rest)) = expected.split_once(ANYTHING) else { return expected == line };
    let Some(line) = line.strip_prefix(head) else { return false };
    let ends = line.char_indices().map(|(at, _)| at).chain([line.len()]);
    ends.into_iter().any(|at| line_matches(rest, &line[at..]))
}

#[test]
fn an_example_matches_what_it_shows_and_nothing_else() {
    let matches = |expected: &str, got: &str| {
        lines_match(&expected.lines().collect::<Vec<_>>(), &got.lines().collect::<Vec<_>>())
    };
    assert!(matches("a\n…\nd", "a\nb\nc\nd") && matches("a\n…", "a") && matches("x…y…", "x12y"));
    assert!(
        !matches("a", "a\nb") && !matches("a\nb", "a") && !matches("x…y", "x1z") && !matches("…\na", "b")
    );
}

/// Runs the examples of a document one after another in a folder of their own; how many there were.
async fn run_examples(document: &str) -> usize {
    let folder = TempDir::new().unwrap();
    let relay = sandbox::embedded_relay().await.unwrap();
    let url = relay.url().await.to_string();
    let mut commands = 0;
    for (info, text) in blocks(document) {
        let words: Vec<&str> = info.split_whitespace().collect();
        match words.as_slice() {
            [_, file] if file.starts_with("file=") => {
                std::fs::write(folder.path().join(&file[5..]), text).unwrap();
            }
            ["console", more @ ..] => {
                for example in format!("\n{text}").split("\n$ ").skip(1) {
                    let (command, expected) = example.split_once('\n').unwrap_or((example, ""));
                    let shown = run(folder.path(), command, more.contains(&"publish").then_some(&url)).await;
                    assert_shows(command, expected, &shown.replace(url.trim_end_matches('/'), RELAY));
                    commands += 1;
                }
            }
            ["sh"] => {}
            other => panic!("a block {other:?}, of which nobody knows how to try it"),
        }
    }
    commands
}

/// What a command prints.
async fn run(folder: &Path, command: &str, relay: Option<&String>) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["ls", folder_of] => {
            let files = std::fs::read_dir(folder.join(folder_of)).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
            names.sort();
            names.join("\n")
        }
        ["didactyl", arguments @ ..] => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_didactyl"));
            command.args(arguments).current_dir(folder).env_clear().kill_on_drop(true);
            if let Some(relay) = relay {
                let key = secret(1).secret_key().to_secret_hex();
                command.env("DIDACTYL_NSEC", key).env("DIDACTYL_RELAYS", relay);
            }
            let output = command.output().await.unwrap();
            // Beside what a command prints standard error has the log.
            let shown = if output.status.success() { output.stdout } else { output.stderr };
            String::from_utf8(shown).unwrap()
        }
        other => panic!("a command {other:?}, which nobody knows how to run"),
    }
}

fn assert_shows(command: &str, expected: &str, shown: &str) {
    let lines =
        |text: &str| text.trim_end().lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let (wanted, got) = (lines(expected), lines(shown));
    let matches = lines_match(
        &wanted.iter().map(String::as_str).collect::<Vec<_>>(),
        &got.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert!(matches, "$ {command}\n── the document has\n{expected}\n── the program prints\n{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_skills_md_print_what_they_show() {
    assert!(run_examples(SKILLS).await > 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_of_context_md_print_what_they_show() {
    assert!(run_examples(CONTEXT).await > 7);
}

// ── tables ──

/// The cells of each table row whose first cell begins so.
fn rows(document: &str, first: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()
    };
    let rows = document.lines().filter(|line| line.starts_with("| ")).map(cells);
    rows.filter(|cells| cells[0].starts_with(first)).collect()
}

/// The texts that a cell has as code.
fn codes(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn warnings_of(tag: &[String]) -> Vec<String> {
    let draft = format!("{}\n\nA text.", serde_json::to_string(tag).unwrap());
    draft::skill(Path::new("x.md"), &draft, &secret(1)).unwrap().faults
}

#[test]
fn the_tags_take_and_refuse_the_values_that_skills_md_says() {
    let rows = rows(SKILLS, "`[\"");
    for row in &rows {
        let tag: Vec<String> = serde_json::from_str(codes(&row[0])[0]).unwrap();
        assert_eq!(warnings_of(&tag), [""; 0], "{}", row[0]);
        let is_trigger = tag[0] == "trigger";
        let (taken, refused) = if is_trigger { (&row[1], &row[2]) } else { (&row[2], &row[3]) };
        let with = |value: &str| [&tag[..if is_trigger { 2 } else { 1 }], &[value.to_owned()]].concat();
        for value in codes(taken) {
            assert_eq!(warnings_of(&with(value)), [""; 0], "{} {value}", row[0]);
        }
        for value in codes(refused) {
            assert_ne!(warnings_of(&with(value)), [""; 0], "{} {value}", row[0]);
        }
    }
    // Every tag that can be written has its row.
    let whole = Definition {
        d: "x".to_owned(),
        private: true,
        description: Some("d".to_owned()),
        content: "text".to_owned(),
        triggers: vec![TriggerFilter::Cron(None)],
        enabled: false,
        params: SkillParams {
            llm: Some("cheap".to_owned()),
            temperature: Some(1.0),
            max_tokens: Some(1),
            seed: Some(1),
            max_turns: Some(1),
        },
        rules: RunRules {
            max_runs: Some(1),
            allow_self: true,
            reply_to_admin: true,
            budget_micro_usd: Some(1),
        },
        required_tools: vec!["time".to_owned()],
        other_tags: Vec::new(),
    };
    for tag in whole.write().unwrap() {
        let begin = format!("`[\"{}\"", tag.kind());
        assert!(tag.kind() == "d" || rows.iter().any(|row| row[0].starts_with(&begin)), "{begin} has no row");
    }
}

#[test]
fn the_variables_become_what_skills_md_says_and_for_whom() {
    let note = signed(2, kinds::NOTE, &[], "gm");
    let mut documented = BTreeSet::new();
    for row in rows(SKILLS, "`{{") {
        let (form, lowest) = (row[2].as_str(), row[3].as_str());
        for variable in codes(&row[0]) {
            let name = variable.trim_matches(['{', '}']);
            documented.insert(name.to_owned());
            let soul = format!("---template---\n- section: v\n  content: {variable}");
            let frame = json!({"template": format!("user:\n<{variable}>")}).to_string();
            let events = [
                signed(1, kinds::SOUL, &[&["d", "soul"]], &soul),
                skill("text", &[&["trigger", "dm"]], "# Text"),
                skill("framed", &[&["trigger", "dm", "admin,wot,stranger"]], &frame),
                list(&["text", "framed"]),
                note.clone(),
            ];
            let seen = |tier| {
                let state = state(&events, true);
                let context = assemble(&Setting { tier, ..Setting::default() }, &state);
                let section = context.sections.iter().position(|section| section == "v");
                let value = section.map(|at| context.messages[at].content.clone()).unwrap_or_default();
                let message = context.messages.last().unwrap().content.clone();
                (value, message, context.variables[name].origin.clone())
            };
            let (value, message, origin) = seen(Tier::Admin);
            let has_form = match form {
                "text" => !value.is_empty() && !value.contains(['\n', '{']),
                "JSON" => !value.contains('\n') && serde_json::from_str::<Value>(&value).is_ok(),
                "list" => value.starts_with("- "),
                "document" => value == "# Didactyl\n\n## Text",
                "message" => value.is_empty() && message == "<Hello!>",
                "nothing" => value.is_empty() && origin == Origin::Agent,
                other => panic!("{variable}: no form {other}"),
            };
            assert!(has_form, "{variable}: {value:?}, {message:?}");
            for tier in [Tier::Wot, Tier::Stranger] {
                let expected = lowest == "admin";
                assert_eq!(seen(tier).2 == Origin::AboveTier, expected, "{variable} {tier:?}");
            }
        }
    }
    for tool in Registry::standard().variables().keys() {
        assert!(documented.contains(tool), "{tool} has no row");
    }
}

#[tokio::test]
async fn by_default_only_admins_are_answered_as_skills_md_says() {
    let agent = TestAgent::start().await;
    // Where nothing is configured, the admin's contact is dropped as anybody else is.
    let contact = secret(3).public_key().to_hex();
    agent.publish([signed(2, Kind::from(3), &[&["p", &contact]], "")]).await;
    assert!(SKILLS.contains("by default only admins are"));
    assert_eq!(outcomes(&agent.deliver(&[nip17(&secret(3), "Hello!")]).await), ["rejected"]);
}

// ── limits and warnings ──

/// When everything here was signed: behind any clock.
const NOW: u64 = 1_700_000_000;

fn signed(author: u8, kind: Kind, tags: &[&[&str]], content: &str) -> Event {
    EventBuilder::new(kind, content)
        .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
        .custom_created_at(Timestamp::from(NOW))
        .finalize(&secret(author))
        .unwrap()
}

fn skill(d: &str, tags: &[&[&str]], content: &str) -> Event {
    signed(1, kinds::PUBLIC_SKILL, &[&[&["d", d] as &[&str]], tags].concat(), content)
}

fn list(ds: &[&str]) -> Event {
    let entries: Vec<String> = ds.iter().map(|d| format!("31123:{}:{d}", agent_key())).collect();
    let tags: Vec<[&str; 2]> = entries.iter().map(|entry| ["a", entry.as_str()]).collect();
    signed(1, kinds::ADOPTION_LIST, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>(), "")
}

/// A state of these events, with profiles and relay lists where they are asked for.
fn state(events: &[Event], with_profiles: bool) -> AgentState {
    let relay = RelayUrl::parse(RELAY).unwrap();
    let at = Timestamp::from(NOW);
    let mut all = events.to_vec();
    if with_profiles {
        all.extend(seed::agent_profile(&secret(1), &relay, at).unwrap());
        all.extend(seed::admin_events(&secret(2), &relay, at).unwrap());
    }
    AgentState::build(&secret(1), &[secret(2).public_key()], None, all, at)
}

fn prompt() -> Trigger {
    let prompt = Prompt { message: "Hello!".to_owned(), model: None, max_turns: None };
    Trigger::prompt(prompt, "r", secret(2).public_key(), Timestamp::from(NOW))
}

struct Setting {
    tier: Tier,
    history: usize,
    values: BTreeMap<String, Value>,
}

impl Default for Setting {
    fn default() -> Self {
        let variables = Registry::standard().variables();
        let values = variables.into_keys().map(|name| (name, json!({"key": "value"}))).collect();
        Self { tier: Tier::Admin, history: 0, values }
    }
}

fn assemble(setting: &Setting, state: &AgentState) -> Context {
    let mut entries = Registry::standard().variables();
    for name in setting.values.keys() {
        entries.entry(name.clone()).or_insert(Tier::Stranger);
    }
    let message = HistoryMessage { role: Role::User, text: "before".to_owned() };
    context::assemble(&Input {
        state,
        trigger: &Trigger { tier: setting.tier, ..prompt() },
        history: &vec![message; setting.history],
        entries: &entries,
        values: &setting.values,
        defaults: &Defaults { model_chain: String::new(), params: Params::default(), max_turns: 1 },
        tools: &[],
    })
}

/// The context of one skill that a message fires, with this content.
fn with_skill(content: &str) -> Context {
    assemble(&Setting::default(), &state(&[skill("x", &[&["trigger", "dm"]], content), list(&["x"])], false))
}

fn with_soul(content: &str) -> Context {
    let soul = signed(1, kinds::SOUL, &[&["d", "soul"]], content);
    assemble(&Setting::default(), &state(&[soul], true))
}

fn is_told(context: &Context, words: &str) -> bool {
    context.warnings.iter().any(|warning| warning.contains(words))
}

/// The number that the table of limits has for what begins so.
fn limit(what: &str) -> usize {
    let row = rows(CONTEXT, what).pop().unwrap_or_else(|| panic!("no limit {what}"));
    row[1].replace(',', "").parse().unwrap()
}

#[test]
fn the_limits_of_templates_are_those_of_context_md() {
    let sections =
        |n: usize| with_soul(&format!("---template---\n{}", "- section: s\n  content: x\n".repeat(n)));
    let most = limit("sections of a template");
    assert!(!is_told(&sections(most), "are skipped") && is_told(&sections(most + 1), "are skipped"));

    let named = |n: usize| with_soul(&format!("---template---\n- section: {}\n  content: x", "n".repeat(n)));
    let most = limit("bytes of a section's name");
    assert!(!is_told(&named(most), "is skipped") && is_told(&named(most + 1), "is skipped"));

    let soul = |n: usize| with_soul(&format!("{}\n---template---", "s".repeat(n)));
    let most = limit("bytes of the soul with its variables");
    assert!(!is_told(&soul(most), "was cut") && is_told(&soul(most + 1), "was cut"));
}

#[test]
fn the_limits_of_lists_are_those_of_context_md() {
    let most = limit("messages of history");
    let context = assemble(&Setting { history: most + 1, ..Setting::default() }, &state(&[], true));
    assert_eq!(context.sections.iter().filter(|section| *section == "dm_history").count(), most);

    let most = limit("notes of the admin");
    let notes = (0..=most).map(|n| signed(2, kinds::NOTE, &[], &format!("note {n}")));
    let soul =
        signed(1, kinds::SOUL, &[&["d", "soul"]], "---template---\n- section: n\n  content: {{admin_notes}}");
    let context = assemble(&Setting::default(), &state(&notes.chain([soul]).collect::<Vec<_>>(), true));
    assert_eq!(context.variables["admin_notes"].text.lines().count(), most);

    let missing: Vec<String> = (0..200).map(|n| format!("tool_{n}")).collect();
    let tags: Vec<[&str; 2]> = missing.iter().map(|tool| ["requires_tool", tool.as_str()]).collect();
    let mut tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    tags.push(&["trigger", "dm"]);
    let context = assemble(&Setting::default(), &state(&[skill("x", &tags, "x"), list(&["x"])], false));
    assert_eq!(context.warnings.len(), limit("warnings") + 1);
}

#[test]
fn the_limits_of_variables_are_those_of_context_md() {
    let named = |n: usize| with_skill(&format!("[{{{{{}}}}}]", "n".repeat(n))).document;
    let most = limit("bytes of a variable's name");
    assert!(named(most).ends_with("[]") && named(most + 1).contains("{{n"));

    let many = |n: usize| with_skill(&"{{a}}".repeat(n));
    let most = limit("variables in the document");
    assert!(!is_told(&many(most), "the rest are empty") && is_told(&many(most + 1), "the rest are empty"));

    let most = limit("tools that variables ask");
    let tools: Vec<String> = (0..=most).map(|n| format!("tool_{n}")).collect();
    let values = tools.iter().map(|tool| (tool.clone(), json!("v"))).collect();
    let text: String = tools.iter().map(|tool| format!("{{{{{tool}}}}}")).collect();
    let events = [skill("x", &[&["trigger", "dm"]], &text), list(&["x"])];
    let context = assemble(&Setting { values, ..Setting::default() }, &state(&events, false));
    let filled = context.variables.values().filter(|variable| !variable.text.is_empty()).count();
    assert_eq!(filled, most);

    let most = limit("bytes of one value");
    let values = [("big".to_owned(), json!("v".repeat(most + 1)))].into();
    let events = [skill("x", &[&["trigger", "dm"]], "{{big}}"), list(&["x"])];
    let context = assemble(&Setting { values, ..Setting::default() }, &state(&events, false));
    assert_eq!(context.variables["big"].bytes, most);

    let most = limit("levels of skills in skills");
    let deep = |levels: usize| {
        let ds: Vec<String> = (0..=levels).map(|n| format!("s{n}")).collect();
        let skill_of = |n: usize| {
            let tags: &[&[&str]] = if n == 0 { &[&["trigger", "dm"]] } else { &[] };
            skill(&ds[n], tags, &format!("{{{{s{}}}}}", n + 1))
        };
        let mut events: Vec<Event> = (0..=levels).map(skill_of).collect();
        events.push(list(&ds.iter().map(String::as_str).collect::<Vec<_>>()));
        assemble(&Setting::default(), &state(&events, false))
    };
    assert!(!is_told(&deep(most), "levels deep") && is_told(&deep(most + 1), "levels deep"));
}

#[test]
fn the_limits_of_the_document_and_the_frame_are_those_of_context_md() {
    let most = limit("bytes of the document");
    let [fits, cut] = [most, most + 1].map(|n| with_skill(&"x".repeat(n)));
    assert!(!is_told(&fits, "was cut") && is_told(&cut, "was cut"));

    let framed = |n: usize| with_skill(&json!({"template": format!("user: {}", "x".repeat(n))}).to_string());
    let most = limit("bytes of the message's frame");
    assert!(!is_told(&framed(most), "was cut") && is_told(&framed(most + 1), "was cut"));
    assert!(framed(most + 1).messages.last().unwrap().content.ends_with("Hello!"));

    let quoted = |n: usize| with_skill(&format!("{}x", "> ".repeat(n)));
    let most = limit("lists and quotes");
    assert!(!is_told(&quoted(most), "left out") && is_told(&quoted(most + 2), "left out"));
}

/// The warnings of a context in which everything is wrong, in several ways.
async fn all_warnings() -> BTreeSet<String> {
    let dm: &[&str] = &["trigger", "dm", "admin,wot"];
    let mut events = vec![
        skill(
            "dm",
            &[dm, &["requires_tool", "weather"], &["temperature", "warm"]],
            "{{self}}{{s1}}{{framed}}{{message}}{{adopted_skills}}{{admin_profile}}{{far}}",
        ),
        skill("self", &[], "{{self}}"),
        skill("framed", &[], &json!({"template": "user: x"}).to_string()),
        skill("heading", &[dm], "Two\nlines\n---"),
        skill("quotes", &[dm], &"> ".repeat(300)),
        skill("many", &[dm], &"{{a}}".repeat(2_001)),
        skill("long", &[dm], &"x".repeat(262_145)),
    ];
    events.extend((1..=9).map(|n| skill(&format!("s{n}"), &[], &format!("{{{{s{}}}}}", n + 1))));
    let tools: Vec<String> = (0..65).map(|n| format!("tool_{n}")).collect();
    let text: String = tools.iter().map(|tool| format!("{{{{{tool}}}}}")).collect();
    events.push(skill("tools", &[dm], &text));
    let mut ds: Vec<String> =
        ["dm", "tools", "self", "framed", "heading", "quotes", "many", "long", "missing"]
            .map(str::to_owned)
            .into();
    ds.extend((1..=9).map(|n| format!("s{n}")));
    let foreign = format!("31124:{}:theirs", secret(3).public_key());
    let mut entries: Vec<String> = ds.iter().map(|d| format!("31123:{}:{d}", agent_key())).collect();
    let sealed = format!("31124:{}:sealed", agent_key());
    entries.extend([foreign, sealed]);
    let tags: Vec<[&str; 2]> = entries.iter().map(|entry| ["a", entry.as_str()]).collect();
    events.push(signed(1, kinds::ADOPTION_LIST, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>(), ""));
    let blob = format!("A{}", "g".repeat(200));
    events.push(signed(1, kinds::PRIVATE_SKILL, &[&["d", "sealed"]], &blob));
    let ahead = EventBuilder::new(kinds::NOTE, "x").custom_created_at(Timestamp::from(NOW + 10_000));
    events.push(ahead.finalize(&secret(2)).unwrap());
    let sections = "- section: s\n  content: x\n".repeat(33);
    let soul = format!("---template---\n- section:\n{sections}");
    events.push(signed(1, kinds::SOUL, &[&["d", "soul"]], &soul));

    let values: BTreeMap<String, Value> = tools.into_iter().map(|tool| (tool, json!("v"))).collect();
    let mut warnings = BTreeSet::new();
    let whole = state(&events, false);
    warnings.extend(whole.warnings.iter().cloned());
    for tier in [Tier::Admin, Tier::Wot] {
        let setting = Setting { tier, values: values.clone(), ..Setting::default() };
        warnings.extend(assemble(&setting, &whole).warnings);
    }
    let no_trigger = state(&[skill("x", &[], "x"), list(&["x"])], false);
    warnings.extend(assemble(&Setting::default(), &no_trigger).warnings);
    warnings.extend(assemble(&Setting { tier: Tier::Stranger, ..Setting::default() }, &no_trigger).warnings);

    // An admin without a profile.
    let agent = TestAgent::bare(echo).await;
    agent.publish([skill("x", &[dm], "{{admin_profile}}"), list(&["x"])]).await;
    let request = didactyl::cli::context::Request {
        format: didactyl::cli::context::Format::Parts,
        ..Default::default()
    };
    let shown = didactyl::cli::context::show(&agent.app, None, &request).await.unwrap();
    let parts: Value = serde_json::from_str(&shown).unwrap();
    warnings.extend(
        parts["warnings"].as_array().unwrap().iter().map(|warning| warning.as_str().unwrap().to_owned()),
    );
    warnings
}

#[tokio::test]
async fn the_warnings_are_those_of_context_md() {
    let section = CONTEXT.split("\n## ").find(|section| section.starts_with("Warnings")).unwrap();
    let rows = rows(section, "`");
    let patterns: Vec<&str> = rows.iter().map(|row| row[0].trim_matches('`')).collect();
    let warnings = all_warnings().await;
    for warning in &warnings {
        assert!(
            patterns.iter().any(|pattern| line_matches(pattern, warning)),
            "not in CONTEXT.md: {warning}"
        );
    }
    for pattern in patterns {
        assert!(warnings.iter().any(|warning| line_matches(pattern, warning)), "nothing says: {pattern}");
    }
}
