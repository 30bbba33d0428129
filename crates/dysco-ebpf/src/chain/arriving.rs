//! SYNs that come by a subsession, and answers to them.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use dysco_common::chain::{MAGIC, PAYLOAD, Payload, Unfit, path_number};
use dysco_common::session::{Alias, Session, State, offer, part};
use dysco_common::tcp::ACK;
use dysco_common::{Counter, EventKind, FlowKey, mark};

use super::crossing::{self, dysco_chain_yields};
use super::{CHANGED, DROP, IN, PASS, PAST, answered, drop, now, remembered};
use crate::kept;
use crate::learn;
use crate::maps::{self, Flow, HOPS, KEYS, OWN, Scratch, count};
use crate::packet::{AsPtr, Direction, Packet};
use crate::second;
use crate::write::{self, Change};

/// Exported: see `leaving`.
#[inline(never)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dysco_chain_in(skb: *mut __sk_buff) -> u64 {
    let Some(scratch) = maps::scratch(IN) else {
        return PASS;
    };
    let flow = scratch.known();
    let Scratch {
        packet: p,
        offer,
        payload,
        ..
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
            let joined = unsafe { second::dysco_join(skb) };
            if joined != second::NOBODYS {
                return DROP;
            }
        }
        return accept(skb);
    };
    if new && (s.state == State::Joining as u32 || s.state == State::Switching as u32) {
        // SAFETY: the program's own context.
        unsafe { second::dysco_knocks(skb, slot, live_payload as u32) };
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
        // No socket knows this five-tuple: its answer would be a reset.
        return drop(Counter::DroppedStray);
    }
    if carried == NOTHING {
        // Both ends open it at once.
        if live && s.life.opened_here != 0 && s.two.chained < 2 {
            learn::opens(s, &p.seg, offer, Direction::In);
            // SAFETY: the program's own context.
            return unsafe { dysco_chain_deliver(skb, slot) };
        }
        return drop(Counter::DroppedSyn);
    }
    if !live {
        // An answered SYN that comes again is no new session's, whose number is its own.
        let again = s.two.chained > 1 && s.remote.isn == p.seg.seq;
        if again && s.key.mirrors(&payload.session) {
            return drop(Counter::ChainReplayed);
        }
        return accept(skb);
    }
    if !s.key.mirrors(&payload.session) || s.remote.isn != p.seg.seq {
        return doubt(slot, payload, &p.key.whole);
    }
    if s.two.chained > 1 {
        return drop(Counter::DroppedSyn);
    }
    // SAFETY: the program's own context.
    unsafe { dysco_chain_receive(skb, slot) }
}

/// Takes on a session that a neighbour has opened a subsession for.
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

/// Makes the entry of a subsession that a neighbour has opened; another that had
/// its five-tuple has ended. Returns its slot and 1, or 0 if it must not be.
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
        if payload.is_live() && kept::may_have_another(s) {
            let Some((second, other)) = maps::claim_slot() else {
                maps::no_room();
                return 0;
            };
            learn::begin(other, key, &p.seg, offer, Direction::In);
            kept::beside(other, slot, s);
            (other.path, other.alias) = (p.key.whole, s.alias);
            other.laid_by = path_number(&payload.last().token());
            // SAFETY: a readable field of the context.
            other.ifindex = unsafe { (*skb).ifindex };
            return second + 1;
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
                    doubt(slot, payload, &p.key.whole);
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

/// A SYN is for another session than this entry, whose subsession it comes by, or for that
/// session by another. The neighbour may have lost it without a word, with its power: user
/// space asks it. Not where a NAT has changed the subsession, which that knows by another name.
#[inline(always)]
fn doubt(slot: u32, payload: &Payload, comes_by: &FlowKey) -> u64 {
    if !payload.is_live() && payload.subsession.mirrors(comes_by) {
        maps::tell(EventKind::Taken, slot);
    }
    drop(Counter::ChainTaken)
}

/// Is the live session in the scratch memory, which is not known here by this five-tuple,
/// known by another? Its chain is about to get a NAT before this host, or to lose one, and the
/// firewall here knows it by the one that it has.
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

/// Has the wire's five-tuple lead to the entry that was made.
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
        kept::begin(s, slot);
        return 1;
    }
    s.state = State::NewPath as u32;
    count(Counter::Tracked);
    maps::dysco_called(slot);
    1
}

/// Hands a neighbour's SYN to the stack, and remembers where it goes from here.
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

