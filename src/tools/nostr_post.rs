//! `nostr_post`: publishes an event as the agent.
//!
//! What could change who the agent is, speak for it elsewhere, or go around a tool of its own is refused. That nothing
//! is sent twice is the [`Publisher`](super::Publisher)'s affair.

use async_trait::async_trait;
use nostr::prelude::{Event, EventId, Kind, Nip19Event, RelayUrl, Tag, ToBech32};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::outside::head;
use super::reference;
use super::schema::{read, schema_of};
use super::{Class, Draft, Tool, ToolContext, ToolError};
use crate::relay::{PublishReport, RelayError};
use crate::trigger::Tier;

/// The most people that a post may notify.
const MAX_MENTIONS: usize = 10;

/// Relays commonly end at 64 KB for a whole event.
const MAX_CONTENT_BYTES: usize = 32_000;
const MAX_TAGS: usize = 100;
const MAX_TAG_BYTES: usize = 16_000;

/// Long-form articles (NIP-23): the one addressable kind that is open.
const ARTICLE: u16 = 30_023;

/// The tool.
pub(super) struct NostrPost;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Post {
    /// The event's kind: 1 (a note) by default; 30023 for an article.
    kind: Option<u16>,
    /// The text.
    content: String,
    /// Tags, for example [["t","nostr"],["p","npub1…"],["e","note1…"]].
    tags: Option<Vec<Vec<String>>>,
}

#[async_trait]
impl Tool for NostrPost {
    fn name(&self) -> &'static str {
        "nostr_post"
    }

    fn description(&self) -> &'static str {
        "Publishes a Nostr event signed by you: a public note by default. It cannot be taken back for sure."
    }

    fn parameters(&self) -> Value {
        schema_of::<Post>()
    }

    fn class(&self) -> Class {
        Class::Write
    }

    fn lowest_tier(&self) -> Tier {
        Tier::Admin
    }

    async fn call(&self, arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        let post: Post = read(arguments)?;
        let kind = post.kind.unwrap_or(1);
        if let Some(reason) = refusal(kind) {
            return Err(ToolError::Model(format!("kind {kind} is not published with nostr_post: {reason}")));
        }
        let tags = checked_tags(post.tags.unwrap_or_default())?;
        check(kind, &post.content, &tags)?;
        let draft = Draft { kind: Kind::from(kind), content: post.content, tags };
        let (event, reports) = context.publisher.publish(draft).await?;
        outcome(&event, &reports)
    }
}

/// Why a kind is not open to a model, in words for it.
fn refusal(kind: u16) -> Option<&'static str> {
    match kind {
        4 | 13 | 14 | 1059 => Some("private messages are sealed and sent by the agent itself"),
        5 => Some("deleting is not posting"),
        7 => Some("reactions are not posted as free events"),
        62 => Some("it asks relays to forget all that the agent ever published (NIP-62)"),
        22_242 | 24_133 | 24_242 | 27_235 => Some("it would let others act in the agent's name"),
        ARTICLE => None,
        _ if Kind::from(kind).is_replaceable() => {
            Some("it would replace what the agent has published before")
        }
        _ if Kind::from(kind).is_addressable() => {
            Some("it may replace what the agent has published before; of such kinds only 30023 is open")
        }
        _ => None,
    }
}

/// The tags, with people and events in hex.
fn checked_tags(tags: Vec<Vec<String>>) -> Result<Vec<Tag>, ToolError> {
    if tags.len() > MAX_TAGS || tags.iter().flatten().map(String::len).sum::<usize>() > MAX_TAG_BYTES {
        return Err(ToolError::Model(format!("more than {MAX_TAGS} tags, or {MAX_TAG_BYTES} bytes of them")));
    }
    let mut checked = Vec::new();
    for mut tag in tags {
        let (name, value) = match tag.as_mut_slice() {
            [name, value, ..] if !name.is_empty() => (name, value),
            [name] if !name.is_empty() => {
                checked.push(Tag::parse([name.clone()]).map_err(no_tag)?);
                continue;
            }
            _ => return Err(ToolError::Model("a tag is empty or has no name".into())),
        };
        *value = reference::tag_value(name, value)?;
        checked.push(Tag::parse(tag).map_err(no_tag)?);
    }
    Ok(checked)
}

fn no_tag(_: nostr::prelude::Error) -> ToolError {
    ToolError::Model("a tag is empty or has no name".into())
}

fn check(kind: u16, content: &str, tags: &[Tag]) -> Result<(), ToolError> {
    let refuse = |reason: String| Err(ToolError::Model(reason));
    let named = |name: &'static str| tags.iter().filter(move |tag| tag.kind() == name);
    if content.len() > MAX_CONTENT_BYTES {
        return refuse(format!(
            "the content has {} bytes; at most {MAX_CONTENT_BYTES} go out",
            content.len()
        ));
    }
    if content.trim().is_empty() && matches!(kind, 1 | ARTICLE) {
        return refuse("the content is empty".into());
    }
    if named("p").count() > MAX_MENTIONS {
        return refuse(format!("more than {MAX_MENTIONS} p tags: so many people are not notified at once"));
    }
    if kind == ARTICLE && named("d").all(|tag| tag.content().is_none_or(str::is_empty)) {
        return refuse("an article needs a d tag that names it, for example [\"d\",\"my-title\"]".into());
    }
    Ok(())
}

/// What the model is told of an event that is in the outbox.
const SENT_AGAIN: &str =
    " yet. It is saved and sent again by itself for up to three days, so do not post it again";

/// What came of it, for the model.
#[derive(Serialize)]
struct Posted {
    id: EventId,
    nevent: String,
    kind: Kind,
    accepted_by: usize,
    relays: Vec<Answer>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// What one relay said.
#[derive(Serialize)]
struct Answer {
    relay: RelayUrl,
    accepted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Answer {
    fn of(report: &PublishReport) -> Self {
        let reason = report.outcome.as_ref().err().map(|error| head(&error.to_string(), 200).to_owned());
        Self { relay: report.url.clone(), accepted: reason.is_none(), reason }
    }
}

/// That no relay has the event is a failure that the model shall know of.
fn outcome(event: &Event, reports: &[PublishReport]) -> Result<Value, ToolError> {
    let relays: Vec<Answer> = reports.iter().map(Answer::of).collect();
    let accepted_by = relays.iter().filter(|answer| answer.accepted).count();
    if accepted_by == 0 {
        let said = relays.iter().map(|a| format!("{}: {}", a.relay, a.reason.as_deref().unwrap_or_default()));
        let said = said.collect::<Vec<_>>().join("; ");
        let said = if said.is_empty() { "there is no relay to publish to" } else { &said };
        let is_sent_again = reports
            .iter()
            .filter_map(|report| report.outcome.as_ref().err())
            .any(|error| !error.is_for_good());
        let then = if is_sent_again { SENT_AGAIN } else { "" };
        return Err(ToolError::Model(format!("no relay accepted the event {}{then}: {said}", event.id)));
    }
    let replaced = reports.iter().any(|report| matches!(report.outcome, Err(RelayError::Replaced(_))));
    let pointer = Nip19Event::new(event.id).author(event.pubkey).kind(event.kind);
    Ok(json!(Posted {
        id: event.id,
        nevent: pointer.to_bech32().unwrap_or_else(|_| event.id.to_hex()),
        kind: event.kind,
        accepted_by,
        relays,
        note: replaced.then_some("a relay holds a newer version, so there this one changes nothing"),
    }))
}

#[cfg(test)]
mod tests;
