//! Logging: one line an event, to standard error.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Error;

use super::error::ConfigError;
use super::repeats::{self, Counted, Shared, WINDOW};
use super::{Instance, Log, LogFormat};

type Change = Box<dyn Fn(EnvFilter) -> Result<(), Error> + Send + Sync>;

/// Function that replaces the filter in force.
static CHANGE: OnceLock<Change> = OnceLock::new();

/// Events that may repeat, and the writer of their counts.
static COUNTED: OnceLock<(Shared, Lines)> = OnceLock::new();

/// Writer to standard error that names the network namespace of an instance in each line.
#[derive(Clone)]
struct Lines {
    namespace: Option<String>,
    format: LogFormat,
}

impl Write for Lines {
    /// Writes one event, in one call: other instances write to the same file.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let Some(namespace) = &self.namespace else {
            return io::stderr().write(event);
        };
        io::stderr().write_all(&tagged(namespace, self.format, event))?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Returns an event with the name of a namespace.
fn tagged(namespace: &str, format: LogFormat, event: &[u8]) -> Vec<u8> {
    // A file in /run/netns may have any name.
    let strange = |c: char| !c.is_ascii_graphic() || c == '"' || c == '\\';
    let name = namespace.replace(strange, "?");
    let (tag, event) = match (format, event.strip_prefix(b"{")) {
        (LogFormat::Json, Some(rest)) => (format!("{{\"namespace\":\"{name}\","), rest),
        _ => (format!("[{name}] "), event),
    };
    [tag.as_bytes(), event].concat()
}

/// Starts to log as configured. The filter was checked together with the file. The lines of an
/// instance name its network namespace. Warnings and errors that repeat are counted.
pub fn init_logging(log: &Log, instance: Option<&Instance>) -> Result<(), ConfigError> {
    let namespace = instance.map(|instance| instance.name.clone());
    let format = log.format;
    let lines = Lines { namespace, format };
    let repeats = Shared::default();
    let counted = (Shared::clone(&repeats), lines.clone());
    let ansi = io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&log.filter))
        .with_writer(move || lines.clone());
    let (done, change): (_, Change) = match format {
        LogFormat::Plain => {
            let builder = builder.map_event_format(|inner| Counted {
                inner: inner.without_time().with_ansi(ansi),
                format,
                repeats,
            });
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |f| handle.reload(f)))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true);
            let builder = builder.map_event_format(|inner| Counted {
                inner: inner.without_time().with_ansi(ansi),
                format,
                repeats,
            });
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init(), Box::new(move |f| handle.reload(f)))
        }
    };
    done.map_err(|_| ConfigError::Logging)?;
    // The cell is empty here: otherwise logging would have been set up before.
    let _ = CHANGE.set(change);
    let _ = COUNTED.set(counted);
    Ok(())
}

/// Logs the counts of events that were repeated, and are not any more. It has to be called at about
/// this interval.
pub fn log_repeats() -> Duration {
    log_counts(WINDOW);
    WINDOW
}

/// Logs the counts of all events that were repeated, before the process ends.
pub fn log_last_repeats() {
    log_counts(Duration::ZERO);
}

fn log_counts(age: Duration) {
    let Some((counted, lines)) = COUNTED.get() else {
        return;
    };
    let old = repeats::lock(counted).take_old(age, Instant::now());
    for (event, count) in old {
        let line = repeats::line(lines.format, &event, Some(count));
        // There is no other place to report that the log cannot be written.
        let _ = lines.clone().write_all(line.as_bytes());
    }
}

/// Replaces the log filter. Does nothing if logging was never started.
pub fn change_filter(log: &Log) -> Result<(), ConfigError> {
    match CHANGE.get() {
        Some(change) => change(EnvFilter::new(&log.filter)).map_err(|_| ConfigError::Logging),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_an_instance_name_its_namespace() {
        let reported = |name, format, event: &str| {
            String::from_utf8(tagged(name, format, event.as_bytes())).unwrap()
        };
        let plain = reported("web", LogFormat::Plain, "INFO ready\n");
        assert_eq!(plain, "[web] INFO ready\n");
        let json = reported("net:[7]", LogFormat::Json, "{\"level\":\"INFO\"}\n");
        assert_eq!(json, "{\"namespace\":\"net:[7]\",\"level\":\"INFO\"}\n");
        let strange = reported("a\"\\\n\u{1b}ü", LogFormat::Json, "{\"a\":1}\n");
        assert_eq!(strange, "{\"namespace\":\"a?????\",\"a\":1}\n");
    }
}
