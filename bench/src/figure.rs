//! A figure: one number, what it was made of, and what it should be.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// What a figure should be.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Goal {
    /// The number itself.
    pub fn bound(self) -> f64 {
        match self {
            Goal::AtLeast(bound) | Goal::AtMost(bound) => bound,
        }
    }
}

/// Which way a figure gets better.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Upwards.
    More,
    /// Downwards.
    Less,
}

impl Better {
    /// As its unit says, or its name if it has none: what is spent, less of it.
    pub fn of(name: &str, unit: &str) -> Better {
        let spent = ["latency", "cpu", "_vs_1k"]
            .iter()
            .any(|w| name.contains(w));
        if spent || !matches!(unit, "" | "Gbit/s" | "requests/s") {
            Better::Less
        } else {
            Better::More
        }
    }
}

/// By a name of its own, since serde would take it for borrowed from what it reads.
pub type Word = &'static str;

/// A word of a run that is read back. There are few, and they are kept for good.
pub fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    Ok(Box::leak(String::deserialize(from)?.into_boxed_str()))
}

/// One number, with all it came from.
#[derive(Serialize, Deserialize)]
pub struct Figure {
    /// What it is called.
    pub name: String,
    /// The part of the benchmark that found it.
    #[serde(deserialize_with = "word")]
    pub part: Word,
    /// Its unit; a ratio has none.
    #[serde(deserialize_with = "word")]
    pub unit: Word,
    /// The number.
    pub value: f64,
    /// Where it lies with a confidence of 95 %, if it is a median of samples.
    pub interval: Option<(f64, f64)>,
    /// What it should be.
    pub goal: Option<Goal>,
    /// What the paper has published for it.
    pub paper: Option<f64>,
    /// Which way it gets better.
    pub better: Better,
    /// What was measured to get it, in absolute terms.
    pub aside: BTreeMap<String, f64>,
    /// The numbers that it is the median or another rank of, as they came.
    pub samples: Vec<f64>,
}

impl Figure {
    /// A figure that is one number.
    pub fn new(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
        let name = name.into();
        Figure {
            better: Better::of(&name, unit),
            name,
            part: "",
            unit,
            value,
            interval: None,
            goal: None,
            paper: None,
            aside: BTreeMap::new(),
            samples: Vec::new(),
        }
    }

    /// The median of samples.
    pub fn median(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Figure {
        let sorted = sorted(&samples);
        Figure {
            interval: interval(&sorted),
            samples,
            ..Figure::new(name, unit, rank(&sorted, 50))
        }
    }

    /// Says what it should be.
    pub fn goal(mut self, goal: Goal) -> Figure {
        self.goal = Some(goal);
        self.better = match goal {
            Goal::AtLeast(_) => Better::More,
            Goal::AtMost(_) => Better::Less,
        };
        self
    }

    /// Says what the paper has published for it.
    pub fn paper(mut self, value: f64) -> Figure {
        self.paper = Some(value);
        self
    }

    /// Adds a number that explains it.
    pub fn aside(mut self, name: &str, value: f64) -> Figure {
        self.aside.insert(name.into(), value);
        self
    }

    /// Whether it is as it should be.
    pub fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::AtLeast(bound) => self.value >= bound,
            Goal::AtMost(bound) => self.value <= bound,
        })
    }
}

/// In order.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// The sample at a percentile of those in order; NaN of none.
pub fn rank(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// The median.
pub fn median(samples: &[f64]) -> f64 {
    rank(&sorted(samples), 50)
}

/// Order statistics that enclose the median with a confidence of 95 %: needs
/// no assumption about how samples are spread.
fn interval(sorted: &[f64]) -> Option<(f64, f64)> {
    let n = sorted.len() as f64;
    let reach = 1.96 * n.sqrt() / 2.0;
    let low = (n / 2.0 - reach).floor();
    let high = (n / 2.0 + reach).ceil();
    if sorted.len() < 6 {
        return None;
    }
    let at = |i: f64| sorted.get(i as usize).copied();
    Some((at(low.max(0.0))?, at(high.min(n - 1.0))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_its_interval() {
        let figure = Figure::median("x", "", (1..=41).rev().map(f64::from).collect());
        assert_eq!(figure.value, 21.0);
        assert_eq!(figure.interval, Some((15.0, 28.0)));
        assert_eq!(figure.samples[0], 41.0);
    }

    #[test]
    fn ranks_are_samples_themselves() {
        let all: Vec<_> = (1..=200).map(f64::from).collect();
        assert_eq!(rank(&all, 99), 198.0);
        assert_eq!(rank(&all[..1], 99), 1.0);
        assert!(rank(&[], 50).is_nan());
    }

    #[test]
    fn a_goal_is_met_or_not() {
        let figure = |goal| Figure::new("x", "", 0.98).goal(goal).met();
        assert_eq!(figure(Goal::AtLeast(0.97)), Some(true));
        assert_eq!(figure(Goal::AtMost(0.97)), Some(false));
        assert_eq!(Figure::new("x", "", 1.0).met(), None);
    }
}
