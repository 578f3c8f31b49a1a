//! The fallback chain: which of a run's models is asked next, until when, and when there is nobody left (design §6.8).
//!
//! It decides and does nothing. Asking, waiting, and making the history fit each model's window is the caller's affair.
//! What concerns one model alone, such as a parameter that it refuses, happens inside [`super::Llm::complete`].

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::LlmError;
use crate::chat::ChatAnswer;

/// With less time left nobody is asked.
const MIN_ATTEMPT: Duration = Duration::from_millis(500);

/// What must be left behind a wait that a provider asks for.
const AFTER_WAIT: Duration = Duration::from_secs(2);

/// How often one call waits.
const MAX_WAITS: u32 = 3;

/// A run's models, in the order of preference.
#[derive(Debug, Default)]
pub struct Fallback {
    entries: Vec<Entry>,
    /// Those that this call has not tried yet.
    left: VecDeque<usize>,
    waits: u32,
    wait_until: Option<Instant>,
    /// Why there is no answer: the first failure that a later attempt may mend, else the last.
    error: Option<LlmError>,
    partial: Option<ChatAnswer>,
    /// Until when the model that was asked last has time.
    asked_until: Option<Instant>,
    /// A model of this call failed for now, and had time left.
    is_ill: bool,
}

#[derive(Debug)]
struct Entry {
    model: String,
    /// It can never answer this run.
    is_out: bool,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Ask this model, until then, and tell [`Fallback::failed`] where it does not answer.
    Ask {
        /// `provider/model`.
        model: String,
        /// A share of the time left.
        until: Instant,
    },
    /// Wait, and ask again what is next.
    Wait(Instant),
    /// There is nobody to ask, or no time.
    GiveUp,
}

