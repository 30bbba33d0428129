//! Packets of an end: to the other end, to the stack, or to neither.

use aya_ebpf::bindings::BPF_F_INGRESS;
use aya_ebpf::programs::TcContext;
use dysco_common::seq::{after, before, max};
use dysco_common::session::{Session, State, life, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment, edit};
use dysco_common::two_paths;
use dysco_common::{Counter, EventKind, Path, mark};

use super::fate::{MAX_RESET_DISTANCE, PASS, REMOTE, TO_STACK, not, offers, other, to_leave};
use crate::incoming::received;
use crate::maps::{self, count};
use crate::packet::Packet;
use crate::paths::{self, remember_ack, send_copy};
use crate::write::Change;

#[inline(always)]
pub(super) fn onto_new_path(s: &Session, edit: Edit, c: &mut Change) {
    c.edit = edit;
    c.src = s.path.local;
    c.dst = s.path.remote;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
}

/// Takes in the numbers of a relayed segment.
#[inline(always)]
pub(super) fn take_in(s: &mut Session, seg: &Segment) {
    let believed = seg.flags & (FIN | RST) == 0 || ends(s, seg);
    // The numbers of a FIN that is not believed, of a SYN and of a reset may be anything.
    if !believed || seg.flags & (SYN | RST) != 0 {
        return;
    }
    usual_taken_in(s, seg);
}

/// Takes in the numbers of a relayed segment that neither opens nor ends anything.
#[inline(always)]
pub(crate) fn usual_taken_in(s: &mut Session, seg: &Segment) {
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) {
        s.rcv_ack = seg.ack;
    }
}

/// Takes in the FIN or reset of an end. No socket of this host judges it. A segment that the
/// other end cannot believe ends nothing here either: otherwise anybody could end a silent
/// session (RFC 5961, section 3). The segment must not have been taken in yet. Returns false if
/// it cannot be believed.
#[inline(always)]
pub(super) fn ends(s: &mut Session, seg: &Segment) -> bool {
    let Some((o, slot)) = other(s) else {
        return true;
    };
    let mut acked = o.rcv_ack.wrapping_sub(s.translation.seq_out);
    if s.two.returns | o.two.returns == 0 && after(acked, s.rcv_max) {
        // Nobody acknowledges bytes that have not been sent.
        acked = s.rcv_max.wrapping_sub(two_paths::widest_in(s));
    }
    // If a direction bypasses this host, only the client's part is known.
    let (low, high) = if o.two.returns != 0 {
        (acked, acked.wrapping_add(MAX_RESET_DISTANCE))
    } else if s.two.returns != 0 {
        (s.rcv_max.wrapping_sub(MAX_RESET_DISTANCE), s.rcv_max)
    } else {
        (acked, s.rcv_max)
    };
    if seg.has(RST) {
        let expected = !before(seg.seq, low) && !after(seg.seq, high);
        if !expected && !is_its_own(s, o, seg) {
            return false;
        }
        if s.life.reset == 0 {
            // The proxy may have broken that side: the note of it stays.
            o.life.reset |= life::SEEN;
            maps::tell(EventKind::Reset, slot);
        }
        // Also if the other end was the first: the old path waits for neither.
        s.life.reset |= life::SEEN | life::BY_END;
        return true;
    }
    if before(seg.end(), low) || after(seg.seq, high.wrapping_add(two_paths::widest_in(s))) {
        return false;
    }
    s.life.fin_in |= life::SEEN;
    o.life.fin_out |= life::SEEN;
    if two_paths::is_at_cutoff(s, seg) {
        o.life.fin_out |= life::AT_CUTOFF;
    }
    if s.life.fin_out != 0 && s.life.notified == 0 {
        (s.life.notified, o.life.notified) = (1, 1);
        maps::tell(EventKind::Closed, slot);
    }
    true
}

/// Judges a packet of an end in the two-path phase.
#[inline(always)]
pub(super) fn from_end(
    ctx: &mut TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &Packet,
    c: &mut Change,
    slot: u32,
) -> u64 {
    paths::cut_if_due(s, REMOTE);
    receive_end(s, o, p);
    offers(s, slot, &p.seg);
    // Only the number taken in counts: anybody may have sent the rest.
    let heard = Segment {
        ack: s.rcv_ack,
        ..p.seg
    };
    two_paths::acknowledge(s, &heard);
    two_paths::record_window(REMOTE, s, &heard);
    if two_paths::drains(s, &heard) {
        s.two.drained = 1;
        maps::tell(EventKind::Drained, slot);
    }
    let out = two_paths::outgoing(REMOTE, s, &p.seg);
    if let Some(copy) = out.copy {
        send_copy(ctx, s, &copy, mark::COPY_IN, BPF_F_INGRESS as u64);
    }
    if p.seg.has(ACK) {
        remember_ack(s, out.path, out.ack);
    }
    let seg = Segment {
        seq: out.seq,
        ack: out.ack,
        ..p.seg
    };
    match out.path {
        Path::New => to_other(ctx, s, o, p, c, &seg, 0),
        Path::Old => {
            count(Counter::OldPath);
            if seg == p.seg && (s.two.new_data == 0 || p.header.is_usual()) {
                return PASS;
            }
            to_stack(s, p, c, &seg, 0)
        }
    }
}

