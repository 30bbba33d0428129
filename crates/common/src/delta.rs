//! What middleboxes of a chain have added to a session's stream, or taken away,
//! and whether the sequence numbers bear it out.

use crate::seq::after;
use crate::session::{Session, Translation};

/// How the numbers of a stream differ on the two sides of a middlebox: bytes put
/// in, or, negative, taken away, modulo 2^32 like the numbers themselves.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Delta {
    /// Added to the numbers of what goes to the end that accepted the session.
    pub to_server: u32,
    /// Added to the numbers of what goes to the end that opened it.
    pub to_client: u32,
}

impl Delta {
    /// Are the numbers the same on both sides?
    pub const fn is_none(&self) -> bool {
        self.to_server == 0 && self.to_client == 0
    }

    /// Of two middleboxes, one behind the other.
    pub const fn and(&self, other: &Delta) -> Delta {
        Delta {
            to_server: self.to_server.wrapping_add(other.to_server),
            to_client: self.to_client.wrapping_add(other.to_client),
        }
    }
}

/// What a middlebox has said of a session, as its host keeps it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// When the session began there (`Session::created_ns`): a slot is used again.
    pub created_ns: u64,
    /// By how much it has changed it, and will not any more.
    pub delta: Delta,
    /// The highest number that had come from the client then, as it came.
    pub from_client: u32,
    /// The same from the server.
    pub from_server: u32,
}

/// The highest numbers of one direction at a middlebox's host. What was
/// acknowledged is to be looked at first, then what went on, then what came: then
/// each is true of what the next one says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Acknowledged to the end that sends it, in that end's numbers.
    pub acked: u32,
    /// Sent on, in the other end's numbers.
    pub went: u32,
    /// Come there, in the sending end's numbers.
    pub came: u32,
}

/// Does a delta agree with numbers?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// To the byte: all that came has been sent on.
    Exact,
    /// It may: something is on its way.
    Possible,
    /// It cannot be.
    Contradicted,
}

impl Passed {
    /// Nothing goes on that has not come, and nothing is acknowledged that has not
    /// gone on.
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

/// The highest numbers that one end of a session has sent and heard, as the wire
/// has them at that end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Reach {
    /// Sent by it.
    pub sent: u32,
    /// Heard by it.
    pub heard: u32,
}

/// Has neither end heard more than the other has sent, as far as middleboxes
/// between them have changed the numbers by so much? The left end is looked at
/// before the right one, and again after it.
pub const fn bears(before: &Reach, right: &Reach, now: &Reach, delta: &Delta) -> bool {
    !after(right.heard, now.sent.wrapping_add(delta.to_server))
        && !after(before.heard, right.sent.wrapping_add(delta.to_client))
}

impl Translation {
    /// The left end's translation onto a path that speaks the numbers behind a
    /// middlebox, where this one is for those before it.
    pub const fn beyond(&self, delta: &Delta) -> Translation {
        Translation {
            seq_out: self.seq_out.wrapping_add(delta.to_server),
            seq_in: self.seq_in.wrapping_add(delta.to_client),
            ..*self
        }
    }
}

impl Session {
    /// The translation that its paths have, where it is one that stays when its
    /// chain changes. A change that failed may have left another.
    pub fn carried(&self) -> Translation {
        if self.alias().is_some() || self.two.chained != 0 {
            self.translation
        } else {
            Translation::default()
        }
    }

    /// Has a middlebox of its chain left it that had changed its numbers?
    pub(crate) const fn is_shifted(&self) -> bool {
        self.two.chained != 0 && self.translation.seq_out | self.translation.seq_in != 0
    }

    /// What this end has sent and heard, as the wire has it here.
    pub fn reach(&self) -> Reach {
        let wire = self.on_wire();
        Reach {
            sent: wire.snd_max,
            heard: wire.rcv_max,
        }
    }
}
