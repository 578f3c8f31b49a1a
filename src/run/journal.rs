//! The journal: what a run has learned so far, one small sealed row per model answer, compaction, tool result, published
//! event, call that is not made twice, and model call that cost something and gave nothing, each written before the next step. With the first of them
//! comes what the run began with. A later attempt begins with the same, hears the same answers and sends the same events.

use std::collections::BTreeMap;

use nostr::prelude::Event;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::chat::{ChatAnswer, ToolCall, Usage};
use crate::context::compaction::Compaction;
use crate::error::Error;
use crate::record::{Attempt, Delivery, to_json};
use crate::run::ToolResult;
use crate::run::beginning::{Beginning, Part};
use crate::run::guards;
use crate::store::seal::SEAL_OVERHEAD_BYTES;
use crate::store::{MAX_VALUE_BYTES, Row, keys};

/// The most bytes of an answer as JSON: then it is one row.
const MAX_ANSWER_BYTES: usize = MAX_VALUE_BYTES - SEAL_OVERHEAD_BYTES;

/// The most calls of an answer that has to be cut.
const MAX_CALLS: usize = 64;

/// A run's journal as an earlier attempt left it. Turns count from 1, calls of a turn from 0.
#[derive(Debug, Default)]
pub struct Journal {
    beginning: BTreeMap<usize, Part>,
    answers: BTreeMap<u32, ChatAnswer>,
    compactions: BTreeMap<(u32, usize), Compacted>,
    /// The names of tools whose calls began and are not made twice.
    begun: BTreeMap<(u32, usize), String>,
    results: BTreeMap<(u32, usize), Answered>,
    effects: BTreeMap<(u32, usize), Event>,
    spends: BTreeMap<(u32, usize), Attempt>,
}

/// What came of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    #[serde(flatten)]
    pub(super) result: ToolResult,
    /// What relays said to the event that it published, if it did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) deliveries: Vec<Delivery>,
}

/// A compaction as it was carried out, and what its summary cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Compacted {
    pub(super) compaction: Compaction,
    /// The model that was asked for a summary, and the tokens that it used.
    pub(super) summarised_by: Option<(String, Usage)>,
}

impl Journal {
    /// Takes a row of the run's partition; one that is not the journal's is passed over.
    ///
    /// # Errors
    /// [`Error::Permanent`] where a row of the journal cannot be read.
    pub fn add(&mut self, app: &App, row: &Row) -> Result<(), Error> {
        match keys::journal_place(&row.key) {
            Some(keys::Place::Beginning(part)) => drop(self.beginning.insert(part, app.open_sealed(row)?)),
            Some(keys::Place::Answer(turn)) => drop(self.answers.insert(turn, app.open_sealed(row)?)),
            Some(keys::Place::Compaction(turn, index)) => {
                drop(self.compactions.insert((turn, index), app.open_sealed(row)?));
            }
            Some(keys::Place::Begun(turn, index)) => {
                drop(self.begun.insert((turn, index), app.open_sealed(row)?));
            }
            Some(keys::Place::Result(turn, index)) => {
                drop(self.results.insert((turn, index), app.open_sealed(row)?));
            }
            Some(keys::Place::Effect(turn, index)) => {
                drop(self.effects.insert((turn, index), app.open_sealed(row)?));
            }
            Some(keys::Place::Spend(turn, index)) => {
                drop(self.spends.insert((turn, index), app.open_sealed(row)?));
            }
            None => {}
        }
        Ok(())
    }

    /// What the run began with, if it is decided: before the first row of another kind it may begin anew. Of journals of the
    /// first versions nobody knows it.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it cannot be read.
    pub fn beginning(&self) -> Result<Option<Beginning>, Error> {
        let is_decided = !self.answers.is_empty() || !self.compactions.is_empty() || !self.spends.is_empty();
        if is_decided { Beginning::read(&self.beginning) } else { Ok(None) }
    }

    /// The answer to a turn's model call.
    #[must_use]
    pub fn answer(&self, turn: u32) -> Option<&ChatAnswer> {
        self.answers.get(&turn)
    }

    /// A compaction in front of a turn's model call, counted from 0.
    pub(super) fn compaction(&self, turn: u32, index: usize) -> Option<&Compacted> {
        self.compactions.get(&(turn, index))
    }

    /// The result of a turn's tool call.
    #[must_use]
    pub fn result(&self, turn: u32, index: usize) -> Option<&ToolResult> {
        self.results.get(&(turn, index)).map(|answered| &answered.result)
    }

    /// Whether a turn's tool call began that is not made twice.
    pub(super) fn is_begun(&self, turn: u32, index: usize) -> bool {
        self.begun.contains_key(&(turn, index))
    }

    /// The calls of which nobody knows whether they took effect: as [`RunRecord::unknown_calls`].
    ///
    /// [`RunRecord::unknown_calls`]: crate::record::RunRecord::unknown_calls
    pub(crate) fn unknown_calls(&self) -> Vec<(u32, String)> {
        let unknown = guards::unknown_outcome();
        let is_unknown =
            |turn, index| self.result(turn, index).is_none_or(|result| result.content == unknown);
        let begun = self.begun.iter().filter(|((turn, index), _)| is_unknown(*turn, *index));
        begun.map(|((turn, _), tool)| (*turn, tool.clone())).collect()
    }

    /// What relays said to the events that tool calls published, those of one event together.
    pub(crate) fn deliveries(&self) -> impl Iterator<Item = &[Delivery]> {
        self.results.values().map(|answered| answered.deliveries.as_slice())
    }

    /// The event that a turn's tool call signed: it may or may not have been sent.
    #[must_use]
    pub fn effect(&self, turn: u32, index: usize) -> Option<&Event> {
        self.effects.get(&(turn, index))
    }

