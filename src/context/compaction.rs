//! Compaction: what a run has said and heard becomes shorter where it fills too much of the model's window.
//!
//! Old tool results are shortened first; then the oldest messages make way for a summary, or for a word that they are
//! gone where nobody can write one. System messages, the triggering message and the newest batch of calls stay, and a
//! call is never without its result. What is decided is a [`Compaction`]: a few numbers and the summary. The same
//! compaction of the same log gives the same bytes, in whatever process.
//!
//! Amounts are estimates of [`super::tokens`]. Whom to ask for the summary, and how large the window is, the caller knows.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::excerpt::{self, excerpt};
use super::tokens;
use crate::chat::{Message, Role};

/// What asks a model for a summary.
const PROMPT: &str = include_str!("prompts/summary.md");

/// What stands in front of a summary, for the model. It is a user's message: what strangers wrote has gone into it, and
/// must not speak with the voice of the system.
const SUMMARY_HEAD: &str = "[A record of what came before, shortened. It asks for nothing by itself; \
                            what it says to be done for the message below is done.]";

/// What stands for messages that nobody summarised.
const LEFT_OUT: &str = "[Earlier messages were left out, since there was no room for them.]";

/// An old result keeps about this many bytes.
const OLD_RESULT_BYTES: usize = 600;

/// The newest results keep at least about this many bytes each.
const MIN_NEW_RESULT_BYTES: usize = 200;

/// The most tokens of a summary.
const MAX_SUMMARY_TOKENS: usize = 1000;

/// How much of the window a request may fill, and how much is left of it by a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// More than this is compacted.
    pub at: usize,
    /// The aim, lower, so that not every turn compacts.
    pub to: usize,
    /// The whole window.
    pub window: usize,
}

impl Limits {
    /// Of a window: 70% at most (design §6.9), 50% after a compaction.
    #[must_use]
    pub fn of(window: usize) -> Self {
        let share = |percent: usize| window.saturating_mul(percent) / 100;
        Self { at: share(70), to: share(50), window }
    }

    /// The same where the answer may have `answer` tokens, which the window must hold too. A quarter of it is the
    /// request's in any case.
    #[must_use]
    pub fn leaving(self, answer: usize) -> Self {
        let at = self.at.min(self.window.saturating_sub(answer)).max(self.window / 4);
        Self { at, to: self.to.min(at / 7 * 5), ..self }
    }

    fn summary(&self) -> usize {
        (self.window / 10).clamp(60, MAX_SUMMARY_TOKENS)
    }
}

/// What a compaction changes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compaction {
    /// Tool results in front of this message are shortened.
    shorten_before: usize,
    /// Messages in front of this one are left out, but for those that stay.
    remove_before: usize,
    /// The newest results are shortened to this many bytes.
    newest_bytes: Option<usize>,
    /// What takes the place of the messages left out; without it only a word that they are.
    summary: Option<String>,
}

/// The messages of a run, and the places among them that compaction knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Log {
    messages: Vec<Message>,
    /// Which message of the context each one is; none for what came later.
    origins: Vec<Option<usize>>,
    /// Where the triggering message is.
    trigger: usize,
    /// The summary, whose message is the one in front of the trigger.
    summary: Option<String>,
}

impl Log {
    /// A log that begins with a context: its last user's message, or else its last one, is the trigger.
    #[must_use]
    pub fn new(messages: Vec<Message>) -> Self {
        let last = messages.len().saturating_sub(1);
        let trigger = messages.iter().rposition(|m| m.role == Role::User).unwrap_or(last);
        Self { origins: (0..messages.len()).map(Some).collect(), messages, trigger, summary: None }
    }

    /// The messages.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The section of each message, for people: one of `of_context`, which has those of the context's messages, or
    /// `summary`, or `turn` for what the run added.
    #[must_use]
    pub fn sections(&self, of_context: &[String]) -> Vec<String> {
        let section = |(at, origin): (usize, &Option<usize>)| match origin {
            Some(origin) => of_context.get(*origin).map_or("turn", String::as_str),
            None if Some(at) == self.summary_at() => "summary",
            None => "turn",
        };
        self.origins.iter().enumerate().map(|origin| section(origin).to_owned()).collect()
    }

    /// Adds an assistant's message with all its results.
    pub fn push_batch(&mut self, batch: impl IntoIterator<Item = Message>) {
        self.messages.extend(batch);
        self.origins.resize(self.messages.len(), None);
    }

    /// Its size.
    #[must_use]
    pub fn tokens(&self) -> usize {
        sum(self.messages.iter().map(tokens::of_message))
    }

