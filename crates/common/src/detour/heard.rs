//! The acknowledgement of an end for each of its two senders: the other end, and a socket.

use super::{Way, phase};
use crate::seq::{after, before, max, min};
use crate::tcp::{ACK, RST, Segment};

/// Content of an end's acknowledgement for one of its two senders: the other end, or a socket. In
/// this field order LLVM makes no double words that a BPF stack would not accept.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct Heard {
    pub sack_add: u32,
    pub ack: u32,
    pub window: u16,
    pub sacks: bool,
    /// It says more than before.
    pub news: bool,
    /// It may be said without data.
    pub alone: bool,
    /// It is said by this end, and not by a socket alone.
    pub speaks: bool,
}

/// Keeps what the local end acknowledges of a paired direction while it passes the handlers: there
/// is no far socket that shows it to the other end, and the next change begins with it.
#[inline(always)]
pub(super) fn keep_shown(way: &mut Way, seg: &Segment, scale: u8) {
    let through = match way.effective() {
        phase::THROUGH => true,
        phase::LEAVING => !way.is_cut(),
        _ => false,
    };
    if through && seg.has(ACK) && !seg.has(RST) {
        let ack = seg.ack.wrapping_sub(way.direct_shift());
        let edge = ack.wrapping_add((seg.window as u32) << (scale & 15));
        way.show(ack, edge);
    }
}

/// Returns an acknowledgement that repeats the last one, for a receiver that the end does not
/// acknowledge anything to.
#[inline(always)]
pub(super) const fn nothing(way: &Way, to_socket: bool, scale: u8) -> Heard {
    Heard {
        ack: if to_socket {
            way.told.wrapping_sub(way.from_socket)
        } else {
            way.shown
        },
        // Data may carry it: a window of 0 would stop the other end.
        window: if to_socket {
            0
        } else {
            way.window(way.shown, scale)
        },
        sack_add: 0,
        sacks: false,
        news: false,
        alone: false,
        speaks: false,
    }
}

/// Records an end's acknowledgement for the other end. Returns the acknowledgement that the other
/// end may receive.
#[cfg_attr(target_arch = "bpf", inline(never))]
pub(super) fn hear_for_end(way: &mut Way, seg: &Segment, scale: u8) -> Heard {
    match end_says(way, seg, scale) {
        Some(heard) => heard,
        None => nothing(way, false, scale),
    }
}

/// Returns the acknowledgement for the other end, or `None` if only the socket acknowledges to it.
#[inline(always)]
fn end_says(way: &mut Way, seg: &Segment, scale: u8) -> Option<Heard> {
    let phase = way.effective();
    if phase == phase::THROUGH {
        return None;
    }
    if !seg.has(ACK) || seg.has(RST) {
        return Some(shown(way, seg, scale, false));
    }
    let ack = seg.ack.wrapping_sub(way.direct_shift());
    let edge = ack.wrapping_add((seg.window as u32) << (scale & 15));
    let was = way.shown;
    match phase {
        phase::DIRECT => {
            way.show(ack, edge);
        }
        phase::ENTERING => {
            if way.released != 0 {
                return None;
            }
            let all = way.is_cut() && !before(ack, way.cut);
            way.show(if all { way.cut } else { ack }, edge);
            if all {
                way.received = 1;
                way.release();
            }
        }
        _ => {
            if !way.is_cut() || before(ack, way.cut) {
                return stands_still(way, seg);
            }
            way.received = 1;
            if way.released == 0 {
                way.keep(ack, edge);
                return None;
            }
            way.show(ack, edge);
        }
    }
    Some(shown(way, seg, scale, after(way.shown, was)))
}

/// Returns an acknowledgement of what the sender was shown, with no window, if the receiver has closed
/// its window before it has all old data. The last socket keeps that data, and nobody else answers the
/// sender: it would give up after its retransmissions.
#[inline(always)]
fn stands_still(way: &Way, seg: &Segment) -> Option<Heard> {
    let closed = way.is_cut() && way.released != 0 && seg.window == 0;
    closed.then_some(Heard {
        ack: way.shown,
        window: 0,
        sack_add: 0,
        sacks: false,
        news: false,
        alone: true,
        speaks: true,
    })
}

/// Returns what the sender of a direction may hear.
#[inline(always)]
fn shown(way: &Way, seg: &Segment, scale: u8, news: bool) -> Heard {
    let ack = seg.ack.wrapping_sub(way.direct_shift());
    let edge = ack.wrapping_add((seg.window as u32) << (scale & 15));
    let own = ack == way.shown;
    // Blocks after the cutoff are of data that the sender has not sent to this receiver.
    let sacks = own && !(way.changes() && way.is_cut());
    Heard {
        ack: way.shown,
        window: if own {
            seg.window
        } else {
            way.window(edge, scale)
        },
        sack_add: way.direct_shift().wrapping_neg(),
        sacks,
        news,
        alone: true,
        speaks: true,
    }
}

/// Records an end's acknowledgement for the socket that sends it data. Returns the acknowledgement
/// that the socket may receive.
#[cfg_attr(target_arch = "bpf", inline(never))]
pub(super) fn hear_for_socket(way: &mut Way, seg: &Segment, scale: u8) -> Heard {
    let phase = way.effective();
    if phase == phase::DIRECT {
        return nothing(way, true, scale);
    }
    let edge = seg.ack.wrapping_add((seg.window as u32) << (scale & 15));
    if !way.is_cut() && phase == phase::ENTERING {
        // The socket has sent nothing, and the next byte is its first.
        let next = way.sent.wrapping_add(way.shift);
        return Heard {
            window: super::scaled(edge.wrapping_sub(next), scale),
            ..nothing(way, true, scale)
        };
    }
    let ack = match phase {
        phase::ENTERING => max(seg.ack, way.cut_received()),
        phase::LEAVING if way.is_cut() => min(seg.ack, way.cut_received()),
        _ => seg.ack,
    };
    let own = ack == seg.ack;
    let news = seg.has(ACK) && after(ack, way.told);
    if news {
        way.told = ack;
    }
    Heard {
        ack: ack.wrapping_sub(way.from_socket),
        window: if own {
            seg.window
        } else {
            super::scaled(edge.wrapping_sub(ack), scale)
        },
        sack_add: way.from_socket.wrapping_neg(),
        sacks: own,
        news,
        alone: true,
        speaks: true,
    }
}
