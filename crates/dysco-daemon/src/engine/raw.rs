//! Packets with headers made here, sent as this host's own.

use std::cell::OnceCell;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use dysco_common::mark;
use dysco_explain::Cause;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBufForce;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::task::JoinHandle;

/// IPPROTO_RAW: the caller makes the IP header.
const RAW: i32 = 255;

/// Send buffer for packets of all paths at once, in bytes: packets that wait for a neighbour that
/// does not answer must not delay others.
const ROOM: usize = 4 << 20;

/// Sockets of one family. They stay open, since a path that opens waits for each packet. None of
/// them waits for room, for which the whole daemon would wait.
#[derive(Default)]
struct Sockets {
    plain: OnceCell<Socket>,
    /// Socket for sessions whose packets this host drops.
    past: OnceCell<Socket>,
}

thread_local! {
    static V4: Sockets = Sockets::default();
    static V6: Sockets = Sockets::default();
    /// Socket of both families, for any interface. The kernel closes one only after a while.
    static UNROUTED: OnceCell<Socket> = const { OnceCell::new() };
}

/// Sends a packet by the route to its destination.
pub(super) fn send(packet: &[u8], to: SocketAddr) -> io::Result<()> {
    with(to, |all| {
        send_on(kept(&all.plain, || open(to))?, packet, to)
    })
}

/// Sends a packet of a session whose packets this host drops.
pub(super) fn send_past(packet: &[u8], to: SocketAddr) -> io::Result<()> {
    let marked = || {
        let socket = open(to)?;
        socket.set_mark(mark::RELAYED)?;
        Ok(socket)
    };
    with(to, |all| send_on(kept(&all.past, marked)?, packet, to))
}

