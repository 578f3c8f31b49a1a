//! What the faults are tried on: an agent, one DM to it, and what must have become of both in the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use didactyl::app::LEASE_MARGIN;
use didactyl::dm::ReplyPart;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::outage::NOTE;
use didactyl::record::{self, MAX_ATTEMPTS, RunRecord, Status};
use didactyl::store::{Key, Range, keys};
use nostr::prelude::{Event, EventBuilder, EventId, Filter, FinalizeEvent, Kind, Timestamp};
use serde_json::{Value, json};

use crate::agent::{BUDGET, TestAgent, agent_key, deliver_to, dm_id, nip04, nip17, outcomes, secret};
use crate::faults::Fault;
use crate::ground::On;
use crate::sea::tick;

/// What a message asks for.
#[derive(Debug, Clone, Copy)]
pub enum Story {
    Nip17,
    Nip04,
    /// The model posts a note before it answers.
    Post,
    /// Three turns with tools, one of which posts a note, and a reply in two parts.
    Task,
}

impl Story {
    fn message(self) -> Event {
        let from = secret(2);
        match self {
            Self::Nip17 => nip17(&from, self.question()),
            Self::Nip04 => nip04(&from, self.question()),
            Self::Post | Self::Task => nip17(&from, self.question()),
        }
    }

    fn question(self) -> &'static str {
        match self {
            Self::Nip17 | Self::Nip04 => "hello",
            Self::Post => "post",
            Self::Task => "a task",
        }
    }

    /// The parts of the reply.
    fn answer(self) -> Vec<String> {
        match self {
            Self::Nip17 | Self::Nip04 => vec!["HELLO".to_owned()],
            Self::Post => vec!["posted".to_owned()],
            Self::Task => report().split_inclusive("\n\n").map(str::to_owned).collect(),
        }
    }

    fn notes(self) -> usize {
        usize::from(matches!(self, Self::Post | Self::Task))
    }

    /// The model calls that it needs.
    fn calls(self) -> usize {
        match self {
            Self::Nip17 | Self::Nip04 => 1,
            Self::Post => 2,
            Self::Task => 4,
        }
    }
}

/// A reply that fits in no one part.
fn report() -> String {
    let paragraph = format!("{}\n\n", "word ".repeat(2_000).trim_end());
    paragraph.repeat(2).trim_end().to_owned()
}

fn script(asked: &Asked) -> Answer {
    let post = || Answer::call("nostr_post", json!({"content": "a note"}));
    match (asked.last_text("user"), results(&asked.body)) {
        ("post", 0) => post(),
        ("post", _) => Answer::Text("posted".to_owned()),
        ("a task", 0) => Answer::call("nostr_query", json!({"kinds": [0], "limit": 1})),
        ("a task", 1) => post(),
        ("a task", 2) => Answer::call("agent_identity", json!({})),
        ("a task", _) => Answer::Text(report()),
        (text, _) => Answer::Text(text.to_uppercase()),
    }
}

/// How many tool results stand in a request.
fn results(body: &Value) -> usize {
    messages(body).iter().filter(|message| message["role"] == "tool").count()
}

