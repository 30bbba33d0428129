//! Frames as they are expected on the wire.

use std::net::{IpAddr, SocketAddr};

use dysco_common::FlowKey;
use etherparse::{
    IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder, TcpHeader,
};

/// The default window of a frame.
pub(crate) const WINDOW: u16 = 512;

/// The two five-tuples of a session, from this host's side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Net {
    pub local: SocketAddr,
    /// The proxy.
    pub remote: SocketAddr,
    pub new_local: SocketAddr,
    /// The far end.
    pub new_remote: SocketAddr,
}

/// Returns the same session in both families.
pub(crate) fn nets() -> [Net; 2] {
    let net = |a: [&str; 4]| {
        let [local, remote, new_local, new_remote] = a.map(|a| a.parse().unwrap());
        Net {
            local,
            remote,
            new_local,
            new_remote,
        }
    };
    [
        net([
            "10.0.0.1:40000",
            "10.0.0.2:8080",
            "10.9.0.1:50001",
            "10.9.1.77:80",
        ]),
        net([
            "[fd00::1]:40000",
            "[fd00::2]:8080",
            "[fd09::1]:50001",
            "[fd09:1::abcd]:80",
        ]),
    ]
}

impl Net {
    pub(crate) fn key(&self) -> FlowKey {
        FlowKey::new(self.local, self.remote)
    }

    pub(crate) fn path(&self) -> FlowKey {
        FlowKey::new(self.new_local, self.new_remote)
    }

    /// Returns a segment that the local end sends.
    pub(crate) fn sent(&self) -> Frame {
        Frame::new(self.local, self.remote)
    }

    /// Returns a segment of the new path, on its way out.
    pub(crate) fn new_sent(&self) -> Frame {
        Frame::new(self.new_local, self.new_remote)
    }

    /// Returns a segment that the local end receives.
    pub(crate) fn received(&self) -> Frame {
        Frame::new(self.remote, self.local)
    }

    /// Returns a segment of the new path, on its way in.
    pub(crate) fn new_received(&self) -> Frame {
        Frame::new(self.new_remote, self.new_local)
    }
}

/// A TCP packet in an Ethernet frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub seq: u32,
    pub ack: u32,
    pub window: u16,
    pub flags: u8,
    pub ecn: u8,
    pub options: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Frame {
    fn new(src: SocketAddr, dst: SocketAddr) -> Frame {
        Frame {
            src,
            dst,
            seq: 0,
            ack: 0,
            window: WINDOW,
            flags: dysco_common::tcp::ACK,
            ecn: 0,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    /// Returns the frame with correct lengths and checksums.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ip(self.ip())
            .tcp_header(self.tcp())
            .write(&mut out, &self.payload)
            .unwrap();
        out
    }

    /// Returns the frame with a checksum of the pseudo-header alone, as a stack leaves it to
    /// hardware.
    pub(crate) fn partial_bytes(&self) -> Vec<u8> {
        let mut out = self.bytes();
        let (ip, l4) = (14, self.l4());
        let addresses = match self.src.ip() {
            IpAddr::V4(_) => ip + 12..ip + 20,
            IpAddr::V6(_) => ip + 8..ip + 40,
        };
        let words = out[addresses].chunks(2);
        let sum: u32 = words
            .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
            .sum();
        let sum = sum + 6 + (out.len() - l4) as u32;
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = ((sum & 0xffff) + (sum >> 16)) as u16;
        out[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
        out
    }

    pub(crate) fn ip(&self) -> IpHeaders {
        match (self.src.ip(), self.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let mut ip =
                    Ipv4Header::new(0, 64, IpNumber::TCP, src.octets(), dst.octets()).unwrap();
                ip.ecn = IpEcn::try_new(self.ecn).unwrap();
                ip.identification = 0x1234;
                IpHeaders::Ipv4(ip, Default::default())
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6Header {
                    traffic_class: self.ecn,
                    flow_label: Ipv6FlowLabel::try_new(0x54321).unwrap(),
                    next_header: IpNumber::TCP,
                    hop_limit: 64,
                    source: src.octets(),
                    destination: dst.octets(),
                    ..Ipv6Header::default()
                };
                IpHeaders::Ipv6(ip, Default::default())
            }
            _ => panic!("two families in one packet"),
        }
    }

    pub(crate) fn tcp(&self) -> TcpHeader {
        let mut tcp = TcpHeader::new(self.src.port(), self.dst.port(), self.seq, self.window);
        tcp.acknowledgment_number = self.ack;
        let flag = |bit: u8| self.flags >> bit & 1 == 1;
        tcp.fin = flag(0);
        tcp.syn = flag(1);
        tcp.rst = flag(2);
        tcp.psh = flag(3);
        tcp.ack = flag(4);
        tcp.urg = flag(5);
        tcp.ece = flag(6);
        tcp.cwr = flag(7);
        tcp.set_options_raw(&self.options).unwrap();
        tcp
    }

    /// Offset of the TCP header.
    pub(crate) fn l4(&self) -> usize {
        if self.src.is_ipv4() { 34 } else { 54 }
    }
}

/// Returns a frame with the addresses and ports of a path.
pub(crate) fn on(path: FlowKey, frame: &Frame) -> Frame {
    Frame {
        src: path.local(),
        dst: path.remote(),
        ..frame.clone()
    }
}

/// Returns the five-tuple from the other end.
pub(crate) fn mirror(path: FlowKey) -> FlowKey {
    FlowKey::new(path.remote(), path.local())
}

/// Options of a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Options {
    None,
    Timestamps,
    /// Timestamps and two SACK blocks, as Linux sends them.
    Sack,
    /// The same at odd offsets, after an unknown option.
    Odd,
    /// Four SACK blocks.
    Full,
}

pub(crate) const ALL_OPTIONS: [Options; 5] = [
    Options::None,
    Options::Timestamps,
    Options::Sack,
    Options::Odd,
    Options::Full,
];

/// Returns the option bytes with these timestamps and with SACK blocks around `edge`.
pub(crate) fn options(which: Options, tsval: u32, tsecr: u32, edge: u32) -> Vec<u8> {
    let timestamps = [&[8, 10][..], &tsval.to_be_bytes(), &tsecr.to_be_bytes()].concat();
    let sack = |n: u32| {
        let mut b = vec![5, 2 + 8 * n as u8];
        for i in 0..n {
            b.extend(edge.wrapping_add(1000 * i).to_be_bytes());
            b.extend(edge.wrapping_add(1000 * i + 500).to_be_bytes());
        }
        b
    };
    match which {
        Options::None => vec![],
        Options::Timestamps => [&[1, 1][..], &timestamps].concat(),
        Options::Sack => [&[1, 1][..], &timestamps, &[1, 1], &sack(2)].concat(),
        Options::Odd => [&[253, 3, 7][..], &timestamps, &sack(2), &[1, 1, 1, 1, 1]].concat(),
        Options::Full => [&[1, 1][..], &sack(4), &[0, 9, 9, 9]].concat(),
    }
}

/// Returns the option bytes of one SACK block.
pub(crate) fn sack(left: u32, right: u32) -> Vec<u8> {
    let mut options = vec![1, 1, 5, 10];
    options.extend(left.to_be_bytes());
    options.extend(right.to_be_bytes());
    options
}
