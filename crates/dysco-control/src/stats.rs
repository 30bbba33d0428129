//! What happened on the channel, counted.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of the channel.
        #[derive(Debug, Default)]
        pub struct Stats { $($(#[$doc])* pub(super) $name: AtomicU64,)* }

        /// The counters' values at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct ControlCounters { $($(#[$doc])* pub $name: u64,)* }

        impl Stats {
            /// The values now.
            pub fn read(&self) -> ControlCounters {
                ControlCounters { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Messages given to a connection.
    messages_sent,
    /// Messages handed up.
    messages_received,
    /// Messages dropped as the peer's queue was full.
    dropped_queue_full,
    /// Messages dropped as there was no connection.
    dropped_unreachable,
    /// Messages not sent as they were too long, or empty.
    dropped_bad_length,
    /// Connections closed as the peer announced too long a frame.
    frames_oversized,
    /// Connections that ended inside a frame.
    frames_truncated,
    /// Connections closed as the peer sent an empty frame.
    frames_empty,
    /// Handshakes that failed, either way.
    handshakes_failed,
    /// Connections turned away as too many were being set up.
    handshakes_turned_away,
    /// Connections set up, either way.
    connections,
}

/// One more.
pub fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// So many more.
pub fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
