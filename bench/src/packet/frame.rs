//! Frames. Their checksums are not valid: the programs only change them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use dysco_common::FlowKey;
use dysco_common::tcp::{ACK, SYN};

/// Options of an ordinary packet.
pub(crate) const TIMESTAMPS: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
const SACK: &[u8] = &[
    1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1, 5, 10, 0, 0, 1, 0, 0, 0, 2, 0,
];
/// Options of a SYN of Linux.
const OFFER: &[u8] = &[
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7,
];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Offset of the addresses in a frame. The ports follow the addresses.
const ADDRESSES: usize = 26;

/// A packet without its session.
#[derive(Clone, Copy)]
pub(crate) struct Packet {
    /// Protocol in the IP header.
    pub protocol: u8,
    /// TTL of the packet.
    pub ttl: u8,
    /// TCP flags.
    pub flags: u8,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// TCP options.
    pub options: &'static [u8],
    /// Number of bytes after the header.
    pub payload: usize,
}

/// An ordinary packet.
pub(crate) const USUAL: Packet = Packet {
    protocol: TCP,
    ttl: 64,
    flags: ACK,
    seq: 1,
    ack: 1,
    options: TIMESTAMPS,
    payload: 0,
};

/// A full packet.
pub(super) const FULL: Packet = Packet {
    payload: 1400,
    ..USUAL
};

/// A packet with a SACK block for data after a hole.
pub(super) const WITH_SACK: Packet = Packet {
    options: SACK,
    ..USUAL
};

/// A packet of another protocol.
pub(super) const NOT_TCP: Packet = Packet {
    protocol: UDP,
    ..USUAL
};

/// A packet that opens a session.
pub(super) const OPENS: Packet = Packet {
    flags: SYN,
    ack: 0,
    options: OFFER,
    ..USUAL
};

/// The answer to the packet that opens a session.
pub(super) const ANSWERS: Packet = Packet {
    flags: SYN | ACK,
    ..OPENS
};

impl Packet {
    /// Returns the frame from the remote end of an IPv4 five-tuple to the local end.
    pub(crate) fn comes(&self, key: &FlowKey) -> Vec<u8> {
        self.frame(key.remote(), key.local())
    }

    /// Returns the frame from the local end to the remote end.
    pub(crate) fn leaves(&self, key: &FlowKey) -> Vec<u8> {
        self.frame(key.local(), key.remote())
    }

    fn frame(&self, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
        let tcp = 20 + self.options.len();
        let len = (20 + tcp + self.payload) as u16;
        let mut f = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        f.extend(len.to_be_bytes());
        f.extend([0, 1, 0x40, 0, self.ttl, self.protocol, 0, 0]);
        for end in [from, to] {
            if let IpAddr::V4(ip) = end.ip() {
                f.extend(ip.octets());
            }
        }
        f.extend(from.port().to_be_bytes());
        f.extend(to.port().to_be_bytes());
        f.extend(self.seq.to_be_bytes());
        f.extend(self.ack.to_be_bytes());
        f.extend([(tcp as u8 / 4) << 4, self.flags, 1, 0, 0, 0, 0, 0]);
        f.extend(self.options);
        f.resize(f.len() + self.payload, 0);
        f
    }
}

/// Returns a frame from the remote end of an IPv4 five-tuple to the local end.
pub(crate) fn frame_of(
    key: &FlowKey,
    options: &'static [u8],
    protocol: u8,
    payload: usize,
) -> Vec<u8> {
    let packet = Packet {
        protocol,
        options,
        payload,
        ..USUAL
    };
    packet.comes(key)
}

/// Returns the source and the destination of an IPv4 frame without IP options.
pub(super) fn ends(frame: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let bytes: [u8; 12] = frame
        .get(ADDRESSES..ADDRESSES + 12)
        .and_then(|bytes| bytes.try_into().ok())
        .context("a frame without ports")?;
    let [a, b, c, d, e, f, g, h, s0, s1, d0, d1] = bytes;
    let from = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([s0, s1]));
    let to = (Ipv4Addr::new(e, f, g, h), u16::from_be_bytes([d0, d1]));
    Ok((from.into(), to.into()))
}
