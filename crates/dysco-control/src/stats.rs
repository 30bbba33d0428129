//! Counters of events on the channel.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of the channel.
        #[derive(Debug, Default)]
        pub(crate) struct Stats { $($(#[$doc])* pub(super) $name: AtomicU64,)* }

        /// Values of the counters at one moment.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct ControlCounters { $($(#[$doc])* pub $name: u64,)* }

        impl Stats {
            /// Returns the present values.
            pub(crate) fn read(&self) -> ControlCounters {
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
    /// Messages dropped because the peer's queue was full.
    dropped_queue_full,
    /// Messages dropped because there was no connection.
    dropped_unreachable,
    /// Messages not sent because they were too long, or empty.
    dropped_bad_length,
    /// Connections closed because the peer announced too long a frame.
    frames_oversized,
    /// Connections that ended inside a frame.
    frames_truncated,
    /// Connections closed because the peer sent an empty frame.
    frames_empty,
    /// Handshakes that failed, in either direction.
    handshakes_failed,
    /// Connections turned away because too many were being set up.
    handshakes_turned_away,
    /// Connections set up, in either direction.
    connections,
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds a number to a counter.
pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}
