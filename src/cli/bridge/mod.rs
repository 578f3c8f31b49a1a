//! `didactyl bridge`: a small process that holds connections open for an agent that does not run. It has no key: it hears
//! what is addressed to the agent, checks ids and signatures, and pushes; what is inside, it cannot read.
//!
//! ```text
//! relays ─▶ genuine, new ─▶ outbox: a batch per relay ─▶ POST /bridge or SQS
//! ```
//!
//! It promises nothing. What it misses or drops lies on the relays, where the agent's sweep finds it; what it pushes
//! twice, the agent answers once.

mod door;
mod outbox;
mod recent;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use nostr::prelude::{Event, Filter, PublicKey, RelayUrl, Timestamp, ToBech32};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::door::{Door, Place, Refused};
use self::outbox::{Batch, Outbox};
use self::recent::Recent;
use super::sandbox::target;
use super::{CliResult, signals};
use crate::config;
use crate::dm;
use crate::inbox::MAX_EVENT_BYTES;
use crate::kinds;
use crate::relay::RelayError;
use crate::relay::listen::{Ear, Heard, MAX_STORED, listen};
use crate::relay::pool::{Limits, Pool};
use crate::sweep::plan::look_back_secs;

/// Pushes under way at the same time: one that waits for a long run shall not hold up the others.
const PUSHES_AT_ONCE: usize = 4;

/// Events that wait to be looked at. Then the sockets wait.
const MAX_WAITING: usize = 64;

/// How long what still waits may be pushed when the bridge is told to end.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// As good as for ever.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// What the bridge is told.
#[derive(Debug, Args)]
pub(super) struct Request {
    /// The relays where the agent is written to, with commas between.
    #[arg(long, value_name = "URLS")]
    relays: String,
    /// The agent's public key: npub, nprofile or hex.
    #[arg(long, value_name = "NPUB")]
    agent: String,
    /// The agent's URL, or that of its SQS queue.
    #[arg(long, value_name = "URL")]
    to: String,
}

/// Runs until SIGINT or SIGTERM. `out` hears what a person should know.
pub(super) async fn run(
    request: &Request,
    env: &dyn Fn(&str) -> Option<String>,
    out: &mut dyn Write,
) -> CliResult {
    let relays = config::relays(&request.relays).map_err(|fault| format!("--relays {fault}"))?;
    let agent = config::public_key(&request.agent)
        .ok_or("--agent is not a public key: give an npub, nprofile or 64 hex digits")?;
    let place = Place::parse(&request.to)?;
    writeln!(out, "bridge: {} at {} relay(s), pushed to {}", agent.to_bech32()?, relays.len(), place.name())?;
    let door = Door::open(place, env("DIDACTYL_BRIDGE_TOKEN")).await?;
    let pool = Pool::without_key(Limits::default());

    let (ear, heard) = mpsc::channel(MAX_WAITING);
    let watch = Watch { agent, relays: BTreeMap::new(), pushed: Recent::default(), fault: None, out };
    tokio::select! {
        () = listen_to_all(&pool, &relays, agent, ear) => {}
        () = carry(watch, &door, heard, signals::told_to_end()) => {}
    }
    Ok(())
}

async fn listen_to_all(pool: &Pool, relays: &[RelayUrl], agent: PublicKey, ear: Ear) {
    let filters = |cuts| {
        // A live event is shown only where it matches `since`, and wraps are dated up to two days early: so no later one
        // would do, whenever a relay was heard last. Of what came meanwhile the newest are pushed; what lies deeper, the
        // sweep finds.
        let since = Timestamp::now() - look_back_secs(cuts);
        let kinds = [kinds::DM_NIP04, kinds::GIFT_WRAP];
        vec![Filter::new().kinds(kinds).pubkey(agent).since(since).limit(MAX_STORED)]
    };
    let until = Instant::now() + FOREVER;
    join_all(relays.iter().map(async |relay| listen(pool, &target(relay), filters, &ear, until).await)).await;
}

/// What is known of one relay.
#[derive(Default)]
struct RelayNotes {
    /// What it had before this process began. It is not pushed: much of it was answered long ago, and the rest the
    /// sweep finds. A later connection shows it again.
    before: Recent,
    is_past_beginning: bool,
    /// Why it cannot be heard, as it was told.
    fault: Option<String>,
}

