//! Knowledge of the other end and of the new path: how far the other end has announced to have
//! sent, what it has acknowledged, and whether the path can be taken back.

use super::across::ACROSS;
use super::anchor::Anchor;
use crate::seq::{after, before};
use crate::session::{Session, State, life};
use crate::tcp::{ACK, RST, Segment};

/// Returns true if the new path has carried the highest number that the other end had sent
/// elsewhere. Any acknowledgement may then take the new path. Always true if the opening of the
/// path was not seen.
#[inline(always)]
pub const fn has_announced_all(s: &Session) -> bool {
    s.peer_sent_max == 0
        || s.two.cut_in_set != 0 && (has_all_old(s) || !before(s.peer_sent_max, s.cut_in))
}

/// In `new_data`: the end has acknowledged data that only the new path has carried, and therefore
/// all data of the old path. The bit stays set for the reason given at [`PAST_CUTOFF`]: the cutoff
/// may arrive long after.
pub(super) const ALL_OLD: u8 = 2;

/// Records a segment of the end that acknowledges data of the new path.
#[inline(always)]
pub fn acknowledge(s: &mut Session, seg: &Segment) {
    let new = s.two.new_data != 0 && s.two.new_data & ALL_OLD == 0;
    if new && seg.has(ACK) && !before(seg.ack, s.new_low) {
        s.two.new_data |= ALL_OLD;
    }
}

/// Returns true if the end has acknowledged all data of the old path, as far as the new path shows.
#[inline(always)]
pub const fn has_all_old(s: &Session) -> bool {
    s.two.new_data & ALL_OLD != 0
}

/// Returns true if the end is beyond all of the old path for good. Its distance from the old path's
/// numbers may then exceed the range of comparison. False if the old path may be taken again.
#[inline(always)]
pub(super) const fn is_beyond_old_path(s: &Session) -> bool {
    s.two.cut_set != 0 && s.muted == 0 && has_all_old(s)
}

/// Returns true if the local end has acknowledged so much more than the old path has sent that the
/// higher number cannot be determined. After a segment across the cutoff the difference is a little
/// smaller.
#[inline(always)]
pub const fn acked_far_ahead(s: &Session) -> bool {
    has_all_old(s) && before(s.snd_ack, s.rcv_max) && s.rcv_max.wrapping_sub(s.snd_ack) > ACROSS
}

/// Returns true if the end has acknowledged all data before `cutoff`, where the old path ends.
#[inline(always)]
pub const fn has_old(at: Anchor, s: &Session, cutoff: u32) -> bool {
    has_all_old(s) || !before(at.acked(s), cutoff)
}

/// Records the lowest number of data on the new path. An acknowledgement on that path has the
/// number of the next data. It counts as such if the end has acknowledged all data before.
#[inline(always)]
pub fn record_data(at: Anchor, s: &mut Session, seg: &Segment) {
    let lowest = s.two.new_data == 0 || !has_all_old(s) && before(seg.seq, s.new_low);
    if !lowest {
        return;
    }
    if seg.span() > 0 {
        s.new_low = seg.seq;
        s.two.new_data = 1;
    } else if !before(at.acked(s), seg.seq) {
        s.new_low = seg.seq;
        s.two.new_data = 1 | ALL_OLD;
    }
}

/// Records the number up to which the other end has announced on the new path to have sent. Returns
/// true if the session waited only for that.
#[inline(always)]
pub fn record_announced(s: &mut Session, to: u32) -> bool {
    let before = has_announced_all(s);
    if s.peer_sent_max == 0 || after(to, s.peer_sent_max) {
        // 0 means unknown. A number that is higher by one does no harm.
        s.peer_sent_max = if to == 0 { 1 } else { to };
    }
    !before && has_announced_all(s) && s.two.drained != 0
}

