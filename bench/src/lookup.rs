//! Up to a million relayed sessions at the same time. They are entered into the maps of the
//! programs as a removal leaves them, because the sockets of both ends would not fit on one
//! machine. The programs are the shipped ones.
//!
//! All crowds exist at the same time and take turns, so that a machine that becomes slower does so
//! for all; the results are ratios. In each of 20 rounds (2 in a quick run), 2,000 packets of each
//! crowd are run once each, all from the client's side. The last 1,000 of them count, 20,000 in
//! all: the first 1,000 bring back into the caches what the other crowds have displaced. With one
//! session, all packets are that session's. With 1,000 sessions, each session's second packet of a
//! round counts. With 100,000 and 1,000,000 sessions, the packets are of 20,000 sessions spread
//! over all, one of each.

use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, HashMap, Map, MapData};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions};
use aya::{Ebpf, EbpfLoader};
use dysco_common::{FlowKey, FlowRef, Path, Session, ShortKey, State, Translation};

use crate::Effort;
use crate::figure::{Figure, Goal, median};
use crate::packet::{Plain, REDIRECT, TRANSLATION, USUAL};

/// Numbers of sessions.
const CROWDS: [u32; 4] = [1, 1_000, 100_000, 1_000_000];
/// Number of rounds, and number of counted packets of a crowd per round. The same number is run
/// before without being counted.
const ROUNDS: u32 = 20;
const PACKETS: u32 = 1_000;
/// Step of a walk over all sessions in an order that no cache expects.
const STEP: u32 = 48_271;

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut crowds = Vec::new();
    for sessions in CROWDS {
        effort.say(&format!("  entering {sessions} sessions"));
        crowds.push(Crowd::enter(sessions)?);
    }
    effort.say("  running packets of all sessions, in turns");
    for round in 0..effort.pick(ROUNDS, ROUNDS / 10) {
        for crowd in &mut crowds {
            crowd.turn(round)?;
        }
    }
    let mut figures = Vec::new();
    let mut times = Vec::new();
    for Crowd {
        sessions,
        bytes,
        took,
        ..
    } in crowds
    {
        let each = bytes as f64 / f64::from(sessions);
        times.push(median(&took));
        figures.push(Figure::median(format!("lookup_ns_{sessions}"), "ns", took));
        if sessions > 1 {
            let name = format!("lookup_bytes_per_session_{sessions}");
            let memory = Figure::new(name, "bytes", each);
            let memory = memory.aside("maps, MB", bytes as f64 / 1e6);
            figures.push(memory.aside("entries of a session", 2.0));
        }
    }
    let ratio = Figure::new("lookup_1m_vs_1k", "", times[3] / times[1]);
    figures.push(ratio.goal(Goal::AtMost(5.0)));
    Ok(figures)
}

/// The programs, with sessions in their maps.
struct Crowd {
    sessions: u32,
    ebpf: Ebpf,
    /// Memory of the maps, in bytes.
    bytes: u64,
    /// Time of each counted packet.
    took: Vec<f64>,
}

impl Crowd {
    fn enter(sessions: u32) -> Result<Crowd> {
        let entries = 2 * sessions + 1;
        let hints = (4 * sessions).next_power_of_two();
        let mask = hints - 1;
        let mut ebpf = EbpfLoader::new()
            .map_max_entries("FLOWS", entries)
            .map_max_entries("SESSIONS", entries)
            .map_max_entries("HINTS", hints.div_ceil(ShortKey::HINTS))
            .map_max_entries("FREE", 1)
            .override_global("HINT_MASK", &mask, true)
            .load(dysco_agent::object())?;
        fill(&mut ebpf, sessions)?;
        let mut bytes = 0;
        for name in ["FLOWS", "SESSIONS", "HINTS"] {
            bytes += memory(ebpf.map(name).context("no map")?)?;
        }
        let program = ebpf.program_mut("dysco_ingress").context("no program")?;
        <&mut SchedClassifier>::try_from(program)?.load()?;
        Ok(Crowd {
            sessions,
            ebpf,
            bytes,
            took: Vec::new(),
        })
    }

    fn turn(&mut self, round: u32) -> Result<()> {
        let program = self.ebpf.program("dysco_ingress").context("no program")?;
        let program = <&SchedClassifier>::try_from(program)?;
        let first = 2 * PACKETS * round;
        for packet in first..first + 2 * PACKETS {
            let (a, _) = keys(packet.wrapping_mul(STEP) % self.sessions);
            let frame = USUAL.comes(&a);
            let run = program.test_run(TestRunOptions {
                data_in: Some(&frame),
                ..TestRunOptions::default()
            })?;
            ensure!(run.return_value == REDIRECT, "a packet was not relayed");
            if packet >= first + PACKETS {
                self.took.push(run.duration.as_nanos() as f64);
            }
        }
        Ok(())
    }
}

/// The five-tuples of a session, towards the client and towards the server.
fn keys(session: u32) -> (FlowKey, FlowKey) {
    let client = Ipv4Addr::from(0x0a01_0000 + session / 50_000);
    let port = 10_000 + (session % 50_000) as u16;
    let (proxy, server) = (Ipv4Addr::new(10, 0, 2, 1), Ipv4Addr::new(10, 0, 3, 1));
    let server_of = Ipv4Addr::from(u32::from(server) + session / 50_000);
    (
        FlowKey::new((proxy, 8080).into(), (client, port).into()),
        FlowKey::new((proxy, port).into(), (server_of, 9000).into()),
    )
}

/// Enters the sessions as they are after their proxy has left.
fn fill(ebpf: &mut Ebpf, sessions: u32) -> Result<()> {
    let map = ebpf.map_mut("FLOWS").context("no flow map")?;
    let mut flows: HashMap<_, Plain<ShortKey>, Plain<FlowRef>> = map.try_into()?;
    for session in 0..sessions {
        let (a, b) = keys(session);
        for (key, slot) in [(a, 2 * session), (b, 2 * session + 1)] {
            let flow = FlowRef::new(&key, slot, Path::Old);
            flows.insert(Plain(key.short()), Plain(flow), 0)?;
        }
    }
    let map = ebpf.map_mut("SESSIONS").context("no session map")?;
    let mut entries: Array<_, Plain<Session>> = map.try_into()?;
    for session in 0..sessions {
        let (a, b) = keys(session);
        let slots = [2 * session, 2 * session + 1];
        let entry = |key: FlowKey, path: FlowKey, translation: Translation, other: u32| Session {
            state: State::Relay as u32,
            key,
            path,
            short: key.short(),
            short_path: path.short(),
            ifindex: 1,
            translation,
            joined: other + 1,
            ..Session::default()
        };
        entries.set(slots[0], Plain(entry(a, b, TRANSLATION, slots[1])), 0)?;
        let back = entry(b, a, TRANSLATION.mirrored(), slots[0]);
        entries.set(slots[1], Plain(back), 0)?;
    }
    Ok(())
}

/// Memory that the kernel charges for a map.
fn memory(map: &Map) -> Result<u64> {
    let data: &MapData = match map {
        Map::Array(data) | Map::HashMap(data) => data,
        _ => anyhow::bail!("a map of another kind than expected"),
    };
    let fd = data.fd().as_fd().as_raw_fd();
    let path = format!("/proc/self/fdinfo/{fd}");
    let text = fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    line.and_then(|bytes| bytes.trim().parse().ok())
        .with_context(|| format!("{path} has no memlock"))
}
