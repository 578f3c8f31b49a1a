//! Carries out what a [`Run`] asks for, within the deadline: the one place where a run does I/O.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use tokio::sync::Mutex;

use crate::app::App;
use crate::clock::{Deadline, Stopwatch};
use crate::commands;
use crate::error::Error;
use crate::llm::fallback::Fallback;
use crate::load;
use crate::record::{Claim, Delivery};
use crate::relay::Target;
use crate::run::beginning::Beginning;
use crate::run::journal::Journal;
use crate::run::ledger::Ledger;
use crate::run::publisher::Versions;
use crate::run::{Run, Step};
use crate::snapshots::Recorder;
use crate::state::AgentState;
use crate::store::keys::{self, Place};
use crate::trigger::Trigger;

/// The most parts of a beginning in one write: the row that follows them fits in beside.
const PARTS_PER_WRITE: usize = 8;

/// Takes a run from its beginning to its final text. The record learns what took part.
///
/// # Errors
/// [`Error::OutOfTime`] where another invocation has to go on; [`Error::NoAnswer`] where no model answers;
/// [`Error::Transient`] where a later attempt may succeed, [`Error::Permanent`] where none can, [`Error::TakenOver`].
pub async fn drive(
    app: &App,
    trigger: &Trigger,
    state: &AgentState,
    beginning: Beginning,
    claim: &mut Claim,
    journal: Journal,
    deadline: Deadline,
) -> Result<String, Error> {
    claim.record.skills =
        beginning.skills.iter().map(|skill| (skill.coordinate.to_string(), skill.event_id)).collect();
    let chain = app.config.providers.chain(&beginning.model_chain, &app.config.llm);
    let first = app.config.providers.first_usable(&chain).map_err(|error| {
        tracing::warn!(%error, "no model can be asked");
        Error::NoAnswer { reason: "no model that the skill asks for can be used", transient: false }
    })?;
    let snapshots = Recorder::new(app, trigger, &claim.record.run_id, &beginning);
    let usable = chain.entries().iter().filter_map(|id| app.config.providers.model(id).ok());
    let fallback = Fallback::new(usable.map(|model| model.id()));
    let Beginning { messages, tools, params, max_turns, .. } = beginning.clone();
    let mut run = Run::new(messages, tools, params, first.id(), max_turns);

    let mut ledger = Ledger::new(&app.config.providers, &mut claim.record);
    journal.spends().for_each(|spent| ledger.spent(spent.clone()));
    let deliveries = std::mem::take(&mut claim.record.deliveries);
    let unknown_calls = std::mem::take(&mut claim.record.unknown_calls);
    let mut driver = Driver {
        app,
        trigger,
        state,
        claim: &*claim,
        journal,
        read_targets: load::read_targets(app, state),
        deadline,
        versions: Versions::default(),
        fallback,
        ledger,
        snapshots,
        deliveries: Mutex::new(deliveries),
        unknown_calls: Mutex::new(unknown_calls),
        stopped: OnceLock::new(),
        is_kept: AtomicBool::new(beginning.document.is_none()),
        beginning,
        has_progress: AtomicBool::new(false),
        has_heard: false,
    };
    let (mut model_ms, mut tools_ms) = (0, 0);
    let result = driver.drive_to_the_end(&mut run, &mut model_ms, &mut tools_ms).await;

    let has_heard = driver.has_heard;
    let (attempts, usage, cost_micro_usd) = driver.ledger.into_sums();
    let (deliveries, unknown_calls) = (driver.deliveries.into_inner(), driver.unknown_calls.into_inner());
    let record = &mut claim.record;
    (record.deliveries, record.unknown_calls) = (deliveries, unknown_calls);
    if has_heard && let Some(outage) = &mut record.outage {
        outage.end_at(app.clock.now_ms());
    }
    record.note_step("model", model_ms);
    record.note_step("tools", tools_ms);
    record.model = Some(run.model_used().to_owned());
    record.turns = u32::try_from(run.turns().len()).unwrap_or(u32::MAX);
    (record.attempts, record.usage, record.cost_micro_usd) = (attempts, usage, cost_micro_usd);
    record.tool_calls =
        run.turns().iter().flat_map(|turn| &turn.tool_calls).map(|call| call.name.clone()).collect();
    result
}