/// In `cut_set`: the far end has all data up to the cutoff, so that nothing before it is sent
/// again. The bit stays set, because numbers cannot be compared over more than 2 GiB, and this
/// phase lasts as long as a daemon is away or an application reads nothing.
pub(super) const PAST_CUTOFF: u8 = 2;

/// Returns true if the far end has announced that it has all data up to the cutoff.
#[inline(always)]
pub const fn is_past_cutoff(s: &Session) -> bool {
    s.two.cut_set & PAST_CUTOFF != 0
}

/// Returns the number up to which this end shows on the new path to have sent. This is the cutoff,
/// which otherwise only the data after it shows. If the far end has all data before the cutoff, it
/// is the highest number sent, for the reason given at [`PAST_CUTOFF`]: this data plane and every
/// firewall would take a cutoff that is far behind for one that is far ahead.
#[inline(always)]
pub const fn announces_to(s: &Session) -> u32 {
    if is_past_cutoff(s) {
        s.snd_max
    } else {
        s.cut_out
    }
}

/// Returns true if the far end has acknowledged data that the local end sent on the new path. No
/// old path can then carry the session any more.
#[inline(always)]
pub const fn has_carried(s: &Session) -> bool {
    is_past_cutoff(s) && s.peer_ack != s.cut_out
}

/// Returns true if the new path has carried the data that the end sent on it. Also true if nothing
/// was sent, if the far end has no room for more, and after a reset.
#[inline(always)]
pub const fn is_confirmed(at: Anchor, s: &Session) -> bool {
    let sent = after(at.snd_max(s), s.cut_out);
    let full = is_past_cutoff(s) && !after(s.edge, s.peer_ack);
    !sent || has_carried(s) || full || s.life.reset != 0
}

/// Returns true if the far end does not get the data that the end sends on the new path, although
/// it has room, or if nothing of it was received there. On a path that shifts numbers nobody
/// accepts the packets, so that no valid answer comes back.
#[inline(always)]
pub const fn is_undelivered(at: Anchor, s: &Session) -> bool {
    !is_confirmed(at, s) && (s.two.edge_set == 0 || is_past_cutoff(s))
}

/// Returns true if the new path was taken back: everything takes the old path, and nothing is
/// received on the new one.
#[inline(always)]
pub const fn is_taken_back(s: &Session) -> bool {
    s.state == State::TwoPaths as u32 && s.muted != 0 && s.two.cut_set == 0
}

/// Returns true if the old path, taken again, has sent all data that the local end may have
/// received on either path. Until then that end's acknowledgements exceed what a middlebox may
/// receive ([`outgoing`]).
#[inline(always)]
pub const fn has_caught_up(s: &Session) -> bool {
    let behind =
        after(s.snd_ack, s.rcv_max) || s.peer_sent_max != 0 && after(s.peer_sent_max, s.rcv_max);
    s.two.new_data == 0 || !behind
}

/// Returns true if the local end may accept a reset with this number. The end accepts only the next
/// number that it expects (RFC 5961, 3.2), which lies between what it has acknowledged and what has
/// arrived on either path. A reset with another number may come from anybody. While there are two
/// paths, it would discard the bytes that the proxy still has to deliver. A host of a chain has no
/// socket that checks resets, and would forget a live session.
#[inline(always)]
pub const fn may_reset(s: &Session, seq: u32) -> bool {
    if s.state == State::TwoPaths as u32 {
        let across = s.rcv_max.wrapping_sub(s.peer_sent_max) <= ACROSS;
        let ahead = is_beyond_old_path(s) || after(s.peer_sent_max, s.rcv_max);
        let ahead_there = s.peer_sent_max != 0 && !across && ahead;
        let highest = if ahead_there {
            s.peer_sent_max
        } else {
            s.rcv_max
        };
        return !before(seq, s.snd_ack) && !after(seq, highest);
    }
    if !is_judged(s) {
        return true;
    }
    let (low, high) = expected(s);
    !before(seq, low.wrapping_sub((s.life.fin_in & life::SEEN) as u32)) && !after(seq, high)
}

