//! The header of nearly every segment: without options, or with timestamps alone (RFC 7323,
//! appendix A). Its rewrite is the fast path. It uses fixed offsets and whole words, and computes
//! the difference of the checksum at the same time.

use crate::tcp::{ACK, Edit, edit};

/// A TCP header of 20 or 32 bytes in memory order, which is network order. The last three words of
/// a header of 20 bytes are never read.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub struct ShortHeader(pub [u32; 8]);

/// `NOP, NOP, timestamps` and the length of the option.
pub const TIMESTAMPS: u32 = u32::from_ne_bytes([1, 1, 8, 10]);
const NOPS: u32 = u32::from_ne_bytes([1; 4]);

impl ShortHeader {
    /// Stores a word. Returns the change of the sum of the words, in one's complement: `new - old`
    /// with a multiple of 2^32-1 added.
    #[inline(always)]
    fn replace(&mut self, i: usize, new: u32) -> u64 {
        let old = self.0[i];
        // SAFETY: a mutable reference is valid to write. Volatile, because LLVM would combine
        // neighbours into double words, which a BPF stack accepts only if they are aligned.
        unsafe { core::ptr::write_volatile(&mut self.0[i], new) };
        new as u64 + (!old) as u64
    }

    /// Returns the checksum, in memory order.
    #[inline(always)]
    pub fn check(&self) -> u16 {
        let [a, b, ..] = self.0[4].to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    /// Stores a checksum, in memory order.
    #[inline(always)]
    pub fn set_check(&mut self, check: u16) {
        let [a, b] = check.to_ne_bytes();
        let [.., c, d] = self.0[4].to_ne_bytes();
        self.0[4] = u32::from_ne_bytes([a, b, c, d]);
    }

    /// Rewrites a header, including its timestamps if it has them. Returns the change of the sum of
    /// its words, as [`ShortHeader::replace`] does; not folded.
    #[inline(always)]
    pub fn rewrite(&mut self, timestamps: bool, e: &Edit) -> u64 {
        let [s0, s1] = e.sport.to_ne_bytes();
        let [d0, d1] = e.dport.to_ne_bytes();
        let mut diff = self.replace(0, u32::from_ne_bytes([s0, s1, d0, d1]));
        diff += self.replace(1, e.seq.to_be());
        if e.flags & ACK != 0 {
            diff += self.replace(2, e.ack.to_be());
        }
        let [offset, ..] = self.0[3].to_ne_bytes();
        let [w0, w1] = e.window.to_be_bytes();
        diff += self.replace(3, u32::from_ne_bytes([offset, e.flags, w0, w1]));
        if timestamps {
            diff += self.rewrite_timestamps(e);
        }
        diff
    }

    #[inline(always)]
    fn rewrite_timestamps(&mut self, e: &Edit) -> u64 {
        if e.strip & edit::TIMESTAMPS != 0 {
            return self.replace(5, NOPS) + self.replace(6, NOPS) + self.replace(7, NOPS);
        }
        let add = |word: u32, n: u32| u32::from_be(word).wrapping_add(n).to_be();
        let mut diff = self.replace(6, add(self.0[6], e.tsval_add));
        if e.flags & ACK != 0 {
            diff += self.replace(7, add(self.0[7], e.tsecr_add));
        }
        diff
    }
}
