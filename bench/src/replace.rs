//! A firewall is replaced by another, which gets its state, under three bundles
//! of sessions, one bundle after the other: what each carries meanwhile, and what
//! the firewalls refuse.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::Effort;
use crate::bulk::Bulk;
use crate::figure::{Figure, Goal, median};
use crate::firewalls::{Acquainted, Change, Firewalls, Whom};
use crate::pair::buffer_of;
use crate::plot::{Line, Panel, Plot};

const BUNDLES: usize = 3;
const SESSIONS: usize = 100;
/// Where the first bundle's sessions end.
const SERVER: u16 = 9000;
/// How often it is looked at what arrived.
const STEP: Duration = Duration::from_millis(20);
/// Goodput is that of any such stretch, in looks.
const STRETCH: usize = 5;
/// For how long after a request a dip is looked for.
const AROUND: f64 = 1.0;

/// The buffers of a session whose links are the limit: all that is under way then waits
/// in their queues, and is not dropped.
const WINDOW: usize = 32 << 10;

/// How fast a session may go.
struct Load {
    suffix: &'static str,
    about: &'static str,
    /// Bytes a second at most.
    pace: Option<u64>,
    /// What the ends' links carry at most, as tc writes it: each bundle has them for
    /// itself then.
    link: Option<&'static str>,
}

/// Links that are full, which is what a network has; a steady rate that leaves the
/// processors half of their time; and as fast as it goes: then what the change takes of
/// the processors is missing elsewhere.
const LOADS: [Load; 3] = [
    Load {
        suffix: "_linked",
        about: "one bundle after the other over links of 1 Gbit/s",
        pace: None,
        link: Some("1gbit"),
    },
    Load {
        suffix: "",
        about: "each session paced to 4 Mbit/s",
        pace: Some(500_000),
        link: None,
    },
    Load {
        suffix: "_full_load",
        about: "as fast as they go",
        pace: None,
        link: None,
    },
];

/// What had arrived by a moment, of each bundle.
struct Look {
    at: f64,
    bytes: [u64; BUNDLES],
}

/// What was seen in a round.
#[derive(Default)]
struct Seen {
    looks: Vec<Look>,
    /// When each bundle's firewall was asked to be replaced.
    asked: Vec<f64>,
    /// From a bundle's request until its last session had the new path,
    /// milliseconds.
    bundle_ms: Vec<f64>,
    dropped: u64,
    sent_again: u64,
}

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let (mut figures, mut panels) = (Vec::new(), Vec::new());
    for load in &LOADS {
        let mut rounds = Vec::new();
        for round in 1..=effort.pick(3, 1) {
            effort.say(&format!("  {}, round {round}", load.about));
            rounds.push(measure(effort, load)?);
        }
        figures.extend(load.figures(&rounds));
        panels.extend(rounds.first().map(|seen| seen.panel(load)));
    }
    effort.plot(Plot {
        name: "replace".into(),
        panels,
    });
    Ok(figures)
}

fn measure(effort: &Effort, load: &Load) -> Result<Seen> {
    let phase = Duration::from_millis(effort.pick(3_000, 1_500));
    let hosts = Firewalls::build("replace", Acquainted::All)?;
    let open = |n: usize| {
        let between = hosts.between(SERVER + n as u16);
        let buffer = match load.link {
            Some(_) => WINDOW,
            None => buffer_of(SESSIONS * BUNDLES),
        };
        Bulk::open_paced(between, SESSIONS, buffer, load.pace)
    };
    let bundles: Vec<_> = (0..BUNDLES).map(open).collect::<Result<_>>()?;
    let change = |change, n: usize| {
        let port = SERVER + n as u16;
        hosts.change(change, Whom::All { port }, SESSIONS)
    };
    for n in 0..BUNDLES {
        change(Change::Insert, n)?;
    }
    match load.link {
        Some(rate) => hosts.limit(rate)?,
        None => bundles.iter().for_each(Bulk::start),
    }
    let (dropped, again) = (hosts.dropped()?, hosts.sent_again()?);
    let begin = Instant::now();
    let mut seen = Seen::default();
    for n in 0..BUNDLES {
        bundles[n].start();
        seen.watch(&bundles, begin, phase);
        seen.asked.push(begin.elapsed().as_secs_f64());
        let times = std::thread::scope(|scope| {
            let changing = scope.spawn(|| change(Change::Replace, n));
            seen.watch(&bundles, begin, phase);
            changing
                .join()
                .unwrap_or_else(|p| std::panic::resume_unwind(p))
        })?;
        seen.bundle_ms.extend(times.into_iter().reduce(f64::max));
        if load.link.is_some() {
            bundles[n].rest()?;
        }
    }
    seen.dropped = hosts.dropped()? - dropped;
    seen.sent_again = hosts.sent_again()? - again;
    hosts.end(bundles)?;
    Ok(seen)
}

