//! Sessions whose bytes take a detour through a handler process. `common::detour` decides; the
//! handler's sockets are in a namespace behind a link of Ethernet, whose end on this host runs
//! [`comes`].

mod change;
mod from_end;
mod from_handler;

use aya_ebpf::programs::TcContext;
use dysco_common::detour::HANDLER_ADDRESS;
use dysco_common::seq::before;
use dysco_common::{Counter, mark};

use crate::maps::{self, Flow, Run, Scratch, count};
use crate::marks::{mark_of, set_mark};
use crate::outgoing;
use crate::packet::{Direction, Found, Key, find, load};
use crate::verdict::{Verdict, dropped};
use crate::write;
use change::{DROP, HANDLER, UNCHANGED};
use from_end::{
    dysco_detour, dysco_detour_copy, dysco_headers, dysco_hear, dysco_route, dysco_window,
};

pub(crate) use from_handler::comes;

/// Judges a packet of the local end.
#[inline(always)]
pub(crate) fn leaves(ctx: &TcContext) -> Verdict {
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(ctx, Direction::Out, key) else {
        return Verdict::Drop;
    };
    let Some(Flow { s, slot, .. }) = maps::find(key) else {
        return Verdict::Drop;
    };
    // The detour may end meanwhile, and the path remains.
    let by_path = s.detours_before_path();
    if mark_of(ctx) == mark::COPY {
        return copy_leaves(ctx, key, &found, slot, by_path);
    }
    if outgoing::take(ctx, Run::Egress, key, &found).is_none() {
        return Verdict::Drop;
    }
    if let Some((tsval, tsecr)) = found.timestamps(ctx) {
        s.tsval_out = tsval;
        // A path does not keep the remote end's clock. The local end has it.
        if by_path && (s.tsval_in == 0 || !before(tsecr, s.tsval_in)) {
            s.tsval_in = tsecr;
        }
    }
    let fate = judge(ctx, slot, Run::Egress);
    if fate != DROP && fate != UNCHANGED && !write::apply(ctx, Run::Egress as u32) {
        return dropped(Counter::DroppedError);
    }
    verdict(ctx, fate, slot, directly(ctx, by_path))
}

/// Judges a packet of the remote end.
#[inline(always)]
pub(crate) fn arrives(ctx: &TcContext) -> Verdict {
    let run = Run::Ingress as u32;
    let mut key = Key::default();
    let key = &mut key;
    let Some(found) = find(ctx, Direction::In, key) else {
        return Verdict::Drop;
    };
    let Some(Flow { s, slot, .. }) = maps::find(key) else {
        return Verdict::Drop;
    };
    let by_path = s.detours_before_path();
    let mark = mark_of(ctx);
    if mark == mark::DELIVERED {
        set_mark(ctx, 0);
        return Verdict::Pass;
    }
    let Some(Scratch { packet: p, .. }) = maps::scratch(run) else {
        return Verdict::Drop;
    };
    if load(ctx, key, &found, p).is_none() {
        return Verdict::Drop;
    }
    let fate = if mark == mark::COPY_IN {
        // SAFETY: the program's own context.
        unsafe { dysco_detour_copy(ctx.skb.skb, run) }
    } else {
        if p.header.starts_with_timestamps() {
            s.tsval_in = p.header.timestamps().0;
        }
        judge(ctx, slot, Run::Ingress)
    };
    if fate != DROP && fate != UNCHANGED && !write::apply(ctx, run) {
        return dropped(Counter::DroppedError);
    }
    let direct = if fate == UNCHANGED && !by_path {
        Verdict::Pass
    } else {
        Verdict::Changed
    };
    verdict(ctx, fate, slot, direct)
}

/// Sends a copy of a packet of the local end, on its second pass.
#[inline(always)]
fn copy_leaves(ctx: &TcContext, key: &Key, found: &Found, slot: u32, by_path: bool) -> Verdict {
    if outgoing::take(ctx, Run::Copy, key, found).is_none() {
        return Verdict::Drop;
    }
    // SAFETY: the program's own context.
    let fate = unsafe { dysco_detour_copy(ctx.skb.skb, Run::Copy as u32) };
    if fate == DROP || !write::apply(ctx, Run::Copy as u32) {
        return Verdict::Drop;
    }
    verdict(ctx, fate, slot, directly(ctx, by_path))
}

/// Lets a packet of the local end leave to the other end: by the session's path, if it has one.
#[inline(always)]
fn directly(ctx: &TcContext, by_path: bool) -> Verdict {
    if !by_path {
        return Verdict::Pass;
    }
    set_mark(ctx, mark::DETOURED);
    Verdict::Past
}

#[inline(always)]
fn judge(ctx: &TcContext, slot: u32, run: Run) -> u32 {
    let run = run as u32;
    if dysco_hear(slot, run) == 0 || dysco_route(slot, run) == 0 {
        return DROP;
    }
    if dysco_headers(slot, run) == 0 || dysco_window(slot, run) == 0 {
        return DROP;
    }
    // SAFETY: the program's own context.
    unsafe { dysco_detour(ctx.skb.skb, slot, run) }
}

#[inline(always)]
fn verdict(ctx: &TcContext, fate: u32, slot: u32, direct: Verdict) -> Verdict {
    if fate == DROP {
        return Verdict::Drop;
    }
    if fate != HANDLER {
        return direct;
    }
    let Some(d) = maps::detour(slot) else {
        return Verdict::Drop;
    };
    if ctx.store(0, &HANDLER_ADDRESS, 0).is_err() {
        return dropped(Counter::DroppedError);
    }
    count(Counter::ToHandler);
    Verdict::Handler { ifindex: d.handler }
}
