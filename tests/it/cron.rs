//! Cron: skills that run at their times, and each time once.

mod croniter;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use didactyl::app::{App, LEASE_MARGIN};
use didactyl::clock::{Clock, Deadline};
use didactyl::handler;
use didactyl::llm::scripted::{Answer, Asked};
use didactyl::record::{self, Status, run_id};
use didactyl::store::{Range, keys};
use didactyl::tools::time::iso;
use didactyl::trigger::cron::Schedule;
use nostr::prelude::Timestamp;
use serde_json::{Value, json};

use crate::agent::{BUDGET, TestAgent, agent_key, echo, hand_over, outcomes, secret};
use crate::faults::{Fault, MemoryQueue, Side};
use crate::ground::{On, on_each_store};
use crate::round_trips::Counter;
use crate::sea::{nip04_at, tick};
use crate::skills::{SkillOf, adopt, agent_with, example, kept, parts_of};

const MINUTE: Duration = Duration::from_secs(60);
const NINE: u64 = 9 * 60 * 60;

on_each_store! {
    an_instant_runs_once_however_many_ticks_there_are,
    an_instant_runs_once_whatever_call_the_process_dies_at,
    of_ticks_at_once_one_stores_what_is_due,
    a_tick_costs_no_call_more_while_nothing_is_due,
}

/// A clock that stands still until it is set: at midnight, two days ahead of the machine's at first.
#[derive(Clone)]
struct Still(Arc<AtomicU64>);

impl Still {
    fn new() -> Self {
        let day = 24 * 60 * 60;
        Self(Arc::new(AtomicU64::new((Timestamp::now().as_secs() / day + 2) * day)))
    }

    fn clock(&self) -> Clock {
        let now = Arc::clone(&self.0);
        Clock::from_fn(move || now.load(Ordering::SeqCst) * 1000)
    }

    fn forward(&self, by: Duration) -> Timestamp {
        Timestamp::from(self.0.fetch_add(by.as_secs(), Ordering::SeqCst) + by.as_secs())
    }
}

/// An agent with these skills, which knows them and has their schedules in its book.
struct Begun {
    agent: TestAgent,
    time: Still,
    midnight: Timestamp,
}

impl Begun {
    async fn with(
        on: On,
        skills: &[SkillOf<'_>],
        script: impl Fn(&Asked) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let agent = agent_with(on, skills, script).await;
        let time = Still::new();
        let begun = Self { agent, midnight: time.clock().now(), time };
        // The first tick reads the relay, the second one meets the schedules.
        for _ in 0..2 {
            assert_eq!(begun.tick().await["cron"], json!(0));
        }
        begun
    }

    /// The agent in another process.
    fn app(&self) -> App {
        let mut app = self.agent.another_over(self.agent.ground.open(self.time.clock()));
        app.clock = self.time.clock();
        app
    }

    async fn tick(&self) -> Value {
        tick(&self.app()).await
    }

    /// Sets the clock so far behind the first midnight.
    fn set(&self, secs: u64) {
        self.time.0.store(self.midnight.as_secs() + secs, Ordering::SeqCst);
    }

    /// The run of this schedule at so many seconds behind the first midnight.
    fn run(&self, schedule: &str, secs: u64) -> String {
        run_id(&format!("cron:{schedule}@{}", (self.midnight.as_secs() + secs) / 60))
    }

    /// All runs there are.
    async fn runs(&self) -> Vec<record::RunRecord> {
        record::recent(&self.agent.app, 1000).await.unwrap()
    }

    /// The ids of the triggers of all runs, in the order of their bytes.
    async fn trigger_ids(&self) -> Vec<String> {
        let mut ids: Vec<String> = self.runs().await.into_iter().map(|run| run.trigger_id).collect();
        ids.sort();
        ids
    }
}

const BRIEF: SkillOf = ("brief", &[&["trigger", "cron", "0 9 * * *"]], "Write a briefing.");

async fn an_instant_runs_once_however_many_ticks_there_are(on: On) {
    let begun = Begun::with(on, &[BRIEF], |_| Answer::Text("All is well.".to_owned())).await;
    begun.set(NINE - 1);
    assert_eq!(begun.tick().await["cron"], json!(0));
    begun.set(NINE + 3);
    let answer = begun.tick().await;
    assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(1), vec!["done"]), "{answer}");
    // The same minute again, later ones, and one that comes late.
    let late = iso(begun.midnight + NINE);
    let late = json!({"source": "aws.scheduler", "detail-type": "Scheduled Event", "time": late}).to_string();
    for secs in [3, 20, 25 * 60, 25 * 60] {
        begun.set(NINE + secs);
        for answer in [begun.tick().await, hand_over(&begun.app(), &late).await] {
            assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(0), vec![]), "{answer}");
        }
    }
    let run = begun.run("0 9 * * *", NINE);
    assert_eq!(kept(&begun.agent, &run).await.as_deref(), Some("All is well."));
    assert_eq!((begun.agent.model.calls(), begun.runs().await.len()), (1, 1));
}

