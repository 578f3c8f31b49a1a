//! Answers from JSON, read leniently: walked as a [`Value`], so that a null, a missing field or an odd type costs that
//! field and not the answer. What a status means is [`super::failure`]'s affair, and what makes a body out of a stream
//! [`super::stream`]'s.

use serde_json::{Map, Value};

use super::LlmError;
use crate::chat::{ChatAnswer, FinishReason, ToolCall, Usage};

/// The longest finish reason that is kept.
const MAX_REASON_CHARS: usize = 64;

/// The body of an answer as JSON.
///
/// # Errors
/// [`LlmError::Unreadable`] for anything else: a proxy's HTML page, a body that was cut.
pub(super) fn parse(body: &[u8]) -> Result<Value, LlmError> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    serde_json::from_slice(body)
        .or_else(|_| serde_json::from_slice(&without_lone_surrogates(body)))
        .map_err(|_| LlmError::Unreadable(format!("{} bytes that are not JSON", body.len()).into()))
}

/// A model whose answer is cut inside an emoji leaves half of a UTF-16 pair behind, which no text can hold: it becomes the
/// replacement character. Escapes alone are looked at, so the text need not be JSON.
fn without_lone_surrogates(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body;
    while !rest.is_empty() {
        let (piece, behind): (&[u8], _) = match (unicode_escape(rest), rest) {
            (Some((0xd800..=0xdbff, behind)), _)
                if matches!(unicode_escape(behind), Some((0xdc00..=0xdfff, _))) =>
            {
                rest.split_at_checked(2 * ESCAPE_BYTES).unwrap_or((rest, &[]))
            }
            (Some((0xd800..=0xdfff, behind)), _) => (b"\\ufffd", behind),
            // The character behind a backslash begins no escape.
            (_, [b'\\', ..]) => rest.split_at_checked(2).unwrap_or((rest, &[])),
            _ => rest.split_at_checked(1).unwrap_or((rest, &[])),
        };
        out.extend_from_slice(piece);
        rest = behind;
    }
    out
}

/// The bytes of `\ud83d`.
const ESCAPE_BYTES: usize = 6;

/// The code of the escape that `text` begins with, and what stands behind it.
fn unicode_escape(text: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, behind) = text.strip_prefix(b"\\u")?.split_at_checked(ESCAPE_BYTES - 2)?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some((u16::from_str_radix(digits, 16).ok()?, behind))
}

/// The error that a body carries, whatever its status says. Google wraps it into a list.
pub(super) fn error_in(body: &Value) -> Option<&Value> {
    let body = body.get(0).unwrap_or(body);
    let choice = body.pointer("/choices/0/error");
    body.get("error").into_iter().chain(choice).find(|error| !error.is_null())
}

/// The answer in a body without an error. `is_cut`: it broke off, and its last call may lack its end.
///
/// # Errors
/// [`LlmError::Unreadable`] where there is no message in it.
pub(super) fn read_answer(body: &Value, model: &str, is_cut: bool) -> Result<ChatAnswer, LlmError> {
    let choice =
        body.pointer("/choices/0").ok_or_else(|| LlmError::Unreadable("it holds no choices".into()))?;
    let message = choice
        .get("message")
        .filter(|m| m.is_object())
        .ok_or_else(|| LlmError::Unreadable("its first choice holds no message".into()))?;
    let (mut tool_calls, is_last_bare) = read_calls(message);
    let finish_reason = read_finish_reason(choice, !tool_calls.is_empty());
    if (is_cut || finish_reason == FinishReason::Length)
        && is_last_bare
        && let Some(last) = tool_calls.last_mut()
    {
        last.arguments.clear();
    }
    Ok(ChatAnswer {
        content: read_content(message),
        finish_reason,
        tool_calls,
        usage: read_usage(body),
        model: model.to_owned(),
    })
}

/// The visible text: a string or text parts, without a block of thoughts in front; else the words of a refusal.
fn read_content(message: &Value) -> String {
    let text = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(part_text).collect(),
        _ => String::new(),
    };
    let text = without_thoughts(&text);
    if !text.trim().is_empty() {
        return text.to_owned();
    }
    message.get("refusal").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The text of one part of a content, where it is for the reader.
pub(super) fn part_text(part: &Value) -> Option<&str> {
    match part {
        Value::String(text) => Some(text),
        // Parts of other types (`thinking`, `reasoning`) are not for the reader.
        _ if matches!(part.get("type").and_then(Value::as_str), None | Some("text" | "output_text")) => {
            part.get("text").and_then(Value::as_str)
        }
        _ => None,
    }
}

/// The tags between which servers leave a model's thoughts.
const THOUGHTS: [&str; 4] = ["think", "thinking", "thought", "reasoning"];

