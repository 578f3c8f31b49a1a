//! Reading drafts from their files, all of them before any is used.

use std::path::Path;

use nostr::prelude::{Keys, ToBech32};

use super::{Failure, Request};
use crate::cli::read_text;
use crate::context;
use crate::skill::{self, Definition, draft};

/// The most bytes of a draft: no context holds more of its skills.
const MAX_BYTES: u64 = 262_144;

/// The drafts, read and without fault.
pub(super) struct Drafts {
    pub(super) soul: Option<String>,
    pub(super) skills: Vec<Definition>,
    /// What may be other than it was meant, with the file.
    pub(super) remarks: Vec<String>,
}

impl Drafts {
    /// Reads those that the request names.
    ///
    /// # Errors
    /// Every fault of every draft; or that none is named.
    pub(super) fn read(request: &Request, keys: &Keys) -> Result<Self, Failure> {
        let mut drafts = Self { soul: None, skills: Vec::new(), remarks: Vec::new() };
        let mut faults = Vec::new();
        if let Some(file) = &request.soul {
            match drafts.read_soul(file, keys) {
                Ok(warnings) => faults.extend(warnings.iter().map(at(file))),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        for file in &request.skill {
            match drafts.read_skill(file, keys) {
                Ok(warnings) => faults.extend(warnings.iter().map(at(file))),
                Err(fault) => faults.push(fault.to_string()),
            }
        }
        if !faults.is_empty() {
            return Err(format!("correct the drafts:\n{}", faults.join("\n")).into());
        }
        if drafts.soul.is_none() && drafts.skills.is_empty() {
            return Err("name a draft with --soul or --skill".into());
        }
        Ok(drafts)
    }

    /// The faults of a soul's draft.
    fn read_soul(&mut self, file: &Path, keys: &Keys) -> Result<Vec<String>, Failure> {
        let text = text(file, keys)?;
        let soul = draft::soul(file, &text)?;
        self.remarks.extend(context::soul_remarks(soul).iter().map(at(file)));
        self.soul = Some(soul.to_owned());
        Ok(context::soul_warnings(soul))
    }

    /// The faults of a skill's draft.
    fn read_skill(&mut self, file: &Path, keys: &Keys) -> Result<Vec<String>, Failure> {
        let draft = draft::skill(file, &text(file, keys)?, keys)?;
        let mut faults = draft.faults;
        let d = &draft.definition.d;
        if self.skills.iter().any(|other| other.d == *d) {
            faults.push(format!(
                "another draft has the d tag {} too; give one of them another",
                skill::name(d)
            ));
        }
        self.remarks.extend(draft.remarks.iter().map(at(file)));
        self.skills.push(draft.definition);
        Ok(faults)
    }
}

/// A sentence under the name of its file.
fn at(file: &Path) -> impl Fn(&String) -> String {
    move |sentence| format!("{}: {sentence}", file.display())
}

/// The file's text, which must not hold the agent's key: the model reads souls and skills, and so do strangers.
fn text(file: &Path, keys: &Keys) -> Result<String, Failure> {
    let text = read_text(file, MAX_BYTES)?;
    let secrets = [keys.secret_key().to_secret_hex(), keys.secret_key().to_bech32()?];
    if secrets.iter().any(|secret| text.contains(secret)) {
        return Err(format!("{}: holds the agent's secret key; take it out", file.display()).into());
    }
    Ok(text)
}
