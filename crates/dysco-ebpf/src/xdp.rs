//! Relaying before the kernel has made a packet of a frame. The program relays only the usual
//! frames of a relayed session, which leave by the interface they came by, to a neighbour that
//! TC has learnt. All other frames pass unchanged, and TC handles them as usual.
//!
//! XDP cannot distinguish a checksum that hardware must still complete from a complete one, and
//! assumes that each is complete. This is true of frames from a wire, but not between two hosts
//! of one machine. XDP also sees only one frame at a time. User space decides where this program
//! is attached.

use aya_ebpf::programs::XdpContext;
use dysco_common::Counter;
use dysco_common::checksum::{self, differ};
use dysco_common::session::{Session, State, translation};
use dysco_common::short::ShortHeader;
use dysco_common::tcp::{Edit, MIN_HEADER};

use crate::fast_path::opens_or_ends;
use crate::hop;
use crate::maps::{self, Flow, count_usual};
use crate::packet::{
    Bytes, Direction, ETH_P_IP, ETH_P_IPV6, ETHERTYPE, Packet, WITH_TIMESTAMPS, at, l4, usual,
};
use crate::relay;

/// Relays a frame, which is then sent back. Returns `None` if the frame is unchanged.
#[inline(always)]
pub(crate) fn relay(ctx: &XdpContext) -> Option<()> {
    match u16::from_be(at::<u16>(ctx, ETHERTYPE)?) {
        ETH_P_IP => relay_usual::<false>(ctx),
        ETH_P_IPV6 => relay_usual::<true>(ctx),
        _ => None,
    }
}

#[inline(always)]
fn relay_usual<const V6: bool>(ctx: &XdpContext) -> Option<()> {
    let p = usual::<V6>(ctx, Direction::In)?;
    if opens_or_ends(&p.found.seg) {
        return None;
    }
    let Flow { new, s, .. } = maps::hinted::<V6>(ctx, Direction::In, &p.short)?;
    // SAFETY: a readable field of the context.
    let here = unsafe { (*ctx.ctx).ingress_ifindex };
    if new || s.state != State::Relay as u32 || s.ifindex != here {
        return None;
    }
    // TC finds the path of this packet.
    if s.relay != 0 {
        return None;
    }
    // Rare, and in bytes that nothing else here reads.
    if s.translation.flags & translation::STRIP_ECN != 0 {
        return None;
    }
    let edit = s.translation.outgoing(&p.found.seg, &s.path);
    if p.found.data_offset > MIN_HEADER {
        change::<V6, WITH_TIMESTAMPS>(ctx, s, &edit)?;
    } else {
        change::<V6, MIN_HEADER>(ctx, s, &edit)?;
    }
    relay::usual_taken_in(s, &p.found.seg);
    s.new_in = s.new_in.wrapping_add(1);
    count_usual(Counter::Relayed);
    count_usual(Counter::RelayedByXdp);
    Some(())
}

/// Changes all of a frame with a TCP header of `TCP` bytes, or nothing.
#[inline(always)]
fn change<const V6: bool, const TCP: usize>(
    ctx: &XdpContext,
    s: &Session,
    edit: &Edit,
) -> Option<()> {
    let next = hop::for_xdp(s);
    let (data, end) = ctx.bounds();
    if next == 0 || data + l4(V6) + TCP > end {
        return None;
    }
    let frame = Frame(data as *mut u8);
    // A frame for another host of the wire must not be answered.
    if frame.address(0) != s.own_address {
        return None;
    }
    // Nothing has been written so far, and all steps below succeed once this one has.
    let pseudo = if V6 { frame.ip_v6(s)? } else { frame.ip_v4(s)? };
    frame.tcp::<TCP>(l4(V6), edit, pseudo);
    frame.set_address(0, next);
    frame.set_address(6, s.own_address);
    Some(())
}

/// A frame whose headers may be read and written.
#[derive(Clone, Copy)]
struct Frame(*mut u8);

impl Frame {
    #[inline(always)]
    fn get<T: Copy>(self, off: usize) -> T {
        // SAFETY: `off` is a constant within the headers, which `change` has checked to be
        // present.
        unsafe { self.0.add(off).cast::<T>().read_unaligned() }
    }

    #[inline(always)]
    fn set<T: Copy>(self, off: usize, v: T) {
        // SAFETY: as above.
        unsafe { self.0.add(off).cast::<T>().write_unaligned(v) }
    }

    /// Returns an Ethernet address, in the form of [`Session::hop`].
    #[inline(always)]
    fn address(self, off: usize) -> u64 {
        self.get::<u32>(off) as u64 | (self.get::<u16>(off + 4) as u64) << 32
    }

    #[inline(always)]
    fn set_address(self, off: usize, address: u64) {
        self.set(off, address as u32);
        self.set(off + 4, (address >> 32) as u16);
    }

    /// Writes the new addresses into an IPv4 header, and decrements the TTL. Returns the change
    /// of the sum of the pseudo-header; `None`, with nothing changed, if the TTL has ended.
    #[inline(always)]
    fn ip_v4(self, s: &Session) -> Option<u64> {
        let [ttl, protocol, c0, c1]: [u8; 4] = self.get(Packet::L3 + 8);
        if ttl <= 1 {
            return None;
        }
        let word = |ttl: u8| u16::from_ne_bytes([ttl, protocol]) as u32;
        let old: [u32; 2] = self.get(Packet::L3 + 12);
        let (src, dst) = (s.path.local.words()[3], s.path.remote.words()[3]);
        let diff = differ(src, old[0]) + differ(dst, old[1]);
        let check = u16::from_ne_bytes([c0, c1]);
        let check = checksum::changed(check, diff + differ(word(ttl - 1), word(ttl)));
        self.set(Packet::L3 + 8, ttl - 1);
        self.set(Packet::L3 + 10, check);
        self.set(Packet::L3 + 12, src);
        self.set(Packet::L3 + 16, dst);
        Some(diff)
    }

    /// Writes the new addresses into an IPv6 header, and decrements the hop limit. Returns the
    /// change of the sum of the pseudo-header; `None`, with nothing changed, if the hop limit
    /// has ended.
    #[inline(always)]
    fn ip_v6(self, s: &Session) -> Option<u64> {
        let limit: u8 = self.get(Packet::L3 + 7);
        if limit <= 1 {
            return None;
        }
        self.set(Packet::L3 + 7, limit - 1);
        let (src, dst) = (s.path.local.words(), s.path.remote.words());
        let mut diff = 0;
        let mut i = 0;
        while i < 4 {
            let (to_src, to_dst) = (Packet::L3 + 8 + 4 * i, Packet::L3 + 24 + 4 * i);
            diff += differ(src[i], self.get(to_src)) + differ(dst[i], self.get(to_dst));
            self.set(to_src, src[i]);
            self.set(to_dst, dst[i]);
            i += 1;
        }
        Some(diff)
    }

    /// Rewrites the TCP header, checksum included.
    #[inline(always)]
    fn tcp<const TCP: usize>(self, l4: usize, edit: &Edit, pseudo: u64) {
        let timestamps = TCP == WITH_TIMESTAMPS;
        let mut header = if timestamps {
            self.get::<ShortHeader>(l4)
        } else {
            let [a, b, c, d, e] = self.get::<[u32; 5]>(l4);
            ShortHeader([a, b, c, d, e, 0, 0, 0])
        };
        let diff = pseudo + header.rewrite(timestamps, edit);
        header.set_check(checksum::changed(header.check(), diff));
        let mut i = 0;
        while i < TCP / 4 {
            self.set(l4 + 4 * i, header.0[i]);
            i += 1;
        }
    }
}
