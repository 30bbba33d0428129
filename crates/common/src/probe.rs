//! What a path does to the packets that open it. Each carries what its sender has put on
//! the wire, so that who gets it can tell what has become of that: a session that lives has
//! agreed on its numbers, clocks and options, and nobody on a new path knows another's.
//!
//! The program of the right anchor answers the SYN of a bypass by itself, and writes into the
//! answer how the SYN has come ([`Probe`]). On another chain the daemons send all that opens
//! it, and each tells the other ([`Shown`]).

use crate::session::{Offer, offer};
use crate::tcp::{ACK, Header, MAX_HEADER, MIN_HEADER, Segment};

/// First word of a [`Probe`].
pub const PROBES: u32 = u32::from_ne_bytes(*b"\xd7prb");
/// First word of a [`Shown`].
pub const SHOWS: u32 = u32::from_ne_bytes(*b"\xd7shw");

/// Bytes of a [`Probe`].
pub const PROBE: usize = size_of::<Probe>();

/// The first bytes of what a bypass's SYN carries, and of what its answer does.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// [`PROBES`].
    pub magic: u32,
    /// Of whoever sent the SYN: names this opening.
    pub nonce: u32,
    /// The SYN's header, as it was sent.
    pub sent: [u8; MAX_HEADER],
    /// As it came to the right anchor; zeros in the SYN itself.
    pub heard: [u8; MAX_HEADER],
    /// Number and acknowledgement of the answer, as it was sent, in network order.
    pub answered: [u32; 2],
}

/// The first bytes of what shows the length of segments on a path through a chain.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    /// [`SHOWS`].
    pub magic: u32,
    /// 1 if its sender has got as much of the other end: `change` is of that.
    pub heard: u32,
    /// Number, acknowledgement and timestamps of the packet, as it was sent; zeros for none.
    pub sent: [u32; 4],
    /// The options of its sender's SYN, or of the answer, as they were sent.
    pub offered: Offer,
    /// What has become of the other end's packets on their way.
    pub change: Change,
}

const _: () = {
    assert!(PROBE == 136 && size_of::<Shown>() <= PROBE);
    assert!(size_of::<Arrival>() == 16 + 64 + PROBE);
};

/// What the program of ingress tells of a packet that opens a path.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Arrival {
    /// [`crate::EventKind::Arrived`].
    pub kind: u32,
    /// The slot of the session.
    pub slot: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Not used.
    pub reserved: u32,
    /// The header, as it came.
    pub header: Header,
    /// The first bytes of the payload, or zeros if it has fewer.
    pub carried: [u8; PROBE],
}

/// What a header says that nobody on the way may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// Number.
    pub seq: u32,
    /// Acknowledgement, if it has one.
    pub ack: Option<u32>,
    /// TSval and TSecr.
    pub clock: Option<(u32, u32)>,
    /// The options of a SYN: of its flags those of options alone.
    pub offer: Offer,
}

/// The options that no one on the way may add or take away.
const OPTIONS: u8 = offer::WSCALE | offer::SACK | offer::TIMESTAMPS;

impl Said {
    /// What this header says, of IPv6 or not. Nothing if it does not parse.
    pub fn of(header: &[u8], v6: bool) -> Option<Said> {
        let mut whole = Header::zeroed();
        let len = header.len().min(MAX_HEADER);
        whole.0[..len].copy_from_slice(&header[..len]);
        let end = whole.data_offset();
        if end < MIN_HEADER || end > len {
            return None;
        }
        let mut offer = Offer::default();
        let default_mss = if v6 { 1220 } else { 536 };
        whole.offer(default_mss, &mut offer).ok()?;
        offer.flags &= OPTIONS;
        offer.isn = 0;
        let seg = whole.segment(0);
        Some(Said {
            seq: seg.seq,
            ack: seg.has(ACK).then_some(seg.ack),
            clock: clock(&header[MIN_HEADER..end]),
            offer,
        })
    }

    /// A segment of the session, without what only a SYN has.
    pub fn in_segment([seq, ack, tsval, tsecr]: [u32; 4], stamped: bool) -> Said {
        Said {
            seq,
            ack: Some(ack),
            clock: stamped.then_some((tsval, tsecr)),
            offer: Offer::default(),
        }
    }
}

/// The timestamps among options that are known to parse.
fn clock(mut options: &[u8]) -> Option<(u32, u32)> {
    let word = |at: &[u8]| Some(u32::from_be_bytes(at.get(..4)?.try_into().ok()?));
    loop {
        options = match options {
            [0, ..] | [] => return None,
            [1, rest @ ..] => rest,
            [8, 10, rest @ ..] => return Some((word(rest)?, word(rest.get(4..)?)?)),
            [_, len, ..] => options.get(usize::from(*len).max(2)..)?,
            _ => return None,
        };
    }
}

/// What has become of a packet on its way: differences, modulo 2^32.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Of the number.
    pub seq: u32,
    /// Of the acknowledgement.
    pub ack: u32,
    /// Of TSval.
    pub tsval: u32,
    /// Of TSecr, where there is an acknowledgement.
    pub tsecr: u32,
    /// The MSS that it came with, if that is lower; or 0.
    pub mss: u32,
    /// Options that are missing, or that are others: bits of [`offer`].
    pub options: u32,
}

