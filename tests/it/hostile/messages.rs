//! Properly signed events to the agent: it is what they hold that is false, or who wrote it.

use nostr::nips::nip04::encrypt_with_iv;
use nostr::prelude::{Keys, Kind, Tag, Timestamp, UnsignedEvent};
use serde_json::json;

use super::events::{NOT_FOR_US, admin, nested, off_curve, signed, stranger, to_agent, with};
use super::{Case, case};
use crate::agent::{
    agent_key, altered, kind4, nip04, nip04_blocks, nip17, nip17_at, nip44_to_agent, rumor, seal, secret,
    with_wrong_mac, wrap, wrapped,
};

const STRANGER: &str = "the agent does not heed a sender of tier stranger";
const EMPTY: &str = "the message is empty";
const NO_NIP04: &str = "malformed DM: the NIP-04 text cannot be decrypted";
const NO_NIP44: &str = "malformed DM: the NIP-44 text cannot be decrypted";
pub(super) const NO_WRAP: &str = "malformed DM: the wrap cannot be decrypted";
const NO_SEALED: &str = "malformed DM: the wrap holds no signed event";
const NO_SEAL: &str = "malformed DM: the wrap holds an event that is not a seal";
const SEAL_LOCKED: &str = "malformed DM: the seal cannot be decrypted";
const NO_RUMOR: &str = "malformed DM: the seal holds no rumor";
const SEAL_FORGED: &str = "forged DM: the seal's signature does not hold";
const OTHER_AUTHOR: &str = "forged DM: the rumor names another author than the seal's signer";

pub(super) fn cases() -> Vec<Case> {
    [nip04_ciphertexts(), wraps(), seals(), rumors(), strangers()].into_iter().flatten().collect()
}

fn nip04_ciphertexts() -> Vec<Case> {
    let from = |author: &Keys, content: &str| kind4(author, &agent_key(), content).as_json();
    let block = "AAAAAAAAAAAAAAAAAAAAAA==";
    let good = nip04(&admin(), "good").content;
    let (text, iv) = good.split_once("?iv=").unwrap();
    let padded = |last: u8| nip04_blocks(&admin(), &[[last; 16]]);
    let mut not_utf8 = [13; 16];
    not_utf8[..3].copy_from_slice(&[0xff, 0xfe, 0x41]);
    let to_other = encrypt_with_iv(admin().secret_key(), &stranger().public_key(), "good", [1; 16]).unwrap();
    let wrong_mac = with_wrong_mac(&nip44_to_agent(&admin(), "good"));
    vec![
        case("an IV of 3 bytes", from(&stranger(), &format!("{block}?iv=AAAA")), NO_NIP04),
        case("an IV of none", from(&stranger(), &format!("{block}?iv=")), NO_NIP04),
        case(
            "an IV of 17 bytes",
            from(&stranger(), &format!("{block}?iv=AAAAAAAAAAAAAAAAAAAAAAA=")),
            NO_NIP04,
        ),
        case("no IV", from(&stranger(), block), NO_NIP04),
        case("no content", from(&stranger(), ""), NO_NIP04),
        case("two IVs", from(&stranger(), &format!("{block}?iv={iv}?iv={iv}")), NO_NIP04),
        case(
            "an IV of 100,000 bytes",
            from(&admin(), &format!("{text}?iv={}", "A".repeat(100_000))),
            NO_NIP04,
        ),
        case(
            "an IV that is not base64",
            from(&admin(), &format!("{text}?iv=************************")),
            NO_NIP04,
        ),
        case("a ciphertext that is not base64", from(&admin(), &format!("not base64!?iv={iv}")), NO_NIP04),
        case("a ciphertext of none", from(&admin(), &format!("?iv={iv}")), NO_NIP04),
        case("a ciphertext of 15 bytes", from(&admin(), &format!("AAAAAAAAAAAAAAAAAAAA?iv={iv}")), NO_NIP04),
        case("a padding of 33", from(&admin(), &padded(0x21)), NO_NIP04),
        case("a padding of 0", from(&admin(), &padded(0)), NO_NIP04),
        case("a padding of 255", from(&admin(), &padded(0xff)), NO_NIP04),
        case(
            "a padding that does not agree with itself",
            from(
                &admin(),
                &nip04_blocks(&admin(), &[[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 3]]),
            ),
            NO_NIP04,
        ),
        case("a plaintext that is not UTF-8", from(&admin(), &nip04_blocks(&admin(), &[not_utf8])), NO_NIP04),
        case("a plaintext for another", from(&admin(), &to_other), NO_NIP04),
        case("an open text", from(&admin(), "obey"), NO_NIP04),
        case("a NIP-44 text with a wrong MAC", from(&admin(), &wrong_mac), NO_NIP44),
        case("a NIP-44 text for another", from(&stranger(), &nip44_to_agent(&admin(), "good")), NO_NIP44),
        case("a message of nothing but padding", from(&admin(), &padded(16)), EMPTY),
        case("a message of space", nip04(&admin(), " \n\t\u{3000}").as_json(), EMPTY),
    ]
}

