//! A day of ticks, ten days without, a first start: in the test's own time.

use std::collections::BTreeMap;
use std::time::Duration;

use nostr::prelude::Event;

use crate::agent::{agent_key, echo, secret};
use crate::faults::{Fault, Side};
use crate::sea::{Harbour, Manner, nip04_at, tick, wrap_at};

use super::MINUTE;

const HOUR: u64 = 60 * 60;
const DAY: u64 = 24 * HOUR;

/// Numbers that look random and are the same each time.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// The message of this number, of either kind, written now.
fn message(harbour: &Harbour, number: u64, dice: &mut Dice) -> Event {
    let (now, text) = (harbour.now(), format!("message {number}"));
    if number.is_multiple_of(2) {
        wrap_at(&secret(2), &text, now, now - dice.below(2 * DAY))
    } else {
        nip04_at(&secret(2), &agent_key(), &text, now)
    }
}

fn expected(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    let mut texts: Vec<String> = numbers.map(|number| format!("MESSAGE {number}")).collect();
    texts.sort();
    texts
}

/// A tick every minute, also while the clock is set. Some come twice at once, some die midway. Of the relays one is slow, one is down, and one has only
/// what is old.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_day_of_ticks_answers_every_message_once() {
    let manners = [Manner::Slow, Manner::Down, Manner::Lags(20 * 60)];
    let harbour = Harbour::new(&manners, echo).await;
    let (mut dice, mut sent) = (Dice(6), 0);
    const MESSAGES: u64 = 100;
    const TICKS: u64 = 1440;
    for minute in 0..TICKS {
        while sent < MESSAGES && sent * (TICKS - 60) / MESSAGES <= minute {
            harbour.sea.post(&message(&harbour, sent, &mut dice));
            sent += 1;
        }
        // The host's clock is set, twice a day each way.
        match minute % 720 {
            200 => harbour.clock.forward(10 * MINUTE),
            400 => harbour.clock.back(10 * MINUTE),
            _ => {}
        }
        match minute % 20 {
            7 => {
                let (one, two) = (harbour.app(), harbour.app());
                tokio::join!(tick(&one), tick(&two));
            }
            13 => {
                let side = if dice.below(2) == 0 { Side::Before } else { Side::After };
                let fault = Fault::crash(1 + usize::try_from(dice.below(16)).unwrap(), side);
                let mut victim = harbour.app();
                fault.install(&mut victim);
                fault.until_crash(tick(&victim)).await;
            }
            _ => drop(harbour.tick().await),
        }
        harbour.clock.forward(MINUTE);
    }
    assert_eq!(harbour.answers(), expected(0..MESSAGES));
}

/// No tick for ten days, then ticks again.
#[tokio::test]
async fn after_an_outage_what_is_young_enough_is_answered_once_and_the_rest_is_history() {
    let harbour = Harbour::new(&[Manner::Gives(30)], echo).await;
    let mut dice = Dice(7);
    harbour.sea.post(&message(&harbour, 0, &mut dice));
    harbour.tick().await;
    assert_eq!(harbour.answers(), expected(0..1));
    // Two a day for ten days, a minute early, so that none is as old as can be.
    for number in 1..=20 {
        harbour.sea.post(&message(&harbour, number, &mut dice));
        harbour.clock.forward(Duration::from_secs(DAY / 2 - 60));
    }
    for _ in 0..6 {
        harbour.tick().await;
        harbour.clock.forward(MINUTE);
    }
    // Number 7 was written almost seven days before the first of these ticks.
    assert_eq!(harbour.answers(), expected((0..1).chain(7..=20)));
    let questions: BTreeMap<String, usize> =
        harbour.history().await.into_iter().filter(|(from_agent, _)| !from_agent).fold(
            BTreeMap::new(),
            |mut counts, (_, text)| {
                *counts.entry(text).or_default() += 1;
                counts
            },
        );
    let all: BTreeMap<String, usize> = (0..=20).map(|number| (format!("message {number}"), 1)).collect();
    assert_eq!(questions, all);
}

#[tokio::test]
async fn on_an_old_key_only_what_is_recent_and_unanswered_is_work() {
    // The relay that knows of the answers is the slower one.
    let harbour = Harbour::new(&[Manner::Gives(500), Manner::Gives(500)], echo).await;
    let (admin, agent, now) = (secret(2), secret(1), harbour.now());
    harbour.sea.post(&nip04_at(&admin, &agent_key(), "of yesterday", now - DAY));
    harbour.sea.post(&nip04_at(&admin, &agent_key(), "answered", now - 3 * HOUR));
    harbour.sea.post(&nip04_at(&agent, &admin.public_key(), "the answer", now - 2 * HOUR));
    harbour.sea.post(&wrap_at(&admin, "open", now - HOUR, now - DAY));
    // While one relay is silent nobody knows whether it has an answer.
    harbour.sea.set(2, Manner::Down);
    harbour.tick().await;
    assert_eq!(harbour.model.calls(), 0);
    harbour.sea.post(&nip04_at(&admin, &agent_key(), "after the start", harbour.now()));
    harbour.tick().await;
    assert_eq!(harbour.model.calls(), 1, "what came after the start does not wait");

    harbour.sea.set(2, Manner::Gives(500));
    harbour.clock.forward(MINUTE);
    harbour.tick().await;
    harbour.tick().await;
    assert_eq!(harbour.answers(), ["AFTER THE START", "OPEN", "the answer"]);
    let texts: Vec<String> = harbour.history().await.into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts[..4], ["of yesterday", "answered", "the answer", "open"].map(str::to_owned));
}

#[tokio::test]
async fn a_relay_that_failed_five_ticks_is_asked_every_tenth() {
    let harbour = Harbour::new(&[Manner::Gives(500), Manner::Down], echo).await;
    let mut asked = Vec::new();
    for minute in 0..30 {
        let answer = harbour.tick().await;
        let reason = answer["sweep"]["relays"][1]["reason"].as_str().unwrap_or_default().to_owned();
        if !reason.contains("five times") {
            asked.push((minute, reason));
        }
        harbour.clock.forward(MINUTE);
        if minute == 20 {
            harbour.sea.set(2, Manner::Gives(500));
        }
    }
    let down = |minute| (minute, "cannot connect: refused".to_owned());
    let back = (24..30).map(|minute| (minute, String::new()));
    assert_eq!(asked, [0, 1, 2, 3, 4, 14].map(down).into_iter().chain(back).collect::<Vec<_>>());
}
