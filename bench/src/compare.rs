//! Comparison of two runs: differences that exceed chance.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::figure::{Better, short};
use crate::ranks::{apart, most};

/// Minimum distance of the rank sum from its mean, in standard deviations. By chance 1 of 10,000
/// figures exceeds it, and a run has some hundreds.
const APART: f64 = 3.89;
/// Prefixes of the names of figures that measure no code of this project. The machine and its
/// neighbours cause the differences of these figures between two runs.
const FOREIGN: [&str; 15] = [
    "code_ns_that_world_alone",
    "control_",
    "copied_",
    "empty_programs_",
    "path_ns_empty",
    "rival_control_",
    "rival_copied_",
    "rival_direct_",
    "rival_nat_",
    "rival_nginx_",
    "rival_sockmap_",
    "rival_spliced_",
    "run_ns_empty",
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
                Verdict::CannotTell => unclear += 1,
                Verdict::Same | Verdict::Improved => reported += 1,
                Verdict::Foreign => {}
            }
        }
        println!("{reported} figures are no worse; {unclear} have too few samples to tell");
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

/// Largest change of foreign figures between the two runs, as a share. For a ratio, the foreign
/// ratios of the same part count. For a time or a rate, all foreign times and rates count, because
/// they show the speed of the machine.
fn between(before: &Past, after: &Past, of: &PastFigure) -> f64 {
    let changed = |new: &PastFigure| -> Option<f64> {
        let old = before.figures.iter().find(|old| old.name == new.name)?;
        Some(change(old.value?, new.value?).abs())
    };
    // A difference caused by nothing is close to zero, so that its relative change is meaningless.
    let tells = |f: &&PastFigure| f.is_foreign() && !f.name.contains("_added_");
    let alike = |f: &&PastFigure| match of.unit.is_empty() {
        true => f.unit.is_empty() && f.part == of.part,
        false => !f.unit.is_empty(),
    };
    let all = after.figures.iter().filter(tells).filter(alike);
    all.filter_map(changed).reduce(f64::max).unwrap_or(0.0)
}

impl PastFigure {
    fn better(&self) -> Better {
        let usual = || Better::of(&self.name, &self.unit);
        self.better.unwrap_or_else(usual)
    }

