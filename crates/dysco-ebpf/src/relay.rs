//! Sessions that this host relays: a proxy here had them, and both ends are elsewhere. Each of
//! the two entries acts for its remote end. A packet of that end arrives here and leaves by the
//! joined entry. The old path is this host's stack, until the proxy's sockets are closed.

mod end;
mod fate;
mod stack;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::session::{Session, State};
use dysco_common::tcp::{Edit, FIN, RST, Segment};
use dysco_common::{Counter, mark};

use crate::hop;
use crate::incoming;
use crate::maps::{self, Flow, Run, Scratch, count, count_usual};
use crate::marks::set_mark;
use crate::packet::{Direction, ETH_P_IP, ETH_P_IPV6, Found, Packet, protocol, usual};
use crate::verdict::Verdict;
use crate::write;
use end::{from_end, onto_new_path, take_in};
use fate::{leave, not, to_leave};
use stack::header_copy;

pub(crate) use end::{is_of_new_path, usual_taken_in};
pub(crate) use fate::{DROP, PASS, TO_OTHER, TO_STACK, offers, other};
pub(crate) use stack::to_end;

/// Lets a relayed packet leave unchanged.
#[inline(always)]
pub(crate) fn relayed(ctx: &TcContext, mark: u32) -> Verdict {
    set_mark(ctx, 0);
    if mark == mark::RELAYED_TEACHES {
        // SAFETY: the program's own context.
        unsafe { dysco_teach(ctx.skb.skb) };
    }
    Verdict::Pass
}

/// Stores the neighbour that the kernel has chosen for a relayed packet. Exported: see
/// [`dysco_relay`].
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_teach(skb: *mut __sk_buff) -> u32 {
    let ctx = &TcContext::new(skb);
    let taught = match protocol(ctx) {
        Some(ETH_P_IP) => teach::<false>(ctx),
        Some(ETH_P_IPV6) => teach::<true>(ctx),
        _ => None,
    };
    taught.is_some() as u32
}

#[inline(always)]
fn teach<const V6: bool>(ctx: &TcContext) -> Option<()> {
    let p = usual::<V6>(ctx, Direction::Out)?;
    // The packet has the five-tuple of the end that it goes to.
    let Flow { s: o, .. } = maps::hinted::<V6>(ctx, Direction::Out, &p.short)?;
    let (s, _) = other(o)?;
    if s.state == State::Relay as u32 {
        hop::teach(ctx, s);
    }
    Some(())
}

/// Relays a packet of an end that has only one path. Returns false if the packet goes nowhere.
#[inline(always)]
pub(crate) fn relay(ctx: &TcContext, s: &mut Session, found: &Found) -> bool {
    let seg = &found.seg;
    let numbers = (seg.seq as u64) << 32 | seg.ack as u64;
    let v6 = found.v6 as u64;
    let rest = (seg.window as u64) << 16 | (seg.flags as u64) << 8 | v6;
    relay_short(
        ctx,
        s,
        numbers,
        (seg.len as u64) << 32 | rest,
        found.data_offset,
    )
}

/// Relays a packet, in a kernel function with a stack frame of its own, which counts in addition
/// to the caller's. Therefore no argument is a reference to the stack, and the change is
/// prepared in map memory.
#[inline(never)]
fn relay_short(
    ctx: &TcContext,
    s: &mut Session,
    numbers: u64,
    rest: u64,
    data_offset: usize,
) -> bool {
    let found = &Found {
        v6: rest & 1 != 0,
        data_offset,
        seg: Segment {
            seq: (numbers >> 32) as u32,
            ack: numbers as u32,
            len: (rest >> 32) as u32,
            window: (rest >> 16) as u16,
            flags: (rest >> 8) as u8,
        },
    };
    let Some(Scratch { change: c, .. }) = maps::scratch(Run::Ingress as u32) else {
        return false;
    };
    take_in(s, &found.seg);
    onto_new_path(s, s.translation.outgoing(&found.seg, &s.path), c);
    if !leave(ctx, s, found.v6) {
        return false;
    }
    let addresses = (&c.src, &c.dst);
    if write::short(ctx, found, &c.edit, addresses, c.clear_ect, 0).is_err() {
        count(Counter::DroppedError);
        return false;
    }
    count_usual(Counter::Relayed);
    true
}

/// Judges a packet of an end that is in the scratch memory of ingress.
#[inline(always)]
pub(crate) fn decide(ctx: &TcContext) -> u64 {
    // SAFETY: the program's own context.
    unsafe { dysco_relay(ctx.skb.skb) }
}

/// Exported, so that the verifier checks it once (see `learn::dysco_offer`), with a stack frame
/// of its own.
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_relay(skb: *mut __sk_buff) -> u64 {
    let mut ctx = TcContext::new(skb);
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(Run::Ingress as u32)
    else {
        return DROP;
    };
    let Some(Flow { s, slot: own, .. }) = maps::find(&p.key) else {
        return DROP;
    };
    if s.state == State::Relay as u32 {
        take_in(s, &p.seg);
        onto_new_path(s, s.translation.outgoing(&p.seg, &s.path), c);
        return to_leave(&ctx, s, p.key.is_v6());
    }
    let Some((o, slot)) = other(s) else {
        to_stack_alone(s, p, own);
        return PASS;
    };
    // SAFETY: a readable field of the context.
    if unsafe { (*skb).mark } == mark::COPY_IN {
        return header_copy(&ctx, s, o, p, c);
    }
    from_end(&mut ctx, s, o, p, c, slot)
}

/// Takes in a segment of the end as if the session were tracked: the joined entry has been taken
/// back. This one follows in a moment, or when a daemon starts again. A later cut would take
/// bytes that are not counted here for bytes of the new path, and would not wait until the proxy
/// has passed them on.
#[inline(always)]
fn to_stack_alone(s: &mut Session, p: &Packet, slot: u32) {
    let seg = &p.seg;
    if seg.flags & (FIN | RST) != 0 {
        incoming::ends(s, seg, seg.seq, slot);
    }
    if !seg.has(RST) {
        incoming::arrived(s, seg);
    }
}

/// Relays a packet that has arrived for this entry by a path of its session. The path has
/// changed it to `seg` by `first`.
#[inline(always)]
pub(crate) fn onward(
    ctx: &TcContext,
    s: &mut Session,
    seg: &Segment,
    first: &Edit,
    run: u32,
) -> u64 {
    let Some(Scratch {
        packet: p,
        change: c,
        ..
    }) = maps::scratch(run)
    else {
        return DROP;
    };
    if write::is_unanswered(ctx, s, p.key.is_v6()) {
        return not(Counter::DroppedMarked);
    }
    take_in(s, seg);
    onto_new_path(s, s.translation.outgoing(seg, &s.path).after(first), c);
    to_leave(ctx, s, p.key.is_v6())
}
