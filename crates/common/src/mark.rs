//! Marks of packets by which the programs know their own.

/// A packet of this host that leaves as it is, though it bears the five-tuple of a
/// session whose own packets are dropped there.
pub const RELAYED: u32 = 0xd75c_0c0a;
