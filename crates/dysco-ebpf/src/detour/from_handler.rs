//! Packets of a handler's sockets.

use aya_ebpf::programs::TcContext;
use dysco_common::detour::{End, admit, highest, listen, speak};
use dysco_common::session::life;
use dysco_common::tcp::{FIN, MIN_HEADER, RST};
use dysco_common::{Counter, EventKind, mark};

use super::change::{DIRECT, DROP, closes, cut_if_due, parts, prepare, scale_of};
use crate::atomic;
use crate::maps::{self, Flow, Run, Scratch, count};
use crate::marks::set_mark;
use crate::packet::{Direction, Key, find, load};
use crate::verdict::{Verdict, dropped};
use crate::write;

/// Judges a packet that a handler's socket sends to its end.
#[inline(always)]
pub(crate) fn comes(ctx: &TcContext) -> Verdict {
    let mut key = Key::default();
    let key = &mut key;
    // The near socket has the address of the remote end, and the far one that of the local end.
    let mut run = find(ctx, Direction::In, key).map(|found| (End::Local, found));
    let mut flow = maps::find(key);
    if flow.is_none() {
        run = find(ctx, Direction::Out, key).map(|found| (End::Remote, found));
        flow = maps::find(key);
    }
    let (Some((to, found)), Some(Flow { s, slot, .. })) = (run, flow) else {
        return Verdict::Drop;
    };
    // The detour may end meanwhile, and the path remains.
    let by_path = s.detours_before_path();
    // The namespace of another handler has no part in this session.
    // SAFETY: the kernel's `__sk_buff` is valid while the program runs.
    let link = unsafe { (*ctx.skb.skb).ifindex };
    if maps::detour(slot).is_none_or(|d| d.handler != link) {
        return dropped(Counter::DroppedHandler);
    }
    let Some(Scratch { packet: p, .. }) = maps::scratch(Run::Ingress as u32) else {
        return Verdict::Drop;
    };
    if load(ctx, key, &found, p).is_none() {
        return Verdict::Drop;
    }
    let remote = (to == End::Remote) as u32;
    let passes = dysco_admit(slot, remote) != DROP
        && dysco_listen(slot, remote) != DROP
        && dysco_speak(slot, remote) != DROP;
    if !passes {
        return dropped(Counter::DroppedHandler);
    }
    if found.seg.has(RST) && s.life.reset == 0 {
        s.life.reset = life::SEEN;
        maps::tell(EventKind::Reset, slot);
    }
    if !write::apply(ctx, Run::Ingress as u32) {
        return dropped(Counter::DroppedError);
    }
    count(Counter::FromHandler);
    forward(ctx, slot, to, by_path)
}

/// Sends a translated packet to its end. `by_path` is true if the detour precedes the session's path.
#[inline(always)]
fn forward(ctx: &TcContext, slot: u32, to: End, by_path: bool) -> Verdict {
    let Some(d) = maps::detour(slot) else {
        return Verdict::Drop;
    };
    if to == End::Remote {
        set_mark(
            ctx,
            if by_path {
                mark::DETOURED
            } else {
                mark::RELAYED
            },
        );
        return Verdict::Redirect {
            ifindex: d.interface,
        };
    }
    set_mark(ctx, mark::DELIVERED);
    let [a, b, e, f, g, h, ..] = d.address;
    if ctx.store(0, &[a, b, e, f, g, h], 0).is_err() {
        return dropped(Counter::DroppedError);
    }
    Verdict::Deliver {
        ifindex: d.interface,
    }
}

/// Returns the end that a packet of a handler's socket goes to.
#[inline(always)]
fn receiver(remote: u32) -> End {
    if remote != 0 { End::Remote } else { End::Local }
}

/// Decides whether the end may get bytes of the packet in the scratch memory of ingress. Returns
/// [`DROP`] if the packet must be dropped. Exported: see `from_end`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_admit(slot: u32, remote: u32) -> u32 {
    let Some((scratch, s, d)) = parts(Run::Ingress as u32, slot) else {
        return DROP;
    };
    let Scratch {
        packet: p, spoken, ..
    } = scratch;
    let to = receiver(remote);
    let elsewhere = d.paired != 0;
    let highest = highest(s, d, to.other());
    let (_, way) = d.ways(to);
    if p.seg.span() > 0 && !cut_if_due(way, highest, elsewhere) {
        return DROP;
    }
    if admit(d, to, &p.seg, spoken) {
        DIRECT
    } else {
        DROP
    }
}

/// Takes the acknowledgement of that packet. Exported: see `from_end`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_listen(slot: u32, remote: u32) -> u32 {
    let Some((scratch, s, d)) = parts(Run::Ingress as u32, slot) else {
        return DROP;
    };
    let Scratch {
        packet: p, spoken, ..
    } = scratch;
    let to = receiver(remote);
    let was_done = d.out.is_done() as u32 + d.back.is_done() as u32;
    listen(d, to, &p.seg, scale_of(s, to.other()), spoken);
    if d.out.is_done() as u32 + d.back.is_done() as u32 != was_done {
        maps::tell(EventKind::Rerouted, slot);
    }
    DIRECT
}

/// Prepares the change of that packet. Exported: see `from_end`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_speak(slot: u32, remote: u32) -> u32 {
    let Some((scratch, s, d)) = parts(Run::Ingress as u32, slot) else {
        return DROP;
    };
    let Scratch {
        packet: p,
        change: c,
        spoken,
        ..
    } = scratch;
    let to = receiver(remote);
    let clock = match to {
        End::Remote => s.tsval_out,
        End::Local => s.tsval_in,
    };
    // The end applies the scale of the other end to the windows that it receives.
    let scale = scale_of(s, to.other());
    let Some(out) = speak(d, to, &p.seg, scale, spoken) else {
        return DROP;
    };
    if d.paired != 0 {
        // What the other end sends comes by this socket alone.
        let _ = atomic::raise(&mut s.rcv_max, d.back.sent);
        if p.seg.has(FIN) {
            s.life.fin_in |= life::SEEN;
        }
        closes(s, slot);
    }
    // Packets to the local end have the remote end as their source.
    prepare(p.seg.flags, &p.key, to.other(), &out, c);
    if p.header.data_offset() > MIN_HEADER && p.header.starts_with_timestamps() {
        c.edit.tsval_add = clock.wrapping_sub(p.header.timestamps().0);
    }
    DIRECT
}
