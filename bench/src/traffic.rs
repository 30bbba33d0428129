//! What a session carries: direct in a lab without us, direct where it is
//! tracked, through HAProxy, and after HAProxy has left it. A second direct
//! session beside the first says what two equal ones differ by. All are open at
//! the same time and take turns, one at a time.

use std::time::Duration;

use anyhow::Result;
use dysco_netns::{Lab, counters};

use crate::Effort;
use crate::bulk::{Bulk, Way};
use crate::figure::{Figure, Goal, median};
use crate::pair::{Listener, Pair};
use crate::ping::Ping;
use crate::stage::{Stage, proxied, server};

/// The kinds of session.
const DIRECT: usize = 0;
const CONTROL: usize = 1;
const TRACKED: usize = 2;
const PROXIED: usize = 3;
const REMOVED: usize = 4;
const KINDS: usize = 5;

const RUN_IN: Duration = Duration::from_millis(50);
/// Each kind is as often in each place.
const TURNS: usize = 2 * KINDS;

/// What the turns of each kind brought, in the same order in all kinds.
#[derive(Default)]
struct Turns {
    value: [Vec<f64>; KINDS],
    /// Requests a second, where there are requests.
    rate: [Vec<f64>; KINDS],
    /// Processors that HAProxy kept busy.
    cpu: [Vec<f64>; KINDS],
}

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let (mut up, mut down, mut ping) = Default::default();
    let rounds = effort.pick(10, 1);
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

/// The two labs.
struct Labs {
    stage: Stage,
    plain: Lab,
    behind: Listener,
    plainly: Listener,
}

impl Labs {
    fn build() -> Result<Labs> {
        let plain = Lab::builder("plain").build()?;
        let stage = Stage::build("bench", "")?;
        Ok(Labs {
            behind: Listener::start(&stage.lab, server())?,
            plainly: Listener::start(&plain, server())?,
            stage,
            plain,
        })
    }

    fn end(self) -> Result<()> {
        self.plain.finish(self.plainly)?;
        drop(self.behind);
        self.stage.end()
    }

    /// One session of each kind. The one that loses its proxy is opened before
    /// the one that keeps it.
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
        ])
    }

    fn bulk(&self, effort: &Effort, way: Way, turns: &mut Turns) -> Result<()> {
        // It goes both ways before the removal: HAProxy must have spliced.
        let sessions = self.sessions(|pair| {
            let bulk = Bulk::new(pair, way)?;
            bulk.measure(RUN_IN, RUN_IN)?;
            Ok(bulk)
        })?;
        let time = Duration::from_millis(effort.pick(150, 75));
        for turn in 0..TURNS {
            for kind in order(turn) {
                let before = self.cpu()?;
                turns.value[kind].push(sessions[kind].measure(RUN_IN, time)?);
                let spent = (self.cpu()? - before).as_secs_f64();
                turns.cpu[kind].push(spent / (RUN_IN + time).as_secs_f64());
            }
        }
        Ok(())
    }

    fn requests(&self, effort: &Effort, turns: &mut Turns) -> Result<()> {
        let time = Duration::from_millis(effort.pick(150, 75));
        let sessions = self.sessions(|pair| {
            let ping = Ping::new(pair)?;
            ping.measure(RUN_IN)?;
            Ok(ping)
        })?;
        for turn in 0..TURNS {
            for kind in order(turn) {
                let answers = sessions[kind].measure(time)?;
                turns.value[kind].push(answers.p50_us);
                turns.rate[kind].push(answers.rate);
            }
        }
        Ok(())
    }

    fn cpu(&self) -> Result<Duration> {
        counters::cpu_time(self.stage.haproxy.id())
    }
}

/// The kinds in the order of a turn: each kind is first, and each is next to
/// the direct one on either side, as often as any other.
fn order(turn: usize) -> [usize; KINDS] {
    let mut kinds = [DIRECT, CONTROL, TRACKED, PROXIED, REMOVED];
    if turn % 2 == 1 {
        kinds.reverse();
    }
    kinds.rotate_left(turn / 2 % KINDS);
    kinds
}

impl Turns {
    fn ratios(&self, kind: usize) -> Vec<f64> {
        let pairs = self.value[kind].iter().zip(&self.value[DIRECT]);
        pairs.map(|(value, direct)| value / direct).collect()
    }

    fn figure(&self, name: String, kind: usize, scale: f64, unit: &str) -> Figure {
        let absolute = |kind: usize| median(&self.value[kind]) / scale;
        Figure::median(name, "", self.ratios(kind))
            .aside(&format!("direct, {unit}"), absolute(DIRECT))
            .aside(&format!("this, {unit}"), absolute(kind))
    }
}

fn goodput(turns: &Turns, suffix: &str, figures: &mut Vec<Figure>) {
    let figure = |name: &str, kind| turns.figure(format!("{name}{suffix}"), kind, 1e9, "Gbit/s");
    figures.push(figure("removal_goodput_vs_direct", REMOVED).goal(Goal::AtLeast(0.97)));
    figures.push(figure("tracked_goodput_vs_none", TRACKED).goal(Goal::AtLeast(0.99)));
    figures.push(figure("proxy_goodput_vs_direct", PROXIED));
    figures.push(figure("control_goodput_vs_direct", CONTROL));
}

fn latency(turns: &Turns, figures: &mut Vec<Figure>) {
    let figure = |name: &str, kind| turns.figure(name.into(), kind, 1.0, "µs");
    figures.push(figure("removal_latency_p50_vs_direct", REMOVED).goal(Goal::AtMost(1.05)));
    figures.push(figure("tracked_latency_p50_vs_none", TRACKED));
    figures.push(figure("proxy_latency_p50_vs_direct", PROXIED));
    figures.push(figure("control_latency_p50_vs_direct", CONTROL));
    let rates = |kind: usize| {
        let pairs = turns.rate[kind].iter().zip(&turns.rate[DIRECT]);
        pairs.map(|(rate, direct)| rate / direct).collect()
    };
    let requests = Figure::median("tracked_requests_vs_none", "", rates(TRACKED));
    figures.push(requests.goal(Goal::AtLeast(0.99)));
    figures.push(Figure::median(
        "control_requests_vs_direct",
        "",
        rates(CONTROL),
    ));
}

fn cpu(turns: &Turns, figures: &mut Vec<Figure>) {
    for (name, kind) in [("proxy_cpu_before", PROXIED), ("proxy_cpu_after", REMOVED)] {
        let all = &turns.cpu[kind];
        // A turn is few ticks of the clock that counts it: the mean, then.
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        let mut figure = Figure::new(name, "processors", mean);
        figure.samples.clone_from(all);
        figures.push(figure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_turn_in_each_place() {
        for place in 0..KINDS {
            let mut kinds: Vec<_> = (0..TURNS).map(|turn| order(turn)[place]).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        }
    }
}
