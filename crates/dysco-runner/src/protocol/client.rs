//! `dyscod`'s side of the connection to a runner.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with, socketpair,
};

use super::{Report, Request, receive, send};

/// A connection to a runner. No call waits: `WouldBlock` means that the descriptor has to become
/// readable or writable first.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
}

impl Client {
    /// Ends the connection for both sides. A runner without sessions ends then.
    pub fn close(&self) {
        // An error means that the runner has closed it.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Creates a connection and its other side, which a new runner gets.
    pub fn pair() -> io::Result<(Client, OwnedFd)> {
        let (socket, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None)?;
        Ok((Client { socket }, other))
    }

    /// Connects to the socket on which a runner listens ([`listen`]).
    pub fn connect(path: &Path) -> io::Result<Client> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Client { socket })
    }

    /// Sends a request with its descriptors: two for [`Request::Put`], none for others.
    pub fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(&self.socket, request, fds)
    }

    /// Returns the next report, or nothing if the runner has ended.
    pub fn recv(&self) -> io::Result<Option<Report>> {
        let received = receive::<Report>(&self.socket)?;
        Ok(received.map(|(report, _)| report))
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Client {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Creates the socket by which a later `dyscod` reaches a runner. The path must not exist. Any
/// process that can connect to the socket controls the runner, so its folder should be private.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags(), None)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 4)?;
    Ok(socket)
}

fn flags() -> SocketFlags {
    SocketFlags::CLOEXEC | SocketFlags::NONBLOCK
}
