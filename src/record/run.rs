//! A run's record: what the store, and whoever looks at it later, know of a run.

use nostr::prelude::{EventId, PublicKey, Timestamp};
use serde::{Deserialize, Serialize};

use super::{Delivery, FORMAT, run_id};
use crate::app::App;
use crate::chat::Usage;
use crate::commands;
use crate::error::Error;
use crate::trigger::{Tier, Trigger};

/// How many digits of a run's id people see.
const SHORT_ID: usize = 8;

/// A run's record: the claim on its trigger while it lasts, and what became of it. Holds no private text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// See [`FORMAT`].
    pub format: u32,
    /// The run's id: [`run_id`] of the trigger's.
    pub run_id: String,
    /// The trigger's id; what stands before its colon is the kind of trigger.
    pub trigger_id: String,
    /// The run's tier.
    pub tier: Tier,
    /// The run's taint flag.
    pub tainted: bool,
    /// How far it is.
    pub status: Status,
    /// Who works on it: the request id and a random part.
    pub owner: String,
    /// One more with every owner.
    pub fence: u64,
    /// How often work on it was begun; without the times that it was suspended with progress or put off for a model that was
    /// out of order.
    pub attempt: u32,
    /// How often of these it was put off, since it was not known yet whether its sender is answered.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waits: u32,
    /// How often of these it was put off, since the agent was stopped, and those before it was run again by hand.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub put_off: u32,
    /// How often it went on in another invocation, as it did not fit into one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub continuations: u32,
    /// The last time that it met models which were all out of order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// Until when the owner has it, Unix milliseconds.
    pub lease_until_ms: u64,
    /// Nobody begins it before, Unix seconds: it was given back, and what it failed of may last. A redelivery would only use
    /// up its attempts.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub not_before: u64,
    /// Where its due row lies, Unix seconds: when somebody must look at it again, if nobody ended it by then. Written and
    /// removed together with this record.
    #[serde(default)]
    pub due_at: Option<u64>,
    /// Whether it counts among the messages of guests: see [`crate::guests`].
    #[serde(default)]
    pub counted: bool,
    /// Whether it came in standby: nobody works it before that is over, see [`crate::standby`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held: bool,
    /// The name of the command that it is, where it is one: see [`crate::commands`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Whose conversation it is a run of, where those have one writer at a time: see the module `line`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<PublicKey>,
    /// When its message says it was written, Unix seconds: its place in the line of that conversation.
    #[serde(default = "Timestamp::min")]
    pub written_at: Timestamp,
    /// Whether the floor of that conversation was given to it. It has it until its reply is saved or it is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub floor: bool,
    /// When the trigger was first seen, Unix seconds.
    pub arrived_at: Timestamp,
    /// When the record was last written, Unix milliseconds.
    pub updated_at_ms: u64,
    /// From when on the store may forget it, Unix seconds; `None` is never.
    pub expires_at: Option<u64>,
    /// The skills that took part, as `kind:author:d`, with the event id of the version used.
    #[serde(default)]
    pub skills: Vec<(String, EventId)>,
    /// `provider/model` that gave the last answer.
    #[serde(default)]
    pub model: Option<String>,
    /// Model calls.
    #[serde(default)]
    pub turns: u32,
    /// The names of the tools that were called, in order.
    #[serde(default)]
    pub tool_calls: Vec<String>,
    /// The calls of which nobody knows whether they took effect, and which are not made again: the turn, and the tool's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown_calls: Vec<(u32, String)>,
    /// Tokens, as far as providers told.
    #[serde(default)]
    pub usage: Usage,
    /// What all attempts cost, in micro-dollars: see [`Attempt::cost_micro_usd`].
    #[serde(default)]
    pub cost_micro_usd: u64,
    /// The models that were asked, with what came of it; of failures that cost nothing the first hundred.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// The ids of the reply's parts: kind 4 events or rumors.
    #[serde(default)]
    pub reply_ids: Vec<EventId>,
    /// What each relay said to each part, to its copy for ourselves, and to what tools published.
    #[serde(default)]
    pub deliveries: Vec<Delivery>,
    /// Why it failed or was dropped, for the operator.
    #[serde(default)]
    pub reason: Option<String>,
    /// How long each step took, in milliseconds: over all invocations that lived to say so, in the order of the first.
    #[serde(default)]
    pub steps_ms: Vec<(String, u64)>,
}

/// One model that was asked once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The turn that it was asked for, from 1.
    pub turn: u32,
    /// `provider/model`.
    pub model: String,
    /// Whether it was asked for a summary and not for the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_summary: bool,
    /// Why it did not answer, in words of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The tokens of its answer, as far as its provider told.
    #[serde(default)]
    pub usage: Usage,
    /// What the answer, or what came of it, cost, in micro-dollars, by the catalogue's prices: those of the dearest model
    /// where nobody knows this one's, and of an estimate where the provider told no tokens.
    #[serde(default)]
    pub cost_micro_usd: u64,
    /// How long it took, in milliseconds; `None` where the answer of an earlier attempt at the run was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
}

/// A time without any model to answer a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// When the run's conversation first met it, Unix milliseconds.
    pub since_ms: u64,
    /// When a model answered the run again, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
}

