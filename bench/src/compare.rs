//! Comparison of two runs: differences that exceed chance.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::figure::{Better, independent, short};
use crate::ranks::{apart, most};

/// Minimum distance of the rank sum from its mean, in standard deviations. By chance 1 of 10,000
/// figures exceeds it, and a run has some hundreds.
const APART: f64 = 3.89;
/// Noise, as a share, above which a figure that has not changed by more is not called the same.
const TOO_NOISY: f64 = 0.15;
/// Prefixes of the names of controls: the same measurement as that of the baseline, once more.
const CONTROLS: [&str; 10] = [
    "control_cpu_",
    "control_goodput_",
    "control_latency_",
    "control_pps_",
    "control_requests_",
    "control_setup_",
    "control_shim_",
    "linked_control_",
    "rival_control_",
    "services_control_",
];
/// Prefixes of the names of other figures that measure no code of this project. The machine and its
/// neighbours cause the differences of these figures between two runs.
const FOREIGN: [&str; 15] = [
    "code_ns_that_world_alone",
    "copied_",
    "empty_programs_",
    "linked_empty_programs_",
    "path_ns_empty",
    "rival_copied_",
    "rival_direct_",
    "rival_nat_",
    "rival_nginx_",
    "rival_sockmap_",
    "rival_spliced_",
    "run_ns_empty",
    "services_haproxy_",
    "sockmap_",
    "spliced_",
];

/// Compares two runs, and tells a regression from noise.
#[derive(clap::Args)]
pub(crate) struct Compare {
    /// JSON file of the earlier run
    before: PathBuf,
    /// JSON file of the later run
    after: PathBuf,
}

/// A stored run.
#[derive(Deserialize)]
struct Past {
    date: String,
    commit: String,
    quick: bool,
    figures: Vec<PastFigure>,
}

#[derive(Deserialize)]
struct PastFigure {
    name: String,
    /// Empty in runs that do not state the part: all their figures are of one part.
    #[serde(default)]
    part: String,
    unit: String,
    value: Option<f64>,
    /// None in early runs.
    better: Option<Better>,
    #[serde(deserialize_with = "numbers")]
    samples: Vec<f64>,
    /// Empty in runs that do not state the rounds: all samples count.
    #[serde(default)]
    rounds: Vec<usize>,
}

/// Reads samples. JSON has no infinity: a turn without a result is stored as null.
fn numbers<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<f64>, D::Error> {
    let samples = Vec::<Option<f64>>::deserialize(from)?;
    Ok(samples.into_iter().flatten().collect())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Same,
    Improved,
    Regressed,
    /// With so few samples, even two completely separate sets would not differ by more than chance.
    CannotTell,
    /// The noise hides any difference that matters.
    TooNoisy,
    /// The figure measures no code of this project.
    Foreign,
}

impl Compare {
    /// Prints the differences. Returns an error if a figure became worse.
    pub(crate) fn run(&self) -> Result<()> {
        let (before, after) = (Past::read(&self.before)?, Past::read(&self.after)?);
        for (run, when) in [(&before, "before"), (&after, "after")] {
            let quick = if run.quick { ", a quick run" } else { "" };
            println!("{when}: {} UTC, {}{quick}", run.date, run.commit);
        }
        println!("| figure | before | after | change | noise | |\n|---|---:|---:|---:|---:|---|");
        let mut worse = Vec::new();
        let (mut reported, mut unclear) = (0, 0);
        for new in &after.figures {
            let Some(old) = before.figures.iter().find(|old| old.name == new.name) else {
                continue;
            };
            let (Some(from), Some(to)) = (old.value, new.value) else {
                continue;
            };
            let within = before.noise(old).max(after.noise(new));
            let noise = within.max(between(&before, &after, new));
            let verdict = judge(old, new, change(from, to), noise);
            println!(
                "| {} | {} {} | {} | {:+.1} % | {:.1} % | {} |",
                new.name,
                short(from),
                new.unit,
                short(to),
                change(from, to) * 100.0,
                noise * 100.0,
                verdict.words(),
            );
            match verdict {
                Verdict::Regressed => worse.push(new.name.as_str()),
                Verdict::CannotTell | Verdict::TooNoisy => unclear += 1,
                Verdict::Same | Verdict::Improved => reported += 1,
                Verdict::Foreign => {}
            }
        }
        println!("{reported} figures are no worse; {unclear} cannot be told");
        ensure!(worse.is_empty(), "worse than before: {}", worse.join(", "));
        let gone = before.gone_from(&after);
        ensure!(
            gone.is_empty(),
            "missing from the later run: {}",
            gone.join(", ")
        );
        Ok(())
    }
}

/// Largest change of foreign figures of the same nature between the two runs, as a share. A ratio
/// has those of the same quantity in its own part.
fn between(before: &Past, after: &Past, of: &PastFigure) -> f64 {
    let changed = |new: &PastFigure| -> Option<f64> {
        let old = before.figures.iter().find(|old| old.name == new.name)?;
        Some(change(old.value?, new.value?).abs())
    };
    // A difference caused by nothing is close to zero, so that its relative change is meaningless.
    let tells = |f: &&PastFigure| f.is_foreign() && !f.name.contains("_added_");
    // The machine's speed has no influence on an amount.
    let alike = |f: &&PastFigure| match (of.nature(), f.nature()) {
        (Nature::Ratio, Nature::Ratio) => f.part == of.part && f.measure() == of.measure(),
        (Nature::Speed, Nature::Speed) => true,
        _ => false,
    };
    let all = after.figures.iter().filter(tells).filter(alike);
    all.filter_map(changed).reduce(f64::max).unwrap_or(0.0)
}

