//! Sending parameters of a proxy's socket: the windows and segment lengths by which it sends, and
//! the time of its last data. A new path must support what this socket does for its peer.

use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use super::sys::option;

/// Bit of `tcpi_options`: timestamps were negotiated.
const TIMESTAMPS: u8 = 1;
/// Length of the timestamps option in bytes.
const TIMESTAMPS_LEN: u32 = 12;
/// Length of IPv4 and TCP headers in bytes, without options.
const HEADERS: u32 = 40;
const HEADERS_V6: u32 = 60;

/// `struct tcp_info` of the kernel, including the window (Linux 5.4) behind the fields that libc
/// names.
pub(super) type Bytes = [u8; 256];
const SND_WND: usize = offset_of!(libc::tcp_info, tcpi_rcv_ooopack) + size_of::<u32>();

/// Sending parameters of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sending {
    /// Bytes of data in its longest segment.
    pub segment: u32,
    /// Bytes of data in the longest segment that path and peer allow. Linux sends no segment
    /// longer than half of the widest window that the peer has ever offered: [`Sending::segment`]
    /// is less in that case.
    pub allowed: u32,
    /// Window that the peer offers now, in bytes.
    pub window: u32,
    /// Milliseconds since the socket last sent data.
    pub silent_ms: u32,
    /// Number of sequence numbers that the peer has acknowledged, modulo 2^32. For a socket that
    /// has connected it includes the SYN (`tcp_snd_una_update`, net/ipv4/tcp_input.c).
    pub acked: u32,
}

impl Sending {
    /// Reads the parameters of a socket of IPv4 or IPv6.
    pub fn of(fd: &OwnedFd, v6: bool) -> io::Result<Sending> {
        let bytes: Bytes = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        Ok(Sending::read(&bytes, v6))
    }

    pub(super) fn read(bytes: &Bytes, v6: bool) -> Sending {
        let word = |at: usize| {
            let word = bytes.get(at..at + size_of::<u32>());
            u32::from_ne_bytes(word.and_then(|w| w.try_into().ok()).unwrap_or_default())
        };
        let options = bytes[offset_of!(libc::tcp_info, tcpi_options)];
        let timestamps = match options & TIMESTAMPS {
            0 => 0,
            _ => TIMESTAMPS_LEN,
        };
        let headers = if v6 { HEADERS_V6 } else { HEADERS };
        let pmtu = word(offset_of!(libc::tcp_info, tcpi_pmtu));
        let at = offset_of!(libc::tcp_info, tcpi_bytes_acked);
        let acked = bytes.get(at..at + size_of::<u64>());
        let acked = u64::from_ne_bytes(acked.and_then(|w| w.try_into().ok()).unwrap_or_default());
        Sending {
            segment: word(offset_of!(libc::tcp_info, tcpi_snd_mss)),
            allowed: pmtu.saturating_sub(headers + timestamps),
            window: word(SND_WND),
            silent_ms: word(offset_of!(libc::tcp_info, tcpi_last_data_sent)),
            acked: acked as u32,
        }
    }

    /// Returns the sequence number up to which the peer lets this socket send. `isn` is the
    /// number of the socket's SYN, or of its SYN-ACK if it was accepted.
    pub fn edge(&self, isn: u32, accepted: bool) -> u32 {
        let first = isn.wrapping_add(u32::from(accepted));
        first.wrapping_add(self.acked).wrapping_add(self.window)
    }

    /// Returns the widest window that the peer is known to have offered, if the window was always
    /// too narrow for two segments. `most` is the negotiated segment length.
    pub fn narrow(&self, most: u32) -> Option<u32> {
        (self.segment < self.allowed.min(most)).then(|| self.window.max(2 * self.segment))
    }
}
