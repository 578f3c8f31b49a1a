//! Where each thing lies in the store: one table per agent.
//!
//! | partition | sort | what |
//! | --- | --- | --- |
//! | `RUN#<run id>` | `RECORD` | the run's record, which is also the trigger's claim |
//! | `RUN#<run id>` | `TRIGGER` | the trigger, sealed |
//! | `RUN#<run id>` | `BEGIN#<part>` | the journal: a part of what the run began with, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#A` | the journal: a model's answer, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#C#<number>` | the journal: a compaction in front of that turn's model call, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#B#<call>` | the journal: that a call began which is not made twice, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#R#<call>` | the journal: one tool's result, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#E#<call>` | the event that a tool publishes, sealed |
//! | `RUN#<run id>` | `TURN#<turn>#S#<number>` | the journal: what a model call cost that gave nothing, sealed |
//! | `RUN#<run id>` | `NOTE#<part>` | one signed part of the word that the answer has to wait, until it is out, sealed |
//! | `RUN#<run id>` | `REPLY#<part>` | one signed part of the reply, sealed |
//! | `RUN#<run id>` | `ANSWER` | the answer of a run that answers nobody, sealed |
//! | `STATE` | `EVENT#<author>#<kind>#<d or id>` | an event that the agent goes by, as published |
//! | `STATE` | `NOTES#<author>` | an admin's newest notes, as published, in one list |
//! | `STATE` | `READ` | when the relays were last asked for those |
//! | `STATE` | `FLAGS` | what an admin ordered for all runs: whether the agent is stopped |
//! | `DM#<peer>` | `<time>#<message id>` | one message of a conversation, sealed |
//! | `DM#<peer>` | `~NEW` | where an admin began the conversation anew |
//! | `DM#<peer>` | `~OUTAGE` | since when its runs wait for a model that is out of order |
//! | `DM#<peer>` | `~READ` | when the relays were asked for older ones |
//! | `DM#<peer>` | `~EVENT#<kind>` | what a guest published of itself: profile and relay lists, as published |
//! | `GUESTS` | `<day>#<peer or ALL>` | how many messages of guests were worked in each hour of that day (UTC) |
//! | `HOOKS` | `COUNT#<day>#<slug>` | how many requests to a webhook were taken in each hour of that day (UTC) |
//! | `HOOKS` | `CLAIM#<mark>#<slug>` | that a request to a webhook was taken, and its run; see [`crate::webhooks`] |
//! | `SKILLS` | `<day>` | how often each skill was fired by events on that day (UTC) |
//! | `LINE#<peer>` | `<time written>#<run id>` | a run of a conversation that waits for its turn; see `record/line.rs` |
//! | `LINE#<peer>` | `#FLOOR` | the run of that conversation that has the floor |
//! | `DUE` | `<time>#<run id>` | a run that somebody must look at again by then; see [`crate::record`] |
//! | `DUE` | `mail#<time>#<run id>` | a run that is over, of which something is to be sent again; see [`crate::outbox`] |
//! | `RUNS` | `<time>#<run id>` | a run, by when its trigger was first seen |
//! | `DEAD` | `<time>#<run id>` | the same of a run that was given up |
//! | `NOTICES` | `<fact>` | something that the admin is told once, sealed |
//! | `SWEEP` | `LEASE` | who sweeps the relays now |
//! | `SWEEP` | `CURSORS` | how far each relay was read |
//! | `SWEEP` | `BATCH` | the events that are being opened |
//! | `SWEEP` | `CRON` | how far the cron schedules are dealt with, and what was missed |
//! | `SWEEP` | `SEEN#<relay>#<six hours>#<part>` | ids that were dealt with, packed |
//! | `CONTEXT` | `<begin>#<run id>` | that there are snapshots of a run's context |
//! | `CONTEXT#<run id>` | `<time>#<name>#<part>` | a part of a snapshot, sealed |
//!
//! Sort keys that carry a d tag or a slug end with it, so whatever it holds it cannot look like another key.

use nostr::prelude::{Event, EventId, Kind, PublicKey, Timestamp};

use super::Key;

/// The partition of a run: its claim, journal and reply.
#[must_use]
pub fn run_partition(run_id: &str) -> String {
    format!("RUN#{run_id}")
}

/// A run's record.
#[must_use]
pub fn record(run_id: &str) -> Key {
    Key::new(run_partition(run_id), "RECORD")
}

