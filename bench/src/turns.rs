//! Sessions of several kinds that take turns, one at a time.

use std::time::Duration;

use anyhow::Result;

use crate::bulk::Bulk;
use crate::figure::{Figure, median};
use crate::ping::Ping;

/// Baseline: the kind with which all others are compared.
pub(crate) const BASE: usize = 0;
/// Time for which new sessions carry data before their turns.
pub(crate) const RUN_IN: Duration = Duration::from_millis(50);
/// Divisor of a turn. This share of a turn precedes it and is not counted.
const UNCOUNTED: u32 = 5;

/// Results of a turn.
#[derive(Clone, Copy, Default)]
pub(crate) struct Brought {
    /// Bits per second, or the median time of a request in microseconds.
    pub value: f64,
    /// Requests per second, if there are requests.
    pub rate: f64,
    /// 99th percentile of the request time, in microseconds.
    pub p99: f64,
    /// Number of processors that one process kept busy, if a process was observed.
    pub process: f64,
    /// Busy time of the machine's processors, in seconds, or in microseconds if there are requests.
    pub busy: f64,
    /// Number of gigabytes that arrived, or of requests.
    pub done: f64,
}

/// Results of the turns of `K` kinds. The speed of a shared machine varies. The baseline therefore
/// has a turn between any two others, and each turn of another kind is compared with the adjacent
/// turns of the baseline.
pub(crate) struct Turns<const K: usize> {
    /// Name of the baseline.
    base: &'static str,
    /// Turns with their kinds. The turns of a row follow each other without a break.
    rows: Vec<Vec<(usize, Brought)>>,
}

impl<const K: usize> Turns<K> {
    /// Creates an empty set of turns.
    pub(crate) fn new(base: &'static str) -> Turns<K> {
        Turns {
            base,
            rows: Vec::new(),
        }
    }

    /// Gives the streams `count` turns each. `process` returns the processor time that a process
    /// has used.
    pub(crate) fn bulk(
        &mut self,
        sessions: &[Bulk; K],
        count: usize,
        time: Duration,
        process: impl Fn() -> Result<Duration>,
    ) -> Result<()> {
        let run_in = time / UNCOUNTED;
        self.each(count, |kind| {
            let before = process()?;
            let bits = sessions[kind].measure(run_in, time)?;
            let spent = (process()? - before).as_secs_f64();
            Ok(Brought {
                value: bits.rate,
                process: spent / (run_in + time).as_secs_f64(),
                busy: bits.busy.as_secs_f64(),
                done: bits.bytes as f64 / 1e9,
                ..Brought::default()
            })
        })
    }

    /// Gives the sessions of requests `count` turns each.
    pub(crate) fn requests(
        &mut self,
        sessions: &[Ping; K],
        count: usize,
        time: Duration,
    ) -> Result<()> {
        self.each(count, |kind| {
            let answers = sessions[kind].measure(time)?;
            Ok(Brought {
                value: answers.p50_us,
                rate: answers.rate,
                ..Brought::default()
            })
        })
    }

    /// Gives each kind `count` turns of another measurement.
    pub(crate) fn each(
        &mut self,
        count: usize,
        mut measure: impl FnMut(usize) -> Result<Brought>,
    ) -> Result<()> {
        let turn = |kind| Ok((kind, measure(kind)?));
        self.rows
            .push(order::<K>(count).map(turn).collect::<Result<_>>()?);
        Ok(())
    }

