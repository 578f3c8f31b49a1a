//! `didactyl runs`: what became of runs, as their records tell, and a dead letter's second life.

use std::io::Write;

use clap::{Args, Subcommand};
use nostr::prelude::Timestamp;
use serde_json::json;

use super::CliResult;
use crate::app::App;
use crate::commands::{line, usd};
use crate::config::Config;
use crate::dm::printable;
use crate::record::{self, Attempt, Named, RunRecord};
use crate::tools::time::iso;

/// Which runs are shown, and how.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Request {
    #[command(subcommand)]
    action: Option<Action>,
    /// Shows all of this run's record, and the answer where nobody else was told it: its id, or what that begins with.
    id: Option<String>,
    /// How many runs are listed.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    last: u16,
    /// Lists dead letters alone: runs that were given up.
    #[arg(long)]
    dead: bool,
    /// Prints records as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a dead letter due again, with three attempts: the next tick takes it up. What was done is not done again.
    Retry {
        /// The run's id, or what that begins with.
        id: String,
    },
}

/// Carries the request out over the store that `env` names.
pub(super) async fn run(
    request: &Request,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
) -> CliResult {
    let app = &App::new(Config::from_vars(env)?).await?;
    if let Some(Action::Retry { id }) = &request.action {
        let record = record::retry(app, &find(app, id).await?.run_id).await?;
        writeln!(out, "{} is due again: the next tick takes it up", record.run_id)?;
        return Ok(());
    }
    if let Some(id) = &request.id {
        let record = find(app, id).await?;
        if request.json {
            return print_json(&json!(record), out);
        }
        print(&record, app, out)?;
        if let Some(answer) = record::kept_answer(app, &record.run_id).await? {
            writeln!(out, "answer\n\n{}", printable(&answer))?;
        }
        return Ok(());
    }
    let last = usize::from(request.last);
    let records = if request.dead { record::dead(app, last).await } else { record::recent(app, last).await }?;
    if request.json {
        return print_json(&json!(records), out);
    }
    if records.is_empty() {
        writeln!(out, "no runs")?;
    }
    for record in &records {
        writeln!(out, "{}", line(record, app.clock.now_ms()))?;
    }
    Ok(())
}

async fn find(app: &App, id: &str) -> Result<RunRecord, Box<dyn std::error::Error>> {
    match record::named(app, id).await? {
        Named::One(record) => Ok(*record),
        Named::Several => Err("several runs' ids begin so: give more of it".into()),
        Named::Nothing => {
            Err("no run's id begins so: `didactyl runs` lists the last ones; give 4 digits at least".into())
        }
    }
}

fn print_json(value: &serde_json::Value, out: &mut dyn Write) -> CliResult {
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}

/// All that a record tells.
fn print(record: &RunRecord, app: &App, out: &mut dyn Write) -> CliResult {
    let mut say = |name: &str, value: String| writeln!(out, "{name:<10} {value}");
    let tainted = if record.tainted { ", tainted" } else { "" };
    say("run", record.run_id.clone())?;
    say("trigger", record.trigger_id.clone())?;
    if let Some(command) = &record.command {
        say("command", format!("/{command}"))?;
    }
    say("tier", format!("{}{tainted}", record.tier.as_str()))?;
    say("arrived", iso(record.arrived_at))?;
    say("state", record.state(app.clock.now_ms()).to_owned())?;
    if let Some(reason) = &record.reason {
        say("reason", reason.clone())?;
    }
    say("attempts", format!("{}, begun {} times", record.tries(), record.attempt))?;
    if record.continuations > 0 {
        say("suspended", format!("{} times", record.continuations))?;
    }
    if let Some(outage) = &record.outage {
        let time = |ms: u64| iso(Timestamp::from(ms / 1000));
        let until = outage.until_ms.map_or("now".to_owned(), time);
        say("no model", format!("from {} until {until}", time(outage.since_ms)))?;
    }
    for (skill, event) in &record.skills {
        say("skill", format!("{skill} {event}"))?;
    }
    if let Some(model) = &record.model {
        say("model", model.clone())?;
        say("turns", record.turns.to_string())?;
        say("tokens", tokens(&record.usage))?;
        say("cost", usd(record.cost_micro_usd))?;
    }
    for attempt in &record.attempts {
        say("asked", asked(attempt))?;
    }
    if !record.tool_calls.is_empty() {
        say("tools", record.tool_calls.join(", "))?;
    }
    for (turn, tool) in &record.unknown_calls {
        say("unknown", format!("turn {turn}: whether {tool} took effect"))?;
    }
    for id in &record.reply_ids {
        say("reply", id.to_string())?;
    }
    for delivery in &record.deliveries {
        let said = delivery.refused.as_ref().map_or("accepted".to_owned(), |why| format!("refused: {why}"));
        say("relay", format!("{} {} {said}", delivery.relay, delivery.event))?;
    }
    if !record.steps_ms.is_empty() {
        let steps = record.steps_ms.iter().map(|(step, took)| format!("{step} {took} ms"));
        say("steps", steps.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn tokens(usage: &crate::chat::Usage) -> String {
    let told = |tokens: Option<u64>| tokens.map_or("unknown".to_owned(), |tokens| tokens.to_string());
    format!("{} in, {} out", told(usage.input_tokens), told(usage.output_tokens))
}

fn asked(attempt: &Attempt) -> String {
    let purpose = if attempt.for_summary { ", a summary" } else { "" };
    let failure = attempt.failure.as_ref().map_or("answered".to_owned(), |why| format!("failed: {why}"));
    let took = attempt.took_ms.map_or("from the journal".to_owned(), |took| format!("{took} ms"));
    let cost = usd(attempt.cost_micro_usd);
    format!(
        "turn {}{purpose}: {} {failure}; {}, {cost}, {took}",
        attempt.turn,
        attempt.model,
        tokens(&attempt.usage)
    )
}