impl Change {
    /// From what was sent to what has come.
    pub fn between(sent: &Said, came: &Said) -> Change {
        let less = |came: Option<u32>, sent: Option<u32>| match (came, sent) {
            (Some(came), Some(sent)) => came.wrapping_sub(sent),
            _ => 0,
        };
        let lowered = came.offer.mss < sent.offer.mss;
        let rescaled = came.offer.wscale != sent.offer.wscale;
        let mut options = came.offer.flags ^ sent.offer.flags;
        if sent.clock.is_some() != came.clock.is_some() {
            options |= offer::TIMESTAMPS;
        }
        if rescaled {
            options |= offer::WSCALE;
        }
        let echo = |said: &Said| said.ack.and(said.clock).map(|(_, echo)| echo);
        Change {
            seq: came.seq.wrapping_sub(sent.seq),
            ack: less(came.ack, sent.ack),
            tsval: less(came.clock.map(|c| c.0), sent.clock.map(|c| c.0)),
            tsecr: less(echo(came), echo(sent)),
            mss: if lowered { came.offer.mss.into() } else { 0 },
            options: options.into(),
        }
    }

    /// What has become of either of two packets of the same end.
    #[must_use]
    pub fn or(self, other: Change) -> Change {
        let first = |a: u32, b: u32| if a != 0 { a } else { b };
        Change {
            seq: first(self.seq, other.seq),
            ack: first(self.ack, other.ack),
            tsval: first(self.tsval, other.tsval),
            tsecr: first(self.tsecr, other.tsecr),
            mss: first(self.mss, other.mss),
            options: self.options | other.options,
        }
    }
}

impl Probe {
    /// What the SYN of this header carries.
    pub fn of_syn(nonce: u32, header: &[u8]) -> Probe {
        let mut sent = [0; MAX_HEADER];
        let len = header.len().min(MAX_HEADER);
        sent[..len].copy_from_slice(&header[..len]);
        Probe {
            magic: PROBES,
            nonce,
            sent,
            heard: [0; MAX_HEADER],
            answered: [0; 2],
        }
    }

    /// As it lies in a packet.
    pub const fn to_bytes(self) -> [u8; PROBE] {
        // SAFETY: bytes and words without padding, by the size of both.
        unsafe { core::mem::transmute::<Probe, [u8; PROBE]>(self) }
    }

    /// What a packet carries, if it is one.
    pub fn from_bytes(bytes: &[u8; PROBE]) -> Option<Probe> {
        // SAFETY: any bytes are a valid value; unaligned in the packet.
        let probe: Probe = unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) };
        (probe.magic == PROBES).then_some(probe)
    }

    /// What has become of the SYN on its way to the right anchor, and of the answer, which
    /// came with this header, on its way back.
    ///
    /// The answer has the options of the SYN as that came; but for the window scale, which
    /// is the right end's own.
    pub fn changes(&self, answer: &[u8], v6: bool) -> Option<[Change; 2]> {
        let (sent, heard) = (Said::of(&self.sent, v6)?, Said::of(&self.heard, v6)?);
        let mut came = Said::of(answer, v6)?;
        came.offer.wscale = heard.offer.wscale;
        let [seq, ack] = self.answered.map(u32::from_be);
        let back = Said {
            seq,
            ack: Some(ack),
            ..heard
        };
        Some([
            Change::between(&sent, &heard),
            Change::between(&back, &came),
        ])
    }
}

impl Shown {
    /// As it lies in a packet: in network order.
    pub fn to_bytes(self) -> [u8; size_of::<Shown>()] {
        let swapped = self.swapped();
        // SAFETY: words without padding, by the size of both.
        unsafe { core::mem::transmute::<Shown, [u8; size_of::<Shown>()]>(swapped) }
    }

    /// What a packet carries, if it is one.
    pub fn from_bytes(bytes: &[u8; PROBE]) -> Option<Shown> {
        // SAFETY: any bytes are a valid value; it is shorter than a probe.
        let shown: Shown = unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) };
        (shown.magic == SHOWS).then(|| shown.swapped())
    }

    /// With numbers from network order, or to it; `magic` is bytes.
    fn swapped(self) -> Shown {
        let (offer, change) = (self.offered, self.change);
        Shown {
            magic: self.magic,
            heard: u32::from_be(self.heard),
            sent: self.sent.map(u32::from_be),
            offered: Offer {
                isn: u32::from_be(offer.isn),
                mss: u16::from_be(offer.mss),
                ..offer
            },
            change: Change {
                seq: u32::from_be(change.seq),
                ack: u32::from_be(change.ack),
                tsval: u32::from_be(change.tsval),
                tsecr: u32::from_be(change.tsecr),
                mss: u32::from_be(change.mss),
                options: u32::from_be(change.options),
            },
        }
    }

    /// What has become of the packet that carries this, which came with this header, and of
    /// the options of its sender's SYN, if that has come.
    pub fn change(&self, header: &[u8], syn: Option<&Said>, v6: bool) -> Option<Change> {
        let came = Said::of(header, v6)?;
        let came = Said {
            offer: Offer::default(),
            ..came
        };
        let stamped = self.offered.flags & offer::TIMESTAMPS != 0;
        let change = Change::between(&Said::in_segment(self.sent, stamped), &came);
        let offered = Said {
            offer: self.offered,
            ..Said::default()
        };
        let syn = syn.map(|syn| Said {
            offer: syn.offer,
            ..Said::default()
        });
        let of_syn = syn.map(|syn| Change::between(&offered, &syn));
        Some(change.or(of_syn.unwrap_or_default()))
    }
}

/// Is this the SYN of a bypass, which carries a probe?
#[inline(always)]
pub const fn may_carry(seg: &Segment) -> bool {
    seg.len >= PROBE as u32
}
