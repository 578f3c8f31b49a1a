//! What an admin orders by DM: obeyed before any model is asked, and answered by the way of every run.
//!
//! ```text
//! claim ─▶ what it does, with its signed answer, in one write ─▶ publish ─▶ record
//! ```
//!
//! A command takes effect exactly when its answer is saved. So one that is delivered again, or whose process died, does
//! nothing twice, and none that was answered is obeyed anew. What there is: `docs/COMMANDS.md`.

mod cancel;
pub(crate) mod flags;
mod orders;
mod parse;
mod reports;

pub(crate) use self::flags::Flags;
pub(crate) use self::orders::Begin;
pub use self::parse::Command;
#[cfg(feature = "local")]
pub(crate) use self::reports::{line, usd};
use nostr::prelude::PublicKey;

use crate::app::App;
use crate::dm::ReplyPart;
use crate::error::Error;
use crate::letter::Letter;
use crate::publish;
use crate::record::{Claim, line};
use crate::store::Write;
use crate::trigger::{Dm, Source, Tier, Trigger};

/// How often a command is decided anew where others write at the same time.
const ROUNDS: usize = 20;

/// What a command does.
#[derive(Debug)]
struct Effect {
    /// What the admin is told.
    text: String,
    /// What is written, if nobody changed what that was decided on.
    writes: Vec<Write>,
    /// Of the runs that it ends, the conversations.
    freed: Vec<PublicKey>,
}

impl Effect {
    /// A word, and nothing is done.
    fn told(text: impl Into<String>) -> Self {
        Self::done(text, Vec::new())
    }

    fn done(text: impl Into<String>, writes: Vec<Write>) -> Self {
        Self { text: text.into(), writes, freed: Vec::new() }
    }
}

/// The command that a trigger is, and its message: only an admin's message is one.
pub(crate) fn said<'a>(app: &App, trigger: &'a Trigger) -> Option<(&'a Dm, Command)> {
    let Source::Dm(dm) = &trigger.source else { return None };
    let is_admins = trigger.tier == Tier::Admin && app.config.admins.contains(&dm.peer);
    if !is_admins || dm.fixed_answer.is_some() {
        return None;
    }
    Some((dm, Command::parse(&dm.text)?))
}

/// Whether a run is begun while the agent is stopped: commands are, and so is what asks no model and calls no tool: what
/// the agent tells its admin.
pub(crate) fn passes_a_stop(app: &App, trigger: &Trigger) -> bool {
    matches!(trigger.source, Source::Notice(_)) || said(app, trigger).is_some()
}

/// Does what `command` orders, and saves its answer. Returns the answer.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable or others write all the time; [`Error::TakenOver`] where the run is
/// no longer ours; [`Error::Permanent`] where a row is not to be read.
pub(crate) async fn obey(
    app: &App,
    trigger: &Trigger,
    (dm, command): (&Dm, &Command),
    claim: &mut Claim,
) -> Result<Vec<ReplyPart>, Error> {
    claim.record.reason = None;
    let letter = Letter::answer_to(dm);
    let order = Order { app, trigger, dm, run: claim.record.run_id.clone() };
    for _ in 0..ROUNDS {
        let Effect { text, writes, freed } = order.decide(command).await?;
        let parts = publish::sign(app, &letter, &text, app.clock.now())?;
        if claim.save_answer(app, &letter, &parts, writes).await? {
            tracing::info!(run.id = %order.run, command = command.name(), "a command was obeyed");
            for peer in freed {
                // Where this fails they are due when the run that was ended would have been free.
                if let Err(error) = line::hand_on(app, &peer).await {
                    tracing::warn!(%error, "what waits behind a cancelled run has to wait longer");
                }
            }
            return Ok(parts);
        }
    }
    Err(Error::Transient("what the command is about changes all the time".to_owned()))
}

/// A command's message and run.
struct Order<'a> {
    app: &'a App,
    trigger: &'a Trigger,
    dm: &'a Dm,
    run: String,
}

impl Order<'_> {
    async fn decide(&self, command: &Command) -> Result<Effect, Error> {
        match command {
            Command::Stop => self.stop().await,
            Command::Start => self.start().await,
            Command::Status => self.status().await,
            Command::New => self.begin_anew().await,
            Command::Cancel(id) => self.cancel(id.as_deref()).await,
            Command::Runs => self.runs().await,
            Command::Refresh => self.refresh().await,
            Command::Help => Ok(Effect::told(reports::LIST)),
            Command::NotBuilt => Ok(Effect::told("That command is not built yet.")),
            Command::Surplus(name) => Ok(Effect::told(format!(
                "Nothing was done: /{name} takes {}. Send it alone.",
                if *name == "cancel" { "one id at the most" } else { "no words after it" }
            ))),
            Command::Unknown => {
                Ok(Effect::told(format!("I know no such command. Those that I know:\n\n{}", reports::LIST)))
            }
        }
    }
}
