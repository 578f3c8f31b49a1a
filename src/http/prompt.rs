//! `POST /api/prompt/agent`: a message of the admin, with the context that a DM has.

use super::Answer;
use super::request::Request;
use crate::trigger::prompt::Prompt;

/// The path.
pub(super) const PATH: &str = "/api/prompt/agent";

/// Reads the body.
///
/// # Errors
/// The answer for a body that cannot be read.
pub(super) fn read(request: &Request) -> Result<Prompt, Answer> {
    let body = std::str::from_utf8(&request.body).map_err(|_| Answer::error(400, "the body is not UTF-8"))?;
    Prompt::read(body).map_err(|fault| Answer::error(400, format!("the body cannot be read: {fault}")))
}