/// A run's trigger.
#[must_use]
pub fn trigger(run_id: &str) -> Key {
    Key::new(run_partition(run_id), "TRIGGER")
}

/// A place in a run's journal. Turns count from 1, calls of a turn from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A part of what the run began with, counted from 0.
    Beginning(usize),
    /// The answer to a turn's model call.
    Answer(u32),
    /// A compaction in front of a turn's model call, counted from 0.
    Compaction(u32, usize),
    /// That a call began which is not made twice.
    Begun(u32, usize),
    /// The result of a call.
    Result(u32, usize),
    /// The event that a call publishes.
    Effect(u32, usize),
    /// What a model call of a turn cost that gave nothing to keep, counted from 0.
    Spend(u32, usize),
}

/// A row of a run's journal.
#[must_use]
pub fn journal(run_id: &str, place: Place) -> Key {
    let sort = match place {
        Place::Beginning(part) => format!("{BEGIN_PREFIX}{part:03}"),
        Place::Answer(turn) => format!("TURN#{turn:04}#A"),
        Place::Compaction(turn, index) => format!("TURN#{turn:04}#C#{index:03}"),
        Place::Begun(turn, index) => format!("TURN#{turn:04}#B#{index:03}"),
        Place::Result(turn, index) => format!("TURN#{turn:04}#R#{index:03}"),
        Place::Effect(turn, index) => format!("TURN#{turn:04}#E#{index:03}"),
        Place::Spend(turn, index) => format!("TURN#{turn:04}#S#{index:03}"),
    };
    Key::new(run_partition(run_id), sort)
}

const BEGIN_PREFIX: &str = "BEGIN#";

/// Which place of a journal a row holds; `None` for a row of another kind.
#[must_use]
pub fn journal_place(key: &Key) -> Option<Place> {
    if let Some(part) = key.sort.strip_prefix(BEGIN_PREFIX) {
        return part.parse().ok().map(Place::Beginning);
    }
    let mut parts = key.sort.strip_prefix("TURN#")?.split('#');
    let turn = parts.next()?.parse().ok()?;
    match (parts.next()?, parts.next()) {
        ("A", None) => Some(Place::Answer(turn)),
        ("C", Some(index)) => Some(Place::Compaction(turn, index.parse().ok()?)),
        ("B", Some(index)) => Some(Place::Begun(turn, index.parse().ok()?)),
        ("R", Some(index)) => Some(Place::Result(turn, index.parse().ok()?)),
        ("E", Some(index)) => Some(Place::Effect(turn, index.parse().ok()?)),
        ("S", Some(index)) => Some(Place::Spend(turn, index.parse().ok()?)),
        _ => None,
    }
}

/// Part `part` (counted from 0) of a run's reply.
#[must_use]
pub fn reply(run_id: &str, part: usize) -> Key {
    Key::new(run_partition(run_id), format!("{REPLY_PREFIX}{part:03}"))
}

/// What the sort keys of all parts of a reply begin with.
pub const REPLY_PREFIX: &str = "REPLY#";

/// Part `part` (counted from 0) of the word that a run's answer has to wait.
#[must_use]
pub fn note(run_id: &str, part: usize) -> Key {
    Key::new(run_partition(run_id), format!("{NOTE_PREFIX}{part:03}"))
}

/// What the sort keys of all parts of such a word begin with.
pub const NOTE_PREFIX: &str = "NOTE#";

/// What a run came to that answers nobody.
#[must_use]
pub fn answer(run_id: &str) -> Key {
    Key::new(run_partition(run_id), ANSWER_SORT)
}

/// The sort key of that row.
pub const ANSWER_SORT: &str = "ANSWER";

/// The partition of the events that the agent goes by.
pub const STATE_PARTITION: &str = "STATE";

/// The row of an event that the agent goes by: one per replaceable address, one per event of other kinds.
#[must_use]
pub fn event(event: &Event) -> Key {
    let last = if event.kind.is_addressable() {
        event.tags.identifier().unwrap_or_default()
    } else if event.kind.is_replaceable() {
        String::new()
    } else {
        event.id.to_hex()
    };
    Key::new(
        STATE_PARTITION,
        format!("{EVENT_PREFIX}{}#{:05}#{last}", event.pubkey.to_hex(), event.kind.as_u16()),
    )
}

/// What the sort keys of all such events begin with.
pub const EVENT_PREFIX: &str = "EVENT#";

