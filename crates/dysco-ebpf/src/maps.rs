//! The maps. All are pinned by user space, so that sessions outlive it.

use crate::packet::Packet;
use crate::write::Change;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, Queue, RingBuf};
use dysco_common::rule::Rules;
use dysco_common::{Counter, Event, EventKind, FlowKey, FlowRef, Offer, Session};

/// Five-tuple on the wire, to session. User space sets the size.
#[map]
pub static FLOWS: HashMap<FlowKey, FlowRef> = HashMap::with_max_entries(1, 0);

/// The sessions. User space maps the memory and writes single words.
#[map]
pub static SESSIONS: Array<Session> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Slots of `SESSIONS` that are nobody's.
#[map]
pub static FREE: Queue<u32> = Queue::with_max_entries(1, 0);

/// What is tracked.
#[map]
pub static RULES: Array<Rules> = Array::with_max_entries(1, 0);

/// What happened to packets.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// What user space should hear of.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// What one run of a program works on. In map memory and not on the stack: the
/// stack is small, and the verifier follows every value that lies there.
#[repr(C)]
pub struct Scratch {
    /// The packet at hand.
    pub packet: Packet,
    /// What is put into it.
    pub change: Change,
    /// What it offers, if it is a SYN.
    pub offer: Offer,
}

/// Per CPU, one for each program that may run while another has not ended: a
/// copy made on egress goes through the program again, inside the first run.
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(3, 0);

/// Whose scratch memory.
#[derive(Clone, Copy)]
pub enum Run {
    /// A packet on its way out.
    Egress = 0,
    /// A copy of it.
    Copy = 1,
    /// A packet on its way in.
    Ingress = 2,
}

/// The scratch memory of a [`Run`]. What was borrowed of it before must not be
/// used any more.
#[inline(always)]
pub fn scratch(run: u32) -> Option<&'static mut Scratch> {
    // SAFETY: this CPU's own element; programs of the same `Run` do not nest
    // and are not preempted by each other.
    SCRATCH.get_ptr_mut(run).map(|p| unsafe { &mut *p })
}

/// Counts one.
#[inline(always)]
pub fn count(c: Counter) {
    if let Some(v) = COUNTERS.get_ptr_mut(c as u32) {
        // SAFETY: a valid element of a per-CPU map; nobody else writes it.
        unsafe { *v += 1 }
    }
}

/// Tells user space. A full ring loses the record: user space also looks by
/// itself from time to time.
#[inline(always)]
pub fn tell(kind: EventKind, slot: u32) {
    if let Some(mut r) = EVENTS.reserve::<Event>(0) {
        r.write(Event {
            kind: kind as u32,
            slot,
        });
        r.submit(0);
    }
}

/// The session of a slot.
#[inline(always)]
pub fn session(slot: u32) -> Option<&'static mut Session> {
    // SAFETY: a valid element of an array map. Programs on other CPUs and user
    // space may write words of it meanwhile; each word is whole by itself, and
    // the code is right with any order of them.
    SESSIONS.get_ptr_mut(slot).map(|p| unsafe { &mut *p })
}

/// Looks a five-tuple up.
#[inline(always)]
pub fn flow(key: &FlowKey) -> Option<FlowRef> {
    // SAFETY: copied at once; an element freed meanwhile is still readable
    // until the end of the RCU section that the program runs in.
    unsafe { FLOWS.get(key).copied() }
}

/// Takes a free slot and gives it the key. `replace` takes the key from an
/// ended session that still holds it.
#[inline(always)]
pub fn claim(key: &FlowKey, replace: bool) -> Option<u32> {
    let slot = FREE.pop().ok()??;
    let flags = if replace { 0 } else { BPF_NOEXIST as u64 };
    let value = FlowRef {
        slot,
        path: dysco_common::Path::Old as u32,
    };
    if FLOWS.insert(key, value, flags).is_err() {
        let _ = FREE.push(slot, 0);
        return None;
    }
    Some(slot)
}
