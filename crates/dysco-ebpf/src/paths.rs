//! Functions that local and remote anchors share in the two-path phase.

use aya_ebpf::programs::TcContext;
use dysco_common::seq::max;
use dysco_common::session::{Session, State, offer};
use dysco_common::tcp::{ACK, Edit, RST, Segment, edit};
use dysco_common::two_paths::{self, Anchor, Copy, VALID};
use dysco_common::{Counter, Path};

use crate::maps::{self, count};
use crate::packet::Packet;

/// Sets the cutoff if it is due: nothing after the highest number was sent before this packet.
/// Not while the new path may be given up: another processor may report the path's last packet
/// late.
#[inline(always)]
pub(crate) fn cut_if_due(s: &mut Session, at: Anchor) {
    if s.two.cut_armed | s.two.new_received != 0 && s.two.cut_set == 0 && s.muted == 0 {
        s.cut_out = at.snd_max(s);
        s.two.cut_set = 1;
    }
}

/// Keeps each path's highest acknowledgement, so that a copy is sent only if it contains news.
#[inline(always)]
pub(crate) fn remember_ack(s: &mut Session, path: Path, ack: u32) {
    match path {
        Path::Old => {
            s.old_ack = if s.two.old_ack_set & VALID != 0 {
                max(s.old_ack, ack)
            } else {
                ack
            };
            s.two.old_ack_set = VALID;
        }
        Path::New => {
            s.new_ack = if s.two.new_ack_set & VALID != 0 {
                max(s.new_ack, ack)
            } else {
                ack
            };
            s.two.new_ack_set |= VALID;
        }
    }
}

/// Sends a clone through the program once more, which makes a header of it by its mark. The mark
/// of the original is restored.
#[inline(always)]
pub(crate) fn send_copy(ctx: &TcContext, s: &mut Session, copy: &Copy, mark: u32, flags: u64) {
    // SAFETY: fields of the context that the verifier lets a classifier write.
    let skb = unsafe { &mut *ctx.skb.skb };
    let before = core::mem::replace(&mut skb.mark, mark);
    skb.cb[0] = copy.seq;
    skb.cb[1] = copy.ack;
    skb.cb[2] = copy.path as u32;
    skb.cb[3] = (copy.window as u32) << 16 | copy.flags as u32;
    let ifindex = skb.ifindex;
    let sent = ctx.clone_redirect(ifindex, flags);
    skb.mark = before;
    if sent.is_ok() {
        count(Counter::Split);
        if copy.flags & ACK != 0 {
            remember_ack(s, copy.path, copy.ack);
        }
    }
}

/// True if the session's segments have timestamps, anywhere in their options.
#[inline(always)]
fn has_timestamps(s: &Session) -> bool {
    s.local.flags & s.remote.flags & offer::TIMESTAMPS != 0
}

/// Takes in a segment of the new path, already in the end's own numbers, and limits `e` to what
/// the end may receive. Returns false if the end must not receive the segment.
#[inline(always)]
pub(crate) fn receive(
    s: &mut Session,
    at: Anchor,
    p: &Packet,
    seg: &Segment,
    e: &mut Edit,
) -> bool {
    let judged = two_paths::new_incoming(at, s, seg, at.wscale(s));
    two_paths::record_live(s, seg);
    if !seg.has(RST) {
        two_paths::record_data(at, s, seg);
        if seg.has(ACK) {
            two_paths::record_peer_ack(at, s, seg.ack, &judged);
        }
    }
    if !judged.deliver {
        return false;
    }
    e.ack = judged.ack;
    e.window = judged.window;
    // With the new path's clock, the proxy's later segments would be too old (PAWS).
    let clock = p.header.starts_with_timestamps();
    if judged.seq != seg.seq && (clock || !has_timestamps(s)) {
        e.seq = judged.seq;
        if clock {
            e.tsval_add = at.tsval_received(s).wrapping_sub(p.header.timestamps().0);
        }
    }
    // The far end echoes the proxy's clock until it has received all of the old path. Translated
    // to this end's clock, the echo lags by the lead of the new path's clock. This end would
    // call each of its time-outs spurious (RFC 3522), and would not retransmit.
    let has_old = two_paths::is_past_cutoff(s) && e.ack != s.cut_out;
    if s.two.cut_set != 0 && !has_old && clock {
        e.tsecr_add = at.tsval(s).wrapping_sub(p.header.timestamps().1);
    }
    if judged.strip_sack {
        e.strip |= edit::SACK;
    }
    true
}

/// Returns the entry for a copy on the old path, if the session's own five-tuple alone does not
/// suffice.
#[inline(always)]
pub(crate) fn entry_before(s: &Session) -> Option<&'static mut Session> {
    if s.state != State::Switching as u32 {
        return None;
    }
    let before = s.other_path().and_then(maps::session)?;
    if is_as_it_was(before) {
        None
    } else {
        Some(before)
    }
}

/// True if packets take this path unchanged, by the session's own five-tuple.
#[inline(always)]
pub(crate) fn is_as_it_was(before: &Session) -> bool {
    before.state == State::Tracked as u32 || before.state == State::Relay as u32
}
