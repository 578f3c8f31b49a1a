//! The command line.

use std::process::ExitCode;

use clap::Parser;
use didactyl::cli::Cli;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    didactyl::install_crypto_provider();
    Cli::parse().run().await
}
