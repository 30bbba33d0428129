//! The guest's side: examines this kernel, and runs the demos.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use dysco_netns::device::Kind;
use serde_json::Value;

use super::{Found, on_time};

/// Interval between two looks at the loaded programs.
const LOOK: Duration = Duration::from_millis(200);
/// Time limit of a demo in seconds. A demo that hangs does not hide the findings of the others.
const LIMIT: &str = "600";
/// Findings of `dyscoctl doctor` about the kernel.
const ABOUT_KERNEL: &[&str] = &[
    "kernel",
    "attach",
    "programs",
    "sockets",
    "receives",
    "repair",
    "held-ports",
];

/// Test this kernel; inside the guest of `cargo xtask test --kernel`.
#[derive(Args)]
pub(crate) struct Guest {
    /// The file for the result
    result: PathBuf,
    /// Remove the proxy over each kind of link as well
    #[arg(long)]
    links: bool,
    /// Run the tests of this program that need a kernel such as this one
    #[arg(long, value_name = "PROGRAM")]
    tests: Option<PathBuf>,
}

impl Guest {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        let programs = std::env::var_os("DYSCO_BIN_DIR").context("DYSCO_BIN_DIR is not set")?;
        let mut found = Found {
            kernel: release()?,
            ..Found::default()
        };
        let done = AtomicBool::new(false);
        found.instructions = std::thread::scope(|scope| {
            let counted = scope.spawn(|| counted_until(&done));
            self.steps(Path::new(&programs), &mut found);
            done.store(true, Ordering::Relaxed);
            counted.join().unwrap_or_default()
        });
        let text = serde_json::to_vec(&found)?;
        fs::write(&self.result, text).context("failed to write the result")
    }

    /// Runs the steps. The failure of a step is recorded, and the next step runs.
    fn steps(&self, programs: &Path, found: &mut Found) {
        let start = Instant::now();
        let mut step = |name: &str, run: &mut dyn FnMut(&mut Found) -> Result<()>| {
            eprintln!("== {name} ({} s)", start.elapsed().as_secs());
            if let Err(error) = run(found) {
                found.failures.push(format!("{name}: {error:#}"));
            }
        };
        step("doctor", &mut |found| doctor(programs, found));
        step("demo", &mut |found| {
            let shown = removal(Kind::Veth, &[])?;
            found.removed = shown["removed"].as_u64();
            found.intact = shown["intact"].as_bool();
            is_well(&shown)
        });
        // The machine's own kernel has the first two, and tests them.
        let others = Kind::ALL
            .into_iter()
            .filter(|kind| self.links && !matches!(kind, Kind::Veth | Kind::Tun));
        for kind in others {
            step(kind.name(), &mut |found| {
                let shown = removal(kind, &[]).and_then(|shown| is_well(&shown));
                found.links.insert(kind.name().to_owned(), shown.is_ok());
                shown
            });
        }
        step("adoption", &mut |found| {
            let shown = removal(Kind::Veth, &["--late"])?;
            found.adopted = shown["removed"].as_u64();
            // A session without an idle moment stays unproven, and a guest computes slowly.
            ensure!(
                found.adopted > Some(0) && shown["intact"] == true,
                "{shown}"
            );
            Ok(())
        });
        if let Some(program) = &self.tests {
            step("tests", &mut |_| tests(program));
        }
        step("reload", &mut |found| {
            let shown = demo(&["reload", "--sessions", "20"])?;
            found.reload_lost = shown["lost"].as_u64();
            ensure!(found.reload_lost == Some(0), "{shown}");
            Ok(())
        });
        step("services", &mut |found| {
            let shown = demo(&["services", "--sessions", "3"])?;
            found.services_taken = shown["taken"].as_u64();
            ensure!(shown["intact"] == true && shown["resets"] == 0, "{shown}");
            Ok(())
        });
        step("packet services", &mut |found| {
            found.on_time = Some(on_time::run(programs)?);
            Ok(())
        });
    }
}

/// Runs the tests that the tests' own machine leaves out, since its kernel lacks what they need.
fn tests(program: &Path) -> Result<()> {
    let mut tests = Command::new("timeout");
    tests.args(["--kill-after=10", LIMIT]).arg(program);
    let out = tests.args(["--ignored", "--test-threads=1"]).output();
    let out = out.context("failed to run the tests of hosts")?;
    let said = String::from_utf8_lossy(&out.stdout);
    eprintln!("{said}{}", String::from_utf8_lossy(&out.stderr));
    let result = said.lines().find(|line| line.starts_with("test result"));
    ensure!(out.status.success(), "{}", result.unwrap_or("no result"));
    Ok(())
}

/// Runs the demo of a removal over links of this kind, with these words.
fn removal(kind: Kind, more: &[&str]) -> Result<Value> {
    let plot = "/run/demo.svg";
    let words = [
        "--seconds",
        "2",
        "--sessions",
        "4",
        "--plot",
        plot,
        "--link",
    ];
    demo(&[&words[..], &[kind.name()], more].concat())
}

/// Checks that all sessions of a demo lost their proxy, and that every byte arrived.
fn is_well(shown: &Value) -> Result<()> {
    ensure!(shown["removed"] == shown["sessions"], "{shown}");
    ensure!(shown["intact"] == true, "{shown}");
    Ok(())
}

/// Returns the kernel's release, as `uname -r` prints it.
fn release() -> Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.trim().to_owned())
}

/// Runs `dyscoctl doctor`.
fn doctor(programs: &Path, found: &mut Found) -> Result<()> {
    let mut doctor = Command::new(programs.join("dyscoctl"));
    let out = doctor.args(["doctor", "-o", "json"]).output();
    let out = out.context("failed to run dyscoctl doctor")?;
    let said: Value = serde_json::from_slice(&out.stdout)
        .with_context(|| format!("doctor: {}", String::from_utf8_lossy(&out.stderr)))?;
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or("").to_owned();
    for finding in said["findings"].as_array().into_iter().flatten() {
        let (about, verdict) = (text(finding, "about"), text(finding, "verdict"));
        let well = verdict == "well";
        if about == "programs" {
            found.loaded = well;
        }
        if !well && ABOUT_KERNEL.contains(&about.as_str()) {
            found
                .lacks
                .push(format!("{about}: {}", text(finding, "found")));
        }
    }
    Ok(())
}

/// Returns the largest instruction counts of Dysco's programs that were seen.
fn counted_until(done: &AtomicBool) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    while !done.load(Ordering::Relaxed) {
        for program in aya::programs::loaded_programs().flatten() {
            let ours = program
                .name_as_str()
                .filter(|name| name.starts_with("dysco"));
            let (Some(name), Some(count)) = (ours, program.verified_instruction_count()) else {
                continue;
            };
            let most = counts.entry(name.to_owned()).or_insert(count);
            *most = count.max(*most);
        }
        std::thread::sleep(LOOK);
    }
    counts
}

/// Runs a demo. Returns the object that it prints last.
fn demo(words: &[&str]) -> Result<Value> {
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let mut demo = Command::new("timeout");
    demo.args(["--kill-after=10", LIMIT]).arg(own);
    demo.arg("demo").args(words).arg("--json");
    let out = demo.output().context("failed to run the demo")?;
    let (said, log) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    eprintln!("{log}{said}");
    let last = said.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .with_context(|| format!("it printed no result ({}): {log}", out.status))
}
