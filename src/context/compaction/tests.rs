use super::*;
use crate::chat::ToolCall;

fn text(role: Role, text: &str) -> Message {
    Message::text(role, text)
}

fn batch(id: usize, calls: usize, bytes: usize) -> Vec<Message> {
    let id = |call: usize| format!("c{id}x{call}");
    let call = |at| ToolCall::new(id(at), "query", format!(r#"{{"n":{at}}}"#));
    let content = |at: usize| {
        let filler = "word ".repeat(bytes / 5);
        format!(r#"{{"success":true,"content":"found {} {filler}"}}"#, id(at))
    };
    let mut batch = vec![Message::assistant("", (0..calls).map(call).collect())];
    batch.extend((0..calls).map(|at| Message::tool_result(id(at), content(at))));
    batch
}

/// A context: system, two of history, system, the trigger.
fn context() -> Log {
    Log::new(vec![
        text(Role::System, "You are Dido."),
        text(Role::User, &"How are you today? ".repeat(20)),
        text(Role::Assistant, &"Very well, thank you. ".repeat(20)),
        text(Role::System, "Be brief."),
        text(Role::User, "Find it."),
    ])
}

/// What each message is: its role, and a word of it.
fn outline(log: &Log) -> String {
    let line = |message: &Message| {
        let calls: Vec<&str> = message.tool_calls.iter().map(|call| call.id.as_str()).collect();
        let head: String = message.content.chars().take(44).collect();
        format!("{} {}{head} ({})", message.role.as_str(), calls.join(","), message.content.len())
    };
    log.messages().iter().map(line).collect::<Vec<_>>().join("\n")
}

fn compacted(log: &mut Log, window: usize, summary: Option<&str>) -> Compaction {
    let limits = Limits::of(window);
    let plan = log.plan(0, limits).expect("it is too long");
    let needs_summary = log.summary_request(&plan, limits).is_some();
    let plan = if needs_summary { log.with_summary(plan, summary, limits) } else { plan };
    let before = log.tokens();
    log.compact(&plan);
    assert!(log.tokens() < before);
    plan
}

#[test]
fn what_fits_is_left_alone() {
    let mut log = context();
    log.push_batch(batch(1, 2, 100));
    assert_eq!(log.plan(0, Limits::of(10_000)), None);
    let size = log.tokens();
    assert_eq!(log.plan(0, Limits { at: size, to: 1, window: 1 }), None);
    assert!(log.plan(1, Limits { at: size, to: 1, window: 1 }).is_some(), "what is sent beside it counts");
}

#[test]
fn a_long_answer_makes_room_for_itself() {
    let limits = |answer| Limits::of(1000).leaving(answer);
    assert_eq!(limits(300), Limits::of(1000));
    assert_eq!(limits(500), Limits { at: 500, to: 355, window: 1000 });
    assert_eq!(limits(9999), Limits { at: 250, to: 175, window: 1000 });
}

#[test]
fn old_results_are_shortened_first_and_the_newest_stay() {
    let mut log = context();
    (1..=3).for_each(|at| log.push_batch(batch(at, 1, 4000)));
    let plan = compacted(&mut log, 3000, None);
    assert_eq!((plan.remove_before, plan.newest_bytes), (0, None));
    insta::assert_snapshot!(outline(&log), @r#"
    system You are Dido. (13)
    user How are you today? How are you today? How ar (380)
    assistant Very well, thank you. Very well, thank you.  (440)
    system Be brief. (9)
    user Find it. (8)
    assistant c1x0 (0)
    tool {"success":true,"content":"found c1x0 word w (600)
    assistant c2x0 (0)
    tool {"success":true,"content":"found c2x0 word w (600)
    assistant c3x0 (0)
    tool {"success":true,"content":"found c3x0 word w (4040)
    "#);
}

#[test]
fn then_the_oldest_messages_make_way_for_a_summary_in_front_of_the_trigger() {
    let mut log = context();
    (1..=3).for_each(|at| log.push_batch(batch(at, 2, 1500)));
    compacted(&mut log, 1800, Some(" It is not in c1. \n"));
    insta::assert_snapshot!(outline(&log), @r#"
    system You are Dido. (13)
    system Be brief. (9)
    user [A record of what came before, shortened. It (146)
    user Find it. (8)
    assistant c3x0,c3x1 (0)
    tool {"success":true,"content":"found c3x0 word w (1540)
    tool {"success":true,"content":"found c3x1 word w (1540)
    "#);
}

#[test]
fn the_summary_is_asked_for_in_plain_text_and_without_calls() {
    let mut log = context();
    (1..=3).for_each(|at| log.push_batch(batch(at, 1, 1500)));
    let limits = Limits::of(1500);
    let plan = log.plan(0, limits).unwrap();
    let (request, max_tokens) = log.summary_request(&plan, limits).unwrap();
    assert_eq!(max_tokens, 150);
    assert_eq!(request.iter().map(|m| m.role).collect::<Vec<_>>(), [Role::System, Role::User]);
    assert!(request.iter().all(|m| m.tool_calls.is_empty()));
    assert!(request.iter().map(tokens::of_message).sum::<usize>() < limits.at);
    insta::assert_snapshot!(request[1].content, @r#"
    User: How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today? How are you today?

    Assistant: Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you. Very well, thank you.

    Assistant called: query {"n":0}

    Result: {"success":true,"content":"found c1x0 word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word word "}
    "#);
}

#[test]
fn b093_the_next_summary_has_the_last_one_in_it_and_never_stands_beside_it() {
    let mut log = context();
    let limits = Limits::of(1500);
    let mut compactions = 0;
    for at in 1..=30 {
        log.push_batch(batch(at, 1, 900));
        let Some(plan) = log.plan(0, limits) else { continue };
        if let Some((request, _)) = log.summary_request(&plan, limits) {
            let last = format!("summary {compactions}");
            let is_first = compactions == 0;
            assert!(
                is_first || request[1].content.starts_with(&format!("Earlier summary: {last}\n")),
                "{request:?}"
            );
            compactions += 1;
            let plan = log.with_summary(plan, Some(&format!("summary {compactions}")), limits);
            log.compact(&plan);
        } else {
            log.compact(&plan);
        }
        assert!(log.tokens() <= limits.at, "{} tokens", log.tokens());
        let summaries = log.messages().iter().filter(|m| m.content.starts_with(SUMMARY_HEAD));
        assert!(summaries.count() <= 1);
    }
    assert!(compactions >= 3, "{compactions}");
}

#[test]
fn without_a_summary_a_word_says_that_messages_are_gone_and_the_last_summary_stays() {
    let mut log = context();
    let mut shown = Vec::new();
    for summary in [None, Some("All is well."), None, None] {
        (1..=4).for_each(|at| log.push_batch(batch(at, 1, 900)));
        compacted(&mut log, 1500, summary);
        let message = log.messages().iter().find(|m| m.content.starts_with(SUMMARY_HEAD)).unwrap();
        shown.push(message.content.strip_prefix(SUMMARY_HEAD).unwrap().trim().replace('\n', "|"));
    }
    let all_is_well = format!("All is well.||{LEFT_OUT}");
    assert_eq!(shown, [LEFT_OUT, "All is well.", &all_is_well, &all_is_well]);
}

#[test]
fn a_summary_that_is_longer_than_what_it_stands_for_is_not_taken() {
    let mut log = Log::new(vec![text(Role::User, &"old ".repeat(60)), text(Role::User, &"new ".repeat(60))]);
    let plan = log.plan(0, Limits { at: 100, to: 90, window: 10_000 }).unwrap();
    let long = "long ".repeat(5000);
    let plan = log.with_summary(plan, Some(&long), Limits { at: 100, to: 90, window: 10_000 });
    log.compact(&plan);
    insta::assert_snapshot!(outline(&log), @r"
    user [A record of what came before, shortened. It (197)
    user new new new new new new new new new new new  (240)
    ");
}

#[test]
fn newest_results_that_do_not_fit_are_shortened_and_nothing_else_is_lost() {
    let mut log = context();
    log.push_batch(batch(1, 3, 8000));
    compacted(&mut log, 3000, Some("Greetings."));
    assert!(log.tokens() <= 2100, "{}", log.tokens());
    let results: Vec<&str> = log.messages().iter().rev().take(3).map(|m| m.content.as_str()).collect();
    assert!(results.iter().all(|r| r.starts_with(r#"{"success":true,"content":"found c1x"#)), "{results:?}");
}

#[test]
fn what_cannot_be_made_smaller_is_left_as_it_is() {
    let log =
        Log::new(vec![text(Role::System, &"a rule ".repeat(500)), text(Role::User, &"a wish ".repeat(500))]);
    assert_eq!(log.plan(0, Limits::of(1000)), None);
    // Not even its word that something is gone would fit in the place of so little.
    let log = Log::new(vec![text(Role::User, "hi"), text(Role::User, &"a wish ".repeat(500))]);
    assert_eq!(log.plan(0, Limits::of(1000)), None);
}

#[test]
fn a_log_without_a_users_message_and_an_empty_one_are_no_trouble() {
    assert_eq!(Log::new(vec![]).plan(10, Limits::of(1)), None);
    let mut log = Log::new(vec![text(Role::System, "You are Dido.")]);
    (1..=3).for_each(|at| log.push_batch(batch(at, 1, 2000)));
    compacted(&mut log, 900, Some("Summary."));
    assert_eq!(log.messages()[1].role, Role::System, "{}", outline(&log));
}

/// The case's page is one line of JSON, as a fetching tool would give it.
#[test]
fn b027_a_first_result_of_megabytes_fits_into_a_window_of_32k_tokens() {
    let page = format!("[{}]", r#"{"id":1,"ok":true,"v":[1.5,null]},"#.repeat(56_000));
    let result = excerpt::content_in(&serde_json::Value::String(page.clone()), 16_000);
    assert!(result.len() <= 16_000);
    assert!(result.contains(&format!("of {} bytes left out", page.len())), "the true size is told");
    assert!(result.contains("call again for a smaller part"), "and how to read on");
    assert!(tokens::estimate(&page) >= page.len() / 3, "dense JSON has at most 3 characters a token");
    let mut log = context();
    let call = ToolCall::new("c", "http_fetch", "{}");
    log.push_batch([Message::assistant("", vec![call]), Message::tool_result("c", result)]);
    assert_eq!(log.plan(2000, Limits::of(32_000)), None);
}

#[test]
fn a_compaction_of_another_context_parts_no_call_from_its_results() {
    for remove_before in 0..=12 {
        let mut log = context();
        (1..=3).for_each(|at| log.push_batch(batch(at, 2, 100)));
        log.compact(&Compaction { shorten_before: 0, remove_before, newest_bytes: None, summary: None });
        let calls: Vec<&str> =
            log.messages().iter().flat_map(|m| &m.tool_calls).map(|call| call.id.as_str()).collect();
        let results: Vec<&str> = log.messages().iter().filter_map(|m| m.tool_call_id.as_deref()).collect();
        assert_eq!(calls, results, "{remove_before}");
    }
}

#[test]
fn sections_keep_their_messages_whatever_a_compaction_takes_out_or_puts_in() {
    let names = ["system_prompt", "dm_history", "dm_history", "rules", "current_message"].map(str::to_owned);
    let mut log = context();
    for at in 1..=6 {
        log.push_batch(batch(at, 1, 1500));
        if log.plan(0, Limits::of(1500)).is_some() {
            compacted(&mut log, 1500, Some("All is well."));
        }
    }
    let sections = log.sections(&names);
    let shown = log.messages().iter().zip(&sections);
    let shown: Vec<String> = shown
        .map(|(m, section)| format!("{section}: {}", m.content.chars().take(13).collect::<String>()))
        .collect();
    insta::assert_snapshot!(shown.join("\n"), @r#"
    system_prompt: You are Dido.
    rules: Be brief.
    summary: [A record of 
    current_message: Find it.
    turn: 
    turn: {"success":tr
    turn: 
    turn: {"success":tr
    turn: 
    turn: {"success":tr
    "#);
}
