//! A second path of a live session, while its chain changes. Each of the two paths has an entry.
//! The session's own five-tuple leads to the entry of the path that is taken. User space makes
//! it lead to the other, and back.
//!
//! Both paths end in the same two stacks and have the same numbers, so that either may carry any
//! segment. The choice depends on the packets that the middleboxes of a path have seen: none of
//! them may see an acknowledgement of bytes that it has not seen being sent.

use core::hint::cold_path;

use aya_ebpf::bindings::{__sk_buff, BPF_NOEXIST};
use aya_ebpf::programs::TcContext;
use dysco_common::seq::{after, min};
use dysco_common::session::{Session, State, life, part};
use dysco_common::tcp::{ACK, FIN, RST, Segment, edit};
use dysco_common::two_paths::{
    Copy, Leaving, has_length, least_carried, leaving, may_answer_opening, may_end_late,
    opens_windows, record_length,
};
use dysco_common::{Counter, EventKind, FlowRef, Path, ShortKey, mark};

use crate::atomic;
use crate::egress::both_paths::new_path;
use crate::incoming::{received_exactly, was_reset};
use crate::maps::{self, Aligned, FLOWS, JOINS, Run, Scratch, count};
use crate::outgoing;
use crate::packet::{Found, Key};
use crate::paths::{is_as_it_was, send_copy};
use crate::probe;
use crate::verdict::Verdict;

/// Sends a packet of the local end while the session leaves its path.
#[inline(always)]
pub(crate) fn leaves(
    ctx: &TcContext,
    s: &mut Session,
    key: &Key,
    found: &Found,
    slot: u32,
) -> Verdict {
    outgoing::track(ctx, s, found, slot);
    let mut seg = found.seg;
    let mut path = slot;
    // The path before may have carried more meanwhile than the numbers show, if its other end
    // has taken it again and this host's daemon does not run.
    let least = least_carried(s, &seg);
    let _ = atomic::raise(&mut s.rcv_max, least);
    let carried = s.received_on_wire(s.rcv_max);
    let mut limited = true;
    match leaving(s, &seg) {
        Leaving::New => {}
        Leaving::Before => {
            if let Some(before) = s.other_path() {
                path = before;
                limited = false;
            }
        }
        Leaving::Split => {
            // Another processor may have raised it since.
            seg.ack = min(seg.ack, s.rcv_max);
            acknowledge_before(ctx, s, &found.seg);
        }
    }
    let Some(s) = maps::session(path) else {
        return Verdict::Pass;
    };
    if path != slot {
        // The path's firewalls see where it ends. A relay's entry counts for the other end.
        if s.state != State::Relay as u32 {
            let _ = atomic::raise(&mut s.snd_max, found.seg.end());
        }
        if is_as_it_was(s) {
            return Verdict::Pass;
        }
    }
    let Some(Scratch { change: c, .. }) = outgoing::take(ctx, Run::Egress, key, found) else {
        return Verdict::Pass;
    };
    new_path(s, &seg, c);
    if limited {
        // The path before may have carried the bytes of these blocks.
        c.edit.strip |= edit::LIMIT_SACK;
        c.edit.sack_limit = carried;
    }
    outgoing::write(ctx, Run::Egress, Path::New, s)
}

/// Acknowledges on the path before the bytes that have arrived by it, unless that is no news.
#[inline(always)]
fn acknowledge_before(ctx: &TcContext, s: &mut Session, seg: &Segment) {
    let news = s.two.old_ack_set == 0 || after(seg.ack, s.old_ack);
    if news && s.other_path().is_some() {
        let copy = Copy {
            path: Path::Old,
            seq: seg.seq,
            ack: seg.ack,
            flags: ACK,
            window: seg.window,
        };
        send_copy(ctx, s, &copy, mark::COPY, 0);
    }
}

/// True if only firewalls are to see the packet. Takes in the numbers that the path has carried.
#[inline(always)]
pub(crate) fn takes(ctx: &TcContext, s: &mut Session, seg: &Segment, slot: u32) -> bool {
    let opens = opens_windows(seg);
    if !opens && !record_length(s, seg) {
        return false;
    }
    if !opens && s.state == State::Joining as u32 {
        probe::tell(ctx.skb.skb, slot);
    }
    take_in_announced(s, seg);
    s.new_in = s.new_in.wrapping_add(1);
    // The packet that shows the length follows directly behind the first one that opens a path:
    // one report serves both.
    let opening = s.state == State::Joining as u32 && !has_length(s);
    if !opening || s.new_in > 1 {
        maps::tell(EventKind::Primed, slot);
    }
    true
}

/// Takes in the numbers that the other end shows the firewalls of a path.
#[inline(always)]
pub(crate) fn take_in_announced(s: &mut Session, seg: &Segment) {
    received_exactly(s, s.received_off_wire(seg.end()));
    s.rcv_ack = s.acked_off_wire(seg.ack);
}