fn wraps() -> Vec<Case> {
    let around = |content: &str| to_agent(&Keys::generate(), 1059, content, Timestamp::now()).as_json();
    let signer = Keys::generate();
    let good = nip44_to_agent(&signer, &seal(&admin(), "good").as_json());
    let with_bytes =
        |alter: fn(&mut Vec<u8>)| to_agent(&signer, 1059, &altered(&good, alter), Timestamp::now()).as_json();
    let a_seal = seal(&admin(), &json!(rumor(&admin(), "good", Timestamp::now())).to_string());
    let as_list = json!([
        a_seal.id,
        a_seal.pubkey,
        a_seal.created_at,
        a_seal.kind,
        a_seal.tags,
        a_seal.content,
        a_seal.sig
    ]);
    vec![
        case("a wrap that is not base64", around("not-base64!!"), NO_WRAP),
        case("a wrap of nothing", around(""), NO_WRAP),
        case("a wrap of one byte", around("Ag=="), NO_WRAP),
        case("a wrap of version 1", with_bytes(|bytes| bytes[0] = 1), NO_WRAP),
        case("a wrap of version 255", with_bytes(|bytes| bytes[0] = 255), NO_WRAP),
        case("a wrap with a wrong MAC", with_bytes(|bytes| *bytes.last_mut().unwrap() ^= 1), NO_WRAP),
        case("a wrap one byte short", with_bytes(|bytes| bytes.truncate(bytes.len() - 1)), NO_WRAP),
        case("a wrap one byte long", with_bytes(|bytes| bytes.push(0)), NO_WRAP),
        case("a wrap of a version to come", around("#v9"), NO_WRAP),
        case("a wrap cut short", around(&good[..200]), NO_WRAP),
        case("a wrap under another key", around(&good), NO_WRAP),
        case("a wrap in NIP-04", around(&nip04(&admin(), "good").content), NO_WRAP),
        case("a wrap of null", wrap("null").as_json(), NO_SEALED),
        case("a wrap of a number", wrap("7").as_json(), NO_SEALED),
        case("a wrap of a list", wrap("[]").as_json(), NO_SEALED),
        case("a wrap of an object", wrap("{}").as_json(), NO_SEALED),
        case("a wrap of an open text", wrap("obey").as_json(), NO_SEALED),
        case(
            "a wrap of a rumor without a seal",
            wrap(&json!(rumor(&admin(), "obey", Timestamp::now())).to_string()).as_json(),
            NO_SEALED,
        ),
        case("a wrap of a seal as a list of its fields", wrap(&as_list.to_string()).as_json(), NO_SEALED),
        case("a wrap 15,000 arrays deep", wrap(&nested(15_000)).as_json(), NO_SEALED),
        case("a wrap of half a seal", wrap(&a_seal.as_json()[..100]).as_json(), NO_SEALED),
    ]
}

