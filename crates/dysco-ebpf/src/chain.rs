//! Sessions that are steered through a chain of hosts from their SYN on.
//!
//! Such a session has an entry for each subsession of this host, in the state of a new path
//! without translation. A middlebox's host has two joined entries. A packet that arrives by one
//! of them is delivered to the stack under the session's own five-tuple. A packet that the stack
//! then sends leaves by the other. This module handles only SYNs and their answers.

mod arriving;
mod carried;
mod crossing;
mod fate;
mod leaving;
mod pending;
mod remembered;
mod rules;

use aya_ebpf::programs::TcContext;
use dysco_common::Counter;

use crate::write;
use fate::{IN, OUT, drop};

pub(crate) use fate::{DROP, PASS, PAST};

/// Judges a SYN or SYN-ACK on its way out. The packet is in the scratch memory of egress, and
/// its options have been read.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    let judged = unsafe { leaving::dysco_chain_out(ctx.skb.skb) };
    write(ctx, OUT, judged)
}

/// Judges a SYN or SYN-ACK on its way in. The packet is in the scratch memory of ingress, and
/// its options have been read.
#[inline(always)]
pub(crate) fn arrives(ctx: &TcContext) -> u64 {
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
