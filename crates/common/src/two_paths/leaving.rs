//! A session of a chain that has been switched to another path.

use crate::seq::{after, before};
use crate::session::Session;
use crate::tcp::{ACK, Segment};

/// Has the path that a session was switched to carried the highest number that
/// the other end had sent elsewhere? Then nothing may not be acknowledged on it.
#[inline(always)]
pub const fn carries_all(s: &Session) -> bool {
    s.two.cut_in_set != 0 && !before(s.rcv_max, s.cut_in)
}

/// How far an acknowledgement may always be behind: a window without a scale.
pub(super) const BEHIND: u32 = u16::MAX as u32;

/// What the path that a session was switched to counts as having carried at least, at
/// this acknowledgement of the local end: numbers tell no more than 2 GiB apart. So far
/// behind, nothing is acknowledged there any more ([`leaving`]).
#[inline(always)]
pub const fn least_carried(s: &Session, seg: &Segment) -> u32 {
    if seg.has(ACK) {
        seg.ack.wrapping_sub(1 << 30)
    } else {
        s.rcv_max
    }
}

/// Which path a segment of the local end takes while its path is being left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// The new one.
    New,
    /// The one before.
    Before,
    /// The new one, acknowledging there what that has carried, and the one before
    /// a copy of its header with the acknowledgement.
    Split,
}

/// Judges a segment of a session that has been switched. What the new path has not
/// carried may not be acknowledged there: a strict firewall drops the segment.
///
/// But where the other end goes on by the path before, since the new one takes longer
/// and it has not heard of the switch yet, or since it has taken that again and this
/// host's daemon is not there to hear of it, the older acknowledgement would fall more
/// than a window behind, and Linux discards the data with it (RFC 5961, 5.2). So some
/// data take the path before, from beyond the cutoff as well: what is acknowledged
/// there is asked of what the new path has carried alone.
#[inline(always)]
pub const fn leaving(s: &Session, seg: &Segment) -> Leaving {
    if !seg.has(ACK) || !after(seg.ack, s.rcv_max) {
        return Leaving::New;
    }
    let behind = seg.ack.wrapping_sub(s.rcv_max);
    let window = (seg.window as u32) << (s.local_wscale() & 15);
    if seg.span() == 0 || behind > BEHIND && behind > window {
        Leaving::Before
    } else {
        Leaving::Split
    }
}
