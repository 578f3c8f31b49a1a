//! The Lambda function: what takes long is done before the first invocation, then each one goes to the handler.

use std::process::ExitCode;

use didactyl::app::App;
use didactyl::aws::Aws;
use didactyl::clock::Deadline;
use didactyl::environment::Environment;
use didactyl::{handler, logging};
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// The payload as it came; what it is, is told by [`didactyl::trigger::payload`].
#[derive(Deserialize)]
#[serde(transparent)]
struct Raw(Box<RawValue>);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    didactyl::install_crypto_provider();
    let app = match start().await {
        Ok(app) => app,
        Err(error) => return refuse_to_start(error.as_ref()),
    };
    let service = service_fn(|event: LambdaEvent<Raw>| invoke(&app, event));
    match lambda_runtime::run(service).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse_to_start(error.as_ref()),
    }
}

/// The init phase, in which Lambda gives a whole processor whatever the memory: secrets are read, clients built, and the
/// store's connection is opened.
async fn start() -> Result<App, Box<dyn std::error::Error>> {
    let environment = Environment::of_process(Aws::default());
    let config = environment.config().await?;
    logging::init(&config.log, logging::Format::Json);
    let app = App::in_environment(config, environment).await?;
    app.warm_up().await;
    Ok(app)
}

/// An error is what Lambda shows and counts: it says that a retry can help, and why.
async fn invoke(app: &App, event: LambdaEvent<Raw>) -> Result<Value, Diagnostic> {
    let deadline = Deadline::from_unix_ms(event.context.deadline, app.clock.now_ms());
    app.credentials.refresh().await;
    handler::handle_request(app, event.payload.0.get(), deadline, Some(&event.context.request_id))
        .await
        .map_err(|error| Diagnostic { error_type: "Retry".to_owned(), error_message: error.to_string() })
}

fn refuse_to_start(error: &(impl std::fmt::Display + ?Sized)) -> ExitCode {
    logging::init("info", logging::Format::Json);
    tracing::error!(%error, "didactyl cannot start");
    ExitCode::FAILURE
}
