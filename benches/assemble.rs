//! How long the pure part of a context takes: naming the variables, and assembling.
//!
//! `make bench`; the figures are in docs/PERFORMANCE.md.

// A benchmark may stop and print; criterion's macros make functions without docs.
#![allow(clippy::expect_used, clippy::print_stdout, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use didactyl::chat::{Params, Role};
use didactyl::context::{self, Defaults, HistoryMessage, Input};
use didactyl::kinds;
use didactyl::state::AgentState;
use didactyl::trigger::{Dm, Protocol, Source, Tier, Trigger};
use nostr::prelude::{Event, EventBuilder, EventId, FinalizeEvent, Keys, Kind, Tag, Timestamp};
use serde_json::{Value, json};

const NOW: u64 = 1_803_902_400;

/// A skill of about 2,000 bytes with two variables, as people write them.
const SKILL: &str = include_str!("skill.md");

/// A skill of few bytes, so that the document holds 5,000.
const SMALL: &str = "# Small\n\nSay *little*, {{time}}.\n";

/// All that a context is made from.
struct Scene {
    state: AgentState,
    trigger: Trigger,
    history: Vec<HistoryMessage>,
    entries: BTreeMap<String, Tier>,
    values: BTreeMap<String, Value>,
    defaults: Defaults,
}

impl Scene {
    fn new(skills: usize, text: &str) -> Self {
        let (agent, admin) = (keys(1), keys(2).public_key());
        let event = |kind: Kind, tags: Vec<[String; 2]>, content: &str| -> Event {
            EventBuilder::new(kind, content)
                .tags(tags.into_iter().map(|tag| Tag::parse(tag).expect("a tag of two elements")))
                .custom_created_at(Timestamp::from(NOW))
                .finalize(&agent)
                .expect("a key that signs")
        };
        let tag = |name: &str, value: &str| [name.to_owned(), value.to_owned()];
        let d = |n: usize| format!("skill-{n}");
        let mut events: Vec<Event> = (0..skills)
            .map(|n| event(kinds::PUBLIC_SKILL, vec![tag("d", &d(n)), tag("trigger", "dm")], text))
            .collect();
        let entry = |n| tag("a", &format!("31123:{}:{}", agent.public_key(), d(n)));
        events.push(event(kinds::ADOPTION_LIST, (0..skills).map(entry).collect(), ""));
        events.push(event(kinds::SOUL, vec![tag("d", "soul")], "You are Didactyl, and brief."));
        let message = |n: usize| HistoryMessage {
            role: if n.is_multiple_of(2) { Role::User } else { Role::Assistant },
            text: format!("message {n}: {}", "a few words ".repeat(20)),
        };
        let dm = Dm {
            peer: admin,
            protocol: Protocol::Nip17,
            message_id: EventId::from_byte_array([0; 32]),
            created_at: Timestamp::from(NOW),
            text: "What is new?".to_owned(),
            fixed_answer: None,
            relay: None,
        };
        Self {
            state: AgentState::build(&agent, &[admin], None, events, Timestamp::from(NOW)),
            trigger: Trigger {
                id: "dm:0".to_owned(),
                source: Source::Dm(dm),
                tier: Tier::Admin,
                tainted: false,
                admin,
                arrived_at: Timestamp::from(NOW),
            },
            history: (0..12).map(message).collect(),
            entries: [("time", Tier::Stranger), ("nostr_admin_profile", Tier::Admin)]
                .map(|(name, tier)| (name.to_owned(), tier))
                .into(),
            values: [
                ("time", json!("2026-11-30 12:00 UTC")),
                ("nostr_admin_profile", json!({"name": "wsb", "about": "two\nlines", "bot": false})),
            ]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
            defaults: Defaults { model_chain: "fast".to_owned(), params: Params::default(), max_turns: 16 },
        }
    }

    /// The whole pure part of one invocation.
    fn context(&self) -> usize {
        let names = context::names(&self.state, &self.trigger, &self.entries);
        let context = context::assemble(&Input {
            state: &self.state,
            trigger: &self.trigger,
            history: &self.history,
            entries: &self.entries,
            values: &self.values,
            defaults: &self.defaults,
            tools: &[],
        });
        names.len() + context.messages.iter().map(|message| message.content.len()).sum::<usize>()
    }
}

fn keys(n: u8) -> Keys {
    Keys::parse(&format!("{n:064x}")).expect("a small number is a key")
}

fn assemble(criterion: &mut Criterion) {
    let scene = Scene::new(50, SKILL);
    println!("50 skills of {} bytes: a context of {} bytes", SKILL.len(), scene.context());
    criterion.bench_function("50 skills of 2 KB", |bencher| bencher.iter(|| black_box(&scene).context()));
    criterion.bench_function("50 skills of 2 KB, names alone", |bencher| {
        bencher.iter(|| {
            let scene = black_box(&scene);
            context::names(&scene.state, &scene.trigger, &scene.entries)
        });
    });
    let mut group = criterion.benchmark_group("small skills");
    for skills in [50, 500, 5_000] {
        let scene = Scene::new(skills, SMALL);
        group.throughput(Throughput::Elements(skills as u64));
        group.bench_with_input(BenchmarkId::from_parameter(skills), &scene, |bencher, scene| {
            bencher.iter(|| scene.context());
        });
    }
    group.finish();
}

criterion_group!(benches, assemble);
criterion_main!(benches);
