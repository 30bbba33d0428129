//! The maps. User space pins the maps whose content sessions need after the daemon has ended. It
//! does not pin, for example, the hints, the neighbours and the scratch memory.

use crate::packet::{Bytes, Direction, Key, Packet, addresses_v6};
use crate::write::Change;
use aya_ebpf::bindings::{
    BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, BPF_NOEXIST, BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP,
    BPF_RB_NO_WAKEUP,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, Queue, RingBuf};
use dysco_common::chain::{Given, Hop, Payload, Pending, Shared, Token};
use dysco_common::delta::Told;
use dysco_common::icmp::{Message, Quoted};
use dysco_common::policy::{MAX_RULES, PolicyRule};
use dysco_common::probe::Arrival;
use dysco_common::rule::Rules;
use dysco_common::{
    Addr, Counter, Event, EventKind, FlowRef, Offer, Path, Session, ShortKey, State,
};

/// Slot and path of each five-tuple on the wire. User space sets the size.
#[map]
pub static FLOWS: HashMap<ShortKey, FlowRef> = HashMap::with_max_entries(1, 0);

/// Slot in which a five-tuple was found last, by [`ShortKey::hint`], with [`NEW`] in the lowest
/// bit. Each hint is one word, which any CPU may write at any time. It is only a guess, and the
/// session's entry confirms it. A hint saves the lookup in the hash map, which costs more than
/// all other work on most packets.
#[map]
static HINTS: Array<[u32; ShortKey::HINTS as usize]> = Array::with_max_entries(1, 0);

/// Number of hints less one; the number is a power of two. Set by user space.
#[unsafe(no_mangle)]
static HINT_MASK: u32 = 0;

/// 1 if XDP may relay, else 0. Set by user space.
#[unsafe(no_mangle)]
static XDP: u32 = 0;

/// True if XDP may relay on this host.
#[inline(always)]
pub fn xdp() -> bool {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    unsafe { core::ptr::read_volatile(&raw const XDP) != 0 }
}

/// Bit of a hint: the five-tuple is that of the session's new path.
const NEW: u32 = 1;

/// The sessions. User space maps the memory and writes single words.
#[map]
pub static SESSIONS: Array<Session> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Free slots of `SESSIONS`.
#[map]
pub static FREE: Queue<u32> = Queue::with_max_entries(1, 0);

/// Rules that select the sessions to track.
#[map]
pub static RULES: Array<Rules> = Array::with_max_entries(1, 0);

/// The policy's rules: those in force, and room for the next ones.
#[map]
pub static POLICY: Array<PolicyRule> = Array::with_max_entries(2 * MAX_RULES as u32, 0);

/// A word of `policy::InForce`.
#[map]
pub static IN_FORCE: Array<u64> = Array::with_max_entries(1, 0);

/// Hosts that a chain's SYN may be sent to.
#[map]
pub static HOPS: HashMap<Addr, Hop> = HashMap::with_max_entries(4096, 0);

/// Keys that may prove a chain's SYN.
#[map]
pub static KEYS: HashMap<u64, Shared> = HashMap::with_max_entries(16384, 0);

/// This host's addresses. Set by user space.
#[map]
pub static OWN: HashMap<Addr, u8> = HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);

/// Slots of the entries for paths of live sessions that are awaited here, by the secret that the
/// SYN must have.
#[map]
pub static JOINS: HashMap<Token, u32> = HashMap::with_max_entries(65536, BPF_F_NO_PREALLOC);

/// Chains by slot, of sessions that were given one while they lived, or by rules that are no
/// longer in force. No program reads this map. It outlives the daemon, as sessions do.
#[map]
pub static CHAINS: HashMap<u32, Given> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Bytes that middleboxes of this host have reported as added to sessions, by the slot that the
/// session came by. Outlives the daemon, like [`CHAINS`].
#[map]
pub static DELTAS: HashMap<u32, Told> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Right edge of the window that a session's remote end offers this host's stack, by slot, while
/// this host is the anchor of that end. 0 if it is unknown, else as in `two_paths::kept_edge`.
/// Separate from the entries, because few sessions need it.
#[map]
static EDGES: Array<u32> = Array::with_max_entries(1, 0);

/// Returns the edge of a slot.
#[inline(always)]
pub fn edge(slot: u32) -> Option<&'static mut u32> {
    // SAFETY: a word of an array map. Programs on other CPUs write it by one instruction, and
    // user space by one store.
    EDGES.get_ptr_mut(slot).map(|p| unsafe { &mut *p })
}

/// First source port of new subsessions, and number of ports. Set by user space.
#[unsafe(no_mangle)]
static PORTS: [u16; 2] = [61000, 4000];

/// Returns the first source port of new subsessions, and the number of ports.
#[inline(always)]
pub fn ports() -> [u16; 2] {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    unsafe { core::ptr::read_volatile(&raw const PORTS) }
}

