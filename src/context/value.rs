//! How a variable's value stands in the text around it.
//!
//! What [`super::markdown`] writes begins no block on its line. A list or quote takes whole lines: it is set as far
//! in as its variable stands, and ended so that the text after it means the same whatever the value holds.

use serde_json::Value;

use super::markdown;
use super::variables::Known;

/// What a value is written as.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) text: String,
    /// Whether it is a list or quote, which needs lines of its own.
    pub(crate) is_block: bool,
}

/// A list or quote, set into a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lines {
    pub(crate) text: String,
    /// What must be written before further text on the next line. A blank line serves as well.
    pub(crate) end: String,
}

impl Written {
    /// Writes `known`, of a list only the first `limit` entries.
    pub(crate) fn new(known: Known, limit: Option<usize>) -> Self {
        let text = match known {
            Known::Json(Value::Null) | Known::List(Value::Null) => String::new(),
            Known::Text(text) => text,
            Known::Json(value) => markdown::to_json_line(&value),
            Known::List(mut value) => {
                if let (Value::Array(items), Some(limit)) = (&mut value, limit) {
                    items.truncate(limit);
                }
                let text = markdown::from_json(&value);
                let is_block = text.starts_with("- ") || text.starts_with("> ");
                return Self { text, is_block };
            }
        };
        Self { text, is_block: false }
    }

    /// The lines of a list or quote as they follow `before`.
    pub(crate) fn below(&self, before: &str) -> Lines {
        let line = before.get(before.rfind('\n').map_or(0, |newline| newline + 1)..).unwrap_or_default();
        let (start, indent) = match indent(line) {
            Some(indent) => ("", indent),
            None => ("\n", String::new()),
        };
        let text = format!("{start}{}", self.text.replace('\n', &format!("\n{indent}")));
        let last = self.text.rsplit('\n').next().unwrap_or_default();
        let depth = last.len().saturating_sub(last.trim_start().len());
        // An empty quoted line: otherwise the next line would go on in the quote, if its last line lets it.
        let end = match last.trim_start().starts_with('>') {
            true => format!("\n{indent}{:depth$}>", ""),
            false => String::new(),
        };
        Lines { text, end }
    }
}

/// How the lines below a line that only begins lists and quotes continue what it began; `None` if it says more.
fn indent(line: &str) -> Option<String> {
    let is_marker = |word: &str| {
        matches!(word, "-" | "+" | "*" | ">")
            || word.strip_suffix(['.', ')']).is_some_and(|n| n.parse::<u32>().is_ok())
    };
    let is_container = line.is_empty() || line.ends_with([' ', '\t', '>']);
    let continued = |c: char| if c.is_whitespace() || c == '>' { c } else { ' ' };
    (is_container && line.split_whitespace().all(is_marker)).then(|| line.chars().map(continued).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn below(before: &str, value: Value) -> (String, String) {
        let written = Written::new(Known::List(value), None);
        assert!(written.is_block);
        let lines = written.below(before);
        (lines.text, lines.end)
    }

    #[test]
    fn a_block_stands_as_far_in_as_its_variable_and_says_how_it_ends() {
        let expected = |text: &str, end: &str| (text.to_owned(), end.to_owned());
        assert_eq!(below("", json!("a\nb")), expected("> a\n> b", "\n>"));
        assert_eq!(below("x\n\n  ", json!("a\nb")), expected("> a\n  > b", "\n  >"));
        assert_eq!(below("Title\n- ", json!("a\nb")), expected("> a\n  > b", "\n  >"));
        assert_eq!(below("> 1. ", json!(["a", "b"])), expected("- a\n>    - b", ""));
        assert_eq!(below("Say: ", json!({"k": "a\nb"})), expected("\n- **k**:\n  > a\n  > b", "\n  >"));
        assert_eq!(below("- -", json!(["a"])), expected("\n- a", ""));
    }

    #[test]
    fn one_line_needs_no_lines_of_its_own() {
        for (value, text) in
            [(json!(-5), "-5"), (json!("- x"), "\\- x"), (json!([]), "[]"), (json!(null), "")]
        {
            let expected = Written { text: text.to_owned(), is_block: false };
            assert_eq!(Written::new(Known::List(value), None), expected);
        }
    }
}
