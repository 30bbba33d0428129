//! Packets of a path that is being opened, or was given up. A session receives nothing from such a
//! path, and in particular no reset. Any device on the path may have sent it for packets that
//! belong to no session it knows: a firewall that rejects, or a host without the session.

use super::opening::has_length;
use crate::session::{Session, State, part};
use crate::tcp::{RST, Segment};

/// Returns true if a session between two paths may receive this segment of its new path.
///
/// The left anchor cuts first. Until then the right anchor sends only the packets that open the
/// path. The right anchor is sent nothing before it has received these, or was notified. A reset is
/// accepted only on a path that has carried another segment of the other end, or on which that end
/// is known to send. An end that resets its session sends the reset on both paths (`outgoing`), so
/// that nothing is lost.
#[inline(always)]
pub const fn is_live(s: &Session, seg: &Segment) -> bool {
    let open = if s.life.opened_here != 0 {
        s.two.cut_set != 0
    } else {
        s.peer_sent_max != 0 || s.two.cut_set | s.two.cut_in_set != 0
    };
    open && may_be_resets(s, seg)
}

/// Returns true if a session may receive this segment of its second path, while its chain changes.
///
/// The left anchor switches first here as well. The right anchor follows when data arrives, once
/// both have shown how long their segments are.
#[inline(always)]
pub const fn is_live_beside(s: &Session, seg: &Segment) -> bool {
    if s.state == State::Joining as u32 {
        return s.life.opened_here == 0 && has_length(s) && !seg.has(RST);
    }
    // After the path was taken back, segments are still received on it, but no reset is accepted.
    may_be_resets(s, seg) && (s.two.part != part::NEXT || !seg.has(RST))
}

/// Returns true if the segment is no reset, or if the path is known to carry the session.
#[inline(always)]
const fn may_be_resets(s: &Session, seg: &Segment) -> bool {
    !seg.has(RST) || s.two.new_received | s.two.cut_in_set != 0
}

/// Records that the new path has carried a segment that the session may receive.
#[inline(always)]
pub fn record_live(s: &mut Session, seg: &Segment) {
    if !seg.has(RST) {
        s.two.new_received = 1;
    }
}
