//! `didactyl publish`: drafts of a soul and of skills become events of the agent, signed with its key.
//!
//! What the relays have is read first, and in full: a version written without knowing the one before it could drop
//! tags, or skills from the adoption list. So one relay that fails ends the command before anything is sent.

mod drafts;
mod known;
mod plan;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nostr::prelude::{Event, Keys, RelayUrl, Timestamp, ToBech32};
use tokio::time::Instant;

use self::drafts::Drafts;
use self::known::Known;
use self::plan::{Plan, Planned};
use super::CliResult;
use crate::config::Config;
use crate::relay::pool::{Limits, Pool};
use crate::relay::{Outgoing, PublishReport, Relays, Target};
use crate::state::AgentState;

/// How long the relays may take for one answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What to publish.
#[derive(Debug, Default, Args)]
pub struct Request {
    /// A file with the soul's text.
    #[arg(long, value_name = "FILE")]
    pub soul: Option<PathBuf>,
    /// A file with a skill; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub skill: Vec<PathBuf>,
    /// Publish; without it, only show what would be published.
    #[arg(long)]
    pub yes: bool,
}

type Failure = Box<dyn std::error::Error>;

/// Publishes what is asked for, or shows it.
///
/// # Errors
/// A sentence for the person at the terminal: what is wrong with environment or drafts, which relay could not be read
/// in full, or which event no relay took.
pub async fn run(request: &Request, vars: &dyn Fn(&str) -> Option<String>, out: &mut dyn Write) -> CliResult {
    let (keys, relays) = Config::keys_and_relays(vars)?;
    let drafts = Drafts::read(request, &keys).map_err(unpublished)?;
    let client = Pool::new(keys.clone(), Limits::default());
    let outcome = publish(&client, &keys, &relays, drafts, request.yes, out).await;
    client.close().await;
    outcome
}

async fn publish(
    client: &Pool,
    keys: &Keys,
    relays: &[RelayUrl],
    drafts: Drafts,
    is_meant: bool,
    out: &mut dyn Write,
) -> CliResult {
    let known = Known::read(client, keys, relays, &drafts).await?;
    let remarks = drafts.remarks.clone();
    let plan = Plan::make(keys, drafts, &known.state, Timestamp::now()).map_err(unpublished)?;
    writeln!(out, "agent   {}", keys.public_key().to_bech32()?)?;
    for target in &known.targets {
        writeln!(out, "relay   {}", target.url)?;
    }
    for planned in plan.drafts.iter().chain(&plan.list) {
        planned.show(out)?;
    }
    for remark in remarks {
        writeln!(out, "\nWarning: {remark}")?;
    }
    if !is_meant {
        writeln!(out, "\nNothing was published. To publish this, run it again with --yes.")?;
        return Ok(());
    }
    send(client, &plan.drafts, &known.targets, out).await?;
    // Last, since it speaks of what must be there.
    send(client, plan.list.as_slice(), &known.targets, out).await
}

fn unpublished(fault: Failure) -> Failure {
    format!("nothing was published; {fault}").into()
}

/// The events that drafts would become, over what `state` knows, and what is remarkable about the drafts; nothing is sent.
///
/// # Errors
/// A sentence that says what is wrong with the drafts.
pub(super) fn drafted(
    request: &Request,
    keys: &Keys,
    state: &AgentState,
    now: Timestamp,
) -> Result<(Vec<Event>, Vec<String>), Failure> {
    let drafts = Drafts::read(request, keys)?;
    let remarks = drafts.remarks.clone();
    let plan = Plan::make(keys, drafts, state, now)?;
    Ok((plan.drafts.into_iter().chain(plan.list).map(|planned| planned.event).collect(), remarks))
}

/// Sends the events and prints what each relay said; an error where no relay took one of them.
async fn send(client: &Pool, events: &[Planned], targets: &[Target], out: &mut dyn Write) -> CliResult {
    let outgoing: Vec<Outgoing> = events
        .iter()
        .map(|planned| Outgoing { event: planned.event.clone(), targets: targets.to_vec() })
        .collect();
    let reports = client.publish(&outgoing, Instant::now() + PATIENCE).await;
    let mut lost = Vec::new();
    for (planned, reports) in events.iter().zip(&reports) {
        writeln!(out, "\n{} {}", planned.name, planned.event.id)?;
        for PublishReport { url, outcome, .. } in reports {
            match outcome {
                Ok(()) => writeln!(out, "  {url} accepted it")?,
                Err(error) => writeln!(out, "  {url} {error}")?,
            }
        }
        if !reports.iter().any(|report| report.outcome.is_ok()) {
            lost.push(planned.name.as_str());
        }
    }
    if lost.is_empty() {
        return Ok(());
    }
    Err(format!("no relay accepted {}; what comes after it was not sent. Run the command again: what a relay has already is sent as it is", lost.join(", ")).into())
}