/// An admin's newest notes: one row, since older ones make way for newer ones.
#[must_use]
pub fn notes(author: &PublicKey) -> Key {
    Key::new(STATE_PARTITION, format!("{NOTES_PREFIX}{}", author.to_hex()))
}

/// What the sort keys of all such lists begin with.
pub const NOTES_PREFIX: &str = "NOTES#";

/// When the relays were last asked for the agent's state.
#[must_use]
pub fn state_read() -> Key {
    Key::new(STATE_PARTITION, "READ")
}

/// What an admin ordered for all runs. It lies beside the state, which each run reads anyway.
#[must_use]
pub fn flags() -> Key {
    Key::new(STATE_PARTITION, "FLAGS")
}

/// The partition of all runs, by when their triggers were first seen.
pub const RUNS_PARTITION: &str = "RUNS";

/// A run there; `at` is Unix seconds.
#[must_use]
pub fn run(at: u64, run_id: &str) -> Key {
    Key::new(RUNS_PARTITION, format!("{at:012}#{run_id}"))
}

/// The partition of the runs that were given up.
pub const DEAD_PARTITION: &str = "DEAD";

/// A run there; `at` is Unix seconds.
#[must_use]
pub fn dead(at: u64, run_id: &str) -> Key {
    Key::new(DEAD_PARTITION, format!("{at:012}#{run_id}"))
}

/// The partition of the runs that are due, the earliest first.
pub const DUE_PARTITION: &str = "DUE";

/// The row by which a run is found again at `at` (Unix seconds).
#[must_use]
pub fn due(at: u64, run_id: &str) -> Key {
    Key::new(DUE_PARTITION, format!("{at:012}#{run_id}"))
}

/// What the rows of held runs begin with: they sort after all that are due at a time, and never hide one of them.
pub const HELD_PREFIX: &str = "held#";

/// The row by which a held run is found again that came at `at` (Unix seconds): the admins' first.
#[must_use]
pub fn held(is_admins: bool, at: u64, run_id: &str) -> Key {
    let whose = if is_admins { "admin" } else { "guest" };
    Key::new(DUE_PARTITION, format!("{HELD_PREFIX}{whose}#{at:012}#{run_id}"))
}

/// The run of such a row.
#[must_use]
pub fn held_run(key: &Key) -> Option<&str> {
    key.sort.strip_prefix(HELD_PREFIX)?.rsplit_once('#').map(|(_, run_id)| run_id)
}

/// What the rows of the outbox begin with: they too hide no run that is due.
pub const MAIL_PREFIX: &str = "mail#";

/// The row by which a run is found again at `at` (Unix seconds) of which something is to be sent once more.
#[must_use]
pub fn mail(at: u64, run_id: &str) -> Key {
    Key::new(DUE_PARTITION, format!("{MAIL_PREFIX}{at:012}#{run_id}"))
}

/// The time and the run of such a row.
#[must_use]
pub fn mail_place(key: &Key) -> Option<(u64, &str)> {
    let (at, run_id) = key.sort.strip_prefix(MAIL_PREFIX)?.split_once('#')?;
    Some((at.parse().ok()?, run_id))
}

/// The time and the run of a row that is due at a time, and of one among all runs or the dead ones.
#[must_use]
pub fn due_place(key: &Key) -> Option<(u64, &str)> {
    let (at, run_id) = key.sort.split_once('#')?;
    Some((at.parse().ok()?, run_id))
}

/// The partition of what the admin is told.
pub const NOTICES_PARTITION: &str = "NOTICES";

/// Something that the admin is told once.
#[must_use]
pub fn notice(fact: &str) -> Key {
    Key::new(NOTICES_PARTITION, fact)
}

/// The partition of what the sweep knows between two ticks.
pub const SWEEP_PARTITION: &str = "SWEEP";

/// Who sweeps the relays now. The row goes when its holder is done, and expires where that dies.
#[must_use]
pub fn sweep_lease() -> Key {
    Key::new(SWEEP_PARTITION, "LEASE")
}

/// How far each relay was read.
#[must_use]
pub fn sweep_cursors() -> Key {
    Key::new(SWEEP_PARTITION, "CURSORS")
}

/// The events that are being opened.
#[must_use]
pub fn sweep_batch() -> Key {
    Key::new(SWEEP_PARTITION, "BATCH")
}

