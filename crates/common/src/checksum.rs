//! Checksums of the Internet, changed in place (RFC 1071, RFC 1624). A sum is of
//! words as memory has them, and wider than 16 bits until it is folded: one's
//! complement is the same in any width and byte order.

/// A difference of sums that are the same, folded.
pub const NOTHING: u64 = 0xffff_ffff;

/// Folds a sum of words to 32 bits.
#[inline(always)]
pub const fn fold32(mut s: u64) -> u64 {
    s = (s & 0xffff_ffff) + (s >> 32);
    (s & 0xffff_ffff) + (s >> 32)
}

/// Folds a sum of words to 16 bits.
#[inline(always)]
pub const fn fold16(s: u64) -> u16 {
    let mut s = fold32(s);
    s = (s & 0xffff) + (s >> 16);
    s = (s & 0xffff) + (s >> 16);
    ((s & 0xffff) + (s >> 16)) as u16
}

/// The difference `new - old` in one's complement: a multiple of 2^32-1 is
/// added, which is nothing.
#[inline(always)]
pub const fn differ(new: u32, old: u32) -> u64 {
    new as u64 + (!old) as u64
}

/// A checksum after a change of what it is over.
#[inline(always)]
pub const fn changed(old: u16, diff: u64) -> u16 {
    !fold16(diff + (!old) as u64)
}

/// The sum that makes this one if it is added to itself: as 2^16 is 1 modulo
/// 2^16-1, its lowest bit goes to the top.
#[inline(always)]
const fn half(s: u64) -> u16 {
    fold16(s).rotate_right(1)
}

/// What a packet has in place of its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The checksum.
    Whole,
    /// The sum of its pseudo-header, to be completed by the device (the kernel's
    /// CHECKSUM_PARTIAL).
    Pseudo,
    /// One of these; only the kernel knows.
    Either,
}

impl Field {
    /// Which it is, by its value. A packet that is right either way has a whole
    /// checksum if this is not the sum of its pseudo-header; if it is, that may be by
    /// chance, but for one of many segments, which devices complete themselves.
    #[inline(always)]
    pub const fn of(value: u16, pseudo_header: u64, of_many: bool) -> Field {
        // Zero has two forms; a sum that is not of zeros folds to the other.
        let value = if value == 0 { 0xffff } else { value };
        if value != fold16(pseudo_header) {
            Field::Whole
        } else if of_many {
            Field::Pseudo
        } else {
            Field::Either
        }
    }
}

/// What happens to a checksum: how the sums of the pseudo-header and of the segment
/// itself change.
#[derive(Clone, Copy)]
pub struct Diff {
    /// Of the pseudo-header, folded to 32 bits.
    pub pseudo: u64,
    /// Of the segment, folded to 32 bits.
    pub segment: u64,
}

impl Diff {
    /// What to put in the field's place. Of [`Field::Either`] it is not the end of it:
    /// the kernel then has to change the pseudo-header by [`Diff::rest`], which it takes
    /// from a whole checksum and adds to a sum that is to be completed. With half of
    /// the segment's difference in both steps, it cancels out in the one and counts whole
    /// in the other: the kernel is asked once, not for either difference.
    #[inline(always)]
    pub const fn put(&self, field: Field, value: u16) -> u16 {
        match field {
            Field::Whole => changed(value, self.pseudo + self.segment),
            Field::Pseudo => fold16(self.pseudo + value as u64),
            Field::Either => fold16((!half(self.segment)) as u64 + value as u64),
        }
    }

    /// What the kernel still has to change the pseudo-header by (`bpf_l4_csum_replace`
    /// with `BPF_F_PSEUDO_HDR`).
    #[inline(always)]
    pub const fn rest(&self) -> u64 {
        fold32(self.pseudo + half(self.segment) as u64)
    }

    /// By how much a device's sum of the whole packet, if there is one, has to change
    /// (`bpf_csum_update`): of the changes to a packet only those of the pseudo-header of
    /// IPv4 do not cancel out, for its header has a checksum of its own.
    #[inline(always)]
    pub const fn of_packet(&self, field: Field, v6: bool) -> u32 {
        match (field, v6) {
            (Field::Whole | Field::Pseudo, false) => !self.pseudo as u32,
            (Field::Whole | Field::Pseudo, true) => 0,
            // The kernel has taken the rest from it, as if it were of IPv4.
            (Field::Either, false) => half(self.segment) as u32,
            (Field::Either, true) => self.rest() as u32,
        }
    }
}
