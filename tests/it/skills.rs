//! Runs that no message starts: they go the way of every run, keep their answer, and start what follows them.

use std::sync::Arc;
use std::time::Duration;

use didactyl::app::{App, LEASE_MARGIN};
use didactyl::clock::Deadline;
use didactyl::kinds;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, Status, run_id};
use didactyl::trigger::Trigger;
use didactyl::work::work;
use nostr::prelude::{EventBuilder, FinalizeEvent, Kind, Tag, Timestamp};
use serde_json::{Value, json};

use crate::agent::{BUDGET, TestAgent, agent_key, echo, nip04, secret};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::process::Process;
use crate::sea::tick;

on_each_store! {
    a_run_that_answers_nobody_keeps_its_answer,
    an_answer_for_the_admin_goes_the_way_of_the_admins_last_message,
    a_trigger_that_fires_no_skill_is_recorded_and_asks_no_model,
    each_skill_of_a_chain_runs_once_and_none_again,
    a_chain_runs_once_whatever_call_the_process_dies_at,
}

/// An adopted skill: d tag, tags, content.
pub type SkillOf<'a> = (&'a str, &'a [&'a [&'a str]], &'a str);

/// An agent that has adopted these skills, in this order, and nothing else.
pub async fn agent_with(
    on: On,
    skills: &[SkillOf<'_>],
    script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
) -> TestAgent {
    let agent = TestAgent::bare_over(on, script).await;
    adopt(&agent, skills).await;
    agent
}

/// Publishes these skills and the list of them.
pub async fn adopt(agent: &TestAgent, skills: &[SkillOf<'_>]) {
    let now = agent.clock.clock().now() - 60;
    let sign = |kind: Kind, tags: Vec<Tag>, content: &str| {
        EventBuilder::new(kind, content).tags(tags).custom_created_at(now).finalize(&secret(1)).unwrap()
    };
    let mut events = Vec::new();
    for (d, tags, content) in skills {
        let d: &[&str] = &["d", d];
        let tags = [d].iter().chain(*tags).map(|tag| Tag::parse(tag.iter().copied()).unwrap()).collect();
        events.push(sign(kinds::PUBLIC_SKILL, tags, content));
    }
    let entry = |d: &str| Tag::parse(["a".to_owned(), format!("31123:{}:{d}", agent_key())]).unwrap();
    let entries = skills.iter().map(|(d, ..)| entry(d)).collect();
    events.push(sign(kinds::ADOPTION_LIST, entries, ""));
    agent.publish(events).await;
}

fn daily(agent: &TestAgent) -> Trigger {
    let now = agent.clock.clock().now();
    Trigger::cron("@daily", Timestamp::from(1_803_902_400), secret(2).public_key(), now)
}

async fn do_work(app: &App, trigger: &Trigger) -> Value {
    json!(work(app, trigger.clone(), Deadline::after(BUDGET)).await.unwrap())
}

/// An example draft of docs/TRIGGERS.md.
pub fn example(file: &str) -> &'static str {
    let document = include_str!("../../docs/TRIGGERS.md");
    let begin = format!("```markdown file={file}\n");
    document.split(&begin).nth(1).unwrap().split("```").next().unwrap()
}

/// The tags of such a draft, and its text.
pub fn parts_of(draft: &str) -> (Vec<Vec<&str>>, &str) {
    let (head, content) = draft.split_once("\n\n").unwrap();
    (head.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), content)
}

/// The answer that a run kept.
pub async fn kept(agent: &TestAgent, run: &str) -> Option<String> {
    record::kept_answer(&agent.app, run).await.unwrap()
}

async fn a_run_that_answers_nobody_keeps_its_answer(on: On) {
    let skill: SkillOf = ("brief", &[&["trigger", "cron", "@daily"]], "Write a briefing.");
    let agent = agent_with(on, &[skill], |_| Answer::Text("All is well.".to_owned())).await;
    let trigger = daily(&agent);
    let run = run_id(&trigger.id);
    for _ in 0..2 {
        assert_eq!(do_work(&agent.another(), &trigger).await, json!({"outcome": "done", "run": run}));
    }
    assert_eq!(agent.model.calls(), 1);
    assert_eq!(kept(&agent, &run).await.as_deref(), Some("All is well."));
    assert_eq!(agent.replies().await, []);
    let record = agent.record(&trigger.id).await;
    assert_eq!((record.status, record.attempt, record.due_at), (Status::Done, 1, None));
    assert_eq!(record.skills[0].0, format!("31123:{}:brief", agent_key()));
}

