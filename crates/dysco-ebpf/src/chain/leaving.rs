//! SYNs that leave, and answers to them: rules, subsessions and payloads.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::chain::{self, Pending, path_number};
use dysco_common::session::{Alias, Session, State};
use dysco_common::tcp::ACK;
use dysco_common::{Addr, Counter, EventKind};

use super::crossing::{self, dysco_chain_crosses};
use super::fate::{DROP, OUT, PASS, answered, drop, now};
use super::pending::{dysco_chain_own_pending, dysco_chain_pending};
use super::remembered;
use super::rules::{NO_RULE, REFUSED, dysco_chain_choose, dysco_chain_rule};
use crate::maps::{self, Flow, HOPS, Scratch, count};
use crate::packet::{Direction, Packet};
use crate::write::{self, Change};
use crate::{hold, learn, transit};

/// Exported, as are all functions below whose name begins with that of the program, so that the
/// verifier checks each of them separately and once (see `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_out(skb: *mut __sk_buff) -> u64 {
    let Some(scratch) = maps::scratch(OUT) else {
        return PASS;
    };
    let flow = scratch.known();
    let Scratch { packet: p, run, .. } = scratch;
    let opens = !p.seg.has(ACK);
    if let Some(Flow { slot, s, .. }) = flow
        && s.two.chained != 0
        && learn::would_usurp(s)
    {
        if *run != 0 {
            return hold::contested(*run, 0);
        }
        if !opens && s.state == State::Passing as u32 {
            return dysco_chain_answered(transit::dysco_answers(slot));
        }
        if !opens {
            return dysco_chain_answered(slot);
        }
        if s.state == State::Passing as u32 {
            // SAFETY: the program's own context.
            return unsafe { again(skb, slot) };
        }
        if s.two.chained > 1 {
            return drop(Counter::DroppedSyn);
        }
        if s.life.opened_here != 0 {
            // SAFETY: the program's own context.
            return unsafe { repeated(skb, slot, s, p) };
        }
        // Both ends open the session at once.
        // SAFETY: the program's own context.
        match unsafe { dysco_chain_crosses(skb, slot) } {
            crossing::ALONE => return dysco_chain_plain(slot),
            crossing::YIELDS => {}
            _ => return drop(Counter::DroppedSyn),
        }
    } else if !opens {
        return PASS;
    }
    let mut rule = NO_RULE;
    // SAFETY: the program's own context.
    if unsafe { dysco_chain_pending(skb) } == 0 {
        // SAFETY: the program's own context.
        rule = unsafe { dysco_chain_rule(skb, OUT) };
        if rule != NO_RULE {
            rule = dysco_chain_choose(OUT, rule);
        }
        if rule == NO_RULE {
            return PASS;
        }
        if rule == REFUSED {
            return DROP;
        }
    }
    if dysco_chain_hop(OUT) == 0 {
        return without_hop();
    }
    match dysco_chain_open(rule) {
        0 => DROP,
        // SAFETY: the program's own context.
        next => unsafe { dysco_chain_send(skb, next - 1) },
    }
}

/// Sends a retransmitted SYN on its subsession. Drops it if its number differs.
#[inline(always)]
unsafe fn repeated(skb: *mut __sk_buff, slot: u32, s: &Session, p: &Packet) -> u64 {
    if s.local.isn != p.seg.seq {
        return drop(Counter::DroppedSyn);
    }
    if dysco_chain_own_pending(slot) == 0 {
        return drop(Counter::ChainForgotten);
    }
    if dysco_chain_hop(OUT) == 0 {
        return without_hop();
    }
    // SAFETY: the caller's.
    unsafe { dysco_chain_send(skb, slot) }
}

/// Sends the SYN of another path of a session that passes here.
#[inline(always)]
unsafe fn again(skb: *mut __sk_buff, first: u32) -> u64 {
    // SAFETY: the caller's.
    if unsafe { dysco_chain_pending(skb) } == 0 {
        return drop(Counter::ChainForgotten);
    }
    if dysco_chain_hop(OUT) == 0 {
        return without_hop();
    }
    match dysco_chain_beside(first) {
        0 => DROP,
        // SAFETY: the caller's.
        next => unsafe { dysco_chain_send(skb, next - 1) },
    }
}

