//! SYNs that arrive by a subsession, and answers to them.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::chain::{Payload, path_number};
use dysco_common::session::{Alias, Session, State, part};
use dysco_common::tcp::ACK;
use dysco_common::{Counter, EventKind, FlowKey, mark};

use super::carried::{BELIEVED, NOTHING, dysco_chain_carried};
use super::crossing::{self, dysco_chain_yields};
use super::fate::{CHANGED, DROP, IN, PASS, PAST, answered, drop};
use super::remembered;
use crate::learn;
use crate::maps::{self, Flow, Scratch, count};
use crate::packet::{Direction, Packet};
use crate::second_path;
use crate::transit;
use crate::write::{self, Change};

/// Exported: see `leaving`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_in(skb: *mut __sk_buff) -> u64 {
    let Some(scratch) = maps::scratch(IN) else {
        return PASS;
    };
    let flow = scratch.known();
    let Scratch {
        packet: p, payload, ..
    } = scratch;
    let opens = !p.seg.has(ACK);
    let mut carried = NOTHING;
    if opens && p.seg.len > 0 {
        // SAFETY: the program's own context.
        carried = unsafe { dysco_chain_carried(skb) };
        if carried > BELIEVED {
            return DROP;
        }
    }
    let live_payload = carried != NOTHING && payload.is_live();
    let Some(Flow { slot, new, s }) = flow else {
        if carried == NOTHING {
            return PASS;
        }
        if live_payload {
            // SAFETY: the program's own context.
            let joined = unsafe { second_path::dysco_join(skb) };
            if joined != second_path::NO_SESSION {
                return DROP;
            }
        }
        return accept(skb);
    };
    if new && (s.state == State::Joining as u32 || s.state == State::Switching as u32) {
        // SAFETY: the program's own context.
        unsafe { second_path::dysco_opening(skb, slot, live_payload as u32) };
        return DROP;
    }
    if !new {
        if carried == NOTHING {
            return PASS;
        }
        return drop(Counter::ChainTaken);
    }
    let live = s.two.chained != 0 && learn::would_usurp(s);
    if !opens {
        if live {
            answered(s, slot, IN);
            // SAFETY: the program's own context.
            return unsafe { dysco_chain_deliver(skb, slot) };
        }
        // No socket knows this five-tuple: the stack would answer with a reset.
        return drop(Counter::DroppedStray);
    }
    // SAFETY: the program's own context.
    unsafe { reopens(skb, slot, s, carried, live) }
}

/// Judges a SYN on the subsession of a session. `live` is true if that session lives.
#[inline(always)]
unsafe fn reopens(
    skb: *mut __sk_buff,
    slot: u32,
    s: &mut Session,
    carried: u32,
    live: bool,
) -> u64 {
    let Some(Scratch {
        packet: p,
        offer,
        payload,
        ..
    }) = maps::scratch(IN)
    else {
        return DROP;
    };
    if carried == NOTHING {
        // Both ends open the session at once.
        if live && s.life.opened_here != 0 && s.two.chained < 2 {
            learn::opens(s, &p.seg, offer, Direction::In);
            // SAFETY: the program's own context.
            return unsafe { dysco_chain_deliver(skb, slot) };
        }
        return drop(Counter::DroppedSyn);
    }
    if !live {
        // A retransmitted SYN that has been answered. A new session has a number of its own.
        let again = s.two.chained > 1 && s.remote.isn == p.seg.seq;
        if again && s.key.mirrors(&payload.session) {
            return drop(Counter::ChainReplayed);
        }
        return accept(skb);
    }
    if !s.key.mirrors(&payload.session) || s.remote.isn != p.seg.seq {
        return ask_neighbour(slot, payload, &p.key.whole);
    }
    if s.two.chained > 1 {
        return drop(Counter::DroppedSyn);
    }
    // SAFETY: the program's own context.
    unsafe { dysco_chain_receive(skb, slot) }
}

