//! Length of the packets that the kernel sends on a route. It counts what routers have reported
//! about the rest of the path.

use std::io;
use std::net::{IpAddr, UdpSocket};

use rustix::net::sockopt::{ip_mtu, ipv6_mtu};

/// Returns the bytes of the headers that an MSS does not count (RFC 6691).
pub(super) const fn headers(v6: bool) -> u16 {
    if v6 { 60 } else { 40 }
}

/// Returns the longest segment of packets of `mtu` bytes, TCP options included.
pub(super) const fn longest_within(mtu: u16, v6: bool) -> u16 {
    mtu.saturating_sub(headers(v6))
}

/// Returns the MTU that the kernel assumes on its own route between two addresses, headers
/// included.
///
/// # Errors
/// If no route leads there.
pub(super) fn mtu_between(from: IpAddr, to: IpAddr) -> io::Result<u16> {
    let socket = UdpSocket::bind((from, 0))?;
    // Nothing is sent to it; any port but 0 will do.
    socket.connect((to, 9))?;
    let mtu = match to {
        IpAddr::V4(_) => ip_mtu(&socket),
        IpAddr::V6(_) => ipv6_mtu(&socket),
    };
    Ok(u16::try_from(mtu?).unwrap_or(u16::MAX))
}

/// Returns the longest segment that the kernel would send between two addresses, TCP options
/// included. Without a route there is no limit.
pub(super) fn longest_between(from: IpAddr, to: IpAddr) -> u16 {
    mtu_between(from, to).map_or(u16::MAX, |mtu| longest_within(mtu, to.is_ipv6()))
}