/// Meaning of a difference between two runs for other figures.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nature {
    /// A ratio, which the machine's speed changes little.
    Ratio,
    /// A time or a rate, which the machine's speed changes.
    Speed,
    /// A number of bytes, packets or others, which the machine's speed does not change.
    Amount,
}

/// Measured quantities of ratios, by words in the figures' names. One varies more than another.
const MEASURES: [&str; 7] = [
    "goodput",
    "cpu",
    "latency_p50",
    "latency_p99",
    "requests",
    "pps",
    "volleys",
];

impl PastFigure {
    fn better(&self) -> Better {
        let usual = || Better::of(&self.name, &self.unit);
        self.better.unwrap_or_else(usual)
    }

    fn is_control(&self) -> bool {
        CONTROLS.iter().any(|begin| self.name.starts_with(begin))
    }

    fn is_foreign(&self) -> bool {
        self.is_control() || FOREIGN.iter().any(|begin| self.name.starts_with(begin))
    }

    fn nature(&self) -> Nature {
        match self.unit.as_str() {
            "" => Nature::Ratio,
            "ns" | "µs" | "ms" | "s" => Nature::Speed,
            rate if rate.ends_with("/s") => Nature::Speed,
            _ => Nature::Amount,
        }
    }

    /// The quantity that a ratio compares, if its name has one.
    fn measure(&self) -> Option<&'static str> {
        let named = |word: &&&str| self.name.contains(**word);
        let all = MEASURES.iter().find(named).copied();
        all.filter(|_| self.nature() == Nature::Ratio)
    }
}

/// Relative change of a figure.
fn change(from: f64, to: f64) -> f64 {
    if from == to { 0.0 } else { to / from - 1.0 }
}

impl Past {
    fn read(file: &Path) -> Result<Past> {
        let shown = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("failed to read {shown}"))?;
        serde_json::from_str(&text).with_context(|| format!("{shown} has no results"))
    }

    /// Figures that a later run lacks. A quick run leaves some out.
    fn gone_from(&self, later: &Past) -> Vec<&str> {
        let here = |name: &str| later.figures.iter().any(|f| f.name == name);
        let names = self.figures.iter().map(|f| f.name.as_str());
        names.filter(|name| !later.quick && !here(name)).collect()
    }

    /// Largest error of a control in the figure's part of the benchmark, as a share: of those of the
    /// same quantity, or else of all. If the part has no control, the largest error of a control in
    /// the whole run. A time or an amount has only controls of its part.
    fn noise(&self, of: &PastFigure) -> f64 {
        let within = |wanted: &dyn Fn(&PastFigure) -> bool| {
            let all = self.figures.iter().filter(|f| wanted(f));
            all.filter_map(|f| self.apart(f)).reduce(f64::max)
        };
        let whole = || match of.nature() {
            Nature::Ratio => within(&|_| true),
            Nature::Speed | Nature::Amount => None,
        };
        within(&|f| f.part == of.part && f.measure() == of.measure())
            .or_else(|| within(&|f| f.part == of.part))
            .or_else(whole)
            .unwrap_or(0.0)
    }

    /// Distance of a control from its ideal value. None for other figures.
    fn apart(&self, control: &PastFigure) -> Option<f64> {
        let value = control.value?;
        if !control.is_control() {
            return None;
        }
        if control.unit.is_empty() {
            return Some((value - 1.0).abs());
        }
        // An added amount should be zero: its distance is a share of the figure that it controls.
        let controlled = control.name.strip_prefix("control_")?;
        let controlled = self.figures.iter().find(|f| f.name == controlled)?;
        Some((value / controlled.value?).abs())
    }
}

/// Judges a difference. It counts if the samples show more than chance and it exceeds the noise:
/// samples of one run differ less than runs do.
fn judge(old: &PastFigure, new: &PastFigure, change: f64, noise: f64) -> Verdict {
    if new.is_foreign() {
        return Verdict::Foreign;
    }
    let [before, after] = [old, new].map(|f| independent(&f.samples, &f.rounds));
    if most(before.len(), after.len()) < APART {
        return Verdict::CannotTell;
    }
    if change.abs() <= noise && noise > TOO_NOISY {
        return Verdict::TooNoisy;
    }
    if apart(&before, &after) < APART || change.abs() <= noise {
        return Verdict::Same;
    }
    if (change > 0.0) == (new.better() == Better::More) {
        Verdict::Improved
    } else {
        Verdict::Regressed
    }
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Verdict::Same => "",
            Verdict::Improved => "better",
            Verdict::Regressed => "**worse**",
            Verdict::CannotTell => "too few samples to tell",
            Verdict::TooNoisy => "too much noise to tell",
            Verdict::Foreign => "not Dysco's code",
        }
    }
}

#[cfg(test)]
mod tests;