    /// All events that tool calls signed.
    pub(crate) fn effects(&self) -> impl Iterator<Item = &Event> {
        self.effects.values()
    }

    /// The model calls that cost something and gave nothing to keep.
    pub(super) fn spends(&self) -> impl Iterator<Item = &Attempt> {
        self.spends.values()
    }

    /// Takes up one more of them, and tells the place of its row.
    pub(super) fn spend(&mut self, spent: Attempt) -> keys::Place {
        let turn = spent.turn;
        let index = self.spends.range((turn, 0)..=(turn, usize::MAX)).count();
        self.spends.insert((turn, index), spent);
        keys::Place::Spend(turn, index)
    }

    /// Every tool call that was asked for, in order, with its result where there is one.
    pub fn calls(&self) -> impl Iterator<Item = (&ToolCall, Option<&ToolResult>)> {
        self.answers.iter().flat_map(|(turn, answer)| {
            answer.tool_calls.iter().enumerate().map(|(index, call)| (call, self.result(*turn, index)))
        })
    }
}

/// An answer that fits into its row: of one that does not, each text is cut to the same length, and of very many calls the
/// first are kept. What is left is all that the run knows of it, now and after a crash. The model hears of it: a call's
/// arguments that were cut are no JSON any more, and are refused with a word that says so.
///
/// # Errors
/// [`Error::Permanent`] where it cannot be written as JSON.
pub(super) fn fit(mut answer: ChatAnswer) -> Result<ChatAnswer, Error> {
    const CUT_OFF: &str = "\n[the rest of this text was too long to keep]";
    let mut longest = MAX_ANSWER_BYTES / 2;
    while to_json(&answer)?.len() > MAX_ANSWER_BYTES && longest > 0 {
        if cut(&mut answer.content, longest) {
            answer.content.push_str(CUT_OFF);
        }
        answer.tool_calls.truncate(MAX_CALLS);
        for call in &mut answer.tool_calls {
            for text in [&mut call.id, &mut call.name, &mut call.arguments] {
                cut(text, longest);
            }
            // A part of one is none.
            call.signature.take_if(|signature| signature.len() > longest);
        }
        longest /= 2;
    }
    Ok(answer)
}

/// Shortens a text to at most `max` bytes, between two characters; whether it was longer.
fn cut(text: &mut String, max: usize) -> bool {
    let is_longer = text.len() > max;
    text.truncate(text.floor_char_boundary(max));
    is_longer
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chat::FinishReason;

    #[test]
    fn what_a_call_cost_has_the_next_place_of_its_turn() {
        let mut journal = Journal::default();
        let spent = |turn| Attempt {
            turn,
            model: "p/m".to_owned(),
            for_summary: false,
            failure: None,
            usage: Usage::default(),
            cost_micro_usd: 7,
            took_ms: None,
        };
        let places = [2, 2, 1, 2].map(|turn| journal.spend(spent(turn)));
        assert_eq!(places, [(2, 0), (2, 1), (1, 0), (2, 2)].map(|(turn, at)| keys::Place::Spend(turn, at)));
        assert_eq!(journal.spends().count(), 4);
    }

    fn answer(content: String, calls: Vec<[String; 3]>) -> ChatAnswer {
        let calls = calls.into_iter().map(|[id, name, arguments]| ToolCall::new(id, name, arguments));
        ChatAnswer {
            content,
            tool_calls: calls.collect(),
            finish_reason: FinishReason::ToolCalls,
            usage: None,
            model: "p/m".into(),
        }
    }

    #[test]
    fn of_a_long_answer_the_long_texts_are_cut_and_the_short_ones_stay() {
        let short = || ["1".to_owned(), "time".to_owned(), "{}".to_owned()];
        let long = ["2".to_owned(), "post".to_owned(), format!("{{\"content\":\"{}", "🦀".repeat(140_000))];
        let fitted = fit(answer("x".repeat(399_000), vec![short(), long, short()])).unwrap();
        assert!(fitted.content.ends_with("x\n[the rest of this text was too long to keep]"));
        assert_eq!(fitted.tool_calls.len(), 3);
        assert_eq!(fitted.tool_calls[0], fitted.tool_calls[2]);
        assert_eq!(fitted.tool_calls[0].arguments, "{}");
        assert!(fitted.tool_calls[1].arguments.ends_with('🦀'));
        assert!(fitted.tool_calls[1].arguments.len() > 80_000);
        // A signature is whole or not there.
        let mut signed = answer(String::new(), vec![short(), short()]);
        signed.tool_calls[0].signature = Some("s".repeat(MAX_ANSWER_BYTES));
        signed.tool_calls[1].signature = Some("seal".to_owned());
        let signatures = fit(signed).unwrap().tool_calls.into_iter().map(|call| call.signature);
        assert_eq!(signatures.collect::<Vec<_>>(), [None, Some("seal".to_owned())]);
        // What fits is left alone, and cutting again changes nothing.
        assert_eq!(fit(fitted.clone()).unwrap(), fitted);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn every_answer_fits_into_a_row(
            piece in "\\PC|\u{1}|\"|🦀",
            texts in prop::array::uniform4(0_usize..400_000),
            calls in prop_oneof![0_usize..3, 1000_usize..3000],
        ) {
            let [content, id, name, arguments] = texts.map(|count| piece.repeat(count / calls.max(1)));
            let fitted = fit(answer(content, vec![[id, name, arguments]; calls])).unwrap();
            prop_assert!(to_json(&fitted).unwrap().len() <= MAX_ANSWER_BYTES);
            prop_assert_eq!(fitted.tool_calls.is_empty(), calls == 0);
        }
    }
}
