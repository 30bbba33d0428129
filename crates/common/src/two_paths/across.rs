//! Segments across the cutoff.

/// Maximum length of a segment across the cutoff: no super-packet is longer (`GSO_MAX_SIZE`,
/// include/linux/netdevice.h).
pub(super) const ACROSS: u32 = 1 << 19;