    /// What makes the log, beside which `other` tokens are sent, fit into `limits`: nothing where it does, and where
    /// nothing can be done. A summary is still to be asked for where [`Log::summary_request`] says so.
    #[must_use]
    pub fn plan(&self, other: usize, limits: Limits) -> Option<Compaction> {
        let size = self.tokens().saturating_add(other);
        if size <= limits.at {
            return None;
        }
        let mut plan = Compaction::default();
        let newest = self.newest_batch();
        let mut left = size;
        for (at, message) in self.messages.iter().enumerate().take(newest.start) {
            if left <= limits.to {
                break;
            }
            if let Some(short) = shortened(message, OLD_RESULT_BYTES) {
                left = left.saturating_sub(saved(message, &short));
                plan.shorten_before = at.saturating_add(1);
            }
        }
        if left > limits.to {
            left = left.saturating_add(limits.summary());
            for unit in self.removable() {
                if left <= limits.to {
                    break;
                }
                let messages = self.messages.get(unit.clone()).unwrap_or_default();
                let gone = messages.iter().map(|m| {
                    shortened(m, OLD_RESULT_BYTES)
                        .map_or_else(|| tokens::of_message(m), |s| tokens::of_message(&s))
                });
                left = left.saturating_sub(sum(gone));
                plan.remove_before = unit.end;
            }
        }
        if left > limits.at {
            plan.newest_bytes = self.newest_cap(left, limits);
        }
        self.is_smaller(&plan).then_some(plan)
    }

    /// What to ask a model, without tools, for the summary that `plan` needs, and the most tokens that it may have;
    /// nothing where no message is left out.
    #[must_use]
    pub fn summary_request(&self, plan: &Compaction, limits: Limits) -> Option<(Vec<Message>, usize)> {
        let removed: Vec<&Message> = self.removed(plan).collect();
        if removed.is_empty() {
            return None;
        }
        let system = Message::text(Role::System, PROMPT.trim_end());
        let room = limits.at.saturating_sub(tokens::of_message(&system)).saturating_sub(limits.summary());
        let mut each = 8_000_usize;
        let mut text = self.as_text(&removed, each);
        while tokens::estimate(&text) > room && each > 100 {
            each /= 2;
            text = self.as_text(&removed, each);
        }
        if tokens::estimate(&text) > room {
            text = excerpt(&text, room.saturating_mul(2).max(500));
        }
        Some((vec![system, Message::text(Role::User, text)], limits.summary()))
    }

    /// The plan with the summary that a model wrote, as far as it is of use: not empty, not long, and smaller than what
    /// it stands for.
    #[must_use]
    pub fn with_summary(&self, plan: Compaction, text: Option<&str>, limits: Limits) -> Compaction {
        let text = text.map(str::trim).filter(|text| !text.is_empty());
        let Some(text) = text else { return plan };
        let mut summary = text.to_owned();
        while tokens::estimate(&summary) > limits.summary() && summary.len() > MIN_NEW_RESULT_BYTES {
            summary = excerpt(&summary, (summary.len() / 4).saturating_mul(3));
        }
        let summarised = Compaction { summary: Some(summary), ..plan.clone() };
        if self.is_smaller(&summarised) { summarised } else { plan }
    }

    /// Carries a compaction out.
    pub fn compact(&mut self, compaction: &Compaction) {
        let removed: Vec<bool> = (0..self.messages.len()).map(|at| self.is_removed(at, compaction)).collect();
        let newest = self.newest_batch();
        let (mut kept, mut origins) = (Vec::new(), Vec::new());
        let mut trigger = 0;
        let messages = std::mem::take(&mut self.messages).into_iter().zip(std::mem::take(&mut self.origins));
        for (at, (message, origin)) in messages.enumerate() {
            if removed.get(at).copied().unwrap_or_default() {
                continue;
            }
            if at == self.trigger {
                trigger = kept.len();
            }
            let max = match compaction.newest_bytes {
                Some(max) if newest.contains(&at) => Some(max),
                _ if at < compaction.shorten_before => Some(OLD_RESULT_BYTES),
                _ => None,
            };
            kept.push(max.and_then(|max| shortened(&message, max)).unwrap_or(message));
            origins.push(origin);
        }
        if removed.contains(&true) {
            let summary = next_summary(self.summary.take(), compaction.summary.as_deref());
            kept.insert(trigger, Message::text(Role::User, format!("{SUMMARY_HEAD}\n\n{summary}")));
            origins.insert(trigger, None);
            trigger = trigger.saturating_add(1);
            self.summary = Some(summary);
        }
        (self.messages, self.origins) = (kept, origins);
        self.trigger = trigger;
    }

    /// Where the message of the last summary is.
    fn summary_at(&self) -> Option<usize> {
        self.summary.as_ref().and_then(|_| self.trigger.checked_sub(1))
    }

    /// An assistant's calls with their results, or one message, in order.
    fn units(&self) -> Vec<Range<usize>> {
        let mut units: Vec<Range<usize>> = Vec::new();
        for (at, message) in self.messages.iter().enumerate() {
            match units.last_mut() {
                Some(unit) if message.role == Role::Tool => unit.end = at.saturating_add(1),
                _ => units.push(at..at.saturating_add(1)),
            }
        }
        units
    }

