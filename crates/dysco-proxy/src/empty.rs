//! Proof that a process holds no bytes of a direction.
//!
//! A constant difference of the counts is no such proof. The buffer of a proxy whose server reads
//! slowly is always full, and the same number of bytes is missing at each moment. A process holds
//! bytes for one of two reasons: the sink accepts no more, or the process had no turn on a
//! processor since it read them. The process is therefore empty if nothing waits at the source,
//! the sink has room, and the process had its turn. It had its turn if it sleeps, if nothing has
//! moved for long enough, or if the same state was met repeatedly while data flowed and the sink
//! always had room.

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
pub struct Moment {
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
    pub fn is_empty(&self) -> bool {
        self.has_room && self.no_input && self.is_highest
    }
}

/// Observations of one direction.
#[derive(Clone, Copy, Default, Debug)]
pub struct Emptiness {
    observed: bool,
    /// Time since which nothing has moved, and the count at that time.
    rest: Option<(Duration, i64)>,
    flow: Flow,
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
    pub fn add(&mut self, m: &Moment) {
        if !m.has_room {
            self.flow = Flow::default();
        }
        if !m.is_empty() {
            self.rest = None;
            return;
        }
        let since = match self.rest {
            Some((since, read)) if read == m.read => since,
            _ => m.at,
        };
        self.rest = Some((since, m.read));
        let flow = &mut self.flow;
        if flow.moments == 0 {
            flow.first = m.at;
        }
        if flow.moments == 0 || flow.read != m.read {
            (flow.moments, flow.read) = (flow.moments + 1, m.read);
        }
        let flows = flow.moments >= FLOWING && m.at.saturating_sub(flow.first) >= FLOW;
        self.observed |= m.asleep || m.at.saturating_sub(since) >= REST || flows;
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
            ..moment(0, 0)
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
                read: 100 * at as i64,
                ..waits
            })));
        }
    }

    #[test]
    fn one_that_is_always_busy_has_to_rest_for_long_or_to_flow() {
        assert!(!observed((0..100).map(|at| moment(at, 7))));
        assert!(observed((0..=100).map(|at| moment(at, 7))));
        // Each moment has another count, so that the process never rests.
        assert!(observed((0..30).map(|at| moment(at, at as i64))));
        assert!(!observed((0..7).map(|at| moment(10 * at, at as i64))));
        let stopped = |at: u64| Moment {
            has_room: !at.is_multiple_of(7),
            ..moment(at, at as i64)
        };
        assert!(!observed((0..1_000).map(stopped)));
    }
}
