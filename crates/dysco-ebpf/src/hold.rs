//! Sessions that a rule gives services before their first byte. Until these are in, no data of the
//! session passes, and no end is offered a window, so that neither sends data in vain.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_cgroup_id;
use aya_ebpf::programs::TcContext;
use dysco_common::session::State;
use dysco_common::tcp::{ACK, RST};
use dysco_common::{Counter, EventKind, Session};

use crate::Verdict;
use crate::egress;
use crate::ingress;
use crate::maps::{self, Flow, RUNS, Run, Scratch, count};
use crate::packet::{Found, HEADERLESS, Key, load};

/// Offset of the window in the TCP header.
const WINDOW: usize = 14;
/// Offset of the checksum in the TCP header.
const CHECK: usize = 16;

/// Records that the program whose socket sends the SYN or SYN-ACK in the scratch memory of egress
/// runs with services. Returns false if the packet must be dropped. Data of a SYN would pass before
/// the services are in, and the stack repeats the SYN without data. An interface without an Ethernet
/// header leads to no handler.
#[inline(always)]
pub fn chosen(ctx: &TcContext, found: &Found) -> bool {
    let Some(scratch) = maps::scratch(Run::Egress as u32) else {
        return true;
    };
    if scratch.held == 0 {
        // SAFETY: the program's own context. A packet without a socket has the group 0.
        let group = unsafe { bpf_skb_cgroup_id(ctx.skb.skb) };
        // SAFETY: copied at once.
        scratch.held = unsafe { RUNS.get(&group) }.copied().unwrap_or(0);
    }
    let too_early = !found.seg.has(ACK) && found.seg.len != 0;
    let passes = scratch.held == 0 || !too_early && !HEADERLESS;
    if !passes {
        count(Counter::DroppedHeld);
    }
    passes
}

/// Offers no window in the answer to a SYN, if the session is held. Returns false if the packet
/// cannot be changed.
#[inline(always)]
pub fn answers(ctx: &TcContext, run: Run, found: &Found) -> bool {
    if !found.seg.has(ACK) {
        return true;
    }
    let known = maps::scratch(run as u32).and_then(|scratch| Scratch::known(scratch));
    match known {
        Some(Flow { s, .. }) if s.state == State::Held as u32 => closes_window(ctx, found),
        _ => true,
    }
}

/// Judges a packet of a held session that is not the answer to its SYN.
#[inline(always)]
pub fn judge(ctx: &TcContext, run: Run, key: &Key, found: &Found, slot: u32) -> Verdict {
    let loaded = maps::scratch(run as u32)
        .and_then(|scratch| load(ctx, key, found, &mut scratch.packet))
        .is_some();
    // SAFETY: the program's own context.
    if loaded && unsafe { dysco_hold(ctx.skb.skb, run as u32, slot) } != 0 {
        Verdict::Pass
    } else {
        Verdict::Drop
    }
}

/// Judges the packet in the scratch memory of a run. Returns 0 if it must be dropped. Exported: see
/// `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_hold(skb: *mut __sk_buff, run: u32, slot: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let (Some(Scratch { packet: p, .. }), Some(s)) = (maps::scratch(run), maps::session(slot))
    else {
        return 0;
    };
    let found = &Found {
        v6: p.key.is_v6(),
        data_offset: p.header.data_offset(),
        seg: p.seg,
    };
    if found.seg.span() != 0 {
        count(Counter::DroppedHeld);
        return 0;
    }
    if run == Run::Ingress as u32 {
        ingress::track(ctx, s, found, slot);
    } else {
        egress::track(ctx, s, found, slot);
    }
    if found.seg.has(RST) || closes_window(ctx, found) {
        return 1;
    }
    count(Counter::DroppedError);
    0
}

/// Makes an entry that has just been answered wait for its services.
#[inline(always)]
pub fn begin(s: &mut Session, slot: u32) {
    s.state = State::Held as u32;
    maps::tell(EventKind::Held, slot);
}

#[inline(always)]
fn closes_window(ctx: &TcContext, found: &Found) -> bool {
    let l4 = found.l4();
    // As it is in the packet: network order.
    let window = found.seg.window.to_be();
    window == 0
        || ctx
            .l4_csum_replace(l4 + CHECK, window as u64, 0, size_of::<u16>() as u64)
            .and_then(|()| ctx.store(l4 + WINDOW, &0u16, 0))
            .is_ok()
}
