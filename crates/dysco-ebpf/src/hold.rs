//! Sessions that a rule gives services before their first byte. Until these are in, no data of the
//! session passes, and no end is offered a window, so that neither sends data in vain.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_cgroup_id;
use aya_ebpf::programs::TcContext;
use dysco_common::session::{State, is_established};
use dysco_common::tcp::{ACK, RST};
use dysco_common::{Counter, EventKind, Session, policy};

use crate::chain;
use crate::maps::{self, Flow, RUNS, Run, Scratch, count};
use crate::packet::{Found, HEADERLESS, Key, load};
use crate::verdict::Verdict;
use crate::{incoming, outgoing};

/// Offset of the window in the TCP header.
const WINDOW: usize = 14;
/// Offset of the checksum in the TCP header.
const CHECK: usize = 16;

/// Records whether the program whose socket sends the SYN or SYN-ACK in the scratch memory of egress
/// runs with services. Exported: see `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn dysco_find_run(skb: *mut __sk_buff) -> u32 {
    let Some(scratch) = maps::scratch(Run::Egress as u32) else {
        return 0;
    };
    // SAFETY: the program's own context. A packet without a socket has the group 0.
    let group = unsafe { bpf_skb_cgroup_id(skb) };
    // SAFETY: copied at once.
    scratch.run = unsafe { RUNS.get(&group) }.copied().unwrap_or(0);
    scratch.run
}

/// Drops and reports a SYN, or an answer to one: a rule, or a chain of hosts, would take the place of
/// the services of its run. `rule` is 0 for a chain that another host has chosen.
pub(crate) fn contested(run: u32, rule: u32) -> u64 {
    count(Counter::DroppedHeld);
    maps::tell(EventKind::Contested, policy::Contested::word(run, rule));
    chain::DROP
}

/// Gives the SYN or SYN-ACK in the scratch memory of egress the services of its run. Returns false if
/// the packet must be dropped. Data of a SYN would pass before the services are in, and the stack
/// repeats the SYN without data. An interface without an Ethernet header leads to no handler.
#[inline(always)]
pub(crate) fn chosen(found: &Found) -> bool {
    let Some(scratch) = maps::scratch(Run::Egress as u32) else {
        return true;
    };
    // No rule has given it others: see `contested`.
    if scratch.run != 0 {
        (scratch.held, scratch.optional) = (scratch.run, 0);
    }
    let too_early = !found.seg.has(ACK) && found.seg.len != 0;
    let passes = !policy::holds(scratch.held) || !too_early && !HEADERLESS;
    if !passes {
        count(Counter::DroppedHeld);
    }
    passes
}

/// Offers no window in the answer to a SYN, if the session is held. Returns false if the packet
/// cannot be changed.
#[inline(always)]
pub(crate) fn answers(ctx: &TcContext, run: Run, found: &Found) -> bool {
    if !found.seg.has(ACK) {
        return true;
    }
    let known = maps::scratch(run as u32).and_then(|scratch| Scratch::known(scratch));
    match known {
        Some(Flow { s, .. }) if s.state == State::Held as u32 => {
            // SAFETY: the program's own context.
            (unsafe { dysco_close_window(ctx.skb.skb, run as u32) }) != 0
        }
        _ => true,
    }
}

/// Judges a packet of a held session that is not the answer to its SYN.
#[inline(always)]
pub(crate) fn judge(ctx: &TcContext, run: Run, key: &Key, found: &Found, slot: u32) -> Verdict {
    if found.seg.span() != 0 {
        count(Counter::DroppedHeld);
        return Verdict::Drop;
    }
    let loaded = maps::scratch(run as u32)
        .and_then(|scratch| load(ctx, key, found, &mut scratch.packet))
        .is_some();
    let skb = ctx.skb.skb;
    let learnt = loaded
        && match run {
            // SAFETY: the program's own context.
            Run::Ingress => unsafe { dysco_held_in(skb, slot) },
            // SAFETY: the same.
            _ => unsafe { dysco_held_out(skb, slot) },
        } != 0;
    if !learnt {
        return Verdict::Drop;
    }
    // SAFETY: the same.
    if found.seg.has(RST) || unsafe { dysco_close_window(skb, run as u32) } != 0 {
        return Verdict::Pass;
    }
    count(Counter::DroppedError);
    Verdict::Drop
}

/// Takes in an acknowledgement or a reset of the local end. Exported, as are the next two, for a
/// stack frame of its own (see also `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_held_out(skb: *mut __sk_buff, slot: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let (Some(Scratch { packet: p, .. }), Some(s)) =
        (maps::scratch(Run::Egress as u32), maps::session(slot))
    else {
        return 0;
    };
    let found = p.found();
    outgoing::track(ctx, s, &found, slot);
    answered(s, slot);
    1
}

/// The same, of the remote end.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_held_in(skb: *mut __sk_buff, slot: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let (Some(Scratch { packet: p, .. }), Some(s)) =
        (maps::scratch(Run::Ingress as u32), maps::session(slot))
    else {
        return 0;
    };
    let found = p.found();
    incoming::track(ctx, s, &found, slot);
    answered(s, slot);
    1
}

/// Tells user space that the handshake is complete. The echo of the last acknowledgement has told the
/// clock of the SYN-ACK (`outgoing::clocks`): without it an end would not believe a socket of the handler.
#[inline(always)]
fn answered(s: &Session, slot: u32) {
    if is_established(s) {
        maps::tell(EventKind::Unserved, slot);
    }
}

/// Offers no window in the packet in the scratch memory of a run. Returns 0 on failure.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_close_window(skb: *mut __sk_buff, run: u32) -> u32 {
    let ctx = &TcContext::new(skb);
    let Some(Scratch { packet: p, .. }) = maps::scratch(run) else {
        return 0;
    };
    closes_window(ctx, &p.found()) as u32
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
