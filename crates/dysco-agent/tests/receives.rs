//! Receiving calls that took bytes from a socket, by the kernel's account.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use dysco_agent::Receives;

fn cookie(of: &TcpStream) -> u64 {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: this function owns the option and its length.
    let r = unsafe {
        let p = (&raw mut cookie).cast();
        libc::getsockopt(
            of.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            p,
            &mut len,
        )
    };
    assert_eq!(r, 0);
    cookie
}

fn spliced(from: &TcpStream, into: &OwnedFd) -> isize {
    let none = std::ptr::null_mut();
    // SAFETY: null offsets; both descriptors are open.
    unsafe { libc::splice(from.as_raw_fd(), none, into.as_raw_fd(), none, 1 << 20, 0) }
}

#[test]
fn each_call_but_a_splice_or_a_peek_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut to, _) = listener.accept().unwrap();
    let mut beside = to.try_clone().unwrap();
    let mut receives = Receives::open(8).unwrap();
    let socket = cookie(&to);
    assert_eq!(receives.calls(socket), None, "not watched yet");
    receives.watch(socket).unwrap();
    let mut buf = [0; 4];

    let (_out, into) = nix::unistd::pipe().unwrap();
    from.write_all(b"splice").unwrap();
    assert_eq!(spliced(&to, &into), 6);
    from.write_all(b"peek").unwrap();
    assert_eq!(to.peek(&mut buf).unwrap(), 4);
    assert_eq!(receives.calls(socket), Some(0));

    to.read_exact(&mut buf).unwrap();
    assert_eq!(receives.calls(socket), Some(1));
    // By another descriptor, which nothing in this process reports.
    from.write_all(b"dup").unwrap();
    beside.read_exact(&mut buf[..3]).unwrap();
    assert!(receives.watch(socket).is_err(), "it is watched");
    assert_eq!(receives.calls(socket), Some(2), "it goes on as it is");

    receives.forget(socket);
    assert_eq!(receives.calls(socket), None);
    receives.watch(socket).unwrap();
    assert_eq!(receives.calls(socket), Some(0), "it begins anew");
    from.write_all(b"more").unwrap();
    to.read_exact(&mut buf).unwrap();
    assert_eq!(receives.calls(socket), Some(1));
}

#[test]
fn no_more_are_watched_than_there_is_room_for() {
    let mut receives = Receives::open(1).unwrap();
    receives.watch(1).unwrap();
    assert!(receives.watch(2).is_err());
    assert_eq!(receives.calls(2), None);
    receives.forget(1);
    receives.watch(2).unwrap();
}
