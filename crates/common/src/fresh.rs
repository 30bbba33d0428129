//! Detection of old copies of a neighbour's messages. The neighbour's clock and this host's do not
//! agree. The criterion is the delay of a message relative to the fastest one, by the two clocks.

/// Returns the ticks of a host's clock, which counts from its start (`CLOCK_BOOTTIME`). A tick is
/// 2^30 ns, a little more than a second. Ticks wrap around.
#[inline(always)]
pub const fn ticks(boot_ns: u64) -> u32 {
    (boot_ns >> 30) as u32
}

/// Ticks by which a message may be later than the fastest one; a later message is old. The limit is
/// longer than a neighbour may stand still and keep its connection, for instance as a virtual
/// machine that is moved. Another connection has another key, without knowledge of the clock.
/// Together with [`DRIFT`], a copy is old before the end of its session is forgotten (two MSL).
pub const FRESH: u32 = 40;

/// Ticks in which two clocks may drift apart by one tick. Linux slews each clock by up to a tenth
/// (`ADJ_TICK`, as chrony does after a pause).
const DRIFT: u32 = 4;

/// Bits of [`Clock`] that contain the time: ticks of 72 years.
const SEEN: u64 = (1 << 31) - 1;

/// Knowledge of a neighbour's clock from its messages: the least difference by which this host's
/// clock is ahead, and the time at which it was observed. 0: nothing yet.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock(u64);

impl Clock {
    #[inline(always)]
    const fn of(ahead: u32, seen: u32) -> Clock {
        Clock(1 << 63 | (ahead as u64) << 31 | (seen as u64) & SEEN)
    }

    /// Updates the clock by a message that was sent at `sent` and arrives at `now`, both in ticks.
    /// Returns the new clock, or `None` if the message is old.
    #[inline(always)]
    pub const fn hears(self, now: u32, sent: u32) -> Option<Clock> {
        let ahead = now.wrapping_sub(sent);
        if self.0 == 0 {
            return Some(Clock::of(ahead, now));
        }
        let since = (now as u64).wrapping_sub(self.0) & SEEN;
        // Another processor may be a tick ahead.
        let since = if since > SEEN / 2 { 0 } else { since };
        let least = ((self.0 >> 31) as u32).wrapping_add(since as u32 / DRIFT);
        let late = ahead.wrapping_sub(least) as i32;
        if late > FRESH as i32 {
            None
        } else if late < 0 {
            Some(Clock::of(ahead, now))
        } else {
            Some(self)
        }
    }
}
