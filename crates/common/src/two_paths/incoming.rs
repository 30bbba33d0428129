//! Segments for the local end, from either path.

use super::across::ACROSS;
use super::anchor::Anchor;
use super::ending::{Ending, ending, reset_for};
use super::peer::{PAST_CUTOFF, has_all_old, is_past_cutoff, is_taken_back};
use super::window::{room, scaled};
use crate::seq::{after, before, max, min};
use crate::session::Session;
use crate::tcp::{ACK, FIN, RST, Segment};

/// Result for a segment that arrived on the old path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OldIncoming {
    /// Deliver this segment.
    Deliver(Segment),
    /// Drop the segment: the proxy itself ends the session, and the end may not receive that, or
    /// not yet. See [`Ending`].
    Drop,
    /// Drop the segment: it only repeats acknowledged data.
    Withhold,
}

/// Returns true if the proxy asks whether there is room again, or whether the end is alive. Such a
/// probe repeats a number that the end has acknowledged. The end answers and accepts no data (RFC
/// 9293, 3.10.7.4). It must answer, or the proxy gives up the data that it holds. The proxy's
/// acknowledgements have another number, the highest that it has sent.
#[inline(always)]
pub(super) const fn probes(at: Anchor, s: &Session, seg: &Segment) -> bool {
    is_acked(at, s, seg.seq) && !is_newest(at, s, seg)
}

/// Returns true if a number of the old path was acknowledged by the end. The numbers of an end that
/// is far ahead cannot be compared.
#[inline(always)]
const fn is_acked(at: Anchor, s: &Session, seq: u32) -> bool {
    s.two.cut_set != 0 && has_all_old(s) || before(seq, at.acked(s))
}

/// Returns true if the old path waits for the end's answer to this segment. Otherwise the proxy
/// receives nothing more once the end has acknowledged all of its data. As long as the proxy holds
/// data for the other end, it would take this end for dead and give that data up.
#[inline(always)]
pub fn asks(at: Anchor, s: &Session, seg: &Segment) -> bool {
    s.two.drained != 0 && !seg.has(RST) && probes(at, s, seg)
}

/// Returns true if the segment takes no number and follows all data of the old path.
///
/// Anybody may have sent the segment, and the data before it as well. A reset must therefore have
/// the number that the other anchor has sent. That number is not the proxy's if the proxy has sent
/// a segment across the cutoff. Other segments must be near that number. Once the old path is taken
/// again, the proxy may have any number.
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

/// Judges a segment from the old path. The proxy's data from the cutoff on is not accepted. The
/// proxy may have received it in a segment across the cutoff, and leaves without waiting until it
/// is relayed. The proxy's acknowledgements stand still while those of the new path advance. They
/// are raised to the latter, since Linux discards a whole segment whose acknowledgement is older
/// than a window. The proxy's window is bounded by `clamp` and, once the far end has announced a
/// window, by that one.
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
        if is_past_cutoff(s) || after(s.peer_ack, ack) {
            if seg.span() == 0 && !probes(at, s, seg) {
                return OldIncoming::Withhold;
            }
            ack = s.peer_ack;
            let window = scaled(room(s.edge, ack), wscale);
            return OldIncoming::Deliver(Segment {
                seq,
                ack,
                window,
                flags,
                ..*seg
            });
        }
        let peer = room(s.edge, ack);
        limit = if peer < limit { peer } else { limit };
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

/// Returns the number under which the local end gets a segment of the old path. If the new path has
/// carried more to that end, the proxy is behind the numbers that the end has acknowledged. An
/// acknowledgement or a reset of the proxy then gets the number that the end expects. Linux ignores
/// a segment that ends before it (`tcp_sequence`, net/ipv4/tcp_input.c), and would retransmit for
/// ever the data that the proxy has.
#[inline(always)]
pub const fn old_number(at: Anchor, s: &Session, seg: &Segment) -> u32 {
    let ahead = s.two.new_data != 0 && is_acked(at, s, seg.seq);
    if ahead && is_newest(at, s, seg) {
        at.acked(s)
    } else {
        seg.seq
    }
}

