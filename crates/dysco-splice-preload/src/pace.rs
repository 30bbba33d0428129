//! Pace of the tries while the daemon's queue is full: first without pauses, so that the daemon
//! may get a processor meanwhile, and then with growing pauses. Owed reports stay owed, so that
//! in the end the newest state is reported.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use crate::system;

/// Number of failed tries before the first pause.
pub(crate) const PATIENCE: u32 = 64;
/// First pause in milliseconds. Each further pause is twice as long.
const FIRST: i64 = 4;
/// Number of doublings, up to about a second.
const DOUBLINGS: u32 = 8;

/// Number of consecutive failed tries.
static FAILED_TRIES: AtomicU32 = AtomicU32::new(0);
/// Earliest time of the next try, by the link's clock.
static NEXT: AtomicI64 = AtomicI64::new(0);

/// Returns true if a try is due. Costs one load while the daemon reads.
#[inline(always)]
pub(crate) fn may_try() -> bool {
    FAILED_TRIES.load(Relaxed) < PATIENCE || system::milliseconds() >= NEXT.load(Relaxed)
}

/// Records that the queue was full.
pub(crate) fn try_failed() {
    let failures = FAILED_TRIES.load(Relaxed).saturating_add(1);
    FAILED_TRIES.store(failures, Relaxed);
    if failures >= PATIENCE {
        let pause = FIRST << (failures - PATIENCE).min(DOUBLINGS);
        NEXT.store(system::milliseconds() + pause, Relaxed);
    }
}

/// Records that the daemon reads, that nothing is owed, or that there is no daemon.
pub(crate) fn try_succeeded() {
    if FAILED_TRIES.load(Relaxed) != 0 {
        FAILED_TRIES.store(0, Relaxed);
    }
}
