//! The maps. User space pins the maps whose content sessions need after the daemon has ended. It
//! does not pin, for example, the hints, the neighbours and the scratch memory.

mod flows;
mod neighbours;
mod reports;
mod scratch;

use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, ProgramArray, Queue};
use dysco_common::chain::{Given, Hop, Shared, Token};
use dysco_common::delta::DeclaredDelta;
use dysco_common::detour::{Detour, MAX_DETOURS};
use dysco_common::packet_services::{MAX_PACKET_SERVICES, PacketServices};
use dysco_common::policy::{MAX_RULES, MAX_RUNS, PolicyRule};
use dysco_common::rule::Rules;
use dysco_common::{Addr, Session, ShortKey};

pub(crate) use flows::{
    Aligned, FLOWS, Flow, claim, claim_path, claim_slot, dysco_called, find, give_up_path, hinted,
    is_called, is_unused, lead_to, look_up, no_room,
};
pub(crate) use neighbours::neighbour;
pub(crate) use reports::{EVENTS, count, count_usual, tell, tell_later, tell_opened};
pub(crate) use scratch::{Run, Scratch, know, scratch};

/// 1 if XDP may relay, else 0. Set by user space.
#[unsafe(no_mangle)]
static XDP: u32 = 0;

/// True if XDP may relay on this host.
#[inline(always)]
pub(crate) fn xdp() -> bool {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    unsafe { core::ptr::read_volatile(&raw const XDP) != 0 }
}

/// The sessions. User space maps the memory and writes single words.
#[map]
pub(crate) static SESSIONS: Array<Session> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Free slots of `SESSIONS`.
#[map]
pub(crate) static FREE: Queue<u32> = Queue::with_max_entries(1, 0);

/// Rules that select the sessions to track.
#[map]
pub(crate) static RULES: Array<Rules> = Array::with_max_entries(1, 0);

/// The policy's rules: those in force, and room for the next ones.
#[map]
pub(crate) static POLICY: Array<PolicyRule> = Array::with_max_entries(2 * MAX_RULES as u32, 0);

/// A word of `policy::InForce`.
#[map]
pub(crate) static IN_FORCE: Array<u64> = Array::with_max_entries(1, 0);

/// Hosts that a chain's SYN may be sent to.
#[map]
pub(crate) static HOPS: HashMap<Addr, Hop> = HashMap::with_max_entries(4096, 0);

/// Keys that may prove a chain's SYN.
#[map]
pub(crate) static KEYS: HashMap<u64, Shared> = HashMap::with_max_entries(16384, 0);

/// This host's addresses. Set by user space.
#[map]
pub(crate) static OWN: HashMap<Addr, u8> = HashMap::with_max_entries(1024, BPF_F_NO_PREALLOC);

/// Slots of the entries for paths of live sessions that are awaited here, by the secret that the
/// SYN must have.
#[map]
pub(crate) static JOINS: HashMap<Token, u32> = HashMap::with_max_entries(65536, BPF_F_NO_PREALLOC);

/// Chains by slot, of sessions that were given one while they lived, or by rules that are no
/// longer in force. No program reads this map. It outlives the daemon, as sessions do.
#[map]
pub(crate) static CHAINS: HashMap<u32, Given> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Bytes that middleboxes of this host have reported as added to sessions, by the slot that the
/// session came by. Outlives the daemon, like [`CHAINS`].
#[map]
pub(crate) static DELTAS: HashMap<u32, DeclaredDelta> =
    HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Right edge of the window that a session's remote end offers this host's stack, by slot, while
/// this host is the anchor of that end. 0 if it is unknown, else as in `two_paths::stored_edge`.
/// Separate from the entries, because few sessions need it.
#[map]
static EDGES: Array<u32> = Array::with_max_entries(1, 0);

