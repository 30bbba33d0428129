//! Messages that make, change and delete entries.

use std::net::{IpAddr, SocketAddr};

use netlink_packet_core::{DefaultNla, Emitable, Nla};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoInfo, ProtoInfoTCP, ProtoTuple, Protocol,
    Status, Tuple,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage};

use super::attribute;
use super::{ConntrackState, TcpEnd, TcpState, Zone, ZoneDirection};
use crate::Seen;
use crate::five_tuple::FiveTuple;
use crate::netlink::family;

/// Flags that the kernel keeps of an end.
pub(super) mod flag {
    /// It offered a window scale.
    pub(crate) const WINDOW_SCALE: u8 = 0x01;
    /// It offered selective acknowledgements.
    pub(crate) const SACK: u8 = 0x02;
    /// It closed first.
    pub(crate) const CLOSE_FIRST: u8 = 0x04;
    /// Its windows are not judged.
    pub(crate) const LIBERAL: u8 = 0x08;
    /// A packet of the end with an acknowledgement was inside the windows. The flag belongs to a
    /// number that the kernel does not report, so the flag does not travel.
    pub(crate) const SEEN: u8 = 0x20;
}

/// Longest time-out, in seconds, that an entry from another host gets if no packet arrives: the
/// kernel's own for an open session.
const LONGEST_S: u32 = 432_000;

/// Message that creates an entry.
pub(super) fn create(seen: &Seen, state: &ConntrackState) -> NetfilterMessage {
    let mut attributes = names(&seen.session, state.zone);
    // The kernel finds the translation of the answers by itself.
    let reply = tuple(&seen.session.reversed(), state.zone, true);
    attributes.push(ConntrackAttribute::CtaTupleReply(reply));
    let (from, to) = (seen.session, seen.translated);
    if from.source != to.source {
        attributes.push(translation(attribute::NAT_SOURCE, to.source));
    }
    if from.destination != to.destination {
        attributes.push(translation(attribute::NAT_DESTINATION, to.destination));
    }
    attributes.extend(content(state));
    message(&seen.session, ConntrackMessage::New(attributes))
}

/// Message that updates an entry.
pub(super) fn update(seen: &Seen, state: &ConntrackState) -> NetfilterMessage {
    let mut attributes = names(&seen.session, state.zone);
    attributes.extend(content(state));
    message(&seen.session, ConntrackMessage::New(attributes))
}

/// Message that sets the flags in `mask` of an entry's two ends.
pub(super) fn set_flags(
    session: &FiveTuple,
    zone: Zone,
    mask: u8,
    flags: [u8; 2],
) -> NetfilterMessage {
    let mut attributes = names(session, zone);
    attributes.push(ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(
        flag_attributes(flags, mask),
    )]));
    message(session, ConntrackMessage::New(attributes))
}

/// Message that deletes an entry.
pub(super) fn delete(session: &FiveTuple, zone: Zone) -> NetfilterMessage {
    message(session, ConntrackMessage::Delete(names(session, zone)))
}

fn message(session: &FiveTuple, inner: ConntrackMessage) -> NetfilterMessage {
    NetfilterMessage::new(
        NetfilterHeader::new(family(session.source.ip()), 0, 0),
        inner,
    )
}

fn names(session: &FiveTuple, zone: Zone) -> Vec<ConntrackAttribute> {
    let mut attributes = vec![ConntrackAttribute::CtaTupleOrig(tuple(
        session, zone, false,
    ))];
    attributes.extend(zone_attributes(zone));
    attributes
}

/// Attributes that a new entry and an updated one have in common.
fn content(state: &ConntrackState) -> Vec<ConntrackAttribute> {
    let mut status = Status::Confirmed;
    status.set(Status::Assured, state.assured);
    status.set(Status::SeenReply, state.seen_reply);
    let mut attributes = vec![
        ConntrackAttribute::CtaTimeout(state.timeout_s.min(LONGEST_S)),
        ConntrackAttribute::CtaStatus(status),
        ConntrackAttribute::CtaProtoInfo(vec![ProtoInfo::TCP(tcp(&state.tcp))]),
        ConntrackAttribute::CtaMark(state.mark),
    ];
    let labels = state.label_bytes().unwrap_or_default();
    if !labels.is_empty() {
        let labels = DefaultNla::new(attribute::LABELS, labels);
        attributes.push(ConntrackAttribute::Other(labels));
    }
    attributes
}

