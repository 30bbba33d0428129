//! Reasons why a change was refused or rolled back.

mod text;

use std::fmt;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::meddling::{Meddling, Way};
use super::names::{ChangeId, HostId, Subsession};

/// Progress of a change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// The middlebox measures itself.
    Measuring,
    /// The middlebox has asked its neighbours to be the anchors.
    Leaving,
    /// The left anchor is locked. The right anchor, or the middlebox's proof, is awaited.
    Locking,
    /// The middlebox's part is settled; the anchors act.
    Locked,
    /// The left anchor prepares the new path.
    Preparing,
    /// Both anchors prepare the new path. It is tried afterwards.
    SettingUp,
    /// The left anchor cuts. From here on the change cannot be rolled back, unless the new path
    /// dies.
    Cutting,
    /// The left anchor has cut. The right one has not answered.
    Switching,
    /// Both anchors have cut. Old data drains.
    Draining,
    /// All old data has drained. The anchors and the middlebox release the old path.
    Completing,
    /// The middlebox closes its sockets.
    Closing,
    /// Rolling back.
    Cancelling,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Measuring => "measuring",
            Phase::Leaving => "asking the neighbours",
            Phase::Locking => "locking",
            Phase::Locked => "waiting for the anchors",
            Phase::Preparing => "preparing the new path",
            Phase::SettingUp => "setting up the new path",
            Phase::Cutting => "cutting",
            Phase::Switching => "switching",
            Phase::Draining => "draining",
            Phase::Completing => "completing",
            Phase::Closing => "closing the middlebox's sockets",
            Phase::Cancelling => "rolling back",
        })
    }
}

/// Reason of a refusal or a rollback. Text of another host is escaped when it is displayed. The
/// name in counters is the variant's. A [`Cause`] is what a host found, with its own hint.
#[derive(
    Clone,
    PartialEq,
    Eq,
    Hash,
    Debug,
    Serialize,
    Deserialize,
    thiserror::Error,
    strum::IntoStaticStr,
    strum::VariantNames,
)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// No daemon answers at this host.
    NoAgent(HostId),
    /// The data plane has not seen the session's SYN.
    NotTracked(Subsession),
    /// At least one host did not see both SYNs.
    NotSeen,
    /// Another change has locked the session.
    LockedByAnother(ChangeId),
    /// The middlebox still changes bytes.
    NotTransparent(Cause),
    /// The middlebox added or removed bytes between two measurements.
    DeltaMoved {
        /// First measurement.
        before_forward: i64,
        /// Second measurement.
        after_forward: i64,
        /// First measurement.
        before_reverse: i64,
        /// Second measurement.
        after_reverse: i64,
    },
    /// SACK is negotiated on one session only.
    SackMismatch,
    /// One end would send longer segments than the other end has agreed to accept.
    MssMismatch {
        /// End that sends.
        from: End,
        /// MSS that was announced to this end.
        sends: u16,
        /// MSS that the other end announced.
        accepts: u16,
    },
    /// The window of one end is smaller than the other end needs in order to send.
    WindowTooSmall {
        /// End that offers the window.
        end: End,
        /// Widest known window of this end, in bytes.
        window: u32,
        /// Smallest sufficient window, in bytes.
        needs: u32,
    },
    /// The session uses MD5 or TCP-AO, or both ends agreed on MPTCP or AccECN.
    Foreign,
    /// The anchor and the middlebox saw different openings.
    Rewritten(Subsession),
    /// No source port is free.
    PortsExhausted,
    /// The anchors cannot reach each other.
    NoRoute(HostId),
    /// The new path would not carry the session.
    NewPathUnusable(Cause),
    /// The path changes packets in a way that the session would not survive.
    PathMeddles {
        /// Position of the change on the path.
        way: Way,
        /// Kind of the change.
        does: Meddling,
    },
    /// The new path has died after both anchors had taken it.
    NewPathSilent(HostId),
    /// The middlebox ended its sockets between two paths.
    MiddleboxDied(u32),
    /// Client and server are on one host.
    SameHost(HostId),
    /// No answer arrived in time.
    TimedOut(Phase),
    /// The session is ending.
    Closing,
    /// The operator cancelled the change.
    Cancelled,
    /// An anchor's daemon was restarted during the change.
    Restarted,
    /// A host has no record of the change.
    UnknownChange,
    /// The host has too many changes at once.
    Busy(HostId),
    /// The record that must outlive a crash cannot be written.
    NoRecord(String),
    /// A message named items that do not belong together.
    Inconsistent(MessageName),
    /// No test has shown that replies reach the client.
    NotProven(Cause),
    /// The middlebox has left this session before.
    AlreadyOut,
    /// A host failed, for the reason in its own text.
    Failed(Cause),
    /// The requested chain is not possible.
    NoSuchChain(Cause),
    /// The firewall's state of the session was not copied.
    StateNotMoved(Cause),
    /// The new chain did not carry the session.
    ChainUnusable(Cause),
    /// The new chain does not carry the longest segments of the session.
    ChainTooNarrow {
        /// The way of these packets, in words.
        way: String,
        /// The longest packet of the left end, with its headers.
        bytes: u16,
    },
    /// The delta that a middlebox declares is impossible.
    DeltaContradicted(String),
    /// The stream has another size behind a middlebox, which has not said so.
    DeltaNotDeclared(String),
    /// The delta cannot be confirmed, because the session has not come to rest.
    DeltaUnconfirmed(String),
    /// A host that stays would see other numbers than before.
    DeltaBehind(HostId),
    /// The session was adopted, and possibly does not pass that host.
    NotHeard(Subsession),
    /// The packets have other addresses than their socket.
    Translated(Subsession),
    /// The host has not answered, so that it is unknown whether it runs and has the session.
    NoAnswer(HostId),
    /// A new path has died under another session.
    PathDied(HostId),
    /// The proxy uses the address of another host.
    BorrowedAddress(HostId),
    /// The client or the server is on the middlebox's own host.
    EndAtMiddlebox(HostId),
}