/// Returns true if a FIN is within the window of the local end, or was acknowledged by that end.
/// The segment must not have been recorded yet.
#[inline(always)]
pub const fn may_close(s: &Session, seg: &Segment, seq: u32) -> bool {
    let (low, high) = expected(s);
    let last = seq.wrapping_add(seg.span());
    !is_judged(s) || !before(last, low) && !after(seq, high.wrapping_add(widest_in(s)))
}

/// Returns true if the remote end may accept a reset of the local end's side. On a host of a chain,
/// `near` is the entry that the reset arrived on.
#[inline(always)]
pub const fn may_be_reset(s: &Session, near: Option<&Session>, seq: u32) -> bool {
    let low = least_out(s, near).wrapping_sub((s.life.fin_out & life::SEEN) as u32);
    !is_judged(s) || !before(seq, low) && !after(seq, s.snd_max)
}

/// Returns true if a FIN of the local end's side is within the window of the remote end, or was
/// acknowledged. The segment must not have been recorded yet.
#[inline(always)]
pub const fn may_be_closed(s: &Session, near: Option<&Session>, seg: &Segment) -> bool {
    let high = s.snd_max.wrapping_add(widest_out(s));
    !is_judged(s) || !before(seg.end(), least_out(s, near)) && !after(seg.seq, high)
}

/// Returns true if the numbers decide about a FIN or a reset of this session: it has one path, and
/// its SYN has been answered. While its chain changes, each path has seen only a part of the
/// numbers.
#[inline(always)]
const fn is_judged(s: &Session) -> bool {
    let one_path = s.state == State::Tracked as u32 || s.state == State::NewPath as u32;
    one_path && s.two.chained != 1 && s.other_path == 0 && s.relay == 0
}

/// Returns the range of the remote end's numbers that the local end may expect next: from what it
/// has acknowledged to what has arrived here. An acknowledgement that is more than a window beyond
/// that range is ignored.
#[inline(always)]
const fn expected(s: &Session) -> (u32, u32) {
    if after(s.snd_ack, s.rcv_max.wrapping_add(widest_in(s))) {
        (s.rcv_max.wrapping_sub(widest_in(s)), s.rcv_max)
    } else if after(s.snd_ack, s.rcv_max) {
        (s.rcv_max, s.snd_ack)
    } else {
        (s.snd_ack, s.rcv_max)
    }
}

/// Returns the least number that the remote end has acknowledged. The data under way is what
/// arrived from the other side and was not acknowledged there, or else a window.
#[inline(always)]
const fn least_out(s: &Session, near: Option<&Session>) -> u32 {
    let under_way = match near {
        Some(near) => {
            let (low, high) = expected(near);
            high.wrapping_sub(low)
        }
        None => widest_out(s),
    };
    s.snd_max.wrapping_sub(under_way)
}

/// Returns the widest window that the local end can have announced, in bytes.
#[inline(always)]
pub const fn widest_in(s: &Session) -> u32 {
    (u16::MAX as u32) << (s.local_wscale() & 15)
}

/// Returns the widest window that the remote end can have announced, in bytes.
#[inline(always)]
const fn widest_out(s: &Session) -> u32 {
    (u16::MAX as u32) << (s.remote_wscale() & 15)
}

/// Returns true if this is the reset of a socket that may not send where it has sent already. The
/// kernel gives such a reset the end of the window (`tcp_acceptable_seq`, net/ipv4/tcp_output.c),
/// which the old path reduces. No other end would accept that number. The acknowledgement
/// distinguishes it from the answer to a segment that met no socket.
#[inline(always)]
pub const fn is_shut_in(at: Anchor, s: &Session, seg: &Segment) -> bool {
    const FAR_BEHIND: u32 = 1 << 30;
    let beneath = at.snd_max(s).wrapping_sub(seg.seq);
    seg.has(RST) && seg.has(ACK) && beneath != 0 && beneath < FAR_BEHIND
}
