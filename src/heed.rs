//! Who is answered: decided from the configuration, the agent's state and what guests have had already. Pure.
//!
//! A guest is whoever is no admin. What needs no state is decided earlier, in [`crate::inbox`]; counting is the affair of
//! [`crate::guests`]. `docs/SENDERS.md` says the same for people.

use nostr::prelude::PublicKey;

use crate::state::AgentState;
use crate::trigger::Tier;

/// The most automatic answers that one guest gets in a day (UTC): two agents that answer each other come to an end.
pub const MAX_GUEST_ANSWERS_PER_DAY: u32 = 20;

/// Who is answered besides the admins, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Senders {
    /// The lowest tier that is answered (`DIDACTYL_SENDERS`).
    pub lowest: Tier,
    /// The most messages of one guest that are worked in an hour (`DIDACTYL_GUEST_PER_HOUR`).
    pub guest_per_hour: u32,
    /// The most messages of all guests together that are worked in an hour (`DIDACTYL_GUESTS_PER_HOUR`).
    pub guests_per_hour: u32,
}

impl Senders {
    /// Whether anybody but an admin may be answered.
    #[must_use]
    pub fn include_guests(&self) -> bool {
        self.lowest < Tier::Admin
    }
}

/// What guests have had so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// This guest's messages of the hour that were worked.
    pub guest_hour: u32,
    /// The same of the day.
    pub guest_day: u32,
    /// Those of all guests in the hour.
    pub guests_hour: u32,
}

/// What was decided of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heed {
    /// What the sender may do.
    pub tier: Tier,
    /// Why there is no answer; `None` where there is one.
    pub refusal: Option<Refusal>,
}

/// Why a sender gets no answer. No word of it comes from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The agent's own key.
    #[error("the agent does not answer itself")]
    Itself,
    /// Below `DIDACTYL_SENDERS`.
    #[error("the agent does not heed a sender of tier {}", .0.as_str())]
    Tier(Tier),
    /// On an admin's mute list.
    #[error("an admin has muted the sender")]
    Muted,
    /// A stranger, and no skill is for strangers.
    #[error("no adopted skill names strangers in its dm trigger")]
    NoSkill,
    /// Its profile says so.
    #[error("the sender's profile says that it is a bot")]
    Bot,
    /// A stranger wrote it before the agent was there.
    #[error("a stranger wrote it before the agent's start")]
    BeforeStart,
    /// See [`MAX_GUEST_ANSWERS_PER_DAY`].
    #[error("the sender has had its {MAX_GUEST_ANSWERS_PER_DAY} answers of the day")]
    GuestDay,
    /// See [`Senders::guest_per_hour`].
    #[error("the sender has had its answers of the hour (DIDACTYL_GUEST_PER_HOUR)")]
    GuestHour,
    /// See [`Senders::guests_per_hour`].
    #[error("all guests together have had their answers of the hour (DIDACTYL_GUESTS_PER_HOUR)")]
    GuestsHour,
}

impl Refusal {
    /// Whether the message stays in the conversation: its sender would be answered at another time, or reads as a program.
    #[must_use]
    pub fn keeps_message(self) -> bool {
        self == Self::Bot || self.is_limit()
    }

    /// Whether it rests on what no list says: the next version may say it.
    #[must_use]
    pub fn is_by_absence(self) -> bool {
        matches!(self, Self::Tier(_) | Self::NoSkill)
    }

    /// Whether the sender would be answered at another time: that holds for guests of every tier.
    #[must_use]
    pub fn is_limit(self) -> bool {
        matches!(self, Self::GuestDay | Self::GuestHour | Self::GuestsHour)
    }
}

/// Which of the lists that decide about guests are known: they are at hand, or all relays have told that they have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lists {
    /// The contacts of every admin.
    pub contacts: bool,
    /// Whom every admin has muted.
    pub mutes: bool,
    /// The adoption list.
    pub skills: bool,
}

impl Lists {
    /// Whether this is the sender's tier, whatever a list says that is not known: nobody is taken out of a tier by a list.
    #[must_use]
    pub fn tell_tier(self, tier: Tier) -> bool {
        tier > Tier::Stranger || self.contacts
    }

    fn decide(self, heed: Heed) -> bool {
        match heed.refusal {
            _ if heed.tier == Tier::Admin => true,
            Some(Refusal::Itself | Refusal::Muted) => true,
            Some(refusal) if refusal.is_limit() => true,
            None => self.tell_tier(heed.tier) && self.mutes,
            Some(Refusal::NoSkill) => self.tell_tier(heed.tier) && self.skills,
            Some(_) => self.tell_tier(heed.tier),
        }
    }
}

/// Decides like [`verdict`] where not all lists may be known. `Err` where one that is not could say otherwise: then a limit
/// alone is final, else a flood of messages that wait would have none.
///
/// # Errors
/// What would be decided as things stand.
pub fn judge(
    senders: &Senders,
    state: &AgentState,
    lists: Lists,
    sender: PublicKey,
    usage: Usage,
) -> Result<Heed, Heed> {
    let heed = verdict(senders, state, sender, usage);
    if !senders.include_guests() || lists.decide(heed) {
        return Ok(heed);
    }
    match over_limit(senders, usage) {
        Some(limit) => Ok(Heed { refusal: Some(limit), ..heed }),
        None => Err(heed),
    }
}

/// Decides about a message of `sender`. An admin always passes, whatever lists and counters say.
#[must_use]
pub fn verdict(senders: &Senders, state: &AgentState, sender: PublicKey, usage: Usage) -> Heed {
    let tier = tier(state, sender);
    let refusal = if sender == state.agent {
        Some(Refusal::Itself)
    } else if tier == Tier::Admin {
        None
    } else {
        // Limits first: whoever is over them costs nothing more.
        let refusal = refusal(senders, state, sender, tier).or_else(|| over_limit(senders, usage));
        refusal.or_else(|| state.is_bot(sender).then_some(Refusal::Bot))
    };
    Heed { tier, refusal }
}

/// What a sender may do, by the admins' contact lists.
fn tier(state: &AgentState, sender: PublicKey) -> Tier {
    if sender == state.agent {
        Tier::Stranger
    } else if state.admins.contains(&sender) {
        Tier::Admin
    } else if state.is_contact(sender) {
        Tier::Wot
    } else {
        Tier::Stranger
    }
}

/// Why this guest is not answered at any time, as the admins' lists and the skills stand.
fn refusal(senders: &Senders, state: &AgentState, guest: PublicKey, tier: Tier) -> Option<Refusal> {
    if tier < senders.lowest {
        Some(Refusal::Tier(tier))
    } else if state.is_muted(guest) {
        Some(Refusal::Muted)
    } else if tier == Tier::Stranger && !state.answers_strangers() {
        Some(Refusal::NoSkill)
    } else {
        None
    }
}

/// Why a guest is not answered for now.
#[must_use]
pub fn over_limit(senders: &Senders, usage: Usage) -> Option<Refusal> {
    if usage.guest_day >= MAX_GUEST_ANSWERS_PER_DAY {
        Some(Refusal::GuestDay)
    } else if usage.guest_hour >= senders.guest_per_hour {
        Some(Refusal::GuestHour)
    } else if usage.guests_hour >= senders.guests_per_hour {
        Some(Refusal::GuestsHour)
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
