//! Steps of removals, according to the logs of the three daemons: the commands that they carried
//! out, and the times. All daemons here share one clock.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::figure::{Figure, median};

/// Configuration that makes a daemon log each command of a change.
pub(crate) const LOGGED: &str =
    "[log]\nformat = \"json\"\nfilter = \"warn,dysco_daemon::engine::commands=debug\"\n";
/// Number of messages in sequence, from the request until the proxy's host receives the news of the
/// cutover: `Leave`, `RequestLock`, `AckLock` and `Switched`. `Introduce`, `Introduced`, `SetUp`
/// and `SetUpAck` are sent in parallel.
pub(crate) const MESSAGES: f64 = 4.0;

/// A host of a removal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    /// The client's host.
    Left,
    /// The proxy's host.
    Middle,
    /// The server's host.
    Right,
}

/// A command of a change on a host, with its index among the commands of that name there.
type Mark = (Place, &'static str, usize);

/// Progress marks of a removal, in this order.
const MARKS: [Mark; 6] = [
    (Place::Middle, "Measure", 0),
    (Place::Left, "Lock", 0),
    (Place::Middle, "Persist", 0),
    (Place::Left, "Prepare", 0),
    (Place::Left, "Cut", 0),
    (Place::Right, "Cut", 0),
];

/// Work between two successive marks: a message and a record; a message, unless reading the proxy's
/// sockets or the right anchor's answer takes longer; a message and two records; SYN, SYN-ACK and a
/// record; a message, the cutover and a record.
pub(crate) const STEPS: [&str; MARKS.len() - 1] = ["ask", "lock", "grant", "open", "switch"];

/// Time at which one change passed each mark, in seconds of the day.
type Passed = BTreeMap<Mark, f64>;

/// Milliseconds of each of [`STEPS`], for all removals that passed all marks.
pub(crate) fn of_logs(logs: &[(Place, String)]) -> [Vec<f64>; STEPS.len()] {
    let mut changes = BTreeMap::<String, Passed>::new();
    for (place, log) in logs {
        let mut seen = BTreeMap::<(String, String), usize>::new();
        for (at, change, name) in log.lines().filter_map(command) {
            let nth = seen.entry((change.clone(), name.clone())).or_default();
            let is = |mark: &&Mark| (mark.0, mark.1, mark.2) == (*place, name.as_str(), *nth);
            if let Some(mark) = MARKS.iter().find(is) {
                changes.entry(change).or_default().insert(*mark, at);
            }
            *nth += 1;
        }
    }
    let mut steps: [Vec<f64>; STEPS.len()] = Default::default();
    for passed in changes.values() {
        let times: Option<Vec<f64>> = MARKS.iter().map(|m| passed.get(m).copied()).collect();
        let Some(times) = times else { continue };
        for (step, pair) in steps.iter_mut().zip(times.windows(2)) {
            // Midnight may fall between two marks.
            let took = (pair[1] - pair[0] + DAY / 2.0).rem_euclid(DAY) - DAY / 2.0;
            step.push(took * 1e3);
        }
    }
    steps
}

const DAY: f64 = 86_400.0;

/// Returns the time of a command, its change and its name, if the line describes a command.
fn command(line: &str) -> Option<(f64, String, String)> {
    let line: Value = serde_json::from_str(line).ok()?;
    let (at, command) = (line["timestamp"].as_str()?, line["command"].as_str()?);
    let (_, clock) = at.trim_end_matches('Z').split_once('T')?;
    let mut seconds = 0.0;
    for part in clock.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    let (name, rest) = command.split_once(' ')?;
    let (_, change) = rest.split_once("change: ")?;
    let end = change.find([',', ' '])?;
    Some((seconds, change[..end].to_owned(), name.to_owned()))
}

/// Figures of the median of each step, and of its share of the sum.
pub(crate) fn figures(steps: [Vec<f64>; STEPS.len()]) -> Vec<Figure> {
    let whole: f64 = steps.iter().map(|step| median(step)).sum();
    let figure = |(name, step): (&str, Vec<f64>)| {
        let figure = Figure::median(format!("removal_step_{name}_ms_p50"), "ms", step);
        let part = figure.value / whole;
        figure.aside("of all steps", part)
    };
    STEPS.into_iter().zip(steps).map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGE: &str = "0b0b";

    fn line(second: u32, command: &str, change: &str) -> String {
        format!(
            "{{\"timestamp\":\"2026-01-02T03:04:{second:02}.000100Z\",\"level\":\"DEBUG\",\
             \"message\":\"execute\",\"command\":\"{command} {{ change: {change}, x: 1 }}\"}}\n"
        )
    }

    /// Each mark is passed a second after the mark before.
    fn logs(change: &str) -> Vec<(Place, String)> {
        let of = |place: Place| -> String {
            let own = MARKS.iter().enumerate().filter(|(_, mark)| mark.0 == place);
            own.map(|(at, mark)| line(at as u32, mark.1, change))
                .collect()
        };
        [Place::Left, Place::Middle, Place::Right]
            .map(|p| (p, of(p)))
            .into()
    }

    #[test]
    fn a_step_is_from_mark_to_mark() {
        let mut all = logs(CHANGE);
        // Neither a third measurement nor a command of another change is a mark.
        all[1].1 += &line(30, "Measure", CHANGE);
        all[2].1 += &line(40, "Cut", "0c0c");
        for step in of_logs(&all) {
            assert_eq!(step.len(), 1);
            assert!((step[0] - 1_000.0).abs() < 1e-6, "{step:?}");
        }
    }

    #[test]
    fn a_change_that_missed_a_mark_has_no_steps() {
        let mut all = logs(CHANGE);
        all[0].1.clear();
        assert!(of_logs(&all).iter().all(Vec::is_empty));
    }

    #[test]
    fn midnight_lasts_no_longer() {
        let line = |clock: &str, name: &str| {
            let text = line(0, name, CHANGE);
            text.replace("03:04:00.000100", clock)
        };
        let mut all = logs(CHANGE);
        let cut = all[0].1.lines().filter(|l| !l.contains("Cut"));
        let cut: String = cut.map(|l| format!("{l}\n")).collect();
        all[0].1 = cut + &line("23:59:59.999500", "Cut");
        let rest = all[2].1.lines().filter(|l| !l.contains("Cut"));
        let rest: String = rest.map(|l| format!("{l}\n")).collect();
        all[2].1 = rest + &line("00:00:00.000500", "Cut");
        let last = of_logs(&all)[STEPS.len() - 1][0];
        assert!((last - 1.0).abs() < 1e-3, "{last}");
    }
}
