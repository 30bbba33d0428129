//! What the programs take of a packet on each path, in traffic: from the kernel's
//! own statistics of programs, which count each run and its time.

use std::os::fd::OwnedFd;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use aya::sys::{Stats, enable_stats};
use dysco_agent::LAYOUT;
use dysco_daemon::config::DEFAULT_PIN_DIR;
use dysco_netns::Host;
use dysco_netns::nginx::Nginx;
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::bulk::{Bulk, Way};
use crate::chain::COUNTS;
use crate::figure::{Figure, median};
use crate::pair::{Listener, buffer_of};
use crate::ping::Ping;
use crate::stage::{Stage, proxied, server};
use crate::turns::RUN_IN;
use crate::ways::{CHAINED, EMPTY, Ways};
use crate::{machine, wrk};

const PROGRAMS: [&str; 2] = ["dysco_ingress", "dysco_egress"];
const PORT: u16 = 9000;
/// The unit of what is busy.
const BUSY: &str = "processors";
/// A chain's hosts in names of figures.
const HOSTS: [&str; 3] = ["end", "middle", "server"];
/// Middleboxes on the way of requests, as [`crate::requests`] has at most.
const MIDDLEBOXES: usize = 4;
/// Bytes of a program that does nothing: two instructions.
const NOTHING: u32 = 16;
const WEB: u16 = 80;

/// The programs of a host on a path, and how they fared.
struct Watched {
    name: String,
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
    let both = || -> Result<[Watched; 2]> {
        let of = |host| watch("request", host, &["eth0"]);
        Ok([of(client)?, of(servers)?])
    };
    let ping = Ping::new(listener.open(&stage.lab, server())?)?;
    figures.push(request("tracked", effort, &ping, &both()?)?);
    drop(ping);
    let bypassed = Bulk::new(listener.open(&stage.lab, proxied())?, Way::Down)?;
    bypassed.measure(RUN_IN, RUN_IN)?;
    let ping = Ping::new(listener.open(&stage.lab, proxied())?)?;
    ping.measure(RUN_IN)?;
    drop(direct);
    stage.remove_all(2)?;
    figures.push(request("bypass", effort, &ping, &both()?)?);
    drop(ping);
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

    figures.extend(chains(effort, &stats)?);
    for middleboxes in effort.pick(1, MIDDLEBOXES)..=MIDDLEBOXES {
        figures.extend(requests(effort, middleboxes)?);
    }
    drop(stats);
    Ok(figures)
}

/// Sessions along a chain, and what of all processors their programs leave to the
/// rest.
fn chains(effort: &Effort, stats: &OwnedFd) -> Result<Vec<Figure>> {
    let ways = Ways::build(1)?;
    let line = ways.line(CHAINED);
    let mut figures = Vec::new();
    let counts = COUNTS
        .into_iter()
        .filter(|n| *n <= effort.pick(usize::MAX, 100));
    for (count, port) in counts.zip(PORT..) {
        effort.say(&format!("  along a chain: {count} sessions"));
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
    effort.say("  past programs that do nothing");
    let past = Bulk::open(ways.between(EMPTY, PORT), 1, buffer_of(3))?;
    let empty = [Watched::new("empty", idle()?)];
    figures.extend(measure(effort, &past, empty, stats)?);
    drop(past);
    ways.end(())?;
    Ok(figures)
}

/// What the programs of both ends take for one request of a single session.
fn request(name: &str, effort: &Effort, ping: &Ping, ends: &[Watched]) -> Result<Figure> {
    let mut each_us = Vec::new();
    for _ in 0..effort.pick(20, 3) {
        let before = spent(ends)?;
        let answers = ping.measure(effort.turn())?;
        // A tenth more than is counted is asked.
        let asked = answers.rate * effort.turn().as_secs_f64() * 1.1;
        each_us.push((spent(ends)? - before) * 1e6 / asked);
    }
    Ok(Figure::median(
        format!("path_us_request_{name}"),
        "µs",
        each_us,
    ))
}

/// Requests along a chain.
fn requests(effort: &Effort, middleboxes: usize) -> Result<Vec<Figure>> {
    effort.say(&format!(
        "  requests along a chain: {middleboxes} middleboxes"
    ));
    let ways = Ways::build(middleboxes)?;
    let line = ways.line(CHAINED);
    let server = Nginx::start(line.server(), WEB)?;
    let mut all = Vec::new();
    for (at, host) in line.hosts().iter().enumerate() {
        all.push(watch("requests", host, line.links(at))?);
    }
    let Between { client, to, .. } = ways.between(CHAINED, WEB);
    let (mut each_us, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..effort.pick(if middleboxes == MIDDLEBOXES { 10 } else { 5 }, 2) {
        let (before, start) = (spent(&all)?, Instant::now());
        let rate = wrk::ask(client, to, wrk::SESSIONS, true)?;
        let (spent, took) = (spent(&all)? - before, start.elapsed().as_secs_f64());
        each_us.push(spent / (rate * took) * 1e6);
        busy.push(spent / took);
    }
    ways.end(server)?;
    let name = |what: &str| format!("path_{what}_requests_{middleboxes}mb");
    Ok(vec![
        Figure::median(name("us"), "µs", each_us),
        left(&name("left"), median(&busy)),
    ])
}

/// The share of all processors' time that programs leave which keep so many busy.
fn left(name: &str, busy: f64) -> Figure {
    Figure::new(name, "", 1.0 - busy / machine::processors() as f64).aside(BUSY, busy)
}

/// The programs on a host's interfaces.
fn watch(name: &str, host: &Host, interfaces: &[&str]) -> Result<Watched> {
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
    Ok(Watched::new(name, ids))
}

impl Watched {
    fn new(name: &str, ids: Vec<u32>) -> Watched {
        Watched {
            name: name.to_owned(),
            ids,
            ns: Vec::new(),
            runs: Vec::new(),
            busy: Vec::new(),
        }
    }
}

/// The programs that do nothing: nobody else's has no name and so little in it.
fn idle() -> Result<Vec<u32>> {
    let mut ids = Vec::new();
    for program in loaded_programs() {
        let Ok(program) = program else { continue };
        let nothing = program.size_translated() == Some(NOTHING);
        if nothing && program.name_as_str() == Some("") {
            ids.push(program.id());
        }
    }
    ensure!(!ids.is_empty(), "no program that does nothing is there");
    Ok(ids)
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
            Figure::median(busy, BUSY, watched.busy),
        ]
    });
    Ok(figures.collect())
}

/// Seconds that all their programs have run.
fn spent(watched: &[Watched]) -> Result<f64> {
    let ns: u64 = each(watched)?.iter().map(|(_, ns)| *ns).sum();
    Ok(ns as f64 * 1e-9)
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
