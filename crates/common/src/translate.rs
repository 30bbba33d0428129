//! The translation of a segment into another session: the only place where the numbers of two
//! sessions meet.

use crate::flow::FlowKey;
use crate::session::{Translation, translation};
use crate::tcp::{CWR, ECE, Edit, Segment, edit};

/// Converts a window `w` from scale `from` to scale `to`: rounded down, saturating at 65535 (RFC
/// 7323, section 2.3).
#[inline(always)]
pub const fn rescale(w: u16, from: u8, to: u8) -> u16 {
    let bytes = (w as u32) << (from & 15);
    let scaled = bytes >> (to & 15);
    if scaled > 0xffff {
        0xffff
    } else {
        scaled as u16
    }
}

impl Translation {
    /// Returns the translation from the far end's side: incoming here is outgoing there.
    pub const fn mirrored(&self) -> Translation {
        Translation {
            seq_out: self.seq_in,
            seq_in: self.seq_out,
            ts_out: self.ts_in,
            ts_in: self.ts_out,
            wscale_local: self.wscale_remote_at_peer,
            wscale_local_at_peer: self.wscale_remote,
            wscale_remote_at_peer: self.wscale_local,
            wscale_remote: self.wscale_local_at_peer,
            flags: self.flags,
        }
    }

    #[inline(always)]
    fn common(&self, seg: &Segment) -> (u32, u8) {
        let strip = if self.flags & translation::STRIP_TIMESTAMPS != 0 {
            edit::TIMESTAMPS
        } else {
            0
        };
        let flags = if self.flags & translation::STRIP_ECN != 0 {
            seg.flags & !(ECE | CWR)
        } else {
            seg.flags
        };
        (strip, flags)
    }

    /// Returns the difference for SACK blocks, which change like the acknowledgement number.
    #[inline(always)]
    fn sack_add(&self, acked: u32) -> u32 {
        if self.flags & translation::LEAVE_SACK == 0 {
            0u32.wrapping_sub(acked)
        } else {
            0
        }
    }

    /// Returns the edit of a segment from the local end for the new path's wire.
    #[inline(always)]
    pub fn outgoing(&self, seg: &Segment, path: &FlowKey) -> Edit {
        let (strip, flags) = self.common(seg);
        Edit {
            sport: path.local_port,
            dport: path.remote_port,
            seq: seg.seq.wrapping_add(self.seq_out),
            ack: seg.ack.wrapping_sub(self.seq_in),
            window: rescale(seg.window, self.wscale_local, self.wscale_local_at_peer),
            flags,
            sack_add: self.sack_add(self.seq_in),
            tsval_add: self.ts_out,
            tsecr_add: 0u32.wrapping_sub(self.ts_in),
            strip,
            ..Edit::default()
        }
    }

    /// Returns the edit of a segment from the new path's wire for the local end.
    #[inline(always)]
    pub fn incoming(&self, seg: &Segment, key: &FlowKey) -> Edit {
        let (strip, flags) = self.common(seg);
        Edit {
            sport: key.remote_port,
            dport: key.local_port,
            seq: seg.seq.wrapping_add(self.seq_in),
            ack: seg.ack.wrapping_sub(self.seq_out),
            window: rescale(seg.window, self.wscale_remote_at_peer, self.wscale_remote),
            flags,
            sack_add: self.sack_add(self.seq_out),
            tsval_add: self.ts_in,
            tsecr_add: 0u32.wrapping_sub(self.ts_out),
            strip,
            ..Edit::default()
        }
    }
}
