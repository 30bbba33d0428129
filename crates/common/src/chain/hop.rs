//! Neighbours, their keys, and SYNs on their way from one to the next.

use core::mem::size_of;

use super::element::{Chain, WireElement};
use super::payload::Payload;
use crate::flow::{Addr, FlowKey};
use crate::fresh::Clock;
use crate::siphash::Key;

/// A key that proves a neighbour's payloads.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shared {
    /// The key.
    pub key: Key,
    /// Knowledge of the neighbour's clock, from these payloads.
    pub clock: Clock,
}

impl Shared {
    /// Updates the clock by the time of sending of a payload that arrives now, in
    /// [`ticks`](crate::fresh::ticks). Returns false if it is a copy of a payload that arrived long
    /// ago.
    #[inline(always)]
    pub fn hears(&mut self, payload: &Payload, now: u32) -> bool {
        match self.clock.hears(now, u32::from_be(payload.sent)) {
            Some(clock) => {
                self.clock = clock;
                true
            }
            None => false,
        }
    }
}

/// A neighbour to which SYNs with a payload may be sent.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hop {
    /// Identifier of `key` at both ends.
    pub key_id: u64,
    /// Key that proves the sender.
    pub key: Key,
    /// Address of this host towards the neighbour.
    pub local: Addr,
    /// Interface towards the neighbour.
    pub ifindex: u32,
    /// Zero.
    pub reserved: u32,
}

/// Record of a SYN on its way through this host. The program that forwards the SYN finds the next
/// host here.
#[repr(C, align(8))]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pending {
    /// The session. `local` is the side that opened it.
    pub session: FlowKey,
    /// The session as the host that opened it has it.
    pub origin: FlowKey,
    /// Slot of the subsession that the SYN arrived on, plus 1; 0 at the host that opened the
    /// session.
    pub left: u32,
    /// Initial sequence number of the SYN on arrival.
    pub isn: u32,
    /// The remaining hosts, the next one first.
    pub chain: Chain,
    /// The element in the payload's last place.
    pub last: WireElement,
}

const _: () = assert!(size_of::<Pending>() == 264);

impl Pending {
    /// Copies another record, word by word. LLVM would otherwise take as much of a BPF stack as the
    /// record is long.
    #[inline(always)]
    pub fn set(&mut self, from: &Pending) {
        let (from, to) = (
            (&raw const *from).cast::<u64>(),
            (&raw mut *self).cast::<u64>(),
        );
        let mut i = 0;
        while i < size_of::<Pending>() / 8 {
            // SAFETY: both have this number of words, are aligned and have no gaps.
            unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
            i += 1;
        }
    }
}

/// Returns the ports of a slot's subsession. No two slots of a host have the same ports. The source
/// port counts the slots, within the ports that the kernel keeps free. The destination port is the
/// session's own, so that firewalls with rules for ports treat both alike. If there are more slots
/// than ports, the destination port of the others is a reserved one too.
#[inline(always)]
pub const fn ports(slot: u32, first: u16, count: u16, remote: u16) -> (u16, u16) {
    let count = if count == 0 { 1 } else { count };
    let (round, place) = (slot / count as u32, slot % count as u32);
    let source = first + place as u16;
    let destination = if round == 0 {
        remote
    } else {
        first + ((round - 1) % count as u32) as u16
    };
    (source, destination)
}
