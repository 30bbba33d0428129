//! Marks of packets that pass the programs a second time.

use aya_ebpf::programs::TcContext;
use dysco_common::mark;

#[inline(always)]
pub(crate) fn mark_of(ctx: &TcContext) -> u32 {
    // SAFETY: a readable field of the context.
    unsafe { (*ctx.skb.skb).mark }
}

/// True if the packet has a mark of the programs, and so passes the program a second time.
#[inline(always)]
pub(crate) fn is_marked(ctx: &TcContext) -> bool {
    matches!(
        mark_of(ctx),
        mark::COPY | mark::DETOURED | mark::RELAYED | mark::RELAYED_TEACHES | mark::UNROUTED
    )
}

#[inline(always)]
pub(crate) fn set_mark(ctx: &TcContext, mark: u32) {
    // SAFETY: a field of the context that the verifier lets a classifier write.
    unsafe { (*ctx.skb.skb).mark = mark };
}

/// True if this host has relayed the packet. Removes the mark.
#[inline(always)]
pub(crate) fn takes_mark(ctx: &TcContext) -> bool {
    // SAFETY: a field of the context that the verifier lets a classifier read and
    // write.
    let skb = unsafe { &mut *ctx.skb.skb };
    if skb.mark != mark::STEERED {
        return false;
    }
    skb.mark = 0;
    true
}
