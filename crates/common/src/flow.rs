//! Keys: addresses and five-tuples, from the side of one host.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// An address of either family in 16 bytes, network order. IPv4 addresses are IPv4-mapped
/// (`::ffff:a.b.c.d`), so that both families share one code path. The address is stored as words,
/// because a processor stalls if it reads as a word the bytes that it has just stored.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Addr([u32; 4]);

impl Addr {
    /// Returns the address of these bytes.
    #[inline(always)]
    pub const fn new(b: [u8; 16]) -> Self {
        Addr([
            u32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
            u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
            u32::from_ne_bytes([b[8], b[9], b[10], b[11]]),
            u32::from_ne_bytes([b[12], b[13], b[14], b[15]]),
        ])
    }

    /// Returns the IPv4-mapped form of four bytes in network order.
    #[inline(always)]
    pub const fn v4(a: [u8; 4]) -> Self {
        Addr::mapped(u32::from_ne_bytes(a))
    }

    /// Returns the IPv4-mapped form of a word in memory order.
    #[inline(always)]
    pub const fn mapped(word: u32) -> Self {
        Addr([0, 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]), word])
    }

    /// Returns the address of four words, each in memory order.
    #[inline(always)]
    pub const fn of_words(words: [u32; 4]) -> Self {
        Addr(words)
    }

    /// Returns the address as four words, each in memory order.
    #[inline(always)]
    pub const fn words(&self) -> [u32; 4] {
        self.0
    }

    /// Returns true if the address is not IPv4-mapped.
    #[inline(always)]
    pub const fn is_v6(&self) -> bool {
        let [a, b, c, _] = self.0;
        a | b != 0 || c != Addr::mapped(0).0[2]
    }

    /// Returns a hash of an IPv6 address in one word. Two odd factors, and the upper half of the
    /// product, which depends on every bit.
    #[inline(always)]
    pub const fn folded(&self) -> u32 {
        let [a, b, c, d] = self.0;
        let high = (a as u64) << 32 | b as u64;
        let low = (c as u64) << 32 | d as u64;
        let product = (high ^ 0x9e37_79b9_7f4a_7c15)
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
            .wrapping_add(low.wrapping_mul(0xa076_1d64_78bd_642f));
        (product >> 32) as u32
    }

    /// Returns the bits of the address that are set in `mask`.
    #[inline(always)]
    pub const fn masked(&self, mask: &Addr) -> Self {
        let (a, m) = (self.0, mask.0);
        Addr([a[0] & m[0], a[1] & m[1], a[2] & m[2], a[3] & m[3]])
    }

    /// Returns the address as bytes.
    pub fn octets(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        for (to, word) in bytes.chunks_exact_mut(4).zip(self.0) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// Returns the address as a standard library type, IPv4 unmapped.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.octets()).to_canonical()
    }
}

impl From<IpAddr> for Addr {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => Addr::v4(v4.octets()),
            IpAddr::V6(v6) => Addr::new(v6.octets()),
        }
    }
}

impl core::fmt::Debug for Addr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.ip().fmt(f)
    }
}

/// A five-tuple (TCP is implied) from this host's side. Ports are in network byte order, as in the
/// packet.
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
    /// Returns true if the key is unused. No connection has port 0.
    #[inline(always)]
    pub const fn is_none(&self) -> bool {
        self.local_port == 0
    }

    /// Returns the key of a connection between two socket addresses.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        FlowKey {
            local: local.ip().into(),
            remote: remote.ip().into(),
            local_port: local.port().to_be(),
            remote_port: remote.port().to_be(),
        }
    }

    /// Returns true if the addresses are IPv6.
    #[inline(always)]
    pub const fn is_v6(&self) -> bool {
        self.local.is_v6()
    }

    /// Returns true if `other` is the same five-tuple from the other end's side.
    #[inline(always)]
    pub fn mirrors(&self, other: &FlowKey) -> bool {
        self.local == other.remote
            && self.remote == other.local
            && self.local_port == other.remote_port
            && self.remote_port == other.local_port
    }

    /// Returns true if the session whose opener is `local` stays when both ends open a session at
    /// once. The session of the other opener does not stay. Both hosts get the same result.
    #[inline(always)]
    pub const fn prevails(&self) -> bool {
        let (local, remote) = (self.local.0, self.remote.0);
        let mut i = 0;
        while i < 4 {
            if local[i] != remote[i] {
                return u32::from_be(local[i]) < u32::from_be(remote[i]);
            }
            i += 1;
        }
        u16::from_be(self.local_port) < u16::from_be(self.remote_port)
    }

    /// Writes the five-tuple from the other end's side.
    #[inline(always)]
    pub fn mirror_to(&self, to: &mut FlowKey) {
        (to.local, to.remote) = (self.remote, self.local);
        (to.local_port, to.remote_port) = (self.remote_port, self.local_port);
    }

    /// Returns the session's key in the flow map.
    #[inline(always)]
    pub const fn short(&self) -> ShortKey {
        let (local, remote) = if self.is_v6() {
            (self.local.folded(), self.remote.folded())
        } else {
            (self.local.0[3], self.remote.0[3])
        };
        ShortKey::new(local, remote, self.local_port, self.remote_port)
    }

    /// Returns this host's end.
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local.ip(), u16::from_be(self.local_port))
    }

    /// Returns the other end.
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote.ip(), u16::from_be(self.remote_port))
    }
}

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} > {}", self.local(), self.remote())
    }
}

