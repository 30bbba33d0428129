//! Names of sessions. Each change of a chain gives its session another name.

use std::num::NonZeroUsize;

use dysco_api::SessionId;
use lru::LruCache;

/// Maximum number of former names that are remembered.
const NAMES: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// Present names of sessions, by their former names.
pub(super) struct Names(LruCache<SessionId, SessionId>);

impl Names {
    pub(super) fn new() -> Names {
        Names(LruCache::new(NAMES))
    }

    /// Returns the present name of a session.
    pub(super) fn now(&self, name: SessionId) -> SessionId {
        let mut now = name;
        for _ in 0..NAMES.get() {
            match self.0.peek(&now) {
                Some(next) => now = *next,
                None => break,
            }
        }
        now
    }

    /// Records the present name of a session.
    pub(super) fn rename(&mut self, from: SessionId, to: SessionId) {
        // The name may be left from an earlier use of the slot.
        self.0.pop(&to);
        if from != to {
            self.0.put(from, to);
        }
    }
}
