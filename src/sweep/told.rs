//! What the admin is to be told of a sweep.

use super::read::Heard;
use super::settle::Settled;
use crate::app::App;
use crate::notices::Fact;
use crate::relay::RelayError;
use crate::state::AgentState;

/// Events that were given up, seconds that are not shown whole, relays that refuse to be read.
pub(super) fn of_relays<'a>(heard: &'a [Heard], settled: &'a Settled) -> impl Iterator<Item = Fact> + 'a {
    let poison = settled.quarantined.iter().map(|id| Fact::Poison(*id));
    let gaps = heard.iter().filter_map(|relay| {
        let second = *relay.gaps.iter().max()?;
        Some(Fact::Gap { relay: relay.url.clone(), second })
    });
    let refused = heard
        .iter()
        .filter(|relay| matches!(relay.failure, Some(RelayError::Auth(_) | RelayError::Rejected(_))));
    poison.chain(gaps).chain(refused.map(|relay| Fact::Refused(relay.url.clone())))
}

/// The agent's first words on a new store.
pub(super) fn hello(app: &App, state: &AgentState, heard: &[Heard]) -> Fact {
    let relays = heard.iter().map(|relay| (relay.url.clone(), relay.failure.is_none())).collect();
    let model = app.config.providers.first_usable(&app.config.llm);
    Fact::hello(state, relays, model.map_or_else(|_| app.config.llm.to_string(), |model| model.id()))
}
