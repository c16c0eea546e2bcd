//! Log lines: structured, for people or machines. Bodies, tokens, keys and signatures are never logged.

use crate::config::LogFormat;
use std::io::IsTerminal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

/// Sends log lines to stderr. The filter is a level such as `info`, or levels of modules such as `warn,posthaste=debug`.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let targets: Targets = filter.parse().map_err(|error| anyhow::anyhow!("log: {filter:?}: {error}"))?;
    let is_terminal = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(is_terminal);
    let lines = match format {
        LogFormat::Pretty => lines.compact().boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(true).with_span_list(false).boxed(),
    };
    let installed = tracing_subscriber::registry().with(lines.with_filter(targets)).try_init();
    installed.map_err(|error| anyhow::anyhow!("logging cannot be set up: {error}"))
}
