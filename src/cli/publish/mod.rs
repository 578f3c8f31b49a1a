//! `didactyl publish`: drafts of a soul and of skills become events of the agent, signed with its key.
//!
//! What the relays have is read first, and in full: a version written without knowing the one before it could drop
//! tags, or skills from the adoption list. So one relay that fails ends the command before anything is sent.

mod known;
mod plan;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nostr::prelude::{Event, Keys, RelayUrl, Timestamp, ToBech32};
use tokio::time::Instant;

use self::known::Known;
use self::plan::{Plan, Planned};
use super::CliResult;
use crate::config::Config;
use crate::context;
use crate::relay::pool::{Limits, Pool};
use crate::relay::{Outgoing, PublishReport, Relays, Target};
use crate::skill::{self, Definition, draft};
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
    let drafts = Drafts::read(request, &keys)?;
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
    let plan = Plan::make(keys, drafts, &known.state, Timestamp::now())?;
    writeln!(out, "agent   {}", keys.public_key().to_bech32()?)?;
    for target in &known.targets {
        writeln!(out, "relay   {}", target.url)?;
    }
    for planned in plan.drafts.iter().chain(&plan.list) {
        planned.show(out)?;
    }
    if !is_meant {
        writeln!(out, "\nNothing was published. To publish this, run it again with --yes.")?;
        return Ok(());
    }
    send(client, &plan.drafts, &known.targets, out).await?;
    // Last, since it speaks of what must be there.
    send(client, plan.list.as_slice(), &known.targets, out).await
}

/// The events that drafts would become, over what `state` knows; nothing is sent.
///
/// # Errors
/// A sentence that says what is wrong with the drafts.
pub(super) fn drafted(
    request: &Request,
    keys: &Keys,
    state: &AgentState,
    now: Timestamp,
) -> Result<Vec<Event>, Failure> {
    let plan = Plan::make(keys, Drafts::read(request, keys)?, state, now)?;
    Ok(plan.drafts.into_iter().chain(plan.list).map(|planned| planned.event).collect())
}

/// The drafts, read and without fault.
struct Drafts {
    soul: Option<String>,
    skills: Vec<Definition>,
}

impl Drafts {
    fn read(request: &Request, keys: &Keys) -> Result<Self, Failure> {
        let mut faults = Vec::new();
        let mut drafts = Self { soul: None, skills: Vec::new() };
        if let Some(file) = &request.soul {
            let read = text(file, keys).and_then(|text| Ok(draft::soul(file, &text)?.to_owned()));
            match read {
                Ok(soul) => {
                    let warnings = context::soul_warnings(&soul);
                    faults
                        .extend(warnings.into_iter().map(|warning| format!("{}: {warning}", file.display())));
                    drafts.soul = Some(soul);
                }
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        for file in &request.skill {
            let mut warnings = Vec::new();
            let read = text(file, keys).and_then(|text| Ok(draft::skill(file, &text, keys, &mut warnings)?));
            faults.extend(warnings.into_iter().map(|warning| format!("{}: {warning}", file.display())));
            match read {
                Ok(skill) if drafts.skills.iter().any(|other| other.d == skill.d) => faults.push(format!(
                    "{}: another draft has the d tag {} too; give one of them another",
                    file.display(),
                    skill::name(&skill.d)
                )),
                Ok(skill) => drafts.skills.push(skill),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        if !faults.is_empty() {
            return Err(format!("nothing was published; correct the drafts:\n{}", faults.join("\n")).into());
        }
        if drafts.soul.is_none() && drafts.skills.is_empty() {
            return Err("there is nothing to publish: name a draft with --soul or --skill".into());
        }
        Ok(drafts)
    }
}

/// The file's text, which must not hold the agent's key: the model reads souls and skills, and so do strangers.
fn text(file: &Path, keys: &Keys) -> Result<String, Failure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("{}: cannot be read as a text: {error}", file.display()))?;
    let secrets = [keys.secret_key().to_secret_hex(), keys.secret_key().to_bech32()?];
    if secrets.iter().any(|secret| text.contains(secret)) {
        return Err(format!("{}: holds the agent's secret key; take it out", file.display()).into());
    }
    Ok(text)
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
