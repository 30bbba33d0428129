//! Changes that a path makes to the packets that open it. Each of these packets carries the header
//! that its sender put on the wire, so that the receiver can compare. A live session has agreed on
//! its numbers, clocks and options. It cannot move to a path that gives it others.
//!
//! The right anchor's program answers the SYN of a bypass by itself, and writes into the answer how
//! the SYN arrived, and which FINs it has seen ([`Probe`]). For another chain the daemons send all
//! packets that open it, and each daemon reports to the other ([`LengthProbe`]).

use crate::session::{Offer, offer};
use crate::tcp::{ACK, Header, MAX_HEADER, MIN_HEADER, Segment};
use crate::two_paths::Fins;

/// First word of a [`Probe`].
pub const PROBES: u32 = u32::from_ne_bytes(*b"\xd7prb");
/// First word of a [`LengthProbe`].
pub const LENGTH_PROBES: u32 = u32::from_ne_bytes(*b"\xd7shw");

/// Bytes of a [`Probe`].
pub const PROBE: usize = size_of::<Probe>();

/// First bytes of the payload of a bypass's SYN, and of its answer.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// [`PROBES`].
    pub magic: u32,
    /// Identifier of this opening, chosen by the sender of the SYN.
    pub nonce: u32,
    /// Header of the SYN as it was sent.
    pub sent: [u8; MAX_HEADER],
    /// Header of the SYN as it arrived at the right anchor; zeros in the SYN itself.
    pub heard: [u8; MAX_HEADER],
    /// Sequence and acknowledgement number of the answer as it was sent, in network order.
    pub answered: [u32; 2],
    /// [`Fins::bits`] of the right anchor when it answered, in network order; 0 in the SYN itself.
    pub fins: u32,
    /// Not used.
    pub reserved: u32,
}

/// First bytes of the packet that shows the length of segments on a path through a chain.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LengthProbe {
    /// [`LENGTH_PROBES`].
    pub magic: u32,
    /// 1 if the sender has received such a packet of the other end: `change` describes that packet.
    pub heard: u32,
    /// Sequence number, acknowledgement number and timestamps of the packet as it was sent; zeros
    /// for none.
    pub sent: [u32; 4],
    /// Options of the sender's SYN or SYN-ACK as they were sent.
    pub offered: Offer,
    /// Changes of the other end's packets on their way.
    pub change: Change,
}

const _: () = {
    assert!(PROBE == 144 && size_of::<LengthProbe>() <= PROBE);
    assert!(size_of::<Arrival>() == 16 + 64 + PROBE);
};

/// Report of the ingress program on a packet that opens a path.
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
    /// Header as it arrived.
    pub header: Header,
    /// First bytes of the payload, or zeros if it has fewer.
    pub carried: [u8; PROBE],
}

/// Contents of a header that no device on the way may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Said {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number, if there is one.
    pub ack: Option<u32>,
    /// TSval and TSecr.
    pub clock: Option<(u32, u32)>,
    /// Options of a SYN. `flags` has only the bits of options.
    pub offer: Offer,
}

/// Options that no device on the way may add or remove.
const OPTIONS: u8 = offer::WSCALE | offer::SACK | offer::TIMESTAMPS;

impl Said {
    /// Returns the contents of this header (`v6` for IPv6), or `None` if it does not parse.
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

    /// Returns the contents of a segment, without those that only a SYN has.
    pub fn in_segment([seq, ack, tsval, tsecr]: [u32; 4], stamped: bool) -> Said {
        Said {
            seq,
            ack: Some(ack),
            clock: stamped.then_some((tsval, tsecr)),
            offer: Offer::default(),
        }
    }
}

/// Returns the timestamps of options that are known to parse.
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

/// Changes of a packet on its way: differences, modulo 2^32.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Difference of the sequence number.
    pub seq: u32,
    /// Difference of the acknowledgement number.
    pub ack: u32,
    /// Difference of TSval.
    pub tsval: u32,
    /// Difference of TSecr, if there is an acknowledgement.
    pub tsecr: u32,
    /// MSS on arrival if it is lower than the one sent; otherwise 0.
    pub mss: u32,
    /// Options that were added, removed or changed: bits of [`offer`].
    pub options: u32,
}

impl Change {
    /// Returns the changes from the packet as sent to the packet as it arrived.
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

    /// Returns the changes of two packets of the same end together.
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
    /// Returns the probe for the SYN with this header.
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
            fins: 0,
            reserved: 0,
        }
    }

    /// Returns the probe's bytes in a packet.
    pub const fn to_bytes(self) -> [u8; PROBE] {
        // SAFETY: bytes and words without padding, as the size of both shows.
        unsafe { core::mem::transmute::<Probe, [u8; PROBE]>(self) }
    }

    /// Returns the probe of a packet's payload, if it is one.
    pub fn from_bytes(bytes: &[u8; PROBE]) -> Option<Probe> {
        // SAFETY: any bytes are a valid value. They are unaligned in the packet.
        let probe: Probe = unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) };
        (probe.magic == PROBES).then_some(probe)
    }

    /// Returns the FINs that the right anchor had seen when it answered.
    pub const fn fins(&self) -> Fins {
        Fins::from_bits(u32::from_be(self.fins))
    }

    /// Returns the changes of the SYN on its way to the right anchor, and those of the answer on
    /// its way back. `answer` is the header of the answer on arrival.
    ///
    /// The answer has the options of the SYN on arrival, except for the window scale, which is the
    /// right end's own.
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

impl LengthProbe {
    /// Returns the bytes in a packet, in network order.
    pub fn to_bytes(self) -> [u8; size_of::<LengthProbe>()] {
        let swapped = self.swapped();
        // SAFETY: words without padding, by the size of both.
        unsafe { core::mem::transmute::<LengthProbe, [u8; size_of::<LengthProbe>()]>(swapped) }
    }

    /// Returns the contents of a packet's payload, if it is of this kind.
    pub fn from_bytes(bytes: &[u8; PROBE]) -> Option<LengthProbe> {
        // SAFETY: any bytes are a valid value; it is shorter than a probe.
        let probe: LengthProbe = unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) };
        (probe.magic == LENGTH_PROBES).then(|| probe.swapped())
    }

    /// Converts numbers from network order or to it. `magic` is bytes.
    fn swapped(self) -> LengthProbe {
        let (offer, change) = (self.offered, self.change);
        LengthProbe {
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

    /// Returns the changes of the packet that carries this, with `header` on arrival, and of the
    /// options of its sender's SYN, if that SYN has arrived.
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

/// Returns true if this may be the SYN of a bypass with a probe: the payload is long enough.
#[inline(always)]
pub const fn may_carry(seg: &Segment) -> bool {
    seg.len >= PROBE as u32
}
