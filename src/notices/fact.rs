//! The facts that an admin is told, and their words. All of them are our own: a notice is part of the conversation that
//! the model sees, so nothing that a relay or a stranger said stands in one.

use nostr::prelude::{EventId, PublicKey, RelayUrl, Timestamp, ToBech32};

use crate::hash::{hex, sha256};
use crate::skill::{self, Skill};
use crate::state::AgentState;
use crate::sweep::subscriptions::Subscriber;
use crate::tools::time::iso;

/// The most names of skills, and of relays, in a hello.
const MAX_NAMES: usize = 20;

/// The name of [`Fact::OtherInstance`].
pub(crate) const OTHER_INSTANCE: &str = "instance";

/// Something that the admin is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// The agent runs: told once on a new store.
    Hello {
        /// Its name.
        name: String,
        /// Where it reads, and whether that was read.
        relays: Vec<(RelayUrl, bool)>,
        /// The model that is asked first, as `provider/model`.
        model: String,
        /// The d tags of its adopted skills.
        skills: Vec<String>,
    },
    /// An event was given up: opening it ended the process again and again.
    Poison(EventId),
    /// A relay has more messages of one second than it shows.
    Gap {
        /// The relay.
        relay: RelayUrl,
        /// The second, Unix time.
        second: u64,
    },
    /// A relay refuses for good to be read.
    Refused(RelayUrl),
    /// A message that this key signed and this store does not know, written at that time.
    OtherInstance(Timestamp),
    /// No relay of its recipient took an answer: to whom, and the run.
    Undelivered(PublicKey, String),
    /// No relay took an event that a tool published.
    Unpublished(EventId),
    /// No adopted skill has a trigger that can be read, so all speak in the admin's messages (design §4).
    NoTriggers,
    /// A skill was fired as often today as it may be.
    MaxRuns(Subscriber),
}

impl Fact {
    /// The hello of an agent that knows this.
    #[must_use]
    pub fn hello(state: &AgentState, relays: Vec<(RelayUrl, bool)>, model: String) -> Self {
        let skills = state.skills.iter().map(Skill::d).map(str::to_owned).collect();
        Self::Hello { name: state.name.clone(), relays, model, skills }
    }

    /// By which the same fact is known again. A relay goes by the first 16 digits of its URL's SHA-256, since a URL may be
    /// longer than a key.
    #[must_use]
    pub fn name(&self) -> String {
        let short = |relay: &RelayUrl| hex(&sha256(relay.as_str().as_bytes())).split_off(48);
        match self {
            Self::Hello { .. } => "hello".to_owned(),
            Self::Poison(id) => format!("poison:{id}"),
            Self::Gap { relay, .. } => format!("gap:{}", short(relay)),
            Self::Refused(relay) => format!("refused:{}", short(relay)),
            Self::OtherInstance(_) => OTHER_INSTANCE.to_owned(),
            Self::Undelivered(_, run) => format!("undelivered:{run}"),
            Self::Unpublished(id) => format!("unpublished:{id}"),
            Self::NoTriggers => "older-rule".to_owned(),
            Self::MaxRuns(skill) => {
                format!("max-runs:{}", hex(&sha256(skill.skill.as_bytes())).split_off(48))
            }
        }
    }

    /// Whether it is never told again, however long ago it was told.
    #[must_use]
    pub fn is_told_once(&self) -> bool {
        matches!(self, Self::Hello { .. } | Self::NoTriggers)
    }

