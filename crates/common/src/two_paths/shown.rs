//! What is known of the other end and of the new path: how far it has shown to have
//! sent, what it has acknowledged, and whether the path can be taken back.

use super::anchor::Anchor;
use super::incoming::NewIncoming;
use super::outgoing::ACROSS;
use crate::seq::{after, before};
use crate::session::{Session, State, life};
use crate::tcp::{ACK, RST, Segment};

/// Has the new path carried the highest number that the other end had sent
/// elsewhere? Then nothing may not be acknowledged on it. Always so where its
/// opening was not seen.
#[inline(always)]
pub const fn has_shown_all(s: &Session) -> bool {
    s.shown == 0 || s.two.cut_in_set != 0 && (has_all_old(s) || !before(s.shown, s.cut_in))
}

/// In `new_data`: the end has acknowledged data that came by the new path alone, and so
/// all that the old path carries. Kept, for the reason that [`PAST`] is: the cutoff may
/// be told long after.
pub(super) const ALL_OLD: u8 = 2;

/// Takes in what a segment of the end acknowledges of the new path's data.
#[inline(always)]
pub fn acknowledge(s: &mut Session, seg: &Segment) {
    let new = s.two.new_data != 0 && s.two.new_data & ALL_OLD == 0;
    if new && seg.has(ACK) && !before(seg.ack, s.new_low) {
        s.two.new_data |= ALL_OLD;
    }
}

/// Has the end acknowledged all that the old path carries, as far as the new one shows?
#[inline(always)]
pub const fn has_all_old(s: &Session) -> bool {
    s.two.new_data & ALL_OLD != 0
}

/// Is the end beyond all of the old path, for good? Then it may be farther from the numbers of
/// that than numbers tell. Not where this path may be taken again.
#[inline(always)]
pub(super) const fn is_beyond(s: &Session) -> bool {
    s.two.cut_set != 0 && s.deaf == 0 && has_all_old(s)
}

/// Has the local end acknowledged so much more than the old path has sent that the higher
/// number cannot be told? A little less it has where a segment across the cutoff came.
#[inline(always)]
pub const fn has_far_more(s: &Session) -> bool {
    has_all_old(s) && before(s.snd_ack, s.rcv_max) && s.rcv_max.wrapping_sub(s.snd_ack) > ACROSS
}

/// Has the end acknowledged all before this number, which the old path ends with?
#[inline(always)]
pub const fn has_old(at: Anchor, s: &Session, cutoff: u32) -> bool {
    has_all_old(s) || !before(at.acked(s), cutoff)
}

