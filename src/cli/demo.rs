//! `didactyl demo`: one whole conversation on this machine. Two encrypted DMs go over the relay, the real handler answers
//! each, and the replies are read back from the relay with the admin's key.

use std::io::Write;
use std::time::{Duration, Instant};

use nostr::nips::nip04;
use nostr::nips::nip59::GiftWrapBuilder;
use nostr::prelude::{
    Event, EventBuilder, Filter, FinalizeEvent, Keys, Kind, Tag, Timestamp, ToBech32, UnsignedEvent,
};
use serde_json::{Value, json};

use super::sandbox::{Identity, Sandbox, publish, target};
use super::{CliResult, Overrides};
use crate::app::App;
use crate::clock::{DEFAULT_BUDGET, Deadline};
use crate::dm::{self, Content};
use crate::handler;
use crate::kinds;
use crate::record::{self, RunRecord};
use crate::relay::Relays;
use crate::relay::pool::Pool;
use crate::trigger::Protocol;

type Failure = Box<dyn std::error::Error>;

/// Runs the demo; fails unless both replies were read back from the relay and decrypted.
pub(super) async fn run(overrides: &Overrides, out: &mut dyn Write) -> CliResult {
    // Its own keys: a demo must not write over the profile and soul of a key that is in use.
    let env = |name: &str| match name {
        "DIDACTYL_NSEC" | "DIDACTYL_ADMIN" | "DIDACTYL_STORE" => None,
        _ => overrides.var(name),
    };
    let sandbox = Sandbox::start(&env, Identity::Fresh).await?;
    let admin = sandbox.admin.clone().ok_or("the demo has no admin")?;
    sandbox.seed().await?;
    let demo = Demo { app: sandbox.app().await?, admin_client: sandbox.client(&admin), admin, sandbox };

    demo.introduce(out)?;
    demo.converse(Protocol::Nip17, "What time is it?", out).await?;
    demo.converse(Protocol::Nip04, "Please post a note that says hello from my agent.", out).await?;
    writeln!(out, "Both replies were read back from the relay and decrypted with the admin's key.")?;
    Ok(())
}

struct Demo {
    sandbox: Sandbox,
    app: App,
    admin: Keys,
    admin_client: Pool,
}

impl Demo {
    fn introduce(&self, out: &mut dyn Write) -> CliResult {
        let relay = self.sandbox.relay()?;
        let model = match self.sandbox.scripted {
            true => "scripted: fixed answers, no language model".to_owned(),
            false => self.app.config.providers.first_usable(&self.app.config.llm)?.id(),
        };
        writeln!(out, "relay  {relay}")?;
        writeln!(out, "model  {model}")?;
        writeln!(out, "agent  {}", self.app.agent().to_bech32()?)?;
        writeln!(out, "admin  {}", self.admin.public_key().to_bech32()?)?;
        writeln!(
            out,
            "On the relay: profile, relay lists, a soul with a template, an adoption list, three skills.\n"
        )?;
        Ok(())
    }

    /// The admin writes; the handler gets what lies on the relay, as a bridge would push it; the admin reads.
    async fn converse(&self, protocol: Protocol, text: &str, out: &mut dyn Write) -> CliResult {
        let relay = self.sandbox.relay()?;
        publish(&self.admin_client, &relay, self.write(protocol, text)?).await?;
        let kind = match protocol {
            Protocol::Nip17 => kinds::GIFT_WRAP,
            Protocol::Nip04 => kinds::DM_NIP04,
        };
        writeln!(out, "── {}", if protocol == Protocol::Nip17 { "NIP-17" } else { "NIP-04" })?;
        writeln!(out, "admin  {text}")?;

        let events = self.fetch(Filter::new().kind(kind).pubkey(self.app.agent())).await?;
        let payload = json!({"type": "relay", "events": events, "relay": relay.to_string()});
        let began = Instant::now();
        let answer =
            handler::handle(&self.app, &payload.to_string(), Deadline::after(DEFAULT_BUDGET)).await?;
        let took = began.elapsed();

        let run = last_run(&answer).ok_or_else(|| format!("the handler did not reply: {answer}"))?;
        let record = record::find(&self.app, run).await?.ok_or("the run left no record")?;
        self.show_tools(run, out).await?;
        let reply = self.read_reply(kind, &record).await?;
        writeln!(out, "agent  {reply}")?;
        writeln!(out, "time   {}\n", times(&record, took))?;
        Ok(())
    }

    fn write(&self, protocol: Protocol, text: &str) -> Result<Event, Failure> {
        let agent = self.app.agent();
        Ok(match protocol {
            Protocol::Nip04 => {
                let content = nip04::encrypt(self.admin.secret_key(), &agent, text)?;
                EventBuilder::new(kinds::DM_NIP04, content)
                    .tag(Tag::public_key(agent))
                    .finalize(&self.admin)?
            }
            Protocol::Nip17 => {
                let tags = [Tag::public_key(agent)];
                let rumor =
                    UnsignedEvent::new(self.admin.public_key(), Timestamp::now(), kinds::CHAT, tags, text);
                GiftWrapBuilder::new(agent, rumor).finalize(&self.admin)?
            }
        })
    }

    async fn fetch(&self, filter: Filter) -> Result<Vec<Event>, Failure> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let relay = target(&self.sandbox.relay()?);
        let fetched =
            self.admin_client.fetch(&[relay], &[filter], tokio::time::Instant::now() + PATIENCE).await;
        for report in fetched.reports {
            report.outcome?;
        }
        Ok(fetched.events)
    }

    async fn show_tools(&self, run: &str, out: &mut dyn Write) -> CliResult {
        let journal = record::earlier(&self.app, run).await?.journal;
        for (call, result) in journal.calls() {
            let result = result.map_or("(no result)", |result| result.content.as_str());
            writeln!(out, "tool   {} {} → {result}", call.name, call.arguments)?;
        }
        Ok(())
    }

    /// The reply as the admin's own client would find and open it.
    async fn read_reply(&self, kind: Kind, record: &RunRecord) -> Result<String, Failure> {
        let events = self.fetch(Filter::new().kind(kind).pubkey(self.admin.public_key())).await?;
        let mut texts = Vec::new();
        for id in &record.reply_ids {
            let opened = events
                .iter()
                .filter_map(|event| dm::open(&self.admin, event).ok())
                .find(|opened| opened.id == *id);
            match opened.map(|opened| (opened.author, opened.content)) {
                Some((author, Content::Text(text))) if author == self.app.agent() => texts.push(text),
                _ => return Err(format!("the reply {id} is not on the relay").into()),
            }
        }
        if texts.is_empty() { Err("the run has no reply".into()) } else { Ok(texts.join("\n")) }
    }
}

/// The run that this payload started: events answered earlier are in the payload too, and told the same way again.
fn last_run(answer: &Value) -> Option<&str> {
    let results = answer.get("results")?.as_array()?;
    results.iter().find(|result| result.get("outcome").is_some_and(|o| o == "replied"))?.get("run")?.as_str()
}

fn times(record: &RunRecord, took: Duration) -> String {
    let steps: Vec<String> = record.steps_ms.iter().map(|(step, ms)| format!("{step} {ms} ms")).collect();
    format!("{}; in all {} ms", steps.join(", "), took.as_millis())
}
