//! The kernel's list of TCP sockets by sock_diag: the same as `/proc/net/tcp` shows, at a fifth of its
//! cost.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use dysco_common::FlowKey;
use netlink_sys::{Socket, SocketAddr as Kernel, protocols::NETLINK_SOCK_DIAG};

use super::proc_net::Row;

// linux/netlink.h
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST_DUMP: u16 = 0x301;
pub(super) const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_REQUEST_ACK: u16 = 0x5;
const NLM_F_DUMP_INTR: u16 = 0x10;
/// Length of `struct nlmsghdr`.
pub(super) const HEAD: usize = 16;
// linux/sock_diag.h, linux/inet_diag.h
pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
/// Length of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// Offset of `struct inet_diag_sockid` in a request, and offset of the cookie.
const ID: usize = HEAD + 8;
pub(super) const COOKIE: usize = ID + 40;
/// Cookie of a request for any socket of a five-tuple (`INET_DIAG_NOCOOKIE`).
pub(super) const ANY_COOKIE: u64 = u64::MAX;
/// Length of `struct inet_diag_msg`, and the places of the cookie, the user and the inode in it.
pub(super) const ANSWER: usize = 72;
const ITS_COOKIE: usize = 44;
const USER: usize = 64;
const INODE: usize = 68;
/// Bytes of one answer of the kernel (`NLMSG_GOODSIZE` at most, twice as much since Linux 4.9).
pub(super) const BUFFER: usize = 64 << 10;

/// Returns all TCP sockets of the calling thread's network namespace.
///
/// # Errors
/// If the kernel has no sock_diag for TCP, or the list has changed too much meanwhile.
pub fn rows() -> io::Result<Vec<Row>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&Kernel::new(0, 0))?;
    let mut rows = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        socket.send(&request(family as u8), 0)?;
        while !read(&socket, &mut rows)? {}
    }
    Ok(rows)
}

/// Ends a connection of the calling thread's network namespace: the kernel resets it, and its
/// program gets an error.
///
/// # Errors
/// If there is no such socket, the kernel has no CONFIG_INET_DIAG_DESTROY, or CAP_NET_ADMIN is
/// missing.
pub fn destroy(key: &FlowKey) -> io::Result<()> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&Kernel::new(0, 0))?;
    let found = one(&socket, key)?;
    let [low, high] = [ITS_COOKIE, ITS_COOKIE + 4].map(|at| u64::from(word(&found, at)));
    let cookie = high << 32 | low;
    let request = of_one(key, cookie, SOCK_DESTROY, NLM_F_REQUEST_ACK);
    socket.send(&request, 0)?;
    let done = read(&socket, &mut Vec::new());
    // The kernel acknowledges by an error of 0.
    match done {
        Err(error) if error.raw_os_error() == Some(0) => Ok(()),
        other => other.map(drop),
    }
}

/// Returns the user whose process made a connection of the calling thread's network namespace.
///
/// # Errors
/// If there is no such socket, or the kernel has no sock_diag for TCP.
pub fn owner(key: &FlowKey) -> io::Result<u32> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&Kernel::new(0, 0))?;
    Ok(word(&one(&socket, key)?, USER))
}

