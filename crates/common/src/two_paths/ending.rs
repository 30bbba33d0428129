//! The end of a session between two paths by its middlebox: the meaning of a FIN or reset.
//!
//! A middlebox that closes, or whose process dies, may hold bytes that it acknowledged. The number
//! of its FIN shows whether any are missing, because the old path ends at the cutoff. Missing bytes
//! are lost. Both ends must then receive a reset, and neither may see a clean end of its stream.

use super::anchor::Anchor;
use super::peer::{has_all_old, has_announced_all, is_past_cutoff, is_taken_back, may_reset};
use crate::seq::before;
use crate::session::{Session, State, life};
use crate::tcp::{ACK, FIN, RST, Segment};

/// In `cut_in_set`: the other end closed before its cut, so that the number before the cutoff is
/// that of its FIN. `cut_in` is valid as well.
pub const CLOSES: u8 = 2;

/// Meaning of a FIN or a reset of the old path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The session's other end sent it, or it passes as it would without a second path.
    Passes,
    /// The middlebox ends its own session after all data that it had to relay is delivered.
    Relayed,
    /// A FIN before the cutoff is known. It waits: the middlebox's kernel retransmits it.
    Undecided,
    /// A FIN of the middlebox with bytes missing before the cutoff, or after the middlebox has
    /// ended the session.
    Short,
}

/// Beginning of the data that an end sends on its new path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cutoff {
    /// The first sequence number of the new path.
    pub at: u32,
    /// True if the number before `at` is that of the end's FIN: the end had closed before its cut.
    pub closes: bool,
}

impl Cutoff {
    /// Returns the cutoff in numbers that are higher by `by`.
    pub const fn moved(self, by: u32) -> Cutoff {
        Cutoff {
            at: self.at.wrapping_add(by),
            ..self
        }
    }
}

/// The FINs that an anchor has seen when a new path opens. It holds back those that arrive later,
/// until they are known to be the other end's ([`ending`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Fins {
    /// True if the end that the anchor acts for has sent a FIN.
    pub sent: bool,
    /// True if that end was sent a FIN: the other end's, or the middlebox's own.
    pub heard: bool,
}

impl Fins {
    /// Returns the FINs that an entry has seen.
    pub const fn of(at: Anchor, s: &Session) -> Fins {
        Fins {
            sent: at.fin_sent(s) != 0,
            heard: at.fin_received(s) != 0,
        }
    }

    /// Returns the FINs as two bits.
    pub const fn bits(self) -> u32 {
        self.sent as u32 | (self.heard as u32) << 1
    }

    /// Returns the FINs of these bits.
    pub const fn from_bits(bits: u32) -> Fins {
        Fins {
            sent: bits & 1 != 0,
            heard: bits & 2 != 0,
        }
    }

    /// Returns true if the other end sent each FIN that an end received. Otherwise the middlebox
    /// has closed.
    pub const fn agree(self, other: Fins) -> bool {
        (!self.heard || other.sent) && (!other.heard || self.sent)
    }
}

/// Returns the cutoff of an end whose entry has been cut.
pub const fn cutoff(at: Anchor, s: &Session) -> Cutoff {
    Cutoff {
        at: s.cut_out,
        closes: at.fin_sent(s) != 0 && at.snd_max(s) == s.cut_out,
    }
}

/// Returns true if a FIN is the last segment that its end, which has been cut, sends on the old
/// path. If the end is remote, its FIN may be lost on the way to this host, and later segments may
/// not be. In that case the cutoff does not show the FIN.
#[inline(always)]
pub fn is_at_cutoff(s: &Session, fin: &Segment) -> bool {
    s.two.cut_set != 0 && fin.end() == s.cut_out
}

/// Returns true if the other end had closed before its cut.
#[inline(always)]
const fn closes(at: Anchor, s: &Session) -> bool {
    s.two.cut_in_set & CLOSES != 0 || at.fin_received(s) & life::AT_CUTOFF != 0
}

/// Judges a segment of the old path, with or without a FIN or reset.
#[inline(always)]
pub fn ending(at: Anchor, s: &Session, seg: &Segment) -> Ending {
    if seg.flags & (FIN | RST) == 0 || is_taken_back(s) {
        return Ending::Passes;
    }
    let ended = is_broken(s);
    if seg.has(RST) {
        let own = s.two.cut_set != 0 && s.muted == 0 && !ended;
        return if own && (is_through(at, s, seg) || needs_no_proxy(s)) {
            Ending::Relayed
        } else {
            Ending::Passes
        };
    }
    let fin_at = seg.seq.wrapping_add(seg.len);
    if ended {
        Ending::Short
    } else if s.two.cut_in_set != 0 {
        if closes(at, s) && fin_at.wrapping_add(1) == s.cut_in {
            Ending::Passes
        } else if before(fin_at, s.cut_in) {
            Ending::Short
        } else {
            Ending::Relayed
        }
    } else if s.two.new_data != 0 {
        // The other end has sent more since its cut: this is not the other end's FIN.
        if before(fin_at, s.new_low) {
            Ending::Undecided
        } else {
            Ending::Relayed
        }
    } else if may_be_cut(s) {
        Ending::Undecided
    } else {
        Ending::Passes
    }
}