/// Path of a session that a five-tuple on the wire belongs to.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// The session's own five-tuple, as the local socket has it.
    Old = 0,
    /// The subsession that replaced it on the wire.
    New = 1,
}

/// Key of the flow map: a five-tuple in 12 bytes, which the kernel hashes in one round. Exact for
/// IPv4. IPv6 addresses are folded, so that a match must be confirmed by the session's five-tuple.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ShortKey([u32; 3]);

impl ShortKey {
    /// Number of hints in one element of their map, and in one cache line. The kernel rounds the
    /// elements of an array up to eight bytes.
    pub const HINTS: u32 = 16;

    /// Returns the key of two addresses as words and two ports, network order.
    #[inline(always)]
    pub const fn new(local: u32, remote: u32, local_port: u16, remote_port: u16) -> Self {
        ShortKey([
            local,
            remote,
            (local_port as u32) << 16 | remote_port as u32,
        ])
    }

    /// Returns a hash whose lower bits are as good as its other bits.
    #[inline(always)]
    pub const fn spread(&self) -> u32 {
        let [local, remote, ports] = self.0;
        let addresses = (local as u64) << 32 | remote as u64;
        let product = (addresses ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // The last byte of an address is in the highest bits, which a product does not move down.
        let folded = product ^ product >> 32 ^ ports as u64;
        (folded.wrapping_mul(0xa076_1d64_78bd_642f) >> 32) as u32
    }

    /// Returns the place of the key's hint: in the lower bits, for as many hints as there are.
    /// Sessions between the same two hosts that differ in the higher port have adjacent hints. That
    /// port is usually the client's, and counts up. 16 hints share one cache line, so that the
    /// hints of many sessions stay near the processor.
    #[inline(always)]
    pub const fn hint(&self) -> u32 {
        let [local, remote, ports] = self.0;
        let here = u16::from_be((ports >> 16) as u16);
        let there = u16::from_be(ports as u16);
        let (low, high) = if here < there {
            (here, there)
        } else {
            (there, here)
        };
        let spread = ShortKey([local, remote, low as u32]).spread();
        spread.wrapping_add(high as u32)
    }
}

/// Value of the flow map: the place of the session's entry.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowRef {
    /// Index in the session array.
    pub slot: u32,
    /// A [`Path`], or [`FlowRef::ALIAS`].
    pub path: u16,
    /// 1 if the five-tuple is IPv6, 0 if not.
    pub v6: u16,
}

impl FlowRef {
    /// In [`FlowRef::path`]: no packet belongs to the session by this five-tuple. It is the
    /// session's name on other hosts (`Session::alias`), and must not become another session's
    /// while this one lives.
    pub const ALIAS: u16 = 2;

    /// Returns the value for the name of a slot's session on other hosts.
    pub const fn alias(key: &FlowKey, slot: u32) -> Self {
        FlowRef {
            slot,
            path: FlowRef::ALIAS,
            v6: key.is_v6() as u16,
        }
    }

    /// Returns the value for a five-tuple.
    #[inline(always)]
    pub const fn new(key: &FlowKey, slot: u32, path: Path) -> Self {
        FlowRef {
            slot,
            path: path as u16,
            v6: key.is_v6() as u16,
        }
    }

    /// Returns true if the five-tuple is the subsession that replaced the session's own.
    #[inline(always)]
    pub const fn is_new(&self) -> bool {
        self.path == Path::New as u16
    }

    /// Returns true if the five-tuple is only the session's name on other hosts.
    #[inline(always)]
    pub const fn is_alias(&self) -> bool {
        self.path == FlowRef::ALIAS
    }
}
