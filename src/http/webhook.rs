//! `POST /webhook/{slug}`: a request that fires skills, once it is proved to be its sender's.

use std::time::Duration;

use serde_json::json;

use super::Answer;
use super::request::Request;
use crate::app::App;
use crate::queue::enqueue_run;
use crate::record::run_id;
use crate::skill::name;
use crate::trigger::webhook::{BodyTooLarge, MAX_BODY_BYTES, Webhook};
use crate::webhooks::desk::{self, Taken};
use crate::webhooks::signature::{Call, Delivery, authenticate};

/// When a request that could not be stored may be tried again.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// The request as the model will see it.
///
/// # Errors
/// The answer 413.
pub(super) fn read(request: &Request, slug: &str) -> Result<Webhook, Answer> {
    let content_type = request.header("content-type").unwrap_or_default();
    Webhook::read(slug, content_type, &request.body).map_err(|error| Answer::error(413, error))
}

/// 202 with the run's id once the request is stored; its sender does not wait for the run. 200 with that of its first
/// delivery where it came before.
///
/// Whether a webhook is open or the proof is wrong, a stranger is told alike, and nothing is read or written for one.
pub(super) async fn answer(app: &App, request: &Request, slug: &str) -> Answer {
    if request.body.len() > MAX_BODY_BYTES {
        return Answer::error(413, BodyTooLarge);
    }
    let delivery = match proved(app, request, slug) {
        Ok(delivery) => delivery,
        Err(reason) => {
            tracing::info!(reason, slug = %name(slug), "a webhook's request is refused");
            return Answer::error(401, "the request is not signed as this webhook's are")
                .with_header("www-authenticate", "Bearer");
        }
    };
    let webhook = match read(request, slug) {
        Ok(webhook) => webhook,
        Err(answer) => return answer,
    };
    match desk::take(app, webhook, &delivery).await {
        Ok(Taken::New(trigger)) => begun(app, run_id(&trigger.id)).await,
        Ok(Taken::Known(run)) => Answer::new(200, &json!({"success": true, "run": run})),
        Ok(Taken::TooMany(wait)) => {
            Answer::error(429, "this webhook has had as many requests as it may").with_retry_after(wait)
        }
        Err(error) => {
            tracing::warn!(%error, "a webhook's request could not be stored");
            Answer::error(503, "the request could not be stored: send it again").with_retry_after(RETRY_AFTER)
        }
    }
}

fn proved(app: &App, request: &Request, slug: &str) -> Result<Delivery, &'static str> {
    let hook = app.credentials.webhook(slug).ok_or("no secret is configured for it")?;
    let call = Call { header: &|name| request.header(name), body: &request.body };
    authenticate(&hook, &call, app.clock.now())
}

/// The run is stored and due: where the queue does not take it, a tick does.
async fn begun(app: &App, run: String) -> Answer {
    let answer = Answer::new(202, &json!({"success": true, "run": run}));
    let Some(queue) = app.working_queue() else { return answer.leaving(run) };
    if let Err(error) = enqueue_run(queue, run.clone()).await {
        tracing::warn!(run.id = %run, %error, "a webhook's run could not be queued: a tick takes it up");
    }
    answer
}
