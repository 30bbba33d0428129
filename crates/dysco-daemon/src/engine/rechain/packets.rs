//! What the anchors send on a new path by themselves, in the numbers of the wire.

use std::net::IpAddr;

use dysco_common::chain::{Chain, Element, Hop, Payload, Token};
use dysco_common::session::offer;
use dysco_common::{Addr, Session};
use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};

use crate::engine::probe::HOP_LIMIT;

/// The SYN that opens a path through a chain: its number is just before those that
/// follow, its options are what the session agreed on.
pub(super) fn syn(s: &Session, hop: &Hop, chain: &[IpAddr], token: Token) -> Vec<u8> {
    let s = &s.on_wire();
    let hosts: Vec<Addr> = chain.iter().map(|host| (*host).into()).collect();
    let chain = Chain::of(&hosts).unwrap_or_default();
    let mut payload = Payload::default();
    payload.fill(hop.key_id, &s.key, &s.path);
    payload.set_rest(&chain, &Element::live(token));
    payload.mac = payload.proof(hop.key);
    let mut tcp = header(s, s.snd_max.wrapping_sub(1));
    tcp.syn = true;
    set_offer(&mut tcp, s);
    packet(s, tcp, &payload.to_bytes())
}

/// The answer to it.
pub(super) fn syn_ack(s: &Session) -> Vec<u8> {
    let s = &s.on_wire();
    let mut tcp = header(s, s.snd_max.wrapping_sub(1));
    tcp.syn = true;
    tcp.ack = true;
    tcp.acknowledgment_number = s.rcv_max;
    set_offer(&mut tcp, s);
    packet(s, tcp, &[])
}

/// See `two_paths::opens_windows`. `seq` is the local end's.
pub(super) fn primer(s: &Session, seq: u32) -> Vec<u8> {
    let seq = s.sent_on_wire(seq);
    let s = &s.on_wire();
    let mut tcp = header(s, seq);
    (tcp.ack, tcp.psh) = (true, true);
    tcp.acknowledgment_number = s.rcv_max;
    if agreed(s, offer::TIMESTAMPS) {
        let stamps = TcpOptionElement::Timestamp(s.tsval_out, s.tsval_in);
        let options = [TcpOptionElement::Noop, TcpOptionElement::Noop, stamps];
        // Twelve bytes of forty.
        let _ = tcp.set_options(&options);
    }
    packet(s, tcp, &[])
}

fn agreed(s: &Session, flag: u8) -> bool {
    s.local.flags & s.remote.flags & flag != 0
}

fn header(s: &Session, seq: u32) -> TcpHeader {
    let (local, remote) = (s.path.local(), s.path.remote());
    TcpHeader::new(local.port(), remote.port(), seq, u16::MAX)
}

fn set_offer(tcp: &mut TcpHeader, s: &Session) {
    let mut options = vec![TcpOptionElement::MaximumSegmentSize(s.local.mss)];
    if agreed(s, offer::WSCALE) {
        options.push(TcpOptionElement::WindowScale(s.local.wscale));
    }
    if agreed(s, offer::SACK) {
        options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
    }
    if agreed(s, offer::TIMESTAMPS) {
        options.push(TcpOptionElement::Timestamp(s.tsval_out, s.tsval_in));
    }
    // Twenty bytes at most, of forty.
    let _ = tcp.set_options(&options);
}

/// The packet, or nothing if it cannot be written, which is not sent.
fn packet(s: &Session, tcp: TcpHeader, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (s.path.local, s.path.remote);
    let builder = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            PacketBuilder::ipv4(from.octets(), to.octets(), HOP_LIMIT).tcp_header(tcp)
        }
        _ => PacketBuilder::ipv6(from.octets(), to.octets(), HOP_LIMIT).tcp_header(tcp),
    };
    let mut bytes = Vec::with_capacity(builder.size(payload.len()));
    match builder.write(&mut bytes, payload) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}
