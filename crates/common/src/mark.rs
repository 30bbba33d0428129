//! Marks by which the programs recognise their own packets (`skb->mark`, host order).

/// A header-only copy that leaves for the second time.
pub const COPY: u32 = 0xd75c_0c09;
/// A header-only copy that enters for the second time.
pub const COPY_IN: u32 = 0xd75c_0c0b;
/// A packet of this host that leaves unchanged, although it has the five-tuple of a session whose
/// own packets are dropped there.
pub const RELAYED: u32 = 0xd75c_0c0a;
/// As [`RELAYED`], and XDP learns the next hop from the packet.
pub const RELAYED_TEACHES: u32 = 0xd75c_0c0d;
/// A packet of this host that no stack has routed. It leaves as [`RELAYED`] packets do, on the
/// interface that it is on, and the kernel finds the neighbour.
pub const UNROUTED: u32 = 0xd75c_0c0f;
/// A packet of a session with a detour that a program has delivered. It enters unchanged.
pub const DELIVERED: u32 = 0xd75c_0c11;
/// A packet of a session with a detour that has had it. It leaves by the session's path.
pub const DETOURED: u32 = 0xd75c_0c12;
/// A packet that is relayed and still has to find its path.
pub const STEERED: u32 = 0xd75c_0c0e;

/// Upper byte of the mark of a chain's packet, on its way through the stack. The rest is the slot
/// that the packet arrived on. A NAT keeps the mark, although it changes the five-tuple.
const CHAIN: u32 = 0xd8 << 24;
const SLOT: u32 = (1 << 24) - 1;

/// Returns the mark of a packet that arrived on this slot of a chain. None if the slot has more
/// than 24 bits.
#[inline(always)]
pub const fn of_slot(slot: u32) -> Option<u32> {
    if slot & !SLOT == 0 {
        Some(CHAIN | slot)
    } else {
        None
    }
}

/// Returns the slot in a chain's mark.
#[inline(always)]
pub const fn slot_of(mark: u32) -> Option<u32> {
    if mark & !SLOT == CHAIN {
        Some(mark & SLOT)
    } else {
        None
    }
}
