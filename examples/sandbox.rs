//! Runs a command with all that an agent needs on loopback: `cargo run --example sandbox -- cargo lambda watch`.
//!
//! The command finds a relay with the agent's and the admin's events, a scripted model (no language model) and a SQLite
//! file in its variables, beside the published test keys that signed the samples of `events/`. All of it ends with the
//! command.

use std::error::Error;
use std::process::ExitCode;

use didactyl::cli::{sandbox, seed};
use didactyl::llm::scripted::{self, Scripted};
use didactyl::relay::Relays;
use didactyl::relay::pool::{Limits, Pool};
use nostr::prelude::{RelayUrl, Timestamp};
use tokio::process::Command;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    didactyl::install_crypto_provider();
    let mut words = std::env::args_os().skip(1);
    let program = words.next().ok_or("name the command to run")?;
    let (agent, admin) = (sandbox::published_key(1)?, sandbox::published_key(2)?);
    let relay = sandbox::embedded_relay().await?;
    let relay_url = RelayUrl::parse(&relay.url().await.to_string())?;
    let model = Scripted::start(scripted::demo).await?;
    let folder = tempfile::tempdir()?;

    let (client, now) = (Pool::new(admin.clone(), Limits::default()), Timestamp::now());
    let events = [seed::agent_events(&agent, &relay_url, now)?, seed::admin_events(&admin, &relay_url, now)?];
    for event in events.concat() {
        sandbox::publish(&client, &relay_url, event).await?;
    }
    client.close().await;

    let mut command = Command::new(program)
        .args(words)
        .env("DIDACTYL_NSEC", agent.secret_key().to_secret_hex())
        .env("DIDACTYL_ADMIN", admin.public_key().to_hex())
        .env("DIDACTYL_RELAYS", relay_url.as_str())
        .env("DIDACTYL_STORE", format!("sqlite:{}", folder.path().join("agent.sqlite").display()))
        .env("DIDACTYL_LLM", "scripted/demo")
        .env("SCRIPTED_BASE_URL", &model.base_url)
        .env("DIDACTYL_API_TOKEN", sandbox::PUBLISHED_TOKEN)
        .env("DIDACTYL_MAX_AGE", "0")
        .spawn()?;
    let status = command.wait().await?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