/// How far the cron schedules are dealt with. It lies beside what each tick reads anyway.
#[must_use]
pub fn cron() -> Key {
    Key::new(SWEEP_PARTITION, "CRON")
}

/// A part of the ids that a relay showed and that were dealt with. A relay goes by the first 16 digits of its URL's
/// SHA-256.
#[must_use]
pub fn sweep_seen(relay: &str, (bucket, part): (u64, u32)) -> Key {
    Key::new(SWEEP_PARTITION, format!("{SEEN_PREFIX}{relay}#{bucket:08}#{part:03}"))
}

/// The relay and the part of such a row.
#[must_use]
pub fn seen_place(key: &Key) -> Option<(&str, (u64, u32))> {
    let mut parts = key.sort.strip_prefix(SEEN_PREFIX)?.split('#');
    let place = (parts.next()?, (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?));
    parts.next().is_none().then_some(place)
}

const SEEN_PREFIX: &str = "SEEN#";

/// The partition of a conversation.
#[must_use]
pub fn conversation(peer: &PublicKey) -> String {
    format!("DM#{}", peer.to_hex())
}

/// One message of a conversation. `at` is the earlier of its own time and its arrival, so that a message dated ahead
/// does not stay the last for ever.
#[must_use]
pub fn message(peer: &PublicKey, at: Timestamp, id: &EventId) -> Key {
    Key::new(conversation(peer), format!("{:012}#{}", at.as_secs(), id.to_hex()))
}

/// Where an admin began a conversation anew. Sorts behind every message.
#[must_use]
pub fn conversation_begin(peer: &PublicKey) -> Key {
    Key::new(conversation(peer), BEGIN_SORT)
}

/// The sort key of such a row.
pub const BEGIN_SORT: &str = "~NEW";

/// Since when the runs of a conversation wait for a model that is out of order. Sorts behind every message.
#[must_use]
pub fn outage(peer: &PublicKey) -> Key {
    Key::new(conversation(peer), OUTAGE_SORT)
}

/// The sort key of that row.
pub const OUTAGE_SORT: &str = "~OUTAGE";

/// When the relays were asked for a conversation's older messages. Sorts behind every message.
#[must_use]
pub fn history_read(peer: &PublicKey) -> Key {
    Key::new(conversation(peer), HISTORY_READ_SORT)
}

/// The sort key of that row.
pub const HISTORY_READ_SORT: &str = "~READ";

/// What a guest published of itself, beside its conversation: there it burdens no other run. Sorts behind every message.
#[must_use]
pub fn guest_event(guest: &PublicKey, kind: Kind) -> Key {
    Key::new(conversation(guest), format!("{GUEST_EVENT_PREFIX}{:05}", kind.as_u16()))
}

/// What the sort keys of all such events begin with.
pub const GUEST_EVENT_PREFIX: &str = "~EVENT#";

/// The counter of a day (days since 1970, UTC): of one guest, or of all.
#[must_use]
pub fn guest_counter(day: u64, guest: Option<&PublicKey>) -> Key {
    let whose = guest.map_or_else(|| "ALL".to_owned(), PublicKey::to_hex);
    Key::new("GUESTS", format!("{day:06}#{whose}"))
}

/// The counter of a day (days since 1970, UTC) of a webhook.
#[must_use]
pub fn webhook_counter(day: u64, slug: &str) -> Key {
    Key::new(HOOKS_PARTITION, format!("COUNT#{day:06}#{slug}"))
}

/// What no second request to a webhook may have; `mark` is hex.
#[must_use]
pub fn webhook_claim(slug: &str, mark: &str) -> Key {
    Key::new(HOOKS_PARTITION, format!("CLAIM#{mark}#{slug}"))
}

const HOOKS_PARTITION: &str = "HOOKS";

/// The counter of a day (days since 1970, UTC): how often each skill was fired.
#[must_use]
pub fn skill_runs(day: u64) -> Key {
    Key::new("SKILLS", format!("{day:06}"))
}

/// The partition of the line of a conversation.
#[must_use]
pub fn line_partition(peer: &PublicKey) -> String {
    format!("LINE#{}", peer.to_hex())
}

/// The row of a run that waits in it. `written_at` is when its message says it was written.
#[must_use]
pub fn in_line(peer: &PublicKey, written_at: Timestamp, run_id: &str) -> Key {
    Key::new(line_partition(peer), format!("{:012}#{run_id}", written_at.as_secs()))
}

