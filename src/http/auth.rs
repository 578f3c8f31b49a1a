//! Who may use a route: bearer tokens, compared by hash in constant time.

use subtle::ConstantTimeEq;

use super::Answer;
use super::request::Request;
use crate::app::App;
use crate::config::Scope;
use crate::hash::sha256;

/// Lets the request pass, or says why not. Where no token is configured nobody passes.
pub(super) fn check(app: &App, request: &Request, needed: Scope) -> Result<(), Answer> {
    let Some(token) = request.header("authorization").and_then(bearer) else {
        return Err(unauthorized("a bearer token is needed"));
    };
    let given = sha256(token.as_bytes());
    // Every token is compared, so that the time tells nothing of which one is near.
    let tokens = app.credentials.api_tokens();
    let scopes = tokens.iter().filter(|known| bool::from(known.sha256.ct_eq(&given)));
    let scopes: Vec<Scope> = scopes.map(|known| known.scope).collect();
    if scopes.iter().any(|scope| *scope == needed || *scope == Scope::All) {
        Ok(())
    } else if scopes.is_empty() {
        Err(unauthorized("the token is not known"))
    } else {
        Err(Answer::error(403, "the token is of another scope"))
    }
}

fn unauthorized(reason: &str) -> Answer {
    Answer::error(401, reason).with_header("www-authenticate", "Bearer")
}

/// The token of `Bearer TOKEN`; the scheme's name in any case (RFC 9110).
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}
