//! The bytes of an ICMP error.
//!
//! ```text
//! IPv4:  IP 0..5    ICMP 5..7     quoted: IP 7..12    TCP 12..
//! IPv6:  IP 0..10   ICMPv6 10..12 quoted: IP 12..22   TCP 22..      (words of 4 bytes)
//! ```
//!
//! Only IP headers without options or extension headers are read. Sessions have no others.

use super::Quoted;
use crate::checksum::{changed, differ, fold16};
use crate::flow::Addr;

/// Words of the longest message: IPv6, with a quoted TCP header without options.
const WORDS: usize = 28;

/// Bytes of a message up to the quoted sequence number, which are read and rewritten, in IPv4 and
/// in IPv6.
pub const READ: [usize; 2] = [56, 96];

/// Bytes that a message of this host quotes, in IPv4 and in IPv6: the IP header, and a TCP header
/// of 20 bytes.
pub const QUOTED: [usize; 2] = [40, 60];

/// Protocol numbers.
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// ICMP: destination unreachable, time exceeded, parameter problem.
const ERRORS: [u8; 3] = [3, 11, 12];
/// ICMPv6: destination unreachable, packet too big, time exceeded, parameter problem.
const LAST_ERROR_V6: u8 = 4;
/// Type and code of "fragmentation needed and DF set", and of "packet too big".
const TOO_BIG: [u8; 2] = [3, 4];
const TOO_BIG_V6: [u8; 2] = [2, 0];

/// More-fragments flag and fragment offset, network order.
const FRAGMENT: u16 = 0x3fff_u16.to_be();
/// Offset alone: the first fragment of a quoted packet has the ports.
const OFFSET: u16 = 0x1fff_u16.to_be();

/// TTL or hop limit of a message of this host.
const LIMIT: u8 = 64;

/// A packet that contains an error, in memory order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct Message {
    words: [u32; WORDS],
}

impl Default for Message {
    fn default() -> Self {
        Message { words: [0; WORDS] }
    }
}

/// Word at which the ICMP header begins.
#[inline(always)]
const fn icmp<const V6: bool>() -> usize {
    if V6 { 10 } else { 5 }
}

/// Word at which the quoted IP header begins.
#[inline(always)]
const fn quoted<const V6: bool>() -> usize {
    icmp::<V6>() + 2
}

/// Word at which the quoted TCP header begins.
#[inline(always)]
const fn tcp<const V6: bool>() -> usize {
    quoted::<V6>() + if V6 { 10 } else { 5 }
}

/// Word of the source address in an IP header that begins at `ip`.
#[inline(always)]
const fn source<const V6: bool>(ip: usize) -> usize {
    ip + if V6 { 2 } else { 3 }
}

/// Words of an address.
#[inline(always)]
const fn address<const V6: bool>() -> usize {
    if V6 { 4 } else { 1 }
}

#[inline(always)]
fn halves(word: u32) -> (u16, u16) {
    let [a, b, c, d] = word.to_ne_bytes();
    (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]))
}

