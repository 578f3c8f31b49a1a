//! Variables that look like the agent's and are none: a slip in a name would else say nothing and change nothing.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// What the agent's variables begin with.
const PREFIX: &str = "DIDACTYL_";

/// Of other commands; whoever has them set means those.
const OF_OTHERS: [&str; 1] = ["DIDACTYL_BRIDGE_TOKEN"];

/// So far a name may be from a known one that is offered for it.
const MAX_DISTANCE: usize = 4;

/// What is to be said of the variables that are set and not `known`, each with the known one that is nearest. Never of a value.
pub(super) fn variables(set: impl IntoIterator<Item = OsString>, known: &BTreeSet<String>) -> Vec<String> {
    let set: BTreeSet<String> = set.into_iter().filter_map(|name| name.into_string().ok()).collect();
    set.iter()
        .filter(|name| {
            name.starts_with(PREFIX) && !known.contains(*name) && !OF_OTHERS.contains(&name.as_str())
        })
        .map(|name| {
            let distance = |known: &&String| strsim::osa_distance(known, name);
            let nearest = known.iter().filter(|known| known.starts_with(PREFIX)).min_by_key(distance);
            match nearest.filter(|nearest| distance(nearest) <= MAX_DISTANCE) {
                Some(nearest) => format!("{name}: did you mean {nearest}?"),
                None => format!("{name}: it means nothing here, see docs/CONFIGURATION.md"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_nobody_reads_is_named_with_the_nearest_that_is_read() {
        let known = ["DIDACTYL_RELAYS", "DIDACTYL_SENDERS", "DIDACTYL_LLM", "OPENAI_API_KEY"];
        let known = known.map(str::to_owned).into();
        let set = [
            "PATH",
            "DIDACTYL_LLM",
            "DIDACTYL_RELAY",
            "DIDACTYL_SENDER",
            "DIDACTYL_BRIDGE_TOKEN",
            "DIDACTYL_SOMETHING_ELSE",
        ];
        insta::assert_snapshot!(variables(set.map(OsString::from), &known).join("\n"), @r"
        DIDACTYL_RELAY: did you mean DIDACTYL_RELAYS?
        DIDACTYL_SENDER: did you mean DIDACTYL_SENDERS?
        DIDACTYL_SOMETHING_ELSE: it means nothing here, see docs/CONFIGURATION.md
        ");
    }
}
