//! The clock with which the programs stamp sessions.

use std::time::Duration;

/// Returns CLOCK_BOOTTIME, with which the programs stamp sessions.
pub(super) fn boot_time() -> Duration {
    match nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME) {
        Ok(t) => Duration::new(t.tv_sec() as u64, t.tv_nsec() as u32),
        Err(_) => Duration::ZERO,
    }
}
