//! Faults of neighbours on the model's side, as inputs for this agent: from the DM through HTTP to the reply. Each test
//! names its row of the case list. Of the rows that concern one part alone, b027 and b093 are in
//! `src/context/compaction/tests.rs`, b095 is in `tool_loop.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use didactyl::app::App;
use didactyl::llm::scripted::{Answer, Asked, Reply};
use didactyl::outage::NOTE;
use didactyl::record::{RunRecord, dm_trigger_id};
use nostr::prelude::{EventBuilder, FinalizeEvent, Kind, Tag, Timestamp};
use serde_json::{Value, json};

use crate::agent::Log;
use crate::agent::{TestAgent, agent_key, app_over, config, deliver_to, dm_id, nip17, outcomes, secret};

/// What a DM comes to.
struct Told {
    reply: String,
    record: RunRecord,
    /// What the models were asked, in order.
    asked: Vec<Value>,
}

impl Told {
    /// The last message of the `at`-th request, counted from 0.
    fn last(&self, at: usize) -> &Value {
        self.asked[at]["messages"].as_array().unwrap().last().unwrap()
    }

    /// The arguments of the last calls that the `at`-th request shows.
    fn arguments(&self, at: usize) -> Vec<&str> {
        let messages = self.asked[at]["messages"].as_array().unwrap();
        let calls = messages.iter().rev().find_map(|message| message["tool_calls"].as_array()).unwrap();
        calls.iter().map(|call| call["function"]["arguments"].as_str().unwrap()).collect()
    }

    fn models(&self) -> Vec<&str> {
        self.asked.iter().map(|body| body["model"].as_str().unwrap()).collect()
    }
}

async fn tell(script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Told {
    tell_chain("scripted/test", script).await
}

/// Tells an agent with this chain something, whose models follow the script.
async fn tell_chain(chain: &str, script: impl Fn(&Asked) -> Answer + Send + Sync + 'static) -> Told {
    let agent = TestAgent::with_script(script).await;
    let app = with_chain(&agent, chain);
    let dm = nip17(&secret(2), "What is new?");
    let answer = deliver_to(&app, &agent.relay_url, std::slice::from_ref(&dm)).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let [(_, reply)] = agent.replies().await.try_into().unwrap();
    let history = agent.history(secret(2).public_key()).await;
    assert_eq!(history, [("peer", "What is new?".to_owned()), ("agent", reply.clone())]);
    let asked = agent.model.requests().into_iter().map(|asked| asked.body).collect();
    Told { reply, record: agent.record(&dm_trigger_id(&dm_id(&dm))).await, asked }
}

fn with_chain(agent: &TestAgent, chain: &str) -> App {
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_LLM", chain.to_owned());
    app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock)
}

/// A body whose only choice is this one.
fn body(message: Value, finish_reason: Value) -> Answer {
    Answer::Body(json!({"choices": [{"message": message, "finish_reason": finish_reason}]}).to_string())
}

fn call(arguments: Value) -> Value {
    json!({"role": "assistant", "content": null, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "nostr_query", "arguments": arguments}}]})
}

#[tokio::test]
async fn b021_a_call_cut_by_the_token_limit_is_advised_twice_and_never_replayed_as_it_was() {
    let told = tell(|asked| match asked.body["tool_choice"].as_str() {
        Some("none") => Answer::Text("I could not.".into()),
        _ => body(call(json!("{\"content\":\"Hello wor")), "tool_calls".into()),
    })
    .await;
    assert_eq!(told.reply, "I could not.");
    // The strict server has looked at each: two with advice, and one that forgets the third cut call.
    assert_eq!(told.asked.len(), 4);
    for at in [1, 2] {
        assert_eq!(told.arguments(at), ["{}"]);
        let advice = told.last(at)["content"].as_str().unwrap();
        assert!(advice.contains("they were cut off; send a shorter call"), "{advice}");
    }
    assert_eq!(told.asked[3]["messages"], told.asked[2]["messages"]);
}

