//! A packet that a socket of the handler sends to its end.

use super::{Detour, End, Header, phase};
use crate::seq::{after, before};
use crate::tcp::{ACK, RST, Segment};

/// Decides about a packet that the socket which speaks with an end sends to it. `scale` is that
/// of the windows that this end receives. Returns `None` if the end must not receive the packet.
#[inline(always)]
pub fn from_socket(d: &mut Detour, to: End, seg: &Segment, scale: u8) -> Option<Header> {
    let paired = d.paired != 0;
    let awaited = d.awaits_window(to);
    let (acked, way) = d.ways(to);
    let carries = seg.span() > 0 || seg.has(RST);
    let entered = match way.effective() {
        phase::DIRECT => false,
        // The handler sent before it received: the caller has tried to set the cutoff.
        phase::ENTERING => way.is_cut(),
        _ => true,
    };
    // A handler that gives a session up resets both ends, even one to which no byte comes from it
    // yet, or any more.
    let elsewhere = acked.effective() != phase::DIRECT;
    let gives_up = seg.has(RST) && (way.effective() == phase::ENTERING || elsewhere);
    if carries && !entered && !gives_up {
        return None;
    }
    let ack = seg.ack.wrapping_sub(acked.to_socket);
    let edge = ack.wrapping_add((seg.window as u32) << (scale & 15));
    let counts = seg.has(ACK) && !seg.has(RST);
    let speaks = counts && hears(acked, ack, edge);
    // A probe of a closed window has the number before the next one. The end has to answer.
    let number = seg.seq.wrapping_add(way.from_socket);
    let probes = entered && !carries && before(number, way.through);
    if !carries && !speaks && !probes {
        return None;
    }
    let seq = if entered {
        let seq = if awaited && !carries {
            first_or(seg.seq, way.start)
        } else {
            seg.seq
        };
        seq.wrapping_add(way.from_socket)
    } else {
        way.delivered
    };
    let end = seq.wrapping_add(seg.span());
    if !seg.has(RST) {
        if after(end, way.delivered) {
            way.delivered = end;
        }
        if entered && after(end, way.through) {
            way.through = end;
        }
        // The other end's own packets with this data never come here.
        let sent = end.wrapping_sub(way.direct_shift());
        if paired && after(sent, way.sent) {
            way.sent = sent;
        }
    }
    let own = ack == acked.shown;
    Some(Header {
        seq,
        ack: acked.shown,
        window: if own && speaks {
            seg.window
        } else {
            acked.window(edge, scale)
        },
        sack_add: acked.to_socket.wrapping_neg(),
        sacks: own && speaks,
    })
}

/// Returns the number of a packet without data to an end that waits for a window. A window probe has
/// the number before the next (`tcp_xmit_probe_skb`, net/ipv4/tcp_output.c), so that a receiver
/// answers, and does not take its window. The number is raised for this end, which takes the window
/// and does not answer. Any other end has to answer: the socket may have seen its window closed last.
#[inline(always)]
const fn first_or(seq: u32, start: u32) -> u32 {
    if seq.wrapping_add(1) == start {
        start
    } else {
        seq
    }
}

/// Records what the socket acknowledges to the end. Returns true if the end may hear the socket.
#[inline(always)]
fn hears(way: &mut super::Way, ack: u32, edge: u32) -> bool {
    match way.effective() {
        phase::THROUGH => {
            way.show(ack, edge);
            true
        }
        phase::ENTERING => {
            if !way.is_cut() {
                return false;
            }
            if way.released == 0 {
                way.keep(ack, edge);
                return false;
            }
            way.show(ack, edge);
            true
        }
        phase::LEAVING => {
            if way.released != 0 {
                return false;
            }
            let all = way.is_cut() && !before(ack, way.cut);
            way.show(if all { way.cut } else { ack }, edge);
            if all {
                way.release();
            }
            true
        }
        _ => false,
    }
}
