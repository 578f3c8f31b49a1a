//! Which guests' messages are work, told before a row is written for them: of a flood of strangers no more is stored than
//! may be worked.
//!
//! Whoever is let in here is decided about once more when the run begins ([`crate::guests`]), with all that is known then.

use std::collections::BTreeSet;

use nostr::prelude::{EventId, PublicKey};

use super::settle::{End, Order, Placed, Settled};
use super::subscriptions::Subscriptions;
use crate::app::App;
use crate::error::Error;
use crate::guests::{self, Counters};
use crate::heed::{Lists, Refusal, Usage, judge, over_limit};
use crate::load::Stored;
use crate::state::AgentState;
use crate::trigger::{Tier, Trigger};

/// What it is decided by.
#[derive(Clone, Copy)]
pub(crate) struct Door<'a> {
    pub(crate) app: &'a App,
    /// The agent's state.
    pub(crate) stored: &'a Stored,
    /// What the skills subscribe to, as far as it counts.
    pub(crate) subscriptions: Option<&'a Subscriptions>,
    /// When this agent first swept, Unix seconds.
    pub(crate) start_at: u64,
}

/// What is known of who is answered.
struct Known {
    state: AgentState,
    lists: Lists,
}

/// What the lists say of a guest's message.
enum Look {
    /// It may be work, as far as they are known.
    Passes(Guest),
    /// It is none.
    Refused(Refusal),
    /// A list that is not known yet decides.
    Later,
}

/// A guest's message.
struct Guest {
    trigger: Box<Trigger>,
    /// Whether no list that is not known yet gives its sender another tier.
    is_sure: bool,
}

impl<'a> Door<'a> {
    /// The door in standby, to which no message is younger than the start.
    pub(crate) fn in_standby(app: &'a App, stored: &'a Stored) -> Self {
        Self { app, stored, subscriptions: None, start_at: u64::MAX }
    }

    /// Whether a message that was pushed is work, by the same rules.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn judge(&self, trigger: &Trigger) -> Result<(), Refusal> {
        let Some(guest) = self.guest(trigger) else { return Ok(()) };
        if let Look::Refused(refusal) = self.look(trigger.clone(), &self.known()) {
            return Err(refusal);
        }
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
                        Look::Passes(guest) => guests.push((id, at, guest)),
                        Look::Refused(refusal) => turn_away(id, refusal, settled),
                        Look::Later => leave(id, settled),
                    }
                }
                order => passed.push(Placed { id, at, order }),
            }
        }
        let senders: BTreeSet<PublicKey> =
            guests.iter().filter_map(|(.., guest)| self.guest(&guest.trigger)).collect();
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
        for (id, at, Guest { trigger, is_sure }) in guests {
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
                Some(refusal) if is_sure => turn_away(id, refusal, settled),
                Some(_) => leave(id, settled),
            }
        }
        passed
    }

    pub(super) fn guest(&self, trigger: &Trigger) -> Option<PublicKey> {
        guests::guest(self.app, trigger)
    }

    fn known(&self) -> Known {
        let state = self.stored.state(self.app);
        Known { lists: self.stored.lists(&state), state }
    }

    /// Whether a guest is answered at all. Where the lists were not read in full, it is only known when the run begins.
    fn look(&self, trigger: Trigger, known: &Known) -> Look {
        let Some(sender) = trigger.sender() else {
            return Look::Passes(Guest { trigger: Box::new(trigger), is_sure: true });
        };
        let senders = &self.app.config.senders;
        let tier = match judge(senders, &known.state, known.lists, sender, Usage::default()) {
            Ok(heed) => match heed.refusal {
                Some(refusal) => return Look::Refused(refusal),
                None => heed.tier,
            },
            Err(heed) => heed.tier,
        };
        let is_sure = known.lists.tell_tier(tier);
        if tier == Tier::Stranger && self.is_before_start(&trigger) {
            if is_sure {
                return Look::Refused(Refusal::BeforeStart);
            }
            // In standby it is held, and decided after it.
            if !self.app.config.standby {
                return Look::Later;
            }
        }
        Look::Passes(Guest { trigger: Box::new(trigger.of_tier(tier)), is_sure })
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
    tracing::debug!(event.id = %id, %reason, "a message that the sweep found is not answered");
    settled.passed_over += 1;
    settled.ends.insert(id, End::Dealt);
}

/// It may be a friend's: the next sweep meets it again.
fn leave(id: EventId, settled: &mut Settled) {
    tracing::debug!(event.id = %id, "a guest's message waits: the lists that say who is answered are not all known");
    settled.ends.insert(id, End::Left);
}
