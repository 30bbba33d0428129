//! The next hop of a new path. The stack has chosen a neighbour for a packet by
//! its old destination; who is the neighbour for the new one only the kernel's
//! own look-up knows, which costs more than all the rest. It is asked again
//! every few milliseconds, not for every packet: [`Verdict::Redirect`] makes it
//! look, the packet comes through this program once more, and teaches what was
//! found: all sessions with the same addresses, and the session itself, which needs it
//! where too many neighbours are in use. No daemon is needed to follow a route or a
//! neighbour that changes.
//!
//! [`Verdict::Redirect`]: crate::Verdict::Redirect

use aya_ebpf::helpers::generated::bpf_jiffies64;
use aya_ebpf::programs::TcContext;
use dysco_common::{Addr, Session};

use crate::Verdict;
use crate::maps;
use crate::packet::at;

/// Ticks of the kernel's clock (1 to 10 ms each) for which a hop is believed,
/// as a shift.
const BELIEVED: u64 = 4;
/// For so many times as long XDP believes it: no frame of its own asks, so a
/// packet has to take the long way, which those behind it may overtake.
const BELIEVED_BY_XDP: u64 = 8;
/// Bits of an Ethernet address.
const ADDRESS: u64 = (1 << 48) - 1;

/// The time, as the upper 16 bits of a [`Session::hop`]. It comes again after
/// 2^20 ticks; a hop of then is believed for 16 of them.
#[inline(always)]
fn now() -> u64 {
    // SAFETY: no arguments, no effects.
    unsafe { bpf_jiffies64() >> BELIEVED << 48 }
}

/// The destination address of the frame, as memory has it.
#[inline(always)]
fn address(ctx: &TcContext) -> Option<u64> {
    Some(at::<u64>(ctx, 0)? & ADDRESS)
}

/// Takes in where the kernel sends a packet of the new path. One store of one
/// word: CPUs may do so at the same time.
#[inline(always)]
pub fn learn(ctx: &TcContext, s: &mut Session) {
    // SAFETY: a readable field of the context.
    if unsafe { (*ctx.skb.skb).ifindex } != s.ifindex {
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

/// The next hop that was found last for any session of the same path, or else for
/// this one: its own lies where no other packet looks.
#[inline(always)]
fn found(s: &Session) -> u64 {
    let (local, remote) = (&s.path.local, &s.path.remote);
    match maps::neighbour(local, remote) {
        Some(n) if n.leads(local, remote, s.ifindex) => n.hop,
        _ => s.hop,
    }
}

/// Is the kernel to be asked again for XDP, which sends back only by the
/// interface that a frame came by?
#[inline(always)]
pub fn is_asked(ctx: &TcContext, s: &Session) -> bool {
    // SAFETY: a readable field of the context.
    let here = unsafe { (*ctx.skb.skb).ifindex } == s.ifindex;
    here && s.hop & !ADDRESS != now()
}

/// Takes in, for XDP, where the kernel sends a relayed packet, and as whom.
#[inline(always)]
pub fn teach(ctx: &TcContext, s: &mut Session) {
    if let Some(own) = at::<u64>(ctx, 6) {
        s.own_address = own & ADDRESS;
        learn(ctx, s);
    }
}

/// The next hop as XDP believes it; 0 for none.
#[inline(always)]
pub fn for_xdp(s: &Session) -> u64 {
    let age = now().wrapping_sub(s.hop & !ADDRESS) >> 48;
    if age < BELIEVED_BY_XDP {
        s.hop & ADDRESS
    } else {
        0
    }
}

/// Sends a frame of the new path on its way.
#[inline(always)]
pub fn send(ctx: &TcContext, s: &Session) -> Verdict {
    if take(ctx, s) {
        Verdict::Changed
    } else {
        Verdict::Redirect { ifindex: s.ifindex }
    }
}

/// Sends a frame between these addresses on its way, whatever session's.
#[inline(always)]
pub fn send_between(ctx: &TcContext, local: &Addr, remote: &Addr, ifindex: u32) -> Verdict {
    let known = maps::neighbour(local, remote);
    let known = known.filter(|n| n.leads(local, remote, ifindex));
    if known.is_some_and(|n| take_hop(ctx, n.hop, ifindex)) {
        Verdict::Changed
    } else {
        Verdict::Redirect { ifindex }
    }
}

/// Sends the frame to the next hop of the new path, if that is known and behind
/// the same interface. If not, the frame is as before.
#[inline(always)]
fn take(ctx: &TcContext, s: &Session) -> bool {
    take_hop(ctx, found(s), s.ifindex)
}

#[inline(always)]
fn take_hop(ctx: &TcContext, hop: u64, ifindex: u32) -> bool {
    // SAFETY: a readable field of the context.
    let here = unsafe { (*ctx.skb.skb).ifindex } == ifindex;
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
