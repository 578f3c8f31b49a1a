//! What an admin ordered for all runs: one clear row beside the agent's state, so that every run and every tick, which
//! read that anyway, knows it without asking for more.

use nostr::prelude::Timestamp;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::error::Error;
use crate::record::{FORMAT, read_clear, to_json, unreadable};
use crate::store::{Expect, Row, Write, keys};

/// The row, and what it must be for the next write.
#[derive(Debug, Clone)]
pub(crate) struct Flags {
    row: FlagsRow,
    expect: Expect,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct FlagsRow {
    format: u32,
    /// Since when the agent is stopped, by our clock.
    stopped_at: Option<Timestamp>,
    /// When the last `/stop` or `/start` was written: an older one that comes later changes nothing.
    said_at: Option<Timestamp>,
    /// What was read of the state before this is to be read anew.
    refresh_at: Option<Timestamp>,
}

impl Default for Flags {
    fn default() -> Self {
        let row = FlagsRow { format: FORMAT, stopped_at: None, said_at: None, refresh_at: None };
        Self { row, expect: Expect::Absent }
    }
}

impl Flags {
    /// What the row says. One that cannot be read stops the agent: a newer version may have written that.
    pub(crate) fn of(row: Option<&Row>) -> Self {
        let Some(found) = row else { return Self::default() };
        let row = read_clear(found).unwrap_or_else(|error| {
            tracing::error!(%error, "the agent is stopped, since it is not known whether it may work");
            FlagsRow { format: u32::MAX, stopped_at: Some(Timestamp::from(0)), ..Self::default().row }
        });
        Self { row, expect: Expect::Version(found.version) }
    }

    /// Reads the row.
    ///
    /// # Errors
    /// [`Error::Transient`] where the store is unavailable.
    pub(crate) async fn read(app: &App) -> Result<Self, Error> {
        let rows = app.store.read(&[keys::flags()]).await?;
        Ok(Self::of(rows.first().and_then(Option::as_ref)))
    }

    /// Since when the agent is stopped; `None` while it works.
    pub(crate) fn stopped_at(&self) -> Option<Timestamp> {
        self.row.stopped_at
    }

    /// Whether what was read at that time is to be read anew.
    pub(crate) fn asks_to_refresh(&self, read_at: Timestamp) -> bool {
        self.row.refresh_at.is_some_and(|at| read_at <= at)
    }

    /// Whether a later `/stop` or `/start` than one of `said_at` was obeyed.
    pub(crate) fn is_overtaken(&self, said_at: Timestamp) -> bool {
        self.row.said_at.is_some_and(|last| last > said_at)
    }

    /// The write that stops the agent at a time, or lets it go on; the order was written at `said_at`.
    pub(crate) fn stop(&self, stopped_at: Option<Timestamp>, said_at: Timestamp) -> Result<Write, Error> {
        self.write(FlagsRow { stopped_at, said_at: Some(said_at), ..self.row })
    }

    /// The write by which what was read up to now is to be read anew.
    pub(crate) fn refresh(&self, now: Timestamp) -> Result<Write, Error> {
        self.write(FlagsRow { refresh_at: Some(now), ..self.row })
    }

    fn write(&self, row: FlagsRow) -> Result<Write, Error> {
        if row.format > FORMAT {
            return Err(unreadable(&keys::flags()));
        }
        Ok(Write::put(keys::flags(), self.expect, to_json(&row)?, None))
    }
}

/// Whether a run may take another step; asked wherever something slow lies between two of them.
///
/// # Errors
/// [`Error::Stopped`] where it may not; [`Error::Transient`] where the store is unavailable.
pub(crate) async fn check(app: &App) -> Result<(), Error> {
    match Flags::read(app).await?.stopped_at() {
        Some(_) => Err(Error::Stopped),
        None => Ok(()),
    }
}
