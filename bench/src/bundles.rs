//! Four bundles of sessions lose their proxies, one bundle after the other. The results are the
//! goodput of all bundles during that time, and the processor time of the proxies.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::{Family, Lab, Process, Role, counters};
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::bulk::Bulk;
use crate::figure::{Figure, Goal, median, rank, sorted};
use crate::handshakes::Handshakes;
use crate::pair::buffer_of;
use crate::plot::{Line, Panel, Plot};
use crate::roundtrip;
use crate::steps::{self, Place, STEPS};

const BUNDLES: u16 = 4;
const SESSIONS: usize = 150;
/// Ports of the first proxy and of the first server.
const PROXY: u16 = 8080;
const SERVER: u16 = 9000;
/// Interval between two looks at the received data.
const STEP: Duration = Duration::from_millis(100);
/// Number of messages with an answer, before any load and under load.
const ROUND_TRIPS: usize = 200;

/// Closer observation of a round, which costs time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closer {
    Nothing,
    /// Captures the handshakes of the new paths.
    Handshakes,
    /// Makes the daemons log their steps, and exchanges messages between two other endpoints under
    /// the same load.
    Steps,
}

/// A bundle's proxy and its sessions. The fields are dropped in this order.
struct Bundle {
    sessions: Bulk,
    haproxy: Process,
}

/// A measurement at one time.
struct Moment {
    at: f64,
    gbps: f64,
    processors: f64,
}

/// Observations of a round.
#[derive(Default)]
struct Seen {
    moments: Vec<Moment>,
    /// Times at which the proxies were asked to leave.
    asked: Vec<f64>,
    /// Time from the request to the new path, in milliseconds.
    switch_ms: Vec<f64>,
    /// Time from the new path's SYN to its SYN-ACK, at the client's host.
    handshake_ms: Vec<f64>,
    /// Duration of each step.
    step_ms: [Vec<f64>; STEPS.len()],
    /// Time of a message and its answer, under load, under load at real-time priority, and without
    /// load.
    round_trip_ms: [Vec<f64>; 3],
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let phase = Duration::from_millis(effort.pick(3_000, 1_000));
    let (mut gains, mut lowest, mut switch) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = effort.pick(3, 1);
    for round in 1..=rounds {
        effort.say(&format!("  round {round} of {rounds}"));
        let seen = measure(phase, Closer::Nothing)?;
        gains.push(seen.gains());
        lowest.push(seen.lowest(phase));
        switch.push(seen.switch_ms.clone());
        if round == 1 {
            effort.plot(seen.plot());
        }
    }
    effort.say("  a round with captured handshakes");
    let handshakes = measure(phase / 3, Closer::Handshakes)?.handshake_ms;
    effort.say("  a round with logged steps");
    let steps = measure(phase / 3, Closer::Steps)?;
    let panel = Panel::distributions(
        "cumulative share of removals by duration",
        "ms",
        &[
            ("from beginning to cutover", &switch.concat()),
            ("handshake of the new path", &handshakes),
        ],
    );
    effort.plot(Plot::single("reconfiguration", panel));
    let all = sorted(&switch.concat());
    let p99 = Figure::new("reconfig_ms_p99", "ms", rank(&all, 99))
        .goal(Goal::AtMost(2.0))
        .aside("p80, ms", rank(&all, 80))
        .aside("longest, ms", rank(&all, 100));
    let p50 = Figure::of_rounds("reconfig_ms_p50", "ms", switch);
    let deepest = lowest.iter().flatten().copied();
    let deepest = deepest.fold(f64::INFINITY, f64::min);
    let lowest = Figure::of_rounds("removal_lowest_goodput", "", lowest);
    let mut figures = vec![
        Figure::of_rounds("removal_goodput_gain", "", gains).paper(2.0),
        lowest.goal(Goal::AtLeast(0.6)).aside("deepest", deepest),
        p50.goal(Goal::AtMost(0.5)),
        p99,
    ];
    let floor = median(&handshakes);
    figures.extend(of_handshakes(handshakes));
    figures.extend(steps.floors(floor));
    Ok(figures)
}

/// Figures of the handshakes. The paper reports this time for a removal: 80 % of its removals took
/// at most 2 ms, and 98.7 % took at most 4 ms.
fn of_handshakes(ms: Vec<f64>) -> [Figure; 3] {
    let all = sorted(&ms);
    let figure = |percent| {
        let name = format!("reconfig_handshake_ms_p{percent}");
        Figure::new(name, "ms", rank(&all, percent))
    };
    let slowest = figure(99).aside("longest, ms", rank(&all, 100));
    let (p80, p99) = (figure(80).paper(2.0), slowest.paper(4.0));
    [
        Figure::median("reconfig_handshake_ms_p50", "ms", ms),
        p80,
        p99,
    ]
}

