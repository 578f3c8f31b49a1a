//! What a variable's text means, one function each. A fault is half a sentence behind the variable's name, and never holds
//! the text.

use std::collections::BTreeSet;
use std::time::Duration;

use nostr::prelude::{FromBech32, FromMnemonic, Keys, Nip19Profile, PublicKey, RelayUrl};

use super::{ApiToken, Scope, StoreChoice};
use crate::hash::sha256;
use crate::llm::catalogue::{Chain, Custom, Providers};
use crate::relay::address;
use crate::trigger::Tier;

/// A claim outlives its message; of a longer age the stores could not express when it ends.
const LONGEST_MAX_AGE: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

/// A shorter plain token can be guessed.
const MIN_TOKEN_CHARS: usize = 22;

/// An nsec, 64 hex digits, or 12 or 24 words (NIP-06).
pub(super) fn keys(text: &str) -> Result<Keys, String> {
    let words = text.split_whitespace().collect::<Vec<_>>();
    if words.len() > 1 {
        if words.len() != 12 && words.len() != 24 {
            return Err(format!("has {} words: a seed phrase has 12 or 24", words.len()));
        }
        return Keys::from_mnemonic(words.join(" "), None)
            .map_err(|_| "is not a seed phrase of the English word list: check each word".to_owned());
    }
    Keys::parse(text)
        .map_err(|_| "is not a secret key: give an nsec, 64 hex digits, or 12 or 24 words".to_owned())
}

/// One or several npub, nprofile or hex keys, separated by commas or spaces.
pub(super) fn admins(text: &str) -> Result<Vec<PublicKey>, String> {
    let mut admins = Vec::new();
    for (i, word) in list(text).enumerate() {
        if word.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("nsec")) {
            return Err(format!("entry {} is a secret key: give the admin's npub", i + 1));
        }
        let key = public_key(word).ok_or_else(|| {
            format!("entry {} is not a public key: give an npub, nprofile or 64 hex digits", i + 1)
        })?;
        if !admins.contains(&key) {
            admins.push(key);
        }
    }
    if admins.is_empty() { Err("names no key".to_owned()) } else { Ok(admins) }
}

/// An npub, nprofile or hex key.
#[must_use]
pub fn public_key(text: &str) -> Option<PublicKey> {
    PublicKey::parse(text)
        .or_else(|_| Nip19Profile::from_bech32(text).map(|profile| profile.public_key))
        .ok()
        // The crate reads the first 64 digits of a longer text.
        .filter(|_| text.len() == 64 || ["npub", "nprofile", "nostr:"].iter().any(|p| text.starts_with(p)))
        .filter(|key| key.xonly().is_ok())
}

/// Relays with commas or spaces between, normalised, each once.
///
/// # Errors
/// What is wrong, half a sentence.
pub fn relays(text: &str) -> Result<Vec<RelayUrl>, String> {
    let mut relays = BTreeSet::new();
    let mut ordered = Vec::new();
    for (i, word) in list(text).enumerate() {
        let url = address::normalize(word)
            .ok_or_else(|| format!("entry {} is not a relay: give wss://… or ws://…", i + 1))?;
        if relays.insert(url.to_string()) {
            ordered.push(url);
        }
    }
    if ordered.is_empty() { Err("names no relay".to_owned()) } else { Ok(ordered) }
}

/// The chain, and the providers that it and the skills may name; one entry at least must be usable.
pub(super) fn llm(
    text: &str,
    custom: Custom,
    vars: &dyn Fn(&str) -> Option<String>,
) -> Result<(Chain, Providers), String> {
    let chain = custom.chain(text).map_err(|error| error.of_variable())?;
    let providers = Providers::with_custom(&chain, custom, vars);
    if providers.first_usable(&chain).is_err() {
        let lacks = chain.entries().iter().enumerate().map(|(i, id)| {
            let lack = match providers.model(id) {
                Err(lack) if providers.is_catalogued(&id.provider) => lack,
                // Its name may be a key in the wrong place.
                _ => "its provider is not in the catalogue: set a valid NAME_BASE_URL for it".to_owned(),
            };
            format!("entry {}: {lack}", i + 1)
        });
        return Err(format!("has no model that can be used: {}", lacks.collect::<Vec<_>>().join("; ")));
    }
    Ok((chain, providers))
}

pub(super) fn store(text: &str) -> Result<StoreChoice, String> {
    match text.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(StoreChoice::Sqlite(path.into())),
        Some(("dynamodb", table)) if !table.is_empty() => Ok(StoreChoice::DynamoDb(table.to_owned())),
        _ => Err("names no store: give sqlite:PATH or dynamodb:TABLE".to_owned()),
    }
}

