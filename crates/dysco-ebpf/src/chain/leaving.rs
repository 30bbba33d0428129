//! SYNs that leave, and answers to them: rules, subsessions, payloads.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::chain::{self, Pending};
use dysco_common::session::{Alias, Session, State};
use dysco_common::tcp::ACK;
use dysco_common::{Addr, Counter, EventKind, mark};

use super::rules::{NO_RULE, REFUSED, dysco_chain_choose, dysco_chain_rule};
use super::{DROP, OUT, PASS, answered, drop};
use crate::kept;
use crate::learn;
use crate::maps::{self, Flow, HOPS, PENDING, Scratch, count};
use crate::packet::{Direction, Packet};
use crate::write::{self, Change};

/// Exported, as are all of the functions below that bear the program's name: so
/// the verifier goes through each by itself, and once (see
/// `learn::dysco_offer`).
#[inline(never)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dysco_chain_out(skb: *mut __sk_buff) -> u64 {
    let Some(Scratch { packet: p, .. }) = maps::scratch(OUT) else {
        return PASS;
    };
    let opens = !p.seg.has(ACK);
    if let Some(Flow { slot, s, .. }) = maps::find(&p.key)
        && s.two.chained != 0
        && learn::would_usurp(s)
    {
        if !opens && s.state == State::Passing as u32 {
            return dysco_chain_answered(kept::dysco_answers(slot));
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
        if s.life.opened_here == 0 {
            // Both ends open it at once.
            return dysco_chain_plain(slot);
        }
        if s.local.isn != p.seg.seq {
            return drop(Counter::DroppedSyn);
        }
        // SAFETY: the program's own context.
        if unsafe { dysco_chain_pending(skb, 1) } == 0 {
            return drop(Counter::ChainForgotten);
        }
        if dysco_chain_hop(OUT) == 0 {
            return without_hop();
        }
        // SAFETY: the program's own context.
        return unsafe { dysco_chain_send(skb, slot) };
    }
    if !opens {
        return PASS;
    }
    let mut rule = NO_RULE;
    // SAFETY: the program's own context.
    if unsafe { dysco_chain_pending(skb, 0) } == 0 {
        rule = dysco_chain_rule(OUT);
        if rule != NO_RULE {
            rule = dysco_chain_choose(OUT, rule);
        }
        if rule == NO_RULE {
            return PASS;
        }
        if rule == REFUSED {
            return drop(Counter::ChainRefused);
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

/// The SYN of another path of a session that passes here.
#[inline(always)]
unsafe fn again(skb: *mut __sk_buff, first: u32) -> u64 {
    // SAFETY: the caller's.
    if unsafe { dysco_chain_pending(skb, 0) } == 0 {
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

/// Sends the answer to a SYN back by the entry that this came by.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_answered(slot: u32) -> u64 {
    let Some(s) = maps::session(slot) else {
        return DROP;
    };
    answered(s, slot, OUT);
    dysco_chain_plain(slot)
}

/// The next host has no agent, as far as is known.
#[inline(always)]
fn without_hop() -> u64 {
    let Some(Scratch { pending, .. }) = maps::scratch(OUT) else {
        return DROP;
    };
    if pending.last.is_live() {
        // To the server's stack it would be a stray.
        return drop(Counter::ChainRefused);
    }
    if let Some(left) = pending.left.checked_sub(1) {
        maps::tell(EventKind::Stranger, left);
    }
    if pending.chain.len == 0 {
        // The chain ends here: the server gets the session's own SYN.
        count(Counter::ChainRestored);
        return PASS;
    }
    drop(Counter::ChainRefused)
}

/// The host after this one.
#[inline(always)]
fn next<'a>(p: &'a Packet, pending: &'a Pending) -> &'a Addr {
    if pending.chain.len > 0 {
        &pending.chain.elements[0].host
    } else {
        &p.key.whole.remote
    }
}

/// Where the session goes next, into the scratch memory. 0 if nobody there is
/// known to have an agent.
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

/// Gives the session of a SYN a subsession. Returns its slot and 1, or 0 where
/// there is no room.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_open(rule: u32) -> u32 {
    let Some(Scratch {
        packet: p, offer, ..
    }) = maps::scratch(OUT)
    else {
        return 0;
    };
    let claimed = match maps::find(&p.key) {
        // Opened before, without a chain, and not answered yet.
        Some(Flow { slot, s, .. }) if s.state == State::Opening as u32 => Some((slot, s)),
        other => maps::claim(&p.key, other.map(|flow| flow.s)),
    };
    let Some((slot, s)) = claimed else {
        learn::no_room();
        return 0;
    };
    learn::begin(s, &p.key, &p.seg, offer, Direction::Out);
    s.rule = rule;
    if !subsession(slot, s) {
        return 0;
    }
    s.state = State::NewPath as u32;
    count(Counter::Tracked);
    maps::dysco_called(slot);
    slot + 1
}

/// The same for a session that passes here already, by the entry `first`.
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
    if let Some(second) = left.and_then(|left| left.joined_to()) {
        // The SYN came again.
        return second + 1;
    }
    let Some(before) = maps::session(first) else {
        return 0;
    };
    let Some((slot, s)) = maps::claim_slot() else {
        learn::no_room();
        return 0;
    };
    learn::begin(s, &p.key, &p.seg, offer, Direction::Out);
    kept::beside(s, first, before);
    if !subsession(slot, s) {
        return 0;
    }
    kept::begin(s, slot);
    slot + 1
}

/// Gives a fresh entry its subsession to the next host, and joins it to the one
/// that the SYN came by. If there is none, the slot is given back.
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
        s.state = State::Free as u32;
        learn::no_room();
        return false;
    }
    s.alias = Alias::behind_nat(&s.key, &pending.origin);
    match pending.left.checked_sub(1).and_then(maps::session) {
        Some(left) => {
            s.joined = pending.left;
            left.joined = slot + 1;
        }
        None => {
            // What is sent again finds its way here.
            let _ = PENDING.insert(&p.seg.seq, &*pending, 0);
        }
    }
    s.two.chained = 1;
    true
}

