//! Deltas: bytes that middleboxes of a chain have added to a session's stream, or removed from it,
//! and their comparison with the sequence numbers.

use crate::seq::after;
use crate::session::{Session, Translation, translation};

/// Difference between the numbers of a stream on the two sides of a middlebox: bytes added, or, if
/// negative, bytes removed, modulo 2^32 like the numbers.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Delta {
    /// Added to the numbers of data for the end that accepted the session.
    pub to_server: u32,
    /// Added to the numbers of data for the end that opened the session.
    pub to_client: u32,
}

impl Delta {
    /// Returns true if the numbers are the same on both sides.
    pub const fn is_none(&self) -> bool {
        self.to_server == 0 && self.to_client == 0
    }

    /// Returns the delta of two middleboxes, one behind the other.
    pub const fn and(&self, other: &Delta) -> Delta {
        Delta {
            to_server: self.to_server.wrapping_add(other.to_server),
            to_client: self.to_client.wrapping_add(other.to_client),
        }
    }
}

/// Declaration of a middlebox about a session, as its host stores it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeclaredDelta {
    /// Time at which the session began on this host (`Session::created_ns`), because slots are
    /// reused.
    pub created_ns: u64,
    /// The delta, which the middlebox will not change any more.
    pub delta: Delta,
    /// Highest number that had arrived from the client at that time, as it arrived.
    pub from_client: u32,
    /// Highest number that had arrived from the server at that time, as it arrived.
    pub from_server: u32,
}

/// Highest numbers of one direction at a middlebox's host. They must be read in the order of the
/// fields, so that none can exceed the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Highest number acknowledged to the sending end, in that end's numbers.
    pub acked: u32,
    /// Highest number sent on, in the other end's numbers.
    pub went: u32,
    /// Highest number that arrived, in the sending end's numbers.
    pub came: u32,
}

/// Result of comparing a delta with the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The delta fits to the byte: all data that arrived was sent on.
    Exact,
    /// The delta is possible: data is under way.
    Possible,
    /// The delta is impossible.
    Contradicted,
}

impl Passed {
    /// Compares a delta with the numbers. No data is sent on before it has arrived, and none is
    /// acknowledged before it was sent on.
    pub const fn fits(&self, delta: u32) -> Fit {
        let came = self.came.wrapping_add(delta);
        let acked = self.acked.wrapping_add(delta);
        if after(self.went, came) || after(acked, self.went) {
            Fit::Contradicted
        } else if self.went == came {
            Fit::Exact
        } else {
            Fit::Possible
        }
    }
}

/// Result of repeated looks at one direction, about one delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watched {
    exact: bool,
    /// Highest number sent on at the first look.
    first: Option<u32>,
    moves: bool,
}

impl Watched {
    /// Takes in the numbers of another look, which do not contradict the delta.
    pub fn look(&mut self, passed: &Passed, delta: u32) {
        self.exact |= passed.fits(delta) == Fit::Exact;
        let first = *self.first.get_or_insert(passed.went);
        self.moves |= passed.went != first;
    }

    /// Returns true if the delta fitted to the byte at some moment.
    pub const fn is_exact(&self) -> bool {
        self.exact
    }

    /// Returns true if bytes are sent on, and the delta fitted at no moment. Either the middlebox
    /// holds bytes all the time, or it has another delta.
    pub const fn is_doubtful(&self) -> bool {
        self.moves && !self.exact
    }
}

/// Highest numbers that one end of a session has sent and received, as on the wire at that end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reach {
    /// Highest number sent.
    pub sent: u32,
    /// Highest number received.
    pub heard: u32,
}

/// Returns true if neither end has received more than the other has sent, with `delta` as the
/// change by middleboxes between them. The left end is read before the right one, and again after
/// it.
pub const fn is_consistent(before: &Reach, right: &Reach, now: &Reach, delta: &Delta) -> bool {
    !after(right.heard, now.sent.wrapping_add(delta.to_server))
        && !after(before.heard, right.sent.wrapping_add(delta.to_client))
}

impl Translation {
    /// Returns the left end's translation for a path that uses the numbers behind a middlebox.
    /// `self` is the translation for the numbers before that middlebox.
    pub const fn beyond(&self, delta: &Delta) -> Translation {
        Translation {
            seq_out: self.seq_out.wrapping_add(delta.to_server),
            seq_in: self.seq_in.wrapping_add(delta.to_client),
            ..*self
        }
    }
}

impl Session {
    /// Returns the translation of the session's paths, if it persists when the chain changes. A
    /// change that failed may have left another one.
    pub fn carried(&self) -> Translation {
        if self.alias().is_some() || self.two.chained != 0 {
            Translation {
                // A detour is of one entry.
                flags: self.translation.flags & !translation::DETOUR,
                ..self.translation
            }
        } else {
            Translation::default()
        }
    }

    /// Returns true if a middlebox of the session's chain that had changed its numbers has left it.
    pub(crate) const fn is_shifted(&self) -> bool {
        self.two.chained != 0 && self.translation.seq_out | self.translation.seq_in != 0
    }

    /// Returns the numbers that this end has sent and received, as on the wire here.
    pub fn reach(&self) -> Reach {
        let wire = self.on_wire();
        Reach {
            sent: wire.snd_max,
            heard: wire.rcv_max,
        }
    }
}