/// Some servers leave the model's thoughts in front of its text. Tags further on are the text's own.
fn without_thoughts(text: &str) -> &str {
    let inside = |tag: &&str| text.trim_start().strip_prefix('<')?.strip_prefix(*tag)?.strip_prefix('>');
    match THOUGHTS.iter().find_map(|tag| Some((tag, inside(tag)?))) {
        None => text,
        Some((tag, thoughts)) => {
            thoughts.split_once(&format!("</{tag}>")).map_or("", |(_, text)| text.trim_start())
        }
    }
}

/// The calls, and whether the last one has no arguments at all: none needed, or none written yet.
fn read_calls(message: &Value) -> (Vec<ToolCall>, bool) {
    let mut calls: Vec<&Value> = match message.get("tool_calls") {
        Some(Value::Array(calls)) => calls.iter().filter(|call| call.is_object()).collect(),
        _ => Vec::new(),
    };
    if calls.is_empty() {
        // The shape before there were several calls in one message.
        calls.extend(message.get("function_call").filter(|call| call.is_object()));
    }
    let is_last_bare = calls.last().is_some_and(|call| match function_of(call).get("arguments") {
        None | Some(Value::Null) => true,
        Some(arguments) => arguments.as_str().is_some_and(|text| text.trim().is_empty()),
    });
    (calls.into_iter().map(read_call).collect(), is_last_bare)
}

fn function_of(call: &Value) -> &Value {
    call.get("function").filter(|function| function.is_object()).unwrap_or(call)
}

fn read_call(call: &Value) -> ToolCall {
    let function = function_of(call);
    let text = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    ToolCall {
        id: text(call.get("id")),
        name: text(function.get("name")),
        arguments: read_arguments(function.get("arguments")),
        signature: signature_of(call).map(str::to_owned),
    }
}

/// Where Google's OpenAI-compatible endpoint puts what it wants back with the call. See
/// <https://ai.google.dev/gemini-api/docs/thought-signatures>.
pub(super) fn signature_of(call: &Value) -> Option<&str> {
    let signature = call.pointer("/extra_content/google/thought_signature").and_then(Value::as_str);
    signature.filter(|signature| !signature.is_empty())
}

/// The arguments as JSON text. Nothing in its many spellings is `{}`; an object is written as text; a text that holds
/// the text of an object is unwrapped once. What is left is as the model wrote it.
fn read_arguments(arguments: Option<&Value>) -> String {
    let text = match arguments {
        None | Some(Value::Null) => return "{}".to_owned(),
        Some(Value::String(text)) => text.trim(),
        Some(other) => return other.to_string(),
    };
    match serde_json::from_str::<Value>(text) {
        _ if text.is_empty() => "{}".to_owned(),
        Ok(Value::Null) => "{}".to_owned(),
        Ok(Value::String(inner)) if inner.trim().is_empty() => "{}".to_owned(),
        Ok(Value::String(inner)) if serde_json::from_str::<Map<String, Value>>(&inner).is_ok() => inner,
        _ => text.to_owned(),
    }
}

/// Whether there are calls decides, not the word: several providers say `stop` beside calls.
fn read_finish_reason(choice: &Value, calls: bool) -> FinishReason {
    match choice.get("finish_reason").and_then(Value::as_str).unwrap_or_default() {
        "length" | "max_tokens" => FinishReason::Length,
        _ if calls => FinishReason::ToolCalls,
        "" | "stop" | "end_turn" | "eos" | "tool_calls" | "function_call" | "tool_use" => FinishReason::Stop,
        other => FinishReason::Other(other.chars().take(MAX_REASON_CHARS).collect()),
    }
}

