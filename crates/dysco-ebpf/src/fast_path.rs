//! Fast path for nearly all packets: those with the usual header, of a session that has one
//! path. The programs judge them in registers, by few instructions that are adjacent in memory.
//! Between two packets the stack has used the processor's caches, and fetching again costs more
//! than computing.
//!
//! One source serves both families. The compiler generates it twice, so that offsets are
//! constants. The functions return `None` for a packet that needs a closer look; nothing has
//! been changed then.

use aya_ebpf::programs::TcContext;
use dysco_common::Counter;
use dysco_common::session::{Session, State, translation};
use dysco_common::tcp::{FIN, MIN_HEADER, PSH, RST, SYN, Segment};

use crate::hop;
use crate::incoming::{self, arrived, received};
use crate::maps::{self, Flow, count, count_usual};
use crate::marks::takes_mark;
use crate::outgoing::{self, sent};
use crate::packet::{Direction, ETH_P_IP, ETH_P_IPV6, Found, Usual, protocol, usual};
use crate::verdict::Verdict;
use crate::write;

/// Judges a packet of the local end.
#[inline(always)]
pub(crate) fn egress(ctx: &TcContext) -> Option<Verdict> {
    match protocol(ctx)? {
        ETH_P_IP => leaves::<false>(ctx),
        ETH_P_IPV6 => leaves::<true>(ctx),
        _ => Some(Verdict::Pass),
    }
}

/// Judges a packet for the local end.
#[inline(always)]
pub(crate) fn ingress(ctx: &TcContext) -> Option<Verdict> {
    match protocol(ctx)? {
        ETH_P_IP => comes::<false>(ctx),
        ETH_P_IPV6 => comes::<true>(ctx),
        _ => Some(Verdict::Pass),
    }
}

#[inline(always)]
fn leaves<const V6: bool>(ctx: &TcContext) -> Option<Verdict> {
    let p = usual::<V6>(ctx, Direction::Out)?;
    if opens_or_ends(&p.found.seg) {
        return None;
    }
    let Some(Flow { new, s, .. }) = maps::hinted::<V6>(ctx, Direction::Out, &p.short) else {
        return maps::is_unused(&p.short).then_some(Verdict::Pass);
    };
    if s.life.fin_out | s.life.fin_in != 0 {
        return None;
    }
    if new {
        // Translated already, on its way to the interface.
        hop::learn(ctx, s);
        return Some(Verdict::Pass);
    }
    if s.state == State::Tracked as u32 && s.clamp_remote == 0 {
        usually_sent(ctx, s, &p);
        return Some(Verdict::Pass);
    }
    // Replies that go directly to the client are handled like those of a new path.
    if s.state != State::NewPath as u32 && s.state != State::Return as u32 {
        return None;
    }
    if s.relay != 0 && !takes_mark(ctx) || s.detours_before_path() {
        return None;
    }
    usually_sent(ctx, s, &p);
    Some(onto_new_path(ctx, s, &p.found))
}

#[inline(always)]
fn comes<const V6: bool>(ctx: &TcContext) -> Option<Verdict> {
    let p = usual::<V6>(ctx, Direction::In)?;
    if opens_or_ends(&p.found.seg) {
        return None;
    }
    let Some(Flow { new, s, .. }) = maps::hinted::<V6>(ctx, Direction::In, &p.short) else {
        return maps::is_unused(&p.short).then_some(Verdict::Pass);
    };
    if s.life.fin_out | s.life.fin_in != 0 {
        return None;
    }
    if !new && s.state == State::Tracked as u32 && s.clamp | s.clamp_remote == 0 {
        if pushes_nothing(&p.found.seg) {
            return None;
        }
        usually_arrived(ctx, s, &p);
        return Some(Verdict::Pass);
    }
    if !new && s.state == State::Return as u32 {
        usually_arrived(ctx, s, &p);
        return Some(Verdict::Pass);
    }
    let usual = s.relay == 0 && !pushes_nothing(&p.found.seg) && !s.detours_before_path();
    if !new || s.state != State::NewPath as u32 || !usual {
        return None;
    }
    if write::is_unanswered(ctx, s, V6) {
        count(Counter::DroppedMarked);
        return Some(Verdict::Drop);
    }
    Some(off_new_path(ctx, s, &p.found))
}

#[inline(always)]
pub(crate) fn opens_or_ends(seg: &Segment) -> bool {
    seg.flags & (SYN | FIN | RST) != 0
}

/// True if the segment has PSH and no data. No stack sends one: see `two_paths::opens_windows`.
#[inline(always)]
fn pushes_nothing(seg: &Segment) -> bool {
    seg.len == 0 && seg.has(PSH)
}

/// Takes in a segment of the local end with the usual header.
#[inline(always)]
fn usually_sent(ctx: &TcContext, s: &mut Session, p: &Usual) {
    sent(s, &p.found.seg);
    if p.found.data_offset > MIN_HEADER {
        outgoing::clocks(ctx, s, &p.found, p.tsval);
    }
}

/// Takes in a segment for the local end with the usual header.
#[inline(always)]
fn usually_arrived(ctx: &TcContext, s: &mut Session, p: &Usual) {
    arrived(s, &p.found.seg);
    if p.found.data_offset > MIN_HEADER {
        incoming::clocks(ctx, s, &p.found, p.tsval);
    }
}

/// Translates a packet onto the new path of a session that has no other.
#[inline(always)]
fn onto_new_path(ctx: &TcContext, s: &mut Session, found: &Found) -> Verdict {
    let edit = s.translation.outgoing(&found.seg, &s.path);
    let addresses = (&s.path.local, &s.path.remote);
    let clear_ect = s.translation.flags & translation::STRIP_ECN;
    if write::short(ctx, found, &edit, addresses, clear_ect, 0).is_err() {
        count(Counter::DroppedError);
        return Verdict::Drop;
    }
    s.new_out = s.new_out.wrapping_add(1);
    count_usual(Counter::Translated);
    hop::send(ctx, s)
}

/// Translates a packet of the new path of a session that has no other.
#[inline(always)]
fn off_new_path(ctx: &TcContext, s: &mut Session, found: &Found) -> Verdict {
    let edit = s.translation.incoming(&found.seg, &s.key);
    received(s, edit.seq.wrapping_add(found.seg.span()));
    s.new_in = s.new_in.wrapping_add(1);
    let clear_ect = s.translation.flags & translation::STRIP_ECN;
    let addresses = (&s.key.remote, &s.key.local);
    if write::short(ctx, found, &edit, addresses, clear_ect, 0).is_err() {
        count(Counter::DroppedUnparsed);
        return Verdict::Drop;
    }
    count_usual(Counter::Translated);
    Verdict::Changed
}