impl Outage {
    /// One that lasts.
    #[must_use]
    pub fn since(since_ms: u64) -> Self {
        Self { since_ms, until_ms: None }
    }

    /// A model answered. One that was over stays as it was.
    pub fn end_at(&mut self, now_ms: u64) {
        self.until_ms.get_or_insert(now_ms);
    }
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Somebody works on it, or did until the lease ran out.
    Running,
    /// The reply is signed and saved; no relay of the recipient is known to have it yet.
    Replying,
    /// The reply was accepted. Relays that have not taken it yet may be asked again: see [`crate::outbox`].
    Done,
    /// The answer was sent for days, and no relay of the recipient took it.
    Undelivered,
    /// It was looked at and starts nothing, or was cancelled.
    Dropped,
    /// A dead letter: it was given up, and the reason is kept. Whoever asked was told, if anybody could be.
    Dead,
}

impl Status {
    /// Whether nothing more is to be done.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Undelivered | Self::Dropped | Self::Dead)
    }
}

impl RunRecord {
    /// A record of a trigger that nobody works on yet.
    pub(super) fn waiting(app: &App, trigger: &Trigger) -> Result<Self, Error> {
        let record = Self::new(app, &trigger.id, trigger.tier, trigger.created_at(), trigger.arrived_at)?;
        let command = commands::said(app, trigger).map(|(_, command)| command.name().to_owned());
        Ok(Self {
            status: Status::Running,
            tainted: trigger.tainted,
            held: app.config.standby,
            // What an admin orders waits for nobody.
            conversation: trigger.conversation().filter(|_| command.is_none()),
            command,
            ..record
        })
    }

    /// From when on somebody else may begin it, Unix milliseconds.
    #[must_use]
    pub fn free_at_ms(&self) -> u64 {
        self.lease_until_ms.max(self.not_before.saturating_mul(1000))
    }

    /// Whether work on it was ever begun, or its answer is there.
    #[must_use]
    pub(crate) fn was_begun(&self) -> bool {
        self.status != Status::Running || self.attempt > 0 || self.continuations > 0 || self.outage.is_some()
    }

    /// How often it was tried to work it.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.looks().saturating_sub(self.waits)
    }

    /// How often somebody began it and was let.
    #[must_use]
    pub(crate) fn looks(&self) -> u32 {
        self.attempt.saturating_sub(self.put_off)
    }

    /// How far it is at `now_ms` (Unix milliseconds), in a word for people.
    #[must_use]
    pub fn state(&self, now_ms: u64) -> &'static str {
        match self.status {
            Status::Running if self.held => "held",
            Status::Running if self.lease_until_ms > now_ms => "in work",
            Status::Running => "waiting",
            Status::Replying => "sending",
            Status::Done => "done",
            Status::Dropped => "dropped",
            Status::Undelivered => "undelivered",
            Status::Dead => "dead",
        }
    }

    /// What its id begins with: enough to tell it from others.
    #[must_use]
    pub fn short_id(&self) -> &str {
        self.run_id.get(..SHORT_ID).unwrap_or(&self.run_id)
    }

    /// The kind of its trigger: what stands before the colon of the trigger's id.
    #[must_use]
    pub fn trigger_kind(&self) -> &str {
        self.trigger_id.split(':').next().unwrap_or_default()
    }

    /// Notes how long a step took.
    pub fn note_step(&mut self, step: &str, took_ms: u64) {
        match self.steps_ms.iter_mut().find(|(name, _)| name == step) {
            Some((_, sum)) => *sum = sum.saturating_add(took_ms),
            None => self.steps_ms.push((step.to_owned(), took_ms)),
        }
    }

    /// Since when it waits for a model, Unix milliseconds, if it does.
    #[must_use]
    pub fn waits_for_model_since_ms(&self) -> Option<u64> {
        self.outage.filter(|outage| outage.until_ms.is_none()).map(|outage| outage.since_ms)
    }

    /// A record that nobody works on.
    pub(super) fn new(
        app: &App,
        trigger_id: &str,
        tier: Tier,
        created_at: Timestamp,
        arrived_at: Timestamp,
    ) -> Result<Self, Error> {
        Ok(Self {
            format: FORMAT,
            run_id: run_id(trigger_id),
            trigger_id: trigger_id.to_owned(),
            tier,
            tainted: false,
            status: Status::Dropped,
            owner: app.new_owner()?,
            fence: 1,
            attempt: 0,
            waits: 0,
            put_off: 0,
            continuations: 0,
            outage: None,
            lease_until_ms: 0,
            not_before: 0,
            due_at: None,
            counted: false,
            held: false,
            command: None,
            conversation: None,
            written_at: created_at,
            floor: false,
            arrived_at,
            updated_at_ms: app.clock.now_ms(),
            expires_at: app.claim_expiry(created_at),
            skills: Vec::new(),
            model: None,
            turns: 0,
            tool_calls: Vec::new(),
            unknown_calls: Vec::new(),
            usage: Usage::default(),
            cost_micro_usd: 0,
            attempts: Vec::new(),
            reply_ids: Vec::new(),
            deliveries: Vec::new(),
            reason: None,
            steps_ms: Vec::new(),
        })
    }
}

/// As serde asks for it.
fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}
