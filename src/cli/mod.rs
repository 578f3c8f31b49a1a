//! The command line: one file per command.

mod demo;
mod invoke;
mod models;
pub mod sandbox;
pub mod seed;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    Demo,
    /// Runs a payload file through the handler and prints its answer.
    ///
    /// Variables that are not set are filled in for a try without account, key or network: the published test keys, an
    /// embedded relay, a scripted model, a store that is thrown away.
    Invoke {
        /// A JSON file, such as events/dm.json.
        file: PathBuf,
    },
    /// Lists the models that the present environment can use, and what the others lack. Asks no provider.
    Models,
}

/// What a command says when it fails: one sentence for the person at the terminal.
pub type CliResult = Result<(), Box<dyn std::error::Error>>;

impl Cli {
    /// Runs the command.
    pub async fn run(self) -> ExitCode {
        logging::init(
            &std::env::var("DIDACTYL_LOG").unwrap_or_else(|_| "warn".to_owned()),
            logging::Format::Text,
        );
        let mut out = std::io::stdout();
        let result = match self.command {
            Command::Demo => demo::run(&mut out).await,
            Command::Invoke { file } => invoke::run(&file, &mut out).await,
            Command::Models => models::run(&|name| std::env::var(name).ok(), &mut out),
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
