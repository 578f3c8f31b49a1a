//! Faults of other agents' direct messages, as inputs for this one. Each test names its row of the case list.

use std::sync::atomic::{AtomicUsize, Ordering};

use didactyl::history::StoredMessage;
use didactyl::letter::Letter;
use didactyl::llm::scripted::Answer;
use didactyl::publish;
use didactyl::record::Status;
use didactyl::relay::Trust;
use didactyl::state::AgentState;
use didactyl::trigger::{Dm, Protocol, Source, Tier};
use nostr::prelude::{
    Event, EventBuilder, EventId, Filter, FinalizeEvent, Keys, Kind, PublicKey, RelayUrl, Tag, Timestamp,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::agent::{
    TestAgent, agent_key, deliver_to, echo, kind4, load, nip04, nip04_blocks, nip17, nip17_at,
    nip44_to_agent, outcomes, rumor, seal, secret, trigger, with_wrong_mac, wrap, wrapped,
};
use crate::sea::{nip04_at, wrap_at};

fn admin() -> Keys {
    secret(2)
}

async fn texts(agent: &TestAgent) -> Vec<String> {
    agent.replies().await.into_iter().map(|(_, text)| text).collect()
}

/// What the model was asked, in order.
fn asked(agent: &TestAgent) -> Vec<String> {
    agent.model.requests().iter().map(|asked| asked.last_text("user").to_owned()).collect()
}

fn reason(answer: &Value, at: usize) -> &str {
    answer["results"][at]["reason"].as_str().unwrap()
}

#[tokio::test]
async fn b001_a_kind_4_with_any_false_iv_is_malformed_and_the_good_one_beside_it_is_answered() {
    let agent = TestAgent::start().await;
    let block = "AAAAAAAAAAAAAAAAAAAAAA==";
    let contents = [
        format!("{block}?iv=AAAA"),
        format!("{block}?iv="),
        format!("{block}?iv=AAAAAAAAAAAAAAAAAAAAAAA="),
        block.to_owned(),
        String::new(),
        format!("{block}?iv={block}?iv={block}"),
    ];
    for (i, content) in contents.iter().enumerate() {
        let bad = kind4(&secret(3), &agent_key(), content.as_str());
        let good = nip04(&admin(), &format!("good {i}"));
        let answer = agent.deliver(&[bad.clone(), good]).await;
        assert_eq!(outcomes(&answer), ["rejected", "replied"], "{content}");
        assert_eq!(reason(&answer, 0), "malformed DM: the NIP-04 text cannot be decrypted");
        assert_eq!(agent.record(&format!("dm:{}", bad.id)).await.status, Status::Dropped);
    }
    assert_eq!(agent.model.calls(), contents.len());
    let mut texts = texts(&agent).await;
    texts.sort();
    assert_eq!(texts, ["GOOD 0", "GOOD 1", "GOOD 2", "GOOD 3", "GOOD 4", "GOOD 5"]);
}

#[tokio::test]
async fn b003_bad_wraps_hide_no_good_one_and_the_good_ones_are_worked_in_the_order_of_their_rumors() {
    let agent = TestAgent::start().await;
    let now = Timestamp::now();
    let signer = Keys::generate();
    let around = |content: &str| {
        let to_agent = Tag::public_key(agent_key());
        EventBuilder::new(Kind::from(1059), content).tag(to_agent).finalize(&signer).unwrap()
    };
    let wrong_mac = with_wrong_mac(&nip44_to_agent(&signer, &seal(&admin(), "{}").as_json()));
    let events = [
        around("not-base64!!"),
        around(&wrong_mac),
        nip17_at(&admin(), "two", now - 5),
        wrap("null"),
        nip17_at(&admin(), "one", now - 10),
    ];
    let answer = agent.deliver(&events).await;
    assert_eq!(outcomes(&answer), ["rejected", "rejected", "replied", "rejected", "replied"]);
    assert_eq!(asked(&agent), ["one", "two"]);
    let reasons = [
        (0, "malformed DM: the wrap cannot be decrypted"),
        (1, "malformed DM: the wrap cannot be decrypted"),
        (3, "malformed DM: the wrap holds no signed event"),
    ];
    for (at, reason) in reasons {
        let record = agent.record(&format!("dm:{}", events[at].id)).await;
        assert_eq!((record.status, record.reason.as_deref()), (Status::Dropped, Some(reason)));
    }
}

#[tokio::test]
async fn b005_a_wrap_dated_two_days_early_or_two_days_ahead_is_read() {
    let agent = TestAgent::start().await;
    let now = Timestamp::now();
    for (i, at) in [now - 172_800, now + 172_800].into_iter().enumerate() {
        let signer = Keys::generate();
        let rumor = json!(rumor(&admin(), &format!("wrap {i}"), now)).to_string();
        let content = nip44_to_agent(&signer, &seal(&admin(), &rumor).as_json());
        let wrap = EventBuilder::new(Kind::from(1059), content).tag(Tag::public_key(agent_key()));
        let wrap = wrap.custom_created_at(at).finalize(&signer).unwrap();
        assert_eq!(outcomes(&agent.deliver(&[wrap]).await), ["replied"], "{at}");
    }
}

#[tokio::test]
async fn b009_what_is_pushed_above_the_age_limit_is_history_of_an_admin_and_nothing_of_anybody_else() {
    let mut agent = TestAgent::start().await;
    let now = Timestamp::now();
    let (eight_days, nine_days) = (now - 8 * 24 * 3600, now - 9 * 24 * 3600);
    let of_agent = nip04_at(&secret(1), &admin().public_key(), "own", nine_days);
    let kept =
        [nip04_at(&admin(), &agent_key(), "kind 4", nine_days), nip17_at(&admin(), "a rumor", eight_days)];
    let wrapped_then = wrap_at(&admin(), "wrapped then", eight_days + 1, nine_days - 24 * 3600);
    agent.app.config.senders.lowest = Tier::Stranger;
    let stranger = secret(9);
    let others =
        [nip04_at(&stranger, &agent_key(), "kind 4", nine_days), nip17_at(&stranger, "a rumor", eight_days)];
    for _ in 0..2 {
        let answer = agent.deliver(&[&kept[..], &[wrapped_then.clone(), of_agent.clone()]].concat()).await;
        assert_eq!(outcomes(&answer), ["recorded"; 4]);
        let answer = agent.deliver(&others).await;
        assert_eq!(outcomes(&answer), ["rejected"; 2]);
        assert_eq!([0, 1].map(|at| reason(&answer, at)), ["the message is older than DIDACTYL_MAX_AGE"; 2]);
    }
    let mut history = agent.history(admin().public_key()).await;
    history.sort();
    let of_peer = ["a rumor", "kind 4", "wrapped then"].map(|text| ("peer", text.to_owned()));
    assert_eq!(history, [&[("agent", "own".to_owned())][..], &of_peer].concat());
    assert_eq!(agent.history(stranger.public_key()).await, []);
    assert_eq!((agent.model.calls(), texts(&agent).await), (0, vec![]));
}

#[tokio::test]
async fn b011_what_the_agent_wrote_itself_is_history_and_never_work() {
    let agent = TestAgent::start().await;
    let (own, now) = (secret(1), Timestamp::now());
    let content = nostr::nips::nip04::encrypt(own.secret_key(), &admin().public_key(), "a").unwrap();
    let to_admin = kind4(&own, &admin().public_key(), content);
    let copy = nostr::prelude::UnsignedEvent::new(
        agent_key(),
        now,
        Kind::from(14),
        [Tag::public_key(admin().public_key())],
        "b",
    );
    let copy = wrapped(&own, &json!(copy).to_string());
    let to_itself = nip04(&own, "d");

    let answer = agent.deliver(&[to_admin, copy, to_itself]).await;
    assert_eq!(outcomes(&answer), ["recorded"; 3]);
    assert_eq!(agent.model.calls(), 0);
    assert!(agent.on_relay(Filter::new().kinds([Kind::from(4), Kind::from(1059)])).await.is_empty());
    let mut with_admin = agent.history(admin().public_key()).await;
    with_admin.sort();
    assert_eq!(with_admin, [("agent", "a".to_owned()), ("agent", "b".to_owned())]);
    assert_eq!(agent.history(agent_key()).await, [("agent", "d".to_owned())]);
}

#[tokio::test]
async fn b061_a_kind_4_of_raw_blocks_is_empty_or_malformed_the_same_way_every_time() {
    let agent = TestAgent::start().await;
    let mut not_utf8 = [13; 16];
    not_utf8[..3].copy_from_slice(&[0xff, 0xfe, 0x41]);
    let malformed = "malformed DM: the NIP-04 text cannot be decrypted";
    let contents = [
        (nip04_blocks(&admin(), &[[0x10; 16]]), "the message is empty"),
        (nip04_blocks(&admin(), &[[0x21; 16]]), malformed),
        (nip04_blocks(&admin(), &[[0x00; 16]]), malformed),
        ("AAAAAAAAAAAAAAAAAAAA?iv=AAAAAAAAAAAAAAAAAAAAAA==".to_owned(), malformed),
        (nip04_blocks(&admin(), &[not_utf8]), malformed),
    ];
    let events: Vec<Event> =
        contents.iter().map(|(content, _)| kind4(&admin(), &agent_key(), content.as_str())).collect();
    for _ in 0..3 {
        let answer = agent.deliver(&events).await;
        for (i, (_, expected)) in contents.iter().enumerate() {
            assert_eq!(reason(&answer, i), *expected);
        }
    }
    assert_eq!(agent.model.calls(), 0);
    assert_eq!(agent.replies().await, []);
    // The same blocks with a good padding are a message: the key above is the right one.
    let mut good = [12; 16];
    good[..4].copy_from_slice(b"good");
    let answer = agent.deliver(&[kind4(&admin(), &agent_key(), nip04_blocks(&admin(), &[good]))]).await;
    assert_eq!(outcomes(&answer), ["replied"]);
    assert_eq!(texts(&agent).await, ["GOOD"]);
}

#[tokio::test]
async fn b063_rumors_without_an_id_are_answered_once_each_and_are_not_taken_for_one_another() {
    let agent = TestAgent::start().await;
    let rumor = |content: &str, more: &str| {
        let (author, now) = (admin().public_key(), Timestamp::now());
        format!(
            r#"{{"pubkey":"{author}","created_at":{now},"kind":14,"tags":[["p","{}"]],"content":"{content}"{more}}}"#,
            agent_key()
        )
    };
    let rumors = [rumor("ping", ""), rumor("pong", r#","sig":"","id":"""#), rumor("pang", r#","id":null"#)];
    let events: Vec<Event> = rumors.iter().map(|rumor| wrapped(&admin(), rumor)).collect();
    assert_eq!(outcomes(&agent.deliver(&events).await), ["replied"; 3]);
    // The same rumors in new wraps are the same messages.
    let again: Vec<Event> = rumors.iter().map(|rumor| wrapped(&admin(), rumor)).collect();
    assert_eq!(outcomes(&agent.deliver(&again).await), ["replied"; 3]);
    assert_eq!(agent.model.calls(), 3);
    let mut texts = texts(&agent).await;
    texts.sort();
    assert_eq!(texts, ["PANG", "PING", "PONG"]);
}

#[tokio::test]
async fn b065_a_text_in_the_other_scheme_is_decrypted_or_named_and_never_shown_as_base64() {
    let agent = TestAgent::start().await;
    let unreadable = with_wrong_mac(&nip44_to_agent(&admin(), "hello"));
    let cases = [
        (nip17(&admin(), &nip44_to_agent(&admin(), "hello 1")), "hello 1"),
        (nip17(&admin(), &nip04(&admin(), "hello 2").content), "hello 2"),
        (kind4(&admin(), &agent_key(), nip44_to_agent(&admin(), "hello 3")), "hello 3"),
        (nip17(&admin(), &unreadable), "[an encrypted text that cannot be read]"),
        // Begins as a NIP-44 payload does, and is none.
        (nip17(&admin(), "Agreed"), "Agreed"),
    ];
    for (event, text) in &cases {
        assert_eq!(outcomes(&agent.deliver(std::slice::from_ref(event)).await), ["replied"]);
        assert_eq!(asked(&agent).last().unwrap(), text);
    }
    let signer = Keys::generate();
    let wrong = EventBuilder::new(Kind::from(1059), nip04(&admin(), "hello").content);
    let wrong = wrong.tag(Tag::public_key(agent_key())).finalize(&signer).unwrap();
    assert_eq!(reason(&agent.deliver(&[wrong]).await, 0), "malformed DM: the wrap cannot be decrypted");
    assert_eq!(agent.model.calls(), cases.len());
}

/// An agent whose admin has these events and no others.
async fn with_admin_events(lists: &[(u16, &[&[&str]])]) -> TestAgent {
    let agent = TestAgent::bare(echo).await;
    agent
        .publish(didactyl::cli::seed::agent_events(&secret(1), &agent.relay_url, Timestamp::now()).unwrap())
        .await;
    let lists = lists.iter().map(|(kind, tags)| {
        let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
        EventBuilder::new(Kind::from(*kind), "").tags(tags).finalize(&admin()).unwrap()
    });
    agent.publish(lists.collect::<Vec<_>>()).await;
    agent
}

async fn route(agent: &TestAgent, event: &Event) -> publish::Route {
    let trigger = trigger(&agent.app, event);
    let state = load(&agent.app, &trigger).await;
    let Source::Dm(dm) = &trigger.source else { panic!() };
    publish::route(&agent.app, &state, &Letter::answer_to(dm))
}

fn spelled(targets: &[didactyl::relay::Target]) -> Vec<(String, Trust)> {
    targets.iter().map(|target| (target.url.to_string(), target.trust)).collect()
}

#[tokio::test]
async fn b067_without_an_inbox_list_a_wrap_goes_where_it_came_from_and_never_to_public_relays() {
    let agent = with_admin_events(&[(10_002, &[&["r", "wss://pub.test"]])]).await;
    let own = (agent.relay_url.to_string(), Trust::Own);
    let event = nip17(&admin(), "hello");
    assert_eq!(spelled(&route(&agent, &event).await.all()), std::slice::from_ref(&own));
    // The list is known: an answer to a kind 4 would go there.
    let public = ("wss://pub.test".to_owned(), Trust::Foreign);
    assert_eq!(spelled(&route(&agent, &nip04(&admin(), "hello")).await.to_peer), [public, own.clone()]);

    let answer = agent.deliver(std::slice::from_ref(&event)).await;
    assert_eq!(outcomes(&answer), ["replied"]);
    assert_eq!(texts(&agent).await, ["HELLO"]);
    let run = answer["results"][0]["run"].as_str().unwrap();
    let record = didactyl::record::find(&agent.app, run).await.unwrap().unwrap();
    assert_eq!(record.deliveries.len(), 2, "the reply and the copy to ourselves");
    assert!(record.deliveries.iter().all(|delivery| delivery.relay == own.0 && delivery.refused.is_none()));
}

#[tokio::test]
async fn b067_of_an_inbox_list_only_the_one_public_relay_is_used() {
    let list: &[&[&str]] = &[
        &["relay", ""],
        &["relay", "ws://10.0.0.5"],
        &["relay", "wss://in.test/"],
        &["relay", "wss://IN.test"],
    ];
    let agent = with_admin_events(&[(10_050, list)]).await;
    let route = route(&agent, &nip17(&admin(), "hello")).await;
    assert_eq!(spelled(&route.to_peer), [("wss://in.test".to_owned(), Trust::Foreign)]);
    assert_eq!(route.inbox.iter().map(ToString::to_string).collect::<Vec<_>>(), ["wss://in.test"]);
}

#[tokio::test]
async fn b067_a_relay_that_a_caller_names_is_written_to_only_if_it_is_an_inbox_relay_of_the_agent() {
    let agent = TestAgent::bare(echo).await;
    let own_list = |kind, tag: &[&str]| {
        EventBuilder::new(Kind::from(kind), "").tag(Tag::parse(tag.iter().copied()).unwrap())
    };
    let lists = [
        own_list(10_050, &["relay", "wss://wraps.test/"]),
        own_list(10_002, &["r", "wss://read.test", "read"]),
    ]
    .map(|list| list.finalize(&secret(1)).unwrap());
    let now = Timestamp::now();
    let state = AgentState::build(&secret(1), &[admin().public_key()], None, lists, now);
    let own = (agent.relay_url.to_string(), Trust::Own);
    for (named, believed) in [
        ("wss://wraps.test", true),
        ("wss://read.test", true),
        ("wss://elsewhere.test", false),
        ("ws://169.254.169.254", false),
    ] {
        let letter = Letter {
            relay: Some(RelayUrl::parse(named).unwrap()),
            ..Letter::new(admin().public_key(), Protocol::Nip17)
        };
        let to_peer = spelled(&publish::route(&agent.app, &state, &letter).to_peer);
        let from = believed.then(|| (named.to_owned(), Trust::Own));
        assert_eq!(to_peer, from.into_iter().chain([own.clone()]).collect::<Vec<_>>(), "{named}");
    }
}

/// Puts `rows` messages into the stored conversation with the admin, the agent's and the admin's in turn.
pub async fn remember(agent: &TestAgent, rows: usize) {
    let began = Timestamp::now() - 86_400;
    let peer: PublicKey = admin().public_key();
    let writes: Vec<_> = (0..rows)
        .map(|i| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&(i as u64).to_be_bytes());
            let message = StoredMessage {
                of_run: false,
                id: EventId::from_byte_array(id),
                from_agent: i % 2 == 1,
                protocol: Protocol::Nip04,
                created_at: began + i as u64,
                arrived_at: began + i as u64,
                text: format!("message {i}"),
                aside: false,
            };
            message.write(&agent.app, &peer).unwrap()
        })
        .collect();
    for writes in writes.chunks(50) {
        agent.app.store.write(writes).await.unwrap();
    }
}

#[tokio::test]
async fn b071_a_long_history_is_only_ever_read_and_one_event_goes_out() {
    let agent = TestAgent::start().await;
    remember(&agent, 834).await;
    assert_eq!(agent.history(admin().public_key()).await.len(), 834);
    let before = agent.on_relay(Filter::new()).await.len();

    let answer = deliver_to(&agent.another(), &agent.relay_url, &[nip04(&admin(), "hi")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"]);
    assert_eq!(agent.on_relay(Filter::new()).await.len(), before + 1);
    assert_eq!(texts(&agent).await, ["HI"]);
    assert_eq!(agent.history(admin().public_key()).await.len(), 834 + 2);
}

/// What went out of one invocation: messages to the admin, and notes.
async fn outgoing(rows: usize, posts: usize, at_once: bool, protocol: Protocol) -> (usize, usize) {
    let posted = AtomicUsize::new(0);
    let agent = TestAgent::with_script(move |asked| {
        let done = posted.load(Ordering::SeqCst);
        let next = if at_once { posts - done } else { (posts - done).min(1) };
        if next == 0 {
            return echo(asked);
        }
        posted.fetch_add(next, Ordering::SeqCst);
        let call = |i| ("nostr_post".to_owned(), json!({"content": format!("note {i}")}));
        Answer::Calls((done..done + next).map(call).collect())
    })
    .await;
    remember(&agent, rows).await;
    let event = match protocol {
        Protocol::Nip04 => nip04(&admin(), "hi"),
        Protocol::Nip17 => nip17(&admin(), "hi"),
    };
    assert_eq!(outcomes(&agent.deliver(&[event]).await), ["replied"]);
    assert_eq!(agent.model.refusals(), [""; 0]);
    let to_admin = Filter::new().kinds([Kind::from(4), Kind::from(1059)]).pubkey(admin().public_key());
    let notes = Filter::new().kind(Kind::from(1)).author(agent_key());
    (agent.on_relay(to_admin).await.len(), agent.on_relay(notes).await.len())
}

#[test]
fn b071_an_invocation_sends_one_reply_and_what_tools_were_told_to_publish() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    proptest!(ProptestConfig::with_cases(16), |(
        rows in 0usize..80,
        posts in 0usize..3,
        at_once: bool,
        protocol in prop_oneof![Just(Protocol::Nip04), Just(Protocol::Nip17)],
    )| {
        prop_assert_eq!(runtime.block_on(outgoing(rows, posts, at_once, protocol)), (1, posts));
    });
}

#[tokio::test]
async fn a_reply_stands_below_the_message_it_answers_in_every_client_and_in_our_own_history() {
    let agent = TestAgent::start().await;
    let now = agent.app.clock.now();
    for ahead in [0, 1, 60] {
        let event = nip17_at(&admin(), &format!("in {ahead} s"), now + ahead);
        let Source::Dm(dm) = trigger(&agent.app, &event).source else { panic!() };
        let parts =
            publish::sign(&agent.app, &Letter::answer_to(&Dm { created_at: now, ..dm }), "reply", now)
                .unwrap();
        assert_eq!(parts[0].created_at, now + 1);
    }
    agent.deliver(&[nip17_at(&admin(), "question", now)]).await;
    let history = agent.history(admin().public_key()).await;
    assert_eq!(history, [("peer", "question".to_owned()), ("agent", "QUESTION".to_owned())]);
}
