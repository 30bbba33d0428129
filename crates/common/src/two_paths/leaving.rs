//! A session of a chain that has been switched to another path.

use super::peer::widest_in;
use crate::seq::{after, before};
use crate::session::{Session, life};
use crate::tcp::{ACK, RST, Segment};

/// Returns true if the path that a session was switched to has carried the highest number that the
/// other end had sent elsewhere. Any acknowledgement may then take that path.
#[inline(always)]
pub const fn carries_all(s: &Session) -> bool {
    s.two.cut_in_set != 0 && !before(s.rcv_max, s.cut_in)
}

/// Distance by which an acknowledgement may always be behind: a window without a scale.
pub(super) const BEHIND: u32 = u16::MAX as u32;

/// Returns the least number that the path of a switched session counts as having carried, at this
/// acknowledgement of the local end. Numbers cannot be compared over more than 2 GiB. A path that
/// is so far behind carries no acknowledgements any more ([`leaving`]).
#[inline(always)]
pub const fn least_carried(s: &Session, seg: &Segment) -> u32 {
    if seg.has(ACK) {
        seg.ack.wrapping_sub(1 << 30)
    } else {
        s.rcv_max
    }
}

/// Path of a segment of the local end while the session leaves its earlier path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// The new path.
    New,
    /// The earlier path.
    Before,
    /// The new path, with an acknowledgement of data that it has carried. A copy of the header with
    /// the segment's own acknowledgement takes the earlier path.
    Split,
}

/// Judges a segment of a session that has been switched. Data that the new path has not carried may
/// not be acknowledged there, because a strict firewall drops the segment.
///
/// The other end may continue on the earlier path, because the new one takes longer and no news of
/// the switch has arrived. It may also have taken the earlier path again while this host's daemon
/// is not running. The older acknowledgement would then fall more than a window behind, and Linux
/// would discard the data with it (RFC 5961, 5.2). Some data therefore takes the earlier path, also
/// from beyond the cutoff. The acknowledgements on a path depend only on the data that the new path
/// has carried.
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

/// Returns true if the local end of a switched session may accept this FIN or reset, which has
/// arrived by the earlier path. The path that the session takes has not carried all data of that
/// one, so the local end's own acknowledgements decide. A FIN is within the window that they leave
/// (RFC 9293, 3.10.7.4), or has been acknowledged. A reset has the next expected number (RFC 5961,
/// 3.2), which is ahead of them only by data that the stack has yet to acknowledge.
#[inline(always)]
pub const fn may_end_late(s: &Session, seg: &Segment) -> bool {
    // After the FIN, a reset may have its number.
    let closed = (seg.has(RST) && s.life.fin_in & life::SEEN != 0) as u32;
    let last = seg.seq.wrapping_add(seg.span()).wrapping_add(closed);
    let ahead = if seg.has(RST) { BEHIND } else { widest_in(s) };
    !before(last, s.snd_ack) && !after(seg.seq, s.snd_ack.wrapping_add(ahead))
}