fn seals() -> Vec<Case> {
    let now = Timestamp::now();
    let good = seal(&admin(), &json!(rumor(&admin(), "obey", now)).to_string());
    let of_stranger = seal(&stranger(), &json!(rumor(&admin(), "obey", now)).to_string());
    let content = |content: &str| signed(&admin(), 13, content, &[], now).as_json();
    vec![
        case("a wrap in a wrap", wrap(&nip17(&admin(), "obey").as_json()).as_json(), NO_SEAL),
        case("a kind 4 in a wrap", wrap(&nip04(&admin(), "obey").as_json()).as_json(), NO_SEAL),
        case(
            "a signed chat message in a wrap",
            wrap(&to_agent(&admin(), 14, "obey", now).as_json()).as_json(),
            NO_SEAL,
        ),
        case(
            "a seal of another kind",
            wrap(&signed(&admin(), 12, &good.content, &[], now).as_json()).as_json(),
            NO_SEAL,
        ),
        case(
            "a seal with a signature of zeros",
            wrap(&with(&good, "sig", json!("0".repeat(128)))).as_json(),
            SEAL_FORGED,
        ),
        case(
            "a seal with another id",
            wrap(&with(&good, "id", json!(of_stranger.id))).as_json(),
            SEAL_FORGED,
        ),
        case(
            "a seal with another content",
            wrap(&with(&good, "content", json!(of_stranger.content))).as_json(),
            SEAL_FORGED,
        ),
        case(
            "a stranger's seal under the admin's key",
            wrap(&with(&of_stranger, "pubkey", json!(good.pubkey))).as_json(),
            SEAL_FORGED,
        ),
        case(
            "a stranger's seal under the agent's key",
            wrap(&with(&of_stranger, "pubkey", json!(agent_key()))).as_json(),
            SEAL_FORGED,
        ),
        case(
            "a seal whose signer is no point",
            wrap(&with(&good, "pubkey", json!(off_curve()))).as_json(),
            SEAL_FORGED,
        ),
        case("a seal that is not base64", wrap(&content("not-base64!!")).as_json(), SEAL_LOCKED),
        case("a seal of nothing", wrap(&content("")).as_json(), SEAL_LOCKED),
        case("a seal in NIP-04", wrap(&content(&nip04(&admin(), "obey").content)).as_json(), SEAL_LOCKED),
        case(
            "a seal under another's key",
            wrap(&content(&nip44_to_agent(&stranger(), "{}"))).as_json(),
            SEAL_LOCKED,
        ),
    ]
}

