//! What a run found, as it is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, time::Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Effort;
use crate::figure::Figure;
use crate::machine::Machine;
use crate::plot::Plot;
use crate::{readme, report};

/// One run.
#[derive(Serialize, Deserialize)]
pub struct Record {
    /// When it began, UTC.
    pub date: String,
    /// The version of the source.
    pub commit: String,
    /// Whether it was but a brief look.
    pub quick: bool,
    /// How long it took.
    pub seconds: f64,
    /// Where.
    pub machine: Machine,
    /// What was found.
    pub figures: Vec<Figure>,
    /// What could not be measured, and why.
    pub failed: BTreeMap<String, String>,
    /// What this machine does not have, and why that is known.
    pub absent: BTreeMap<String, String>,
    /// How many seconds each part took.
    pub parts: BTreeMap<String, f64>,
    /// Which of them were measured later, when that was, UTC, and of which commit.
    #[serde(default)]
    pub again: BTreeMap<String, String>,
    /// What is drawn of it.
    pub plots: Vec<Plot>,
    #[serde(skip, default = "Instant::now")]
    start: Instant,
}

/// What is measured; nothing, of a source without its history.
fn commit() -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    said(&["git", "-C", folder, "describe", "--always", "--dirty"]).unwrap_or_default()
}

impl Record {
    /// Begins a run.
    pub fn begin(quick: bool) -> Result<Record> {
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

    /// Reads one that was kept.
    pub fn read(path: &Path) -> Result<Record> {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("failed to read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no run", path.display()))
    }

    /// Takes in that a part is measured anew now: what it had found is forgotten.
    pub fn begin_again(&mut self, name: &str) -> Result<()> {
        self.failed.remove(name);
        self.figures.retain(|figure| figure.part != name);
        let when = format!("{} UTC, {}", now()?, commit());
        self.again.insert(name.into(), when);
        Ok(())
    }

    /// Puts the figures into the order of the parts, and of two plots of a name keeps the
    /// later.
    pub fn order(&mut self, parts: impl Iterator<Item = &'static str>) {
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

    /// Seconds since it began.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Takes in that a part is over, which began so many seconds after the run.
    pub fn took(&mut self, name: &'static str, begun: f64) {
        let seconds = self.seconds() - begun;
        self.parts
            .insert(name.into(), (seconds * 10.0).round() / 10.0);
    }

    /// Takes in what was found by one of its parts, and says so.
    pub fn take(&mut self, name: &'static str, mut figures: Vec<Figure>, effort: &Effort) {
        for figure in &mut figures {
            figure.part = name;
            effort.say(&format!(
                "  {}: {:.4} {}",
                figure.name, figure.value, figure.unit
            ));
        }
        if figures.is_empty() {
            self.failed.insert(name.into(), "it found nothing".into());
        }
        self.figures.extend(figures);
    }

    /// Takes in that a part has failed.
    pub fn fail(&mut self, name: &str, error: &anyhow::Error) {
        eprintln!("failed to measure {name}: {error:?}");
        self.failed.insert(name.into(), format!("{error:#}"));
    }

    /// As its JSON has it.
    pub fn run(&self) -> Result<Value> {
        serde_json::to_value(self).context("a run is no JSON")
    }

    /// Ends it.
    pub fn end(&mut self) -> Result<()> {
        self.seconds = self.seconds().round();
        Ok(())
    }

    /// Writes it as JSON, as a table and as plots: a whole run beside others, and
    /// anything else aside. The JSON's path.
    pub fn save(&self, whole: bool) -> Result<PathBuf> {
        let folder = match whole {
            true => results(),
            false => std::env::temp_dir().join("dysco-bench"),
        };
        fs::create_dir_all(&folder)
            .with_context(|| format!("failed to make {}", folder.display()))?;
        let name = readme::file_name(&self.date);
        let json = folder.join(format!("{name}.json"));
        let run = self.run()?;
        // Thousands of samples: for programs to read, in one line.
        write(&json, serde_json::to_string(self)? + "\n")?;
        write(&json.with_extension("md"), report::markdown(self, &run))?;
        for plot in &self.plots {
            plot.draw(&folder.join(format!("{name}-{}.svg", plot.name)))?;
        }
        Ok(json)
    }

    /// Puts a whole run's figures where everybody looks.
    ///
    /// # Errors
    /// If it is not complete: what is there already stays.
    pub fn publish(&self) -> Result<()> {
        let stays = "the run is not complete: summary.json and the documents stay as they were";
        let summary = self.summary().context(stays)?;
        write(&results().join("summary.json"), summary)?;
        readme::write(&self.run()?)
    }

    /// In short, if nothing is missing.
    fn summary(&self) -> Result<String> {
        self.complete()?;
        let summary = report::summary(self)?;
        Ok(serde_json::to_string_pretty(&summary)? + "\n")
    }

    /// That all of its parts were measured.
    ///
    /// # Errors
    /// If one was not.
    pub fn complete(&self) -> Result<()> {
        let failed: Vec<_> = self.failed.keys().map(String::as_str).collect();
        ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
        Ok(())
    }
}

/// What a command says.
fn said(words: &[&str]) -> Result<String> {
    let ran = Command::new(words[0]).args(&words[1..]).output();
    let ran = ran.with_context(|| format!("failed to run {}", words[0]))?;
    Ok(String::from_utf8_lossy(&ran.stdout).trim().to_owned())
}

/// The time, UTC.
fn now() -> Result<String> {
    said(&["date", "-u", "+%Y-%m-%d %H:%M"])
}

/// Where whole runs are.
fn results() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("results")
}

fn write(path: &Path, text: String) -> Result<()> {
    fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The summary is made before anything is overwritten.
    #[test]
    fn a_run_of_which_a_part_failed_has_no_summary() -> Result<()> {
        let mut record = Record::begin(true)?;
        for name in report::ALWAYS {
            record.figures.push(Figure::new(name, "", 1.0));
        }
        let summary: Value = serde_json::from_str(&record.summary()?)?;
        assert_eq!(summary["translate_ns"]["value"], 1.0);
        record.failed.insert("xdp".into(), "no device".into());
        let error = record.summary().map_err(|e| e.to_string());
        assert_eq!(error, Err("not measured: xdp".into()));
        Ok(())
    }
}
