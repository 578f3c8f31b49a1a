//! Drafts: files in which a person writes a soul or a skill.
//!
//! A **soul** is the text of the soul, as it is.
//!
//! A **skill** is a text. Its first lines may be tags, one JSON array a line, exactly as they will stand in the event;
//! the rest is the content. One empty line between them is dropped:
//!
//! ```text
//! ["trigger","dm","admin"]
//! ["llm","cheap"]
//!
//! # Chat
//!
//! Answer briefly.
//! ```
//!
//! Without a `d` tag the file's name is the d tag: `chat.md` becomes `chat`. The skill is private (kind 31124), unless
//! its tags have `["scope","public"]`, Didactyl's own word for kind 31123. A content that begins with a JSON array
//! needs an empty line before it.
//!
//! Or a skill is an **event in JSON**, as Nostr tools print it: `{"kind":31124,"tags":[…],"content":"…"}`. Key, time,
//! id and signature are passed over, since the agent signs anew; a content sealed for the agent is opened. Without a
//! kind the scope decides as above.

mod remarks;

use std::path::Path;

use nostr::prelude::{Keys, Kind, Tag, Tags};
use serde_json::{Map, Value};

use super::Definition;
use crate::kinds;

/// Why a draft cannot be used: where, what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {fault}", .line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct DraftError {
    /// The file, as it was named.
    pub file: String,
    /// The line, from 1, where the fault is in one.
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub fault: String,
}

/// A skill's draft, read.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillDraft {
    /// What it says.
    pub definition: Definition,
    /// What the codec cannot read and would leave out: the draft says something other than its author meant.
    pub faults: Vec<String>,
    /// What can be read and perhaps says something other than its author meant.
    pub remarks: Vec<String>,
}

/// A fault and its line.
type Fault = (Option<usize>, String);

/// Checks the text of a soul's draft; it is the soul.
///
/// # Errors
/// [`DraftError`] where it is empty, or an event instead of a text.
pub fn soul<'a>(file: &Path, text: &'a str) -> Result<&'a str, DraftError> {
    let fault = if text.trim().is_empty() {
        "is empty; write the soul's text"
    } else if is_event(text) {
        "is an event in JSON, and a soul's draft is its text alone; give the event's content"
    } else {
        return Ok(text);
    };
    Err(error(file, (None, fault.to_owned())))
}

/// Reads the text of a skill's draft.
///
/// # Errors
/// [`DraftError`] where it is no draft.
pub fn skill(file: &Path, text: &str, keys: &Keys) -> Result<SkillDraft, DraftError> {
    read_skill(file, text, keys).map_err(|fault| error(file, fault))
}

/// The parts of a draft, before they are read.
struct Parts {
    kind: Option<Kind>,
    tags: Vec<Tag>,
    content: String,
    remarks: Vec<String>,
}

fn read_skill(file: &Path, text: &str, keys: &Keys) -> Result<SkillDraft, Fault> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parts = if is_event(text) { event(text)? } else { head_and_content(text)? };
    let Parts { kind, mut tags, content, mut remarks } = parts;
    if content.trim().is_empty() {
        return Err((None, "has no content; write below its tags what the skill tells the model".to_owned()));
    }
    if !tags.iter().any(|tag| tag.kind() == "d") {
        let stem = file.file_stem().and_then(|stem| stem.to_str());
        let d = stem.ok_or_else(|| {
            (None, "has a name that cannot be a d tag; add a [\"d\",\"name\"] line".to_owned())
        })?;
        tags.insert(0, Tag::identifier(d));
    }
    let kind = kind.unwrap_or_else(|| kind_by_scope(&tags));
    let mut faults = Vec::new();
    let definition = Definition::read(kind, &Tags::from_list(tags), &content, keys, &mut faults);
    let definition = definition.map_err(|error| {
        (
            None,
            format!(
                "{error}; a skill's kind is 31123 or 31124, and its content in clear or sealed by the agent"
            ),
        )
    })?;
    remarks.extend(remarks::of_skill(&definition));
    Ok(SkillDraft { definition, faults, remarks })
}

