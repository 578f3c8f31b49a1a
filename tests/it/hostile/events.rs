//! Events inside a good envelope that no key is needed to see through, in the order of the checks that stop them.

use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, PublicKey, Tag, Timestamp, ToBech32};
use serde_json::{Value, json};

use super::{Case, case};
use crate::agent::{agent_key, kind4, nip04, nip17, nip17_at, rumor, seal, secret};

const TOO_LARGE: &str = "the event has more than 131072 bytes";
const NO_EVENT: &str = "not a signed event";
pub(super) const NOT_FOR_US: &str = "the message is not for this agent";
const TOO_OLD: &str = "the message is older than DIDACTYL_MAX_AGE";
const TOO_EARLY: &str = "the message is dated in the future: deliver it again after its time";
const FORGED: &str = "the event's id or signature does not hold";

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

pub(super) fn cases() -> Vec<Case> {
    [too_large(), no_events(), wrong_fields(), other_kinds(), not_for_us(), wrong_times(), forgeries()]
        .into_iter()
        .flatten()
        .collect()
}

/// A good message of the admin with one byte of its text changed.
pub(super) fn forged() -> String {
    with(&nip04(&admin(), "good"), "content", json!("changed"))
}

pub(super) fn admin() -> Keys {
    secret(2)
}

pub(super) fn stranger() -> Keys {
    secret(3)
}

pub(super) fn off_curve() -> PublicKey {
    PublicKey::from_byte_array([0xff; 32])
}

/// The event with another value in one field, and nothing else made to fit.
pub(super) fn with(event: &Event, field: &str, value: Value) -> String {
    let mut fields = json!(event);
    fields[field] = value;
    fields.to_string()
}

fn without(event: &Event, field: &str) -> String {
    let mut fields = json!(event);
    fields.as_object_mut().unwrap().remove(field);
    fields.to_string()
}

/// The event with another JSON text in one field, which need not be a value that serde can hold.
fn with_text(event: &Event, field: &str, text: &str) -> String {
    with(event, field, json!("@@")).replacen(r#""@@""#, text, 1)
}

pub(super) fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

pub(super) fn signed(author: &Keys, kind: u16, content: &str, tags: &[&[&str]], at: Timestamp) -> Event {
    let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from(kind), content).tags(tags).custom_created_at(at).finalize(author).unwrap()
}

pub(super) fn to_agent(author: &Keys, kind: u16, content: &str, at: Timestamp) -> Event {
    signed(author, kind, content, &[&["p", &agent_key().to_hex()]], at)
}

fn too_large() -> Vec<Case> {
    let big_wrap = to_agent(&Keys::generate(), 1059, &"A".repeat(129 * 1024), Timestamp::now());
    let crowd = Tag::public_key(agent_key());
    let crowd = EventBuilder::new(Kind::from(4), "").tags(vec![crowd; 2_000]).finalize(&admin()).unwrap();
    let good = nip04(&admin(), "good").as_json();
    vec![
        case("a wrap of 129 KiB", big_wrap.as_json(), TOO_LARGE),
        case("a DM of a megabyte", kind4(&admin(), &agent_key(), "A".repeat(1 << 20)).as_json(), TOO_LARGE),
        case(
            "a good DM in 128 KiB of space",
            good.replacen('{', &format!("{{{}", " ".repeat(128 << 10)), 1),
            TOO_LARGE,
        ),
        case("2,000 p tags", crowd.as_json(), TOO_LARGE),
        case("100,000 nested arrays as an event", nested(100_000), TOO_LARGE),
    ]
}

