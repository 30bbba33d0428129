//! SYNs of both ends that cross on their way (RFC 9293, 3.5), each with a chain of its own. They
//! make one session, which takes one of the two chains. Every host that sees both SYNs chooses
//! the same one. The other SYN is dropped. The entries that it has made become the session's, or
//! are made anew, so that no port or slot remains in use.

use aya_ebpf::bindings::__sk_buff;
use dysco_common::session::{Session, State, part};
use dysco_common::{FlowKey, mark};

use super::fate::{IN, OUT};
use super::pending::dysco_chain_pending;
use crate::learn;
use crate::maps::{self, Scratch};
use crate::packet::Direction;

/// Result: no SYN of the other end has met this one.
pub(super) const ALONE: u32 = 0;
/// Result: a SYN of the other end has met this one, and its entries have made room.
pub(super) const YIELDS: u32 = 1;
/// Result: a SYN of the other end has met this one and stays. This SYN is dropped.
pub(super) const STAYS: u32 = 2;

/// True if a chain's SYN has made the entry and nobody has answered. A session behind a NAT is
/// excluded: it has another name on each side of the NAT, and hosts would judge it differently.
#[inline(always)]
fn is_unanswered(s: &Session) -> bool {
    s.state == State::NewPath as u32
        && s.two.chained == 1
        && s.two.part == part::CURRENT
        && s.alias.is_none()
        && !s.has_ended()
}

/// Reverts an entry to that of a session that was opened without a chain and not answered.
#[inline(always)]
fn give_up(slot: u32, s: &mut Session) {
    maps::give_up_path(slot, s);
    s.path = FlowKey::default();
    (s.joined, s.two.chained) = (0, 0);
    s.state = State::Opening as u32;
}

/// Decides whether the entry of `slot` makes room for the SYN that has arrived with a payload
/// and has the same five-tuple. The entry's own SYN was for the other end.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) extern "C" fn dysco_chain_yields(slot: u32) -> u32 {
    let (Some(Scratch { payload, .. }), Some(s)) = (maps::scratch(IN), maps::session(slot)) else {
        return ALONE;
    };
    let crosses = s.life.opened_here != 0 && is_unanswered(s);
    if !crosses || payload.is_live() || payload.session != payload.origin {
        return ALONE;
    }
    let came = s.joined_to();
    let left = came.and_then(maps::session);
    if left.as_ref().is_some_and(|left| !is_unanswered(left)) {
        return ALONE;
    }
    if !payload.session.prevails() {
        return STAYS;
    }
    if let (Some(came), Some(left)) = (came, left) {
        give_up(came, left);
    }
    give_up(slot, s);
    YIELDS
}

/// Decides whether the entry of `slot`, by which the SYN of the other end has come, makes room
/// for a SYN on its way out with the same five-tuple. Both SYNs may have arrived before either
/// continued. Or there is only one chain, and this SYN returns by it unchanged.
#[inline(never)]
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn dysco_chain_crosses(skb: *mut __sk_buff, slot: u32) -> u32 {
    // SAFETY: the program's own context.
    let remembered = unsafe { dysco_chain_pending(skb) } != 0;
    let (
        Some(Scratch {
            packet: p,
            offer,
            pending,
            ..
        }),
        Some(s),
    ) = (maps::scratch(OUT), maps::session(slot))
    else {
        return STAYS;
    };
    let came = if remembered {
        pending.left.checked_sub(1)
    } else {
        None
    };
    if let Some(came) = came
        && let Some(other) = maps::session(came)
    {
        let first = other.life.opened_here == 0 && other.joined == 0 && s.joined == 0;
        if first && is_unanswered(other) && is_unanswered(s) && other.key.mirrors(&p.key.whole) {
            if p.key.whole.prevails() {
                give_up(slot, s);
                return YIELDS;
            }
            give_up(came, other);
            return STAYS;
        }
        // The entry has made room since the SYN came in. Only if the mark is lost may it belong
        // to another session.
        // SAFETY: a readable field of the context.
        let marked = mark::slot_of(unsafe { (*skb).mark }).is_some();
        if marked || other.two.chained == 0 {
            return STAYS;
        }
    }
    learn::opens(s, &p.seg, offer, Direction::Out);
    ALONE
}
