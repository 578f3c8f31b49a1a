//! What the agent tells its admin of its own accord: each fact once, several in one message.
//!
//! ```text
//! a fact ─▶ its row, if there is none ─▶ a tick makes one message of all that is untold ─▶ the way of every run
//! ```
//!
//! The write that stores the message also marks its facts as told, so whichever tick comes first tells them, and from
//! then on the message is a run like any other: signed once, saved, and sent until a relay of the admin's took it. What
//! facts there are says [`fact`]; `instance` is the one that takes some finding out.

pub mod fact;
pub(crate) mod instance;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::fact::Fact;
use crate::app::App;
use crate::error::Error;
use crate::record;
use crate::store::{Expect, Key, Range, Row, Write, keys, write_or_leave};
use crate::trigger::Trigger;

/// How long it is remembered that a fact was told. After that it is worth telling again.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The most facts in one message: each is one of a transaction's writes.
const MAX_FACTS: usize = 20;

/// The longest message, where it tells several facts.
const MAX_MESSAGE_BYTES: usize = 4_000;

/// A fact as stored (sealed).
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    /// What the admin is told.
    text: String,
    /// Whether a message that tells it is stored.
    told: bool,
    /// Whether it is told once for ever.
    once: bool,
}

/// Makes it durable that the admin is to be told a fact, if it is not there already.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub async fn raise(app: &App, fact: &Fact) -> Result<(), Error> {
    let entry = Entry { text: fact.text(), told: false, once: fact.is_told_once() };
    let write = app.put_sealed(keys::notice(&fact.name()), &entry, None)?;
    if write_or_leave(app.store.as_ref(), &[Write { expect: Expect::Absent, ..write }]).await? {
        tracing::info!(fact = %fact.name(), "the admin gets a message about this");
    }
    Ok(())
}

/// What the admin was or is to be told of the fact of this name, while that is remembered.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable.
pub(crate) async fn known(app: &App, name: &str) -> Result<Option<String>, Error> {
    let rows = app.store.read(&[keys::notice(name)]).await?;
    let entry = rows.iter().flatten().next().map(|row| app.open_sealed::<Entry>(row)).transpose()?;
    Ok(entry.map(|entry| entry.text))
}

/// All facts that were ever raised and are remembered: the rows of their partition, as a tick read them.
#[derive(Debug)]
pub(crate) struct Board {
    names: BTreeSet<String>,
    untold: Vec<(Key, u64, Entry)>,
    /// Whether facts were raised since.
    is_behind: bool,
}

impl Board {
    /// What to list for it.
    pub(crate) fn range() -> Range {
        Range::whole(keys::NOTICES_PARTITION)
    }

    /// Reads the rows. One that cannot be read is a fact that was told: whoever wrote it tells it.
    pub(crate) fn read(app: &App, rows: Vec<Row>) -> Self {
        let names = rows.iter().map(|row| row.key.sort.clone()).collect();
        let mut untold = Vec::new();
        for row in rows {
            match app.open_sealed::<Entry>(&row) {
                Ok(entry) if !entry.told => untold.push((row.key, row.version, entry)),
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a stored notice is passed over"),
            }
        }
        Self { names, untold, is_behind: false }
    }

    /// As [`raise`], at no cost where the fact is known.
    ///
    /// # Errors
    /// As [`raise`].
    pub(crate) async fn raise(&mut self, app: &App, fact: &Fact) -> Result<(), Error> {
        if self.names.insert(fact.name()) {
            raise(app, fact).await?;
            self.is_behind = true;
        }
        Ok(())
    }

    /// Stores one message that tells what is untold, to be begun now; if nobody does, it is due at `due_at` (Unix seconds).
    /// `None` where there is nothing to tell, in standby, and where another tick was faster.
    ///
    /// # Errors
    /// [`Error::Transient`] where the store is unavailable.
    pub(crate) async fn tell(self, app: &App, due_at: u64) -> Result<Option<Trigger>, Error> {
        if app.config.standby {
            return Ok(None);
        }
        let board =
            if self.is_behind { Self::read(app, app.store.list(&Self::range()).await?) } else { self };
        let (text, told) = bundle(board.untold);
        if told.is_empty() {
            return Ok(None);
        }
        let now = app.clock.now();
        let trigger = Trigger::notice(text, &app.new_owner()?, app.admin(), now);
        let mut writes = record::store_writes(app, &trigger, due_at)?;
        for (key, version, entry) in told {
            let forget_at = (!entry.once).then(|| (now + REMEMBERED).as_secs());
            let write = app.put_sealed(key, &Entry { told: true, ..entry }, forget_at)?;
            writes.push(Write { expect: Expect::Version(version), ..write });
        }
        // Else they are another tick's, or ours, whose answer was lost: then it is due.
        Ok(write_or_leave(app.store.as_ref(), &writes).await?.then_some(trigger))
    }
}

/// As many facts as one message has room for, and its text.
fn bundle(untold: Vec<(Key, u64, Entry)>) -> (String, Vec<(Key, u64, Entry)>) {
    let (mut text, mut told) = (String::new(), Vec::new());
    for fact in untold.into_iter().take(MAX_FACTS) {
        let words = &fact.2.text;
        if !text.is_empty() && text.len().saturating_add(words.len()) > MAX_MESSAGE_BYTES {
            break;
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(words);
        told.push(fact);
    }
    (text, told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_has_room_for_some_facts_and_for_any_single_one() {
        let facts = |count: usize, bytes: usize| {
            let entry = Entry { text: "x".repeat(bytes), told: false, once: false };
            vec![(keys::notice("fact"), 1, entry); count]
        };
        let sizes = |facts| {
            let (text, told) = bundle(facts);
            (text.len(), told.len())
        };
        assert_eq!(sizes(vec![]), (0, 0));
        assert_eq!(sizes(facts(3, 10)), (3 * 10 + 2 * 2, 3));
        assert_eq!(sizes(facts(30, 10)).1, MAX_FACTS);
        assert_eq!(sizes(facts(2, MAX_MESSAGE_BYTES)), (MAX_MESSAGE_BYTES, 1));
    }
}
