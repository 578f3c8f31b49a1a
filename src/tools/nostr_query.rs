//! `nostr_query`: events from our own relays, by filter.
//!
//! No other relay is asked: which host learns of a question is not the model's to choose. Sealed content (DMs, gift
//! wraps, private skills) is given as it is.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use nostr::prelude::{Coordinate, Event, EventId, Filter, Kind, PublicKey, SingleLetterTag, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::outside::head;
use super::reference::{self, EventReference};
use super::schema::{read, schema_of};
use super::time::iso;
use super::{Class, Tool, ToolContext, ToolError};
use crate::relay::Fetched;
use crate::trigger::Tier;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// The most values in all lists of a filter: relays refuse long ones.
const MAX_VALUES: usize = 200;

/// Of one event: the most bytes of its content, and the most of its tags.
const MAX_CONTENT_BYTES: usize = 4000;
const MAX_TAGS: usize = 40;

/// What is left of the result for its frame and the reports of the relays.
const FRAME_BYTES: usize = 2000;

/// The tool.
pub(super) struct NostrQuery;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Query {
    /// Event kinds, for example [1] for notes, [0] for profiles, [30023] for articles.
    kinds: Option<Vec<u16>>,
    /// Authors: npub, nprofile or hex.
    authors: Option<Vec<String>>,
    /// Events: note, nevent, naddr or hex.
    ids: Option<Vec<String>>,
    /// Tag values by the tag's letter, for example {"t": ["nostr"], "p": ["npub1…"]}.
    tags: Option<BTreeMap<String, Vec<String>>>,
    /// Only events from this time on, in Unix seconds.
    since: Option<u64>,
    /// Only events up to this time, in Unix seconds.
    until: Option<u64>,
    /// The most events, newest first: 20 by default, at most 100.
    limit: Option<usize>,
}

#[async_trait]
impl Tool for NostrQuery {
    fn name(&self) -> &'static str {
        "nostr_query"
    }

    fn description(&self) -> &'static str {
        "Reads events from your configured Nostr relays, newest first. Give at least one of kinds, authors, ids, tags."
    }

    fn parameters(&self) -> Value {
        schema_of::<Query>()
    }

    fn class(&self) -> Class {
        Class::Read
    }

    fn lowest_tier(&self) -> Tier {
        Tier::Stranger
    }

    async fn call(&self, arguments: Value, context: &ToolContext<'_>) -> Result<Value, ToolError> {
        let query: Query = read(arguments)?;
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
        let filters = query.into_filters(limit)?;
        if context.read_targets.is_empty() {
            return Err(ToolError::Model("no relay is configured to read from".into()));
        }
        let mut fetched = context.relays.fetch(context.read_targets, &filters, context.until).await;
        fetched.events.sort_by(|a, b| b.created_at.cmp(&a.created_at).then(a.id.cmp(&b.id)));
        fetched.events.truncate(limit);
        result(&fetched, self.max_result_bytes().saturating_sub(FRAME_BYTES))
    }
}

impl Query {
    /// One filter for everything, and one more for each address among the ids.
    fn into_filters(self, limit: usize) -> Result<Vec<Filter>, ToolError> {
        let mut filter = Filter::new();
        let mut addresses = Vec::new();
        let (authors, ids) = (self.authors.unwrap_or_default(), self.ids.unwrap_or_default());
        let tags = self.tags.unwrap_or_default();
        let values = authors.len() + ids.len() + tags.values().map(Vec::len).sum::<usize>();
        if values > MAX_VALUES {
            return Err(ToolError::Model(format!(
                "more than {MAX_VALUES} authors, ids and tag values; ask for fewer"
            )));
        }
        filter.kinds = non_empty(self.kinds.unwrap_or_default().into_iter().map(Kind::from));
        let authors: Result<BTreeSet<_>, _> = authors.iter().map(|text| reference::person(text)).collect();
        filter.authors = non_empty(authors?);
        let mut event_ids = BTreeSet::new();
        for text in &ids {
            match reference::event(text)? {
                EventReference::Id(id) => _ = event_ids.insert(id),
                EventReference::Address(address) => addresses.push(newest_at(address)),
            }
        }
        filter.ids = non_empty(event_ids);
        for (name, values) in tags.into_iter().filter(|(_, values)| !values.is_empty()) {
            let name = name.trim_start_matches('#');
            let letter: SingleLetterTag = name
                .parse()
                .map_err(|_| ToolError::Model(format!("`{}` is not a tag of one letter", head(name, 40))))?;
            let values: Result<Vec<_>, _> = values.iter().map(|v| reference::tag_value(name, v)).collect();
            filter = filter.custom_tags(letter, values?);
        }
        let only_addresses = filter == Filter::new();
        let mut filters = addresses;
        if !only_addresses {
            filters.push(filter);
        }
        if filters.is_empty() {
            return Err(ToolError::Model("name at least one of kinds, authors, ids and tags".into()));
        }
        for filter in &mut filters {
            filter.since = self.since.map(Timestamp::from);
            filter.until = self.until.map(Timestamp::from);
            filter.limit = Some(limit);
        }
        Ok(filters)
    }
}

