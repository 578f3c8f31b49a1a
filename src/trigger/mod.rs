//! What starts a run. A DM, a tick or a webhook differ only until they are a [`Trigger`]; from there on one path
//! serves them all.

pub mod cron;
pub mod payload;
pub mod prompt;
pub mod webhook;

use std::borrow::Cow;

use nostr::prelude::{Event, EventId, PublicKey, RelayUrl, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::prompt::Prompt;
use self::webhook::Webhook;

/// The longest text that one trigger may bring, in bytes: as long as an event may be.
pub const MAX_TEXT_BYTES: usize = 128 * 1024;

/// What started a run, with all that the run needs to know of it. Stored (sealed) with the run's claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// One id from the trigger's content, such as `dm:` and the event id: what is claimed (design §4).
    pub id: String,
    /// What happened.
    pub source: Source,
    /// What its sender may do.
    pub tier: Tier,
    /// Whether text that nobody trusted wrote takes part in the run.
    pub tainted: bool,
    /// "The admin" of the run: whose profile, history and notices are meant.
    pub admin: PublicKey,
    /// Our clock when it was first seen.
    pub arrived_at: Timestamp,
}

/// The kinds of trigger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Source {
    /// An encrypted direct message.
    Dm(Dm),
    /// A message of an admin that came over HTTP or by direct invocation.
    Prompt(Prompt),
    /// An instant that a cron expression names.
    Cron(Cron),
    /// An event that matches a skill's filter.
    Subscription(Subscription),
    /// A request to a webhook.
    Webhook(Webhook),
    /// The end of another skill's run.
    Chain(Chain),
    /// What the agent tells its admin of its own accord.
    Notice(Notice),
}

/// A text of the agent's own for the run's admin; no model is asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// What the admin is told.
    pub text: String,
}

/// An instant at which a cron expression is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cron {
    /// The expression, as [`cron::normalise`] has it.
    pub schedule: String,
    /// The minute that it names, Unix seconds.
    pub scheduled_at: Timestamp,
}

/// A verified event from a relay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscription {
    /// The event, as its author signed it.
    pub event: Event,
    /// Whether the agent itself signed it.
    pub own: bool,
    /// The skills that it may fire, as `kind:author:d`: those that subscribed to it when it was published and may run once more
    /// that day. `None` where nobody looked: all that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fires: Option<Vec<String>>,
}

/// The outcome of a run, for the skills that follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    /// The d tag of the skill that ran.
    pub from: String,
    /// Its run's id.
    pub run: String,
    /// Its answer.
    pub final_response: String,
    /// The d tags of the skills that ran one after another until here, [`Chain::from`] the last. None of them runs again.
    #[serde(default)]
    pub path: Vec<String>,
    /// How many runs may still follow it, and those that follow these, all together.
    #[serde(default)]
    pub left: usize,
}

/// A direct message, verified and decrypted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dm {
    /// The other side of the conversation: the author of a message to the agent.
    pub peer: PublicKey,
    /// The protocol it came in, and that the answer goes out in.
    pub protocol: Protocol,
    /// The kind 4 event's id, or the rumor's id as computed by us.
    pub message_id: EventId,
    /// When its author says it was written.
    pub created_at: Timestamp,
    /// The text.
    pub text: String,
    /// Set where the message is answered with a fixed text and never reaches the model.
    #[serde(rename = "notice", default, skip_serializing_if = "Option::is_none")]
    pub fixed_answer: Option<FixedAnswer>,
    /// The relay it came from, where that is one of our inbox relays.
    pub relay: Option<RelayUrl>,
}

/// A fixed answer to a heeded sender's message that the agent cannot work (design §3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FixedAnswer {
    /// A file message (kind 15).
    CannotReadFiles,
    /// A room with others; told once a day.
    OneToOneOnly,
}

impl FixedAnswer {
    /// What the sender is told.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::CannotReadFiles => "I cannot read files. Please send me text.",
            Self::OneToOneOnly => "I answer one-to-one messages only, not rooms with others.",
        }
    }
}

/// How a direct message travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Kind 4 (NIP-04).
    Nip04,
    /// Kind 14 in 13 in 1059 (NIP-17).
    Nip17,
}

