//! A run as a table, and its summary.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::figure::{Figure, Goal, short};
use crate::record::Record;
use crate::why;

/// Returns Markdown with the results of a run, its machine and its conditions. `run` is the same
/// run as JSON.
pub(crate) fn markdown(record: &Record, run: &Value) -> String {
    let machine = &record.machine;
    let mut text = format!(
        "{} UTC, {}, {:.0} s{}. {} × {}{}, {} MB, Linux {}; load average before: {}.\n\n",
        record.date,
        record.commit,
        record.seconds,
        if record.quick { ", a quick run" } else { "" },
        machine.processors,
        machine.processor,
        if machine.virtual_machine {
            ", a virtual machine"
        } else {
            ""
        },
        machine.memory_mb,
        machine.kernel,
        machine.load_before,
    );
    text += "| figure | value | 95 % interval | goal | floor | | |\n\
             |---|---:|---|---|---|---|---|\n";
    for figure in &record.figures {
        text += &row(figure, why::floor(run, &figure.name));
    }
    text += &format!("\n## Where a goal is missed\n\n{}", why::missed(run));
    for (name, why) in &record.failed {
        text += &format!("\nNot measured: {name}, {why}\n");
    }
    for (what, why) in &record.absent {
        text += &format!("\nNot available on this machine: {what}, {why}\n");
    }
    for (part, date) in &record.again {
        text += &format!("\nMeasured separately at {date}: {part}\n");
    }
    let parts = record.parts.iter();
    let parts: Vec<_> = parts.map(|(part, s)| format!("{part} {s:.0}")).collect();
    text + &format!("\nDuration of each part in seconds: {}\n", parts.join(", "))
}

/// Figures that every summary contains.
pub(crate) const ALWAYS: [&str; 14] = [
    "setup_added_us_4mb",
    "goodput_ratio_1",
    "goodput_ratio_10000",
    "requests_ratio_4mb",
    "removal_goodput_gain",
    "reconfig_ms_p50",
    "reconfig_ms_p99",
    "bypass_goodput_vs_direct",
    "bypass_latency_p50_vs_direct",
    "local_goodput_vs_forwarding",
    "translate_ns",
    "lookup_1m_vs_1k",
    "bytes_per_session",
    "shim_request_ratio",
];

/// Returns the value, the goal and the paper's value of each figure.
///
/// # Errors
/// If a required figure was not measured, or is not a number.
pub(crate) fn summary(record: &Record) -> Result<BTreeMap<&str, Value>> {
    let short = |figure: &Figure| {
        json!({
            "value": figure.value,
            "unit": (!figure.unit.is_empty()).then_some(figure.unit),
            "goal": figure.goal.map(Goal::bound),
            "paper": figure.paper,
        })
    };
    let figures = record.figures.iter();
    let found: BTreeMap<_, _> = figures.map(|f| (f.name.as_str(), short(f))).collect();
    let missing = |name: &&&str| found.get(**name).is_none_or(|f| f["value"].is_null());
    let missing: Vec<_> = ALWAYS.iter().filter(missing).copied().collect();
    ensure!(
        missing.is_empty(),
        "the run has no value for {}",
        missing.join(", ")
    );
    Ok(found)
}

fn row(figure: &Figure, floor: Option<f64>) -> String {
    let goal = match figure.goal {
        Some(Goal::AtLeast(bound)) => format!("≥ {bound}"),
        Some(Goal::AtMost(bound)) => format!("≤ {bound}"),
        None => String::new(),
    };
    let floor = floor.map(short).unwrap_or_default();
    let met = match figure.met() {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    };
    let interval = figure
        .interval
        .map(|(low, high)| format!("{} – {}", short(low), short(high)));
    let aside: Vec<_> = figure
        .aside
        .iter()
        .map(|(name, value)| format!("{name}: {}", short(*value)))
        .collect();
    format!(
        "| {} | {} {} | {} | {goal} | {floor} | {met} | {} |\n",
        figure.name,
        short(figure.value),
        figure.unit,
        interval.unwrap_or_default(),
        aside.join("; "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interface for other readers: the names of figures, and the fields of each.
    const WANTED: [&str; 14] = [
        "setup_added_us_4mb",
        "goodput_ratio_1",
        "goodput_ratio_10000",
        "requests_ratio_4mb",
        "removal_goodput_gain",
        "reconfig_ms_p50",
        "reconfig_ms_p99",
        "bypass_goodput_vs_direct",
        "bypass_latency_p50_vs_direct",
        "local_goodput_vs_forwarding",
        "translate_ns",
        "lookup_1m_vs_1k",
        "bytes_per_session",
        "shim_request_ratio",
    ];

    fn record(of: impl Fn(&str) -> Option<f64>) -> Result<Record> {
        let mut record = Record::begin(true)?;
        let figure = |name: &&str| {
            let figure = Figure::new(*name, "µs", of(name)?);
            Some(figure.goal(Goal::AtMost(40.0)).paper(94.0))
        };
        record.figures = WANTED.iter().filter_map(figure).collect();
        Ok(record)
    }

    #[test]
    fn a_summary_has_what_others_read() -> Result<()> {
        let mut record = record(|_| Some(1.5))?;
        record.figures.push(Figure::new("another", "", 2.0));
        let summary = summary(&record)?;
        assert_eq!(summary.len(), WANTED.len() + 1);
        for name in WANTED {
            let wanted = json!({"value": 1.5, "unit": "µs", "goal": 40.0, "paper": 94.0});
            assert_eq!(summary[name], wanted, "{name}");
        }
        let bare = json!({"value": 2.0, "unit": null, "goal": null, "paper": null});
        assert_eq!(summary["another"], bare);
        Ok(())
    }

    #[test]
    fn what_was_not_measured_is_no_silent_null() -> Result<()> {
        for name in WANTED {
            for value in [None, Some(f64::NAN)] {
                let record = record(|other| if other == name { value } else { Some(1.0) })?;
                let error = summary(&record).map(drop).map_err(|e| e.to_string());
                assert_eq!(error, Err(format!("the run has no value for {name}")));
            }
        }
        Ok(())
    }
}