async fn an_instant_runs_once_whatever_call_the_process_dies_at(on: On) {
    let step = if on == On::Sqlite { 1 } else { 4 };
    for side in [Side::Before, Side::After] {
        let mut at = 1;
        loop {
            let what = format!("{side:?} call {at}");
            let begun = Begun::with(on, &[BRIEF], echo).await;
            begun.set(NINE + 3);
            let fault = Fault::crash(at, side);
            let mut app = begun.app();
            fault.install(&mut app);
            fault.until_crash(tick(&app)).await;
            // Within the grace, and behind every lease.
            for _ in 0..2 {
                begun.time.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
                begun.tick().await;
            }
            let runs = begun.runs().await;
            assert_eq!(runs.len(), 1, "{what}: {runs:?}");
            assert_eq!(runs[0].run_id, begun.run("0 9 * * *", NINE), "{what}");
            assert_eq!(runs[0].status, Status::Done, "{what}: {runs:?}");
            if !fault.was_reached() {
                break;
            }
            at += step;
        }
        assert!(at > 10, "{side:?}: the tick ended after {at} calls");
    }
}

async fn of_ticks_at_once_one_stores_what_is_due(on: On) {
    let begun = Begun::with(on, &[BRIEF, ("again", BRIEF.1, "Again.")], echo).await;
    begun.set(NINE + 3);
    let apps: Vec<App> = (0..6).map(|_| begun.app()).collect();
    let answers = futures_util::future::join_all(apps.iter().map(tick)).await;
    let stored: Vec<u64> = answers.iter().map(|answer| answer["cron"].as_u64().unwrap()).collect();
    assert_eq!(stored.iter().sum::<u64>(), 1, "{answers:?}");
    assert_eq!((begun.agent.model.calls(), begun.runs().await.len()), (1, 1));
}

async fn a_tick_costs_no_call_more_while_nothing_is_due(on: On) {
    let begun = Begun::with(on, &[BRIEF], echo).await;
    let count = async |secs| {
        begun.set(secs);
        let (counter, mut app) = (Counter::default(), begun.app());
        counter.install(&mut app);
        tick(&app).await;
        counter.take()
    };
    let idle = count(60).await;
    // The same as without cron: see the tests of the tick.
    assert_eq!((idle.store_rounds, idle.store_calls, idle.rows_written), (2, 6, 4), "{idle:?}");
    let due = count(NINE).await;
    let idle = count(NINE + 60).await;
    assert_eq!((idle.store_rounds, idle.store_calls, idle.rows_written), (2, 6, 4), "{idle:?}");
    assert_eq!(due.model_calls, 1, "{due:?}");
}

#[tokio::test]
async fn skills_of_one_schedule_share_a_run_in_list_order_and_one_without_a_schedule_joins() {
    let skills: [SkillOf; 4] = [
        ("b", &[&["trigger", "cron", "@daily"], &["temperature", "0.2"], &["max_tokens", "100"]], "I am b."),
        ("joins", &[&["trigger", "cron"], &["temperature", "0.7"]], "I join."),
        ("other", &[&["trigger", "cron", "0 1 * * *"]], "I am another."),
        ("a", &[&["trigger", "cron", "0 0 * * *"], &["max_tokens", "200"]], "I am a."),
    ];
    let begun = Begun::with(On::Sqlite, &skills, echo).await;
    begun.set(24 * 60 * 60);
    let answer = begun.tick().await;
    // At one o'clock, missed long ago, the other one would have had a run of its own.
    assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(1), vec!["done"]), "{answer}");
    let asked = begun.agent.model.requests();
    let [asked] = &asked[..] else { panic!("{} requests", asked.len()) };
    let system = asked.last_text("system");
    let places = ["I am b.", "I join.", "I am a."].map(|text| system.find(text).unwrap());
    assert!(places.is_sorted() && !system.contains("another"), "{system}");
    let body = &asked.body;
    assert_eq!((&body["temperature"], &body["max_tokens"]), (&json!(0.7), &json!(200)), "{body}");
    let at = begun.midnight + 24 * 60 * 60;
    let message = json!({"trigger": "cron", "schedule": "0 0 * * *", "scheduled_at": at.as_secs()});
    assert_eq!(asked.last_text("user"), message.to_string());
}