/// What a sender may do. Ordered: a higher tier may do all that a lower one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Anybody.
    Stranger,
    /// In an admin's contact list.
    Wot,
    /// One of the keys in `DIDACTYL_ADMIN`.
    Admin,
}

impl Tier {
    /// The name in skills, records and contexts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Wot => "wot",
            Self::Admin => "admin",
        }
    }

    /// Whether a message of such a sender is a text that nobody trusted wrote.
    #[must_use]
    pub fn taints(self) -> bool {
        self < Self::Wot
    }
}

impl Trigger {
    /// A message of `admin`, whose request was authenticated.
    #[must_use]
    pub fn prompt(prompt: Prompt, request_id: &str, admin: PublicKey, now: Timestamp) -> Self {
        Self {
            id: format!("http:{request_id}"),
            source: Source::Prompt(prompt),
            tier: Tier::Admin,
            tainted: false,
            admin,
            arrived_at: now,
        }
    }

    /// A cron expression that is due; `schedule` is normalised here.
    #[must_use]
    pub fn cron(schedule: &str, scheduled_at: Timestamp, admin: PublicKey, now: Timestamp) -> Self {
        let schedule = cron::normalise(schedule);
        let minute = scheduled_at.as_secs() / 60;
        Self {
            id: format!("cron:{schedule}@{minute}"),
            source: Source::Cron(Cron { schedule, scheduled_at: Timestamp::from(minute * 60) }),
            tier: Tier::Admin,
            tainted: false,
            admin,
            arrived_at: now,
        }
    }

    /// A verified event. Only what an admin signed is trusted text. `admins` holds the run's admin first.
    #[must_use]
    pub fn subscription(event: Event, agent: PublicKey, admins: &[PublicKey], now: Timestamp) -> Self {
        Self {
            id: format!("sub:{}", event.id),
            tier: Tier::Admin,
            tainted: !admins.contains(&event.pubkey),
            admin: admins.first().copied().unwrap_or(agent),
            arrived_at: now,
            source: Source::Subscription(Subscription { own: event.pubkey == agent, event, fires: None }),
        }
    }

    /// The same of an event, which may fire no skills but these.
    #[must_use]
    pub fn firing(mut self, skills: Vec<String>) -> Self {
        if let Source::Subscription(subscription) = &mut self.source {
            subscription.fires = Some(skills);
        }
        self
    }

    /// A request to a webhook; `delivery` is what tells it from others to the same slug. Whoever has the token may fire
    /// skills, and still the body is a stranger's text.
    #[must_use]
    pub fn webhook(webhook: Webhook, delivery: &str, admin: PublicKey, now: Timestamp) -> Self {
        Self {
            id: format!("hook:{}:{delivery}", webhook.slug),
            source: Source::Webhook(webhook),
            tier: Tier::Admin,
            tainted: true,
            admin,
            arrived_at: now,
        }
    }

    /// The outcome of `parent`'s run: never more than that run might, nor cleaner than it.
    #[must_use]
    pub fn chain(chain: Chain, parent: &Self, now: Timestamp) -> Self {
        Self {
            id: format!("chain:{}:{}", chain.run, chain.from),
            source: Source::Chain(chain),
            tier: parent.tier,
            tainted: parent.tainted,
            admin: parent.admin,
            arrived_at: now,
        }
    }

    /// Something that `admin` is told of the agent's own accord. `id` tells it from others.
    #[must_use]
    pub fn notice(text: String, id: &str, admin: PublicKey, now: Timestamp) -> Self {
        Self {
            id: format!("notice:{id}"),
            source: Source::Notice(Notice { text }),
            tier: Tier::Admin,
            tainted: false,
            admin,
            arrived_at: now,
        }
    }

