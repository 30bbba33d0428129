//! The fates of a packet of a chain, and its scratch memory.

use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use dysco_common::Counter;
use dysco_common::fresh::ticks;
use dysco_common::session::Session;

use crate::learn;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::Direction;

/// The packet does not belong to a chain.
pub(crate) const PASS: u64 = 0;

/// The packet is dropped, and counted.
pub(crate) const DROP: u64 = u64::MAX;

/// The packet goes to the stack, changed. On egress, the index of the outgoing interface is
/// returned instead.
pub(super) const CHANGED: u64 = 1;

/// The packet continues past the stack, changed.
pub(crate) const PAST: u64 = 2;

/// Scratch memory of arriving and of leaving packets.
pub(super) const IN: u32 = Run::Ingress as u32;

pub(super) const OUT: u32 = Run::Egress as u32;

/// Current tick of the boot clock, which a payload carries as its time of sending.
#[inline(always)]
pub(super) fn now() -> u32 {
    // SAFETY: no arguments, no effects.
    ticks(unsafe { bpf_ktime_get_boot_ns() })
}

pub(super) fn drop(why: Counter) -> u64 {
    count(why);
    DROP
}

/// Takes in the answer to a SYN.
#[inline(always)]
pub(super) fn answered(s: &mut Session, slot: u32, run: u32) {
    let Some(Scratch {
        packet: p, offer, ..
    }) = maps::scratch(run)
    else {
        return;
    };
    let dir = if run == OUT {
        Direction::Out
    } else {
        Direction::In
    };
    if s.two.chained < 2 {
        learn::answered(s, &p.seg, offer, dir);
        s.two.chained = 2;
        maps::tell_opened(slot);
    }
}
