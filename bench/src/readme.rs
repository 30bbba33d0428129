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
        "goodput once its proxy has left, of a direct session's",
    ),
    (
        "bypass_latency_p50_vs_direct",
        "median time of a request then, of a direct session's",
    ),
    (
        "local_goodput_vs_forwarding",
        "goodput where the proxy's host relays, of plain forwarding's",
    ),
    (
        "removal_goodput_gain",
        "goodput of 600 sessions once all proxies have left, of that before",
    ),
    (
        "reconfig_ms_p50",
        "a proxy leaves under full load, from request to new path: median",
    ),
    ("reconfig_ms_p99", "the same: 99th percentile"),
    (
        "setup_added_us_4mb",
        "a session opened through 4 middleboxes: more than by forwarding",
    ),
    (
        "linked_goodput_ratio_1",
        "goodput of 1 session along a chain over links of 2 Gbit/s, of plain forwarding's",
    ),
    ("linked_goodput_ratio_10000", "of 10,000 sessions"),
    (
        "goodput_ratio_1",
        "of 1 session where the processors are the limit",
    ),
    ("goodput_ratio_10000", "of 10,000 sessions there"),
    (
        "linked_requests_ratio_4mb",
        "pages of 16 KiB a second from nginx through 4 middleboxes over such links, of plain forwarding's",
    ),
    (
        "requests_ratio_4mb",
        "short answers a second, where the processors are the limit",
    ),
    (
        "reconfigure_replace_ms_p50",
        "a firewall replaced with its state, among 1,000 sessions: median",
    ),
    ("reconfigure_replace_ms_p99", "the same: 99th percentile"),
    (
        "insert_lowest_goodput_linked",
        "lowest goodput of any 100 ms while a firewall comes in, over full links of 1 Gbit/s, of that before",
    ),
    (
        "replace_lowest_goodput_linked",
        "the same while it is replaced with its state",
    ),
    ("remove_lowest_goodput_linked", "the same while it leaves"),
    (
        "replace_lowest_goodput",
        "while it is replaced, of sessions that are paced, and share the processors",
    ),
    (
        "replace_dropped",
        "packets that firewalls refused while they were replaced",
    ),
    ("translate_ns", "a packet translated"),
    (
        "lookup_1m_vs_1k",
        "a session found among a million, of one among a thousand",
    ),
    ("bytes_per_session", "memory of an entry of the data plane"),
    (
        "shim_request_ratio",
        "requests through HAProxy under the shim, of HAProxy's without",
    ),
];

/// Explanation of the column.
const FLOOR: &str = "
*floor*: what the same figure is on this machine by what is not ours: with programs that do nothing where
ours would be, while nothing is changed, by messages and handshakes alone, by an empty run.
[Where a goal is missed, and why](../bench/README.md#where-a-goal-is-missed-and-why).
";

/// Rivals and their descriptions.
const RIVALS: &[(&str, &str)] = &[
    (
        "control",
        "the same forwarding again: what equal things differ by",
    ),
    ("direct", "no proxy, no hop"),
    ("relayed", "**`dyscod` relays, the proxy has left**"),
    ("nat", "translation by netfilter"),
    ("flowtable", "netfilter's flow table"),
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
    ("cpu", "CPU of a gigabyte"),
    ("cpu_of_a_request", "CPU of a request"),
];

/// Puts a whole run into docs/performance.md and this crate's README.
#[derive(clap::Args)]
pub struct Readme {
    /// The run: the JSON of its raw results
    run: PathBuf,
}

impl Readme {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let shown = self.run.display();
        let text = fs::read_to_string(&self.run);
        let text = text.with_context(|| format!("failed to read {shown}"))?;
        let run = serde_json::from_str(&text);
        let run = run.with_context(|| format!("{shown} holds no results of a run"))?;
        write(&run)
    }
}

/// Writes a run, given as its JSON, between the marks.
pub fn write(run: &Value) -> Result<()> {
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
        "{date} UTC, {}, {} × {}{}, Linux {}: ends, proxies and all hosts share these processors.\n\n",
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
            "![four bundles of sessions lose their proxies](../bench/results/{name}-bundles.svg)\n\n"
        );
    }
    text += "| | measured | goal | floor | paper |\n|---|---:|---:|---:|---:|\n";
    for (name, about) in FIGURES {
        text += &row(find(run, name), why::floor(run, name), about);
    }
    text += FLOOR;
    text += &rivals(run);
    text + &format!(
        "\n[All figures](../bench/results/{name}.md), with their spread; \
         [how they are measured](../bench/README.md), and what biases them.\n"
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
            "Measured by themselves since, as fast as the machine was then: {}.\n\n",
            all.join("; ")
        ),
    }
}

/// Returns the common prefix of the names of a run's files.
pub fn file_name(date: &str) -> String {
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
        "\n{SESSIONS} sessions through what one can put between two hosts, each against plain \
         IP forwarding; bytes a session with 10,000. Each answer asks for the next request, so that \
         times are a rate's other face; HAProxy has two threads here, nginx and the sockmap's \
         relay one ([what else biases these](../bench/README.md#bias)):\n\n\
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
            text.contains("| a packet translated | 71.5 ns | ≤ 80 |  |  |"),
            "{text}"
        );
        assert!(text.contains(
            "short answers a second, where the processors are the limit | not measured |"
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
