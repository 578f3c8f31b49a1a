use nostr::prelude::nip44;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::skill::tests::{keys, signed};
use crate::skill::{Skill, TriggerFilter};
use crate::trigger::Tier;

fn own(event: &Event) -> (Definition, Vec<String>) {
    let mut warnings = Vec::new();
    (Definition::of(event, &keys(1), &mut warnings).unwrap(), warnings)
}

fn lines(tags: &[Tag]) -> String {
    tags.iter().map(|tag| serde_json::to_string(tag.as_slice()).unwrap() + "\n").collect()
}

/// A skill that says everything, as older and foreign writers spell it.
fn scattered() -> Event {
    signed(
        1,
        kinds::PRIVATE_SKILL,
        &[
            &["alt", "a skill"],
            &["requires_tool", "time", "nostr_post"],
            &["trigger", "nostr-subscription"],
            &["filter", " {\"#t\":[\"news\"]} "],
            &["reply", "ADMIN"],
            &["trigger", "DM", "stranger, admin"],
            &["trigger", "telepathy", "far"],
            &["trigger", "cron", "", "temperature=0.50", "llm=cheap"],
            &["budget", "0.500"],
            &["max_runs", "07"],
            &["seed", "+3"],
            &["temperature", "1.25"],
            &["enabled", "FALSE"],
            &["allow_self", "True"],
            &["description", "  Reads\n the news. "],
            &["d", "news", "extra"],
            &["t", "x"],
            &["max_tokens", "512"],
            &["max_turns", "4"],
            &["t", "y"],
        ],
        "# News",
    )
}

