//! Facts that hosts know of a session, and the plan that follows from them.

use dysco_common::delta::Reach;
use dysco_common::{Offer, Translation};
use serde::{Deserialize, Serialize};

use super::super::names::Subsession;

/// Knowledge of a host's data plane about one of its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// Options that this host's end offered.
    pub local: Offer,
    /// Options that the other end offered, as they arrived here.
    pub remote: Offer,
    /// Last TSval that this host's end sent.
    pub tsval_out: u32,
    /// Last TSval that arrived here from the other end; 0 if none is known.
    pub tsval_in: u32,
    /// True if this host's end has sent its FIN.
    pub fin_out: bool,
    /// True if the other end's FIN was seen.
    pub fin_in: bool,
    /// True if a reset was seen, in either direction.
    pub reset: bool,
    /// Numbers that this host's end has sent and received so far, as on the wire. Set only for a
    /// session that gets another chain.
    pub reach: Reach,
}

/// Measurement of the middlebox's host of itself, at one still moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Measurement {
    /// Bytes written to B less bytes read from A.
    pub delta_forward: i64,
    /// Bytes written to A less bytes read from B.
    pub delta_reverse: i64,
    /// Session A, towards the left.
    pub a: Facts,
    /// Session B, towards the right.
    pub b: Facts,
    /// Current timestamp clock of the middlebox's socket on A. 0 in a measurement that is only
    /// claimed; no plan is made from that.
    pub clock_a: u32,
    /// Current timestamp clock of the middlebox's socket on B, as in `clock_a`.
    pub clock_b: u32,
    /// Subsession of session A.
    pub subsession_a: Subsession,
    /// Subsession of session B, which the middlebox pairs with session A.
    pub subsession_b: Subsession,
    /// Differences of the headers, as the end on A's side needs them, if the middlebox has left and
    /// this host's data plane relays.
    pub relay: Option<Translation>,
    /// True if the left neighbour has answered this host before. The right one may then be asked at
    /// the same time.
    pub left_answers: bool,
}

/// Contents of a granted lock for the left anchor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Subsession of the right anchor, whose numbers the new path uses.
    pub subsession: Subsession,
    /// Translation that the left anchor has to apply.
    pub translation: Translation,
}

/// A segment that a client has acknowledged already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// Sequence number after its last byte.
    pub end: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// TSval and TSecr, if the session has timestamps.
    pub clock: Option<(u32, u32)>,
    /// Number of data bytes. Their value does not matter, because the client discards them.
    pub len: u16,
}
