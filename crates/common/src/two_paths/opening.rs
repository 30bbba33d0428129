//! What opens a path and ends it: packets of the data planes, which no stack hears.

use super::shown::{show, shows_to};
use crate::seq::{after, before, min};
use crate::session::{Session, State};
use crate::tcp::{ACK, Edit, PSH, RST, SYN, Segment};

/// Takes in a SYN on a new path that this end, the right one, is prepared for, or a
/// later [`opens_windows`] of the left end.
#[inline(always)]
pub fn hear_opening(s: &mut Session, seg: &Segment) -> bool {
    if s.shown == 0 && s.two.cut_set == 0 {
        s.cut_out = s.snd_max;
    }
    // The payload of a SYN is nobody's.
    let next = seg.seq.wrapping_add((seg.has(SYN)) as u32);
    show(s, s.received_off_wire(next))
}

/// The answer to that: proof for the other anchor that packets pass both ways, and
/// for what lies between that a connection opens. Numbers are just before those
/// that follow. A SYN with a payload gets a SYN-ACK, with this end's window scale;
/// one without, which comes behind it, the acknowledgement behind that.
#[inline(always)]
pub fn answer_opening(s: &Session, seg: &Segment) -> Edit {
    let opens = seg.has(SYN);
    let mut first = s.sent_on_wire(shows_to(s));
    if !opens {
        // No further than firewalls let it go ahead. What is acknowledged next does.
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

/// Is this one of the acknowledgements that open a path? Behind SYN and SYN-ACK
/// each end sends one with the widest window, and another when it takes the path,
/// with the highest number that it has sent: so firewalls on it let the numbers
/// go ahead by as much as was sent elsewhere meanwhile. They are not the stack's:
/// no stack may believe that window, or what they acknowledge. No stack pushes
/// nothing, which tells them from its own.
#[inline(always)]
pub const fn opens_windows(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len == 0 && seg.window == u16::MAX
}

/// Is it, perhaps, the one of them that is as long as the longest segment of its end?
/// Each end sends one behind its first: a path too narrow for that is not taken, since
/// no router's word about it would find its socket. What it carries is nobody's. It is
/// numbered before the SYN, for a firewall something that is repeated; and a stack
/// that heard it later, when the path before is given up, has acknowledged that.
#[inline(always)]
pub const fn may_show_length(seg: &Segment) -> bool {
    seg.flags == ACK | PSH && seg.len > 0 && seg.window == u16::MAX
}

/// The same on a path that has shown this number already: a stack says that seldom, and
/// does not begin by it.
#[inline(always)]
pub const fn is_of_opening(seg: &Segment, shown: u32) -> bool {
    opens_windows(seg) || may_show_length(seg) && !after(seg.end(), shown)
}

/// The window of what ends a path.
pub const LAST_WINDOW: u16 = u16::MAX - 1;

/// Is this one of the two packets that end a path for the firewalls on it: an
/// acknowledgement, and a reset behind it? The session goes on by another path, and who
/// hears this may not have left the one that it comes by. So no stack may hear it, nor the
/// connection tracking of a host that passes the session on. No stack pushes nothing.
#[inline(always)]
pub const fn ends_path(seg: &Segment) -> bool {
    seg.flags & !RST == ACK | PSH && seg.len == 0 && seg.window == LAST_WINDOW
}

/// Takes in a segment that shows the length, on a path that is being opened or was a
/// moment ago. False if it is none.
///
/// Before this end has heard one, nothing else has data there: the other end takes the
/// path after this one has answered, or after this one has. Later it is one that
/// ends where that did: a byte before where segments do, however long it is.
#[inline(always)]
pub fn hear_length(s: &mut Session, seg: &Segment) -> bool {
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

/// Has the other end shown on this path, which is being opened, that it is wide enough
/// for its segments?
#[inline(always)]
pub const fn has_length(s: &Session) -> bool {
    s.two.new_data != 0
}