    /// The text that becomes the run's user message: what somebody wrote, else compact JSON.
    #[must_use]
    pub fn message(&self) -> Cow<'_, str> {
        match &self.source {
            Source::Dm(dm) => Cow::Borrowed(&dm.text),
            Source::Prompt(prompt) => Cow::Borrowed(&prompt.message),
            Source::Cron(cron) => Cow::Owned(
                json!({
                    "trigger": "cron",
                    "schedule": cron.schedule,
                    "scheduled_at": cron.scheduled_at.as_secs(),
                })
                .to_string(),
            ),
            Source::Subscription(subscription) => Cow::Owned(json!(subscription.event).to_string()),
            Source::Webhook(webhook) => Cow::Owned(webhook.message()),
            Source::Chain(chain) => Cow::Owned(
                json!({
                    "trigger": "chain",
                    "from": chain.from,
                    "run": chain.run,
                    "final_response": chain.final_response,
                })
                .to_string(),
            ),
            Source::Notice(notice) => Cow::Borrowed(&notice.text),
        }
    }

    /// What is sent without asking any model, where that is so.
    #[must_use]
    pub fn fixed_text(&self) -> Option<&str> {
        match &self.source {
            Source::Dm(dm) => dm.fixed_answer.map(FixedAnswer::text),
            Source::Notice(notice) => Some(&notice.text),
            _ => None,
        }
    }

    /// Whose conversation with the agent the model sees, and who speaks: nobody does but in DMs and prompts. A notice
    /// becomes part of its reader's.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        match &self.source {
            Source::Dm(dm) => Some(dm.peer),
            // A prompt is authenticated as an admin's, so this is whose history is meant.
            Source::Prompt(_) | Source::Notice(_) => Some(self.admin),
            Source::Cron(_) | Source::Subscription(_) | Source::Webhook(_) | Source::Chain(_) => None,
        }
    }

    /// Whose conversation its run writes in, where runs of one do so one after another: a DM's that a model answers. A fixed
    /// text waits for nobody, and neither does a prompt (design §7).
    #[must_use]
    pub fn conversation(&self) -> Option<PublicKey> {
        self.sender().filter(|_| self.fixed_text().is_none())
    }

    /// What it waits behind in an invocation that works several: its conversation, or what is of its kind. So strangers' events
    /// hold up neither a schedule nor a webhook.
    #[must_use]
    pub(crate) fn queue_of(&self) -> (Option<PublicKey>, &'static str) {
        self.peer().map_or((None, self.source.name()), |peer| (Some(peer), ""))
    }

    /// Whose message it is, checked by signature; nobody's but in DMs.
    #[must_use]
    pub fn sender(&self) -> Option<PublicKey> {
        match &self.source {
            Source::Dm(dm) => Some(dm.peer),
            _ => None,
        }
    }

    /// The same message of a sender of this tier.
    #[must_use]
    pub fn of_tier(self, tier: Tier) -> Self {
        Self { tier, tainted: tier.taints(), ..self }
    }

    /// When its author says it happened; where nobody says, when it arrived.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        match &self.source {
            Source::Dm(dm) => dm.created_at,
            Source::Cron(cron) => cron.scheduled_at,
            Source::Subscription(subscription) => subscription.event.created_at,
            Source::Prompt(_) | Source::Webhook(_) | Source::Chain(_) | Source::Notice(_) => self.arrived_at,
        }
    }
}

/// A text of which no more is left than a trigger's text may be, and than a row holds in JSON's spelling; it then says so.
/// `what` it is: `the body`.
pub(crate) fn cut(mut text: String, what: &str) -> String {
    let mut spelled = 0_usize;
    let too_long = text.char_indices().find(|(at, c)| {
        let len = match c {
            '\x00'..='\x1f' => 6,
            '"' | '\\' => 2,
            c => c.len_utf8(),
        };
        spelled = spelled.saturating_add(len);
        at + c.len_utf8() > MAX_TEXT_BYTES || spelled > 2 * MAX_TEXT_BYTES
    });
    if let Some((at, _)) = too_long {
        let note = format!("\n[cut: {what} has {} bytes]", text.len());
        text.truncate(at);
        text.push_str(&note);
    }
    text
}

impl Source {
    /// Its type's name, as in a skill's trigger tags; those that have none there are `prompt` and `notice`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Dm(_) => "dm",
            Self::Prompt(_) => "prompt",
            Self::Cron(_) => "cron",
            Self::Subscription(_) => "subscription",
            Self::Webhook(_) => "webhook",
            Self::Chain(_) => "chain",
            Self::Notice(_) => "notice",
        }
    }
}

#[cfg(test)]
mod tests;
