//! Snapshots of a context, for people: what the model was asked, as markdown.
//!
//! The forms are those of Didactyl's context debug logging. Nothing that a message holds can break out of its place:
//! below its first line it stands further in than whatever is said of it, and characters that would move a terminal's
//! cursor or turn the reading direction are shown by their number.

use super::markdown::from_json_within;
use super::transcript::{one_line, transcript, visible};
use crate::chat::{Message, Role};
use crate::trigger::{Source, Trigger};

/// The most bytes of a tool's result, as a list.
const MAX_RESULT_BYTES: usize = 400_000;

/// What stands between two messages of a turn, and between two entries of the log.
const SEPARATOR: &str = "\n---\n\n";

/// Which door the run came in by, as the log's entries tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nostr: a DM.
    Dm,
    /// `POST /api/prompt/agent`: the same context by another door.
    AgentApi,
    /// `POST /api/prompt/run`: messages as they were given.
    RawApi,
}

impl Phase {
    /// That of a run with this trigger.
    #[must_use]
    pub fn of(trigger: &Trigger) -> Self {
        match trigger.source {
            Source::Prompt(_) => Self::AgentApi,
            Source::Dm(_)
            | Source::Cron(_)
            | Source::Subscription(_)
            | Source::Webhook(_)
            | Source::Chain(_)
            | Source::Notice(_) => Self::Dm,
        }
    }

    /// Its label, one of Didactyl's.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dm => "llm_chat_with_tools_messages",
            Self::AgentApi => "llm_chat_with_tools_messages_agent_api",
            Self::RawApi => "llm_chat_with_tools_messages_http_api",
        }
    }
}

/// A run's first snapshot: the document of its skills, before it becomes messages.
#[must_use]
pub fn init(document: &str) -> String {
    match document.trim_end() {
        "" => "*No skill takes part: there is no document.*\n".to_owned(),
        document => format!("{}\n", visible(document)),
    }
}

/// The snapshot of a turn: the messages that the model was asked with.
#[must_use]
pub fn turn(messages: &[Message]) -> String {
    let messages: Vec<String> =
        messages.iter().enumerate().map(|(index, message)| numbered(index + 1, message)).collect();
    messages.join(SEPARATOR)
}

fn numbered(number: usize, message: &Message) -> String {
    let role = message.role.as_str();
    let mut out = format!("**Message {number} ({role})**\n\n- **role**: {role}\n");
    if let Some(id) = &message.tool_call_id {
        bullet(&mut out, 0, "tool_call_id", &one_line(id));
    }
    let result = if message.role == Role::Tool { json_list(&message.content) } else { None };
    match result {
        Some(list) => {
            out.push_str("- **content**:\n");
            lines(&mut out, 2, &list);
        }
        // A message that only calls tools has no text.
        None if message.content.is_empty() && !message.tool_calls.is_empty() => {}
        None => bullet(&mut out, 0, "content", &message.content),
    }
    if !message.tool_calls.is_empty() {
        out.push_str("- **tool_calls**:\n");
    }
    for call in &message.tool_calls {
        // On lines of its own a name could forge the bullet of its arguments.
        bullet(&mut out, 2, "name", &one_line(&call.name));
        bullet(&mut out, 4, "arguments", &call.arguments);
    }
    out
}

/// Why a model did not answer: in our words, and in those of its provider, where it had any.
#[must_use]
pub fn failure(model: &str, reason: &str, words: &str) -> String {
    let mut out = String::from("**The model did not answer**\n\n");
    bullet(&mut out, 0, "model", &one_line(model));
    bullet(&mut out, 0, "reason", &one_line(reason));
    if !words.is_empty() {
        bullet(&mut out, 0, "its provider's words", words);
    }
    out
}

/// A tool's JSON as nested bullets; `None` for what is no JSON or has no parts.
fn json_list(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let has_parts = value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|items| !items.is_empty());
    has_parts.then(|| from_json_within(&value, MAX_RESULT_BYTES))
}

/// `- **key**: text`, the further lines of the text inside the bullet.
fn bullet(out: &mut String, indent: usize, key: &str, text: &str) {
    let text = visible(text);
    let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let first = if text.is_empty() { "\"\"" } else { first };
    let line = format!("- **{key}**: {first}");
    lines(out, indent, line.trim_end());
    lines(out, indent + 2, rest);
}

fn lines(out: &mut String, indent: usize, text: &str) {
    for line in text.lines() {
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str(line);
        out.push('\n');
    }
}

/// An entry of the rolling log: what `name` shows of a run, section by section.
#[must_use]
pub fn log_entry(phase: Phase, name: &str, messages: &[Message], sections: &[String]) -> String {
    let bytes: usize = messages.iter().map(|message| message.content.len()).sum();
    format!(
        "**{} | {name} | {} messages, {bytes} bytes**\n\n{}",
        phase.as_str(),
        messages.len(),
        transcript(messages, sections)
    )
}

/// The rolling log with `entry` before all that it held: as many of the older entries as fit whole into `max_bytes`.
#[must_use]
pub fn rolled(entry: &str, log: &str, max_bytes: usize) -> String {
    let mut rolled = entry.to_owned();
    // Only our separator stands at the beginning of a line; texts are further in.
    for older in log.split(SEPARATOR).filter(|older| !older.is_empty()) {
        if rolled.len().saturating_add(SEPARATOR.len()).saturating_add(older.len()) > max_bytes {
            break;
        }
        rolled.push_str(SEPARATOR);
        rolled.push_str(older);
    }
    rolled
}

#[cfg(test)]
mod tests;
