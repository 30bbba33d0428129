//! Runs seed after seed until the time is over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};

use crate::driver::{self, Driver, Judged};
use crate::judge::Kind;
use crate::plan::{Plan, draw};
use crate::report::{self, Report};
use crate::shrink::shrink;

/// Maximum number of folders of failed runs that are kept. Each has some megabytes.
const KEPT: usize = 40;
/// Maximum number of runs for making one plan smaller.
const TRIES: usize = 60;
/// Number of runs after which a smaller plan counts as free of a fault that occurs by chance.
const CHANCES: usize = 3;

/// Options of the runs.
#[derive(Debug, Args)]
pub(crate) struct Seeds {
    /// Number of seconds after which no further run begins
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// First seed; the next ones follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of runs
    #[arg(long, value_name = "COUNT")]
    seeds: Option<u64>,
    /// Number of runs at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Run this plan instead of seeds
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Run without Dysco, to see the faults of the network itself
    #[arg(long)]
    control: bool,
    /// Reduce a failing plan to a small one that still fails
    #[arg(long)]
    shrink: bool,
    /// Time after which no entry or port of an ended session may remain; from 125 on, no entry for
    /// late packets either
    #[arg(long, value_name = "SECONDS", default_value_t = 6)]
    patience: u64,
    /// Print the report of each command about sessions
    #[arg(long)]
    reports: bool,
    /// Print the plans and run nothing
    #[arg(long)]
    show: bool,
    /// Folder for the plans and logs of failed runs [default: dysco-chaos-found in the folder for
    /// temporary files]
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

/// State that the jobs share.
struct Shared<'a> {
    arguments: &'a Seeds,
    driver: Driver,
    keep: PathBuf,
    begun: Instant,
    next: Mutex<u64>,
    report: Mutex<Report>,
}

impl Seeds {
    /// Runs the seeds.
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.show {
            let text = serde_json::to_string_pretty(&self.first()?);
            println!("{}", text.context("failed to write a plan")?);
            return Ok(ExitCode::SUCCESS);
        }
        dysco_netns::require_root()?;
        let dir = tempfile::Builder::new()
            .prefix(&format!("dysco-chaos-{}-", std::process::id()))
            .tempdir()
            .context("failed to make a folder")?;
        end_with(dir.path())?;
        let keep = self
            .keep
            .clone()
            .unwrap_or_else(|| std::env::temp_dir().join("dysco-chaos-found"));
        let shared = Shared {
            driver: Driver::new(dir.path(), self.patience),
            keep,
            begun: Instant::now(),
            next: Mutex::new(0),
            report: Mutex::default(),
            arguments: &self,
        };
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.max(1) {
                scope.spawn(|| while shared.one() {});
            }
        });
        let report = shared
            .report
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        match self.json {
            true => println!(
                "{}",
                serde_json::to_string(&report).context("failed to report")?
            ),
            false => println!("{}", report.text()),
        }
        Ok(match report.is_clean() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn first(&self) -> Result<Plan> {
        match &self.plan {
            Some(file) => driver::read(file),
            None => Ok(draw(self.seed)),
        }
    }
}

