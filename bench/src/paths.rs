//! Cost of the programs per packet on each path, in traffic. The source is the kernel's own
//! statistics of programs, which count each run and its time. The cost of these statistics shows in
//! the runs of a program that does nothing.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use dysco_agent::LAYOUT;
use dysco_config::DEFAULT_PIN_DIR;
use dysco_netns::idle::{self, Hook};
use dysco_netns::nginx::Nginx;
use dysco_netns::{Host, Lab};
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::bulk::{Bulk, Way};
use crate::chain::COUNTS;
use crate::figure::{Figure, median};
use crate::pair::{Listener, Pair, buffer_of};
use crate::ping::Ping;
use crate::stage::{Stage, proxied, server};
use crate::turns::RUN_IN;
use crate::ways::{CHAINED, Ways};
use crate::{machine, wrk};

const PROGRAMS: [&str; 2] = ["dysco_ingress", "dysco_egress"];
const PORT: u16 = 9000;
/// Unit of busy time.
const BUSY: &str = "processors";
/// Names of a chain's hosts in the names of figures.
const HOSTS: [&str; 3] = ["end", "middle", "server"];
/// Maximum number of middleboxes on the path of requests, as in [`crate::requests`].
const MIDDLEBOXES: usize = 4;
const WEB: u16 = 80;

/// The programs of a host on a path, and their measurements.
struct Watched {
    name: String,
    ids: Vec<u32>,
    /// Nanoseconds per run in each stretch.
    ns: Vec<f64>,
    /// Runs per megabyte that arrived.
    runs: Vec<f64>,
    /// Number of processors that the programs kept busy.
    busy: Vec<f64>,
}

impl Watched {
    fn of(name: &str, ids: Vec<u32>) -> Watched {
        Watched {
            name: name.to_owned(),
            ids,
            ns: Vec::new(),
            runs: Vec::new(),
            busy: Vec::new(),
        }
    }
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let stats = enable_stats(Stats::RunTime);
    let stats = stats.context("the kernel keeps no statistics of programs")?;
    let mut figures = empty(effort, &stats)?;
    figures.extend(ends(effort, &stats)?);

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

    figures.extend(chains(effort, &stats)?);
    figures.extend(requests(effort)?);
    drop(stats);
    Ok(figures)
}

/// Measures a session whose client has programs that do nothing in place of Dysco's, and a session
/// whose server has them too.
fn empty(effort: &Effort, stats: &OwnedFd) -> Result<Vec<Figure>> {
    effort.say("  empty programs");
    let lab = Lab::builder("paths").build()?;
    let attach = |host: &Host| -> Result<[OwnedFd; 2]> {
        let [inward, out] = [Hook::Ingress, Hook::Egress];
        let one = |hook| idle::attach(host, "eth0", hook);
        Ok([one(inward)?, one(out)?])
    };
    let idle = [attach(&lab.client)?, attach(&lab.server)?];
    let listener = Listener::start(&lab, server())?;
    let direct = Bulk::new(listener.open(&lab, server())?, Way::Down)?;
    let client = [Watched::of("empty", ids(&idle[0])?)];
    let mut figures = measure(effort, &direct, client, stats)?;
    drop(direct);
    let both = [
        Watched::of("empty", ids(&idle[0])?),
        Watched::of("empty", ids(&idle[1])?),
    ];
    let ping = asking(listener.open(&lab, server())?)?;
    figures.push(asked(effort, &ping, &both)?);
    drop(ping);
    lab.finish((listener, idle))?;
    Ok(figures)
}

/// Measures sessions that are tracked, and sessions without their proxy.
fn ends(effort: &Effort, stats: &OwnedFd) -> Result<Vec<Figure>> {
    effort.say("  tracked, and bypassed");
    let stage = Stage::build("paths", "")?;
    let listener = Listener::start(&stage.lab, server())?;
    let [client, servers] = [&stage.lab.client, &stage.lab.server];
    let both = |name: &str| -> Result<[Watched; 2]> {
        let at = |host| watch(name, host, &["eth0"]);
        Ok([at(client)?, at(servers)?])
    };
    let direct = Bulk::new(listener.open(&stage.lab, server())?, Way::Down)?;
    let tracked = [watch("tracked", client, &["eth0"])?];
    let mut figures = measure(effort, &direct, tracked, stats)?;
    drop(direct);
    let ping = asking(listener.open(&stage.lab, server())?)?;
    figures.push(asked(effort, &ping, &both("tracked")?)?);
    drop(ping);

    let bypassed = Bulk::new(listener.open(&stage.lab, proxied())?, Way::Down)?;
    bypassed.measure(RUN_IN, RUN_IN)?;
    stage.remove_all(1)?;
    let ends = [
        watch("bypass_left", client, &["eth0"])?,
        watch("bypass_right", servers, &["eth0"])?,
    ];
    figures.extend(measure(effort, &bypassed, ends, stats)?);
    drop(bypassed);
    let ping = asking(listener.open(&stage.lab, proxied())?)?;
    stage.remove_all(1)?;
    figures.push(asked(effort, &ping, &both("bypass")?)?);
    drop((ping, listener));
    stage.end()?;
    Ok(figures)
}

/// Returns a session that has sent requests, so that the relaying host has carried data in both
/// directions.
fn asking(session: Pair) -> Result<Ping> {
    let ping = Ping::new(session)?;
    ping.measure(RUN_IN)?;
    Ok(ping)
}

