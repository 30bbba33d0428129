//! What `dyscoctl remove-middlebox` said.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use dysco_netns::Ran;
use serde_json::Value;

/// The removals that it reported.
#[derive(Default)]
pub struct Removal {
    sessions: Vec<Session>,
}

struct Session {
    outcome: String,
    reason: Option<String>,
    switch_us: Option<u64>,
}

impl Removal {
    /// Finds the report of each session, on one line or in one document.
    pub fn read(ran: &Ran) -> Result<Removal> {
        let mut removal = Removal::default();
        for value in serde_json::Deserializer::from_str(&ran.stdout).into_iter::<Value>() {
            let Ok(value) = value else {
                bail!("dyscoctl did not print JSON: {ran:?}")
            };
            removal.collect(&value);
        }
        if removal.sessions.is_empty() && ran.code != Some(0) {
            bail!(
                "dyscoctl failed, exit code {:?}: {}",
                ran.code,
                ran.stderr.trim()
            );
        }
        Ok(removal)
    }

    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(values) => values.iter().for_each(|v| self.collect(v)),
            Value::Object(fields) => match fields.get("outcome").and_then(Value::as_str) {
                Some(outcome) => self.sessions.push(Session {
                    outcome: outcome.into(),
                    reason: fields.get("reason").and_then(Value::as_str).map(Into::into),
                    switch_us: fields.get("request_to_switch_us").and_then(Value::as_u64),
                }),
                None => fields.values().for_each(|v| self.collect(v)),
            },
            _ => {}
        }
    }

    /// How many sessions HAProxy has left.
    pub fn removed(&self) -> usize {
        self.sessions
            .iter()
            .filter(|s| s.outcome == "removed")
            .count()
    }

    /// Why it stays in the others, and in how many.
    pub fn refusals(&self) -> BTreeMap<String, usize> {
        let mut reasons = BTreeMap::new();
        for session in self.sessions.iter().filter(|s| s.outcome != "removed") {
            let reason = session.reason.as_deref().unwrap_or("no reason was given");
            *reasons
                .entry(format!("{}: {reason}", session.outcome))
                .or_default() += 1;
        }
        reasons
    }

    /// Median and 99th percentile of the time from the request to the new path.
    pub fn percentiles_ms(&self) -> Option<(f64, f64)> {
        let mut times: Vec<_> = self.sessions.iter().filter_map(|s| s.switch_us).collect();
        times.sort_unstable();
        let rank = |percent: usize| (times.len() * percent).div_ceil(100).max(1) - 1;
        let at = |percent| times.get(rank(percent)).map(|us| *us as f64 / 1e3);
        Some((at(50)?, at(99)?))
    }

    /// One line of it.
    pub fn summary(&self, took: Duration) -> String {
        let mut text = format!(
            "HAProxy has left {} of {} sessions, in {:.0} ms with the last",
            self.removed(),
            self.sessions.len(),
            took.as_secs_f64() * 1e3
        );
        for (reason, count) in self.refusals() {
            text += &format!("\n  {count} {reason}");
        }
        text
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
        let two = r#"{"outcome":"refused","reason":"it is mode http"}"#;
        for text in [
            format!("{one}\n{two}\n"),
            format!("{{\"removals\": [{one}, {two}]}}"),
        ] {
            let removal = Removal::read(&ran(&text, 5))?;
            assert_eq!(removal.removed(), 1);
            assert_eq!(removal.percentiles_ms(), Some((0.8, 0.8)));
            assert_eq!(removal.refusals().get("refused: it is mode http"), Some(&1));
        }
        Ok(())
    }

    #[test]
    fn a_failure_is_told_with_its_reason() {
        let failure = Removal::read(&ran("", 3)).err().map(|e| e.to_string());
        assert!(failure.is_some_and(|e| e.contains("no daemon")));
    }
}
