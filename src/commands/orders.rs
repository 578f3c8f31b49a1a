//! `/stop`, `/start`, `/refresh`, `/new`: what holds for all that comes later.

use nostr::prelude::Timestamp;
use serde::{Deserialize, Serialize};

use super::reports::{Counts, count};
use super::{Effect, Flags, Order};
use crate::error::Error;
use crate::record::{FORMAT, read_clear, to_json};
use crate::store::{Expect, Write, keys};

/// Where an admin began a conversation anew; a clear row.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    format: u32,
    /// What was said up to then is hidden: Unix seconds.
    pub(crate) at: Timestamp,
}

/// Of a `/stop` or `/start` that comes after a later one.
const OVERTAKEN: &str = "Nothing was done: you have written a later /stop or /start.";

impl Order<'_> {
    pub(super) async fn stop(&self) -> Result<Effect, Error> {
        let flags = Flags::read(self.app).await?;
        if flags.is_overtaken(self.dm.created_at) {
            return Ok(Effect::told(OVERTAKEN));
        }
        let Counts { in_work, waiting, .. } = self.counts().await?;
        let since = flags.stopped_at().unwrap_or_else(|| self.app.clock.now());
        let text = format!(
            "Stopped. I ask no model and call no tool until you write /start. {} and {}; what comes meanwhile waits too.",
            count(waiting, "run waits", "runs wait"),
            count(in_work, "run ends its present step", "runs end their present step"),
        );
        Ok(Effect::done(text, vec![flags.stop(Some(since), self.dm.created_at)?]))
    }

    pub(super) async fn start(&self) -> Result<Effect, Error> {
        let flags = Flags::read(self.app).await?;
        if flags.is_overtaken(self.dm.created_at) {
            return Ok(Effect::told(OVERTAKEN));
        }
        let write = flags.stop(None, self.dm.created_at)?;
        let text = match flags.stopped_at() {
            None => "I was not stopped.".to_owned(),
            Some(_) => {
                let waiting = self.counts().await?.waiting;
                format!(
                    "I go on. {}, and what is due begins within a minute.",
                    count(waiting, "run waits", "runs wait")
                )
            }
        };
        Ok(Effect::done(text, vec![write]))
    }

    pub(super) async fn refresh(&self) -> Result<Effect, Error> {
        let flags = Flags::read(self.app).await?;
        let text = "The next sweep, or the next run if that comes first, reads my soul, my skills and the lists anew.";
        Ok(Effect::done(text, vec![flags.refresh(self.app.clock.now())?]))
    }

    pub(super) async fn begin_anew(&self) -> Result<Effect, Error> {
        let key = keys::conversation_begin(&self.dm.peer);
        let rows = self.app.store.read(std::slice::from_ref(&key)).await?;
        let found = rows.iter().flatten().next();
        let before = found.map(read_clear::<Begin>).transpose()?.map(|begin| begin.at);
        let written_at = self.dm.created_at.min(self.trigger.arrived_at);
        let at = before.map_or(written_at, |before| before.max(written_at));
        let expect = found.map_or(Expect::Absent, |row| Expect::Version(row.version));
        let write = Write::put(key, expect, to_json(&Begin { format: FORMAT, at })?, None);
        let text = "A new conversation. What was said before stays where it is, and I no longer look at it.";
        Ok(Effect::done(text, vec![write]))
    }
}