/// Sends the SYN to the next host, with what that has to know.
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
    payload.fill(hop.key_id, &p.key.whole, &pending.origin, &s.path);
    payload.set_rest(&pending.chain, &pending.last);
    dysco_chain_proof(OUT);
    outgoing(s, p, c);
    let Some(left_out) = write::append(&ctx, OUT) else {
        return drop(Counter::DroppedError);
    };
    if left_out {
        count(Counter::ChainDataLeftOut);
    }
    count(Counter::ChainSent);
    s.ifindex as u64
}

/// Makes the proof of the payload in the scratch memory, by the key there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_proof(run: u32) -> u64 {
    let Some(Scratch { payload, hop, .. }) = maps::scratch(run) else {
        return 0;
    };
    payload.mac = payload.proof(hop.key);
    1
}

/// Makes the change that puts a segment on its subsession.
#[inline(always)]
fn outgoing(s: &Session, p: &Packet, c: &mut Change) {
    c.edit = s.translation.outgoing(&p.seg, &s.path);
    c.src = s.path.local;
    c.dst = s.path.remote;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
}

/// Sends a segment as it is to the other end of its subsession.
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

/// Takes what is remembered of a SYN that came by a subsession, by its number
/// if it is the session's own, or one of which a NAT has changed one end; else
/// by the mark. Not 0 in `own`: or what this host remembers of one that it has
/// sent itself. Returns 1 if there is anything.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_pending(skb: *mut __sk_buff, own: u32) -> u32 {
    let Some(Scratch {
        packet: p,
        pending: to,
        ..
    }) = maps::scratch(OUT)
    else {
        return 0;
    };
    let whole = &p.key.whole;
    // SAFETY: copied at once (see `maps::look_up`).
    if let Some(pending) = unsafe { PENDING.get(&p.seg.seq) } {
        let session = &pending.session;
        let near = session.local == whole.local || session.remote == whole.remote;
        if near && (pending.left | own != 0) {
            *to = *pending;
            return 1;
        }
    }
    // SAFETY: a readable field of the context.
    let mark = unsafe { (*skb).mark };
    let Some(slot) = mark::slot_of(mark) else {
        return 0;
    };
    let Some(left) = maps::session(slot) else {
        return 0;
    };
    if left.two.chained == 0 || left.two.chained > 1 {
        return 0;
    }
    let isn = left.remote.isn;
    // SAFETY: copied at once.
    let Some(pending) = (unsafe { PENDING.get(&isn) }) else {
        return 0;
    };
    if pending.left != slot + 1 {
        return 0;
    }
    *to = *pending;
    1
}