/// Sends the answer to a SYN back by the entry that the SYN came by.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_answered(slot: u32) -> u64 {
    let Some(s) = maps::session(slot) else {
        return DROP;
    };
    answered(s, slot, OUT);
    dysco_chain_plain(slot)
}

/// Judges a SYN whose next host has no known agent.
#[inline(always)]
fn without_hop() -> u64 {
    let Some(Scratch { pending, .. }) = maps::scratch(OUT) else {
        return DROP;
    };
    if pending.last.is_live() {
        // To the server's stack this SYN would be a stray.
        return drop(Counter::ChainRefused);
    }
    if let Some(left) = pending.left.checked_sub(1) {
        maps::tell(EventKind::Stranger, dysco_chain_whither(left));
    }
    if pending.chain.len == 0 {
        // The chain ends here: the server receives the session's own SYN.
        count(Counter::ChainRestored);
        return PASS;
    }
    drop(Counter::ChainRefused)
}

/// Returns the slot that says where the session of `left` continues: `left` itself, or a new
/// slot if a NAT of this host has chosen the server.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_whither(left: u32) -> u32 {
    let Some(scratch) = maps::scratch(OUT) else {
        return left;
    };
    let known = scratch.known();
    let Scratch {
        packet: p,
        offer,
        pending,
        ..
    } = scratch;
    if pending.session.remote == p.key.whole.remote {
        return left;
    }
    if let Some(Flow { slot, s, .. }) = &known
        && s.state == State::Opening as u32
    {
        return *slot;
    }
    let Some((slot, s)) = maps::claim(&p.key, known.map(|flow| flow.s)) else {
        return left;
    };
    learn::begin(s, &p.key, &p.seg, offer, Direction::Out);
    count(Counter::Tracked);
    slot
}

/// Returns the address of the host after this one.
#[inline(always)]
fn next<'a>(p: &'a Packet, pending: &'a Pending) -> &'a Addr {
    if pending.chain.len > 0 {
        &pending.chain.elements[0].host
    } else {
        &p.key.whole.remote
    }
}

/// Copies the next hop of the session into the scratch memory. Returns 0 if no agent is known
/// there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_hop(run: u32) -> u32 {
    let Some(Scratch {
        packet: p,
        pending,
        hop,
        ..
    }) = maps::scratch(run)
    else {
        return 0;
    };
    // SAFETY: copied at once (see `maps::look_up`).
    let Some(known) = (unsafe { HOPS.get(next(p, pending)) }) else {
        return 0;
    };
    *hop = *known;
    1
}

/// Gives the session of a SYN a subsession. Returns its slot plus 1, or 0 if there is no room.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_open(rule: u32) -> u32 {
    let Some(scratch) = maps::scratch(OUT) else {
        return 0;
    };
    let flow = scratch.known();
    let Scratch {
        packet: p, offer, ..
    } = scratch;
    let claimed = match flow {
        // Opened before, without a chain, and not answered yet.
        Some(Flow { slot, s, .. }) if s.state == State::Opening as u32 => Some((slot, s)),
        other => maps::claim(&p.key, other.map(|flow| flow.s)),
    };
    let Some((slot, s)) = claimed else {
        maps::no_room();
        return 0;
    };
    learn::begin(s, &p.key, &p.seg, offer, Direction::Out);
    s.laid_by = rule;
    if !subsession(slot, s) {
        return 0;
    }
    s.state = State::NewPath as u32;
    count(Counter::Tracked);
    maps::dysco_called(slot);
    slot + 1
}