fn error(file: &Path, (line, fault): Fault) -> DraftError {
    DraftError { file: file.display().to_string(), line, fault }
}

fn kind_by_scope(tags: &[Tag]) -> Kind {
    let is_public = |tag: &Tag| {
        tag.kind() == "scope"
            && tag.content().is_some_and(|value| value.trim().eq_ignore_ascii_case("public"))
    };
    if tags.iter().any(is_public) { kinds::PUBLIC_SKILL } else { kinds::PRIVATE_SKILL }
}

/// Whether the text is meant as an event: a JSON object that has a part of one, or what begins as an object and is
/// none. Other objects are content (the older form of skills), and so is what begins with a `{{variable}}`.
fn is_event(text: &str) -> bool {
    let Some(inside) = text.trim_start().strip_prefix('{') else { return false };
    match serde_json::from_str::<Map<String, Value>>(text) {
        Ok(object) => ["kind", "tags", "content"].iter().any(|part| object.contains_key(*part)),
        Err(_) => inside.trim_start().starts_with('"'),
    }
}

fn event(text: &str) -> Result<Parts, Fault> {
    let fields: Map<String, Value> = serde_json::from_str(text).map_err(|error| {
        let fault = "begins as JSON and is not JSON; correct it, or begin a text with an empty line";
        (Some(error.line()), fault.to_owned())
    })?;
    let field = |name: &str| fields.get(name).filter(|value| !value.is_null()).cloned();
    let fault = |what: &str| (None, format!("is an event in JSON {what}"));
    let kind = field("kind").map(serde_json::from_value::<u16>).transpose();
    let kind = kind.map_err(|_| fault("whose \"kind\" is no number from 0 to 65535; give 31123 or 31124"))?;
    let tags = field("tags").map(serde_json::from_value::<Vec<Vec<String>>>).transpose();
    let tags = tags.map_err(|_| fault("whose \"tags\" are no lists of texts; correct them"))?;
    let tags: Result<Vec<Tag>, _> = tags.unwrap_or_default().into_iter().map(Tag::parse).collect();
    let tags = tags.map_err(|_| (None, "has an empty tag; remove it".to_owned()))?;
    let content = match field("content") {
        Some(Value::String(content)) => content,
        Some(_) => return Err(fault("whose \"content\" is no text; give what the skill tells the model")),
        None => return Err(fault("without \"content\"; give what the skill tells the model")),
    };
    Ok(Parts { kind: kind.map(Kind::from), tags, content, remarks: remarks::of_event(&fields) })
}

/// The tags of the first lines, and what follows.
fn head_and_content(text: &str) -> Result<Parts, Fault> {
    let mut tags = Vec::new();
    let mut rest = text;
    for number in 1.. {
        let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
        let Some(tag) = tag(line.trim()).map_err(|fault| (Some(number), fault.to_owned()))? else {
            if line.trim().is_empty() {
                rest = after;
            }
            break;
        };
        tags.push(tag);
        rest = after;
    }
    Ok(Parts { kind: None, tags, content: rest.to_owned(), remarks: Vec::new() })
}

/// The line as a tag; `None` where it is none and the content begins.
fn tag(line: &str) -> Result<Option<Tag>, &'static str> {
    const NO_TAG: &str = "begins as a tag and is no JSON array of texts; correct it, or put an empty line before \
                          the content";
    match serde_json::from_str::<Vec<String>>(line) {
        Ok(tag) => Tag::parse(tag).map(Some).map_err(|_| "is an empty tag; remove it"),
        // Markdown has lines that begin with a bracket, but not these two ways.
        Err(_) if line.starts_with("[\"") || serde_json::from_str::<Vec<Value>>(line).is_ok() => Err(NO_TAG),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
