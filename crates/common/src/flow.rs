//! Keys: who talks to whom, as one host sees it.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address of either family in 16 bytes, network order. IPv4 is held
/// IPv4-mapped (`::ffff:a.b.c.d`), so that both families take one code path.
#[repr(C, align(4))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addr(pub [u8; 16]);

impl Addr {
    /// The IPv4-mapped form of four bytes in network order.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        Addr([
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a[0], a[1], a[2], a[3],
        ])
    }

    /// The address as four words, each as memory has it.
    #[inline(always)]
    pub fn words(&self) -> [u32; 4] {
        let b = &self.0;
        let word = |i: usize| u32::from_ne_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        [word(0), word(4), word(8), word(12)]
    }

    /// The address as the standard library has it, IPv4 unmapped.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Addr::v4(v4.octets()),
            IpAddr::V6(v6) => Addr(v6.octets()),
        }
    }
}

impl core::fmt::Debug for Addr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.ip().fmt(f)
    }
}

/// A five-tuple (TCP is implied) from this host's side. Ports are in network
/// byte order, as the packet has them.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct FlowKey {
    /// The end on this host: source on egress, destination on ingress.
    pub local: Addr,
    /// The other end.
    pub remote: Addr,
    /// Port of `local`, network order.
    pub local_port: u16,
    /// Port of `remote`, network order.
    pub remote_port: u16,
}

impl FlowKey {
    /// The key of a connection between two socket addresses.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        FlowKey {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port().to_be(),
            remote_port: remote.port().to_be(),
        }
    }

    /// This host's end.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), u16::from_be(self.local_port))
    }

    /// The other end.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), u16::from_be(self.remote_port))
    }
}

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} > {}", self.local(), self.remote())
    }
}

/// Which path of a session a five-tuple on the wire belongs to.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// The session's own five-tuple, as the local socket knows it.
    Old = 0,
    /// The subsession that replaced it on the wire.
    New = 1,
}

/// Value of the flow map: where the session's entry is.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRef {
    /// Index in the session array.
    pub slot: u32,
    /// A [`Path`].
    pub path: u32,
}
