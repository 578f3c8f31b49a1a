//! A skill's content: markdown, or the older JSON with its role blocks.

use nostr::prelude::{Keys, nip44};
use serde::Deserialize;

use super::SkillError;

/// What a skill's content says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) description: Option<String>,
    pub(super) instructions: String,
    pub(super) user_block: Option<String>,
}

/// The older form. Its `base` hint changed nothing that the adoption list does not say, and is passed over.
#[derive(Deserialize)]
struct Json {
    description: Option<String>,
    template: String,
}

/// Whether the text is the older form.
#[cfg(feature = "local")]
pub(super) fn is_json(text: &str) -> bool {
    serde_json::from_str::<Json>(text).is_ok()
}

impl Content {
    /// JSON with a `template` is the older form; all else is markdown as it stands.
    pub(super) fn parse(text: &str) -> Self {
        match serde_json::from_str::<Json>(text) {
            Ok(json) => Self::from_template(json),
            Err(_) => Self { instructions: text.to_owned(), ..Self::default() },
        }
    }

    /// A line that begins with `system:` or `user:` opens a block of that role; what stands before the first is
    /// `system`. Blocks of one role are joined by a blank line.
    fn from_template(json: Json) -> Self {
        let (mut system, mut user) = (Vec::new(), Vec::new());
        let mut block = String::new();
        let mut in_user = false;
        for line in json.template.split_inclusive('\n') {
            let opened = role_line(line, "system:").map(|rest| (false, rest));
            let opened = opened.or_else(|| role_line(line, "user:").map(|rest| (true, rest)));
            let Some((opens_user, rest)) = opened else {
                block.push_str(line);
                continue;
            };
            if in_user { &mut user } else { &mut system }.push(std::mem::take(&mut block));
            in_user = opens_user;
            block.push_str(rest);
        }
        if in_user { &mut user } else { &mut system }.push(block);
        let join = |blocks: &[String]| {
            let blocks: Vec<&str> = blocks.iter().map(|b| b.trim()).filter(|b| !b.is_empty()).collect();
            blocks.join("\n\n")
        };
        let description = json.description.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let user_block = Some(join(&user)).filter(|text| !text.is_empty());
        Self { description, instructions: join(&system), user_block }
    }
}

/// What follows the role on its line, which may already be text of the block.
fn role_line<'a>(line: &'a str, role: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(role)?;
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim_start_matches([' ', '\t']))
}

/// The content of a private skill: NIP-44 to self, or plain text, which older writers left.
pub(super) fn open(content: &str, keys: &Keys) -> Result<String, SkillError> {
    match nip44::decrypt(keys.secret_key(), &keys.public_key(), content) {
        Ok(text) => Ok(text),
        // Ciphertext that does not open must never pass for instructions.
        Err(_) if looks_sealed(content) => Err(SkillError::Sealed),
        Err(_) => Ok(content.to_owned()),
    }
}

/// The shape of a NIP-44 payload of version 2: base64 that begins with the byte 2, of at least 132 characters.
fn looks_sealed(content: &str) -> bool {
    content.len() >= 132
        && content.starts_with('A')
        && content.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(template: &str) -> (String, Option<String>) {
        let json = serde_json::json!({"description": "d", "template": template, "base": true});
        let content = Content::parse(&json.to_string());
        assert_eq!(content.description.as_deref(), Some("d"));
        (content.instructions, content.user_block)
    }

    #[test]
    fn a_template_is_split_at_its_role_lines() {
        assert_eq!(blocks("Only text."), ("Only text.".to_owned(), None));
        assert_eq!(
            blocks("Before.\nsystem:\nBe brief.\n\nuser: Asked:\n{{message}}\nsystem:\nEnd.\n"),
            ("Before.\n\nBe brief.\n\nEnd.".to_owned(), Some("Asked:\n{{message}}".to_owned()))
        );
        assert_eq!(
            blocks("  user: indented\nuser:name\nsystematic"),
            ("user: indented\nuser:name\nsystematic".to_owned(), None)
        );
    }

    #[test]
    fn json_without_a_template_is_text() {
        for text in [r#"{"description":"d"}"#, r#"{"template":1}"#, "[1]", "{", "\"template\""] {
            assert_eq!(Content::parse(text).instructions, text);
        }
    }
}
