//! The port of a session that goes on without the socket which chose it.
//!
//! The kernel gives a port again once no socket has the same five-tuple, and the far end's
//! socket still has it. So another takes that socket's place: in repair mode (TCP_REPAIR) it
//! is connected without a packet, sends none, and is closed without one, by whatever ends it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use dysco_common::FlowKey;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::close::{ON, TCP_REPAIR};
use super::sys::{key, set_option};

/// `IP_LOCAL_PORT_RANGE` (Linux 6.3), which libc does not name. Both bounds, the upper one
/// in the upper half.
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// Keeps a five-tuple from being chosen, until dropped.
pub struct HeldPort {
    _socket: OwnedFd,
}

impl HeldPort {
    /// Takes the five-tuple of a connection from this host.
    ///
    /// # Errors
    /// If another socket has it, or the kernel never chooses this port.
    pub fn hold(connection: &FlowKey) -> io::Result<HeldPort> {
        let (local, remote) = (connection.local(), connection.remote());
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(local), kind, Some(Protocol::TCP))?;
        // A proxy may have used its clients' addresses. The flag is the same for both families.
        socket.set_ip_transparent_v4(true)?;
        let socket = OwnedFd::from(socket);
        set_option(&socket, libc::IPPROTO_TCP, TCP_REPAIR, ON)?;
        let bound = choose_from_one(&socket, local)?;
        let socket = Socket::from(socket);
        socket.bind(&SockAddr::from(bound))?;
        socket.connect(&SockAddr::from(remote))?;
        let socket = OwnedFd::from(socket);
        match key(&socket)? == *connection {
            true => Ok(HeldPort { _socket: socket }),
            false => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}

/// Has the kernel choose the port among this one, as it did for the proxy: a port that a
/// socket asked for by name is not chosen for connections to anybody. What to bind to.
fn choose_from_one(socket: &OwnedFd, local: SocketAddr) -> io::Result<SocketAddr> {
    let port = i32::from(local.port());
    let range = port << 16 | port;
    match set_option(socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, range) {
        Ok(()) => {
            let late = libc::IP_BIND_ADDRESS_NO_PORT;
            set_option(socket, libc::IPPROTO_IP, late, ON)?;
            Ok(SocketAddr::new(local.ip(), 0))
        }
        // An older kernel. A socket in repair may be bound to what others are bound to.
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(local),
        Err(e) => Err(e),
    }
}
