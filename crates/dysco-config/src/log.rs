//! Logging: one line an event, to standard error.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Error;

use super::error::ConfigError;
use super::{Log, LogFormat};

type Change = Box<dyn Fn(EnvFilter) -> Result<(), Error> + Send + Sync>;

/// Function that replaces the filter in force.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Starts to log as configured. The filter was checked together with the file.
pub fn init_logging(log: &Log) -> Result<(), ConfigError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&log.filter))
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let (done, change): (_, Change) = match log.format {
        LogFormat::Plain => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |f| handle.reload(f)))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |f| handle.reload(f)))
        }
    };
    done.map_err(|_| ConfigError::Logging)?;
    // The cell is empty here: otherwise logging would have been set up before.
    let _ = CHANGE.set(change);
    Ok(())
}

/// Replaces the log filter. Does nothing if logging was never started.
pub fn change_filter(log: &Log) -> Result<(), ConfigError> {
    match CHANGE.get() {
        Some(change) => change(EnvFilter::new(&log.filter)).map_err(|_| ConfigError::Logging),
        None => Ok(()),
    }
}
