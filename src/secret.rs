//! Secrets that the agent holds: provider keys, tokens. They are never printed and are wiped when dropped.

use std::fmt;

use zeroize::Zeroizing;

/// A text that must not leave the process but to the one place it is meant for.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes the text over.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text itself, for the place it is meant for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// `text` without this secret: providers echo keys in their error messages.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        if self.0.is_empty() {
            return text.to_owned();
        }
        text.replace(self.expose(), REDACTED)
    }
}

const REDACTED: &str = "[redacted]";

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_itself_to_nobody_who_does_not_ask() {
        let secret = Secret::new("sk-12345".to_owned());
        assert_eq!(format!("{secret:?} {:?}", Some(&secret)), "[redacted] Some([redacted])");
        assert_eq!(secret.expose(), "sk-12345");
    }

    #[test]
    fn an_echoed_secret_is_taken_out_of_a_text() {
        let secret = Secret::new("sk-12345".to_owned());
        assert_eq!(secret.redact("bad key sk-12345, sk-12345!"), "bad key [redacted], [redacted]!");
        assert_eq!(Secret::new(String::new()).redact("as it is"), "as it is");
    }
}
