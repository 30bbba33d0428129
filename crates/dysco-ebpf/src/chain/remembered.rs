//! SYNs that are remembered from their arrival at this host until they leave it: the stack
//! between knows nothing of chains.

use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use dysco_common::Session;
use dysco_common::chain::Pending;

use crate::atomic;

/// Number of remembered SYNs, and number of places for SYN numbers: powers of two.
const SYNS_KEPT: u32 = 16384;
const NUMBERS_KEPT: u32 = 65536;

/// SYNs on their way through this host: a ring. The session's entry holds the place of its SYN:
/// the entry of the path that the SYN came by or, at the host that opened the session, the
/// session's own entry.
#[map]
static SYNS: Array<Pending> = Array::with_max_entries(SYNS_KEPT, 0);

/// Number of SYNs remembered so far, modulo 2^32.
#[map]
static SYNS_SEEN: Array<u32> = Array::with_max_entries(1, 0);

/// Places plus 1, by initial sequence number, for SYNs that lose their mark. Each is a guess of
/// one word: the record at the place confirms it.
#[map]
static SYN_PLACES: Array<u32> = Array::with_max_entries(NUMBERS_KEPT, 0);

/// Returns the index for a sequence number. Multiplied, because not every stack chooses each bit
/// at random.
#[inline(always)]
const fn place_of(isn: u32) -> u32 {
    isn.wrapping_mul(0x9e37_79b1) >> 16 & (NUMBERS_KEPT - 1)
}

/// Reserves a place for a SYN with this number and entry, and returns it to be filled in.
#[inline(always)]
pub(super) fn remember(s: &mut Session, isn: u32) -> Option<&'static mut Pending> {
    // SAFETY: a word of an array map, which is added to as a whole.
    let seen = unsafe { &mut *SYNS_SEEN.get_ptr_mut(0)? };
    let place = atomic::add(seen, 1) & (SYNS_KEPT - 1);
    let numbered = SYN_PLACES.get_ptr_mut(place_of(isn))?;
    // SAFETY: a word of an array map.
    unsafe { *numbered = place + 1 };
    s.new_low = place;
    // SAFETY: an element of an array map. A reader on another CPU checks first that it is the
    // record which it looks for.
    SYNS.get_ptr_mut(place).map(|p| unsafe { &mut *p })
}

/// Returns the remembered SYN with this number and the entry of `slot`.
#[inline(always)]
pub(super) fn by_entry(slot: u32, s: &Session, isn: u32) -> Option<&'static Pending> {
    let pending = SYNS.get(s.new_low & (SYNS_KEPT - 1))?;
    let its = pending.left == slot + 1 || pending.left == 0;
    (its && pending.isn == isn).then_some(pending)
}

/// Returns the remembered SYN that came here with this number by a subsession.
#[inline(always)]
pub(super) fn by_number(isn: u32) -> Option<&'static Pending> {
    let place = SYN_PLACES.get(place_of(isn))?.checked_sub(1)?;
    let pending = SYNS.get(place)?;
    (pending.left != 0 && pending.isn == isn).then_some(pending)
}
