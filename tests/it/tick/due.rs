//! The due list, with rows that no run can be taken up by.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use didactyl::app::App;
use didactyl::record::{self, RunRecord, Status, dm_trigger_id, run_id};
use didactyl::store::{Change, Expect, Key, Range, Row, Store, StoreError, Write, keys};
use serde_json::json;

use crate::agent::{TestAgent, dm_id, nip17, nip17_at, outcomes, secret, trigger};
use crate::sea::tick;

#[tokio::test]
async fn runs_that_cannot_be_opened_hide_none_that_are_due_later() {
    let agent = TestAgent::start().await;
    let now = agent.app.clock.now().as_secs();
    // Of a newer binary: it takes them up itself.
    let newer = |n: u64| {
        let run = run_id(&format!("dm:{n}"));
        let value = |text: &str| text.as_bytes().to_vec();
        [
            Write::put(keys::record(&run), Expect::Absent, value(r#"{"format":99}"#), None),
            Write::put(keys::trigger(&run), Expect::Absent, value("sealed otherwise"), None),
            Write::put(keys::due(now - 500 + n, &run), Expect::Absent, value(r#"{"format":99}"#), None),
        ]
    };
    for rows in (0..120).map(newer).collect::<Vec<_>>().chunks(30) {
        agent.app.store.write(&rows.concat()).await.unwrap();
    }
    let stored = trigger(&agent.app, &nip17(&secret(2), "hello"));
    record::store(&agent.app, &stored, now - 1).await.unwrap();

    let answer = tick(&agent.app).await;
    assert_eq!((&answer["due"], outcomes(&answer)), (&json!(1), vec!["replied"]), "{answer}");
    // The others are as they were.
    let rows = agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
    assert_eq!(rows.len(), 120);
}

#[tokio::test]
async fn a_run_whose_trigger_is_gone_ends_with_a_reason() {
    let agent = TestAgent::start().await;
    let dm = nip17(&secret(2), "hello");
    let now = agent.app.clock.now().as_secs();
    let run = record::store(&agent.app, &trigger(&agent.app, &dm), now - 1).await.unwrap().run_id;
    agent.app.store.write(&[Write::delete(keys::trigger(&run), Expect::Anything)]).await.unwrap();

    assert_eq!(outcomes(&tick(&agent.app).await), [""; 0]);
    let record = agent.record(&dm_trigger_id(&dm_id(&dm))).await;
    assert_eq!(
        (record.status, record.reason.as_deref(), record.due_at),
        (Status::Dead, Some("its trigger is gone from the store"), None)
    );
    assert!(agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap().is_empty());
}

/// Another process is faster: its `writes` come between the look at a row and the write that removes it.
struct Faster {
    port: Arc<dyn Store>,
    row: Key,
    writes: Mutex<Vec<Write>>,
}

impl Faster {
    fn install(app: &mut App, row: Key, writes: Vec<Write>) {
        app.store = Arc::new(Self { port: Arc::clone(&app.store), row, writes: Mutex::new(writes) });
    }
}

#[async_trait]
impl Store for Faster {
    async fn read(&self, keys: &[Key]) -> Result<Vec<Option<Row>>, StoreError> {
        self.port.read(keys).await
    }

    async fn list(&self, range: &Range) -> Result<Vec<Row>, StoreError> {
        self.port.list(range).await
    }

    async fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        if writes.iter().any(|write| write.key == self.row && write.change == Change::Delete) {
            let faster = std::mem::take(&mut *self.writes.lock().unwrap());
            assert!(!faster.is_empty(), "the row is removed once");
            self.port.write(&faster).await?;
        }
        self.port.write(writes).await
    }
}

#[tokio::test]
async fn a_stale_row_is_removed_unless_it_is_put_back_meanwhile() {
    for (has_record, is_put_back) in [(true, true), (true, false), (false, true), (false, false)] {
        let agent = TestAgent::start().await;
        let (mut app, now) = (agent.another(), agent.app.clock.now().as_secs());
        let (here, elsewhere) = (now - 1, now + 1000);
        let stored = trigger(&app, &nip17(&secret(2), "hello"));
        let run = run_id(&stored.id);
        let row = keys::due(here, &run);
        let put = |record: &RunRecord| {
            let value = serde_json::to_vec(record).unwrap();
            Write::put(keys::record(&run), Expect::Anything, value, record.expires_at)
        };
        let pointer = |key: Key| Write::put(key, Expect::Anything, br#"{"format":1}"#.to_vec(), None);
        let put_back = if has_record {
            let record = record::store(&app, &stored, here).await.unwrap();
            let moved = RunRecord { due_at: Some(elsewhere), ..record.clone() };
            app.store.write(&[put(&moved), pointer(keys::due(elsewhere, &run))]).await.unwrap();
            let gone = Write::delete(keys::due(elsewhere, &run), Expect::Anything);
            vec![put(&record), pointer(row.clone()), gone]
        } else {
            app.store.write(&[pointer(row.clone())]).await.unwrap();
            record::store_writes(&app, &stored, here).unwrap()
        };
        let nothing = pointer(Key::new("elsewhere", "row"));
        Faster::install(&mut app, row.clone(), if is_put_back { put_back } else { vec![nothing] });
        tick(&app).await;

        let rows = agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
        let keys: Vec<Key> = rows.into_iter().map(|row| row.key).collect();
        let expected = match (is_put_back, has_record) {
            (true, _) => vec![row],
            (false, true) => vec![keys::due(elsewhere, &run)],
            (false, false) => vec![],
        };
        assert_eq!(keys, expected, "has a record: {has_record}");
        assert_eq!(outcomes(&tick(&agent.another()).await).len(), usize::from(is_put_back));
    }
}

#[tokio::test]
async fn a_run_whose_trigger_cannot_be_opened_is_given_up_and_holds_up_no_conversation() {
    let agent = TestAgent::start().await;
    let now = agent.app.clock.now();
    let [first, second] =
        [("first", now - 2), ("second", now - 1)].map(|(text, at)| nip17_at(&secret(2), text, at));
    let run =
        record::store(&agent.app, &trigger(&agent.app, &first), now.as_secs() - 1).await.unwrap().run_id;
    let sealed = agent.app.store.read(&[keys::trigger(&run)]).await.unwrap().remove(0).unwrap();
    let damaged = sealed.value.split_last().unwrap().1.to_vec();
    agent.app.store.write(&[Write::put(sealed.key, Expect::Anything, damaged, None)]).await.unwrap();
    record::store(&agent.app, &trigger(&agent.app, &second), now.as_secs() - 1).await.unwrap();

    assert_eq!(outcomes(&tick(&agent.app).await), ["replied"]);
    let record = agent.record(&dm_trigger_id(&dm_id(&first))).await;
    assert_eq!(
        (record.status, record.reason.as_deref(), record.due_at),
        (Status::Dead, Some("its trigger cannot be read: another key sealed it, or it is damaged"), None)
    );
    assert!(agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap().is_empty());
    agent.ground.check_lines();
}
