//! The change of a packet, which is prepared in the memory of a program's run.

use dysco_common::Addr;
use dysco_common::short::ShortHeader;
use dysco_common::tcp::Edit;

/// Everything that is written into a packet.
#[repr(C)]
pub(crate) struct Change {
    /// The edit of the TCP header.
    pub edit: Edit,
    /// The source address.
    pub src: Addr,
    /// The destination address.
    pub dst: Addr,
    /// Not 0 to set the ECN field of the IP header to Not-ECT.
    pub clear_ect: u32,
    /// Difference of the pseudo-header from an earlier step (see `trim`).
    pub pseudo: u64,
    /// Difference of the payload, from `append` and `strip`: applied once.
    pub payload: u64,
    /// Room for headers, which the stack does not have.
    pub(super) headers: Headers,
}

/// The end of an IP header in frame order: source and destination. For IPv4 these are the last
/// two words, and the header's checksum is in the two bytes before. Aligned, because LLVM stores
/// double words where the stack must be aligned.
#[repr(C, align(8))]
pub(super) struct Addresses(pub(super) [u32; 8]);

/// The end of an IP header and a short TCP header.
#[repr(C)]
pub(super) struct Headers {
    pub(super) addresses: Addresses,
    pub(super) tcp: ShortHeader,
}
