//! `didactyl publish`: from files to events on the relay, and to the context of the next DM.

use std::net::TcpListener;
use std::path::PathBuf;

use didactyl::cli::publish::{self, Request};
use didactyl::kinds;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::skill::Definition;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Kind, Tag, Timestamp};
use tempfile::TempDir;

use crate::agent::{TestAgent, agent_key, echo, nip17, outcomes, secret};
use crate::fake_relay::FakeRelay;

const CHAT: &str = "[\"trigger\",\"dm\",\"admin\"]\n[\"t\",\"mine\"]\n\n# Chat\n\n{{house}}\n";
const HOUSE: &str = "[\"scope\",\"public\"]\n# House rules\n";

/// A folder of drafts.
struct Drafts(TempDir);

impl Drafts {
    fn new(files: &[(&str, &str)]) -> Self {
        let drafts = Self(TempDir::new().unwrap());
        for (name, text) in files {
            drafts.write(name, text);
        }
        drafts
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// What the command prints, or says when it fails, for these skills and perhaps a soul.
    async fn publish(&self, agent: &TestAgent, more: &str, names: &[&str]) -> Result<String, String> {
        let (souls, skills): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.starts_with("soul"));
        let request = Request {
            soul: souls.first().map(|name| self.path(name)),
            skill: skills.iter().map(|name| self.path(name)).collect(),
            yes: true,
        };
        run(agent, more, &request).await
    }
}

/// The command, with relays beside the agent's own.
async fn run(agent: &TestAgent, more: &str, request: &Request) -> Result<String, String> {
    let mut vars = agent.vars();
    // All that the command needs.
    vars.retain(|name, _| ["DIDACTYL_NSEC", "DIDACTYL_RELAYS"].contains(name));
    vars.insert("DIDACTYL_RELAYS", format!("{} {more}", agent.relay_url));
    let mut out = Vec::new();
    let outcome = publish::run(request, &|name| vars.get(name).cloned(), &mut out).await;
    outcome.map(|()| String::from_utf8(out).unwrap()).map_err(|error| error.to_string())
}

/// The newest event of the agent at this kind and d tag.
async fn on_relay(agent: &TestAgent, kind: Kind, d: &str) -> Option<Event> {
    let filter = Filter::new().kind(kind).author(agent_key());
    let events = agent.on_relay(if d.is_empty() { filter } else { filter.identifier(d) }).await;
    events.into_iter().max_by_key(|event| event.created_at)
}

fn lines(event: &Event) -> Vec<String> {
    event.tags.iter().map(|tag| serde_json::to_string(tag.as_slice()).unwrap()).collect()
}

fn signed(kind: Kind, tags: &[&[&str]], content: &str, created_at: Timestamp) -> Event {
    EventBuilder::new(kind, content)
        .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
        .custom_created_at(created_at)
        .finalize(&secret(1))
        .unwrap()
}

/// Answers with all that the model sees.
fn all_of_it(asked: &Asked) -> Answer {
    let texts = asked.messages().iter().filter_map(|message| message["content"].as_str());
    Answer::Text(texts.collect::<Vec<_>>().join("\n"))
}

#[tokio::test]
async fn what_is_published_is_in_the_context_of_the_next_dm() {
    let agent = TestAgent::bare(all_of_it).await;
    let drafts = Drafts::new(&[("soul.md", "You are a test."), ("chat.md", CHAT), ("house.md", HOUSE)]);
    let out = drafts.publish(&agent, "", &["soul.md", "chat.md", "house.md"]).await.unwrap();
    assert_eq!(out.matches(&format!("  {} accepted it", agent.relay_url)).count(), 4, "{out}");

    let chat = on_relay(&agent, kinds::PRIVATE_SKILL, "chat").await.unwrap();
    assert!(!chat.content.contains("Chat"), "sealed");
    let read = Definition::of(&chat, &secret(1), &mut Vec::new()).unwrap();
    assert_eq!(read.content, "# Chat\n\n{{house}}\n");
    assert_eq!(on_relay(&agent, kinds::PUBLIC_SKILL, "house").await.unwrap().content, "# House rules\n");
    let list = on_relay(&agent, kinds::ADOPTION_LIST, "").await.unwrap();
    let me = agent_key();
    assert_eq!(
        lines(&list),
        [format!("[\"a\",\"31124:{me}:chat\"]"), format!("[\"a\",\"31123:{me}:house\"]")]
    );

    let answer = agent.deliver(&[nip17(&secret(2), "hello")]).await;
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let (_, context) = agent.replies().await.remove(0);
    for part in ["You are a test.", "## Chat", "House rules", "hello"] {
        assert!(context.contains(part), "{part} is not in {context}");
    }
}

