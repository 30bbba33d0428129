//! The machine of a run.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};

/// Properties of the machine that are needed to judge absolute numbers.
#[derive(Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor, as its maker states it.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// True if the machine is virtual.
    pub virtual_machine: bool,
    /// Megabytes of memory.
    pub memory_mb: u64,
    /// Version of the kernel.
    pub kernel: String,
    /// Load before the run. Other running programs make results vary.
    pub load_before: String,
}

impl Machine {
    /// Returns the properties of this machine.
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            let value = line.and_then(|line| line.split_once(':'));
            value.map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kilobytes: u64 = memory
            .split(' ')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0);
        let load = read("/proc/loadavg");
        Machine {
            processor: field(&cpus, "model name"),
            processors: processors(),
            virtual_machine: field(&cpus, "flags").contains("hypervisor"),
            memory_mb: kilobytes / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: load.split(' ').take(3).collect::<Vec<_>>().join(" "),
        }
    }
}

/// Raises the limit of sockets for this process and its children. Returns the limit.
pub fn sockets() -> Result<usize> {
    const WANTED: u64 = 1 << 18;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    // Not every root user may raise the limit.
    let raised = setrlimit(Resource::RLIMIT_NOFILE, WANTED.max(hard), WANTED.max(hard));
    if raised.is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("failed to allow many files")?;
    }
    let (now, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(now as usize)
}

/// Number of processors.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Waits for a short time until the processors are almost idle: the kernel removes the remains of a
/// part after the part's end.
pub fn settle() -> Result<()> {
    const LOOK: Duration = Duration::from_millis(500);
    const LOOKS: usize = 20;
    for _ in 0..LOOKS {
        let (start, before) = (Instant::now(), idle()?);
        std::thread::sleep(LOOK);
        let all = start.elapsed() * processors() as u32;
        if all.saturating_sub(idle()? - before) * 10 < all {
            break;
        }
    }
    Ok(())
}

/// Idle time of all processors together since the machine started. The rest is busy time, whoever
/// is charged for it.
pub fn idle() -> Result<Duration> {
    let text = fs::read_to_string("/proc/stat").context("failed to read /proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks = |at: usize| line.split_whitespace().nth(at)?.parse::<u64>().ok();
    let (idle, waiting) = ticks(4)
        .zip(ticks(5))
        .context("/proc/stat does not say for how long processors were idle")?;
    // USER_HZ is 100 on every architecture that has an eBPF compiler.
    Ok(Duration::from_millis((idle + waiting) * 10))
}
