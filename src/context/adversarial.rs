//! Inputs made to break something: what comes of them is bounded, and the warnings say why.

use serde_json::json;

use super::tests::{ADMIN, AGENT, DM, Scene};
use super::*;
use crate::kinds;
use crate::skill::tests::keys;

/// What a place may hold, and a little for title and separators.
const DOCUMENT: usize = 262_144 + 5_000;
const SOUL: usize = 131_072;
const FRAME: usize = 32_768;

/// The sizes of a context's messages, of each with its section.
fn sizes(context: &Context) -> Vec<(&str, usize)> {
    context
        .sections
        .iter()
        .map(String::as_str)
        .zip(context.messages.iter().map(|m| m.content.len()))
        .collect()
}

/// Whether each part of a context is within its share, and so are its warnings.
#[track_caller]
fn assert_bounded(context: &Context) {
    for (section, size) in sizes(context) {
        assert!(size <= DOCUMENT.max(SOUL), "{section}: {size}");
    }
    let total: usize = sizes(context).into_iter().map(|(_, size)| size).sum();
    assert!(total <= DOCUMENT + SOUL + FRAME, "{total}");
    assert!(context.warnings.len() <= 101, "{}", context.warnings.len());
    assert!(context.warnings.iter().all(|warning| warning.len() <= 500));
    assert!(context.messages.last().unwrap().content.contains("What is new?"));
}

fn megabyte(pattern: &str) -> String {
    pattern.repeat((1 << 20) / pattern.len())
}

