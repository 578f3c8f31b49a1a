//! The same instants as croniter, which others wrote, has in UTC.

use didactyl::trigger::cron::Schedule;
use nostr::prelude::Timestamp;
use serde_json::{Value, json};

use crate::interop::client;

/// 2027-03-01T12:00:00Z.
const FROM: u64 = 1_803_902_400;
const COUNT: usize = 8;

/// The same numbers each time.
struct Dice(u64);

impl Dice {
    /// A number from `low` to `high`.
    fn roll(&mut self, low: u64, high: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (self.0 >> 33) % (high - low + 1)
    }

    /// A part of a field: a number, a range, or one of these with a step.
    fn part(&mut self, low: u64, high: u64) -> String {
        let (one, other) = (self.roll(low, high), self.roll(low, high));
        let (first, last) = (one.min(other), one.max(other));
        let step = self.roll(1, (high - low) / 2);
        match self.roll(0, 4) {
            0 | 1 => one.to_string(),
            2 => format!("{first}-{last}"),
            3 => format!("{first}-{last}/{step}"),
            _ => format!("*/{step}"),
        }
    }

    fn field(&mut self, low: u64, high: u64) -> String {
        match self.roll(0, 5) {
            0 | 1 => "*".to_owned(),
            2 => (0..self.roll(2, 4)).map(|_| self.part(low, high)).collect::<Vec<_>>().join(","),
            _ => self.part(low, high),
        }
    }

    fn expression(&mut self) -> String {
        let fields = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)];
        fields.map(|(low, high)| self.field(low, high)).join(" ")
    }
}

/// Ours, or `null` where the expression is refused.
fn ours(expression: &str) -> Value {
    let Ok(schedule) = Schedule::parse(expression) else { return Value::Null };
    let next = |at: &Timestamp| schedule.next_after(*at);
    let instants = std::iter::successors(next(&Timestamp::from(FROM)), next).take(COUNT);
    json!(instants.map(|at| at.as_secs()).collect::<Vec<_>>())
}

/// A class of differences: what croniter is told in the place of such an expression.
type Class = fn(&str) -> Option<(String, bool)>;

const CLASSES: [Class; 2] = [star_with_a_step, range_of_one];

/// A star in front of a step, in one of two days that are both given. There croniter takes the step for a day that is given,
/// and either day counts; by Vixie's rule, which is ours, a field that begins with a star only narrows the other one.
fn star_with_a_step(expression: &str) -> Option<(String, bool)> {
    let fields: Vec<&str> = expression.split(' ').collect();
    let days = [fields[2], fields[4]];
    let is_one = days.iter().all(|day| *day != "*") && days.iter().any(|day| day.starts_with('*'));
    is_one.then(|| (expression.to_owned(), false))
}

/// A range from a number to itself, such as 2-2. To croniter it goes once around, and means all numbers.
fn range_of_one(expression: &str) -> Option<(String, bool)> {
    let part = |part: &str| {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        match range.split_once('-') {
            Some((first, last)) if first == last => first.to_owned(),
            _ => [Some(range), step].into_iter().flatten().collect::<Vec<_>>().join("/"),
        }
    };
    let field = |field: &str| field.split(',').map(part).collect::<Vec<_>>().join(",");
    let told = expression.split(' ').map(field).collect::<Vec<_>>().join(" ");
    (told != expression).then_some((told, true))
}

/// The expression as croniter is told it, where it means something else to it, and whether either of two days counts.
fn told(expression: &str) -> (String, bool) {
    CLASSES.iter().fold((expression.to_owned(), true), |(told, either), class| match class(&told) {
        Some((told, both)) => (told, either && both),
        None => (told, either),
    })
}

#[tokio::test]
async fn five_hundred_expressions_have_the_instants_that_croniter_has() {
    let Some(croniter) = client("python3", "next_with_croniter.py") else { return };
    let mut dice = Dice(39);
    let expressions: Vec<String> = (0..500).map(|_| dice.expression()).collect();
    let ask = async |expressions: Vec<(String, bool)>| {
        let request = json!({"from": FROM, "count": COUNT, "expressions": expressions});
        serde_json::from_value::<Vec<Value>>(croniter.run("next", request).await).unwrap()
    };
    let ours: Vec<Value> = expressions.iter().map(|expression| ours(expression)).collect();
    let different = |theirs: Vec<Value>| {
        let compared =
            expressions.iter().zip(theirs).zip(&ours).filter(|((_, theirs), ours)| theirs != *ours);
        compared.map(|((text, theirs), ours)| format!("{text}\n  {theirs}\n  {ours}")).collect::<Vec<_>>()
    };
    let as_written = different(ask(expressions.iter().map(|text| (text.clone(), true)).collect()).await);
    let as_told = different(ask(expressions.iter().map(|text| told(text)).collect()).await);
    assert!(as_told.is_empty(), "{}", as_told.join("\n"));
    // Each class is met.
    for class in CLASSES {
        assert!(
            as_written.iter().any(|text| class(text.lines().next().unwrap()).is_some()),
            "{as_written:?}"
        );
    }
}
