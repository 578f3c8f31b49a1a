//! Which guests' messages are work, told before a row is written for them: of a flood of strangers no more is stored than
//! may be worked.
//!
//! Whoever is let in here is decided about once more when the run begins ([`crate::guests`]), with all that is known then.

use std::collections::BTreeSet;

use nostr::prelude::{EventId, PublicKey};

use super::settle::{End, Order, Placed, Settled};
use crate::app::App;
use crate::error::Error;
use crate::guests::{self, Counters};
use crate::heed::{Heed, Refusal, Usage, over_limit, verdict};
use crate::load::Stored;
use crate::state::AgentState;
use crate::trigger::{Tier, Trigger};

/// What it is decided by.
#[derive(Clone, Copy)]
pub(crate) struct Door<'a> {
    pub(crate) app: &'a App,
    /// The agent's state.
    pub(crate) stored: &'a Stored,
    /// When this agent first swept, Unix seconds.
    pub(crate) start_at: u64,
}

/// What is known of who is answered.
struct Known {
    state: AgentState,
    /// Whether what is not in the state is not there.
    is_settled: bool,
}

impl<'a> Door<'a> {
    /// The door in standby, to which no message is younger than the start.
    pub(crate) fn in_standby(app: &'a App, stored: &'a Stored) -> Self {
        Self { app, stored, start_at: u64::MAX }
    }

    /// Whether a message that was pushed is work, by the same rules.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn judge(&self, trigger: &Trigger) -> Result<(), Refusal> {
        let Some(guest) = self.guest(trigger) else { return Ok(()) };
        self.look(trigger.clone(), &self.known())?;
        over_limit(&self.app.config.senders, self.stored.counters.usage(&guest)).map_or(Ok(()), Err)
    }

    /// Takes the guests' messages that are no work out of `orders`. What strangers wrote before the start is none.
    pub(super) async fn sift(&self, orders: Vec<Placed>, settled: &mut Settled) -> Vec<Placed> {
        let (mut passed, mut guests) = (Vec::new(), Vec::new());
        let mut known = None;
        for Placed { id, at, order } in orders {
            match order {
                Order::Work(trigger) if self.guest(&trigger).is_some() => {
                    match self.look(*trigger, known.get_or_insert_with(|| self.known())) {
                        Ok(trigger) => guests.push((id, at, Box::new(trigger))),
                        Err(refusal) => turn_away(id, refusal, settled),
                    }
                }
                order => passed.push(Placed { id, at, order }),
            }
        }
        let senders: BTreeSet<PublicKey> =
            guests.iter().filter_map(|(.., trigger)| self.guest(trigger)).collect();
        if senders.is_empty() {
            return passed;
        }
        let mut counters = match self.counters(senders, settled).await {
            Ok(counters) => counters,
            Err(error) => {
                tracing::warn!(%error, "messages of guests are left for the next tick");
                settled.ends.extend(guests.into_iter().map(|(id, ..)| (id, End::Open)));
                return passed;
            }
        };
        for (id, at, trigger) in guests {
            let Some(guest) = self.guest(&trigger) else { continue };
            match over_limit(&self.app.config.senders, counters.usage(&guest)) {
                None => {
                    counters.add(guest);
                    passed.push(Placed { id, at, order: Order::Work(trigger) });
                }
                // An admin chose this one: there are not many.
                Some(refusal) if trigger.tier > Tier::Stranger => {
                    passed.push(Placed { id, at, order: Order::Refused(trigger, refusal) });
                }
                Some(refusal) => turn_away(id, refusal, settled),
            }
        }
        passed
    }

    pub(super) fn guest(&self, trigger: &Trigger) -> Option<PublicKey> {
        guests::guest(self.app, trigger)
    }

    fn known(&self) -> Known {
        let state = self.stored.state(self.app);
        Known { is_settled: self.stored.is_settled(&state), state }
    }

    /// Whether a guest is answered at all. Where the lists were not read in full, it is only known when the run begins.
    fn look(&self, trigger: Trigger, known: &Known) -> Result<Trigger, Refusal> {
        let Some(sender) = trigger.sender() else { return Ok(trigger) };
        let Heed { tier, refusal } =
            verdict(&self.app.config.senders, &known.state, sender, Usage::default());
        match refusal {
            Some(refusal) if known.is_settled || !refusal.is_by_absence() => Err(refusal),
            Some(_) => Ok(trigger),
            None if tier == Tier::Stranger && self.is_before_start(&trigger) => Err(Refusal::BeforeStart),
            None => Ok(trigger.of_tier(tier)),
        }
    }

    /// After a standby the agent starts anew.
    fn is_before_start(&self, trigger: &Trigger) -> bool {
        self.app.config.standby || trigger.created_at().as_secs() < self.start_at
    }

    /// What these guests have had, with what this tick found already: the store counts it only when its runs begin.
    async fn counters(&self, senders: BTreeSet<PublicKey>, settled: &mut Settled) -> Result<Counters, Error> {
        let senders: Vec<PublicKey> = senders.into_iter().collect();
        settled.counters = guests::counters(self.app, &senders).await?.with(&settled.counters);
        Ok(settled.counters.clone())
    }
}

/// The message is dealt with: it is noted among the seen ids, and nowhere else.
fn turn_away(id: EventId, reason: Refusal, settled: &mut Settled) {
    tracing::info!(event.id = %id, %reason, "a message that the sweep found is not answered");
    settled.ends.insert(id, End::Dealt);
}
