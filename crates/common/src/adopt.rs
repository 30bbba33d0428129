//! A session that was there before the data plane: its entry, from what the
//! kernel holds of its socket. Pure.
//!
//! The kernel forgets the initial sequence numbers, and keeps what gives them
//! back: the highest number each way, and how many bytes that makes. A SYN of
//! ours that was acknowledged counts as a byte acknowledged; FINs count both
//! ways; the peer's SYN does not (`tcp_snd_una_update` and `tcp_rcv_nxt_update`
//! in net/ipv4/tcp_input.c).

use core::fmt;

use crate::flow::FlowKey;
use crate::session::{Life, Offer, Session, State, life, offer};
use crate::tcp::{ACK, Segment};

/// Room for a kernel's `struct tcp_sock`, of 2 to 3 KiB.
pub const MAX_SOCKET_BYTES: usize = 4096;

/// A FIN that the socket has sent or heard. It passed on the session's own five-tuple.
const CLOSED: u8 = life::SEEN | life::OLD_PATH;

/// What the kernel takes off an MSS where timestamps are on
/// (`TCPOLEN_TSTAMP_ALIGNED`).
const TIMESTAMPS_OPTION: u16 = 12;

/// `TCP_ESTABLISHED` and so on, as the kernel numbers them.
pub mod tcp_state {
    #![allow(missing_docs, reason = "the kernel's names")]
    pub const ESTABLISHED: u8 = 1;
    pub const FIN_WAIT1: u8 = 4;
    pub const FIN_WAIT2: u8 = 5;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LISTEN: u8 = 10;
}

/// What the kernel holds of a TCP socket, at one moment. Names are those of its
/// `struct tcp_sock`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Socket {
    /// Both addresses, from this host's side.
    pub key: FlowKey,
    /// A [`tcp_state`].
    pub state: u8,
    /// First byte sent and not acknowledged.
    pub snd_una: u32,
    /// Next byte to be sent.
    pub snd_nxt: u32,
    /// Next byte to be written by the program.
    pub write_seq: u32,
    /// Next byte expected.
    pub rcv_nxt: u32,
    /// The last ack that was sent.
    pub rcv_wup: u32,
    /// Numbers acknowledged, our SYN among them if we sent one.
    pub bytes_acked: u64,
    /// Numbers received after the peer's SYN.
    pub bytes_received: u64,
    /// Bytes sent, retransmissions as well.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// The MSS that we announced, less what a timestamps option takes.
    pub advmss: u16,
    /// The MSS that the peer announced, or less.
    pub mss_clamp: u16,
    /// Windows are scaled.
    pub wscale_ok: bool,
    /// By how much the peer's.
    pub snd_wscale: u8,
    /// By how much ours.
    pub rcv_wscale: u8,
    /// SACK was negotiated.
    pub sack_ok: bool,
    /// Timestamps were negotiated.
    pub tstamp_ok: bool,
    /// The peer's timestamp that segments are held against.
    pub ts_recent: u32,
    /// What the socket's clock gave the last packet, sent or received.
    pub ts_clock: u32,
    /// ECN was negotiated.
    pub ecn_ok: bool,
    /// MD5, TCP-AO, MPTCP or AccECN.
    pub foreign: bool,
    /// In repair: somebody is taking it down or setting it up.
    pub repair: bool,
    /// The program chose the local port, which no accepted socket's does.
    pub bound: bool,
    /// The SYN carried data that was taken.
    pub syn_data: bool,
    /// The interface that its packets came in by, if the kernel tells.
    pub ifindex_in: Option<u32>,
}

/// Why a socket's session is not entered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum NotAdopted {
    /// It opens, closes or listens.
    State,
    /// It is in repair.
    Repair,
    /// Nothing tells who opened it, and so not where its numbers began.
    Opener,
    /// Its SYN carried data and a FIN, which the kernel counts in another way.
    Opening,
    /// Its packets come in by an interface that the data plane is not on, or where they have
    /// no Ethernet header.
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
                "on an interface where dyscod is not, or without an Ethernet header"
            }
        })
    }
}

/// Bytes by which a segment may be apart from the highest number that is known. More is on
/// its way between fast hosts: then a later segment is nearer.
const NEAR: u32 = 1 << 22;

/// Does the wire know an adopted session by the numbers of its socket? Something on this
/// host may translate them in between (SYNPROXY), and then no segment comes near what its
/// entry has. `sent` tells whose the segment is.
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
    /// Has its FIN a number that was sent?
    const fn fin_sent(&self) -> bool {
        match self.state {
            tcp_state::FIN_WAIT1 => self.snd_nxt == self.write_seq,
            tcp_state::FIN_WAIT2 => true,
            _ => false,
        }
    }

    /// The MSS option that we sent.
    const fn announced(&self) -> u16 {
        if self.tstamp_ok {
            self.advmss.saturating_add(TIMESTAMPS_OPTION)
        } else {
            self.advmss
        }
    }

    /// Did this host open it? Only then is our SYN among the numbers that were
    /// acknowledged: they are one more than the bytes sent. `listened` is
    /// whether a socket of this host listens at its local end.
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

    /// The entry of its session, as far as its SYNs would have taught it. The
    /// highest numbers are of the moment of this sample: packets raise them.
    ///
    /// Of the options only what was agreed on is known, not who offered what:
    /// both ends are said to have offered it. Our MSS is what we announced, the
    /// peer's that or less: the one is what the peer sends at most, the other
    /// what it takes at least.
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
        let agreed = [
            (true, offer::SEEN),
            (self.wscale_ok, offer::WSCALE),
            (self.sack_ok, offer::SACK),
            (self.tstamp_ok, offer::TIMESTAMPS),
            (self.ecn_ok, offer::ECN),
            (self.foreign, offer::FOREIGN),
        ];
        let flags = agreed
            .iter()
            .fold(0, |all, (on, flag)| if *on { all | flag } else { all });
        let wscale = |scale| if self.wscale_ok { scale } else { 0 };
        // The byte counts are of 64 bits, the numbers of 32: modulo 2^32.
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