/// Counters of packets, by their fate.
#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::ALL.len() as u32, 0);

/// Events for user space.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(RING, 0);

/// Not 0 while user space wants an event for every session that opens. Set by user space.
#[map]
static WATCHED: Array<u32> = Array::with_max_entries(1, 0);

/// Working memory of one run of a program. It is in a map and not on the stack, because the
/// stack is small and the verifier follows every value on it.
#[repr(C)]
pub struct Scratch {
    /// The packet.
    pub packet: Packet,
    /// The change to be written into the packet.
    pub change: Change,
    /// Lookup result of a segment with SYN: the slot of its five-tuple plus 1, or 0 if there is
    /// none; and not 0 if the five-tuple is that of the session's new path.
    known: [u32; 2],
    /// The options that the packet offers, if it is a SYN.
    pub offer: Offer,
    /// The key for the lookup after translation.
    pub session: Key,
    /// The payload of a chain's SYN.
    pub payload: Payload,
    /// The record that is remembered of the SYN.
    pub pending: Pending,
    /// The next hop of the SYN.
    pub hop: Hop,
    /// An ICMP packet with an error about a segment.
    pub icmp: Message,
    /// The segment that the error is about.
    pub quoted: Quoted,
    /// The report to user space about a packet that opens a path.
    pub arrival: Arrival,
}

/// Working memory per CPU: one element for each program that may run while another one has not
/// ended. A copy made on egress passes the program again, inside the first run.
#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(3, 0);

/// Place that [`forget`] writes to and reads from, so that the verifier forgets the value.
#[map]
static FORGOTTEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Returns the same word, with a value that the verifier does not know. The verifier then checks
/// the following code once, and not for each value that it has found possible.
#[inline(always)]
pub fn forget(word: u64) -> Option<u64> {
    let place = FORGOTTEN.get_ptr_mut(0)?;
    // SAFETY: this CPU's own element. No program that uses it otherwise runs between the two
    // accesses.
    unsafe {
        place.write_volatile(word);
        Some(place.read_volatile())
    }
}

/// Neighbour that packets of a path leave to. One entry serves all sessions with the same
/// addresses and interface.
#[repr(C)]
pub struct Neighbour {
    /// The path's addresses and interface.
    pub local: Addr,
    pub remote: Addr,
    pub ifindex: u32,
    pub reserved: u32,
    /// The neighbour, in the form of `Session::hop`.
    pub hop: u64,
}

impl Neighbour {
    /// True if this is the neighbour of the path between these addresses.
    #[inline(always)]
    pub fn leads(&self, local: &Addr, remote: &Addr, ifindex: u32) -> bool {
        self.ifindex == ifindex && self.remote == *remote && self.local == *local
    }
}

/// Number of neighbours that are remembered: a power of two.
const NEIGHBOURS_KEPT: u32 = 1024;

/// Neighbours that were found last. Per CPU, because an element is more than a word.
#[map]
static NEIGHBOURS: PerCpuArray<Neighbour> = PerCpuArray::with_max_entries(NEIGHBOURS_KEPT, 0);

/// Returns the place for a path's neighbour, which may contain that of another path.
#[inline(always)]
pub fn neighbour(local: &Addr, remote: &Addr) -> Option<&'static mut Neighbour> {
    // The end of an address distinguishes the hosts of one network.
    let [.., local] = local.words();
    let [.., remote] = remote.words();
    let spread = ShortKey::new(local, remote, 0, 0).spread();
    let place = NEIGHBOURS.get_ptr_mut(spread & (NEIGHBOURS_KEPT - 1));
    // SAFETY: this CPU's own element. A program that runs inside the redirect of another writes
    // it when the other one no longer reads it.
    place.map(|p| unsafe { &mut *p })
}

impl Scratch {
    /// Returns the flow of the packet's five-tuple, as [`know`] has stored it. A lookup takes
    /// longer.
    #[inline(always)]
    pub fn known(&self) -> Option<Flow> {
        let [slot, new] = self.known;
        let slot = slot.checked_sub(1)?;
        let s = session(slot)?;
        Some(Flow {
            slot,
            new: new != 0,
            s,
        })
    }
}

/// Stores the flow of the five-tuple of a segment with SYN: the slot plus 1, or 0 for none.
#[inline(always)]
pub fn know(run: Run, slot: u32, new: bool) {
    if let Some(scratch) = scratch(run as u32) {
        scratch.known = [slot, new as u32];
    }
}

/// Run of a program, which has scratch memory of its own.
#[derive(Clone, Copy)]
pub enum Run {
    /// A packet on its way out.
    Egress = 0,
    /// A copy of a packet on its way out.
    Copy = 1,
    /// A packet on its way in.
    Ingress = 2,
}

