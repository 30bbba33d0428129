//! A host that a session passes before and after its chain changes. During the change the host
//! has two entries for each of the two paths. The stack between them sees one session, with one
//! connection in its firewall. An arriving packet is marked with the slot that it came by, and
//! leaves by the entry which that one is joined to.
//!
//! A packet that has lost its mark takes the path that the session's own five-tuple leads to.
//! This is the path before, until a stack has sent something on the other.

use aya_ebpf::programs::TcContext;
use dysco_common::session::{Session, State, part};
use dysco_common::tcp::Segment;
use dysco_common::two_paths::{is_of_opening, may_show_length, opens_windows};
use dysco_common::{Path, ShortKey, mark};

use crate::egress::both_paths::new_path;
use crate::maps::{self, Run, Scratch};
use crate::outgoing;
use crate::packet::{Found, Key};
use crate::verdict::Verdict;

/// True if a session that passes here may be given another path.
#[inline(always)]
pub(crate) fn may_have_another(s: &Session) -> bool {
    s.state == State::NewPath as u32
        && s.two.chained == 2
        && s.other_path == 0
        && s.joined != 0
        && !s.has_ended()
}

/// Initializes a fresh entry as that of another path of a session. The path is not taken yet.
#[inline(always)]
pub(crate) fn beside(s: &mut Session, first: u32, before: &Session) {
    s.created_ns = before.created_ns;
    (s.bytes_in, s.bytes_out) = (before.bytes_in, before.bytes_out);
    s.short = ShortKey::default();
    // In this order: user space collects an entry whose other entry is gone.
    s.other_path = first + 1;
    s.two.part = part::NEXT;
}

/// Distinguishes the packets of both paths from now on, at the interface where this path
/// arrives.
#[inline(always)]
pub(crate) fn begin(s: &mut Session, slot: u32) {
    s.state = State::Passing as u32;
    let Some(before) = s.other_path().and_then(maps::session) else {
        return;
    };
    before.other_path = slot + 1;
    before.state = State::Passing as u32;
    let goes_on = before.joined_to().and_then(maps::session);
    if let Some(goes_on) = goes_on
        && goes_on.joined_to() == s.other_path()
    {
        goes_on.state = State::Passing as u32;
    }
}

/// True if this entry, of the other path beside `first`, has received the SYN that `ack`
/// answers.
#[inline(always)]
fn is_answered(s: &Session, first: u32, ack: u32) -> bool {
    s.state == State::Passing as u32
        && s.two.part == part::NEXT
        && s.other_path == first + 1
        && s.remote.isn == ack.wrapping_sub(1)
}

/// Returns the entry by which the answer to a SYN goes back: that of the other path if the SYN
/// came by it, else that of the path before. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn dysco_answers(first: u32) -> u32 {
    let Some(Scratch { packet: p, .. }) = maps::scratch(Run::Egress as u32) else {
        return first;
    };
    let Some(slot) = maps::session(first).and_then(|s| s.other_path()) else {
        return first;
    };
    match maps::session(slot) {
        Some(s) if is_answered(s, first, p.seg.ack) => slot,
        _ => first,
    }
}

/// Records the path that a segment has arrived by. The mark carries the path's slot to egress.
#[inline(always)]
pub(crate) fn comes(ctx: &TcContext, s: &Session, seg: &Segment, slot: u32) {
    if let Some(mark) = mark::of_slot(slot) {
        // SAFETY: a field of the context that the verifier lets a classifier write.
        unsafe { (*ctx.skb.skb).mark = mark };
    }
    if s.two.part != part::BEFORE && !is_of_opening(seg, s.rcv_max) {
        dysco_taken(slot);
    }
}

/// True if nothing of the session has arrived by this path yet, and it is not the path before.
#[inline(always)]
pub(crate) fn has_carried_nothing(s: &Session) -> bool {
    let goes = s.joined_to().and_then(maps::session);
    goes.is_some_and(|goes| goes.two.part == part::NEXT)
}

/// Makes packets without a mark take another path, once a stack has taken it. Exported: see
/// `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_taken(came: u32) -> u32 {
    let Some(slot) = maps::session(came).and_then(|s| s.joined_to()) else {
        return 0;
    };
    let Some(s) = maps::session(slot) else {
        return 0;
    };
    if s.two.part != part::NEXT || s.two.chained != 2 {
        return 0;
    }
    let Some(before) = s.other_path().and_then(maps::session) else {
        return 0;
    };
    if !maps::lead_to(slot, s) {
        s.short = ShortKey::default();
        return 0;
    }
    (s.two.part, before.two.part) = (part::CURRENT, part::BEFORE);
    before.short = ShortKey::default();
    1
}

/// True if the session has the same five-tuple on both sides of this host's stack, judged by the
/// path before that of the entry.
#[inline(always)]
pub(crate) fn is_not_translated(s: &Session) -> bool {
    let Some(before) = s.other_path().and_then(maps::session) else {
        return false;
    };
    let goes_on = before.joined_to().and_then(maps::session);
    goes_on.is_some_and(|goes_on| goes_on.key.mirrors(&before.key))
}

/// True if a segment with SYN and this mark bypassed the stack.
#[inline(always)]
pub(crate) fn is_past_the_stack(mark: u32) -> bool {
    let came = mark::slot_of(mark).and_then(maps::session);
    came.is_some_and(|s| s.state == State::Passing as u32 && is_not_translated(s))
}

/// Returns the slot by which a packet continues, from the slot in its mark.
#[inline(always)]
fn by_mark(mark: u32, slot: u32, seg: &Segment) -> u32 {
    let Some(came) = mark::slot_of(mark) else {
        return if opens_windows(seg) || may_show_length(seg) {
            not_taken(slot, seg)
        } else {
            slot
        };
    };
    let Some(goes) = maps::session(came).and_then(|came| came.joined_to()) else {
        return slot;
    };
    match maps::session(goes) {
        Some(s) if s.state == State::Passing as u32 && s.other_path == slot + 1 => goes,
        _ => slot,
    }
}

/// Returns the slot of the path that is not taken yet, for a packet that opens it, and else
/// `slot`. Such a packet has lost its mark, and is for no stack.
#[inline(always)]
fn not_taken(slot: u32, seg: &Segment) -> u32 {
    let Some(other) = maps::session(slot).and_then(|s| s.other_path()) else {
        return slot;
    };
    match maps::session(other) {
        Some(s) if s.two.part == part::NEXT && s.two.chained == 2 => {
            if is_of_opening(seg, s.snd_max) {
                other
            } else {
                slot
            }
        }
        _ => slot,
    }
}

/// Sends a packet of the stack on its path.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext, mark: u32, key: &Key, found: &Found, slot: u32) -> Verdict {
    let slot = by_mark(mark, slot, &found.seg);
    let Some(s) = maps::session(slot) else {
        return Verdict::Drop;
    };
    let Some(Scratch { change: c, .. }) = outgoing::take(ctx, Run::Egress, key, found) else {
        return Verdict::Pass;
    };
    outgoing::track(ctx, s, found, slot);
    new_path(s, &found.seg, c);
    outgoing::write(ctx, Run::Egress, Path::New, s)
}
