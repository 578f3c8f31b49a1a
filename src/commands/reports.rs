//! `/status`, `/runs`, `/help`: what the admin is shown.

use nostr::prelude::Timestamp;

use super::{Effect, Flags, Order};
use crate::cron;
use crate::error::Error;
use crate::notices::{self, fact};
use crate::record::{self, RunRecord, Status};
use crate::sweep::ledger::{self, RelayNotes};
use crate::tools::time::iso;
use crate::trigger::cron::due::{MAX_COUNTED, Missed};

/// All commands.
pub(super) const LIST: &str = "\
/stop: I ask no model and call no tool until /start; what comes waits
/start: I go on
/status: how I am
/runs: the last ten runs
/cancel: ends what is in work or waits of this conversation; /cancel ID ends that run
/new: a new conversation; what was said before is hidden from me
/refresh: I read my soul, my skills and the lists anew
/help: this list";

/// The most runs that `/runs` shows,
const MAX_RUNS: usize = 10;

/// and the most that are looked at for them: commands are runs too, and not shown.
const MAX_LOOKED_AT: usize = 50;

/// The most dead letters, relays and missed runs that `/status` names.
const MAX_NAMED: usize = 10;

/// The most dead letters that are counted.
const MAX_DEAD: usize = 100;

/// How many runs there are of each sort that are not over.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) in_work: usize,
    pub(super) waiting: usize,
    sending: usize,
}

impl Order<'_> {
    /// Counts the runs that are not over, without commands.
    pub(super) async fn counts(&self) -> Result<Counts, Error> {
        let now_ms = self.app.clock.now_ms();
        let runs = record::unfinished(self.app).await?;
        let records = runs.iter().map(|run| &run.record).filter(|record| record.command.is_none());
        let mut counts = Counts::default();
        for record in records {
            let of_sort = match record.status {
                Status::Replying => &mut counts.sending,
                _ if record.lease_until_ms > now_ms => &mut counts.in_work,
                _ => &mut counts.waiting,
            };
            *of_sort = of_sort.saturating_add(1);
        }
        Ok(counts)
    }

    pub(super) async fn status(&self) -> Result<Effect, Error> {
        let app = self.app;
        let (flags, counts, dead, relays, missed, other) = tokio::try_join!(
            Flags::read(app),
            self.counts(),
            record::dead(app, MAX_DEAD),
            ledger::relays(app),
            cron::missed(app),
            notices::known(app, fact::OTHER_INSTANCE),
        )?;
        let state = match flags.stopped_at() {
            Some(at) => format!("stopped since {}; /start lets me go on", iso(at)),
            None => "running".to_owned(),
        };
        let standby = if app.config.standby { "yes" } else { "no" };
        let mut lines = vec![
            format!("didactyl {}: {state}", env!("CARGO_PKG_VERSION")),
            format!("Standby: {standby}"),
            format!(
                "Runs: {} in work, {} waiting, {} sending",
                counts.in_work, counts.waiting, counts.sending
            ),
            format!("Dead letters: {}", dead_letters(&dead)),
            format!("Missed cron runs: {}", missed_runs(&missed)),
            format!("Another instance: {}", other.as_deref().unwrap_or("none seen")),
            if relays.is_empty() { "Relays: none was swept yet".to_owned() } else { "Relays:".to_owned() },
        ];
        lines.extend(relays.iter().take(MAX_NAMED).map(|(url, notes)| format!("- {url}: {}", relay(notes))));
        let more = relays.len().saturating_sub(MAX_NAMED);
        lines.extend((more > 0).then(|| format!("- and {more} more")));
        Ok(Effect::told(lines.join("\n")))
    }

    pub(super) async fn runs(&self) -> Result<Effect, Error> {
        let now_ms = self.app.clock.now_ms();
        let runs = record::recent(self.app, MAX_LOOKED_AT).await?;
        let runs = runs.iter().filter(|record| record.command.is_none()).take(MAX_RUNS);
        let lines: Vec<String> = runs.map(|record| line(record, now_ms)).collect();
        Ok(Effect::told(if lines.is_empty() { "No run yet.".to_owned() } else { lines.join("\n") }))
    }
}

/// A number of things, in words.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    match number {
        0 => format!("no {one}"),
        1 => format!("1 {one}"),
        _ => format!("{number} {many}"),
    }
}

fn dead_letters(dead: &[RunRecord]) -> String {
    if dead.is_empty() {
        return "none".to_owned();
    }
    let number = if dead.len() < MAX_DEAD { dead.len().to_string() } else { format!("{MAX_DEAD} or more") };
    let letter = |record: &RunRecord| {
        format!("\n- {}: {}", record.short_id(), record.reason.as_deref().unwrap_or("no reason is known"))
    };
    let letters: String = dead.iter().take(MAX_NAMED).map(letter).collect();
    format!("{number}; `didactyl runs retry ID` runs one again{letters}")
}

fn missed_runs(missed: &[Missed]) -> String {
    if missed.is_empty() {
        return "none".to_owned();
    }
    let told = |missed: &Missed| {
        let Missed { schedule, first, last, count } = missed;
        match count {
            1 => format!("\n- {schedule}: {}", iso(*last)),
            _ => {
                let more = if *count < MAX_COUNTED { "" } else { " or more" };
                format!("\n- {schedule}: {count}{more}, {} to {}", iso(*first), iso(*last))
            }
        }
    };
    let newest: String = missed.iter().rev().take(MAX_NAMED).map(told).collect();
    format!("too old when a tick came, or made up for by a later one{newest}")
}

fn relay(notes: &RelayNotes) -> String {
    let mut told = match notes.cursor.complete_at {
        Some(at) => format!("read in full {}", iso(Timestamp::from(at))),
        None => "never read in full".to_owned(),
    };
    if notes.failures > 0 {
        told.push_str(&format!("; failed {} times in a row", notes.failures));
    }
    if let Some(second) = notes.gap_at {
        told.push_str(&format!("; I may lack messages of {}", iso(Timestamp::from(second))));
    }
    told
}

/// A run in one line: its id, its time, how far it is, and what it took.
pub(crate) fn line(record: &RunRecord, now_ms: u64) -> String {
    let mut told = format!(
        "{} {} {} {}",
        record.short_id(),
        iso(record.arrived_at),
        record.command.as_ref().map_or_else(|| record.trigger_kind().to_owned(), |name| format!("/{name}")),
        record.state(now_ms),
    );
    if let Some(model) = &record.model {
        told.push_str(&format!(", {model}, {}, {}", count_turns(record.turns), usd(record.cost_micro_usd)));
    }
    if record.tries() > 1 {
        told.push_str(&format!(", {} attempts", record.tries()));
    }
    if let Some(reason) = &record.reason {
        told.push_str(&format!(": {reason}"));
    }
    told
}

fn count_turns(turns: u32) -> String {
    if turns == 1 { "1 turn".to_owned() } else { format!("{turns} turns") }
}

/// Micro-dollars as dollars.
pub(crate) fn usd(micro: u64) -> String {
    format!("${}.{:06}", micro / 1_000_000, micro % 1_000_000)
}
