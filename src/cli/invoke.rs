//! `didactyl invoke FILE`: one payload through the handler, as Lambda would hand it over.

use std::io::Write;
use std::path::Path;

use super::CliResult;
use super::sandbox::{Identity, Sandbox};
use crate::clock::{DEFAULT_BUDGET, Deadline};
use crate::handler;

/// Runs the payload in `file` and prints the handler's answer as JSON.
pub(super) async fn run(file: &Path, out: &mut dyn Write) -> CliResult {
    let payload = std::fs::read_to_string(file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let sandbox = Sandbox::start(&|name| std::env::var(name).ok(), Identity::Published).await?;
    if sandbox.admin.is_some() {
        sandbox.seed().await?;
    }
    let app = sandbox.app().await?;
    let answer = handler::handle(&app, &payload, Deadline::after(DEFAULT_BUDGET)).await?;
    writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    Ok(())
}
