//! Watches the traffic: ten samples per second, and a line each second.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use dysco_netns::counters;
use plotters::style::{BLUE, RED};

use super::mix::Mix;
use super::plot::{self, Curve, Panel};

/// Phase to which a sample belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Before,
    BeforeQuiet,
    After,
    AfterQuiet,
    Direct,
    DirectQuiet,
    Settling,
}

impl Phase {
    /// Returns the corresponding phase with the bulk traffic paused.
    pub(super) fn quiet(self) -> Phase {
        match self {
            Phase::Before => Phase::BeforeQuiet,
            Phase::After => Phase::AfterQuiet,
            Phase::Direct => Phase::DirectQuiet,
            other => other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Phase::Before => "through HAProxy",
            Phase::BeforeQuiet => "  requests only",
            Phase::After => "after the removal",
            Phase::AfterQuiet => "  requests only",
            Phase::Direct => "straight to nginx",
            Phase::DirectQuiet => "  requests only",
            Phase::Settling => "",
        }
    }
}

/// A sample of a tenth of a second.
struct Sample {
    /// Time since the start of the traffic.
    at: Duration,
    phase: Phase,
    goodput_bps: f64,
    latency_p50_us: Option<f64>,
    /// Event just before the sample.
    mark: Option<&'static str>,
}

/// Measurements of a stretch of time.
#[derive(Clone, Copy, Default)]
pub(super) struct Stretch {
    pub goodput_bps: f64,
    pub latency_p50_us: f64,
    /// Number of processors that HAProxy kept busy.
    pub proxy_cpu: f64,
}

/// Watcher of the traffic.
pub(super) struct Watch {
    samples: Vec<Sample>,
    speaks: bool,
    haproxy: u32,
    start: Instant,
    mark: Option<&'static str>,
}

const SAMPLE: Duration = Duration::from_millis(100);

impl Watch {
    /// Creates a watcher. It prints lines if `speaks` is true.
    pub(super) fn new(speaks: bool, haproxy: u32) -> Watch {
        Watch {
            samples: vec![],
            speaks,
            haproxy,
            start: Instant::now(),
            mark: None,
        }
    }

    /// Prints a text, if the watcher prints lines.
    pub(super) fn say(&self, text: &str) {
        if self.speaks {
            println!("{text}");
        }
    }

    /// Marks this moment in the samples.
    pub(super) fn mark(&mut self, what: &'static str) {
        self.mark = Some(what);
    }

    /// Watches for this time.
    pub(super) fn run(&mut self, mix: &Mix, phase: Phase, time: Duration) -> Stretch {
        let whole = Meter::start(self.haproxy, mix);
        let (mut second, mut all) = (Meter::start(self.haproxy, mix), Vec::new());
        mix.take_latencies();
        let mut recent = Vec::new();
        while whole.start.elapsed() < time {
            let meter = Meter::start(self.haproxy, mix);
            std::thread::sleep(SAMPLE);
            let mut latencies = mix.take_latencies();
            recent.extend_from_slice(&latencies);
            let now = meter.read(mix, &mut latencies);
            let latency = (!latencies.is_empty()).then_some(now.latency_p50_us);
            self.samples.push(Sample {
                at: self.start.elapsed(),
                phase,
                goodput_bps: now.goodput_bps,
                latency_p50_us: latency,
                mark: self.mark.take(),
            });
            if second.start.elapsed() >= Duration::from_secs(1) {
                self.line(phase, second.read(mix, &mut recent));
                all.append(&mut recent);
                second = Meter::start(self.haproxy, mix);
            }
        }
        all.append(&mut recent);
        whole.read(mix, &mut all)
    }

    /// Draws goodput and latency over time.
    pub(super) fn plot(&self, file: &Path) -> Result<()> {
        let curve = |colour, value: &dyn Fn(&Sample) -> Option<f64>| {
            let points = self.samples.iter();
            let points = points.filter_map(|s| Some((s.at.as_secs_f64(), value(s)?)));
            Curve {
                name: "",
                colour,
                points: points.collect(),
            }
        };
        let panels = [
            Panel {
                title: "goodput, Gbit/s",
                height: 340,
                curves: vec![curve(BLUE, &|s| Some(s.goodput_bps / 1e9))],
            },
            Panel {
                title: "request, µs (median of 0.1 s)",
                height: 300,
                curves: vec![curve(RED, &|s| s.latency_p50_us)],
            },
        ];
        let at = |s: &Sample| s.at.as_secs_f64();
        let marks = self.samples.iter().filter_map(|s| Some((at(s), s.mark?)));
        let mut direct = self.samples.iter().filter(|s| s.phase == Phase::Direct);
        let direct = direct.next().map(|s| (at(s), "straight to nginx"));
        let marks: Vec<_> = marks.chain(direct).collect();
        plot::draw(file, &panels, &marks)
    }

    fn line(&self, phase: Phase, second: Stretch) {
        if phase == Phase::Settling {
            return;
        }
        let Stretch {
            goodput_bps,
            latency_p50_us,
            proxy_cpu,
        } = second;
        self.say(&format!(
            "{:>5.1} s  {:18} {:>7.2} Gbit/s   request {:>7.0} µs   HAProxy {:>4.0} % cpu",
            self.start.elapsed().as_secs_f64(),
            phase.name(),
            goodput_bps / 1e9,
            latency_p50_us,
            proxy_cpu * 100.0,
        ));
    }
}

/// Counters from one time on.
struct Meter {
    start: Instant,
    haproxy: u32,
    bytes: u64,
    cpu: Duration,
}

impl Meter {
    fn start(haproxy: u32, mix: &Mix) -> Meter {
        Meter {
            start: Instant::now(),
            haproxy,
            bytes: mix.bytes(),
            cpu: cpu(haproxy),
        }
    }

    fn read(&self, mix: &Mix, latencies: &mut [u32]) -> Stretch {
        let time = self.start.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let median = latencies.get(latencies.len() / 2).copied().unwrap_or(0);
        Stretch {
            goodput_bps: (mix.bytes() - self.bytes) as f64 * 8.0 / time,
            latency_p50_us: f64::from(median) / 1e3,
            proxy_cpu: cpu(self.haproxy).saturating_sub(self.cpu).as_secs_f64() / time,
        }
    }
}

fn cpu(pid: u32) -> Duration {
    counters::cpu_time(pid).unwrap_or_default()
}
