//! Marks of packets by which the programs know their own (`skb->mark`, host order).

/// A header-only copy, on its second way out.
pub const COPY: u32 = 0xd75c_0c09;
/// The same, on its second way in.
pub const COPY_IN: u32 = 0xd75c_0c0b;
/// A packet of this host that leaves as it is, though it bears the five-tuple of a
/// session whose own packets are dropped there.
pub const RELAYED: u32 = 0xd75c_0c0a;
/// The same, and XDP is to learn where it goes.
pub const RELAYED_TEACHES: u32 = 0xd75c_0c0d;
/// A packet of this host that no stack has routed: it leaves as [`RELAYED`] do, by the
/// interface that it is on, and the kernel finds the neighbour.
pub const UNROUTED: u32 = 0xd75c_0c0f;
/// A packet that is relayed, and has its path still to find.
pub const STEERED: u32 = 0xd75c_0c0e;

/// The upper byte of what a chain has brought, on its way through the stack; the slot
/// that it came by is the rest. A NAT keeps it, though it changes the five-tuple.
const CHAIN: u32 = 0xd8 << 24;
const SLOT: u32 = (1 << 24) - 1;

/// The mark of what came by this slot of a chain's. There is none for a slot of more
/// than 24 bits.
#[inline(always)]
pub const fn of_slot(slot: u32) -> Option<u32> {
    if slot & !SLOT == 0 {
        Some(CHAIN | slot)
    } else {
        None
    }
}

/// The slot that a chain's mark names.
#[inline(always)]
pub const fn slot_of(mark: u32) -> Option<u32> {
    if mark & !SLOT == CHAIN {
        Some(mark & SLOT)
    } else {
        None
    }
}
