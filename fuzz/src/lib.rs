//! What the fuzz targets share: an agent made of unsigned events, which a state believes.

use std::collections::BTreeMap;

use didactyl::chat::{Params, ToolSchema};
use didactyl::context::{self, Context, Defaults, Input};
use didactyl::kinds;
use didactyl::state::AgentState;
use didactyl::trigger::{Dm, Protocol, Source, Tier, Trigger};
use nostr::prelude::{Event, EventId, Keys, Kind, Signature, Tag, Timestamp};
use serde_json::{Value, json};

/// Our clock.
pub const NOW: u64 = 1_803_902_400;

/// What the admin asks.
pub const MESSAGE: &str = "What is new?";

/// A key, by a number.
pub fn keys(n: u8) -> Keys {
    Keys::parse(&format!("{n:064x}")).expect("a small number is a key")
}

/// An event of the agent's, its id and signature made up.
pub fn event(kind: Kind, tags: Vec<Vec<String>>, content: &str) -> Event {
    let tags: Vec<Tag> = tags.into_iter().filter_map(|tag| Tag::parse(tag).ok()).collect();
    Event::new(
        EventId::from_byte_array([7; 32]),
        keys(1).public_key(),
        Timestamp::from(NOW),
        kind,
        tags,
        content,
        Signature::from_byte_array([0; 64]),
    )
}

/// The context of an admin's DM to an agent with this soul and these skills, of which `embedded` has no trigger.
pub fn context(soul: Option<&str>, skills: &[(&str, &str)], value: &Value) -> Context {
    let agent = keys(1);
    let tag = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let coordinate = |d: &str| format!("31123:{}:{d}", agent.public_key());
    let list = skills.iter().map(|(d, _)| tag(&["a", &coordinate(d)])).collect();
    let mut events = vec![event(kinds::ADOPTION_LIST, list, "")];
    for (d, text) in skills {
        let mut tags = vec![tag(&["d", d])];
        if *d != "embedded" {
            tags.push(tag(&["trigger", "dm"]));
        }
        events.push(event(kinds::PUBLIC_SKILL, tags, text));
    }
    events.extend(soul.map(|text| event(kinds::SOUL, vec![tag(&["d", "soul"])], text)));
    let admin = keys(2).public_key();
    let state = AgentState::build(&agent, &[admin], None, events, Timestamp::from(NOW));
    let trigger = Trigger {
        id: "dm:0".to_owned(),
        source: Source::Dm(Dm {
            peer: admin,
            protocol: Protocol::Nip17,
            message_id: EventId::from_byte_array([0; 32]),
            created_at: Timestamp::from(NOW),
            text: MESSAGE.to_owned(),
            fixed_answer: None,
            relay: None,
        }),
        tier: Tier::Admin,
        tainted: false,
        admin,
        arrived_at: Timestamp::from(NOW),
    };
    let entries: BTreeMap<String, Tier> =
        ["v", "v_json"].map(|name| (name.to_owned(), Tier::Stranger)).into();
    let values = ["v", "v_json"].map(|name| (name.to_owned(), value.clone())).into();
    let input = Input {
        state: &state,
        trigger: &trigger,
        history: &[],
        entries: &entries,
        values: &values,
        defaults: &Defaults { model_chain: "fast".to_owned(), params: Params::default(), max_turns: 16 },
        tools: &[ToolSchema { name: "time".to_owned(), description: String::new(), parameters: json!({}) }],
    };
    let context = context::assemble(&input);
    assert_eq!(context, context::assemble(&input), "assembly is not deterministic");
    context
}
