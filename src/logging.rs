//! Log lines: JSON on Lambda, text on a terminal. Both go to standard error.

use tracing_subscriber::EnvFilter;

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object per line, as CloudWatch reads it.
    Json,
    /// For people.
    Text,
}

/// Starts logging with a filter such as `info` or `didactyl=debug,info`; one that cannot be read counts as `info`.
/// A second call changes nothing.
pub fn init(filter: &str, format: Format) {
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only where a subscriber is there already.
    let _ = match format {
        Format::Json => builder.json().flatten_event(true).try_init(),
        Format::Text => builder.with_target(false).compact().try_init(),
    };
}