/// Accepts a session for which a neighbour has opened a subsession.
#[inline(always)]
fn accept(skb: *mut __sk_buff) -> u64 {
    // SAFETY: the program's own context.
    let slot = unsafe { dysco_chain_accept(skb) };
    if slot == 0 || dysco_chain_accepted(slot - 1) == 0 {
        return DROP;
    }
    // SAFETY: as above.
    unsafe { dysco_chain_receive(skb, slot - 1) }
}

/// Makes the entry of a subsession that a neighbour has opened. An earlier session with its
/// five-tuple has ended. Returns the slot plus 1, or 0 if the entry must not exist.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_accept(skb: *mut __sk_buff) -> u32 {
    let Some(Scratch {
        packet: p,
        offer,
        session: key,
        payload,
        ..
    }) = maps::scratch(IN)
    else {
        return 0;
    };
    payload.session.mirror_to(&mut key.whole);
    key.complete();
    let mut claimed = None;
    let mut ended = None;
    if let Some(Flow { slot, new, s }) = maps::find(key) {
        if new {
            return taken();
        }
        if payload.is_live() && transit::may_have_another(s) {
            // SAFETY: the caller's.
            return unsafe { accept_beside(skb, slot, s) };
        }
        match dysco_chain_yields(slot) {
            crossing::STAYS => {
                count(Counter::DroppedSyn);
                return 0;
            }
            crossing::YIELDS => claimed = maps::session(slot).map(|s| (slot, s)),
            // Opened here too, or without a chain, and not answered.
            _ if s.state == State::Opening as u32 => claimed = Some((slot, s)),
            _ => {
                let over = [State::Closed as u32, State::Tombstone as u32];
                if !s.has_ended() && s.state != over[0] && s.state != over[1] {
                    ask_neighbour(slot, payload, &p.key.whole);
                    return 0;
                }
                ended = Some(s);
            }
        }
    } else if payload.is_live() && dysco_chain_is_called(IN) != 0 {
        return taken();
    }
    if claimed.is_none() {
        claimed = maps::claim(key, ended);
    }
    let Some((slot, s)) = claimed else {
        if maps::is_called(&key.short) {
            return taken();
        }
        maps::no_room();
        return 0;
    };
    learn::begin(s, key, &p.seg, offer, Direction::In);
    s.path = p.key.whole;
    s.alias = Alias::behind_nat(&payload.session, &payload.origin).mirrored();
    if payload.is_live() {
        s.laid_by = path_number(&payload.last().token());
    }
    // SAFETY: a readable field of the context.
    s.ifindex = unsafe { (*skb).ifindex };
    slot + 1
}

/// Makes the entry of another path of a live session that passes here by the entry of `slot`.
/// Returns the slot plus 1, or 0 if there is no room.
#[inline(always)]
unsafe fn accept_beside(skb: *mut __sk_buff, slot: u32, s: &Session) -> u32 {
    let Some(Scratch {
        packet: p,
        offer,
        session: key,
        payload,
        ..
    }) = maps::scratch(IN)
    else {
        return 0;
    };
    let Some((second_entry, other)) = maps::claim_slot() else {
        maps::no_room();
        return 0;
    };
    learn::begin(other, key, &p.seg, offer, Direction::In);
    transit::beside(other, slot, s);
    (other.path, other.alias) = (p.key.whole, s.alias);
    other.laid_by = path_number(&payload.last().token());
    // SAFETY: a readable field of the context.
    other.ifindex = unsafe { (*skb).ifindex };
    second_entry + 1
}

/// Drops a SYN that belongs to another session than this entry, whose subsession it came by, or
/// that came by another subsession of the entry's session. The neighbour may have lost the
/// session without notice, in a power failure, so user space asks it. User space does not ask if
/// a NAT has changed the subsession: the neighbour knows it by another name.
#[inline(always)]
fn ask_neighbour(slot: u32, payload: &Payload, comes_by: &FlowKey) -> u64 {
    if !payload.is_live() && payload.subsession.mirrors(comes_by) {
        maps::tell(EventKind::Taken, slot);
    }
    drop(Counter::ChainTaken)
}