/// What the steps of one run need.
pub(super) struct Driver<'a> {
    pub(super) app: &'a App,
    pub(super) trigger: &'a Trigger,
    pub(super) state: &'a AgentState,
    claim: &'a Claim,
    pub(super) journal: Journal,
    pub(super) read_targets: Vec<Target>,
    pub(super) deadline: Deadline,
    pub(super) versions: Versions,
    pub(super) fallback: Fallback,
    pub(super) ledger: Ledger<'a>,
    pub(super) snapshots: Recorder<'a>,
    /// What relays said to the events of tools.
    pub(super) deliveries: Mutex<Vec<Delivery>>,
    /// See [`crate::record::RunRecord::unknown_calls`].
    pub(super) unknown_calls: Mutex<Vec<(u32, String)>>,
    /// Set once an admin stopped the agent: then no step follows.
    stopped: OnceLock<()>,
    beginning: Beginning,
    /// Whether the beginning is in the journal.
    is_kept: AtomicBool,
    /// Whether this invocation has brought the run further.
    has_progress: AtomicBool,
    /// Whether a model has answered in this invocation.
    pub(super) has_heard: bool,
}

impl Driver<'_> {
    async fn drive_to_the_end(
        &mut self,
        run: &mut Run,
        model_ms: &mut u64,
        tools_ms: &mut u64,
    ) -> Result<String, Error> {
        let mut watch = Stopwatch::start();
        loop {
            match run.next() {
                Step::CallModel(_) => {
                    let asked = self.ask_model(run).await;
                    *model_ms = model_ms.saturating_add(watch.lap_ms());
                    asked?;
                }
                Step::CallTools(calls) => {
                    let results = self.call_tools(run, &calls).await;
                    *tools_ms = tools_ms.saturating_add(watch.lap_ms());
                    run.tools_answered(results?);
                }
                Step::Done { text } => return Ok(text),
                Step::Failed { reason } => return Err(Error::Permanent(reason)),
            }
        }
    }

    /// Whether the next model or tool may be called, as far as was seen beside the last row of the journal.
    pub(super) fn may_go_on(&self) -> Result<(), Error> {
        if self.stopped.get().is_some() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Fails where there is no time for a model call or a tool: another invocation has more.
    pub(super) fn check_time(&self) -> Result<(), Error> {
        if self.deadline.has_time_for_a_step() { Ok(()) } else { Err(self.out_of_time()) }
    }

    pub(super) fn out_of_time(&self) -> Error {
        Error::OutOfTime { has_progress: self.has_progress.load(Ordering::Relaxed) }
    }

    /// Writes a row of the journal, if the run is still ours, and with the first of all rows what the run began with. Looks
    /// meanwhile whether the agent was stopped: that is a read and no condition of the write, so what was done is kept all
    /// the same, and runs that write at one time do not hold each other up by checking one row.
    pub(super) async fn append<T: Serialize>(&self, place: Place, value: &T) -> Result<(), Error> {
        let (written, checked) =
            tokio::join!(self.write_down(place, value), commands::flags::check(self.app));
        written?;
        match checked {
            Err(Error::Stopped) => {
                let _ = self.stopped.set(());
                Ok(())
            }
            checked => checked,
        }
    }

    pub(super) async fn write_down<T: Serialize>(&self, place: Place, value: &T) -> Result<(), Error> {
        let record = &self.claim.record;
        let mut writes = if self.is_kept.swap(true, Ordering::Relaxed) {
            Vec::new()
        } else {
            self.beginning.rows(self.app, &record.run_id, record.expires_at)?
        };
        // Nobody reads a part before the row that follows the last of them is there.
        while writes.len() > PARTS_PER_WRITE {
            let rest = writes.split_off(PARTS_PER_WRITE);
            self.claim.append(self.app, std::mem::replace(&mut writes, rest)).await?;
        }
        writes.push(self.app.put_sealed(keys::journal(&record.run_id, place), value, record.expires_at)?);
        self.claim.append(self.app, writes).await?;
        // What a call cost that gave nothing brings no run further.
        if !matches!(place, Place::Spend(..)) {
            self.has_progress.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
