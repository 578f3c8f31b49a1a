//! What tools work with in tests: relays and a publisher that record what they are asked.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use nostr::prelude::{Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, Timestamp};
use serde_json::Value;
use tokio::time::Instant;

use super::registry::Registry;
use super::{Draft, Publisher, ToolContext, ToolError};
use crate::chat::ToolCall;
use crate::error::Error;
use crate::relay::listen::Ear;
use crate::relay::{FetchReport, Fetched, Outgoing, Page, PublishReport, RelayError, Relays, Target, Trust};
use crate::state::AgentState;
use crate::trigger::Tier;

/// An agent's surroundings.
pub(super) struct World {
    pub(super) agent: Keys,
    pub(super) admin: Keys,
    pub(super) state: AgentState,
    pub(super) targets: Vec<Target>,
    /// What the relays hold; filters are not applied.
    pub(super) events: Vec<Event>,
    /// What each relay says, to reads and to events alike.
    pub(super) outcomes: Vec<Result<(), RelayError>>,
    pub(super) can_save: bool,
    pub(super) asked: Mutex<Vec<Filter>>,
    pub(super) published: Mutex<Vec<Event>>,
}

/// Our clock.
const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fn secret(scalar: u8) -> Keys {
    Keys::parse(&format!("{scalar:064x}")).unwrap()
}

impl World {
    /// Two relays that work.
    pub(super) fn new() -> Self {
        let (agent, admin) = (secret(1), secret(2));
        let url = |n: u8| format!("wss://r{n}.test").parse().unwrap();
        Self {
            state: AgentState::build(&agent, &[], Some("Dido"), [], NOW),
            targets: [1, 2].map(|n| Target { url: url(n), trust: Trust::Own }).to_vec(),
            events: vec![],
            outcomes: vec![Ok(()), Ok(())],
            can_save: true,
            asked: Mutex::default(),
            published: Mutex::default(),
            agent,
            admin,
        }
    }

    /// Lets the agent know these events too.
    pub(super) fn learn(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.state.events.insert(event));
    }

    /// Calls a tool as the admin, in a run that is not tainted.
    pub(super) async fn call(&self, name: &str, arguments: Value) -> Value {
        let result = self.try_call(name, &arguments.to_string(), Tier::Admin, false).await.unwrap();
        serde_json::from_str(&result).unwrap()
    }

    pub(super) async fn try_call(
        &self,
        name: &str,
        arguments: &str,
        tier: Tier,
        tainted: bool,
    ) -> Result<String, Error> {
        let context = ToolContext {
            admin: self.admin.public_key(),
            state: &self.state,
            relays: self,
            read_targets: &self.targets,
            publisher: self,
            now: NOW,
            until: Instant::now(),
        };
        let call = ToolCall::new("c", name, arguments);
        Registry::standard().call(&call, &context, tier, tainted).await
    }
}

/// A signed event of the key `scalar`.
pub(super) fn event(scalar: u8, kind: u16, created_at: u64, content: &str) -> Event {
    EventBuilder::new(Kind::from(kind), content)
        .custom_created_at(Timestamp::from(created_at))
        .finalize(&secret(scalar))
        .unwrap()
}

#[async_trait]
impl Relays for World {
    async fn fetch(&self, targets: &[Target], filters: &[Filter], _until: Instant) -> Fetched {
        self.asked.lock().unwrap().extend_from_slice(filters);
        let report = |(target, outcome): (&Target, &Result<(), RelayError>)| FetchReport {
            url: target.url.clone(),
            outcome: outcome.clone(),
            events: 0,
            skipped: 0,
            unread: 0,
            took: Duration::ZERO,
        };
        let reports = targets.iter().zip(&self.outcomes).map(report).collect();
        Fetched { events: self.events.clone(), reports }
    }

    async fn page(&self, _target: &Target, _filters: &[Filter], _until: Instant) -> Page {
        panic!("only the sweep reads pages");
    }

    async fn subscribe(
        &self,
        _target: &Target,
        _filters: &[Filter],
        _ear: &Ear,
        _until: Instant,
    ) -> Result<(), RelayError> {
        panic!("no tool listens");
    }

    async fn publish(&self, _outgoing: &[Outgoing], _until: Instant) -> Vec<Vec<PublishReport>> {
        panic!("tools publish through the publisher");
    }

    async fn open(&self, _targets: &[Target], _until: Instant) {}

    async fn close(&self) {}
}

#[async_trait]
impl Publisher for World {
    async fn publish(&self, draft: Draft) -> Result<(Event, Vec<PublishReport>), ToolError> {
        if !self.can_save {
            return Err(ToolError::Run(Error::Transient("the store is unavailable".into())));
        }
        let event = EventBuilder::new(draft.kind, draft.content)
            .tags(draft.tags)
            .custom_created_at(NOW)
            .finalize(&self.agent)
            .unwrap();
        self.published.lock().unwrap().push(event.clone());
        let report = |(target, outcome): (&Target, &Result<(), RelayError>)| PublishReport {
            url: target.url.clone(),
            outcome: outcome.clone(),
            took: Duration::ZERO,
        };
        Ok((event, self.targets.iter().zip(&self.outcomes).map(report).collect()))
    }
}
