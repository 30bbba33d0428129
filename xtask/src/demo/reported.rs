//! Reports of `dyscoctl` about each session that was to be changed.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use dysco_netns::Ran;
use serde_json::Value;

/// Reported changes.
#[derive(Default)]
pub(super) struct Reported {
    /// Outcome of a successful change.
    wanted: &'static str,
    sessions: Vec<Session>,
}

struct Session {
    outcome: String,
    reason: Option<String>,
    switch_us: Option<u64>,
}

impl Reported {
    /// Parses the report of each session, on one line or in one document. A successful change has
    /// the outcome `wanted`.
    pub(super) fn read(ran: &Ran, wanted: &'static str) -> Result<Reported> {
        let mut reported = Reported {
            wanted,
            sessions: Vec::new(),
        };
        for value in serde_json::Deserializer::from_str(&ran.stdout).into_iter::<Value>() {
            let Ok(value) = value else {
                bail!("dyscoctl did not print JSON: {ran:?}")
            };
            reported.collect(&value);
        }
        if reported.sessions.is_empty() && ran.code != Some(0) {
            bail!(
                "dyscoctl failed, exit code {:?}: {}",
                ran.code,
                ran.stderr.trim()
            );
        }
        Ok(reported)
    }

    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|v| self.collect(v)),
            Value::Object(fields) => match fields.get("outcome").and_then(Value::as_str) {
                Some(outcome) => self.sessions.push(Session {
                    outcome: outcome.into(),
                    reason: value["reason"]["why"].as_str().map(Into::into),
                    switch_us: fields.get("request_to_switch_us").and_then(Value::as_u64),
                }),
                None => fields.values().for_each(|v| self.collect(v)),
            },
            _ => {}
        }
    }

    /// Number of sessions that were changed.
    pub(super) fn done(&self) -> usize {
        let done = self.sessions.iter().filter(|s| s.outcome == self.wanted);
        done.count()
    }

    /// Number of sessions with a report.
    pub(super) fn all(&self) -> usize {
        self.sessions.len()
    }

    /// Reasons for the unchanged sessions, with the number of sessions.
    pub(super) fn refusals(&self) -> BTreeMap<String, usize> {
        let mut reasons = BTreeMap::new();
        for session in self.sessions.iter().filter(|s| s.outcome != self.wanted) {
            let reason = session.reason.as_deref().unwrap_or("no reason was given");
            *reasons
                .entry(format!("{}: {reason}", session.outcome))
                .or_default() += 1;
        }
        reasons
    }

    /// Median and 99th percentile of the time from the request to the new path.
    pub(super) fn percentiles_ms(&self) -> Option<(f64, f64)> {
        let mut times: Vec<_> = self.sessions.iter().filter_map(|s| s.switch_us).collect();
        times.sort_unstable();
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).max(1) - 1;
        let at = |percent| times.get(rank(percent)).map(|us| *us as f64 / 1e3);
        Some((at(50)?, at(99)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(stdout: &str, code: i32) -> Ran {
        Ran {
            code: Some(code),
            stdout: stdout.into(),
            stderr: "no daemon".into(),
        }
    }

    #[test]
    fn reports_are_found_in_lines_and_in_one_document() -> Result<()> {
        let one = r#"{"outcome":"removed","request_to_switch_us":800}"#;
        let two = r#"{"outcome":"refused","reason":{"why":"it is mode http"}}"#;
        for text in [
            format!("{one}\n{two}\n"),
            format!("{{\"removals\": [{one}, {two}]}}"),
        ] {
            let reported = Reported::read(&ran(&text, 5), "removed")?;
            assert_eq!(reported.done(), 1);
            assert_eq!(reported.percentiles_ms(), Some((0.8, 0.8)));
            assert_eq!(
                reported.refusals().get("refused: it is mode http"),
                Some(&1)
            );
        }
        Ok(())
    }

    #[test]
    fn a_failure_is_reported_with_its_reason() {
        let failure = Reported::read(&ran("", 3), "removed")
            .err()
            .map(|e| e.to_string());
        assert!(failure.is_some_and(|e| e.contains("no daemon")));
    }
}