/// Takes in the lowest number of data on the new path. An acknowledgement there has the
/// number of what comes next, and says as much where the end has acknowledged all before.
#[inline(always)]
pub fn hear_data(at: Anchor, s: &mut Session, seg: &Segment) {
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

/// Takes in up to where the other end has shown on the new path to have sent. True
/// if the session waited for nothing but that.
#[inline(always)]
pub fn show(s: &mut Session, to: u32) -> bool {
    let before = has_shown_all(s);
    if s.shown == 0 || after(to, s.shown) {
        // 0 says that nothing is known: one number more does no harm.
        s.shown = if to == 0 { 1 } else { to };
    }
    !before && has_shown_all(s) && s.two.drained != 0
}

/// In `cut_set`: the far end has all up to the cutoff, so that nothing before it is sent
/// again. Kept, since numbers tell no more than 2 GiB apart, and this phase may take as
/// long as a daemon is not there, or an application reads nothing.
pub(super) const PAST: u8 = 2;

/// Takes in how far the far end has announced to be, on the new path, by a segment that
/// acknowledges up to `ack`. What was never sent no end acknowledges: that is anybody's.
#[inline(always)]
pub fn hear_far(at: Anchor, s: &mut Session, ack: u32, judged: &NewIncoming) {
    if after(ack, at.snd_max(s)) {
        return;
    }
    s.edge = judged.edge;
    s.far_ack = judged.far_ack;
    s.two.edge_set = 1;
    if s.two.cut_set != 0 && !before(s.far_ack, s.cut_out) {
        s.two.cut_set |= PAST;
    }
}

/// Has the far end said that it has all up to the cutoff?
#[inline(always)]
pub const fn is_past(s: &Session) -> bool {
    s.two.cut_set & PAST != 0
}

/// Up to where this end shows on the new path to have sent: to the cutoff, which only the
/// data behind it shows otherwise. Where the far end has that, to all that was sent, for
/// the reason that [`PAST`] is: far behind, a cutoff is taken for one far ahead, by this
/// data plane and by every firewall.
#[inline(always)]
pub const fn shows_to(s: &Session) -> u32 {
    if is_past(s) { s.snd_max } else { s.cut_out }
}

/// Has the far end acknowledged what the local one sent on the new path? Then no old path
/// can carry the session any more.
#[inline(always)]
pub const fn has_carried(s: &Session) -> bool {
    is_past(s) && s.far_ack != s.cut_out
}

/// Has the new path carried what the end sent on it? So it has where nothing was sent, where
/// the far end has no room for more, and once the session was reset.
#[inline(always)]
pub const fn is_confirmed(at: Anchor, s: &Session) -> bool {
    let sent = after(at.snd_max(s), s.cut_out);
    let full = is_past(s) && !after(s.edge, s.far_ack);
    !sent || has_carried(s) || full || s.life.reset != 0
}

/// Does the far end not get what the end sends on the new path, though it has room, or is
/// never heard there? What a path that shifts numbers carries is nobody's, so that nothing
/// believable comes back by it.
#[inline(always)]
pub const fn is_unheard(at: Anchor, s: &Session) -> bool {
    !is_confirmed(at, s) && (s.two.edge_set == 0 || is_past(s))
}

/// Has it been taken back? Everything takes the old path, and the new one is not heard.
#[inline(always)]
pub const fn is_taken_back(s: &Session) -> bool {
    s.state == State::TwoPaths as u32 && s.deaf != 0 && s.two.cut_set == 0
}

/// Has the old path, taken again, sent all that the local end may have got by either? Until
/// then that end's acknowledgements are more than a middlebox may hear ([`outgoing`]).
#[inline(always)]
pub const fn has_caught_up(s: &Session) -> bool {
    let behind = after(s.snd_ack, s.rcv_max) || s.shown != 0 && after(s.shown, s.rcv_max);
    s.two.new_data == 0 || !behind
}

/// Is this a reset that the local end may believe, by the number under which it gets it?
/// It believes none but the next that it expects (RFC 5961, 3.2), which lies between what
/// it has acknowledged and what has come by either path. Anybody may send another: while
/// there are two paths, the bytes that the proxy still has to deliver would be given up for
/// it. A host of a chain has no socket that judges, and would forget a session that lives.
#[inline(always)]
pub const fn may_reset(s: &Session, seq: u32) -> bool {
    if s.state == State::TwoPaths as u32 {
        let across = s.rcv_max.wrapping_sub(s.shown) <= ACROSS;
        let ahead = is_beyond(s) || after(s.shown, s.rcv_max);
        let shown = s.shown != 0 && !across && ahead;
        let highest = if shown { s.shown } else { s.rcv_max };
        return !before(seq, s.snd_ack) && !after(seq, highest);
    }
    if !is_judged(s) {
        return true;
    }
    let (low, high) = expected(s);
    !before(seq, low.wrapping_sub((s.life.fin_in & life::SEEN) as u32)) && !after(seq, high)
}

/// Is this FIN within the window of the local end, or one that it has acknowledged? The
/// segment must not have been taken in yet.
#[inline(always)]
pub const fn may_close(s: &Session, seg: &Segment, seq: u32) -> bool {
    let (low, high) = expected(s);
    let last = seq.wrapping_add(seg.span());
    !is_judged(s) || !before(last, low) && !after(seq, high.wrapping_add(widest_in(s)))
}

/// Is this a reset of the local end's side that the remote end may believe? Of a host of a
/// chain, `near` is the entry by which it came.
#[inline(always)]
pub const fn may_be_reset(s: &Session, near: Option<&Session>, seq: u32) -> bool {
    let low = least_out(s, near).wrapping_sub((s.life.fin_out & life::SEEN) as u32);
    !is_judged(s) || !before(seq, low) && !after(seq, s.snd_max)
}

/// Is this FIN of the local end's side within the window of the remote end, or one that was
/// acknowledged? The segment must not have been taken in yet.
#[inline(always)]
pub const fn may_be_closed(s: &Session, near: Option<&Session>, seg: &Segment) -> bool {
    let high = s.snd_max.wrapping_add(widest_out(s));
    !is_judged(s) || !before(seg.end(), least_out(s, near)) && !after(seg.seq, high)
}

/// Is what ends this session judged by its numbers? Where it has one path, and the SYN has
/// been answered: while its chain changes, each path has seen a part of the numbers only.
#[inline(always)]
const fn is_judged(s: &Session) -> bool {
    let one_path = s.state == State::Tracked as u32 || s.state == State::NewPath as u32;
    one_path && s.two.chained != 1 && s.other_path == 0 && s.relay == 0
}

/// The numbers of the remote end's that the local one may expect next: from what it has
/// acknowledged to what has come here. What acknowledges more than a window beyond that is
/// nobody's word.
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

/// What the remote end has acknowledged at least of what was sent to it: all but what came
/// from the other side and was not acknowledged there, or else but a window.
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

/// The widest window that the local end can have announced, in bytes.
#[inline(always)]
pub const fn widest_in(s: &Session) -> u32 {
    (u16::MAX as u32) << (s.local_wscale() & 15)
}

/// The same of the remote end.
#[inline(always)]
const fn widest_out(s: &Session) -> u32 {
    (u16::MAX as u32) << (s.remote_wscale() & 15)
}

/// Is this the reset of a socket that may not send where it has sent already? The kernel
/// gives it the end of the window (`tcp_acceptable_seq`, net/ipv4/tcp_output.c), which
/// the old path takes back, and no other end would believe that number. The acknowledgement
/// tells it from the answer to a segment that met no socket.
#[inline(always)]
pub const fn is_shut_in(at: Anchor, s: &Session, seg: &Segment) -> bool {
    const FAR_BEHIND: u32 = 1 << 30;
    let beneath = at.snd_max(s).wrapping_sub(seg.seq);
    seg.has(RST) && seg.has(ACK) && beneath != 0 && beneath < FAR_BEHIND
}
