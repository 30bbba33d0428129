//! A firewall enters the chain of three bundles of sessions, is replaced by another one, which
//! receives its state, and leaves, one bundle after the other. The results are the goodput of each
//! bundle during the changes, and the packets that the firewalls refuse.

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
/// Port of the first bundle's sessions at the server.
const SERVER: u16 = 9000;
/// Interval between two looks at the received data.
const STEP: Duration = Duration::from_millis(20);
/// Number of looks per stretch. Goodput is measured over a stretch.
const STRETCH: usize = 5;
/// Seconds after a request in which a dip is searched.
const AROUND: f64 = 1.0;
/// Pause before a request: no stretch of the second before the request has a gap.
const BEFORE: Duration = Duration::from_millis(1_200);
/// Changes of each bundle, in this order.
const CHANGES: [Change; 3] = [Change::Insert, Change::Replace, Change::Remove];

/// Buffers of a session whose links are the limit: all data in flight then waits in the links'
/// queues, and is not dropped.
const WINDOW: usize = 32 << 10;

/// Limit of a session's rate.
struct Load {
    suffix: &'static str,
    about: &'static str,
    /// Maximum number of bytes per second.
    pace: Option<u64>,
    /// Maximum rate of the ends' links, in the syntax of tc. Each bundle then has the links for
    /// itself.
    link: Option<&'static str>,
}

/// Three loads. Full links are the case of a real network. A steady rate leaves the processors half
/// of their time. At full speed, the sessions lose the processor time of the change.
const LOADS: [Load; 3] = [
    Load {
        suffix: "_linked",
        about: "one bundle at a time over 1 Gbit/s links",
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
        about: "at full speed",
        pace: None,
        link: None,
    },
];

/// Number of bytes of each bundle that had arrived at one time.
struct Look {
    at: f64,
    bytes: [u64; BUNDLES],
}

/// A request to change a bundle.
struct Asked {
    bundle: usize,
    change: Change,
    at: f64,
    /// Time from the request until the last session had the new path, in milliseconds.
    took_ms: f64,
    /// Number of packets that the firewalls refused since the previous request.
    dropped: u64,
    /// Number of segments that both ends retransmitted.
    sent_again: u64,
}

/// Observations of a round.
#[derive(Default)]
struct Seen {
    looks: Vec<Look>,
    asked: Vec<Asked>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
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
    match load.link {
        Some(rate) => hosts.limit(rate)?,
        None => bundles.iter().for_each(Bulk::start),
    }
    let mut round = Round {
        hosts: &hosts,
        bundles: &bundles,
        begin: Instant::now(),
        counted: hosts.counted()?,
        seen: Seen::default(),
    };
    for (bundle, its) in bundles.iter().enumerate() {
        its.start();
        round.watch(phase);
        for change in CHANGES {
            round.change(bundle, change, phase)?;
        }
        if load.link.is_some() {
            its.rest()?;
        }
    }
    let seen = round.seen;
    hosts.end(bundles)?;
    Ok(seen)
}

/// A round in progress.
struct Round<'a> {
    hosts: &'a Firewalls,
    bundles: &'a [Bulk],
    begin: Instant,
    /// Packets refused and segments retransmitted at the last reading.
    counted: [u64; 2],
    seen: Seen,
}

impl Round<'_> {
    /// Requests a bundle's change, and watches before and during it. The counters are read in
    /// between, because that takes processor time as well.
    fn change(&mut self, bundle: usize, change: Change, phase: Duration) -> Result<()> {
        self.watch(BEFORE);
        let at = self.begin.elapsed().as_secs_f64();
        let (hosts, port) = (self.hosts, SERVER + bundle as u16);
        let times = std::thread::scope(|scope| {
            let changing = scope.spawn(|| hosts.change(change, Whom::All { port }, SESSIONS));
            self.watch(phase);
            let changed = changing.join();
            changed.unwrap_or_else(|p| std::panic::resume_unwind(p))
        })?;
        let now = hosts.counted()?;
        let before = std::mem::replace(&mut self.counted, now);
        self.seen.asked.push(Asked {
            bundle,
            change,
            at,
            took_ms: times.into_iter().fold(0.0, f64::max),
            dropped: now[0] - before[0],
            sent_again: now[1] - before[1],
        });
        Ok(())
    }

    /// Watches all bundles for this time.
    fn watch(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::thread::sleep(STEP);
            self.seen.looks.push(Look {
                at: self.begin.elapsed().as_secs_f64(),
                bytes: std::array::from_fn(|n| self.bundles[n].received()),
            });
        }
    }
}

