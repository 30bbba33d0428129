//! Kinds of many sessions against each other: what they carry, how soon their
//! requests are answered, and what that takes of processors and memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Effort;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::figure::Figure;
use crate::turns::{Brought, RUN_IN, Turns};

/// How long each kind has its turns, and how many.
#[derive(Clone, Copy)]
pub struct Pace {
    turns: usize,
    turn: Duration,
    many: bool,
}

impl Pace {
    /// Of so many sessions: many are not served in a short turn, and the base, which has
    /// every other one, finds its own more awake than others do.
    pub fn of(effort: &Effort, count: usize) -> Pace {
        let many = count >= 100;
        Pace {
            turns: effort.pick(if many { 6 } else { 18 }, 4),
            turn: effort.turn() * if many { 6 } else { 1 },
            many,
        }
    }

    /// How long a turn is.
    pub fn turn(self) -> Duration {
        self.turn
    }

    /// For how long all carry something before their turns.
    pub fn warm(self) -> Duration {
        match self.many {
            true => RUN_IN * 10,
            false => RUN_IN,
        }
    }

    /// How many turns of each kind.
    pub fn turns(self) -> usize {
        self.turns
    }
}

/// What the turns of each of `K` kinds brought; all are compared with the first.
pub struct Contest<const K: usize> {
    bulk: Turns<K>,
    asked: Turns<K>,
    /// Bytes that a session takes between its ends.
    memory: [Vec<f64>; K],
}

impl<const K: usize> Contest<K> {
    /// Without any turns so far.
    pub fn new() -> Contest<K> {
        Contest {
            bulk: Turns::new("forwarding"),
            asked: Turns::new("forwarding"),
            memory: std::array::from_fn(|_| Vec::new()),
        }
    }

    /// Streams take their turns.
    pub fn streams(&mut self, streams: &[Bulk; K], pace: Pace) -> Result<()> {
        let idle = || Ok(Duration::ZERO);
        self.bulk.bulk(streams, pace.turns, pace.turn, idle)
    }

    /// Requests take their turns.
    pub fn requests(&mut self, asks: &[Asks; K], pace: Pace) -> Result<()> {
        self.asked.each(pace.turns, |kind| {
            let answers = asks[kind].measure(pace.turn)?;
            Ok(Brought {
                value: answers.p50_us,
                rate: answers.rate,
                p99: answers.p99_us,
                cpu: answers.cpu_us,
                ..Brought::default()
            })
        })
    }

    /// What a session of a kind takes between its ends.
    pub fn memory(&mut self, kind: usize, bytes: f64) {
        self.memory[kind].push(bytes);
    }

    /// A kind's figures.
    pub fn figures(&self, name: &str, kind: usize, count: usize) -> Vec<Figure> {
        let named = |what: &str| format!("rival_{name}_{what}_vs_forwarding_{count}");
        let asked = |name: &str, what: fn(&Brought) -> f64, unit: &str| {
            self.asked.figure_of(named(name), kind, what, unit)
        };
        let mut figures = vec![
            self.bulk.figure(named("goodput"), kind, 1e9, "Gbit/s"),
            self.bulk.figure_of(named("cpu"), kind, |b| b.cpu, "s/GB"),
            asked("latency_p50", |b| b.value, "µs"),
            asked("latency_p99", |b| b.p99, "µs"),
            asked("requests", |b| b.rate, "requests/s"),
            asked("cpu_of_a_request", |b| b.cpu, "µs"),
        ];
        if !self.memory[kind].is_empty() {
            let name = format!("rival_{name}_bytes_per_session_{count}");
            let bytes = self.memory[kind].clone();
            figures.push(Figure::median(name, "bytes", bytes));
        }
        figures
    }
}

/// Bytes of the machine's memory that nobody can have.
pub fn used() -> Result<f64> {
    let text = fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    Ok(kilobytes(&text, "MemTotal:")? - kilobytes(&text, "MemAvailable:")?)
}

/// Bytes of a process's own memory.
pub fn resident(process: u32) -> Result<f64> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    kilobytes(&text, "VmRSS:")
}

/// A line's number, in bytes.
fn kilobytes(text: &str, name: &str) -> Result<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    number
        .map(|n| n * 1024.0)
        .with_context(|| format!("no {name} is told"))
}