/// Carries what is heard to the door, until `stop` is over; then only what waits, and not for long.
async fn carry(
    mut watch: Watch<'_>,
    door: &Door,
    mut heard: mpsc::Receiver<(RelayUrl, Heard)>,
    stop: impl Future<Output = ()>,
) {
    let mut outbox = Outbox::default();
    let mut pushes = FuturesUnordered::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let now = Instant::now();
        watch.dropped(outbox.drop_old(now), "nobody took them for an hour");
        while pushes.len() < PUSHES_AT_ONCE
            && let Some(batch) = outbox.take(now)
        {
            pushes.push(push(door, batch));
        }
        let next = outbox.next_at().filter(|_| pushes.len() < PUSHES_AT_ONCE);
        tokio::select! {
            said = heard.recv() => {
                let Some((relay, said)) = said else { break };
                watch.take(&relay, said, &mut outbox);
            }
            Some((batch, result)) = pushes.next() => watch.ended(batch, result, &mut outbox),
            () = sleep_until(next.unwrap_or(now)), if next.is_some() => {}
            () = &mut stop => break,
        }
    }
    while let Ok((relay, said)) = heard.try_recv() {
        watch.take(&relay, said, &mut outbox);
    }
    let until = Instant::now() + LAST_WORDS;
    let push_all = async {
        let mut all = true;
        loop {
            while pushes.len() < PUSHES_AT_ONCE
                && let Some(batch) = outbox.pop()
            {
                pushes.push(push(door, batch));
            }
            match pushes.next().await {
                Some((_, result)) => all &= result.is_ok(),
                None => break all,
            }
        }
    };
    let is_all = timeout_at(until, push_all).await.unwrap_or(false);
    watch.say(if is_all { "bridge: ended" } else { "bridge: ended; what was not pushed, the sweep finds" });
}

/// Whether a relay refuses whoever is not known to it (NIP-42).
fn wants_key(error: &RelayError) -> bool {
    match error {
        RelayError::Auth(_) => true,
        RelayError::Rejected(reason) => reason.starts_with("restricted:"),
        _ => false,
    }
}

/// Pushes a batch, and hands it back with what came of it.
async fn push(door: &Door, batch: Batch) -> (Batch, Result<(), Refused>) {
    let payload = json!({"type": "relay", "events": batch.events, "relay": batch.relay});
    let result = door.push(payload.to_string()).await;
    (batch, result)
}

/// What is known of the relays and of the other end, and who hears of it.
struct Watch<'a> {
    agent: PublicKey,
    relays: BTreeMap<RelayUrl, RelayNotes>,
    pushed: Recent,
    /// Why the other end took nothing, as it was told.
    fault: Option<String>,
    out: &'a mut dyn Write,
}

impl Watch<'_> {
    /// Takes what a relay said; what is new goes into the outbox.
    fn take(&mut self, relay: &RelayUrl, said: Heard, outbox: &mut Outbox) {
        match said {
            Heard::Event(event) => {
                if let Some(event) = self.admit(relay, &event) {
                    let dropped = outbox.add(relay, event, Instant::now());
                    self.dropped(dropped, "too many wait");
                }
            }
            Heard::EndOfStored => {
                let notes = self.relays.entry(relay.clone()).or_default();
                if !notes.is_past_beginning || notes.fault.take().is_some() {
                    notes.is_past_beginning = true;
                    self.say(&format!("{relay}: heard"));
                }
            }
            Heard::MayWithhold(error) => {
                self.cannot_hear(relay, "may hide messages from whoever has not the agent's key", &error);
            }
            Heard::Broken(error) if wants_key(&error) => {
                self.cannot_hear(
                    relay,
                    "cannot be heard without the agent's key: the sweep reads it",
                    &error,
                );
            }
            Heard::Broken(error) => self.cannot_hear(relay, "is not heard, and tried again", &error),
        }
    }

    /// The event's JSON, where it is genuine, for the agent, and new.
    fn admit(&mut self, relay: &RelayUrl, event: &Event) -> Option<Box<RawValue>> {
        let notes = self.relays.entry(relay.clone()).or_default();
        let is_ours = dm::is_dm(event.kind) && dm::receivers(&event.tags).contains(&self.agent);
        if !is_ours || notes.before.contains(&event.id) || self.pushed.contains(&event.id) {
            return None;
        }
        let json = event.as_json();
        if json.len() > MAX_EVENT_BYTES || event.verify().is_err() {
            return None;
        }
        if !notes.is_past_beginning {
            notes.before.add(event.id);
            return None;
        }
        self.pushed.add(event.id);
        RawValue::from_string(json).ok()
    }

    /// Notes what came of a push.
    fn ended(&mut self, batch: Batch, result: Result<(), Refused>, outbox: &mut Outbox) {
        match result {
            Ok(()) => {
                outbox.took();
                if self.fault.take().is_some() {
                    self.say("the agent takes events again");
                }
            }
            Err(Refused::Later(fault, wait)) => {
                outbox.refused(batch, wait.unwrap_or_default(), Instant::now());
                if self.fault.as_ref() != Some(&fault) {
                    self.say(&format!("{fault}; pushed again later"));
                    self.fault = Some(fault);
                }
            }
            Err(Refused::Never(fault)) => self.dropped(batch.events.len(), &fault),
        }
    }

    fn cannot_hear(&mut self, relay: &RelayUrl, what: &str, error: &RelayError) {
        let fault = error.to_string();
        let notes = self.relays.entry(relay.clone()).or_default();
        if notes.fault.as_ref() != Some(&fault) {
            notes.fault = Some(fault);
            self.say(&format!("{relay}: {what} ({error})"));
        }
    }

    fn dropped(&mut self, count: usize, why: &str) {
        if count > 0 {
            self.say(&format!("{count} event(s) dropped: {why}. The agent's sweep finds them"));
        }
    }

    /// Tells the person at the terminal. Nobody may be there.
    fn say(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }
}
