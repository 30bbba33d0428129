//! What the local end may hear, by either path.

use super::anchor::Anchor;
use super::ending::{Ending, ending, reset_for};
use super::outgoing::ACROSS;
use super::shown::{has_all_old, is_past, is_taken_back};
use crate::seq::{after, before, max, min};
use crate::session::Session;
use crate::tcp::{ACK, FIN, RST, Segment};

/// What becomes of a segment that arrived on the old path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldIncoming {
    /// Deliver it so.
    Deliver(Segment),
    /// The proxy itself ends the session, and the end may not hear that, or not yet: see
    /// [`Ending`].
    Drop,
    /// It only repeats what is acknowledged already.
    Withhold,
}

/// The window of `bytes` as sent under a scale.
#[inline(always)]
pub(super) fn scaled(bytes: u32, wscale: u8) -> u16 {
    let w = bytes >> wscale;
    if w > 0xffff { 0xffff } else { w as u16 }
}

/// Bytes from an ack to the right edge that the far end announced.
#[inline(always)]
pub(super) fn room(edge: u32, ack: u32) -> u32 {
    if after(edge, ack) {
        edge.wrapping_sub(ack)
    } else {
        0
    }
}

/// Does the proxy ask whether there is room again, or whether the end is there at all? It
/// repeats a number that the end has acknowledged. The end answers, and takes in nothing
/// (RFC 9293, 3.10.7.4). It must: without an answer the proxy gives up what it holds. What it
/// acknowledges goes under the highest number that it has sent, which is another.
#[inline(always)]
pub(super) const fn probes(at: Anchor, s: &Session, seg: &Segment) -> bool {
    is_acked(at, s, seg.seq) && !is_newest(at, s, seg)
}

/// Is a number of the old path one that the end has acknowledged? Far behind it, numbers
/// tell no more.
#[inline(always)]
const fn is_acked(at: Anchor, s: &Session, seq: u32) -> bool {
    s.two.cut_set != 0 && has_all_old(s) || before(seq, at.acked(s))
}

/// Does the old path wait for an answer of the end by this segment? Else it hears nothing
/// once the end has acknowledged all of it, as long as the proxy holds something for the
/// other end: it would take this one for dead, and give that up.
#[inline(always)]
pub fn asks(at: Anchor, s: &Session, seg: &Segment) -> bool {
    s.two.drained != 0 && !seg.has(RST) && probes(at, s, seg)
}

/// Does it take no number, behind all that the old path has sent?
///
/// Anybody may have sent it, and what it follows as well. So in a reset it has to be the
/// number that the other anchor has told, which is not the proxy's where that has sent a
/// segment across the cutoff; and else not far from there. Once that path is taken again
/// the proxy's number may be any.
#[inline(always)]
const fn is_newest(at: Anchor, s: &Session, seg: &Segment) -> bool {
    let its_own = if is_taken_back(s) {
        true
    } else if seg.has(RST) {
        s.two.cut_in_set != 0 && seg.seq == s.cut_in
    } else {
        s.two.new_data == 0 || !after(seg.seq, s.new_low.wrapping_add(ACROSS))
    };
    its_own && seg.span() == 0 && seg.seq == at.rcv_max(s)
}

/// Judges a segment from the old path. The proxy is not believed about bytes
/// from the cutoff on, which it may have got in a segment across it: it leaves
/// without waiting for them to be relayed. Its acks stand still while those of
/// the new path go on: they are raised to these, since Linux discards a whole
/// segment whose ack is older than a window. Its window is bounded by `clamp`
/// and, once the far end has announced its own, by that.
#[inline(always)]
pub fn old_incoming(at: Anchor, s: &Session, seg: &Segment, wscale: u8) -> OldIncoming {
    let wscale = wscale & 15;
    let seq = old_number(at, s, seg);
    let mut flags = seg.flags;
    let ending = ending(at, s, seg);
    if ending != Ending::Passes {
        if seg.has(RST) || seg.len == 0 {
            return match reset_for(at, s, seg) {
                Some(reset) if ending == Ending::Short => OldIncoming::Deliver(reset),
                _ => OldIncoming::Drop,
            };
        }
        flags &= !FIN;
    }
    let mut ack = if s.two.cut_set != 0 {
        min(seg.ack, s.cut_out)
    } else {
        seg.ack
    };
    let clamp = at.clamp(s);
    let mut limit = if clamp > 0 { clamp << wscale } else { u32::MAX };
    if s.two.cut_set & s.two.edge_set != 0 && seg.has(ACK) && !seg.has(RST) {
        if is_past(s) || after(s.far_ack, ack) {
            if seg.span() == 0 && !probes(at, s, seg) {
                return OldIncoming::Withhold;
            }
            ack = s.far_ack;
            let window = scaled(room(s.edge, ack), wscale);
            return OldIncoming::Deliver(Segment {
                seq,
                ack,
                window,
                flags,
                ..*seg
            });
        }
        let far = room(s.edge, ack);
        limit = if far < limit { far } else { limit };
    }
    let fits = ((seg.window as u32) << wscale) <= limit;
    let window = if fits {
        seg.window
    } else {
        scaled(limit, wscale)
    };
    OldIncoming::Deliver(Segment {
        seq,
        ack,
        window,
        flags,
        ..*seg
    })
}

