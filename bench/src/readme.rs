//! Writes the last whole run into docs/performance.md, and the goals that it missed into the README
//! of the benchmark: between two marks, which only this module fills.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::figure::short;
use crate::why::{self, find};

const BEGIN: &str = "<!-- bench: begin -->\n";
const END: &str = "<!-- bench: end -->\n";

/// Figures and their descriptions.
const FIGURES: &[(&str, &str)] = &[
    (
        "bypass_goodput_vs_direct",
        "goodput after the removal, relative to a direct session",
    ),
    (
        "bypass_latency_p50_vs_direct",
        "median request time after the removal, relative to a direct session",
    ),
    (
        "local_goodput_vs_forwarding",
        "goodput in mode `local`, relative to plain forwarding by an equal host",
    ),
    (
        "removal_goodput_gain",
        "goodput of 600 sessions after all removals, relative to before",
    ),
    (
        "reconfig_ms_p50",
        "removal under full load, from its beginning to the cutover: median",
    ),
    (
        "reconfig_ms_p99",
        "removal under full load, from its beginning to the cutover: 99th percentile",
    ),
    (
        "setup_added_us_4mb",
        "connection setup through 4 middleboxes: median time added to plain forwarding",
    ),
    (
        "linked_goodput_ratio_1",
        "chain: goodput of 1 session over 2 Gbit/s links, relative to plain forwarding",
    ),
    (
        "linked_goodput_ratio_10000",
        "chain: goodput of 10,000 sessions over 2 Gbit/s links, relative to plain forwarding",
    ),
    (
        "goodput_ratio_1",
        "chain: goodput of 1 session limited by the processors, relative to plain forwarding",
    ),
    (
        "goodput_ratio_10000",
        "chain: goodput of 10,000 sessions limited by the processors, relative to plain forwarding",
    ),
    (
        "linked_requests_ratio_4mb",
        "chain of 4 middleboxes: 16 KiB pages per second over 2 Gbit/s links, relative to plain \
         forwarding",
    ),
    (
        "requests_ratio_4mb",
        "chain of 4 middleboxes: short responses per second limited by the processors, relative \
         to plain forwarding",
    ),
    (
        "reconfigure_replace_ms_p50",
        "firewall replaced with its state, among 1,000 sessions: median",
    ),
    (
        "reconfigure_replace_ms_p99",
        "firewall replaced with its state, among 1,000 sessions: 99th percentile",
    ),
    (
        "insert_lowest_goodput_linked",
        "firewall inserted, full 1 Gbit/s links: lowest goodput in any 100 ms, relative to before",
    ),
    (
        "replace_lowest_goodput_linked",
        "firewall replaced with its state, full 1 Gbit/s links: lowest goodput in any 100 ms, \
         relative to before",
    ),
    (
        "remove_lowest_goodput_linked",
        "firewall removed, full 1 Gbit/s links: lowest goodput in any 100 ms, relative to before",
    ),
    (
        "replace_lowest_goodput",
        "firewall replaced with its state, paced sessions: lowest goodput in any 100 ms, relative \
         to before",
    ),
    (
        "replace_dropped",
        "firewall replaced with its state, paced sessions: packets dropped by either firewall",
    ),
    ("translate_ns", "translation of one packet"),
    (
        "lookup_1m_vs_1k",
        "time of a packet among 1,000,000 relayed sessions, relative to 1,000 sessions",
    ),
    ("bytes_per_session", "memory of one data plane entry"),
    (
        "shim_request_ratio",
        "requests through HAProxy under the shim, relative to HAProxy without it",
    ),
];