/// Where another path is opened of a session that passes here, the stack has no part
/// in that: its firewall knows the session's connection, and would take this for a new
/// one. Unless it is a NAT, which alone knows what the session is called behind it.
#[inline(always)]
fn onward(s: &Session, slot: u32) -> u64 {
    let past = s.state == State::Passing as u32 && kept::is_not_translated(s);
    if past && mark::of_slot(slot).is_some() {
        PAST
    } else {
        CHANGED
    }
}

/// Makes the change that gives a segment the session's own five-tuple.
#[inline(always)]
fn incoming(s: &Session, p: &Packet, c: &mut Change) {
    c.edit = s.translation.incoming(&p.seg, &s.key);
    c.src = s.key.remote;
    c.dst = s.key.local;
    (c.clear_ect, c.pseudo, c.payload) = (0, 0, 0);
}

/// Hands a segment with SYN of a subsession on as the session's.
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

/// The data of a SYN is its own, or there is none.
const NOTHING: u32 = 0;
/// It ends with a payload that is believed.
const BELIEVED: u32 = 1;
/// It ends with one that is not, which is counted.
const UNFIT: u32 = 2;

/// Looks for a payload at the end of a SYN's data, and checks it.
#[inline(never)]
#[unsafe(no_mangle)]
unsafe extern "C" fn dysco_chain_carried(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(Scratch {
        packet: p,
        offer,
        payload,
        hop,
        ..
    }) = maps::scratch(IN)
    else {
        return NOTHING;
    };
    if OWN.get_ptr(&p.key.whole.local).is_none() {
        // It is only forwarded here.
        return NOTHING;
    }
    let begin = p.l4() as u32 + p.header.data_offset() as u32;
    payload.magic = 0;
    if p.seg.len >= PAYLOAD as u32 {
        let from = begin + p.seg.len - PAYLOAD as u32;
        load_bytes(&ctx, from, (&raw mut *payload).cast(), PAYLOAD as u32);
    }
    if payload.magic != MAGIC {
        // One that was cut begins where the data does.
        let first = (&raw mut payload.magic).cast();
        if load_bytes(&ctx, begin, first, 4) && payload.magic == MAGIC {
            count(Counter::ChainLayout);
            return UNFIT;
        }
        // A neighbour's stack sends data of its own with the option for that.
        let own = offer.flags & offer::FAST_OPEN != 0;
        if !own && HOPS.get_ptr(&p.key.whole.remote).is_some() {
            count(Counter::ChainLayout);
            return UNFIT;
        }
        return NOTHING;
    }
    if payload.check_layout().is_err() {
        count(Counter::ChainLayout);
        return UNFIT;
    }
    // SAFETY: copied at once (see `maps::look_up`).
    let Some(shared) = (unsafe { KEYS.get(&payload.key_id) }) else {
        count(Counter::ChainKey);
        return UNFIT;
    };
    hop.key = shared.key;
    dysco_chain_check(IN)
}

/// Is a payload that is believed a copy of one that came long ago, or of one of this
/// host's own? Both ends have one key.
#[inline(always)]
fn is_replayed(payload: &Payload) -> bool {
    if OWN.get_ptr(&payload.subsession.local).is_some() {
        return true;
    }
    let shared = KEYS.get_ptr_mut(&payload.key_id);
    // SAFETY: a value of the map, aligned; what two packets write at once are words that
    // fit either.
    shared.is_some_and(|shared| unsafe { !(*shared).hears(payload, now()) })
}

/// Checks the payload in the scratch memory by the key there.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_chain_check(run: u32) -> u32 {
    let Some(Scratch { payload, hop, .. }) = maps::scratch(run) else {
        return UNFIT;
    };
    match payload.check(hop.key) {
        Ok(()) if is_replayed(payload) => {
            count(Counter::ChainReplayed);
            UNFIT
        }
        Ok(()) => BELIEVED,
        Err(Unfit::Proof) => {
            count(Counter::ChainProof);
            UNFIT
        }
        Err(Unfit::Layout | Unfit::Content) => {
            count(Counter::ChainLayout);
            UNFIT
        }
    }
}

#[inline(always)]
fn load_bytes(ctx: &TcContext, from: u32, to: *mut core::ffi::c_void, len: u32) -> bool {
    // SAFETY: `to` has room for `len` bytes, by the callers.
    let r = unsafe {
        aya_ebpf::helpers::generated::bpf_skb_load_bytes(ctx.as_ptr_const(), from, to, len)
    };
    r == 0
}
