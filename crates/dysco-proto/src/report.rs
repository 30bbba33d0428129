//! What operators get to hear of changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::message::{ChangeId, HostId, Subsession};
use super::reason::Reason;

/// A host's part in a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The left anchor.
    Left,
    /// The middlebox's host.
    Middle,
    /// The right anchor.
    Right,
    /// It asked a middlebox's host.
    Asker,
    /// The middlebox's host, which is both anchors as well.
    Local,
    /// The middlebox's host, which has the server's host answer the client.
    Proof,
    /// The server's host, which answers the client.
    Straight,
    /// The left anchor of a session that gets another chain.
    Head,
    /// The right anchor of one.
    Tail,
    /// The left anchor of a segment of one, where the host that opened the session
    /// decides.
    Lead,
    /// A host of either chain.
    Member,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Left => "left anchor",
            Role::Middle => "middlebox",
            Role::Right => "right anchor",
            Role::Asker => "asker",
            Role::Local => "middlebox and both anchors",
            Role::Proof => "relaying host",
            Role::Straight => "replying host",
            Role::Head => "left anchor of a chain",
            Role::Tail => "right anchor of a chain",
            Role::Lead => "left anchor of a segment",
            Role::Member => "host of a chain",
        })
    }
}

/// How far a change has come on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It was asked for.
    Requested,
    /// This host's part of the segment is locked.
    Locked,
    /// The new path is heard here.
    SetUp,
    /// New data takes the new path.
    Switched,
    /// All old data is acknowledged here.
    Drained,
    /// Ended: the middlebox is out.
    Removed,
    /// Ended: all is as before, or it is decided that it will be: an anchor that does not
    /// answer may still have to hear of it.
    RolledBack(Reason),
    /// Ended, and the session with it: the middlebox had taken bytes that it did not
    /// deliver, and both ends hear a reset.
    Lost(Reason),
    /// Ended before anything changed.
    Refused(Reason),
}

impl Progress {
    /// Nothing follows this.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Progress::Removed | Progress::RolledBack(_) | Progress::Lost(_) | Progress::Refused(_)
        )
    }

    /// The end of a change that has come to nothing after something was done for it.
    pub(super) fn given_up(reason: Reason) -> Progress {
        match reason {
            Reason::MiddleboxDied(_) => Progress::Lost(reason),
            _ => Progress::RolledBack(reason),
        }
    }
}

/// What operators get to hear.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// A change got further.
    Progress {
        /// The change.
        change: ChangeId,
        /// This host's part in it.
        role: Role,
        /// The session concerned: A at the left, the middle and the asker, B at the right.
        subsession: Subsession,
        /// How far.
        progress: Progress,
    },
    /// A peer said what it may not say. It gets no answer.
    Violation {
        /// The change named.
        change: ChangeId,
        /// The first address of the peer's certificate.
        from: Option<HostId>,
        /// The message's name.
        message: &'static str,
        /// What was wrong.
        violation: Violation,
    },
    /// Something went wrong that the change survives.
    Trouble {
        /// The change.
        change: ChangeId,
        /// What.
        reason: Reason,
    },
}

/// What a peer did that it may not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// Not one of the subsession's two ends.
    #[error("it speaks for a subsession that is not its own")]
    NotItsSubsession,
    /// The subsession ends on another host.
    #[error("it speaks of a subsession that this host is no end of")]
    NotOurs,
    /// Not the host that this change expects to hear this from.
    #[error("this change does not expect that from it")]
    NotItsPart,
    /// The five-tuple for the new path is not between the two anchors.
    #[error("it names a new subsession that is not between the anchors")]
    ForeignPath,
}
