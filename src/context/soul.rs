//! The soul's content: a personality and, below a marker line, a template of sections.
//!
//! The grammar is that of Didactyl's prompt templates. It is line-oriented and only looks like YAML:
//!
//! ```text
//! You are Didactyl.
//!
//! ---template---
//!
//! - section: admin_identity
//!   role: system
//!   content: |
//!     This is your administrator! Admin pubkey (hex): {{admin_pubkey}}
//!
//! - section: dm_history
//!   role: expand
//!   limit: 12
//! ```

#[cfg(feature = "local")]
mod remarks;

use crate::chat::Role;
#[cfg(feature = "local")]
pub(crate) use remarks::remarks;

/// The line that ends the personality. Of several the first counts.
const MARKER: &str = "---template---";

/// The most sections; further ones are skipped.
const MAX_SECTIONS: usize = 32;

/// The longest name of a section, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// What a content block is indented by.
const INDENT: &str = "    ";

/// A soul, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Soul {
    /// What stands above the marker; perhaps empty.
    pub(crate) personality: String,
    /// The template's sections; `None` without a marker.
    pub(crate) sections: Option<Vec<Section>>,
}

/// A part of the context that a template asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Its name in logs and over HTTP.
    pub(crate) name: String,
    /// What stands there.
    pub(crate) body: Body,
    /// How many entries of history or of a list; `None` for the usual number.
    pub(crate) limit: Option<usize>,
}

/// What a section becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// One message, its text with `{{variables}}`.
    Text(Role, String),
    /// The conversation's history.
    History,
}

impl Soul {
    /// Reads a soul's content. Whatever cannot be read is skipped and told in `warnings`.
    pub(crate) fn parse(content: &str, warnings: &mut Vec<String>) -> Self {
        let content = content.strip_prefix('\u{FEFF}').unwrap_or(content).replace("\r\n", "\n");
        let mut lines = content.lines();
        let personality: Vec<&str> = lines.by_ref().take_while(|line| *line != MARKER).collect();
        // `lines` yields nothing after the marker only if the marker is the last line.
        let has_marker = content.lines().any(|line| line == MARKER);
        Self {
            personality: personality.join("\n").trim_end().to_owned(),
            sections: has_marker.then(|| parse_sections(lines, warnings)),
        }
    }
}

/// Reads the sections of a template.
pub(crate) fn parse_sections<'a>(
    lines: impl Iterator<Item = &'a str>,
    warnings: &mut Vec<String>,
) -> Vec<Section> {
    let mut drafts: Vec<Draft<'a>> = Vec::new();
    for line in lines {
        match (line.strip_prefix("- section:"), drafts.last_mut()) {
            (Some(name), _) => drafts.push(Draft::new(name.trim())),
            (None, Some(draft)) => drop(draft.line(line)),
            (None, None) => {}
        }
    }
    if drafts.len() > MAX_SECTIONS {
        warnings.push(format!(
            "soul template: it has {} sections, those after the first {MAX_SECTIONS} are skipped",
            drafts.len()
        ));
        drafts.truncate(MAX_SECTIONS);
    }
    let read = drafts.into_iter().enumerate().filter_map(|(index, draft)| {
        draft
            .finish()
            .inspect_err(|problem| {
                warnings.push(format!("soul template: section {} is skipped: {problem}", index + 1));
            })
            .ok()
    });
    read.collect()
}

/// A section while its lines are read.
struct Draft<'a> {
    name: &'a str,
    role: &'a str,
    limit: &'a str,
    content: Vec<&'a str>,
    in_block: bool,
}

impl<'a> Draft<'a> {
    fn new(name: &'a str) -> Self {
        Self { name, role: "system", limit: "0", content: Vec::new(), in_block: false }
    }

    /// Takes a line of the section; whether it says anything.
    fn line(&mut self, line: &'a str) -> bool {
        if self.in_block {
            let blank = line.trim().is_empty();
            if let Some(text) = line.strip_prefix(INDENT).or(blank.then_some("")) {
                self.content.push(text);
                return true;
            }
            self.in_block = false;
        }
        // Keys that are not known belong to other versions and are passed over.
        match line.trim().split_once(':') {
            Some(("role", role)) => self.role = role.trim(),
            Some(("limit", limit)) => self.limit = limit.trim(),
            Some(("content", text)) => {
                let text = text.trim();
                self.in_block = matches!(text, "|" | "|-" | "|+");
                self.content = if self.in_block { Vec::new() } else { vec![text] };
            }
            _ => return line.trim().is_empty(),
        }
        true
    }