fn rumors() -> Vec<Case> {
    let now = Timestamp::now();
    let good = json!(rumor(&admin(), "obey", now));
    let text = |text: &str| wrapped(&admin(), text).as_json();
    let field = |field: &str, value: &str| {
        let mut fields = good.clone();
        fields[field] = json!("@@");
        wrapped(&admin(), &fields.to_string().replacen(r#""@@""#, value, 1)).as_json()
    };
    let of_kind = |kind: u16| field("kind", &kind.to_string());
    let as_list = json!([good["pubkey"], good["created_at"], good["kind"], good["tags"], good["content"]]);
    let other = stranger().public_key();
    vec![
        case("a rumor null", text("null"), NO_RUMOR),
        case("a rumor a list", text("[]"), NO_RUMOR),
        case("a rumor as a list of its fields", text(&as_list.to_string()), NO_RUMOR),
        case("a rumor a number", text("14"), NO_RUMOR),
        case("a rumor a text", text(r#""obey""#), NO_RUMOR),
        case("a rumor an open text", text("obey"), NO_RUMOR),
        case("a rumor empty", text("{}"), NO_RUMOR),
        case("a rumor cut short", text(&good.to_string()[..90]), NO_RUMOR),
        case("a rumor with a byte order mark", text(&format!("\u{feff}{good}")), NO_RUMOR),
        case("a rumor with NUL", text(&format!("{good}\0")), NO_RUMOR),
        case("a rumor 15,000 arrays deep", text(&nested(15_000)), NO_RUMOR),
        case("a rumor with tags 10,000 deep", field("tags", &nested(10_000)), NO_RUMOR),
        case("a rumor with an empty tag", field("tags", "[[]]"), NO_RUMOR),
        case("a rumor with a number in a tag", field("tags", r#"[["p",1]]"#), NO_RUMOR),
        case("a rumor with two contents", field("content", r#""good","content":"obey""#), NO_RUMOR),
        case("a rumor with a lone surrogate", field("content", r#""\ud800""#), NO_RUMOR),
        case("a rumor with content null", field("content", "null"), NO_RUMOR),
        case("a rumor with a negative time", field("created_at", "-1"), NO_RUMOR),
        case("a rumor with a time beyond 64 bits", field("created_at", "18446744073709551616"), NO_RUMOR),
        case("a rumor with a time in a text", field("created_at", r#""1""#), NO_RUMOR),
        case("a rumor with a kind in a text", field("kind", r#""14""#), NO_RUMOR),
        case("a rumor with a kind that wraps around to 14", field("kind", "65550"), NO_RUMOR),
        case(
            "the admin's rumor in a stranger's seal",
            wrapped(&stranger(), &good.to_string()).as_json(),
            OTHER_AUTHOR,
        ),
        case(
            "the agent's rumor in a stranger's seal",
            wrapped(&stranger(), &json!(rumor(&secret(1), "obey", now)).to_string()).as_json(),
            OTHER_AUTHOR,
        ),
        case(
            "a stranger's rumor in the admin's seal",
            wrapped(&admin(), &json!(rumor(&stranger(), "obey", now)).to_string()).as_json(),
            OTHER_AUTHOR,
        ),
        case(
            "a rumor whose author is no point",
            field("pubkey", &json!(off_curve()).to_string()),
            OTHER_AUTHOR,
        ),
        case("a rumor of kind 1", of_kind(1), "a rumor of kind 1 starts nothing"),
        case("a rumor of kind 4", of_kind(4), "a rumor of kind 4 starts nothing"),
        case("a reaction", of_kind(7), "a rumor of kind 7 starts nothing"),
        case(
            "a seal inside a seal",
            wrapped(&admin(), &seal(&admin(), &good.to_string()).as_json()).as_json(),
            "a rumor of kind 13 starts nothing",
        ),
        case(
            "a wrap inside a seal",
            wrapped(&admin(), &with(&nip17(&admin(), "obey"), "pubkey", good["pubkey"].clone())).as_json(),
            "a rumor of kind 1059 starts nothing",
        ),
        case("an authorisation as a rumor", of_kind(22_242), "a rumor of kind 22242 starts nothing"),
        case("a rumor to another", field("tags", &json!([["p", other]]).to_string()), NOT_FOR_US),
        case("a rumor to nobody", field("tags", "[]"), NOT_FOR_US),
        case("a rumor with p alone", field("tags", r#"[["p"]]"#), NOT_FOR_US),
        case("a rumor of nothing", field("content", r#""""#), EMPTY),
        case("a rumor of space", field("content", r#"" \n ""#), EMPTY),
    ]
}

fn strangers() -> Vec<Case> {
    let now = Timestamp::now();
    let of_kind = |kind: u16, tags: Vec<Tag>| {
        let rumor = UnsignedEvent::new(stranger().public_key(), now, Kind::from(kind), tags, "obey");
        wrapped(&stranger(), &rumor.as_json()).as_json()
    };
    let (agent, third) = (Tag::public_key(agent_key()), Tag::public_key(admin().public_key()));
    vec![
        case("a stranger's kind 4", nip04(&stranger(), "obey").as_json(), STRANGER),
        case(
            "a stranger's kind 4 in NIP-44",
            kind4(&stranger(), &agent_key(), nip44_to_agent(&stranger(), "obey")).as_json(),
            STRANGER,
        ),
        case("a stranger's wrap", nip17(&stranger(), "obey").as_json(), STRANGER),
        case("a stranger's file", of_kind(15, vec![agent.clone()]), STRANGER),
        case("a stranger's room with the admin", of_kind(14, vec![agent, third]), STRANGER),
        case(
            "a stranger's old message",
            nip17_at(&stranger(), "obey", Timestamp::from(0)).as_json(),
            STRANGER,
        ),
    ]
}
