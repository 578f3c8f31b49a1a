//! Time: the clock that the agent reads, and how long an invocation may still take.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nostr::prelude::Timestamp;
use tokio::time::Instant;

/// Our clock, in Unix milliseconds. Tests set their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({})", self.now_ms())
    }
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::from_fn(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }

    /// A clock that tells what `now_ms` returns, in Unix milliseconds.
    #[must_use]
    pub fn from_fn(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    /// Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.0)()
    }

    /// Unix seconds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from(self.now_ms() / 1000)
    }
}

/// Reads a time such as `2026-11-30T12:00:00Z`, as schedules write it; parts of a second are passed over.
#[must_use]
pub fn parse_utc(text: &str) -> Option<Timestamp> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.split('.').next()?.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    if !in_range {
        return None;
    }
    // Years are counted from March: so the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(719_468)?;
    Some(Timestamp::from(since_1970 * 86_400 + hour * 3600 + minute * 60 + second))
}

/// Measures one step after another.
#[derive(Debug)]
pub struct Stopwatch {
    last: Instant,
}

impl Stopwatch {
    /// Starts.
    #[must_use]
    pub fn start() -> Self {
        Self { last: Instant::now() }
    }

    /// The whole milliseconds since the start or the last lap.
    pub fn lap_ms(&mut self) -> u64 {
        let now = Instant::now();
        let took = now.saturating_duration_since(std::mem::replace(&mut self.last, now));
        u64::try_from(took.as_millis()).unwrap_or(u64::MAX)
    }
}

/// When an invocation ends, and what must be left of it.
///
/// Work on models, tools and reads ends at [`Deadline::work_until`]; the reserve behind it is for saving, publishing
/// and recording the reply.
#[derive(Debug, Clone, Copy)]
pub struct Deadline {
    end: Instant,
    reserve: Duration,
    step: Duration,
}

/// The budget where the host names none that can be true: a local emulator sends a constant of 1970.
pub const DEFAULT_BUDGET: Duration = Duration::from_secs(120);

/// The most that is kept back for publishing and recording; of short budgets a quarter.
const RESERVE: Duration = Duration::from_secs(8);

/// With less time left for work no step of a run is begun; of short budgets an eighth counts. Few models answer faster, and
/// an answer that is cut off costs money and gives nothing, while the next invocation has all of its time.
const STEP: Duration = Duration::from_secs(5);

/// Longer than any invocation may last (15 minutes on Lambda).
const MAX_BUDGET: Duration = Duration::from_secs(24 * 60 * 60);

/// A deadline this far in the past is no deadline.
const ANCIENT_MS: u64 = 24 * 60 * 60 * 1000;

impl Deadline {
    /// A deadline that lies `budget` from now.
    #[must_use]
    pub fn after(budget: Duration) -> Self {
        let budget = budget.min(MAX_BUDGET);
        Self { end: Instant::now() + budget, reserve: RESERVE.min(budget / 4), step: STEP.min(budget / 8) }
    }

    /// The runtime's deadline in Unix milliseconds; one more than a day in the past means none, and
    /// [`DEFAULT_BUDGET`] is used.
    #[must_use]
    pub fn from_unix_ms(deadline_ms: u64, now_ms: u64) -> Self {
        if now_ms.saturating_sub(deadline_ms) > ANCIENT_MS {
            return Self::after(DEFAULT_BUDGET);
        }
        Self::after(Duration::from_millis(deadline_ms.saturating_sub(now_ms)))
    }

    /// Until when publishing may take: what is left behind it is for the record.
    #[must_use]
    pub fn publish_until(&self) -> Instant {
        self.end.checked_sub(self.reserve / 4).unwrap_or(self.end)
    }

    /// Until when the record may take: what is left behind it is for the host to be told.
    #[must_use]
    pub fn record_until(&self) -> Instant {
        self.end.checked_sub(self.reserve / 16).unwrap_or(self.end)
    }

    /// Whether there is time to ask a model or to run a tool. What there is no time for is another invocation's.
    #[must_use]
    pub fn has_time_for_a_step(&self) -> bool {
        Instant::now() + self.step <= self.work_until()
    }

    /// Until when models, tools and reads may take.
    #[must_use]
    pub fn work_until(&self) -> Instant {
        self.end.checked_sub(self.reserve).unwrap_or(self.end)
    }

    /// The time left, all of it.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// `at_most` from now, but not past [`Deadline::work_until`].
    #[must_use]
    pub fn slice(&self, at_most: Duration) -> Instant {
        (Instant::now() + at_most).min(self.work_until())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_parts_of_an_invocation_end_one_after_another_and_short_budgets_have_short_ones() {
        let parts = |budget_ms| {
            let (start, deadline) = (Instant::now(), Deadline::after(Duration::from_millis(budget_ms)));
            [deadline.work_until(), deadline.publish_until(), deadline.record_until()]
                .map(|until| (until - start).as_millis())
        };
        assert_eq!(parts(900_000), [892_000, 898_000, 899_500]);
        assert_eq!(parts(8_000), [6_000, 7_500, 7_875]);

        let deadline = Deadline::after(Duration::from_secs(30));
        tokio::time::advance(Duration::from_millis(30_000 - 7_500 - 3_750)).await;
        assert!(deadline.has_time_for_a_step());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!deadline.has_time_for_a_step());
    }

    #[test]
    fn a_schedules_time_is_read_as_the_calendar_has_it_and_nothing_else_is_a_time() {
        for (text, unix) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2025-12-31T23:59:59.123Z", 1_767_225_599),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(parse_utc(text), Some(Timestamp::from(unix)), "{text}");
        }
        for text in
            ["", "Z", "2026-11-30", "2026-11-30T12:00:00", "2026-13-30T12:00:00Z", "1969-12-31T00:00:00Z"]
        {
            assert_eq!(parse_utc(text), None, "{text}");
        }
    }
}