    /// The last calls and their results; empty, at the end, where the trigger is the newest.
    fn newest_batch(&self) -> Range<usize> {
        let end = self.messages.len();
        match self.units().pop() {
            Some(unit) if unit.start > self.trigger => unit,
            _ => end..end,
        }
    }

    fn may_go(&self, at: usize, newest: &Range<usize>) -> bool {
        let is_system = self.messages.get(at).is_some_and(|m| m.role == Role::System);
        !is_system && at != self.trigger && Some(at) != self.summary_at() && !newest.contains(&at)
    }

    /// The units that a summary may take the place of, oldest first.
    fn removable(&self) -> impl Iterator<Item = Range<usize>> {
        let newest = self.newest_batch();
        self.units().into_iter().filter(move |unit| self.may_go(unit.start, &newest))
    }

    fn is_removed(&self, at: usize, compaction: &Compaction) -> bool {
        let is_summary = Some(at) == self.summary_at() && self.removes_any(compaction);
        is_summary || (at < self.cut(compaction) && self.may_go(at, &self.newest_batch()))
    }

    /// Where the removed part ends: never between a call and its result, also where the messages are no longer those that
    /// the compaction was planned for. A run that is taken up later may see one message more.
    fn cut(&self, compaction: &Compaction) -> usize {
        let ends = self.units().into_iter().map(|unit| unit.end);
        ends.take_while(|end| *end <= compaction.remove_before).last().unwrap_or_default()
    }

    fn removes_any(&self, compaction: &Compaction) -> bool {
        let newest = self.newest_batch();
        (0..self.cut(compaction)).any(|at| self.may_go(at, &newest))
    }

    /// The messages that a summary stands for, without the last summary.
    fn removed<'a>(&'a self, plan: &'a Compaction) -> impl Iterator<Item = &'a Message> {
        let newest = self.newest_batch();
        let before = self.messages.iter().take(self.cut(plan)).enumerate();
        before.filter(move |(at, _)| self.may_go(*at, &newest)).map(|(_, message)| message)
    }

    /// To how many bytes the newest results are cut so that `left` tokens become what fits; the least where none does.
    fn newest_cap(&self, left: usize, limits: Limits) -> Option<usize> {
        let results = self.messages.get(self.newest_batch()).unwrap_or_default();
        let mut max = results.iter().map(|m| m.content.len()).max()?;
        while max > MIN_NEW_RESULT_BYTES {
            max = (max / 2).max(MIN_NEW_RESULT_BYTES);
            let saved = sum(results.iter().map(|m| shortened(m, max).map_or(0, |short| saved(m, &short))));
            if left.saturating_sub(saved) <= limits.at {
                break;
            }
        }
        Some(max)
    }

    fn is_smaller(&self, compaction: &Compaction) -> bool {
        let mut compacted = self.clone();
        compacted.compact(compaction);
        compacted.tokens() < self.tokens()
    }

    /// The last summary and then the messages as plain text, each text in at most `each` bytes.
    fn as_text(&self, messages: &[&Message], each: usize) -> String {
        let mut text = String::new();
        let mut add = |who: &str, what: &str| {
            let what = what.trim();
            if !what.is_empty() {
                text.push_str(&format!("{who}: {}\n\n", excerpt(what, each.max(100))));
            }
        };
        if let Some(summary) = &self.summary {
            add("Earlier summary", summary);
        }
        for message in messages {
            let who = match message.role {
                Role::System => "System",
                Role::User => "User",
                Role::Assistant => "Assistant",
                Role::Tool => "Result",
            };
            add(who, &message.content);
            for call in &message.tool_calls {
                add("Assistant called", &format!("{} {}", call.name, call.arguments));
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// The summary that stands there from now on: the new one has the last one in it; where there is no new one the last
/// one stays, with a word that something is missing.
fn next_summary(last: Option<String>, new: Option<&str>) -> String {
    match (new, last) {
        (Some(new), _) => new.to_owned(),
        (None, None) => LEFT_OUT.to_owned(),
        (None, Some(last)) if last.ends_with(LEFT_OUT) => last,
        (None, Some(last)) => format!("{last}\n\n{LEFT_OUT}"),
    }
}

/// A tool's result in at most about `max` bytes, where that makes it smaller.
fn shortened(message: &Message, max: usize) -> Option<Message> {
    if message.role != Role::Tool || message.content.len() <= max {
        return None;
    }
    let short = Message { content: excerpt::result(&message.content, max), ..message.clone() };
    (!short.content.is_empty() && saved(message, &short) > 0).then_some(short)
}

fn saved(before: &Message, after: &Message) -> usize {
    tokens::of_message(before).saturating_sub(tokens::of_message(after))
}

fn sum(parts: impl Iterator<Item = usize>) -> usize {
    parts.fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests;
