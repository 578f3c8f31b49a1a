//! `didactyl context`: what the model would be asked, for a person to read.
//!
//! It goes the way of a run up to the model's door, with the same code, and stops there. Nothing is claimed, kept,
//! published or asked.

mod absent;
mod payload;

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nostr::prelude::EventId;

use super::sandbox::{Identity, Sandbox};
use super::{CliResult, MAX_PAYLOAD_BYTES, publish, read_text};
use crate::app::App;
use crate::assemble::assemble;
use crate::clock::{DEFAULT_BUDGET, Deadline};
use crate::config::StoreChoice;
use crate::context::Context;
use crate::context::parts::parts;
use crate::context::transcript::transcript;
use crate::guests;
use crate::llm::catalogue::Model;
use crate::llm::openai;
use crate::load::{self, Loaded};
use crate::run::{Run, Step};
use crate::state::AgentState;
use crate::trigger::{Dm, Protocol, Source, Tier, Trigger};

/// What the admin says where no file says anything.
const EXAMPLE: &str = "What can you do for me?";

/// Stands for a request's id, which is part of no context.
const NO_ID: &str = "context";

/// What to show.
#[derive(Debug, Default, Args)]
pub struct Request {
    /// What starts the run: any payload that does, such as events/dm.json; or the user message of a cron or chain run
    /// as JSON, such as {"trigger":"cron","schedule":"@daily","scheduled_at":0}. Without it, a DM of the admin.
    #[arg(long, value_name = "FILE")]
    pub event: Option<PathBuf>,
    /// A file with the text of a soul, in the place of the one that the agent has.
    #[arg(long, value_name = "FILE")]
    pub soul: Option<PathBuf>,
    /// A file with a skill, as for `publish`, in the place of one that the agent has or adopted last; may be given several
    /// times.
    #[arg(long, value_name = "FILE")]
    pub skill: Vec<PathBuf>,
    /// How it is shown.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

impl Request {
    fn has_drafts(&self) -> bool {
        self.soul.is_some() || !self.skill.is_empty()
    }
}

/// A way to show a context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Each message as text under the name of its section.
    #[default]
    Md,
    /// The body of the request to the model.
    Json,
    /// Sections, variables, tools and parameters with their sizes and origins, as JSON.
    Parts,
}

type Failure = Box<dyn std::error::Error>;

/// Prints the context.
///
/// # Errors
/// A sentence for the person at the terminal.
pub(super) async fn run(request: &Request, out: &mut dyn Write) -> CliResult {
    let payload = request.event.as_deref().map(|file| read_text(file, MAX_PAYLOAD_BYTES)).transpose()?;
    let mut sandbox = Sandbox::start(&|name| std::env::var(name).ok(), Identity::Onlooker).await?;
    if sandbox.is_embedded() {
        // Drafts stand alone: the example agent's soul and skills would only be in their way.
        if request.has_drafts() { sandbox.seed_profiles().await? } else { sandbox.seed().await? }
    }
    // A store that is not there yet knows nothing, and is not to be there after a look.
    let is_missing = matches!(&sandbox.config.store, StoreChoice::Sqlite(path) if !path.exists());
    if is_missing {
        sandbox.config.store = StoreChoice::Sqlite(":memory:".into());
    }
    // However old a payload is, it has a context.
    sandbox.config.max_age = None;
    let app = sandbox.app().await?;
    let shown = show(&app, payload.as_deref(), request).await;
    app.relays.close().await;
    writeln!(out, "{}", shown?.trim_end())?;
    Ok(())
}

/// The context of the run that `payload` would start, with the request's drafts and in its format, without the secrets of the configuration. Without a payload it is that
/// of an example DM of the admin.
///
/// # Errors
/// A sentence that says why the payload starts no run that a model is asked for, or what could not be read.
pub async fn show(app: &App, payload: Option<&str>, request: &Request) -> Result<String, Failure> {
    let trigger = match payload {
        Some(json) => payload::trigger_of(app, json).await?,
        None => example(app),
    };
    let deadline = Deadline::after(DEFAULT_BUDGET);
    let stored = load::stored(app, &trigger).await?;
    // What the relays told is not kept: a later run reads it again.
    let mut loaded = load::refresh(app, &trigger, stored, deadline.slice(load::SLICE)).await?;
    let remarks = lay_over(app, &mut loaded, request)?;
    let trigger = guests::preview(app, trigger, &loaded.state)
        .map_err(|refusal| format!("the payload starts no run: {refusal}"))?;
    let mut context = assemble(app, &trigger, &loaded, deadline).await;
    // Reading the draft as an event may have told the same.
    let is_told = |remark: &String| context.warnings.iter().any(|warning| remark.ends_with(warning));
    let remarks: Vec<String> = remarks.into_iter().filter(|remark| !is_told(remark)).collect();
    context.warnings.splice(..0, remarks);
    let chain = app.config.providers.chain(&context.model_chain, &app.config.llm);
    let model = app.config.providers.first_usable(&chain);
    let text = match request.format {
        Format::Md => readable(&context, &absent::absent(&loaded.state, &context)),
        Format::Json => body(&context, &model?)?,
        Format::Parts => {
            let model = model.ok().map(|model| model.id());
            serde_json::to_string_pretty(&parts(&context, model.as_deref()))?
        }
    };
    Ok(app.secrets().redact(&text))
}

/// Lays the drafts over the state as if they were published; what is remarkable about them.
fn lay_over(app: &App, loaded: &mut Loaded, request: &Request) -> Result<Vec<String>, Failure> {
    if !request.has_drafts() {
        return Ok(Vec::new());
    }
    let drafts = publish::Request { soul: request.soul.clone(), skill: request.skill.clone(), yes: false };
    let (now, config) = (app.clock.now(), &app.config);
    let (drafted, remarks) = publish::drafted(&drafts, app.keys(), &loaded.state, now)?;
    let events = loaded.state.events.kept().cloned().chain(drafted);
    loaded.state = AgentState::build(app.keys(), &config.admins, config.agent_name.as_deref(), events, now);
    Ok(remarks)
}

fn readable(context: &Context, absent: &[String]) -> String {
    let warnings: String = context.warnings.iter().map(|warning| format!("\nWarning: {warning}")).collect();
    let absent: String = absent.iter().map(|absent| format!("\nNot here: {absent}")).collect();
    format!("{}{warnings}{absent}", transcript(&context.messages, &context.sections))
}

/// The first request of the run, as the machine makes it and the client writes it.
fn body(context: &Context, model: &Model) -> Result<String, Failure> {
    let Context { messages, tools, params, max_turns, .. } = context.clone();
    let run = Run::new(messages, tools, params, model.id(), max_turns);
    match run.next() {
        Step::CallModel(request) => Ok(serde_json::to_string_pretty(&openai::body(&request, model))?),
        _ => Err("this run asks no model".into()),
    }
}

fn example(app: &App) -> Trigger {
    let now = app.clock.now();
    let dm = Dm {
        peer: app.admin(),
        protocol: Protocol::Nip17,
        message_id: EventId::from_byte_array([0; 32]),
        created_at: now,
        text: EXAMPLE.to_owned(),
        fixed_answer: None,
        relay: None,
    };
    Trigger {
        id: format!("dm:{NO_ID}"),
        source: Source::Dm(dm),
        tier: Tier::Admin,
        tainted: false,
        admin: app.admin(),
        arrived_at: now,
    }
}
