//! The table of flows: five-tuples and hints lead to the slots of entries.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap};
use dysco_common::{Counter, EventKind, FlowRef, Path, Session, ShortKey, State};

use super::reports::{count, tell};
use super::{FREE, session};
use crate::packet::{Bytes, Direction, Key, addresses_v6};

/// Slot and path of each five-tuple on the wire. User space sets the size.
#[map]
pub(crate) static FLOWS: HashMap<ShortKey, FlowRef> = HashMap::with_max_entries(1, 0);

/// Slot in which a five-tuple was found last, by [`ShortKey::hint`], with [`NEW`] in the lowest
/// bit. Each hint is one word, which any CPU may write at any time. It is only a guess, and the
/// session's entry confirms it. A hint saves the lookup in the hash map, which costs more than
/// all other work on most packets.
#[map]
static HINTS: Array<[u32; ShortKey::HINTS as usize]> = Array::with_max_entries(1, 0);

/// Number of hints less one; the number is a power of two. Set by user space.
#[unsafe(no_mangle)]
static HINT_MASK: u32 = 0;

/// Bit of a hint: the five-tuple is that of the session's new path.
const NEW: u32 = 1;

/// A packet's session.
pub(crate) struct Flow {
    /// Its slot.
    pub slot: u32,
    /// True if the packet belongs to the subsession that replaced the session's own five-tuple.
    pub new: bool,
    /// Its entry.
    pub s: &'static mut Session,
}

/// Returns the hint of a five-tuple.
#[inline(always)]
fn hint_of(short: &ShortKey) -> Option<*mut u32> {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    let mask = unsafe { core::ptr::read_volatile(&raw const HINT_MASK) };
    let at = short.hint() & mask;
    let line = HINTS.get_ptr_mut(at / ShortKey::HINTS)?;
    // SAFETY: one of the element's words.
    Some(unsafe { line.cast::<u32>().add((at % ShortKey::HINTS) as usize) })
}

/// Looks a five-tuple up, by its hint or else in the map.
#[inline(always)]
pub(crate) fn find(key: &Key) -> Option<Flow> {
    let hint = hint_of(&key.short)?;
    // SAFETY: a word of an array map.
    let guess = unsafe { *hint };
    let (slot, new) = (guess >> 1, guess & NEW != 0);
    let s = session(slot)?;
    if key.short == *(if new { &s.short_path } else { &s.short })
        && key.is_v6() == (s.life.v6 != 0)
        && (!key.is_v6() || is_of(s, new, key))
    {
        return Some(Flow { slot, new, s });
    }
    let flow = look_up(key)?;
    // SAFETY: as above.
    unsafe { *hint = a_hint(flow.slot, flow.new) };
    Some(flow)
}

#[inline(always)]
fn a_hint(slot: u32, new: bool) -> u32 {
    slot << 1 | if new { NEW } else { 0 }
}

/// Stores a hint, so that the first lookup of a new five-tuple succeeds at once.
#[inline(always)]
fn set_hint(short: &ShortKey, slot: u32, new: bool) {
    if let Some(hint) = hint_of(short) {
        // SAFETY: a word of an array map.
        unsafe { *hint = a_hint(slot, new) };
    }
}

/// Returns the session of a packet by its hint, or `None`.
#[inline(always)]
pub(crate) fn hinted<const V6: bool>(
    ctx: &impl Bytes,
    dir: Direction,
    short: &ShortKey,
) -> Option<Flow> {
    // SAFETY: as in `find`.
    let guess = unsafe { *hint_of(short)? };
    let (slot, new) = (guess >> 1, guess & NEW != 0);
    let s = session(slot)?;
    if *short != *(if new { &s.short_path } else { &s.short }) || V6 != (s.life.v6 != 0) {
        return None;
    }
    if V6 {
        let whole = if new { &s.path } else { &s.key };
        if addresses_v6(ctx, dir)? != (whole.local, whole.remote) {
            return None;
        }
    }
    Some(Flow { slot, new, s })
}

/// True if no session has this key.
#[inline(always)]
pub(crate) fn is_unused(short: &ShortKey) -> bool {
    FLOWS.get_ptr(short).is_none()
}

/// Looks a five-tuple up in the map.
#[inline(always)]
pub(crate) fn look_up(key: &Key) -> Option<Flow> {
    // SAFETY: copied at once. An element freed meanwhile remains readable until the end of the
    // RCU section that the program runs in.
    let flow = unsafe { FLOWS.get(&key.short).copied() }?;
    if flow.is_alias() {
        return None;
    }
    let new = flow.is_new();
    let s = session(flow.slot)?;
    if flow.v6 != key.is_v6() as u16 || key.is_v6() && !is_of(s, new, key) {
        return None;
    }
    Some(Flow {
        slot: flow.slot,
        new,
        s,
    })
}

/// True if the whole five-tuple is the session's.
#[inline(always)]
fn is_of(s: &Session, new: bool, key: &Key) -> bool {
    key.whole == *(if new { &s.path } else { &s.key })
}

