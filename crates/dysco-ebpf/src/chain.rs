//! Sessions that are steered through a chain of hosts from their SYN on.
//!
//! Such a session has an entry for each subsession of this host, in the state
//! of a new path that nothing has to be translated on. A middlebox's host has
//! two, joined: what comes in by the one is given to the stack under the
//! session's own five-tuple, and what the stack then sends goes out by the
//! other. Only SYNs are looked at here, and their answers.

mod arriving;
mod crossing;
mod leaving;
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

/// The packet is none of a chain's.
pub const PASS: u64 = 0;
/// It is dropped, and counted.
pub const DROP: u64 = u64::MAX;
/// It goes to the stack, changed. On its way out, the index of the interface
/// that it leaves by stands for this.
const CHANGED: u64 = 1;
/// It goes on past the stack, changed.
pub const PAST: u64 = 2;

/// The scratch memory of what comes and of what goes.
const IN: u32 = Run::Ingress as u32;
const OUT: u32 = Run::Egress as u32;

/// What a payload says of when it was sent.
#[inline(always)]
fn now() -> u32 {
    // SAFETY: no arguments, no effects.
    ticks(unsafe { bpf_ktime_get_boot_ns() })
}

fn drop(why: Counter) -> u64 {
    count(why);
    DROP
}

/// A SYN, or the answer to one, on its way out; it lies in the scratch memory
/// of egress, and was read.
#[inline(always)]
pub fn leaves(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    let judged = unsafe { leaving::dysco_chain_out(ctx.skb.skb) };
    write(ctx, OUT, judged)
}

/// The same on its way in.
#[inline(always)]
pub fn arrives(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    let judged = unsafe { arriving::dysco_chain_in(ctx.skb.skb) };
    write(ctx, IN, judged)
}

/// Puts the change in. Here, where there is stack for it.
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
