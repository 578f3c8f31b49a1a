//! From a payload's file to the one trigger whose context is to be shown, and from what starts nothing to a sentence
//! that says why.

use nostr::prelude::{Event, Timestamp};
use serde_json::{Map, Value};

use super::{Failure, NO_ID, example};
use crate::app::App;
use crate::aws::sqs;
use crate::hash::is_lower_hex;
use crate::http;
use crate::inbox::{self, Inbound, Rejection};
use crate::record;
use crate::trigger::payload::{Payload, PayloadError, RelayEvents};
use crate::trigger::{self, Trigger, cron};

type Fields = Map<String, Value>;

/// A field of an event: its name, whether a value is right there, and what one is.
type Shape<'a> = (&'a str, &'a dyn Fn(&Value) -> bool, &'a str);

/// The trigger of the run that `json` starts.
///
/// # Errors
/// A sentence that says why it starts none.
pub(super) async fn trigger_of(app: &App, json: &str) -> Result<Trigger, Failure> {
    let (now, admin) = (app.clock.now(), app.admin());
    let fields: Fields = serde_json::from_str(json).unwrap_or_default();
    if let Some(kind) = fields.get("trigger") {
        return written(app, kind, &fields);
    }
    let payload = match Payload::parse(json) {
        Err(PayloadError::Unknown(_)) if fields.contains_key("pubkey") => {
            return Err(format!("the payload starts no run: {}", no_event(json)).into());
        }
        payload => payload?,
    };
    let payload = match payload {
        Payload::FunctionUrl => http::starts(json)?,
        Payload::Sqs(records) => match records.as_slice() {
            [record] => match sqs::parse_body(&record.body) {
                Some(run) => Payload::Resume { run: run.to_owned() },
                None => match Payload::parse(&record.body)? {
                    events @ Payload::Relay(_) => events,
                    _ => return Err("the queue brings relay events and stored runs only".into()),
                },
            },
            _ => {
                return Err(
                    "the batch has several records, and each has a context of its own: give one".into()
                );
            }
        },
        payload => payload,
    };
    let trigger = match payload {
        Payload::Relay(events) => of_events(app, &events)?,
        Payload::Resume { run } => record::stored_trigger(app, &run).await?,
        Payload::Prompt(prompt) => Trigger::prompt(prompt, NO_ID, admin, now),
        Payload::Webhook { webhook, id } => {
            Trigger::webhook(webhook, id.as_deref().unwrap_or(NO_ID), admin, now)
        }
        Payload::FunctionUrl | Payload::Sqs(_) => {
            return Err("a payload inside a payload starts nothing".into());
        }
        Payload::Tick { .. } => {
            return Err("what a tick starts lies on the relays: give one of its messages".into());
        }
    };
    match trigger.fixed_text() {
        Some(text) => Err(format!("no model is asked: the answer is always \"{text}\"").into()),
        None => Ok(trigger),
    }
}

/// A run that no payload starts, but a tick or another run, by its user message.
fn written(app: &App, kind: &Value, fields: &Fields) -> Result<Trigger, Failure> {
    let now = app.clock.now();
    let text = |name: &str| {
        let value = fields.get(name).and_then(Value::as_str).map(str::to_owned);
        value.ok_or_else(|| format!("the message cannot be read: `{name}` must be a text"))
    };
    match kind.as_str() {
        Some("cron") => {
            let schedule = text("schedule")?;
            cron::check(&schedule)
                .map_err(|fault| format!("the message cannot be read: `schedule` {fault}"))?;
            let at = fields.get("scheduled_at").and_then(Value::as_u64);
            let at = at.ok_or("the message cannot be read: `scheduled_at` must be a time in Unix seconds")?;
            Ok(Trigger::cron(&schedule, Timestamp::from(at), app.admin(), now))
        }
        Some("chain") => {
            let (from, run) = (text("from")?, text("run")?);
            let chain = trigger::Chain {
                from,
                run,
                final_response: text("final_response")?,
                path: Vec::new(),
                left: 0,
            };
            Ok(Trigger::chain(chain, &example(app), now))
        }
        _ => Err("the message cannot be read: `trigger` must be cron or chain. A webhook is \
                  {\"type\":\"webhook\",\"slug\":…,\"body\":…}, and a subscription the signed event itself"
            .into()),
    }
}

/// The one run that the events start.
fn of_events(app: &App, batch: &RelayEvents) -> Result<Trigger, Failure> {
    let (mut triggers, mut reasons) = (Vec::new(), Vec::new());
    for event in &batch.events {
        let json = event.get();
        match inbox::read(app, json, None) {
            Ok(Inbound::Work(trigger)) => triggers.push(*trigger),
            Ok(Inbound::Own(_)) => reasons.push("it is the agent's own message".to_owned()),
            Ok(Inbound::Past(_)) => reasons.push("it is too old to be work".to_owned()),
            Err(rejected) => match rejected.reason {
                // For a message; to a subscription every kind may be of use.
                Rejection::UnsupportedKind(_) => match subscribed(app, json) {
                    Some(trigger) => triggers.push(trigger),
                    None => reasons.push(Rejection::Forged.to_string()),
                },
                Rejection::NotAnEvent => reasons.push(no_event(json)),
                reason => reasons.push(reason.to_string()),
            },
        }
    }
    match (triggers.len(), triggers.pop()) {
        (1, Some(trigger)) => Ok(trigger),
        (0, _) if batch.events.is_empty() => Err("the payload starts no run: it has no events".into()),
        (0, _) => Err(format!("the payload starts no run: {}", reasons.join("; ")).into()),
        (several, _) => {
            Err(format!("the payload starts {several} runs, each with a context of its own: give one event")
                .into())
        }
    }
}

fn subscribed(app: &App, json: &str) -> Option<Trigger> {
    let event: Event = serde_json::from_str(json).ok()?;
    event.verify().ok()?;
    Some(Trigger::subscription(event, app.agent(), &app.config.admins, app.clock.now()))
}

/// Why this is no signed event, by the first field that is not as NIP-01 has it.
fn no_event(json: &str) -> String {
    let fields: Fields = serde_json::from_str(json).unwrap_or_default();
    let hex = |field: &Value, len| field.as_str().is_some_and(|text| is_lower_hex(text, len));
    let is_tag = |tag: &Value| tag.as_array().is_some_and(|tag| tag.iter().all(Value::is_string));
    let is_kind = |kind: &Value| kind.as_u64().is_some_and(|kind| kind <= u64::from(u16::MAX));
    let shapes: [Shape<'_>; 7] = [
        ("id", &|field| hex(field, 64), "64 digits of lower-case hex"),
        ("pubkey", &|field| hex(field, 64), "64 digits of lower-case hex"),
        ("created_at", &Value::is_u64, "a time in Unix seconds"),
        ("kind", &is_kind, "a number from 0 to 65535"),
        (
            "tags",
            &|field| field.as_array().is_some_and(|tags| tags.iter().all(is_tag)),
            "a list of lists of texts",
        ),
        ("content", &Value::is_string, "a text"),
        ("sig", &|field| hex(field, 128), "128 digits of lower-case hex"),
    ];
    let wrong = shapes.iter().find(|(name, is_right, _)| !fields.get(*name).is_some_and(is_right));
    match wrong {
        Some((name, _, shape)) => format!("{}: `{name}` must be {shape}", Rejection::NotAnEvent),
        None => Rejection::NotAnEvent.to_string(),
    }
}
