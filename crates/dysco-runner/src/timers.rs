//! Timers of all services.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dysco_service::{LayerId, TimerId};

/// A timer: its session, its service, and the name that the service gave it.
pub(crate) type Key = (u64, LayerId, TimerId);

/// Longest time until a timer expires. A longer time is cut to this.
const LATEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The timers that run.
#[derive(Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Instant, Key)>,
    at: BTreeMap<Key, Instant>,
}

impl Timers {
    /// Starts a timer. It replaces a running timer with the same name.
    pub(crate) fn set(&mut self, key: Key, after: Duration) {
        let at = Instant::now() + after.min(LATEST);
        if let Some(before) = self.at.insert(key, at) {
            self.due.remove(&(before, key));
        }
        self.due.insert((at, key));
    }

    /// Time until the next timer.
    pub(crate) fn next(&self) -> Option<Duration> {
        let (at, _) = self.due.first()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    /// Removes and returns a timer that has run out by this time.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Key> {
        let (at, key) = *self.due.first()?;
        if at > now {
            return None;
        }
        self.due.pop_first();
        self.at.remove(&key);
        Some(key)
    }

    /// Forgets the timers of a session.
    pub(crate) fn forget(&mut self, session: u64) {
        let first = (session, LayerId(0), TimerId(0));
        let last = (session, LayerId(u32::MAX), TimerId(u32::MAX));
        let keys: Vec<Key> = self.at.range(first..=last).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(at) = self.at.remove(&key) {
                self.due.remove(&(at, key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_is_replaced_by_its_name_and_forgotten_with_its_session() {
        let mut timers = Timers::default();
        let key = |session, timer| (session, LayerId(0), TimerId(timer));
        timers.set(key(1, 0), Duration::from_secs(10));
        timers.set(key(1, 0), Duration::ZERO);
        timers.set(key(2, 0), Duration::ZERO);
        timers.set(key(2, 1), Duration::MAX);
        let now = Instant::now();
        assert_eq!(timers.pop(now), Some(key(1, 0)));
        assert_eq!(timers.next(), Some(Duration::ZERO));
        timers.forget(2);
        assert_eq!(timers.pop(now), None);
        assert_eq!(timers.next(), None);
    }
}
