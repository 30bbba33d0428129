//! A thousand live sessions get another chain: a firewall enters, another replaces it and receives
//! its state, and leaves. A twentieth of the sessions have one request each, and all others share
//! one request.

use anyhow::{Context, Result};
use dysco_netns::stream::{Close, Group, Plan, Server, Side, all_intact};

use crate::Effort;
use crate::figure::{Figure, Goal, rank, sorted};
use crate::firewalls::{Acquainted, Change, Firewalls, Whom};
use crate::plot::{Panel, Plot};

const SESSIONS: usize = 1_000;
/// Ports of the sessions that share a request, and of those with one request each.
const TOGETHER: u16 = 9000;
const APART: u16 = 9001;
/// Traffic of each session during the changes, in each direction: bytes per second, and bytes per
/// write.
const RATE: u64 = 32 << 10;
const WRITE: usize = 4 << 10;

const CHANGES: [(&str, Change); 3] = [
    ("insert", Change::Insert),
    ("replace", Change::Replace),
    ("remove", Change::Remove),
];

/// Times of a kind of change, from the request to the new path, in milliseconds.
#[derive(Default)]
struct Times {
    one_by_one: Vec<f64>,
    /// Times of all sessions that share a request, measured from that request.
    together: Vec<f64>,
    /// The longest of these times in each round.
    last: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let sessions = effort.pick(SESSIONS, 200);
    let mut times = CHANGES.map(|_| Times::default());
    let mut dropped = 0;
    for round in 1..=effort.pick(2, 1) {
        effort.say(&format!("  {sessions} sessions, round {round}"));
        dropped += measure(sessions, &mut times)?;
    }
    effort.plot(Plot::single("reconfigure", panel(&times)));
    let mut figures = Vec::new();
    for ((name, _), times) in CHANGES.iter().zip(times) {
        figures.extend(times.figures(name, sessions));
    }
    let dropped = Figure::new("reconfigure_dropped", "packets", dropped as f64);
    figures.push(dropped.goal(Goal::AtMost(0.0)));
    effort.say("  first contact of hosts");
    let mut first = Vec::new();
    for _ in 0..effort.pick(5, 1) {
        first.push(first_contact()?);
    }
    figures.push(Figure::median("reconfigure_first_contact_ms", "ms", first));
    Ok(figures)
}

/// Time of the first change between hosts that do not know each other: a firewall enters.
fn first_contact() -> Result<f64> {
    let hosts = Firewalls::build("first", Acquainted::Nobody)?;
    let to = hosts.between(APART).to;
    let behind = Server::start(hosts.server(), to)?;
    let plan = Plan {
        rate: Some(RATE),
        write: WRITE,
        close: Close::First(Side::Client),
        ..Plan::default()
    };
    let group = Group::open(hosts.client(), &behind, to, 1, &plan)?;
    group.run();
    group.wait_progress(4 * WRITE as u64)?;
    let local = group.locals()[0];
    let took = hosts.change(Change::Insert, Whom::One { local, remote: to }, 1)?;
    all_intact(&group.finish()?)?;
    hosts.end(behind)?;
    took.first().copied().context("a change has no time")
}

fn panel(times: &[Times; CHANGES.len()]) -> Panel {
    let each = CHANGES.iter().zip(times);
    let all: Vec<_> = each
        .map(|((name, _), times)| (*name, &times.one_by_one))
        .collect();
    Panel::distributions(
        "cumulative share of chain changes by duration, one at a time among 1,000 sessions",
        "ms from request to new path",
        &all,
    )
}

impl Times {
    fn figures(self, name: &str, sessions: usize) -> [Figure; 3] {
        let named = |what: &str| format!("reconfigure_{name}_{what}");
        let (all, together) = (sorted(&self.one_by_one), sorted(&self.together));
        let p50 = Figure::median(named("ms_p50"), "ms", self.one_by_one);
        let p99 = Figure::new(named("ms_p99"), "ms", rank(&all, 99));
        let count = sessions - sessions / 20;
        [
            p50.goal(Goal::AtMost(1.0))
                .aside("live sessions", sessions as f64),
            p99.goal(Goal::AtMost(4.0))
                .aside("p80, ms", rank(&all, 80))
                .aside("longest, ms", rank(&all, 100)),
            Figure::median(named("all_ms"), "ms", self.last)
                .aside("sessions of one request", count as f64)
                .aside("p50, ms", rank(&together, 50)),
        ]
    }
}

/// Number of packets that the firewalls refused. Every byte of the sessions is checked.
fn measure(sessions: usize, times: &mut [Times; CHANGES.len()]) -> Result<u64> {
    let hosts = Firewalls::build("reconfigure", Acquainted::All)?;
    let plan = Plan {
        rate: Some(RATE),
        write: WRITE,
        close: Close::First(Side::Client),
        after_close: 1_000,
        ..Plan::default()
    };
    let count = [sessions - sessions / 20, sessions / 20];
    let to = [TOGETHER, APART].map(|port| hosts.between(port).to);
    let start = |at| Server::start(hosts.server(), at);
    let behind = [start(to[0])?, start(to[1])?];
    let open = |n: usize| Group::open(hosts.client(), &behind[n], to[n], count[n], &plan);
    let groups = [open(0)?, open(1)?];
    let progress = || -> Result<()> {
        let each = |group: &Group| group.wait_progress(4 * WRITE as u64);
        groups.iter().try_for_each(each)
    };
    groups.iter().for_each(Group::run);
    for ((_, change), times) in CHANGES.iter().zip(times) {
        progress()?;
        for local in groups[1].locals() {
            let whom = Whom::One {
                local,
                remote: to[1],
            };
            times.one_by_one.extend(hosts.change(*change, whom, 1)?);
        }
        let whom = Whom::All { port: TOGETHER };
        let together = hosts.change(*change, whom, count[0])?;
        times.last.extend(together.iter().copied().reduce(f64::max));
        times.together.extend(together);
    }
    progress()?;
    let dropped = hosts.dropped()?;
    for group in groups {
        all_intact(&group.finish()?)?;
    }
    hosts.end(behind)?;
    Ok(dropped)
}
