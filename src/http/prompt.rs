//! `POST /api/prompt/agent`: a message of the admin, with the context that a DM has.

use super::request::Request;
use crate::trigger::prompt::Prompt;

/// The path.
pub(super) const PATH: &str = "/api/prompt/agent";

/// Reads the body.
///
/// # Errors
/// What is wrong with it; the answer is 400.
pub(super) fn read(request: &Request) -> Result<Prompt, String> {
    let body = std::str::from_utf8(&request.body).map_err(|_| "the body is not UTF-8".to_owned())?;
    Prompt::read(body).map_err(|fault| format!("the body cannot be read: {fault}"))
}
