//! Warnings and errors that repeat: the first is written, and others of the same text are counted.
//! Other events are not: the same change of state may come twice.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::LogFormat;

/// Time for which events of the same text are counted.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of events that are remembered. Others are written each time.
const MOST: usize = 256;
/// Maximum length of an event that is remembered, in bytes.
const LONGEST: usize = 4096;

/// Number of repeats, and the time in which they came.
pub(super) type Count = (u64, Duration);

/// Decision on an event.
#[derive(PartialEq, Eq, Debug)]
enum Verdict {
    /// It is written.
    New,
    /// It is counted.
    Repeat,
    /// It is written together with the number of events before it that were counted.
    Again(Count),
}

/// First event of a text since a time, and the number of those after it.
struct Seen {
    since: Instant,
    repeats: u64,
}

/// Events that were written lately, by their text without the time.
#[derive(Default)]
pub(super) struct Repeats(HashMap<String, Seen>);

impl Repeats {
    fn judge(&mut self, event: &str, now: Instant) -> Verdict {
        if let Some(seen) = self.0.get_mut(event) {
            let passed = now.saturating_duration_since(seen.since);
            if passed < WINDOW {
                seen.repeats += 1;
                return Verdict::Repeat;
            }
            seen.since = now;
            return match std::mem::take(&mut seen.repeats) {
                0 => Verdict::New,
                repeats => Verdict::Again((repeats, passed)),
            };
        }
        if self.0.len() >= MOST {
            let is_recent = |seen: &Seen| now.saturating_duration_since(seen.since) < WINDOW;
            self.0.retain(|_, seen| seen.repeats > 0 || is_recent(seen));
        }
        if self.0.len() < MOST && event.len() <= LONGEST {
            let seen = Seen {
                since: now,
                repeats: 0,
            };
            self.0.insert(event.to_owned(), seen);
        }
        Verdict::New
    }

    /// Forgets the events that are this old. Returns those that were repeated.
    pub(super) fn take_old(&mut self, age: Duration, now: Instant) -> Vec<(String, Count)> {
        let passed = |seen: &Seen| now.saturating_duration_since(seen.since);
        let old = self.0.extract_if(|_, seen| passed(seen) >= age);
        let old = old.map(|(event, seen)| (event, (seen.repeats, passed(&seen))));
        old.filter(|(_, (repeats, _))| *repeats > 0).collect()
    }
}

/// Events that were written lately, of all threads.
pub(super) type Shared = Arc<Mutex<Repeats>>;

/// Locks the events. Each change is one call: a panic elsewhere leaves them consistent.
pub(super) fn lock(shared: &Shared) -> MutexGuard<'_, Repeats> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Format of events that leaves out repeats. The format inside writes no time.
pub(super) struct Counted<F> {
    pub inner: F,
    pub format: LogFormat,
    pub repeats: Shared,
}

impl<S, N, F> FormatEvent<S, N> for Counted<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        let inner = Writer::new(&mut text);
        self.inner.format_event(context, inner, event)?;
        let is_counted = *event.metadata().level() <= Level::WARN;
        let verdict = match is_counted {
            true => lock(&self.repeats).judge(&text, Instant::now()),
            false => Verdict::New,
        };
        // An event of no bytes is not written.
        match verdict {
            Verdict::Repeat => Ok(()),
            Verdict::New => writer.write_str(&line(self.format, &text, None)),
            Verdict::Again(count) => writer.write_str(&line(self.format, &text, Some(count))),
        }
    }
}

/// Returns the line of an event, with the present time and the number of repeats.
pub(super) fn line(format: LogFormat, text: &str, count: Option<Count>) -> String {
    let mut now = String::new();
    // A text takes all that is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut now));
    stamped(format, &now, text, count)
}

