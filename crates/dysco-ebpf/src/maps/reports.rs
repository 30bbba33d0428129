//! Counters, and events for user space.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, PerCpuArray, RingBuf};
use dysco_common::{Counter, Event, EventKind};

/// Counters of packets, by their fate.
#[map]
pub(super) static COUNTERS: PerCpuArray<u64> =
    PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// Events for user space.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(RING, 0);

/// Not 0 while user space wants an event for every session that opens. Set by user space.
#[map]
static WATCHED: Array<u32> = Array::with_max_entries(1, 0);

/// Adds one to a counter, inline: for packets of a session that needs nothing else.
#[inline(always)]
pub(crate) fn count_usual(c: Counter) {
    count_one(c as u32);
}

/// Adds one to a counter.
#[inline(always)]
pub(crate) fn count(c: Counter) {
    dysco_count(c as u32);
}

#[inline(always)]
fn count_one(counter: u32) {
    if let Some(v) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: a valid element of a per-CPU map, which no other CPU writes.
        unsafe { *v += 1 }
    }
}

/// Exported: the kernel rewrites each map lookup, and the whole program with it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_count(counter: u32) -> u32 {
    count_one(counter);
    0
}

/// Bytes of `EVENTS`.
const RING: u32 = 1 << 20;

/// Reports an event to user space. A full ring loses the event: user space also checks by itself
/// from time to time.
#[inline(always)]
pub(crate) fn tell(kind: EventKind, slot: u32) {
    dysco_tell(kind as u32, slot, 0);
}

/// Reports an event that can wait until user space checks by itself. A wake-up costs more than
/// all other work at a session's opening.
#[inline(always)]
pub(crate) fn tell_later(kind: EventKind, slot: u32) {
    dysco_tell(kind as u32, slot, 1);
}

/// Writes an event. Exported, like [`dysco_count`]. `waits` is not 0 if the event can wait.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_tell(kind: u32, slot: u32, waits: u32) -> u32 {
    // Without flags the kernel wakes no reader while there are records that no reader was woken
    // for.
    let flags = if waits == 0 || EVENTS.query(BPF_RB_AVAIL_DATA as u64) > RING as u64 / 4 {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        BPF_RB_NO_WAKEUP as u64
    };
    if let Some(mut r) = EVENTS.reserve::<Event>(0) {
        r.write(Event { kind, slot });
        r.submit(flags);
    }
    0
}

/// Reports that a session has opened, if user space wants these events.
#[inline(always)]
pub(crate) fn tell_opened(slot: u32) {
    if WATCHED.get(0).is_some_and(|watched| *watched != 0) {
        tell_later(EventKind::Opened, slot);
    }
}