#[tokio::test]
async fn b023_a_call_is_run_whatever_the_finish_reason_says_and_without_one_the_text_is_the_answer() {
    for reason in [json!("stop"), json!("end_turn"), json!("function_call"), json!("tool_calls"), json!(null)]
    {
        let told = tell(move |asked| match asked.result() {
            Some(result) => Answer::Text(format!("success: {}", result["success"])),
            None => body(call(json!(r#"{"kinds":[1],"limit":1}"#)), reason.clone()),
        })
        .await;
        assert_eq!((told.reply.as_str(), told.asked.len()), ("success: true", 2));
    }
    let missing = r#"{"choices":[{"message":{"tool_calls":[{"function":{"name":"time"}}]}}]}"#;
    let told = tell(|asked| match asked.result() {
        Some(_) => Answer::Text("done".into()),
        None => Answer::Body(missing.into()),
    })
    .await;
    assert_eq!((told.reply.as_str(), told.asked.len()), ("done", 2));
    let told = tell(|_| body(json!({"content": "done", "tool_calls": []}), "tool_calls".into())).await;
    assert_eq!((told.reply.as_str(), told.asked.len()), ("done", 1));
}

#[tokio::test]
async fn b025_a_model_that_calls_for_ever_is_told_the_third_time_and_ends_at_its_turns() {
    // By the number of the request, counted from 1.
    let variants: [fn(usize) -> Value; 3] = [
        |_| json!({"kinds": [1], "limit": 1}),
        |n| json!({"kinds": [1], "limit": n % 2 + 1}),
        |n| json!({"kinds": [1], "limit": 1, "search": format!("try {n}")}),
    ];
    for (variant, arguments) in variants.into_iter().enumerate() {
        let told = tell(move |asked| match asked.offers("nostr_query") {
            true => Answer::call("nostr_query", arguments(asked.number)),
            false => Answer::Text("I looked.".into()),
        })
        .await;
        assert_eq!((told.reply.as_str(), told.asked.len()), ("I looked.", 17), "{variant}");
        assert_eq!(told.asked[16]["tool_choice"], "none");
        let is_told =
            |at: usize| told.last(at)["content"].as_str().unwrap().contains("already have this result");
        let first = (1..17).find(|at| is_told(*at));
        assert_eq!(first, [Some(3), Some(5), None][variant], "{variant}");
    }
}

#[tokio::test]
async fn b083_a_call_without_arguments_in_any_spelling_is_run_with_an_empty_object() {
    let spellings = [json!(""), json!(" "), json!(null), json!("null"), json!({})];
    let mut functions: Vec<Value> =
        spellings.iter().map(|a| json!({"name": "nostr_admin_profile", "arguments": a})).collect();
    functions.push(json!({"name": "nostr_admin_profile"}));
    for function in functions {
        let message = json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}]});
        let told = tell(move |asked| match asked.result() {
            Some(result) => Answer::Text(result["content"]["name"].to_string()),
            None => body(message.clone(), "tool_calls".into()),
        })
        .await;
        assert_eq!((told.reply.as_str(), told.arguments(1)), ("\"satoshi\"", vec!["{}"]), "{function}");
    }
}