#[tokio::test]
async fn without_yes_it_shows_what_it_would_send_and_sends_nothing() {
    let agent = TestAgent::bare(echo).await;
    let drafts = Drafts::new(&[("chat.md", CHAT)]);
    let request = Request { skill: vec![drafts.path("chat.md")], ..Request::default() };
    let out = run(&agent, "", &request).await.unwrap();
    let shown =
        out.replace(&agent.relay_url.to_string(), "ws://RELAY").replace(&agent_key().to_hex(), "AGENT");
    insta::assert_snapshot!(shown, @r#"
    agent   npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d
    relay   ws://RELAY

    skill "chat", kind 31124: new
      ["d","chat"]
      ["scope","private"]
      ["trigger","dm","admin"]
      ["t","mine"]
      content: 18 bytes, for the agent alone; everybody can read the tags

    adoption list, kind 10123: "chat" appended
      ["a","31124:AGENT:chat"]

    Nothing was published. To publish this, run it again with --yes.
    "#);
    assert_eq!(agent.on_relay(Filter::new().author(agent_key())).await, []);
}

#[tokio::test]
async fn tags_that_the_codec_does_not_know_outlive_their_version() {
    let agent = TestAgent::bare(echo).await;
    let (me, ahead) = (agent_key(), Timestamp::now() + 60u64);
    agent
        .publish([
            signed(
                kinds::PRIVATE_SKILL,
                &[&["alt", "kept"], &["d", "chat"], &["t", "gone"], &["seed", "1"]],
                "old",
                ahead,
            ),
            signed(
                kinds::ADOPTION_LIST,
                &[&["title", "kept"], &["skill", &format!("31124:{me}:other")], &["a", "unreadable"]],
                "kept",
                ahead,
            ),
            signed(kinds::SOUL, &[&["d", "first"], &["alt", "kept"]], "old", ahead),
        ])
        .await;
    let drafts = Drafts::new(&[("soul.md", "new"), ("chat.md", CHAT)]);
    drafts.publish(&agent, "", &["soul.md", "chat.md"]).await.unwrap();

    let chat = on_relay(&agent, kinds::PRIVATE_SKILL, "chat").await.unwrap();
    assert_eq!(
        lines(&chat),
        [
            r#"["d","chat"]"#,
            r#"["scope","private"]"#,
            r#"["trigger","dm","admin"]"#,
            r#"["alt","kept"]"#,
            r#"["t","mine"]"#
        ]
    );
    let list = on_relay(&agent, kinds::ADOPTION_LIST, "").await.unwrap();
    assert_eq!(
        lines(&list),
        [
            r#"["title","kept"]"#.to_owned(),
            format!("[\"skill\",\"31124:{me}:other\"]"),
            r#"["a","unreadable"]"#.to_owned(),
            format!("[\"a\",\"31124:{me}:chat\"]"),
        ]
    );
    let soul = on_relay(&agent, kinds::SOUL, "").await.unwrap();
    assert_eq!(
        (lines(&soul), soul.content.as_str()),
        (vec![r#"["d","soul"]"#.to_owned(), r#"["alt","kept"]"#.to_owned()], "new")
    );
    for event in [&chat, &list, &soul] {
        assert_eq!(event.created_at, ahead + 1u64, "later than the version before");
    }
    assert_eq!(list.content, "kept");
}

#[tokio::test]
async fn what_is_unchanged_is_sent_again_as_it_is() {
    let agent = TestAgent::bare(echo).await;
    let drafts = Drafts::new(&[("soul.md", "soul"), ("chat.md", CHAT)]);
    let names = ["soul.md", "chat.md"];
    drafts.publish(&agent, "", &names).await.unwrap();
    let all = async || {
        let mut events = agent.on_relay(Filter::new().author(agent_key())).await;
        events.sort();
        events
    };
    let first = all().await;
    // A relay that has nothing yet gets the same events.
    let other = FakeRelay::serving(vec![]).await;
    let out = drafts.publish(&agent, other.own().url.as_str(), &names).await.unwrap();
    assert_eq!(out.matches("unchanged, sent again as it is").count(), 3, "{out}");
    assert_eq!(all().await, first);
    let mut sent: Vec<Event> = other
        .heard("EVENT")
        .into_iter()
        .map(|frame| serde_json::from_value(frame[1].clone()).unwrap())
        .collect();
    sent.sort();
    assert_eq!(sent, first);
}

#[tokio::test]
async fn a_version_is_dated_after_its_own_deletion() {
    let ahead = Timestamp::now() + 60u64;
    let address = format!("31124:{}:chat", agent_key());
    let deletion = signed(kinds::DELETION, &[&["a", &address]], "", ahead);
    let relay = FakeRelay::start(move |mut peer| {
        let deletion = deletion.clone();
        async move {
            loop {
                let frame = peer.hear().await?;
                let asks = |filter: &serde_json::Value| filter["kinds"] == serde_json::json!([5]);
                if frame[0] == "EVENT" {
                    peer.say(serde_json::json!(["OK", frame[1]["id"], true, ""])).await?;
                } else if frame[0] == "REQ" {
                    if frame.as_array().unwrap().iter().any(asks) {
                        peer.say(serde_json::json!(["EVENT", frame[1], deletion])).await?;
                    }
                    peer.say(serde_json::json!(["EOSE", frame[1]])).await?;
                }
            }
        }
    })
    .await;
    let agent = TestAgent::bare_on(relay.own().url, echo).await;
    Drafts::new(&[("chat.md", CHAT)]).publish(&agent, "", &["chat.md"]).await.unwrap();
    let chat: Event = serde_json::from_value(relay.heard("EVENT")[0][1].clone()).unwrap();
    assert_eq!(chat.created_at, ahead + 1u64);
}

#[tokio::test]
async fn nothing_is_sent_while_a_relay_cannot_be_read_in_full() {
    let agent = TestAgent::bare(echo).await;
    let drafts = Drafts::new(&[("chat.md", CHAT)]);
    // Nobody listens there any more.
    let dead = format!("ws://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let deaf = FakeRelay::start(|mut peer| async move {
        let req = peer.hear_kind("REQ").await?;
        peer.say(serde_json::json!(["CLOSED", req[1], "error: no"])).await
    })
    .await;
    let deaf = deaf.own().url.to_string();
    // It has something that is no event, which may be the list itself in another form.
    let odd = FakeRelay::start(|mut peer| async move {
        let req = peer.hear_kind("REQ").await?;
        peer.say(serde_json::json!(["EVENT", req[1], {"kind": 10123}])).await?;
        peer.say(serde_json::json!(["EOSE", req[1]])).await
    })
    .await;
    let odd = odd.own().url.to_string();
    for broken in [&dead, &deaf, &odd] {
        let refused = drafts.publish(&agent, broken, &["chat.md"]).await.unwrap_err();
        assert!(
            refused.contains(&format!("nothing was published: {broken} could not be read in full")),
            "{refused}"
        );
    }
    // Named by the agent's own relay list, it counts no less.
    let list = signed(kinds::RELAY_LIST, &[&["r", &dead, "write"]], "", Timestamp::now());
    agent.publish([list.clone()]).await;
    let refused = drafts.publish(&agent, "", &["chat.md"]).await.unwrap_err();
    assert!(refused.contains(&dead), "{refused}");
    assert_eq!(agent.on_relay(Filter::new().author(agent_key())).await, [list]);
}

#[tokio::test]
async fn a_draft_with_a_fault_keeps_all_of_them_back() {
    let agent = TestAgent::bare(echo).await;
    let key = secret(1).secret_key().to_secret_hex();
    let drafts = Drafts::new(&[
        ("soul.md", "---template---\n- section: x\n  role: king\n  content: y"),
        ("good.md", "text"),
        ("odd.md", "[\"max_runs\",\"often\"]\ntext"),
        ("torn.md", "[\"trigger\",\ntext"),
        ("leak.md", &format!("key {key}")),
        ("twin.md", "[\"d\",\"good\"]\ntext"),
    ]);
    let names = ["soul.md", "good.md", "odd.md", "torn.md", "leak.md", "twin.md", "missing.md"];
    let refused = drafts.publish(&agent, "", &names).await.unwrap_err();
    let folder = format!("{}/", drafts.0.path().display());
    insta::assert_snapshot!(refused.replace(&folder, ""), @r#"
    nothing was published; correct the drafts:
    soul.md: soul template: section 1 is skipped: its role is not system, user, assistant or expand
    odd.md: skill "odd": tag "max_runs" is not a whole number of runs per day and is ignored; give for example "24"
    torn.md:1: begins as a tag and is no JSON array of texts; correct it, or put an empty line before the content
    leak.md: holds the agent's secret key; take it out
    twin.md: another draft has the d tag "good" too; give one of them another
    missing.md: cannot be read as a text: No such file or directory (os error 2)
    "#);
    assert!(!refused.contains(&key));
    assert_eq!(agent.on_relay(Filter::new().author(agent_key())).await, []);
}

#[tokio::test]
async fn what_may_be_a_slip_is_told_and_published_all_the_same() {
    let agent = TestAgent::bare(echo).await;
    let drafts = Drafts::new(&[
        ("soul.md", "You are Fern.\n--- template ---\n- section: x\n  content: y"),
        ("hook.md", "[\"trigger\",\"webhook\"]\n[\"temprature\",\"1\"]\n\n{\"template\": \"x\""),
    ]);
    let out = drafts.publish(&agent, "", &["soul.md", "hook.md"]).await.unwrap();
    let warnings: Vec<&str> = out.lines().filter(|line| line.starts_with("Warning: ")).collect();
    insta::assert_snapshot!(warnings.join("\n").replace(&format!("{}/", drafts.0.path().display()), ""), @r#"
    Warning: soul.md: soul template: line 2 looks as if a template began and is text; write ---template--- at the very start of the line
    Warning: hook.md: skill "hook": tag "trigger" (webhook) names no slug and means any webhook; name one, unless that is meant
    Warning: hook.md: tag "temprature" means nothing to the agent; is "temperature" meant?
    Warning: hook.md: the content begins as JSON and is none (line 1, column 16), so it is taken for markdown, and the model sees it as it is; correct it
    "#);
    let hook = on_relay(&agent, kinds::PRIVATE_SKILL, "hook").await.unwrap();
    assert_eq!(lines(&hook)[2..], ["[\"trigger\",\"webhook\"]", "[\"temprature\",\"1\"]"]);
}

#[tokio::test]
async fn a_skill_that_another_of_its_name_would_hide_is_not_published() {
    let agent = TestAgent::bare(echo).await;
    let other = format!("31123:{}:chat", secret(3).public_key());
    agent.publish([signed(kinds::ADOPTION_LIST, &[&["a", &other]], "", Timestamp::now())]).await;
    let drafts = Drafts::new(&[("chat.md", CHAT)]);
    let refused = drafts.publish(&agent, "", &["chat.md"]).await.unwrap_err();
    assert!(refused.contains(&other) && refused.contains("give the draft another d tag"), "{refused}");
    assert_eq!(on_relay(&agent, kinds::PRIVATE_SKILL, "chat").await, None);
}

#[tokio::test]
async fn the_list_is_not_sent_where_no_relay_takes_a_skill() {
    let relay = FakeRelay::start(|mut peer| async move {
        loop {
            let frame = peer.hear().await?;
            match frame[0].as_str() {
                Some("REQ") => peer.say(serde_json::json!(["EOSE", frame[1]])).await?,
                Some("EVENT") => {
                    peer.say(serde_json::json!(["OK", frame[1]["id"], false, "blocked: full"])).await?;
                }
                _ => {}
            }
        }
    })
    .await;
    let agent = TestAgent::bare_on(relay.own().url, echo).await;
    let drafts = Drafts::new(&[("chat.md", CHAT)]);
    let refused = drafts.publish(&agent, "", &["chat.md"]).await.unwrap_err();
    assert!(refused.contains("no relay accepted skill \"chat\""), "{refused}");
    assert_eq!(relay.heard("EVENT").len(), 1);
}
