//! The result of the demo: a table for people, and an object for programs.

use std::path::Path;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use super::Step;
use super::watch::{Measured, WAYS};
use crate::demo::reported::Reported;

/// Result of one request.
pub(super) struct Change {
    pub reported: Reported,
    /// Number of packets that the firewalls refused from then on.
    pub dropped: u64,
}

/// All results of the demo.
pub(super) struct Report {
    pub troubles: Vec<String>,
    pub bytes: u64,
    /// SHA-256 and name of each upload, as the server stored it.
    pub hashes: Vec<String>,
    pub sessions: usize,
    pub resets: u64,
    pub changes: Vec<(Step, Change)>,
    /// Measurements by step, in the order of [`Step::ALL`].
    pub paths: [Measured; Step::ALL.len()],
}

/// Returns a line with the numbers of changed and unchanged sessions.
pub(super) fn summary(reported: &Reported, took: Duration) -> String {
    let mut text = format!(
        "  {} of {} sessions have the new path, in {:.0} ms with the last",
        reported.done(),
        reported.all(),
        took.as_secs_f64() * 1e3
    );
    for (reason, count) in reported.refusals() {
        text += &format!("\n  {count} {reason}");
    }
    text
}

/// Returns the names of a step in JSON: one for its state, and one for its duration.
fn keys(step: Step) -> (&'static str, &'static str) {
    match step {
        Step::Direct => ("direct", "direct"),
        Step::Inserted => ("inserted", "insert"),
        Step::Replaced => ("replaced", "replace"),
        Step::Removed => ("removed", "remove"),
    }
}

impl Report {
    /// True if every byte arrived as it was sent.
    pub(super) fn intact(&self) -> bool {
        self.troubles.is_empty()
    }

    fn dropped(&self) -> u64 {
        self.changes.iter().map(|(_, change)| change.dropped).sum()
    }

    fn change(&self, step: Step) -> Option<&Change> {
        let mut all = self.changes.iter();
        all.find(|(s, _)| *s == step).map(|(_, change)| change)
    }

    /// Returns the report for programs.
    pub(super) fn json(&self) -> Value {
        let fine = |x: f64| (x * 1000.0).round() / 1000.0;
        let by_step = |value: &dyn Fn(&Measured) -> f64| -> Value {
            let steps = Step::ALL.into_iter().zip(&self.paths);
            let steps = steps.map(|(step, m)| (keys(step).0.to_owned(), json!(value(m).round())));
            steps.collect::<Map<_, _>>().into()
        };
        let mut all = json!({
            "intact": self.intact(),
            "bytes": self.bytes,
            "sessions": self.sessions,
            "resets": self.resets,
            "dropped_by_firewalls": self.dropped(),
            "stray_packets": self.paths.iter().map(|m| m.stray).sum::<u64>(),
            "goodput_bps": by_step(&|m| m.goodput_bps),
            "lowest_goodput_bps": by_step(&|m| m.lowest_bps),
            "request_p50_us": by_step(&|m| m.latency_p50_us),
        });
        for (step, change) in &self.changes {
            let (done, doing) = keys(*step);
            let times = change.reported.percentiles_ms();
            all[done] = json!(change.reported.done());
            all[format!("{doing}_ms_p50")] = json!(times.map(|t| fine(t.0)));
            all[format!("{doing}_ms_p99")] = json!(times.map(|t| fine(t.1)));
        }
        all
    }

    /// Returns the report for people.
    pub(super) fn text(&self, plot: &Path) -> String {
        let mut text = format!("\n{}\n\n", self.table());
        let gigabytes = self.bytes as f64 / 1e9;
        text += &match self.intact() {
            true => format!("bytes         {gigabytes:.2} GB, every one checked: all intact\n"),
            false => format!("bytes         {gigabytes:.2} GB: NOT INTACT\n"),
        };
        for trouble in &self.troubles {
            text += &format!("              {trouble}\n");
        }
        for hash in &self.hashes {
            text += &format!("  sha256      {hash}, as it was sent\n");
        }
        text += &format!(
            "resets        {} at the client and the server\n\
             firewalls     dropped {} packets\n",
            self.resets,
            self.dropped()
        );
        text + &format!("plot          {}", plot.display())
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["".to_owned()].into_iter().chain(Step::ALL.map(|step| {
            let name = step.name();
            name.to_owned()
        })));
        let mut row = |name: &str, value: &dyn Fn(Step, &Measured) -> Option<String>| {
            let cells = Step::ALL.into_iter().zip(&self.paths);
            let cells = cells.map(|(step, m)| value(step, m).unwrap_or_default());
            table.add_row([name.to_owned()].into_iter().chain(cells));
        };
        let times = |step: Step| self.change(step)?.reported.percentiles_ms();
        row("sessions", &|step, _| {
            let change = self.change(step)?;
            Some(format!("{} of {}", change.reported.done(), self.sessions))
        });
        row("request to new path p50, ms", &|step, _| {
            Some(format!("{:.2}", times(step)?.0))
        });
        row("  p99, ms", &|step, _| {
            Some(format!("{:.2}", times(step)?.1))
        });
        row("dropped by firewalls", &|step, _| {
            Some(self.change(step)?.dropped.to_string())
        });
        row("goodput, Gbit/s", &|_, m| {
            Some(format!("{:.2}", m.goodput_bps / 1e9))
        });
        row("  lowest 0.1 s", &|_, m| {
            Some(format!("{:.2}", m.lowest_bps / 1e9))
        });
        row("request p50 at full load, µs", &|_, m| {
            Some(format!("{:.0}", m.latency_p50_us))
        });
        for (way, (name, _)) in WAYS.iter().enumerate() {
            row(&format!("packets/s {name}"), &|_, m| {
                Some(format!("{:.0}", m.packets[way]))
            });
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}
