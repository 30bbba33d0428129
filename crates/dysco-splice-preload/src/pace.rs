//! How often a queue that is full is tried again: at once for a while, in which the
//! daemon may get a processor, and then more and more seldom. What is owed stays
//! owed meanwhile, so that in the end the newest is told.

use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

use crate::link;

/// Tries in vain before there are pauses.
pub const PATIENCE: u32 = 64;
/// The first pause in milliseconds; each is twice the one before it.
const FIRST: i64 = 4;
/// So often, up to a second.
const DOUBLINGS: u32 = 8;

/// Tries in vain, one after the other.
static VAIN: AtomicU32 = AtomicU32::new(0);
/// No try before that moment of the link's clock.
static NEXT: AtomicI64 = AtomicI64::new(0);

/// Is it time to try? One load while the daemon reads.
#[inline(always)]
pub fn may_try() -> bool {
    VAIN.load(Relaxed) < PATIENCE || link::milliseconds() >= NEXT.load(Relaxed)
}

/// The queue was full.
pub fn in_vain() {
    let vain = VAIN.load(Relaxed).saturating_add(1);
    VAIN.store(vain, Relaxed);
    if vain >= PATIENCE {
        let pause = FIRST << (vain - PATIENCE).min(DOUBLINGS);
        NEXT.store(link::milliseconds() + pause, Relaxed);
    }
}

/// The daemon reads, or nothing is owed, or to nobody.
pub fn not_in_vain() {
    if VAIN.load(Relaxed) != 0 {
        VAIN.store(0, Relaxed);
    }
}
