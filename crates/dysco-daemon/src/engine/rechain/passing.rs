//! By which changes sessions pass here: what an older one says comes too late.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use dysco_proto::{ChangeId, Subsession};
use lru::LruCache;

/// Sessions of which it is remembered by which change they pass here.
const SESSIONS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();
/// Changes of which it is remembered that they are done with here: of more than
/// can be on their way.
const DONE: usize = 1024;
/// Longer than a message is on its way. Afterwards the order of changes says nothing:
/// another host may have the address of the one that opened the session, and a clock
/// of its own.
const LATE: Duration = Duration::from_secs(60);

/// What is remembered of changes by which sessions pass here, or are to.
pub(super) struct Passing {
    /// The newest of each session, and when it was heard of.
    by: LruCache<Subsession, (ChangeId, Instant)>,
    /// Changes that ask for nothing here any more, the latest last.
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
    /// A session is to pass here by this change: what an older one asks to be forgotten
    /// is late.
    pub fn expect(&mut self, change: ChangeId, session: Subsession, now: Instant) {
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

    /// The change by which it passes, or is to.
    pub fn by(&self, session: &Subsession) -> Option<ChangeId> {
        self.by.peek(session).map(|(change, _)| *change)
    }

    /// Has this change ended, since the session passes by a later one?
    pub fn is_late(&self, change: ChangeId, session: &Subsession, now: Instant) -> bool {
        let newest = self.by.peek(session);
        newest.is_some_and(|(by, at)| *by > change && now.duration_since(*at) < LATE)
    }

    /// It has left.
    pub fn left(&mut self, session: &Subsession) {
        self.by.pop(session);
    }

    /// A change asks for nothing here any more.
    pub fn done_with(&mut self, change: ChangeId) {
        if self.done.len() == DONE {
            self.done.pop_front();
        }
        self.done.push_back(change);
    }

    /// Does it?
    pub fn is_done(&self, change: ChangeId) -> bool {
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
        // It leaves by the second, of which nothing was heard before.
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
