//! What holds of every context, whatever soul, skills, tags, values and history say.

use nostr::prelude::{Event, Timestamp};
use proptest::prelude::*;
use pulldown_cmark::{CodeBlockKind, Event as Markdown, Parser, Tag, TagEnd};
use serde_json::json;

use super::markdown::clean;
use super::tests::{ADMIN, AGENT, DM, NOW, Scene};
use super::*;
use crate::kinds;
use crate::skill::tests::{keys, unsigned};

/// The blocks of a text outside of quotes, with the depth of lists. What a value holds of several lines is quoted.
fn outline(text: &str) -> Vec<String> {
    let (mut quotes, mut lists) = (0_usize, 0_usize);
    let mut outline = Vec::new();
    for event in Parser::new(text) {
        let block = match event {
            Markdown::Start(Tag::BlockQuote(_)) => {
                quotes += 1;
                continue;
            }
            Markdown::End(TagEnd::BlockQuote(_)) => {
                quotes -= 1;
                continue;
            }
            _ if quotes > 0 => continue,
            Markdown::Start(Tag::List(first)) => {
                lists += 1;
                format!("list {lists} {}", first.is_some())
            }
            Markdown::End(TagEnd::List(_)) => {
                lists -= 1;
                continue;
            }
            Markdown::Start(Tag::Heading { level, .. }) => format!("heading {level}"),
            Markdown::Start(Tag::Item) => "item".to_owned(),
            Markdown::Start(Tag::CodeBlock(CodeBlockKind::Fenced(_))) => "fence".to_owned(),
            Markdown::Start(Tag::CodeBlock(CodeBlockKind::Indented)) => "code".to_owned(),
            Markdown::Start(Tag::HtmlBlock) => "html".to_owned(),
            Markdown::Rule => "rule".to_owned(),
            _ => continue,
        };
        outline.push(block);
    }
    outline
}

/// What a context looks like: role and outline of each message.
fn shape(context: &Context) -> Vec<(Role, Vec<String>)> {
    context.messages.iter().map(|message| (message.role, outline(&message.content))).collect()
}

/// A value of the same form that harms nobody: as many fields and entries, and texts of one or of several lines.
fn harmless(value: &Value) -> Value {
    match value {
        Value::String(text) => match clean(text) {
            text if text.is_empty() => json!(""),
            text if text.contains('\n') => json!("x\ny"),
            _ => json!("x"),
        },
        Value::Array(items) => items.iter().map(harmless).collect(),
        Value::Object(fields) => {
            fields.values().enumerate().map(|(n, value)| (format!("k{n}"), harmless(value))).collect()
        }
        scalar => scalar.clone(),
    }
}

fn pieces_of(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(pieces), 0..most).prop_map(|pieces| pieces.concat())
}

fn hostile_text() -> impl Strategy<Value = String> {
    pieces_of(
        &[
            "# ", "#", "\n", "\n\n", "```", "~~~", "---", "===", "> ", "- ", "* ", "1. ", ". ", ") ", "    ",
            "<!--", "-->", "<pre>", "</pre>", "<div>", "<", "pre>", "a", "**", "`", "\u{2028}", "[x]: y",
            "\t", "\r", "{{v}}", "{{", "}}", " ", "\u{202e}", "\u{85}", "\\", "|", "é🦀",
        ],
        10,
    )
}

fn hostile_value() -> impl Strategy<Value = Value> {
    let text = hostile_text().prop_map(Value::from);
    text.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec((hostile_text(), inner), 1..3).prop_map(|fields| {
                // Fields that are one after cleaning would be fewer than the harmless ones.
                let numbered = fields.into_iter().enumerate();
                numbered.map(|(n, (key, value))| (format!("{n}{key}"), value)).collect()
            }),
        ]
    })
}

