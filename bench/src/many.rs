//! A hundred thousand sessions that the proxy's host relays at the same time, all opened through
//! HAProxy and removed from it: their memory, the duration of the removal, and the cost of finding
//! one session among them in traffic.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role, wait};

use crate::Effort;
use crate::apart::Between;
use crate::bulk::{Bulk, Way};
use crate::contest::{resident, used};
use crate::crowd::{Crowd, LOT, Order};
use crate::figure::{Figure, Goal};
use crate::local::through_the_proxys_host;
use crate::memory;
use crate::pair::Listener;
use crate::stage::{PATIENCE, Stage, proxied, server};
use crate::turns::{RUN_IN, Turns};

const SESSIONS: usize = 100_000;
/// Ports of the first proxy of the crowd and of its server.
const PROXY: u16 = 8_100;
const SERVER: u16 = 9_100;
/// Number of messages in each direction, after which HAProxy is seen to splice. Then the sessions
/// are idle.
const MESSAGES: usize = 3;
const AT_ONCE: usize = 64;
/// Size of a small crowd, whose entries stay in the processor's caches.
const FEW: usize = 1_000;

/// A forwarded session and a relayed session.
const KINDS: usize = 2;
const RELAYED: usize = 1;

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let sessions = effort.pick(SESSIONS, 2 * FEW);
    let plain = Lab::builder("forwarding").build()?;
    through_the_proxys_host(&plain)?;
    let plainly = Listener::start(&plain, server())?;
    let stage = stage(sessions)?;
    let behind = Listener::start(&stage.lab, server())?;
    let relayed = behind.open(&stage.lab, proxied())?;
    let both = [
        Bulk::new(plainly.open(&plain, server())?, Way::Down)?,
        Bulk::new(relayed, Way::Down)?,
    ];
    both.iter()
        .try_for_each(|bulk| bulk.measure(RUN_IN, RUN_IN).map(drop))?;
    stage.remove_all(1)?;

    let mut alone = Turns::<KINDS>::new("forwarding");
    let mut among = Turns::<KINDS>::new("forwarding");
    take_turns(effort, &both, &mut alone)?;
    let daemon = stage.daemons().first().copied().context("no daemon")?;
    let before = Memory::of(&stage, daemon)?;
    effort.say(&format!("  opening {sessions} sessions"));
    let (crowds, proxies) = open(&stage, sessions)?;
    each(&crowds, MESSAGES)?;
    wait::until("HAProxy to be seen splicing", PATIENCE, || {
        (stage.pairs().ok()? == sessions as u64).then_some(())
    })?;
    let through = Memory::of(&stage, daemon)?;
    ensure!(
        through.sockets >= before.sockets + 2 * sessions,
        "not all sessions are there"
    );
    effort.say("  removing their proxies");
    let begun = Instant::now();
    stage.remove_all(sessions)?;
    let took = begun.elapsed();
    let after = Memory::of(&stage, daemon)?;
    ensure!(
        after.sockets == before.sockets,
        "{} sockets are left",
        after.sockets - before.sockets
    );

    drop(proxies);
    each(&crowds, 1).context("after the removal")?;
    let (one, few) = latencies(&crowds)?;
    take_turns(effort, &both, &mut among)?;
    let maps = 2.0 * memory::of_an_entry(&stage.lab.proxy)?;
    drop((both, crowds, behind));
    plain.finish(plainly)?;
    stage.end()?;
    Ok(figures(
        sessions,
        took,
        (one, few),
        (&alone, &among),
        [before, through, after],
        maps,
    ))
}

fn stage(sessions: usize) -> Result<Stage> {
    let listener = |at: usize| {
        let port = usize::from(PROXY) + at;
        format!("[[listener]]\naddress = \":{port}\"\ntransparent = true\n")
    };
    let listeners: String = (0..sessions.div_ceil(LOT)).map(listener).collect();
    let room = 2 * sessions + 1_000;
    let config = format!("{listeners}[data_plane]\nmax_sessions = {room}\n");
    Stage::alone("many", &config)
}

