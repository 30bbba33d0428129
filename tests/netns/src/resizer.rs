//! A middlebox in user space that changes the size of streams: it inserts a header before the data
//! of an end, and rewrites the numbers of everything after it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::Host;
use crate::stream::greet::PROXY_V2;
use crate::wire::{self, Wire};

const DEVICE: &str = "resizer";
const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Headers that are inserted; empty for none.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    /// Header before the client's data.
    pub to_server: Vec<u8>,
    /// Header before the server's data.
    pub to_client: Vec<u8>,
}

impl Headers {
    /// Returns PROXY headers with this number of bytes after their first 16. The ends of
    /// [`crate::stream`] recognise these headers.
    pub fn proxy(to_server: Option<u16>, to_client: Option<u16>) -> Headers {
        let header = |rest: Option<u16>| {
            rest.map_or_else(Vec::new, |rest| {
                let length = rest.to_be_bytes();
                let head = [&PROXY_V2[..], &[0x20, 0], &length].concat();
                [head, vec![0x5a; usize::from(rest)]].concat()
            })
        };
        Headers {
            to_server: header(to_server),
            to_client: header(to_client),
        }
    }
}

/// The middlebox. Dropping it ends it: packets that it would have forwarded are then lost.
pub struct Resizer {
    _wire: Wire,
}

impl Resizer {
    /// Makes all packets that a host forwards to a server's port, and back, pass the middlebox.
    pub fn start(host: &Host, port: u16, headers: Headers) -> Result<Resizer> {
        Resizer::slow(host, port, headers, Duration::ZERO)
    }

    /// The same, with a middlebox that holds each packet for this time.
    pub fn slow(host: &Host, port: u16, headers: Headers, holds: Duration) -> Result<Resizer> {
        let device = wire::device(host, DEVICE)?;
        host.sysctl("net.ipv4.conf.eth0.rp_filter", "0")?;
        let rule = |(family, end)| {
            let rule = format!("iif eth0 ipproto tcp {end} {port}");
            (family, rule)
        };
        let both = ["-4", "-6"].map(|family| [(family, "dport"), (family, "sport")]);
        let rules: Vec<_> = both.into_iter().flatten().map(rule).collect();
        wire::divert(host, DEVICE, &rules)?;
        let mut middlebox = Middlebox {
            port,
            headers: [headers.to_server, headers.to_client],
            sessions: HashMap::new(),
        };
        let wire = Wire::through(host, DEVICE, device, move |packet, out| {
            for packet in middlebox.pass(packet) {
                match holds.is_zero() {
                    true => out.now(&packet),
                    false => out.later(holds, &packet),
                }
            }
        })?;
        Ok(Resizer { _wire: wire })
    }
}

struct Middlebox {
    port: u16,
    /// Headers before the data to the server and to the client.
    headers: [Vec<u8>; 2],
    /// Initial numbers of the client and of the server, by the client's address.
    sessions: HashMap<(IpAddr, u16), [Option<u32>; 2]>,
}

/// Offsets in a packet.
struct Found {
    /// Offset of the TCP header.
    at: usize,
    /// Offset of the payload.
    data: usize,
    client: (IpAddr, u16),
    /// Direction: 0 to the server, 1 to the client.
    way: usize,
    /// Range of the numbers of SACK blocks.
    blocks: Option<std::ops::Range<usize>>,
}

impl Middlebox {
    /// Returns the packets that replace a packet.
    fn pass(&mut self, packet: &[u8]) -> Vec<Vec<u8>> {
        let whole = || vec![packet.to_vec()];
        let Some(found) = self.find(packet) else {
            return whole();
        };
        let Found { at, data, way, .. } = found;
        let numbers = self.sessions.entry(found.client).or_default();
        let (seq, flags) = (be32(packet, at + 4), packet[at + 13]);
        if flags & SYN != 0 {
            numbers[way] = Some(seq);
            return whole();
        }
        let (Some(own), Some(other)) = (numbers[way], numbers[1 - way]) else {
            return whole();
        };
        let first = own.wrapping_add(1);
        let header = &self.headers[way];
        let mut out = Vec::new();
        let mut changed = packet.to_vec();
        self.change_acks(&mut changed, &found, other.wrapping_add(1));
        if seq == first && data < packet.len() && !header.is_empty() {
            let mut before = [&changed[..data], header].concat();
            before[at + 13] = flags & !FIN | PSH | ACK;
            out.push(finish(before, at));
        }
        if seq == first && data == packet.len() {
            // No data has been sent before this packet.
        } else if seq.wrapping_sub(first) < 1 << 31 {
            let seq = seq.wrapping_add(header.len() as u32);
            changed[at + 4..at + 8].copy_from_slice(&seq.to_be_bytes());
        }
        out.push(finish(changed, at));
        out
    }

