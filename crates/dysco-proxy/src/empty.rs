//! Whether a process is seen to hold nothing of a direction.
//!
//! A difference of counts that stays the same is no proof of that: the buffer of a proxy
//! whose server reads slowly is full all the time, and as much is missing at each moment.
//! A process holds bytes back for two reasons. Either the sink takes no more, or it had no
//! turn since it read them. So it is empty if nothing waits at the source, the sink has
//! room, and it had its turn: it sleeps, or has slept long enough for any turn, or the
//! same was met again and again while data flowed and the sink had room all the time.

use std::time::Duration;

/// A process that had no turn for so long is not one that sleeps: nothing moved.
const REST: Duration = Duration::from_millis(100);
/// So often, with data in between, the process is met empty in a flow that the sink never
/// stops.
const FLOWING: u32 = 8;
/// A flow lasts at least so long.
const FLOW: Duration = Duration::from_millis(20);

/// A direction at a moment at which neither count moved.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// When, on any clock.
    pub at: Duration,
    /// Bytes that the process has read from the source.
    pub read: i64,
    /// The difference of the counts is the highest of all, or the claimed one.
    pub is_highest: bool,
    /// Nothing waits at the source.
    pub no_input: bool,
    /// The sink takes more.
    pub has_room: bool,
    /// No thread of the process had anything to do.
    pub asleep: bool,
}

impl Moment {
    /// Does the process seem to hold nothing? It may have had no turn yet.
    pub fn is_empty(&self) -> bool {
        self.has_room && self.no_input && self.is_highest
    }
}

/// What was seen of one direction.
#[derive(Clone, Copy, Default, Debug)]
pub struct Emptiness {
    shown: bool,
    /// Since when all is as it is, and the count then.
    rest: Option<(Duration, i64)>,
    flow: Flow,
}

/// Moments at which it seemed empty, since the sink had no room for the last time.
#[derive(Clone, Copy, Default, Debug)]
struct Flow {
    moments: u32,
    first: Duration,
    read: i64,
}

impl Emptiness {
    /// Takes a moment; they come in the order of their time.
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
        self.shown |= m.asleep || m.at.saturating_sub(since) >= REST || flows;
    }

    /// Was the process empty at a moment with the highest difference?
    pub fn is_shown(&self) -> bool {
        self.shown
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

    fn shown(moments: impl IntoIterator<Item = Moment>) -> bool {
        let mut seen = Emptiness::default();
        for m in moments {
            seen.add(&m);
        }
        seen.is_shown()
    }

    #[test]
    fn a_process_that_sleeps_holds_nothing_unless_it_may_wait_for_something() {
        let asleep = Moment {
            asleep: true,
            ..moment(0, 0)
        };
        assert!(shown([asleep]));
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
            assert!(!shown((0..1_000).map(|at| Moment {
                at: Duration::from_millis(at),
                read: 100 * at as i64,
                ..waits
            })));
        }
    }

    #[test]
    fn one_that_is_always_busy_has_to_rest_for_long_or_to_flow() {
        assert!(!shown((0..100).map(|at| moment(at, 7))));
        assert!(shown((0..=100).map(|at| moment(at, 7))));
        // Each moment with another count, and none of them at rest.
        assert!(shown((0..30).map(|at| moment(at, at as i64))));
        assert!(!shown((0..7).map(|at| moment(10 * at, at as i64))));
        let stopped = |at: u64| Moment {
            has_room: !at.is_multiple_of(7),
            ..moment(at, at as i64)
        };
        assert!(!shown((0..1_000).map(stopped)));
    }
}
