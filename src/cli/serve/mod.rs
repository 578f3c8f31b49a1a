//! `didactyl serve`: the whole agent on one machine. What calls the function on AWS is done here by a loop: a tick every
//! minute, which listens until the next one, and the HTTP API on loopback. Nothing else differs.

mod http;
mod unknown;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use nostr::prelude::ToBech32;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::{CliResult, Overrides, signals};
use crate::app::App;
use crate::clock::Deadline;
use crate::config::{Config, StoreChoice};
use crate::tick;

/// How long a tick may take, with the work that it began: as on Lambda.
const TICK_TIME: Duration = Duration::from_secs(5 * 60);

/// How long work may go on when the agent is told to end. What is not over then is due after its lease.
const LAST_WORK: Duration = Duration::from_secs(30);

/// How it is served.
#[derive(Debug, Args)]
pub(super) struct Request {
    /// The port of the HTTP API on 127.0.0.1; 0 for any that is free.
    #[arg(long, default_value_t = 8787)]
    port: u16,
    /// The time between two ticks.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=240))]
    every: u64,
    /// Hears nothing between two ticks: then a message waits for the next one.
    #[arg(long)]
    no_listener: bool,
    #[command(flatten)]
    overrides: Overrides,
}

/// Runs until SIGINT or SIGTERM.
pub(super) async fn run(request: &Request, out: &mut dyn Write) -> CliResult {
    let asked = RefCell::new(BTreeSet::new());
    let config = Config::from_vars(&|name| {
        asked.borrow_mut().insert(name.to_owned());
        request.overrides.var(name)
    });
    // First: one that is missing may be there under a wrong name.
    for said in unknown::variables(std::env::vars_os().map(|(name, _)| name), &asked.into_inner()) {
        writeln!(out, "unknown {said}")?;
    }
    let app = Arc::new(App::new(config?).await?);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, request.port)).await.map_err(|error| {
        format!("port {} on 127.0.0.1 cannot be had: {error}; give another --port", request.port)
    })?;
    introduce(&app, request, &listener, out)?;

    let (stop, stopped) = watch::channel(false);
    let api = tokio::spawn(http::serve(Arc::clone(&app), listener, is_stopped(stopped.clone())));
    let work = async {
        tick_for_ever(&app, request, &stopped).await;
        let _ = api.await;
    };
    let mut work = std::pin::pin!(work);
    tokio::select! {
        () = &mut work => {}
        () = signals::told_to_end() => {
            writeln!(out, "ending: what is under way has {} s; again to end at once", LAST_WORK.as_secs())?;
            let _ = stop.send(true);
            tokio::select! {
                _ = timeout(LAST_WORK, work) => {}
                () = signals::told_to_end() => {}
            }
        }
    }
    app.relays.close().await;
    writeln!(out, "ended")?;
    Ok(())
}

fn introduce(app: &App, request: &Request, listener: &TcpListener, out: &mut dyn Write) -> CliResult {
    let config = &app.config;
    let list = |items: Vec<String>| items.join(", ");
    let admins = config.admins.iter().map(ToBech32::to_bech32).collect::<Result<Vec<_>, _>>()?;
    let store = match &config.store {
        StoreChoice::Sqlite(path) => format!("sqlite:{}", path.display()),
        StoreChoice::DynamoDb(table) => format!("dynamodb:{table}"),
    };
    let closed = if config.api_tokens.is_empty() { ", closed: DIDACTYL_API_TOKEN is not set" } else { "" };
    let between = if request.no_listener { "nothing is heard in between" } else { "listening in between" };
    writeln!(out, "agent   {}", app.agent().to_bech32()?)?;
    writeln!(out, "admin   {}", list(admins))?;
    writeln!(out, "relays  {}", list(config.relays.iter().map(ToString::to_string).collect()))?;
    writeln!(out, "model   {}", config.providers.first_usable(&config.llm)?.id())?;
    writeln!(out, "store   {store}")?;
    writeln!(out, "url     http://{}{closed}", listener.local_addr()?)?;
    writeln!(out, "tick    every {} s, {between}; Ctrl-C ends it", request.every)?;
    Ok(())
}

async fn is_stopped(mut stopped: watch::Receiver<bool>) {
    // Nobody who could stop it is as good as stopped.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

/// Ticks until it is stopped, and then ends what the last ticks began. A tick that takes long holds up no other.
async fn tick_for_ever(app: &App, request: &Request, stopped: &watch::Receiver<bool>) {
    let every = Duration::from_secs(request.every);
    let mut times = interval(every);
    times.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut running = FuturesUnordered::new();
    let mut stop = std::pin::pin!(is_stopped(stopped.clone()));
    loop {
        tokio::select! {
            begun = times.tick() => {
                let listen_until = (!request.no_listener).then_some(begun + every);
                running.push(one_tick(app, listen_until, is_stopped(stopped.clone())));
            }
            Some(()) = running.next() => {}
            () = &mut stop => break,
        }
    }
    while running.next().await.is_some() {}
}

async fn one_tick(app: &App, listen_until: Option<Instant>, stop: impl Future<Output = ()>) {
    if let Err(error) = tick::run_and_listen(app, None, Deadline::after(TICK_TIME), listen_until, stop).await
    {
        tracing::warn!(%error, "a tick failed: the next one does its work");
    }
    app.relays.close().await;
}
