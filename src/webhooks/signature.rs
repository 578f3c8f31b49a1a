//! Whether a request is its sender's, and what its repetitions have in common. Pure: the time is an argument.
//!
//! GitHub's form: <https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries>. Stripe's:
//! <https://docs.stripe.com/webhooks/signature>.

use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use nostr::prelude::Timestamp;
use serde::Deserialize;
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::{Form, Hook};
use crate::hash::{hex, sha256, unhex32};
use crate::secret::Secret;

/// How far a signed time may be from ours, either way.
const FRESH: Duration = Duration::from_secs(5 * 60);

/// How long a signature without a time is taken once only.
const SIGNATURE_CLAIM: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// How long a body that nothing else tells from its repetition is taken once only.
const BODY_CLAIM: Duration = Duration::from_secs(10 * 60);

/// A longer id of a delivery stands for itself no more, but for its hash.
const MAX_ID_BYTES: usize = 128;

/// A request, as far as it is looked at here.
pub(crate) struct Call<'a> {
    /// The value of a header, by its name in lower case.
    pub(crate) header: &'a dyn Fn(&str) -> Option<&'a str>,
    /// The bytes that were sent.
    pub(crate) body: &'a [u8],
}

/// What tells a request from others to the same webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Its id.
    pub(crate) id: String,
    /// What no other request may have, whatever its id.
    pub(crate) claim: Option<Claim>,
}

/// Something that a request has and that is taken once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The SHA-256 of what it has, in hex.
    pub(crate) mark: String,
    /// For how long.
    pub(crate) lasts: Duration,
}

/// The delivery that an authentic request is.
///
/// # Errors
/// Why it is not authentic: for the log. A stranger is not told.
pub(crate) fn authenticate(hook: &Hook, call: &Call<'_>, now: Timestamp) -> Result<Delivery, &'static str> {
    match hook.form {
        Form::Github => github(hook, call),
        Form::Stripe => stripe(hook, call, now),
        Form::Bearer => bearer(hook, call, now),
    }
}

/// The delivery's id is not signed, so the signature is claimed beside it.
fn github(hook: &Hook, call: &Call<'_>) -> Result<Delivery, &'static str> {
    let header = (call.header)("x-hub-signature-256").ok_or("it has no X-Hub-Signature-256")?;
    let given = header.trim().strip_prefix("sha256=").and_then(unhex32);
    let given = given.ok_or("its X-Hub-Signature-256 is not sha256= and 64 hex digits")?;
    if signature(hook, &[call.body], &[given]).is_none() {
        return Err("its X-Hub-Signature-256 is of another secret or another body");
    }
    let mark = hex(&sha256(&given));
    let id = named(call, "x-github-delivery").or_else(|| named(call, "idempotency-key"));
    let id = id.unwrap_or_else(|| mark.clone());
    Ok(Delivery { id, claim: Some(Claim { mark, lasts: SIGNATURE_CLAIM }) })
}

/// Only what is signed tells deliveries apart: whoever has seen a request can write any header.
fn stripe(hook: &Hook, call: &Call<'_>, now: Timestamp) -> Result<Delivery, &'static str> {
    let header = (call.header)("stripe-signature").ok_or("it has no Stripe-Signature")?;
    let mut time = None;
    let mut given = Vec::new();
    for part in header.split(',') {
        match part.trim().split_once('=') {
            Some(("t", text)) if time.is_none() => time = Some(text),
            Some(("t", _)) => return Err("its Stripe-Signature has two times"),
            Some(("v1", text)) => given.extend(unhex32(text)),
            _ => {}
        }
    }
    let time = time.filter(|time| time.bytes().all(|b| b.is_ascii_digit()));
    let (time, at) = time
        .and_then(|time| Some((time, time.parse::<u64>().ok()?)))
        .ok_or("its Stripe-Signature has no time")?;
    let parts = [time.as_bytes(), b".", call.body];
    if signature(hook, &parts, &given).is_none() {
        return Err("no v1 of its Stripe-Signature is of this secret, time and body");
    }
    if at.abs_diff(now.as_secs()) > FRESH.as_secs() {
        return Err("the time of its Stripe-Signature is not within five minutes of ours");
    }
    // Of what is signed, and not of a signature: while secrets are changed there is more than one.
    let id = event_id(call.body).unwrap_or_else(|| hex(&sha256(&parts.concat())));
    Ok(Delivery { id, claim: None })
}

fn bearer(hook: &Hook, call: &Call<'_>, now: Timestamp) -> Result<Delivery, &'static str> {
    let header = (call.header)("authorization").ok_or("it has no Authorization")?;
    let token = header.trim().split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let (_, token) = token.ok_or("its Authorization is no bearer token")?;
    // Hashes are of one length, whatever that of the tokens is.
    let given = sha256(token.trim().as_bytes());
    let is_known = |known: &[u8]| bool::from(sha256(known).ct_eq(&given));
    // All are compared, so that the time does not tell which one it is.
    let known = hook.secrets.iter().filter(|secret| is_known(secret.expose().as_bytes()));
    let secret = known.fold(None, |_, secret| Some(secret)).ok_or("its bearer token is not known")?;
    if let Some(id) = named(call, "idempotency-key") {
        return Ok(Delivery { id, claim: None });
    }
    // By the token, since it stands in the record: who reads that must not be able to guess a short body.
    let mac = mac(secret, &[call.body]).ok_or("its bearer token cannot be a key")?;
    let mark = hex(&mac.finalize().into_bytes());
    let id = format!("{mark}@{}", now.as_secs());
    Ok(Delivery { id, claim: Some(Claim { mark, lasts: BODY_CLAIM }) })
}

/// Which of the `given` signatures is one of `parts`. All are compared by all secrets, so that the time tells nothing of which
/// one is good.
fn signature(hook: &Hook, parts: &[&[u8]], given: &[[u8; 32]]) -> Option<[u8; 32]> {
    let mut found = None;
    for secret in &hook.secrets {
        let mac = mac(secret, parts)?;
        for given in given {
            if mac.clone().verify_slice(given).is_ok() {
                found = Some(*given);
            }
        }
    }
    found
}

fn mac(secret: &Secret, parts: &[&[u8]]) -> Option<Hmac<Sha256>> {
    // A key of any length is one.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose().as_bytes()).ok()?;
    parts.iter().for_each(|part| mac.update(part));
    Some(mac)
}

/// The delivery's id as a header names it.
fn named(call: &Call<'_>, header: &str) -> Option<String> {
    let id = (call.header)(header)?.trim();
    if id.is_empty() {
        return None;
    }
    let is_plain = id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
    Some(if is_plain { id.to_owned() } else { hex(&sha256(id.as_bytes())) })
}

/// The id of Stripe's event, which it has in all its deliveries. Whatever else has an id is not the delivery.
fn event_id(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Event {
        id: String,
    }
    let Event { id } = serde_json::from_slice(body).ok()?;
    let is_event =
        id.starts_with("evt_") && id.len() <= MAX_ID_BYTES && id.bytes().all(|b| b.is_ascii_graphic());
    is_event.then_some(id)
}

#[cfg(test)]
mod tests;
