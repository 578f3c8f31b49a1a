//! Context snapshots: what the model was asked, written down for people (`DIDACTYL_CONTEXT_DEBUG`).
//!
//! Beside an embedded store they are files; else rows, sealed and with a time to live. They are written beside the model
//! call, and what cannot be written is a warning: no run fails or waits long for them. How a snapshot looks is
//! [`crate::context::snapshot`]'s affair.

#[cfg(feature = "local")]
mod files;
mod rows;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nostr::prelude::Timestamp;
use tokio::time::timeout_at;

use crate::app::App;
use crate::chat::Message;
use crate::clock::Deadline;
use crate::config::ContextDebug;
#[cfg(feature = "local")]
use crate::config::StoreChoice;
use crate::context::compaction::Log;
use crate::context::{markdown, snapshot};
use crate::error::Error;
use crate::llm::LlmError;
use crate::run::beginning::Beginning;
use crate::secret::Mask;
use crate::tools::time::iso;
use crate::trigger::Trigger;

pub use rows::{SnapshotRun, StoredSnapshot, of_run, runs};

/// How long writing the snapshots of one turn may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most bytes of one text; a longer one is cut.
const MAX_TEXT_BYTES: usize = 1_500_000;

/// Takes the snapshots of one run, as the configuration asks for them.
pub(crate) struct Recorder<'a>(Option<Recording<'a>>);

struct Recording<'a> {
    app: &'a App,
    run_id: String,
    begin_ms: u64,
    phase: snapshot::Phase,
    document: String,
    sections: Vec<String>,
    /// Whether the first snapshot is still to be taken.
    is_new: AtomicBool,
    /// How many models have failed so far.
    failures: AtomicUsize,
}

/// The texts of one moment of a run.
struct Snapshot {
    /// `init`, `t001` for the first turn, `t001_failed1` for the run's first failure of a model.
    name: String,
    /// What the model was asked, or what it said instead of an answer, in the form of that name.
    text: String,
    /// The entry for the rolling log, if there is one.
    entry: Option<String>,
}

impl<'a> Recorder<'a> {
    /// For a run of this trigger that begins so. Where snapshots are off it never does anything.
    pub(crate) fn new(app: &'a App, trigger: &Trigger, run_id: &str, beginning: &Beginning) -> Self {
        Self((app.config.context_debug != ContextDebug::Off).then(|| Recording {
            app,
            run_id: run_id.to_owned(),
            begin_ms: app.clock.now_ms(),
            phase: snapshot::Phase::of(trigger),
            document: beginning.document.clone().unwrap_or_default(),
            sections: beginning.sections.clone(),
            // Of a run that goes on, the first snapshot was taken where it began.
            is_new: AtomicBool::new(beginning.document.is_some()),
            failures: AtomicUsize::new(0),
        }))
    }

    /// Writes down what the model is asked in this turn, counted from 1. To be awaited beside the model.
    pub(crate) async fn model_is_asked(&self, turn: u32, log: &Log, deadline: Deadline) {
        let Some(recording) = &self.0 else { return };
        recording.patiently(recording.record(turn, log), deadline).await;
    }

    /// Writes down why a model did not answer in this turn, in its provider's own words. They may quote the prompt, so this is
    /// the one place where they go.
    pub(crate) async fn model_failed(&self, turn: u32, model: &str, error: &LlmError, deadline: Deadline) {
        let Some(recording) = &self.0 else { return };
        recording.patiently(recording.record_failure(turn, model, error), deadline).await;
    }
}

impl Recording<'_> {
    async fn record(&self, turn: u32, log: &Log) -> Result<(), Error> {
        let is_full = self.app.config.context_debug == ContextDebug::Full;
        let is_new = self.is_new.swap(false, Ordering::Relaxed);
        if !is_new && !is_full {
            return Ok(());
        }
        let mask = self.app.secrets();
        let messages: Vec<Message> = log.messages().iter().map(|message| masked(message, &mask)).collect();
        let sections = log.sections(&self.sections);
        let entry = |name: &str| {
            let name = format!("{}_{name}", self.stem());
            Some(finished(&snapshot::log_entry(self.phase, &name, &messages, &sections), &mask))
        };
        if is_new {
            let text = finished(&snapshot::init(&mask.redact(&self.document)), &mask);
            // With all turns to follow, the log has this one's messages from the first of them.
            let entry = if is_full { None } else { entry("init") };
            self.write(Snapshot { name: "init".to_owned(), text, entry }).await?;
        }
        if is_full {
            let name = format!("t{turn:03}");
            let text = finished(&snapshot::turn(&messages), &mask);
            self.write(Snapshot { entry: entry(&name), name, text }).await?;
        }
        Ok(())
    }

    async fn record_failure(&self, turn: u32, model: &str, error: &LlmError) -> Result<(), Error> {
        let number = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let mask = self.app.secrets();
        let words = mask.redact(error.reason().words());
        let text = finished(&snapshot::failure(model, &error.to_string(), &words), &mask);
        self.write(Snapshot { name: format!("t{turn:03}_failed{number}"), text, entry: None }).await
    }

    async fn patiently(&self, writing: impl Future<Output = Result<(), Error>>, deadline: Deadline) {
        let written = timeout_at(deadline.slice(PATIENCE), writing).await;
        let written = written.unwrap_or_else(|_| Err(Error::Transient("it took too long".to_owned())));
        if let Err(error) = written {
            tracing::warn!(run.id = %self.run_id, %error, "a context snapshot could not be written");
        }
    }

    async fn write(&self, snapshot: Snapshot) -> Result<(), Error> {
        #[cfg(feature = "local")]
        if matches!(self.app.config.store, StoreChoice::Sqlite(_)) {
            return files::write(self.app.config.context_dir.as_deref(), &self.stem(), snapshot).await;
        }
        rows::write(self.app, &self.run_id, self.begin_ms, snapshot).await
    }

    /// What the names of all snapshots of the run begin with: `20260131T235959.123Z-` and the run's first digits, since
    /// two runs may begin at the same time.
    fn stem(&self) -> String {
        let time = iso(Timestamp::from(self.begin_ms / 1000)).replace(['-', ':', 'Z'], "");
        let run: String = self.run_id.chars().take(8).collect();
        format!("{time}.{:03}Z-{run}", self.begin_ms % 1000)
    }
}

/// A message without secrets, before it is rendered: what is broken into lines or cut is not found any more.
fn masked(message: &Message, mask: &Mask) -> Message {
    let mut message = message.clone();
    let calls = message.tool_calls.iter_mut().flat_map(|call| [&mut call.name, &mut call.arguments]);
    for text in calls.chain([&mut message.content]) {
        *text = mask.redact(text);
    }
    message
}

/// A rendered text: what stood escaped inside JSON may be a secret only now.
fn finished(text: &str, mask: &Mask) -> String {
    markdown::cut(&mask.redact(text), MAX_TEXT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn of_a_secret_that_rendering_would_cut_nothing_is_left() {
        let mask = Mask::new([Secret::new("0123456789abcdef".repeat(4))]);
        // The keys of a tool's result are cut after 64 characters.
        let result = format!(r#"{{"key {}":1}}"#, "0123456789abcdef".repeat(4));
        let messages = [masked(&Message::tool_result("c", result), &mask)];
        let text = finished(&snapshot::turn(&messages), &mask);
        assert!(text.ends_with("  - **key [redacted]**: 1\n"), "{text}");
    }
}
