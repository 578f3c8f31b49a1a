//! What is left to send once a run is over: relays that failed for now are asked again by later ticks.
//!
//! ```text
//! a run ends ─▶ its record says what each relay said, and a row says when somebody is asked again ─▶ a tick sends the same event
//! ```
//!
//! A reply that has not arrived is not here: its run is not over, and the run sends it again (see [`crate::work`]). What
//! counts as arrived is said in [`crate::publish`], and how often a relay is asked in `record/delivery.rs`.

use std::time::Duration;

use nostr::prelude::{EventId, RelayUrl, Timestamp};
use serde::Serialize;

use crate::app::App;
use crate::clock::Deadline;
use crate::error::Error;
use crate::load::{self, Stored};
use crate::notices::{self, Fact};
use crate::publish::own_list;
use crate::record::Delivery;
use crate::record::delivery::{self, Sending};
use crate::record::outbox::{Mail, due_mails, mails};
use crate::relay::{Outgoing, PublishReport, address};
use crate::store::Row;

/// How long the relays may take.
const SLICE: Duration = Duration::from_secs(10);

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// How often an event was sent to a relay.
    pub sent: usize,
    /// How often one took it.
    pub accepted: usize,
}

/// Sends what is due of the runs that are over, each event to the relays that are asked again now. `rows` are those of
/// [`crate::record::first_due`], `state` those of the state's partition. `None` where nothing is due.
///
/// # Errors
/// [`Error::Transient`] where the store is unavailable: what was not noted is sent again.
pub(crate) async fn run(
    app: &App,
    rows: &[Row],
    state: &[Row],
    deadline: Deadline,
) -> Result<Option<Report>, Error> {
    if app.config.standby {
        return Ok(None);
    }
    let due = due_mails(app, rows).await?;
    if due.is_empty() {
        return Ok(None);
    }
    let mails = mails(app, &due).await?;
    let (own, now) = (own_relays(app, state), app.clock.now());
    let outgoing: Vec<Vec<Outgoing>> = mails.iter().map(|mail| outgoing(mail, &own, now)).collect();
    let all: Vec<Outgoing> = outgoing.iter().flatten().cloned().collect();
    let mut reports = app.relays.publish(&all, deadline.slice(SLICE)).await.into_iter();
    let mut report = Report::default();
    for (mail, sent) in mails.into_iter().zip(outgoing) {
        let answers: Vec<(EventId, Vec<PublishReport>)> =
            sent.iter().map(|sent| sent.event.id).zip(reports.by_ref()).collect();
        for answer in answers.iter().flat_map(|(_, answers)| answers) {
            report.sent += 1;
            report.accepted += usize::from(answer.outcome.is_ok());
        }
        settle(app, mail, &answers, now).await?;
    }
    Ok(Some(report))
}

/// The relays that are the agent's own choice.
fn own_relays(app: &App, state: &[Row]) -> Vec<RelayUrl> {
    let state = Stored::of_state(state).state(app);
    let read = own_list(&state.read_relays(app.agent()));
    load::read_targets(app, &state).into_iter().chain(read).map(|target| target.url).collect()
}

/// Whether a relay is asked again now.
fn is_due(delivery: &Delivery, now: Timestamp) -> bool {
    delivery.next_try.is_some_and(|at| at <= now.as_secs())
}

fn outgoing(mail: &Mail, own: &[RelayUrl], now: Timestamp) -> Vec<Outgoing> {
    let deliveries = &mail.record.deliveries;
    let to = |id: &EventId| {
        let due = deliveries.iter().filter(|delivery| delivery.event == *id && is_due(delivery, now));
        let urls: Vec<&str> = due.map(|delivery| delivery.relay.as_str()).collect();
        address::usable(urls.iter().copied(), own, urls.len())
    };
    mail.events
        .iter()
        .map(|(id, sent)| Outgoing { event: sent.event.clone(), targets: to(id) })
        .filter(|outgoing| !outgoing.targets.is_empty())
        .collect()
}

/// Notes what the relays said. The admin is told of what a tool published and no relay took.
async fn settle(
    app: &App,
    mail: Mail,
    answers: &[(EventId, Vec<PublishReport>)],
    now: Timestamp,
) -> Result<(), Error> {
    let mut deliveries = mail.record.deliveries.clone();
    for (event, reports) in answers {
        let Some(sent) = mail.events.get(event) else { continue };
        let sending = Sending { event: *event, written_at: sent.written_at, is_public: sent.is_public };
        delivery::note(&mut deliveries, sending, reports, now, |deliveries| {
            delivery::is_anywhere(deliveries, *event)
        });
    }
    // What could not be sent at all, since its event is gone or its relay is nobody's any more, is not tried for ever.
    for delivery in deliveries.iter_mut().filter(|delivery| is_due(delivery, now)) {
        delivery.next_try = None;
        delivery.refused.get_or_insert_with(|| "it could not be sent".to_owned());
    }
    for (id, _) in mail.events.iter().filter(|(_, sent)| sent.is_public) {
        if is_lost(&deliveries, *id) && !is_lost(&mail.record.deliveries, *id) {
            notices::raise(app, &Fact::Unpublished(*id)).await?;
        }
    }
    mail.save(app, deliveries).await?;
    Ok(())
}

/// Whether no relay has an event, and none is asked again.
fn is_lost(deliveries: &[Delivery], event: EventId) -> bool {
    let mut of_event = deliveries.iter().filter(|delivery| delivery.event == event).peekable();
    of_event.peek().is_some()
        && of_event.all(|delivery| !delivery.is_accepted() && delivery.next_try.is_none())
}