#[tokio::test]
async fn b085_nulls_cost_nothing_and_an_error_in_a_200_moves_on_and_is_logged_without_its_words() {
    let hi = json!({"id": "x", "choices": [{"message": {"role": "assistant", "content": "hi", "tool_calls": null,
        "annotations": null}, "finish_reason": "stop"}], "usage": null});
    assert_eq!(tell(move |_| Answer::Body(hi.to_string())).await.reply, "hi");

    for (bad, shown) in [
        (r#"{"choices":null,"error":null}"#, "it holds no choices"),
        (r#"{"choices":[]}"#, "it holds no choices"),
        (
            r#"{"error":{"message":"bad key: you sent SEKRIT","code":401,"type":"invalid_key"}}"#,
            "status 401, invalid_key",
        ),
    ] {
        let log = Log::default();
        let logged = log.clone().start();
        let told =
            tell_chain("scripted/bad, scripted/good", move |asked| match asked.body["model"].as_str() {
                Some("bad") => Answer::Body(bad.into()),
                _ => Answer::Text("hi".into()),
            })
            .await;
        drop(logged);
        assert_eq!(
            (told.reply.as_str(), told.record.model.as_deref()),
            ("hi", Some("scripted/good")),
            "{bad}"
        );
        assert_eq!(told.models().last(), Some(&"good"));
        let log = log.text();
        assert!(log.contains("the model did not answer") && log.contains(shown), "{log}");
        assert!(!log.contains("SEKRIT"), "{log}");
        assert!(!serde_json::to_string(&told.record).unwrap().contains("SEKRIT"));
    }
}

#[tokio::test]
async fn b087_thoughts_without_a_text_are_asked_for_once_more_and_then_answered_in_our_words() {
    for message in [
        json!({"role": "assistant", "content": "", "reasoning_content": "SEKRIT"}),
        json!({"content": "<think>SEKRIT</think>"}),
        json!({"content": null}),
        json!({"content": "   \n"}),
    ] {
        let told = tell(move |_| body(message.clone(), "stop".into())).await;
        let sorry = "I have nothing to say to that: the model gave an empty answer. Please ask again.";
        assert_eq!((told.reply.as_str(), told.asked.len()), (sorry, 2));
        assert_eq!(told.asked[0], told.asked[1], "an empty message is never sent");
    }
}

#[tokio::test]
async fn b089_pages_and_cut_bodies_are_asked_for_twice_then_the_next_model_answers_and_no_markup_is_seen() {
    let page = format!("<!DOCTYPE html><title>521: Web server is down</title>{}", "x".repeat(40_000));
    let html = |status: u16| Reply {
        status,
        headers: vec![("content-type".into(), "text/html".into())],
        ..Reply::json(page.as_bytes())
    };
    let whole = json!({"choices": [{"message": {"content": "x".repeat(2_000)}}]}).to_string();
    let bad = [
        html(521),
        html(200),
        Reply::json(&whole.as_bytes()[..1_000]),
        Reply { status: 204, ..Reply::json("") },
    ];
    for reply in bad {
        let log = Log::default();
        let logged = log.clone().start();
        let told =
            tell_chain("scripted/bad, scripted/good", move |asked| match asked.body["model"].as_str() {
                Some("bad") => Answer::Raw(reply.clone()),
                _ => Answer::Text("hi".into()),
            })
            .await;
        drop(logged);
        assert_eq!((told.reply.as_str(), told.models()), ("hi", vec!["bad", "bad", "good"]));
        assert!(!log.text().contains("<title>"), "{}", log.text());
    }
    let told =
        tell(|_| Answer::Body("\u{feff}{\"choices\":[{\"message\":{\"content\":\"hi\"}}]}".into())).await;
    assert_eq!((told.reply.as_str(), told.asked.len()), ("hi", 1));
}

/// The models of the case: one that is down, one that refuses three parameters one after the other, one that is cheap.
fn picky(asked: &Asked) -> Answer {
    let has = |name: &str| asked.body.get(name).is_some();
    let refuse = |error: Value| Answer::Refusal(400, vec![], json!({"error": error}).to_string());
    match asked.body["model"].as_str().unwrap() {
        "primary" => Answer::Refusal(503, vec![], String::new()),
        "reasoner" if has("max_tokens") => refuse(
            json!({"code": "unsupported_parameter", "param": "max_tokens", "message": "use max_completion_tokens"}),
        ),
        "reasoner" if has("temperature") => {
            refuse(json!({"param": "temperature", "message": "only 1 is allowed"}))
        }
        "reasoner" if has("parallel_tool_calls") => {
            refuse(json!({"message": "parallel_tool_calls is not supported"}))
        }
        name => Answer::Text(format!("I am {name}.")),
    }
}

#[tokio::test]
async fn b091_parameters_that_the_next_model_refuses_are_mended_once_each_and_are_the_skills_alone() {
    let agent = TestAgent::bare(picky).await;
    let (key, at) = (secret(1), Timestamp::now());
    let tag = |name: &str, values: &[&str]| Tag::custom(name, values.iter().map(|v| (*v).to_owned()));
    let coordinate = format!("31123:{}:chat", agent_key());
    let skill = |tags: Vec<Tag>, at: Timestamp| {
        let tags = [vec![tag("d", &["chat"]), tag("trigger", &["dm"])], tags].concat();
        EventBuilder::new(Kind::from(31123), "Be brief.")
            .tags(tags)
            .custom_created_at(at)
            .finalize(&key)
            .unwrap()
    };
    let list = EventBuilder::new(Kind::from(10123), "").tag(tag("a", &[&coordinate]));
    let tuned = vec![
        tag("llm", &["scripted/primary, scripted/reasoner, scripted/cheap"]),
        tag("temperature", &["0.7"]),
        tag("max_tokens", &["512"]),
    ];
    agent.publish([skill(tuned, at - 10), list.custom_created_at(at).finalize(&key).unwrap()]).await;

    let mut vars = agent.vars();
    vars.insert(
        "DIDACTYL_MODELS",
        r#"{"models": {"scripted/reasoner": {"parallel_tool_calls": false}}}"#.into(),
    );
    let app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let said = |count: usize| {
        let requests = agent.model.requests();
        let line = |asked: &Asked| {
            let parameter = |name: &str| asked.body.get(name).map(|value| format!(" {name}={value}"));
            let parameters = ["max_tokens", "max_completion_tokens", "temperature", "parallel_tool_calls"];
            let parameters: String = parameters.into_iter().filter_map(parameter).collect();
            format!("{}{parameters}", asked.body["model"].as_str().unwrap())
        };
        requests.iter().skip(count).map(line).collect::<Vec<_>>().join("\n")
    };
    let ask = async |text: &str| {
        deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), text)]).await.unwrap();
    };
    ask("one").await;
    insta::assert_snapshot!(said(0), @r"
    primary max_tokens=512 temperature=0.7
    reasoner max_tokens=512 temperature=0.7 parallel_tool_calls=false
    reasoner max_completion_tokens=512 temperature=0.7 parallel_tool_calls=false
    reasoner max_completion_tokens=512 parallel_tool_calls=false
    reasoner max_completion_tokens=512
    ");
    // It is remembered.
    let before = agent.model.calls();
    ask("two").await;
    insta::assert_snapshot!(said(before), @r"
    primary max_tokens=512 temperature=0.7
    reasoner max_completion_tokens=512
    ");
    // Without the skill's parameters the agent's own are back.
    agent.publish([skill(vec![], at)]).await;
    agent.clock.forward(Duration::from_secs(2 * 60 * 60));
    let before = agent.model.calls();
    ask("three").await;
    insta::assert_snapshot!(said(before), @"test");
    let replies: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(replies, ["I am reasoner.", "I am reasoner.", "I am test."]);
}

#[tokio::test]
async fn b103_half_of_a_surrogate_pair_is_read_plain_streamed_and_in_arguments() {
    for (content, reply) in [(r"ok \ud83d", "ok \u{fffd}"), (r"\udc00x", "\u{fffd}x")] {
        let told = tell(move |_| {
            Answer::Body(format!(r#"{{"choices":[{{"message":{{"content":"{content}"}}}}]}}"#))
        })
        .await;
        assert_eq!((told.reply.as_str(), told.asked.len()), (reply, 1), "{content}");
    }
    // A pair in two pieces, each of which is half a pair.
    let delta =
        |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}},"finish_reason":null}}]}}"#);
    let chunks = [
        delta(r"ok \ud83d"),
        delta(r"\ude00!"),
        r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#.into(),
    ];
    let told = tell(move |_| Answer::Raw(Reply::events(&chunks))).await;
    assert_eq!((told.reply.as_str(), told.asked.len()), ("ok \u{fffd}\u{fffd}!", 1));

    // In arguments that are text in text there are two places for it: the outer text and the inner one.
    let outer = r#"{"content":"ok \ud83d"}"#.replace('"', "\\\"");
    let inner = r#"{"content":"ok \\ud83d"}"#.replace('"', "\\\"");
    for (arguments, is_run) in [(outer, true), (inner, false)] {
        let called = format!(
            r#"{{"choices":[{{"message":{{"tool_calls":[{{"id":"c1","function":{{"name":"nostr_post","arguments":"{arguments}"}}}}]}}}}]}}"#
        );
        let is_asked = AtomicBool::new(false);
        let told = tell(move |asked| match is_asked.swap(true, Ordering::SeqCst) {
            false => Answer::Body(called.clone()),
            true => Answer::Text(asked.result().unwrap().to_string()),
        })
        .await;
        let expected = if is_run { r#""success":true"# } else { "invalid JSON arguments: " };
        assert!(told.reply.contains(expected), "{}", told.reply);
        let shown = if is_run { "{\"content\":\"ok \u{fffd}\"}" } else { "{}" };
        assert_eq!(told.arguments(1), [shown]);
    }
}