fn stamped(format: LogFormat, now: &str, text: &str, count: Option<Count>) -> String {
    match (format, text.strip_prefix('{')) {
        (LogFormat::Json, Some(rest)) => {
            let count = count.map(|(repeats, time)| {
                let seconds = time.as_secs();
                format!("\"repeated\":{repeats},\"repeated_in_seconds\":{seconds},")
            });
            let count = count.unwrap_or_default();
            format!("{{\"timestamp\":\"{now}\",{count}{rest}")
        }
        _ => {
            let count = count.map(|(repeats, time)| {
                let times = if repeats == 1 { "time" } else { "times" };
                format!(" (repeated {repeats} {times} in {} s)", time.as_secs())
            });
            let text = text.trim_end_matches('\n');
            format!("{now} {text}{}\n", count.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn repeats_are_counted_and_other_values_are_none() {
        let (mut all, start) = (Repeats::default(), Instant::now());
        assert_eq!(all.judge("no room peer=1", start), Verdict::New);
        for i in 1..10 {
            let now = start + i * SECOND;
            assert_eq!(all.judge("no room peer=1", now), Verdict::Repeat);
        }
        assert_eq!(all.judge("no room peer=2", start), Verdict::New);
        let again = Verdict::Again((9, 12 * SECOND));
        assert_eq!(all.judge("no room peer=1", start + 12 * SECOND), again);
        let late = start + 13 * SECOND;
        assert_eq!(all.judge("no room peer=1", late), Verdict::Repeat);
        // One that did not repeat is new after the time.
        assert_eq!(all.judge("no room peer=2", late), Verdict::New);
    }

    #[test]
    fn the_last_repeats_are_told_though_no_other_follows() {
        let (mut all, start) = (Repeats::default(), Instant::now());
        for event in ["a", "a", "b", "a"] {
            all.judge(event, start);
        }
        assert_eq!(all.take_old(WINDOW, start + 9 * SECOND), []);
        let told = all.take_old(WINDOW, start + WINDOW);
        assert_eq!(told, [("a".to_owned(), (2, WINDOW))]);
        assert!(all.0.is_empty());
    }

    #[test]
    fn the_number_of_remembered_events_is_limited_and_none_is_lost() {
        let (mut all, start) = (Repeats::default(), Instant::now());
        for i in 0..4 * MOST {
            assert_eq!(all.judge(&i.to_string(), start), Verdict::New);
        }
        assert_eq!(all.0.len(), MOST);
        assert_eq!(all.judge("0", start), Verdict::Repeat);
        // Those that nobody repeated make room, and counts stay.
        assert_eq!(all.judge("new", start + WINDOW), Verdict::New);
        assert_eq!(all.0.len(), 2);
        let long = "a".repeat(LONGEST + 1);
        assert_eq!(all.judge(&long, start), Verdict::New);
        assert_eq!(all.judge(&long, start), Verdict::New);
        assert_eq!(all.0.len(), 2);
    }

    #[test]
    fn a_line_has_the_time_and_the_count() {
        let count = Some((3, 12 * SECOND));
        let plain = |count| stamped(LogFormat::Plain, "T", " WARN full\n", count);
        assert_eq!(plain(None), "T  WARN full\n");
        assert_eq!(plain(count), "T  WARN full (repeated 3 times in 12 s)\n");
        let one = plain(Some((1, SECOND)));
        assert!(one.ends_with("(repeated 1 time in 1 s)\n"), "{one}");
        let json = |count| stamped(LogFormat::Json, "T", "{\"level\":\"WARN\"}\n", count);
        assert_eq!(json(None), "{\"timestamp\":\"T\",\"level\":\"WARN\"}\n");
        let counted: serde_json::Value = serde_json::from_str(&json(count)).unwrap();
        assert_eq!(counted["repeated"], 3);
        assert_eq!(counted["repeated_in_seconds"], 12);
        assert_eq!(counted["level"], "WARN");
    }

    /// Takes the lines that the format writes.
    #[derive(Clone, Default)]
    struct Out(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Out {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn warnings_are_counted_and_changes_of_state_are_not() {
        let out = Out::default();
        let to = out.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .map_event_format(|inner| Counted {
                inner: inner.without_time().with_ansi(false),
                format: LogFormat::Plain,
                repeats: Shared::default(),
            })
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for peer in [1, 1, 2, 1] {
                tracing::warn!(peer, "no room");
                tracing::info!("up");
            }
        });
        let written = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let of = |text| written.lines().filter(|line| line.ends_with(text)).count();
        assert_eq!((of("no room peer=1"), of("no room peer=2")), (1, 1));
        assert_eq!((of("up"), written.lines().count()), (4, 6), "{written}");
    }
}