    /// Changes acknowledgements to the other end's own numbers, without the header.
    fn change_acks(&self, packet: &mut [u8], found: &Found, first: u32) {
        let header = self.headers[1 - found.way].len() as u32;
        let without = |number: u32| match number.wrapping_sub(first) {
            beyond if beyond >= 1 << 31 => number,
            beyond => first.wrapping_add(beyond.saturating_sub(header)),
        };
        let mut change = |at: usize| {
            let number = without(be32(packet, at));
            packet[at..at + 4].copy_from_slice(&number.to_be_bytes());
        };
        let mut edges = vec![found.at + 8];
        edges.extend(found.blocks.clone().into_iter().flatten().step_by(4));
        edges.into_iter().for_each(&mut change);
    }

    fn find(&self, packet: &[u8]) -> Option<Found> {
        let v4 = packet.first()? >> 4 == 4;
        let (at, protocol) = match v4 {
            true => (usize::from(packet[0] & 15) * 4, *packet.get(9)?),
            false => (40, *packet.get(6)?),
        };
        let tcp = packet.get(at..)?;
        let data = at + usize::from(tcp.get(12)? >> 4) * 4;
        if protocol != 6 || data > packet.len() || data < at + 20 {
            return None;
        }
        let address = |from: usize| -> IpAddr {
            match v4 {
                true => <[u8; 4]>::try_from(&packet[from..from + 4])
                    .unwrap_or_default()
                    .into(),
                false => <[u8; 16]>::try_from(&packet[from..from + 16])
                    .unwrap_or_default()
                    .into(),
            }
        };
        let ends = if v4 { [12, 16] } else { [8, 24] };
        let ports = [be16(packet, at), be16(packet, at + 2)];
        let way = match ports {
            [_, to] if to == self.port => 0,
            [from, _] if from == self.port => 1,
            _ => return None,
        };
        let client = (address(ends[way]), ports[way]);
        Some(Found {
            at,
            data,
            client,
            way,
            blocks: blocks(packet, at + 20, data),
        })
    }
}

/// Range of the SACK blocks among the options in this range.
fn blocks(packet: &[u8], mut at: usize, end: usize) -> Option<std::ops::Range<usize>> {
    while at + 1 < end {
        match (packet[at], usize::from(packet[at + 1])) {
            (0, _) => return None,
            (1, _) => at += 1,
            (_, length) if length < 2 || at + length > end => return None,
            (5, length) => return Some(at + 2..at + length),
            (_, length) => at += length,
        }
    }
    None
}

/// Updates the lengths and checksums of a packet whose TCP header begins at `at`.
pub(crate) fn finish(mut packet: Vec<u8>, at: usize) -> Vec<u8> {
    let length = packet.len();
    let addresses = match packet[0] >> 4 {
        4 => {
            packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            packet[10..12].fill(0);
            let check = !fold(sum(&packet[..at]));
            packet[10..12].copy_from_slice(&check.to_be_bytes());
            12..20
        }
        _ => {
            packet[4..6].copy_from_slice(&((length - at) as u16).to_be_bytes());
            8..40
        }
    };
    packet[at + 16..at + 18].fill(0);
    let pseudo = sum(&packet[addresses]) + 6 + (length - at) as u64;
    let check = !fold(pseudo + sum(&packet[at..]));
    packet[at + 16..at + 18].copy_from_slice(&check.to_be_bytes());
    packet
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words: u64 = words
        .iter()
        .map(|w| u64::from(u16::from_be_bytes(*w)))
        .sum();
    words + rest.first().map_or(0, |b| u64::from(*b) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn be16(packet: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([packet[at], packet[at + 1]])
}

fn be32(packet: &[u8], at: usize) -> u32 {
    (u32::from(be16(packet, at)) << 16) | u32::from(be16(packet, at + 2))
}