/// Explanation of the column.
const FLOOR: &str = "
*floor*: the same figure on this machine without Dysco's own work. It comes from programs that do
nothing, from the second before a change, from messages and a handshake alone, or from an empty run.
[Where a goal is missed, and why](../bench/README.md#where-a-goal-is-missed-and-why).
";

/// Rivals and their descriptions.
const RIVALS: &[(&str, &str)] = &[
    ("control", "control: the same forwarding again"),
    ("direct", "direct: no proxy, no extra hop"),
    ("relayed", "**`dyscod` relays after the removal**"),
    ("nat", "netfilter NAT"),
    ("flowtable", "netfilter flow table"),
    ("ipvs", "IPVS"),
    ("spliced", "HAProxy, splicing"),
    ("copied", "HAProxy, copying"),
    ("nginx", "nginx stream"),
    ("sockmap", "BPF sockmap"),
];
/// Number of sessions.
const SESSIONS: usize = 100;
/// Columns and their titles.
const COLUMNS: &[(&str, &str)] = &[
    ("goodput", "goodput"),
    ("latency_p50", "request p50"),
    ("latency_p99", "request p99"),
    ("cpu", "CPU time per GB"),
    ("cpu_of_a_request", "CPU time per request"),
];

/// Writes a whole run into docs/performance.md and this crate's README.
#[derive(clap::Args)]
pub(crate) struct Readme {
    /// JSON file of the run
    run: PathBuf,
}

impl Readme {
    /// Runs the command.
    pub(crate) fn run(&self) -> Result<()> {
        let shown = self.run.display();
        let text = fs::read_to_string(&self.run);
        let text = text.with_context(|| format!("failed to read {shown}"))?;
        let run = serde_json::from_str(&text);
        let run = run.with_context(|| format!("{shown} has no results"))?;
        write(&run)
    }
}

/// Writes a run, given as its JSON, between the marks.
pub(crate) fn write(run: &Value) -> Result<()> {
    put("../docs/performance.md", &shown(run))?;
    let date = run["date"].as_str().unwrap_or_default();
    let missed = why::missed(run);
    put("README.md", &format!("The run of {date} UTC:\n\n{missed}"))
}

/// Puts a text between the marks of a file, whose path is relative to the benchmark's folder.
fn put(name: &str, new: &str) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = fs::read_to_string(&file).with_context(|| format!("failed to read {name}"))?;
    let text = replaced(&text, new);
    let text = text.with_context(|| format!("{name} has no marks of the benchmark"))?;
    fs::write(&file, text).with_context(|| format!("failed to write {name}"))
}

/// Returns the text with a new part between the marks.
fn replaced(text: &str, new: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{new}{END}{after}"))
}

fn shown(run: &Value) -> String {
    let (date, machine) = (run["date"].as_str().unwrap_or_default(), &run["machine"]);
    let name = file_name(date);
    let mut text = format!(
        "{date} UTC, {}, {} × {}{}, Linux {}. Both ends, the proxies and all other hosts share \
         these processors.\n\n",
        run["commit"].as_str().unwrap_or_default(),
        machine["processors"],
        machine["processor"].as_str().unwrap_or_default(),
        match machine["virtual_machine"].as_bool() {
            Some(true) => " (a virtual machine)",
            _ => "",
        },
        machine["kernel"].as_str().unwrap_or_default(),
    );
    text += &again(run);
    let plots = run["plots"].as_array().into_iter().flatten();
    if plots.into_iter().any(|plot| plot["name"] == "bundles") {
        text += &format!(
            "![goodput while four bundles of sessions lose their proxies]\
             (../bench/results/{name}-bundles.svg)\n\n"
        );
    }
    text += "| | measured | goal | floor | paper |\n|---|---:|---:|---:|---:|\n";
    for (name, about) in FIGURES {
        text += &row(find(run, name), why::floor(run, name), about);
    }
    text += FLOOR;
    text += &rivals(run);
    text + &format!(
        "\n[All figures](../bench/results/{name}.md), with confidence intervals. \
         [Method and bias](../bench/README.md).\n"
    )
}

/// Returns the parts that were measured later, separately.
fn again(run: &Value) -> String {
    let parts = run["again"].as_object().into_iter().flatten();
    let when =
        |(part, at): (&String, &Value)| format!("`{part}` at {}", at.as_str().unwrap_or_default());
    let all: Vec<_> = parts.map(when).collect();
    match all.is_empty() {
        true => String::new(),
        false => format!(
            "Measured separately since, at the machine's speed at that time: {}.\n\n",
            all.join("; ")
        ),
    }
}

