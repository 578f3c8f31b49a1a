use super::*;
use crate::skill::tests::{keys, signed};
use crate::skill::{RunRules, SkillParams, TriggerFilter};

fn read(file: &str, text: &str) -> Result<SkillDraft, String> {
    skill(Path::new(file), text, &keys(1)).map_err(|error| error.to_string())
}

fn good(file: &str, text: &str) -> Definition {
    let draft = read(file, text).unwrap();
    assert_eq!([draft.faults, draft.remarks].concat(), [""; 0], "{text}");
    draft.definition
}

fn definition(d: &str, private: bool, content: &str) -> Definition {
    Definition {
        d: d.to_owned(),
        private,
        description: None,
        content: content.to_owned(),
        triggers: Vec::new(),
        enabled: true,
        params: SkillParams::default(),
        rules: RunRules::default(),
        required_tools: Vec::new(),
        other_tags: Vec::new(),
    }
}

#[test]
fn the_first_lines_are_tags_and_the_rest_is_the_content_as_it_stands() {
    let text = "[\"trigger\",\"webhook\",\"ci\"]\r\n  [ \"t\", \"x\" ]  \n\n# Title\r\n\n[\"no\",\"tag\"]\n";
    let expected = Definition {
        triggers: vec![TriggerFilter::Webhook(Some("ci".to_owned()))],
        other_tags: vec![Tag::custom("t", ["x"])],
        ..definition("news", true, "# Title\r\n\n[\"no\",\"tag\"]\n")
    };
    assert_eq!(good("skills/news.md", text), expected);
    assert_eq!(good("news.md", &format!("\u{feff}{text}")), expected);
}

#[test]
fn a_draft_is_private_and_named_after_its_file_unless_its_tags_say_otherwise() {
    assert_eq!(good("a.b.md", "text"), definition("a.b", true, "text"));
    assert_eq!(
        good("x.md", "[\"d\",\"chat\"]\n[\"scope\",\" Public\"]\ntext"),
        definition("chat", false, "text")
    );
    assert_eq!(good("x.md", "[\"scope\",\"private\"]\ntext"), definition("x", true, "text"));
    assert_eq!(good("x.md", "[\"d\",\"\"]\ntext").d, "");
}

#[test]
fn one_empty_line_parts_tags_from_a_content_that_looks_like_them() {
    assert_eq!(good("x.md", "\n[\"a\"]\ntext").content, "[\"a\"]\ntext");
    assert_eq!(good("x.md", "[\"t\",\"x\"]\n\n\n[\"a\"]").content, "\n[\"a\"]");
}

#[test]
fn markdown_and_the_older_json_are_content() {
    for text in [
        "[link](https://a.example) and more",
        "[x]: https://a.example",
        "[ ] to do",
        "{{identity}} says {\"kind\":1}",
        "{ not json }",
        "{\"description\":\"d\",\"template\":\"system:\\nBe brief.\",\"base\":true}",
        "{}",
    ] {
        assert_eq!(good("x.md", text).content, text);
    }
}

#[test]
fn an_event_in_json_is_read_as_nostr_tools_print_it() {
    let event =
        signed(2, kinds::PUBLIC_SKILL, &[&["d", "shared"], &["trigger", "dm"], &["scope", "public"]], "text");
    let expected = Definition {
        triggers: vec![TriggerFilter::Dm([crate::trigger::Tier::Admin, crate::trigger::Tier::Wot].into())],
        ..definition("shared", false, "text")
    };
    assert_eq!(good("x.json", &format!("\n {}\n", event.as_json())), expected);
    assert_eq!(good("x.json", "{\"kind\":31124,\"content\":\"text\"}"), definition("x", true, "text"));
    assert_eq!(
        good("x.json", "{\"tags\":[[\"scope\",\"public\"]],\"content\":\"text\"}"),
        definition("x", false, "text")
    );
    assert_eq!(good("x.json", "{\"content\":\"text\"}"), definition("x", true, "text"));
}

