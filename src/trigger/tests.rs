//! Each kind of trigger: what it is claimed by, what it may do, what the model is told, and which skills it fires.

use super::*;
use crate::kinds;
use crate::skill::Skill;
use crate::skill::tests::{keys, signed};
use crate::trigger::webhook::Body;

const NOW: Timestamp = Timestamp::from_secs(1_803_902_437);
const AGENT: u8 = 1;
const ADMIN: u8 = 2;
const STRANGER: u8 = 3;

fn admin() -> PublicKey {
    keys(ADMIN).public_key()
}

fn dm(tier: Tier) -> Trigger {
    let source = Source::Dm(Dm {
        peer: admin(),
        protocol: Protocol::Nip04,
        message_id: EventId::from_byte_array([7; 32]),
        created_at: NOW,
        text: "hi".to_owned(),
        fixed_answer: None,
        relay: None,
    });
    Trigger { id: "dm:7".to_owned(), source, tier, tainted: false, admin: admin(), arrived_at: NOW }
}

fn prompt() -> Trigger {
    let prompt = Prompt { message: "hi".to_owned(), model: None, max_turns: None };
    Trigger::prompt(prompt, "r-1", admin(), NOW)
}

fn cron(schedule: &str) -> Trigger {
    Trigger::cron(schedule, NOW, admin(), NOW + 60)
}

fn subscription(author: u8) -> Trigger {
    let event = signed(author, kinds::NOTE, &[&["t", "nostr"]], "a \"note\"");
    Trigger::subscription(event, keys(AGENT).public_key(), &[admin()], NOW)
}

