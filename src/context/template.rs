//! `{{name}}`: where variables stand in a text.
//!
//! A scanner, not a language: it finds names and leaves what they mean to [`super::render`]. Since a text is cut into
//! pieces before any value is known, a value can never be read as template.

/// The longest name, in bytes, with the spaces around it: else what costs one variable could be of any size.
const MAX_NAME_BYTES: usize = 128;

/// A stretch of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Stays as written.
    Text(&'a str),
    /// The trimmed name of a variable.
    Variable(&'a str),
}

/// Cuts a text at its variables, in one pass.
///
/// A name is 1 to 128 bytes without braces and control characters, the spaces around it included. Anything else in
/// braces is text.
pub(crate) fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut text_start, mut at) = (0, 0);
    while let Some(open) = text.get(at..).and_then(|rest| rest.find("{{")).map(|found| at + found) {
        let inside = open + 2;
        match text.get(inside..).and_then(token) {
            Some((name, len)) => {
                push_text(&mut pieces, text, text_start, open);
                pieces.push(Piece::Variable(name));
                at = inside + len;
                text_start = at;
            }
            // One brace on: of three, the last two may open a name.
            None => at = open + 1,
        }
    }
    push_text(&mut pieces, text, text_start, text.len());
    pieces
}

/// The name that stands at the start of `text`, and how much of it the name and its closing braces take.
fn token(text: &str) -> Option<(&str, usize)> {
    let end = text.find(|c: char| matches!(c, '{' | '}') || c.is_control())?;
    let name = text.get(..end)?.trim();
    let is_name = !name.is_empty() && end <= MAX_NAME_BYTES && text.get(end..)?.starts_with("}}");
    is_name.then_some((name, end + 2))
}

fn push_text<'a>(pieces: &mut Vec<Piece<'a>>, text: &'a str, from: usize, to: usize) {
    if let Some(piece) = text.get(from..to).filter(|piece| !piece.is_empty()) {
        pieces.push(Piece::Text(piece));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The text with each variable in angle brackets.
    fn marked(text: &str) -> String {
        pieces(text)
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => (*text).to_owned(),
                Piece::Variable(name) => format!("<{name}>"),
            })
            .collect()
    }

    #[test]
    fn only_whole_names_are_variables() {
        let long = "x".repeat(128);
        for (text, expected) in [
            ("Hola {{quien}}! {{", "Hola <quien>! {{"),
            ("a {{b", "a {{b"),
            ("a }} b", "a }} b"),
            ("{{}}", "{{}}"),
            ("{{ }}", "{{ }}"),
            ("{{{identity}}}", "{<identity>}"),
            ("{{identity}", "{{identity}"),
            ("{{iden\ntity}}", "{{iden\ntity}}"),
            ("{{ identity }}", "<identity>"),
            ("{{a{{identity}}}}", "{{a<identity>}}"),
            ("{{a}}{{b:c d/é🦀}}", "<a><b:c d/é🦀>"),
            ("{{tab\t}}", "{{tab\t}}"),
            ("{ {a} }", "{ {a} }"),
            (&format!("{{{{{long}}}}}"), &format!("<{long}>")),
            (&format!("{{{{{long}x}}}}"), &format!("{{{{{long}x}}}}")),
            (&format!("{{{{{}x}}}}", " ".repeat(128)), &format!("{{{{{}x}}}}", " ".repeat(128))),
        ] {
            assert_eq!(marked(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_megabyte_of_braces_is_text() {
        let braces = "{".repeat(1 << 20);
        assert_eq!(pieces(&braces), [Piece::Text(&braces)]);
    }

    proptest! {
        #[test]
        fn no_byte_outside_a_variable_is_lost(text in "[{}a \n]{0,40}") {
            let bytes: usize = pieces(&text)
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.len(),
                    Piece::Variable(name) => {
                        assert_eq!(name.trim(), *name);
                        0
                    }
                })
                .sum();
            let variables: usize = variable_bytes(&text);
            prop_assert_eq!(bytes + variables, text.len());
        }
    }

    proptest! {
        #[test]
        fn writing_the_pieces_down_and_reading_them_again_changes_nothing(
            text in "([{}]{1,3}|[a-z ]{1,3}|\n|\t|é)*"
        ) {
            let pieces = pieces(&text);
            let written: String = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => (*text).to_owned(),
                    Piece::Variable(name) => format!("{{{{{name}}}}}"),
                })
                .collect();
            prop_assert_eq!(super::pieces(&written), pieces);
        }
    }

    /// Counted from the right: a variable is a `}}` with the nearest `{{` before it and a name between.
    fn variable_bytes(text: &str) -> usize {
        let (mut rest, mut sum) = (text, 0);
        while let Some((before, after)) = rest.split_once("}}") {
            let name = before.rsplit_once("{{").map(|(_, name)| name);
            match name.filter(|name| !name.trim().is_empty() && !name.contains(['{', '}', '\n'])) {
                Some(name) => {
                    sum += name.len() + 4;
                    rest = after;
                }
                // One brace on: the second may be the first of the next pair.
                None => rest = rest.split_once('}').unwrap().1,
            }
        }
        sum
    }
}
