//! A prompt: a message of an admin that came over HTTP (`POST /api/prompt/agent`) or by direct invocation.
//!
//! Both doors have the same fields, `{"message":…,"model"?,"max_turns"?}`, and read them here.

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::MAX_TEXT_BYTES;

/// The most model calls with tools that a request may ask for.
pub const MAX_TURNS: u32 = 16;

/// Model calls with tools where a request does not say.
pub const DEFAULT_TURNS: u32 = 4;

/// The longest model chain, in bytes: as in a skill's `llm` tag.
const MAX_CHAIN_BYTES: usize = 1000;

/// A message, and how it wants to be answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// What the admin says.
    pub message: String,
    /// The model chain to use instead of the skills' and the agent's, for this request alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The most model calls that may use tools, 1 to [`MAX_TURNS`]; [`DEFAULT_TURNS`] where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u32>,
}

/// The fields as they come; each is checked for itself, so that the answer can name the one that is wrong.
#[derive(Deserialize)]
struct Wire {
    message: Option<OneOf<String>>,
    model: Option<OneOf<String>>,
    max_turns: Option<OneOf<u32>>,
}

/// What a field should be, or something else.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOf<T> {
    Right(T),
    Wrong(IgnoredAny),
}

impl Prompt {
    /// Reads a JSON object; fields that are not known are passed over, and null counts as absent.
    ///
    /// # Errors
    /// Which field is wrong, and what it should be; never its content.
    pub fn read(json: &str) -> Result<Self, &'static str> {
        const MESSAGE: &str = "`message` must be a text that is not empty";
        const MODEL: &str = "`model` must be a model such as openai/gpt-6-luna, or a chain of them";
        const TURNS: &str = "`max_turns` must be a whole number from 1 to 16";
        const OBJECT: &str = "it must be one JSON object, each field once, without lone surrogates";
        // The derived reader takes a list for the fields in their order.
        if !json.trim_start().starts_with('{') {
            return Err(OBJECT);
        }
        let wire: Wire = serde_json::from_str(json).map_err(|_| OBJECT)?;
        let message = right(wire.message, MESSAGE)?.filter(|text| !text.trim().is_empty()).ok_or(MESSAGE)?;
        if message.len() > MAX_TEXT_BYTES {
            return Err("`message` has more than 131072 bytes: send less at once");
        }
        let model = right(wire.model, MODEL)?;
        let is_chain = |chain: &String| {
            !chain.trim().is_empty() && chain.len() <= MAX_CHAIN_BYTES && !chain.contains(char::is_control)
        };
        if !model.as_ref().is_none_or(is_chain) {
            return Err(MODEL);
        }
        let max_turns = right(wire.max_turns, TURNS)?;
        if !max_turns.is_none_or(|turns| (1..=MAX_TURNS).contains(&turns)) {
            return Err(TURNS);
        }
        Ok(Self { message, model, max_turns })
    }
}

fn right<T>(field: Option<OneOf<T>>, fault: &'static str) -> Result<Option<T>, &'static str> {
    match field {
        None => Ok(None),
        Some(OneOf::Right(value)) => Ok(Some(value)),
        Some(OneOf::Wrong(_)) => Err(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_read_with_what_it_asks_for() {
        let read = Prompt::read(
            r#"{"type":"prompt","message":" hi ","model":"openai/gpt-6-luna, cheap","max_turns":16}"#,
        );
        assert_eq!(
            read,
            Ok(Prompt {
                message: " hi ".to_owned(),
                model: Some("openai/gpt-6-luna, cheap".to_owned()),
                max_turns: Some(16)
            })
        );
        let plain = Prompt { message: "hi".to_owned(), model: None, max_turns: None };
        assert_eq!(Prompt::read(r#"{"message":"hi","model":null,"max_turns":null,"x":[{}]}"#), Ok(plain));
    }

    #[test]
    fn a_prompt_that_cannot_be_read_is_told_which_field_is_wrong() {
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(MAX_TEXT_BYTES + 1));
        let chain = format!(r#"{{"message":"x","model":"{}"}}"#, "m".repeat(MAX_CHAIN_BYTES + 1));
        let told: Vec<&str> = [
            "{}",
            r#"["hi", null, 4]"#,
            r#"{"message":" \n"}"#,
            r#"{"message":["x"]}"#,
            r#"{"message":"\ud800"}"#,
            r#"{"message":"x","message":"y"}"#,
            r#"{"message":"x","model":7}"#,
            r#"{"message":"x","model":" "}"#,
            r#"{"message":"x","model":"a\nb"}"#,
            &chain,
            r#"{"message":"x","max_turns":0}"#,
            r#"{"message":"x","max_turns":17}"#,
            r#"{"message":"x","max_turns":-1}"#,
            r#"{"message":"x","max_turns":"4"}"#,
            &long,
        ]
        .into_iter()
        .map(|json| Prompt::read(json).unwrap_err())
        .collect();
        insta::assert_snapshot!(told.join("\n"), @r"
        `message` must be a text that is not empty
        it must be one JSON object, each field once, without lone surrogates
        `message` must be a text that is not empty
        `message` must be a text that is not empty
        it must be one JSON object, each field once, without lone surrogates
        it must be one JSON object, each field once, without lone surrogates
        `model` must be a model such as openai/gpt-6-luna, or a chain of them
        `model` must be a model such as openai/gpt-6-luna, or a chain of them
        `model` must be a model such as openai/gpt-6-luna, or a chain of them
        `model` must be a model such as openai/gpt-6-luna, or a chain of them
        `max_turns` must be a whole number from 1 to 16
        `max_turns` must be a whole number from 1 to 16
        `max_turns` must be a whole number from 1 to 16
        `max_turns` must be a whole number from 1 to 16
        `message` has more than 131072 bytes: send less at once
        ");
    }
}
