//! Internet checksums, changed in place (RFC 1071, RFC 1624). A sum consists of words in memory
//! order, and is wider than 16 bits until it is folded. One's complement is the same in any width
//! and byte order.

/// Difference of two equal sums, folded.
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

/// Returns the difference `new - old` in one's complement. A multiple of 2^32-1 is added, which is
/// zero.
#[inline(always)]
pub const fn differ(new: u32, old: u32) -> u64 {
    new as u64 + (!old) as u64
}

/// Returns a checksum after a change of the data that it covers.
#[inline(always)]
pub const fn changed(old: u16, diff: u64) -> u16 {
    !fold16(diff + (!old) as u64)
}

/// Returns the sum that yields `s` if it is added to itself. As 2^16 is 1 modulo 2^16-1, the lowest
/// bit moves to the top.
#[inline(always)]
const fn half(s: u64) -> u16 {
    fold16(s).rotate_right(1)
}

/// Contents of a packet's checksum field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Field {
    /// The checksum.
    Whole,
    /// The sum of its pseudo-header, which the device completes (the kernel's CHECKSUM_PARTIAL).
    Pseudo,
    /// One of the two; only the kernel knows which.
    Either,
}

impl Field {
    /// Returns the kind of a field by its value. If the value is not the sum of the pseudo-header,
    /// the checksum of a correct packet is whole. If it is that sum, this may be by chance. For one
    /// of many segments it is not by chance, because devices complete their checksums themselves.
    #[inline(always)]
    pub const fn of(value: u16, pseudo_header: u64, of_many: bool) -> Field {
        // Zero has two forms. The sum of words that are not all zero folds to the other form.
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

/// Effect of an edit on a checksum: the changes of the sums of the pseudo-header and of the
/// segment.
#[derive(Clone, Copy)]
pub struct Diff {
    /// Change of the pseudo-header's sum, folded to 32 bits.
    pub pseudo: u64,
    /// Change of the segment's sum, folded to 32 bits.
    pub segment: u64,
}

impl Diff {
    /// Returns the new value of the field. For [`Field::Either`] one more step is necessary: the
    /// kernel has to change the pseudo-header by [`Diff::rest`]. The kernel subtracts this from a
    /// whole checksum, and adds it to a sum that is to be completed. Half of the segment's
    /// difference is in both steps. It cancels out in one case and counts whole in the other. The
    /// kernel is therefore called once, not once for each difference.
    #[inline(always)]
    pub const fn put(&self, field: Field, value: u16) -> u16 {
        match field {
            Field::Whole => changed(value, self.pseudo + self.segment),
            Field::Pseudo => fold16(self.pseudo + value as u64),
            Field::Either => fold16((!half(self.segment)) as u64 + value as u64),
        }
    }

    /// Returns the change of the pseudo-header that the kernel still has to make
    /// (`bpf_l4_csum_replace` with `BPF_F_PSEUDO_HDR`).
    #[inline(always)]
    pub const fn rest(&self) -> u64 {
        fold32(self.pseudo + half(self.segment) as u64)
    }

    /// Returns the change of a device's sum of the whole packet, if there is one
    /// (`bpf_csum_update`). Of the changes to a packet only those of the IPv4 pseudo-header do not
    /// cancel out, because the IPv4 header has a checksum of its own.
    #[inline(always)]
    pub const fn of_packet(&self, field: Field, v6: bool) -> u32 {
        match (field, v6) {
            (Field::Whole | Field::Pseudo, false) => !self.pseudo as u32,
            (Field::Whole | Field::Pseudo, true) => 0,
            // The kernel has subtracted the rest from it, as for IPv4.
            (Field::Either, false) => half(self.segment) as u32,
            (Field::Either, true) => self.rest() as u32,
        }
    }
}