/// The number under which the local end gets a segment of the old path. Where the new one
/// has carried more to that end, the proxy is behind what it has acknowledged, and an
/// acknowledgement or a reset of the proxy goes under the number that it expects: Linux
/// hears nothing of a segment that ends before (`tcp_sequence`, net/ipv4/tcp_input.c), and
/// would repeat for ever what the proxy has got.
#[inline(always)]
pub const fn old_number(at: Anchor, s: &Session, seg: &Segment) -> u32 {
    let ahead = s.two.new_data != 0 && is_acked(at, s, seg.seq);
    if ahead && is_newest(at, s, seg) {
        at.acked(s)
    } else {
        seg.seq
    }
}

/// What becomes of a segment that arrived on the new path, already in the
/// local end's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewIncoming {
    /// Deliver it at all? A pure ack that says nothing new would count as a
    /// duplicate.
    pub deliver: bool,
    /// The number to deliver it under. If that is another, it belongs to the old path,
    /// whose clock it has to show.
    pub seq: u32,
    /// The acknowledgement to deliver.
    pub ack: u32,
    /// The window to deliver, as sent.
    pub window: u16,
    /// SACK blocks above a hole that the local end believes acknowledged look
    /// like reneging: strip them.
    pub strip_sack: bool,
    /// The far end's right window edge, highest so far.
    pub edge: u32,
    /// The far end's ack, highest so far.
    pub far_ack: u32,
}

/// The number of a segment from the new path. A pure ack has that of what comes next
/// there, which is beyond all that the proxy still holds for the local end: beyond its
/// window, if it does not read, and it would discard the ack. The old path sends
/// nothing beyond the window, so it goes under the highest number of that.
#[inline(always)]
pub(super) fn within_window(at: Anchor, s: &Session, seg: &Segment) -> u32 {
    let waits = s.two.drained == 0 && (s.two.cut_in_set != 0 || s.two.new_data == 0);
    if waits && seg.span() == 0 && !seg.has(RST) && after(seg.seq, at.rcv_max(s)) {
        at.rcv_max(s)
    } else {
        seg.seq
    }
}

/// Judges a segment from the new path. The far end has not got yet what the
/// proxy acknowledged for it: its ack is raised to the highest the old path
/// gave, its right window edge kept where it is.
#[inline(always)]
pub fn new_incoming(at: Anchor, s: &Session, seg: &Segment, wscale: u8) -> NewIncoming {
    let wscale = wscale & 15;
    let edge_now = seg.ack.wrapping_add((seg.window as u32) << wscale);
    let known = s.two.edge_set != 0;
    let edge = if known {
        max(s.edge, edge_now)
    } else {
        edge_now
    };
    let far_ack = if known {
        max(s.far_ack, seg.ack)
    } else {
        seg.ack
    };
    let floor = if s.two.cut_set != 0 {
        min(at.rcv_ack(s), s.cut_out)
    } else {
        at.rcv_ack(s)
    };
    let seq = within_window(at, s, seg);
    // Far beyond the cutoff nothing is compared with it: see `PAST`.
    let far = is_past(s) && s.far_ack.wrapping_sub(s.cut_out) >= 1 << 30;
    if !seg.has(ACK) || seg.has(RST) || far || !before(seg.ack, floor) {
        return NewIncoming {
            deliver: true,
            seq,
            ack: seg.ack,
            window: seg.window,
            strip_sack: false,
            edge,
            far_ack,
        };
    }
    let window = scaled(room(edge, floor), wscale);
    let news = !known || after(edge, s.edge);
    NewIncoming {
        deliver: seg.span() > 0 || (news && window > 0),
        seq,
        ack: floor,
        window,
        strip_sack: true,
        edge,
        far_ack,
    }
}