/// Time of all runs of some programs for a request on a session, with one request after the other.
/// All other sessions must be idle.
fn asked(effort: &Effort, ping: &Ping, watched: &[Watched]) -> Result<Figure> {
    let (mut us, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(20, 3) {
        let (before, start) = (each(watched)?, Instant::now());
        let rate = ping.measure(effort.turn())?.rate;
        let (took, after) = (start.elapsed().as_secs_f64(), each(watched)?);
        let (ran, ns) = spent(&before, &after);
        us.push(ns / 1e3 / (rate * took));
        runs.push(ran / (rate * took));
    }
    let name = watched.first().map(|watched| watched.name.as_str());
    let name = format!("path_us_request_{}", name.unwrap_or_default());
    Ok(Figure::median(name, "µs", us).aside("runs a request", median(&runs)))
}

/// Measures sessions along a chain, and the share of processor time that their programs leave.
fn chains(effort: &Effort, stats: &OwnedFd) -> Result<Vec<Figure>> {
    let ways = Ways::build(1)?;
    let line = ways.line(CHAINED);
    let mut figures = Vec::new();
    let counts = COUNTS
        .into_iter()
        .filter(|n| *n <= effort.pick(usize::MAX, 100));
    for (count, port) in counts.zip(PORT..) {
        effort.say(&format!("  {count} sessions along a chain"));
        let watch = |at: usize| {
            let name = format!("chain_{}_{count}", HOSTS[at]);
            watch(&name, &line.hosts()[at], line.links(at))
        };
        let hosts = [watch(0)?, watch(1)?, watch(2)?];
        let along = Bulk::open(ways.between(CHAINED, port), count, buffer_of(count * 3))?;
        let seen = measure(effort, &along, hosts, stats)?;
        let busy: f64 = seen
            .iter()
            .filter(|f| f.unit == BUSY)
            .map(|f| f.value)
            .sum();
        figures.extend(seen);
        figures.push(left(&format!("path_left_chain_{count}"), busy));
    }
    ways.end(())?;
    Ok(figures)
}

/// Measures requests along chains.
fn requests(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for middleboxes in effort.pick(1, MIDDLEBOXES)..=MIDDLEBOXES {
        effort.say(&format!("  requests through {middleboxes} middleboxes"));
        let turns = match middleboxes {
            MIDDLEBOXES => effort.pick(10, 2),
            _ => 6,
        };
        figures.extend(requests_along(middleboxes, turns)?);
    }
    Ok(figures)
}

fn requests_along(middleboxes: usize, turns: usize) -> Result<[Figure; 2]> {
    let ways = Ways::build(middleboxes)?;
    let line = ways.line(CHAINED);
    let server = Nginx::start(line.server(), WEB)?;
    let mut all = Vec::new();
    for (at, host) in line.hosts().iter().enumerate() {
        all.push(watch("requests", host, line.links(at))?);
    }
    let Between { client, to, .. } = ways.between(CHAINED, WEB);
    let (mut each_us, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let (before, start) = (each(&all)?, Instant::now());
        let rate = wrk::ask(client, to, wrk::PING, wrk::SESSIONS, true)?;
        let (after, took) = (each(&all)?, start.elapsed().as_secs_f64());
        let spent = spent(&before, &after).1 * 1e-9;
        each_us.push(spent / (rate * took) * 1e6);
        busy.push(spent / took);
    }
    ways.end(server)?;
    let name = |what: &str| format!("path_{what}_requests_{middleboxes}mb");
    Ok([
        Figure::median(name("us"), "µs", each_us),
        left(&name("left"), median(&busy)),
    ])
}

/// Returns the number of runs, and their nanoseconds, of all programs between two readings.
fn spent(before: &[(u64, u64)], after: &[(u64, u64)]) -> (f64, f64) {
    let sum = |seen: &[(u64, u64)]| {
        let add = |(runs, ns): (u64, u64), (r, n): &(u64, u64)| (runs + r, ns + n);
        seen.iter().fold((0, 0), add)
    };
    let (from, to) = (sum(before), sum(after));
    ((to.0 - from.0) as f64, (to.1 - from.1) as f64)
}

/// Figure of the share of all processors' time that remains if programs keep `busy` processors
/// busy.
fn left(name: &str, busy: f64) -> Figure {
    Figure::new(name, "", 1.0 - busy / machine::processors() as f64).aside(BUSY, busy)
}

/// Returns the programs on a host's interfaces.
fn watch(name: &str, host: &Host, interfaces: &[&str]) -> Result<Watched> {
    let mut ids = Vec::new();
    for interface in interfaces {
        for program in PROGRAMS {
            let pin = format!("{DEFAULT_PIN_DIR}/{LAYOUT}/link_{interface}_{program}");
            let text = host.output("bpftool", &["-j", "link", "show", "pinned", &pin])?;
            let link: Value = serde_json::from_str(&text).context("bpftool printed no JSON")?;
            let id = link["prog_id"].as_u64();
            let id = id.with_context(|| format!("bpftool did not report the program of {pin}"))?;
            ids.push(id as u32);
        }
    }
    Ok(Watched::of(name, ids))
}

/// Returns the programs that these links have attached.
fn ids(links: &[OwnedFd]) -> Result<Vec<u32>> {
    let id = |link: &OwnedFd| {
        let path = format!("/proc/self/fdinfo/{}", link.as_raw_fd());
        let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        line.and_then(|id| id.trim().parse().ok())
            .with_context(|| format!("{path} has no program of the link"))
    };
    links.iter().map(id).collect()
}

/// Measures a stream. The kernel keeps the statistics as long as their file is open.
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
            Figure::median(busy, BUSY, watched.busy),
        ]
    });
    Ok(figures.collect())
}

/// Returns the number of runs, and their nanoseconds, of each host's programs.
fn each(watched: &[Watched]) -> Result<Vec<(u64, u64)>> {
    let mut sums = vec![(0, 0); watched.len()];
    for program in loaded_programs() {
        // A program of someone else may have been removed in the meantime.
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
