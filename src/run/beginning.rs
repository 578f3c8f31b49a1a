//! What a run begins with: its context, as it is kept beside the journal, so that whoever takes the run over goes on with
//! the same bytes, whatever has become of soul, skills and conversation meanwhile.
//!
//! It is written together with the journal's first row and not before: until then nothing is decided, and a run that needs
//! no tool leaves none of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::chat::{Message, Params, ToolSchema};
use crate::context::{Context, FiredSkill};
use crate::error::Error;
use crate::record::to_json;
use crate::store::keys::{self, Place};
use crate::store::{MAX_VALUE_BYTES, Write};
use crate::trigger::{Tier, Trigger};

/// The most bytes of a part: as JSON text inside JSON it has at most twice as many, and is sealed after.
const MAX_PART_BYTES: usize = MAX_VALUE_BYTES / 2 - 500;

/// What a run is made from, besides what happens in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Beginning {
    /// The messages; the current one is the last.
    pub messages: Vec<Message>,
    /// The section that each message belongs to, for snapshots.
    pub sections: Vec<String>,
    /// The tools on offer.
    pub tools: Vec<ToolSchema>,
    /// Model parameters.
    pub params: Params,
    /// The models to try, in order.
    pub model_chain: String,
    /// The most model calls that may use tools.
    pub max_turns: u32,
    /// The skills of layer 1, in order.
    pub skills: Vec<FiredSkill>,
    /// The run's tier.
    pub tier: Tier,
    /// The document of the skills, for a snapshot of the beginning; `None` where the run goes on, since it is not kept.
    #[serde(skip)]
    pub document: Option<String>,
}

/// A row: one part of the JSON text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Part {
    /// How many parts there are.
    of: usize,
    text: String,
}

impl Beginning {
    /// Of a run that begins now.
    #[must_use]
    pub fn new(context: Context, trigger: &Trigger) -> Self {
        Self {
            messages: context.messages,
            sections: context.sections,
            tools: context.tools,
            params: context.params,
            model_chain: context.model_chain,
            max_turns: context.max_turns,
            skills: context.skills,
            tier: trigger.tier,
            document: Some(context.document),
        }
    }

    /// Its rows.
    ///
    /// # Errors
    /// [`Error::Permanent`] where it cannot be written.
    pub(super) fn rows(&self, app: &App, run_id: &str, expires_at: Option<u64>) -> Result<Vec<Write>, Error> {
        let json = to_json(self)?;
        let text = String::from_utf8_lossy(&json);
        let parts = split(&text);
        let row = |(at, text): (usize, &&str)| {
            let part = Part { of: parts.len(), text: (*text).to_owned() };
            app.put_sealed(keys::journal(run_id, Place::Beginning(at)), &part, expires_at)
        };
        parts.iter().enumerate().map(row).collect()
    }

    /// What these parts say; nothing where one is missing.
    ///
    /// # Errors
    /// [`Error::Permanent`] where they are no such text.
    pub(super) fn read(parts: &BTreeMap<usize, Part>) -> Result<Option<Self>, Error> {
        let Some(Part { of, .. }) = parts.get(&0) else { return Ok(None) };
        // Behind the last part may lie what an earlier attempt wrote and no journal followed.
        let texts: Vec<&str> =
            (0..*of).map_while(|at| parts.get(&at)).map(|part| part.text.as_str()).collect();
        if texts.len() < *of {
            return Ok(None);
        }
        serde_json::from_str(&texts.concat())
            .map(Some)
            .map_err(|_| Error::Permanent("what the run began with cannot be read".to_owned()))
    }
}

fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.floor_char_boundary(MAX_PART_BYTES));
        parts.push(part);
        rest = after;
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_that_an_earlier_attempt_left_behind_the_last_one_do_not_count() {
        let part = |of, text: &str| Part { of, text: text.to_owned() };
        let read = |parts: Vec<Part>| Beginning::read(&parts.into_iter().enumerate().collect());
        let json = r#"{"messages":[],"sections":[],"tools":[],"params":{"temperature":0.7,"max_tokens":null,"seed":null},"model_chain":"a/b","max_turns":3,"skills":[],"tier":"wot"}"#;
        let (one, two) = json.split_at(40);
        let whole = read(vec![part(2, one), part(2, two), part(3, "old")]).unwrap().unwrap();
        assert_eq!(serde_json::to_string(&whole).unwrap(), json);
        assert_eq!(read(vec![part(2, one)]).unwrap(), None);
        assert_eq!(read(vec![]).unwrap(), None);
        assert!(read(vec![part(1, one)]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn every_part_fits_into_a_row_and_together_they_are_the_text(
            piece in "\\PC|\u{1}|\"|🦀",
            count in 0_usize..400_000,
        ) {
            let text = serde_json::to_string(&piece.repeat(count)).unwrap();
            let parts = split(&text);
            prop_assert_eq!(&parts.concat(), &text);
            for text in parts {
                let part = to_json(&Part { of: 1, text: text.to_owned() }).unwrap();
                prop_assert!(part.len() + 200 <= MAX_VALUE_BYTES, "{}", part.len());
            }
        }
    }
}
