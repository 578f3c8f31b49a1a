//! Long texts and tool results, shortened: the beginning and the end stay, and the true size is named.

use serde_json::{Map, Value, json};

/// Beginning and end of `text` in at most `max` bytes, with what is left out between them named; `text` itself where
/// it fits, and nothing where even the mark does not.
#[must_use]
pub fn excerpt(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mark = |left_out: usize| format!("\n[… {left_out} of {} bytes left out …]\n", text.len());
    let Some(kept) = max.checked_sub(mark(text.len()).len()) else { return String::new() };
    let tail = kept / 3;
    let head = text.floor_char_boundary(kept.saturating_sub(tail));
    let tail = text.ceil_char_boundary(text.len().saturating_sub(tail));
    let left_out = tail.saturating_sub(head);
    let (head, tail) = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
    format!("{head}{}{tail}", mark(left_out))
}

/// A tool's result in at most about `max` bytes. One in our shape, `{"success":true,"content":…}`, keeps it: its content
/// becomes an excerpt of its own JSON text, and `note` says how to get at the rest.
#[must_use]
pub fn result(result: &str, max: usize) -> String {
    if result.len() <= max {
        return result.to_owned();
    }
    let Ok(mut fields) = serde_json::from_str::<Map<String, Value>>(result) else {
        return excerpt(result, max);
    };
    match fields.remove("content") {
        Some(content) => content_in(&content, max),
        None => excerpt(result, max),
    }
}

/// A result with this content, in at most about `max` bytes: see [`result`].
#[must_use]
pub fn content_in(content: &Value, max: usize) -> String {
    let whole = json!({"success": true, "content": content}).to_string();
    if whole.len() <= max {
        return whole;
    }
    let text = match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let note = "too long: beginning and end are shown; call again for a smaller part to read what is between";
    let mut keep = max;
    loop {
        let cut = json!({"success": true, "content": excerpt(&text, keep), "note": note}).to_string();
        // Quoting makes the text longer by an amount that depends on what is in it.
        let excess = cut.len().saturating_sub(max);
        if excess == 0 || keep == 0 {
            return cut;
        }
        keep = keep.min(text.len()).saturating_sub(excess.div_ceil(2));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_excerpt_shows_both_ends_and_the_true_size() {
        let text = format!("begin{}end", "-".repeat(1000));
        assert_eq!(excerpt(&text, 2000), text);
        insta::assert_snapshot!(excerpt(&text, 60), @r"
        begin---------
        [… 987 of 1008 bytes left out …]
        ----end
        ");
        assert_eq!(excerpt(&text, 10), "");
    }

    #[test]
    fn a_result_keeps_its_shape_and_says_how_to_read_on() {
        let long = json!({"success": true, "content": {"a": "x".repeat(5000)}}).to_string();
        insta::assert_snapshot!(result(&long, 220), @r#"{"success":true,"content":"{\"a\":\"xxxxxxxxxxxxxxxxxxxxxxxx\n[… 4964 of 5008 bytes left out …]\nxxxxxxxxxxxx\"}","note":"too long: beginning and end are shown; call again for a smaller part to read what is between"}"#);
        insta::assert_snapshot!(result(&"plain ".repeat(100), 80), @r"
        plain plain plain plain plain
        [… 557 of 600 bytes left out …]
        n plain plain
        ");
    }

    proptest! {
        #[test]
        fn nothing_gets_longer_and_caps_are_kept(text in ".{0,400}", max in 0_usize..500) {
            prop_assert!(excerpt(&text, max).len() <= max);
            let whole = json!({"success": true, "content": text}).to_string();
            let short = result(&whole, max);
            prop_assert!(short.len() <= max.max(200), "{short}");
            let fields: Map<String, Value> = serde_json::from_str(&short).unwrap();
            prop_assert_eq!(&fields["success"], &Value::Bool(true));
        }
    }
}
