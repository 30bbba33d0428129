//! Lists that the kernel gives by rtnetlink.

use std::io;

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rtnetlink::packet_route::RouteNetlinkMessage;

/// Greatest number of bytes in a datagram of answers.
const BUFFER: usize = 64 * 1024;

/// Greatest number of requests for a list that changes while the kernel gives it.
const TRIES: u32 = 5;

/// Returns all messages with which the kernel answers the request for a list, in its order.
///
/// # Errors
/// If the kernel does not list them, or the answer cannot be read.
pub(crate) fn list(request: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
    let bytes = encoded(request);
    whole(|| once(&bytes))
}

/// Repeats a request until no change has interrupted the answer. An interrupted one may lack entries;
/// the last one is returned nevertheless.
fn whole<T>(mut ask: impl FnMut() -> io::Result<(T, bool)>) -> io::Result<T> {
    for _ in 1..TRIES {
        if let (found, false) = ask()? {
            return Ok(found);
        }
    }
    Ok(ask()?.0)
}

/// Returns the answers to a request, and true if a change interrupted them.
fn once(request: &[u8]) -> io::Result<(Vec<RouteNetlinkMessage>, bool)> {
    let mut interrupted = false;
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(request, 0)?;
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
            interrupted |= answer.header.flags & NLM_F_DUMP_INTR != 0;
            match answer.payload {
                NetlinkPayload::InnerMessage(message) => found.push(message),
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => {
                    return Ok((found, interrupted));
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_list_is_asked_for_again_and_not_forever() {
        let tried = |changes: u32| {
            let mut asked = 0;
            let found = whole(|| {
                asked += 1;
                Ok((asked, asked <= changes))
            });
            found.unwrap()
        };
        assert_eq!(tried(0), 1);
        assert_eq!(tried(2), 3);
        assert_eq!(tried(u32::MAX), TRIES);
        assert!(whole(|| Err::<((), bool), _>(io::ErrorKind::Other.into())).is_err());
    }
}
