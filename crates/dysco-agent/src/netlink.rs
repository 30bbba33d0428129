//! Lists that the kernel gives by rtnetlink.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rtnetlink::packet_route::RouteNetlinkMessage;

/// Greatest number of bytes in a datagram of answers.
const BUFFER: usize = 64 * 1024;

/// Returns all messages with which the kernel answers the request for a list, in its order.
///
/// # Errors
/// If the kernel does not list them, or the answer cannot be read.
pub(crate) fn list(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&encoded(request), 0)?;
    let mut found = Vec::new();
    let mut received = Vec::with_capacity(BUFFER);
    loop {
        received.clear();
        socket.recv(&mut received, 0)?;
        let mut rest = received.as_slice();
        while !rest.is_empty() {
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let length = (answer.header.length as usize).next_multiple_of(4);
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(found),
                _ => {}
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

fn encoded(request: RouteNetlinkMessage) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(request));
    packet.finalize();
    let mut bytes = vec![0; packet.buffer_len()];
    packet.serialize(&mut bytes);
    bytes
}