#[test]
fn a_content_that_is_sealed_for_the_agent_is_opened_and_any_other_is_refused() {
    let sealed = |n: u8| {
        let to = keys(n).public_key();
        nostr::nips::nip44::encrypt(keys(n).secret_key(), &to, "secret", nostr::nips::nip44::Version::V2)
            .unwrap()
    };
    let draft = |n| format!("{{\"kind\":31124,\"content\":\"{}\"}}", sealed(n));
    assert_eq!(good("x.json", &draft(1)), definition("x", true, "secret"));
    assert!(read("x.json", &draft(2)).unwrap_err().contains("not with the agent's key"));
}

#[test]
fn what_is_no_draft_is_refused_with_file_line_and_what_to_do() {
    let table: String = [
        "",
        " \n\n",
        "[\"t\",\"x\"]",
        "[\"t\",\"x\"]\n\n  \n",
        "[\"t\",\"x\"]\n[\"trigger\",\"dm\"\ntext",
        "[\"trigger\",dm]\ntext",
        "[\"max_runs\",5]\ntext",
        "[1,2]\ntext",
        "[]\ntext",
        "[null]\ntext",
        "{\"kind\":31124,\n\"tags\":[[\"d\",\"x\"]\n}",
        "{\"kind\":31124,\"tags\":[],\"content\":5}",
        "{\"kind\":31124,\"tags\":[[1]],\"content\":\"text\"}",
        "{\"kind\":31124,\"tags\":[[]],\"content\":\"text\"}",
        "{\"kind\":-1,\"content\":\"text\"}",
        "{\"kind\":99999,\"content\":\"text\"}",
        "{\"kind\":1,\"content\":\"text\"}",
        "{\"kind\":31124}",
        "{\"kind\":31124,\"content\":null}",
        "{\"kind\":31124,\"tags\":{},\"content\":\"text\"}",
        "{\"kind\":31124,\"content\":\"\"}",
    ]
    .map(|text| format!("{text:?}\n  {}\n", read("x.md", text).unwrap_err()))
    .concat();
    insta::assert_snapshot!(table, @r#"
    ""
      x.md: has no content; write below its tags what the skill tells the model
    " \n\n"
      x.md: has no content; write below its tags what the skill tells the model
    "[\"t\",\"x\"]"
      x.md: has no content; write below its tags what the skill tells the model
    "[\"t\",\"x\"]\n\n  \n"
      x.md: has no content; write below its tags what the skill tells the model
    "[\"t\",\"x\"]\n[\"trigger\",\"dm\"\ntext"
      x.md:2: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    "[\"trigger\",dm]\ntext"
      x.md:1: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    "[\"max_runs\",5]\ntext"
      x.md:1: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    "[1,2]\ntext"
      x.md:1: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    "[]\ntext"
      x.md:1: is an empty tag; remove it
    "[null]\ntext"
      x.md:1: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    "{\"kind\":31124,\n\"tags\":[[\"d\",\"x\"]\n}"
      x.md:3: begins as JSON and is not JSON; correct it, or begin a text with an empty line
    "{\"kind\":31124,\"tags\":[],\"content\":5}"
      x.md: is an event in JSON whose "content" is no text; give what the skill tells the model
    "{\"kind\":31124,\"tags\":[[1]],\"content\":\"text\"}"
      x.md: is an event in JSON whose "tags" are no lists of texts; correct them
    "{\"kind\":31124,\"tags\":[[]],\"content\":\"text\"}"
      x.md: has an empty tag; remove it
    "{\"kind\":-1,\"content\":\"text\"}"
      x.md: is an event in JSON whose "kind" is no number from 0 to 65535; give 31123 or 31124
    "{\"kind\":99999,\"content\":\"text\"}"
      x.md: is an event in JSON whose "kind" is no number from 0 to 65535; give 31123 or 31124
    "{\"kind\":1,\"content\":\"text\"}"
      x.md: its kind is not that of a skill; a skill's kind is 31123 or 31124, and its content in clear or sealed by the agent
    "{\"kind\":31124}"
      x.md: is an event in JSON without "content"; give what the skill tells the model
    "{\"kind\":31124,\"content\":null}"
      x.md: is an event in JSON without "content"; give what the skill tells the model
    "{\"kind\":31124,\"tags\":{},\"content\":\"text\"}"
      x.md: is an event in JSON whose "tags" are no lists of texts; correct them
    "{\"kind\":31124,\"content\":\"\"}"
      x.md: has no content; write below its tags what the skill tells the model
    "#);
}

#[test]
fn what_the_codec_cannot_read_is_told() {
    let faults = |file: &str, text: &str| read(file, text).unwrap().faults.join("\n");
    let text = "[\"trigger\",\"telepathy\"]\n[\"trigger\"]\n[\"trigger\",\"dm\",\"\",\"colour=red\"]\n[\"llm\",\" , \"]\n\
                [\"scope\",\"everybody\"]\n[\"max_runs\",\"often\"]\n[\"trigger\",\"cron\",\"99 * * * *\"]\n\
                [\"trigger\",\"cron\",\"0 0 31 2 *\"]\ntext";
    insta::assert_snapshot!(faults("x.md", text), @r#"
    skill "x": tag "max_runs" is not a whole number of runs per day and is ignored; give for example "24"
    skill "x": tag "scope" is neither public nor private and is ignored; give one of them
    skill "x": tag "trigger" names no type and is ignored; give dm, cron, subscription, webhook or chain
    skill "x": tag "trigger" has a type that is not known and is ignored; give dm, cron, subscription, webhook or chain
    skill "x": tag "trigger" has a parameter "colour", which is not known and is ignored; those of a trigger are llm, temperature, max_tokens, seed, max_turns
    skill "x": tag "trigger" (cron) has a minute that cannot be read; use 0 to 59; it is ignored until then
    skill "x": tag "trigger" (cron) names a day that no year has, such as 31 February; it is ignored until then
    skill "x": tag "llm" is not a model chain and is ignored; give for example "openai/gpt-5-mini, cheap"
    "#);
    let text = "{\"kind\":31123,\"tags\":[[\"scope\",\"private\"]],\"content\":\"text\"}";
    insta::assert_snapshot!(faults("x.json", text), @r#"skill "x": tag "scope" says private, but the skill is public by its kind, 31123, or by another scope tag; correct one of them"#);
}

#[test]
fn what_can_be_read_and_may_be_a_slip_is_remarked_and_no_fault() {
    let remarks = |text: &str| {
        let draft = read("x.md", text).unwrap();
        assert_eq!(draft.faults, [""; 0], "{text}");
        draft.remarks.join("\n")
    };
    let text = "[\"trigger\",\"webhook\"]\n[\"temprature\",\"1\"]\n[\"client\",\"y\"]\n[\"t\",\"z\"]\n\n{\"template\":\"a\"";
    insta::assert_snapshot!(remarks(text), @r#"
    skill "x": tag "trigger" (webhook) names no slug and means any webhook; name one, unless that is meant
    tag "temprature" means nothing to the agent; is "temperature" meant?
    tag "client" means nothing to the agent and is kept as it is
    the content begins as JSON and is none (line 1, column 15), so it is taken for markdown, and the model sees it as it is; correct it
    "#);
    assert_eq!(read("x.md", text).unwrap().definition.triggers, [TriggerFilter::Webhook(None)]);
    let text = "{\"kind\":31124,\"tag\":[[\"d\",\"y\"]],\"content\":\"text\",\"relays\":[]}";
    insta::assert_snapshot!(remarks(text), @r#"
    field "tag" is none of an event's; is "tags" meant?
    field "relays" is none of an event's and is passed over
    "#);
}

#[test]
fn a_soul_is_any_text_but_an_event() {
    let file = Path::new("soul.md");
    for text in ["You are.\n\n---template---\n", "[\"d\",\"soul\"]\nstill the soul", "{{identity}}"] {
        assert_eq!(soul(file, text), Ok(text));
    }
    let refused = |text| soul(file, text).unwrap_err().to_string();
    insta::assert_snapshot!(refused(" \n"), @"soul.md: is empty; write the soul's text");
    insta::assert_snapshot!(refused("{\"kind\":31120,\"content\":\"You are.\"}"), @"soul.md: is an event in JSON, and a soul's draft is its text alone; give the event's content");
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_draft_or_a_fault_and_loses_nothing(text in "(\\PC|\n|\\[\"|\"\\]|\\{){0,60}") {
        if let Ok(SkillDraft { definition, .. }) = read("x.md", &text) {
            let is_event = text.trim_start().starts_with('\u{7b}');
            proptest::prop_assert!(text.ends_with(&definition.content) || is_event);
        }
    }
}
