//! The command line: one file per command.

mod bridge;
pub mod context;
mod demo;
mod invoke;
mod models;
mod output;
pub mod publish;
mod runs;
pub mod sandbox;
pub mod seed;
mod serve;
mod signals;
mod triggers;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::output::{Output, read_text};
use crate::config::ContextDebug;
use crate::logging;

/// A sovereign AI agent on Nostr that runs as one stateless Lambda function.
#[derive(Debug, Parser)]
#[command(name = "didactyl", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One whole conversation on this machine: embedded relay, two encrypted DMs, two encrypted replies.
    Demo {
        #[command(flatten)]
        overrides: Overrides,
    },
    /// Runs a payload file through the handler and prints its answer.
    ///
    /// Variables that are not set are filled in for a try without account, key or network: the published test keys, an
    /// embedded relay, a scripted model, a store that is thrown away.
    Invoke {
        /// A JSON file, such as events/dm.json.
        file: PathBuf,
        #[command(flatten)]
        overrides: Overrides,
    },
    /// Prints exactly what the model would be asked, and sends nothing.
    ///
    /// Relays and store are read and never written; what is not configured is filled in as for `invoke`.
    Context(context::Request),
    /// Lists the models that the present environment can use, and what the others lack. Asks no provider.
    Models,
    /// Signs drafts of a soul and of skills with the agent's key and sends them to its relays.
    ///
    /// Needs DIDACTYL_NSEC and DIDACTYL_RELAYS. A soul's draft is its text. A skill's draft is a text whose first lines
    /// may be tags, such as ["trigger","dm","admin"], or an event in JSON. Skills that the adoption list does not name
    /// are appended to it.
    Publish(publish::Request),
    /// Lists the last runs, or shows one, or runs a dead letter again.
    ///
    /// Configured as the function is: what counts is DIDACTYL_STORE. A run's record holds no private text; below it stands
    /// the answer of a run that answered nobody.
    Runs(runs::Request),
    /// Lists what would fire each adopted skill: the next instants of cron, filters, slugs; and why a trigger is off.
    ///
    /// Configured as the function is: what counts is DIDACTYL_STORE. Asks no relay.
    Triggers(triggers::Request),
    /// Runs the whole agent on this machine: a tick every minute, a listener in between, and the HTTP API on loopback.
    ///
    /// Configured as the function is, by DIDACTYL_NSEC and the other variables. Ends at Ctrl-C.
    Serve(serve::Request),
    /// Holds connections to relays for an agent that does not run, and pushes what is addressed to it. Needs no secret key.
    ///
    /// Pushes to the agent's URL with the token in DIDACTYL_BRIDGE_TOKEN, or to its SQS queue with the credentials of the
    /// usual AWS variables. What it misses, the agent's sweep finds. Ends at Ctrl-C.
    Bridge(bridge::Request),
}

/// What a command that runs the agent takes in the place of variables.
#[derive(Debug, Args)]
struct Overrides {
    /// Writes down what the model is asked, in context.log.md and context.logs/: off, init (what a run begins with) or
    /// full (each turn too). Goes before DIDACTYL_CONTEXT_DEBUG.
    #[arg(long, value_name = "MODE")]
    context_debug: Option<ContextDebug>,
}

impl Overrides {
    /// The variable of this name, as the command line or else the environment says.
    fn var(&self, name: &str) -> Option<String> {
        match (name, self.context_debug) {
            ("DIDACTYL_CONTEXT_DEBUG", Some(mode)) => Some(mode.as_str().to_owned()),
            _ => std::env::var(name).ok(),
        }
    }
}

/// The most bytes of a payload: as many as Lambda takes.
const MAX_PAYLOAD_BYTES: u64 = 6 * 1024 * 1024;

/// What a command says when it fails: one sentence for the person at the terminal.
pub type CliResult = Result<(), Box<dyn std::error::Error>>;

impl Cli {
    /// Runs the command.
    pub async fn run(self) -> ExitCode {
        logging::init(
            &std::env::var("DIDACTYL_LOG").unwrap_or_else(|_| "warn".to_owned()),
            logging::Format::Text,
        );
        let mut out = Output(std::io::stdout());
        let result = match self.command {
            Command::Demo { overrides } => demo::run(&overrides, &mut out).await,
            Command::Context(request) => context::run(&request, &mut out).await,
            Command::Invoke { file, overrides } => invoke::run(&file, &overrides, &mut out).await,
            Command::Models => models::run(&|name| std::env::var(name).ok(), &mut out),
            Command::Publish(request) => {
                publish::run(&request, &|name| std::env::var(name).ok(), &mut out).await
            }
            Command::Runs(request) => runs::run(&request, &|name| std::env::var(name).ok(), &mut out).await,
            Command::Triggers(request) => {
                triggers::run(&request, &|name| std::env::var(name).ok(), &mut out).await
            }
            Command::Serve(request) => serve::run(&request, &mut out).await,
            Command::Bridge(request) => {
                bridge::run(&request, &|name| std::env::var(name).ok(), &mut std::io::stderr()).await
            }
        };
        match result {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                // Nothing is left to tell where standard error is closed too.
                let _ = writeln!(std::io::stderr(), "didactyl: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