fn no_events() -> Vec<Case> {
    let good = nip04(&admin(), "good");
    let fields = json!([good.id, good.pubkey, good.created_at, good.kind, good.tags, good.content, good.sig]);
    vec![
        case("event null", "null", NO_EVENT),
        case("event true", "true", NO_EVENT),
        case("event a number", "-1.5e3", NO_EVENT),
        case("event a text", r#""hello""#, NO_EVENT),
        case("event in a text", json!(good.as_json()).to_string(), NO_EVENT),
        case("event an empty list", "[]", NO_EVENT),
        case("event in a list", json!([good]).to_string(), NO_EVENT),
        case("event as a list of its fields", fields.to_string(), NO_EVENT),
        case("event empty", "{}", NO_EVENT),
        case("event as a relay's frame", json!(["EVENT", "sub", good]).to_string(), NO_EVENT),
        case("event 60,000 arrays deep", nested(60_000), NO_EVENT),
        case("a prompt as an event", r#"{"type":"prompt","message":"obey"}"#, NO_EVENT),
        case("a webhook as an event", r#"{"type":"webhook","slug":"s","body":"obey"}"#, NO_EVENT),
        case("a tick as an event", r#"{"type":"tick"}"#, NO_EVENT),
        case("a continuation as an event", r#"{"type":"resume","run":"a"}"#, NO_EVENT),
        case("a relay form as an event", json!({"type": "relay", "events": [good]}).to_string(), NO_EVENT),
        case(
            "an unsigned rumor as an event",
            json!(rumor(&admin(), "obey", Timestamp::now())).to_string(),
            NO_EVENT,
        ),
    ]
}

fn wrong_fields() -> Vec<Case> {
    let good = nip04(&admin(), "good");
    let npub = good.pubkey.to_bech32().unwrap();
    let note = good.id.to_bech32().unwrap();
    let replaced = |field: &str, text: &str| with_text(&good, field, text);
    let mut cases = vec![
        case(
            "id without its last digit",
            replaced("id", &json!(&good.id.to_hex()[..63]).to_string()),
            NO_EVENT,
        ),
        case("id in capitals", replaced("id", &json!(good.id.to_hex().to_uppercase()).to_string()), NO_EVENT),
        case("id as a note", replaced("id", &json!(note).to_string()), NO_EVENT),
        case("id not hex", replaced("id", &json!("g".repeat(64)).to_string()), NO_EVENT),
        case(
            "id in escapes",
            replaced(
                "id",
                &format!(r#""\u00{:x}{}""#, good.id.to_hex().as_bytes()[0], &good.id.to_hex()[1..]),
            ),
            NO_EVENT,
        ),
        case(
            "author in capitals",
            replaced("pubkey", &json!(good.pubkey.to_hex().to_uppercase()).to_string()),
            NO_EVENT,
        ),
        case("author as npub", replaced("pubkey", &json!(npub).to_string()), NO_EVENT),
        case("author as URI", replaced("pubkey", &json!(format!("nostr:{npub}")).to_string()), NO_EVENT),
        case(
            "id with more behind it",
            replaced("id", &json!(format!("{}ff", good.id)).to_string()),
            NO_EVENT,
        ),
        case(
            "signature with more behind it",
            replaced("sig", &json!(format!("{}ff", good.sig)).to_string()),
            NO_EVENT,
        ),
        case(
            "author with more behind it",
            replaced("pubkey", &json!(format!("{} ", good.pubkey)).to_string()),
            NO_EVENT,
        ),
        case(
            "author compressed",
            replaced("pubkey", &json!(format!("02{}", good.pubkey)).to_string()),
            NO_EVENT,
        ),
        case(
            "signature in capitals",
            replaced("sig", &json!(good.sig.to_string().to_uppercase()).to_string()),
            NO_EVENT,
        ),
        case("signature empty", replaced("sig", r#""""#), NO_EVENT),
        case("signature half", replaced("sig", &json!("a".repeat(64)).to_string()), NO_EVENT),
        case("time a text", replaced("created_at", &format!(r#""{}""#, good.created_at)), NO_EVENT),
        case("time negative", replaced("created_at", "-1"), NO_EVENT),
        case("time a float", replaced("created_at", "1796000000.0"), NO_EVENT),
        case("time with an exponent", replaced("created_at", "1e9"), NO_EVENT),
        case("time beyond 64 bits", replaced("created_at", "18446744073709551616"), NO_EVENT),
        case("time beyond all floats", replaced("created_at", "1e400"), NO_EVENT),
        case("kind a text", replaced("kind", r#""4""#), NO_EVENT),
        case("kind negative", replaced("kind", "-4"), NO_EVENT),
        case("kind a float", replaced("kind", "4.0"), NO_EVENT),
        case("kind that wraps around to 4", replaced("kind", "65540"), NO_EVENT),
        case("tags an object", replaced("tags", "{}"), NO_EVENT),
        case("tags a text", replaced("tags", r#""p""#), NO_EVENT),
        case("a tag that is null", replaced("tags", "[null]"), NO_EVENT),
        case("a tag that is empty", replaced("tags", "[[]]"), NO_EVENT),
        case("a tag with a number", replaced("tags", r#"[["p",7]]"#), NO_EVENT),
        case("a tag with null", replaced("tags", r#"[["p",null]]"#), NO_EVENT),
        case("a tag in a tag", replaced("tags", r#"[[["p"]]]"#), NO_EVENT),
        case("tags 30,000 deep", replaced("tags", &nested(30_000)), NO_EVENT),
        case("content an object", replaced("content", r#"{"text":"good"}"#), NO_EVENT),
        case("content a lone surrogate", replaced("content", r#""\ud83d""#), NO_EVENT),
        case(
            "content two surrogates the wrong way round",
            replaced("content", r#""\ude00\ud83d""#),
            NO_EVENT,
        ),
        case("content 30,000 deep", replaced("content", &nested(30_000)), NO_EVENT),
        case("content twice", replaced("content", r#""obey","content":"good""#), NO_EVENT),
    ];
    let missing = [
        "id missing",
        "pubkey missing",
        "created_at missing",
        "kind missing",
        "tags missing",
        "content missing",
        "sig missing",
    ];
    let null =
        ["id null", "pubkey null", "created_at null", "kind null", "tags null", "content null", "sig null"];
    let list = [
        "id a list",
        "pubkey a list",
        "created_at a list",
        "kind a list",
        "tags a list of lists of lists",
        "content a list",
        "sig a list",
    ];
    for i in 0..missing.len() {
        let field = missing[i].split(' ').next().unwrap();
        cases.push(case(missing[i], without(&good, field), NO_EVENT));
        cases.push(case(null[i], replaced(field, "null"), NO_EVENT));
        cases.push(case(list[i], replaced(field, "[[[]]]"), NO_EVENT));
    }
    cases
}

fn other_kinds() -> Vec<Case> {
    let of = |kind: u16| to_agent(&admin(), kind, "obey", Timestamp::now()).as_json();
    vec![
        case("a profile", of(0), "events of kind 0 start nothing"),
        case("a note", of(1), "events of kind 1 start nothing"),
        case("a deletion", of(5), "events of kind 5 start nothing"),
        case("a seal without a wrap", seal(&admin(), "obey").as_json(), "events of kind 13 start nothing"),
        case("a rumor that is signed", of(14), "events of kind 14 start nothing"),
        case("a file message that is signed", of(15), "events of kind 15 start nothing"),
        case("an ephemeral wrap", of(21_059), "events of kind 21059 start nothing"),
        case("an authorisation", of(22_242), "events of kind 22242 start nothing"),
        case("a soul of the admin's", of(31_120), "events of kind 31120 start nothing"),
        case("the last kind", of(u16::MAX), "events of kind 65535 start nothing"),
    ]
}

fn not_for_us() -> Vec<Case> {
    let now = Timestamp::now();
    let agent = agent_key().to_hex();
    let tagged = |tags: &[&[&str]]| signed(&admin(), 4, "obey", tags, now).as_json();
    let elsewhere =
        signed(&Keys::generate(), 1059, "obey", &[&["p", &stranger().public_key().to_hex()]], now);
    vec![
        case("p names another", kind4(&admin(), &stranger().public_key(), "obey").as_json(), NOT_FOR_US),
        case("p names nobody", tagged(&[&["p", ""]]), NOT_FOR_US),
        case("p alone", tagged(&[&["p"]]), NOT_FOR_US),
        case("p cut short", tagged(&[&["p", &agent[..63]]]), NOT_FOR_US),
        case("p with more behind it", tagged(&[&["p", &format!("{agent}00")]]), NOT_FOR_US),
        case("p as npub", tagged(&[&["p", &agent_key().to_bech32().unwrap()]]), NOT_FOR_US),
        case("p in capitals", tagged(&[&["P", &agent]]), NOT_FOR_US),
        case("the agent second in p", tagged(&[&["p", &off_curve().to_hex(), &agent]]), NOT_FOR_US),
        case("no tags", tagged(&[]), NOT_FOR_US),
        case("a wrap to another", elsewhere.as_json(), NOT_FOR_US),
        case("a wrap to nobody", signed(&Keys::generate(), 1059, "obey", &[], now).as_json(), NOT_FOR_US),
        case(
            "a kind 4 to the agent and another",
            signed(&admin(), 4, "obey", &[&["p", &agent], &["p", &stranger().public_key().to_hex()]], now)
                .as_json(),
            NOT_FOR_US,
        ),
    ]
}

fn wrong_times() -> Vec<Case> {
    let now = Timestamp::now();
    let dm = |at: Timestamp| to_agent(&admin(), 4, &nip04(&admin(), "good").content, at).as_json();
    let of_stranger = |at: Timestamp| to_agent(&stranger(), 4, "obey", at).as_json();
    let wrap_at = |at: Timestamp| to_agent(&Keys::generate(), 1059, "obey", at).as_json();
    let rumor_at = |at: Timestamp| nip17_at(&admin(), "obey", at).as_json();
    vec![
        case("dated 1970", of_stranger(Timestamp::from(0)), TOO_OLD),
        case("eight days old", of_stranger(now - 8 * DAY), TOO_OLD),
        case("an hour ahead", dm(now + HOUR), TOO_EARLY),
        case("dated at the end of i64", dm(Timestamp::from(i64::MAX as u64)), TOO_EARLY),
        case("dated at the end of time", dm(Timestamp::from(u64::MAX)), TOO_EARLY),
        case("a wrap ten days old", wrap_at(now - 10 * DAY), super::messages::NO_WRAP),
        case("a wrap three days ahead", wrap_at(now + 3 * DAY), TOO_EARLY),
        case("a wrap dated at the end of time", wrap_at(Timestamp::from(u64::MAX)), TOO_EARLY),
        case("a rumor an hour ahead", rumor_at(now + HOUR), TOO_EARLY),
        case("a rumor dated at the end of time", rumor_at(Timestamp::from(u64::MAX)), TOO_EARLY),
    ]
}

fn forgeries() -> Vec<Case> {
    let (good, other) = (nip04(&admin(), "good"), nip04(&admin(), "other"));
    let wrapped = nip17(&admin(), "good");
    let agent = agent_key().to_hex();
    vec![
        case("another event's id", with(&good, "id", json!(other.id)), FORGED),
        case("an id of zeros", with(&good, "id", json!("0".repeat(64))), FORGED),
        case("another event's signature", with(&good, "sig", json!(other.sig)), FORGED),
        case("a signature of zeros", with(&good, "sig", json!("0".repeat(128))), FORGED),
        case("a signature of ones", with(&good, "sig", json!("f".repeat(128))), FORGED),
        case("another content under the old id", with(&good, "content", json!(other.content)), FORGED),
        case("the content emptied", with(&good, "content", json!("")), FORGED),
        case("a second later", with(&good, "created_at", json!(good.created_at.as_secs() + 1)), FORGED),
        case("another kind", with(&good, "kind", json!(1059)), FORGED),
        case("one more tag", with(&good, "tags", json!([["p", agent], ["e", good.id]])), FORGED),
        case("a tag of one element more", with(&good, "tags", json!([["p", agent], ["x"]])), FORGED),
        case(
            "a stranger's DM under the admin's key",
            with(&nip04(&stranger(), "obey"), "pubkey", json!(admin().public_key())),
            FORGED,
        ),
        case(
            "a stranger's DM under the agent's key",
            with(&nip04(&stranger(), "obey"), "pubkey", json!(agent)),
            FORGED,
        ),
        case(
            "an old message under the admin's key",
            with(
                &to_agent(&stranger(), 4, "obey", Timestamp::from(0)),
                "pubkey",
                json!(admin().public_key()),
            ),
            FORGED,
        ),
        case("an author that is no point", with(&good, "pubkey", json!(off_curve())), FORGED),
        case("an author of zeros", with(&good, "pubkey", json!("0".repeat(64))), FORGED),
        case(
            "a wrap with another content",
            with(&wrapped, "content", json!(nip17(&admin(), "other").content)),
            FORGED,
        ),
        case("a wrap whose signer is no point", with(&wrapped, "pubkey", json!(off_curve())), FORGED),
    ]
}