async fn an_answer_for_the_admin_goes_the_way_of_the_admins_last_message(on: On) {
    let tags: &[&[&str]] = &[&["trigger", "cron", "@daily"], &["reply", "admin"]];
    let agent = agent_with(on, &[("brief", tags, "Write a briefing.")], echo).await;
    agent.deliver(&[nip04(&secret(2), "hello")]).await;
    let trigger = daily(&agent);
    let told = do_work(&agent.another(), &trigger).await;
    assert_eq!(told["outcome"], "replied", "{told}");
    let record = agent.record(&trigger.id).await;
    let replies = agent.replies().await;
    let said: Vec<&str> = replies.iter().map(|(_, text)| text.as_str()).collect();
    let answer = r#"{"TRIGGER":"CRON","SCHEDULE":"0 0 * * *","SCHEDULED_AT":1803902400}"#;
    assert_eq!((said.len(), said.contains(&answer)), (2, true), "{said:?}");
    let kind = |id| async move {
        let filter = nostr::prelude::Filter::new().id(id);
        agent.on_relay(filter).await.first().map(|event| event.kind)
    };
    assert_eq!(kind(record.reply_ids[0]).await, Some(kinds::DM_NIP04));
}

async fn a_trigger_that_fires_no_skill_is_recorded_and_asks_no_model(on: On) {
    let other: SkillOf = ("brief", &[&["trigger", "cron", "@hourly"]], "Write a briefing.");
    let agent = agent_with(on, &[other], echo).await;
    let trigger = daily(&agent);
    let refused = json!({"outcome": "rejected", "reason": "no adopted skill is fired by it"});
    assert_eq!(do_work(&agent.app, &trigger).await, refused);
    let record = agent.record(&trigger.id).await;
    assert_eq!((record.status, record.due_at, agent.model.calls()), (Status::Dropped, None, 0));
}

/// A daily skill, one that follows it, and the first of them again, which follows the second.
const CHAIN: [SkillOf; 3] = [
    ("brief", &[&["trigger", "cron", "@daily"], &["trigger", "chain", "post"]], "Write a briefing."),
    ("post", &[&["trigger", "chain", "brief"]], "Post it."),
    ("log", &[&["trigger", "chain", "post"], &["reply", "admin"]], "Log it."),
];

/// Says which skill it is asked by.
fn name_of(asked: &Asked) -> Answer {
    let system = asked.last_text("system").to_owned();
    let text = ["briefing", "Post", "Log"].into_iter().find(|word| system.contains(word));
    Answer::Text(format!("answer of {}", text.unwrap_or("nobody")))
}

/// The runs of the chain, first to last.
fn runs_of_chain(trigger: &Trigger) -> [String; 3] {
    let brief = run_id(&trigger.id);
    let post = run_id(&format!("chain:{brief}:brief"));
    let log = run_id(&format!("chain:{post}:post"));
    [brief, post, log]
}

/// Each of its runs is over, once, with its answer, and no other run is there.
async fn check_chain(agent: &TestAgent, trigger: &Trigger, what: &str) {
    let runs = runs_of_chain(trigger);
    let [brief, post, log] = &runs;
    assert_eq!(kept(agent, brief).await.as_deref(), Some("answer of briefing"), "{what}");
    assert_eq!(kept(agent, post).await.as_deref(), Some("answer of Post"), "{what}");
    let replies = agent.replies().await;
    let said: Vec<&str> = replies.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(said, ["answer of Log"], "{what}");
    for run in &runs {
        let record = record::find(&agent.app, run).await.unwrap().unwrap();
        assert_eq!(record.status, Status::Done, "{what}: {record:?}");
    }
    let all = record::recent(&agent.app, 10).await.unwrap();
    let mut all: Vec<&str> = all.iter().map(|record| record.run_id.as_str()).collect();
    all.sort_unstable();
    let mut expected: Vec<&str> = vec![brief, post, log];
    expected.sort_unstable();
    assert_eq!(all, expected, "{what}");
}

async fn each_skill_of_a_chain_runs_once_and_none_again(on: On) {
    let agent = agent_with(on, &CHAIN, name_of).await;
    let trigger = daily(&agent);
    do_work(&agent.app, &trigger).await;
    check_chain(&agent, &trigger, "at once").await;
    assert_eq!(agent.model.calls(), 3);
    let [_, post, _] = runs_of_chain(&trigger);
    let asked = agent.model.requests();
    let message: Value = serde_json::from_str(asked[2].last_text("user")).unwrap();
    assert_eq!(
        message,
        json!({"trigger": "chain", "from": "post", "run": post, "final_response": "answer of Post"})
    );
    do_work(&agent.another(), &trigger).await;
    tick(&agent.another()).await;
    check_chain(&agent, &trigger, "later").await;
    assert_eq!(agent.model.calls(), 3);
}

async fn a_chain_runs_once_whatever_call_the_process_dies_at(on: On) {
    let step = if on == On::Sqlite { 1 } else { 5 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let what = format!("crash {side:?} call {at}");
            let agent = agent_with(on, &CHAIN, name_of).await;
            let trigger = daily(&agent);
            let fault = Fault::crash(at, side);
            let mut app = agent.another();
            fault.install(&mut app);
            fault.until_crash(work(&app, trigger.clone(), Deadline::after(BUDGET))).await;
            agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
            do_work(&agent.another(), &trigger).await;
            agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
            tick(&agent.another()).await;
            check_chain(&agent, &trigger, &what).await;
            if !fault.was_reached() {
                break;
            }
            at += step;
        }
        assert!(at > 15, "{side:?}: the chain ended after {at} calls");
    }
}

