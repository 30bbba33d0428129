//! Watches the traffic and its paths: ten samples per second, and a line each second.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use dysco_netns::Ways;
use plotters::style::{BLUE, GREEN, MAGENTA, RED, RGBColor};

use super::Step;
use super::stage::Stage;
use crate::demo::mix::Mix;
use crate::demo::plot::{self, Curve, Panel};

/// Names and colours of the paths that packets may take.
pub(super) const WAYS: [(&str, RGBColor); 3] = [
    ("direct", BLUE),
    ("through fw1", RED),
    ("through fw2", GREEN),
];

/// Activity during a sample.
#[derive(Clone, Copy, PartialEq, Eq)]
enum While {
    /// Sessions change their paths.
    Changing,
    /// Packets in flight arrive.
    Settling,
    /// The path is measured.
    Measuring,
}

/// A sample of a tenth of a second.
struct Sample {
    /// End of the sample, measured from the start of the traffic.
    at: Duration,
    step: Step,
    during: While,
    rates: Rates,
    /// Nanoseconds of the requests.
    latencies: Vec<u32>,
}

/// Traffic per second.
#[derive(Clone, Copy, Default)]
struct Rates {
    bps: f64,
    /// Packets per second, in the order of [`WAYS`].
    packets: [f64; WAYS.len()],
    /// Number of packets, in the order of [`WAYS`].
    count: [u64; WAYS.len()],
}

/// Measurements of a step's path.
#[derive(Clone, Copy)]
pub(super) struct Measured {
    pub goodput_bps: f64,
    /// Lowest goodput of a tenth of a second, including the time of the change.
    pub lowest_bps: f64,
    pub latency_p50_us: f64,
    /// Packets per second, in the order of [`WAYS`].
    pub packets: [f64; WAYS.len()],
    /// Number of packets that took another path after the change had settled.
    pub stray: u64,
}

/// Watcher of the traffic.
pub(super) struct Watch {
    samples: Vec<Sample>,
    speaks: bool,
    start: Instant,
    marks: Vec<plot::Mark>,
}

const SAMPLE: Duration = Duration::from_millis(100);

impl Watch {
    /// Creates a watcher. It prints lines if `speaks` is true.
    pub(super) fn new(speaks: bool) -> Watch {
        Watch {
            samples: vec![],
            speaks,
            start: Instant::now(),
            marks: vec![],
        }
    }

    /// Prints a text, if the watcher prints lines.
    pub(super) fn say(&self, text: &str) {
        if self.speaks {
            println!("{text}");
        }
    }

    /// Records that a step was requested now.
    pub(super) fn mark(&mut self, step: Step) {
        let at = self.start.elapsed().as_secs_f64();
        self.marks.push((at, step.name()));
    }

    /// Watches a change until it is done.
    pub(super) fn until(
        &mut self,
        stage: &Stage,
        mix: &Mix,
        step: Step,
        done: impl Fn() -> bool,
    ) -> Result<()> {
        self.run(stage, mix, (step, While::Changing), done)
    }

    /// Watches for this time, without measuring.
    pub(super) fn settle(
        &mut self,
        stage: &Stage,
        mix: &Mix,
        step: Step,
        time: Duration,
    ) -> Result<()> {
        let start = Instant::now();
        let done = || start.elapsed() >= time;
        self.run(stage, mix, (step, While::Settling), done)
    }

    /// Measures for this time.
    pub(super) fn measure(
        &mut self,
        stage: &Stage,
        mix: &Mix,
        step: Step,
        time: Duration,
    ) -> Result<()> {
        let start = Instant::now();
        let done = || start.elapsed() >= time;
        self.run(stage, mix, (step, While::Measuring), done)
    }

    fn run(
        &mut self,
        stage: &Stage,
        mix: &Mix,
        (step, during): (Step, While),
        done: impl Fn() -> bool,
    ) -> Result<()> {
        let mut second = Meter::start(stage, mix)?;
        let (mut meter, mut recent) = (Meter::start(stage, mix)?, Vec::new());
        while !done() {
            std::thread::sleep(SAMPLE);
            let latencies = mix.take_latencies();
            recent.extend_from_slice(&latencies);
            let next = Meter::start(stage, mix)?;
            self.samples.push(Sample {
                at: self.start.elapsed(),
                step,
                during,
                rates: meter.until(&next),
                latencies,
            });
            if next.at - second.at >= Duration::from_secs(1) && during == While::Measuring {
                self.line(step, second.until(&next), median_us(&mut recent));
                (second, recent) = (next.clone(), Vec::new());
            }
            meter = next;
        }
        Ok(())
    }

