//! Sessions of several kinds that take turns, one at a time.

use std::time::Duration;

use anyhow::Result;

use crate::bulk::Bulk;
use crate::figure::{Figure, median};
use crate::machine;
use crate::ping::Ping;

/// The kind that all others are compared with.
pub const BASE: usize = 0;
/// For how long what has been opened carries something before its turns.
pub const RUN_IN: Duration = Duration::from_millis(50);
/// The share of a turn, as a divisor, that passes before it and is not counted.
const UNCOUNTED: u32 = 5;

/// What a turn brought.
#[derive(Clone, Copy, Default)]
pub struct Brought {
    /// Bits a second, or the median time of a request in microseconds.
    pub value: f64,
    /// Requests a second, where there are requests.
    pub rate: f64,
    /// The time that one request of a hundred exceeds, microseconds.
    pub p99: f64,
    /// Processors that one process kept busy, where one was looked at.
    pub process: f64,
    /// Time for which processors of the machine were busy: seconds a gigabyte that
    /// arrived, or microseconds a request.
    pub cpu: f64,
}

/// What the turns of `K` kinds brought. A machine that others use too is now faster and
/// now slower: so the base has a turn between any two others, and each of these is held
/// against those of the base that were next to it.
pub struct Turns<const K: usize> {
    /// What the kind is called that all others are compared with.
    base: &'static str,
    /// Turns, with their kinds; each row without a break.
    rows: Vec<Vec<(usize, Brought)>>,
}

impl<const K: usize> Turns<K> {
    /// None so far.
    pub fn new(base: &'static str) -> Turns<K> {
        Turns {
            base,
            rows: Vec::new(),
        }
    }

    /// Streams take so many turns each; `process` says what a process has used.
    pub fn bulk(
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
                cpu: bits.busy.as_secs_f64() / (bits.bytes as f64 / 1e9),
                ..Brought::default()
            })
        })
    }

    /// Sessions of requests take so many turns each.
    pub fn requests(&mut self, sessions: &[Ping; K], count: usize, time: Duration) -> Result<()> {
        self.each(count, |kind| {
            let answers = sessions[kind].measure(time)?;
            Ok(Brought {
                value: answers.p50_us,
                rate: answers.rate,
                ..Brought::default()
            })
        })
    }

    /// Something else takes so many turns of each kind.
    pub fn each(
        &mut self,
        count: usize,
        mut measure: impl FnMut(usize) -> Result<Brought>,
    ) -> Result<()> {
        let turn = |kind| Ok((kind, measure(kind)?));
        self.rows
            .push(order::<K>(count).map(turn).collect::<Result<_>>()?);
        Ok(())
    }

    /// What a kind's turns brought.
    pub fn of(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<f64> {
        let turns = self.rows.iter().flatten().filter(|turn| turn.0 == kind);
        turns.map(|(_, brought)| what(brought)).collect()
    }

    /// The same against the base's before and after each.
    pub fn ratios(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<f64> {
        let pairs = self.beside_base(kind, what);
        pairs.map(|(this, base)| this / base).collect()
    }

    /// How much more than the base's before and after each it is.
    pub fn differences(&self, kind: usize, what: impl Fn(&Brought) -> f64) -> Vec<f64> {
        let pairs = self.beside_base(kind, what);
        pairs.map(|(this, base)| this - base).collect()
    }

    fn beside_base(
        &self,
        kind: usize,
        what: impl Fn(&Brought) -> f64,
    ) -> impl Iterator<Item = (f64, f64)> {
        let windows = self.rows.iter().flat_map(|row| row.windows(3));
        windows.filter_map(move |turns| match turns {
            [(BASE, before), (this, brought), (BASE, after)] if *this == kind => {
                Some((what(brought), (what(before) + what(after)) / 2.0))
            }
            _ => None,
        })
    }

    /// A kind's values against the base's.
    pub fn figure(&self, name: String, kind: usize, scale: f64, unit: &str) -> Figure {
        self.figure_of(name, kind, |b| b.value / scale, unit)
    }

    /// Something that the turns brought against the base's.
    pub fn figure_of(
        &self,
        name: String,
        kind: usize,
        what: impl Fn(&Brought) -> f64,
        unit: &str,
    ) -> Figure {
        Figure::median(name, "", self.ratios(kind, &what))
            .aside(
                &format!("{}, {unit}", self.base),
                median(&self.of(BASE, &what)),
            )
            .aside(&format!("this, {unit}"), median(&self.of(kind, &what)))
    }
}

/// Whose turns follow one another, so many of each kind but the base: that has its own
/// before and after each of them. The others are as often in each place.
pub fn order<const K: usize>(count: usize) -> impl Iterator<Item = usize> {
    let others = (0..count).flat_map(others::<K>);
    std::iter::once(BASE).chain(others.flat_map(|kind| [kind, BASE]))
}

/// All kinds but the base, in the order of a turn.
fn others<const K: usize>(turn: usize) -> impl Iterator<Item = usize> {
    let mut kinds: Vec<usize> = (0..K).filter(|kind| *kind != BASE).collect();
    if turn % 2 == 1 {
        kinds.reverse();
    }
    let first = turn / 2 % kinds.len().max(1);
    kinds.rotate_left(first);
    kinds.into_iter()
}

/// What a stretch of a stream brought.
pub struct Stretch {
    /// Bits a second that arrived.
    pub rate: f64,
    /// Bytes that arrived.
    pub bytes: u64,
    /// How long processors of the whole machine were busy.
    pub busy: Duration,
}

/// Looks at a stretch of so long.
pub fn stretch(time: Duration, arrived: impl Fn() -> u64) -> Result<Stretch> {
    let start = std::time::Instant::now();
    let (from, idle) = (arrived(), machine::idle()?);
    std::thread::sleep(time);
    let (to, idle, took) = (arrived(), machine::idle()? - idle, start.elapsed());
    let all = took * machine::processors() as u32;
    Ok(Stretch {
        rate: (to - from) as f64 * 8.0 / took.as_secs_f64(),
        bytes: to - from,
        busy: all.saturating_sub(idle),
    })
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

    /// A machine that gets slower all the time makes no kind better than another.
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
        assert_eq!(turns.ratios(1, |b| b.value), [1.0; 4]);
        assert_eq!(turns.ratios(2, |b| b.value), [0.5; 4]);
        assert_eq!(turns.of(2, |b| b.value).len(), 4);
    }
}
