//! Sessions that are steered through a chain of hosts from their SYN on.
//!
//! Such a session has an entry for each subsession of this host, in the state of a new path
//! without translation. A middlebox's host has two joined entries. A packet that arrives by one
//! of them is delivered to the stack under the session's own five-tuple. A packet that the stack
//! then sends leaves by the other. This module handles only SYNs and their answers.

mod arriving;
mod carried;
mod crossing;
mod leaving;
mod pending;
mod remembered;
mod rules;

use aya_ebpf::helpers::bpf_ktime_get_boot_ns;
use aya_ebpf::programs::TcContext;
use dysco_common::Counter;
use dysco_common::fresh::ticks;
use dysco_common::session::Session;

use crate::learn;
use crate::maps::{self, Run, Scratch, count};
use crate::packet::Direction;
use crate::write;

/// The packet does not belong to a chain.
pub const PASS: u64 = 0;
/// The packet is dropped, and counted.
pub const DROP: u64 = u64::MAX;
/// The packet goes to the stack, changed. On egress, the index of the outgoing interface is
/// returned instead.
const CHANGED: u64 = 1;
/// The packet continues past the stack, changed.
pub const PAST: u64 = 2;

/// Scratch memory of arriving and of leaving packets.
const IN: u32 = Run::Ingress as u32;
const OUT: u32 = Run::Egress as u32;

/// Current tick of the boot clock, which a payload carries as its time of sending.
#[inline(always)]
fn now() -> u32 {
    // SAFETY: no arguments, no effects.
    ticks(unsafe { bpf_ktime_get_boot_ns() })
}

fn drop(why: Counter) -> u64 {
    count(why);
    DROP
}

/// Judges a SYN or SYN-ACK on its way out. The packet is in the scratch memory of egress, and
/// its options have been read.
#[inline(always)]
pub fn leaves(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    let judged = unsafe { leaving::dysco_chain_out(ctx.skb.skb) };
    write(ctx, OUT, judged)
}

/// Judges a SYN or SYN-ACK on its way in. The packet is in the scratch memory of ingress, and
/// its options have been read.
#[inline(always)]
pub fn arrives(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    let judged = unsafe { arriving::dysco_chain_in(ctx.skb.skb) };
    write(ctx, IN, judged)
}

/// Applies the change to the packet. This function is separate because the stack has room here.
#[inline(always)]
fn write(ctx: &TcContext, run: u32, judged: u64) -> u64 {
    if judged == PASS || judged == DROP {
        return judged;
    }
    if write::apply(ctx, run) {
        judged
    } else {
        drop(Counter::DroppedError)
    }
}

/// Takes in the answer to a SYN.
#[inline(always)]
fn answered(s: &mut Session, slot: u32, run: u32) {
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