fn webhook(slug: &str) -> Trigger {
    let body = Body::Json(r#"{"status":"done"}"#.to_owned());
    let webhook = Webhook { slug: slug.to_owned(), content_type: "application/json".to_owned(), body };
    Trigger::webhook(webhook, "d-1", admin(), NOW)
}

fn chain(from: &str, parent: &Trigger) -> Trigger {
    let chain = Chain {
        from: from.to_owned(),
        run: "run-1".to_owned(),
        final_response: "Done.".to_owned(),
        path: Vec::new(),
        left: 0,
    };
    Trigger::chain(chain, parent, NOW)
}

/// Signatures are made anew each time.
fn without_signature(trigger: &Trigger) -> String {
    let message = trigger.message().into_owned();
    match &trigger.source {
        Source::Subscription(subscription) => message.replace(&subscription.event.sig.to_string(), "SIG"),
        _ => message,
    }
}

#[test]
fn each_trigger_has_the_id_the_standing_and_the_message_of_its_kind() {
    let told = |trigger: &Trigger| {
        let peer = trigger.peer().map_or("nobody", |peer| if peer == admin() { "the admin" } else { "?" });
        format!(
            "{} {}{} by {peer} at {}\n  {}",
            trigger.id,
            trigger.tier.as_str(),
            if trigger.tainted { " tainted" } else { "" },
            trigger.created_at(),
            without_signature(trigger),
        )
    };
    let stranger = dm(Tier::Stranger);
    let triggers = [
        dm(Tier::Wot),
        prompt(),
        cron("TZ=Europe/Berlin  @daily"),
        subscription(STRANGER),
        subscription(ADMIN),
        webhook("ci"),
        chain("daily", &cron("@daily")),
        chain("daily", &webhook("ci")),
        chain("daily", &stranger),
    ];
    insta::assert_snapshot!(triggers.iter().map(told).collect::<Vec<_>>().join("\n"), @r#"
    dm:7 wot by the admin at 1803902437
      hi
    http:r-1 admin by the admin at 1803902437
      hi
    cron:TZ=Europe/Berlin 0 0 * * *@30065040 admin by nobody at 1803902400
      {"trigger":"cron","schedule":"TZ=Europe/Berlin 0 0 * * *","scheduled_at":1803902400}
    sub:afe4f9da7cb0c114f9c56c37d26a1d1004ffff272151c8009949f632531772e9 admin tainted by nobody at 1803902400
      {"id":"afe4f9da7cb0c114f9c56c37d26a1d1004ffff272151c8009949f632531772e9","pubkey":"f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9","created_at":1803902400,"kind":1,"tags":[["t","nostr"]],"content":"a \"note\"","sig":"SIG"}
    sub:3a6e9a7140ca8e2a3479c94f0bdde520d3511668daea579aeaf3b396d968f2b1 admin by nobody at 1803902400
      {"id":"3a6e9a7140ca8e2a3479c94f0bdde520d3511668daea579aeaf3b396d968f2b1","pubkey":"c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5","created_at":1803902400,"kind":1,"tags":[["t","nostr"]],"content":"a \"note\"","sig":"SIG"}
    hook:ci:d-1 admin tainted by nobody at 1803902437
      {"trigger":"webhook","slug":"ci","content_type":"application/json","body":{"status":"done"}}
    chain:run-1:daily admin by nobody at 1803902437
      {"trigger":"chain","from":"daily","run":"run-1","final_response":"Done."}
    chain:run-1:daily admin tainted by nobody at 1803902437
      {"trigger":"chain","from":"daily","run":"run-1","final_response":"Done."}
    chain:run-1:daily stranger by nobody at 1803902437
      {"trigger":"chain","from":"daily","run":"run-1","final_response":"Done."}
    "#);
}

#[test]
fn a_trigger_survives_being_stored() {
    for trigger in [
        dm(Tier::Admin),
        prompt(),
        cron("@daily"),
        subscription(STRANGER),
        webhook("ci"),
        chain("a", &dm(Tier::Wot)),
    ] {
        let stored = serde_json::to_string(&trigger).unwrap();
        assert_eq!(serde_json::from_str::<Trigger>(&stored).unwrap(), trigger);
    }
    // However deep a body is, what holds it is not.
    let body = Body::decode("", ("[".repeat(5_000) + &"]".repeat(5_000)).as_bytes()).unwrap();
    let webhook = Webhook { slug: "s".to_owned(), content_type: String::new(), body };
    let trigger = Trigger::webhook(webhook, "d", admin(), NOW);
    let stored = serde_json::to_string(&trigger).unwrap();
    assert_eq!(serde_json::from_str::<Trigger>(&stored).unwrap(), trigger);
}

/// Whether a skill with these tags is fired.
fn fires(tags: &[&[&str]], trigger: &Trigger) -> bool {
    let event = signed(AGENT, kinds::PUBLIC_SKILL, tags, "text");
    Skill::parse(&event, &keys(AGENT), &mut Vec::new()).unwrap().fired_by(trigger).is_some()
}

#[test]
fn a_trigger_fires_the_skills_that_name_it_and_no_others() {
    let note = r##"{"kinds":[1],"#t":["nostr"]}"##;
    let other = r##"{"kinds":[1],"#t":["bitcoin"]}"##;
    let table: [(&[&str], Trigger, bool); 19] = [
        (&["trigger", "dm"], dm(Tier::Wot), true),
        (&["trigger", "dm"], dm(Tier::Stranger), false),
        (&["trigger", "dm", "stranger"], dm(Tier::Stranger), true),
        (&["trigger", "dm"], prompt(), true),
        (&["trigger", "dm", "wot"], prompt(), false),
        (&["trigger", "dm"], cron("@daily"), false),
        (&["trigger", "cron"], cron("@daily"), true),
        (&["trigger", "cron", " 0  0 * * * "], cron("@daily"), true),
        (&["trigger", "cron", "TZ=Europe/Berlin @daily"], cron("@daily"), false),
        (&["trigger", "subscription", note], subscription(STRANGER), true),
        (&["trigger", "subscription", note], subscription(AGENT), false),
        (&["trigger", "subscription", other], subscription(STRANGER), false),
        (&["trigger", "subscription", "{\"ids\":[\"x\"]}"], subscription(STRANGER), false),
        (&["trigger", "webhook"], webhook("ci"), true),
        (&["trigger", "webhook", "ci"], webhook("ci"), true),
        (&["trigger", "webhook", "cd"], webhook("ci"), false),
        (&["trigger", "chain", "a"], chain("a", &cron("@daily")), true),
        (&["trigger", "chain", "b"], chain("a", &cron("@daily")), false),
        (&["trigger", "chain", "a"], webhook("a"), false),
    ];
    for (tag, trigger, expected) in table {
        assert_eq!(fires(&[tag], &trigger), expected, "{tag:?} by {}", trigger.id);
        assert!(!fires(&[tag, &["enabled", "false"]], &trigger), "{tag:?} is off");
        assert!(!fires(&[&["description", "no trigger"]], &trigger), "by {}", trigger.id);
    }
}