impl Fallback {
    /// Over models that have what they need, each once.
    #[must_use]
    pub fn new(models: impl IntoIterator<Item = String>) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        for model in models {
            if !entries.iter().any(|entry| entry.model == model) {
                entries.push(Entry { model, is_out: false });
            }
        }
        Self { entries, ..Self::default() }
    }

    /// Begins a model call. The run stays with the model that answered last, `current`; the others follow in the chain's
    /// order, those in front of it at the end.
    pub fn begin(&mut self, current: &str) {
        let first = self.entries.iter().position(|entry| entry.model == current).unwrap_or(0);
        let order = (first..self.entries.len()).chain(0..first);
        self.left = order.filter(|at| self.entries.get(*at).is_some_and(|entry| !entry.is_out)).collect();
        self.waits = 0;
        self.wait_until = None;
        self.partial = None;
        self.is_ill = false;
        if !self.left.is_empty() {
            self.error = None;
        }
    }

    /// What to do now, where `until` is the end of the time for this call. Each model but the last gets half of what is
    /// left.
    pub fn next(&mut self, now: Instant, until: Instant) -> Next {
        let time = until.saturating_duration_since(now);
        let Some(entry) = self.left.front().and_then(|at| self.entries.get(*at)) else { return Next::GiveUp };
        if time < MIN_ATTEMPT {
            self.remember(LlmError::Transient {
                reason: "there was no time left to ask it".into(),
                retry_after: None,
            });
            return Next::GiveUp;
        }
        if let Some(wait_until) = self.wait_until.take() {
            return Next::Wait(wait_until);
        }
        let share = if self.left.len() > 1 { time / 2 } else { time };
        self.asked_until = Some(now + share);
        Next::Ask { model: entry.model.clone(), until: now + share }
    }

    /// The model that was asked did not answer. The last one is asked again where the wait that it asks for fits in the
    /// time; for all others the next one is there.
    pub fn failed(&mut self, error: LlmError, now: Instant, until: Instant) {
        self.is_ill |= error.is_transient() && self.asked_until.is_some_and(|until| now < until);
        if let LlmError::Transient { retry_after: Some(wait), .. } = &error
            && self.left.len() == 1
            && self.waits < MAX_WAITS
            && until.saturating_duration_since(now) >= wait.saturating_add(AFTER_WAIT)
        {
            self.waits = self.waits.saturating_add(1);
            self.wait_until = Some(now + *wait);
            return self.remember(error);
        }
        let entry = self.left.pop_front().and_then(|at| self.entries.get_mut(at));
        if let Some(entry) = entry {
            // A request that overflows may be smaller next time.
            entry.is_out = !error.is_transient() && !matches!(error, LlmError::Overflow(_));
        }
        self.remember(error);
    }

    /// Whether a call that ended without an answer at `now`, when it had time until `until`, only lacked time: no model
    /// said before the end of its share that it cannot answer now.
    #[must_use]
    pub fn is_out_of_time(&self, now: Instant, until: Instant) -> bool {
        let is_over = until.saturating_duration_since(now) < MIN_ATTEMPT;
        is_over && !self.is_ill && self.error.as_ref().is_some_and(LlmError::is_transient)
    }

    /// Why nobody answered.
    #[must_use]
    pub fn error(&self) -> Option<&LlmError> {
        self.error.as_ref()
    }

    /// The longest text of an answer to this call that broke off.
    #[must_use]
    pub fn partial(&mut self) -> Option<ChatAnswer> {
        self.partial.take()
    }

    fn remember(&mut self, error: LlmError) {
        if let LlmError::Interrupted { partial, .. } = &error {
            let longest = self.partial.as_ref().map_or(0, |longest| longest.content.trim().len());
            if partial.content.trim().len() > longest {
                self.partial = Some(ChatAnswer { tool_calls: Vec::new(), ..partial.as_ref().clone() });
            }
        }
        if !self.error.as_ref().is_some_and(LlmError::is_transient) {
            self.error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::FinishReason;

    const SECOND: Duration = Duration::from_secs(1);

    fn chain(models: &[&str]) -> Fallback {
        let mut fallback = Fallback::new(models.iter().map(|&model| model.to_owned()));
        fallback.begin("none");
        fallback
    }

    fn transient(retry_after: Option<Duration>) -> LlmError {
        LlmError::Transient { reason: "429".into(), retry_after }
    }

    fn broken(text: &str) -> LlmError {
        let partial = ChatAnswer {
            content: text.into(),
            tool_calls: vec![],
            finish_reason: FinishReason::Stop,
            usage: None,
            model: "a".into(),
        };
        LlmError::Interrupted { reason: "cut".into(), partial: Box::new(partial) }
    }

    /// Asks until the chain gives up; each failure takes `took`. Tells who was asked and for how long, in seconds.
    fn asked(fallback: &mut Fallback, total: u32, took: Duration, error: &LlmError) -> Vec<String> {
        asked_from(fallback, Instant::now(), total, took, error)
    }

    fn asked_from(
        fallback: &mut Fallback,
        start: Instant,
        total: u32,
        took: Duration,
        error: &LlmError,
    ) -> Vec<String> {
        let until = start + SECOND * total;
        let (mut now, mut asked) = (start, Vec::new());
        loop {
            match fallback.next(now, until) {
                Next::Ask { model, until: share } => {
                    assert!(share <= until);
                    asked.push(format!("{model} {:?}", share - now));
                    now = (now + took).min(share);
                    fallback.failed(error.clone(), now, until);
                }
                Next::Wait(wait) => {
                    assert!(wait <= until);
                    asked.push(format!("wait {:?}", wait - now));
                    now = wait;
                }
                Next::GiveUp => return asked,
            }
        }
    }

    #[test]
    fn each_model_gets_half_of_the_time_left_and_the_last_all_of_it() {
        let hangs = transient(None);
        assert_eq!(asked(&mut chain(&["a", "b", "c"]), 40, SECOND * 99, &hangs), ["a 20s", "b 10s", "c 10s"]);
        assert_eq!(asked(&mut chain(&["a", "b", "c"]), 40, SECOND, &hangs), ["a 20s", "b 19.5s", "c 38s"]);
        assert_eq!(asked(&mut chain(&["a", "a"]), 40, SECOND, &hangs), ["a 40s"]);
        assert_eq!(asked(&mut chain(&["a", "b"]), 0, SECOND, &hangs), [""; 0]);
        assert_eq!(asked(&mut chain(&[]), 40, SECOND, &hangs), [""; 0]);
    }

    #[test]
    fn only_the_last_model_is_waited_for_and_only_where_the_wait_fits() {
        let busy = transient(Some(SECOND * 5));
        let mut fallback = chain(&["a", "b"]);
        let expected = ["a 20s", "b 39s", "wait 5s", "b 33s", "wait 5s", "b 27s", "wait 5s", "b 21s"];
        assert_eq!(asked(&mut fallback, 40, SECOND, &busy), expected);
        assert_eq!(fallback.error(), Some(&busy));
        assert_eq!(asked(&mut chain(&["b"]), 7, SECOND, &busy), ["b 7s"]);
        assert_eq!(asked(&mut chain(&["b"]), 8, SECOND, &busy), ["b 8s", "wait 5s", "b 2s"]);
        assert_eq!(asked(&mut chain(&["b"]), 8, SECOND, &transient(Some(Duration::MAX))), ["b 8s"]);
    }

    #[test]
    fn the_next_call_begins_with_the_model_that_answered_and_leaves_out_who_never_will() {
        let mut fallback = chain(&["a", "b", "c", "d"]);
        let (now, until) = (Instant::now(), Instant::now() + SECOND * 60);
        fallback.failed(LlmError::Account("no key".into()), now, until);
        fallback.failed(LlmError::Overflow("long".into()), now, until);
        fallback.begin("c");
        assert_eq!(
            asked(&mut fallback, 16, SECOND * 99, &LlmError::Permanent("400".into())),
            ["c 8s", "d 4s", "b 4s"]
        );
        fallback.begin("c");
        assert_eq!(fallback.next(now, until), Next::GiveUp);
        assert_eq!(fallback.error(), Some(&LlmError::Permanent("400".into())), "it is still known why");
    }

    #[test]
    fn a_model_that_needs_more_time_than_there_is_is_not_ill_and_one_that_says_so_early_is() {
        for (models, took, lacks_time) in [
            (&["a"][..], SECOND * 99, true),
            (&["a", "b"], SECOND * 99, true),
            (&["a", "b"], SECOND * 20, true),
            (&["a"], SECOND, false),
            (&["a", "b"], SECOND * 19, false),
        ] {
            let (start, mut fallback) = (Instant::now(), chain(models));
            asked_from(&mut fallback, start, 40, took, &transient(None));
            let end = start + SECOND * 40;
            assert_eq!(fallback.is_out_of_time(end, end), lacks_time, "{models:?}, {took:?}");
            assert!(!fallback.is_out_of_time(start + SECOND * 20, end));
        }
        let (start, mut fallback) = (Instant::now(), chain(&["a"]));
        asked_from(&mut fallback, start, 40, SECOND * 99, &LlmError::Account("no key".into()));
        assert!(!fallback.is_out_of_time(start + SECOND * 40, start + SECOND * 40));
    }

    #[test]
    fn what_a_later_attempt_may_mend_is_the_reason_that_is_told() {
        let mut fallback = chain(&["a", "b", "c"]);
        let (now, until) = (Instant::now(), Instant::now() + SECOND * 60);
        for error in [LlmError::Account("x".into()), transient(None), LlmError::Permanent("y".into())] {
            fallback.failed(error, now, until);
        }
        assert_eq!(fallback.error(), Some(&transient(None)));
    }

    #[test]
    fn the_longest_text_that_broke_off_is_kept_and_its_calls_are_not() {
        let mut fallback = chain(&["a", "b", "c"]);
        let (now, until) = (Instant::now(), Instant::now() + SECOND * 60);
        for error in [broken("one"), broken("longer"), broken(" \n        ")] {
            fallback.failed(error, now, until);
        }
        assert_eq!(fallback.partial().map(|answer| answer.content), Some("longer".to_owned()));
        fallback.failed(broken("one"), now, until);
        fallback.begin("a");
        assert_eq!(fallback.partial(), None);
    }
}