#[tokio::test]
async fn after_an_outage_old_instants_are_missed_and_one_of_many_runs() {
    let times: Vec<String> = (0..13_u64).map(|n| format!("{} {} * * *", 15 * (n % 2), 6 + n / 2)).collect();
    let tags: Vec<[&str; 3]> = times.iter().map(|time| ["trigger", "cron", time]).collect();
    let tags: Vec<[&[&str]; 1]> = tags.iter().map(|tag| [tag.as_slice()]).collect();
    let names: Vec<String> = (0..13).map(|n| format!("daily-{n}")).collect();
    let mut skills: Vec<SkillOf> =
        names.iter().zip(&tags).map(|(d, tag)| (d.as_str(), tag.as_slice(), "Brief.")).collect();
    skills.push(("minute", &[&["trigger", "cron", "* * * * *"]], "Look."));
    let begun = Begun::with(On::Sqlite, &skills, echo).await;
    begun.set(5 * 60 * 60);
    begun.tick().await;
    let evening = 23 * 60 * 60 + 55 * 60;
    begun.set(evening);
    let answer = begun.tick().await;
    assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(1), vec!["done"]), "{answer}");
    let ids = begun.trigger_ids().await;
    let at = |secs: u64| (begun.midnight.as_secs() + secs) / 60;
    let ran = |secs: u64| format!("cron:* * * * *@{}", at(secs));
    assert_eq!(ids, [ran(5 * 60 * 60), ran(evening)]);
    // What was missed is told, and never run.
    let app = begun.app();
    let payload = json!({"type": "relay", "events": [nip04_now(&begun, "/status")]});
    handler::handle(&app, &payload.to_string(), Deadline::after(BUDGET)).await.unwrap();
    let replies = begun.agent.replies().await;
    let told = &replies.last().unwrap().1;
    let day = &iso(begun.midnight)[..10];
    assert!(told.contains(&format!("- 0 12 * * *: {day}T12:00:00Z")), "{told}");
    assert!(
        told.contains(&format!("- * * * * *: 1299 or more, {day}T00:01:00Z to {day}T23:54:00Z")),
        "{told}"
    );
    assert!(
        told.contains(
            "Missed cron runs: too old when a tick came, or made up for by a later one\n- * * * * *: "
        ),
        "{told}"
    );
}

/// A kind 4 message of the admin, of the time that the agent's clock shows.
fn nip04_now(begun: &Begun, text: &str) -> nostr::prelude::Event {
    nip04_at(&secret(2), &agent_key(), text, begun.time.clock().now())
}

#[tokio::test]
async fn many_at_once_are_worked_in_order_and_the_rest_by_later_ticks() {
    let expressions: Vec<String> = (0..30).map(|minute| format!("{minute} 9 * * *")).collect();
    let tags: Vec<[&str; 3]> = expressions.iter().map(|time| ["trigger", "cron", time]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(<[&str; 3]>::as_slice).collect();
    let names: Vec<String> = (0..6).map(|number| format!("skill{number}")).collect();
    let skills: Vec<_> =
        names.iter().zip(tags.chunks(5)).map(|(name, tags)| (name.as_str(), tags, "Brief.")).collect();
    let begun = Begun::with(On::Sqlite, &skills, echo).await;
    // All of the last quarter of an hour, in one tick.
    begun.set(NINE + 15 * 60);
    let answer = begun.tick().await;
    assert_eq!((&answer["cron"], outcomes(&answer).len()), (&json!(16), 16), "{answer}");
    let asked = begun.agent.model.requests();
    let order: Vec<u64> = asked
        .iter()
        .map(|asked| {
            serde_json::from_str::<Value>(asked.last_text("user")).unwrap()["scheduled_at"].as_u64().unwrap()
        })
        .collect();
    assert!(order.len() == 16 && order.is_sorted(), "{order:?}");

    // No time for any of them: all are stored, and none is begun before a tick that has time.
    begun.set(NINE + 29 * 60);
    let deadline = Deadline::after(Duration::from_secs(2));
    let answer = handler::handle(&begun.app(), r#"{"type":"tick"}"#, deadline).await.unwrap();
    assert_eq!((&answer["cron"], begun.agent.model.calls()), (&json!(14), 16), "{answer}");
    begun.time.forward(BUDGET + LEASE_MARGIN + Duration::from_secs(2));
    let answer = begun.tick().await;
    assert_eq!((&answer["due"], &answer["cron"]), (&json!(14), &json!(0)), "{answer}");
    assert_eq!(begun.agent.model.calls(), 30);
    assert!(begun.runs().await.iter().all(|run| run.status == Status::Done));
}

#[tokio::test]
async fn beside_a_queue_each_run_is_a_message_of_its_own() {
    let again: SkillOf = ("again", &[&["trigger", "cron", "1 9 * * *"]], "Again.");
    let begun = Begun::with(On::Sqlite, &[BRIEF, again], echo).await;
    begun.set(NINE + 60);
    let (queue, mut app) = (Arc::new(MemoryQueue::default()), begun.app());
    app.queue = Some(queue.clone());
    let answer = tick(&app).await;
    assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(2), vec!["queued", "queued"]), "{answer}");
    let runs: Vec<String> = queue.taken().into_iter().map(|(run, _)| run).collect();
    assert_eq!(runs, [begun.run("0 9 * * *", NINE), begun.run("1 9 * * *", NINE + 60)]);
    assert_eq!(begun.agent.model.calls(), 0);
}

