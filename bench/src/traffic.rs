//! Goodput and latency of a session: direct in a lab without Dysco, direct and tracked, through
//! HAProxy, and after HAProxy has left it. A second direct session is the control. A session in a
//! lab whose ends have programs that do nothing shows the minimum cost of any data plane by TC. All
//! sessions are open at the same time and take turns, one at a time.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Result;
use dysco_netns::idle::{self, Hook};
use dysco_netns::{Lab, counters};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, Goal};
use crate::pair::{Listener, Pair};
use crate::ping::Ping;
use crate::stage::{Stage, proxied, server};
use crate::turns::{RUN_IN, Turns};

/// The kinds of sessions.
const DIRECT: usize = 0;
const CONTROL: usize = 1;
const TRACKED: usize = 2;
const PROXIED: usize = 3;
const REMOVED: usize = 4;
const EMPTY: usize = 5;
const KINDS: usize = 6;
const _: () = assert!(DIRECT == crate::turns::BASE);

type Kinds = Turns<KINDS>;

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let [mut up, mut down, mut ping] = [(); 3].map(|()| Kinds::new("direct"));
    let rounds = effort.pick(6, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        let labs = Labs::build()?;
        labs.bulk(effort, Way::Down, &mut down)?;
        labs.bulk(effort, Way::Up, &mut up)?;
        labs.requests(effort, &mut ping)?;
        labs.end()?;
    }
    let mut figures = Vec::new();
    goodput(&down, "", &mut figures);
    goodput(&up, "_upload", &mut figures);
    latency(&ping, &mut figures);
    cpu(&down, &mut figures);
    Ok(figures)
}

/// The three labs.
struct Labs {
    stage: Stage,
    plain: Lab,
    empty: Lab,
    behind: Listener,
    plainly: Listener,
    emptily: Listener,
    /// Programs that do nothing.
    idle: Vec<OwnedFd>,
}

/// Builds a lab whose ends have programs that do nothing in place of Dysco's.
fn empty() -> Result<(Lab, Vec<OwnedFd>)> {
    let lab = Lab::builder("empty").build()?;
    let mut idle = Vec::new();
    for host in [&lab.client, &lab.server] {
        for hook in [Hook::Ingress, Hook::Egress] {
            idle.push(idle::attach(host, "eth0", hook)?);
        }
    }
    Ok((lab, idle))
}

impl Labs {
    fn build() -> Result<Labs> {
        let plain = Lab::builder("plain").build()?;
        let (empty, idle) = empty()?;
        let stage = Stage::build("bench", "")?;
        Ok(Labs {
            behind: Listener::start(&stage.lab, server())?,
            plainly: Listener::start(&plain, server())?,
            emptily: Listener::start(&empty, server())?,
            stage,
            plain,
            empty,
            idle,
        })
    }

    fn end(self) -> Result<()> {
        self.plain.finish(self.plainly)?;
        self.empty.finish((self.emptily, self.idle))?;
        drop(self.behind);
        self.stage.end()
    }

    /// Opens one session of each kind. The session that loses its proxy is opened before the
    /// session that keeps it.
    fn sessions<S>(&self, start: impl Fn(Pair) -> Result<S>) -> Result<[S; KINDS]> {
        let lab = &self.stage.lab;
        let removed = start(self.behind.open(lab, proxied())?)?;
        self.stage.remove_all(1)?;
        Ok([
            start(self.plainly.open(&self.plain, server())?)?,
            start(self.plainly.open(&self.plain, server())?)?,
            start(self.behind.open(lab, server())?)?,
            start(self.behind.open(lab, proxied())?)?,
            removed,
            start(self.emptily.open(&self.empty, server())?)?,
        ])
    }

    fn bulk(&self, effort: &Effort, way: Way, turns: &mut Kinds) -> Result<()> {
        // Data flows before the removal: HAProxy must have spliced.
        let sessions = self.sessions(|pair| {
            let bulk = Bulk::new(pair, way)?;
            bulk.measure(RUN_IN, RUN_IN)?;
            Ok(bulk)
        })?;
        turns.bulk(&sessions, effort.pick(30, 6), effort.turn(), || self.cpu())
    }

    fn requests(&self, effort: &Effort, turns: &mut Kinds) -> Result<()> {
        let sessions = self.sessions(|pair| {
            let ping = Ping::new(pair)?;
            ping.measure(RUN_IN)?;
            Ok(ping)
        })?;
        turns.requests(&sessions, effort.pick(30, 6), effort.turn())
    }

    fn cpu(&self) -> Result<Duration> {
        counters::cpu_time(self.stage.haproxy.id())
    }
}

fn goodput(turns: &Kinds, suffix: &str, figures: &mut Vec<Figure>) {
    let figure = |name: &str, kind| turns.figure(format!("{name}{suffix}"), kind, 1e9, "Gbit/s");
    figures.push(figure("bypass_goodput_vs_direct", REMOVED).goal(Goal::AtLeast(0.98)));
    figures.push(figure("tracked_goodput_vs_none", TRACKED).goal(Goal::AtLeast(0.99)));
    figures.push(figure("empty_programs_goodput_vs_none", EMPTY));
    figures.push(figure("proxy_goodput_vs_direct", PROXIED));
    figures.push(figure("control_goodput_vs_direct", CONTROL));
}

fn latency(turns: &Kinds, figures: &mut Vec<Figure>) {
    let figure = |name: &str, kind| turns.figure(name.into(), kind, 1.0, "µs");
    figures.push(figure("bypass_latency_p50_vs_direct", REMOVED).goal(Goal::AtMost(1.02)));
    figures.push(figure("tracked_latency_p50_vs_none", TRACKED));
    figures.push(figure("empty_programs_latency_p50_vs_none", EMPTY));
    figures.push(figure("proxy_latency_p50_vs_direct", PROXIED));
    figures.push(figure("control_latency_p50_vs_direct", CONTROL));
    let requests = Figure::of_rounds(
        "tracked_requests_vs_none",
        "",
        turns.ratios(TRACKED, |b| b.rate),
    );
    figures.push(requests.goal(Goal::AtLeast(0.99)));
    figures.push(Figure::of_rounds(
        "empty_programs_requests_vs_none",
        "",
        turns.ratios(EMPTY, |b| b.rate),
    ));
    figures.push(Figure::of_rounds(
        "control_requests_vs_direct",
        "",
        turns.ratios(CONTROL, |b| b.rate),
    ));
}

fn cpu(turns: &Kinds, figures: &mut Vec<Figure>) {
    for (name, kind) in [("proxy_cpu_before", PROXIED), ("proxy_cpu_after", REMOVED)] {
        let all = turns.of(kind, |b| b.process);
        // A turn has few ticks of the clock that measures it. The figure is therefore the mean.
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let mut figure = Figure::new(name, "processors", mean);
        figure.samples = all;
        figures.push(figure);
    }
}