/// When the message of a run that waits was written, and its run; `None` for another row.
#[must_use]
pub fn line_place(key: &Key) -> Option<(Timestamp, &str)> {
    let (at, run_id) = key.sort.split_once('#')?;
    Some((Timestamp::from(at.parse::<u64>().ok()?), run_id))
}

/// Which run has the floor of a conversation.
#[must_use]
pub fn floor(peer: &PublicKey) -> Key {
    Key::new(line_partition(peer), FLOOR)
}

/// Its sort key: in front of all that wait.
pub const FLOOR: &str = "#FLOOR";

/// The partition that names the runs of whose contexts there are snapshots.
pub const CONTEXT_PARTITION: &str = "CONTEXT";

/// The row of a run there. `begin_ms` is when it began: Unix milliseconds.
#[must_use]
pub fn context_run(begin_ms: u64, run_id: &str) -> Key {
    Key::new(CONTEXT_PARTITION, format!("{begin_ms:014}#{run_id}"))
}

/// When a run of [`context_run`] began, and its id; `None` for another row.
#[must_use]
pub fn context_run_of(key: &Key) -> Option<(u64, &str)> {
    let (begin_ms, run_id) = key.sort.split_once('#')?;
    Some((begin_ms.parse().ok()?, run_id))
}

/// The partition of the snapshots of a run's context.
#[must_use]
pub fn context_partition(run_id: &str) -> String {
    format!("CONTEXT#{run_id}")
}

/// Part `part` (counted from 0) of the snapshot `name`, taken at `at_ms`: Unix milliseconds.
#[must_use]
pub fn context_part(run_id: &str, at_ms: u64, name: &str, part: usize) -> Key {
    Key::new(context_partition(run_id), format!("{at_ms:014}#{name}#{part:03}"))
}

/// When the snapshot of a [`context_part`] was taken, and its name; `None` for another row.
#[must_use]
pub fn context_snapshot_of(key: &Key) -> Option<(u64, &str)> {
    let mut parts = key.sort.split('#');
    Some((parts.next()?.parse().ok()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_journal_is_read_back_from_its_key() {
        for place in [
            Place::Beginning(7),
            Place::Answer(1),
            Place::Begun(12, 0),
            Place::Result(12, 0),
            Place::Effect(9999, 127),
            Place::Spend(2, 3),
        ] {
            assert_eq!(journal_place(&journal("r", place)), Some(place));
        }
        assert_eq!(journal_place(&record("r")), None);
        assert_eq!((journal_place(&reply("r", 0)), journal_place(&note("r", 0))), (None, None));
    }

    #[test]
    fn the_line_sorts_by_the_time_written_behind_the_floor() {
        let peer = PublicKey::from_slice(&[7; 32]).unwrap();
        let at = |secs: u64| in_line(&peer, Timestamp::from(secs), "r");
        assert_eq!(line_place(&at(1_803_902_400)), Some((Timestamp::from(1_803_902_400), "r")));
        assert!(floor(&peer) < at(0) && at(999_999_999) < at(1_803_902_400));
        assert_eq!(line_place(&floor(&peer)), None);
    }

    #[test]
    fn due_runs_sort_by_their_time_and_are_read_back_as_are_seen_parts() {
        assert_eq!(due_place(&due(1_803_902_400, "r")), Some((1_803_902_400, "r")));
        assert!(due(999_999_999, "z") < due(1_803_902_400, "a"));
        assert_eq!(held_run(&held(true, 1_803_902_400, "r")), Some("r"));
        assert_eq!((due_place(&held(false, 1, "r")), held_run(&due(1, "r"))), (None, None));
        assert_eq!(mail_place(&mail(1_803_902_400, "r")), Some((1_803_902_400, "r")));
        assert_eq!(
            (due_place(&mail(1, "r")), held_run(&mail(1, "r")), mail_place(&due(1, "r"))),
            (None, None, None)
        );
        assert!(held(false, u64::MAX, "z") < mail(1, "a"));
        assert!(due(u64::MAX, "z") < held(true, 2, "a") && held(true, 2, "a") < held(false, 1, "a"));
        assert_eq!(seen_place(&sweep_seen("ab", (83_514, 2))), Some(("ab", (83_514, 2))));
        assert_eq!(seen_place(&sweep_cursors()), None);
    }
}