/// Result for a segment that arrived on the new path, already in the local end's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewIncoming {
    /// True if the segment is to be delivered. A pure acknowledgement without news would count as a
    /// duplicate.
    pub deliver: bool,
    /// Sequence number for the delivery. If it differs from the segment's, it belongs to the old
    /// path, and the segment must have that path's clock.
    pub seq: u32,
    /// Acknowledgement number for the delivery.
    pub ack: u32,
    /// Window for the delivery, as sent.
    pub window: u16,
    /// True if SACK blocks are to be stripped. Blocks above a hole that the local end regards as
    /// acknowledged look like reneging.
    pub strip_sack: bool,
    /// Highest right window edge of the far end so far.
    pub edge: u32,
    /// Highest acknowledgement of the far end so far.
    pub peer_ack: u32,
}

/// In `new_ack_set`: the window that the end offers ends before data that the old path has sent. An
/// end may take back a part of its window (RFC 9293, 3.8.6). Linux does so when it is out of memory
/// (`tcp_select_window`, net/ipv4/tcp_output.c).
pub const REFUSES: u8 = 2;

/// Records whether an end's segment refuses data that the old path has sent.
#[inline(always)]
pub fn record_window(at: Anchor, s: &mut Session, seg: &Segment) {
    if !seg.has(ACK) || seg.has(RST) {
        return;
    }
    let window = (seg.window as u32) << (at.own_wscale(s) & 15);
    if before(seg.ack.wrapping_add(window), at.rcv_max(s)) {
        s.two.new_ack_set |= REFUSES;
    } else {
        s.two.new_ack_set &= !REFUSES;
    }
}

/// Returns the number for a segment from the new path. A pure acknowledgement has the number of the
/// next data on that path, which is beyond all data that the proxy still holds for the local end.
/// If the local end does not read, the number is beyond its window, and the end would discard the
/// acknowledgement. The acknowledgement therefore gets the highest number of the old path, which
/// sends nothing beyond the window. If the end has taken its window back, it gets the number that
/// the end has acknowledged. That number may be too old when it arrives, if the end receives data
/// at the same time.
#[inline(always)]
pub(super) fn within_window(at: Anchor, s: &Session, seg: &Segment) -> u32 {
    let waits = s.two.drained == 0 && (s.two.cut_in_set != 0 || s.two.new_data == 0);
    let highest = if s.two.new_ack_set & REFUSES != 0 {
        at.acked(s)
    } else {
        at.rcv_max(s)
    };
    if waits && seg.span() == 0 && !seg.has(RST) && after(seg.seq, highest) {
        highest
    } else {
        seg.seq
    }
}

/// Judges a segment from the new path. The far end does not have yet all data that the proxy
/// acknowledged for it. Its acknowledgement is raised to the highest one of the old path, and its
/// right window edge stays the same.
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
    let peer_ack = if known {
        max(s.peer_ack, seg.ack)
    } else {
        seg.ack
    };
    let floor = if s.two.cut_set != 0 {
        min(at.rcv_ack(s), s.cut_out)
    } else {
        at.rcv_ack(s)
    };
    let seq = within_window(at, s, seg);
    // A number far beyond the cutoff is not compared with it: see `PAST_CUTOFF`.
    let beyond = is_past_cutoff(s) && s.peer_ack.wrapping_sub(s.cut_out) >= 1 << 30;
    if !seg.has(ACK) || seg.has(RST) || beyond || !before(seg.ack, floor) {
        return NewIncoming {
            deliver: true,
            seq,
            ack: seg.ack,
            window: seg.window,
            strip_sack: false,
            edge,
            peer_ack,
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
        peer_ack,
    }
}

/// Records the progress that the far end announces on the new path, by a segment that acknowledges
/// up to `ack`. An acknowledgement of data that was never sent may come from anybody, and is
/// ignored.
#[inline(always)]
pub fn record_peer_ack(at: Anchor, s: &mut Session, ack: u32, judged: &NewIncoming) {
    if after(ack, at.snd_max(s)) {
        return;
    }
    s.edge = judged.edge;
    s.peer_ack = judged.peer_ack;
    s.two.edge_set = 1;
    if s.two.cut_set != 0 && !before(s.peer_ack, s.cut_out) {
        s.two.cut_set |= PAST_CUTOFF;
    }
}
