//! The fates of a packet that this host relays, and its departure.

use aya_ebpf::programs::TcContext;
use dysco_common::session::Session;
use dysco_common::tcp::Segment;
use dysco_common::two_paths::{self, Anchor, NO_EDGE};
use dysco_common::{Counter, mark};

use crate::atomic;
use crate::hop;
use crate::maps::{self, count};
use crate::marks::set_mark;
use crate::write;

/// Greatest distance of a reset from the highest number known, where the window is unknown.
pub(super) const MAX_RESET_DISTANCE: u32 = 1 << 16;

pub(super) const REMOTE: Anchor = Anchor::Remote;

/// Returns the session that this one is joined to, and this one's slot.
#[inline(always)]
pub(crate) fn other(s: &Session) -> Option<(&'static mut Session, u32)> {
    let other = maps::session(s.joined_to()?)?;
    let slot = other.joined_to()?;
    // The joined entry may belong to another session.
    let own = maps::session(slot)?;
    core::ptr::eq(own, s).then_some((other, slot))
}

/// Prepares the departure of a packet whose headers are still to be changed.
#[inline(always)]
pub(super) fn leave(ctx: &TcContext, s: &mut Session, v6: bool) -> bool {
    if !write::hop_limit(ctx, v6) {
        count(Counter::DroppedHopLimit);
        return false;
    }
    s.new_in = s.new_in.wrapping_add(1);
    let mark = if s.relay != 0 {
        mark::STEERED
    } else if maps::xdp() && hop::is_asked(ctx, s) {
        mark::RELAYED_TEACHES
    } else {
        mark::RELAYED
    };
    set_mark(ctx, mark);
    true
}

/// Nothing is to be done.
pub(crate) const PASS: u64 = 0;

/// The packet is dropped, and counted.
pub(crate) const DROP: u64 = 1;

/// Apply the change; the packet continues to the stack.
pub(crate) const TO_STACK: u64 = 2;

/// Apply the change; the packet leaves towards the other end.
pub(crate) const TO_OTHER: u64 = 3;

/// Takes in the window that the end offers this host's stack.
#[inline(always)]
pub(crate) fn offers(s: &Session, slot: u32, seg: &Segment) {
    let (Some(to), Some(edge)) = (two_paths::offered(s, seg), maps::edge(slot)) else {
        return;
    };
    if *edge == NO_EDGE {
        *edge = to;
    } else {
        atomic::raise(edge, to);
    }
}

#[inline(always)]
pub(super) fn to_leave(ctx: &TcContext, s: &mut Session, v6: bool) -> u64 {
    if leave(ctx, s, v6) { TO_OTHER } else { DROP }
}

#[inline(always)]
pub(super) fn not(why: Counter) -> u64 {
    count(why);
    DROP
}
