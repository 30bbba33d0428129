//! Memory of a program for one packet.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use dysco_common::Offer;
use dysco_common::chain::{Hop, Payload, Pending};
use dysco_common::detour::{FromEnd, Spoken, Weighed};
use dysco_common::icmp::{Message, Quoted};
use dysco_common::probe::Arrival;

use super::flows::Flow;
use super::session;
use crate::packet::{Key, Packet};
use crate::write::change::Change;

/// Working memory of one run of a program. It is in a map and not on the stack, because the
/// stack is small and the verifier follows every value on it.
#[repr(C)]
pub(crate) struct Scratch {
    /// The packet.
    pub packet: Packet,
    /// The change to be written into the packet.
    pub change: Change,
    /// Lookup result of a segment with SYN: the slot of its five-tuple plus 1, or 0 if there is
    /// none; and not 0 if the five-tuple is that of the session's new path.
    known: [u32; 2],
    /// Name of the run that the program of the socket belongs to, whose SYN or answer leaves; 0 for none.
    pub run: u32,
    /// Name of the rule or run that gives the session of a SYN services before its first byte; 0 if
    /// none does.
    pub held: u32,
    /// Not 0 if the session may open without these services.
    pub optional: u32,
    /// The options that the packet offers, if it is a SYN.
    pub offer: Offer,
    /// The key for the lookup after translation.
    pub session: Key,
    /// The payload of a chain's SYN.
    pub payload: Payload,
    /// The record that is remembered of the SYN.
    pub pending: Pending,
    /// The next hop of the SYN.
    pub hop: Hop,
    /// The route of a packet of a session with a detour.
    pub route: FromEnd,
    /// What decides the headers of that packet.
    pub weighed: Weighed,
    /// The judgement about a packet of a handler's socket.
    pub spoken: Spoken,
    /// An ICMP packet with an error about a segment.
    pub icmp: Message,
    /// The segment that the error is about.
    pub quoted: Quoted,
    /// The report to user space about a packet that opens a path.
    pub arrival: Arrival,
}

/// Working memory per CPU: one element for each program that may run while another one has not
/// ended. A copy made on egress passes the program again, inside the first run.
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(3, 0);

impl Scratch {
    /// Returns the flow of the packet's five-tuple, as [`know`] has stored it. A lookup takes
    /// longer.
    #[inline(always)]
    pub(crate) fn known(&self) -> Option<Flow> {
        let [slot, new] = self.known;
        let slot = slot.checked_sub(1)?;
        let s = session(slot)?;
        Some(Flow {
            slot,
            new: new != 0,
            s,
        })
    }
}

/// Stores the flow of the five-tuple of a segment with SYN: the slot plus 1, or 0 for none.
#[inline(always)]
pub(crate) fn know(run: Run, slot: u32, new: bool) {
    if let Some(scratch) = scratch(run as u32) {
        scratch.known = [slot, new as u32];
    }
}

/// Run of a program, which has scratch memory of its own.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// A packet on its way out.
    Egress = 0,
    /// A copy of a packet on its way out.
    Copy = 1,
    /// A packet on its way in.
    Ingress = 2,
}

/// Returns the scratch memory of a [`Run`]. References obtained before must not be used any
/// longer.
#[inline(always)]
pub(crate) fn scratch(run: u32) -> Option<&'static mut Scratch> {
    // SAFETY: this CPU's own element; programs of the same `Run` do not nest
    // and are not preempted by each other.
    SCRATCH.get_ptr_mut(run).map(|p| unsafe { &mut *p })
}