impl Reason {
    /// Returns true if a time limit was the cause. The request may succeed later.
    pub fn is_of_time(&self) -> bool {
        matches!(self, Reason::TimedOut(_) | Reason::NoAnswer(_))
    }

    /// Returns true if the reason concerns only the part of the two neighbours. The proxy's host
    /// may then act alone.
    pub fn local_would_do(&self) -> bool {
        match self {
            Reason::NoAgent(_)
            | Reason::NoAnswer(_)
            | Reason::NotTracked(_)
            | Reason::NotSeen
            | Reason::NotHeard(_)
            | Reason::Rewritten(_)
            | Reason::PortsExhausted
            | Reason::NoRoute(_)
            | Reason::NewPathUnusable(_)
            | Reason::PathMeddles { .. }
            | Reason::NewPathSilent(_)
            | Reason::PathDied(_)
            | Reason::NotProven(_)
            | Reason::SameHost(_)
            | Reason::TimedOut(_)
            | Reason::NoRecord(_)
            | Reason::Inconsistent(_)
            | Reason::Failed(_) => true,
            Reason::LockedByAnother(_)
            | Reason::NotTransparent(_)
            | Reason::DeltaMoved { .. }
            | Reason::SackMismatch
            | Reason::MssMismatch { .. }
            | Reason::WindowTooSmall { .. }
            | Reason::Foreign
            | Reason::Closing
            | Reason::Cancelled
            | Reason::Restarted
            | Reason::UnknownChange
            | Reason::AlreadyOut
            | Reason::MiddleboxDied(_)
            | Reason::NoSuchChain(_)
            | Reason::StateNotMoved(_)
            | Reason::ChainUnusable(_)
            | Reason::ChainTooNarrow { .. }
            | Reason::DeltaContradicted(_)
            | Reason::DeltaNotDeclared(_)
            | Reason::DeltaUnconfirmed(_)
            | Reason::DeltaBehind(_)
            | Reason::Translated(_)
            | Reason::BorrowedAddress(_)
            | Reason::EndAtMiddlebox(_)
            | Reason::Busy(_) => false,
        }
    }
}

/// One of a session's two ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum End {
    /// The end that opened the session.
    Left,
    /// The end that accepted the session.
    Right,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Left => "left",
            End::Right => "right",
        })
    }
}

/// Messages that can be inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum MessageName {
    /// `AckLock`.
    AckLock,
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_in_vain_hears_of_the_time() {
        let host = HostId::from([10, 0, 0, 1]);
        for late in [Reason::NoAnswer(host), Reason::TimedOut(Phase::Preparing)] {
            assert!(late.is_of_time(), "{late}");
        }
        for other in [Reason::NoAgent(host), Reason::Closing, Reason::Cancelled] {
            assert!(!other.is_of_time(), "{other}");
        }
    }
}