impl Shared<'_> {
    /// Runs the next seed. Returns false if there is none.
    fn one(&self) -> bool {
        let arguments = self.arguments;
        if driver::is_interrupted() {
            return false;
        }
        let number = {
            let mut next = lock(&self.next);
            let most = match arguments.plan {
                Some(_) => 1,
                None => arguments.seeds.unwrap_or(u64::MAX),
            };
            let over = self.begun.elapsed() >= Duration::from_secs(arguments.seconds);
            if *next >= most || (over && *next > 0) {
                return false;
            }
            *next += 1;
            *next - 1
        };
        let plan = match (&arguments.plan, number) {
            (Some(_), _) => arguments.first(),
            (None, n) => Ok(draw(arguments.seed.wrapping_add(n))),
        };
        let done = plan.and_then(|plan| self.run(&plan));
        if let Err(error) = done {
            lock(&self.report).not_run += 1;
            eprintln!(
                "seed {} was not run: {error:#}",
                arguments.seed.wrapping_add(number)
            );
        }
        true
    }

    fn run(&self, plan: &Plan) -> Result<()> {
        let control = self.arguments.control.then(|| plan.control(false));
        let plan = control.as_ref().unwrap_or(plan);
        let judged = self.driver.judge(plan)?;
        let Judged {
            run,
            findings,
            excused,
            not_run,
            ..
        } = &judged;
        lock(&self.report).add(plan.seed, run, findings, *excused);
        if let Some(error) = not_run {
            lock(&self.report).not_run += 1;
            eprintln!("a control of seed {} was not run: {error:#}", plan.seed);
        }
        let mut text = report::line(plan, run, findings, *excused);
        if self.arguments.reports {
            text += &report::reported(run);
        }
        for finding in &judged.findings {
            text += &format!("\n{}", report::finding(finding));
        }
        if judged.findings.is_empty() {
            eprintln!("{text}");
            let _ = fs::remove_dir_all(&judged.dir);
            return Ok(());
        }
        let file = self.keep(plan, &judged)?;
        eprintln!(
            "{text}\n  to run it again: cargo xtask chaos --plan {}",
            file.display()
        );
        if self.arguments.shrink {
            self.shrink(plan, &judged, &file)?;
        }
        Ok(())
    }

    /// Keeps the plan of a failed run, and its logs as long as there are not too many.
    fn keep(&self, plan: &Plan, judged: &Judged) -> Result<PathBuf> {
        let name = format!("seed-{}-{}", plan.seed, std::process::id());
        let folder = self.keep.join(&name);
        fs::create_dir_all(&self.keep).context("failed to make a folder for what was found")?;
        let file = self.keep.join(format!("{name}.json"));
        driver::write(&file, plan)?;
        let kept =
            fs::read_dir(&self.keep).map(|all| all.flatten().filter(|e| e.path().is_dir()).count());
        if kept.unwrap_or(KEPT) < KEPT {
            copy(&judged.dir, &folder)?;
            driver::write(&folder.join("findings.json"), &judged.findings)?;
        }
        let _ = fs::remove_dir_all(&judged.dir);
        Ok(file)
    }

    /// Prints the smallest plan that fails in the same way.
    fn shrink(&self, plan: &Plan, judged: &Judged, file: &Path) -> Result<()> {
        let kinds: Vec<Kind> = judged.findings.iter().map(|f| f.kind).collect();
        // The most severe kind determines the plan.
        let Some(kind) = kinds.into_iter().min() else {
            return Ok(());
        };
        let small = shrink(plan.clone(), TRIES, |smaller| {
            (0..CHANCES).any(|_| self.fails(smaller, kind))
        });
        let file = file.with_extension("small.json");
        driver::write(&file, &small)?;
        eprintln!(
            "  made smaller ({kind:?}): {} hosts, {} boxes, {} sessions, {} commands, {} kills\n  \
             to run it: cargo xtask chaos --plan {}",
            small.hosts.len(),
            small.boxes.len(),
            small.sessions.len(),
            small.operations.len(),
            small.kills.len(),
            file.display()
        );
        Ok(())
    }

    fn fails(&self, plan: &Plan, kind: Kind) -> bool {
        let judged = self.driver.judge(plan);
        judged.is_ok_and(|judged| {
            let _ = fs::remove_dir_all(&judged.dir);
            judged.findings.iter().any(|f| f.kind == kind)
        })
    }
}

/// Copies a folder with its files and subfolders.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("failed to make {}", to.display()))?;
    for entry in fs::read_dir(from)
        .context("failed to read a run's folder")?
        .flatten()
    {
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy(&entry.path(), &target)?,
            Ok(kind) if kind.is_file() => {
                fs::copy(entry.path(), &target)
                    .with_context(|| format!("failed to copy {}", entry.path().display()))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the folder when the process is interrupted. The runs end with the process.
fn end_with(dir: &Path) -> Result<()> {
    let mut signals = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
        .into_iter()
        .for_each(|s| signals.add(s));
    // No other thread exists yet that could receive the signals.
    signals.thread_block().context("failed to block signals")?;
    let dir = dir.to_owned();
    std::thread::spawn(move || {
        if let Ok(signal) = signals.wait() {
            driver::interrupt();
            let own = nix::unistd::getpid();
            for child in children(own.as_raw()) {
                let _ = nix::sys::signal::kill(child, Signal::SIGKILL);
                let _ = nix::sys::wait::waitpid(child, None);
            }
            // A run that was about to begin may still write its plan.
            let begun = Instant::now();
            while fs::remove_dir_all(&dir).is_err() && begun.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(20));
            }
            std::process::exit(128 + signal as i32);
        }
    });
    Ok(())
}

/// Returns the processes that this process has started.
fn children(own: i32) -> Vec<nix::unistd::Pid> {
    let tasks = fs::read_dir(format!("/proc/{own}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let texts = tasks.filter_map(|t| fs::read_to_string(t.path().join("children")).ok());
    let pids = texts.flat_map(|text| {
        let words = text.split_whitespace().filter_map(|w| w.parse().ok());
        words.collect::<Vec<i32>>()
    });
    pids.map(nix::unistd::Pid::from_raw).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
