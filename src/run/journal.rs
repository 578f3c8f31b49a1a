//! The journal: what a run has learned so far, one small sealed row per model answer, tool result and published event,
//! each written before the next step. A later attempt hears the same answers and sends the same events.

use std::collections::BTreeMap;

use nostr::prelude::Event;

use crate::app::App;
use crate::chat::{ChatAnswer, ToolCall};
use crate::error::Error;
use crate::run::ToolResult;
use crate::store::{Row, keys};

/// A run's journal as an earlier attempt left it. Turns count from 1, calls of a turn from 0.
#[derive(Debug, Default)]
pub struct Journal {
    answers: BTreeMap<u32, ChatAnswer>,
    results: BTreeMap<(u32, usize), ToolResult>,
    effects: BTreeMap<(u32, usize), Event>,
}

impl Journal {
    /// Takes a row of the run's partition; one that is not the journal's is passed over.
    ///
    /// # Errors
    /// [`Error::Permanent`] where a row of the journal cannot be read.
    pub fn add(&mut self, app: &App, row: &Row) -> Result<(), Error> {
        match keys::journal_place(&row.key) {
            Some(keys::Place::Answer(turn)) => drop(self.answers.insert(turn, app.open_sealed(row)?)),
            Some(keys::Place::Result(turn, index)) => {
                drop(self.results.insert((turn, index), app.open_sealed(row)?));
            }
            Some(keys::Place::Effect(turn, index)) => {
                drop(self.effects.insert((turn, index), app.open_sealed(row)?));
            }
            None => {}
        }
        Ok(())
    }

    /// The answer to a turn's model call.
    #[must_use]
    pub fn answer(&self, turn: u32) -> Option<&ChatAnswer> {
        self.answers.get(&turn)
    }

    /// The result of a turn's tool call.
    #[must_use]
    pub fn result(&self, turn: u32, index: usize) -> Option<&ToolResult> {
        self.results.get(&(turn, index))
    }

    /// The event that a turn's tool call signed: it may or may not have been sent.
    #[must_use]
    pub fn effect(&self, turn: u32, index: usize) -> Option<&Event> {
        self.effects.get(&(turn, index))
    }

    /// Every tool call that was asked for, in order, with its result where there is one.
    pub fn calls(&self) -> impl Iterator<Item = (&ToolCall, Option<&ToolResult>)> {
        self.answers.iter().flat_map(|(turn, answer)| {
            answer.tool_calls.iter().enumerate().map(|(index, call)| (call, self.result(*turn, index)))
        })
    }
}
