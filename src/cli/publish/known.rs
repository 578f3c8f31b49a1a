//! What the agent's relays have of what will be replaced.

use nostr::prelude::{Coordinate, Event, Filter, Keys, RelayUrl, SingleLetterTag, Timestamp};
use tokio::time::Instant;

use super::{Drafts, Failure, PATIENCE};
use crate::events;
use crate::kinds;
use crate::publish::{distinct, own_list};
use crate::relay::pool::Pool;
use crate::relay::{Relays, Target, Trust};
use crate::state::AgentState;
use crate::versions::SOUL_D;

/// The most relays that are asked: lists that name ever more lists end here.
const MAX_RELAYS: usize = 32;

/// What will be replaced, and where the new versions go.
pub(super) struct Known {
    pub(super) state: AgentState,
    /// The configured relays and the agent's write relays.
    pub(super) targets: Vec<Target>,
}

impl Known {
    /// Asks the configured relays, and those that the agent's own list names, until no new one is named.
    ///
    /// # Errors
    /// A sentence that names the relay that did not tell all.
    pub(super) async fn read(
        client: &Pool,
        keys: &Keys,
        relays: &[RelayUrl],
        drafts: &Drafts,
    ) -> Result<Self, Failure> {
        let configured: Vec<Target> =
            relays.iter().map(|url| Target { url: url.clone(), trust: Trust::Own }).collect();
        let filters = filters(keys, drafts);
        let build =
            |events: &[Event]| AgentState::build(keys, &[], None, events.iter().cloned(), Timestamp::now());
        let (mut found, mut asked) = (Vec::new(), Vec::new());
        let targets = loop {
            let own = own_list(&build(&found).write_relays(keys.public_key()));
            let targets = distinct(configured.iter().cloned().chain(own));
            let new: Vec<Target> =
                targets.iter().filter(|target| !asked.contains(*target)).cloned().collect();
            if new.is_empty() {
                break targets;
            }
            asked.extend(new.iter().cloned());
            if asked.len() > MAX_RELAYS {
                return Err(format!(
                    "nothing was published: the agent's relay lists (kind 10002) name more than {MAX_RELAYS} relays; \
                     shorten them"
                )
                .into());
            }
            found.extend(fetch(client, &new, &filters).await?);
        };
        found.extend(fetch(client, &asked, &deletions(keys, drafts, &found)).await?);
        let state = build(&found);
        match state.events.warnings() {
            [] => Ok(Self { state, targets }),
            ahead => Err(format!(
                "nothing was published: {}; relays would keep that version, so correct the clock that is wrong, or wait",
                ahead.join("; ")
            )
            .into()),
        }
    }
}

/// What is asked of every relay.
fn filters(keys: &Keys, drafts: &Drafts) -> Vec<Filter> {
    let of_agent = Filter::new().author(keys.public_key());
    let lists = of_agent.clone().kinds([kinds::RELAY_LIST, kinds::ADOPTION_LIST, kinds::SOUL]);
    let skills = of_agent
        .kinds([kinds::PUBLIC_SKILL, kinds::PRIVATE_SKILL])
        .identifiers(drafts.skills.iter().map(|skill| &skill.d));
    // A filter without d tags would ask for every skill.
    if drafts.skills.is_empty() { vec![lists] } else { vec![lists, skills] }
}

/// What the agent deleted of what was found, and of what will be written.
fn deletions(keys: &Keys, drafts: &Drafts, found: &[Event]) -> Vec<Filter> {
    let agent = keys.public_key();
    let written = [
        Coordinate::new(kinds::SOUL, agent).identifier(SOUL_D),
        Coordinate::new(kinds::ADOPTION_LIST, agent),
    ];
    let skills = drafts.skills.iter().map(|skill| skill.coordinate(agent));
    let addresses = written.into_iter().chain(skills).chain(found.iter().filter_map(events::address));
    let requests = Filter::new().author(agent).kind(kinds::DELETION);
    let by_address =
        requests.clone().custom_tags(SingleLetterTag::LOWERCASE_A, addresses.map(|a| a.to_string()));
    let by_id = requests.events(found.iter().map(|event| event.id));
    if found.is_empty() { vec![by_address] } else { vec![by_address, by_id] }
}

/// Everything that each relay has.
async fn fetch(client: &Pool, targets: &[Target], filters: &[Filter]) -> Result<Vec<Event>, Failure> {
    let fetched = client.fetch(targets, filters, Instant::now() + PATIENCE).await;
    for report in &fetched.reports {
        let lacks = match &report.outcome {
            Err(error) => error.to_string(),
            // One of them may be the list that is to be rewritten.
            Ok(()) if report.skipped > 0 => format!("{} of its events cannot be read", report.skipped),
            Ok(()) => continue,
        };
        return Err(format!(
            "nothing was published: {} could not be read in full ({lacks}), and what only it has would be lost. Try \
             again, or take it out of DIDACTYL_RELAYS or the agent's relay list (kind 10002), whichever names it",
            report.url
        )
        .into());
    }
    Ok(fetched.events)
}
