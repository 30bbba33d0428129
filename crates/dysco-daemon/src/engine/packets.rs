//! Packets that the anchors send on a new path by themselves, in the numbers of the wire.

use std::net::IpAddr;

use dysco_common::chain::{Chain, Hop, Payload, Token, WireElement};
use dysco_common::fresh::ticks;
use dysco_common::probe::{Change, LENGTH_PROBES, LengthProbe, PROBE, Probe, Said};
use dysco_common::session::offer;
use dysco_common::two_paths::{LAST_WINDOW, announces_to, is_past_cutoff};
use dysco_common::{Element, FlowKey, Offer, Session};
use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};

use super::clock::boot_time;

const HOP_LIMIT: u8 = 64;
/// Window, as sent, of an acknowledgement whose socket's window is not known.
const OWN_WINDOW: u16 = 1024;
/// Maximum number of steps in which a bypass is shown the data sent elsewhere.
const STEPS: u32 = 64;

/// Returns the SYN that opens a path through a chain. Its number is just before those that follow;
/// its options are those that the session agreed on.
pub(super) fn syn(s: &Session, hop: &Hop, chain: &[Element], token: Token) -> Vec<u8> {
    let origin = s.name();
    let s = &s.on_wire();
    let chain = Chain::of(chain).unwrap_or_default();
    let mut payload = Payload::default();
    let now = ticks(boot_time().as_nanos() as u64);
    payload.fill(hop.key_id, &s.key, &origin, &s.path, now);
    payload.set_rest(&chain, &WireElement::live(token));
    payload.mac = payload.proof(hop.key);
    let mut tcp = header(s, s.snd_max.wrapping_sub(1));
    tcp.syn = true;
    set_offer(&mut tcp, s);
    packet(s, tcp, &payload.to_bytes())
}

/// Returns the answer to that SYN.
pub(super) fn syn_ack(s: &Session) -> Vec<u8> {
    let s = &s.on_wire();
    let mut tcp = header(s, s.snd_max.wrapping_sub(1));
    tcp.syn = true;
    tcp.ack = true;
    tcp.acknowledgment_number = s.rcv_max;
    set_offer(&mut tcp, s);
    packet(s, tcp, &[])
}

/// Returns a packet as `two_paths::opens_windows` describes. `seq` is in the local end's numbers.
pub(super) fn primer(s: &Session, seq: u32) -> Vec<u8> {
    let seq = s.sent_on_wire(seq);
    let s = &s.on_wire();
    opens_windows(s, seq, s.rcv_max)
}

/// Returns a packet as `two_paths::may_show_length` describes: a segment of `mss` bytes, TCP
/// options included, on a path that was opened with the number before `first` (local end's
/// numbers). It carries the known changes of the other end's packets.
pub(super) fn long_primer(s: &Session, first: u32, mss: u16, seen: Option<Change>) -> Vec<u8> {
    let before = s.sent_on_wire(first).wrapping_sub(1);
    let s = &s.on_wire();
    let mut tcp = pushes(s, before, s.rcv_max);
    let options = tcp.header_len() - TcpHeader::MIN_LEN;
    let length = usize::from(mss).saturating_sub(options).max(PROBE);
    // The length fits into 16 bits.
    tcp.sequence_number = before.wrapping_sub(length as u32);
    let (seq, ack) = (tcp.sequence_number, tcp.acknowledgment_number);
    let stamps = agreed(s, offer::TIMESTAMPS).then_some([s.tsval_out, s.tsval_in]);
    let [tsval, tsecr] = stamps.unwrap_or_default();
    let probe = LengthProbe {
        magic: LENGTH_PROBES,
        heard: u32::from(seen.is_some()),
        sent: [seq, ack, tsval, tsecr],
        offered: offered(s),
        change: seen.unwrap_or_default(),
    };
    packet(s, tcp, &begins_with(&probe.to_bytes(), length))
}

/// Returns a payload of at least `length` bytes that begins with `bytes`.
fn begins_with(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut payload = bytes.to_vec();
    payload.resize(length.max(bytes.len()), 0);
    payload
}

/// Returns the options that this end's SYN has on the wire.
fn offered(s: &Session) -> Offer {
    let mut tcp = header(s, 0);
    set_offer(&mut tcp, s);
    let said = Said::of(&tcp.to_bytes(), s.path.is_v6());
    said.map(|said| said.offer).unwrap_or_default()
}

/// Returns the two packets that open a bypass, one directly after the other: a SYN as the session
/// would have sent it, with its present numbers and options, and the same SYN again, whose answer
/// opens windows (`two_paths::answer_opening`).
///
/// The first is as long as the longest segment that will follow, and so is its answer: a path too
/// narrow for that is refused, since no router's message would find its socket. The MSS counts
/// neither header (RFC 6691).
///
/// It carries its headers as sent, under the nonce of the opening (`dysco_common::probe`).
pub(super) fn bypass_opens(s: &Session, nonce: u32) -> [Vec<u8>; 2] {
    let wire = &s.on_wire_of(s.path);
    let first = wire.snd_max.wrapping_sub(1);
    let mut syn = header(wire, first);
    syn.syn = true;
    let mut again = syn.clone();
    set_offer(&mut syn, wire);
    set_clocks(&mut again, wire);
    let options = syn.header_len() - TcpHeader::MIN_LEN;
    let longest = usize::from(s.local.mss.min(s.remote.mss)).saturating_sub(options);
    let probe = Probe::of_syn(nonce, &syn.to_bytes()).to_bytes();
    [
        packet(wire, syn, &begins_with(&probe, longest)),
        packet(wire, again, &[]),
    ]
}

