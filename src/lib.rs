//! Didactyl: a sovereign AI agent on Nostr that runs as one stateless Lambda function.
//!
//! An invocation goes one way, whatever its trigger:
//!
//! ```text
//! payload ─▶ inbox ─▶ trigger ─▶ claim + load ─▶ assemble ─▶ run ─▶ publish ─▶ record
//! ```
//!
//! - [`handler`]: START HERE. What each payload is and becomes; [`work`]: the way of every run, one call per step.
//! - [`trigger`]: the payload's shape, and what starts a run; [`inbox`]: which events do; [`dm`]: opening and writing messages.
//! - [`heed`]: who is answered; [`guests`]: how often those who are no admins.
//! - [`record`]: the claim that makes it once, the saved reply, the outcome.
//! - [`load`]: what the agent knows, as [`state`] from [`events`] and [`skill`]s; [`context`]: what the model sees of it.
//! - [`tick`]: what the schedule calls each minute; [`sweep`]: the relays; [`cron`]: the instants that are due.
//! - [`snapshots`]: the same, written down for people.
//! - [`commands`]: what an admin orders by DM.
//! - [`notices`]: what the admin is told without asking; [`standby`]: when nobody is answered.
//! - [`versions`]: new versions of soul, skills and adoption list.
//! - [`run`]: the tool loop; [`letter`]: to whom and how the answer goes; [`publish`]: its way out.
//! - Ports: [`llm`], [`relay`], [`store`], [`tools`], [`queue`].
//! - [`app`], [`environment`], [`config`], [`credentials`], [`aws`], [`clock`], [`logging`], [`error`]: what all share.

pub mod app;
pub mod assemble;
pub mod aws;
pub mod chain;
pub mod chat;
#[cfg(feature = "local")]
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod context;
pub mod credentials;
pub mod cron;
pub mod dm;
pub mod environment;
pub mod error;
pub mod events;
pub mod guests;
pub mod handler;
mod hash;
pub mod heed;
pub mod history;
pub mod http;
mod https;
pub mod inbox;
pub mod kinds;
pub mod letter;
pub mod llm;
pub mod load;
pub mod logging;
pub mod notices;
pub mod outage;
pub mod outbox;
pub mod outcome;
pub mod publish;
pub mod queue;
pub mod record;
pub mod relay;
pub mod run;
pub mod secret;
pub mod skill;
pub mod snapshots;
pub mod sqs;
pub mod standby;
pub mod state;
pub mod store;
pub mod sweep;
pub mod tick;
pub mod tools;
pub mod trigger;
pub mod versions;
mod warnings;
pub mod work;

/// Makes ring the process's TLS provider: the first thing a binary does. A second call changes nothing.
pub fn install_crypto_provider() {
    // Fails only where a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
