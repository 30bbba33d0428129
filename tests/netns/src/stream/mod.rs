//! Thousands of sessions that carry checked bytes in both directions at the same time.
//!
//! A [`Server`] runs on one host and a [`Group`] of sessions is opened on another. Both ends are
//! tasks of this process, so that a session's ends know their plan without a message on the wire.

mod end;
pub(crate) mod greet;
mod group;
mod plan;
mod server;

pub use end::End;
pub use group::{Group, Outcome, all_intact};
pub use plan::{Amount, Close, Plan, Reading, Side};
pub use server::Server;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{oneshot, watch};

use dysco_pattern::Pattern;

/// Common phase of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    Opened,
    Running,
    /// No end sends or closes.
    Resting,
    Stopping,
}

/// State that the two ends of a session share.
pub(crate) struct Shared {
    id: u64,
    plan: Plan,
    phase: watch::Receiver<Phase>,
    reading: [watch::Receiver<Reading>; 2],
    received: [AtomicU64; 2],
    /// Total number of bytes that each end has sent, once it sends no more; before, a larger number
    /// than there can be.
    sent: [AtomicU64; 2],
    server_end: std::sync::Mutex<Option<oneshot::Sender<End>>>,
}

impl Shared {
    /// Pattern that `side` sends.
    fn pattern(&self, side: Side) -> Pattern {
        Pattern::new(self.id * 2 + side as u64)
    }

    /// Number of bytes that `side` has received and checked.
    fn received(&self, side: Side) -> u64 {
        self.received[side as usize].load(Ordering::Relaxed)
    }

    /// True if `side` sends no more, and the other end has received everything.
    fn has_arrived(&self, side: Side) -> bool {
        let sent = self.sent[side as usize].load(Ordering::Relaxed);
        sent == self.received(side.other())
    }
}

type Registry = Arc<std::sync::Mutex<std::collections::HashMap<u64, Arc<Shared>>>>;

fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}
