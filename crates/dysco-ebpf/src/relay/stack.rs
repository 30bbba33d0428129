//! Packets of this host's stack to an end.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::session::Session;
use dysco_common::tcp::{Segment, edit};
use dysco_common::two_paths::{self, ASKED, OldIncoming};
use dysco_common::{Counter, Path};

use super::end::{to_other, to_stack};
use super::fate::{DROP, PASS, REMOTE, TO_OTHER, not};
use crate::egress::both_paths::old_path;
use crate::maps::{self, Run, Scratch};
use crate::packet::{Found, Key, Packet};
use crate::verdict::{Verdict, dropped};
use crate::write::{self, Change};
use crate::{incoming, outgoing};

/// Handles a copy on its second pass: trims it to a header, and sends the header.
#[inline(always)]
pub(super) fn header_copy(
    ctx: &TcContext,
    s: &mut Session,
    o: &mut Session,
    p: &mut Packet,
    c: &mut Change,
) -> u64 {
    // SAFETY: fields of the context that the verifier lets a classifier use.
    let skb = unsafe { &mut *ctx.skb.skb };
    let (seq, ack, path, rest) = (skb.cb[0], skb.cb[1], skb.cb[2], skb.cb[3]);
    skb.mark = 0;
    let Some(length_diff) = write::trim(ctx, p) else {
        return not(Counter::DroppedError);
    };
    let seg = Segment {
        seq,
        ack,
        window: (rest >> 16) as u16,
        flags: rest as u8,
        ..p.seg
    };
    if path == Path::Old as u32 {
        to_stack(s, p, c, &seg, length_diff)
    } else {
        to_other(ctx, s, o, p, c, &seg, length_diff)
    }
}

/// Judges a packet that this host's stack sends to a remote end by the old path. The end
/// receives the packet as the old path may show it.
#[inline(always)]
pub(crate) fn to_end(ctx: &TcContext, key: &Key, found: &Found, slot: u32) -> Verdict {
    if outgoing::take(ctx, Run::Egress, key, found).is_none() {
        return dropped(Counter::DroppedError);
    }
    // SAFETY: the program's own context.
    let fate = unsafe { dysco_to_end(ctx.skb.skb, slot) };
    if fate == TO_OTHER && !write::apply(ctx, Run::Egress as u32) {
        return dropped(Counter::DroppedError);
    }
    if fate == DROP {
        Verdict::Drop
    } else {
        Verdict::Pass
    }
}

/// Judges the packet in the scratch memory of egress. Exported, so that the verifier checks it once
/// (see `learn::dysco_offer`), with a stack frame of its own.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_to_end(skb: *mut __sk_buff, slot: u32) -> u64 {
    let ctx = &TcContext::new(skb);
    let (
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }),
        Some(s),
    ) = (maps::scratch(Run::Egress as u32), maps::session(slot))
    else {
        return DROP;
    };
    let seg = &p.seg;
    if let Some(seg) = two_paths::taught(REMOTE, s, seg) {
        outgoing::track(ctx, s, &Found { seg, ..p.found() }, slot);
    }
    if two_paths::asks(REMOTE, s, seg) {
        s.two.old_ack_set |= ASKED;
    }
    let delivered = match two_paths::old_incoming(REMOTE, s, seg, REMOTE.wscale(s)) {
        OldIncoming::Deliver(delivered) => delivered,
        OldIncoming::Drop => return not(Counter::DroppedLateOld),
        OldIncoming::Withhold => return not(Counter::AckWithheld),
    };
    if two_paths::breaks(REMOTE, s, &delivered) {
        incoming::was_broken(s, slot);
    }
    if delivered == *seg {
        return PASS;
    }
    old_path(&p.key, &delivered, c);
    if delivered.ack != seg.ack {
        c.edit.strip |= edit::SACK;
    }
    TO_OTHER
}