fn read_usage(body: &Value) -> Option<Usage> {
    let usage = body.get("usage").filter(|u| u.is_object())?;
    let count = |pointers: &[&str]| {
        let value = pointers.iter().find_map(|pointer| usage.pointer(pointer))?;
        // Some proxies write counts as floats; the cast saturates.
        value.as_u64().or_else(|| value.as_f64().map(|float| float as u64))
    };
    let usage = Usage {
        input_tokens: count(&["/prompt_tokens", "/input_tokens"]),
        cached_input_tokens: count(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
            "/cached_tokens",
        ]),
        output_tokens: count(&["/completion_tokens", "/output_tokens"]),
    };
    (usage != Usage::default()).then_some(usage)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Google's signatures of calls.
    #[test]
    fn a_calls_signature_is_read_where_google_puts_it_and_no_other_extra_is() {
        let table = [
            (json!({"google": {"thought_signature": "seal"}}), Some("seal")),
            (json!({"google": {"thought_signature": ""}}), None),
            (json!({"google": {"thought_signature": 7}}), None),
            (json!({"other": {"thought_signature": "seal"}}), None),
            (json!(null), None),
        ];
        for (extra, expected) in table {
            let answer =
                read(json!({"tool_calls": [{"id": "c", "function": {"name": "t"}, "extra_content": extra}]}));
            assert_eq!(answer.tool_calls[0].signature.as_deref(), expected, "{extra}");
        }
    }

    fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
        ToolCall::new(id, name, arguments)
    }

    fn read(message: Value) -> ChatAnswer {
        read_answer(&json!({"choices": [{"message": message}]}), "p/m", false).unwrap()
    }

    #[test]
    fn content_is_read_in_each_of_its_shapes() {
        let table = [
            (json!({"content": "hi"}), "hi"),
            (json!({"content": null}), ""),
            (json!({}), ""),
            (json!({"content": 7}), ""),
            (json!({"content": [{"type": "text", "text": "a"}, "b", {"text": "c"}]}), "abc"),
            (json!({"content": [{"type": "thinking", "text": "hmm"}, {"type": "text", "text": "a"}]}), "a"),
            (json!({"content": "", "reasoning_content": "hmm", "reasoning": "hmm"}), ""),
            (json!({"content": "<think>hmm</think>\n\nhi"}), "hi"),
            (json!({"content": "\n<think>hmm"}), ""),
            (json!({"content": "<reasoning>hmm</reasoning>hi"}), "hi"),
            (json!({"content": "say <think>"}), "say <think>"),
            (json!({"content": "<thinker>hi"}), "<thinker>hi"),
            (json!({"content": null, "refusal": "I will not."}), "I will not."),
        ];
        for (message, expected) in table {
            assert_eq!(read(message.clone()).content, expected, "{message}");
        }
    }

    #[test]
    fn arguments_are_read_in_each_of_their_shapes() {
        let table = [
            (json!({"name": "t", "arguments": ""}), "{}"),
            (json!({"name": "t", "arguments": " "}), "{}"),
            (json!({"name": "t", "arguments": null}), "{}"),
            (json!({"name": "t", "arguments": "null"}), "{}"),
            (json!({"name": "t", "arguments": {}}), "{}"),
            (json!({"name": "t"}), "{}"),
            (json!({"name": "t", "arguments": "\"\""}), "{}"),
            (json!({"name": "t", "arguments": {"a": 1}}), r#"{"a":1}"#),
            (json!({"name": "t", "arguments": "{\"a\": 1}"}), r#"{"a": 1}"#),
            (json!({"name": "t", "arguments": "\"{\\\"a\\\":1}\""}), r#"{"a":1}"#),
            (json!({"name": "t", "arguments": "{\"a\":"}), r#"{"a":"#),
            (json!({"name": "t", "arguments": [1]}), "[1]"),
        ];
        for (function, expected) in table {
            let answer = read(json!({"tool_calls": [{"id": "c", "type": "function", "function": function}]}));
            assert_eq!(answer.tool_calls, [call("c", "t", expected)], "{function}");
        }
    }

    #[test]
    fn calls_are_read_without_ids_without_types_and_in_the_legacy_shape() {
        let answer = read(json!({"tool_calls": [
            {"function": {"name": "a", "arguments": "{}"}}, {"id": null, "name": "b"}, null, {"id": 7, "function": {}},
        ]}));
        assert_eq!(answer.tool_calls, [call("", "a", "{}"), call("", "b", "{}"), call("7", "", "{}")]);
        let legacy = read(json!({"tool_calls": null, "function_call": {"name": "a", "arguments": "{}"}}));
        assert_eq!(legacy.tool_calls, [call("", "a", "{}")]);
    }

    #[test]
    fn calls_decide_and_not_the_finish_reason() {
        let calls = json!([{"id": "c", "function": {"name": "t"}}]);
        for reason in [json!("stop"), json!("end_turn"), json!("function_call"), json!(null), json!("")] {
            let choice = json!({"finish_reason": reason, "message": {"tool_calls": calls}});
            let answer = read_answer(&json!({"choices": [choice]}), "p/m", false).unwrap();
            assert_eq!(answer.finish_reason, FinishReason::ToolCalls, "{reason}");
        }
        let reason = |reason: Value| {
            let choice = json!({"finish_reason": reason, "message": {"content": "done", "tool_calls": []}});
            read_answer(&json!({"choices": [choice]}), "p/m", false).unwrap().finish_reason
        };
        assert_eq!(reason(json!("tool_calls")), FinishReason::Stop);
        assert_eq!(reason(json!("length")), FinishReason::Length);
        assert_eq!(reason(json!("content_filter")), FinishReason::Other("content_filter".into()));
    }

    #[test]
    fn usage_is_read_where_it_is_and_missing_where_it_is_not() {
        let usage = |usage: Value| read_usage(&json!({"usage": usage}));
        let told = |input, cached, output| {
            Some(Usage { input_tokens: input, cached_input_tokens: cached, output_tokens: output })
        };
        assert_eq!(usage(json!(null)), None);
        assert_eq!(usage(json!({})), None);
        let both = told(Some(3), None, Some(2));
        assert_eq!(usage(json!({"prompt_tokens": 3, "completion_tokens": 2.0})), both);
        assert_eq!(usage(json!({"input_tokens": 3, "output_tokens": 2})), both);
        assert_eq!(usage(json!({"prompt_tokens": 3, "completion_tokens": null})), told(Some(3), None, None));
        for cached in [
            json!({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}),
            json!({"prompt_tokens": 3, "prompt_cache_hit_tokens": 1, "prompt_cache_miss_tokens": 2}),
            json!({"prompt_tokens": 3, "prompt_tokens_details": null, "cached_tokens": 1}),
        ] {
            assert_eq!(usage(cached.clone()), told(Some(3), Some(1), None), "{cached}");
        }
    }

    #[test]
    fn b103_half_of_a_surrogate_pair_becomes_the_replacement_character() {
        let table = [
            (r#""ok \ud83d""#, Some("ok \u{fffd}")),
            (r#""\udc00x""#, Some("\u{fffd}x")),
            (r#""\ud83d\ude00 \uD83D\u0041""#, Some("😀 \u{fffd}A")),
            (r#""\ud83d\ud83d\ude00\ude00""#, Some("\u{fffd}😀\u{fffd}")),
            (r#""\\ud83d \\\ud83d""#, Some("\\ud83d \\\u{fffd}")),
            (r#""\ud83""#, None),
            (r#""\ud8 3d""#, None),
            (r#""\ud83d"#, None),
        ];
        for (body, expected) in table {
            let text = parse(body.as_bytes()).ok();
            assert_eq!(text.as_ref().and_then(Value::as_str), expected, "{body}");
        }
    }

    proptest! {
        #[test]
        fn what_was_json_before_is_not_changed_and_whatever_comes_out_has_no_half_pair(
            pieces in prop::collection::vec(r#"[a"]|\\\\|\\u(d83d|de00|0041)|\\"|\\u?"#, 0..12),
        ) {
            let body = format!("\"{}\"", pieces.concat());
            let mended = without_lone_surrogates(body.as_bytes());
            if serde_json::from_str::<Value>(&body).is_ok() {
                prop_assert_eq!(&mended, body.as_bytes());
            }
            prop_assert_eq!(without_lone_surrogates(&mended), mended);
        }
    }

    #[test]
    fn a_body_without_a_message_is_unreadable_and_a_bom_is_not() {
        assert!(parse(b"\xef\xbb\xbf{}").is_ok());
        let table: [&[u8]; 7] = [
            b"",
            b"<!DOCTYPE html><title>Log in</title>",
            b"{\"choices\":[{\"mess",
            b"{\"choices\":null,\"error\":null}",
            b"{\"choices\":[]}",
            b"{\"choices\":[{\"message\":null}]}",
            b"[]",
        ];
        for body in table {
            let error = parse(body).and_then(|body| read_answer(&body, "p/m", false)).unwrap_err();
            assert!(matches!(&error, LlmError::Unreadable(_)), "{error}");
            assert!(!error.to_string().contains('<'), "{error}");
        }
    }

    #[test]
    fn a_call_that_was_cut_before_its_arguments_is_not_one_without_any() {
        let bare = |id: &str| json!({"id": id, "function": {"name": "t", "arguments": ""}});
        let body = |reason: &str| json!({"choices": [{"finish_reason": reason, "message": {"tool_calls": [bare("a"), bare("b")]}}]});
        let arguments = |reason: &str, is_cut| {
            let answer = read_answer(&body(reason), "p/m", is_cut).unwrap();
            answer.tool_calls.into_iter().map(|call| call.arguments).collect::<Vec<_>>()
        };
        assert_eq!(arguments("tool_calls", false), ["{}", "{}"]);
        assert_eq!(arguments("tool_calls", true), ["{}", ""]);
        assert_eq!(arguments("length", false), ["{}", ""]);
    }

    #[test]
    fn an_error_is_found_wherever_it_is() {
        let error = json!({"message": "no"});
        for body in
            [json!({"error": error}), json!([{"error": error}]), json!({"choices": [{"error": error}]})]
        {
            assert_eq!(error_in(&body), Some(&error), "{body}");
        }
        assert_eq!(error_in(&json!({"error": null, "choices": [{"error": null}]})), None);
    }
}
