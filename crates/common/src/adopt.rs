//! The entry of a session that is older than the data plane, computed from the kernel's data of its
//! socket. Pure functions.
//!
//! The kernel does not keep the initial sequence numbers. They follow from the highest number of
//! each direction and its count of bytes. A SYN of ours that was acknowledged counts as an
//! acknowledged byte. FINs count in both directions. The peer's SYN does not count
//! (`tcp_snd_una_update` and `tcp_rcv_nxt_update` in net/ipv4/tcp_input.c).

use core::fmt;

use crate::flow::FlowKey;
use crate::session::{Life, Offer, Session, State, life, offer};
use crate::tcp::{ACK, Segment};

/// Buffer size for a kernel's `struct tcp_sock`, which has 2 to 3 KiB.
pub const MAX_SOCKET_BYTES: usize = 4096;

/// A FIN that the socket has sent or received. It passed on the session's own five-tuple.
const CLOSED: u8 = life::SEEN | life::OLD_PATH;

/// Bytes that the kernel subtracts from an MSS if timestamps are on (`TCPOLEN_TSTAMP_ALIGNED`).
const TIMESTAMPS_OPTION: u16 = 12;

/// `TCP_ESTABLISHED` and others, with the kernel's numbers.
pub mod tcp_state {
    #![allow(missing_docs, reason = "the kernel's names")]
    pub const ESTABLISHED: u8 = 1;
    pub const FIN_WAIT1: u8 = 4;
    pub const FIN_WAIT2: u8 = 5;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LISTEN: u8 = 10;
}

/// The kernel's data of a TCP socket, at one moment. Names are those of its `struct tcp_sock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Socket {
    /// Both addresses, from this host's side.
    pub key: FlowKey,
    /// A [`tcp_state`].
    pub state: u8,
    /// First byte that was sent and not acknowledged.
    pub snd_una: u32,
    /// Next byte to be sent.
    pub snd_nxt: u32,
    /// Next byte that the program will write.
    pub write_seq: u32,
    /// Next byte that is expected.
    pub rcv_nxt: u32,
    /// Last acknowledgement that was sent.
    pub rcv_wup: u32,
    /// Count of acknowledged numbers, including our SYN if we sent one.
    pub bytes_acked: u64,
    /// Count of numbers received after the peer's SYN.
    pub bytes_received: u64,
    /// Bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// MSS that we announced, less the size of a timestamps option.
    pub advmss: u16,
    /// MSS that the peer announced, or less.
    pub mss_clamp: u16,
    /// True if windows are scaled.
    pub wscale_ok: bool,
    /// Scale of the peer's windows.
    pub snd_wscale: u8,
    /// Scale of our windows.
    pub rcv_wscale: u8,
    /// True if SACK was negotiated.
    pub sack_ok: bool,
    /// True if timestamps were negotiated.
    pub tstamp_ok: bool,
    /// Timestamp of the peer that segments are compared with.
    pub ts_recent: u32,
    /// Value of the socket's clock at the last packet, sent or received.
    pub ts_clock: u32,
    /// True if ECN was negotiated.
    pub ecn_ok: bool,
    /// True if the session uses MD5, TCP-AO, MPTCP or AccECN.
    pub foreign: bool,
    /// True in repair mode: a program is saving or restoring the socket.
    pub repair: bool,
    /// True if the program chose the local port. This is never so for an accepted socket.
    pub bound: bool,
    /// True if the SYN carried data that was accepted.
    pub syn_data: bool,
    /// Interface that the socket's packets arrived on, if the kernel reports it.
    pub ifindex_in: Option<u32>,
}

/// Reason why a socket's session is not adopted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NotAdopted {
    /// The socket opens, closes or listens.
    State,
    /// The socket is in repair mode.
    Repair,
    /// The opener is unknown, and therefore also the initial numbers.
    Opener,
    /// The SYN carried data and a FIN, which the kernel counts differently.
    Opening,
    /// The packets arrive on an interface without the data plane, or with a header that it does not
    /// read.
    Interface,
}

impl fmt::Display for NotAdopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotAdopted::State => "opening or closing",
            NotAdopted::Repair => "in repair (TCP_REPAIR)",
            NotAdopted::Opener => "it cannot be told who opened it",
            NotAdopted::Opening => "its SYN carried data and a FIN",
            NotAdopted::Interface => {
                "on an interface where dyscod is not, or whose packets it does not read"
            }
        })
    }
}

/// Maximum distance of a segment from the highest known number, in bytes. Between fast hosts more
/// may be under way. A later segment is then nearer.
const NEAR: u32 = 1 << 22;

/// Returns true if the wire uses the numbers of an adopted session's socket. A component of this
/// host may translate them in between (SYNPROXY). In that case no segment is near the numbers of
/// the entry. `sent` is true if the segment is this host's.
#[inline(always)]
pub const fn has_its_numbers(s: &Session, seg: &Segment, sent: bool) -> bool {
    let (seq, ack) = if sent {
        (s.snd_max, s.rcv_max)
    } else {
        (s.rcv_max, s.snd_max)
    };
    is_near(seg.seq, seq) && (!seg.has(ACK) || is_near(seg.ack, ack))
}

