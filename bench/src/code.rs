//! The criterion benches of the state machine and of the parsers of messages and packets. They can
//! be run separately, with `cargo bench -p dysco-common` and `-p dysco-proto`, and are among the
//! figures of a run here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Effort;
use crate::figure::Figure;

/// Arguments of cargo: all benches in one command, as they were built.
const BENCHES: [&str; 8] = [
    "-p",
    "dysco-common",
    "--bench",
    "decode",
    "-p",
    "dysco-proto",
    "--bench",
    "protocol",
];

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let folder = std::env::temp_dir().join(format!("dysco-criterion-{}", std::process::id()));
    let found = measure(effort, &folder);
    let removed = fs::remove_dir_all(&folder);
    let found = found?;
    removed.context("failed to remove criterion's results")?;
    Ok(found)
}

fn measure(effort: &Effort, folder: &Path) -> Result<Vec<Figure>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let target = own
        .ancestors()
        .nth(2)
        .context("this program is in no folder of cargo's")?;
    let mut command = Command::new(cargo);
    command
        .env("CARGO_TARGET_DIR", target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["bench", "--quiet"])
        .args(BENCHES)
        .arg("--")
        .args([
            "--quiet",
            "--noplot",
            "--warm-up-time",
            effort.pick("1", "0.1"),
        ])
        .args(["--measurement-time", effort.pick("3", "0.3")])
        .args(["--sample-size", effort.pick("50", "10")])
        .env("CRITERION_HOME", folder)
        .stdout(Stdio::null());
    // These variables are meant for this program only; they would make cargo rebuild other crates.
    for (name, _) in std::env::vars_os() {
        let own = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
        if name.to_str().is_some_and(own) {
            command.env_remove(name);
        }
    }
    let status = command.status().context("failed to run cargo")?;
    ensure!(status.success(), "cargo bench: {status}");
    let listed = fs::read_dir(folder).context("criterion left no results")?;
    let mut found: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    found.sort();
    let kept = found.iter().map(|path| path.join("new"));
    kept.filter(|path| path.exists())
        .map(|path| figure(&path))
        .collect()
}

/// Figure of the nanoseconds of each sample in a folder of criterion.
fn figure(folder: &Path) -> Result<Figure> {
    let read = |name: &str| -> Result<Value> {
        let text = fs::read_to_string(folder.join(name));
        let text = text.with_context(|| format!("criterion left no {name}"))?;
        serde_json::from_str(&text).with_context(|| format!("criterion's {name} is no JSON"))
    };
    let (what, samples) = (read("benchmark.json")?, read("sample.json")?);
    let name = what["function_id"].as_str();
    let name = name
        .or(what["group_id"].as_str())
        .context("a bench has no name")?;
    let numbers = |name: &str| -> Vec<f64> {
        let all = samples[name].as_array().into_iter().flatten();
        all.filter_map(Value::as_f64).collect()
    };
    let (times, runs) = (numbers("times"), numbers("iters"));
    ensure!(!times.is_empty(), "{name} has no samples");
    let each = times.iter().zip(&runs).map(|(time, runs)| time / runs);
    Ok(Figure::median(slug(name), "ns", each.collect()))
}

/// Converts a name to the form of figure names.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    format!("code_ns_{}", words.join("_").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bench_is_called_as_figures_are() {
        let name = slug("a chain's payload, read and proven");
        assert_eq!(name, "code_ns_a_chain_s_payload_read_and_proven");
    }
}