impl Load {
    fn figures(&self, rounds: &[Seen]) -> Vec<Figure> {
        let name = |what: &str| format!("replace_{what}{}", self.suffix);
        let all = |of: &dyn Fn(&Seen) -> Vec<f64>| rounds.iter().flat_map(of).collect::<Vec<_>>();
        let count = |of: fn(&Seen) -> u64| rounds.iter().map(of).sum::<u64>() as f64;
        let times = all(&|seen| seen.bundle_ms.clone());
        let sessions = (times.len() * SESSIONS) as f64;
        let steady = all(&|seen| seen.dips(|asked| asked - AROUND));
        let lowest = Figure::median(name("lowest_goodput"), "", all(&|seen| seen.dips(|at| at)))
            .goal(Goal::AtLeast(0.95))
            .aside("one bundle, Gbit/s", median(&all(&Seen::goodput)));
        let unchanged = format!("replace_unchanged_lowest_goodput{}", self.suffix);
        let unchanged = Figure::median(unchanged, "", steady);
        let dropped = Figure::new(name("dropped"), "packets", count(|seen| seen.dropped))
            .goal(Goal::AtMost(0.0))
            .aside("segments sent again", count(|seen| seen.sent_again))
            .aside("sessions", sessions);
        let took = Figure::median(name("bundle_ms"), "ms", times);
        vec![lowest, unchanged, dropped, took]
    }
}

impl Seen {
    /// Looks at all bundles for so long.
    fn watch(&mut self, bundles: &[Bulk], begin: Instant, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::thread::sleep(STEP);
            self.looks.push(Look {
                at: begin.elapsed().as_secs_f64(),
                bytes: std::array::from_fn(|n| bundles[n].received()),
            });
        }
    }

    /// What a bundle carries in each stretch, in Gbit/s, and when the stretch ends.
    fn stretches(&self, bundle: usize) -> Vec<(f64, f64)> {
        let ends = self.looks.iter().zip(self.looks.iter().skip(STRETCH));
        let rate = |(from, to): (&Look, &Look)| {
            let bytes = (to.bytes[bundle] - from.bytes[bundle]) as f64;
            (to.at, bytes * 8e-9 / (to.at - from.at))
        };
        ends.map(rate).collect()
    }

    /// What a bundle carries while nothing changes, and then, within a while
    /// from a moment on, at least; of each bundle that is changed.
    fn steady_and_lowest(&self, from: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let one = |(bundle, asked): (usize, &f64)| {
            let all = self.stretches(bundle);
            let within = |from: f64, to: f64| -> Vec<f64> {
                let some = all.iter().filter(|(at, _)| *at > from && *at <= to);
                some.map(|(_, gbps)| *gbps).collect()
            };
            let steady = median(&within(asked - AROUND, *asked));
            let from = from(*asked);
            let lowest = within(from, from + AROUND).into_iter();
            (steady, lowest.fold(f64::MAX, f64::min))
        };
        self.asked.iter().enumerate().map(one).collect()
    }

    fn dips(&self, from: impl Fn(f64) -> f64) -> Vec<f64> {
        let both = self.steady_and_lowest(from).into_iter();
        both.map(|(steady, lowest)| lowest / steady).collect()
    }

    fn goodput(&self) -> Vec<f64> {
        let both = self.steady_and_lowest(|at| at).into_iter();
        both.map(|(steady, _)| steady).collect()
    }

    fn panel(&self, load: &Load) -> Panel {
        let line = |n: usize| Line {
            label: format!("bundle {}", n + 1),
            points: self.stretches(n),
        };
        let lines = (0..BUNDLES).map(line).collect();
        let title = format!(
            "goodput of 3 bundles of 100 sessions, {}, Gbit/s; {} packets refused",
            load.about, self.dropped
        );
        let mut panel = Panel::new(title, "s", lines);
        let mark = |(n, at): (usize, &f64)| (*at, format!("bundle {}: new firewall", n + 1));
        panel.marks = self.asked.iter().enumerate().map(mark).collect();
        panel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bundle that carries half as much for a tenth of a second.
    #[test]
    fn a_dip_is_found_where_it_is() {
        let (mut looks, mut sum) = (Vec::new(), 0);
        for n in 1..=300 {
            let at = f64::from(n) * STEP.as_secs_f64();
            sum += if (3.2..3.3).contains(&at) { 500 } else { 1_000 };
            looks.push(Look {
                at,
                bytes: [sum; BUNDLES],
            });
        }
        let seen = Seen {
            looks,
            asked: vec![3.0],
            ..Seen::default()
        };
        let near = |all: Vec<f64>, wanted: f64| assert!((all[0] - wanted).abs() < 0.01, "{all:?}");
        near(seen.dips(|at| at), 0.5);
        near(seen.dips(|at| at - AROUND), 1.0);
    }
}
