//! The streams of a session: the sockets at its ends, the numbers that the firewalls of its paths
//! have seen, and the segment that is late.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use dysco_common::tcp::Segment;

use super::configuration::{LEFT, RIGHT};
use super::host::Route;
use super::place::{LEFTWARDS, RIGHTWARDS};
use crate::plane::Packet;
use crate::socket::{Base, Socket};

/// Initial numbers of the two directions at the left end. They wrap within the first bytes.
pub(super) const BEGIN: Base = Base {
    out: u32::MAX,
    into: 0x7fff_ffff,
};

/// Fate of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Delivery {
    /// The segment arrives, unless a device on its path drops it.
    Arrives,
    /// The segment is lost before any device on its path has seen it.
    Lost,
    /// The segment is in flight for some time.
    Late,
}

/// A segment in flight, behind this host.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    pub(super) side: usize,
    pub(super) from: usize,
    pub(super) route: Route,
    pub(super) packet: Packet,
}

/// The streams.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Sockets of the left end and of the right end.
    pub(super) sockets: [Socket; 2],
    /// Initial numbers of the two ends. They may differ by what middleboxes have inserted.
    pub(super) bases: [Base; 2],
    /// For each hop of a path (named by the host to its left): the numbers up to which the filter
    /// there has seen the data to each side, as the wire has them.
    pub(super) seen: BTreeMap<(Route, usize), [u32; 2]>,
    pub(super) late: Option<UnderWay>,
    /// True if data sent before the switch was retransmitted after it.
    pub repeated: bool,
    /// True if a segment was split, its data on one path and its acknowledgement on the other.
    pub split: bool,
}

/// Hashes the state without the observed events, because they decide nothing.
impl Hash for Streams {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.sockets, &self.seen).hash(state);
        if let Some(u) = &self.late {
            let Segment {
                seq,
                ack,
                flags,
                len,
                ..
            } = u.packet.seg;
            (u.side, u.from, u.route, u.packet.first).hash(state);
            (seq, ack, flags, len).hash(state);
        }
    }
}

/// Index of the end that sends the data to one side.
pub(super) fn sender(side: usize) -> usize {
    match side {
        RIGHTWARDS => LEFT,
        _ => RIGHT,
    }
}

/// Side towards which each end sends.
pub(super) const SIDES: [usize; 2] = [RIGHTWARDS, LEFTWARDS];
