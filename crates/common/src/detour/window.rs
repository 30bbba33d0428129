//! The receiver's window while a direction leaves. The sender has that of the near socket, and its data
//! overtakes what the sockets still have.

use super::{Detour, End, FromEnd, Way, late, phase};
use crate::seq::after;
use crate::tcp::{ACK, RST, Segment};

/// Keeps data of the local end, whose route is decided, out of the network if its receiver has no room
/// for it. The receiver would drop it, and a firewall on the way would take its end for the highest number
/// that was sent. Records the window that a packet announces. `scale` is that of the windows that the end
/// sends.
#[inline(always)]
pub fn keep_in_window(d: &mut Detour, from: End, seg: &Segment, scale: u8, out: &mut FromEnd) {
    if d.paired != 0 || seg.has(RST) {
        return;
    }
    let (way, acked) = d.ways(from);
    if seg.has(ACK) {
        let edge = seg.ack.wrapping_add((seg.window as u32) << (scale & 15));
        keep_edge(acked, edge);
    }
    // A stack drops by itself what it has no room for.
    let overtakes = from == End::Local && seg.span() > 0 && way.has_overtaken(seg.seq);
    if !overtakes || out.to_socket || way.late_set != late::EDGE {
        return;
    }
    let first = seg.seq.wrapping_add(way.next_shift);
    if !after(first.wrapping_add(seg.len), way.late_edge) {
        return;
    }
    if seg.len == 0 {
        // A FIN, which is repeated.
        out.dropped = true;
    } else {
        // Its acknowledgement alone. A packet of several segments cannot be cut between two.
        out.keep = Some(0);
        out.main.seq = way.through;
    }
}

/// Records the right edge of the window of a direction's receiver.
#[inline(always)]
fn keep_edge(way: &mut Way, edge: u32) {
    let moves = way.late_set != late::EDGE || after(edge, way.late_edge);
    let leaves = way.phase == phase::LEAVING && way.received == 0;
    if way.phase == phase::THROUGH || leaves && moves {
        way.late_edge = edge;
        way.late_set = late::EDGE;
    }
}