/// Measures one round.
fn measure(phase: Duration, closer: Closer) -> Result<Seen> {
    let lab = Lab::builder("bundles").build()?;
    let fleet = Fleet::new(&lab)?;
    let listener = |n| {
        let port = PROXY + n;
        format!("[[listener]]\naddress = \":{port}\"\ntransparent = true\n")
    };
    let mut config: String = (0..BUNDLES).map(listener).collect();
    if closer == Closer::Steps {
        config += steps::LOGGED;
    }
    let start = |role| fleet.start(&lab, role, &config);
    let daemons: Vec<Daemon> = Role::ALL.into_iter().map(start).collect::<Result<_>>()?;
    let bundle = |n| Bundle::open(&lab, &fleet, n);
    let bundles: Vec<_> = (0..BUNDLES).map(bundle).collect::<Result<_>>()?;
    let mut seen = Seen::default();
    let round_trips = |first| match closer {
        Closer::Steps => round_trips(&lab, first),
        Closer::Nothing | Closer::Handshakes => Ok(Vec::new()),
    };
    let idle = round_trips(false)?;
    bundles.iter().for_each(|bundle| bundle.sessions.start());
    let begin = Instant::now();
    seen.watch(&bundles, begin, phase)?;
    seen.round_trip_ms = [round_trips(false)?, round_trips(true)?, idle];
    let capture = (closer == Closer::Handshakes).then(|| Handshakes::watch(&lab.client));
    let capture = capture.transpose()?;
    for bundle in &bundles {
        seen.asked.push(begin.elapsed().as_secs_f64());
        let done = std::thread::scope(|scope| {
            let leaving = scope.spawn(|| bundle.leave(&lab, &fleet));
            seen.watch(&bundles, begin, phase)?;
            leaving
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p))
        })?;
        seen.switched(&done)?;
    }
    if let Some(capture) = capture {
        seen.handshake_ms = capture.end()?;
        let (found, all) = (seen.handshake_ms.len(), SESSIONS * usize::from(BUNDLES));
        // A capture may miss some handshakes under full load.
        ensure!(
            found * 10 >= all * 9,
            "{found} of {all} handshakes were seen"
        );
    }
    drop(bundles);
    if closer == Closer::Steps {
        // The logs are in the order of `Role::ALL`.
        let places = [Place::Left, Place::Middle, Place::Right].into_iter();
        let logs = places.zip(daemons.iter().map(|daemon| daemon.process.log()));
        seen.step_ms = steps::of_logs(&logs.collect::<Vec<_>>());
        let found = seen.step_ms[0].len();
        ensure!(found > 0, "the daemons' logs contain no removal");
    }
    lab.finish(daemons)?;
    Ok(seen)
}

/// Measures round trips between the client's host and the server's host, with threads that run
/// before other processes if `first`.
fn round_trips(lab: &Lab, first: bool) -> Result<Vec<f64>> {
    let end = |role: Role| (lab.host(role), role.address(Family::V4));
    roundtrip::measure(end(Role::Client), end(Role::Server), ROUND_TRIPS, first)
}

impl Bundle {
    fn open(lab: &Lab, fleet: &Fleet, n: u16) -> Result<Bundle> {
        let to = Role::Proxy.at(Family::V4, PROXY + n);
        let at = Role::Server.at(Family::V4, SERVER + n);
        let config = Config::tcp(to, at).named(&format!("haproxy{n}"));
        let haproxy = config.start(&lab.proxy, |haproxy| fleet.under_shim(haproxy))?;
        let between = Between {
            client: &lab.client,
            to,
            server: &lab.server,
            at,
        };
        let buffer = buffer_of(SESSIONS * usize::from(BUNDLES));
        Ok(Bundle {
            sessions: Bulk::open(between, SESSIONS, buffer)?,
            haproxy,
        })
    }

    /// Makes the bundle's proxy leave all its sessions.
    fn leave(&self, lab: &Lab, fleet: &Fleet) -> Result<Value> {
        let pid = self.haproxy.id().to_string();
        let words = ["remove-middlebox", "self", "--pid", &pid, "--all"];
        let how = ["--mode", "bypass", "--wait", "-o", "json"];
        let ran = fleet.try_dyscoctl(&lab.proxy, &[&words[..], &how].concat())?;
        let done: Value = serde_json::from_str(&ran.stdout)
            .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
        let removed = done["summary"]["removed"].as_u64();
        ensure!(
            removed == Some(SESSIONS as u64),
            "HAProxy was to leave {SESSIONS} sessions: {}",
            done["summary"]
        );
        Ok(done)
    }
}

