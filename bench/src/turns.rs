//! Sessions of several kinds that take turns, one at a time.

use std::time::Duration;

use anyhow::Result;

use crate::bulk::Bulk;
use crate::figure::{Figure, median};
use crate::machine;
use crate::ping::Ping;

/// The kind that all others are compared with.
pub const BASE: usize = 0;
/// Time at the beginning of a turn that is not counted.
pub const RUN_IN: Duration = Duration::from_millis(50);

/// What the turns of each of `K` kinds brought, in the same order in all kinds.
pub struct Turns<const K: usize> {
    /// What the kind is called that all others are compared with.
    base: &'static str,
    /// Bits a second, or the median time of a request in microseconds.
    pub value: [Vec<f64>; K],
    /// Requests a second, where there are requests.
    pub rate: [Vec<f64>; K],
    /// Processors that one process kept busy, where one was looked at.
    pub process: [Vec<f64>; K],
    /// Seconds for which processors of the machine were busy, by the gigabyte
    /// that arrived.
    pub cpu: [Vec<f64>; K],
}

impl<const K: usize> Turns<K> {
    /// None so far.
    pub fn new(base: &'static str) -> Turns<K> {
        let none = || std::array::from_fn(|_| Vec::new());
        Turns {
            base,
            value: none(),
            rate: none(),
            process: none(),
            cpu: none(),
        }
    }

    /// Streams take their turns; `process` says what a process has used.
    pub fn bulk(
        &mut self,
        sessions: &[Bulk; K],
        time: Duration,
        process: impl Fn() -> Result<Duration>,
    ) -> Result<()> {
        self.bulk_of(all_turns::<K>(), sessions, time, process)
    }

    /// The same in turns of these kinds.
    pub fn bulk_of(
        &mut self,
        kinds: impl Iterator<Item = usize>,
        sessions: &[Bulk; K],
        time: Duration,
        process: impl Fn() -> Result<Duration>,
    ) -> Result<()> {
        for kind in kinds {
            let before = process()?;
            let bits = sessions[kind].measure(RUN_IN, time)?;
            let spent = (process()? - before).as_secs_f64();
            self.value[kind].push(bits.rate);
            self.process[kind].push(spent / (RUN_IN + time).as_secs_f64());
            self.cpu[kind].push(bits.busy.as_secs_f64() / (bits.bytes as f64 / 1e9));
        }
        Ok(())
    }

    /// Sessions of requests take their turns.
    pub fn requests(&mut self, sessions: &[Ping; K], time: Duration) -> Result<()> {
        for kind in all_turns::<K>() {
            let answers = sessions[kind].measure(time)?;
            self.value[kind].push(answers.p50_us);
            self.rate[kind].push(answers.rate);
        }
        Ok(())
    }

    /// Something else takes one turn, in this order.
    pub fn each_of(
        &mut self,
        kinds: [usize; K],
        measure: impl Fn(usize) -> Result<f64>,
    ) -> Result<()> {
        for kind in kinds {
            self.value[kind].push(measure(kind)?);
        }
        Ok(())
    }

    /// A kind's values against the base's.
    pub fn figure(&self, name: String, kind: usize, scale: f64, unit: &str) -> Figure {
        self.ratio(name, &self.value, kind, (scale, unit))
    }

    /// A kind's processor time a gigabyte against the base's.
    pub fn cpu_figure(&self, name: String, kind: usize) -> Figure {
        self.ratio(name, &self.cpu, kind, (1.0, "s/GB"))
    }

    fn ratio(
        &self,
        name: String,
        all: &[Vec<f64>; K],
        kind: usize,
        (scale, unit): (f64, &str),
    ) -> Figure {
        let absolute = |kind: usize| median(&all[kind]) / scale;
        Figure::median(name, "", ratios(all, kind))
            .aside(&format!("{}, {unit}", self.base), absolute(BASE))
            .aside(&format!("this, {unit}"), absolute(kind))
    }

    /// A kind's requests a second against the base's.
    pub fn rates(&self, kind: usize) -> Vec<f64> {
        ratios(&self.rate, kind)
    }
}

fn ratios<const K: usize>(all: &[Vec<f64>; K], kind: usize) -> Vec<f64> {
    let pairs = all[kind].iter().zip(&all[BASE]);
    pairs.map(|(value, base)| value / base).collect()
}

/// The kinds of all turns: each is as often in each place.
pub fn all_turns<const K: usize>() -> impl Iterator<Item = usize> {
    (0..2 * K).flat_map(order::<K>)
}

/// The kinds in the order of a turn: each is first, and each is next to the
/// base on either side, as often as any other.
pub fn order<const K: usize>(turn: usize) -> [usize; K] {
    let mut kinds: [usize; K] = std::array::from_fn(|kind| kind);
    if turn % 2 == 1 {
        kinds.reverse();
    }
    kinds.rotate_left(turn / 2 % K);
    kinds
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
        for place in 0..K {
            let mut kinds: Vec<_> = (0..2 * K).map(|turn| order::<K>(turn)[place]).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        }
    }
}
