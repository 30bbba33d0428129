//! Packets of the data planes that open a path and end it. No stack receives them.

use super::peer::{announces_to, record_announced};
use crate::seq::{after, before, min};
use crate::session::{Session, State};
use crate::tcp::{ACK, Edit, PSH, RST, SYN, Segment};

/// Records a SYN on a new path that this end, the right one, is prepared for, or a later
/// [`opens_windows`] of the left end.
#[inline(always)]
pub fn record_opening(s: &mut Session, seg: &Segment) -> bool {
    if s.peer_sent_max == 0 && s.two.cut_set == 0 {
        s.cut_out = s.snd_max;
    }
    // The payload of a SYN is not the session's.
    let next = seg.seq.wrapping_add((seg.has(SYN)) as u32);
    record_announced(s, s.received_off_wire(next))
}

/// Returns the answer to such a packet. It proves to the other anchor that packets pass both ways,
/// and shows devices on the path that a connection opens. Its numbers are just before those that
/// follow. A SYN with a payload gets a SYN-ACK with this end's window scale. A packet without a
/// payload, which comes after it, gets the acknowledgement that follows the SYN-ACK.
#[inline(always)]
pub fn answer_opening(s: &Session, seg: &Segment) -> Edit {
    let opens = seg.has(SYN);
    let mut first = s.sent_on_wire(announces_to(s));
    if !opens {
        // No further than firewalls let the number go ahead. The next acknowledgement shows the
        // rest.
        let widest = (u16::MAX as u32) << (s.remote_wscale() & 15);
        first = min(first, seg.ack.wrapping_add(widest));
    }
    let syn = opens && seg.len > 0;
    Edit {
        sport: s.path.local_port,
        dport: s.path.remote_port,
        seq: first.wrapping_sub(syn as u32),
        ack: seg.seq.wrapping_add(opens as u32),
        window: u16::MAX,
        flags: if syn { SYN | ACK } else { ACK | PSH },
        wscale: s.local_wscale() as u32 + 1,
        ..Edit::default()
    }
}

/// Returns true if this is one of the acknowledgements that open a path. After SYN and SYN-ACK each
/// end sends one with the widest window. It sends another one with the highest number that it has
/// sent, when it takes the path. Firewalls on the path therefore let the numbers go ahead by the
/// data that was sent elsewhere meanwhile. No stack may receive these packets, because their window
/// and acknowledgement are not the stack's. No stack sets PSH without data, which distinguishes
/// them from a stack's packets.
#[inline(always)]
pub const fn opens_windows(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len == 0 && seg.window == u16::MAX
}

/// Returns true if this may be the acknowledgement that is as long as the longest segment of its
/// end. Each end sends one after its first. A path that is too narrow for it is not taken, since a
/// router's error about it would not find its socket. The data in it has no meaning. Its number is
/// before the SYN, so that a firewall regards it as a retransmission. A stack that receives it
/// later, when the earlier path is given up, has acknowledged these numbers.
#[inline(always)]
pub const fn may_show_length(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len > 0 && seg.window == u16::MAX
}

/// Returns true if this SYN-ACK may be the other anchor's, whose window is the widest. A device
/// that answers in the server's name (SYNPROXY) announces another one. A packet in reply would make
/// that device open a connection to the server.
#[inline(always)]
pub const fn may_answer_opening(seg: &Segment) -> bool {
    seg.window == u16::MAX
}

/// Returns true if the segment opens a path that has shown this number already. A stack seldom
/// sends such a segment, and never as its first.
#[inline(always)]
pub const fn is_of_opening(seg: &Segment, peer_sent_max: u32) -> bool {
    opens_windows(seg) || may_show_length(seg) && !after(seg.end(), peer_sent_max)
}

/// Window of the packets that end a path.
pub const LAST_WINDOW: u16 = u16::MAX - 1;

/// Returns true if this is one of the two packets that end a path for the firewalls on it: an
/// acknowledgement, and a reset after it. The session continues on another path, and a receiver may
/// not have left this path yet. Therefore no stack may receive these packets, and neither may the
/// connection tracking of a host that forwards the session. No stack sets PSH without data.
#[inline(always)]
pub const fn ends_path(seg: &Segment) -> bool {
    seg.flags & !RST == ACK | PSH && seg.len == 0 && seg.window == LAST_WINDOW
}

/// Records a segment that shows the length, on a path that is being opened or was opened a moment
/// ago. Returns false if the segment is not of this kind.
///
/// Before this end has received one, no other segment on the path has data: the other end takes the
/// path only after this end has answered, or has taken it. A later one is recognised by its end, a
/// byte before the ends of other segments, whatever its length is.
#[inline(always)]
pub fn record_length(s: &mut Session, seg: &Segment) -> bool {
    if !may_show_length(seg) {
        return false;
    }
    let end = s.received_off_wire(seg.end());
    if has_length(s) {
        return end == s.new_low;
    }
    let opening = s.state == State::Joining as u32;
    if !opening || !before(end, s.rcv_max) {
        return false;
    }
    s.new_low = end;
    s.two.new_data = 1;
    true
}

/// Returns true if the other end has shown that this path, which is being opened, is wide enough
/// for its segments.
#[inline(always)]
pub const fn has_length(s: &Session) -> bool {
    s.two.new_data != 0
}