impl Seen {
    /// Watches all bundles for this time.
    fn watch(&mut self, bundles: &[Bundle], begin: Instant, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        let look = || {
            let bytes: u64 = bundles.iter().map(|b| b.sessions.received()).sum();
            let cpu = bundles.iter().map(|b| counters::cpu_time(b.haproxy.id()));
            Ok::<_, anyhow::Error>((bytes, cpu.sum::<Result<Duration>>()?, Instant::now()))
        };
        let mut last = look()?;
        while Instant::now() < until {
            std::thread::sleep(STEP);
            let now = look()?;
            let took = (now.2 - last.2).as_secs_f64();
            self.moments.push(Moment {
                at: (now.2 - begin).as_secs_f64(),
                gbps: (now.0 - last.0) as f64 * 8e-9 / took,
                processors: now.1.saturating_sub(last.1).as_secs_f64() / took,
            });
            last = now;
        }
        Ok(())
    }

    fn switched(&mut self, done: &Value) -> Result<()> {
        for removal in done["removals"].as_array().into_iter().flatten() {
            let us = removal["request_to_switch_us"].as_u64();
            let us = us.context("a removal has no time")?;
            self.switch_ms.push(us as f64 / 1e3);
        }
        Ok(())
    }

    /// Figures of the minimum duration of a removal (its messages and its handshake in sequence),
    /// and of its parts.
    fn floors(self, handshake_ms: f64) -> Vec<Figure> {
        let [loaded, first, idle] = self.round_trip_ms;
        let (idle, switch) = (median(&idle), median(&self.switch_ms));
        // Eight removals begin at once: the daemons have normal priority.
        let trip = Figure::median("control_round_trip_ms_p50", "ms", loaded)
            .aside("at real-time priority, ms", median(&first))
            .aside("without any load, ms", idle);
        let trips = steps::MESSAGES / 2.0;
        let least = trip.value * trips + handshake_ms;
        let floor = Figure::new("reconfig_floor_ms_p50", "ms", least)
            .aside("round trips of messages", trips)
            .aside("handshake of the new path, ms", handshake_ms)
            .aside("without any load, ms", idle * trips + handshake_ms)
            .aside("removals whose steps are written down, ms", switch);
        let mut figures = vec![floor, trip];
        figures.extend(steps::figures(self.step_ms));
        figures
    }

    /// Lowest goodput of all bundles after each proxy was asked to leave, and before the next one
    /// was, divided by the median of the phase before.
    fn lowest(&self, phase: Duration) -> Vec<f64> {
        let phase = phase.as_secs_f64();
        let within = |from: f64, to: f64| -> Vec<f64> {
            let moments = self.moments.iter().filter(|m| m.at > from && m.at <= to);
            moments.map(|m| m.gbps).collect()
        };
        let ends = self.asked.iter().skip(1).copied().chain([f64::INFINITY]);
        let of = |(at, end): (&f64, f64)| {
            let after = within(*at, end);
            after.into_iter().fold(f64::INFINITY, f64::min) / median(&within(at - phase, *at))
        };
        self.asked.iter().zip(ends).map(of).collect()
    }

    /// Goodput of all bundles after the last proxy has left, divided by the goodput before the
    /// first one left.
    fn gains(&self) -> Vec<f64> {
        let first = self.asked.first().copied().unwrap_or(0.0);
        let last = self.asked.last().copied().unwrap_or(0.0);
        let goodput = |wanted: &dyn Fn(f64) -> bool| -> Vec<f64> {
            let moments = self.moments.iter().filter(|m| wanted(m.at));
            moments.map(|m| m.gbps).collect()
        };
        let settle = STEP.as_secs_f64() * 3.0;
        let before = median(&goodput(&|at| at > settle && at < first));
        let after = goodput(&|at| at > last + settle);
        after.into_iter().map(|gbps| gbps / before).collect()
    }

    fn plot(&self) -> Plot {
        let line = |label: &str, of: fn(&Moment) -> f64| Line {
            label: label.into(),
            points: self.moments.iter().map(|m| (m.at, of(m))).collect(),
        };
        let mut goodput = Panel::new(
            "goodput of 4 bundles of 150 sessions, Gbit/s",
            "s",
            vec![line("goodput", |m| m.gbps)],
        );
        let leave = |(n, at): (usize, &f64)| (*at, format!("proxy {} leaves", n + 1));
        goodput.marks = self.asked.iter().enumerate().map(leave).collect();
        let processors = Panel::new(
            "processors that the proxies keep busy",
            "s",
            vec![line("proxies", |m| m.processors)],
        );
        Plot {
            name: "bundles".into(),
            panels: vec![goodput, processors],
        }
    }
}
