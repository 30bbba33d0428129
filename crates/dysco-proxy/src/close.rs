//! Silent close of both sockets of a pair, without a packet.
//!
//! In repair mode a socket sends nothing and disconnects silently. The daemon disconnects the
//! socket and thereby closes it before the proxy wakes, so that no later call of the proxy can
//! send. Both sockets enter repair before either is closed. Otherwise the proxy would see one
//! close and send a FIN on the other.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::duplicate::{Duplicate, Process, Processes, is_no_socket};
use super::error::CloseError;
use super::kernel::connected;
use super::pair::{Closed, End, Pair};
use super::sys::{cookie, gone, key, set_option};

pub(super) const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
pub(super) const ON: i32 = 1;
/// Leaves repair without a window probe, which would be a packet.
const OFF_NO_PROBE: i32 = -1;
const SEND_QUEUE: i32 = 2;

/// Current meaning of a descriptor.
enum Now {
    /// The socket, still connected.
    Open(Duplicate),
    /// The closed socket, or no descriptor.
    Closed,
    /// Another file or socket.
    Other,
}

/// Closes both sockets. Blocks for some microseconds.
pub(crate) fn close_silently(pair: &Pair, processes: &mut Processes) -> Result<Closed, CloseError> {
    let process = gone(processes.open(pair.id.pid));
    let process = process.map_err(|e| system(pair, "find the process", e))?;
    let Some(process) = process else {
        return Ok(Closed::Already);
    };
    let now = |fd, end| now(process, fd, end).map_err(|e| system(pair, "take a socket", e));
    let (a, b) = (now(pair.id.fd_a, &pair.a)?, now(pair.id.fd_b, &pair.b)?);
    match (a, b) {
        (Now::Open(a), Now::Open(b)) => {
            both(pair, &a, &b)?;
            Ok(Closed::Now)
        }
        (Now::Open(one), Now::Closed) | (Now::Closed, Now::Open(one)) => {
            hush(&one).map_err(|e| system(pair, "silence a socket", e))?;
            disconnect(&*one).map_err(|e| system(pair, "close a socket", e))?;
            Ok(Closed::Now)
        }
        (Now::Other, Now::Open(_)) | (Now::Open(_), Now::Other) => {
            Err(CloseError::Changed(pair.id))
        }
        (Now::Closed | Now::Other, Now::Closed | Now::Other) => Ok(Closed::Already),
    }
}

fn now(process: &Process, fd: i32, end: &End) -> io::Result<Now> {
    let fd = match gone(process.socket(fd)) {
        Ok(Some(fd)) => fd,
        Ok(None) => return Ok(Now::Closed),
        Err(e) if is_no_socket(&e) => return Ok(Now::Other),
        Err(e) => return Err(e),
    };
    if cookie(&fd).is_ok_and(|c| c != end.cookie) {
        return Ok(Now::Other);
    }
    Ok(match key(&fd) {
        Ok(k) if k == end.key => Now::Open(fd),
        Ok(_) => Now::Other,
        Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) && !connected(&fd)? => Now::Closed,
        Err(_) => Now::Other,
    })
}

fn both(pair: &Pair, a: &OwnedFd, b: &OwnedFd) -> Result<(), CloseError> {
    hush(a).map_err(|e| system(pair, "silence the client's side", e))?;
    if let Err(e) = hush(b) {
        // Socket A continues as before.
        set_option(a, libc::IPPROTO_TCP, TCP_REPAIR, OFF_NO_PROBE)
            .map_err(|e| system(pair, "undo the silence of the client's side", e))?;
        return Err(system(pair, "silence the server's side", e));
    }
    let first = disconnect(a);
    // Socket B is closed even if closing A failed.
    let second = disconnect(b);
    first
        .and(second)
        .map_err(|e| system(pair, "close the sockets", e))
}

/// Stops all packets from this socket.
fn hush(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::IPPROTO_TCP, TCP_REPAIR, ON)?;
    // While a queue is selected, even a shutdown by the proxy sends no FIN.
    set_option(fd, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, SEND_QUEUE)
}

pub(crate) fn disconnect(fd: impl AsFd) -> io::Result<()> {
    // SAFETY: an all-zero sockaddr has the family AF_UNSPEC; the length is its own.
    let r = unsafe {
        let none: libc::sockaddr = std::mem::zeroed();
        let len = size_of::<libc::sockaddr>() as libc::socklen_t;
        libc::connect(fd.as_fd().as_raw_fd(), &raw const none, len)
    };
    if r == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn system(pair: &Pair, what: &'static str, source: io::Error) -> CloseError {
    CloseError::System {
        pair: pair.id,
        what,
        source,
    }
}
