//! Reports on changes, for operators.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::names::{ChangeId, HostId, Subsession};
use super::reason::Reason;

/// Role of a host in a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The left anchor.
    Left,
    /// The middlebox's host.
    Middle,
    /// The right anchor.
    Right,
    /// A host that asked a middlebox's host.
    Asker,
    /// The middlebox's host, which is both anchors as well.
    Local,
    /// The middlebox's host, which makes the server's host answer the client.
    Proof,
    /// The server's host, which answers the client.
    Dsr,
    /// The left anchor of a session that gets another chain.
    Head,
    /// The right anchor of such a session.
    Tail,
    /// The left anchor of a segment of such a session, if the host that opened the session decides.
    Lead,
    /// A host of the old or of the new chain.
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
            Role::Dsr => "replying host",
            Role::Head => "left anchor of a chain",
            Role::Tail => "right anchor of a chain",
            Role::Lead => "left anchor of a segment",
            Role::Member => "host of a chain",
        })
    }
}

/// Progress of a change on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The change was requested.
    Requested,
    /// This host's part of the segment is locked.
    Locked,
    /// This host receives on the new path.
    SetUp,
    /// New data takes the new path.
    Switched,
    /// All old data is acknowledged here.
    Drained,
    /// Ended: the middlebox has left.
    Removed,
    /// Ended: everything is as before, or will be. An anchor that does not answer may not have been
    /// notified yet.
    RolledBack(Reason),
    /// Ended together with the session: the middlebox had acknowledged bytes that it did not
    /// deliver. Both ends receive a reset.
    Lost(Reason),
    /// Ended before anything changed.
    Refused(Reason),
}

impl Progress {
    /// Returns true if nothing follows.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Progress::Removed | Progress::RolledBack(_) | Progress::Lost(_) | Progress::Refused(_)
        )
    }

    /// Returns the end of a change that failed after something had been done for it.
    pub(super) fn given_up(reason: Reason) -> Progress {
        match reason {
            Reason::MiddleboxDied(_) => Progress::Lost(reason),
            _ => Progress::RolledBack(reason),
        }
    }
}

/// A report for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// Reports progress of a change.
    Progress {
        /// The change.
        change: ChangeId,
        /// Role of this host.
        role: Role,
        /// The session concerned: A at the left, the middle and the asker, B at the right.
        subsession: Subsession,
        /// The progress.
        progress: Progress,
    },
    /// Reports a message that its peer may not send. The peer gets no answer.
    Violation {
        /// The change named.
        change: ChangeId,
        /// First address of the peer's certificate.
        from: Option<HostId>,
        /// Name of the message.
        message: &'static str,
        /// Rule that the message violated.
        violation: Violation,
    },
    /// Reports a problem that the change survives.
    Trouble {
        /// The change.
        change: ChangeId,
        /// The problem.
        reason: Reason,
    },
}

/// Violation of the rules for peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The peer is not one of the two ends of the subsession.
    #[error("it speaks for a subsession that is not its own")]
    NotItsSubsession,
    /// This host is not an end of the subsession.
    #[error("it speaks of a subsession that this host is no end of")]
    NotOurs,
    /// The change does not expect this message from this host.
    #[error("this change does not expect that from it")]
    NotItsPart,
    /// The five-tuple for the new path is not between the two anchors.
    #[error("it names a new subsession that is not between the anchors")]
    ForeignPath,
}