    fn is_foreign(&self) -> bool {
        FOREIGN.iter().any(|begin| self.name.starts_with(begin))
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

    /// Largest error of a control in the figure's part of the benchmark, as a share. If the part
    /// has no control, the largest error of a control in the whole run.
    fn noise(&self, of: &PastFigure) -> f64 {
        let within = |part: Option<&str>| {
            let all = self.figures.iter();
            let own = all.filter(|f| part.is_none_or(|part| f.part == part));
            own.filter_map(|f| self.apart(f)).reduce(f64::max)
        };
        within(Some(&of.part))
            .or_else(|| within(None))
            .unwrap_or(0.0)
    }

    /// Distance of a control from its ideal value. None for other figures.
    fn apart(&self, control: &PastFigure) -> Option<f64> {
        let value = control.value?;
        if !control.name.contains("control") {
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
    if most(old.samples.len(), new.samples.len()) < APART {
        return Verdict::CannotTell;
    }
    if apart(&old.samples, &new.samples) < APART || change.abs() <= noise {
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
            Verdict::Foreign => "not Dysco's code",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(better: Better, centre: f64, count: usize) -> PastFigure {
        let samples = (0..count).map(|i| centre * (1.0 + (i % 7) as f64 * 0.01));
        PastFigure {
            name: "x".into(),
            part: "a".into(),
            unit: String::new(),
            value: Some(centre),
            better: Some(better),
            samples: samples.collect(),
        }
    }

    fn verdict(better: Better, to: f64, count: usize, noise: f64) -> Verdict {
        let (old, new) = (figure(better, 1.0, count), figure(better, to, count));
        judge(&old, &new, to - 1.0, noise)
    }

    #[test]
    fn a_clear_change_is_known_by_its_direction() {
        assert_eq!(verdict(Better::More, 0.9, 40, 0.01), Verdict::Regressed);
        assert_eq!(verdict(Better::Less, 0.9, 40, 0.01), Verdict::Improved);
    }

    #[test]
    fn chance_and_noise_are_no_change() {
        assert_eq!(verdict(Better::More, 0.999, 40, 0.0), Verdict::Same);
        assert_eq!(verdict(Better::More, 0.9, 40, 0.2), Verdict::Same);
    }

    /// Ten samples cannot distinguish half the value from chance at the odds that this many figures
    /// require.
    #[test]
    fn what_cannot_be_distinguished_is_not_called_the_same() {
        for count in [0, 3, 10] {
            assert_eq!(verdict(Better::More, 0.5, count, 0.0), Verdict::CannotTell);
        }
        assert_eq!(verdict(Better::More, 0.5, 14, 0.0), Verdict::Regressed);
    }

    #[test]
    fn what_is_none_of_ours_gets_no_worse() {
        let mut rival = figure(Better::More, 1.0, 40);
        rival.name = "rival_nginx_requests".into();
        let slower = figure(Better::More, 0.5, 40);
        let slower = PastFigure {
            name: rival.name.clone(),
            ..slower
        };
        assert_eq!(judge(&rival, &slower, -0.5, 0.0), Verdict::Foreign);
    }

    fn run_of(quick: bool, figures: &[(&str, &str, f64)]) -> Past {
        let of = |&(name, part, value): &(&str, &str, f64)| PastFigure {
            name: name.into(),
            part: part.into(),
            unit: if name.contains("_ns") { "ns" } else { "" }.into(),
            value: Some(value),
            ..figure(Better::More, 1.0, 0)
        };
        Past {
            date: String::new(),
            commit: String::new(),
            quick,
            figures: figures.iter().map(of).collect(),
        }
    }

    /// A slower machine makes all figures of a part worse.
    #[test]
    fn runs_differ_by_as_much_as_what_is_none_of_ours_does() {
        let before = run_of(
            false,
            &[
                ("spliced_goodput", "local", 1.0),
                ("sockmap_goodput", "local", 1.0),
                ("local_goodput", "local", 1.0),
                ("lookup_ns", "lookup", 1.0),
                ("shim_ratio", "shim", 1.0),
                ("run_ns_empty", "packet", 30.0),
            ],
        );
        let after = run_of(
            false,
            &[
                ("spliced_goodput", "local", 1.3),
                ("sockmap_goodput", "local", 0.9),
                ("local_goodput", "local", 9.0),
                ("lookup_ns", "lookup", 9.0),
                ("shim_ratio", "shim", 9.0),
                ("run_ns_empty", "packet", 45.0),
            ],
        );
        for (at, wanted) in [(2, 0.3), (3, 0.5), (4, 0.0)] {
            let of = &after.figures[at];
            let noise = between(&before, &after, of);
            assert!((noise - wanted).abs() < 1e-9, "{}: {noise}", of.name);
        }
    }

    #[test]
    fn what_is_not_measured_any_more_is_reported() {
        let before = run_of(false, &[("a", "x", 1.0), ("b", "x", 1.0)]);
        let after = |quick| run_of(quick, &[("b", "x", 1.0)]);
        assert_eq!(before.gone_from(&after(false)), ["a"]);
        assert!(before.gone_from(&after(true)).is_empty());
    }

    #[test]
    fn noise_is_that_of_the_same_part() {
        let of = |name: &str, part: &str, unit: &str, value| PastFigure {
            name: name.into(),
            part: part.into(),
            unit: unit.into(),
            value: Some(value),
            ..figure(Better::More, 1.0, 0)
        };
        let run = Past {
            date: String::new(),
            commit: String::new(),
            quick: false,
            figures: vec![
                of("control_a", "calm", "", 0.99),
                of("a", "calm", "", 0.9),
                of("control_b", "rough", "", 1.2),
                of("added", "opening", "µs", 100.0),
                of("control_added", "opening", "µs", -3.0),
                of("c", "without", "", 1.0),
            ],
        };
        let noise = [1, 3, 5].map(|at| run.noise(&run.figures[at]));
        for (noise, wanted) in noise.into_iter().zip([0.01, 0.03, 0.2]) {
            assert!((noise - wanted).abs() < 1e-9, "{noise} is not {wanted}");
        }
    }
}