#[test]
fn a_megabyte_of_anything_is_cut_and_told() {
    let mut told = Vec::new();
    for pattern in [
        "{",
        "{{x}}",
        "{{a}}",
        "{{ ",
        "# h\n",
        "#\n",
        "a\n===\n",
        "```\n",
        "~~~ x\n\n",
        "<!-- ",
        "<pre>\n",
        "> ",
        "- ",
        "- > 1. ",
        "> a\n",
        "  - a\n",
        "[",
        "*a_ ",
        "`",
        "<",
        " ",
        "\n",
        "\u{0}",
        "é🦀",
    ] {
        let text = megabyte(pattern);
        let context = Scene::new().skill("a", DM, &text).skill("b", DM, "# Other").context();
        assert_bounded(&context);
        told.extend(context.warnings.into_iter().map(|warning| format!("{pattern:?}: {warning}")));
    }
    insta::assert_snapshot!(told.join("\n"), @r##"
    "{": the document of skills is larger than 262144 bytes and was cut
    "{{x}}": the document of skills has more than 2000 variables, the rest are empty
    "{{a}}": skill "a" embeds itself; there it is empty
    "{{a}}": the document of skills has more than 2000 variables, the rest are empty
    "{{ ": the document of skills is larger than 262144 bytes and was cut
    "# h\n": the document of skills is larger than 262144 bytes and was cut
    "#\n": the document of skills is larger than 262144 bytes and was cut
    "a\n===\n": the document of skills is larger than 262144 bytes and was cut
    "```\n": the document of skills is larger than 262144 bytes and was cut
    "~~~ x\n\n": the document of skills is larger than 262144 bytes and was cut
    "<!-- ": the document of skills is larger than 262144 bytes and was cut
    "<pre>\n": the document of skills is larger than 262144 bytes and was cut
    "> ": skill "a": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    "- ": skill "a": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    "- > 1. ": skill "a": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    "> a\n": the document of skills is larger than 262144 bytes and was cut
    "  - a\n": the document of skills is larger than 262144 bytes and was cut
    "[": the document of skills is larger than 262144 bytes and was cut
    "*a_ ": the document of skills is larger than 262144 bytes and was cut
    "`": skill "a": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    "<": the document of skills is larger than 262144 bytes and was cut
    "\0": the document of skills is larger than 262144 bytes and was cut
    "é🦀": the document of skills is larger than 262144 bytes and was cut
    "##);
}

#[test]
fn nesting_that_grows_by_embedding_is_noticed_too() {
    let context = Scene::new()
        .skill("a", DM, &"{{b}} ".repeat(400))
        .skill("b", &[], "> ")
        .skill("c", DM, &"{{d}}".repeat(1900))
        .skill("d", &[], "- -")
        .context();
    assert_bounded(&context);
    insta::assert_snapshot!(context.warnings.join("\n"), @r#"
    skill "a": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    the document of skills has more than 2000 variables, the rest are empty
    skill "c": a line lies in more than 200 lists and quotes, or is a fence as long; the skill is left out
    "#);
}

#[test]
fn a_soul_of_a_megabyte_keeps_its_share_and_skills_keep_theirs() {
    let scene = Scene::new().soul(&megabyte("I am. ")).skill("a", DM, "# Skill");
    let context = scene.context();
    assert_bounded(&context);
    assert_eq!(sizes(&context), [("system_prompt", SOUL), ("adopted_skills", 26), ("current_message", 12)]);
    insta::assert_snapshot!(context.warnings.join("\n"), @"the soul with its variables is larger than 131072 bytes and was cut");
}

#[test]
fn skills_without_end_crowd_out_neither_the_soul_nor_the_message() {
    let template = "---template---\n- section: who\n  content: Tier: {{sender_tier}}\n- section: skills\n  \
                    content: {{adopted_skills_content}}\n- section: end\n  content: {{agent_name}}";
    let framed = json!({"template": format!("{}\nuser: > {{{{message}}}}", megabyte("x{{y}}"))}).to_string();
    let context = Scene::new().soul(&format!("I am.\n{template}")).skill("a", DM, &framed).context();
    assert_bounded(&context);
    let content = |section: &str| {
        let at = context.sections.iter().position(|name| name == section).unwrap();
        context.messages[at].content.as_str()
    };
    assert_eq!(
        [content("system_prompt"), content("who"), content("end"), content("current_message")],
        ["I am.", "Tier: admin", "Didactyl Agent", "> What is new?"]
    );
    assert!(content("skills").starts_with("# Didactyl Agent\n\nx"));
}

#[test]
fn a_frame_without_end_still_holds_the_message_whole_and_once() {
    for user in [megabyte("x"), megabyte("{{y}}"), megabyte("{{message}}"), "{{b}}".to_owned()] {
        let template = json!({"template": format!("s\nuser: {user}{{{{message}}}}")}).to_string();
        let context = Scene::new().skill("a", DM, &template).skill("b", &[], "In b: ").context();
        assert_bounded(&context);
    }
    let template = json!({"template": "s\nuser: {{b}}"}).to_string();
    let context = Scene::new().skill("a", DM, &template).skill("b", &[], "Asked: {{message}}").context();
    assert_eq!(context.messages.last().unwrap().content, "Asked: What is new?");
}

#[test]
fn a_list_of_ten_thousand_entries_is_read_and_its_warnings_are_few() {
    let agent = keys(AGENT).public_key();
    let mut scene = Scene::new().skill("here", DM, "here");
    scene.adopt((0..10_000).map(|n| format!("31123:{agent}:{}", n % 7_000)));
    scene.adopt((0..10_000).map(|n| format!("31124:{agent}:{n}")));
    let (state, _) = scene.build();
    assert_eq!(state.skills.len(), 1);
    assert_eq!(state.warnings.len(), 101);
    insta::assert_snapshot!(format!("{}\n{}", state.warnings[0], state.warnings[100]), @r#"
    adoption list: two entries have the d tag "0", the later is left out
    16900 more warnings are not shown; mend those above first
    "#);
    assert_bounded(&scene.context());
}

#[test]
fn a_thousand_missing_tools_and_bad_tags_are_told_briefly() {
    let tools: Vec<String> = (0..1_000).map(|n| format!("tool_{n}")).collect();
    let tags: Vec<[&str; 2]> = tools.iter().map(|tool| ["requires_tool", tool.as_str()]).collect();
    let bad = vec![["temperature", "warm"]; 1_000];
    let tags: Vec<&[&str]> =
        DM.iter().copied().chain(tags.iter().map(|t| &t[..])).chain(bad.iter().map(|t| &t[..])).collect();
    let scene = Scene::new().skill("a", &tags, "a");
    assert_bounded(&scene.context());
    assert_eq!(
        scene.build().0.warnings,
        ["skill \"a\": tag \"temperature\" is not a number from 0 to 2 and is ignored"]
    );
}

#[test]
fn a_chain_of_a_hundred_skills_ends_at_the_eighth() {
    let mut scene = Scene::new();
    for link in 0..100 {
        let tags = if link == 0 { DM } else { &[] };
        scene = scene.skill(&format!("s{link}"), tags, &format!("{link} {{{{s{}}}}}", link + 1));
    }
    let context = scene.context();
    assert_eq!(context.messages[0].content, "# Didactyl Agent\n\n0 1 2 3 4 5 6 7 8");
    insta::assert_snapshot!(context.warnings.join("\n"), @r#"skill "s9" is embedded more than 8 levels deep; there it is empty"#);
}

#[test]
fn cycles_of_two_and_three_end_where_they_close() {
    let rendered = |skills: &[(&str, bool, &str)]| {
        let mut scene = Scene::new();
        for (d, fires, text) in skills {
            scene = scene.skill(d, if *fires { DM } else { &[] }, text);
        }
        let context = scene.context();
        format!("{}\n{}", context.messages[0].content, context.warnings.join("\n"))
    };
    let two = rendered(&[("a", true, "A({{b}})"), ("b", false, "B({{a}})")]);
    let both = rendered(&[("a", true, "A({{b}})"), ("b", true, "B({{a}})")]);
    let three = rendered(&[("a", false, "A({{b}})"), ("b", true, "B({{c}})"), ("c", false, "C({{a}}{{b}})")]);
    insta::assert_snapshot!([two, both, three].join("\n\n"), @r#"
    # Didactyl Agent

    A(B())
    skill "a" embeds itself; there it is empty

    # Didactyl Agent

    A(B())

    ---

    B(A())
    skill "a" embeds itself; there it is empty
    skill "b" embeds itself; there it is empty

    # Didactyl Agent

    B(C(A()))
    skill "b" embeds itself; there it is empty
    "#);
}

#[test]
fn a_profile_of_five_megabytes_is_cut_each_time_it_is_shown() {
    let profile =
        json!({"display_name": "é".repeat(1 << 20), "about": "x\n".repeat(1 << 20), "k": vec!["y"; 1 << 18]});
    let (profile, tool) = (profile.to_string(), profile);
    let shown =
        "{{admin_kind0_json}}{{admin_profile}}{{startup_events_json}}{{admin_notes_content}}\n".repeat(400);
    let soul = format!(
        "{{{{agent_name}}}}\n---template---\n- section: s\n  content: |\n    {}",
        shown.replace('\n', "\n    ")
    );
    let context = Scene::new()
        .soul(&soul)
        .skill("a", DM, &shown)
        .event(AGENT, kinds::PROFILE, &[], &profile)
        .event(ADMIN, kinds::PROFILE, &[], &profile)
        .event(ADMIN, kinds::NOTE, &[], &profile)
        .value("nostr_admin_profile", tool)
        .context();
    assert_bounded(&context);
    // Once of each, none has more than its share.
    let once = Scene::new()
        .skill("a", DM, "{{admin_kind0_json}}")
        .event(ADMIN, kinds::PROFILE, &[], &profile)
        .context();
    assert!(once.messages[0].content.len() <= 16_000 + 20);
    insta::assert_snapshot!(context.warnings.join("\n"), @r"
    the document of skills is larger than 262144 bytes and was cut
    soul template: no section inserts {{adopted_skills_content}}, so the skills follow the personality
    the soul with its variables is larger than 131072 bytes and was cut
    ");
}

#[test]
fn a_template_of_a_thousand_sections_has_thirty_two() {
    let sections: String = (0..1_000).map(|n| format!("- section: s{n}\n  content: {n}\n")).collect();
    let context = Scene::new().soul(&format!("I am.\n---template---\n{sections}")).context();
    assert_eq!(context.messages.len(), 1 + 32 + 1);
    insta::assert_snapshot!(context.warnings.join("\n"), @"soul template: it has 1000 sections, those after the first 32 are skipped");
}

#[test]
fn a_thousand_skills_that_all_embed_each_other_come_to_an_end() {
    let all: String = (0..1_000).map(|n| format!("{{{{s{n}}}}} ")).collect();
    let mut scene = Scene::new();
    for n in 0..1_000 {
        scene = scene.skill(&format!("s{n}"), DM, &format!("{n} {all}"));
    }
    let context = scene.context();
    assert_bounded(&context);
    // Two thousand insertions, each of a handful of bytes, and the text between the variables.
    assert!(context.variables.len() <= 1_000);
    insta::assert_snapshot!([0, 99, 100].map(|n| context.warnings[n].as_str()).join("\n"), @r#"
    skill "s0" embeds itself; there it is empty
    skill "s99" is embedded more than 8 levels deep; there it is empty
    904 more warnings are not shown; mend those above first
    "#);
}

#[test]
fn history_is_as_long_as_the_soul_asks_and_no_longer() {
    let soul = "I am.\n---template---\n- section: past\n  role: expand\n  limit: 18446744073709551615\n";
    let context = Scene::new().soul(soul).history(1_000).context();
    assert_eq!(context.messages.len(), 1_002);
    assert_eq!(Scene::new().history(1_000).context().messages.len(), 14);
}
