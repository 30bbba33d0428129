//! A figure: one number, the samples behind it, and its goal.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// Goal of a figure.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
}

impl Goal {
    /// The bound of the goal.
    pub(crate) fn bound(self) -> f64 {
        match self {
            Goal::AtLeast(bound) | Goal::AtMost(bound) => bound,
        }
    }
}

/// Direction in which a figure improves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Better {
    /// A larger value is better.
    More,
    /// A smaller value is better.
    Less,
}

impl Better {
    /// Direction according to the unit, or the name if there is no unit: less is better for a cost.
    pub(crate) fn of(name: &str, unit: &str) -> Better {
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

/// A static string. The type has a separate name, because serde would treat a plain reference as
/// borrowed from its input.
pub(crate) type Word = &'static str;

/// Reads a word of a stored run. There are few words, and they are never freed.
pub(crate) fn word<'de, D: Deserializer<'de>>(from: D) -> Result<Word, D::Error> {
    Ok(Box::leak(String::deserialize(from)?.into_boxed_str()))
}

/// Numbers of measurements above the bound of the previous bucket and up to this one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Bucket {
    /// Bound, in microseconds.
    pub up_to_us: f64,
    /// Number of measurements with a change.
    pub changed: usize,
    /// Number of measurements without one.
    pub unchanged: usize,
}

/// One number, with its origin.
#[derive(Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Name of the figure.
    pub name: String,
    /// Part of the benchmark that produced it.
    #[serde(deserialize_with = "word")]
    pub part: Word,
    /// Unit of the value; empty for a ratio.
    #[serde(deserialize_with = "word")]
    pub unit: Word,
    /// The value.
    pub value: f64,
    /// Confidence interval of 95 %, if the value is a median of samples.
    pub interval: Option<(f64, f64)>,
    /// Goal of the figure.
    pub goal: Option<Goal>,
    /// Value that the paper has published.
    pub paper: Option<f64>,
    /// Direction in which the figure improves.
    pub better: Better,
    /// Absolute measurements behind the value.
    pub aside: BTreeMap<String, f64>,
    /// Distribution of the measurements behind the value, if it is stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<Bucket>,
    /// Samples of which the value is the median or another rank, in the order of measurement.
    pub samples: Vec<f64>,
    /// Numbers of samples of the rounds, if there were several. Samples of one round have the same
    /// labs and sessions, and depend on each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<usize>,
}

impl Figure {
    /// Creates a figure that is one number.
    pub(crate) fn new(name: impl Into<String>, unit: &'static str, value: f64) -> Figure {
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
            histogram: Vec::new(),
            samples: Vec::new(),
            rounds: Vec::new(),
        }
    }

    /// Creates a figure from the median of samples of one round.
    pub(crate) fn median(name: impl Into<String>, unit: &'static str, samples: Vec<f64>) -> Figure {
        Figure::of_rounds(name, unit, vec![samples])
    }

    /// Creates a figure from the median of the samples of all rounds.
    pub(crate) fn of_rounds(
        name: impl Into<String>,
        unit: &'static str,
        rounds: Vec<Vec<f64>>,
    ) -> Figure {
        let value = median(&rounds.concat());
        Figure::new(name, unit, value).sampled(rounds)
    }

    /// Sets the samples, by round, and the interval of their median.
    pub(crate) fn sampled(mut self, rounds: Vec<Vec<f64>>) -> Figure {
        self.samples = rounds.concat();
        let counts = rounds.iter().map(Vec::len).filter(|count| *count > 0);
        self.rounds = counts.collect();
        if self.rounds.len() < 2 {
            self.rounds.clear();
        }
        self.interval = interval(&sorted(&independent(&self.samples, &self.rounds)));
        self
    }

    /// Sets the goal.
    pub(crate) fn goal(mut self, goal: Goal) -> Figure {
        self.goal = Some(goal);
        self.better = match goal {
            Goal::AtLeast(_) => Better::More,
            Goal::AtMost(_) => Better::Less,
        };
        self
    }

    /// Sets the value that the paper has published.
    pub(crate) fn paper(mut self, value: f64) -> Figure {
        self.paper = Some(value);
        self
    }

    /// Sets the distribution of the measurements behind the value.
    pub(crate) fn histogram(mut self, buckets: Vec<Bucket>) -> Figure {
        self.histogram = buckets;
        self
    }

    /// Adds a number that explains the figure.
    pub(crate) fn aside(mut self, name: &str, value: f64) -> Figure {
        self.aside.insert(name.into(), value);
        self
    }

    /// True if the figure meets its goal. None if it has no goal.
    pub(crate) fn met(&self) -> Option<bool> {
        self.goal.map(|goal| match goal {
            Goal::AtLeast(bound) => self.value >= bound,
            Goal::AtMost(bound) => self.value <= bound,
        })
    }
}

/// Returns the samples in ascending order.
pub(crate) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Returns the sample at a percentile of sorted samples, or NaN if there are none.
pub(crate) fn rank(sorted: &[f64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).max(1) - 1;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}

/// Returns the median.
pub(crate) fn median(samples: &[f64]) -> f64 {
    rank(&sorted(samples), 50)
}

/// Returns samples that do not depend on each other: the medians of the rounds if there were several,
/// and else all samples.
pub(crate) fn independent(samples: &[f64], rounds: &[usize]) -> Vec<f64> {
    if rounds.len() < 2 || rounds.iter().sum::<usize>() != samples.len() {
        return samples.to_vec();
    }
    let mut rest = samples;
    let round = |count: &usize| {
        let (round, more) = rest.split_at(*count);
        rest = more;
        median(round)
    };
    rounds.iter().map(round).collect()
}

/// Returns order statistics that enclose the median with a confidence of 95 %. They need no
/// assumption about the distribution of the samples.
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

/// Formats a value with as many digits as are significant.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 20.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
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

    /// Six rounds of equal samples say no more than six samples.
    #[test]
    fn the_samples_of_a_round_count_once() {
        let round = |value: u32| vec![f64::from(value); 30];
        let figure = Figure::of_rounds("x", "", (1..=6).map(round).collect());
        assert_eq!(figure.interval, Some((1.0, 6.0)));
        assert_eq!((figure.samples.len(), figure.rounds.len()), (180, 6));
        assert_eq!(
            independent(&figure.samples, &figure.rounds),
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
        );
        let few = Figure::of_rounds("x", "", (1..=3).map(round).collect());
        assert_eq!((few.value, few.interval), (2.0, None));
        let one = Figure::of_rounds("x", "", vec![round(1), vec![]]);
        assert!(one.interval.is_some() && one.rounds.is_empty());
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