    fn finish(self) -> Result<Section, &'static str> {
        if !(1..=MAX_NAME_BYTES).contains(&self.name.len()) || self.name.contains(char::is_control) {
            return Err("its name is missing or too long");
        }
        let limit: usize = self.limit.parse().map_err(|_| "its limit is not a whole number")?;
        let text = || self.content.join("\n").trim_end_matches('\n').to_owned();
        let body = match self.role {
            "system" => Body::Text(Role::System, text()),
            "user" => Body::Text(Role::User, text()),
            "assistant" => Body::Text(Role::Assistant, text()),
            "expand" => Body::History,
            _ => return Err("its role is not system, user, assistant or expand"),
        };
        Ok(Section { name: self.name.to_owned(), body, limit: (limit > 0).then_some(limit) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(content: &str) -> (Soul, Vec<String>) {
        let mut warnings = Vec::new();
        (Soul::parse(content, &mut warnings), warnings)
    }

    fn section(name: &str, role: Role, text: &str, limit: Option<usize>) -> Section {
        Section { name: name.to_owned(), body: Body::Text(role, text.to_owned()), limit }
    }

    /// A soul as its author would write it.
    fn written(soul: &Soul) -> String {
        // The space keeps a last line from being the marker.
        let mut text = format!("\u{FEFF}{} \n", soul.personality);
        let Some(sections) = &soul.sections else { return text };
        text.push_str("---template---\n");
        for section in sections {
            let (role, content) = match &section.body {
                Body::Text(role, content) => (role.as_str(), content.as_str()),
                Body::History => ("expand", ""),
            };
            let limit = section.limit.unwrap_or(0);
            text.push_str(&format!(
                "- section: {}\n  role: {role}\n  limit: {limit}\n  content: |\n",
                section.name
            ));
            for line in content.split('\n') {
                text.push_str(&format!("    {line}\n"));
            }
        }
        text
    }

    proptest! {
        #[test]
        fn a_soul_written_down_is_read_the_same(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "---template---\n", "---template---", "- section: a\n", "- section: ", "  role: user\n",
                    "  role: expand\n", "  role: x\n", "  limit: 3\n", "  limit: -1\n", "  content: |\n",
                    "  content: {{x}}\n", "    text\n", "      - section: b\n", "\n", "  \n", "\r\n", "text", "\t",
                    "\u{FEFF}", ":", "é🦀", "{{y}}",
                ]),
                0..24,
            )
        ) {
            let (soul, _) = parse(&pieces.concat());
            let (again, warnings) = parse(&written(&soul));
            prop_assert_eq!(again, soul);
            prop_assert_eq!(warnings, [""; 0]);
        }
    }

    #[test]
    fn a_soul_without_a_marker_is_all_personality() {
        let (soul, warnings) = parse("I am.\n ---template---\n---template--- \n- section: x\n");
        assert_eq!(soul.personality, "I am.\n ---template---\n---template--- \n- section: x");
        assert_eq!((soul.sections, warnings), (None, Vec::new()));
    }

    #[test]
    fn sections_are_read_by_the_rules_of_the_grammar() {
        let soul = "\u{FEFF}I am.\r\n\r\n---template---\r\nstray\r\n- section:  first \r\n  role: user\r\n  limit: 3\r\n  \
                    colour: red\r\n  content: |\r\n    one\r\n\r\n      two\r\n    - section: text\r\n\r\n  limit: 4\r\n\
                    - section: second\r\n  content: {{a}}: b\r\n- section: hist\r\n  role: expand\r\n\
                    - section: last\r\n  content: |\r\n    ---template---";
        let (soul, warnings) = parse(soul);
        assert_eq!(soul.personality, "I am.");
        assert_eq!(
            soul.sections.unwrap(),
            [
                section("first", Role::User, "one\n\n  two\n- section: text", Some(4)),
                section("second", Role::System, "{{a}}: b", None),
                Section { name: "hist".to_owned(), body: Body::History, limit: None },
                section("last", Role::System, "---template---", None),
            ]
        );
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn a_marker_at_either_end_counts() {
        let (soul, _) = parse("---template---\n- section: a\n  content: x");
        assert_eq!(soul.personality, "");
        assert_eq!(soul.sections.unwrap().len(), 1);
        let (soul, _) = parse("I am.\n---template---");
        assert_eq!((soul.personality.as_str(), soul.sections), ("I am.", Some(Vec::new())));
    }

    #[test]
    fn sections_that_cannot_be_read_are_skipped_one_by_one() {
        let many = "- section: s\n  content: x\n".repeat(33);
        let (soul, warnings) = parse(&format!(
            "---template---\n- section:\n- section: {}\n- section: a\n  role: oracle\n- section: b\n  limit: -1\n{many}",
            "n".repeat(65)
        ));
        assert_eq!(soul.sections.unwrap().len(), 28);
        insta::assert_snapshot!(warnings.join("\n"), @r"
        soul template: it has 37 sections, those after the first 32 are skipped
        soul template: section 1 is skipped: its name is missing or too long
        soul template: section 2 is skipped: its name is missing or too long
        soul template: section 3 is skipped: its role is not system, user, assistant or expand
        soul template: section 4 is skipped: its limit is not a whole number
        ");
    }
}