/// Asks for the socket of a five-tuple. Returns its `struct inet_diag_msg`.
fn one(socket: &Socket, key: &FlowKey) -> io::Result<[u8; ANSWER]> {
    let request = of_one(key, ANY_COOKIE, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST);
    socket.send(&request, 0)?;
    let mut buffer = Vec::with_capacity(BUFFER);
    socket.recv(&mut buffer, 0)?;
    let Some((kind, _, body, _)) = split(&buffer) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    if kind == NLMSG_ERROR {
        let code = body
            .first_chunk()
            .map_or(0, |code| i32::from_ne_bytes(*code));
        return Err(io::Error::from_raw_os_error(-code));
    }
    let found = body.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
    match is_of(found, key) {
        true => Ok(*found),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Returns true if an answer is about the socket of this five-tuple. If there is none, the kernel
/// answers with the socket that listens on the local port (`inet_diag_find_one_icsk`,
/// net/ipv4/inet_diag.c).
pub(super) fn is_of(answer: &[u8], key: &FlowKey) -> bool {
    row(answer).is_some_and(|row| row.key == *key)
}

/// Returns a field of 32 bits of an answer, which is in host order.
fn word(answer: &[u8; ANSWER], at: usize) -> u32 {
    u32::from_ne_bytes([0, 1, 2, 3].map(|n| answer[at + n]))
}

/// Returns a request about one socket.
pub(super) fn of_one(key: &FlowKey, cookie: u64, kind: u16, flags: u16) -> Vec<u8> {
    let (local, remote) = (key.local(), key.remote());
    let family = match local.ip() {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    let mut bytes = request(family as u8);
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    // struct inet_diag_sockid: ports and addresses in network order, an interface, a cookie.
    let id = &mut bytes[ID..];
    id[..2].copy_from_slice(&local.port().to_be_bytes());
    id[2..4].copy_from_slice(&remote.port().to_be_bytes());
    for (at, ip) in [(4, local.ip()), (20, remote.ip())] {
        match ip {
            IpAddr::V4(ip) => id[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // The lower half is first on any machine.
    let halves = [cookie as u32, (cookie >> 32) as u32].map(u32::to_ne_bytes);
    bytes[COOKIE..COOKIE + 8].copy_from_slice(halves.as_flattened());
    bytes
}

/// Returns a request for all sockets of a family, in all states.
fn request(family: u8) -> Vec<u8> {
    let mut bytes = vec![0; HEAD + REQUEST];
    bytes[..4].copy_from_slice(&((HEAD + REQUEST) as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    bytes[HEAD] = family;
    bytes[HEAD + 1] = libc::IPPROTO_TCP as u8;
    bytes[HEAD + 4..HEAD + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
    bytes
}

/// Reads one answer of the kernel. Returns true if it was the last.
fn read(socket: &Socket, rows: &mut Vec<Row>) -> io::Result<bool> {
    let mut buffer = Vec::with_capacity(BUFFER);
    socket.recv(&mut buffer, 0)?;
    let mut rest = &buffer[..];
    while let Some((kind, flags, body, after)) = split(rest) {
        if flags & NLM_F_DUMP_INTR != 0 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = body
                    .first_chunk()
                    .map_or(0, |code| i32::from_ne_bytes(*code));
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ => rows.extend(row(body)),
        }
        rest = after;
    }
    Ok(false)
}

/// Returns the type, the flags and the body of the first message, and what follows it.
pub(super) fn split(bytes: &[u8]) -> Option<(u16, u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(*bytes.first_chunk()?) as usize;
    let message = bytes.get(..length)?;
    let word = |at: usize| {
        Some(u16::from_ne_bytes(
            message.get(at..at + 2)?.try_into().ok()?,
        ))
    };
    let (kind, flags, body) = (word(4)?, word(6)?, message.get(HEAD..)?);
    let next = length.next_multiple_of(4).min(bytes.len());
    Some((kind, flags, body, &bytes[next..]))
}

/// Parses `struct inet_diag_msg`.
fn row(body: &[u8]) -> Option<Row> {
    let body: &[u8; ANSWER] = body.first_chunk()?;
    let v6 = i32::from(body[0]) == libc::AF_INET6;
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let ip = |at: usize| -> Option<IpAddr> {
        let bytes: [u8; 16] = body[at..at + 16].try_into().ok()?;
        Some(match v6 {
            true => Ipv6Addr::from(bytes).to_canonical(),
            false => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
        })
    };
    let local = SocketAddr::new(ip(8)?, port(4));
    let remote = SocketAddr::new(ip(24)?, port(6));
    let inode = word(body, INODE);
    Some(Row {
        key: FlowKey::new(local, remote),
        state: body[1],
        inode: u64::from(inode),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    use super::*;
    use crate::proc_net::rows_in;

    #[test]
    fn a_destroyed_connection_is_reset() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let key = FlowKey::new(near.local_addr().unwrap(), near.peer_addr().unwrap());
            match destroy(&key) {
                // Some kernels lack the operation.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
                done => done.unwrap(),
            }
            for (end, kind) in [
                (&mut near, io::ErrorKind::ConnectionAborted),
                (&mut far, io::ErrorKind::ConnectionReset),
            ] {
                assert_eq!(end.read(&mut [0]).unwrap_err().kind(), kind, "{at}");
            }
            assert_eq!(destroy(&key).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn a_closed_connection_is_not_taken_for_its_listener() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                continue;
            };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            let key = FlowKey::new(far.local_addr().unwrap(), far.peer_addr().unwrap());
            assert_eq!(owner(&key).unwrap(), 0, "{at}");
            // A reset leaves no socket behind.
            socket2::SockRef::from(&near)
                .set_linger(Some(std::time::Duration::ZERO))
                .unwrap();
            drop((near, far));
            for found in [owner(&key).map(drop), destroy(&key)] {
                let error = found.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::NotFound, "{at}");
            }
            assert_eq!(crate::infos::acknowledged(&key).unwrap(), None, "{at}");
            TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        }
    }

    #[test]
    fn the_kernel_lists_the_same_both_ways() {
        let listeners = ["127.0.0.1:0", "[::1]:0", "[::]:0"].map(TcpListener::bind);
        let listeners: Vec<_> = listeners.into_iter().flatten().collect();
        let open = |l: &TcpListener| TcpStream::connect(l.local_addr().unwrap()).unwrap();
        let open: Vec<TcpStream> = listeners.iter().map(open).collect();
        let ours = |rows: Vec<Row>| -> HashSet<(FlowKey, u8, u64)> {
            let ports: HashSet<u16> = open
                .iter()
                .map(|s| s.local_addr().unwrap().port())
                .collect();
            let of = |r: &Row| {
                let ends = [r.key.local().port(), r.key.remote().port()];
                ends.iter().any(|port| ports.contains(port))
            };
            let some = rows.into_iter().filter(of);
            some.map(|r| (r.key, r.state, r.inode)).collect()
        };
        let listed = ours(rows().unwrap());
        assert!(listed.len() >= 2 * open.len());
        assert_eq!(
            listed,
            ours(rows_in(Path::new("/proc/thread-self/net")).unwrap())
        );
    }
}
