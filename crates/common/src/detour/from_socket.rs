//! A packet that a socket of the handler sends to its end.

use super::{Detour, End, Header, Way, phase};
use crate::seq::{after, before};
use crate::tcp::{ACK, RST, Segment};

/// Judgement about a packet of a socket, before its headers are written.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Spoken {
    /// Not 0 if the end gets the bytes of the socket.
    entered: u32,
    /// Not 0 if the end waits for a window ([`Detour::awaits_window`]).
    awaited: u32,
    /// Not 0 if the end may hear the acknowledgement.
    speaks: u32,
}

/// Decides about a packet that the socket which speaks with an end sends to it. `scale` is that
/// of the windows that this end receives. Returns `None` if the end must not receive the packet.
///
/// The data plane takes the three steps one by one, since its verifier would otherwise follow each
/// result of one through all of the next.
pub fn from_socket(d: &mut Detour, to: End, seg: &Segment, scale: u8) -> Option<Header> {
    let mut spoken = Spoken::default();
    if !admit(d, to, seg, &mut spoken) {
        return None;
    }
    listen(d, to, seg, scale, &mut spoken);
    speak(d, to, seg, scale, &spoken)
}

const fn carries(seg: &Segment) -> bool {
    seg.span() > 0 || seg.has(RST)
}

/// Decides whether the end gets bytes of the socket. Returns false if it must not get this packet.
#[inline(always)]
pub fn admit(d: &mut Detour, to: End, seg: &Segment, spoken: &mut Spoken) -> bool {
    spoken.awaited = d.awaits_window(to) as u32;
    let (acked, way) = d.ways(to);
    let entered = match way.effective() {
        phase::DIRECT => false,
        // The handler sent before it received: the caller has tried to set the cutoff.
        phase::ENTERING => way.is_cut(),
        _ => true,
    };
    spoken.entered = entered as u32;
    // A handler that gives a session up resets both ends, even one to which no byte comes from it
    // yet, or any more.
    let elsewhere = acked.effective() != phase::DIRECT;
    let gives_up = seg.has(RST) && (way.effective() == phase::ENTERING || elsewhere);
    !carries(seg) || entered || gives_up
}

/// Takes the acknowledgement and the window of the socket.
#[inline(always)]
pub fn listen(d: &mut Detour, to: End, seg: &Segment, scale: u8, spoken: &mut Spoken) {
    let (acked, _) = d.ways(to);
    let (ack, edge) = offered(acked, seg, scale);
    let counts = seg.has(ACK) && !seg.has(RST);
    spoken.speaks = (counts && hears(acked, ack, edge)) as u32;
}

/// Returns the number that the socket acknowledges, and the end of its window.
#[inline(always)]
const fn offered(acked: &Way, seg: &Segment, scale: u8) -> (u32, u32) {
    let ack = seg.ack.wrapping_sub(acked.to_socket);
    (ack, ack.wrapping_add((seg.window as u32) << (scale & 15)))
}

/// Returns the headers of the packet. Returns `None` if it says nothing to the end.
#[inline(always)]
pub fn speak(d: &mut Detour, to: End, seg: &Segment, scale: u8, spoken: &Spoken) -> Option<Header> {
    let paired = d.paired != 0;
    let (acked, way) = d.ways(to);
    let (entered, speaks) = (spoken.entered != 0, spoken.speaks != 0);
    // A probe of a closed window has the number before the next one. The end has to answer.
    let number = seg.seq.wrapping_add(way.from_socket);
    let probes = entered && before(number, way.through);
    if !carries(seg) && !speaks && !probes {
        return None;
    }
    let seq = if entered {
        let seq = if spoken.awaited != 0 && !carries(seg) {
            first_or(seg.seq, way.start)
        } else {
            seg.seq
        };
        seq.wrapping_add(way.from_socket)
    } else {
        way.delivered
    };
    if !seg.has(RST) {
        record(way, seq.wrapping_add(seg.span()), entered, paired);
    }
    let (ack, edge) = offered(acked, seg, scale);
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

/// Records that the end is sent everything before a number.
#[inline(always)]
const fn record(way: &mut Way, end: u32, entered: bool, paired: bool) {
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
fn hears(way: &mut Way, ack: u32, edge: u32) -> bool {
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