fn tcp(tcp: &TcpState) -> Vec<ProtoInfoTCP> {
    const MASK: u8 = flag::WINDOW_SCALE | flag::SACK | flag::CLOSE_FIRST | flag::LIBERAL;
    let mut attributes = vec![
        ProtoInfoTCP::State(tcp.state.number()),
        ProtoInfoTCP::OriginalWindowScale(tcp.original.window_scale.unwrap_or_default()),
        ProtoInfoTCP::ReplyWindowScale(tcp.reply.window_scale.unwrap_or_default()),
    ];
    attributes.extend(flag_attributes(
        [flags(tcp.original), flags(tcp.reply)],
        MASK,
    ));
    attributes
}

fn flags(end: TcpEnd) -> u8 {
    let bit = |on: bool, bit: u8| if on { bit } else { 0 };
    // Until the entry has settled, it does not judge windows.
    bit(end.window_scale.is_some(), flag::WINDOW_SCALE)
        | bit(end.sack, flag::SACK)
        | bit(end.close_first, flag::CLOSE_FIRST)
        | flag::LIBERAL
}

fn flag_attributes(flags: [u8; 2], mask: u8) -> Vec<ProtoInfoTCP> {
    const ORIGINAL: u16 = 4;
    const REPLY: u16 = 5;
    let attribute = |kind, flags| ProtoInfoTCP::Other(DefaultNla::new(kind, vec![flags, mask]));
    vec![attribute(ORIGINAL, flags[0]), attribute(REPLY, flags[1])]
}

/// Returns the attribute of a zone that holds for both directions. It is beside the tuples. The
/// zone of a single direction is inside its tuple.
pub(super) fn zone_attributes(zone: Zone) -> Option<ConntrackAttribute> {
    let both = zone.direction == ZoneDirection::Both && zone.id != 0;
    both.then(|| ConntrackAttribute::Other(zone_id(attribute::ZONE, zone)))
}

fn zone_id(kind: u16, zone: Zone) -> DefaultNla {
    DefaultNla::new(kind, zone.id.to_be_bytes().to_vec())
}

/// Attributes of the packets of one direction.
pub(super) fn tuple(session: &FiveTuple, zone: Zone, reply: bool) -> Vec<Tuple> {
    let mut parts = vec![
        Tuple::Ip(vec![
            IPTuple::SourceAddress(session.source.ip()),
            IPTuple::DestinationAddress(session.destination.ip()),
        ]),
        Tuple::Proto(vec![
            ProtoTuple::Protocol(Protocol::Tcp),
            ProtoTuple::SourcePort(session.source.port()),
            ProtoTuple::DestinationPort(session.destination.port()),
        ]),
    ];
    let own = match zone.direction {
        ZoneDirection::Both => false,
        ZoneDirection::Original => !reply,
        ZoneDirection::Reply => reply,
    };
    if own {
        parts.push(Tuple::Other(zone_id(attribute::TUPLE_ZONE, zone)));
    }
    parts
}

/// Attribute that translates to exactly this address and port.
fn translation(kind: u16, to: SocketAddr) -> ConntrackAttribute {
    const PORTS: u16 = 3;
    let (lowest, highest, address) = match to.ip() {
        IpAddr::V4(ip) => (1, 2, ip.octets().to_vec()),
        IpAddr::V6(ip) => (4, 5, ip.octets().to_vec()),
    };
    let port = to.port().to_be_bytes().to_vec();
    let ports = [DefaultNla::new(1, port.clone()), DefaultNla::new(2, port)];
    let parts = [
        DefaultNla::new(lowest, address.clone()),
        DefaultNla::new(highest, address),
        nest(PORTS, &ports),
    ];
    ConntrackAttribute::Other(nest(kind, &parts))
}

/// Returns an attribute made of attributes.
pub(super) fn nest(kind: u16, parts: &[impl Nla]) -> DefaultNla {
    let mut bytes = vec![0; parts.buffer_len()];
    parts.emit(&mut bytes);
    DefaultNla::new(kind | netlink_packet_core::NLA_F_NESTED, bytes)
}
