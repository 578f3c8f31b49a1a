//! Puts values and skills in the place of variables.
//!
//! What a variable inserts is final: only the text of skills, which people wrote as templates, is looked through for
//! variables of its own. The same walk, without values, says which tools are needed ([`super::names`]), so what is
//! fetched is what is rendered.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde_json::Value;

use super::layers::Fired;
use super::template::{Piece, pieces};
use super::value::Written;
use super::variables::{self, Known};
use super::{Input, Origin, Variable, document, markdown};
use crate::skill::{self, Skill};
use crate::trigger::Tier;

/// How deep skills may embed skills.
const MAX_DEPTH: usize = 8;

/// The most variables of one place: skills that embed each other many times over would never end.
const MAX_INSERTIONS: usize = 2_000;

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

impl Place {
    /// The most bytes that may be written there. Each place has its own share, so that skills without end crowd out
    /// neither the soul nor the message.
    fn max_bytes(self) -> usize {
        match self {
            Self::Document => 262_144,
            Self::Section => 131_072,
            Self::UserBlock => 32_768,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Document => "the document of skills",
            Self::Section => "the soul with its variables",
            Self::UserBlock => "the frame of the current message",
        }
    }
}

/// Renders all texts of one context and keeps account of it.
pub(crate) struct Renderer<'a> {
    input: &'a Input<'a>,
    /// Whether only the names of variables matter, which lie the same whatever becomes of headings and fences.
    is_listing: bool,
    document: String,
    place: Place,
    /// What the current section's `limit` says of lists.
    limit: Option<usize>,
    /// The skills that the text at hand lies in, outermost first.
    path: Vec<&'a str>,
    bytes_left: usize,
    insertions_left: usize,
    /// Whether it was told that none are left.
    is_told: bool,
    /// Where a value ends that takes whole lines: what ends it before further text on the next line.
    block_end: Option<String>,
    /// How many skills were embedded so far.
    embedded: usize,
    /// Where in the text at hand variables stood and lines were broken.
    seams: Vec<usize>,
    /// Where in it the first list or quote ends that a variable inserted.
    first_block: Option<usize>,
    /// Whether the current message stands in its frame.
    has_message: bool,
    /// What skills and values are written as, each worked out once.
    skills: BTreeMap<(bool, &'a str), Rc<str>>,
    values: BTreeMap<(String, Option<usize>), Rc<Written>>,
    /// The tools that variables asked for.
    pub(crate) entries: BTreeSet<String>,
    /// What became of each variable.
    pub(crate) variables: BTreeMap<String, Variable>,
    /// The tools that the skills in the context ask for.
    pub(crate) required_tools: BTreeSet<String>,
    /// What was left out, each once.
    pub(crate) warnings: Vec<String>,
    warned: BTreeSet<String>,
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(input: &'a Input<'a>, is_listing: bool, warnings: Vec<String>) -> Self {
        Self {
            input,
            is_listing,
            document: String::new(),
            place: Place::Document,
            limit: None,
            path: Vec::new(),
            bytes_left: Place::Document.max_bytes(),
            insertions_left: MAX_INSERTIONS,
            is_told: false,
            block_end: None,
            embedded: 0,
            seams: Vec::new(),
            first_block: None,
            has_message: false,
            skills: BTreeMap::new(),
            values: BTreeMap::new(),
            entries: BTreeSet::new(),
            variables: BTreeMap::new(),
            required_tools: BTreeSet::new(),
            warnings,
            warned: BTreeSet::new(),
        }
    }

    /// What is rendered from here on stands in `place`.
    fn enter(&mut self, place: Place, limit: Option<usize>) {
        if place != self.place {
            (self.bytes_left, self.insertions_left) = (place.max_bytes(), MAX_INSERTIONS);
            self.is_told = false;
        }
        (self.place, self.limit, self.block_end) = (place, limit, None);
    }

    /// Renders the document from layer 1, or from `built_in` where no skill fired. It is kept for sections.
    pub(crate) fn document(&mut self, fired: &[Fired<'a>], built_in: Option<&'a str>) -> String {
        let mut texts = Vec::new();
        for fired in fired {
            self.enter(Place::Document, None);
            let embedded = self.embedded;
            self.seams.clear();
            self.first_block = None;
            let mut text = String::new();
            self.skill(fired.skill, &mut text);
            // Each skill is closed as written. What it embeds may stand where its own end no longer closes it, and what
            // stands around a value may open something together with it.
            let may_be_open = embedded != self.embedded
                || self.bytes_left == 0
                || document::opens_at(&text, &self.seams)
                || self.first_block.and_then(|at| text.get(at..)).is_some_and(document::opens_indented);
            if !self.is_listing && may_be_open {
                if document::is_too_deep(&text) {
                    self.warn_too_deep(fired.skill);
                    text.clear();
                }
                document::close(&mut text);
            }
            texts.push(text.trim_end().to_owned());
        }
        if let Some(built_in) = built_in {
            let mut text = String::new();
            self.text(&document::prepare(built_in).text, &mut text);
            texts.push(text);
        }
        self.document = document::join(&markdown::clean(&self.input.state.name), &texts);
        self.document.clone()
    }

    /// The soul's personality, as written.
    pub(crate) fn personality(&mut self, text: &str) -> String {
        self.enter(Place::Section, None);
        let mut out = String::new();
        self.push(text, &mut out);
        out
    }

    /// Renders a section of the soul's template.
    pub(crate) fn section(&mut self, text: &'a str, limit: Option<usize>) -> String {
        self.enter(Place::Section, limit);
        let mut out = String::new();
        self.text(&document::settled(text), &mut out);
        out
    }

    /// The current message, in the frame of the fired skills' `user:` blocks. It follows them where none inserts it.
    pub(crate) fn current_message(&mut self, fired: &[Fired<'a>]) -> String {
        let mut parts = Vec::new();
        for Fired { skill, .. } in fired {
            let Some(block) = &skill.user_block else { continue };
            self.enter(Place::UserBlock, None);
            self.path.push(skill.d());
            let mut part = String::new();
            self.text(&document::settled(block), &mut part);
            parts.push(part);
            self.path.pop();
        }
        if !self.has_message {
            parts.push(self.input.trigger.message().into_owned());
        }
        parts.retain(|part| !part.is_empty());
        parts.join("\n\n")
    }

    /// A skill's instructions, as they stand in the place at hand.
    fn skill(&mut self, skill: &'a Skill, out: &mut String) {
        self.required_tools.extend(skill.required_tools.iter().cloned());
        if self.bytes_left == 0 {
            return;
        }
        let text = self.instructions(skill);
        self.path.push(skill.d());
        self.text(&text, out);
        self.path.pop();
    }

    fn instructions(&mut self, skill: &'a Skill) -> Rc<str> {
        let key = (self.place == Place::Document, skill.d());
        if let Some(text) = self.skills.get(&key) {
            return Rc::clone(text);
        }
        let written = document::settled(&skill.instructions);
        let text: Rc<str> = if self.place == Place::Document && !self.is_listing {
            if document::is_too_deep(&written) {
                self.warn_too_deep(skill);
                return self.skills.entry(key).or_default().clone();
            }
            let prepared = document::prepare(&written);
            if prepared.kept > 0 {
                self.warn(format!(
                    "skill {}: a heading of several lines over a rule cannot go one level down and stays",
                    skill::name(skill.d())
                ));
            }
            prepared.text.into()
        } else {
            written.trim().into()
        };
        self.skills.insert(key, Rc::clone(&text));
        text
    }

    fn warn_too_deep(&mut self, skill: &Skill) {
        self.warn(format!(
            "skill {}: a line lies in more than {} lists and quotes, or is a fence as long; the skill is left out",
            skill::name(skill.d()),
            document::MAX_NESTING
        ));
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
            if !self.is_told {
                self.is_told = true;
                let place = self.place.as_str();
                self.warn(format!("{place} has more than {MAX_INSERTIONS} variables, the rest are empty"));
            }
            return;
        };
        self.insertions_left = left;
        let start = out.len();
        self.seams.push(start);
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
        let (state, trigger, limit) = (input.state, input.trigger, self.limit);
        if let Some(written) = self.written(name, || variables::lookup(name, state, trigger, limit)) {
            if !self.may_see(name, variables::lowest_tier(name)) {
                return Origin::AboveTier;
            }
            self.insert(&written, out);
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
        let text = input.trigger.message();
        if self.has_message {
            self.push(&text, out);
        } else {
            // The run is about it: once it stands there whole, whatever the frame's size.
            self.has_message = true;
            self.end_block(&text, out);
            out.push_str(&text);
        }
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
        let value = self.input.values.get(entry);
        let known = |value: &Value| match entry.ends_with("_json") {
            true => Known::Json(value.clone()),
            false => Known::List(value.clone()),
        };
        // Where there is none, whoever asked for it says why.
        if let Some(written) = self.written(entry, || value.map(known)) {
            self.insert(&written, out);
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
            self.embedded += 1;
            self.skill(skill, out);
            if document::ends_with_fence(out) {
                // Text on a fence's line would open the fence again.
                self.block_end.get_or_insert_default();
            }
        }
        Origin::Skill(skill.coordinate.to_string())
    }

    /// What the value of `name` is written as, if it has one.
    fn written(&mut self, name: &str, known: impl FnOnce() -> Option<Known>) -> Option<Rc<Written>> {
        let key = (name.to_owned(), self.limit);
        if let Some(written) = self.values.get(&key) {
            return Some(Rc::clone(written));
        }
        let written = Rc::new(Written::new(known()?, self.limit));
        self.values.insert(key, Rc::clone(&written));
        Some(written)
    }

    /// Writes a value; one of several lines as far in as its variable stands.
    fn insert(&mut self, written: &Written, out: &mut String) {
        if written.is_block {
            // The last line of another block may look like the start of one.
            self.end_block(&written.text, out);
            let lines = written.below(out);
            self.push(&lines.text, out);
            self.first_block.get_or_insert(out.len());
            self.block_end = Some(lines.end);
        } else {
            self.push(&written.text, out);
        }
    }

    /// Writes text after what stands there.
    fn push(&mut self, text: &str, out: &mut String) {
        self.end_block(text, out);
        match markdown::end_across(out, text) {
            Some(at) => {
                let (before, after) = text.split_at(at);
                self.write(before, out);
                self.write("\\", out);
                self.write(after, out);
            }
            None => self.write(text, out),
        }
    }

    /// Ends a block of lines so that `text`, which comes next, is no part of it, whatever the block holds.
    fn end_block(&mut self, text: &str, out: &mut String) {
        let text = text.trim_start_matches([' ', '\t', '\r']);
        if text.is_empty() {
            return;
        }
        let Some(end) = self.block_end.take() else { return };
        let next_line = text.strip_prefix('\n');
        let is_blank = |line: &str| line.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
        if !next_line.is_some_and(is_blank) {
            self.write(&end, out);
        }
        if next_line.is_none() {
            self.write("\n", out);
            self.seams.push(out.len());
        }
    }

    fn write(&mut self, text: &str, out: &mut String) {
        let end = text.floor_char_boundary(self.bytes_left);
        self.bytes_left = self.bytes_left.saturating_sub(end);
        if end < text.len() {
            self.bytes_left = 0;
            let (place, max) = (self.place.as_str(), self.place.max_bytes());
            self.warn(format!("{place} is larger than {max} bytes and was cut"));
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
        if !self.warned.contains(&warning) {
            self.warned.insert(warning.clone());
            self.warnings.push(warning);
        }
    }
}
