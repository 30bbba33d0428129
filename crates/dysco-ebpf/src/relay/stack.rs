//! Packets of this host's stack to an end.

use aya_ebpf::programs::TcContext;
use dysco_common::session::Session;
use dysco_common::tcp::{Segment, edit};
use dysco_common::two_paths::{self, ASKED, OldIncoming};
use dysco_common::{Counter, Path};

use super::end::{to_other, to_stack};
use super::fate::{REMOTE, not};
use crate::egress::both_paths::old_path;
use crate::maps::{Run, Scratch};
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
pub fn to_end(ctx: &TcContext, s: &mut Session, key: &Key, found: &Found, slot: u32) -> Verdict {
    let seg = &found.seg;
    if let Some(seg) = two_paths::taught(REMOTE, s, seg) {
        outgoing::track(ctx, s, &Found { seg, ..*found }, slot);
    }
    if two_paths::asks(REMOTE, s, seg) {
        s.two.old_ack_set |= ASKED;
    }
    let delivered = match two_paths::old_incoming(REMOTE, s, seg, REMOTE.wscale(s)) {
        OldIncoming::Deliver(delivered) => delivered,
        OldIncoming::Drop => return dropped(Counter::DroppedLateOld),
        OldIncoming::Withhold => return dropped(Counter::AckWithheld),
    };
    if two_paths::breaks(REMOTE, s, &delivered) {
        incoming::was_broken(s, slot);
    }
    if delivered == *seg {
        return Verdict::Pass;
    }
    let Some(Scratch { change: c, .. }) = outgoing::take(ctx, Run::Egress, key, found) else {
        return Verdict::Drop;
    };
    old_path(key, &delivered, c);
    if delivered.ack != seg.ack {
        c.edit.strip |= edit::SACK;
    }
    if !write::apply(ctx, Run::Egress as u32) {
        return dropped(Counter::DroppedError);
    }
    Verdict::Pass
}