/// Seconds, or a number with `s`, `m`, `h` or `d`; 0 is any age.
pub(super) fn age(text: &str) -> Result<Option<Duration>, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 's')) => (text.get(..at), 1),
        Some((at, 'm')) => (text.get(..at), 60),
        Some((at, 'h')) => (text.get(..at), 60 * 60),
        Some((at, 'd')) => (text.get(..at), 24 * 60 * 60),
        _ => (Some(text), 1),
    };
    let seconds = digits
        .and_then(|digits| digits.trim().parse::<u64>().ok())
        .and_then(|number| number.checked_mul(unit))
        .ok_or("is not an age: give seconds, or a number with s, m, h or d, such as 7d; 0 for any age")?;
    if seconds > LONGEST_MAX_AGE.as_secs() {
        return Err("is longer than 36500 days: give 0 for any age".to_owned());
    }
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// The lowest tier that is answered.
pub(super) fn senders(text: &str) -> Result<Tier, String> {
    match text {
        "admin" => Ok(Tier::Admin),
        "wot" => Ok(Tier::Wot),
        "all" => Ok(Tier::Stranger),
        _ => Err("names nobody who could be answered: give admin, wot or all".to_owned()),
    }
}

pub(super) fn per_hour(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (0..=10_000).contains(number));
    number.ok_or_else(|| "is not a whole number from 0 to 10000".to_owned())
}

/// Seconds; 0 is not at all. A function of Lambda's lives for a quarter of an hour at the most.
pub(super) fn listen(text: &str) -> Result<Option<Duration>, String> {
    let seconds: Option<u64> = text.parse().ok().filter(|seconds| *seconds <= 900);
    let seconds = seconds.ok_or("is not a whole number of seconds from 0 to 900")?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// `true` or `false`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    text.to_ascii_lowercase().parse().map_err(|_| "is neither true nor false".to_owned())
}

pub(super) fn turns(text: &str) -> Result<u32, String> {
    let turns = text.parse().ok().filter(|turns| (1..=1000).contains(turns));
    turns.ok_or_else(|| "is not a whole number from 1 to 1000".to_owned())
}

pub(super) fn continuations(text: &str) -> Result<u32, String> {
    let continuations = text.parse().ok().filter(|continuations| *continuations <= 1000);
    continuations.ok_or_else(|| "is not a whole number from 0 to 1000".to_owned())
}

/// Minutes of grace, at least the one in which the next tick comes.
pub(super) fn grace(text: &str) -> Result<Duration, String> {
    let minutes = text.parse().ok().filter(|minutes| (1..=1440).contains(minutes));
    let minutes: u64 = minutes.ok_or_else(|| "is not a whole number of minutes from 1 to 1440".to_owned())?;
    Ok(Duration::from_secs(minutes.saturating_mul(60)))
}

pub(super) fn tokens(text: &str) -> Result<Vec<ApiToken>, String> {
    list(text)
        .enumerate()
        .map(|(i, entry)| token(entry).map_err(|fault| format!("entry {} {fault}", i + 1)))
        .collect()
}

/// A token that is shown to an agent, as its own `tokens` would take it. No secret key of Nostr's is one.
pub fn shown_token(text: &str) -> Result<&str, String> {
    if text.starts_with("nsec1") {
        return Err("is a secret key, which must not be shown to anybody: give a token".to_owned());
    }
    token(text).map(|_| text)
}

/// The tokens of the entries that can be read.
pub(super) fn token_texts(text: &str) -> impl Iterator<Item = &str> {
    list(text).filter_map(|entry| scope_and_token(entry).ok()).map(|(_, token)| token)
}

/// The scope and the token of an entry.
fn scope_and_token(entry: &str) -> Result<(Scope, &str), String> {
    match entry.split_once('=') {
        Some(("all", token)) => Ok((Scope::All, token)),
        Some(("read", token)) => Ok((Scope::Read, token)),
        Some(("bridge", token)) => Ok((Scope::Bridge, token)),
        // A base64 token may end in `=`; only a word that is followed by more is a scope.
        Some((_, rest)) if !rest.trim_matches('=').is_empty() => {
            Err("has an unknown scope: all, read and bridge are known".to_owned())
        }
        _ => Ok((Scope::All, entry)),
    }
}

fn token(entry: &str) -> Result<ApiToken, String> {
    let (scope, token) = scope_and_token(entry)?;
    let sha256 = match token.strip_prefix("sha256:") {
        Some(hex) => unhex32(hex).ok_or("has a sha256 that is not 64 hex digits")?,
        None if token.chars().count() < MIN_TOKEN_CHARS => {
            return Err(format!("is shorter than {MIN_TOKEN_CHARS} characters: it could be guessed"));
        }
        None => sha256(token.as_bytes()),
    };
    Ok(ApiToken { scope, sha256 })
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty())
}

fn unhex32(text: &str) -> Option<[u8; 32]> {
    // The number parser below would take a sign for a digit.
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0; 32];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}
