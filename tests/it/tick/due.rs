//! The due list, with rows that no run can be taken up by.

use didactyl::record::{self, Status, dm_trigger_id, run_id};
use didactyl::store::{Expect, Range, Write, keys};
use serde_json::json;

use crate::agent::{TestAgent, dm_id, nip17, outcomes, secret, trigger};
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
