//! Proof that a process holds no bytes of a direction.
//!
//! A constant difference of the counts is no such proof. The buffer of a proxy whose server reads
//! slowly is always full, and the same number of bytes is missing at each moment. A process holds
//! bytes for one of two reasons: the sink accepts no more, or the process had no turn on a
//! processor since it read them. The process is therefore empty if nothing waits at the source,
//! the sink has room, and the process had its turn. It had its turn if it sleeps, if nothing has
//! moved for long enough, or if the same state was met repeatedly while data flowed and the sink
//! always had room. A process that has never read a byte of the direction needs no turn.
//!
//! The proof is of bytes that were read. It says nothing of bytes that the process is about to add.

use std::time::Duration;

/// Time without movement after which the process must have had its turn.
const REST: Duration = Duration::from_millis(100);
/// Number of moments, with data in between, at which the process must be met empty in a flow that
/// the sink never stops.
const FLOWING: u32 = 8;
/// Minimum duration of such a flow.
const FLOW: Duration = Duration::from_millis(20);

/// State of a direction at a moment at which neither count moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Time of the moment, on any clock.
    pub at: Duration,
    /// Bytes that the process has read from the source.
    pub read: i64,
    /// True if the difference of the counts is the highest of all, or the claimed one.
    pub is_highest: bool,
    /// True if nothing waits at the source.
    pub no_input: bool,
    /// True if the sink accepts more data.
    pub has_room: bool,
    /// True if no thread of the process had work to do.
    pub asleep: bool,
}

impl Moment {
    /// Returns true if the process seems to hold nothing. It may not have had its turn yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.has_room && self.no_input && self.is_highest
    }
}

/// Observations of one direction.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Emptiness {
    observed: bool,
    rest: Option<Rest>,
    flow: Flow,
}

/// Moments at which the process seemed empty, and between which nothing has moved.
#[derive(Clone, Copy, Debug)]
struct Rest {
    first: Duration,
    last: Duration,
    read: i64,
}

/// Number and span of the moments at which the process seemed empty since the sink last had no
/// room.
#[derive(Clone, Copy, Default, Debug)]
struct Flow {
    moments: u32,
    first: Duration,
    read: i64,
}

impl Emptiness {
    /// Adds a moment. Moments must be added in the order of their time.
    pub(crate) fn add(&mut self, m: &Moment) {
        if !m.has_room {
            self.flow = Flow::default();
        }
        if !m.is_empty() {
            self.rest = None;
            return;
        }
        let first = match self.rest {
            Some(rest) if rest.read == m.read => rest.first,
            _ => m.at,
        };
        self.rest = Some(Rest {
            first,
            last: m.at,
            read: m.read,
        });
        let flow = &mut self.flow;
        if flow.moments == 0 {
            flow.first = m.at;
        }
        if flow.moments == 0 || flow.read != m.read {
            (flow.moments, flow.read) = (flow.moments + 1, m.read);
        }
        let flows = flow.moments >= FLOWING && m.at.saturating_sub(flow.first) >= FLOW;
        let (never_read, rested) = (m.read == 0, m.at.saturating_sub(first) >= REST);
        self.observed |= never_read || m.asleep || rested || flows;
    }

    /// Returns true if the last moment showed the process empty, and it may not have had its turn.
    pub(crate) fn needs_time(&self) -> bool {
        !self.observed && self.rest.is_some()
    }

    /// Returns true if nothing has moved for at least `time`, up to the last moment. The counts only
    /// grow: if two moments have the same counts, nothing moved in between.
    pub(crate) fn has_rested(&self, time: Duration) -> bool {
        self.rest
            .is_some_and(|rest| rest.last.saturating_sub(rest.first) >= time)
    }

    /// Returns true if the process was empty at a moment with the highest difference.
    pub(crate) fn is_observed(&self) -> bool {
        self.observed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(ms: u64, read: i64) -> Moment {
        Moment {
            at: Duration::from_millis(ms),
            read,
            is_highest: true,
            no_input: true,
            has_room: true,
            asleep: false,
        }
    }

    fn observed(moments: impl IntoIterator<Item = Moment>) -> bool {
        let mut seen = Emptiness::default();
        for m in moments {
            seen.add(&m);
        }
        seen.is_observed()
    }

    #[test]
    fn a_process_that_sleeps_holds_nothing_unless_it_may_wait_for_something() {
        let asleep = Moment {
            asleep: true,
            ..moment(0, 7)
        };
        assert!(observed([asleep]));
        for waits in [
            Moment {
                has_room: false,
                ..asleep
            },
            Moment {
                no_input: false,
                ..asleep
            },
            Moment {
                is_highest: false,
                ..asleep
            },
        ] {
            assert!(!observed((0..1_000).map(|at| Moment {
                at: Duration::from_millis(at),
                read: 100 * (at + 1) as i64,
                ..waits
            })));
        }
    }

    #[test]
    fn one_that_is_always_busy_has_to_rest_for_long_or_to_flow() {
        assert!(!observed((0..100).map(|at| moment(at, 7))));
        assert!(observed((0..=100).map(|at| moment(at, 7))));
        // Each moment has another count, so that the process never rests.
        assert!(observed((0..30).map(|at| moment(at, 1 + at as i64))));
        assert!(!observed((0..7).map(|at| moment(10 * at, 1 + at as i64))));
        let stopped = |at: u64| Moment {
            has_room: !at.is_multiple_of(7),
            ..moment(at, 1 + at as i64)
        };
        assert!(!observed((0..1_000).map(stopped)));
    }

    #[test]
    fn a_process_that_has_read_nothing_holds_nothing() {
        assert!(observed([moment(0, 0)]));
        for waits in [
            Moment {
                no_input: false,
                ..moment(0, 0)
            },
            // It has written bytes that it did not read.
            Moment {
                is_highest: false,
                ..moment(0, 0)
            },
        ] {
            assert!(!observed([waits]));
        }
    }

    #[test]
    fn only_time_is_missing_while_the_last_moment_is_empty() {
        let mut seen = Emptiness::default();
        assert!(!seen.needs_time());
        for (moment, needs_time, has_rested) in [
            (moment(0, 7), true, false),
            (moment(1, 7), true, false),
            (moment(2, 7), true, true),
            (
                Moment {
                    no_input: false,
                    ..moment(3, 7)
                },
                false,
                false,
            ),
            (moment(4, 8), true, false),
            (moment(104, 8), false, true),
        ] {
            seen.add(&moment);
            assert_eq!(seen.needs_time(), needs_time, "{moment:?}");
            let rested = seen.has_rested(Duration::from_millis(2));
            assert_eq!(rested, has_rested, "{moment:?}");
        }
        assert!(seen.is_observed());
    }
}