/// What authors write around variables: blocks of every kind, open and closed.
fn authored_around_variables() -> impl Strategy<Value = String> {
    pieces_of(
        &[
            "# ",
            "## ",
            "\n",
            "\n",
            "\n\n",
            "\n\n",
            "---",
            "===",
            "```\n",
            "~~~\n",
            "> ",
            "- ",
            "* ",
            "1. ",
            "    ",
            "  ",
            "text",
            "text ",
            "\r",
            "{{v}}",
            "{{v}}",
            "{{v}}\n",
            "{{one_json}}",
            "{{admin_kind0_json}}",
            "{{admin_notes_content}}",
            "{{agent_name}}",
            "\n<!-- ",
            "-->\n",
            "\n<pre>\n",
            "</pre>\n",
            "{{embedded}}",
        ],
        14,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn values_from_outside_change_nothing_but_themselves(
        skill in authored_around_variables(),
        embedded in authored_around_variables(),
        section in authored_around_variables(),
        value in hostile_value(),
        profile in prop::collection::vec(hostile_text(), 3),
        note in hostile_text(),
    ) {
        let soul = format!(
            "Personality\n\n---template---\n- section: a\n  content: |\n    {}\n- section: skills\n  content: |\n    \
             {{{{adopted_skills_content}}}}\n    \n    # End\n",
            section.replace('\n', "\n    "),
        );
        let shape_with = |value: &Value, name: &Value, about: &Value, note: &Value| {
            let note = note.as_str().unwrap();
            let profile = json!({"display_name": name, "about": about, about.as_str().unwrap(): 1});
            let scene = Scene::new()
                .soul(&soul)
                .skill("first", DM, &skill)
                .skill("last", DM, "# Last\n\ntext\n")
                .skill("embedded", &[], &embedded)
                .event(AGENT, kinds::PROFILE, &[], &json!({"display_name": name}).to_string())
                .event(ADMIN, kinds::PROFILE, &[], &profile.to_string())
                .event(ADMIN, kinds::NOTE, &[], note)
                .value("v", value.clone())
                .value("one_json", value.clone());
            shape(&scene.context())
        };
        let [name, about, _] = &profile[..] else { unreachable!() };
        let (name, about, note) = (json!(name), json!(about), json!(note));
        let hostile = shape_with(&value, &name, &about, &note);
        // The name of the harmless agent must not be empty where the hostile one's is not.
        let calm = shape_with(&harmless(&value), &json!("x"), &harmless(&about), &harmless(&note));
        prop_assert_eq!(hostile, calm);
    }

    #[test]
    fn a_skill_never_changes_what_another_one_means(
        first in hostile_text(), embedded in hostile_text(), last in hostile_text(), around in "[a># -]{0,3}",
    ) {
        let middle = "Before.\n\n# Title\n\n```\n# code\n```\n\n- one\n  - two\n\nAfter.";
        let scene = Scene::new()
            .skill("x", DM, &format!("{first}\n\n{around}{{{{e}}}}{around}{{{{e}}}}"))
            .skill("y", DM, middle)
            .skill("z", DM, &last)
            .skill("e", &[], &embedded);
        let document = scene.context().messages[0].content.clone();
        let prepared = "\n\nBefore.\n\n## Title\n\n```\n# code\n```\n\n- one\n  - two\n\nAfter.";
        let at = document.find(prepared).unwrap_or_else(|| panic!("changed: {document}"));
        // Its blocks begin where it stands, as they do in a document of their own.
        let blocks = |text: &str, from: usize| -> Vec<(usize, String)> {
            let events = Parser::new(text).into_offset_iter();
            events
                .filter(|(event, range)| {
                    matches!(event, Markdown::Start(_)) && (from..from + prepared.len()).contains(&range.start)
                })
                .map(|(event, range)| (range.start - from, format!("{event:?}")))
                .collect()
        };
        prop_assert_eq!(blocks(&document, at), blocks(&format!("a{prepared}"), 1), "{}", document);
    }

    #[test]
    fn whatever_events_say_the_same_context_comes_of_them(
        soul in prop::option::of(any_text()),
        skills in prop::collection::vec((any_tags(), any_text()), 0..4),
        list in any_tags(),
        value in hostile_value(),
        history in prop::collection::vec(any::<String>(), 0..16),
        tier in prop::sample::select(vec![Tier::Admin, Tier::Wot, Tier::Stranger]),
    ) {
        let mut scene = Scene::new().tier(tier).value("time", value);
        scene.history = history
            .into_iter()
            .map(|text| HistoryMessage { role: Role::User, text })
            .collect();
        for (n, (tags, text)) in skills.iter().enumerate() {
            let tags: Vec<Vec<&str>> = tags.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
            let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
            scene = scene.skill(["a", "b", "c", "d"][n], &tags, text);
        }
        if let Some(soul) = soul {
            scene = scene.soul(&soul);
        }
        let (one, other) = (scene.context(), scene.context());
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(scene.names(), scene.names());
        prop_assert_eq!(one.messages.len(), one.sections.len());
        let last = one.messages.last().unwrap();
        prop_assert!(last.role == Role::User && last.content.contains("What is new?"));
        // A list of any tags is read without fear, too.
        let tags: Vec<Vec<&str>> = list.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        let events: Vec<Event> = vec![unsigned(AGENT, kinds::ADOPTION_LIST, &tags, "")];
        drop(AgentState::build(&keys(AGENT), &[], None, events, Timestamp::from(NOW)));
    }
}

fn any_text() -> impl Strategy<Value = String> {
    let authored = pieces_of(
        &[
            "{\"template\":\"user: {{message}}\"}",
            "---template---\n",
            "- section: s\n",
            "  role: expand\n",
            "  content: |\n",
            "    {{a}}\n",
            "{{a}}",
            "{{b}}",
            "{{time}}",
            "{{adopted_skills_content}}",
            "# ",
            "\n",
            "```",
            "> ",
            "<!--",
            "\u{0}",
        ],
        12,
    );
    prop_oneof![any::<String>(), authored, hostile_text()]
}

fn any_tags() -> impl Strategy<Value = Vec<Vec<String>>> {
    let known = prop::sample::select(vec![
        "d",
        "trigger",
        "filter",
        "dm",
        "cron",
        "subscription",
        "webhook",
        "chain",
        "admin,stranger",
        "stranger",
        "* * * * *",
        "{\"kinds\":[1]}",
        "llm",
        "cheap",
        "temperature",
        "NaN",
        "-1",
        "1e999",
        "max_tokens",
        "99999999999999999999",
        "seed",
        "max_turns",
        "requires_tool",
        "time",
        "enabled",
        "false",
        "description",
        "a",
        "31123:0:x",
        "31124::",
        "naddr1",
        "",
    ])
    .prop_map(str::to_owned);
    prop::collection::vec(prop::collection::vec(prop_oneof![3 => known, 1 => any::<String>()], 1..5), 0..8)
}
