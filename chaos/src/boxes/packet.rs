//! TCP packets as they are on the wire, and the changes of a box to them. All numbers on the wire
//! are in network byte order; sums of numbers wrap around.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const TCP: u8 = 6;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Kinds of TCP options.
const MSS: u8 = 2;
const SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// An end of a connection: address and port.
pub(super) type End = (IpAddr, u16);

/// Numbers that a box adds to the sequence numbers of one direction, and removes from the
/// acknowledgements on the way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shift {
    /// Number that is added to the sender's own numbers.
    pub own: u32,
    /// Number that was added to the other end's numbers, and is therefore subtracted from the
    /// acknowledgements of them.
    pub other: u32,
}

/// A TCP packet.
pub(super) struct Packet<'a> {
    bytes: &'a mut [u8],
    /// Offset of the TCP header.
    tcp: usize,
    /// Offset of the first byte after the TCP options.
    data: usize,
}

impl<'a> Packet<'a> {
    /// Returns the packet in these bytes, if it is a TCP packet with a complete header.
    pub(super) fn parse(bytes: &'a mut [u8]) -> Option<Packet<'a>> {
        let tcp = match bytes.first()? >> 4 {
            4 if bytes.len() >= 20 && bytes[9] == TCP => usize::from(bytes[0] & 15) * 4,
            6 if bytes.len() >= 40 && bytes[6] == TCP => 40,
            _ => return None,
        };
        let data = tcp + usize::from(bytes.get(tcp + 12)? >> 4) * 4;
        (data >= tcp + 20 && data <= bytes.len()).then_some(Packet { bytes, tcp, data })
    }

    /// Returns the sender's and the receiver's end.
    pub(super) fn ends(&self) -> [End; 2] {
        let (from, to) = match self.bytes[0] >> 4 {
            4 => (v4(&self.bytes[12..16]), v4(&self.bytes[16..20])),
            _ => (v6(&self.bytes[8..24]), v6(&self.bytes[24..40])),
        };
        [(from, self.be16(self.tcp)), (to, self.be16(self.tcp + 2))]
    }

    /// True if the packet opens a connection.
    pub(super) fn opens(&self) -> bool {
        self.bytes[self.tcp + 13] & (SYN | ACK) == SYN
    }

    fn is_syn(&self) -> bool {
        self.bytes[self.tcp + 13] & SYN != 0
    }

    /// Changes the sequence number, the acknowledgement and, if requested, the SACK blocks.
    pub(super) fn renumber(&mut self, shift: Shift, sack: bool) {
        self.add(self.tcp + 4, shift.own);
        if self.bytes[self.tcp + 13] & ACK != 0 {
            self.add(self.tcp + 8, shift.other.wrapping_neg());
        }
        for (kind, at, length) in self.options() {
            if kind == SACK && sack {
                let edges = (at + 2..at + length).step_by(4);
                edges.for_each(|edge| self.add(edge, shift.other.wrapping_neg()));
            }
        }
    }

    /// Changes the timestamp, and the echo of the other end's timestamp.
    pub(super) fn shift_clocks(&mut self, shift: Shift) {
        for (kind, at, length) in self.options() {
            if kind == TIMESTAMPS && length == 10 {
                self.add(at + 2, shift.own);
                // The first packet echoes nothing.
                if self.be32(at + 6) != 0 {
                    self.add(at + 6, shift.other.wrapping_neg());
                }
            }
        }
    }

    /// Removes the SACK option from a SYN.
    pub(super) fn strip_sack(&mut self) {
        self.strip(SACK_PERMITTED);
    }

    /// Removes the window scale option from a SYN.
    pub(super) fn strip_scale(&mut self) {
        self.strip(SCALE);
    }

    /// Removes the timestamps.
    pub(super) fn strip_timestamps(&mut self) {
        self.strip(TIMESTAMPS);
    }

    fn strip(&mut self, which: u8) {
        for (kind, at, length) in self.options() {
            if kind == which {
                // No-operation options of the same length replace the option.
                self.bytes[at..at + length].fill(1);
            }
        }
    }

    /// Lowers the MSS of a SYN.
    pub(super) fn clamp(&mut self, mss: u16) {
        for (kind, at, length) in self.options() {
            if kind == MSS && length == 4 && self.is_syn() && self.be16(at + 2) > mss {
                self.bytes[at + 2..at + 4].copy_from_slice(&mss.to_be_bytes());
            }
        }
    }

    /// Corrects the checksum.
    pub(super) fn seal(&mut self) {
        let addresses = match self.bytes[0] >> 4 {
            4 => 12..20,
            _ => 8..40,
        };
        let at = self.tcp + 16;
        self.bytes[at..at + 2].fill(0);
        let length = (self.bytes.len() - self.tcp) as u64;
        let pseudo = sum(&self.bytes[addresses]) + u64::from(TCP) + length;
        let check = !fold(pseudo + sum(&self.bytes[self.tcp..]));
        self.bytes[at..at + 2].copy_from_slice(&check.to_be_bytes());
    }

    /// Returns the kind, offset and length of each option except padding.
    fn options(&self) -> Vec<(u8, usize, usize)> {
        let mut found = Vec::new();
        let mut at = self.tcp + 20;
        while at + 1 < self.data {
            let (kind, length) = (self.bytes[at], usize::from(self.bytes[at + 1]));
            match kind {
                0 => break,
                1 => at += 1,
                _ if length < 2 || at + length > self.data => break,
                _ => {
                    found.push((kind, at, length));
                    at += length;
                }
            }
        }
        found
    }

    fn be16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn be32(&self, at: usize) -> u32 {
        u32::from(self.be16(at)) << 16 | u32::from(self.be16(at + 2))
    }

    fn add(&mut self, at: usize, what: u32) {
        let sum = self.be32(at).wrapping_add(what);
        self.bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

fn v4(bytes: &[u8]) -> IpAddr {
    let bits = bytes.iter().fold(0, |bits, b| bits << 8 | u32::from(*b));
    Ipv4Addr::from_bits(bits).into()
}

fn v6(bytes: &[u8]) -> IpAddr {
    let bits = bytes.iter().fold(0, |bits, b| bits << 8 | u128::from(*b));
    Ipv6Addr::from_bits(bits).into()
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words.iter().map(|w| u64::from(u16::from_be_bytes(*w)));
    words.sum::<u64>() + rest.first().map_or(0, |b| u64::from(*b) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a SYN with all options from 10.0.0.1:1000 to 10.0.0.2:80.
    fn syn() -> Vec<u8> {
        let mut p = vec![0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, TCP, 0, 0];
        p.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        p.extend([0x03, 0xe8, 0, 80]);
        p.extend(0xffff_fff0_u32.to_be_bytes());
        p.extend([0, 0, 0, 0, 0xa0, SYN, 0xff, 0xff, 0, 0, 0, 0]);
        p.extend([MSS, 4, 0x05, 0xb4, SACK_PERMITTED, 2]);
        p.extend([TIMESTAMPS, 10, 0, 0, 0, 7, 0, 0, 0, 0]);
        p.extend([1, SCALE, 3, 7]);
        p
    }

    fn option(bytes: &mut [u8], which: u8) -> Option<Vec<u8>> {
        let packet = Packet::parse(bytes)?;
        let found = packet.options().into_iter().find(|o| o.0 == which)?;
        Some(packet.bytes[found.1..found.1 + found.2].to_vec())
    }

    #[test]
    fn numbers_wrap_around_and_come_back() {
        let (mut there, shift) = (syn(), Shift { own: 32, other: 9 });
        let mut packet = Packet::parse(&mut there).expect("a packet");
        assert!(packet.opens());
        packet.renumber(shift, true);
        packet.shift_clocks(shift);
        assert_eq!(packet.be32(packet.tcp + 4), 16);
        assert_eq!(
            option(&mut there, TIMESTAMPS).expect("a clock")[2..6],
            [0, 0, 0, 39]
        );
        let mut packet = Packet::parse(&mut there).expect("a packet");
        let back = Shift {
            own: shift.own.wrapping_neg(),
            other: shift.other.wrapping_neg(),
        };
        packet.renumber(back, true);
        packet.shift_clocks(back);
        assert_eq!(there, syn());
    }

    #[test]
    fn options_go_and_the_rest_stays() {
        let mut bytes = syn();
        let mut packet = Packet::parse(&mut bytes).expect("a packet");
        packet.strip_sack();
        packet.strip_timestamps();
        packet.clamp(1_000);
        assert_eq!(option(&mut bytes, SACK_PERMITTED), None);
        assert_eq!(option(&mut bytes, TIMESTAMPS), None);
        assert_eq!(option(&mut bytes, MSS), Some(vec![MSS, 4, 0x03, 0xe8]));
        assert_eq!(option(&mut bytes, SCALE), Some(vec![SCALE, 3, 7]));
    }

    #[test]
    fn a_sealed_packet_sums_up() {
        let mut bytes = syn();
        Packet::parse(&mut bytes).expect("a packet").seal();
        let pseudo = sum(&bytes[12..20]) + u64::from(TCP) + 40;
        assert_eq!(fold(pseudo + sum(&bytes[20..])), 0xffff);
    }

    #[test]
    fn what_is_not_whole_is_none() {
        let whole = syn();
        for cut in 0..whole.len() {
            assert!(Packet::parse(&mut whole[..cut].to_vec()).is_none(), "{cut}");
        }
        let mut other = syn();
        other[9] = 17;
        assert!(Packet::parse(&mut other).is_none());
    }
}