/// Highest number sent to an end by either path.
#[inline(always)]
fn sent_to(s: &Session, o: &Session) -> u32 {
    if s.two.new_data == 0 {
        return s.snd_max;
    }
    let relayed = o.rcv_max.wrapping_add(o.translation.seq_out);
    // Once the end has all old data, the relayed number may be more than 2 GiB ahead.
    if two_paths::has_all_old(s) {
        relayed
    } else {
        max(s.snd_max, relayed)
    }
}

/// True if a reset is this end's own although its number is old. The kernel numbers such a reset
/// by the end of the window, which the old path has taken back. Only the end itself knows the
/// number that it has acknowledged.
#[inline(always)]
fn is_its_own(s: &Session, o: &Session, seg: &Segment) -> bool {
    s.state == State::RelayTwoPaths as u32
        && two_paths::is_shut_in(REMOTE, s, seg)
        && !before(seg.ack, s.rcv_ack)
        && !after(seg.ack, sent_to(s, o))
}

/// Takes in a segment of the end in the two-path phase. The bytes that it acknowledges were sent
/// by the stack, or relayed from the other end.
#[inline(always)]
fn receive_end(s: &mut Session, o: &mut Session, p: &Packet) {
    let seg = &p.seg;
    let believed = seg.flags & (FIN | RST) == 0 || ends(s, seg);
    if !believed || seg.has(RST) {
        return;
    }
    let sent = sent_to(s, o);
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) && !after(seg.ack, sent) {
        s.rcv_ack = seg.ack;
    }
    if p.header.starts_with_timestamps() {
        s.tsval_in = p.header.timestamps().0;
    }
}

/// True if a segment of the end takes the new path.
#[inline(always)]
pub(crate) fn is_of_new_path(s: &Session, seg: &Segment) -> bool {
    s.two.cut_set != 0 && !before(seg.seq, s.cut_out)
}

/// True if the other end has not opened its window for this data yet. The proxy still holds what
/// precedes it.
#[inline(always)]
fn is_beyond_window(s: &Session, o: &Session, seq: u32, len: u32) -> bool {
    let edge = s.joined_to().and_then(maps::edge);
    edge.is_some_and(|edge| two_paths::is_beyond(o, *edge, seq, len))
}

/// Sends a segment of this end to the other, unless that end must not receive it.
#[inline(always)]
pub(super) fn to_other(
    ctx: &TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &Packet,
    c: &mut Change,
    seg: &Segment,
    pseudo: u64,
) -> u64 {
    // In map memory: the stack has no room for another edit.
    onto_new_path(s, s.translation.outgoing(seg, &s.path), c);
    c.pseudo = pseudo;
    if is_beyond_window(s, o, c.edit.seq, seg.len) {
        return not(Counter::BeyondWindow);
    }
    let arrives = Segment {
        seq: c.edit.seq,
        ack: c.edit.ack,
        window: c.edit.window,
        ..*seg
    };
    if !paths::receive(o, REMOTE, p, &arrives, &mut c.edit) {
        return not(Counter::AckWithheld);
    }
    to_leave(ctx, s, p.key.is_v6())
}

/// Delivers a segment of the end to this host's stack, with other numbers. Removes SACK blocks
/// of bytes that the stack has not sent: the host's connection tracking would call the segment
/// invalid.
#[inline(always)]
pub(super) fn to_stack(s: &Session, p: &Packet, c: &mut Change, seg: &Segment, pseudo: u64) -> u64 {
    let key = &p.key.whole;
    c.edit = Edit {
        sport: key.remote_port,
        dport: key.local_port,
        seq: seg.seq,
        ack: seg.ack,
        window: seg.window,
        flags: seg.flags,
        ..Edit::default()
    };
    let sacks = two_paths::sacks(REMOTE, s, Path::Old);
    if sacks.limited {
        c.edit.strip |= edit::LIMIT_SACK;
        c.edit.sack_limit = sacks.to;
    }
    c.src = key.remote;
    c.dst = key.local;
    c.clear_ect = 0;
    c.pseudo = pseudo;
    TO_STACK
}
