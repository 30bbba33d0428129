//! A packet that an end sends: to the other end, to the socket that speaks with this end, or a
//! part of it to each.

// The larger functions are not inlined in the kernel: too many values would be alive at a time, and
// LLVM would keep halves of pointers on the stack.

use super::heard::{Heard, hear_for_end, hear_for_socket, keep_shown, nothing};
use super::{Detour, End, Way, cut, phase};
use crate::seq::{after, before, max, min};
use crate::tcp::{ACK, RST, Segment};

/// Headers that a packet leaves with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FromEnd {
    /// Header of the packet itself.
    pub main: Header,
    /// True if the packet itself goes to the socket, false if it goes to the other end.
    pub to_socket: bool,
    /// Bytes of payload that the packet keeps, if it extends beyond the cutoff. It then has no FIN.
    pub keep: Option<u32>,
    /// The packet carries nothing, and nobody waits for what it acknowledges.
    pub dropped: bool,
    /// The other of the two gets a packet without payload, since it has to hear the
    /// acknowledgement.
    pub copied: bool,
    /// Header of that packet.
    pub copy: Header,
}

/// Changed fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// First sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// Window as it is sent.
    pub window: u16,
    /// Number to add to the edges of SACK blocks.
    pub sack_add: u32,
    /// The packet may contain SACK blocks.
    pub sacks: bool,
}

/// The acknowledgements that a packet of an end has for its two senders, and what decides its
/// headers. It is the result of [`hear`] and [`choose_route`], for [`write_headers`].
#[derive(Clone, Copy, Default)]
pub struct Weighed {
    /// For the other end.
    direct: Heard,
    /// For the socket that speaks with this end.
    socket: Heard,
    /// This end has no socket that sends to it.
    alone: bool,
    /// The packet carries nothing.
    bare: bool,
    /// The packet is a probe of a window.
    probes: bool,
    /// The other end lacks data that the last socket has yet to send.
    behind: bool,
}

/// Decides the route of a packet of an end, and records what it says. `scale` is that of the
/// windows that the end sends. The result is written in place: the kernel's stack is small.
#[inline(always)]
pub fn from_end(d: &mut Detour, from: End, seg: &Segment, scale: u8, out: &mut FromEnd) {
    let mut weighed = Weighed::default();
    hear(d, from, seg, scale, &mut weighed);
    choose_route(d, from, seg, &mut weighed, out);
    write_headers(d, from, seg, &weighed, out);
}

/// The first part of [`from_end`]: records the acknowledgement. The kernel's verifier follows each
/// combination of results through the code that uses them, unless that code is in another function
/// and reads them from a map. The parts are such functions.
#[inline(always)]
pub fn hear(d: &mut Detour, from: End, seg: &Segment, scale: u8, weighed: &mut Weighed) {
    let alone = d.has_no_socket(from);
    let paired = d.paired != 0;
    let (_, acked) = d.ways(from);
    if paired && !alone {
        infer_cut(acked, seg);
        keep_shown(acked, seg, scale);
    }
    weighed.direct = hear_for_end(acked, seg, scale);
    weighed.socket = if alone {
        nothing(acked, true, scale)
    } else {
        hear_for_socket(acked, seg, scale)
    };
}

/// The second part of [`from_end`]: decides the route, and records what was sent.
#[inline(always)]
pub fn choose_route(
    d: &mut Detour,
    from: End,
    seg: &Segment,
    weighed: &mut Weighed,
    out: &mut FromEnd,
) {
    let alone = d.has_no_socket(from);
    let paired = d.paired != 0;
    let (way, _) = d.ways(from);
    if !seg.has(RST) && after(seg.end(), way.sent) {
        way.sent = seg.end();
    }
    let bare = seg.span() == 0 && !seg.has(RST);
    let probes = bare && is_probe(way, seg.seq, alone);
    let route = if alone {
        Route::whole(false)
    } else if probes {
        let next = seg.seq.wrapping_add(1);
        route(way, next, next.wrapping_add(1))
    } else if bare {
        // An acknowledgement alone goes wherever it is awaited.
        Route::whole(!weighed.direct.speaks)
    } else {
        route(way, seg.seq, seg.end())
    };
    out.to_socket = route.to_socket;
    out.keep = route.keep;
    out.dropped = alone && bare && !probes && !weighed.direct.speaks;
    let next = seg.seq.wrapping_add(probes as u32);
    weighed.alone = alone;
    weighed.bare = bare;
    weighed.probes = probes;
    weighed.behind = !paired && way.has_overtaken(next);
}

/// The third part of [`from_end`]: the headers of the packet, and of its copy if there is one.
#[inline(always)]
pub fn write_headers(
    d: &mut Detour,
    from: End,
    seg: &Segment,
    weighed: &Weighed,
    out: &mut FromEnd,
) {
    let &Weighed {
        alone,
        bare,
        probes,
        behind,
        ..
    } = weighed;
    let (way, _) = d.ways(from);
    let next = seg.seq.wrapping_add(probes as u32);
    let (main, other) = if out.to_socket {
        (&weighed.socket, &weighed.direct)
    } else {
        (&weighed.direct, &weighed.socket)
    };
    let said = other.speaks && (bare && other.alone || other.news);
    let copied = said && seg.has(ACK) && !seg.has(RST);
    let len = out.keep.unwrap_or(seg.span());
    let place = match out.to_socket {
        true => Place::Socket,
        // Data of the direct route, whether its cutoff is known here or not.
        false if alone && (seg.span() > 0 || probes) => Place::Directly,
        false if bare && behind => Place::Behind,
        false => Place::End,
    };
    header(way, seg, next, main, place, len, &mut out.main);
    out.main.seq = out.main.seq.wrapping_sub(probes as u32);
    out.copied = copied;
    if copied {
        let place = match out.to_socket {
            true if behind => Place::Behind,
            true => Place::End,
            false => Place::Socket,
        };
        header(way, seg, next, other, place, 0, &mut out.copy);
    }
}

