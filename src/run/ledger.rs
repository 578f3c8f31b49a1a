//! What the model calls of a run came to: whom it asked, what failed, what was used and what that costs.

use crate::chat::{ChatAnswer, Usage};
use crate::context::tokens;
use crate::llm::LlmError;
use crate::llm::catalogue::Providers;
use crate::record::{Attempt, RunRecord};

/// The most attempts that are listed of those that cost nothing.
const MAX_FREE_ATTEMPTS_LISTED: usize = 100;

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

/// The list so far, and the sums.
pub(super) struct Ledger<'a> {
    providers: &'a Providers,
    attempts: Vec<Attempt>,
    usage: Usage,
    cost_micro_usd: u64,
    /// What the sums had before, as far as it was not heard from the journal again.
    counted: Vec<Attempt>,
}

impl<'a> Ledger<'a> {
    /// Goes on from what the record tells of earlier attempts at the run, if anything.
    pub(super) fn new(providers: &'a Providers, record: &mut RunRecord) -> Self {
        let attempts = std::mem::take(&mut record.attempts);
        let counted = attempts.clone();
        Self { providers, attempts, usage: record.usage, cost_micro_usd: record.cost_micro_usd, counted }
    }

    /// A model answered. Where the provider tells no usage, the cost is that of an estimate.
    pub(super) fn answered(&mut self, asked: Asked<'_>, usage: Option<Usage>, estimated: Usage) {
        let attempt = self.billed(asked, None, usage, estimated);
        self.count(attempt);
    }

    /// A model did not answer. What it had said until it broke off is billed: it is what its provider will ask for. Such an
    /// attempt is returned, for the journal.
    pub(super) fn failed(&mut self, asked: Asked<'_>, error: &LlmError, input: usize) -> Option<Attempt> {
        let failure = Some(error.told().to_owned());
        let LlmError::Interrupted { partial, .. } = error else {
            self.count(attempt(asked, failure));
            return None;
        };
        let billed = self.billed(asked, failure, partial.usage, estimate(input, partial));
        self.count(billed.clone());
        Some(Attempt { took_ms: None, ..billed })
    }

    /// An attempt that the journal tells of.
    pub(super) fn spent(&mut self, attempt: Attempt) {
        self.count(attempt);
    }

    /// The attempts of the run, the tokens of all answers, and their cost in micro-dollars.
    pub(super) fn into_sums(self) -> (Vec<Attempt>, Usage, u64) {
        (self.attempts, self.usage, self.cost_micro_usd)
    }

    fn billed(
        &self,
        asked: Asked<'_>,
        failure: Option<String>,
        usage: Option<Usage>,
        estimated: Usage,
    ) -> Attempt {
        let usage = usage.unwrap_or_default();
        let billed = Usage {
            input_tokens: usage.input_tokens.or(estimated.input_tokens),
            cached_input_tokens: usage.cached_input_tokens,
            output_tokens: usage.output_tokens.or(estimated.output_tokens),
        };
        let price = asked.model.parse().map(|id| self.providers.info(&id).price);
        let cost_micro_usd = price.map_or(0, |price| price.of(&billed));
        Attempt { usage, cost_micro_usd, ..attempt(asked, failure) }
    }

    /// Adds an attempt to the sums and to the list. One from the journal may be in both: the attempt at the run that made it
    /// may have lived long enough to say so in the record.
    fn count(&mut self, attempt: Attempt) {
        if attempt.took_ms.is_none()
            && let Some(at) = self.counted.iter().position(|counted| is_same(counted, &attempt))
        {
            self.counted.swap_remove(at);
            return;
        }
        self.usage = self.usage.plus(attempt.usage);
        self.cost_micro_usd = self.cost_micro_usd.saturating_add(attempt.cost_micro_usd);
        let is_free = |attempt: &Attempt| attempt.failure.is_some() && attempt.cost_micro_usd == 0;
        if !is_free(&attempt)
            || self.attempts.iter().filter(|a| is_free(a)).count() < MAX_FREE_ATTEMPTS_LISTED
        {
            self.attempts.push(attempt);
        }
    }
}

/// Whether two are the same model call: time is not journaled, and prices may have changed.
fn is_same(one: &Attempt, other: &Attempt) -> bool {
    let key = |a: &Attempt| (a.turn, a.for_summary, a.usage);
    key(one) == key(other) && one.model == other.model && one.failure == other.failure
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
