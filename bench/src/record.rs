//! Results of a run, as they are stored.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::{fs, time::Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Effort;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::plot::Plot;

/// One run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    /// Start of the run, UTC.
    pub date: String,
    /// Version of the source.
    pub commit: String,
    /// True if the run was a quick one.
    pub quick: bool,
    /// Duration of the run in seconds.
    pub seconds: f64,
    /// Machine of the run.
    pub machine: Machine,
    /// Figures of the run.
    pub figures: Vec<Figure>,
    /// Parts that could not be measured, with the reasons.
    pub failed: BTreeMap<String, String>,
    /// Features that this machine lacks, with the evidence.
    pub absent: BTreeMap<String, String>,
    /// Duration of each part in seconds.
    pub parts: BTreeMap<String, f64>,
    /// Parts that were measured later, with the time (UTC) and the commit.
    #[serde(default)]
    pub again: BTreeMap<String, String>,
    /// Plots of the run.
    pub plots: Vec<Plot>,
    #[serde(skip, default = "Instant::now")]
    start: Instant,
}

/// Version of the measured source; empty without the source's history.
fn commit() -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    said(&["git", "-C", folder, "describe", "--always", "--dirty"]).unwrap_or_default()
}

impl Record {
    /// Begins a run.
    pub(crate) fn begin(quick: bool) -> Result<Record> {
        Ok(Record {
            date: now()?,
            commit: commit(),
            quick,
            seconds: 0.0,
            machine: Machine::here(),
            figures: Vec::new(),
            failed: BTreeMap::new(),
            absent: BTreeMap::new(),
            parts: BTreeMap::new(),
            again: BTreeMap::new(),
            plots: Vec::new(),
            start: Instant::now(),
        })
    }

    /// Reads a stored run.
    pub(crate) fn read(path: &Path) -> Result<Record> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} contains no run", path.display()))
    }

    /// Records that a part is being measured again, and discards its former results.
    pub(crate) fn begin_again(&mut self, name: &str) -> Result<()> {
        self.failed.remove(name);
        self.figures.retain(|figure| figure.part != name);
        let when = format!("{} UTC, {}", now()?, commit());
        self.again.insert(name.into(), when);
        Ok(())
    }

    /// Sorts the figures by the order of the parts. Keeps the later of two plots with the same
    /// name.
    pub(crate) fn order(&mut self, parts: impl Iterator<Item = &'static str>) {
        let parts: Vec<_> = parts.collect();
        let place = |figure: &Figure| parts.iter().position(|part| *part == &*figure.part);
        self.figures.sort_by_key(place);
        let names: Vec<_> = self.plots.iter().map(|plot| plot.name.clone()).collect();
        let mut at = 0..;
        self.plots.retain(|plot| {
            let later = at.next().map_or(0, |n| n + 1);
            !names[later..].contains(&plot.name)
        });
    }

    /// Number of seconds since the start of the run.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Records that a part has ended. `begun` is the number of seconds between the start of the run
    /// and that of the part.
    pub(crate) fn took(&mut self, name: &'static str, begun: f64) {
        let seconds = self.seconds() - begun;
        self.parts
            .insert(name.into(), (seconds * 10.0).round() / 10.0);
    }

    /// Records the figures of a part, and prints them.
    pub(crate) fn take(&mut self, name: &'static str, mut figures: Vec<Figure>, effort: &Effort) {
        for figure in &mut figures {
            figure.part = name;
            effort.say(&format!(
                "  {}: {:.4} {}",
                figure.name, figure.value, figure.unit
            ));
        }
        if figures.is_empty() {
            self.failed.insert(name.into(), "no figures".into());
        }
        self.figures.extend(figures);
    }

    /// Records that a part has failed.
    pub(crate) fn fail(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("failed to measure {name}: {error:?}");
        self.failed.insert(name.into(), format!("{error:#}"));
    }

    /// Returns the run as JSON.
    pub(crate) fn run(&self) -> Result<Value> {
        serde_json::to_value(self).context("failed to convert the run to JSON")
    }

    /// Ends the run.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.seconds = self.seconds().round();
        Ok(())
    }

    /// Checks that all parts were measured.
    ///
    /// # Errors
    /// If a part was not measured.
    pub(crate) fn complete(&self) -> Result<()> {
        let failed: Vec<_> = self.failed.keys().map(String::as_str).collect();
        ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
        Ok(())
    }
}

/// Returns the output of a command.
fn said(words: &[&str]) -> Result<String> {
    let ran = Command::new(words[0]).args(&words[1..]).output();
    let ran = ran.with_context(|| format!("failed to run {}", words[0]))?;
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

/// Returns the time in UTC.
fn now() -> Result<String> {
    said(&["date", "-u", "+%Y-%m-%d %H:%M"])
}
