//! A function URL's request, payload format 2.0.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

/// A request as far as the routes need it.
#[derive(Debug)]
pub(super) struct Request {
    /// Upper case.
    pub(super) method: String,
    /// As sent: segments are not decoded.
    pub(super) path: String,
    /// Names in lower case, whatever the sender's spelling.
    headers: BTreeMap<String, String>,
    /// The bytes that the client sent.
    pub(super) body: Vec<u8>,
}

/// `http.method` under `requestContext` is the method; the top-level `httpMethod` of emulators says GET whatever came.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    raw_path: String,
    request_context: Context,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: Option<String>,
    #[serde(default)]
    is_base64_encoded: bool,
}

#[derive(Deserialize)]
struct Context {
    http: Http,
}

#[derive(Deserialize)]
struct Http {
    method: String,
}

impl Request {
    /// Reads the payload.
    pub(super) fn read(payload: &str) -> Result<Self, &'static str> {
        let wire: Wire =
            serde_json::from_str(payload).map_err(|_| "the request is not of payload format 2.0")?;
        let body = wire.body.unwrap_or_default();
        let body = if wire.is_base64_encoded {
            BASE64.decode(body).map_err(|_| "the body is said to be base64 and is not")?
        } else {
            body.into_bytes()
        };
        Ok(Self {
            method: wire.request_context.http.method.to_ascii_uppercase(),
            path: wire.raw_path,
            headers: wire
                .headers
                .into_iter()
                .map(|(name, value)| (name.to_ascii_lowercase(), value))
                .collect(),
            body,
        })
    }

    /// A header's value; `name` in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}
