//! Text from outside, on its way to a model: without characters that hide or reorder it, and not endless.

use serde_json::Value;

/// `text` without control characters (but tab and newline), without marks that change the direction of writing, and
/// without the invisible tag characters that can carry a message no reader sees.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !is_hidden(*c)).collect()
}

fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        '\u{feff}' | '\u{e0000}'..='\u{e007f}' => true,
        _ => c.is_control(),
    }
}

/// All texts inside `value`, names of fields among them, as [`clean`] has them.
pub(super) fn clean_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(clean(&text)),
        Value::Array(items) => items.into_iter().map(clean_value).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (clean(&name), clean_value(value))).collect()
        }
        other => other,
    }
}

/// The first `max` bytes of `text`, or a little less: no character is cut.
pub(super) fn head(text: &str, max: usize) -> &str {
    text.get(..text.floor_char_boundary(max)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hidden_characters_are_removed_and_all_others_stay() {
        assert_eq!(
            clean("a\u{0}b\u{1b}[31m\u{202e}c\u{e0041}\r\n\t\u{85}ü👩\u{200d}👧"),
            "ab[31mc\n\tü👩\u{200d}👧"
        );
        let value = json!({"a\u{7}": ["\u{2066}x", {"b": "y\u{200f}"}], "n": 1});
        assert_eq!(clean_value(value), json!({"a": ["x", {"b": "y"}], "n": 1}));
    }

    #[test]
    fn a_head_ends_between_characters() {
        assert_eq!((head("aüb", 2), head("aüb", 3), head("aüb", 99)), ("a", "aü", "aüb"));
        for max in [1, 40, 200, 4000, 16_000] {
            for text in [
                "a".repeat(max - 1) + &"🦀".repeat(10),
                "é".repeat(max),
                "a".to_owned() + &"\u{301}".repeat(max),
            ] {
                let shown = head(&text, max);
                assert!(shown.len() <= max && shown.len() + 4 > max && text.starts_with(shown), "{max}");
            }
        }
    }
}