#[inline(always)]
fn word(first: u16, second: u16) -> u32 {
    let ([a, b], [c, d]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u32::from_ne_bytes([a, b, c, d])
}

impl Message {
    /// Returns the first bytes, to read into.
    pub fn bytes_mut(&mut self) -> *mut u8 {
        self.words.as_mut_ptr().cast()
    }

    /// Returns the first bytes.
    pub fn bytes(&self) -> *const u8 {
        self.words.as_ptr().cast()
    }

    /// Returns the beginning of the quoted packet, to read into.
    pub fn quoted_mut(&mut self, v6: bool) -> *mut u8 {
        let at = if v6 {
            quoted::<true>()
        } else {
            quoted::<false>()
        };
        self.words[at..].as_mut_ptr().cast()
    }

    /// Reads the quoted segment into `to`. Returns false if the message is no error, or quotes
    /// another protocol.
    #[inline(always)]
    pub fn read<const V6: bool>(&self, to: &mut Quoted) -> bool {
        let w = &self.words;
        let [kind, ..] = w[icmp::<V6>()].to_ne_bytes();
        let ip = quoted::<V6>();
        let is_error = if V6 {
            let [_, _, next, _] = w[1].to_ne_bytes();
            let [_, _, inner, _] = w[ip + 1].to_ne_bytes();
            next == ICMPV6 && kind != 0 && kind <= LAST_ERROR_V6 && inner == TCP
        } else {
            let [version, ..] = w[0].to_ne_bytes();
            let [inner, ..] = w[ip].to_ne_bytes();
            let [_, protocol, ..] = w[2].to_ne_bytes();
            let [_, quoted, ..] = w[ip + 2].to_ne_bytes();
            let whole = halves(w[1]).1 & FRAGMENT == 0;
            let first = halves(w[ip + 1]).1 & OFFSET == 0;
            (version, inner) == (0x45, 0x45)
                && (protocol, quoted) == (ICMP, TCP)
                && (whole && first)
                && (kind == ERRORS[0] || kind == ERRORS[1] || kind == ERRORS[2])
        };
        if !is_error {
            return false;
        }
        (to.key.local_port, to.key.remote_port) = halves(w[tcp::<V6>()]);
        to.key.local = self.address::<V6>(source::<V6>(ip));
        to.key.remote = self.address::<V6>(source::<V6>(ip) + address::<V6>());
        to.seq = u32::from_be(w[tcp::<V6>() + 1]);
        true
    }

    /// Returns the source of the message itself: the host that reports the error.
    #[inline(always)]
    pub fn source<const V6: bool>(&self) -> Addr {
        self.address::<V6>(source::<V6>(0))
    }

    /// Rewrites the quoted segment, and the addresses of the message itself. All checksums remain
    /// as correct as they were, except that of the quoted TCP header. The quoted checksum is
    /// usually incomplete, and no stack checks it.
    #[inline(always)]
    pub fn rewrite<const V6: bool>(&mut self, to: &Quoted, from_to: (&Addr, &Addr)) {
        let ip = quoted::<V6>();
        let outer = self.readdress::<V6>(0, from_to);
        let inner = self.readdress::<V6>(ip, (&to.key.local, &to.key.remote));
        // The IPv4 header has a checksum, which compensates for its addresses.
        let mut diff = if V6 { outer + inner } else { 0 };
        let at = tcp::<V6>();
        diff += self.set(at, word(to.key.local_port, to.key.remote_port));
        diff += self.set(at + 1, to.seq.to_be());
        self.check(icmp::<V6>(), diff);
    }

    /// Decrements the TTL or hop limit, as a forwarder does. Returns false if none is left.
    #[inline(always)]
    pub fn hop<const V6: bool>(&mut self) -> bool {
        let at = if V6 { 1 } else { 2 };
        let mut bytes = self.words[at].to_ne_bytes();
        let limit = if V6 { &mut bytes[3] } else { &mut bytes[0] };
        if *limit <= 1 {
            return false;
        }
        *limit -= 1;
        let diff = self.set(at, u32::from_ne_bytes(bytes));
        if !V6 {
            self.check(at, diff);
        }
        true
    }

    /// Turns the quoted part, which has been read already, into a whole message of this host. The
    /// message reports that the packet is longer than `mtu` bytes, which the next link accepts. It
    /// returns to the packet's source, from the packet's destination address.
    #[inline(always)]
    pub fn too_big<const V6: bool>(&mut self, mtu: u32) {
        let ip = quoted::<V6>();
        let (from, to) = (
            self.address::<V6>(source::<V6>(ip) + address::<V6>()),
            self.address::<V6>(source::<V6>(ip)),
        );
        self.keep_sum::<V6>();
        let at = icmp::<V6>();
        let [kind, code] = if V6 { TOO_BIG_V6 } else { TOO_BIG };
        self.words[at] = u32::from_ne_bytes([kind, code, 0, 0]);
        self.words[at + 1] = if V6 {
            mtu.to_be()
        } else {
            // A link with a greater MTU has no packet that is too long for it.
            (mtu & 0xffff).to_be()
        };
        self.own_header::<V6>();
        let _ = self.readdress::<V6>(0, (&from, &to));
        let pseudo = if V6 {
            self.sum_of(2, 10)
                + self.payload::<V6>().to_be() as u64
                + (ICMPV6 as u32).to_be() as u64
        } else {
            0
        };
        let end = tcp::<V6>() + 5;
        let sum = !fold16(self.sum_of(at, end) + pseudo);
        let (first, _) = halves(self.words[at]);
        self.words[at] = word(first, sum);
    }

    /// Returns the number of bytes of the ICMP message that [`Message::too_big`] makes.
    #[inline(always)]
    const fn payload<const V6: bool>(&self) -> u32 {
        8 + QUOTED[V6 as usize] as u32
    }

    /// Stores this host's own IP header, without addresses.
    #[inline(always)]
    fn own_header<const V6: bool>(&mut self) {
        let len = self.payload::<V6>() as u16;
        if V6 {
            self.words[0] = u32::from_be(0x6000_0000);
            let [a, b] = len.to_be_bytes();
            self.words[1] = u32::from_ne_bytes([a, b, ICMPV6, LIMIT]);
            (self.words[2], self.words[3], self.words[4], self.words[5]) = (0, 0, 0, 0);
            (self.words[6], self.words[7], self.words[8], self.words[9]) = (0, 0, 0, 0);
            return;
        }
        let [a, b] = (len + 20).to_be_bytes();
        self.words[0] = u32::from_ne_bytes([0x45, 0, a, b]);
        // Not to be fragmented: the packet therefore needs no identification.
        self.words[1] = u32::from_be(0x4000);
        self.words[2] = u32::from_ne_bytes([LIMIT, ICMP, 0, 0]);
        (self.words[3], self.words[4]) = (0, 0);
        let check = !fold16(self.sum_of(0, 5));
        let (first, _) = halves(self.words[2]);
        self.words[2] = word(first, check);
    }

    /// Sets the quoted TCP checksum to the value that it has if a device completes it.
    ///
    /// If a packet's checksum was left to a device (CHECKSUM_PARTIAL), a device still completes it
    /// after the packet was turned into an error. The kernel writes the sum from the quoted TCP
    /// header on into the quoted checksum. No program can distinguish such a packet from others.
    /// The value is therefore chosen so that the sum of the header with this value is the value's
    /// complement. The bytes are the same, whether a device writes the checksum or not.
    #[inline(always)]
    fn keep_sum<const V6: bool>(&mut self) {
        let at = tcp::<V6>();
        let (_, urgent) = halves(self.words[at + 4]);
        self.words[at + 4] = word(0, urgent);
        // x = !(rest + x), and therefore 2x = !rest. Half of a one's-complement sum is its rotation
        // by a bit.
        let x = (!fold16(self.sum_of(at, at + 5))).rotate_right(1);
        self.words[at + 4] = word(x, urgent);
    }

    /// Returns the sum of words, not folded.
    #[inline(always)]
    fn sum_of(&self, from: usize, to: usize) -> u64 {
        let mut sum = 0;
        let mut i = from;
        while i < to {
            sum += self.words[i] as u64;
            i += 1;
        }
        sum
    }

    #[inline(always)]
    fn address<const V6: bool>(&self, at: usize) -> Addr {
        let w = &self.words;
        if V6 {
            Addr::of_words([w[at], w[at + 1], w[at + 2], w[at + 3]])
        } else {
            Addr::mapped(w[at])
        }
    }

    /// Stores addresses in the IP header that begins at `ip`, and adjusts its checksum, if it has
    /// one. Returns the change of the sum of the addresses.
    #[inline(always)]
    fn readdress<const V6: bool>(&mut self, ip: usize, (src, dst): (&Addr, &Addr)) -> u64 {
        let at = source::<V6>(ip);
        let (src, dst) = (src.words(), dst.words());
        let mut diff = 0;
        let mut i = 4 - address::<V6>();
        while i < 4 {
            let to = at + i + address::<V6>() - 4;
            diff += self.set(to, src[i]) + self.set(to + address::<V6>(), dst[i]);
            i += 1;
        }
        if !V6 {
            self.check(ip + 2, diff);
        }
        diff
    }

    /// Stores a word, and returns the change of the sum.
    #[inline(always)]
    fn set(&mut self, at: usize, to: u32) -> u64 {
        let diff = differ(to, self.words[at]);
        self.words[at] = to;
        diff
    }

    /// Changes the checksum in the second half of a word.
    #[inline(always)]
    fn check(&mut self, at: usize, diff: u64) {
        let (first, check) = halves(self.words[at]);
        self.words[at] = word(first, changed(check, diff));
    }
}
