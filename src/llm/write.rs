//! Requests as JSON, written strictly: providers differ in what they forgive, and what we send is what the strictest
//! takes. Reading is [`super::read`]'s affair.

mod messages;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use self::messages::{in_turns, write_messages};
use super::catalogue::Model;
use crate::chat::{ChatRequest, Role, ToolChoice, ToolSchema};

/// The names of parameters that a model refused.
pub(super) type Refused = BTreeSet<&'static str>;

/// The request's body, without what the model does not take.
pub(super) fn write_request(request: &ChatRequest<'_>, model: &Model, refused: &Refused) -> Value {
    let info = &model.info;
    let takes = |parameter: &str| !refused.contains(parameter);
    let mut body = Map::new();
    body.insert("model".into(), model.name.as_str().into());
    let mut messages = write_messages(request.messages, info);
    if info.system_first {
        // Stable: each kind keeps its order.
        messages.sort_by_key(|message| message.get("role").is_none_or(|role| role != Role::System.as_str()));
    }
    if info.alternate_roles {
        messages = in_turns(messages);
    }
    body.insert("messages".into(), messages.into());

    // Where no call is wanted and the model would make one all the same, it sees no schema.
    let heeds_none = info.tool_choice_none && takes("tool_choice");
    let offers = info.tools && (request.tool_choice == ToolChoice::Auto || heeds_none);
    // `tool_choice` without tools is refused, and so is an empty list of tools.
    if offers && !request.tools.is_empty() {
        body.insert("tools".into(), request.tools.iter().map(write_tool).collect());
        let choice = match request.tool_choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
        };
        if takes("tool_choice") {
            body.insert("tool_choice".into(), choice.into());
        }
        if !info.parallel_tool_calls && takes("parallel_tool_calls") {
            body.insert("parallel_tool_calls".into(), false.into());
        }
    }
    if let Some(temperature) = request.params.temperature.filter(|_| info.temperature && takes("temperature"))
    {
        body.insert("temperature".into(), temperature.into());
    }
    let limit = [info.token_limit, info.token_limit.other()].into_iter().find(|limit| takes(limit.as_str()));
    if let (Some(max_tokens), Some(limit)) = (request.params.max_tokens, limit) {
        body.insert(limit.as_str().into(), info.answer_limit(max_tokens).into());
    }
    if let Some(seed) = request.params.seed.filter(|_| takes(info.seed.as_str())) {
        body.insert(info.seed.as_str().into(), seed.into());
    }
    if !info.thinking {
        body.insert("thinking".into(), json!({"type": "disabled"}));
    }
    if info.stream && takes("stream") {
        body.insert("stream".into(), true.into());
        if info.stream_usage && takes("stream_options") {
            body.insert("stream_options".into(), json!({"include_usage": true}));
        }
    }
    Value::Object(body)
}

fn write_tool(tool: &ToolSchema) -> Value {
    json!({"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters,
    }})
}

#[cfg(test)]
mod tests;
