use nostr::prelude::{Event, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::kinds;
use crate::skill::tests::{keys, signed, unsigned};

const NOW: u64 = 1_803_902_400;
const AGENT: u8 = 1;
const ADMIN: u8 = 2;
const FRIEND: u8 = 3;
const STRANGER: u8 = 4;
const SECOND_ADMIN: u8 = 5;

fn state(events: Vec<Event>) -> AgentState {
    let admins = [ADMIN, SECOND_ADMIN].map(|admin| keys(admin).public_key());
    AgentState::build(&keys(AGENT), &admins, None, events, Timestamp::from(NOW))
}

fn senders(lowest: Tier) -> Senders {
    Senders { lowest, guest_per_hour: 10, guests_per_hour: 60 }
}

fn listing(author: u8, kind: nostr::prelude::Kind, whom: &[u8]) -> Event {
    let people: Vec<String> = whom.iter().map(|key| keys(*key).public_key().to_hex()).collect();
    let tags: Vec<[&str; 2]> = people.iter().map(|hex| ["p", hex.as_str()]).collect();
    signed(author, kind, &tags.iter().map(|tag| &tag[..]).collect::<Vec<_>>(), "")
}

fn contacts(author: u8, whom: &[u8]) -> Event {
    listing(author, kinds::CONTACTS, whom)
}

fn mutes(author: u8, whom: &[u8]) -> Event {
    listing(author, kinds::MUTE_LIST, whom)
}

/// A skill that a message of these tiers fires, and the list that adopts it.
fn skill_for(author: u8, tiers: &str, enabled: &str) -> Vec<Event> {
    let address = format!("31123:{}:desk", keys(author).public_key());
    vec![
        signed(
            author,
            kinds::PUBLIC_SKILL,
            &[&["d", "desk"], &["trigger", "dm", tiers], &["enabled", enabled]],
            "Be polite.",
        ),
        signed(AGENT, kinds::ADOPTION_LIST, &[&["a", &address]], ""),
    ]
}

fn bot(author: u8, says: serde_json::Value) -> Event {
    signed(author, kinds::PROFILE, &[], &json!({"name": "x", "bot": says}).to_string())
}

fn told(heed: Heed) -> String {
    let said = heed.refusal.map_or_else(|| "is answered".to_owned(), |refusal| refusal.to_string());
    format!("{}: {said}", heed.tier.as_str())
}

#[test]
fn who_is_answered_follows_from_configuration_lists_and_profile() {
    let friend = || contacts(ADMIN, &[FRIEND]);
    let with = |mut more: Vec<Event>| {
        more.push(friend());
        more
    };
    let desk = || with(skill_for(AGENT, "stranger", "true"));
    let cases: Vec<(&str, Vec<Event>, Tier, u8)> = vec![
        ("an admin, by default", vec![], Tier::Admin, ADMIN),
        ("a friend, by default", vec![friend()], Tier::Admin, FRIEND),
        ("a stranger, by default", desk(), Tier::Admin, STRANGER),
        ("a friend, wot", vec![friend()], Tier::Wot, FRIEND),
        ("a friend of the second admin, wot", vec![contacts(SECOND_ADMIN, &[FRIEND])], Tier::Wot, FRIEND),
        ("a stranger's contact, wot", vec![contacts(STRANGER, &[FRIEND])], Tier::Wot, FRIEND),
        ("a stranger who follows the admin, wot", vec![contacts(STRANGER, &[ADMIN])], Tier::Wot, STRANGER),
        ("a stranger with a skill, wot", desk(), Tier::Wot, STRANGER),
        ("a friend, all", vec![friend()], Tier::Stranger, FRIEND),
        ("a stranger without a skill, all", vec![friend()], Tier::Stranger, STRANGER),
        ("a stranger with a skill, all", desk(), Tier::Stranger, STRANGER),
        (
            "a stranger with a skill for friends, all",
            skill_for(AGENT, "wot", "true"),
            Tier::Stranger,
            STRANGER,
        ),
        (
            "a stranger with a disabled skill, all",
            skill_for(AGENT, "stranger", "false"),
            Tier::Stranger,
            STRANGER,
        ),
        (
            "a stranger with somebody else's skill, all",
            skill_for(STRANGER, "stranger,wot", "true"),
            Tier::Stranger,
            STRANGER,
        ),
        ("a muted friend, all", with(vec![mutes(ADMIN, &[FRIEND])]), Tier::Stranger, FRIEND),
        ("one whom the second admin muted", with(vec![mutes(SECOND_ADMIN, &[FRIEND])]), Tier::Wot, FRIEND),
        ("one whom a stranger muted", with(vec![mutes(STRANGER, &[FRIEND])]), Tier::Wot, FRIEND),
        ("a friend that is a bot", with(vec![bot(FRIEND, json!(true))]), Tier::Wot, FRIEND),
        ("a friend that is no bot", with(vec![bot(FRIEND, json!(false))]), Tier::Wot, FRIEND),
        ("a friend whose bot is a word", with(vec![bot(FRIEND, json!("true"))]), Tier::Wot, FRIEND),
        (
            "a muted admin that is a bot",
            vec![mutes(ADMIN, &[ADMIN]), bot(ADMIN, json!(true))],
            Tier::Admin,
            ADMIN,
        ),
        ("the agent among the contacts", vec![contacts(ADMIN, &[AGENT])], Tier::Stranger, AGENT),
    ];
    let table: Vec<String> = cases
        .into_iter()
        .map(|(name, events, lowest, sender)| {
            let heed = verdict(&senders(lowest), &state(events), keys(sender).public_key(), Usage::default());
            format!("{name} -> {}", told(heed))
        })
        .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    an admin, by default -> admin: is answered
    a friend, by default -> wot: the agent does not heed a sender of tier wot
    a stranger, by default -> stranger: the agent does not heed a sender of tier stranger
    a friend, wot -> wot: is answered
    a friend of the second admin, wot -> wot: is answered
    a stranger's contact, wot -> stranger: the agent does not heed a sender of tier stranger
    a stranger who follows the admin, wot -> stranger: the agent does not heed a sender of tier stranger
    a stranger with a skill, wot -> stranger: the agent does not heed a sender of tier stranger
    a friend, all -> wot: is answered
    a stranger without a skill, all -> stranger: no adopted skill names strangers in its dm trigger
    a stranger with a skill, all -> stranger: is answered
    a stranger with a skill for friends, all -> stranger: no adopted skill names strangers in its dm trigger
    a stranger with a disabled skill, all -> stranger: no adopted skill names strangers in its dm trigger
    a stranger with somebody else's skill, all -> stranger: no adopted skill names strangers in its dm trigger
    a muted friend, all -> wot: an admin has muted the sender
    one whom the second admin muted -> wot: an admin has muted the sender
    one whom a stranger muted -> wot: is answered
    a friend that is a bot -> wot: the sender's profile says that it is a bot
    a friend that is no bot -> wot: is answered
    a friend whose bot is a word -> wot: is answered
    a muted admin that is a bot -> admin: is answered
    the agent among the contacts -> stranger: the agent does not answer itself
    ");
}

#[test]
fn limits_hold_from_their_number_on_and_never_for_an_admin() {
    let state = state(vec![contacts(ADMIN, &[FRIEND])]);
    let usage = |guest_hour, guest_day, guests_hour| Usage { guest_hour, guest_day, guests_hour };
    let cases = [
        (FRIEND, usage(9, 19, 59)),
        (FRIEND, usage(10, 10, 10)),
        (FRIEND, usage(0, 20, 0)),
        (FRIEND, usage(0, 0, 60)),
        (ADMIN, usage(u32::MAX, u32::MAX, u32::MAX)),
    ];
    let table: Vec<String> = cases
        .into_iter()
        .map(|(sender, usage)| told(verdict(&senders(Tier::Wot), &state, keys(sender).public_key(), usage)))
        .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    wot: is answered
    wot: the sender has had its answers of the hour (DIDACTYL_GUEST_PER_HOUR)
    wot: the sender has had its 20 answers of the day
    wot: all guests together have had their answers of the hour (DIDACTYL_GUESTS_PER_HOUR)
    admin: is answered
    ");
    let none = Senders { lowest: Tier::Wot, guest_per_hour: 0, guests_per_hour: 60 };
    assert_eq!(over_limit(&none, Usage::default()), Some(Refusal::GuestHour));
}

#[test]
fn what_a_list_that_is_not_known_could_change_is_not_decided_but_for_limits() {
    let sure = || vec![contacts(ADMIN, &[FRIEND]), mutes(ADMIN, &[STRANGER])];
    let desk = || skill_for(AGENT, "stranger", "true");
    let (none, over) = (Usage::default(), Usage { guests_hour: 60, ..Usage::default() });
    let lists = |contacts, mutes, skills| Lists { contacts, mutes, skills };
    let cases = [
        ("an admin", vec![], Tier::Wot, lists(false, false, false), ADMIN, none),
        ("a friend", sure(), Tier::Wot, lists(false, false, false), FRIEND, none),
        ("a friend", sure(), Tier::Wot, lists(false, true, false), FRIEND, none),
        ("a friend over a limit", sure(), Tier::Wot, lists(false, false, false), FRIEND, over),
        ("a stranger, wot", vec![], Tier::Wot, lists(false, true, true), STRANGER, none),
        ("a stranger, wot", vec![], Tier::Wot, lists(true, false, false), STRANGER, none),
        ("a stranger over a limit, wot", vec![], Tier::Wot, lists(false, true, true), STRANGER, over),
        ("a stranger, all", vec![], Tier::Stranger, lists(true, true, false), STRANGER, none),
        ("a stranger, all", vec![], Tier::Stranger, lists(true, true, true), STRANGER, none),
        ("a stranger with a skill, all", desk(), Tier::Stranger, lists(false, true, true), STRANGER, none),
        ("a stranger with a skill, all", desk(), Tier::Stranger, lists(true, false, true), STRANGER, none),
        ("a stranger with a skill, all", desk(), Tier::Stranger, lists(true, true, true), STRANGER, none),
        ("a muted stranger, all", sure(), Tier::Stranger, lists(false, false, false), STRANGER, none),
        ("a stranger, by default", vec![], Tier::Admin, lists(false, false, false), STRANGER, none),
    ];
    let table: Vec<String> = cases
        .into_iter()
        .map(|(name, events, lowest, lists, sender, usage)| {
            let key = keys(sender).public_key();
            let said = match judge(&senders(lowest), &state(events), lists, key, usage) {
                Ok(heed) => told(heed),
                Err(heed) => format!("not decided, for now {}", told(heed)),
            };
            let known = [("contacts", lists.contacts), ("mutes", lists.mutes), ("skills", lists.skills)];
            let known: Vec<&str> = known.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
            format!("{name} ({}) -> {said}", known.join(" "))
        })
        .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    an admin () -> admin: is answered
    a friend () -> not decided, for now wot: is answered
    a friend (mutes) -> wot: is answered
    a friend over a limit () -> wot: all guests together have had their answers of the hour (DIDACTYL_GUESTS_PER_HOUR)
    a stranger, wot (mutes skills) -> not decided, for now stranger: the agent does not heed a sender of tier stranger
    a stranger, wot (contacts) -> stranger: the agent does not heed a sender of tier stranger
    a stranger over a limit, wot (mutes skills) -> stranger: all guests together have had their answers of the hour (DIDACTYL_GUESTS_PER_HOUR)
    a stranger, all (contacts mutes) -> not decided, for now stranger: no adopted skill names strangers in its dm trigger
    a stranger, all (contacts mutes skills) -> stranger: no adopted skill names strangers in its dm trigger
    a stranger with a skill, all (mutes skills) -> not decided, for now stranger: is answered
    a stranger with a skill, all (contacts skills) -> not decided, for now stranger: is answered
    a stranger with a skill, all (contacts mutes skills) -> stranger: is answered
    a muted stranger, all () -> stranger: an admin has muted the sender
    a stranger, by default () -> stranger: the agent does not heed a sender of tier stranger
    ");
}

/// Lists, profiles and skills of anybody, in any order.
fn any_event() -> impl Strategy<Value = Event> {
    let people = proptest::collection::vec(1_u8..8, 0..6);
    (1_u8..8, people, 0..5_u8, any::<bool>()).prop_map(|(author, people, what, flag)| {
        let hex: Vec<String> = people.iter().map(|key| keys(*key).public_key().to_hex()).collect();
        let tags: Vec<[&str; 2]> = hex.iter().map(|hex| ["p", hex.as_str()]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
        let address = format!("31123:{}:desk", keys(author).public_key());
        match what {
            0 => unsigned(author, kinds::CONTACTS, &tags, ""),
            1 => unsigned(author, kinds::MUTE_LIST, &tags, ""),
            2 => unsigned(author, kinds::PROFILE, &tags, &json!({"bot": flag}).to_string()),
            3 => unsigned(AGENT, kinds::ADOPTION_LIST, &[&["a", &address]], ""),
            _ => {
                let tiers = if flag { "stranger" } else { "admin,wot" };
                unsigned(author, kinds::PUBLIC_SKILL, &[&["d", "desk"], &["trigger", "dm", tiers]], "")
            }
        }
    })
}

fn any_tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Admin), Just(Tier::Wot), Just(Tier::Stranger)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn whatever_lists_say_only_admins_are_admins_and_nobody_below_the_lowest_tier_is_answered(
        events in proptest::collection::vec(any_event(), 0..24),
        lowest in any_tier(),
        sender in 1_u8..8,
        (guest_hour, guest_day, guests_hour) in (0..15_u32, 0..25_u32, 0..70_u32),
    ) {
        let usage = Usage { guest_hour, guest_day, guests_hour };
        let (state, key) = (state(events), keys(sender).public_key());
        let is_admin = [ADMIN, SECOND_ADMIN].contains(&sender);
        let heed = verdict(&senders(lowest), &state, key, usage);
        prop_assert_eq!(heed.tier == Tier::Admin, is_admin);
        if is_admin {
            prop_assert_eq!(heed.refusal, None);
        } else if heed.refusal.is_none() {
            prop_assert!(heed.tier >= lowest && sender != AGENT);
            prop_assert!(guest_hour < 10 && guest_day < 20 && guests_hour < 60);
            prop_assert!(heed.tier == Tier::Wot || state.answers_strangers());
            prop_assert!(!state.is_muted(key) && !state.is_bot(key));
        }
    }
}