/// The skill of TRIGGERS.md that follows another one, here one that a stranger's note fires: what the note began stays tainted.
#[tokio::test]
async fn the_example_of_triggers_md_follows_a_run_and_is_as_tainted_as_it() {
    let (tags, content) = parts_of(example("check.md"));
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    let filter = r##"{"kinds":[1],"#t":["didactyl"]}"##;
    let briefing: SkillOf = ("briefing", &[&["trigger", "subscription", filter]], "Sum it up.");
    let agent = agent_with(On::Sqlite, &[briefing, ("check", &tags, content)], |asked| {
        Answer::Text(
            if asked.last_text("user").contains("final_response") { "It has." } else { "Sum." }.to_owned(),
        )
    })
    .await;
    let now = agent.clock.clock().now();
    let note =
        EventBuilder::new(Kind::TextNote, "Hello").tag(Tag::hashtag("didactyl")).custom_created_at(now);
    let note = note.finalize(&secret(3)).unwrap();
    let trigger = Trigger::subscription(note, agent_key(), &[secret(2).public_key()], now);
    do_work(&agent.app, &trigger).await;
    let run = run_id(&trigger.id);
    let check = record::find(&agent.app, &run_id(&format!("chain:{run}:briefing"))).await.unwrap().unwrap();
    assert_eq!(
        (check.status, check.tainted, kept(&agent, &run).await.as_deref()),
        (Status::Done, true, Some("Sum."))
    );
    let replies = agent.replies().await;
    assert_eq!(replies.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["It has."]);
    for asked in agent.model.requests() {
        assert!(asked.offers("nostr_query") && !asked.offers("nostr_post"), "{}", asked.body["tools"]);
    }
}

#[tokio::test]
async fn a_long_answer_is_kept_as_far_as_a_row_holds_it() {
    let skill: SkillOf = ("brief", &[&["trigger", "cron", "@daily"]], "Write a briefing.");
    let follower: SkillOf = ("check", &[&["trigger", "chain", "brief"]], "Check.");
    let long = "\u{1}\"ä".repeat(100_000);
    let agent = agent_with(On::Sqlite, &[skill, follower], move |asked| {
        let is_first = asked.last_text("user").contains("cron");
        Answer::Text(if is_first { long.clone() } else { "Checked.".to_owned() })
    })
    .await;
    let trigger = daily(&agent);
    do_work(&agent.app, &trigger).await;
    let [brief, ..] = runs_of_chain(&trigger);
    let kept_of_it = kept(&agent, &brief).await.unwrap();
    assert!(kept_of_it.ends_with("\n[cut: the answer has 400000 bytes]"), "{}", kept_of_it.len());
    let check = run_id(&format!("chain:{brief}:brief"));
    assert_eq!(kept(&agent, &check).await.as_deref(), Some("Checked."));
    assert_eq!((agent.record(&trigger.id).await.attempt, agent.model.calls()), (1, 2));
}

#[tokio::test]
async fn at_the_terminal_a_run_shows_the_answer_that_it_kept() {
    let skill: SkillOf = ("brief", &[&["trigger", "cron", "@daily"]], "Write a briefing.");
    let agent = agent_with(On::Sqlite, &[skill], |_| Answer::Text("All is\nwell.\u{1b}[2J".to_owned())).await;
    let trigger = daily(&agent);
    do_work(&agent.app, &trigger).await;
    let mut process = Process::start(&["runs", &run_id(&trigger.id)], &agent.vars());
    assert!(process.ended().await.success());
    let said = process.said.join("\n");
    assert!(said.ends_with("\nanswer\n\nAll is\nwell.[2J"), "{said}");
}

#[tokio::test]
async fn beside_a_queue_each_run_of_a_chain_is_a_message_of_its_own() {
    let mut agent = agent_with(On::Sqlite, &CHAIN, name_of).await;
    let queue = Arc::new(MemoryQueue::default());
    agent.app.queue = Some(queue.clone());
    let trigger = daily(&agent);
    do_work(&agent.app, &trigger).await;
    let [_, post, log] = runs_of_chain(&trigger);
    let queued = || queue.taken().into_iter().map(|(run, _)| run).collect::<Vec<_>>();
    assert_eq!(queued(), std::slice::from_ref(&post));
    let follower = record::stored_trigger(&agent.app, &post).await.unwrap();
    assert_eq!(do_work(&agent.app, &follower).await, json!({"outcome": "done", "run": post}));
    assert_eq!(queued(), [post, log]);
}
