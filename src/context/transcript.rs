//! Messages as text that people read: for debug logs and for the tests' snapshots alike.

use crate::chat::Message;

/// Each message under a line `Section: NAME | role=ROLE`, with the calls it makes or answers.
#[must_use]
pub fn transcript(messages: &[Message], sections: &[String]) -> String {
    let mut parts = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let section = sections.get(index).map_or("turn", String::as_str);
        let mut part = format!("Section: {section} | role={}\n", message.role.as_str());
        if let Some(id) = &message.tool_call_id {
            part.push_str(&format!("Answers call: {id}\n"));
        }
        for call in &message.tool_calls {
            part.push_str(&format!("Calls: {} {} ({})\n", call.name, call.arguments, call.id));
        }
        if !message.content.is_empty() {
            part.push_str(&format!("\n{}\n", message.content));
        }
        parts.push(part);
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::{Role, ToolCall};

    #[test]
    fn calls_and_their_results_are_shown_with_the_messages() {
        let call = ToolCall { id: "call_1".to_owned(), name: "time".to_owned(), arguments: "{}".to_owned() };
        let messages = [
            Message::text(Role::User, "What time is it?"),
            Message::assistant("", vec![call]),
            Message::tool_result("call_1", r#"{"success":true}"#),
        ];
        insta::assert_snapshot!(transcript(&messages, &["current_message".to_owned()]), @r#"
        Section: current_message | role=user

        What time is it?

        Section: turn | role=assistant
        Calls: time {} (call_1)

        Section: turn | role=tool
        Answers call: call_1

        {"success":true}
        "#);
    }
}
