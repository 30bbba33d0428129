//! Ten thousand idle sessions leave HAProxy: the time of `dyscoctl drain` from the command's start
//! to its end, and the processor time of all daemons. In one case only the proxy's host runs
//! `dyscod`, in the other all hosts do. A third case measures the adoption of ten thousand older
//! sessions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::{Process, counters, wait};
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::crowd::{Crowd, Order};
use crate::figure::{Figure, Goal};
use crate::stage::{PATIENCE, Stage, proxied, server};

const SESSIONS: usize = 10_000;
/// Number of messages in each direction, after which HAProxy is seen to splice. Then the sessions
/// are idle.
const MESSAGES: usize = 3;
const AT_ONCE: usize = 64;
/// Maximum number of sessions of one HAProxy. On some machines a process may not have two sockets
/// per session for all of them, so that two HAProxies listen on the same port.
const EACH_AT_MOST: usize = 8_000;
const LOCAL: &str = "[removal]\nmode = \"local\"\n";
/// Each session needs a source port of its own.
const BYPASS: &str = "[removal]\nmode = \"bypass\"\nports = \"50000-64999\"\n";

/// Hosts with `dyscod`, and the time from which it runs there.
#[derive(Clone, Copy)]
enum Daemons {
    /// On the proxy's host, before the sessions.
    Alone,
    /// On the proxy's host, after the sessions.
    Late,
    /// On all hosts, before the sessions.
    Everywhere,
}

/// Times of drains.
#[derive(Default)]
struct Drained {
    seconds: Vec<f64>,
    /// Microseconds of all daemons' processor time for each session.
    cpu: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let sessions = effort.pick(SESSIONS, 500);
    let [mut local, mut bypass] = [(); 2].map(|()| Drained::default());
    let [mut answers, mut adopted] = [(); 2].map(|()| Vec::new());
    for round in 1..=effort.pick(3, 1) {
        effort.say(&format!("  {sessions} sessions, round {round}"));
        Crowded::open("drain", sessions, Daemons::Alone)?.drain(&mut local)?;
        effort.say("  the same with dyscod on all hosts");
        Crowded::open("bypass", sessions, Daemons::Everywhere)?.drain(&mut bypass)?;
        effort.say("  the same with sessions that are older than dyscod");
        let mut crowded = Crowded::open("adopt", sessions, Daemons::Late)?;
        let (answered, known) = crowded.adopt()?;
        answers.push(answered);
        adopted.push(known);
        crowded.drain(&mut Drained::default())?;
    }
    let figure = |name, unit, samples| {
        Figure::median(name, unit, samples).aside("sessions", sessions as f64)
    };
    Ok(vec![
        figure("drain_idle_s", "s", local.seconds).goal(Goal::AtMost(10.0)),
        figure("drain_cpu_us", "us", local.cpu),
        figure("drain_bypass_idle_s", "s", bypass.seconds),
        figure("drain_bypass_cpu_us", "us", bypass.cpu),
        figure("adopt_answers_s", "s", answers),
        figure("adopt_idle_s", "s", adopted),
    ])
}

/// Idle sessions of two HAProxies that listen on the same port. The fields are dropped in this
/// order.
struct Crowded {
    crowd: Crowd,
    second: Process,
    stage: Stage,
}

impl Crowded {
    /// Opens `count` sessions.
    fn open(name: &str, count: usize, daemons: Daemons) -> Result<Crowded> {
        let roomy = |c: Config| c.connections(EACH_AT_MOST).pipes(512);
        let stage = match daemons {
            Daemons::Alone => Stage::alone_by(name, LOCAL, roomy)?,
            Daemons::Everywhere => Stage::build_by(name, BYPASS, roomy)?,
            Daemons::Late => Stage::late(name, roomy)?,
        };
        let second = roomy(Config::tcp(proxied(), server()).named("second"));
        let second = second.start(&stage.lab.proxy, |haproxy| stage.fleet.under_shim(haproxy))?;
        let between = Between {
            client: &stage.lab.client,
            to: proxied(),
            server: &stage.lab.server,
            at: server(),
        };
        let crowd = Crowd::open(between, count)?;
        let crowded = Crowded {
            crowd,
            second,
            stage,
        };
        crowded.speak(MESSAGES)?;
        Ok(crowded)
    }

    fn speak(&self, rounds: usize) -> Result<()> {
        let sessions = 0..self.crowd.count();
        let order = Order {
            sessions,
            rounds,
            at_once: AT_ONCE,
        };
        self.crowd.speak(order).map(drop)
    }

    /// Returns the seconds until `dyscod` answers, and until it knows all sessions.
    fn adopt(&mut self) -> Result<(f64, f64)> {
        let both_sides = 2 * self.crowd.count() as u64;
        let start = Instant::now();
        self.stage.begin(LOCAL)?;
        let answers = start.elapsed().as_secs_f64();
        wait::until("sessions to be adopted", PATIENCE, || {
            (self.stage.adopted().ok()? == both_sides).then_some(())
        })?;
        let known = start.elapsed().as_secs_f64();
        // The shim reports the sessions when they carry data.
        self.speak(1)?;
        Ok((answers, known))
    }

    /// Measures until all sessions have left HAProxy. No end notices the removal.
    fn drain(self, drained: &mut Drained) -> Result<()> {
        let count = self.crowd.count();
        wait::until("HAProxy to be seen splicing", PATIENCE, || {
            (self.stage.pairs().ok()? == count as u64).then_some(())
        })?;
        let (start, used) = (Instant::now(), self.used()?);
        let port = format!(":{}", proxied().port());
        let words = ["drain", &port, "--timeout", "120s", "-o", "json"];
        let ran = self
            .stage
            .fleet
            .try_dyscoctl(&self.stage.lab.proxy, &words)?;
        drained.seconds.push(start.elapsed().as_secs_f64());
        let used = self.used()?.saturating_sub(used);
        drained.cpu.push(used.as_secs_f64() * 1e6 / count as f64);
        let last = ran.stdout.lines().last().unwrap_or_default();
        let done: Value = serde_json::from_str(last)
            .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
        let left = (done["removed"].as_u64(), done["left"].as_u64());
        ensure!(
            left == (Some(count as u64), Some(0)),
            "not all left HAProxy: {done}"
        );
        self.speak(1).context("after the drain")?;
        drop((self.crowd, self.second));
        self.stage.end()
    }

    /// Returns the processor time of all daemons.
    fn used(&self) -> Result<Duration> {
        let daemons = self.stage.daemons().into_iter();
        daemons.map(counters::cpu_time).sum()
    }
}
