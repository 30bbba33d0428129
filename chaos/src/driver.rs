//! Running plans in processes of their own: each in a process namespace that ends with
//! it, so that nothing outlives a run, however it ends.

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

/// A run takes no longer than its sessions, and so much for all before and after.
const BESIDES: Duration = Duration::from_secs(150);
/// Marks the processes of runs in their environment.
const MARK: &str = "DYSCO_CHAOS_RUN";
/// So often a plan runs without Dysco before a trouble is Dysco's.
const CONTROLS: usize = 4;

/// No run begins any more.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Lets no run begin any more.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Whether that was said.
pub fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// A folder for the files of runs.
pub struct Driver {
    dir: PathBuf,
    /// How long entries of ended sessions may take to go, in seconds.
    patience: u64,
    count: Mutex<u64>,
}

/// A plan's run with Dysco, and what is wrong with it.
pub struct Judged {
    /// The run.
    pub run: Run,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// Sessions with which something is wrong that is as wrong without Dysco.
    pub excused: u64,
    /// Its logs, until they are removed.
    pub dir: PathBuf,
}

impl Driver {
    /// Runs have their files in this folder.
    pub fn new(dir: &Path, patience: u64) -> Driver {
        Driver {
            dir: dir.into(),
            patience,
            count: Mutex::new(0),
        }
    }

    /// Runs a plan, and its controls where they matter.
    pub fn judge(&self, plan: &Plan) -> Result<Judged> {
        let (run, dir) = self.run(plan)?;
        let controls = self.controls(plan, &run)?;
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
            dir,
        })
    }

    /// The runs without Dysco that a run is held against; none if nothing is wrong with it.
    fn controls(&self, plan: &Plan, run: &Run) -> Result<Controls> {
        let mut controls = Controls::default();
        let kills = run
            .kills
            .iter()
            .any(|k| k.hit && matches!(k.victim, Victim::Proxy { .. } | Victim::Host { .. }));
        for _ in 0..CONTROLS {
            // What is excused already needs no second one.
            if !needs_controls(plan, run, &controls) {
                break;
            }
            // At the same time: each takes as long as the run itself.
            let (calm, with_kills) = std::thread::scope(|scope| {
                let with_kills = kills.then(|| scope.spawn(|| self.control(plan, false)));
                let calm = self.control(plan, true);
                (calm, with_kills.map(|run| run.join()))
            });
            controls.calm.push(calm?);
            match with_kills {
                Some(Ok(run)) => controls.with_kills.push(run?),
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => {}
            }
        }
        Ok(controls)
    }

    /// Runs a plan without Dysco.
    pub fn control(&self, plan: &Plan, calm: bool) -> Result<Run> {
        let (run, dir) = self.run(&plan.control(calm))?;
        let _ = fs::remove_dir_all(dir);
        Ok(run)
    }

    /// Runs a plan in a process of its own; its folder is the caller's to remove.
    pub fn run(&self, plan: &Plan) -> Result<(Run, PathBuf)> {
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

/// Processes of a run that are there still, wherever they went.
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

/// Writes something as JSON.
pub fn write<T: serde::Serialize>(file: &Path, what: &T) -> Result<()> {
    let text = serde_json::to_string_pretty(what).context("failed to write JSON")?;
    fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
}

/// Reads it again.
pub fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text =
        fs::read_to_string(file).with_context(|| format!("failed to read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("failed to read {}", file.display()))
}
