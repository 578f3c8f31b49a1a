//! Cron, as a tick deals with it: what is due is stored, and how far the schedules are dealt with goes into the same write.
//! So an instant has its run or is still to come, whatever dies, and of two ticks at once one finds the book turned already.
//! What is due is decided in [`crate::trigger::cron::due`].

use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::commands::Flags;
use crate::error::Error;
use crate::record::{self, FORMAT, read_clear, to_json};
use crate::state::AgentState;
use crate::store::{Expect, Row, StoreError, Write, keys};
use crate::trigger::Trigger;
use crate::trigger::cron::due::{self, Book, Due, MAX_SCHEDULES, Missed};

/// The most instants that are stored in one write: each is a run with its rows.
const AT_ONCE: usize = 20;

/// The most writes of one tick. What is still due then is due at the next one.
const MAX_WRITES: usize = 10;

/// The book as stored, clear: expressions are public, as the tags of skills are.
#[derive(Serialize, Deserialize)]
struct Stand {
    format: u32,
    #[serde(flatten)]
    book: Book,
}

/// The book, and what its row must be for the next write.
struct Page {
    book: Book,
    expect: Expect,
}

/// Stores what is due as runs that are to be begun now; if nobody does, they are due at `due_at` (Unix seconds). `book` is
/// the row of [`keys::cron`]. While the agent is stopped nothing is due, and what was due then is judged by its age afterwards; in
/// standby it is another instance's.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable; [`Error::Newer`] where the row is a newer binary's.
pub(crate) async fn begin(
    app: &App,
    book: Option<&Row>,
    (state, flags): (&AgentState, &Flags),
    due_at: u64,
) -> Result<Vec<Trigger>, Error> {
    let mut page = Page::read(book)?;
    let mut begun = Vec::new();
    if app.config.standby {
        page.turn(app, page.book.closed(), &mut begun, due_at).await?;
        return Ok(begun);
    }
    if flags.stopped_at().is_some() {
        return Ok(begun);
    }
    let mut schedules = due::schedules(&state.skills, app.agent());
    if schedules.len() > MAX_SCHEDULES {
        tracing::warn!(schedules = schedules.len(), "only the first {MAX_SCHEDULES} schedules are heeded");
        schedules.truncate(MAX_SCHEDULES);
    }
    for _ in 0..MAX_WRITES {
        let now = app.clock.now();
        let (book, due) = page.book.advance(&schedules, now, app.config.cron_grace, AT_ONCE);
        let mut triggers: Vec<Trigger> = due.iter().map(|due| trigger(app, due)).collect();
        let is_turned = page.turn(app, book, &mut triggers, due_at).await?;
        begun.append(&mut triggers);
        if !is_turned || due.len() < AT_ONCE {
            break;
        }
    }
    Ok(begun)
}

/// What was missed, the newest at the end.
///
/// # Errors
/// As [`begin`].
pub(crate) async fn missed(app: &App) -> Result<Vec<Missed>, Error> {
    let rows = app.store.read(&[keys::cron()]).await?;
    Ok(Page::read(rows.first().and_then(Option::as_ref))?.book.missed)
}

fn trigger(app: &App, due: &Due) -> Trigger {
    if due.is_shifted {
        tracing::info!(
            schedule = %due.schedule, at = due.at.as_secs(),
            "a run is shifted: the clock was set forward, and the time that it is for does not exist on this day"
        );
    }
    Trigger::cron(&due.schedule, due.at, app.admin(), app.clock.now())
}

impl Page {
    fn read(row: Option<&Row>) -> Result<Self, Error> {
        let book = row.map(read_clear::<Stand>).transpose()?.map(|stand| stand.book);
        let expect = row.map_or(Expect::Absent, |row| Expect::Version(row.version));
        Ok(Self { book: book.unwrap_or_default(), expect })
    }

    /// Writes what `book` is now, with the runs of `triggers`; an instant that has its run already is taken out of these.
    /// False where nothing changes, and where another tick was faster: then what is due is its affair.
    async fn turn(
        &mut self,
        app: &App,
        book: Book,
        triggers: &mut Vec<Trigger>,
        due_at: u64,
    ) -> Result<bool, Error> {
        if book == self.book {
            return Ok(false);
        }
        let stand = Stand { format: FORMAT, book };
        let turned = Write::put(keys::cron(), self.expect, to_json(&stand)?, None);
        loop {
            let mut writes = vec![turned.clone()];
            for trigger in triggers.iter() {
                writes.extend(record::store_writes(app, trigger, due_at)?);
            }
            let key = match app.store.write(&writes).await {
                Ok(()) => break,
                Err(StoreError::Conflict { key, .. }) => key,
                Err(error) => return Err(error.into()),
            };
            let known = |trigger: &Trigger| keys::record(&record::run_id(&trigger.id)) == key;
            let Some(known) = triggers.iter().position(known) else {
                triggers.clear();
                return Ok(false);
            };
            triggers.remove(known);
        }
        (self.book, self.expect) = (stand.book, Expect::Version(self.expect.written()));
        Ok(true)
    }
}
