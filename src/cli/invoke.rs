//! `didactyl invoke FILE`: one payload through the handler, as Lambda would hand it over.

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::sandbox::{Identity, Sandbox};
use super::{CliResult, MAX_PAYLOAD_BYTES, Overrides, read_text};
use crate::clock::{DEFAULT_BUDGET, Deadline};
use crate::handler;

/// Why the command fails although the handler answered: a script wants to know without reading the answer.
fn fault(answer: &Value) -> Option<&'static str> {
    let results = answer.get("results").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let is = |outcome: &str| results.iter().any(|r| r.get("outcome").is_some_and(|o| o == outcome));
    if answer.get("success") == Some(&Value::Bool(false)) {
        Some("not all of the payload was worked: see the answer")
    } else if is("busy") {
        Some("another process has the run, or died with it: try again after its lease, in about two minutes")
    } else if results.iter().any(|result| result.get("failure").is_some()) {
        Some("the reply only says that there is no answer: see `failure`")
    } else {
        None
    }
}

/// Runs the payload in `file` and prints the handler's answer as JSON.
pub(super) async fn run(file: &Path, overrides: &Overrides, out: &mut dyn Write) -> CliResult {
    let payload = read_text(file, MAX_PAYLOAD_BYTES)?;
    let sandbox = Sandbox::start(&|name| overrides.var(name), Identity::Published).await?;
    if sandbox.is_embedded() {
        sandbox.seed().await?;
    }
    let app = sandbox.app().await?;
    let answer = handler::handle(&app, &payload, Deadline::after(DEFAULT_BUDGET)).await?;
    writeln!(out, "{}", serde_json::to_string_pretty(&answer)?)?;
    fault(&answer).map_or(Ok(()), |fault| Err(fault.into()))
}