/// Returns the packet that completes the opening of a bypass: the widest window of this end, for
/// firewalls that have seen only those of the SYNs. `first` is the number of that opening, in the
/// local end's numbers.
pub(super) fn bypass_opened(s: &Session, first: u32) -> Vec<u8> {
    let wire = &s.on_wire_of(s.path);
    let heard = s.received_on_wire(s.peer_sent_max);
    opens_windows(wire, s.sent_on_wire(first), heard)
}

/// Returns the packets that show on a bypass how far this end has sent through the proxy, in steps
/// of the widest window: firewalls let numbers advance no further at once. The bypass opened at
/// `opened` (local end's numbers), if that is known, and the far end has not received all of that
/// data.
pub(super) fn bypass_announcements(s: &Session, opened: Option<u32>) -> Vec<Vec<u8>> {
    let wire = &s.on_wire_of(s.path);
    let heard = s.received_on_wire(s.peer_sent_max);
    let widest = u32::from(u16::MAX) << wire.remote_wscale();
    let last = announces_to(s);
    let opened = opened.filter(|_| !is_past_cutoff(s)).unwrap_or(last);
    let ahead = last.wrapping_sub(opened);
    let steps = (1..STEPS).map(|step| widest.saturating_mul(step));
    let between = steps.take_while(|by| *by < ahead);
    let all = between.map(|by| opened.wrapping_add(by)).chain([last]);
    all.map(|seq| opens_windows(wire, s.sent_on_wire(seq), heard))
        .collect()
}

/// Returns the packets that end a proxy's session for the firewalls on its path. These accept a
/// reset with the number that they last saw acknowledged, or one directly after a segment that ends
/// there (Linux, `nf_conntrack_tcp_packet`). An acknowledgement that was lost behind a firewall
/// leaves that number unknown here. Both packets therefore have the sequence number at the end of
/// all data sent. The other end's host drops both.
pub(super) fn closing_packets(s: &Session) -> [Vec<u8>; 2] {
    let (local, remote) = (s.key.local().port(), s.key.remote().port());
    [false, true].map(|ends| {
        let mut tcp = TcpHeader::new(local, remote, s.snd_max, 0);
        (tcp.ack, tcp.rst) = (true, ends);
        tcp.acknowledgment_number = s.snd_ack;
        packet_of(&s.key, tcp, &[])
    })
}

/// Returns an acknowledgement as the session's own socket sends it, with this number.
pub(super) fn own_ack(s: &Session, seq: u32) -> Vec<u8> {
    let (local, remote) = (s.key.local().port(), s.key.remote().port());
    // Its window is not known here: a window narrower than before opens nothing.
    let mut tcp = TcpHeader::new(local, remote, seq, OWN_WINDOW);
    tcp.ack = true;
    tcp.acknowledgment_number = s.snd_ack;
    set_clocks(&mut tcp, s);
    packet_of(&s.key, tcp, &[])
}

/// Returns the packets that end a path which a session has left: see `two_paths::ends_path`. `seq`
/// is in the local end's numbers.
pub(super) fn path_ends(s: &Session, seq: u32) -> [Vec<u8>; 2] {
    let seq = s.sent_on_wire(seq);
    let wire = &s.on_wire_of(s.path);
    [false, true].map(|ends| {
        let mut tcp = pushes(wire, seq, wire.rcv_max);
        (tcp.rst, tcp.window_size) = (ends, LAST_WINDOW);
        packet(wire, tcp, &[])
    })
}

/// Returns a packet as `two_paths::opens_windows` describes. The session is in the wire's numbers.
fn opens_windows(s: &Session, seq: u32, ack: u32) -> Vec<u8> {
    packet(s, pushes(s, seq, ack), &[])
}

fn pushes(s: &Session, seq: u32, ack: u32) -> TcpHeader {
    let mut tcp = header(s, seq);
    (tcp.ack, tcp.psh) = (true, true);
    tcp.acknowledgment_number = ack;
    set_clocks(&mut tcp, s);
    tcp
}

/// Sets timestamps as segments have them, if they are agreed on.
fn set_clocks(tcp: &mut TcpHeader, s: &Session) {
    if agreed(s, offer::TIMESTAMPS) {
        let stamps = TcpOptionElement::Timestamp(s.tsval_out, s.tsval_in);
        let options = [TcpOptionElement::Noop, TcpOptionElement::Noop, stamps];
        // Twelve bytes of forty.
        let _ = tcp.set_options(&options);
    }
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

fn packet(s: &Session, tcp: TcpHeader, payload: &[u8]) -> Vec<u8> {
    packet_of(&s.path, tcp, payload)
}

/// Returns the packet, or nothing if it cannot be written; nothing is sent then.
pub(super) fn packet_of(key: &FlowKey, tcp: TcpHeader, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (key.local, key.remote);
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
