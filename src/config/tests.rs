use std::collections::BTreeMap;

use nostr::prelude::{Nip19Profile, ToBech32};
use proptest::prelude::*;

use super::*;
use crate::hash::sha256;
use crate::trigger::Tier;

// Test vectors of NIP-06, and the key of the first.
const WORDS_12: &str = "leader monkey parrot ring guide accident before fence cannon height naive bean";
const WORDS_24: &str = "what bleak badge arrange retreat wolf trade produce cricket blur garlic valid proud rude \
                        strong choose busy staff weather area salt hollow arm fade";
const KEY_12: &str = "7f7ff03d123792d6ac594bfa67bf6d0c0ab55b6b1fdb6249303fe861f1ccba9a";
const KEY_24: &str = "c15d739894c81a2fcfd3a2df85a0d2c0dbc47a280d092799f144d73d7ae78add";

const ADMIN: &str = "c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5";

fn good() -> BTreeMap<&'static str, String> {
    [
        ("DIDACTYL_NSEC", KEY_12),
        ("DIDACTYL_ADMIN", ADMIN),
        ("DIDACTYL_RELAYS", "wss://in.test"),
        ("DIDACTYL_LLM", "openai/gpt-6-luna"),
        ("OPENAI_API_KEY", "sk-test"),
    ]
    .map(|(name, value)| (name, value.to_owned()))
    .into()
}

fn read(vars: &BTreeMap<&'static str, String>) -> Result<Config, ConfigError> {
    Config::from_vars(&|name| vars.get(name).cloned())
}

/// The good variables with one of another value.
fn with(name: &'static str, value: &str) -> Result<Config, ConfigError> {
    let mut vars = good();
    vars.insert(name, value.to_owned());
    read(&vars)
}

/// The one fault of that value.
fn fault(name: &'static str, value: &str) -> String {
    let ConfigError(faults) = with(name, value).expect_err(value);
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults.into_iter().next().unwrap_or_default()
}

#[test]
fn the_defaults_are_those_that_the_documentation_names() {
    let config = read(&good()).unwrap();
    assert_eq!(config.keys.secret_key().to_secret_hex(), KEY_12);
    assert_eq!(config.admins, [PublicKey::from_hex(ADMIN).unwrap()]);
    assert_eq!(config.store, StoreChoice::Sqlite("didactyl.sqlite".into()));
    assert_eq!(config.max_age, Some(Duration::from_secs(604_800)));
    assert_eq!((config.hello, config.standby), (true, false));
    assert_eq!(config.max_turns, 16);
    assert_eq!((config.log.as_str(), config.agent_name, config.api_tokens.len()), ("info", None, 0));
    assert_eq!((config.context_debug, config.context_dir), (ContextDebug::Off, None));
}

#[test]
fn only_admins_are_answered_unless_the_variable_names_more() {
    let lowest = |text: &str| with("DIDACTYL_SENDERS", text).unwrap().senders.lowest;
    assert_eq!(["admin", "wot", " all "].map(lowest), [Tier::Admin, Tier::Wot, Tier::Stranger]);
    let default = Senders { lowest: Tier::Admin, guest_per_hour: 10, guests_per_hour: 60 };
    assert_eq!(read(&good()).unwrap().senders, default);
    assert_eq!(with("DIDACTYL_GUEST_PER_HOUR", "0").unwrap().senders.guest_per_hour, 0);
    insta::assert_snapshot!(
        [
            fault("DIDACTYL_SENDERS", "everybody"),
            fault("DIDACTYL_GUEST_PER_HOUR", "-1"),
            fault("DIDACTYL_GUESTS_PER_HOUR", "10001"),
        ]
        .join("\n"),
        @r"
    DIDACTYL_SENDERS names nobody who could be answered: give admin, wot or all
    DIDACTYL_GUEST_PER_HOUR is not a whole number from 0 to 10000
    DIDACTYL_GUESTS_PER_HOUR is not a whole number from 0 to 10000
    "
    );
}