/// True if a packet without data is a probe of a closed window, or of a silent receiver. It has the
/// number before the next one (`tcp_xmit_probe_skb`, net/ipv4/tcp_output.c), and the receiver of the
/// next byte has to answer.
#[inline(always)]
fn is_probe(way: &Way, seq: u32, alone: bool) -> bool {
    if !before(seq, way.sent) {
        return false;
    }
    match way.effective() {
        // While data passes the two handlers, acknowledgements come directly. They all have the
        // number of the cutoff, and the near socket has sent more than that.
        phase::ENTERING | phase::THROUGH if alone && way.is_cut() => before(seq, way.cut),
        phase::LEAVING if alone => way.is_cut() && !before(seq.wrapping_add(1), way.cut),
        _ => true,
    }
}

/// Sets the cutoff of a paired direction that leaves its detour, if the local end acknowledges more
/// than the near socket has sent. What it acknowledges beyond that came directly. The near socket
/// has then sent all data before the cutoff, and none after it.
#[inline(always)]
fn infer_cut(way: &mut Way, seg: &Segment) {
    let unknown = way.phase == phase::LEAVING && way.cut_set == cut::UNSET;
    if unknown && seg.has(ACK) && !seg.has(RST) && after(seg.ack, way.through) {
        way.cut_at(way.through.wrapping_sub(way.next_shift));
        way.cut_set = cut::SET;
    }
}

#[derive(Clone, Copy)]
struct Route {
    to_socket: bool,
    keep: Option<u32>,
}

impl Route {
    #[inline(always)]
    const fn whole(to_socket: bool) -> Route {
        Route {
            to_socket,
            keep: None,
        }
    }
}

/// Returns the route of the numbers of a segment with data, a FIN or a reset.
#[inline(always)]
fn route(way: &Way, seq: u32, end: u32) -> Route {
    match way.effective() {
        phase::DIRECT => Route::whole(false),
        phase::THROUGH => Route::whole(true),
        phase::LEAVING if !way.is_cut() || before(seq, way.cut) => Route {
            to_socket: true,
            // Later acknowledgements have the number of the cutoff. A socket that had received more
            // would ignore them as old.
            keep: (way.is_cut() && after(end, way.cut)).then(|| way.cut.wrapping_sub(seq)),
        },
        phase::LEAVING => Route::whole(false),
        // What the receiver has acknowledged is not sent to it again: the socket answers.
        _ if way.received != 0 || way.is_cut() && !before(seq, way.cut) => Route::whole(true),
        _ if way.is_cut() && after(end, way.cut) => Route {
            to_socket: false,
            keep: Some(way.cut.wrapping_sub(seq)),
        },
        _ => Route::whole(false),
    }
}

/// Receiver of a packet of an end.
#[derive(Clone, Copy)]
enum Place {
    /// The socket that speaks with this end.
    Socket,
    /// The other end.
    End,
    /// The other end, whatever its way's phase.
    Directly,
    /// The other end, behind the data of the last socket.
    Behind,
}

/// Returns the header of a packet of an end that takes `len` numbers from `seq` on.
#[inline(always)]
fn header(
    way: &mut Way,
    seg: &Segment,
    seq: u32,
    heard: &Heard,
    place: Place,
    len: u32,
    out: &mut Header,
) {
    let seq = match place {
        Place::Socket => number_for_socket(way, seq),
        Place::End => number_for_end(way, seq),
        Place::Directly => seq.wrapping_add(way.direct_shift()),
        Place::Behind => way.through,
    };
    let end = seq.wrapping_add(len);
    let to_socket = matches!(place, Place::Socket);
    if !to_socket && !seg.has(RST) && after(end, way.delivered) {
        way.delivered = end;
    }
    *out = Header {
        seq,
        ack: heard.ack,
        window: heard.window,
        sack_add: heard.sack_add,
        sacks: heard.sacks,
    };
}

/// Returns a number as the socket has it. Data of the other route is no data of the socket.
#[inline(always)]
fn number_for_socket(way: &Way, seq: u32) -> u32 {
    let seq = match way.effective() {
        phase::ENTERING if !way.is_cut() => return way.start,
        phase::ENTERING if way.received == 0 => max(seq, way.cut),
        phase::LEAVING if way.is_cut() => min(seq, way.cut),
        // The sockets have had all of it.
        phase::DIRECT => way.cut,
        _ => seq,
    };
    seq.wrapping_add(way.to_socket)
}

/// Returns a number as the other end has it. A packet without data that follows data of the other
/// route has the number that the receiver expects.
#[inline(always)]
fn number_for_end(way: &Way, seq: u32) -> u32 {
    let direct = seq.wrapping_add(way.direct_shift());
    match way.effective() {
        phase::DIRECT => direct,
        phase::ENTERING if !way.is_cut() || before(seq, way.cut) => direct,
        phase::LEAVING if way.is_cut() && !before(seq, way.cut) => direct,
        _ => way.delivered,
    }
}