    /// Returns the results of a kind's turns.
    pub(crate) fn of(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<f64> {
        let turns = self.rows.iter().flatten().filter(|turn| turn.0 == kind);
        turns.map(|(_, brought)| what(brought)).collect()
    }

    /// Returns the ratios of a kind's results to those of the baseline's adjacent turns, by row.
    pub(crate) fn ratios(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<Vec<f64>> {
        self.beside_base(kind, what, |this, base| this / base)
    }

    /// Returns the differences between a kind's results and those of the baseline's adjacent turns.
    pub(crate) fn differences(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<f64> {
        self.beside_base(kind, what, |this, base| this - base)
            .concat()
    }

    fn beside_base(
        &self,
        kind: usize,
        what: impl Fn(&Brought) -> f64,
        compared: impl Fn(f64, f64) -> f64,
    ) -> Vec<Vec<f64>> {
        let beside = |turns: &[(usize, Brought)]| match turns {
            [(BASE, before), (this, brought), (BASE, after)] if *this == kind => {
                let base = (what(before) + what(after)) / 2.0;
                Some(compared(what(brought), base))
            }
            _ => None,
        };
        let row = |row: &Vec<_>| row.windows(3).filter_map(&beside).collect();
        self.rows.iter().map(row).collect()
    }

    /// Figure of a kind's values, compared with the baseline's.
    pub(crate) fn figure(&self, name: String, kind: usize, scale: f64, unit: &str) -> Figure {
        self.figure_of(name, kind, |b| b.value / scale, unit)
    }

    /// Figure of a result of the turns, compared with the baseline's.
    pub(crate) fn figure_of(
        &self,
        name: String,
        kind: usize,
        what: impl Fn(&Brought) -> f64,
        unit: &str,
    ) -> Figure {
        Figure::of_rounds(name, "", self.ratios(kind, &what))
            .aside(
                &format!("{}, {unit}", self.base),
                median(&self.of(BASE, &what)),
            )
            .aside(&format!("this, {unit}"), median(&self.of(kind, &what)))
    }
}

impl<const K: usize> Turns<K> {
    /// Figure of the processor time for a gigabyte or a request, compared with the baseline's. A turn
    /// has few ticks of the clock that measures the time. The turns of each row are therefore taken
    /// together.
    pub(crate) fn cost(&self, name: String, kind: usize, unit: &str) -> Figure {
        let rows: Vec<&[_]> = self.rows.iter().map(Vec::as_slice).collect();
        let ratio = |row: &&[_]| spent(row, kind) / spent(row, BASE);
        let samples = rows.iter().map(|row| vec![ratio(row)]).collect();
        let all = rows.concat();
        Figure::new(name, "", ratio(&all.as_slice()))
            .sampled(samples)
            .aside(&format!("{}, {unit}", self.base), spent(&all, BASE))
            .aside(&format!("this, {unit}"), spent(&all, kind))
    }
}

/// Busy time of a kind's turns for what they have done.
fn spent(turns: &[(usize, Brought)], kind: usize) -> f64 {
    let own = turns.iter().filter(|turn| turn.0 == kind);
    let sums = own.fold((0.0, 0.0), |(busy, done), (_, brought)| {
        (busy + brought.busy, done + brought.done)
    });
    sums.0 / sums.1
}

/// Order of the turns: `count` of each kind except the baseline, which has a turn before and after
/// each of them. Each of the other kinds is in each place equally often.
pub(crate) fn order<const K: usize>(count: usize) -> impl Iterator<Item = usize> {
    let others = (0..count).flat_map(others::<K>);
    std::iter::once(BASE).chain(others.flat_map(|kind| [kind, BASE]))
}

/// All kinds except the baseline, in the order of a turn.
fn others<const K: usize>(turn: usize) -> impl Iterator<Item = usize> {
    let mut kinds: Vec<usize> = (0..K).filter(|kind| *kind != BASE).collect();
    if turn % 2 == 1 {
        kinds.reverse();
    }
    let first = turn / 2 % kinds.len().max(1);
    kinds.rotate_left(first);
    kinds.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_turn_in_each_place() {
        const K: usize = 5;
        for place in 0..K - 1 {
            let place_of = |turn| others::<K>(turn).nth(place);
            let mut kinds: Vec<_> = (0..2 * (K - 1)).filter_map(place_of).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [1, 1, 2, 2, 3, 3, 4, 4]);
        }
    }

    #[test]
    fn the_base_is_before_and_after_each() {
        let kinds: Vec<_> = order::<3>(2).collect();
        assert_eq!(kinds, [0, 1, 0, 2, 0, 2, 0, 1, 0]);
    }

    /// A machine that constantly becomes slower makes no kind better than another.
    #[test]
    fn what_changes_evenly_makes_no_difference() {
        let mut turns = Turns::<3>::new("base");
        let speed = std::cell::Cell::new(100.0);
        let measure = |kind| {
            speed.set(speed.get() - 1.0);
            let value = speed.get() * if kind == 2 { 0.5 } else { 1.0 };
            Ok(Brought {
                value,
                ..Brought::default()
            })
        };
        turns.each(4, measure).expect("turns that cannot fail");
        assert_eq!(turns.ratios(1, |b| b.value), [[1.0; 4]]);
        assert_eq!(turns.ratios(2, |b| b.value), [[0.5; 4]]);
        assert_eq!(turns.of(2, |b| b.value).len(), 4);
    }

    /// A turn of six ticks shows five or seven.
    #[test]
    fn processor_time_is_that_of_all_turns() {
        let mut turns = Turns::<2>::new("base");
        let mut ticks = [0.05, 0.07].into_iter().cycle();
        let mut measure = |kind| {
            let busy = ticks.next().unwrap_or_default() * if kind == 1 { 2.0 } else { 1.0 };
            Ok(Brought {
                busy,
                done: 1.0,
                ..Brought::default()
            })
        };
        for _ in 0..7 {
            turns.each(8, &mut measure).expect("turns that cannot fail");
        }
        let figure = turns.cost("cpu".into(), 1, "s/GB");
        assert!((figure.value - 2.0).abs() < 0.15, "{}", figure.value);
        assert_eq!((figure.samples.len(), figure.rounds.len()), (7, 7));
        assert!(figure.interval.is_some());
    }
}
