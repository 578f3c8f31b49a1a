//! Puts values and skills in the place of variables.
//!
//! What a variable inserts is final: only the text of skills, which people wrote as templates, is looked through for
//! variables of its own. The same walk, without values, says which tools are needed ([`super::names`]), so what is
//! fetched is what is rendered.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::layers::Fired;
use super::template::{Piece, pieces};
use super::variables::{self, Known};
use super::{Input, Origin, Variable, document, markdown};
use crate::skill::{self, Skill};
use crate::trigger::Tier;

/// How deep skills may embed skills.
const MAX_DEPTH: usize = 8;

/// The most variables of one context: skills that embed each other many times over would never end.
const MAX_INSERTIONS: usize = 2_000;

/// The most bytes that all rendered text together may have.
const MAX_RENDERED_BYTES: usize = 262_144;

/// The most tools that variables of one context may ask.
const MAX_ENTRIES: usize = 64;

/// The variable that holds the whole document.
pub(crate) const DOCUMENT: &str = "adopted_skills_content";

/// What kind of text is rendered, which decides what some variables mean there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The document: headings go one level down.
    Document,
    /// A section of the soul's template; the first that asks gets the document.
    Section,
    /// The frame of the current message.
    UserBlock,
}

/// Renders all texts of one context and keeps account of it.
pub(crate) struct Renderer<'a> {
    input: &'a Input<'a>,
    document: String,
    place: Place,
    /// What the current section's `limit` says of lists.
    limit: Option<usize>,
    /// The skills that the text at hand lies in, outermost first.
    path: Vec<&'a str>,
    bytes_left: usize,
    insertions_left: usize,
    /// The tools that variables asked for.
    pub(crate) entries: BTreeSet<String>,
    /// What became of each variable.
    pub(crate) variables: BTreeMap<String, Variable>,
    /// The tools that the skills in the context ask for.
    pub(crate) required_tools: BTreeSet<String>,
    /// What was left out, each once.
    pub(crate) warnings: Vec<String>,
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(input: &'a Input<'a>, warnings: Vec<String>) -> Self {
        Self {
            input,
            document: String::new(),
            place: Place::Document,
            limit: None,
            path: Vec::new(),
            bytes_left: MAX_RENDERED_BYTES,
            insertions_left: MAX_INSERTIONS,
            entries: BTreeSet::new(),
            variables: BTreeMap::new(),
            required_tools: BTreeSet::new(),
            warnings,
        }
    }

    /// Renders the document from layer 1, or from `built_in` where no skill fired. It is kept for sections.
    pub(crate) fn document(&mut self, fired: &[Fired<'a>], built_in: Option<&'a str>) -> String {
        (self.place, self.limit) = (Place::Document, None);
        let mut texts = Vec::new();
        for fired in fired {
            let mut text = String::new();
            self.skill(fired.skill, &mut text);
            texts.push(text.trim_end().to_owned());
        }
        if let Some(built_in) = built_in {
            let mut text = String::new();
            self.text(&document::prepare(built_in).text, &mut text);
            texts.push(text);
        }
        self.document = document::join(&self.input.state.name, &texts);
        self.document.clone()
    }

    /// Renders a section of the soul's template.
    pub(crate) fn section(&mut self, text: &'a str, limit: Option<usize>) -> String {
        (self.place, self.limit) = (Place::Section, limit);
        let mut out = String::new();
        self.text(text, &mut out);
        out
    }

    /// The current message, in the frame of the fired skills' `user:` blocks. It follows them where none inserts it.
    pub(crate) fn current_message(&mut self, fired: &[Fired<'a>]) -> String {
        (self.place, self.limit) = (Place::UserBlock, None);
        let mut parts = Vec::new();
        let mut has_message = false;
        for Fired { skill, .. } in fired {
            let Some(block) = &skill.user_block else { continue };
            has_message |= pieces(block).contains(&Piece::Variable("message"));
            self.path.push(skill.d());
            let mut part = String::new();
            self.text(block, &mut part);
            parts.push(part);
            self.path.pop();
        }
        if !has_message {
            parts.push(self.input.trigger.message().into_owned());
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    /// A skill's instructions, as they stand in the place at hand.
    fn skill(&mut self, skill: &'a Skill, out: &mut String) {
        self.required_tools.extend(skill.required_tools.iter().cloned());
        self.path.push(skill.d());
        if self.place == Place::Document {
            let prepared = document::prepare(&skill.instructions);
            if prepared.kept > 0 {
                self.warn(format!(
                    "skill {}: a heading of several lines over a rule cannot go one level down and stays",
                    skill::name(skill.d())
                ));
            }
            self.text(&prepared.text, out);
        } else {
            self.text(skill.instructions.trim(), out);
        }
        self.path.pop();
    }

    fn text(&mut self, text: &str, out: &mut String) {
        for piece in pieces(text) {
            match piece {
                Piece::Text(text) => self.push(text, out),
                Piece::Variable(name) => self.variable(name, out),
            }
        }
    }

    fn variable(&mut self, name: &str, out: &mut String) {
        let Some(left) = self.insertions_left.checked_sub(1) else {
            self.warn(format!("the context has more than {MAX_INSERTIONS} variables, the rest are empty"));
            return;
        };
        self.insertions_left = left;
        let start = out.len();
        let origin = self.resolve(name, out);
        self.note(name, origin, out.get(start..).unwrap_or_default());
    }

    /// Keeps account of a variable that became `text`: here it may have a value and there none.
    fn note(&mut self, name: &str, origin: Origin, text: &str) {
        if !self.variables.contains_key(name) {
            let nothing = Variable { origin: origin.clone(), times: 0, bytes: 0, text: String::new() };
            self.variables.insert(name.to_owned(), nothing);
        }
        let Some(variable) = self.variables.get_mut(name) else { return };
        variable.times = variable.times.saturating_add(1);
        variable.bytes = variable.bytes.saturating_add(text.len());
        if variable.text.is_empty() && !text.is_empty() {
            variable.origin = origin;
            text.clone_into(&mut variable.text);
        }
    }

    /// Entries first, then skills, else nothing: so a skill written for another host still reads well.
    fn resolve(&mut self, name: &str, out: &mut String) -> Origin {
        let input = self.input;
        match name {
            "message" => return self.message(out),
            DOCUMENT => return self.whole_document(out),
            _ => {}
        }
        if let Some(known) = variables::lookup(name, input.state, input.trigger, self.limit) {
            if !self.may_see(name, variables::lowest_tier(name)) {
                return Origin::AboveTier;
            }
            self.known(known, out);
            return Origin::Agent;
        }
        let prefixed = format!("nostr_{name}");
        for entry in [name, prefixed.as_str()] {
            if let Some(lowest) = input.entries.get(entry) {
                return self.entry(name, entry, *lowest, out);
            }
        }
        if let Some(meant) = variables::alias(name) {
            return self.resolve(meant, out);
        }
        match input.state.skill(name) {
            Some(skill) => self.embed(skill, out),
            None => Origin::Nothing,
        }
    }

    fn message(&mut self, out: &mut String) -> Origin {
        if self.place != Place::UserBlock {
            self.warn("{{message}} has a value only in a user: block; elsewhere it is empty".to_owned());
            return Origin::Nothing;
        }
        let input = self.input;
        self.push(&input.trigger.message(), out);
        Origin::Message
    }

    fn whole_document(&mut self, out: &mut String) -> Origin {
        if self.place != Place::Section || !self.path.is_empty() {
            self.warn(format!(
                "{{{{{DOCUMENT}}}}} has a value only in the soul's template; a skill is part of it"
            ));
            return Origin::Nothing;
        }
        // It was counted when it was rendered, and stands once.
        out.push_str(&std::mem::take(&mut self.document));
        Origin::Document
    }

    /// The value of the tool `entry`, which the template calls `name`.
    fn entry(&mut self, name: &str, entry: &str, lowest: Tier, out: &mut String) -> Origin {
        if !self.may_see(name, lowest) {
            return Origin::AboveTier;
        }
        if !self.entries.contains(entry) && self.entries.len() >= MAX_ENTRIES {
            self.warn(format!("variables name more than {MAX_ENTRIES} tools, further ones are empty"));
            return Origin::Nothing;
        }
        self.entries.insert(entry.to_owned());
        match self.input.values.get(entry) {
            Some(value) if entry.ends_with("_json") => self.known(Known::Json(value.clone()), out),
            Some(value) => self.known(Known::List(value.clone()), out),
            // Whoever asked it says why.
            None => {}
        }
        Origin::Tool(entry.to_owned())
    }

    /// Layer 2: the instructions of an adopted skill.
    fn embed(&mut self, skill: &'a Skill, out: &mut String) -> Origin {
        let d = skill::name(skill.d());
        if self.path.contains(&skill.d()) {
            self.warn(format!("skill {d} embeds itself; there it is empty"));
        } else if self.path.len() > MAX_DEPTH {
            self.warn(format!("skill {d} is embedded more than {MAX_DEPTH} levels deep; there it is empty"));
        } else {
            if skill.user_block.is_some() {
                self.warn(format!("skill {d} is embedded without its user: block"));
            }
            self.skill(skill, out);
        }
        Origin::Skill(skill.coordinate.to_string())
    }

    fn known(&mut self, known: Known, out: &mut String) {
        match known {
            Known::Json(Value::Null) | Known::List(Value::Null) => {}
            Known::Text(text) => self.push(&text, out),
            Known::Json(value) => self.push(&markdown::to_json_line(&value), out),
            Known::List(mut value) => {
                if let (Value::Array(items), Some(limit)) = (&mut value, self.limit) {
                    items.truncate(limit);
                }
                self.push_block(&markdown::from_json(&value), out);
            }
        }
    }

    /// Writes bullets and quotes on lines of their own, as far in as the variable stands.
    fn push_block(&mut self, block: &str, out: &mut String) {
        if !block.starts_with(['-', '>']) {
            self.push(block, out);
            return;
        }
        let line = out.get(out.rfind('\n').map_or(0, |newline| newline + 1)..).unwrap_or_default();
        let indent = if line.trim().is_empty() { line.to_owned() } else { String::new() };
        if !line.is_empty() && indent.is_empty() {
            self.push("\n", out);
        }
        self.push(&block.replace('\n', &format!("\n{indent}")), out);
    }

    fn push(&mut self, text: &str, out: &mut String) {
        let end = text.floor_char_boundary(self.bytes_left);
        self.bytes_left = self.bytes_left.saturating_sub(end);
        if end < text.len() {
            self.bytes_left = 0;
            self.warn(format!("the context is larger than {MAX_RENDERED_BYTES} bytes and was cut"));
        }
        out.push_str(text.get(..end).unwrap_or_default());
    }

    fn may_see(&mut self, name: &str, lowest: Tier) -> bool {
        let tier = self.input.trigger.tier;
        if tier < lowest {
            self.warn(format!("{{{{{name}}}}} is above the run's tier {} and empty", tier.as_str()));
        }
        tier >= lowest
    }

    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
