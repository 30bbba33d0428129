//! A TCP header in a buffer: fields, options, and the one rewrite for every changed packet. The
//! same code runs in the kernel and in tests.
//!
//! These functions convert all numbers from and to network byte order. Their arguments and results
//! are in host order. Sequence numbers and timestamps are added modulo 2^32 (RFC 9293, RFC 7323).

mod options;

use options::{KIND_NOP, KIND_TIMESTAMPS};
pub use options::{Malformed, Step, walk};

/// Bytes of the longest TCP header.
pub const MAX_HEADER: usize = 60;
/// Bytes of the header without options.
pub const MIN_HEADER: usize = 20;

/// FIN flag.
pub const FIN: u8 = 1;
/// SYN flag.
pub const SYN: u8 = 2;
/// RST flag.
pub const RST: u8 = 4;
/// PSH flag.
pub const PSH: u8 = 0x08;
/// ACK flag.
pub const ACK: u8 = 16;
/// ECE flag.
pub const ECE: u8 = 64;
/// CWR flag.
pub const CWR: u8 = 128;
/// AE flag (AccECN), the low bit of the byte before the flags.
const AE: u8 = 1;

/// A TCP header, network order, in a buffer that can be read and written at any offset below 64.
/// The last four bytes have no meaning.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Header(pub [u8; 64]);

/// Contents of a segment, in host order.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// First sequence number.
    pub seq: u32,
    /// Acknowledgement number; valid only if `flags` has [`ACK`].
    pub ack: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Window as sent, unscaled.
    pub window: u16,
    /// Flags.
    pub flags: u8,
}

impl Segment {
    /// Returns the number of sequence numbers that the segment takes: payload, SYN and FIN.
    #[inline(always)]
    pub const fn span(&self) -> u32 {
        self.len + ((self.flags & SYN) >> 1) as u32 + (self.flags & FIN) as u32
    }

    /// Returns the sequence number after the segment.
    #[inline(always)]
    pub const fn end(&self) -> u32 {
        self.seq.wrapping_add(self.span())
    }

    /// Returns true if a flag is set.
    #[inline(always)]
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// New values of a header. Ports are in network order, the rest is in host order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edit {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; written only under [`ACK`].
    pub ack: u32,
    /// Window as sent.
    pub window: u16,
    /// Flags.
    pub flags: u8,
    /// Added to both edges of each SACK block.
    pub sack_add: u32,
    /// Highest number that an edge may have after that, with [`edit::LIMIT_SACK`].
    pub sack_limit: u32,
    /// Added to TSval.
    pub tsval_add: u32,
    /// Added to TSecr, with [`ACK`].
    pub tsecr_add: u32,
    /// [`edit`] bits.
    pub strip: u32,
    /// Window scale to offer, plus 1; 0 to leave the option as it is.
    pub wscale: u32,
}

impl Edit {
    /// Returns true if the edit changes nothing after a header's first 20 bytes.
    #[inline(always)]
    pub const fn leaves_options(&self) -> bool {
        self.sack_add | self.tsval_add | self.tsecr_add | self.strip | self.wscale == 0
    }

    /// Returns the edit that has the effect of `first` and then of this one. At most one of them
    /// limits SACK blocks.
    #[inline(always)]
    pub const fn after(&self, first: &Edit) -> Edit {
        Edit {
            sport: self.sport,
            dport: self.dport,
            seq: self.seq,
            ack: self.ack,
            window: self.window,
            flags: self.flags,
            sack_add: first.sack_add.wrapping_add(self.sack_add),
            tsval_add: first.tsval_add.wrapping_add(self.tsval_add),
            tsecr_add: first.tsecr_add.wrapping_add(self.tsecr_add),
            strip: first.strip | self.strip,
            sack_limit: if self.strip & edit::LIMIT_SACK != 0 {
                self.sack_limit
            } else {
                first.sack_limit.wrapping_add(self.sack_add)
            },
            wscale: if self.wscale != 0 {
                self.wscale
            } else {
                first.wscale
            },
        }
    }
}

/// Bits of [`Edit::strip`].
pub mod edit {
    /// Overwrite the timestamps option with NOPs.
    pub const TIMESTAMPS: u32 = 1;
    /// Overwrite the SACK option with NOPs.
    pub const SACK: u32 = 2;
    /// Reduce the edges of SACK blocks to a limit. A block beyond it becomes empty, and receivers
    /// ignore it.
    pub const LIMIT_SACK: u32 = 4;
}

/// Returns `x`, and prevents LLVM from removing a mask that the verifier needs.
#[inline(always)]
pub fn opaque(x: usize) -> usize {
    #[cfg(target_arch = "bpf")]
    {
        let mut y = x as u64;
        // SAFETY: moves a register onto itself and touches nothing else.
        unsafe {
            core::arch::asm!("{0} = {0}", inout(reg) y, options(pure, nomem, nostack, preserves_flags));
        }
        y as usize
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        x
    }
}