/// Judges a packet on the direct path of a session that takes another path. The other end may
/// have returned to the direct path already, and shows that to firewalls.
#[inline(always)]
pub(crate) fn late(s: &mut Session, seg: &Segment, slot: u32) -> Verdict {
    if !opens_windows(seg) {
        if seg.flags & (FIN | RST) != 0 {
            cold_path();
            ends_late(s, seg, slot);
        }
        return Verdict::Pass;
    }
    if let Some(before) = s.other_path().and_then(maps::session) {
        take_in_announced(before, seg);
    }
    Verdict::Drop
}

/// Takes in a FIN or reset that arrives by the direct path. The other end sends it there if it has
/// not followed, or if its acknowledgement is too far ahead of the other path ([`leaving`]).
#[inline(always)]
fn ends_late(s: &mut Session, seg: &Segment, slot: u32) {
    if !may_end_late(s, seg) {
        return;
    }
    if seg.has(RST) {
        was_reset(s, slot);
    } else {
        s.life.fin_in |= life::SEEN;
    }
}

/// Handles a SYN on a path that is being opened, or the answer to one. No stack receives it. The
/// packet is in the scratch memory of ingress. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dysco_opening(skb: *mut __sk_buff, slot: u32, live: u32) -> u32 {
    let (Some(Scratch { packet: p, .. }), Some(s)) =
        (maps::scratch(Run::Ingress as u32), maps::session(slot))
    else {
        return 0;
    };
    let seg = &p.seg;
    if seg.has(ACK) {
        // The entry's number stays that of the SYN until the SYN is answered.
        let ack = s.acked_off_wire(seg.ack);
        let anchors = s.life.opened_here != 0 && may_answer_opening(seg);
        if anchors && !after(ack, s.snd_max) {
            received_exactly(s, s.received_off_wire(seg.end()));
            s.rcv_ack = ack;
            probe::tell(skb, slot);
            maps::tell(EventKind::PathOpen, slot);
        } else {
            count(Counter::DroppedStray);
        }
    } else if live != 0
        && s.life.opened_here == 0
        && s.rcv_max == s.received_off_wire(seg.seq.wrapping_add(1))
    {
        // A retransmission: the answer was lost.
        maps::tell(EventKind::Joins, slot);
    } else {
        count(Counter::DroppedSyn);
    }
    1
}

/// Takes the path because the far end takes it, before this end's stack can acknowledge data
/// that arrived by it. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn dysco_follow(slot: u32) -> u32 {
    let Some(s) = maps::session(slot) else {
        return 0;
    };
    if s.life.opened_here != 0 || s.two.part != part::NEXT {
        return 0;
    }
    let Some(before) = s.other_path().and_then(maps::session) else {
        return 0;
    };
    (s.bytes_out, s.snd_max) = (before.bytes_out, before.snd_max);
    (s.snd_ack, s.tsval_out) = (before.snd_ack, before.tsval_out);
    s.state = State::Switching as u32;
    if !maps::lead_to(slot, s) {
        s.state = State::Joining as u32;
        return 0;
    }
    (s.two.part, before.two.part) = (part::CURRENT, part::BEFORE);
    before.other_path = slot + 1;
    before.short = ShortKey::default();
    maps::tell(EventKind::Primed, slot);
    1
}

/// Result of [`dysco_join`]: the secret is unknown here, and the path continues.
pub(crate) const NO_SESSION: u32 = 0;
const JOINED: u32 = 1;
const REFUSED: u32 = 2;

/// Gives an awaited path the five-tuple that its SYN came by. Exported: see
/// `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dysco_join(skb: *mut __sk_buff) -> u32 {
    let Some(Scratch {
        packet: p, payload, ..
    }) = maps::scratch(Run::Ingress as u32)
    else {
        return REFUSED;
    };
    let token = payload.last().token();
    // SAFETY: copied at once (see `maps::look_up`).
    let Some(slot) = (unsafe { JOINS.get(&token) }).copied() else {
        return NO_SESSION;
    };
    let Some(s) = maps::session(slot) else {
        return REFUSED;
    };
    let awaited = s.state == State::Joining as u32 && s.life.opened_here == 0;
    if !awaited || s.path.remote_port != 0 || !s.name().mirrors(&payload.origin) {
        count(Counter::ChainTaken);
        return REFUSED;
    }
    s.path = p.key.whole;
    s.short_path = p.key.short;
    // SAFETY: a readable field of the context.
    s.ifindex = unsafe { (*skb).ifindex };
    let value = Aligned(FlowRef::new(&s.path, slot, Path::New));
    if FLOWS
        .insert(&s.short_path, &value.0, BPF_NOEXIST as u64)
        .is_err()
    {
        s.path.remote_port = 0;
        count(Counter::ChainTaken);
        return REFUSED;
    }
    // The bytes that the path has carried so far, as its firewalls count.
    received_exactly(s, s.received_off_wire(p.seg.seq.wrapping_add(1)));
    probe::tell(skb, slot);
    maps::tell(EventKind::Joins, slot);
    JOINED
}