#[test]
fn what_older_writers_scattered_is_written_in_one_order() {
    let (definition, warnings) = own(&scattered());
    insta::assert_snapshot!(warnings.join("\n"), @r#"
    skill "news": tag "trigger" has a type that is not known and is ignored; give dm, cron, subscription, webhook or chain
    skill "news": tag "trigger" sets parameters that differ from another trigger's; those of the first are kept
    "#);
    insta::assert_snapshot!(lines(&definition.write().unwrap()), @r##"
    ["d","news"]
    ["scope","private"]
    ["description","Reads the news."]
    ["trigger","subscription","{\"#t\":[\"news\"]}"]
    ["trigger","dm","admin,stranger"]
    ["trigger","cron"]
    ["enabled","false"]
    ["temperature","1.25"]
    ["max_tokens","512"]
    ["seed","3"]
    ["max_turns","4"]
    ["max_runs","7"]
    ["budget","0.5"]
    ["allow_self","true"]
    ["reply","admin"]
    ["requires_tool","time"]
    ["requires_tool","nostr_post"]
    ["alt","a skill"]
    ["trigger","telepathy","far"]
    ["t","x"]
    ["t","y"]
    "##);
}

#[test]
fn unknown_tags_of_the_replaced_version_stay_in_front_of_ones_own() {
    let (mut definition, _) =
        own(&signed(1, kinds::PUBLIC_SKILL, &[&["d", "x"], &["t", "new"], &["own"]], ""));
    let previous = signed(
        1,
        kinds::PUBLIC_SKILL,
        &[
            &["t", "old"],
            &["d", "x"],
            &["alt", "b"],
            &["seed", "1"],
            &["trigger", "telepathy"],
            &["alt", "a"],
        ],
        "",
    );
    definition.keep_other_tags(&previous.tags);
    insta::assert_snapshot!(lines(&definition.other_tags), @r#"
    ["alt","b"]
    ["trigger","telepathy"]
    ["alt","a"]
    ["t","new"]
    ["own"]
    "#);
}

#[test]
fn parameters_of_trigger_tags_become_the_skills_own() {
    let of = |tags: &[&[&str]]| own(&signed(1, kinds::PUBLIC_SKILL, tags, ""));
    let (definition, warnings) = of(&[
        &["trigger", "dm", "", "llm=cheap", "max_turns=2"],
        &["trigger", "cron", "", "max_turns=2", "llm=cheap"],
        &["max_turns", "9"],
    ]);
    assert_eq!(warnings, [""; 0]);
    assert_eq!((definition.params.llm.as_deref(), definition.params.max_turns), (Some("cheap"), Some(2)));
    let (definition, warnings) = of(&[&["trigger", "dm", "", "seed=1"], &["trigger", "cron"]]);
    assert_eq!(definition.params.seed, Some(1));
    insta::assert_snapshot!(warnings.join("\n"), @r#"skill "": tag "trigger" sets parameters that differ from another trigger's; those of the first are kept"#);
}

#[test]
fn a_private_skill_is_read_sealed_or_in_clear_and_nobody_elses_at_all() {
    let sealed =
        nip44::encrypt(keys(1).secret_key(), &keys(1).public_key(), "text", nip44::Version::V2).unwrap();
    for content in [sealed.as_str(), "text"] {
        assert_eq!(own(&signed(1, kinds::PRIVATE_SKILL, &[], content)).0.content, "text");
    }
    let foreign = signed(2, kinds::PUBLIC_SKILL, &[], "text");
    assert_eq!(Definition::of(&foreign, &keys(1), &mut Vec::new()), Err(SkillError::Foreign));
    assert_eq!(
        Definition::of(&signed(1, kinds::NOTE, &[], ""), &keys(1), &mut Vec::new()),
        Err(SkillError::Kind)
    );
}

#[test]
fn what_a_tag_cannot_hold_is_not_written() {
    let plain = || own(&signed(1, kinds::PRIVATE_SKILL, &[&["d", "x"]], "text")).0;
    let refused = |change: &dyn Fn(&mut Definition)| {
        let mut definition = plain();
        change(&mut definition);
        definition.write().unwrap_err().to_string() + "\n"
    };
    let table = [
        refused(&|it| it.description = Some(" a\nb ".to_owned())),
        refused(&|it| it.triggers = vec![TriggerFilter::Dm([].into())]),
        refused(&|it| it.triggers = vec![TriggerFilter::Cron(Some(String::new()))]),
        refused(&|it| it.triggers = vec![TriggerFilter::Cron(Some("daily".to_owned()))]),
        refused(&|it| it.triggers = vec![TriggerFilter::Subscription("{}".to_owned())]),
        refused(&|it| it.params.temperature = Some(f64::NAN)),
        refused(&|it| it.params.temperature = Some(-1.0)),
        refused(&|it| it.rules.budget_micro_usd = Some(u64::MAX)),
        refused(&|it| it.required_tools = vec!["a".to_owned(), "a".to_owned()]),
        refused(&|it| it.other_tags = vec![Tag::custom("seed", ["1"])]),
        refused(&|it| it.content = "x".repeat(MAX_SEALED_BYTES + 1)),
    ]
    .concat();
    insta::assert_snapshot!(table, @r#"
    it would not be read as it is meant, correct it: a value is empty, repeated, or holds spaces or line ends that its tag cannot
    it would not be read as it is meant, correct it: a value is empty, repeated, or holds spaces or line ends that its tag cannot
    it would not be read as it is meant, correct it: a value is empty, repeated, or holds spaces or line ends that its tag cannot
    it would not be read as it is meant, correct it: skill "x": tag "trigger" (cron) is neither five fields such as "0 9 * * *" nor a name such as @daily, after an optional TZ=Area/City; it is ignored until then
    it would not be read as it is meant, correct it: skill "x": tag "trigger" (subscription) has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a max_runs tag to the agent's own skill; it is ignored until then
    it would not be read as it is meant, correct it: skill "x": tag "temperature" is not a number from 0 to 2 and is ignored
    it would not be read as it is meant, correct it: skill "x": tag "temperature" is not a number from 0 to 2 and is ignored
    it would not be read as it is meant, correct it: skill "x": tag "budget" is not an amount of US dollars and is ignored; give digits with up to six decimals, for example "0.25"
    it would not be read as it is meant, correct it: a value is empty, repeated, or holds spaces or line ends that its tag cannot
    it would not be read as it is meant, correct it: a value is empty, repeated, or holds spaces or line ends that its tag cannot
    its content has 65536 bytes, and a private skill at most 65535; shorten it, split it, or make it public
    "#);

    let mut long = plain();
    long.content = "x".repeat(MAX_SEALED_BYTES);
    assert!(long.write().is_ok());
    long.content.push('x');
    long.private = false;
    assert!(long.write().is_ok(), "a public skill is not sealed");
}

#[test]
fn a_webhook_for_any_slug_is_written_and_told_where_it_is_read() {
    let (definition, warnings) = own(&signed(1, kinds::PUBLIC_SKILL, &[&["trigger", "webhook"]], ""));
    assert_eq!(warnings, [""; 0]);
    assert!(definition.write().is_ok());
    let mut warnings = Vec::new();
    let event = signed(1, kinds::PUBLIC_SKILL, &[&["d", "x"], &["trigger", "webhook"]], "");
    Skill::parse(&event, &keys(1), &mut warnings).unwrap();
    insta::assert_snapshot!(warnings.join("\n"), @r#"skill "x": tag "trigger" (webhook) names no slug and means any webhook; name one, unless that is meant"#);
}

/// A word that stays as it is in every tag.
fn word() -> impl Strategy<Value = String> {
    "[a-zA-Z0-9:/é🦀{}\"\\\\_-]{1,12}"
}

fn any_trigger() -> impl Strategy<Value = TriggerFilter> {
    let tiers = proptest::sample::subsequence(vec![Tier::Admin, Tier::Wot, Tier::Stranger], 1..=3);
    prop_oneof![
        tiers.prop_map(|tiers| TriggerFilter::Dm(tiers.into_iter().collect())),
        of(select(vec!["* * * * *", "@daily", "TZ=Asia/Tokyo 0 21 * * 1-5"]))
            .prop_map(|text| TriggerFilter::Cron(text.map(str::to_owned))),
        word().prop_map(|tag| TriggerFilter::Subscription(serde_json::json!({"#t": [tag]}).to_string())),
        word().prop_map(|slug| TriggerFilter::Webhook(Some(slug))),
        word().prop_map(TriggerFilter::Chain),
    ]
}

fn any_definition() -> impl Strategy<Value = Definition> {
    let params = (of(word()), of(0.0f64..=2.0), of(1u32..=1_000_000), of(any::<i64>()), of(1u32..=1000))
        .prop_map(|(llm, temperature, max_tokens, seed, max_turns)| SkillParams {
            llm,
            temperature,
            max_tokens,
            seed,
            max_turns,
        });
    let rules = (of(0u32..=1_000_000), any::<bool>(), any::<bool>(), of(0u64..=1_000_000_000_000)).prop_map(
        |(max_runs, allow_self, reply_to_admin, budget_micro_usd)| RunRules {
            max_runs,
            allow_self,
            reply_to_admin,
            budget_micro_usd,
        },
    );
    let others = vec(("(alt|t|client|x)", vec("\\PC{0,8}", 0..3)), 0..4)
        .prop_map(|tags| tags.into_iter().map(|(name, values)| Tag::custom(name, values)).collect());
    let text =
        ("\\PC{0,20}", any::<bool>(), of("[a-z]{1,5}( [a-z]{1,5}){0,3}"), "(\\PC|\n){0,80}", any::<bool>());
    let tools = proptest::sample::subsequence(vec!["time", "nostr_post", "a-b"], 0..=3);
    (text, vec(any_trigger(), 0..4), params, rules, tools, others).prop_map(
        |((d, private, description, content, enabled), triggers, params, rules, tools, other_tags)| {
            Definition {
                d,
                private,
                description,
                content,
                triggers,
                enabled,
                params,
                rules,
                required_tools: tools.into_iter().map(str::to_owned).collect(),
                other_tags,
            }
        },
    )
}

/// Tags of every name that the codec knows, and of others, with values of every shape.
fn any_tags() -> impl Strategy<Value = Vec<Tag>> {
    let name = prop_oneof![select(KNOWN.to_vec()).prop_map(str::to_owned), "[a-z]{0,3}"];
    let value = prop_oneof![
        select(vec![
            "",
            "dm",
            "cron",
            "subscription",
            "nostr-subscription",
            "webhook",
            "chain",
            "telepathy",
            "admin,wot",
            "stranger",
            "* * * * *",
            "@daily",
            "{\"#t\":[\"x\"]}",
            "{\"kinds\":[1]}",
            "{\"kinds\":[4]}",
            "true",
            "FALSE",
            "1",
            "0.5",
            "-1",
            "NaN",
            "inf",
            "1e999",
            "99999999999999999999",
            "seed=4",
            "llm",
            "cheap",
            "public",
            "private",
            "time",
            " spaced ",
            "a\u{0}b\n",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,10}",
        Just("9".repeat(5_000)),
    ];
    vec((name, vec(value, 0..5)).prop_map(|(name, values)| Tag::custom(name, values)), 0..12)
}

proptest! {
    #[test]
    fn what_is_written_is_read_again_without_a_warning(definition in any_definition()) {
        let tags = Tags::from_list(definition.write().unwrap());
        let mut warnings = Vec::new();
        let read = Definition::read(definition.kind(), &tags, &definition.content, &keys(1), &mut warnings);
        prop_assert_eq!(read, Ok(definition));
        prop_assert_eq!(warnings, Vec::<String>::new());
    }

    #[test]
    fn whatever_is_read_can_be_written_and_is_canonical_from_then_on(tags in any_tags(), content in "\\PC{0,20}") {
        let mut event = signed(1, kinds::PUBLIC_SKILL, &[], &content);
        event.tags = Tags::from_list(tags);
        let mut warnings = Vec::new();
        let read = Definition::of(&event, &keys(1), &mut warnings).unwrap();
        prop_assert!(warnings.iter().all(|warning| warning.len() < 1_000 && !warning.contains('\n')));
        let written = read.write().unwrap();
        event.tags = Tags::from_list(written.clone());
        let again = Definition::of(&event, &keys(1), &mut Vec::new()).unwrap();
        prop_assert_eq!(&again, &read);
        prop_assert_eq!(again.write().unwrap(), written);
        // What runs is what was written.
        let skill = Skill::parse(&event, &keys(1), &mut Vec::new()).unwrap();
        let fires: Vec<TriggerFilter> = skill.triggers.into_iter().map(|trigger| trigger.filter).collect();
        prop_assert_eq!((fires, skill.params, skill.rules), (read.triggers, read.params, read.rules));
    }
}
