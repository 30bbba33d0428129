//! Changes by which sessions pass here: an order of an older change is late.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use dysco_proto::{ChangeId, Subsession};
use lru::LruCache;

/// Number of sessions of which the change by which they pass here is remembered.
const SESSIONS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();
/// Number of finished changes that are remembered: more than can be in progress.
const DONE: usize = 1024;
/// Time after which the order of changes means nothing. No message is under way for so long.
/// Another host may have the address of the one that opened the session then, and another clock.
const LATE: Duration = Duration::from_secs(60);

/// Memory of changes by which sessions pass here, or are to pass.
pub(super) struct Passing {
    /// Newest change of each session, and the time at which it was learned.
    by: LruCache<Subsession, (ChangeId, Instant)>,
    /// Changes that are finished here, the latest last.
    done: VecDeque<ChangeId>,
}

impl Default for Passing {
    fn default() -> Passing {
        Passing {
            by: LruCache::new(SESSIONS),
            done: VecDeque::new(),
        }
    }
}

impl Passing {
    /// Records that a session is to pass here by this change: an older change's order to forget the
    /// session is late.
    pub(super) fn expect(&mut self, change: ChangeId, session: Subsession, now: Instant) {
        if self.is_done(change) {
            return;
        }
        let done = match self.is_late(change, &session, now) {
            true => Some(change),
            false => self.by.put(session, (change, now)).map(|(by, _)| by),
        };
        if let Some(done) = done.filter(|done| self.by(&session) != Some(*done)) {
            self.done_with(done);
        }
    }

    /// Returns the change by which the session passes, or is to pass.
    pub(super) fn by(&self, session: &Subsession) -> Option<ChangeId> {
        self.by.peek(session).map(|(change, _)| *change)
    }

    /// Returns true if this change is over because the session passes by a later one.
    pub(super) fn is_late(&self, change: ChangeId, session: &Subsession, now: Instant) -> bool {
        let newest = self.by.peek(session);
        newest.is_some_and(|(by, at)| *by > change && now.duration_since(*at) < LATE)
    }

    /// Records that the session has left.
    pub(super) fn left(&mut self, session: &Subsession) {
        self.by.pop(session);
    }

    /// Records that a change is finished here.
    pub(super) fn done_with(&mut self, change: ChangeId) {
        if self.done.len() == DONE {
            self.done.pop_front();
        }
        self.done.push_back(change);
    }

    /// Returns true if the change is finished here.
    pub(super) fn is_done(&self, change: ChangeId) -> bool {
        self.done.contains(&change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ChangeId = ChangeId([1; 16]);
    const SECOND: ChangeId = ChangeId([2; 16]);
    const THIRD: ChangeId = ChangeId([3; 16]);

    fn session() -> Subsession {
        Subsession {
            left: ([10, 0, 0, 1], 40_000).into(),
            right: ([10, 0, 0, 2], 80).into(),
        }
    }

    #[test]
    fn what_a_change_before_the_newest_asks_for_is_late() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        passing.expect(FIRST, session(), now);
        // The session leaves by the second change, which was unknown before.
        assert!(!passing.is_late(SECOND, &session(), now));
        passing.expect(THIRD, session(), now);
        assert!(passing.is_late(SECOND, &session(), now));
        assert!(!passing.is_late(THIRD, &session(), now));
        assert!(passing.is_done(FIRST) && !passing.is_done(THIRD));
    }

    #[test]
    fn a_change_that_comes_late_does_not_take_the_newest_ones_place() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        passing.expect(SECOND, session(), now);
        passing.expect(FIRST, session(), now);
        assert_eq!(passing.by(&session()), Some(SECOND));
        assert!(passing.is_done(FIRST) && !passing.is_done(SECOND));
        passing.expect(SECOND, session(), now);
        assert!(!passing.is_done(SECOND));
    }

    #[test]
    fn of_a_session_that_has_left_nothing_is_late() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        passing.expect(SECOND, session(), now);
        passing.left(&session());
        assert!(!passing.is_late(FIRST, &session(), now));
        assert_eq!(passing.by(&session()), None);
    }

    #[test]
    fn the_order_of_changes_counts_as_long_as_messages_are_on_their_way() {
        let (mut passing, now) = (Passing::default(), Instant::now());
        passing.expect(SECOND, session(), now);
        assert!(!passing.is_late(FIRST, &session(), now + LATE));
        passing.expect(FIRST, session(), now + LATE);
        assert_eq!(passing.by(&session()), Some(FIRST));
    }
}