/// Gives another path a subsession, for a session that passes here already by the entry `first`.
/// Returns its slot plus 1, or 0 if there is no room.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_beside(first: u32) -> u32 {
    let Some(Scratch {
        packet: p,
        offer,
        pending,
        ..
    }) = maps::scratch(OUT)
    else {
        return 0;
    };
    let left = pending.left.checked_sub(1).and_then(maps::session);
    if let Some(second_entry) = left.and_then(|left| left.joined_to()) {
        // The SYN was retransmitted.
        return second_entry + 1;
    }
    let Some(before) = maps::session(first) else {
        return 0;
    };
    let Some((slot, s)) = maps::claim_slot() else {
        maps::no_room();
        return 0;
    };
    learn::begin(s, &p.key, &p.seg, offer, Direction::Out);
    transit::beside(s, first, before);
    if !subsession(slot, s) {
        return 0;
    }
    transit::begin(s, slot);
    slot + 1
}

/// Gives a fresh entry its subsession to the next host, and joins it to the entry that the SYN
/// came by. Returns false, and gives the slot back, if there is no room for the subsession.
#[inline(always)]
fn subsession(slot: u32, s: &mut Session) -> bool {
    let Some(Scratch {
        packet: p,
        pending,
        hop,
        ..
    }) = maps::scratch(OUT)
    else {
        return false;
    };
    let [first, number] = maps::ports();
    let remote_port = u16::from_be(p.key.whole.remote_port);
    let (source, destination) = chain::ports(slot, first, number, remote_port);
    s.path.local = hop.local;
    s.path.remote = *next(p, pending);
    s.path.local_port = source.to_be();
    s.path.remote_port = destination.to_be();
    s.ifindex = hop.ifindex;
    if !maps::claim_path(&p.key, slot, s, None) {
        return false;
    }
    s.alias = Alias::behind_nat(&s.key, &pending.origin);
    if pending.last.is_live() {
        s.laid_by = path_number(&pending.last.token());
    }
    match pending.left.checked_sub(1).and_then(maps::session) {
        Some(left) => {
            s.joined = pending.left;
            left.joined = slot + 1;
        }
        None => {
            // A retransmission finds its way by this record.
            pending.isn = p.seg.seq;
            if let Some(place) = remembered::remember(s, p.seg.seq) {
                place.set(pending);
            }
        }
    }
    s.two.chained = 1;
    true
}

/// Sends the SYN to the next host, with the payload for that host.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_send(skb: *mut __sk_buff, slot: u32) -> u64 {
    let ctx = TcContext::new(skb);
    let (
        Some(Scratch {
            packet: p,
            change: c,
            payload,
            pending,
            hop,
            ..
        }),
        Some(s),
    ) = (maps::scratch(OUT), maps::session(slot))
    else {
        return DROP;
    };
    payload.fill(hop.key_id, &p.key.whole, &pending.origin, &s.path, now());
    payload.set_rest(&pending.chain, &pending.last);
    dysco_chain_proof(OUT);
    outgoing(s, p, c);
    let Some(left_out) = write::append(&ctx, OUT, s.ifindex) else {
        return drop(Counter::DroppedError);
    };
    if left_out {
        count(Counter::ChainDataLeftOut);
    }
    count(Counter::ChainSent);
    s.ifindex as u64
}

/// Computes the proof of the payload in the scratch memory, with the key there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_proof(run: u32) -> u64 {
    let Some(Scratch { payload, hop, .. }) = maps::scratch(run) else {
        return 0;
    };
    payload.mac = payload.proof(hop.key);
    1
}

/// Prepares the change that puts a segment on its subsession.
#[inline(always)]
fn outgoing(s: &Session, p: &Packet, c: &mut Change) {
    c.edit = s.translation.outgoing(&p.seg, &s.path);
    c.src = s.path.local;
    c.dst = s.path.remote;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
}

/// Sends a segment to the other end of its subsession, without a payload.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_plain(slot: u32) -> u64 {
    let (
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }),
        Some(s),
    ) = (maps::scratch(OUT), maps::session(slot))
    else {
        return DROP;
    };
    outgoing(s, p, c);
    s.ifindex as u64
}
