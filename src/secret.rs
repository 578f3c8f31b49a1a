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

/// All the secrets that a process was told, to be taken out of texts that people will read.
#[derive(Debug, Clone, Default)]
pub struct Mask(Vec<Secret>);

/// A shorter one guards nothing, and its letters stand in any text.
const MIN_MASKED_BYTES: usize = 4;

impl Mask {
    /// A mask of these secrets.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut mask = Self::default();
        mask.extend(secrets);
        mask
    }

    /// Masks more secrets.
    pub fn extend(&mut self, secrets: impl IntoIterator<Item = Secret>) {
        for secret in secrets {
            // Inside JSON some characters are written in another way.
            let json = Secret::new(serde_json::Value::from(secret.expose()).to_string());
            let unquoted = json.expose().strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let in_json = Secret::new(unquoted.unwrap_or_default().to_owned());
            for spelling in [secret, in_json] {
                let is_new = !self.0.iter().any(|known| known.expose() == spelling.expose());
                if is_new && spelling.expose().len() >= MIN_MASKED_BYTES {
                    self.0.push(spelling);
                }
            }
        }
        // Of two that begin alike the longer is not to be left half.
        self.0.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
    }

    /// The same and those of `other`.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.extend(other.0);
        self
    }

    /// `text` without any of them.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| secret.redact(&text))
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

    #[test]
    fn a_mask_takes_out_every_secret_the_longer_first_and_as_json_spells_it() {
        let secret = |text: &str| Secret::new(text.to_owned());
        let mask = Mask::new(["sk-1234", "sk-12345", "a", "qu\"ote\\d"].map(secret));
        assert_eq!(
            mask.redact("sk-12345 sk-1234, a: qu\"ote\\d {\"k\":\"qu\\\"ote\\\\d\"}"),
            "[redacted] [redacted], a: [redacted] {\"k\":\"[redacted]\"}"
        );
        let more = mask.and(Mask::new([secret("token")]));
        assert_eq!(more.redact("sk-1234 token"), "[redacted] [redacted]");
        assert!(!format!("{more:?}").contains("token"));
    }
}
