//! Packets between two paths: one path, or both.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::session::{Session, State, translation};
use dysco_common::tcp::{ACK, Edit, Segment, edit};
use dysco_common::two_paths::{self, Anchor};
use dysco_common::{Counter, EventKind, Path, mark};

use crate::maps::{self, Flow, Run, Scratch, count};
use crate::outgoing::{take, track};
use crate::packet::{Found, Key};
use crate::paths::{self, remember_ack, send_copy};
use crate::verdict::Verdict;
use crate::write::{self, Change};

/// Prepares the change that translates the segment onto the new path.
#[inline(always)]
pub(crate) fn new_path(s: &mut Session, seg: &Segment, c: &mut Change) {
    c.edit = s.translation.outgoing(seg, &s.path);
    c.src = s.path.local;
    c.dst = s.path.remote;
    c.clear_ect = s.translation.flags & translation::STRIP_ECN;
    c.pseudo = 0;
    s.new_out = s.new_out.wrapping_add(1);
}

/// Prepares the change that sends the segment on the old path with other numbers.
#[inline(always)]
pub(crate) fn old_path(key: &Key, seg: &Segment, c: &mut Change) {
    c.edit = Edit {
        sport: key.whole.local_port,
        dport: key.whole.remote_port,
        seq: seg.seq,
        ack: seg.ack,
        window: seg.window,
        flags: seg.flags,
        ..Edit::default()
    };
    c.src = key.whole.local;
    c.dst = key.whole.remote;
    c.clear_ect = 0;
    c.pseudo = 0;
}

/// Removes the SACK blocks that a path must not receive.
#[inline(always)]
fn limit(c: &mut Change, s: &Session, path: Path) {
    let sacks = two_paths::sacks(Anchor::Local, s, path);
    if !sacks.limited {
        return;
    }
    c.edit.strip |= edit::LIMIT_SACK;
    c.edit.sack_limit = match path {
        Path::Old => sacks.to,
        Path::New => sacks.to.wrapping_sub(s.translation.seq_in),
    };
}

/// Sends a packet of the local end in the two-path phase.
#[inline(always)]
pub(super) fn on_two_paths(
    ctx: &TcContext,
    s: &mut Session,
    key: &Key,
    found: &Found,
    slot: u32,
) -> Verdict {
    if take(ctx, Run::Egress, key, found).is_none() {
        return Verdict::Pass;
    }
    paths::cut_if_due(s, Anchor::Local);
    track(ctx, s, found, slot);
    // SAFETY: the program's own context.
    match unsafe { dysco_split(ctx.skb.skb, slot) } {
        NEITHER => Verdict::Pass,
        NEW => super::write(ctx, Run::Egress, Path::New, s),
        _ => super::write(ctx, Run::Egress, Path::Old, s),
    }
}

/// Result of [`dysco_split`]: the packet passes unchanged.
const NEITHER: u32 = 0;
/// Apply the change; the packet takes the new path.
const NEW: u32 = 1;
/// Apply the change; the packet takes the old path.
const OLD: u32 = 2;

/// Splits the packet in the scratch memory of egress between the paths of its session. Exported
/// for a stack frame of its own (see also `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_split(skb: *mut __sk_buff, slot: u32) -> u32 {
    let (
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }),
        Some(s),
    ) = (maps::scratch(Run::Egress as u32), maps::session(slot))
    else {
        return NEITHER;
    };
    two_paths::acknowledge(s, &p.seg);
    two_paths::record_window(Anchor::Local, s, &p.seg);
    if two_paths::drains(s, &p.seg) {
        s.two.drained = 1;
        maps::tell(EventKind::Drained, slot);
    }
    let out = two_paths::outgoing(Anchor::Local, s, &p.seg);
    if let Some(copy) = out.copy {
        send_copy(&TcContext::new(skb), s, &copy, mark::COPY, 0);
    }
    if p.seg.has(ACK) {
        remember_ack(s, out.path, out.ack);
    }
    let seg = Segment {
        seq: out.seq,
        ack: out.ack,
        window: out.window,
        ..p.seg
    };
    match out.path {
        Path::New => {
            new_path(s, &seg, c);
            limit(c, s, out.path);
            NEW
        }
        Path::Old => {
            count(Counter::OldPath);
            if seg == p.seg && (s.two.new_data == 0 || p.header.is_usual()) {
                return NEITHER;
            }
            old_path(&p.key, &seg, c);
            limit(c, s, out.path);
            OLD
        }
    }
}

/// Handles a copy on its second pass: trims it to a header, and sends the header.
#[inline(always)]
pub(super) fn header_copy(ctx: &TcContext, key: &Key, found: &Found) -> Verdict {
    // SAFETY: fields of the context that the verifier lets a classifier use.
    let skb = unsafe { &mut *ctx.skb.skb };
    let (seq, ack, path, rest) = (skb.cb[0], skb.cb[1], skb.cb[2], skb.cb[3]);
    let Some(Flow { new, s, .. }) = maps::find(key) else {
        return Verdict::Drop;
    };
    #[cfg(not(feature = "headerless"))]
    if s.has_detour() && !new {
        maps::continue_in(ctx, dysco_common::detour::program::EGRESS);
        return Verdict::Drop;
    }
    if new {
        // A copy for the new path, on its third pass: translated already. The mark kept it from
        // the scratch memory of the run that made it.
        skb.mark = 0;
        return Verdict::Pass;
    }
    let (path, s) = match paths::entry_before(s) {
        _ if path == Path::New as u32 => (Path::New, s),
        Some(before) => (Path::New, before),
        None => {
            skb.mark = 0;
            (Path::Old, s)
        }
    };
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = take(ctx, Run::Copy, key, found)
    else {
        return Verdict::Drop;
    };
    let Some(length_diff) = write::trim(ctx, p) else {
        count(Counter::DroppedError);
        return Verdict::Drop;
    };
    let seg = Segment {
        seq,
        ack,
        window: (rest >> 16) as u16,
        flags: rest as u8,
        ..p.seg
    };
    match path {
        Path::Old => old_path(key, &seg, c),
        Path::New => new_path(s, &seg, c),
    }
    if s.state == State::TwoPaths as u32 {
        limit(c, s, path);
    }
    c.pseudo = length_diff;
    super::write(ctx, Run::Copy, path, s)
}
