//! What the programs take of a packet on each path, in traffic: from the kernel's
//! own statistics of programs, which count each run and its time.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use dysco_agent::LAYOUT;
use dysco_daemon::config::DEFAULT_PIN_DIR;
use dysco_netns::Host;
use serde_json::Value;

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, median};
use crate::pair::{Listener, buffer_of};
use crate::stage::{Stage, proxied, server};
use crate::turns::RUN_IN;
use crate::ways::{CHAINED, Ways};

const PROGRAMS: [&str; 2] = ["dysco_ingress", "dysco_egress"];
const PORT: u16 = 9000;
/// The hosts of a chain with many sessions: as many as [`crate::chain`] has.
const MANY: [&str; 3] = ["chain_end_1000", "chain_middle_1000", "chain_server_1000"];

/// The programs of a host on a path, and how they fared.
struct Watched {
    name: &'static str,
    ids: Vec<u32>,
    /// Nanoseconds of a run, each stretch.
    ns: Vec<f64>,
    /// Runs for each megabyte that arrived.
    runs: Vec<f64>,
    /// Processors that they kept busy.
    busy: Vec<f64>,
}

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let stats = enable_stats(Stats::RunTime);
    let stats = stats.context("the kernel keeps no statistics of programs")?;
    let mut figures = Vec::new();

    effort.say("  tracked, and bypassed");
    let stage = Stage::build("paths", "")?;
    let listener = Listener::start(&stage.lab, server())?;
    let [client, servers] = [&stage.lab.client, &stage.lab.server];
    let direct = Bulk::new(listener.open(&stage.lab, server())?, Way::Down)?;
    let tracked = [watch("tracked", client, &["eth0"])?];
    figures.extend(measure(effort, &direct, tracked, &stats)?);
    let bypassed = Bulk::new(listener.open(&stage.lab, proxied())?, Way::Down)?;
    bypassed.measure(RUN_IN, RUN_IN)?;
    drop(direct);
    stage.remove_all(1)?;
    let ends = [
        watch("bypass_left", client, &["eth0"])?,
        watch("bypass_right", servers, &["eth0"])?,
    ];
    figures.extend(measure(effort, &bypassed, ends, &stats)?);
    drop((bypassed, listener));
    stage.end()?;

    effort.say("  relayed");
    let stage = Stage::alone("paths", "")?;
    let listener = Listener::start(&stage.lab, server())?;
    let relayed = Bulk::new(listener.open(&stage.lab, proxied())?, Way::Down)?;
    relayed.measure(RUN_IN, RUN_IN)?;
    stage.remove_all(1)?;
    let relay = [watch("relay", &stage.lab.proxy, &["eth0"])?];
    figures.extend(measure(effort, &relayed, relay, &stats)?);
    drop((relayed, listener));
    stage.end()?;

    effort.say("  along a chain");
    let ways = Ways::build(1)?;
    let line = ways.line(CHAINED);
    let hosts = |names: [&'static str; 3]| {
        let watch = |at: usize| watch(names[at], &line.hosts()[at], line.links(at));
        Ok::<_, anyhow::Error>([watch(0)?, watch(1)?, watch(2)?])
    };
    for (names, count, port) in [
        (["chain_end", "chain_middle", "chain_server"], 1, PORT),
        (MANY, effort.pick(1_000, 100), PORT + 1),
    ] {
        let along = Bulk::open(ways.between(CHAINED, port), count, buffer_of(count * 3))?;
        figures.extend(measure(effort, &along, hosts(names)?, &stats)?);
    }
    ways.end(())?;
    Ok(figures)
}

/// The programs on a host's interfaces.
fn watch(name: &'static str, host: &Host, interfaces: &[&str]) -> Result<Watched> {
    let mut ids = Vec::new();
    for interface in interfaces {
        for program in PROGRAMS {
            let pin = format!("{DEFAULT_PIN_DIR}/{LAYOUT}/link_{interface}_{program}");
            let text = host.output("bpftool", &["-j", "link", "show", "pinned", &pin])?;
            let link: Value = serde_json::from_str(&text).context("bpftool printed no JSON")?;
            let id = link["prog_id"].as_u64();
            let id = id.with_context(|| format!("bpftool did not say whose link {pin} is"))?;
            ids.push(id as u32);
        }
    }
    Ok(Watched {
        name,
        ids,
        ns: Vec::new(),
        runs: Vec::new(),
        busy: Vec::new(),
    })
}

/// The statistics are kept for as long as their file is open.
fn measure<const N: usize>(
    effort: &Effort,
    stream: &Bulk,
    mut watched: [Watched; N],
    _stats: &OwnedFd,
) -> Result<Vec<Figure>> {
    stream.measure(RUN_IN, RUN_IN)?;
    for _ in 0..effort.pick(20, 3) {
        let (before, bytes) = (each(&watched)?, stream.received());
        let rate = stream.measure(RUN_IN, effort.turn())?.rate;
        let (after, bytes) = (each(&watched)?, stream.received() - bytes);
        for (watched, (from, to)) in watched.iter_mut().zip(before.into_iter().zip(after)) {
            let (runs, ns) = ((to.0 - from.0) as f64, (to.1 - from.1) as f64);
            ensure!(runs > 0.0, "no packet of {} was seen", watched.name);
            watched.ns.push(ns / runs);
            watched.runs.push(runs / (bytes as f64 / 1e6));
            watched.busy.push(ns * 1e-9 / (bytes as f64 * 8.0 / rate));
        }
    }
    let figures = watched.into_iter().flat_map(|watched| {
        let named = |what: &str| format!("path_{what}_{}", watched.name);
        let (ns, busy) = (named("ns"), named("busy"));
        [
            Figure::median(ns, "ns", watched.ns).aside("runs a megabyte", median(&watched.runs)),
            Figure::median(busy, "processors", watched.busy),
        ]
    });
    Ok(figures.collect())
}

/// Runs, and nanoseconds of them, of each host's programs.
fn each(watched: &[Watched]) -> Result<Vec<(u64, u64)>> {
    let mut sums = vec![(0, 0); watched.len()];
    for program in loaded_programs() {
        // It may have gone meanwhile, if it is not ours.
        let Ok(program) = program else { continue };
        for (sum, watched) in sums.iter_mut().zip(watched) {
            if watched.ids.contains(&program.id()) {
                sum.0 += program.run_count();
                sum.1 += program.run_time().as_nanos() as u64;
            }
        }
    }
    Ok(sums)
}
