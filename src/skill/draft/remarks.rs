//! What a person who wrote a draft may want to know before it is published, though all of it can be read.

use serde_json::{Map, Value};

use crate::skill::{Definition, Notes, content, definition, name, triggers};

/// The fields that an event has.
const EVENT_FIELDS: [&str; 7] = ["id", "pubkey", "created_at", "kind", "tags", "content", "sig"];

/// Of a skill: a webhook trigger without a slug, tags that mean nothing here, a content that is JSON but for a slip.
pub(super) fn of_skill(skill: &Definition) -> Vec<String> {
    let mut remarks = Vec::new();
    triggers::tell_of_any_webhook(
        &skill.triggers,
        &mut Notes { skill: name(&skill.d), warnings: &mut remarks },
    );
    // Tags of one letter are there for relays to find events by; triggers of unknown type are told as what they are.
    let others = skill.other_tags.iter().map(|tag| tag.kind());
    for tag in others.filter(|tag| tag.chars().count() > 1 && *tag != "trigger") {
        remarks.push(match nearest(tag, definition::KNOWN) {
            Some(meant) => format!("tag {} means nothing to the agent; is {meant:?} meant?", name(tag)),
            None => format!("tag {} means nothing to the agent and is kept as it is", name(tag)),
        });
    }
    remarks.extend(of_content(&skill.content));
    remarks
}

/// Of an event in JSON: fields that no event has.
pub(super) fn of_event(fields: &Map<String, Value>) -> Vec<String> {
    let others = fields.keys().filter(|field| !EVENT_FIELDS.contains(&field.as_str()));
    let remark = |field: &String| match nearest(field, EVENT_FIELDS) {
        Some(meant) => format!("field {} is none of an event's; is {meant:?} meant?", name(field)),
        None => format!("field {} is none of an event's and is passed over", name(field)),
    };
    others.map(remark).collect()
}

/// A content that begins as JSON and is none, or has no template, is taken for markdown.
fn of_content(text: &str) -> Option<String> {
    const AS_IT_IS: &str = "so it is taken for markdown, and the model sees it as it is";
    if content::is_json(text) || !text.trim_start().strip_prefix('{')?.trim_start().starts_with('"') {
        return None;
    }
    Some(match serde_json::from_str::<Map<String, Value>>(text) {
        Err(error) => format!(
            "the content begins as JSON and is none (line {}, column {}), {AS_IT_IS}; correct it",
            error.line(),
            error.column()
        ),
        Ok(fields) if fields.get("template").is_some_and(Value::is_string) => {
            format!("the content is JSON whose \"description\" is no text, {AS_IT_IS}; correct it")
        }
        Ok(fields) => match fields.keys().find(|field| nearest(field, ["template"]).is_some()) {
            Some(field) if field != "template" => {
                format!(
                    "the content is JSON without \"template\", {AS_IT_IS}; is {} meant for it?",
                    name(field)
                )
            }
            _ => format!("the content is JSON without a text \"template\", {AS_IT_IS}; correct it"),
        },
    })
}

/// The one of `known` that `word` is a slip of the pen for: a letter too many, too few, wrong or swapped, in one of three.
fn nearest<const N: usize>(word: &str, known: [&'static str; N]) -> Option<&'static str> {
    let word: String = word.trim().to_lowercase().chars().take(64).collect();
    let most = (word.chars().count() / 3).max(1);
    let distance = |known: &&str| strsim::osa_distance(&word, known);
    known
        .into_iter()
        .filter(|known| known.len() > 1)
        .min_by_key(distance)
        .filter(|known| distance(known) <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_told_from_another_word() {
        for (word, meant) in [
            ("temprature", Some("temperature")),
            ("Trigger", Some("trigger")),
            ("require_tool", Some("requires_tool")),
            ("max-tokens", Some("max_tokens")),
            ("lml", Some("llm")),
            ("alt", None),
            ("title", None),
            ("client", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(nearest(word, definition::KNOWN), meant, "{word}");
        }
    }

    #[test]
    fn a_content_that_is_json_but_for_a_slip_is_told() {
        for text in ["# Title", "{{variable}} and {", "{ not json }", "{}", "{\"template\":\"x\"}"] {
            assert_eq!(of_content(text), None, "{text}");
        }
        let told: Vec<String> = [
            "{\"template\":\"x\"\n",
            "{\n\"template\":\"a\nb\"}",
            "{\"templte\":\"x\"}",
            "{\"description\":\"x\"}",
            "{\"template\":1}",
            "{\"template\":\"x\",\"description\":1}",
        ]
        .into_iter()
        .map(|text| of_content(text).unwrap_or_default())
        .collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        the content begins as JSON and is none (line 2, column 0), so it is taken for markdown, and the model sees it as it is; correct it
        the content begins as JSON and is none (line 3, column 0), so it is taken for markdown, and the model sees it as it is; correct it
        the content is JSON without "template", so it is taken for markdown, and the model sees it as it is; is "templte" meant for it?
        the content is JSON without a text "template", so it is taken for markdown, and the model sees it as it is; correct it
        the content is JSON without a text "template", so it is taken for markdown, and the model sees it as it is; correct it
        the content is JSON whose "description" is no text, so it is taken for markdown, and the model sees it as it is; correct it
        "#);
    }
}
