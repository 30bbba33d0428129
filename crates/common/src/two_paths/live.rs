//! What a session may hear of a path that is being opened, or was given up: nothing, and a
//! reset least of all. Whatever lies on the path may have sent it, for packets that are no
//! session's: a firewall that rejects, a host that knows no such session.

use super::opening::has_length;
use crate::session::{Session, State, part};
use crate::tcp::{RST, Segment};

/// May a session between two paths hear this segment of its new path?
///
/// The left anchor cuts first: until then the right one sends nothing there but what opens
/// the path. The right one is sent nothing before it has heard that, or was told. A reset is believed only
/// on a path that has carried something else of the other end, or by which that end is known
/// to send: an end that resets its session tells both paths (`outgoing`), so nothing is lost.
#[inline(always)]
pub const fn is_live(s: &Session, seg: &Segment) -> bool {
    let open = if s.life.opened_here != 0 {
        s.two.cut_set != 0
    } else {
        s.shown != 0 || s.two.cut_set | s.two.cut_in_set != 0
    };
    open && may_be_resets(s, seg)
}

/// The same of the second path of a session whose chain changes.
///
/// The left anchor switches first here as well, and the right one follows what has come then,
/// once both have shown how long their segments are.
#[inline(always)]
pub const fn is_live_beside(s: &Session, seg: &Segment) -> bool {
    if s.state == State::Joining as u32 {
        return s.life.opened_here == 0 && has_length(s) && !seg.has(RST);
    }
    // Taken back, it is heard on, but no reset is believed.
    may_be_resets(s, seg) && (s.two.part != part::NEXT || !seg.has(RST))
}

/// Is it no reset, or one of a path that is known to carry the session?
#[inline(always)]
const fn may_be_resets(s: &Session, seg: &Segment) -> bool {
    !seg.has(RST) || s.two.new_heard | s.two.cut_in_set != 0
}

/// Takes in that the new path has carried a segment that the session may hear.
#[inline(always)]
pub fn hear_live(s: &mut Session, seg: &Segment) {
    if !seg.has(RST) {
        s.two.new_heard = 1;
    }
}
