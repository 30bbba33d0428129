//! Runs plans in processes of their own: each in a process namespace that ends with the run, so
//! that nothing outlives the run, however it ends.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};

use crate::execute::Run;
use crate::judge::{Controls, Finding, Kind, excused, judge, needs_controls};
use crate::leftovers;
use crate::plan::{Plan, Victim};

/// Maximum duration of a run in addition to that of its sessions.
const BESIDES: Duration = Duration::from_secs(150);
/// Environment variable that marks the processes of runs.
const MARK: &str = "DYSCO_CHAOS_RUN";
/// Number of runs of a plan without Dysco before a problem is attributed to Dysco.
const CONTROLS: usize = 4;

/// True if no further run may begin.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Prevents further runs from beginning.
pub(crate) fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// True if [`interrupt`] was called.
pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Runner of plans, with a folder for the files of runs.
pub(crate) struct Driver {
    dir: PathBuf,
    /// Number of seconds that entries of ended sessions may remain.
    patience: u64,
    count: Mutex<u64>,
}

/// A plan's run with Dysco, and its faults.
pub(crate) struct Judged {
    /// The run of the plan.
    pub run: Run,
    /// Faults of the run.
    pub findings: Vec<Finding>,
    /// Number of sessions with a fault that also occurs without Dysco.
    pub excused: u64,
    /// Reason why a control was not run. Its comparison is missing.
    pub not_run: Option<anyhow::Error>,
    /// Folder of the run's logs, until it is removed.
    pub dir: PathBuf,
}

impl Driver {
    /// Creates a driver that keeps the files of runs in this folder.
    pub(crate) fn new(dir: &Path, patience: u64) -> Driver {
        Driver {
            dir: dir.into(),
            patience,
            count: Mutex::new(0),
        }
    }

    /// Runs a plan, and its controls if they are needed.
    pub(crate) fn judge(&self, plan: &Plan) -> Result<Judged> {
        let (run, dir) = self.run(plan)?;
        let (controls, not_run) =
            controls(plan, &run, |undisturbed| self.control(plan, undisturbed));
        let mut findings = judge(plan, &run, &controls);
        findings.extend(marked(&dir).into_iter().map(|what| Finding {
            kind: Kind::Leftover,
            session: None,
            what,
        }));
        let excused = excused(plan, &run, &controls);
        Ok(Judged {
            run,
            findings,
            excused,
            not_run,
            dir,
        })
    }

    /// Runs a plan without Dysco.
    pub(crate) fn control(&self, plan: &Plan, undisturbed: bool) -> Result<Run> {
        let (run, dir) = self.run(&plan.control(undisturbed))?;
        let _ = fs::remove_dir_all(dir);
        Ok(run)
    }

    /// Runs a plan in a separate process. The caller removes the run's folder.
    pub(crate) fn run(&self, plan: &Plan) -> Result<(Run, PathBuf)> {
        ensure!(!is_interrupted(), "interrupted");
        let number = {
            let mut count = self.count.lock().unwrap_or_else(|p| p.into_inner());
            *count += 1;
            *count
        };
        let dir = self.dir.join(format!("run{number}"));
        fs::create_dir_all(&dir).with_context(|| format!("failed to make {}", dir.display()))?;
        let (input, output) = (dir.join("plan.json"), dir.join("run.json"));
        write(&input, plan)?;
        let mut child = start(&dir, &input, &output, self.patience)?;
        let patience = self.patience.max(leftovers::KILLED);
        let own = Duration::from_millis(plan.live_ms) + Duration::from_secs(patience);
        let limit = own + BESIDES;
        let ended = wait(&mut child, limit);
        let log = || fs::read_to_string(dir.join("run.log")).unwrap_or_default();
        match ended {
            Ok(()) => Ok((read(&output)?, dir)),
            Err(error) => Err(error.context(format!("{}\n{}", dir.display(), log()))),
        }
    }
}

/// Returns the runs without Dysco for comparison with a run; none if the run has no faults. `control`
/// makes them, without the kills of proxies if its argument is true. If one fails, returns those
/// before it, and the error.
fn controls(
    plan: &Plan,
    run: &Run,
    control: impl Fn(bool) -> Result<Run> + Sync,
) -> (Controls, Option<anyhow::Error>) {
    let mut controls = Controls::default();
    let kills = run
        .kills
        .iter()
        .any(|k| k.hit && matches!(k.victim, Victim::Proxy { .. } | Victim::Host { .. }));
    for _ in 0..CONTROLS {
        // A fault that is already excused needs no second control.
        if !needs_controls(plan, run, &controls) {
            break;
        }
        // Both controls run at the same time: each takes as long as the run itself.
        let (undisturbed, with_kills) = std::thread::scope(|scope| {
            let with_kills = kills.then(|| scope.spawn(|| control(false)));
            let undisturbed = control(true);
            (undisturbed, with_kills.map(|run| run.join()))
        });
        let with_kills = match with_kills {
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            Some(Ok(run)) => run.map(Some),
            None => Ok(None),
        };
        match undisturbed.and_then(|run| Ok((run, with_kills?))) {
            Ok((undisturbed, with_kills)) => {
                controls.undisturbed.push(undisturbed);
                controls.with_kills.extend(with_kills);
            }
            Err(error) => return (controls, Some(error)),
        }
    }
    (controls, None)
}

/// Starts this program as the first process of a namespace.
fn start(dir: &Path, input: &Path, output: &Path, patience: u64) -> Result<Child> {
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let log = File::create(dir.join("run.log")).context("failed to make a log")?;
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(own)
        .arg("run")
        .args([input, output, dir])
        .arg(patience.to_string())
        .env(MARK, dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("failed to duplicate a log")?)
        .stderr(log);
    // SAFETY: the closure only makes system calls, as a forked child may.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
            Ok(sigprocmask(
                SigmaskHow::SIG_SETMASK,
                Some(&SigSet::empty()),
                None,
            )?)
        });
    }
    command.spawn().context("failed to run unshare")
}

fn wait(child: &mut Child, limit: Duration) -> Result<()> {
    let begun = Instant::now();
    loop {
        match child.try_wait().context("failed to wait for a run")? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("a run ended: {status}"),
            None if begun.elapsed() > limit => {
                let _ = child.kill();
                let _ = child.wait();
                bail!("a run did not end within {} s", limit.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Processes of a run that still exist, in any namespace.
fn marked(dir: &Path) -> Vec<String> {
    let mark = format!("{MARK}={}", dir.display());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let left = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let marked = environment
            .split(|b| *b == 0)
            .any(|word| word == mark.as_bytes());
        marked.then(|| format!("process {pid}"))
    });
    left.collect()
}

/// Writes a value as JSON.
pub(crate) fn write<T: serde::Serialize>(file: &Path, what: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(what).context("failed to write JSON")?;
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}

/// Reads a value from a JSON file.
pub(crate) fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text =
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("failed to read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::SessionRun;
    use crate::plan::draw;

    #[test]
    fn a_control_that_fails_hides_no_fault() {
        let plan = draw(1);
        let session = SessionRun {
            id: plan.sessions[0].id,
            local: None,
            trouble: Some("no route".into()),
            ends: Default::default(),
            watched: Default::default(),
        };
        let run = Run {
            sessions: vec![session],
            ..Run::default()
        };
        let (controls, error) = controls(&plan, &run, |_| bail!("no memory"));
        assert!(error.is_some());
        assert_eq!(judge(&plan, &run, &controls).len(), 1);
    }
}