impl Header {
    /// Returns a buffer of zeros.
    #[inline(always)]
    pub const fn zeroed() -> Self {
        Header([0; 64])
    }

    #[inline(always)]
    fn byte(&self, i: usize) -> u8 {
        self.0[opaque(i) & 63]
    }

    #[inline(always)]
    fn set_byte(&mut self, i: usize, v: u8) {
        self.0[opaque(i) & 63] = v;
    }

    /// Returns the word at an offset that is a multiple of four, in memory order.
    #[inline(always)]
    pub fn raw(&self, i: usize) -> u32 {
        const { assert!(align_of::<Header>() >= 4) };
        assert!(i.is_multiple_of(4) && i + 4 <= 64);
        // SAFETY: in bounds and aligned, by the line above. Read as a word, because LLVM would make
        // four loads of four bytes, which the stack has no room for.
        unsafe { *self.0.as_ptr().add(i).cast::<u32>() }
    }

    #[inline(always)]
    fn word(&self, i: usize) -> u32 {
        u32::from_be(self.raw(i))
    }

    #[inline(always)]
    fn set_word(&mut self, i: usize, v: u32) {
        assert!(i.is_multiple_of(4) && i + 4 <= 64);
        // SAFETY: in bounds and aligned, as in `raw`.
        unsafe { *self.0.as_mut_ptr().add(i).cast::<u32>() = v.to_be() }
    }

    /// Returns the big-endian word at any offset, including odd ones.
    #[inline(always)]
    fn word_at(&self, i: usize) -> u32 {
        u32::from_be_bytes([
            self.byte(i),
            self.byte(i + 1),
            self.byte(i + 2),
            self.byte(i + 3),
        ])
    }

    #[inline(always)]
    fn set_word_at(&mut self, i: usize, v: u32) {
        let b = v.to_be_bytes();
        self.set_byte(i, b[0]);
        self.set_byte(i + 1, b[1]);
        self.set_byte(i + 2, b[2]);
        self.set_byte(i + 3, b[3]);
    }

    /// Adds to the big-endian word at any offset.
    #[inline(always)]
    fn add_at(&mut self, i: usize, add: u32) {
        let v = self.word_at(i).wrapping_add(add);
        self.set_word_at(i, v);
    }

    /// Returns true if there are no options, or only timestamps in the usual place.
    #[inline(always)]
    pub fn is_usual(&self) -> bool {
        let end = self.data_offset();
        end == MIN_HEADER || end == 32 && self.starts_with_timestamps()
    }

    /// Returns the length of the header in bytes by its data offset, 0 to 60.
    #[inline(always)]
    pub fn data_offset(&self) -> usize {
        (self.0[12] >> 4) as usize * 4
    }

    /// Returns the fixed fields. `len` is the payload's length in bytes.
    #[inline(always)]
    pub fn segment(&self, len: u32) -> Segment {
        Segment {
            seq: self.word(4),
            ack: self.word(8),
            len,
            window: u16::from_be_bytes([self.0[14], self.0[15]]),
            flags: self.0[13],
        }
    }

    /// Returns the one's-complement sum of the buffer's words, native order, unfolded. In a
    /// difference of two sums, the bytes after the header must be the same.
    #[inline(always)]
    pub fn sum(&self) -> u64 {
        let mut s = 0u64;
        let mut i = 0;
        while i < MAX_HEADER {
            s += self.raw(i) as u64;
            i += 4;
        }
        s
    }

    #[inline(always)]
    fn edit_fixed(&mut self, e: &Edit) {
        let sport = e.sport.to_ne_bytes();
        let dport = e.dport.to_ne_bytes();
        self.0[0] = sport[0];
        self.0[1] = sport[1];
        self.0[2] = dport[0];
        self.0[3] = dport[1];
        self.set_word(4, e.seq);
        if e.flags & ACK != 0 {
            self.set_word(8, e.ack);
        }
        self.0[13] = e.flags;
        let w = e.window.to_be_bytes();
        self.0[14] = w[0];
        self.0[15] = w[1];
    }

    /// Returns true if the options begin with `NOP, NOP, timestamps`.
    #[inline(always)]
    pub fn starts_with_timestamps(&self) -> bool {
        self.0[12] >> 4 >= 8
            && self.0[20] == KIND_NOP
            && self.0[21] == KIND_NOP
            && self.0[22] == KIND_TIMESTAMPS
            && self.0[23] == 10
    }

    /// Returns TSval and TSecr, if [`Header::starts_with_timestamps`] is true.
    #[inline(always)]
    pub fn timestamps(&self) -> (u32, u32) {
        (self.word(24), self.word(28))
    }
}