/// Takes a free slot and enters the key for it. The session `ended` may still have that key.
#[inline(always)]
pub(crate) fn claim(key: &Key, ended: Option<&mut Session>) -> Option<(u32, &'static mut Session)> {
    let slot = FREE.pop().ok()??;
    let flags = if ended.is_some() {
        0
    } else {
        BPF_NOEXIST as u64
    };
    let value = FlowRef::new(&key.whole, slot, Path::Old);
    if FLOWS.insert(&key.short, value, flags).is_err()
        && (!was_called(&key.short) || FLOWS.insert(&key.short, value, 0).is_err())
    {
        let _ = FREE.push(slot, 0);
        return None;
    }
    if let Some(ended) = ended {
        ended.short = ShortKey::default();
    }
    set_hint(&key.short, slot, false);
    Some((slot, session(slot)?))
}

/// Returns the session for which other hosts have this name.
#[inline(always)]
fn called(short: &ShortKey) -> Option<&'static mut Session> {
    // SAFETY: copied at once (see `look_up`).
    let flow = unsafe { FLOWS.get(short).copied() }?;
    if flow.is_alias() {
        session(flow.slot)
    } else {
        None
    }
}

/// True if no packet of the session arrives here any longer.
#[inline(always)]
fn is_over(s: &Session) -> bool {
    let over = matches!(
        State::from_word(s.state),
        Some(State::Free | State::Closed | State::Tombstone)
    );
    over || s.has_ended()
}

/// True if other hosts call a session by this name that passes here.
#[inline(always)]
pub(crate) fn is_called(short: &ShortKey) -> bool {
    called(short).is_some_and(|s| !is_over(s))
}

/// True if other hosts called a session by this name that is over.
#[inline(always)]
fn was_called(short: &ShortKey) -> bool {
    called(short).is_some_and(|s| is_over(s))
}

/// Makes the name that other hosts have for a session lead to its entry, so that user space
/// finds the session. A five-tuple of another live session is not taken. Exported: see
/// `learn::dysco_offer`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn dysco_called(slot: u32) -> u32 {
    let Some(s) = session(slot) else {
        return 0;
    };
    if !s.is_behind_nat() {
        return 0;
    }
    let name = s.alias.whole(&s.key);
    let short = name.short();
    let value = Aligned(FlowRef::alias(&name, slot));
    // SAFETY: copied at once (see `look_up`).
    let held = unsafe { FLOWS.get(&short).copied() };
    let Some(held) = held else {
        return FLOWS.insert(&short, &value.0, BPF_NOEXIST as u64).is_ok() as u32;
    };
    let Some(other) = session(held.slot) else {
        return 0;
    };
    // The opening host has no two sessions of that name: an earlier session with this name has
    // vanished.
    if !held.is_alias() {
        if held.is_new() || !is_over(other) {
            return 0;
        }
        other.short = ShortKey::default();
    }
    FLOWS.insert(&short, &value.0, 0).is_ok() as u32
}

/// Gives a claimed slot a subsession, whose key `ended` may still have. If another session has
/// the key, or there is no room, counts that, gives the slot back and returns false.
#[inline(always)]
pub(crate) fn claim_path(
    key: &Key,
    slot: u32,
    s: &mut Session,
    ended: Option<&mut Session>,
) -> bool {
    let flags = if ended.is_some() {
        0
    } else {
        BPF_NOEXIST as u64
    };
    // In map memory, where LLVM may store double words at any alignment.
    s.short_path = s.path.short();
    let value = Aligned(FlowRef::new(&s.path, slot, Path::New));
    if FLOWS.insert(&s.short_path, &value.0, flags).is_err() {
        if FLOWS.get_ptr(&s.short_path).is_some() {
            count(Counter::ChainTaken);
        } else {
            no_room();
        }
        // The session's own five-tuple may lead to its other entry.
        if leads_to(&key.short, slot) {
            let _ = FLOWS.remove(&key.short);
        }
        // A hint leads to this entry.
        s.short = ShortKey::default();
        // Before the push: the slot may belong to another session as soon as it is in the queue.
        s.state = State::Free as u32;
        let _ = FREE.push(slot, 0);
        return false;
    }
    if let Some(ended) = ended {
        ended.short_path = ShortKey::default();
    }
    set_hint(&s.short_path, slot, true);
    true
}

/// Counts and reports a session that found no room.
#[inline(always)]
pub(crate) fn no_room() {
    count(Counter::NoRoom);
    tell(EventKind::NoRoom, u32::MAX);
}

#[inline(always)]
fn leads_to(short: &ShortKey, slot: u32) -> bool {
    // SAFETY: as in `look_up`.
    unsafe { FLOWS.get(short) }.is_some_and(|flow| flow.slot == slot)
}

/// Removes an entry's subsession.
#[inline(always)]
pub(crate) fn give_up_path(slot: u32, s: &mut Session) {
    if leads_to(&s.short_path, slot) {
        let _ = FLOWS.remove(&s.short_path);
    }
    s.short_path = ShortKey::default();
}

/// Makes the session's own five-tuple lead to this entry. Returns false if it cannot.
#[inline(always)]
pub(crate) fn lead_to(slot: u32, s: &mut Session) -> bool {
    let value = Aligned(FlowRef::new(&s.key, slot, Path::Old));
    s.short = s.key.short();
    FLOWS.insert(&s.short, &value.0, 0).is_ok()
}

/// Takes a free slot.
#[inline(always)]
pub(crate) fn claim_slot() -> Option<(u32, &'static mut Session)> {
    let slot = FREE.pop().ok()??;
    Some((slot, session(slot)?))
}

/// A value that is stored as a double word.
#[repr(C, align(8))]
pub(crate) struct Aligned(pub FlowRef);