/// Sends a packet by this interface past this host's netfilter, which may know the session by the
/// same five-tuple. The egress program finds the neighbour.
pub(super) fn send_unrouted(packet: &[u8], to: SocketAddr, ifindex: u32) -> io::Result<()> {
    let protocol = match to {
        SocketAddr::V4(_) => libc::ETH_P_IP,
        SocketAddr::V6(_) => libc::ETH_P_IPV6,
    };
    // SAFETY: all zeros is a value of the type.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = ifindex as i32;
    // Length of an Ethernet address; the address itself is zero.
    address.sll_halen = 6;
    UNROUTED.with(|cell| {
        let socket = kept(cell, open_unrouted)?;
        // SAFETY: the kernel reads both up to the lengths given, and both outlive the call.
        let sent = unsafe {
            libc::sendto(
                socket.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        match sent {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })
}

fn open_unrouted() -> io::Result<Socket> {
    // Of no protocol: nothing is received on it.
    let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    let _ = setsockopt(&socket, SndBufForce, &ROOM);
    socket.set_mark(mark::UNROUTED)?;
    Ok(socket)
}

/// Sends a packet as [`send`] does, by one interface and no other.
pub(super) fn send_by(packet: &[u8], to: SocketAddr, interface: Option<&str>) -> io::Result<()> {
    let Some(interface) = interface else {
        return send(packet, to);
    };
    let socket = open(to)?;
    socket.bind_device(Some(interface.as_bytes()))?;
    send_on(&socket, packet, to)
}

/// Packets that are sent repeatedly. The receiver of the answer drops this value, which ends the
/// repetition.
pub(super) struct Repeated(JoinHandle<()>);

impl Repeated {
    /// Sends the packets now, and again after each of `waits` but the last, after which they are
    /// given up. `give_up` gets the cause if not one of them could be sent.
    pub(super) fn send(
        packets: Vec<Vec<u8>>,
        to: SocketAddr,
        waits: &'static [Duration],
        give_up: impl FnOnce(Option<Cause>) + Send + 'static,
    ) -> Repeated {
        let say = move |unsent: &mut Unsent| {
            for packet in &packets {
                let sent = sent(packet, to);
                if let Err(cause) = &sent {
                    tracing::warn!(%to, %cause, "cannot send on a new path");
                }
                unsent.take(sent);
            }
        };
        let mut unsent = Unsent::default();
        say(&mut unsent);
        Repeated(tokio::spawn(async move {
            for (at, wait) in (1..).zip(waits) {
                tokio::time::sleep(*wait).await;
                if at < waits.len() {
                    say(&mut unsent);
                }
            }
            give_up(unsent.cause);
        }))
    }
}

/// The cause for which no packet could be sent; none once one was.
#[derive(Default)]
struct Unsent {
    any_sent: bool,
    cause: Option<Cause>,
}

impl Unsent {
    fn take(&mut self, sent: Result<(), Cause>) {
        self.any_sent |= sent.is_ok();
        self.cause = sent.err().filter(|_| !self.any_sent);
    }
}

/// Sends a packet as [`send`] does. The kernel has the same error for a process without the right to
/// send such packets, and for a packet that this host's own packet filter drops.
fn sent(packet: &[u8], to: SocketAddr) -> Result<(), Cause> {
    let forbidden = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    with(to, |all| {
        let socket = kept(&all.plain, || open(to)).map_err(|error| {
            let cause = Cause::new(format!("this host cannot open a raw socket: {error}"));
            match forbidden(&error) {
                true => cause.hint("give dyscod CAP_NET_RAW"),
                false => cause,
            }
        })?;
        send_on(socket, packet, to).map_err(|error| {
            let cause = Cause::new(format!("this host cannot send to {}: {error}", to.ip()));
            match forbidden(&error) {
                true => cause.hint("see this host's packet filter: nft list ruleset"),
                false => cause,
            }
        })
    })
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn with<T>(to: SocketAddr, work: impl FnOnce(&Sockets) -> T) -> T {
    if to.is_ipv4() {
        V4.with(work)
    } else {
        V6.with(work)
    }
}

/// Returns the socket that is kept there, which is made if there is none.
fn kept(cell: &OnceCell<Socket>, make: impl FnOnce() -> io::Result<Socket>) -> io::Result<&Socket> {
    match cell.get() {
        Some(socket) => Ok(socket),
        None => {
            let socket = make()?;
            Ok(cell.get_or_init(|| socket))
        }
    }
}

fn open(to: SocketAddr) -> io::Result<Socket> {
    let domain = if to.is_ipv4() {
        Domain::IPV4
    } else {
        Domain::IPV6
    };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(RAW)))?;
    socket.set_nonblocking(true)?;
    // If the kernel refuses, its own limit applies. Nobody reads from the socket.
    let _ = setsockopt(&socket, SndBufForce, &ROOM);
    socket.set_recv_buffer_size(0)?;
    // The session's own segments leave regardless of the path MTU that routers reported to the
    // kernel.
    let (level, name, probe) = match to {
        SocketAddr::V4(_) => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        ),
        SocketAddr::V6(_) => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        ),
    };
    let length = size_of_val(&probe) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `probe`, which outlives the call.
    let done = unsafe {
        let value = (&raw const probe).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, value, length)
    };
    match done {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send_on(socket: &Socket, packet: &[u8], to: SocketAddr) -> io::Result<()> {
    // In a raw IPv6 address a port would name a protocol.
    socket
        .send_to(packet, &SocketAddr::new(to.ip(), 0).into())
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_given_only_if_no_packet_was_sent() {
        let of = |all: &[Result<(), &str>]| {
            let mut unsent = Unsent::default();
            all.iter()
                .for_each(|sent| unsent.take(sent.map_err(Cause::new)));
            unsent.cause.map(|cause| cause.why)
        };
        assert_eq!(of(&[Err("a"), Err("b")]), Some("b".to_owned()));
        assert_eq!(of(&[Err("a"), Ok(())]), None);
        assert_eq!(of(&[Ok(()), Err("b")]), None);
        assert_eq!(of(&[]), None);
    }
}
