//! Is what a neighbour has sent new, or a copy of what it sent long ago? Its clock and this
//! host's do not agree: what counts is by how much later than the soonest of all it comes,
//! as the two clocks say.

/// Ticks of a host's clock in its time since it was started (`CLOCK_BOOTTIME`): of 2^30 ns,
/// a little more than a second. They wrap around.
#[inline(always)]
pub const fn ticks(boot_ns: u64) -> u32 {
    (boot_ns >> 30) as u32
}

/// What comes so many ticks later than the soonest is old. Longer than a neighbour may be
/// still, for instance as a virtual machine that is moved, and keep its connection: another
/// has another key, of whose clock nothing is known. With what [`DRIFT`] adds a copy is old
/// before the end of its session is forgotten (two MSL).
pub const FRESH: u32 = 40;

/// In so many ticks two clocks may come apart by one: Linux slews each by up to a tenth
/// (`ADJ_TICK`, as chrony does after a pause).
const DRIFT: u32 = 4;

/// The bits of [`Clock`] that say when: ticks of 72 years.
const SEEN: u64 = (1 << 31) - 1;

/// What is known of a neighbour's clock, by what it has sent: how far this host's is ahead
/// of it at the least, and when that was seen. 0: nothing yet.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock(u64);

impl Clock {
    #[inline(always)]
    const fn of(ahead: u32, seen: u32) -> Clock {
        Clock(1 << 63 | (ahead as u64) << 31 | (seen as u64) & SEEN)
    }

    /// Takes in when something was sent, which has come now, both in ticks. What is known
    /// then; `None` if it is old.
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
