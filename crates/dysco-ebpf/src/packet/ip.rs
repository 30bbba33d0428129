//! The IP headers, and the addresses in them.

use aya_ebpf::programs::TcContext;
use dysco_common::{Addr, FlowKey};

use super::{Bytes, Direction, IP_FRAGMENT, IPPROTO_TCP, IPV6_LEN, L2, at};

/// Returns the two addresses of an IPv6 packet, the local one first.
#[inline(always)]
pub(crate) fn addresses_v6(ctx: &impl Bytes, dir: Direction) -> Option<(Addr, Addr)> {
    let ip = at::<Ipv6>(ctx, L2)?;
    Some(match dir {
        Direction::Out => (ip.src, ip.dst),
        Direction::In => (ip.dst, ip.src),
    })
}

#[inline(always)]
fn set_addresses(key: &mut FlowKey, dir: Direction, src: Addr, dst: Addr) {
    (key.local, key.remote) = match dir {
        Direction::Out => (src, dst),
        Direction::In => (dst, src),
    };
}

/// An IPv4 header without options, network order.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(super) struct Ipv4 {
    pub(super) version: u8,
    pub(super) tos: u8,
    pub(super) len: u16,
    pub(super) id: u16,
    pub(super) fragment: u16,
    pub(super) ttl: u8,
    pub(super) protocol: u8,
    pub(super) check: u16,
    pub(super) src: u32,
    pub(super) dst: u32,
}

impl Ipv4 {
    /// True if the packet is unfragmented TCP without IP options.
    #[inline(always)]
    pub(super) fn is_plain_tcp(&self) -> bool {
        self.version == 0x45
            && self.protocol == IPPROTO_TCP
            && self.fragment & IP_FRAGMENT.to_be() == 0
    }
}

/// An IPv6 header, network order.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(super) struct Ipv6 {
    pub(super) version: u32,
    pub(super) payload_len: u16,
    pub(super) next_header: u8,
    pub(super) hop_limit: u8,
    pub(super) src: Addr,
    pub(super) dst: Addr,
}

/// Reads an IPv4 header. Returns the total length that it states.
#[inline(always)]
pub(super) fn ipv4(ctx: &TcContext, dir: Direction, key: &mut FlowKey) -> Option<u32> {
    let ip = at::<Ipv4>(ctx, L2)?;
    if !ip.is_plain_tcp() {
        return None;
    }
    set_addresses(key, dir, Addr::mapped(ip.src), Addr::mapped(ip.dst));
    Some(u16::from_be(ip.len) as u32)
}

/// Reads an IPv6 header. Returns the payload length that it states plus the header's own length;
/// 0 if it states none.
#[inline(always)]
pub(super) fn ipv6(ctx: &TcContext, dir: Direction, key: &mut FlowKey) -> Option<u32> {
    let ip = at::<Ipv6>(ctx, L2)?;
    if ip.next_header != IPPROTO_TCP {
        return None;
    }
    set_addresses(key, dir, ip.src, ip.dst);
    let payload = u16::from_be(ip.payload_len) as u32;
    Some(if payload == 0 {
        0
    } else {
        payload + IPV6_LEN as u32
    })
}
