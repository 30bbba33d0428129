//! Relaying by XDP. The first measurement is in packets per second, with small packets: of a
//! relayed session, by XDP and by TC, and of forwarding by the same kind of host without Dysco. The
//! second is a stream between stacks that would hand super-packets to TC, which XDP does not take.
//! Each has a control: a second kind that equals the first.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::{Builder, Family, Lab, Role};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::Figure;
use crate::flood::{self, Flood};
use crate::local::through_the_proxys_host;
use crate::pair::Listener;
use crate::stage::{Stage, proxied, server};
use crate::turns::{Brought, RUN_IN, Turns};

const ON: &str = "[data_plane]\nxdp = \"on\"\n";
const OFF: &str = "[data_plane]\nxdp = \"off\"\n";

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let (mut small, mut stream) = (Turns::new("forwarding"), Turns::new("TC"));
    let rounds = effort.pick(6, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        packets(effort, &mut small)?;
        streams(effort, &mut stream)?;
    }
    let pps = |name: &str, kind| small.figure(name.into(), kind, 1e6, "million packets/s");
    let mut figures = vec![
        pps("xdp_pps_vs_forwarding", XDP),
        pps("tc_pps_vs_forwarding", TC),
        pps("control_pps_vs_forwarding", CONTROL),
    ];
    for (name, kind) in [
        ("xdp", BY_XDP),
        ("tc_without_offloads", SINGLE),
        ("control", EQUAL),
    ] {
        let goodput = format!("{name}_goodput_vs_tc");
        figures.push(stream.figure(goodput, kind, 1e9, "Gbit/s"));
    }
    Ok(figures)
}

/// Kinds of hosts that a flood of packets passes.
const FORWARDS: usize = 0;
const CONTROL: usize = 1;
const TC: usize = 2;
const XDP: usize = 3;
const HOSTS: usize = 4;

/// Returns a host that forwards, and the flood that it is to forward.
fn forwarding(name: &str) -> Result<(Lab, Flood)> {
    let lab = Lab::builder(name).build()?;
    through_the_proxys_host(&lab)?;
    let flood = Flood::new(&lab, client(40000), server())?;
    Ok((lab, flood))
}

fn client(port: u16) -> SocketAddr {
    Role::Client.at(Family::V4, port)
}

/// A host that relays a session. The fields are dropped in this order.
struct Relaying {
    flood: Flood,
    ends: Bulk,
    behind: Listener,
    stage: Stage,
}

impl Relaying {
    fn start(lab: Builder, extra: &str) -> Result<Relaying> {
        let stage = Stage::alone_in(lab.build()?, extra)?;
        let behind = Listener::start(&stage.lab, server())?;
        let ends = behind.open(&stage.lab, proxied())?;
        let client = ends.client.local_addr()?;
        // HAProxy must splice data before it may leave.
        let ends = Bulk::new(ends, Way::Down)?;
        ends.measure(RUN_IN, RUN_IN)?;
        stage.wait_removable(1)?;
        stage.remove_all(1)?;
        let flood = Flood::new(&stage.lab, client, proxied())?;
        Ok(Relaying {
            flood,
            ends,
            behind,
            stage,
        })
    }

    fn by_xdp(&self) -> Result<u64> {
        let status = self.stage.fleet.json(&self.stage.lab.proxy, &["status"])?;
        let count = status["counters"]["packets_relayed_by_xdp"].as_u64();
        count.context("the status has no count of packets relayed by XDP")
    }

    fn end(self) -> Result<()> {
        drop((self.ends, self.behind));
        self.stage.end()
    }
}

/// Gives each kind of host its turn of a flood.
fn packets(effort: &Effort, turns: &mut Turns<HOSTS>) -> Result<()> {
    let (plain, control) = (forwarding("forwards")?, forwarding("forwards2")?);
    let tc = Relaying::start(Lab::builder("tc"), OFF)?;
    // Only this host is polled: the driver's work for XDP would cost the others more.
    let polled = Lab::builder("xdp").host(Role::Proxy, |h| h.polled(true));
    let xdp = Relaying::start(polled, ON)?;
    let hosts = [
        (&plain.0, &plain.1),
        (&control.0, &control.1),
        (&tc.stage.lab, &tc.flood),
        (&xdp.stage.lab, &xdp.flood),
    ];
    for (lab, flood) in hosts {
        flood::in_a_thread(lab)?;
        flood::end_here(lab)?;
        flood.measure(lab, RUN_IN)?;
    }
    let (mut by_xdp, mut seen) = (xdp.by_xdp()?, 0.0);
    turns.each(effort.pick(12, 6), |kind| {
        let (lab, flood) = hosts[kind];
        let value = flood.measure(lab, effort.turn())?;
        if kind == XDP {
            seen += value * effort.turn().as_secs_f64();
        }
        Ok(Brought {
            value,
            ..Brought::default()
        })
    })?;
    // XDP has relayed the packets of its host, and no others.
    by_xdp = xdp.by_xdp()? - by_xdp;
    ensure!(
        by_xdp as f64 > 0.9 * seen,
        "XDP relayed {by_xdp} of {seen:.0} packets"
    );
    ensure!(tc.by_xdp()? == 0, "XDP relayed although it is off");
    tc.end()?;
    xdp.end()?;
    for (lab, flood) in [plain, control] {
        lab.finish(flood)?;
    }
    Ok(())
}

/// Kinds of streams.
const BY_TC: usize = 0;
const EQUAL: usize = 1;
const SINGLE: usize = 2;
const BY_XDP: usize = 3;
const STREAMS: usize = 4;
const _: () = assert!(FORWARDS == crate::turns::BASE && BY_TC == crate::turns::BASE);

/// Gives each kind of stream its turns.
fn streams(effort: &Effort, turns: &mut Turns<STREAMS>) -> Result<()> {
    let single = |name| {
        Lab::builder(name)
            .hosts(|h| h.offload(false))
            .host(Role::Proxy, |h| h.polled(true))
            .build()
    };
    let mut stages = vec![
        Stage::alone("bytc", OFF)?,
        Stage::alone("equal", OFF)?,
        Stage::alone_in(single("single")?, OFF)?,
        Stage::alone_in(single("byxdp")?, ON)?,
    ];
    let start = |stage: &Stage| {
        let behind = Listener::start(&stage.lab, server())?;
        let pair = behind.open(&stage.lab, proxied())?;
        let bulk = Bulk::new(pair, Way::Down)?;
        bulk.measure(RUN_IN, RUN_IN)?;
        stage.remove_all(1)?;
        bulk.measure(RUN_IN, RUN_IN)?;
        Ok(bulk)
    };
    let all = stages.iter().map(start).collect::<Result<Vec<_>>>()?;
    let all: [Bulk; STREAMS] = all
        .try_into()
        .map_err(|_| anyhow::anyhow!("not all streams are there"))?;
    turns.bulk(&all, effort.pick(12, 6), effort.turn(), || {
        Ok(Duration::ZERO)
    })?;
    drop(all);
    stages.drain(..).try_for_each(Stage::end)
}
