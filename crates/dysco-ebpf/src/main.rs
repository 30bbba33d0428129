//! The TC programs of the data plane, and one for XDP. Each parses, looks up, translates and
//! counts. `dysco_common` decides the outcome, and the tests on the host run the same code.
#![no_std]
#![no_main]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "a key or value that is handed over by value is copied to the stack, which is small"
)]
#![feature(asm_experimental_arch)]

mod atomic;
mod chain;
#[cfg(not(feature = "headerless"))]
mod detour;
mod egress;
mod fast_path;
mod hold;
mod hop;
mod icmp;
mod incoming;
mod ingress;
mod learn;
mod maps;
mod marks;
mod outgoing;
mod packet;
mod packet_services;
mod paths;
mod probe;
mod receives;
mod relay;
mod second_path;
mod sockets;
mod steer;
mod transit;
mod verdict;
mod write;
mod xdp;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_INGRESS, TC_ACT_OK, TC_ACT_SHOT, TC_ACT_UNSPEC, xdp_action,
};
use aya_ebpf::helpers::generated::bpf_skb_change_head;
use aya_ebpf::helpers::{bpf_redirect, bpf_redirect_neigh};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use dysco_common::Counter;

use marks::is_marked;
use packet::{ETHERNET, HEADERLESS};
use verdict::Verdict;

fn act(skb: *const __sk_buff, v: Verdict) -> i32 {
    match v {
        // Both TCX and clsact interpret this action as `next`.
        Verdict::Pass => TC_ACT_UNSPEC,
        Verdict::Changed => TC_ACT_OK,
        Verdict::Redirect { ifindex } => redirect(skb, ifindex),
        // SAFETY: a readable field of the context, and no pointer is passed.
        Verdict::Past => unsafe { bpf_redirect((*skb).ifindex, 0) as i32 },
        // SAFETY: no pointer is passed.
        Verdict::Handler { ifindex } => unsafe { bpf_redirect(ifindex, 0) as i32 },
        // SAFETY: the same.
        Verdict::Deliver { ifindex } => unsafe {
            bpf_redirect(ifindex, BPF_F_INGRESS as u64) as i32
        },
        // The other program did not take the packet.
        #[cfg(not(feature = "headerless"))]
        Verdict::Detour => TC_ACT_SHOT,
        Verdict::Drop => TC_ACT_SHOT,
    }
}

/// Sends the packet to the neighbour of its destination. The kernel drops a packet without an
/// Ethernet header, and removes the header before it looks for the neighbour
/// (`__bpf_redirect_neigh`, net/core/filter.c). A packet without one is therefore given zeros.
#[inline(always)]
fn redirect(skb: *const __sk_buff, ifindex: u32) -> i32 {
    // SAFETY: the program's own context.
    let fails =
        HEADERLESS && unsafe { bpf_skb_change_head(skb.cast_mut(), ETHERNET as u32, 0) } != 0;
    if fails {
        maps::count(Counter::DroppedError);
        return TC_ACT_SHOT;
    }
    // SAFETY: no pointer is passed; the kernel does the look-up itself.
    unsafe { bpf_redirect_neigh(ifindex, core::ptr::null_mut(), 0, 0) as i32 }
}

/// Handles packets on their way out of this host.
#[classifier]
#[inline(always)]
pub(crate) fn dysco_egress(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    if !is_marked(&ctx)
        && let Some(verdict) = fast_path::egress(&ctx)
    {
        return act(skb, verdict);
    }
    act(skb, egress::run(ctx))
}

/// Handles packets on their way into this host.
#[classifier]
#[inline(always)]
pub(crate) fn dysco_ingress(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    if let Some(verdict) = fast_path::ingress(&ctx) {
        return act(skb, verdict);
    }
    act(skb, ingress::run(ctx))
}

/// Continues [`dysco_egress`] for a packet of a session with a detour.
#[cfg(not(feature = "headerless"))]
#[classifier]
#[inline(always)]
pub(crate) fn dysco_detour_out(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    act(skb, detour::leaves(&ctx))
}

/// Continues [`dysco_ingress`] for a packet of a session with a detour.
#[cfg(not(feature = "headerless"))]
#[classifier]
#[inline(always)]
pub(crate) fn dysco_detour_in(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    act(skb, detour::arrives(&ctx))
}

/// Handles packets of handlers' sockets, at the host's end of the link to their namespace.
#[cfg(not(feature = "headerless"))]
#[classifier]
#[inline(always)]
pub(crate) fn dysco_handler(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    act(skb, detour::comes(&ctx))
}

/// Runs the services of the packet plane on packets of the local end, before [`dysco_egress`].
#[classifier]
#[inline(always)]
pub(crate) fn dysco_serve_out(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    act(skb, packet_services::leaves(&ctx))
}

/// Runs the services of the packet plane on packets for the local end, before [`dysco_ingress`].
#[classifier]
#[inline(always)]
pub(crate) fn dysco_serve_in(ctx: TcContext) -> i32 {
    let skb = ctx.skb.skb;
    act(skb, packet_services::arrives(&ctx))
}

/// Handles frames that arrive, before the kernel has made packets of them.
#[xdp(frags)]
#[inline(always)]
pub(crate) fn dysco_xdp(ctx: XdpContext) -> u32 {
    match xdp::relay(&ctx) {
        Some(()) => xdp_action::XDP_TX,
        None => xdp_action::XDP_PASS,
    }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// The kernel's helpers require this licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";
