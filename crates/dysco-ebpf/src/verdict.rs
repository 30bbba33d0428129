//! The verdict on a packet.

use dysco_common::Counter;

use crate::maps::count;

/// Verdict on a packet.
pub(crate) enum Verdict {
    /// The packet continues unchanged: to programs after this one, then to the stack.
    Pass,
    /// The packet continues, changed.
    Changed,
    /// The packet leaves by another interface, to the neighbour of its new destination there.
    Redirect {
        /// The index of that interface.
        ifindex: u32,
    },
    /// The packet leaves to the handler of the session's services, by this interface.
    #[cfg_attr(
        feature = "headerless",
        expect(dead_code, reason = "it has no detours")
    )]
    Handler {
        /// The index of the interface.
        ifindex: u32,
    },
    /// The packet enters this host as if it had arrived by another interface.
    #[cfg_attr(
        feature = "headerless",
        expect(dead_code, reason = "it has no detours")
    )]
    Deliver {
        /// The index of that interface.
        ifindex: u32,
    },
    /// The packet has left its path, and continues in the program for sessions with a detour.
    #[cfg(not(feature = "headerless"))]
    Detour,
    /// The packet leaves past the stack, through the egress program, which finds its
    /// destination.
    Past,
    /// The packet is dropped. The reason has been counted where it was found.
    Drop,
}

/// Counts a packet that is dropped.
#[inline(always)]
pub(crate) fn dropped(why: Counter) -> Verdict {
    count(why);
    Verdict::Drop
}
