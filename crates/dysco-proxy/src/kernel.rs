//! The kernel's counts of a socket.
//!
//! Bytes read from A are the bytes received (less one for the peer's FIN) less the bytes in the
//! receive queue. Bytes written to B are the bytes acknowledged (less one for the socket's own
//! SYN if this host opened it, and one for its own FIN) plus the bytes in the send queue. These
//! numbers only grow. Readings that are equal before and after were therefore valid at one
//! moment.

use std::io;
use std::os::fd::OwnedFd;

use nix::poll::PollFlags;

use super::sys::{count, is_ready, option};

/// Maximum number of readings to find out which end opened a socket, once in its lifetime.
const OPENING_PASSES: usize = 2_000;

const SIOCINQ: libc::c_ulong = 0x541B;
const SIOCOUTQ: libc::c_ulong = 0x5411;
const SIOCOUTQNSD: libc::c_ulong = 0x894B;

/// States of `tcpi_state`.
mod state {
    pub(super) const ESTABLISHED: u8 = 1;
    pub(super) const FIN_WAIT1: u8 = 4;
    pub(super) const FIN_WAIT2: u8 = 5;
    pub(super) const CLOSE: u8 = 7;
    pub(super) const CLOSE_WAIT: u8 = 8;
    pub(crate) const LAST_ACK: u8 = 9;
    pub(crate) const CLOSING: u8 = 11;
}

/// `TCP_INFO` of a socket.
pub fn info(fd: &OwnedFd) -> io::Result<libc::tcp_info> {
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// Returns true if at least one direction of the socket is still connected.
pub fn connected(fd: &OwnedFd) -> io::Result<bool> {
    Ok(info(fd)?.tcpi_state != state::CLOSE)
}

fn fin_received(i: &libc::tcp_info) -> i64 {
    use state::{CLOSE_WAIT, CLOSING, LAST_ACK};
    i64::from(matches!(i.tcpi_state, CLOSE_WAIT | CLOSING | LAST_ACK))
}

fn fin_sent(i: &libc::tcp_info) -> i64 {
    use state::{CLOSING, FIN_WAIT1, FIN_WAIT2, LAST_ACK};
    i64::from(matches!(
        i.tcpi_state,
        FIN_WAIT1 | FIN_WAIT2 | CLOSING | LAST_ACK
    ))
}

/// Returns true if this host opened the socket. The acknowledged bytes then count the SYN, and
/// the sent bytes do not. Returns `None` if no moment shows it.
pub fn opened_here(fd: &OwnedFd) -> io::Result<Option<bool>> {
    for _ in 0..OPENING_PASSES {
        let i = info(fd)?;
        if !matches!(i.tcpi_state, state::ESTABLISHED | state::CLOSE_WAIT) {
            return Ok(None);
        }
        let (waiting, unsent) = (count(fd, SIOCOUTQ)?, count(fd, SIOCOUTQNSD)?);
        let (waiting_again, then) = (count(fd, SIOCOUTQ)?, info(fd)?);
        let same = i.tcpi_bytes_acked == then.tcpi_bytes_acked
            && i.tcpi_bytes_sent == then.tcpi_bytes_sent
            && i.tcpi_bytes_retrans == then.tcpi_bytes_retrans
            && waiting == waiting_again;
        if same {
            let by_acks = i.tcpi_bytes_acked as i64 + waiting;
            let by_sent = (i.tcpi_bytes_sent as i64) - (i.tcpi_bytes_retrans as i64) + unsent;
            return Ok(match by_acks - by_sent {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            });
        }
    }
    Ok(None)
}

/// Counts of a socket at a moment at which nothing moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Still {
    /// Bytes that the process has read from the socket since it was opened.
    pub read: i64,
    /// Bytes that the process has written to the socket.
    pub written: i64,
    /// True if nothing waits to be read.
    pub no_input: bool,
    /// True if the socket accepts more data.
    pub has_room: bool,
}

/// Returns the counts of a socket, or `None` if something moved between the readings.
pub fn counts(fd: &OwnedFd, opened: bool) -> io::Result<Option<Still>> {
    let before = info(fd)?;
    let (unread, unacked) = (count(fd, SIOCINQ)?, count(fd, SIOCOUTQ)?);
    let after = info(fd)?;
    let has_room = has_room(fd);
    let first = Reading {
        info: before,
        unread,
        unacked,
        has_room,
    };
    let again = Reading {
        info: after,
        unread: count(fd, SIOCINQ)?,
        unacked: count(fd, SIOCOUTQ)?,
        has_room,
    };
    let still = first.same_in(&again) && first.same_out(&again);
    Ok(still.then(|| Still {
        read: again.read(),
        written: again.written(opened),
        no_input: unread == 0,
        has_room,
    }))
}

/// Returns true if the kernel reports the socket as writable. The kernel does so while at least a
/// third of the send buffer is free (`sk_stream_is_writeable`), and when nothing can be written
/// any more.
fn has_room(fd: &OwnedFd) -> bool {
    is_ready(fd, PollFlags::POLLOUT)
}

/// A reading of one socket.
pub struct Reading {
    /// Counters and state.
    pub info: libc::tcp_info,
    /// Bytes in the receive queue.
    pub unread: i64,
    /// Bytes in the send queue.
    pub unacked: i64,
    /// True if the socket accepts more data.
    pub has_room: bool,
}

impl Reading {
    /// Reads the socket. The values may belong to several moments.
    pub fn of(fd: &OwnedFd) -> io::Result<Reading> {
        Ok(Reading {
            info: info(fd)?,
            unread: count(fd, SIOCINQ)?,
            unacked: count(fd, SIOCOUTQ)?,
            has_room: has_room(fd),
        })
    }

    /// Returns true if nothing waits in the socket, and it has neither sent nor received data for
    /// this number of milliseconds.
    pub fn is_silent(&self, for_ms: u32) -> bool {
        let info = &self.info;
        info.tcpi_state == state::ESTABLISHED
            && (self.unread, self.unacked) == (0, 0)
            && info.tcpi_last_data_sent.min(info.tcpi_last_data_recv) >= for_ms
    }

    /// Returns the bytes that the process has read from the socket since it was opened.
    pub fn read(&self) -> i64 {
        self.info.tcpi_bytes_received as i64 - fin_received(&self.info) - self.unread
    }

    /// Returns the bytes that the process has written to the socket.
    pub fn written(&self, opened: bool) -> i64 {
        let acked = self.info.tcpi_bytes_acked as i64 - i64::from(opened) - fin_sent(&self.info);
        acked + self.unacked
    }

    /// Returns true if nothing was received or read between the two readings.
    pub(crate) fn same_in(&self, other: &Reading) -> bool {
        let (a, b) = (&self.info, &other.info);
        a.tcpi_bytes_received == b.tcpi_bytes_received
            && a.tcpi_state == b.tcpi_state
            && self.unread == other.unread
    }

    /// Returns true if nothing was written or acknowledged between the two readings.
    pub(crate) fn same_out(&self, other: &Reading) -> bool {
        let (a, b) = (&self.info, &other.info);
        a.tcpi_bytes_acked == b.tcpi_bytes_acked
            && a.tcpi_state == b.tcpi_state
            && self.unacked == other.unacked
    }
}
