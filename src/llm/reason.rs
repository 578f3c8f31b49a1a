//! Why a model did not answer, in two voices: ours, for logs, and the provider's, which may quote the prompt.

use std::fmt;

/// The most characters of a provider's own words that are kept.
const MAX_WORDS_CHARS: usize = 1_000;

/// Why a model did not answer. Whatever shows it, shows our words alone; the provider's are for sealed places.
#[derive(Clone, PartialEq, Eq)]
pub struct Reason {
    text: String,
    words: String,
}

impl Reason {
    /// A reason of ours, and what the provider said: one line of it, cut.
    pub(super) fn new(text: String, words: &str) -> Self {
        Self { text, words: one_line(words) }
    }

    /// The provider's own words, perhaps none. They may quote the prompt: they must reach no log, no message and no
    /// store that is not sealed.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.words
    }
}

impl From<&str> for Reason {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<String> for Reason {
    fn from(text: String) -> Self {
        Self { text, words: String::new() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(MAX_WORDS_CHARS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_shows_a_reason_shows_the_providers_words() {
        let reason = Reason::new("status 400".to_owned(), "you wrote: SEKRIT");
        assert_eq!(
            format!("{reason} {reason:?} {:?}", Some(&reason)),
            "status 400 \"status 400\" Some(\"status 400\")"
        );
        assert_eq!(reason.words(), "you wrote: SEKRIT");
    }

    #[test]
    fn the_providers_words_are_one_line_of_bounded_length() {
        let words = Reason::new(String::new(), &"a\u{0}\r\nb ".repeat(1000)).words;
        assert_eq!(words.chars().count(), MAX_WORDS_CHARS + 1);
        assert!(words.starts_with("a b a b") && !words.contains(char::is_control), "{words}");
    }
}
