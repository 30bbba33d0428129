//! Many sessions under load lose their proxy.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dysco_netns::counters;
use dysco_netns::stream::{Close, Group, Plan, Server, Side, all_intact};

use crate::Effort;
use crate::figure::{Figure, Goal, rank, sorted};
use crate::stage::{Stage, proxied, server};

const SESSIONS: usize = 600;

/// Traffic of each session during the removal, in each direction.
struct Load {
    suffix: &'static str,
    /// Bytes per second.
    rate: u64,
    /// Bytes per write.
    write: usize,
}

/// A load that keeps the processors busy but not saturated, and a load of about one packet per
/// second, which shows the cost of the removal alone.
const LOADS: [Load; 2] = [
    Load {
        suffix: "",
        rate: 32 << 10,
        write: 4 << 10,
    },
    Load {
        suffix: "_light",
        rate: 1 << 10,
        write: 1 << 10,
    },
];

/// Results under one load.
#[derive(Default)]
struct Measured {
    switch_ms: Vec<f64>,
    close_ms: Vec<f64>,
    wall_ms: Vec<f64>,
    /// CPU time of all three daemons per removal.
    cpu_us: Vec<f64>,
    goodput_mbps: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for load in &LOADS {
        let suffix = load.suffix;
        let mut all = Measured::default();
        for round in 1..=effort.pick(5, 1) {
            effort.say(&format!("  load{suffix}, round {round}"));
            measure(load, &mut all)?;
        }
        all.figures(suffix, &mut figures);
    }
    Ok(figures)
}

fn measure(load: &Load, all: &mut Measured) -> Result<()> {
    let stage = Stage::build("removal", "")?;
    let behind = Server::start(&stage.lab.server, server())?;
    let plan = Plan {
        rate: Some(load.rate),
        write: load.write,
        close: Close::First(Side::Client),
        after_close: 1_000,
        ..Plan::default()
    };
    let group = Group::open(&stage.lab.client, &behind, proxied(), SESSIONS, &plan)?;
    group.run();
    group.wait_progress(4 * load.write as u64)?;
    let (before, cpu, start) = (bytes(&group), cpu(&stage)?, Instant::now());
    let done = stage.remove_all(SESSIONS)?;
    let wall = start.elapsed();
    let spent = cpu_since(&stage, cpu)?;
    all.wall_ms.push(wall.as_secs_f64() * 1e3);
    all.cpu_us.push(spent.as_secs_f64() * 1e6 / SESSIONS as f64);
    let carried = (bytes(&group) - before) as f64;
    all.goodput_mbps.push(carried * 8e-6 / wall.as_secs_f64());
    for removal in done["removals"].as_array().into_iter().flatten() {
        let ms = |name: &str| removal[name].as_u64().map(|us| us as f64 / 1e3);
        let switch = ms("request_to_switch_us").context("a removal has no time")?;
        all.switch_ms.push(switch);
        all.close_ms.extend(ms("request_to_close_us"));
    }
    all_intact(&group.finish()?)?;
    drop(behind);
    stage.end()
}

fn bytes(group: &Group) -> u64 {
    group.received(Side::Client) + group.received(Side::Server)
}

fn cpu(stage: &Stage) -> Result<Duration> {
    stage.daemons().into_iter().map(counters::cpu_time).sum()
}

fn cpu_since(stage: &Stage, then: Duration) -> Result<Duration> {
    Ok(cpu(stage)?.saturating_sub(then))
}

impl Measured {
    fn figures(self, suffix: &str, figures: &mut Vec<Figure>) {
        let all = sorted(&self.switch_ms);
        let p50 = Figure::median(format!("removal_ms_p50{suffix}"), "ms", self.switch_ms)
            .goal(Goal::AtMost(1.0));
        let p99 = Figure::new(format!("removal_ms_p99{suffix}"), "ms", rank(&all, 99))
            .goal(Goal::AtMost(4.0))
            .aside("p90, ms", rank(&all, 90))
            .aside("longest, ms", rank(&all, 100));
        let closed = sorted(&self.close_ms);
        let close = Figure::new(
            format!("removal_close_ms_p50{suffix}"),
            "ms",
            rank(&closed, 50),
        );
        let wall = Figure::median(format!("removal_batch_ms{suffix}"), "ms", self.wall_ms)
            .aside("sessions", SESSIONS as f64)
            .aside(
                "Mbit/s meanwhile",
                crate::figure::median(&self.goodput_mbps),
            )
            .aside(
                "daemons' CPU a session, µs",
                crate::figure::median(&self.cpu_us),
            );
        figures.extend([p50, p99, close.aside("p99, ms", rank(&closed, 99)), wall]);
    }
}
