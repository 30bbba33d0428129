//! Values of attributes, and five-tuples.

use std::net::SocketAddr;

use netlink_packet_core::{DefaultNla, Emitable, Nla, NlaBuffer, NlasIterator};
use netlink_packet_netfilter::conntrack::{IPTuple, ProtoTuple, Tuple};

use crate::five_tuple::FiveTuple;

/// Returns the value of an attribute.
pub(super) fn value(nla: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; nla.buffer_len()];
    nla.emit(&mut bytes);
    bytes[4..4 + nla.value_len()].to_vec()
}

/// True if all attributes in it are zero.
pub(super) fn is_empty(nla: &DefaultNla) -> bool {
    let bytes = value(nla);
    let zero = |part: NlaBuffer<&[u8]>| part.value().iter().all(|&byte| byte == 0);
    NlasIterator::new(bytes.as_slice()).all(|part| part.is_ok_and(zero))
}

/// Returns the value of an attribute that is a number of two bytes.
pub(super) fn number(nla: &DefaultNla) -> Option<u16> {
    let bytes: [u8; 2] = value(nla).try_into().ok()?;
    Some(u16::from_be_bytes(bytes))
}

/// Returns the five-tuple; `None` unless it is of TCP.
pub(super) fn five_tuple(parts: &[Tuple]) -> Option<FiveTuple> {
    let (mut addresses, mut ports) = ([None; 2], [None; 2]);
    for part in parts {
        match part {
            Tuple::Ip(parts) => {
                for part in parts {
                    match part {
                        IPTuple::SourceAddress(address) => addresses[0] = Some(*address),
                        IPTuple::DestinationAddress(address) => addresses[1] = Some(*address),
                        _ => {}
                    }
                }
            }
            Tuple::Proto(parts) => {
                for part in parts {
                    match part {
                        ProtoTuple::Protocol(protocol) if u8::from(*protocol) != 6 => return None,
                        ProtoTuple::SourcePort(port) => ports[0] = Some(*port),
                        ProtoTuple::DestinationPort(port) => ports[1] = Some(*port),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(FiveTuple {
        source: SocketAddr::new(addresses[0]?, ports[0]?),
        destination: SocketAddr::new(addresses[1]?, ports[1]?),
    })
}