#[test]
fn context_snapshots_have_three_modes() {
    let mode = |text: &str| with("DIDACTYL_CONTEXT_DEBUG", text).unwrap().context_debug;
    assert_eq!(
        ["off", "init", " full "].map(mode),
        [ContextDebug::Off, ContextDebug::Init, ContextDebug::Full]
    );
    let told = fault("DIDACTYL_CONTEXT_DEBUG", "on");
    assert_eq!(told, "DIDACTYL_CONTEXT_DEBUG is not a mode: give off, init or full");
}

#[test]
fn the_agents_key_is_secret_in_each_of_its_spellings() {
    let secrets = with("DIDACTYL_NSEC", &WORDS_12.replace(' ', "\n")).unwrap().secrets;
    let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
    for spelling in [WORDS_12, KEY_12, &KEY_12.to_uppercase(), &nsec, &nsec.to_uppercase(), "sk-test"] {
        assert_eq!(secrets.redact(&format!("<{spelling}>")), "<[redacted]>");
    }
    assert_eq!(secrets.redact(ADMIN), ADMIN);
}

#[test]
fn an_empty_environment_is_told_everything_that_it_lacks_at_once() {
    insta::assert_snapshot!(read(&BTreeMap::new()).unwrap_err(), @r"
    the configuration has 4 fault(s):
    - DIDACTYL_NSEC is not set: give the agent's secret key
    - DIDACTYL_ADMIN is not set: give the key that commands the agent
    - DIDACTYL_RELAYS is not set: give at least one relay
    - DIDACTYL_LLM is not set: give a model such as openai/gpt-6-luna
    ");
}

#[test]
fn the_turns_of_a_run_are_limited_by_a_number() {
    assert_eq!(with("DIDACTYL_MAX_TURNS", " 3 ").unwrap().max_turns, 3);
    for text in ["0", "1001", "-1", "many", "4.0"] {
        assert_eq!(
            fault("DIDACTYL_MAX_TURNS", text),
            "DIDACTYL_MAX_TURNS is not a whole number from 1 to 1000"
        );
    }
}

#[test]
fn the_continuations_of_a_run_are_limited_by_a_number() {
    let continuations = |text| with("DIDACTYL_MAX_CONTINUATIONS", text).unwrap().max_continuations;
    assert_eq!([continuations(""), continuations("0"), continuations(" 40 ")], [12, 0, 40]);
    for text in ["1001", "-1", "many"] {
        assert_eq!(
            fault("DIDACTYL_MAX_CONTINUATIONS", text),
            "DIDACTYL_MAX_CONTINUATIONS is not a whole number from 0 to 1000"
        );
    }
}

#[test]
fn the_grace_of_cron_is_a_number_of_minutes() {
    let grace = |text| with("DIDACTYL_CRON_GRACE_MINUTES", text).unwrap().cron_grace.as_secs();
    assert_eq!([grace(""), grace("1"), grace("1440")], [900, 60, 86_400]);
    for text in ["0", "1441", "-1", "15m"] {
        assert_eq!(
            fault("DIDACTYL_CRON_GRACE_MINUTES", text),
            "DIDACTYL_CRON_GRACE_MINUTES is not a whole number of minutes from 1 to 1440"
        );
    }
}

#[test]
fn a_tick_listens_for_seconds_or_not_at_all() {
    let listen = |text| with("DIDACTYL_LISTEN_SECONDS", text).unwrap().listen;
    assert_eq!([listen("0"), listen(""), listen("55")], [None, None, Some(Duration::from_secs(55))]);
    for text in ["901", "-1", "1m", "5.5"] {
        assert_eq!(
            fault("DIDACTYL_LISTEN_SECONDS", text),
            "DIDACTYL_LISTEN_SECONDS is not a whole number of seconds from 0 to 900"
        );
    }
}

#[test]
fn all_faults_are_reported_together() {
    let vars = [
        ("DIDACTYL_NSEC", "nsec1"),
        ("DIDACTYL_ADMIN", "npub1"),
        ("DIDACTYL_RELAYS", "https://in.test"),
        ("DIDACTYL_STORE", "redis:x"),
        ("DIDACTYL_LLM", "openai/gpt-6-luna"),
        ("DIDACTYL_API_TOKEN", "short"),
        ("DIDACTYL_MAX_AGE", "soon"),
    ];
    let error = read(&vars.map(|(name, value)| (name, value.to_owned())).into()).unwrap_err();
    insta::assert_snapshot!(error, @r"
    the configuration has 7 fault(s):
    - DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    - DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
    - DIDACTYL_RELAYS entry 1 is not a relay: give wss://… or ws://…
    - DIDACTYL_STORE names no store: give sqlite:PATH or dynamodb:TABLE
    - DIDACTYL_LLM has no model that can be used: entry 1: OPENAI_API_KEY is not set
    - DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
    - DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    ");
}

#[test]
fn a_secret_key_is_an_nsec_hex_or_words() {
    let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
    let spaced = format!("  {}\n", WORDS_12.replace(' ', "  \n "));
    for (value, key) in
        [(nsec.as_str(), KEY_12), (KEY_12, KEY_12), (WORDS_12, KEY_12), (&spaced, KEY_12), (WORDS_24, KEY_24)]
    {
        assert_eq!(with("DIDACTYL_NSEC", value).unwrap().keys.secret_key().to_secret_hex(), key);
    }
}

#[test]
fn what_is_no_secret_key_is_refused_with_what_to_give() {
    let npub = PublicKey::from_hex(ADMIN).unwrap().to_bech32().unwrap();
    let zero = "0".repeat(64);
    let beyond = "f".repeat(64);
    let longer = format!("{KEY_12}00");
    let eleven = WORDS_12.rsplit_once(' ').unwrap().0;
    let swapped = WORDS_12.replace("leader monkey", "monkey leader");
    let misspelled = WORDS_12.replace("bean", "beam");
    let table: Vec<String> = [npub.as_str(), &zero, &beyond, &longer, "abc", eleven, &swapped, &misspelled]
        .iter()
        .map(|value| fault("DIDACTYL_NSEC", value))
        .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    DIDACTYL_NSEC is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words
    DIDACTYL_NSEC has 11 words: a seed phrase has 12 or 24
    DIDACTYL_NSEC is not a seed phrase of the English word list: check each word
    DIDACTYL_NSEC is not a seed phrase of the English word list: check each word
    ");
}

#[test]
fn admins_are_npubs_nprofiles_or_hex_each_once_in_order() {
    let second = Keys::parse(KEY_12.replace('7', "8").as_str()).unwrap().public_key();
    let npub = second.to_bech32().unwrap();
    let profile = Nip19Profile::new(second, [RelayUrl::parse("wss://in.test").unwrap()]).to_bech32().unwrap();
    let value = format!("{npub}, {ADMIN}\n{profile} nostr:{npub},,{}", ADMIN.to_uppercase());
    let admins = with("DIDACTYL_ADMIN", &value).unwrap().admins;
    assert_eq!(admins, [second, PublicKey::from_hex(ADMIN).unwrap()]);
}

#[test]
fn what_is_no_admin_is_refused_with_its_place() {
    let nsec = Keys::parse(KEY_12).unwrap().secret_key().to_bech32().unwrap();
    let agent = Keys::parse(KEY_12).unwrap().public_key().to_hex();
    let off_curve = format!("{ADMIN} {}", "f".repeat(64));
    let longer = format!("{ADMIN}00");
    let table: Vec<String> =
        [nsec.as_str(), &nsec.to_uppercase(), &agent, &off_curve, &longer, ADMIN.get(..63).unwrap(), ","]
            .iter()
            .map(|value| fault("DIDACTYL_ADMIN", value))
            .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    DIDACTYL_ADMIN entry 1 is a secret key: give the admin's npub
    DIDACTYL_ADMIN entry 1 is a secret key: give the admin's npub
    DIDACTYL_ADMIN names the agent's own key: it needs a key of yours
    DIDACTYL_ADMIN entry 2 is not a public key: give an npub, nprofile or 64 hex digits
    DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
    DIDACTYL_ADMIN entry 1 is not a public key: give an npub, nprofile or 64 hex digits
    DIDACTYL_ADMIN names no key
    ");
}

#[test]
fn relays_are_taken_in_one_spelling_each_once_in_order() {
    let relays =
        with("DIDACTYL_RELAYS", "wss://B.test/, ws://127.0.0.1:7777\nwss://b.test:443").unwrap().relays;
    let relays: Vec<String> = relays.iter().map(ToString::to_string).collect();
    assert_eq!(relays, ["wss://b.test", "ws://127.0.0.1:7777"]);
    assert_eq!(
        fault("DIDACTYL_RELAYS", "wss://a.test, wss://user:secret@b.test"),
        "DIDACTYL_RELAYS entry 2 is not a relay: give wss://… or ws://…"
    );
}

#[test]
fn a_store_is_named_by_its_kind_and_place() {
    let store = |value| with("DIDACTYL_STORE", value).unwrap().store;
    assert_eq!(store("sqlite:/var/a:b.sqlite"), StoreChoice::Sqlite("/var/a:b.sqlite".into()));
    assert_eq!(store("dynamodb:didactyl"), StoreChoice::DynamoDb("didactyl".to_owned()));
    for value in ["sqlite", "sqlite:", "dynamodb:", "SQLITE:x", "postgres://user:secret@db"] {
        assert_eq!(
            fault("DIDACTYL_STORE", value),
            "DIDACTYL_STORE names no store: give sqlite:PATH or dynamodb:TABLE"
        );
    }
}

#[test]
fn an_age_is_a_number_with_or_without_a_unit() {
    let age = |value| with("DIDACTYL_MAX_AGE", value).unwrap().max_age.map(|age| age.as_secs());
    for (value, seconds) in [("90", 90), ("90s", 90), ("2m", 120), ("3 h", 10_800), (" 7d ", 604_800)] {
        assert_eq!(age(value), Some(seconds), "{value}");
    }
    assert_eq!((age("0"), age("0d")), (None, None));
    let table: Vec<String> =
        ["d", "7w", "-1", "1.5d", "7dd", "∞", "18446744073709551615d", "18446744073709551615"]
            .iter()
            .map(|value| fault("DIDACTYL_MAX_AGE", value))
            .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age
    DIDACTYL_MAX_AGE is longer than 36500 days: give 0 for any age
    ");
}

#[test]
fn tokens_open_what_their_scope_says_and_are_kept_as_hashes() {
    let plain = "a-token-of-22-characters";
    let hex = crate::hash::hex(&sha256(plain.as_bytes()));
    let value = format!("{plain}, read={plain} bridge=sha256:{hex},all=sha256:{}", hex.to_uppercase());
    let tokens = with("DIDACTYL_API_TOKEN", &value).unwrap().api_tokens;
    let scopes: Vec<Scope> = tokens.iter().map(|token| token.scope).collect();
    assert_eq!(scopes, [Scope::All, Scope::Read, Scope::Bridge, Scope::All]);
    assert!(tokens.iter().all(|token| token.sha256 == sha256(plain.as_bytes())));
    // A base64 token ends in `=`.
    let padded = with("DIDACTYL_API_TOKEN", "YS10b2tlbi1vZi0yMi1jaGFyYWN0ZXJz==").unwrap();
    assert_eq!(padded.api_tokens.len(), 1);
}

#[test]
fn a_token_that_can_be_guessed_or_misread_is_refused() {
    let signs = format!("sha256:{}", "+1".repeat(32));
    let table: Vec<String> =
        ["short", "read=short", "write=a-token-of-22-characters", "sha256:00", &signs, "read=sha256:zz"]
            .iter()
            .map(|value| fault("DIDACTYL_API_TOKEN", value))
            .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
    DIDACTYL_API_TOKEN entry 1 is shorter than 22 characters: it could be guessed
    DIDACTYL_API_TOKEN entry 1 has an unknown scope: all, read and bridge are known
    DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
    DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
    DIDACTYL_API_TOKEN entry 1 has a sha256 that is not 64 hex digits
    ");
}

#[test]
fn a_chain_that_cannot_be_used_is_told_by_places_and_variables_not_by_its_text() {
    let table: Vec<String> = [
        "sk-ant-SEKRIT",
        "/SEKRIT",
        "sk SEKRIT/model",
        "openai/SEK RIT",
        "groq/SEKRIT, sk-SEKRIT/model",
        ",",
    ]
    .iter()
    .map(|value| fault("DIDACTYL_LLM", value))
    .collect();
    insta::assert_snapshot!(table.join("\n"), @r"
    DIDACTYL_LLM has an entry without a provider: give provider/model, or a keyword that DIDACTYL_MODELS has
    DIDACTYL_LLM has a provider that is not made of letters, digits, - and _
    DIDACTYL_LLM has a provider that is not made of letters, digits, - and _
    DIDACTYL_LLM has an entry without a model, or one with spaces: give provider/model
    DIDACTYL_LLM has no model that can be used: entry 1: GROQ_API_KEY is not set; entry 2: its provider is not in the catalogue: set a valid NAME_BASE_URL for it
    DIDACTYL_LLM names no model: give provider/model
    ");
}

#[test]
fn what_a_configuration_prints_holds_no_secret() {
    let mut vars = good();
    vars.insert("DIDACTYL_API_TOKEN", "a-token-of-22-characters".to_owned());
    let printed = format!("{:?}", read(&vars).unwrap());
    for secret in [KEY_12, "sk-test", "a-token-of-22-characters"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

/// Values of every shape that a variable expects, and what of each is random: of letters that no message has in a row.
fn values() -> impl Strategy<Value = (String, String)> {
    let random = prop_oneof!["[0-9qxz]{6,70}", "[QXZ0-9_-]{6,40}", "\\PC{0,60}", "[0-9a-f]{60,66}"];
    let around = prop_oneof![
        Just(("", "")),
        Just(("nsec1", "")),
        Just(("npub1", "")),
        Just(("wss://", "")),
        Just(("wss://user:", "@in.test")),
        Just(("", "/model")),
        Just(("openai/", "")),
        Just(("openai/x,", "/y")),
        Just(("sqlite:", "")),
        Just(("", ":table")),
        Just(("read=", "")),
        Just(("", "=token")),
        Just(("sha256:", "")),
        Just(("", "d")),
        Just(("https://", "/v1?key=x")),
        Just(("{\"models\":{\"a/b\":{\"", "\":1}}}")),
        Just(("{\"models\":{\"a/b\":{\"tools\":\"", "\"}}}")),
    ];
    (around, random).prop_map(|((before, after), random)| (format!("{before}{random}{after}"), random))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_value_is_ever_echoed(values in prop::collection::vec(prop::option::of(values()), 12)) {
        const NAMES: [&str; 12] = [
            "DIDACTYL_NSEC", "DIDACTYL_ADMIN", "DIDACTYL_RELAYS", "DIDACTYL_STORE", "DIDACTYL_LLM",
            "DIDACTYL_AGENT_NAME", "DIDACTYL_API_TOKEN", "DIDACTYL_LOG", "DIDACTYL_MAX_AGE", "OPENAI_API_KEY",
            "OPENAI_BASE_URL", "DIDACTYL_MODELS",
        ];
        let (vars, random): (BTreeMap<_, _>, Vec<String>) = NAMES
            .into_iter()
            .zip(values)
            .filter_map(|(name, value)| value.map(|(value, random)| ((name, value), random)))
            .unzip();
        if let Err(error) = read(&vars) {
            let error = error.to_string().to_lowercase();
            for random in random {
                let chars: Vec<char> = random.to_lowercase().chars().collect();
                for piece in chars.windows(6) {
                    let piece: String = piece.iter().collect();
                    prop_assert!(!error.contains(&piece), "{:?}: {}", piece, error);
                }
            }
        }
    }
}

#[test]
fn a_switch_is_true_or_false_and_nothing_that_could_be_meant_as_either() {
    for (text, is_on) in [("true", true), ("False", false), (" TRUE ", true)] {
        assert_eq!(with("DIDACTYL_STANDBY", text).unwrap().standby, is_on);
        assert_eq!(with("DIDACTYL_HELLO", text).unwrap().hello, is_on);
    }
    for text in ["1", "off", "yes please"] {
        assert_eq!(fault("DIDACTYL_STANDBY", text), "DIDACTYL_STANDBY is neither true nor false");
    }
}