/// Returns the scratch memory of a [`Run`]. References obtained before must not be used any
/// longer.
#[inline(always)]
pub fn scratch(run: u32) -> Option<&'static mut Scratch> {
    // SAFETY: this CPU's own element; programs of the same `Run` do not nest
    // and are not preempted by each other.
    SCRATCH.get_ptr_mut(run).map(|p| unsafe { &mut *p })
}

/// Adds one to a counter, inline: for packets of a session that needs nothing else.
#[inline(always)]
pub fn count_usual(c: Counter) {
    count_one(c as u32);
}

/// Adds one to a counter.
#[inline(always)]
pub fn count(c: Counter) {
    dysco_count(c as u32);
}

#[inline(always)]
fn count_one(counter: u32) {
    if let Some(v) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: a valid element of a per-CPU map, which no other CPU writes.
        unsafe { *v += 1 }
    }
}

/// Exported: the kernel rewrites each map lookup, and the whole program with it.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_count(counter: u32) -> u32 {
    count_one(counter);
    0
}

/// Bytes of `EVENTS`.
const RING: u32 = 1 << 20;

/// Reports an event to user space. A full ring loses the event: user space also checks by itself
/// from time to time.
#[inline(always)]
pub fn tell(kind: EventKind, slot: u32) {
    dysco_tell(kind as u32, slot, 0);
}

/// Reports an event that can wait until user space checks by itself. A wake-up costs more than
/// all other work at a session's opening.
#[inline(always)]
pub fn tell_later(kind: EventKind, slot: u32) {
    dysco_tell(kind as u32, slot, 1);
}

/// Writes an event. Exported, like [`dysco_count`]. `waits` is not 0 if the event can wait.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn dysco_tell(kind: u32, slot: u32, waits: u32) -> u32 {
    // Without flags the kernel wakes no reader while there are records that no reader was woken
    // for.
    let flags = if waits == 0 || EVENTS.query(BPF_RB_AVAIL_DATA as u64) > RING as u64 / 4 {
        BPF_RB_FORCE_WAKEUP as u64
    } else {
        BPF_RB_NO_WAKEUP as u64
    };
    if let Some(mut r) = EVENTS.reserve::<Event>(0) {
        r.write(Event { kind, slot });
        r.submit(flags);
    }
    0
}

/// Reports that a session has opened, if user space wants these events.
#[inline(always)]
pub fn tell_opened(slot: u32) {
    if WATCHED.get(0).is_some_and(|watched| *watched != 0) {
        tell_later(EventKind::Opened, slot);
    }
}

/// A packet's session.
pub struct Flow {
    /// Its slot.
    pub slot: u32,
    /// True if the packet belongs to the subsession that replaced the session's own five-tuple.
    pub new: bool,
    /// Its entry.
    pub s: &'static mut Session,
}

/// Returns the entry of a slot.
#[inline(always)]
pub fn session(slot: u32) -> Option<&'static mut Session> {
    // SAFETY: a valid element of an array map. Programs on other CPUs and user space may write
    // words of it meanwhile. Each word is consistent by itself, and the code is correct with any
    // order of the writes.
    SESSIONS.get_ptr_mut(slot).map(|p| unsafe { &mut *p })
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
pub fn find(key: &Key) -> Option<Flow> {
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
pub fn hinted<const V6: bool>(ctx: &impl Bytes, dir: Direction, short: &ShortKey) -> Option<Flow> {
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
pub fn is_nobodys(short: &ShortKey) -> bool {
    FLOWS.get_ptr(short).is_none()
}

#[inline(always)]
fn look_up(key: &Key) -> Option<Flow> {
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
pub fn claim(key: &Key, ended: Option<&mut Session>) -> Option<(u32, &'static mut Session)> {
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
pub fn is_called(short: &ShortKey) -> bool {
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
pub extern "C" fn dysco_called(slot: u32) -> u32 {
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
pub fn claim_path(key: &Key, slot: u32, s: &mut Session, ended: Option<&mut Session>) -> bool {
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
pub fn no_room() {
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
pub fn give_up_path(slot: u32, s: &mut Session) {
    if leads_to(&s.short_path, slot) {
        let _ = FLOWS.remove(&s.short_path);
    }
    s.short_path = ShortKey::default();
}

/// Makes the session's own five-tuple lead to this entry. Returns false if it cannot.
#[inline(always)]
pub fn lead_to(slot: u32, s: &mut Session) -> bool {
    let value = Aligned(FlowRef::new(&s.key, slot, Path::Old));
    s.short = s.key.short();
    FLOWS.insert(&s.short, &value.0, 0).is_ok()
}

/// Takes a free slot.
#[inline(always)]
pub fn claim_slot() -> Option<(u32, &'static mut Session)> {
    let slot = FREE.pop().ok()??;
    Some((slot, session(slot)?))
}

/// A value that is stored as a double word.
#[repr(C, align(8))]
pub struct Aligned(pub FlowRef);
