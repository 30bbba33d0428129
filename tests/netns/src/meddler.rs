//! A firewall that changes packets on their path through a router, as real firewalls do: sequence
//! numbers, clocks, options.

use std::net::IpAddr;

use anyhow::Result;

use crate::Host;
use crate::resizer::finish;
use crate::wire::{self, Wire};

const DEVICE: &str = "meddler";
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Changes of the firewall. Where a packet refers to the numbers of the other end (acknowledgement,
/// SACK blocks, echoed timestamp), the firewall reverses the change. IPv4 only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Does {
    /// Adds these values to sequence numbers, in the first direction and in the other.
    Numbers(u32, u32),
    /// Adds these values to timestamps, in the first direction and in the other.
    Clocks(u32, u32),
    /// Removes SACK permitted from SYNs.
    StripsSack,
    /// Removes timestamps from SYNs.
    StripsTimestamps,
    /// Lowers the MSS in SYNs to this value.
    LowersMss(u16),
}

/// The firewall. Dropping it ends it. Sessions that it has changed then pass unchanged.
pub struct Meddler {
    _wire: Wire,
}

impl Meddler {
    /// Makes all packets between two hosts at ports of a router pass the firewall: from the first
    /// host, which is at the port with this name, to the second, and back.
    pub fn start(router: &Host, ends: [(&str, IpAddr); 2], does: Does) -> Result<Meddler> {
        let device = wire::device(router, DEVICE)?;
        let [one, other] = ends;
        let rule = |((port, _), (_, to)): ((&str, IpAddr), (&str, IpAddr))| {
            ("-4", format!("iif {port} to {to} ipproto tcp"))
        };
        wire::divert(router, DEVICE, &[(one, other), (other, one)].map(rule))?;
        let (_, first) = one;
        let wire = Wire::through(router, DEVICE, device, move |packet, out| {
            out.now(&changed(packet.to_vec(), first, does));
        })?;
        Ok(Meddler { _wire: wire })
    }
}

/// Returns a packet after the firewall's changes.
fn changed(mut packet: Vec<u8>, first: IpAddr, does: Does) -> Vec<u8> {
    let v4 = packet.first().is_some_and(|byte| byte >> 4 == 4);
    let at = packet.first().map_or(0, |byte| usize::from(byte & 15) * 4);
    let is_tcp = v4 && packet.get(9) == Some(&6) && packet.len() >= at + 20;
    if !is_tcp {
        return packet;
    }
    let from = IpAddr::from([packet[12], packet[13], packet[14], packet[15]]);
    let goes = from == first;
    let of = |there, back| if goes { (there, back) } else { (back, there) };
    let options = at + 20..(at + usize::from(packet[at + 12] >> 4) * 4).min(packet.len());
    let flags = packet[at + 13];
    match does {
        Does::Numbers(there, back) => {
            let (own, others) = of(there, back);
            add(&mut packet, at + 4, own);
            if flags & ACK != 0 {
                add(&mut packet, at + 8, others.wrapping_neg());
            }
            if let Some((begin, length)) = option(&packet, options, 5) {
                let edges = (begin + 2..begin + length).step_by(4);
                edges.for_each(|edge| add(&mut packet, edge, others.wrapping_neg()));
            }
        }
        Does::Clocks(there, back) => {
            let (own, others) = of(there, back);
            if let Some((begin, _)) = option(&packet, options, 8) {
                add(&mut packet, begin + 2, own);
                if flags & ACK != 0 {
                    add(&mut packet, begin + 6, others.wrapping_neg());
                }
            }
        }
        Does::StripsSack | Does::StripsTimestamps if flags & SYN != 0 => {
            let kind = if does == Does::StripsSack { 4 } else { 8 };
            if let Some((begin, length)) = option(&packet, options, kind) {
                packet[begin..begin + length].fill(1);
            }
        }
        Does::LowersMss(to) if flags & SYN != 0 => {
            if let Some((begin, _)) = option(&packet, options, 2) {
                packet[begin + 2..begin + 4].copy_from_slice(&to.to_be_bytes());
            }
        }
        _ => {}
    }
    finish(packet, at)
}

/// Offset and length of an option of this kind.
fn option(packet: &[u8], options: std::ops::Range<usize>, kind: u8) -> Option<(usize, usize)> {
    let mut at = options.start;
    while at + 1 < options.end {
        match (packet[at], usize::from(packet[at + 1])) {
            (0, _) => return None,
            (1, _) => at += 1,
            (_, length) if length < 2 || at + length > options.end => return None,
            (found, length) if found == kind => return Some((at, length)),
            (_, length) => at += length,
        }
    }
    None
}

/// Adds to a number, modulo 2^32.
fn add(packet: &mut [u8], at: usize, by: u32) {
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| packet[at + i]);
    let sum = u32::from_be_bytes([a, b, c, d]).wrapping_add(by);
    packet[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}