/// Returns the edge of a slot.
#[inline(always)]
pub(crate) fn edge(slot: u32) -> Option<&'static mut u32> {
    // SAFETY: a word of an array map. Programs on other CPUs write it by one instruction, and
    // user space by one store.
    EDGES.get_ptr_mut(slot).map(|p| unsafe { &mut *p })
}

/// Records of sessions with a detour. User space maps the memory and writes single words.
#[map]
static DETOURS: Array<Detour> = Array::with_max_entries(MAX_DETOURS, BPF_F_MMAPABLE);

/// Index in [`DETOURS`] of a session's record, by the slot of its entry.
#[map]
static DETOURED: HashMap<u32, u32> = HashMap::with_max_entries(MAX_DETOURS, BPF_F_NO_PREALLOC);

/// Programs for packets of sessions with a detour, by `dysco_common::detour::program`. User space
/// loads them apart from the others: the kernel would verify them once for every way that leads there.
#[map]
static DETOUR_PROGRAMS: ProgramArray = ProgramArray::with_max_entries(2, 0);

/// Continues in a program for sessions with a detour. Returns only if it is not there.
#[cfg(not(feature = "headerless"))]
#[inline(always)]
pub(crate) fn continue_in(ctx: &aya_ebpf::programs::TcContext, program: u32) {
    // SAFETY: no value of the caller is dropped that would need it.
    unsafe { DETOUR_PROGRAMS.tail_call(ctx, program) };
    count(dysco_common::Counter::DroppedError);
}

/// Returns the record of a session with a detour.
#[cfg(not(feature = "headerless"))]
#[inline(always)]
pub(crate) fn detour(slot: u32) -> Option<&'static mut Detour> {
    // SAFETY: copied at once (see `look_up`).
    let index = unsafe { DETOURED.get(&slot) }.copied()?;
    // SAFETY: as in `session`.
    DETOURS.get_ptr_mut(index).map(|p| unsafe { &mut *p })
}

/// Records of sessions with services of the packet plane. User space maps the memory and writes
/// single words.
#[map]
static PACKET_SERVICES: Array<PacketServices> =
    Array::with_max_entries(MAX_PACKET_SERVICES, BPF_F_MMAPABLE);

/// Index in [`PACKET_SERVICES`] of a session's record, by its own five-tuple.
#[map]
static PACKET_SERVED: HashMap<ShortKey, u32> =
    HashMap::with_max_entries(MAX_PACKET_SERVICES, BPF_F_NO_PREALLOC);

/// Returns the record of a session with services of the packet plane.
#[inline(always)]
pub(crate) fn packet_services(short: &ShortKey) -> Option<&'static mut PacketServices> {
    // SAFETY: copied at once (see `look_up`).
    let index = unsafe { PACKET_SERVED.get(short) }.copied()?;
    // SAFETY: as in `session`.
    PACKET_SERVICES
        .get_ptr_mut(index)
        .map(|p| unsafe { &mut *p })
}

/// Names of the runs with services (`policy::run_name`), by the cgroup of their programs' sockets.
#[map]
pub(crate) static RUNS: HashMap<u64, u32> = HashMap::with_max_entries(MAX_RUNS, BPF_F_NO_PREALLOC);

/// First source port of new subsessions, and number of ports. Set by user space.
#[unsafe(no_mangle)]
static PORTS: [u16; 2] = [61000, 4000];

/// Returns the first source port of new subsessions, and the number of ports.
#[inline(always)]
pub(crate) fn ports() -> [u16; 2] {
    // SAFETY: a constant of the program; volatile, since user space sets it.
    unsafe { core::ptr::read_volatile(&raw const PORTS) }
}

/// Returns the entry of a slot.
#[inline(always)]
pub(crate) fn session(slot: u32) -> Option<&'static mut Session> {
    // SAFETY: a valid element of an array map. Programs on other CPUs and user space may write
    // words of it meanwhile. Each word is consistent by itself, and the code is correct with any
    // order of the writes.
    SESSIONS.get_ptr_mut(slot).map(|p| unsafe { &mut *p })
}
