//! Asking for a turn's answer: the chain's models in turn, each with a history that fits its window.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::Run;
use super::driver::Driver;
use super::journal::{Compacted, fit};
use super::ledger::{self, Asked};
use crate::chat::{ChatAnswer, ChatRequest, Message, Params, ToolChoice, Usage};
use crate::clock::Stopwatch;
use crate::commands;
use crate::context::compaction::Limits;
use crate::context::tokens::{self, Calibration};
use crate::error::Error;
use crate::llm::LlmError;
use crate::llm::fallback::Next;
use crate::run::Step;
use crate::store::keys::Place;

/// The longest that a summary is waited for; of short times a third.
const SUMMARY_SLICE: Duration = Duration::from_secs(30);

/// What follows an answer of which only the beginning came.
const BROKE_OFF: &str = "\n\n[The model's answer broke off here.]";

/// The model call of one turn.
struct Call<'a> {
    turn: u32,
    model: &'a str,
    until: Instant,
}

impl Driver<'_> {
    /// Takes the run from one model call to what comes after it: by the journal where an earlier attempt has heard the
    /// answer, else by asking. An answer that ends the run needs no row: it is saved as the reply right after.
    pub(super) async fn ask_model(&mut self, run: &mut Run) -> Result<(), Error> {
        let turn = u32::try_from(run.turns().len()).unwrap_or(u32::MAX).saturating_add(1);
        let mut compactions = 0;
        while let Some(row) = self.journal.compaction(turn, compactions).cloned() {
            self.note_summary(turn, &row);
            run.compact(&row.compaction);
            compactions = compactions.saturating_add(1);
        }
        if let Some(answer) = self.journal.answer(turn).cloned() {
            self.note_answer(run, turn, &answer, None);
            run.model_answered(answer);
            return Ok(());
        }
        self.check_time()?;
        let mut answer = self.ask_chain(run, turn, compactions).await?;
        if !answer.tool_calls.is_empty() || answer.content.trim().is_empty() {
            answer = fit(answer)?;
        }
        run.model_answered(answer.clone());
        if !run.is_over() {
            self.append(Place::Answer(turn), &answer).await?;
        }
        Ok(())
    }

    /// The answer of the first model that gives one. Of one that broke off what came is taken where nobody does better.
    async fn ask_chain(
        &mut self,
        run: &mut Run,
        turn: u32,
        mut compactions: usize,
    ) -> Result<ChatAnswer, Error> {
        self.may_go_on()?;
        self.fallback.begin(run.model_used());
        let end = self.deadline.work_until();
        let mut is_first = true;
        loop {
            match self.fallback.next(Instant::now(), end) {
                Next::Ask { model, until } => {
                    // A model that failed took its time, and leaves no row behind.
                    if !std::mem::take(&mut is_first) {
                        commands::flags::check(self.app).await?;
                    }
                    let call = Call { turn, model: &model, until };
                    match self.ask_fitting(run, &call, &mut compactions).await? {
                        Ok(answer) => {
                            self.has_heard = true;
                            return Ok(answer);
                        }
                        Err(error) => self.fallback.failed(error, Instant::now(), end),
                    }
                }
                Next::Wait(until) => sleep_until(until).await,
                Next::GiveUp => break,
            }
        }
        let out_of_time = self.fallback.is_out_of_time(Instant::now(), end).then(|| self.out_of_time());
        // In the next invocation the whole answer has all of the time.
        if let Some(error @ Error::OutOfTime { has_progress: true }) = out_of_time {
            return Err(error);
        }
        if let Some(mut partial) = self.fallback.partial() {
            partial.content.push_str(BROKE_OFF);
            return Ok(partial);
        }
        if let Some(error) = out_of_time {
            return Err(error);
        }
        let error = self.fallback.error();
        Err(Error::NoAnswer {
            reason: error.map_or("no model is left to ask", LlmError::told),
            transient: error.is_some_and(LlmError::is_transient),
        })
    }

    /// Asks one model. One that says that the request does not fit is asked once more, with less.
    async fn ask_fitting(
        &mut self,
        run: &mut Run,
        call: &Call<'_>,
        compactions: &mut usize,
    ) -> Result<Result<ChatAnswer, LlmError>, Error> {
        self.make_room(run, call, compactions).await?;
        let answer = self.ask(run, call).await?;
        if !matches!(answer, Err(LlmError::Overflow(_))) {
            return Ok(answer);
        }
        // The estimate was low, or the window is smaller than we know.
        let size = size_of(run);
        self.calibration(|calibration| calibration.overflowed(call.model, size));
        match self.make_room(run, call, compactions).await? {
            true => self.ask(run, call).await,
            false => Ok(answer),
        }
    }

    async fn ask(&mut self, run: &Run, call: &Call<'_>) -> Result<Result<ChatAnswer, LlmError>, Error> {
        self.may_go_on()?;
        let Step::CallModel(request) = run.next() else {
            return Ok(Err(LlmError::Permanent("the run asks no model".into())));
        };
        let mut watch = Stopwatch::start();
        let params = Params { max_tokens: self.answer_limit(run, call.model), ..request.params.clone() };
        let request = ChatRequest { model: call.model, params: &params, ..request };
        let (answer, ()) = tokio::join!(
            self.complete(&request, call.until),
            self.snapshots.model_is_asked(call.turn, run.log(), self.deadline),
        );
        let took_ms = Some(watch.lap_ms());
        match &answer {
            Ok(answer) => {
                if let Some(tokens) = answer.usage.and_then(|usage| usage.input_tokens) {
                    let size = size_of(run);
                    self.calibration(|calibration| calibration.learn(call.model, size, tokens));
                }
                self.note_answer(run, call.turn, answer, took_ms);
            }
            Err(error) => {
                let asked = Asked { turn: call.turn, model: call.model, for_summary: false, took_ms };
                self.note_failure(asked, error, size_of(run)).await?;
            }
        }
        Ok(answer)
    }

    /// The most tokens that the next answer may have: what is asked for, as far as the model can give it and its window
    /// has room for it.
    fn answer_limit(&self, run: &Run, model: &str) -> Option<u32> {
        let wanted = run.params().max_tokens?;
        let Ok(id) = model.parse() else { return Some(wanted) };
        let info = self.app.config.providers.info(&id);
        let window = usize::try_from(info.context_window).unwrap_or(usize::MAX);
        let left = self.calibration(|calibration| calibration.left(model, window, size_of(run)));
        Some(info.answer_limit_within(wanted, left))
    }

    async fn complete(&self, request: &ChatRequest<'_>, until: Instant) -> Result<ChatAnswer, LlmError> {
        // The port minds the time by itself, and then has more to tell; this is for one that does not.
        timeout_at(until, self.app.llm.complete(request, until)).await.unwrap_or_else(|_| {
            let reason = "it did not answer in the time there was".into();
            Err(LlmError::Transient { reason, retry_after: None })
        })
    }

    /// Compacts the run's messages where they fill too much of the model's window; whether anything changed.
    async fn make_room(
        &mut self,
        run: &mut Run,
        call: &Call<'_>,
        compactions: &mut usize,
    ) -> Result<bool, Error> {
        let Ok(info) = call.model.parse().map(|id| self.app.config.providers.info(&id)) else {
            return Ok(false);
        };
        let count = |tokens: u32| usize::try_from(tokens).unwrap_or(usize::MAX);
        let window = count(info.context_window);
        let answer = run.params().max_tokens.map_or(0, |wanted| count(info.answer_limit(wanted)));
        let limits =
            Limits::of(self.calibration(|calibration| calibration.room(call.model, window))).leaving(answer);
        let Some(plan) = run.log().plan(tokens::of_tools(run.tools()), limits) else { return Ok(false) };
        let summary = match run.log().summary_request(&plan, limits) {
            Some((messages, max_tokens)) => self.summarise(&messages, max_tokens, call).await?,
            None => None,
        };
        let (text, summarised_by) = match summary {
            Some((text, usage)) => (Some(text), Some((call.model.to_owned(), usage))),
            None => (None, None),
        };
        let compaction = run.log().with_summary(plan, text.as_deref(), limits);
        self.append(
            Place::Compaction(call.turn, *compactions),
            &Compacted { compaction: compaction.clone(), summarised_by },
        )
        .await?;
        *compactions = compactions.saturating_add(1);
        let before = run.log().tokens();
        run.compact(&compaction);
        tracing::info!(model = call.model, before, after = run.log().tokens(), "the messages were compacted");
        Ok(true)
    }

    /// A summary, and the tokens that it took; nothing where the model gives none.
    async fn summarise(
        &mut self,
        messages: &[Message],
        max_tokens: usize,
        call: &Call<'_>,
    ) -> Result<Option<(String, Usage)>, Error> {
        let now = Instant::now();
        let time = call.until.saturating_duration_since(now);
        let params = Params { max_tokens: u32::try_from(max_tokens).ok(), ..Params::default() };
        let request = ChatRequest {
            model: call.model,
            messages,
            tools: &[],
            tool_choice: ToolChoice::None,
            params: &params,
        };
        let mut watch = Stopwatch::start();
        let answer = self.complete(&request, now + SUMMARY_SLICE.min(time / 3)).await;
        let asked =
            Asked { turn: call.turn, model: call.model, for_summary: true, took_ms: Some(watch.lap_ms()) };
        let size = messages.iter().map(tokens::of_message).fold(0, usize::saturating_add);
        match answer {
            Ok(answer) => {
                let estimated = ledger::estimate(size, &answer);
                self.ledger.answered(asked, answer.usage, estimated);
                Ok(Some((answer.content, answer.usage.unwrap_or(estimated))))
            }
            Err(error) => {
                self.note_failure(asked, &error, size).await?;
                Ok(None)
            }
        }
    }

    /// A model call that failed, with a request of about `input` tokens. What it cost all the same is journaled, since no
    /// answer's row will tell of it; what its provider said goes where private text may.
    async fn note_failure(&mut self, asked: Asked<'_>, error: &LlmError, input: usize) -> Result<(), Error> {
        tracing::warn!(model = asked.model, %error, "the model did not answer");
        self.snapshots.model_failed(asked.turn, asked.model, error, self.deadline).await;
        if let Some(spent) = self.ledger.failed(asked, error, input) {
            let place = self.journal.spend(spent.clone());
            self.append(place, &spent).await?;
        }
        Ok(())
    }

    /// An answer that was heard now, or, without a time, from the journal.
    fn note_answer(&mut self, run: &Run, turn: u32, answer: &ChatAnswer, took_ms: Option<u64>) {
        let estimated = ledger::estimate(size_of(run), answer);
        let asked = Asked { turn, model: &answer.model, for_summary: false, took_ms };
        self.ledger.answered(asked, answer.usage, estimated);
    }

    /// A summary from the journal.
    fn note_summary(&mut self, turn: u32, row: &Compacted) {
        if let Some((model, usage)) = &row.summarised_by {
            let asked = Asked { turn, model, for_summary: true, took_ms: None };
            self.ledger.answered(asked, Some(*usage), *usage);
        }
    }

    fn calibration<T>(&self, change: impl FnOnce(&mut Calibration) -> T) -> T {
        change(&mut self.app.calibration.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The estimated tokens of the run's next request.
fn size_of(run: &Run) -> usize {
    run.log().tokens().saturating_add(tokens::of_tools(run.tools()))
}
