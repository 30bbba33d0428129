//! The result of the demo: a table for people, and an object for programs.

use std::collections::BTreeMap;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Measurements of one state: before, after or direct.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub goodput_bps: f64,
    /// Median latency with nothing else in progress.
    pub latency_p50_us: f64,
    /// Median latency at full load.
    pub busy_latency_p50_us: f64,
    pub proxy_cpu: f64,
}

/// All results of the demo.
pub(super) struct Report {
    pub intact: bool,
    pub troubles: Vec<String>,
    pub bytes: u64,
    /// SHA-256 and name of each upload, as the server stored it.
    pub hashes: Vec<String>,
    pub sessions: usize,
    pub removed: usize,
    pub refusals: BTreeMap<String, usize>,
    pub resets: u64,
    pub removal_ms: Option<(f64, f64)>,
    pub before: Measured,
    pub after: Measured,
    pub direct: Measured,
    pub proxy_packets_after: u64,
}

/// The object that `--json` prints.
#[derive(Serialize)]
pub(super) struct Json {
    intact: bool,
    bytes: u64,
    sessions: usize,
    removed: usize,
    /// Number of the other sessions, by outcome and reason.
    refusals: BTreeMap<String, usize>,
    resets: u64,
    removal_ms_p50: Option<f64>,
    removal_ms_p99: Option<f64>,
    goodput_before_bps: f64,
    goodput_after_bps: f64,
    goodput_direct_bps: f64,
    latency_p50_before_us: f64,
    latency_p50_after_us: f64,
    latency_p50_direct_us: f64,
    proxy_packets_after: u64,
    proxy_cpu_before: f64,
    proxy_cpu_after: f64,
}

impl Report {
    /// Returns the report for programs.
    pub(super) fn json(&self) -> Json {
        let whole = |x: f64| x.round();
        let fine = |x: f64| (x * 1000.0).round() / 1000.0;
        Json {
            intact: self.intact,
            bytes: self.bytes,
            sessions: self.sessions,
            removed: self.removed,
            refusals: self.refusals.clone(),
            resets: self.resets,
            removal_ms_p50: self.removal_ms.map(|(p50, _)| fine(p50)),
            removal_ms_p99: self.removal_ms.map(|(_, p99)| fine(p99)),
            goodput_before_bps: whole(self.before.goodput_bps),
            goodput_after_bps: whole(self.after.goodput_bps),
            goodput_direct_bps: whole(self.direct.goodput_bps),
            latency_p50_before_us: fine(self.before.latency_p50_us),
            latency_p50_after_us: fine(self.after.latency_p50_us),
            latency_p50_direct_us: fine(self.direct.latency_p50_us),
            proxy_packets_after: self.proxy_packets_after,
            proxy_cpu_before: fine(self.before.proxy_cpu),
            proxy_cpu_after: fine(self.after.proxy_cpu),
        }
    }

    /// Returns the report for people.
    pub(super) fn text(&self, plot: &Path) -> String {
        let mut text = format!("\n{}\n\n", self.table());
        let gigabytes = self.bytes as f64 / 1e9;
        text += &match self.intact {
            true => format!("bytes         {gigabytes:.2} GB, every one checked: all intact\n"),
            false => format!("bytes         {gigabytes:.2} GB: NOT INTACT\n"),
        };
        self.troubles
            .iter()
            .for_each(|trouble| text += &format!("              {trouble}\n"));
        for hash in &self.hashes {
            text += &format!("  sha256      {hash}, as it was sent\n");
        }
        text += &format!(
            "sessions      {} of {} lost their proxy\n",
            self.removed, self.sessions
        );
        for (reason, count) in &self.refusals {
            text += &format!("              {count} {reason}\n");
        }
        if let Some((p50, p99)) = self.removal_ms {
            text += &format!(
                "removal       {p50:.2} ms in the median, {p99:.2} ms at the 99th percentile\n"
            );
        }
        text += &format!(
            "resets        {} at the client and the server\n",
            self.resets
        );
        text += &format!(
            "at the proxy  {} packets after the removal\n",
            self.proxy_packets_after
        );
        text + &format!("plot          {}", plot.display())
    }

    fn table(&self) -> Table {
        let columns = [self.before, self.after, self.direct];
        let row = |name: &str, value: &dyn Fn(&Measured) -> String| {
            let mut row = vec![name.to_owned()];
            row.extend(columns.iter().map(value));
            row
        };
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header([
            "",
            "through HAProxy",
            "HAProxy removed",
            "straight to nginx",
        ]);
        table.add_row(row("goodput, Gbit/s", &|m| {
            format!("{:.2}", m.goodput_bps / 1e9)
        }));
        table.add_row(row("request p50, µs", &|m| {
            format!("{:.1}", m.latency_p50_us)
        }));
        table.add_row(row("  at full load, µs", &|m| {
            format!("{:.0}", m.busy_latency_p50_us)
        }));
        table.add_row(row("HAProxy's cpu, %", &|m| {
            format!("{:.0}", m.proxy_cpu * 100.0)
        }));
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}
