//! Segments of the local end: their path, and the acknowledgements that each path may carry.

use super::across::ACROSS;
use super::anchor::Anchor;
use super::peer::{has_all_old, has_announced_all, is_beyond_old_path, is_past_cutoff, is_shut_in};
use super::window::scaled;
use crate::flow::Path;
use crate::seq::{after, before, min};
use crate::session::Session;
use crate::tcp::{ACK, RST, Segment};

/// A header-only copy for the path that the segment itself does not take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copy {
    /// Its path.
    pub path: Path,
    /// Sequence number that the path expects.
    pub seq: u32,
    /// Acknowledgement that the path may carry.
    pub ack: u32,
    /// Flags: ACK alone, or those of a reset.
    pub flags: u8,
    /// Window, as sent.
    pub window: u16,
}

/// Path of a segment of the local end, and its fields on that path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outgoing {
    /// The path of the segment itself.
    pub path: Path,
    /// Sequence number to send.
    pub seq: u32,
    /// Acknowledgement number to send.
    pub ack: u32,
    /// Window to send, unscaled.
    pub window: u16,
    /// Copy for the other path.
    pub copy: Option<Copy>,
}

/// In `old_ack_set`: `old_ack` is valid. In `new_ack_set`: `new_ack` is valid.
pub const VALID: u8 = 1;
/// In `old_ack_set`: the proxy has asked whether the end is there, and waits. Cleared by the next
/// acknowledgement on the old path. Two processors write the byte. If a write is lost, the proxy
/// asks again.
pub const ASKED: u8 = 2;

/// Acknowledgement and window that a path may carry.
pub(super) struct Heard {
    ack: u32,
    window: u16,
}

/// SACK blocks that a path may carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sacks {
    /// True if not all blocks may be sent.
    pub limited: bool,
    /// Highest number of an allowed block (the end's own numbers).
    pub to: u32,
}

/// Returns the SACK blocks that a path may carry. The end's blocks cover all data that it has
/// received on either path. A strict firewall drops a segment with a block beyond the data that it
/// has seen. So does the firewall of the proxy's own host.
#[inline(always)]
pub fn sacks(at: Anchor, s: &Session, path: Path) -> Sacks {
    match path {
        Path::Old => Sacks {
            limited: s.two.new_data != 0,
            to: at.rcv_max(s),
        },
        Path::New => Sacks {
            limited: !has_announced_all(s),
            to: s.peer_sent_max,
        },
    }
}

/// Returns the acknowledgement that the old path may carry. The proxy's stack resets the connection
/// after an acknowledgement of data that it never sent. Numbers cannot be compared over more than 2
/// GiB, and the end may be farther away.
#[inline(always)]
pub(super) fn on_old(at: Anchor, s: &Session, seg: &Segment) -> Heard {
    // Both are compared relative to a number that neither is behind, if there is one.
    let base = if is_beyond_old_path(s) {
        s.new_low.wrapping_sub(ACROSS)
    } else {
        seg.ack.wrapping_sub(1 << 31)
    };
    let sent = at.rcv_max(s);
    let more = seg.ack.wrapping_sub(base) > sent.wrapping_sub(base);
    Heard {
        ack: if more { sent } else { seg.ack },
        window: seg.window,
    }
}

/// Returns the acknowledgement that the new path may carry. A strict firewall drops an
/// acknowledgement of more data than was announced on the path. The right edge of the window stays
/// the same.
#[inline(always)]
pub(super) fn on_new(at: Anchor, s: &Session, seg: &Segment) -> Heard {
    if at == Anchor::Remote || has_announced_all(s) || !after(seg.ack, s.peer_sent_max) {
        return Heard {
            ack: seg.ack,
            window: seg.window,
        };
    }
    let wscale = s.local_wscale() & 15;
    let edge = seg.ack.wrapping_add((seg.window as u32) << wscale);
    Heard {
        ack: s.peer_sent_max,
        window: scaled(edge.wrapping_sub(s.peer_sent_max), wscale),
    }
}

/// Returns the segment's own path. Retransmissions and segments across the cutoff take the old path
/// whole. The part after the cutoff then arrives twice, which TCP discards.
#[inline(always)]
pub fn data_path(s: &Session, seq: u32) -> Path {
    if s.two.cut_set != 0 && !is_early(s, seq) {
        Path::New
    } else {
        Path::Old
    }
}

/// Returns true if this number belongs to the old path, after the cut.
#[inline(always)]
pub(super) const fn is_early(s: &Session, seq: u32) -> bool {
    !is_past_cutoff(s) && before(seq, s.cut_out)
}

