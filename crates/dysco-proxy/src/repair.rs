//! Sockets that continue a session, in the place of one of its ends (TCP_REPAIR).
//!
//! A socket in repair mode takes its numbers and options from this process, and connects without a
//! packet (net/ipv4/tcp.c, `do_tcp_setsockopt`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::close::{ON, TCP_REPAIR, disconnect};
use super::sys::set_option;

// linux/tcp.h
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const TCP_REPAIR_OPTIONS: i32 = 22;
const TCP_REPAIR_WINDOW: i32 = 29;
const RECEIVE_QUEUE: i32 = 1;
const SEND_QUEUE: i32 = 2;
/// Leaves repair mode with a window probe.
const OFF_WITH_PROBE: i32 = 0;
/// Leaves repair mode without a window probe.
const OFF_WITHOUT_PROBE: i32 = -1;
const OPTION_MSS: u32 = 2;
const OPTION_WINDOW: u32 = 3;
const OPTION_SACK: u32 = 4;
const OPTION_TIMESTAMPS: u32 = 8;

/// Bytes of the receive buffer. The session's sender may still use the window that the other end
/// has offered it. The kernel enlarges a buffer only while a program reads.
const BUFFER: i32 = 4 << 20;
/// Window that the socket assumes that it has offered.
const OFFERED: u32 = 1 << 20;
/// Window that the socket assumes until the first packet shows it: a few segments.
const GRANTED: u32 = 10 * 1460;

/// One end's numbers and options of a session.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    /// Next number that the socket sends.
    pub sends: u32,
    /// Next number that the socket receives.
    pub receives: u32,
    /// Maximum segment size in bytes.
    pub mss: u16,
    /// Scales of the windows that the peer sends and that the socket sends, if both ends have the
    /// option.
    pub scales: Option<(u8, u8)>,
    /// True if both ends have SACK.
    pub sack: bool,
    /// True if both ends have timestamps.
    pub timestamps: bool,
}

/// `struct tcp_repair_opt`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RepairOption {
    code: u32,
    value: u32,
}

/// `struct tcp_repair_window`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Window {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// Returns a connected socket that continues a session as the end `own`. The addresses may be
/// those of any host.
///
/// # Errors
/// If the kernel refuses a step. CAP_NET_ADMIN is needed.
pub fn continue_session(own: SocketAddr, peer: SocketAddr, half: &Half) -> io::Result<OwnedFd> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(own), kind, Some(Protocol::TCP))?;
    // The flag is the same for both families.
    socket.set_ip_transparent_v4(true)?;
    socket.set_tcp_nodelay(true)?;
    let socket = OwnedFd::from(socket);
    let set = |name, value: i32| set_option(&socket, libc::IPPROTO_TCP, name, value);
    // This precedes the connection, which derives the largest window from it.
    set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)?;
    set(TCP_REPAIR, ON)?;
    for (queue, next) in [(SEND_QUEUE, half.sends), (RECEIVE_QUEUE, half.receives)] {
        set(TCP_REPAIR_QUEUE, queue)?;
        set(TCP_QUEUE_SEQ, next.cast_signed())?;
    }
    let socket = Socket::from(socket);
    socket.bind(&SockAddr::from(own))?;
    socket.connect(&SockAddr::from(peer))?;
    let socket = OwnedFd::from(socket);
    options(&socket, half)?;
    let scale = half.scales.map_or(0, |(_, own)| own);
    let window = Window {
        snd_wl1: half.receives,
        snd_wnd: GRANTED,
        max_window: GRANTED,
        rcv_wnd: OFFERED.min(u32::from(u16::MAX) << scale),
        rcv_wup: half.receives,
    };
    let tcp = libc::IPPROTO_TCP;
    set_option(&socket, tcp, TCP_REPAIR_WINDOW, window)?;
    set_option(&socket, tcp, TCP_REPAIR, OFF_WITHOUT_PROBE)?;
    Ok(socket)
}

/// Sets the options that the ends have agreed on. The kernel takes each by itself.
fn options(socket: &OwnedFd, half: &Half) -> io::Result<()> {
    let set = |code, value| {
        let option = RepairOption { code, value };
        set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR_OPTIONS, option)
    };
    set(OPTION_MSS, u32::from(half.mss))?;
    if let Some((peer, own)) = half.scales {
        set(OPTION_WINDOW, u32::from(peer) | u32::from(own) << 16)?;
    }
    if half.sack {
        set(OPTION_SACK, 0)?;
    }
    if half.timestamps {
        set(OPTION_TIMESTAMPS, 0)?;
    }
    Ok(())
}

/// Lets a socket be closed without a packet, once no process has it any more.
///
/// # Errors
/// If it is no TCP socket, or CAP_NET_ADMIN is missing.
pub fn hush(socket: &OwnedFd) -> io::Result<()> {
    set_option(socket, libc::IPPROTO_TCP, TCP_REPAIR, ON)
}

/// Makes an established socket send a window probe, which announces the window to its peer. The
/// kernel sends one when a socket leaves repair mode (`tcp_send_window_probe`,
/// net/ipv4/tcp_output.c). A program cannot write to a socket in repair mode (EINVAL).
///
/// # Errors
/// If it is no TCP socket, or CAP_NET_ADMIN is missing.
pub fn probe(socket: impl AsFd) -> io::Result<()> {
    for mode in [ON, OFF_WITH_PROBE] {
        set_option(&socket, libc::IPPROTO_TCP, TCP_REPAIR, mode)?;
    }
    Ok(())
}

/// Resets a connection, although other processes have its socket as well.
///
/// # Errors
/// If it is no TCP socket.
pub fn reset(socket: impl AsFd) -> io::Result<()> {
    disconnect(socket)
}