/// Returns true if the other end may have cut. A left anchor cuts once the new path has answered.
/// An earlier FIN passes: a change whose anchors do not reach each other must not delay the end of
/// a session.
#[inline(always)]
const fn may_be_cut(s: &Session) -> bool {
    let open = s.state == State::TwoPaths as u32 && s.peer_sent_max != 0;
    open || s.state == State::RelayTwoPaths as u32 || s.two.cut_set != 0
}

/// Returns true if the proxy has nothing left to relay, so that this anchor may leave it. The
/// highest number seen is not sufficient, because there may be a hole. A new path that has not
/// shown what it has to may be dead. In that case only the proxy reports that the other end resets.
#[inline(always)]
fn is_through(at: Anchor, s: &Session, reset: &Segment) -> bool {
    let says = reset.has(ACK) && !before(reset.ack, s.cut_out);
    let has_all = says || !before(at.rcv_ack(s), s.cut_out);
    s.two.drained != 0 && has_announced_all(s) && has_all
}

/// Returns true if each end has all data of the old path, and has acknowledged it on the new one.
#[inline(always)]
const fn needs_no_proxy(s: &Session) -> bool {
    is_past_cutoff(s) && has_all_old(s)
}

/// Returns true if the middlebox has ended the session between two paths.
#[inline(always)]
pub const fn is_broken(s: &Session) -> bool {
    s.life.reset & life::BY_MIDDLEBOX != 0
}

/// Returns true if the end that the anchor acts for has reset the session. It accepts nothing more
/// on either path, and acknowledges nothing.
#[inline(always)]
pub const fn has_reset(s: &Session) -> bool {
    s.life.reset & life::BY_END != 0
}

/// Returns the reset that an end gets in place of a FIN with bytes missing, once the end has
/// acknowledged all data before it. The end accepts no other number (RFC 5961, 3.2). The kernel of
/// the middlebox retransmits the FIN until then.
#[inline(always)]
pub(super) fn reset_for(at: Anchor, s: &Session, fin: &Segment) -> Option<Segment> {
    (fin.len == 0 && fin.seq == at.acked(s)).then_some(Segment {
        flags: RST | ACK,
        ..*fin
    })
}

/// Returns the part of a segment of the old path that the entry may learn as the session's other
/// end's. The middlebox's own FIN is left out. A reset on the old path ends the session by
/// [`breaks`].
#[inline(always)]
pub fn taught(at: Anchor, s: &Session, seg: &Segment) -> Option<Segment> {
    if seg.has(RST) {
        return (!is_between(s)).then_some(*seg);
    }
    if ending(at, s, seg) == Ending::Passes {
        return Some(*seg);
    }
    (seg.len > 0).then_some(Segment {
        flags: seg.flags & !FIN,
        ..*seg
    })
}

/// Returns true if this segment of the old path, `delivered` as the end gets it, reports to the end
/// that the middlebox has ended the session.
#[inline(always)]
pub const fn breaks(at: Anchor, s: &Session, delivered: &Segment) -> bool {
    let believed = match at {
        Anchor::Local => may_reset(s, delivered.seq),
        // The stack of this host has sent it.
        Anchor::Remote => true,
    };
    delivered.has(RST) && is_between(s) && believed
}

#[inline(always)]
const fn is_between(s: &Session) -> bool {
    let two = s.state == State::TwoPaths as u32 || s.state == State::RelayTwoPaths as u32;
    two && !is_taken_back(s)
}

/// Returns true if the middlebox closed before anything was held back, although the other end,
/// whose cutoff is known now, had not closed, or had sent more.
#[inline(always)]
pub const fn closed_before(at: Anchor, s: &Session) -> bool {
    let closed = at.fin_received(s) & life::OLD_PATH != 0;
    let its = closes(at, s) && at.rcv_max(s) == s.cut_in;
    s.two.cut_in_set != 0 && closed && !its
}

/// Returns the number of bytes before the cutoff that the middlebox had acknowledged and the end
/// has not received; 0 if none is known.
#[inline(always)]
pub fn undelivered(at: Anchor, s: &Session) -> u32 {
    let all = s.two.cut_in_set == 0 || has_all_old(s);
    if all || !before(at.acked(s), s.cut_in) {
        return 0;
    }
    s.cut_in.wrapping_sub(at.acked(s)) - closes(at, s) as u32
}
