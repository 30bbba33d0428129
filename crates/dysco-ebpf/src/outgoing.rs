//! Packets of the local end: updates of the entry, and the change on their path.

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
use dysco_common::seq::after;
use dysco_common::session::{Session, State, life};
use dysco_common::tcp::{ACK, FIN, RST, Segment};
use dysco_common::two_paths;
use dysco_common::{Counter, EventKind, Path};

use crate::hop;
use crate::incoming::was_reset;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::{Found, Key, load};
use crate::verdict::Verdict;
use crate::write;

/// Copies a packet into the scratch memory of a run.
#[inline(always)]
pub(crate) fn take(
    ctx: &TcContext,
    run: Run,
    key: &Key,
    found: &Found,
) -> Option<&'static mut Scratch> {
    let scratch = maps::scratch(run as u32)?;
    load(ctx, key, found, &mut scratch.packet)?;
    Some(scratch)
}

/// Applies the change and sends the packet on its path.
#[inline(always)]
pub(crate) fn write(ctx: &TcContext, run: Run, path: Path, s: &Session) -> Verdict {
    if !write::apply(ctx, run as u32) {
        count(Counter::DroppedError);
        return Verdict::Drop;
    }
    count(Counter::Translated);
    match path {
        Path::Old => Verdict::Pass,
        Path::New => hop::send(ctx, s),
    }
}

/// Takes in the clock of a segment that the local end sends. If the other end has sent nothing but a
/// SYN-ACK, whose clock is not read, its clock is the one that is echoed (RFC 7323, 3.2).
#[inline(always)]
pub(crate) fn clocks(ctx: &TcContext, s: &mut Session, found: &Found, tsval: u32) {
    s.tsval_out = tsval;
    if s.tsval_in == 0 {
        cold_path();
        s.tsval_in = found.timestamps(ctx).unwrap_or_default().1;
    }
}

/// Takes in the numbers of a segment that the local end sends.
#[inline(always)]
pub(crate) fn track(ctx: &TcContext, s: &mut Session, found: &Found, slot: u32) {
    let seg = &found.seg;
    let mut believed = true;
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        believed = ends(s, seg, slot);
    }
    // Anybody may have chosen the numbers of a reset.
    if believed && !seg.has(RST) {
        sent(s, seg);
    }
    if let Some((tsval, _)) = found.timestamps(ctx) {
        clocks(ctx, s, found, tsval);
    }
    if s.life.fin_out & s.life.fin_in != 0 && s.life.notified == 0 {
        cold_path();
        s.life.notified = 1;
        if s.state == State::Tracked as u32 || s.state == State::NewPath as u32 {
            maps::tell_later(EventKind::Closed, slot);
        } else {
            maps::tell(EventKind::Closed, slot);
        }
    }
}

/// Takes in a FIN or reset. Returns false if the other end cannot believe it.
#[inline(always)]
fn ends(s: &mut Session, seg: &Segment, slot: u32) -> bool {
    // SAFETY: an entry.
    (unsafe { dysco_ends(s, slot, seg.seq, seg.len, seg.flags as u32) }) != 0
}

/// Exported: see `learn::dysco_offer`. The arguments are the parts of a segment that count.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_ends(s: *mut Session, slot: u32, seq: u32, len: u32, flags: u32) -> u32 {
    // SAFETY: the caller's entry, or null as far as the verifier knows.
    let Some(s) = (unsafe { s.as_mut() }) else {
        return 0;
    };
    let seg = &Segment {
        seq,
        len,
        flags: flags as u8,
        ..Segment::default()
    };
    let near = s.joined_to().and_then(maps::session);
    // The joined entry may belong to another session.
    let near = near.filter(|near| near.joined_to() == Some(slot));
    let near = near.as_deref();
    if seg.has(RST) {
        // The relay's entry judges it.
        let believed = s.relay == 0 && two_paths::may_be_reset(s, near, seg.seq);
        if believed {
            was_reset(s, slot);
            s.life.reset |= life::BY_END;
        }
        return believed as u32;
    }
    let believed = two_paths::may_be_closed(s, near, seg);
    if believed {
        s.life.fin_out |= life::SEEN;
        if s.state != State::NewPath as u32 {
            s.life.fin_out |= life::OLD_PATH;
        }
    }
    believed as u32
}

/// Takes in the numbers of a segment of the local end.
#[inline(always)]
pub(crate) fn sent(s: &mut Session, seg: &Segment) {
    let end = seg.end();
    if after(end, s.snd_max) {
        s.bytes_out += end.wrapping_sub(s.snd_max) as u64;
        s.snd_max = end;
    }
    if seg.has(ACK) && after(seg.ack, s.snd_ack) {
        s.snd_ack = seg.ack;
    }
}