#[inline(always)]
const fn is_near(number: u32, known: u32) -> bool {
    number.wrapping_sub(known).wrapping_add(NEAR) <= 2 * NEAR
}

impl Socket {
    /// Returns true if the number of the socket's FIN was sent.
    const fn fin_sent(&self) -> bool {
        match self.state {
            tcp_state::FIN_WAIT1 => self.snd_nxt == self.write_seq,
            tcp_state::FIN_WAIT2 => true,
            _ => false,
        }
    }

    /// Returns the MSS option that we sent.
    const fn announced(&self) -> u16 {
        if self.tstamp_ok {
            self.advmss.saturating_add(TIMESTAMPS_OPTION)
        } else {
            self.advmss
        }
    }

    /// Returns whether this host opened the session, if that is known. Only then is our SYN among
    /// the acknowledged numbers, which are one more than the bytes sent. `listened` is true if a
    /// socket of this host listens at its local end.
    const fn opened_here(&self, listened: bool) -> Option<bool> {
        if self.bound {
            return Some(true);
        }
        let in_flight = self.snd_nxt.wrapping_sub(self.snd_una) as u64;
        let numbers = self.bytes_acked.wrapping_add(in_flight);
        let bytes = self
            .bytes_sent
            .wrapping_sub(self.bytes_retrans)
            .wrapping_add(self.fin_sent() as u64);
        match numbers.wrapping_sub(bytes) {
            0 => Some(false),
            1 => Some(true),
            // A packet that never left the host was counted.
            _ if listened => Some(false),
            _ => None,
        }
    }

    /// Returns the flags of the agreed options.
    fn agreed(&self) -> u8 {
        let agreed = [
            (true, offer::SEEN),
            (self.wscale_ok, offer::WSCALE),
            (self.sack_ok, offer::SACK),
            (self.tstamp_ok, offer::TIMESTAMPS),
            (self.ecn_ok, offer::ECN),
            (self.foreign, offer::FOREIGN),
        ];
        let on = agreed.iter().filter(|(on, _)| *on);
        on.fold(0, |all, (_, flag)| all | flag)
    }

    /// Returns the entry of the socket's session, with the fields that its SYNs would have taught.
    /// The highest numbers are those of this sample; packets raise them.
    ///
    /// Only the agreed options are known, and not the offers. The entry says that both ends have
    /// offered them. Our MSS is the one that we announced. The peer's MSS is the one that it
    /// announced, or less. The former limits the segments that the peer sends, and the latter those
    /// that it accepts.
    pub fn session(&self, created_ns: u64, listened: bool) -> Result<Session, NotAdopted> {
        use tcp_state::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT1, FIN_WAIT2};
        if !matches!(self.state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT) {
            return Err(NotAdopted::State);
        }
        if self.repair {
            return Err(NotAdopted::Repair);
        }
        let fin_in = self.state == CLOSE_WAIT;
        if fin_in && self.syn_data {
            return Err(NotAdopted::Opening);
        }
        let opened_here = self.opened_here(listened).ok_or(NotAdopted::Opener)?;
        let acked = self.bytes_acked.wrapping_sub(opened_here as u64);
        let in_flight = self.snd_nxt.wrapping_sub(self.snd_una) as u64;
        let flags = self.agreed();
        let wscale = |scale| if self.wscale_ok { scale } else { 0 };
        // The byte counts have 64 bits, and the numbers 32: modulo 2^32.
        let first_byte_out = self.snd_una.wrapping_sub(acked as u32);
        let first_byte_in = self.rcv_nxt.wrapping_sub(self.bytes_received as u32);
        Ok(Session {
            state: State::Adopted as u32,
            created_ns,
            key: self.key,
            short: self.key.short(),
            bytes_out: acked.wrapping_add(in_flight),
            bytes_in: self.bytes_received,
            snd_max: self.snd_nxt,
            snd_seen: self.snd_nxt,
            snd_ack: self.rcv_wup,
            rcv_max: self.rcv_nxt,
            rcv_ack: self.snd_una,
            tsval_out: if self.tstamp_ok { self.ts_clock } else { 0 },
            tsval_in: if self.tstamp_ok { self.ts_recent } else { 0 },
            local: Offer {
                isn: first_byte_out.wrapping_sub(1),
                mss: self.announced(),
                wscale: wscale(self.rcv_wscale),
                flags,
            },
            remote: Offer {
                isn: first_byte_in.wrapping_sub(1),
                mss: self.mss_clamp,
                wscale: wscale(self.snd_wscale),
                flags,
            },
            life: Life {
                opened_here: opened_here as u8,
                fin_out: if self.fin_sent() { CLOSED } else { 0 },
                fin_in: if fin_in { CLOSED } else { 0 },
                v6: self.key.is_v6() as u8,
                ..Life::default()
            },
            ..Session::default()
        })
    }
}
