//! What goes wrong between a model and us, and what the client does about it.

use didactyl::chat::ArgumentsError;

use super::*;

/// The answer to `reply`, and how often the model was asked for it.
async fn outcome(settings: &str, reply: Reply) -> (Result<ChatAnswer, LlmError>, usize) {
    let bed = Bed::always(settings, reply).await;
    (bed.ask().await, bed.server.calls())
}

fn status(status: u16, body: &str) -> Reply {
    Reply { status, ..Reply::json(body) }
}

/// A message as a whole body, and the same as a delta of a stream.
fn both(message: &Value, finish_reason: &Value, usage: &Value) -> [(&'static str, Reply); 2] {
    let plain = json!({"choices": [{"message": message, "finish_reason": finish_reason}], "usage": usage});
    let mut last = chunk(json!({}), finish_reason.clone());
    last["usage"] = usage.clone();
    [
        (PLAIN, Reply::json(plain.to_string())),
        (STREAMED, Reply::stream(&[chunk(message.clone(), Value::Null), last])),
    ]
}

#[tokio::test]
async fn a_call_without_arguments_in_any_spelling_has_an_empty_object() {
    let spellings = [json!(""), json!(" "), json!(null), json!("null"), json!({})];
    let mut functions: Vec<Value> =
        spellings.iter().map(|arguments| json!({"name": "time", "arguments": arguments})).collect();
    functions.push(json!({"name": "time"}));
    for function in functions {
        let message = json!({"content": null, "tool_calls": [{"id": "c1", "index": 0, "type": "function", "function": function}]});
        for (settings, reply) in both(&message, &"tool_calls".into(), &Value::Null) {
            let (answer, _) = outcome(settings, reply).await;
            assert_eq!(answer, Ok(calls(&[("c1", "time", "{}")], None)), "{function}, {settings}");
        }
    }
}

#[tokio::test]
async fn the_presence_of_calls_decides_and_not_the_finish_reason() {
    let call = json!([{"id": "c1", "index": 0, "function": {"name": "time", "arguments": "{}"}}]);
    for reason in [json!("stop"), json!("end_turn"), json!("function_call"), json!(null)] {
        let message = json!({"content": null, "tool_calls": call});
        for (settings, reply) in both(&message, &reason, &Value::Null) {
            let (answer, _) = outcome(settings, reply).await;
            assert_eq!(answer, Ok(calls(&[("c1", "time", "{}")], None)), "{reason}, {settings}");
        }
    }
    let message = json!({"content": "done", "tool_calls": []});
    for (settings, reply) in both(&message, &"tool_calls".into(), &Value::Null) {
        assert_eq!(outcome(settings, reply).await.0, Ok(text("done", None)), "{settings}");
    }
}

#[tokio::test]
async fn arguments_that_were_cut_off_are_told_whatever_the_finish_reason_says() {
    let usage = |tokens: u64| json!({"prompt_tokens": 1, "completion_tokens": tokens});
    let table = [
        ("{\"content\":\"Hello wor", "tool_calls", 512, Err(ArgumentsError::CutOff)),
        ("{\"content\":\"Hello wor", "length", 512, Err(ArgumentsError::CutOff)),
        // Before their first letter.
        ("", "length", 512, Err(ArgumentsError::CutOff)),
        ("", "tool_calls", 512, Err(ArgumentsError::CutOff)),
        ("", "tool_calls", 511, Ok(serde_json::Map::new())),
        ("{}", "length", 512, Ok(serde_json::Map::new())),
    ];
    for (arguments, reason, tokens, expected) in table {
        let function = json!({"name": "time", "arguments": arguments});
        let message =
            json!({"content": null, "tool_calls": [{"id": "c1", "index": 0, "function": function}]});
        for (settings, reply) in both(&message, &reason.into(), &usage(tokens)) {
            let answer = outcome(settings, reply).await.0.unwrap();
            let parsed = answer.tool_calls[0].parsed_arguments();
            assert_eq!(parsed, expected, "{arguments}, {reason}, {tokens}, {settings}");
        }
    }
}

#[tokio::test]
async fn thoughts_alone_are_no_text() {
    for message in [
        json!({"content": "", "reasoning_content": "The user greets me."}),
        json!({"content": "<think>hmm</think>"}),
        json!({"content": null}),
    ] {
        for (settings, reply) in both(&message, &"stop".into(), &Value::Null) {
            assert_eq!(outcome(settings, reply).await.0, Ok(text("", None)), "{message}, {settings}");
        }
    }
}

#[tokio::test]
async fn what_is_no_answer_is_asked_for_once_more_and_tells_no_markup() {
    let page = format!("<!DOCTYPE html><title>521: Web server is down</title>{}", "x".repeat(40_000));
    let whole = json!({"choices": [{"message": {"content": "x".repeat(2_000)}}]}).to_string();
    let table = [
        ("a page, 521", status(521, &page)),
        ("a page", status(200, &page)),
        ("a cut body", Reply::json(&whole.as_bytes()[..1_000])),
        ("nothing", status(204, "")),
        ("no choices", Reply::json(r#"{"choices":null,"error":null}"#)),
        ("no choice", Reply::json(r#"{"choices":[]}"#)),
        ("no message", Reply::json(r#"{"choices":[{"message":null}]}"#)),
        ("a stream of garbage", Reply::events(&["garbage", "{\"choices\":", "[DONE]"])),
        ("an empty stream", Reply::events(&["[DONE]"])),
    ];
    let mut told = Vec::new();
    for (name, reply) in table {
        for settings in [PLAIN, STREAMED] {
            let (answer, asked) = outcome(settings, reply.clone()).await;
            let error = answer.unwrap_err();
            assert!(error.is_transient(), "{name}: {error:?}");
            assert_eq!(asked, 2, "{name}");
            told.push(format!("{name}: {error}"));
        }
    }
    told.dedup();
    insta::assert_snapshot!(told.join("\n"), @r"
    a page, 521: the model is unavailable for now: status 521, a web page instead of an answer
    a page: the model's answer cannot be read: 40053 bytes that are not JSON
    a cut body: the model's answer cannot be read: 1000 bytes that are not JSON
    nothing: the model's answer cannot be read: 0 bytes that are not JSON
    no choices: the model's answer cannot be read: it holds no choices
    no choice: the model's answer cannot be read: it holds no choices
    no message: the model's answer cannot be read: its first choice holds no message
    a stream of garbage: the model's answer cannot be read: 11 bytes that are not JSON
    an empty stream: the model's answer cannot be read: it holds no choices
    ");
}

#[tokio::test]
async fn an_answer_after_a_hiccup_is_an_answer() {
    for hiccup in [status(522, ""), status(200, "<html>"), Reply::events(&["garbage"])] {
        let bed = Bed::new(STREAMED, move |asked: &Asked| match asked.number {
            1 => Answer::Raw(hiccup.clone()),
            _ => Answer::Text("Hello".into()),
        });
        assert_eq!(bed.await.ask().await.unwrap().content, "Hello");
    }
}

#[tokio::test]
async fn each_refusal_says_who_must_act_and_is_not_asked_for_again() {
    let google = r#"[{"error":{"code":429,"message":"Quota exceeded","status":"RESOURCE_EXHAUSTED",
        "details":[{"@type":"x"},{"retryDelay":"34.5s"}]}}]"#;
    let anthropic = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let in_a_stream = |error: &str| Reply::events(&[error]);
    let table = [
        status(401, r#"{"error":{"message":"bad key"}}"#),
        status(400, r#"[{"error":{"code":400,"message":"API key not valid."}}]"#),
        status(400, r#"{"error":{"message":"Your credit balance is too low to access the API."}}"#),
        status(429, google),
        status(529, anthropic),
        status(503, ""),
        status(404, r#"{"error":"model 'x' not found"}"#),
        status(
            400,
            r#"{"error":{"message":"request (9 tokens) exceeds the available context size (8 tokens)"}}"#,
        ),
        status(200, r#"{"error":{"message":"bad key","code":401}}"#),
        in_a_stream(r#"{"error":{"message":"bad key","code":401}}"#),
        in_a_stream(anthropic),
        in_a_stream(
            r#"{"choices":[{"error":{"message":"upstream","code":503},"delta":{},"finish_reason":"error"}]}"#,
        ),
    ];
    let mut told = Vec::new();
    for reply in table {
        let (answer, asked) = outcome(STREAMED, reply.clone()).await;
        assert_eq!(asked, 1, "{reply:?}");
        let error = answer.unwrap_err();
        told.push(format!("{error:?} [{}]", error.reason().words()));
    }
    insta::assert_snapshot!(told.join("\n"), @r#"
    Account("status 401") [bad key]
    Account("status 400") [API key not valid.]
    Account("status 400") [Your credit balance is too low to access the API.]
    Transient { reason: "status 429, RESOURCE_EXHAUSTED", retry_after: Some(34.5s) } [Quota exceeded]
    Transient { reason: "status 529, overloaded_error", retry_after: None } [Overloaded]
    Transient { reason: "status 503", retry_after: None } []
    Permanent("status 404") [model 'x' not found]
    Overflow("status 400") [request (9 tokens) exceeds the available context size (8 tokens)]
    Account("status 401") [bad key]
    Account("status 401") [bad key]
    Transient { reason: "status 502, overloaded_error", retry_after: None } [Overloaded]
    Transient { reason: "status 503", retry_after: None } [upstream]
    "#);
}

/// Refuses each of these parameters as long as it is there.
fn picky(body: &Value) -> Option<Reply> {
    let refuse = |param: &str, words: &str| {
        let error = json!({"error": {"code": "unsupported_parameter", "param": param, "message": words}});
        Some(status(400, &error.to_string()))
    };
    let has = |name: &str| body.get(name).is_some();
    match () {
        () if has("max_tokens") => refuse("max_tokens", "use max_completion_tokens"),
        () if has("temperature") => refuse("temperature", "only 1 is allowed"),
        () if has("parallel_tool_calls") => {
            let words = "'parallel_tool_calls' is not supported with this model";
            Some(status(400, &json!({"error": {"message": words}}).to_string()))
        }
        () if has("seed") => {
            let detail = json!([{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]);
            Some(status(422, &json!({"detail": detail}).to_string()))
        }
        () if has("stream_options") => refuse("stream_options", "unknown"),
        () if has("stream") => refuse("stream", "the organization may not stream"),
        () => None,
    }
}

#[tokio::test]
async fn a_parameter_that_a_model_refuses_is_renamed_or_dropped_once_and_for_good() {
    let settings = r#"{"stream": true, "parallel_tool_calls": false}"#;
    let bed = Bed::new(settings, |asked: &Asked| match picky(&asked.body) {
        Some(refusal) => Answer::Raw(refusal),
        None => Answer::Text("Hello".into()),
    })
    .await;
    assert_eq!(bed.ask().await.unwrap().content, "Hello");
    assert_eq!(bed.server.calls(), 7);
    assert_eq!(bed.ask().await.unwrap().content, "Hello");
    assert_eq!(bed.server.calls(), 8);
    let last = bed.server.requests().pop().unwrap().body;
    let names: Vec<&str> = last.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["model", "messages", "tools", "tool_choice", "max_completion_tokens"]);
    assert_eq!(last["max_completion_tokens"], 512);
}

#[tokio::test]
async fn a_parameter_that_is_refused_again_ends_the_matter() {
    for words in ["temperature and max_tokens are wrong", "max_completion_tokens: too many"] {
        let reply = status(400, &json!({"error": {"message": words}}).to_string());
        let (answer, asked) = outcome(PLAIN, reply).await;
        assert!(matches!(answer, Err(LlmError::Permanent(_))), "{answer:?}");
        assert!(asked <= 4, "{words}: {asked}");
    }
}

#[tokio::test]
async fn a_stream_that_breaks_off_keeps_what_came() {
    let begun = [
        chunk(json!({"role": "assistant", "content": "Hel"}), Value::Null),
        chunk(json!({"content": "lo"}), Value::Null),
        chunk(
            json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "time", "arguments": "{\"a"}}]}),
            Value::Null,
        ),
    ];
    let texts = || begun.iter().map(Value::to_string).collect::<Vec<_>>();
    let error = json!({"error": {"message": "upstream", "code": 502}}).to_string();
    let quick = r#"{"idle_seconds": 1}"#;
    let table = [
        (Reply::events(&texts()).cut(), STREAMED, "the connection to the provider broke"),
        (Reply::events(&texts()), STREAMED, "the stream ended before the answer did"),
        (Reply::events(&[texts(), vec![error]].concat()), STREAMED, "status 502"),
        (
            Reply::events(&[texts(), vec!["{\"choices\":[{\"del".into()]].concat()),
            STREAMED,
            "a part of the stream cannot be read",
        ),
        (
            Reply::events(&texts()).silent_for(Duration::from_secs(600)),
            quick,
            "it did not answer in the time there was",
        ),
    ];
    let call = ToolCall::new("c", "time", "{\"a");
    for (reply, settings, reason) in table {
        let (answer, asked) = outcome(settings, reply).await;
        let partial = ChatAnswer {
            tool_calls: vec![call.clone()],
            finish_reason: FinishReason::Other("interrupted".into()),
            ..text("Hello", None)
        };
        let Err(LlmError::Interrupted { reason: told, partial: kept }) = answer else { panic!("{answer:?}") };
        assert_eq!((told.to_string().as_str(), *kept, asked), (reason, partial, 1));
    }
}

#[tokio::test]
async fn what_came_by_the_deadline_is_kept() {
    let begun = chunk(json!({"content": "Hello"}), Value::Null).to_string();
    let bed = Bed::always(STREAMED, Reply::events(&[begun]).silent_for(Duration::from_secs(600))).await;
    let answer = bed.ask_for(Duration::from_secs(3)).await;
    assert!(
        matches!(&answer, Err(LlmError::Interrupted { partial, .. }) if partial.content == "Hello"),
        "{answer:?}"
    );
}

#[tokio::test]
async fn a_stream_without_words_is_nothing_to_keep() {
    let begun =
        chunk(json!({"role": "assistant", "content": "", "reasoning": "hm"}), Value::Null).to_string();
    let quick = r#"{"first_token_seconds": 1, "idle_seconds": 1}"#;
    for (reply, settings) in [
        (Reply::events(&[&begun]).cut(), STREAMED),
        (Reply::events(&[&begun]), STREAMED),
        (Reply::events(&[&begun]).silent_for(Duration::from_secs(600)), quick),
        (Reply::events::<&str>(&[]).silent_for(Duration::from_secs(600)), quick),
    ] {
        let (answer, asked) = outcome(settings, reply).await;
        assert!(matches!(answer, Err(LlmError::Transient { .. })), "{answer:?}");
        assert_eq!(asked, 1);
    }
}

#[tokio::test]
async fn an_answer_is_whole_once_its_finish_reason_came() {
    let whole = [chunk(json!({"content": "Hello"}), Value::Null), chunk(json!({}), "stop".into())];
    let texts: Vec<String> = whole.iter().map(Value::to_string).collect();
    for reply in [Reply::events(&texts), Reply::events(&texts).cut()] {
        assert_eq!(outcome(STREAMED, reply).await, (Ok(text("Hello", None)), 1));
    }
}

#[tokio::test]
async fn comments_and_other_fields_of_a_stream_are_passed_over() {
    let piece = chunk(json!({"content": "Grüße 🦀"}), "stop".into());
    let stream = format!(
        "\u{feff}: OPENROUTER PROCESSING\r\n\r\nevent: message\r\nid: 1\r\ndata:{piece}\r\ndata: not json\r\n\r\n: keep-alive\n\ndata: [DONE]"
    );
    for size in [1, 3, 1_000] {
        let mut reply = Reply::json(stream.as_bytes()).trickled(size);
        reply.headers.clear();
        assert_eq!(outcome(STREAMED, reply).await.0, Ok(text("Grüße 🦀", None)), "{size}");
    }
}