    fn line(&self, step: Step, rates: Rates, latency_us: f64) {
        let ways = WAYS.iter().zip(rates.packets);
        let ways: Vec<_> = ways
            .map(|((name, _), packets)| format!("{name} {:>5.1}", packets / 1e3))
            .collect();
        self.say(&format!(
            "{:>5.1} s  {:13}{:>6.2} Gbit/s   request {:>6.0} µs   1000 packets/s: {}",
            self.start.elapsed().as_secs_f64(),
            step.name(),
            rates.bps / 1e9,
            latency_us,
            ways.join("   "),
        ));
    }

    /// Returns the measurements of a step's path.
    pub(super) fn path(&self, step: Step) -> Measured {
        let of_step = || self.samples.iter().filter(move |s| s.step == step);
        let measured = || of_step().filter(|s| s.during == While::Measuring);
        let mean = |value: &dyn Fn(&Sample) -> f64| {
            let count = measured().count().max(1) as f64;
            measured().map(value).sum::<f64>() / count
        };
        let mut latencies: Vec<_> = measured().flat_map(|s| s.latencies.clone()).collect();
        // Sessions that have just opened are no dip.
        let lowest = of_step().filter(|s| step != Step::Direct || s.during == While::Measuring);
        let stray = |s: &Sample| s.rates.count.iter().sum::<u64>() - s.rates.count[step.way()];
        Measured {
            goodput_bps: mean(&|s| s.rates.bps),
            lowest_bps: lowest.map(|s| s.rates.bps).fold(f64::INFINITY, f64::min),
            latency_p50_us: median_us(&mut latencies),
            packets: std::array::from_fn(|way| mean(&|s| s.rates.packets[way])),
            stray: measured().map(stray).sum(),
        }
    }

    /// Draws packets by their path, goodput and latency over time.
    pub(super) fn plot(&self, file: &Path) -> Result<()> {
        let curve = |name, colour, value: &dyn Fn(&Sample) -> f64| {
            let points = self.samples.iter();
            let points = points.map(|s| (s.at.as_secs_f64(), value(s)));
            Curve {
                name,
                colour,
                points: points.collect(),
            }
        };
        let ways = WAYS.iter().enumerate();
        let ways = ways.map(|(way, (name, colour))| {
            curve(name, *colour, &move |s| s.rates.packets[way] / 1e3)
        });
        let latency = |s: &Sample| median_us(&mut s.latencies.clone());
        let panels = [
            Panel {
                title: "1000 packets a second, by the way they took",
                height: 300,
                curves: ways.collect(),
            },
            Panel {
                title: "goodput of all sessions, Gbit/s",
                height: 220,
                curves: vec![curve("", MAGENTA, &|s| s.rates.bps / 1e9)],
            },
            Panel {
                title: "request, µs (median of 0.1 s)",
                height: 220,
                curves: vec![curve("", MAGENTA, &latency)],
            },
        ];
        plot::draw(file, &panels, &self.marks)
    }
}

/// Returns the median of nanoseconds, in microseconds, or 0 if there are none.
fn median_us(latencies: &mut [u32]) -> f64 {
    latencies.sort_unstable();
    let median = latencies.get(latencies.len() / 2).copied();
    f64::from(median.unwrap_or(0)) / 1e3
}

/// Counters at one time.
#[derive(Clone)]
struct Meter {
    at: Instant,
    bytes: u64,
    ways: Ways,
}

impl Meter {
    fn start(stage: &Stage, mix: &Mix) -> Result<Meter> {
        let ways = stage.ways()?;
        Ok(Meter {
            at: Instant::now(),
            bytes: mix.bytes(),
            ways,
        })
    }

    fn until(&self, later: &Meter) -> Rates {
        let time = (later.at - self.at).as_secs_f64();
        let of = |ways: &Ways, way: usize| match way {
            0 => ways.direct,
            _ => ways.through.get(way - 1).copied().unwrap_or(0),
        };
        let count = std::array::from_fn(|way| of(&later.ways, way) - of(&self.ways, way));
        Rates {
            bps: (later.bytes - self.bytes) as f64 * 8.0 / time,
            packets: count.map(|packets| packets as f64 / time),
            count,
        }
    }
}
