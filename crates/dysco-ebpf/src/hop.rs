//! The next hop of a new path. The stack has chosen a neighbour for the packet's old
//! destination. Only the kernel's own lookup knows the neighbour for the new one, and that
//! lookup costs more than all other work. The program therefore asks once every few
//! milliseconds, not for every packet. [`Verdict::Redirect`] makes the kernel look the neighbour
//! up. The packet then passes this program once more, and its destination is learnt. The result
//! serves all sessions with the same addresses. It is also kept in the session itself, which
//! needs it if too many neighbours are in use. Routes and neighbours may change while no daemon
//! runs. An interface without an Ethernet header has no neighbours: a packet on it only stays there.
//!
//! [`Verdict::Redirect`]: crate::Verdict::Redirect

use aya_ebpf::helpers::generated::bpf_jiffies64;
use aya_ebpf::programs::TcContext;
use dysco_common::{Addr, Session};

use crate::maps;
use crate::packet::{HEADERLESS, at};
use crate::verdict::Verdict;

/// Binary logarithm of the number of ticks for which a hop is valid. A tick of the kernel's
/// clock is 1 to 10 ms.
const BELIEVED: u64 = 4;
/// Factor by which a hop is valid longer for XDP. No XDP frame asks for the hop by itself: a
/// packet must take the long way, and those behind it may overtake it.
const BELIEVED_BY_XDP: u64 = 8;
/// Bits of an Ethernet address.
const ADDRESS: u64 = (1 << 48) - 1;

/// Returns the time as the upper 16 bits of a [`Session::hop`]. It repeats after 2^20 ticks; a
/// hop of that time is then valid for 16 of them.
#[inline(always)]
fn now() -> u64 {
    // SAFETY: no arguments, no effects.
    unsafe { bpf_jiffies64() >> BELIEVED << 48 }
}

/// Returns the destination address of the frame, in memory order.
#[inline(always)]
fn address(ctx: &TcContext) -> Option<u64> {
    Some(at::<u64>(ctx, 0)? & ADDRESS)
}

/// Takes in the neighbour to which the kernel sends a packet of the new path. It is one store of
/// one word: CPUs may do so at the same time.
#[inline(always)]
pub(crate) fn learn(ctx: &TcContext, s: &mut Session) {
    // SAFETY: a readable field of the context.
    if HEADERLESS || unsafe { (*ctx.skb.skb).ifindex } != s.ifindex {
        return;
    }
    if let Some(address) = address(ctx) {
        s.hop = now() | address;
        if let Some(n) = maps::neighbour(&s.path.local, &s.path.remote) {
            (n.local, n.remote) = (s.path.local, s.path.remote);
            n.ifindex = s.ifindex;
            n.hop = s.hop;
        }
    }
}

/// Returns the next hop found last for any session of the same path, or else for this one. The
/// session's own is in memory that no other packet reads.
#[inline(always)]
fn found(s: &Session) -> u64 {
    let (local, remote) = (&s.path.local, &s.path.remote);
    match maps::neighbour(local, remote) {
        Some(n) if n.leads(local, remote, s.ifindex) => n.hop,
        _ => s.hop,
    }
}

/// True if the kernel must be asked for the hop again on behalf of XDP. XDP sends a frame back
/// only by the interface that it came by.
#[inline(always)]
pub(crate) fn is_asked(ctx: &TcContext, s: &Session) -> bool {
    // SAFETY: a readable field of the context.
    let here = unsafe { (*ctx.skb.skb).ifindex } == s.ifindex;
    !HEADERLESS && here && s.hop & !ADDRESS != now()
}

/// Takes in, for XDP, the neighbour to which the kernel sends a relayed packet, and the source
/// address.
#[inline(always)]
pub(crate) fn teach(ctx: &TcContext, s: &mut Session) {
    if let Some(own) = at::<u64>(ctx, 6) {
        s.own_address = own & ADDRESS;
        learn(ctx, s);
    }
}

/// Returns the next hop for XDP; 0 if none is valid.
#[inline(always)]
pub(crate) fn for_xdp(s: &Session) -> u64 {
    let age = now().wrapping_sub(s.hop & !ADDRESS) >> 48;
    if age < BELIEVED_BY_XDP {
        s.hop & ADDRESS
    } else {
        0
    }
}

/// Sends a frame of the new path.
#[inline(always)]
pub(crate) fn send(ctx: &TcContext, s: &Session) -> Verdict {
    if take(ctx, s) {
        Verdict::Changed
    } else {
        Verdict::Redirect { ifindex: s.ifindex }
    }
}

/// Sends a frame between these addresses, of any session.
#[inline(always)]
pub(crate) fn send_between(ctx: &TcContext, local: &Addr, remote: &Addr, ifindex: u32) -> Verdict {
    let known = maps::neighbour(local, remote);
    let known = known.filter(|n| n.leads(local, remote, ifindex));
    if take_hop(ctx, known.map_or(0, |n| n.hop), ifindex) {
        Verdict::Changed
    } else {
        Verdict::Redirect { ifindex }
    }
}

/// Addresses the frame to the next hop of the new path, if that is known and behind the same
/// interface. Otherwise the frame is unchanged.
#[inline(always)]
fn take(ctx: &TcContext, s: &Session) -> bool {
    take_hop(ctx, found(s), s.ifindex)
}

#[inline(always)]
fn take_hop(ctx: &TcContext, hop: u64, ifindex: u32) -> bool {
    // SAFETY: a readable field of the context.
    let here = unsafe { (*ctx.skb.skb).ifindex } == ifindex;
    if HEADERLESS {
        return here;
    }
    if !here || hop & ADDRESS == 0 || hop & !ADDRESS != now() {
        return false;
    }
    let Some(address) = address(ctx) else {
        return false;
    };
    if address == hop & ADDRESS {
        return true;
    }
    let bytes = hop.to_ne_bytes();
    let [a, b, c, d, e, f, ..] = bytes;
    ctx.store(0, &[a, b, c, d, e, f], 0).is_ok()
}