/// Returns 1 if the live session in the scratch memory, whose five-tuple is unknown here, is
/// known by another name. Its chain is then about to gain or lose a NAT before this host, and
/// the firewall here knows the session by its present name.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_is_called(run: u32) -> u32 {
    let Some(Scratch {
        session: key,
        payload,
        ..
    }) = maps::scratch(run)
    else {
        return 0;
    };
    if maps::is_called(&key.short) {
        return 1;
    }
    if payload.session == payload.origin {
        return 0;
    }
    payload.origin.mirror_to(&mut key.whole);
    key.complete();
    let here = maps::find(key).is_some_and(|flow| learn::would_usurp(flow.s));
    payload.session.mirror_to(&mut key.whole);
    key.complete();
    here as u32
}

#[inline(always)]
fn taken() -> u32 {
    count(Counter::ChainTaken);
    0
}

/// Makes the five-tuple of the wire lead to the new entry. Returns 1, or 0 if it cannot.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_accepted(slot: u32) -> u32 {
    let (Some(scratch), Some(s)) = (maps::scratch(IN), maps::session(slot)) else {
        return 0;
    };
    let ended = scratch.known().map(|flow| flow.s);
    if !maps::claim_path(&scratch.session, slot, s, ended) {
        return 0;
    }
    s.two.chained = 1;
    if s.two.part == part::NEXT {
        transit::begin(s, slot);
        return 1;
    }
    s.state = State::NewPath as u32;
    count(Counter::Tracked);
    maps::dysco_called(slot);
    1
}

/// Delivers a neighbour's SYN to the stack, and remembers where it continues.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_receive(skb: *mut __sk_buff, slot: u32) -> u64 {
    let ctx = TcContext::new(skb);
    let (
        Some(Scratch {
            packet: p,
            change: c,
            payload,
            ..
        }),
        Some(s),
    ) = (maps::scratch(IN), maps::session(slot))
    else {
        return DROP;
    };
    if !payload.subsession.mirrors(&p.key.whole) {
        count(Counter::ChainNat);
        s.renamed = 1;
    }
    if let Some(pending) = remembered::remember(s, p.seg.seq) {
        pending.session = payload.session;
        pending.origin = payload.origin;
        pending.left = slot + 1;
        payload.chain(&mut pending.chain);
        pending.last = *payload.last();
        pending.isn = p.seg.seq;
    }
    incoming(s, p, c);
    if write::strip(&ctx, IN).is_none() {
        return drop(Counter::DroppedError);
    }
    s.rcv_max = p.seg.end();
    count(Counter::ChainReceived);
    if let Some(mark) = mark::of_slot(slot) {
        // SAFETY: a field of the context that the verifier lets a classifier write.
        unsafe { (*skb).mark = mark };
    }
    onward(s, slot)
}

/// Returns the verdict for a SYN on its way to the stack. The stack takes no part in opening
/// another path of a session that passes here: its firewall knows the connection and would take
/// the SYN for a new one. The exception is a NAT, which alone knows the session's name behind
/// it.
#[inline(always)]
fn onward(s: &Session, slot: u32) -> u64 {
    let past = s.state == State::Passing as u32 && transit::is_not_translated(s);
    if past && mark::of_slot(slot).is_some() {
        PAST
    } else {
        CHANGED
    }
}

/// Prepares the change that gives a segment the session's own five-tuple.
#[inline(always)]
fn incoming(s: &Session, p: &Packet, c: &mut Change) {
    c.edit = s.translation.incoming(&p.seg, &s.key);
    c.src = s.key.remote;
    c.dst = s.key.local;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
}

/// Delivers a subsession's segment with SYN as one of the session.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_deliver(skb: *mut __sk_buff, slot: u32) -> u64 {
    let (
        Some(Scratch {
            packet: p,
            change: c,
            ..
        }),
        Some(s),
    ) = (maps::scratch(IN), maps::session(slot))
    else {
        return DROP;
    };
    incoming(s, p, c);
    let onward = onward(s, slot);
    if onward == PAST
        && let Some(mark) = mark::of_slot(slot)
    {
        // SAFETY: as in `dysco_chain_receive`.
        unsafe { (*skb).mark = mark };
    }
    onward
}
