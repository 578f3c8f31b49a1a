//! What a trigger's filter must look like before a skill is fired by it. An unchecked one would fire on everything,
//! or never, and nobody would be told.

use nostr::prelude::Filter;
use serde_json::{Map, Value};

use crate::kinds;

/// Kinds that no subscription may name: they are DMs, or the wrapping of DMs, and have a trigger of their own.
const REFUSED: [nostr::prelude::Kind; 4] = [kinds::DM_NIP04, kinds::SEAL, kinds::CHAT, kinds::GIFT_WRAP];

/// Whether a subscription can be had on this filter (design §4); the fault as the rest of a warning.
///
/// # Errors
/// What is wrong, and what to do.
pub(super) fn subscription(text: &str, has_max_runs: bool) -> Result<(), &'static str> {
    let (Ok(filter), Ok(fields)) =
        (serde_json::from_str::<Filter>(text), serde_json::from_str::<Map<String, Value>>(text))
    else {
        return Err(
            "has a filter that is not one NIP-01 filter in JSON; give for example {\"kinds\":[1],\"#t\":[\"news\"]}",
        );
    };
    // A misspelt field would silently widen the filter.
    if !fields.keys().all(|field| is_field(field)) {
        return Err("has a filter with a field that is not NIP-01's; correct or remove that field");
    }
    if fields.values().any(|value| value.as_array().is_some_and(Vec::is_empty)) {
        return Err("has a filter with an empty list, which means nothing or everything; fill or remove it");
    }
    if filter.kinds.iter().flatten().any(|kind| REFUSED.contains(kind)) {
        return Err("asks for kind 4, 13, 14 or 1059, which are private messages; remove those kinds");
    }
    let is_narrow = filter.ids.is_some() || filter.authors.is_some() || !filter.generic_tags.is_empty();
    if !is_narrow && (filter.kinds.is_none() || !has_max_runs) {
        return Err(
            "has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a \
                    max_runs tag to the agent's own skill",
        );
    }
    Ok(())
}

fn is_field(name: &str) -> bool {
    let mut letters = name.bytes();
    matches!(name, "ids" | "authors" | "kinds" | "since" | "until" | "limit")
        || (letters.next() == Some(b'#')
            && letters.next().is_some_and(|letter| letter.is_ascii_alphabetic())
            && letters.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5";

    #[test]
    fn a_filter_that_names_something_narrow_is_taken() {
        for filter in [
            format!(r#"{{"ids":["{KEY}"]}}"#),
            format!(r#"{{"authors":["{KEY}"],"kinds":[1]}}"#),
            r##"{"kinds":[1,30023],"#t":["news"],"since":1,"until":2,"limit":3}"##.to_owned(),
            r##"{"#T":["x"]}"##.to_owned(),
        ] {
            assert_eq!(subscription(&filter, false), Ok(()), "{filter}");
        }
        assert_eq!(subscription(r#"{"kinds":[1]}"#, true), Ok(()));
    }

    #[test]
    fn any_other_filter_is_refused_with_what_to_do() {
        let refused = |filter: &str| format!("{filter}\n  {}\n", subscription(filter, false).unwrap_err());
        let table: String = [
            "",
            "news",
            "[]",
            "[{\"kinds\":[1]}]",
            "{\"kinds\":[1]} {}",
            "{\"kinds\":\"1\"}",
            "{\"kinds\":[-1]}",
            "{\"kinds\":[1.5]}",
            "{\"kinds\":[65536]}",
            "{\"authors\":[\"npub1\"]}",
            "{\"ids\":[\"c604\"]}",
            "{\"#t\":[1]}",
            "{\"#t\":\"news\"}",
            "{\"since\":-1,\"#t\":[\"x\"]}",
            "{\"since\":99999999999999999999,\"#t\":[\"x\"]}",
            "{\"author\":[\"x\"],\"#t\":[\"x\"]}",
            "{\"#topic\":[\"x\"],\"#t\":[\"x\"]}",
            "{\"search\":\"x\",\"#t\":[\"x\"]}",
            "{\"#\":[\"x\"]}",
            "{\"authors\":[]}",
            "{\"#t\":[],\"kinds\":[1]}",
            "{\"kinds\":[1,4],\"#t\":[\"x\"]}",
            "{\"kinds\":[1059],\"#t\":[\"x\"]}",
            "{}",
            "{\"since\":1}",
            "{\"kinds\":[1]}",
        ]
        .map(refused)
        .concat();
        insta::assert_snapshot!(table, @r##"

          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        news
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        []
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        [{"kinds":[1]}]
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"kinds":[1]} {}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"kinds":"1"}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"kinds":[-1]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"kinds":[1.5]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"kinds":[65536]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"authors":["npub1"]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"ids":["c604"]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"#t":[1]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"#t":"news"}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"since":-1,"#t":["x"]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"since":99999999999999999999,"#t":["x"]}
          has a filter that is not one NIP-01 filter in JSON; give for example {"kinds":[1],"#t":["news"]}
        {"author":["x"],"#t":["x"]}
          has a filter with a field that is not NIP-01's; correct or remove that field
        {"#topic":["x"],"#t":["x"]}
          has a filter with a field that is not NIP-01's; correct or remove that field
        {"search":"x","#t":["x"]}
          has a filter with a field that is not NIP-01's; correct or remove that field
        {"#":["x"]}
          has a filter with a field that is not NIP-01's; correct or remove that field
        {"authors":[]}
          has a filter with an empty list, which means nothing or everything; fill or remove it
        {"#t":[],"kinds":[1]}
          has a filter with an empty list, which means nothing or everything; fill or remove it
        {"kinds":[1,4],"#t":["x"]}
          asks for kind 4, 13, 14 or 1059, which are private messages; remove those kinds
        {"kinds":[1059],"#t":["x"]}
          asks for kind 4, 13, 14 or 1059, which are private messages; remove those kinds
        {}
          has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a max_runs tag to the agent's own skill
        {"since":1}
          has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a max_runs tag to the agent's own skill
        {"kinds":[1]}
          has a filter that fits too much; name ids, authors or a # tag, or name kinds and add a max_runs tag to the agent's own skill
        "##);
        assert!(subscription("{}", true).is_err() && subscription("{\"limit\":1}", true).is_err());
        assert!(subscription(&"[".repeat(100_000), true).is_err());
    }
}
