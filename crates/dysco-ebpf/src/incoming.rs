//! Updates of the entry from a received packet.

use core::hint::cold_path;

use aya_ebpf::programs::TcContext;
use dysco_common::EventKind;
use dysco_common::seq::after;
use dysco_common::session::{Session, State, life};
use dysco_common::tcp::{ACK, Edit, FIN, RST, Segment};
use dysco_common::two_paths::{self, Anchor};

use crate::atomic;
use crate::maps;
use crate::packet::Found;

/// Takes in a segment on the session's own five-tuple.
#[inline(always)]
pub(crate) fn track(ctx: &TcContext, s: &mut Session, found: &Found, slot: u32) {
    let seg = &found.seg;
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        let delivered = two_paths::old_number(Anchor::Local, s, seg);
        if !ends(s, seg, delivered, slot) {
            return;
        }
    }
    // Anybody may have chosen the numbers of a reset.
    if seg.has(RST) {
        return;
    }
    if seg.has(FIN) {
        s.life.fin_in |= life::OLD_PATH;
    }
    arrived(s, seg);
    if let Some((tsval, _)) = found.timestamps(ctx) {
        clocks(ctx, s, found, tsval);
    }
}

/// Takes in the clock of a segment for the local end. See `outgoing::clocks`.
#[inline(always)]
pub(crate) fn clocks(ctx: &TcContext, s: &mut Session, found: &Found, tsval: u32) {
    s.tsval_in = tsval;
    if s.tsval_out == 0 {
        cold_path();
        s.tsval_out = found.timestamps(ctx).unwrap_or_default().1;
    }
}

/// Takes in the numbers of a segment on the session's own five-tuple.
#[inline(always)]
pub(crate) fn arrived(s: &mut Session, seg: &Segment) {
    received(s, seg.end());
    if seg.has(ACK) && after(seg.ack, s.rcv_ack) && was_sent(s, seg.ack) {
        s.rcv_ack = seg.ack;
    }
}

#[inline(always)]
pub(crate) fn received(s: &mut Session, end: u32) {
    if after(end, s.rcv_max) {
        s.bytes_in += end.wrapping_sub(s.rcv_max) as u64;
        s.rcv_max = end;
    }
}

/// Raises the number received, where another processor may do so at the same time. The
/// acknowledgements on a path are compared with this number, which must not decrease.
#[inline(always)]
pub(crate) fn received_exactly(s: &mut Session, end: u32) {
    if let Some(before) = atomic::raise(&mut s.rcv_max, end) {
        s.bytes_in += end.wrapping_sub(before) as u64;
    }
}

/// True if the acknowledged number has been sent. An acknowledgement of any other number does
/// not belong to this session. Another CPU writes `snd_max`, so this function reads it only when
/// needed.
#[inline(always)]
pub(crate) fn was_sent(s: &mut Session, ack: u32) -> bool {
    if after(ack, s.snd_seen) {
        s.snd_seen = s.snd_max;
    }
    !after(ack, s.snd_seen)
}

/// Takes in a segment on the new path.
#[inline(always)]
pub(crate) fn heard(s: &mut Session, seg: &Segment, e: &Edit, slot: u32) {
    s.new_in = s.new_in.wrapping_add(1);
    if s.state == State::Switching as u32 {
        two_paths::record_live(s, seg);
    }
    if seg.flags & (FIN | RST) != 0 {
        cold_path();
        if !ends(s, seg, e.seq, slot) {
            return;
        }
    }
    if !seg.has(RST) {
        received_exactly(s, e.seq.wrapping_add(seg.span()));
    }
}

/// Records a reset that passes and that an end may believe. Reported once.
#[inline(always)]
pub(crate) fn was_reset(s: &mut Session, slot: u32) {
    if s.life.reset == 0 {
        s.life.reset = 1;
        maps::tell(EventKind::Reset, slot);
    }
}

/// Records that the middlebox has ended the session. Reported once.
#[inline(always)]
pub(crate) fn was_broken(s: &mut Session, slot: u32) {
    if !two_paths::is_broken(s) {
        s.life.reset |= life::SEEN | life::BY_MIDDLEBOX;
        maps::tell(EventKind::Broken, slot);
    }
}

/// Takes in a FIN or reset. `seq` is in the local end's own numbers, as that end receives it.
/// Returns false if the end cannot believe it.
#[inline(always)]
pub(crate) fn ends(s: &mut Session, seg: &Segment, seq: u32, slot: u32) -> bool {
    // SAFETY: an entry.
    (unsafe { dysco_is_ended(s, slot, seq, seg.len, seg.flags as u32) }) != 0
}

/// Exported: see `learn::dysco_offer`. The arguments are the parts of a segment that count.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_is_ended(
    s: *mut Session,
    slot: u32,
    seq: u32,
    len: u32,
    flags: u32,
) -> u32 {
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
    if seg.has(RST) {
        // On other hosts the relay's entry judges it.
        let believed = s.relay == 0 && two_paths::may_reset(s, seq);
        if believed {
            was_reset(s, slot);
        }
        return believed as u32;
    }
    let believed = two_paths::may_close(s, seg, seq);
    if believed {
        s.life.fin_in |= life::SEEN;
    }
    believed as u32
}
