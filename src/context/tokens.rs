//! How many tokens a text has, roughly: no tokenizer's data is at hand at a cold start.

use crate::chat::Message;

/// What a message costs beside its text: its role, and what separates it from the next.
const MESSAGE_OVERHEAD: usize = 4;

/// An estimate that errs on the high side: three bytes a token.
#[must_use]
pub fn estimate(text: &str) -> usize {
    text.len().div_ceil(3)
}

/// The same of a message, its calls included.
#[must_use]
pub fn of_message(message: &Message) -> usize {
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| estimate(&call.name).saturating_add(estimate(&call.arguments)))
        .sum();
    estimate(&message.content).saturating_add(calls).saturating_add(MESSAGE_OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Role, ToolCall};

    #[test]
    fn a_message_counts_its_text_its_calls_and_itself() {
        let call = ToolCall { id: "c".to_owned(), name: "time".to_owned(), arguments: "{}".to_owned() };
        assert_eq!(of_message(&Message::assistant("123456", vec![call])), 2 + 2 + 1 + 4);
        assert_eq!(of_message(&Message::text(Role::User, "")), 4);
    }
}
