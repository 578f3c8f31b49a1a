//! What the model calls of a run came to: whom it asked, what failed, what was used and what that costs.

use crate::chat::{ChatAnswer, Usage};
use crate::context::tokens;
use crate::llm::LlmError;
use crate::llm::catalogue::Providers;
use crate::record::Attempt;

/// The most attempts that are listed; the sums know of all.
const MAX_ATTEMPTS_LISTED: usize = 100;

/// A model call that ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The turn that it was for, from 1.
    pub(super) turn: u32,
    /// `provider/model`.
    pub(super) model: &'a str,
    /// Whether it was asked for a summary.
    pub(super) for_summary: bool,
    /// How long it took; nothing where the answer was heard from the journal.
    pub(super) took_ms: Option<u64>,
}

/// The list so far.
pub(super) struct Ledger<'a> {
    providers: &'a Providers,
    attempts: Vec<Attempt>,
    usage: Usage,
    cost_micro_usd: u64,
}

impl<'a> Ledger<'a> {
    /// Goes on with the attempts that the record has.
    pub(super) fn new(providers: &'a Providers, attempts: Vec<Attempt>) -> Self {
        Self { providers, attempts, usage: Usage::default(), cost_micro_usd: 0 }
    }

    /// A model answered. Where the provider tells no usage, the cost is that of an estimate.
    pub(super) fn answered(&mut self, asked: Asked<'_>, usage: Option<Usage>, estimated: Usage) {
        let usage = usage.unwrap_or_default();
        let billed = Usage {
            input_tokens: usage.input_tokens.or(estimated.input_tokens),
            cached_input_tokens: usage.cached_input_tokens,
            output_tokens: usage.output_tokens.or(estimated.output_tokens),
        };
        let price = asked.model.parse().map(|id| self.providers.info(&id).price);
        let cost_micro_usd = price.map_or(0, |price| price.of(&billed));
        self.usage = self.usage.plus(usage);
        self.cost_micro_usd = self.cost_micro_usd.saturating_add(cost_micro_usd);
        self.list(Attempt { usage, cost_micro_usd, ..attempt(asked, None) });
    }

    /// A model did not answer.
    pub(super) fn failed(&mut self, asked: Asked<'_>, error: &LlmError) {
        self.list(attempt(asked, Some(error.told().to_owned())));
    }

    /// The attempts of the run, the tokens of all answers, and their cost in micro-dollars.
    pub(super) fn into_sums(self) -> (Vec<Attempt>, Usage, u64) {
        (self.attempts, self.usage, self.cost_micro_usd)
    }

    /// An answer that was heard from the journal may be listed already, by the attempt that got it.
    fn list(&mut self, attempt: Attempt) {
        let is_same = |listed: &Attempt| Attempt { took_ms: None, ..listed.clone() } == attempt;
        let is_listed = attempt.took_ms.is_none() && self.attempts.iter().any(is_same);
        if !is_listed && self.attempts.len() < MAX_ATTEMPTS_LISTED {
            self.attempts.push(attempt);
        }
    }
}

fn attempt(asked: Asked<'_>, failure: Option<String>) -> Attempt {
    Attempt {
        turn: asked.turn,
        model: asked.model.to_owned(),
        for_summary: asked.for_summary,
        failure,
        usage: Usage::default(),
        cost_micro_usd: 0,
        took_ms: asked.took_ms,
    }
}

/// What an answer to a request of about `input` tokens may have used.
pub(super) fn estimate(input: usize, answer: &ChatAnswer) -> Usage {
    let calls =
        answer.tool_calls.iter().map(|call| tokens::estimate(&call.name) + tokens::estimate(&call.arguments));
    let output = calls.fold(tokens::estimate(&answer.content), usize::saturating_add);
    let count = |tokens: usize| u64::try_from(tokens).ok();
    Usage { input_tokens: count(input), cached_input_tokens: None, output_tokens: count(output) }
}