fn messages(body: &Value) -> &[Value] {
    body["messages"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// An agent and one DM to it, which also lies on the relay.
pub struct Bed {
    pub agent: TestAgent,
    story: Story,
    pub dm: Event,
}

impl Bed {
    pub async fn new(on: On, story: Story) -> Self {
        let agent = TestAgent::over(on, script).await;
        let dm = story.message();
        agent.publish([dm.clone()]).await;
        Self { agent, story, dm }
    }

    pub fn payload(&self) -> String {
        json!({"type": "relay", "events": [self.dm], "relay": self.agent.relay_url.to_string()}).to_string()
    }

    /// Hands the DM to a process with this fault, which dies there if the fault says so.
    pub async fn meet(&self, fault: &Arc<Fault>, what: &str) {
        let mut app = self.agent.another();
        fault.install(&mut app);
        // An answer or an error: what counts is what the next one finds.
        fault.until_crash(deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm))).await;
        self.check_promises(what).await;
    }

    /// A record tells of a reply exactly where one is saved. One read sees all: what the dead process asked of the
    /// database may still be on its way.
    async fn check_promises(&self, what: &str) {
        let record = self.record_key();
        let rows = self.agent.app.store.list(&Range::whole(record.partition.clone())).await.unwrap();
        let Some(row) = rows.iter().find(|row| row.key == record) else { return };
        let record: RunRecord = serde_json::from_slice(&row.value).unwrap();
        let saved = rows.iter().filter(|row| row.key.sort.starts_with(keys::REPLY_PREFIX));
        let saved: Vec<EventId> =
            saved.map(|row| self.agent.app.open_sealed::<ReplyPart>(row).unwrap().id).collect();
        assert_eq!(record.reply_ids, saved, "{what}");
        assert_eq!(record.status == Status::Running, saved.is_empty(), "{what}: {:?}", record.status);
    }

    fn record_key(&self) -> Key {
        keys::record(&record::run_id(&record::dm_trigger_id(&dm_id(&self.dm))))
    }

    /// Stands for waiting until nobody can hold the lease any more.
    pub fn end_all_leases(&self) {
        self.agent.clock.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(1));
    }

    /// What comes after the fault: of a task ticks alone, of the rest one that hands the message over again.
    pub async fn go_on(&self, what: &str) {
        self.end_all_leases();
        match self.story {
            Story::Task => self.ticks(what).await,
            Story::Nip17 | Story::Nip04 | Story::Post => self.redeliver(what).await,
        }
    }

    async fn redeliver(&self, what: &str) {
        let app = self.agent.another();
        let answer = deliver_to(&app, &self.agent.relay_url, std::slice::from_ref(&self.dm)).await.unwrap();
        assert_eq!(outcomes(&answer), ["replied"], "{what}: {answer}");
    }

    async fn ticks(&self, what: &str) {
        self.rename_the_agent().await;
        for _ in 0..5 {
            let answer = tick(&self.agent.another()).await;
            assert_eq!(answer["success"], json!(true), "{what}: {answer}");
            self.agent.clock.forward(Duration::from_secs(60));
        }
    }

    /// Its name stands in each context; what goes on keeps the one that it began with.
    pub async fn rename_the_agent(&self) {
        let profile = EventBuilder::new(Kind::from(0), r#"{"display_name":"Somebody Else"}"#)
            .custom_created_at(Timestamp::now() + 1)
            .finalize(&secret(1))
            .unwrap();
        self.agent.publish([profile]).await;
    }

    /// One reply, one note if any, both sides in the conversation, and the record says so; and no model was asked again but
    /// where a fault cut its answer off. After as many faults as there are attempts, the reply may be the word that there
    /// is none.
    pub async fn check(&self, faults: usize, what: &str) {
        // A model that failed once is an outage, of which the sender is told.
        let mut replies = self.agent.replies().await;
        replies.retain(|(_, text)| text != NOTE);
        let (ids, texts): (Vec<EventId>, Vec<String>) = replies.into_iter().unzip();
        let is_apology = |text: &String| text.starts_with("I could not answer this message");
        let gave_up = faults >= MAX_ATTEMPTS as usize && texts.len() == 1 && texts.iter().all(is_apology);
        assert!(texts == self.story.answer() || gave_up, "{what}: {texts:?}");
        let mut history = self.agent.history(secret(2).public_key()).await;
        history.retain(|(_, text)| text != NOTE);
        let mut expected = vec![("peer", self.story.question().to_owned())];
        expected.extend(texts.into_iter().map(|text| ("agent", text)));
        assert_eq!(history, expected, "{what}");

        let record = self.agent.record(&record::dm_trigger_id(&dm_id(&self.dm))).await;
        let ended = if gave_up { Status::Dead } else { Status::Done };
        assert_eq!((record.status, record.reply_ids), (ended, ids), "{what}");
        assert_eq!(record.reason.is_some(), gave_up, "{what}: {:?}", record.reason);

        let notes = Filter::new().kind(Kind::from(1)).author(agent_key());
        let notes = self.agent.on_relay(notes).await.len();
        assert!(
            notes == self.story.notes() || gave_up && notes < self.story.notes(),
            "{what}: {notes} notes"
        );
        let calls = self.agent.model.calls();
        assert!(calls <= self.story.calls() + faults, "{what}: {calls} model calls");
        assert!(calls >= self.story.calls() || gave_up, "{what}: {calls} model calls");
        assert_eq!(self.agent.model.refusals(), [""; 0], "{what}");
        self.check_requests(what);
    }

    /// What is asked again, once there was an answer to go on from, is asked in the same words.
    fn check_requests(&self, what: &str) {
        let mut asked: BTreeMap<usize, Value> = BTreeMap::new();
        for request in self.agent.model.requests() {
            let results = results(&request.body);
            let first = asked.entry(results).or_insert_with(|| request.body.clone());
            assert!(results == 0 || *first == request.body, "{what}: turn {}", results + 1);
        }
        let bodies: Vec<&Value> = asked.values().skip(1).collect();
        for pair in bodies.windows(2) {
            let goes_on = messages(pair[1]).starts_with(messages(pair[0]));
            assert!(goes_on, "{what}: a later turn has other messages");
        }
    }
}
