//! `/cancel`: ends runs that are in work or waiting. A worker finds out at its next write, which is refused.

use super::reports::count;
use super::{Effect, Order};
use crate::error::Error;
use crate::record::{MIN_PREFIX, RunRecord, Status, Unfinished, cancel_writes, unfinished};
use crate::store::keys;
use crate::trigger::{Source, Trigger};

/// The most runs that one command ends: three writes each, in one call with the answer.
const MAX_CANCELLED: usize = 30;

/// Of a run whose reply is signed: it may lie on a relay by now.
const TOO_LATE: &str = "Its answer is on its way: it can no longer be cancelled.";

impl Order<'_> {
    pub(super) async fn cancel(&self, id: Option<&str>) -> Result<Effect, Error> {
        let mut runs = unfinished(self.app).await?;
        // Neither this run nor another command.
        runs.retain(|run| run.record.command.is_none());
        match id {
            Some(id) => self.cancel_one(&runs, id),
            None => self.cancel_conversation(runs).await,
        }
    }

    fn cancel_one(&self, runs: &[Unfinished], id: &str) -> Result<Effect, Error> {
        let id = id.to_ascii_lowercase();
        let named = |run: &&Unfinished| id.len() >= MIN_PREFIX && run.record.run_id.starts_with(&id);
        let mut found = runs.iter().filter(named);
        Ok(match (found.next(), found.next()) {
            (Some(run), None) if run.record.status == Status::Replying => Effect::told(TOO_LATE),
            (Some(run), None) => Effect {
                text: format!("Cancelled: {}.", run.record.short_id()),
                writes: cancel_writes(self.app, run)?,
                freed: run.record.conversation.into_iter().collect(),
            },
            (Some(_), Some(_)) => Effect::told("Several runs' ids begin so: give more of it."),
            (None, _) => Effect::told(
                "No run that is in work or waits has an id that begins so. /runs shows the last ones.",
            ),
        })
    }

    async fn cancel_conversation(&self, mut runs: Vec<Unfinished>) -> Result<Effect, Error> {
        runs.retain(|run| run.record.status == Status::Running);
        let wanted: Vec<_> = runs.iter().map(|run| keys::trigger(&run.record.run_id)).collect();
        let triggers = self.app.store.read(&wanted).await?;
        let mut ours: Vec<Unfinished> = runs
            .into_iter()
            .zip(triggers)
            .filter(|(_, row)| {
                let trigger = row.as_ref().and_then(|row| self.app.open_sealed::<Trigger>(row).ok());
                trigger.is_some_and(|trigger| self.is_of_conversation(&trigger))
            })
            .map(|(run, _)| run)
            .collect();
        let more = ours.len().saturating_sub(MAX_CANCELLED);
        ours.truncate(MAX_CANCELLED);
        let mut writes = Vec::new();
        for run in &ours {
            writes.extend(cancel_writes(self.app, run)?);
        }
        let ids: Vec<&str> =
            ours.iter().map(|Unfinished { record, .. }| RunRecord::short_id(record)).collect();
        let text = match (ids.as_slice(), more) {
            ([], _) => "Nothing of this conversation is in work or waits.".to_owned(),
            (_, 0) => format!("Cancelled: {}.", ids.join(", ")),
            _ => format!(
                "Cancelled: {}. {}: /cancel again.",
                ids.join(", "),
                count(more, "more is left", "more are left")
            ),
        };
        let freed = ours.iter().filter_map(|run| run.record.conversation).take(1).collect();
        Ok(Effect { text, writes, freed })
    }

    /// Whether it is a message of this admin's from before the command: what comes later is not meant, however late the
    /// command is obeyed.
    fn is_of_conversation(&self, trigger: &Trigger) -> bool {
        let is_message = matches!(trigger.source, Source::Dm(_) | Source::Prompt(_));
        is_message
            && trigger.peer() == Some(self.dm.peer)
            && trigger.created_at() <= self.dm.created_at
            && trigger.arrived_at <= self.trigger.arrived_at
    }
}
