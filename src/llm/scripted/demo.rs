//! The script of the demo: a few rules that use the agent's real tools.

use serde_json::{Value, json};

use super::{Answer, Asked};

/// What each answer begins with, so that nobody takes it for a model's.
pub const LABEL: &str = "[scripted model]";

/// Looks for a word in the last message: `post` and `note` → `nostr_post`, `profile` → `nostr_admin_profile`, `time` →
/// `time`, each followed by an answer that quotes the result; else it says how much of the conversation it sees.
#[must_use]
pub fn demo(asked: &Asked) -> Answer {
    if let Some(result) = asked.result() {
        return say(&quote_result(&result));
    }
    let message = asked.last_text("user");
    let lower = message.to_lowercase();
    let wants = |word: &str| lower.contains(word);
    let (tool, arguments) = if wants("post") && wants("note") {
        ("nostr_post", json!({"content": note_text(message)}))
    } else if wants("profile") {
        ("nostr_admin_profile", json!({}))
    } else if wants("time") {
        ("time", json!({}))
    } else {
        return say(&format!("You wrote: {}. {}", in_short(message), what_it_sees(asked)));
    };
    if asked.offers(tool) {
        Answer::call(tool, arguments)
    } else {
        say(&format!("I would call {tool}, but this run does not offer it."))
    }
}

fn say(text: &str) -> Answer {
    Answer::Text(format!("{LABEL} {text}"))
}

/// The text to post: what stands behind the first colon, else the whole message.
fn note_text(message: &str) -> &str {
    message.split_once(':').map_or(message, |(_, text)| text).trim()
}

fn quote_result(result: &Value) -> String {
    let field = |pointer: &str| result.pointer(pointer).and_then(Value::as_str);
    if let Some(error) = field("/error") {
        return format!("That did not work: {error}");
    }
    if let Some(iso) = field("/content/iso") {
        return format!("It is {iso}.");
    }
    if let Some(id) = field("/content/id") {
        return format!("I posted the note {id}.");
    }
    format!("I got this: {}", in_short(&result.get("content").unwrap_or(result).to_string()))
}

fn what_it_sees(asked: &Asked) -> String {
    let spoken = |m: &&Value| m.get("role").is_some_and(|role| role == "user" || role == "assistant");
    // The last one is the message that is being answered.
    let earlier = asked.messages().iter().filter(spoken).count().saturating_sub(1);
    format!("I see {earlier} earlier messages of this conversation.")
}

fn in_short(text: &str) -> String {
    const MOST: usize = 300;
    if text.chars().count() <= MOST {
        text.to_owned()
    } else {
        text.chars().take(MOST).chain(['…']).collect()
    }
}
