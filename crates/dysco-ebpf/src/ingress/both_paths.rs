//! Packets between two paths, and those that open the new one.

use aya_ebpf::programs::TcContext;
use dysco_common::session::{Session, translation};
use dysco_common::tcp::{ACK, Edit, FIN, RST, SYN, Segment, edit};
use dysco_common::two_paths::{self, ASKED, Anchor, Fins, OldIncoming};
use dysco_common::{Counter, EventKind};

use super::decision::Decision;
use crate::incoming::{ends, heard, was_broken};
use crate::maps::{self, count};
use crate::packet::Packet;
use crate::verdict::{Verdict, dropped};
use crate::write::Change;
use crate::{paths, probe};

/// Delivers a segment of the old path with the window that the path may announce.
#[inline(always)]
pub(super) fn from_old_path(s: &mut Session, p: &Packet, c: &mut Change, slot: u32) -> Decision {
    if two_paths::asks(Anchor::Local, s, &p.seg) {
        s.two.old_ack_set |= ASKED;
    }
    let delivered = match two_paths::old_incoming(Anchor::Local, s, &p.seg, Anchor::Local.wscale(s))
    {
        OldIncoming::Deliver(delivered) => delivered,
        OldIncoming::Drop => return Decision::Leave(dropped(Counter::DroppedLateOld)),
        OldIncoming::Withhold => return Decision::Leave(dropped(Counter::AckWithheld)),
    };
    if two_paths::breaks(Anchor::Local, s, &delivered) {
        was_broken(s, slot);
    }
    if delivered == p.seg {
        return Decision::Leave(Verdict::Pass);
    }
    c.edit = Edit {
        sport: p.key.whole.remote_port,
        dport: p.key.whole.local_port,
        seq: delivered.seq,
        ack: delivered.ack,
        window: delivered.window,
        flags: delivered.flags,
        strip: if delivered.ack == p.seg.ack {
            0
        } else {
            edit::SACK
        },
        ..Edit::default()
    };
    c.src = p.key.whole.remote;
    c.dst = p.key.whole.local;
    c.clear_ect = 0;
    c.pseudo = 0;
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Changed,
    }
}

/// Handles a packet that opens the new path. The two data planes exchange such packets, and no
/// socket receives them. The right anchor answers.
#[inline(always)]
pub(super) fn opening(
    ctx: &TcContext,
    s: &mut Session,
    p: &Packet,
    c: &mut Change,
    slot: u32,
) -> Decision {
    if s.life.opened_here != 0 {
        answered(ctx, s, &p.seg, slot);
        return Decision::Leave(Verdict::Drop);
    }
    // The long packet has to come first: the path may be too narrow for it.
    let asks = p.seg.has(SYN) && p.seg.len > 0;
    let nobodys = p.seg.flags & (SYN | ACK) == SYN | ACK || s.peer_sent_max == 0 && p.seg.len == 0;
    if nobodys || asks && !probe::is_carried(ctx, slot) {
        return Decision::Leave(dropped(Counter::DroppedStray));
    }
    if two_paths::record_opening(s, &p.seg) {
        maps::tell(EventKind::Drained, slot);
    }
    c.edit = two_paths::answer_opening(s, &p.seg);
    c.src = s.path.local;
    c.dst = s.path.remote;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
    // The path may be taken from now on, and FINs are held back.
    if asks && !probe::echo(ctx, Fins::of(Anchor::Local, s)) {
        return Decision::Leave(dropped(Counter::DroppedError));
    }
    Decision::Write {
        counter: None,
        failure: Counter::DroppedError,
        then: Verdict::Redirect { ifindex: s.ifindex },
    }
}

/// Takes in the answer of the right anchor: a SYN-ACK, followed by the packet that lets the path
/// be used.
#[inline(always)]
fn answered(ctx: &TcContext, s: &mut Session, seg: &Segment, slot: u32) {
    if seg.has(SYN) && !seg.has(ACK) {
        return count(Counter::DroppedSyn);
    }
    let syn = seg.has(SYN);
    if syn && s.two.cut_set == 0 {
        probe::tell(ctx.skb.skb, slot);
    }
    // This counter shows that the path carries packets.
    s.answers = s.answers.wrapping_add(1);
    if s.peer_sent_max == 0 && !syn {
        return count(Counter::DroppedStray);
    }
    let all = two_paths::record_announced(s, s.received_off_wire(seg.seq.wrapping_add(syn as u32)));
    if all {
        maps::tell(EventKind::Drained, slot);
    }
    if !syn && s.two.cut_set == 0 {
        maps::tell(EventKind::PathOpen, slot);
    }
}

/// Translates a segment of the new path for the local end.
#[inline(always)]
pub(super) fn from_new_path(
    s: &mut Session,
    p: &Packet,
    c: &mut Change,
    slot: u32,
    two_paths: bool,
) -> Decision {
    let mut e = s.translation.incoming(&p.seg, &s.key);
    if two_paths {
        s.new_in = s.new_in.wrapping_add(1);
        if p.seg.flags & (FIN | RST) != 0 {
            ends(s, &p.seg, e.seq, slot);
        }
        let seg = Segment {
            seq: e.seq,
            ack: e.ack,
            window: e.window,
            ..p.seg
        };
        if !seg.has(RST) && two_paths::record_announced(s, seg.end()) {
            maps::tell(EventKind::Drained, slot);
        }
        if !paths::receive(s, Anchor::Local, p, &seg, &mut e) {
            return Decision::Leave(dropped(Counter::AckWithheld));
        }
    } else {
        heard(s, &p.seg, &e, slot);
    }
    c.edit = e;
    c.src = s.key.remote;
    c.dst = s.key.local;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
    Decision::Write {
        counter: Some(Counter::Translated),
        failure: Counter::DroppedUnparsed,
        #[cfg(not(feature = "headerless"))]
        then: match s.detours_before_path() {
            true => Verdict::Detour,
            false => Verdict::Changed,
        },
        #[cfg(feature = "headerless")]
        then: Verdict::Changed,
    }
}