/// Opens the sessions. Each proxy has as many sessions as one process may have sockets for.
fn open(stage: &Stage, sessions: usize) -> Result<(Vec<Crowd>, Vec<Process>)> {
    let (mut crowds, mut proxies) = (Vec::new(), Vec::new());
    for first in (0..sessions).step_by(LOT) {
        let lot = first / LOT;
        let to = Role::Proxy.at(Family::V4, PROXY + lot as u16);
        let at = Role::Server.at(Family::V4, SERVER + lot as u16);
        let haproxy = Config::tcp(to, at).named(&format!("haproxy{lot}"));
        let haproxy = haproxy.connections(LOT + 100).pipes(256).threads(1);
        proxies.push(haproxy.start(&stage.lab.proxy, |haproxy| stage.fleet.under_shim(haproxy))?);
        let between = Between {
            client: &stage.lab.client,
            to,
            server: &stage.lab.server,
            at,
        };
        crowds.push(Crowd::open(between, LOT.min(sessions - first))?);
    }
    Ok((crowds, proxies))
}

/// Makes all sessions send messages, one crowd after the other.
fn each(crowds: &[Crowd], rounds: usize) -> Result<Duration> {
    let order = |crowd: &Crowd| Order {
        sessions: 0..crowd.count(),
        rounds,
        at_once: AT_ONCE,
    };
    crowds.iter().map(|crowd| crowd.speak(order(crowd))).sum()
}

/// Microseconds of a message and its answer, one at a time: over all sessions, and repeatedly over
/// a few of them.
fn latencies(crowds: &[Crowd]) -> Result<(f64, f64)> {
    let micros = |took: Duration, messages: usize| took.as_secs_f64() * 1e6 / messages as f64;
    let mut all = (Duration::ZERO, 0);
    let mut few = (Duration::ZERO, 0);
    for crowd in crowds {
        let order = |sessions, rounds| Order {
            sessions,
            rounds,
            at_once: 1,
        };
        let count = crowd.count();
        all = (all.0 + crowd.speak(order(0..count, 1))?, all.1 + count);
        let some = FEW.min(count);
        few = (
            few.0 + crowd.speak(order(0..some, count.div_ceil(some)))?,
            few.1 + some * count.div_ceil(some),
        );
    }
    Ok((micros(all.0, all.1), micros(few.0, few.1)))
}

fn take_turns(effort: &Effort, both: &[Bulk; KINDS], turns: &mut Turns<KINDS>) -> Result<()> {
    turns.bulk(both, effort.pick(20, 4), effort.turn(), || {
        Ok(Duration::ZERO)
    })
}

/// Measurement of memory at one time.
struct Memory {
    /// Bytes of the daemon's own memory.
    daemon: f64,
    /// Bytes of the machine's memory that are not available.
    machine: f64,
    /// Number of TCP sockets on the proxy's host that have two ends.
    sockets: usize,
}

impl Memory {
    fn of(stage: &Stage, daemon: u32) -> Result<Memory> {
        let sockets = stage
            .lab
            .proxy
            .output("ss", &["-Htan", "state", "connected"])?;
        Ok(Memory {
            daemon: resident(daemon)?,
            machine: used()?,
            sockets: sockets
                .lines()
                .filter(|line| !line.starts_with("TIME-WAIT"))
                .count(),
        })
    }
}

type Both<'a> = (&'a Turns<KINDS>, &'a Turns<KINDS>);

fn figures(
    sessions: usize,
    took: Duration,
    (one, few): (f64, f64),
    (alone, among): Both<'_>,
    [before, through, after]: [Memory; 3],
    maps: f64,
) -> Vec<Figure> {
    let count = sessions as f64;
    let goodput =
        |turns: &Turns<KINDS>, name: &str| turns.figure(name.into(), RELAYED, 1e9, "Gbit/s");
    let each = |from: f64, to: f64| (to - from) / count;
    vec![
        Figure::new("many_relayed", "sessions", count).goal(Goal::AtLeast(SESSIONS as f64)),
        Figure::new("many_removal_s", "s", took.as_secs_f64())
            .aside("sessions a second", count / took.as_secs_f64()),
        Figure::new("many_map_bytes_per_session", "bytes", maps).aside("entries of a session", 2.0),
        Figure::new(
            "many_daemon_bytes_per_session",
            "bytes",
            each(before.daemon, after.daemon),
        )
        .aside(
            "while the proxy had them",
            each(before.daemon, through.daemon),
        )
        .aside("before them, MB in all", before.daemon / 1e6),
        Figure::new(
            "many_machine_bytes_per_session",
            "bytes",
            each(before.machine, after.machine),
        )
        .aside(
            "while the proxy had them",
            each(before.machine, through.machine),
        ),
        Figure::new("many_latency_vs_1k", "", one / few)
            .goal(Goal::AtMost(2.0))
            .aside("all in turn, µs", one)
            .aside("a thousand in turn, µs", few),
        goodput(alone, "many_goodput_alone_vs_forwarding"),
        goodput(among, "many_goodput_among_vs_forwarding"),
    ]
}
