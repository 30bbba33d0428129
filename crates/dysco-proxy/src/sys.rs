//! System calls on descriptors, mostly duplicates of another process's.

use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use dysco_common::FlowKey;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockaddrStorage, getpeername, getsockname};

/// `SO_NETNS_COOKIE`, which libc does not name.
const SO_NETNS_COOKIE: i32 = 71;

/// Reads a socket option of a fixed size. A shorter answer leaves the rest zero.
pub(crate) fn option<T: Copy>(fd: &OwnedFd, level: i32, name: i32) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; every T used here consists of plain
    // integers, for which all-zero is valid.
    unsafe {
        let p = value.as_mut_ptr().cast();
        if libc::getsockopt(fd.as_raw_fd(), level, name, p, &mut len) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(value.assume_init())
    }
}

/// Returns the protocol by which the kernel encodes a socket's bytes before they reach the wire
/// (TCP_ULP, such as `tls`); empty if there is none. The counts of the two sides may agree
/// despite such a protocol.
pub(crate) fn upper_protocol(fd: &OwnedFd) -> io::Result<String> {
    // Length TCP_ULP_NAME_MAX of the kernel's include/net/tcp.h.
    let name: [u8; 16] = option(fd, libc::SOL_TCP, libc::TCP_ULP)?;
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Sets an option of a fixed size.
pub(crate) fn set_option<T: Copy>(
    fd: &impl AsFd,
    level: i32,
    name: i32,
    value: T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes of a local value; every T used here is a plain
    // integer.
    let r = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns true if the kernel reports these events for a descriptor. Does not wait.
pub(crate) fn is_ready(fd: &OwnedFd, events: PollFlags) -> bool {
    let mut polled = [PollFd::new(fd.as_fd(), events)];
    poll(&mut polled, PollTimeout::ZERO).is_ok() && polled[0].all() == Some(true)
}

/// Returns the integer result of an ioctl (SIOCINQ, SIOCOUTQ, FIONREAD).
pub(crate) fn count(fd: &OwnedFd, what: libc::c_ulong) -> io::Result<i64> {
    let mut n: libc::c_int = 0;
    // SAFETY: the request writes one int, which is a local variable.
    if unsafe { libc::ioctl(fd.as_raw_fd(), what as _, &raw mut n) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(i64::from(n))
}

/// Returns both addresses of a connected TCP socket, or an error if the descriptor is no such
/// socket.
pub(crate) fn key(fd: &OwnedFd) -> io::Result<FlowKey> {
    if protocol(fd)? != libc::IPPROTO_TCP {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a TCP socket",
        ));
    }
    let local: SockaddrStorage = getsockname(fd.as_raw_fd())?;
    let peer: SockaddrStorage = getpeername(fd.as_raw_fd())?;
    Ok(FlowKey::new(plain(&local)?, plain(&peer)?))
}

fn plain(a: &SockaddrStorage) -> io::Result<SocketAddr> {
    let v4 = a.as_sockaddr_in().map(|a| SocketAddr::from(*a));
    let v6 = a.as_sockaddr_in6().map(|a| SocketAddr::from(*a));
    v4.or(v6)
        .map(|a| SocketAddr::new(a.ip().to_canonical(), a.port()))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not an Internet socket"))
}

/// Returns the protocol of a socket, or an error if the descriptor is no socket.
pub(crate) fn protocol(fd: &OwnedFd) -> io::Result<i32> {
    option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL)
}

/// Returns the kernel's cookie of a socket.
pub(crate) fn cookie(fd: &OwnedFd) -> io::Result<u64> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// Returns true if the socket belongs to the network namespace of this process.
pub(crate) fn of_our_network(fd: &OwnedFd) -> io::Result<bool> {
    let ours: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| std::net::UdpSocket::bind("[::1]:0"))?
        .into();
    let name = SO_NETNS_COOKIE;
    Ok(option::<u64>(fd, libc::SOL_SOCKET, name)? == option::<u64>(&ours, libc::SOL_SOCKET, name)?)
}

/// Maps the error of a process or descriptor that no longer exists to `None`.
pub(crate) fn gone<T>(r: io::Result<T>) -> io::Result<Option<T>> {
    match r {
        Ok(v) => Ok(Some(v)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::EBADF)) => Ok(None),
        Err(e) => Err(e),
    }
}