impl Load {
    fn figures(&self, rounds: &[Seen]) -> Vec<Figure> {
        let of = |change: &Change| self.figures_of(*change, rounds);
        CHANGES.iter().flat_map(of).collect()
    }

    fn figures_of(&self, change: Change, rounds: &[Seen]) -> Vec<Figure> {
        let name = |what: &str| format!("{}_{what}{}", name_of(change), self.suffix);
        let each = || {
            let all = rounds.iter().map(|seen| (seen, seen.asked.iter()));
            let all = all.flat_map(|(seen, asked)| asked.map(move |asked| (seen, asked)));
            all.filter(|(_, asked)| asked.change == change)
        };
        let dips = |from: f64| -> Vec<f64> {
            let dip = |(seen, asked): (&Seen, &Asked)| seen.dip(asked, asked.at + from);
            each().map(dip).collect()
        };
        let steady: Vec<_> = each().map(|(seen, asked)| seen.steady(asked)).collect();
        let count = |of: fn(&Asked) -> u64| each().map(|(_, asked)| of(asked)).sum::<u64>() as f64;
        let times: Vec<_> = each().map(|(_, asked)| asked.took_ms).collect();
        let sessions = (times.len() * SESSIONS) as f64;
        let lowest = Figure::median(name("lowest_goodput"), "", dips(0.0))
            .goal(Goal::AtLeast(0.95))
            .aside("one bundle, Gbit/s", median(&steady));
        let unchanged = Figure::median(name("unchanged_lowest_goodput"), "", dips(-AROUND));
        let dropped = Figure::new(name("dropped"), "packets", count(|asked| asked.dropped))
            .goal(Goal::AtMost(0.0))
            .aside("segments sent again", count(|asked| asked.sent_again))
            .aside("sessions", sessions);
        let took = Figure::median(name("bundle_ms"), "ms", times);
        vec![lowest, unchanged, dropped, took]
    }
}

/// Name of a change in the names of figures.
fn name_of(change: Change) -> &'static str {
    match change {
        Change::Insert => "insert",
        Change::Replace => "replace",
        Change::Remove => "remove",
    }
}

impl Seen {
    /// Goodput of a bundle in each stretch, in Gbit/s, with the end of the stretch.
    fn stretches(&self, bundle: usize) -> Vec<(f64, f64)> {
        let ends = self.looks.iter().zip(self.looks.iter().skip(STRETCH));
        let rate = |(from, to): (&Look, &Look)| {
            let bytes = (to.bytes[bundle] - from.bytes[bundle]) as f64;
            (to.at, bytes * 8e-9 / (to.at - from.at))
        };
        ends.map(rate).collect()
    }

    /// Goodput of a bundle in the stretches that end after one time and up to another.
    fn within(&self, bundle: usize, from: f64, to: f64) -> Vec<f64> {
        let all = self.stretches(bundle).into_iter();
        let some = all.filter(|(at, _)| *at > from && *at <= to);
        some.map(|(_, gbps)| gbps).collect()
    }

    /// Goodput of a bundle before the request to change it.
    fn steady(&self, asked: &Asked) -> f64 {
        median(&self.within(asked.bundle, asked.at - AROUND, asked.at))
    }

    /// Minimum goodput in the time after a moment, as a share of the goodput before the request.
    fn dip(&self, asked: &Asked, from: f64) -> f64 {
        let within = self.within(asked.bundle, from, from + AROUND);
        within.into_iter().fold(f64::MAX, f64::min) / self.steady(asked)
    }

    fn panel(&self, load: &Load) -> Panel {
        let line = |n: usize| Line {
            label: format!("bundle {}", n + 1),
            points: self.stretches(n),
        };
        let lines = (0..BUNDLES).map(line).collect();
        let dropped: u64 = self.asked.iter().map(|asked| asked.dropped).sum();
        let title = format!(
            "goodput of 3 bundles of 100 sessions, {}, Gbit/s; {dropped} packets dropped",
            load.about
        );
        let mut panel = Panel::new(title, "s", lines);
        let mark = |asked: &Asked| {
            let change = name_of(asked.change);
            (asked.at, format!("{}: {change}", asked.bundle + 1))
        };
        panel.marks = self.asked.iter().map(mark).collect();
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
        let asked = Asked {
            bundle: 0,
            change: Change::Insert,
            at: 3.0,
            took_ms: 0.0,
            dropped: 0,
            sent_again: 0,
        };
        let seen = Seen {
            looks,
            asked: Vec::new(),
        };
        let near = |dip: f64, wanted: f64| assert!((dip - wanted).abs() < 0.01, "{dip}");
        near(seen.dip(&asked, asked.at), 0.5);
        near(seen.dip(&asked, asked.at - AROUND), 1.0);
    }
}
