//! Logging: one line an event, to standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use super::error::ConfigError;
use super::{Log, LogFormat};

/// Starts to log as configured. The filter was checked with the file.
pub fn init_logging(log: &Log) -> Result<(), ConfigError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&log.filter))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let done = match log.format {
        LogFormat::Plain => builder.try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    done.map_err(|_| ConfigError::Logging)
}
