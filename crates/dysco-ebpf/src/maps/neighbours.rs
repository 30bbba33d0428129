//! Neighbours of recent packets.

use aya_ebpf::macros::map;
use aya_ebpf::maps::PerCpuArray;
use dysco_common::{Addr, ShortKey};

/// Neighbour that packets of a path leave to. One entry serves all sessions with the same
/// addresses and interface.
#[repr(C)]
pub(crate) struct Neighbour {
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
    pub(crate) fn leads(&self, local: &Addr, remote: &Addr, ifindex: u32) -> bool {
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
pub(crate) fn neighbour(local: &Addr, remote: &Addr) -> Option<&'static mut Neighbour> {
    // The end of an address distinguishes the hosts of one network.
    let [.., local] = local.words();
    let [.., remote] = remote.words();
    let spread = ShortKey::new(local, remote, 0, 0).spread();
    let place = NEIGHBOURS.get_ptr_mut(spread & (NEIGHBOURS_KEPT - 1));
    // SAFETY: this CPU's own element. A program that runs inside the redirect of another writes
    // it when the other one no longer reads it.
    place.map(|p| unsafe { &mut *p })
}
