//! Comparison of kinds with many sessions: their goodput, the latency of their requests, and the
//! processor time and memory that these take.

use std::time::Duration;

use anyhow::{Context, Result};
use procfs::process::Process;
use procfs::{Current, Meminfo};

use crate::Effort;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::figure::Figure;
use crate::turns::{Brought, RUN_IN, Turns};

/// Duration and number of the turns of each kind.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    turns: usize,
    turn: Duration,
    many: bool,
}

impl Pace {
    /// Returns the pace for `count` sessions. A short turn does not serve many sessions. The
    /// baseline has every other turn, so that its sessions would also have been idle for less time.
    pub(crate) fn of(effort: &Effort, count: usize) -> Pace {
        let many = count >= 100;
        Pace {
            turns: effort.pick(if many { 6 } else { 18 }, 4),
            turn: effort.turn() * if many { 6 } else { 1 },
            many,
        }
    }

    /// Duration of a turn.
    pub(crate) fn turn(self) -> Duration {
        self.turn
    }

    /// Time for which all sessions carry data before their turns.
    pub(crate) fn warm(self) -> Duration {
        match self.many {
            true => RUN_IN * 10,
            false => RUN_IN,
        }
    }

    /// Number of turns of each kind.
    pub(crate) fn turns(self) -> usize {
        self.turns
    }
}

/// Results of the turns of each of `K` kinds. All kinds are compared with the first.
pub(crate) struct Contest<const K: usize> {
    bulk: Turns<K>,
    asked: Turns<K>,
    /// Memory of a session between its ends, in bytes.
    memory: [Vec<f64>; K],
}

impl<const K: usize> Contest<K> {
    /// Creates a contest without any turns.
    pub(crate) fn new() -> Contest<K> {
        Contest {
            bulk: Turns::new("forwarding"),
            asked: Turns::new("forwarding"),
            memory: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// Gives the streams their turns.
    pub(crate) fn streams(&mut self, streams: &[Bulk; K], pace: Pace) -> Result<()> {
        let idle = || Ok(Duration::ZERO);
        self.bulk.bulk(streams, pace.turns, pace.turn, idle)
    }

    /// Gives the requests their turns.
    pub(crate) fn requests(&mut self, asks: &[Asks; K], pace: Pace) -> Result<()> {
        self.asked.each(pace.turns, |kind| {
            let answers = asks[kind].measure(pace.turn)?;
            Ok(Brought {
                value: answers.p50_us,
                rate: answers.rate,
                p99: answers.p99_us,
                busy: answers.busy_us,
                done: answers.count,
                ..Brought::default()
            })
        })
    }

    /// Records the memory of a session of a kind between its ends.
    pub(crate) fn memory(&mut self, kind: usize, bytes: f64) {
        self.memory[kind].push(bytes);
    }

    /// Figures of a kind.
    pub(crate) fn figures(&self, name: &str, kind: usize, count: usize) -> Vec<Figure> {
        let named = |what: &str| format!("rival_{name}_{what}_vs_forwarding_{count}");
        let asked = |name: &str, what: fn(&Brought) -> f64, unit: &str| {
            self.asked.figure_of(named(name), kind, what, unit)
        };
        let mut figures = vec![
            self.bulk.figure(named("goodput"), kind, 1e9, "Gbit/s"),
            self.bulk.cost(named("cpu"), kind, "s/GB"),
            asked("latency_p50", |b| b.value, "µs"),
            asked("latency_p99", |b| b.p99, "µs"),
            asked("requests", |b| b.rate, "requests/s"),
            self.asked.cost(named("cpu_of_a_request"), kind, "µs"),
        ];
        if !self.memory[kind].is_empty() {
            let name = format!("rival_{name}_bytes_per_session_{count}");
            let bytes = self.memory[kind].clone();
            figures.push(Figure::median(name, "bytes", bytes));
        }
        figures
    }
}

/// Bytes of the machine's memory that are not available.
pub(crate) fn used() -> Result<f64> {
    let memory = Meminfo::current().context("failed to read /proc/meminfo")?;
    let available = memory.mem_available.context("there is no MemAvailable")?;
    Ok(memory.mem_total as f64 - available as f64)
}

/// Bytes of a process's own memory.
pub(crate) fn resident(process: u32) -> Result<f64> {
    let status = Process::new(process as i32).and_then(|process| process.status());
    let status = status.with_context(|| format!("failed to read the memory of {process}"))?;
    let kilobytes = status.vmrss.context("there is no VmRSS")?;
    Ok(kilobytes as f64 * 1024.0)
}
