//! Kinds of many sessions against each other: what they carry, how soon their
//! requests are answered, and what that takes of processors and memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::Effort;
use crate::asks::Asks;
use crate::bulk::Bulk;
use crate::figure::{Figure, median};
use crate::turns::{BASE, RUN_IN, Turns, order};

/// How long each kind has its turns, and how many.
#[derive(Clone, Copy)]
pub struct Pace {
    turns: usize,
    turn: Duration,
    many: bool,
}

impl Pace {
    /// Of so many sessions: ten thousand are not served in a short turn.
    pub fn of(effort: &Effort, count: usize) -> Pace {
        let many = count > 1_000;
        Pace {
            turns: effort.pick(if many { 6 } else { 10 }, 4),
            turn: effort.turn() * if many { 3 } else { 1 },
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

    fn kinds<const K: usize>(self) -> impl Iterator<Item = usize> {
        (0..self.turns).flat_map(order::<K>)
    }
}

/// What the turns of each of `K` kinds brought; all are compared with the first.
pub struct Contest<const K: usize> {
    bulk: Turns<K>,
    rate: [Vec<f64>; K],
    p50: [Vec<f64>; K],
    p99: [Vec<f64>; K],
    cpu: [Vec<f64>; K],
    /// Bytes that a session takes between its ends.
    memory: [Vec<f64>; K],
}

impl<const K: usize> Contest<K> {
    /// Without any turns so far.
    pub fn new() -> Contest<K> {
        let none = || std::array::from_fn(|_| Vec::new());
        Contest {
            bulk: Turns::new("forwarding"),
            rate: none(),
            p50: none(),
            p99: none(),
            cpu: none(),
            memory: none(),
        }
    }

    /// Streams take their turns.
    pub fn streams(&mut self, streams: &[Bulk; K], pace: Pace) -> Result<()> {
        let idle = || Ok(Duration::ZERO);
        self.bulk
            .bulk_of(pace.kinds::<K>(), streams, pace.turn, idle)
    }

    /// Requests take their turns.
    pub fn requests(&mut self, asks: &[Asks; K], pace: Pace) -> Result<()> {
        for kind in pace.kinds::<K>() {
            let answers = asks[kind].measure(pace.turn)?;
            self.rate[kind].push(answers.rate);
            self.p50[kind].push(answers.p50_us);
            self.p99[kind].push(answers.p99_us);
            self.cpu[kind].push(answers.cpu_us);
        }
        Ok(())
    }

    /// What a session of a kind takes between its ends.
    pub fn memory(&mut self, kind: usize, bytes: f64) {
        self.memory[kind].push(bytes);
    }

    /// A kind's figures.
    pub fn figures(&self, name: &str, kind: usize, count: usize) -> Vec<Figure> {
        let named = |what: &str| format!("rival_{name}_{what}_vs_forwarding_{count}");
        let figure = |what: &str, all: &[Vec<f64>; K], unit: &str| {
            let pairs = all[kind].iter().zip(&all[BASE]);
            let ratios = pairs.map(|(this, base)| this / base).collect();
            Figure::median(named(what), "", ratios)
                .aside(&format!("forwarding, {unit}"), median(&all[BASE]))
                .aside(&format!("this, {unit}"), median(&all[kind]))
        };
        let mut figures = vec![
            self.bulk.figure(named("goodput"), kind, 1e9, "Gbit/s"),
            self.bulk.cpu_figure(named("cpu"), kind),
            figure("latency_p50", &self.p50, "µs"),
            figure("latency_p99", &self.p99, "µs"),
            figure("requests", &self.rate, "requests/s"),
            figure("cpu_of_a_request", &self.cpu, "µs"),
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
