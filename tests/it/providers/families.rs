//! One answer in the manner of each family.

use super::*;

struct Family {
    name: &'static str,
    plain: Value,
    chunks: Vec<Value>,
    answer: ChatAnswer,
}

/// The same with a signature of the first call.
fn signed(mut answer: ChatAnswer) -> ChatAnswer {
    answer.tool_calls[0].signature = Some("seal".into());
    answer
}

#[test]
fn each_provider_of_the_catalogue_has_a_family_here() {
    let providers = Providers::resolve(&"ollama/m".parse().unwrap(), &|_| None);
    let letters = |name: &str| name.to_lowercase().replace(|c: char| !c.is_ascii_alphabetic(), "");
    let families: Vec<String> = families().iter().map(|family| letters(family.name)).collect();
    let named = |provider: &str| families.iter().any(|family| family.starts_with(&letters(provider)));
    let without: Vec<&str> = providers.all().map(|(name, _)| name).filter(|name| !named(name)).collect();
    assert_eq!((without, providers.all().count()), (vec![], 13));
}

fn families() -> Vec<Family> {
    let none = || Value::Null;
    vec![
        Family {
            name: "OpenAI",
            plain: json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-5-mini-2025-08-07",
                "choices": [{"index": 0, "logprobs": null, "finish_reason": "stop",
                    "message": {"role": "assistant", "content": "Hello", "refusal": null, "annotations": []}}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12,
                    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0}},
                "service_tier": "default", "system_fingerprint": null}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": "", "refusal": null}), none()),
                chunk(json!({"content": "Hel"}), none()),
                chunk(json!({"content": "lo"}), none()),
                chunk(json!({}), "stop".into()),
                json!({"choices": [], "obfuscation": "x", "usage": {"prompt_tokens": 10, "completion_tokens": 2,
                    "prompt_tokens_details": {"cached_tokens": 4}}}),
            ],
            answer: text("Hello", used(10, Some(4), 2)),
        },
        Family {
            name: "OpenAI, two calls",
            plain: json!({"choices": [{"index": 0, "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "call_a", "type": "function", "function": {"name": "time", "arguments": "{}"}},
                    {"id": "call_b", "type": "function", "function": {"name": "post", "arguments": "{\"a\":1}"}}]}}]}),
            chunks: vec![
                chunk(
                    json!({"role": "assistant", "content": null, "tool_calls": [
                    {"index": 0, "id": "call_a", "type": "function", "function": {"name": "time", "arguments": ""}}]}),
                    none(),
                ),
                chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), none()),
                chunk(
                    json!({"tool_calls": [
                    {"index": 1, "id": "call_b", "type": "function", "function": {"name": "post", "arguments": ""}}]}),
                    none(),
                ),
                chunk(json!({"tool_calls": [{"index": 1, "function": {"arguments": "{\"a\""}}]}), none()),
                chunk(json!({"tool_calls": [{"index": 1, "function": {"arguments": ":1}"}}]}), none()),
                chunk(json!({}), "tool_calls".into()),
            ],
            answer: calls(&[("call_a", "time", "{}"), ("call_b", "post", "{\"a\":1}")], None),
        },
        Family {
            name: "Anthropic",
            plain: json!({"id": "msg_1", "choices": [{"index": 0, "finish_reason": "tool_calls",
                "message": {"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "toolu_01", "type": "function", "function": {"name": "time", "arguments": "{}"}}]}}],
                "usage": {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29, "prompt_tokens_details": null}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": "I look."}), none()),
                chunk(
                    json!({"tool_calls": [{"index": 0, "id": "toolu_01", "type": "function",
                    "function": {"name": "time", "arguments": ""}}]}),
                    none(),
                ),
                chunk(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), none()),
                chunk(json!({}), "tool_calls".into()),
                json!({"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 9}}),
            ],
            answer: ChatAnswer {
                content: "I look.".into(),
                ..calls(&[("toolu_01", "time", "{}")], used(20, None, 9))
            },
        },
        Family {
            name: "Gemini: no ids, every index 0, `stop` beside calls",
            plain: json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "tool_calls": [
                {"id": "", "type": "function", "function": {"name": "time", "arguments": "{}"},
                    "extra_content": {"google": {"thought_signature": "seal"}}},
                {"id": "", "type": "function", "function": {"name": "time", "arguments": "{\"tz\":\"UTC\"}"}}]}}],
                "usage": {"completion_tokens": 5, "prompt_tokens": 30, "total_tokens": 99}}),
            chunks: vec![
                chunk(
                    json!({"role": "assistant", "tool_calls": [
                    {"index": 0, "id": "", "type": "function", "function": {"name": "time", "arguments": "{}"},
                        "extra_content": {"google": {"thought_signature": "seal"}}}]}),
                    none(),
                ),
                chunk(
                    json!({"role": "assistant", "tool_calls": [{"index": 0, "id": "", "type": "function",
                    "function": {"name": "time", "arguments": "{\"tz\":\"UTC\"}"}}]}),
                    "stop".into(),
                ),
                json!({"choices": [], "usage": {"completion_tokens": 5, "prompt_tokens": 30}}),
            ],
            answer: signed(calls(&[("", "time", "{}"), ("", "time", "{\"tz\":\"UTC\"}")], used(30, None, 5))),
        },
        Family {
            name: "OpenRouter: reasoning, its own reasons, a float for a time",
            plain: json!({"id": "gen-1", "provider": "X", "created": 1.5, "choices": [{"logprobs": null, "finish_reason": "stop",
                "native_finish_reason": "STOP", "message": {"role": "assistant", "content": "Hi", "refusal": null,
                    "reasoning": "SEKRIT", "reasoning_details": [{"type": "reasoning.text", "text": "SEKRIT"}]}}],
                "usage": {"prompt_tokens": 8, "completion_tokens": 3, "cost": 0.1, "prompt_tokens_details": {"cached_tokens": 0}}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": "", "reasoning": "SEKRIT"}), none()),
                chunk(json!({"role": "assistant", "content": "Hi"}), none()),
                chunk(json!({"role": "assistant", "content": ""}), "stop".into()),
                json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}],
                    "usage": {"prompt_tokens": 8, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}}),
            ],
            answer: text("Hi", used(8, Some(0), 3)),
        },
        Family {
            name: "Groq: usage in a field of its own",
            plain: json!({"choices": [{"index": 0, "finish_reason": "stop", "logprobs": null,
                "message": {"role": "assistant", "content": "Hi", "reasoning": "SEKRIT"}}],
                "usage": {"queue_time": 0.1, "prompt_tokens": 4, "completion_tokens": 2}, "x_groq": {"id": "req_1"}}),
            chunks: vec![
                json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}], "x_groq": {"id": "r"}}),
                chunk(json!({"content": "Hi"}), none()),
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    "x_groq": {"id": "r", "usage": {"prompt_tokens": 4, "completion_tokens": 2}}}),
            ],
            answer: text("Hi", used(4, None, 2)),
        },
        Family {
            name: "Mistral: content in parts, thoughts among them",
            plain: json!({"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "tool_calls": null,
                "content": [{"type": "thinking", "thinking": [{"type": "text", "text": "SEKRIT"}]}, {"type": "text", "text": "Hi"}]}}],
                "usage": {"prompt_tokens": 4, "total_tokens": 6, "completion_tokens": 2}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": ""}), none()),
                chunk(
                    json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "SEKRIT"}]}]}),
                    none(),
                ),
                chunk(json!({"content": [{"type": "text", "text": "H"}]}), none()),
                json!({"choices": [{"index": 0, "delta": {"content": "i"}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
            ],
            answer: text("Hi", used(4, None, 2)),
        },
        Family {
            name: "DeepSeek: reasoning and cached tokens under names of its own",
            plain: json!({"choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Hi", "reasoning_content": "SEKRIT"}}],
                "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8, "prompt_cache_miss_tokens": 1}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": null, "reasoning_content": "SEKRIT"}), none()),
                chunk(json!({"content": "Hi", "reasoning_content": null}), none()),
                json!({"choices": [{"index": 0, "delta": {"content": "", "reasoning_content": null}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}}),
            ],
            answer: text("Hi", used(9, Some(8), 2)),
        },
        Family {
            name: "xAI: a whole call in one chunk, usage in every chunk",
            plain: json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "",
                "refusal": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}]}}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 1, "num_sources_used": 0}, "citations": null}),
            chunks: vec![
                json!({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "usage": {"prompt_tokens": 7, "completion_tokens": 0}}),
                json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"id": "call_1", "index": 0, "type": "function",
                    "function": {"name": "time", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}],
                    "usage": {"prompt_tokens": 7, "completion_tokens": 1}}),
            ],
            answer: calls(&[("call_1", "time", "{}")], used(7, None, 1)),
        },
        Family {
            name: "Together: `eos`, an empty list of calls",
            plain: json!({"prompt": [], "choices": [{"finish_reason": "eos", "seed": 1.8e19, "logprobs": null, "index": 0,
                "message": {"role": "assistant", "content": "Hi", "tool_calls": []}}],
                "usage": {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 1}}),
            chunks: vec![
                json!({"choices": [{"index": 0, "text": "Hi", "delta": {"token_id": 1, "role": "assistant", "content": "Hi", "tool_calls": null}, "finish_reason": null}]}),
                json!({"choices": [{"index": 0, "text": "", "delta": {"content": "", "tool_calls": []}, "finish_reason": "eos"}],
                    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 1}}),
            ],
            answer: text("Hi", used(4, Some(1), 2)),
        },
        Family {
            name: "Ollama: an object for arguments, thoughts in the text",
            plain: json!({"object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant",
                "content": "<think>\nSEKRIT\n</think>\n\n", "tool_calls": [{"id": "call_1", "index": 0, "type": "function",
                    "function": {"name": "time", "arguments": {"tz": "UTC"}}}]}}]}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": "<think>\nSEK"}), none()),
                chunk(json!({"role": "assistant", "content": "RIT\n</think>\n\n"}), none()),
                chunk(
                    json!({"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "index": 0, "type": "function",
                    "function": {"name": "time", "arguments": {"tz": "UTC"}}}]}),
                    none(),
                ),
                chunk(json!({"role": "assistant", "content": ""}), "stop".into()),
            ],
            answer: calls(&[("call_1", "time", "{\"tz\":\"UTC\"}")], None),
        },
        Family {
            name: "vLLM: names repeated in each delta, an id that changes",
            plain: json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "stop_reason": null, "logprobs": null,
                "message": {"role": "assistant", "reasoning_content": null, "content": null, "tool_calls": [
                    {"id": "chatcmpl-tool-1", "type": "function", "function": {"name": "time", "arguments": "{\"tz\": \"UTC\"}"}}]}}],
                "usage": {"prompt_tokens": 4, "completion_tokens": 2, "prompt_tokens_details": null}, "prompt_logprobs": null}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": ""}), none()),
                chunk(
                    json!({"tool_calls": [{"id": "chatcmpl-tool-1", "type": "function", "index": 0, "function": {"name": "time"}}]}),
                    none(),
                ),
                chunk(
                    json!({"tool_calls": [{"id": "chatcmpl-tool-2", "index": 0, "function": {"arguments": "{\"tz\": "}}]}),
                    none(),
                ),
                chunk(
                    json!({"tool_calls": [{"index": 0, "function": {"name": "time", "arguments": "\"UTC\"}"}}]}),
                    none(),
                ),
                chunk(json!({"content": ""}), "tool_calls".into()),
                json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
            ],
            answer: calls(&[("chatcmpl-tool-1", "time", "{\"tz\": \"UTC\"}")], used(4, None, 2)),
        },
        Family {
            name: "llama.cpp: calls without an index, timings",
            plain: json!({"choices": [{"finish_reason": "tool_calls", "index": 0, "message": {"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "time", "arguments": "{\"tz\":1}"}, "id": "a1"},
                {"type": "function", "function": {"name": "time", "arguments": "{}"}, "id": "a2"}]}}],
                "usage": {"completion_tokens": 2, "prompt_tokens": 4}, "timings": {"prompt_n": 1}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": null}), none()),
                chunk(
                    json!({"tool_calls": [{"id": "a1", "type": "function", "function": {"name": "time", "arguments": "{"}}]}),
                    none(),
                ),
                chunk(json!({"tool_calls": [{"function": {"arguments": "\"tz\":1}"}}]}), none()),
                chunk(
                    json!({"tool_calls": [{"id": "a2", "type": "function", "function": {"name": "time", "arguments": "{}"}}]}),
                    none(),
                ),
                chunk(json!({}), "tool_calls".into()),
                json!({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 4}, "timings": {"prompt_n": 1}}),
            ],
            answer: calls(&[("a1", "time", "{\"tz\":1}"), ("a2", "time", "{}")], used(4, None, 2)),
        },
        Family {
            name: "Bedrock: thoughts in the text",
            plain: json!({"choices": [{"finish_reason": "stop", "index": 0, "message": {"role": "assistant",
                "content": "<reasoning>SEKRIT</reasoning>Hi"}}], "usage": {"completion_tokens": 2, "prompt_tokens": 4}}),
            chunks: vec![
                chunk(json!({"role": "assistant", "content": "<reason"}), none()),
                chunk(json!({"content": "ing>SEKRIT</reasoning>Hi"}), none()),
                chunk(json!({}), "stop".into()),
                json!({"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 4}}),
            ],
            answer: text("Hi", used(4, None, 2)),
        },
        Family {
            name: "the legacy shape",
            plain: json!({"choices": [{"finish_reason": "function_call", "message": {"role": "assistant", "content": null,
                "function_call": {"name": "time", "arguments": "{}"}}}]}),
            chunks: vec![
                chunk(
                    json!({"role": "assistant", "function_call": {"name": "time", "arguments": ""}}),
                    none(),
                ),
                chunk(json!({"function_call": {"arguments": "{}"}}), none()),
                chunk(json!({}), "function_call".into()),
            ],
            answer: calls(&[("", "time", "{}")], None),
        },
    ]
}

#[tokio::test]
async fn an_answer_of_each_family_is_read_plain_and_streamed_in_any_pieces() {
    for family in families() {
        let plain = Bed::always(PLAIN, Reply::json(family.plain.to_string())).await;
        assert_eq!(plain.ask().await.as_ref(), Ok(&family.answer), "{}, plain", family.name);
        for size in [1, 7, 100_000] {
            let stream = Reply::stream(&family.chunks).trickled(size);
            let streamed = Bed::always(STREAMED, stream).await;
            assert_eq!(streamed.ask().await.as_ref(), Ok(&family.answer), "{}, by {size}", family.name);
        }
    }
}

#[tokio::test]
async fn a_server_that_does_not_do_what_was_asked_for_is_understood_all_the_same() {
    for family in families() {
        let plain = Bed::always(STREAMED, Reply::json(format!("\u{feff} {}", family.plain))).await;
        assert_eq!(plain.ask().await.as_ref(), Ok(&family.answer), "{}, plain", family.name);
        let mut reply = Reply::stream(&family.chunks);
        reply.headers.clear();
        let streamed = Bed::always(PLAIN, reply).await;
        assert_eq!(streamed.ask().await.as_ref(), Ok(&family.answer), "{}, streamed", family.name);
    }
}
