//! The machine of a run.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::{CpuInfo, CpuTime, Current, CurrentSI, KernelStats, LoadAverage, Meminfo};
use serde::{Deserialize, Serialize};

/// Properties of the machine that are needed to judge absolute numbers.
#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
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
    pub(crate) fn here() -> Machine {
        let cpus = CpuInfo::current().ok();
        let cpus = |name| cpus.as_ref()?.get_field(0, name).map(str::to_owned);
        let load = LoadAverage::current();
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Machine {
            processor: cpus("model name").unwrap_or_default(),
            processors: processors(),
            virtual_machine: cpus("flags").is_some_and(|flags| flags.contains("hypervisor")),
            memory_mb: Meminfo::current().map_or(0, |memory| memory.mem_total >> 20),
            kernel: kernel.trim().to_owned(),
            load_before: load.map_or(String::new(), |load| {
                format!("{:.2} {:.2} {:.2}", load.one, load.five, load.fifteen)
            }),
        }
    }
}

/// Raises the limit of sockets for this process and its children. Returns the limit.
pub(crate) fn sockets() -> Result<usize> {
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
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

/// Waits for a short time until the processors are almost idle: the kernel removes the remains of a
/// part after the part's end.
pub(crate) fn settle() -> Result<()> {
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

/// Time since the machine started in which its processors did no work, together. The rest is busy
/// time, including time that is charged to no process. Time that the host of a virtual machine takes
/// is no work.
pub(crate) fn idle() -> Result<Duration> {
    let all = KernelStats::current().context("failed to read /proc/stat")?;
    Ok(unused(&all.total))
}

fn unused(times: &CpuTime) -> Duration {
    let waiting = times.iowait_duration().unwrap_or_default();
    times.idle_duration() + waiting + times.steal_duration().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use procfs::{FromBufReadSI, KernelStats};

    use super::*;

    /// A tick has ten milliseconds.
    #[test]
    fn stolen_time_is_no_busy_time() {
        let text = "cpu  1000 0 500 7000 200 0 0 300 0 0\nctxt 1\nbtime 1\nprocesses 1\n\
                    procs_running 1\nprocs_blocked 0\n";
        let clock = procfs::LocalSystemInfo;
        let read = KernelStats::from_buf_read(text.as_bytes(), &clock);
        let unused = unused(&read.expect("statistics").total);
        assert_eq!(unused, Duration::from_secs(70 + 2 + 3));
    }
}