/// What an address points to (NIP-01); only addressable kinds have a d tag.
fn newest_at(address: Coordinate) -> Filter {
    let filter = Filter::new().kind(address.kind).author(address.public_key);
    if address.kind.is_addressable() { filter.identifier(address.identifier) } else { filter }
}

/// An empty list in a filter matches nothing; what a model means by it is no condition.
fn non_empty<T: Ord>(values: impl IntoIterator<Item = T>) -> Option<BTreeSet<T>> {
    let values: BTreeSet<T> = values.into_iter().collect();
    (!values.is_empty()).then_some(values)
}

/// The newest events that fit into `max_bytes`, and what is missing from the picture.
fn result(fetched: &Fetched, max_bytes: usize) -> Result<Value, ToolError> {
    let failed: Vec<String> = fetched
        .reports
        .iter()
        .filter_map(|report| Some(format!("{}: {}", report.url, report.outcome.as_ref().err()?)))
        .map(|line| head(&line, 200).to_owned())
        .take(8)
        .collect();
    if fetched.events.is_empty() && !fetched.reports.iter().any(|report| report.outcome.is_ok()) {
        return Err(ToolError::Model(format!("no relay answered: {}", failed.join("; "))));
    }
    let mut events = Vec::new();
    let mut bytes = 0_usize;
    for event in &fetched.events {
        let event = json!(Compact::of(event));
        bytes = bytes.saturating_add(event.to_string().len()).saturating_add(1);
        if bytes > max_bytes {
            break;
        }
        events.push(event);
    }
    let left_out = fetched.events.len().saturating_sub(events.len());
    Ok(json!(Found {
        count: events.len(),
        events,
        complete: fetched.is_complete(),
        left_out: (left_out > 0).then(|| format!("{left_out} older events did not fit; ask with `until`")),
        relays_failed: failed,
    }))
}

#[derive(Serialize)]
struct Found {
    count: usize,
    events: Vec<Value>,
    /// Whether every relay gave all it has.
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_out: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    relays_failed: Vec<String>,
}

/// An event as the model sees it.
#[derive(Serialize)]
struct Compact<'a> {
    id: EventId,
    kind: Kind,
    author: PublicKey,
    created_at: Timestamp,
    created_at_iso: String,
    content: &'a str,
    tags: Vec<&'a [String]>,
    /// Given where `content` is only the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    content_bytes_in_all: Option<usize>,
    /// Given where `tags` are only the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    tags_in_all: Option<usize>,
}

impl<'a> Compact<'a> {
    fn of(event: &'a Event) -> Self {
        let content = head(&event.content, MAX_CONTENT_BYTES);
        let (all_bytes, all_tags) = (event.content.len(), event.tags.len());
        Self {
            id: event.id,
            kind: event.kind,
            author: event.pubkey,
            created_at: event.created_at,
            created_at_iso: iso(event.created_at),
            content,
            tags: event.tags.iter().take(MAX_TAGS).map(|tag| tag.as_slice()).collect(),
            content_bytes_in_all: (content.len() < all_bytes).then_some(all_bytes),
            tags_in_all: (all_tags > MAX_TAGS).then_some(all_tags),
        }
    }
}

#[cfg(test)]
mod tests;
