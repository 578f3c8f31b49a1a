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

/// Whether a star stands in front of a step in one of two days that are both given. There croniter takes the step for a day
/// that is given, and either day counts; by Vixie's rule, which is ours, a field that begins with a star only narrows the
/// other one.
fn has_a_day_with_a_star_and_a_step(expression: &str) -> bool {
    let fields: Vec<&str> = expression.split(' ').collect();
    let days = [fields[2], fields[4]];
    days.iter().all(|day| *day != "*") && days.iter().any(|day| day.starts_with('*'))
}

#[tokio::test]
async fn five_hundred_expressions_have_the_instants_that_croniter_has() {
    let Some(croniter) = client("python3", "next_with_croniter.py") else { return };
    let mut dice = Dice(39);
    let expressions: Vec<String> = (0..500).map(|_| dice.expression()).collect();
    let ask = async |either: &dyn Fn(&str) -> bool| {
        let asked: Vec<Value> = expressions.iter().map(|text| json!([text, either(text)])).collect();
        let answer = croniter.run("next", json!({"from": FROM, "count": COUNT, "expressions": asked})).await;
        serde_json::from_value::<Vec<Value>>(answer).unwrap()
    };
    let ours: Vec<Value> = expressions.iter().map(|expression| ours(expression)).collect();
    // As it is meant out of the box there is one class of differences, and told of that there is none.
    let mut of_the_class = 0;
    for ((expression, theirs), ours) in expressions.iter().zip(ask(&|_| true).await).zip(&ours) {
        if theirs != *ours {
            assert!(has_a_day_with_a_star_and_a_step(expression), "{expression}: {theirs} and {ours}");
            of_the_class += 1;
        }
    }
    assert!((10..100).contains(&of_the_class), "{of_the_class}");
    let told = ask(&|expression| !has_a_day_with_a_star_and_a_step(expression)).await;
    for ((expression, theirs), ours) in expressions.iter().zip(told).zip(&ours) {
        assert_eq!(theirs, *ours, "{expression}");
    }
}