#[tokio::test]
async fn an_edited_skill_is_not_due_for_its_past() {
    let begun = Begun::with(On::Sqlite, &[BRIEF], echo).await;
    begun.set(NINE + 30);
    begun.tick().await;
    // A minute later it is edited: to a time that was just now, and one that is to come.
    let tags: &[&[&str]] = &[&["trigger", "cron", "1 9 * * *"], &["trigger", "cron", "10 9 * * *"]];
    begun.agent.clock.set(begun.time.forward(2 * MINUTE));
    adopt(&begun.agent, &[("brief", tags, "Write two.")]).await;
    begun.set(NINE + 5 * 60);
    // The relay is read, and then the new schedules are met.
    for _ in 0..3 {
        assert_eq!(begun.tick().await["cron"], json!(0));
    }
    begun.set(NINE + 10 * 60);
    assert_eq!(begun.tick().await["cron"], json!(1));
    let ids = begun.trigger_ids().await;
    let at = (begun.midnight.as_secs() + NINE) / 60;
    assert_eq!(ids, [format!("cron:0 9 * * *@{at}"), format!("cron:10 9 * * *@{}", at + 10)]);
}

#[tokio::test]
async fn in_standby_and_while_it_is_stopped_nothing_is_due() {
    let begun = Begun::with(On::Sqlite, &[BRIEF], echo).await;
    let order = async |text: &str| {
        let payload = json!({"type": "relay", "events": [nip04_now(&begun, text)]});
        handler::handle(&begun.app(), &payload.to_string(), Deadline::after(BUDGET)).await.unwrap()
    };
    begun.set(NINE - 60);
    order("/stop").await;
    begun.set(NINE + 60);
    assert_eq!(begun.tick().await["cron"], json!(0));
    order("/start").await;
    // Still within the grace.
    assert_eq!(begun.tick().await["cron"], json!(1));

    let day = 24 * 60 * 60;
    begun.set(day + NINE + 60);
    let mut standby = begun.app();
    standby.config.standby = true;
    assert_eq!(tick(&standby).await["cron"], json!(0));
    // Another instance had it.
    for _ in 0..2 {
        assert_eq!(begun.tick().await["cron"], json!(0));
    }
    begun.set(2 * day + NINE);
    assert_eq!(begun.tick().await["cron"], json!(1));
}

#[tokio::test]
async fn the_example_of_triggers_md_runs_at_its_time() {
    let (tags, content) = parts_of(example("briefing.md"));
    let expression = tags[0][2];
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    let begun = Begun::with(On::Sqlite, &[("briefing", &tags, content)], echo).await;
    let at = Schedule::parse(expression).unwrap().next_after(begun.midnight).unwrap();
    begun.set(at.as_secs() - begun.midnight.as_secs() - 1);
    assert_eq!(begun.tick().await["cron"], json!(0));
    begun.time.forward(Duration::from_secs(1));
    let answer = begun.tick().await;
    assert_eq!((&answer["cron"], outcomes(&answer)), (&json!(1), vec!["replied"]), "{answer}");
    let message = json!({"trigger": "cron", "schedule": expression, "scheduled_at": at.as_secs()});
    let replies = begun.agent.replies().await;
    assert_eq!(replies.last().unwrap().1, message.to_string().to_uppercase());
}

#[tokio::test]
async fn what_was_stored_and_never_begun_is_due_by_itself() {
    let begun = Begun::with(On::Sqlite, &[BRIEF], echo).await;
    begun.set(NINE);
    let mut app = begun.app();
    app.queue = Some(Arc::new(MemoryQueue::default()));
    tick(&app).await;
    let rows = begun.agent.app.store.list(&Range::whole(keys::DUE_PARTITION)).await.unwrap();
    assert_eq!(rows.len(), 1);
    begun.time.forward(10 * MINUTE);
    assert_eq!(outcomes(&begun.tick().await), ["done"]);
}
