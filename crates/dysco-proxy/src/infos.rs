//! `TCP_INFO` of many sockets by sock_diag, without a descriptor of them.

use std::io;

use dysco_common::FlowKey;
use netlink_sys::{Socket, SocketAddr as Kernel, protocols::NETLINK_SOCK_DIAG};

use super::diag::{
    ANSWER, ANY_COOKIE, BUFFER, HEAD, NLM_F_REQUEST, SOCK_DIAG_BY_FAMILY, is_of, of_one, split,
};
use super::sending::{Bytes, Sending};

/// Number of requests in one message. The answers to all of them fit into a receive buffer of the
/// default size.
const TOGETHER: usize = 32;
// linux/inet_diag.h
const INET_DIAG_INFO: u16 = 2;
/// Place of the wanted attributes in a request: a bit for each, from the first on.
const WANTED: usize = HEAD + 2;
/// Place of the sequence number in `struct nlmsghdr`.
const SEQUENCE: usize = 8;
/// Length of `struct nlattr`.
const ATTRIBUTE: usize = 4;

/// Returns the `TCP_INFO` of each of these sockets of the calling thread's network namespace, named
/// by five-tuple (local is this host's end) and cookie. `None` stands for a socket that the kernel
/// does not list.
///
/// # Errors
/// If the kernel has no sock_diag for TCP.
pub(crate) fn infos(sockets: &[(FlowKey, u64)]) -> io::Result<Vec<Option<Bytes>>> {
    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.connect(&Kernel::new(0, 0))?;
    let mut found = Vec::with_capacity(sockets.len());
    let mut buffer = Vec::with_capacity(BUFFER);
    for some in sockets.chunks(TOGETHER) {
        let first = found.len();
        let requests = some.iter().enumerate();
        let requests: Vec<u8> = requests.flat_map(|(at, of)| request(of, at)).collect();
        socket.send(&requests, 0)?;
        found.resize(first + some.len(), None);
        let mut left = some.len();
        while left > 0 {
            buffer.clear();
            socket.recv(&mut buffer, 0)?;
            let mut rest = &buffer[..];
            while let Some((kind, _, body, after)) = split(rest) {
                let of = sequence(rest).and_then(|at| some.get(at).zip(found.get_mut(first + at)));
                let ((key, _), place) = of.ok_or(io::ErrorKind::InvalidData)?;
                // Any other answer is the error that there is no such socket.
                let is_its = kind == SOCK_DIAG_BY_FAMILY && is_of(body, key);
                *place = is_its.then(|| info(body)).flatten();
                left = left.saturating_sub(1);
                rest = after;
            }
        }
    }
    Ok(found)
}

/// Returns the number of sequence numbers that the peer of the socket with this five-tuple has
/// acknowledged ([`Sending::acked`]); `None` if the thread's namespace has no such socket.
///
/// # Errors
/// If the kernel has no sock_diag for TCP.
pub fn acknowledged(key: &FlowKey) -> io::Result<Option<u32>> {
    let info = infos(&[(*key, ANY_COOKIE)])?.into_iter().flatten().next();
    Ok(info.map(|info| Sending::read(&info, key.is_v6()).acked))
}

/// Returns the request for one socket.
fn request((key, cookie): &(FlowKey, u64), sequence: usize) -> Vec<u8> {
    let mut bytes = of_one(key, *cookie, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST);
    bytes[SEQUENCE..SEQUENCE + 4].copy_from_slice(&(sequence as u32).to_ne_bytes());
    bytes[WANTED] = 1 << (INET_DIAG_INFO - 1);
    bytes
}

/// Returns the sequence number of the first message, which is that of its request.
fn sequence(bytes: &[u8]) -> Option<usize> {
    let bytes = bytes.get(SEQUENCE..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes) as usize)
}

/// Returns the `TCP_INFO` among the attributes of `struct inet_diag_msg`. A kernel whose structure
/// is shorter leaves zeros.
fn info(body: &[u8]) -> Option<Bytes> {
    let mut rest = body.get(ANSWER..)?;
    loop {
        let word = |at: usize| Some(u16::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
        let (length, kind) = (usize::from(word(0)?), word(2)?);
        let value = rest.get(ATTRIBUTE..length)?;
        if kind == INET_DIAG_INFO {
            let mut bytes: Bytes = [0; _];
            let known = value.len().min(bytes.len());
            bytes[..known].copy_from_slice(&value[..known]);
            return Some(bytes);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::sending::Sending;
    use crate::sys::{cookie, key};

    /// Returns both ends of a connection.
    fn connected(at: &str) -> Option<[OwnedFd; 2]> {
        let listener = TcpListener::bind(at).ok()?;
        let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Some([opened.into(), listener.accept().unwrap().0.into()])
    }

    #[test]
    fn the_kernel_says_of_many_what_each_descriptor_says() {
        let all: Vec<OwnedFd> = (0..TOGETHER)
            .flat_map(|n| connected(["127.0.0.1:0", "[::1]:0"][n % 2]))
            .flatten()
            .collect();
        for (n, fd) in all.iter().enumerate() {
            let mut stream = TcpStream::from(fd.try_clone().unwrap());
            stream.write_all(&vec![0; 1 + n]).unwrap();
        }
        let named = |fd: &OwnedFd| (key(fd).unwrap(), cookie(fd).unwrap());
        let mut names: Vec<_> = all.iter().map(named).collect();
        // The second socket is gone, and another socket has the five-tuple of the third.
        let none = TcpListener::bind("127.0.0.1:0").unwrap();
        let none = none.local_addr().unwrap();
        names[1].0 = FlowKey::new(none, none);
        names[2].1 ^= 1 << 40;
        let told = infos(&names).unwrap();
        assert!(told.len() == all.len() && told[1].is_none() && told[2].is_none());
        for (n, fd) in all.iter().enumerate().filter(|(n, _)| ![1, 2].contains(n)) {
            let v6 = names[n].0.is_v6();
            let read = |s: Sending| (s.segment, s.allowed, s.window, s.acked);
            let here = Sending::of(fd, v6).unwrap();
            assert_eq!(
                read(Sending::read(&told[n].unwrap(), v6)),
                read(here),
                "{n}"
            );
        }
        assert!(infos(&[]).unwrap().is_empty());
    }
}
