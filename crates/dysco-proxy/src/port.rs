//! Reservation of the port of a session that outlives the socket which chose it.
//!
//! The kernel assigns a port again once no socket has the same five-tuple, although the far end's
//! socket still has it. Another socket therefore takes the place of the first. It is in repair
//! mode (TCP_REPAIR): it connects without a packet, sends none, and is closed without one, even by
//! the end of the process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use dysco_common::FlowKey;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::close::{ON, TCP_REPAIR};
use super::sys::{key, set_option};

/// `IP_LOCAL_PORT_RANGE` (Linux 6.3), which libc does not name. The value holds both bounds, the
/// upper one in the upper half.
const IP_LOCAL_PORT_RANGE: i32 = 51;

/// A socket that keeps the kernel from choosing a five-tuple until it is dropped.
pub struct HeldPort {
    _socket: OwnedFd,
}

/// Returns an error if this process may not put a socket into repair. This needs CAP_NET_ADMIN in
/// the user namespace that owns its network namespace (net/ipv4/tcp.c, `tcp_can_repair_sock`).
pub fn try_repair() -> io::Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    set_option(&OwnedFd::from(socket), libc::IPPROTO_TCP, TCP_REPAIR, ON)
}

/// Tries the option by which the port of a proxy that has left is held.
///
/// # Errors
/// If the kernel lacks it: before Linux 6.3, unless the distribution has added it.
pub fn try_hold() -> io::Result<()> {
    const PORT: i32 = 61_000;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let range = PORT << 16 | PORT;
    let socket = OwnedFd::from(socket);
    set_option(&socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, range)
}

impl HeldPort {
    /// Occupies the five-tuple of a connection from this host.
    ///
    /// # Errors
    /// If another socket has the five-tuple, if the kernel never chooses this port, or if the
    /// kernel is older than 6.3.
    pub fn hold(connection: &FlowKey) -> io::Result<HeldPort> {
        let (local, remote) = (connection.local(), connection.remote());
        let kind = Type::STREAM.nonblocking().cloexec();
        let socket = Socket::new(Domain::for_address(local), kind, Some(Protocol::TCP))?;
        // A proxy may have used its clients' addresses. The flag is the same for both families.
        socket.set_ip_transparent_v4(true)?;
        let socket = OwnedFd::from(socket);
        set_option(&socket, libc::IPPROTO_TCP, TCP_REPAIR, ON)?;
        // The port is chosen from a range of one port, as the kernel chose it for the proxy's
        // socket. A port that a socket has bound explicitly is not chosen for other connections.
        let port = i32::from(local.port());
        let range = port << 16 | port;
        set_option(&socket, libc::IPPROTO_IP, IP_LOCAL_PORT_RANGE, range)?;
        set_option(&socket, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, ON)?;
        let socket = Socket::from(socket);
        socket.bind(&SockAddr::from(SocketAddr::new(local.ip(), 0)))?;
        socket.connect(&SockAddr::from(remote))?;
        // Repair sets the flag, and any socket could bind to the same port. The proxy's socket
        // did not allow this.
        socket.set_reuse_address(false)?;
        let socket = OwnedFd::from(socket);
        match key(&socket)? == *connection {
            true => Ok(HeldPort { _socket: socket }),
            false => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }
}