/// Returns the common prefix of the names of a run's files.
pub(crate) fn file_name(date: &str) -> String {
    date.replace(' ', "-").replace(':', "")
}

fn row(figure: Option<&Value>, floor: Option<f64>, about: &str) -> String {
    let unit = figure.and_then(|f| f["unit"].as_str()).unwrap_or_default();
    let number = |value: Option<f64>| value.map(short);
    let value = number(figure.and_then(|f| f["value"].as_f64()));
    let value = value.map_or("not measured".into(), |v| format!("{v} {unit}"));
    let paper = figure.and_then(|f| f["paper"].as_f64());
    format!(
        "| {about} | {} | {} | {} | {} |\n",
        value.trim_end(),
        figure.and_then(why::goal).unwrap_or_default(),
        number(floor).unwrap_or_default(),
        paper.map(|paper| paper.to_string()).unwrap_or_default(),
    )
}

/// Table of the alternatives between two hosts, compared with plain forwarding.
fn rivals(run: &Value) -> String {
    let measured = |rival: &str, column: &str| {
        let name = format!("rival_{rival}_{column}_vs_forwarding_{SESSIONS}");
        find(run, &name)?["value"].as_f64().map(short)
    };
    let memory = |rival: &str| {
        let name = format!("rival_{rival}_bytes_per_session_10000");
        find(run, &name)?["value"].as_f64().map(short)
    };
    let mut rows = String::new();
    for (rival, about) in RIVALS {
        let cells: Vec<_> = COLUMNS.iter().map(|(c, _)| measured(rival, c)).collect();
        if cells.iter().all(Option::is_none) {
            continue;
        }
        rows += &format!("| {about} |");
        for cell in cells.into_iter().chain([memory(rival)]) {
            rows += &format!(" {} |", cell.unwrap_or_default());
        }
        rows += "\n";
    }
    if rows.is_empty() {
        return String::new();
    }
    let heads: String = COLUMNS
        .iter()
        .map(|(_, head)| format!(" {head} |"))
        .collect();
    let rules = "---:|".repeat(COLUMNS.len());
    format!(
        "\n{SESSIONS} sessions through each alternative between two hosts. All values are relative \
         to plain IP forwarding, except memory: bytes per session with 10,000 sessions. A session \
         sends a request when it has the response to the previous one, so that request times and \
         rates show the same. HAProxy runs two threads here, nginx and the sockmap relay one \
         ([more about bias](../bench/README.md#bias)):\n\n\
         | |{heads} memory |\n|---|{rules}---:|\n{rows}"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("a\n{BEGIN}old\n{END}b\n");
        let wanted = format!("a\n{BEGIN}new\n{END}b\n");
        assert_eq!(replaced(&text, "new\n"), Some(wanted));
        assert_eq!(replaced("no marks", "new"), None);
    }

    #[test]
    fn a_figure_is_reported_with_its_goal_or_as_missing() {
        let figure = json!({
            "name": "translate_ns", "unit": "ns", "value": 71.5, "goal": {"at_most": 80.0},
            "paper": null,
        });
        let run = json!({"date": "2026-01-02 03:04", "figures": [figure]});
        let text = shown(&run);
        assert!(
            text.contains("| translation of one packet | 71.5 ns | ≤ 80 |  |  |"),
            "{text}"
        );
        assert!(text.contains(
            "short responses per second limited by the processors, relative to plain forwarding | \
             not measured |"
        ));
        assert!(text.contains("bench/results/2026-01-02-0304.md"));
        assert!(!text.contains("HAProxy, copying"));
    }

    #[test]
    fn what_was_measured_later_is_said() {
        let run = json!({"date": "2026-01-02 03:04", "figures": []});
        assert!(!shown(&run).contains("since"));
        let run = json!({"date": "2026-01-02 03:04", "figures": [],
            "again": {"setup": "2026-01-03 04:05, abc"}});
        let text = shown(&run);
        assert!(text.contains("`setup` at 2026-01-03 04:05, abc."), "{text}");
    }
}