/// Returns the number that the proxy expects after all data of the old path. The proxy may have
/// received more, in a segment across the cutoff, and ignores segments that end before that number
/// (`tcp_sequence`, net/ipv4/tcp_input.c). An acknowledgement of even more is not the proxy's.
#[inline(always)]
fn expected(at: Anchor, s: &Session) -> u32 {
    let acked = at.rcv_ack(s);
    if acked.wrapping_sub(s.cut_out) < ACROSS {
        acked
    } else {
        s.cut_out
    }
}

/// Returns the number of a reset on the old path. A reset that answers the proxy has the number that
/// the proxy may have received as an acknowledgement. If the end has no socket, the reset has the
/// acknowledgement of the segment that it answers, which the new path may have raised.
#[inline(always)]
fn reset_number(at: Anchor, s: &Session, number: u32, shut_in: bool) -> u32 {
    if shut_in {
        min(number, expected(at, s))
    } else if number == s.cut_out || is_past_cutoff(s) && number == s.peer_ack {
        expected(at, s)
    } else {
        number
    }
}

/// Returns a segment that goes by one path.
#[inline(always)]
fn whole(path: Path, seq: u32, heard: &Heard) -> Outgoing {
    Outgoing {
        path,
        seq,
        ack: heard.ack,
        window: heard.window,
        copy: None,
    }
}

/// Returns a copy without data.
#[inline(always)]
fn copy(path: Path, seq: u32, heard: &Heard, flags: u8) -> Copy {
    Copy {
        path,
        seq,
        ack: heard.ack,
        flags,
        window: heard.window,
    }
}

/// Splits a segment of the local end between the paths.
#[inline(always)]
pub fn outgoing(at: Anchor, s: &Session, seg: &Segment) -> Outgoing {
    let on_old = on_old(at, s, seg);
    // Not if the reset may come from anybody.
    let shut_in = s.life.reset != 0 && is_shut_in(at, s, seg);
    let number = if shut_in { at.snd_max(s) } else { seg.seq };
    if s.two.cut_set == 0 {
        return whole(Path::Old, number, &on_old);
    }
    let on_new = on_new(at, s, seg);
    if seg.has(RST) {
        let old_number = reset_number(at, s, number, shut_in);
        return Outgoing {
            copy: Some(copy(Path::New, number, &on_new, seg.flags)),
            ..whole(Path::Old, old_number, &on_old)
        };
    }
    let old_news = s.two.old_ack_set & VALID == 0 || after(on_old.ack, s.old_ack);
    let new_news = s.two.new_ack_set & VALID == 0 || after(on_new.ack, s.new_ack);
    // Probes carry a number before the data that they probe. On the new path that number must not
    // belong to the old path as long as the far end waits for old data. The far end would adopt the
    // new path's clock while the proxy's segments still arrive with theirs (PAWS). Afterwards it
    // must belong to the old path, or nobody answers the probe.
    let early = is_early(s, seg.seq);
    let peer_has_old = s.two.edge_set != 0 && !before(s.peer_ack, s.cut_out);
    let old_seq = if early { seg.seq } else { expected(at, s) };
    let new_seq = if early && !peer_has_old {
        s.cut_out
    } else {
        seg.seq
    };
    if seg.span() > 0 {
        return match data_path(s, seg.seq) {
            Path::Old => {
                let also = copy(Path::New, at.snd_max(s), &on_new, ACK);
                let more = is_beyond_old_path(s) || after(on_new.ack, at.rcv_max(s));
                let wanted = seg.has(ACK) && new_news && more;
                Outgoing {
                    copy: wanted.then_some(also),
                    ..whole(Path::Old, seg.seq, &on_old)
                }
            }
            Path::New => {
                let also = copy(Path::Old, old_seq, &on_old, ACK);
                let wanted = seg.has(ACK) && old_news;
                Outgoing {
                    copy: wanted.then_some(also),
                    ..whole(Path::New, seg.seq, &on_new)
                }
            }
        };
    }
    // A pure acknowledgement. The new path always gets it, because of its window. The old path gets
    // it until its last byte is acknowledged, and also if it probes data of the old path or answers
    // a probe of the old path.
    let asked = s.two.old_ack_set & ASKED != 0;
    let old_done = s.two.drained != 0 && !old_news && !early && !asked;
    let also = copy(Path::Old, old_seq, &on_old, ACK);
    Outgoing {
        copy: (!old_done).then_some(also),
        ..whole(Path::New, new_seq, &on_new)
    }
}

/// Returns true if the local end has acknowledged all data of the old path by this segment.
#[inline(always)]
pub fn drains(s: &Session, seg: &Segment) -> bool {
    let waits = s.two.cut_in_set != 0 && s.two.drained == 0 && seg.has(ACK);
    waits && (has_all_old(s) || !before(seg.ack, s.cut_in))
}
