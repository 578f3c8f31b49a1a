//! What a person who wrote a soul may want to know before it is published, though all of it can be read: lines that look
//! as if they were meant for the template and are not.

use super::{Draft, MARKER};

/// The most lines that are told.
const MAX_REMARKS: usize = 8;

/// What may be a slip of the pen.
pub(crate) fn remarks(content: &str) -> Vec<String> {
    let content = content.strip_prefix('\u{FEFF}').unwrap_or(content).replace("\r\n", "\n");
    let mut lines = content.lines().enumerate();
    let personality: Vec<(usize, &str)> = lines.by_ref().take_while(|(_, line)| *line != MARKER).collect();
    let mut remarks: Vec<String> = personality
        .iter()
        .filter(|(_, line)| is_nearly_marker(line))
        .map(|(at, _)| {
            remark(
                *at,
                &format!(
                    "looks as if a template began and is text; write {MARKER} at the very start of the line"
                ),
            )
        })
        .collect();
    let mut section: Option<Draft<'_>> = None;
    for (at, line) in lines {
        let is_read = match (line.strip_prefix("- section:"), &mut section) {
            (Some(name), _) => {
                section = Some(Draft::new(name.trim()));
                true
            }
            (None, Some(section)) => section.line(line),
            (None, None) => line.trim().is_empty(),
        };
        if !is_read {
            remarks.push(remark(at, meant(line)));
        }
    }
    let more = remarks.len().saturating_sub(MAX_REMARKS);
    remarks.truncate(MAX_REMARKS);
    if more > 0 {
        remarks.push(format!("soul template: {more} more lines say nothing there"));
    }
    remarks
}

fn remark(at: usize, what: &str) -> String {
    format!("soul template: line {} {what}", at.saturating_add(1))
}

/// Whether a line has the marker's word between dashes.
fn is_nearly_marker(line: &str) -> bool {
    let word = line.trim().trim_matches(['-', ' ', '—', '–']);
    ["--", "—", "–"].iter().any(|dashes| line.trim().starts_with(dashes))
        && strsim::osa_distance(&word.to_lowercase(), "template") <= 1
}

/// What to do about a line of a template that says nothing there.
fn meant(line: &str) -> &'static str {
    let line = line.trim();
    let key = line.trim_start_matches(['-', ' ']).split(':').next().unwrap_or_default().trim().to_lowercase();
    let is_near = |known: &str| line.contains(':') && strsim::osa_distance(&key, known) <= 1;
    if is_near("section") {
        "begins no section; write - section: NAME at the very start of the line"
    } else if is_near("role") {
        "says nothing there; is role: meant, below a section?"
    } else if is_near("limit") {
        "says nothing there; is limit: meant, below a section?"
    } else if is_near("content") {
        "says nothing there; is content: meant, below a section?"
    } else {
        "says nothing there and is left out; the text of a section stands below its content: | with four spaces before it"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soul_as_it_should_be_has_no_remarks() {
        for soul in [
            "I am.\n\n--- not a template of mine ---\n- template\n",
            "I am.\r\n---template---\r\n\r\n- section: a\r\n  role: user\r\n  content: |\r\n    one\r\n\r\n    - section: b\r\n  \
             limit: 3\r\n\r\n- section: b\r\n  content: x",
        ] {
            assert_eq!(remarks(soul), [""; 0], "{soul:?}");
        }
    }

    #[test]
    fn a_line_that_is_nearly_of_the_template_is_told_with_what_is_meant() {
        let shifted = "I am.\n  ---template---\n  - section: a\n    content: x";
        let spaced = "I am.\n--- template ---\n- section: a";
        let dashed = "I am.\n--Template--\n---templat---\n—template—";
        let sections = "---template---\n  - section: a\n- Section: b\n-section: c\n- section: d\n  rol: user\n  limits: 3\n  \
                        Content: y\n  content: |\n  two spaces\n    four\n  colour: red\n# a remark";
        let table: String = [shifted, spaced, dashed, sections]
            .map(|soul| format!("{soul}\n=> {}\n\n", remarks(soul).join("\n=> ")))
            .concat();
        insta::assert_snapshot!(table, @r"
        I am.
          ---template---
          - section: a
            content: x
        => soul template: line 2 looks as if a template began and is text; write ---template--- at the very start of the line

        I am.
        --- template ---
        - section: a
        => soul template: line 2 looks as if a template began and is text; write ---template--- at the very start of the line

        I am.
        --Template--
        ---templat---
        —template—
        => soul template: line 2 looks as if a template began and is text; write ---template--- at the very start of the line
        => soul template: line 3 looks as if a template began and is text; write ---template--- at the very start of the line
        => soul template: line 4 looks as if a template began and is text; write ---template--- at the very start of the line

        ---template---
          - section: a
        - Section: b
        -section: c
        - section: d
          rol: user
          limits: 3
          Content: y
          content: |
          two spaces
            four
          colour: red
        # a remark
        => soul template: line 2 begins no section; write - section: NAME at the very start of the line
        => soul template: line 3 begins no section; write - section: NAME at the very start of the line
        => soul template: line 4 begins no section; write - section: NAME at the very start of the line
        => soul template: line 6 says nothing there; is role: meant, below a section?
        => soul template: line 7 says nothing there; is limit: meant, below a section?
        => soul template: line 8 says nothing there; is content: meant, below a section?
        => soul template: line 10 says nothing there and is left out; the text of a section stands below its content: | with four spaces before it
        => soul template: line 11 says nothing there and is left out; the text of a section stands below its content: | with four spaces before it
        => soul template: 2 more lines say nothing there
        ");
    }
}