    /// What the admin is told.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Hello { name, relays, model, skills } => hello(name, relays, model, skills),
            Self::Poison(id) => format!(
                "I gave up the event {id}: opening it ended my process again and again. If it was a message, it stays \
                 unanswered; the others are not held up by it."
            ),
            Self::Gap { relay, second } => format!(
                "The relay {relay} has more messages of one second ({}) than it shows me at a time, so I may have missed \
                 some of that second. If another of my relays has them, I find them there.",
                iso(Timestamp::from(*second))
            ),
            Self::Refused(relay) => format!(
                "The relay {relay} does not let me read: it does not take my authentication, or has blocked me. Messages \
                 that lie there alone do not reach me. Let it admit my key, or take it out of DIDACTYL_RELAYS and my relay \
                 lists."
            ),
            Self::OtherInstance(at) => format!(
                "Somebody else writes with my key: I found a message of mine, of {}, that I know nothing of. If another \
                 instance of me runs, both of us answer: stop one of them, or set DIDACTYL_STANDBY=true for it.",
                iso(*at)
            ),
            Self::Undelivered(peer, run) => format!(
                "I could not deliver an answer to {}: for three days no relay where it reads messages took it. The answer stands \
                 in our conversation; what each relay said is in the record of run {run}.",
                peer.to_bech32().unwrap_or_else(|_| peer.to_hex())
            ),
            Self::Unpublished(id) => format!(
                "I could not publish the event {id}: for three days none of my relays took it. Let one of them admit my key, \
                 or change DIDACTYL_RELAYS and my relay list, and ask me for it again."
            ),
            Self::NoTriggers => "None of my adopted skills has a trigger that I can read, so all of them speak in your \
                 messages to me, and in nothing else. Give each skill a trigger tag, such as [\"trigger\",\"dm\"]."
                .to_owned(),
            Self::MaxRuns(Subscriber { d, runs_per_day, .. }) => format!(
                "My skill {} was fired by {runs_per_day} events today, as often as it may be. Further ones do not fire it before \
                 midnight UTC, and later they are not made up for. Give it a filter that fits less, or a max_runs tag with a \
                 higher number.",
                skill::name(d)
            ),
        }
    }
}

fn hello(name: &str, relays: &[(RelayUrl, bool)], model: &str, skills: &[String]) -> String {
    let relays = relays.iter().map(|(url, is_read)| match is_read {
        true => url.to_string(),
        false => format!("{url} (not read yet)"),
    });
    let skills = skills.iter().map(|d| skill::name(d));
    format!(
        "Hello, I am {name}, and I am running. Write me an encrypted message, and I answer.\n\n\
         Relays: {}\nModel: {model}\nSkills: {}\n\n\
         To stop me, write /stop; /help lists what else I obey. To silence me for good, set DIDACTYL_STANDBY=true. I say this \
         once.",
        listed(relays),
        listed(skills),
    )
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    let more = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(url: &str) -> RelayUrl {
        RelayUrl::parse(url).unwrap()
    }

    #[test]
    fn each_fact_has_a_name_of_its_own_and_says_what_to_do() {
        let (one, two) = (relay("wss://one.test"), relay("wss://two.test"));
        let relays = vec![(one.clone(), true), (two.clone(), false)];
        let skills = vec!["chat".to_owned(), "a\nb".to_owned()];
        let facts = [
            Fact::Hello { name: "Ada".to_owned(), relays, model: "openai/gpt-5-mini".to_owned(), skills },
            Fact::Hello { name: "Ada".to_owned(), relays: vec![], model: "x/y".to_owned(), skills: vec![] },
            Fact::Poison(EventId::from_byte_array([7; 32])),
            Fact::Gap { relay: one.clone(), second: 1_803_902_400 },
            Fact::Gap { relay: two, second: 1_803_902_400 },
            Fact::Refused(one),
            Fact::OtherInstance(Timestamp::from(1_803_902_400)),
            Fact::Undelivered(PublicKey::from_byte_array([7; 32]), "r".repeat(32)),
            Fact::Unpublished(EventId::from_byte_array([7; 32])),
            Fact::NoTriggers,
            Fact::MaxRuns(Subscriber {
                skill: "31123:ab:news".to_owned(),
                d: "news".to_owned(),
                runs_per_day: 50,
            }),
        ];
        let told: Vec<String> = facts
            .iter()
            .map(|fact| {
                format!(
                    "{}{}\n{}",
                    fact.name(),
                    if fact.is_told_once() { " (once)" } else { "" },
                    fact.text()
                )
            })
            .collect();
        insta::assert_snapshot!(told.join("\n\n"));
    }

    #[test]
    fn a_hello_names_some_skills_and_counts_the_rest() {
        let names = |count: usize| listed((0..count).map(|n| n.to_string()));
        assert_eq!(names(2), "0, 1");
        assert!(names(MAX_NAMES + 3).ends_with("18, 19, and 3 more"));
    }
}