/// A model of Gemini's third generation: it signs the first of its calls, and refuses a batch that comes back without a
/// signature. Its `ill`-th request meets a server that is down.
fn gemini(asked: &Asked, ill: usize) -> Answer {
    let batches = asked.messages().iter().filter_map(|message| message["tool_calls"].as_array());
    let signature = |batch: &Vec<Value>| batch[0]["extra_content"]["google"]["thought_signature"].clone();
    let signatures: Vec<Value> = batches.map(signature).collect();
    if asked.number == ill {
        return Answer::Refusal(503, vec![], String::new());
    }
    if signatures.contains(&Value::Null) {
        let error = json!({"error": {"code": 400, "message": "missing a thought_signature", "status": "INVALID_ARGUMENT"}});
        return Answer::Refusal(400, vec![], json!([error]).to_string());
    }
    if !signatures.is_empty() {
        return Answer::Text(Value::from(signatures).to_string());
    }
    let call =
        |name: &str| json!({"id": "", "type": "function", "function": {"name": name, "arguments": "{}"}});
    let mut signed = call("time");
    signed["extra_content"] = json!({"google": {"thought_signature": "seal"}});
    body(json!({"tool_calls": [signed, call("nostr_admin_profile")]}), "stop".into())
}

#[tokio::test]
async fn a_signed_call_goes_back_with_its_signature_and_so_it_does_in_the_process_that_takes_the_run_over() {
    let agent = TestAgent::with_script(|asked| gemini(asked, 2)).await;
    let mut vars = agent.vars();
    let models = r#"{"models": {"scripted/test": {"thought_signatures": "demanded"}}}"#;
    vars.insert("DIDACTYL_MODELS", models.into());
    let process = || app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let dm = [nip17(&secret(2), "What time is it?")];
    let error = deliver_to(&process(), &agent.relay_url, &dm).await.unwrap_err();
    assert_eq!(error.to_string(), "the model is unavailable for now");
    agent.clock.forward(Duration::from_secs(60));
    let answer = deliver_to(&process(), &agent.relay_url, &dm).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let replies: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    let expected = [NOTE, r#"["seal"]"#].map(str::to_owned).to_vec();
    assert_eq!((replies, agent.model.calls()), (expected, 3));
    let last = agent.model.requests().pop().unwrap();
    let batch = last.messages().iter().find_map(|message| message["tool_calls"].as_array()).unwrap();
    assert_eq!(batch[1].get("extra_content"), None, "what was not signed is not");
}

#[tokio::test]
async fn another_models_calls_have_a_stand_in_for_whom_demands_a_signature() {
    let agent = TestAgent::with_script(|asked: &Asked| match (asked.body["model"].as_str(), asked.number) {
        (Some("other"), 1) => Answer::call("time", json!({})),
        (Some("other"), _) => Answer::Refusal(503, vec![], String::new()),
        _ => gemini(asked, 0),
    })
    .await;
    let mut vars = agent.vars();
    vars.insert("DIDACTYL_LLM", "scripted/other, scripted/gemini".into());
    let models = r#"{"models": {"scripted/gemini": {"thought_signatures": "demanded"}}}"#;
    vars.insert("DIDACTYL_MODELS", models.into());
    let app = app_over(config(&vars), agent.ground.open(agent.clock.clock()), &agent.clock);
    let answer = deliver_to(&app, &agent.relay_url, &[nip17(&secret(2), "What time is it?")]).await.unwrap();
    assert_eq!(outcomes(&answer), ["replied"], "{answer}");
    let replies: Vec<String> = agent.replies().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(replies, [r#"["skip_thought_signature_validator"]"#]);
}
