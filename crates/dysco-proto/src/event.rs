//! Answers of the host to commands, and events that the host reports by itself.

use dysco_common::two_paths::{Cutoff, Fins};
use dysco_common::{Delta, Translation};

#[cfg(doc)]
use super::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};
use super::message::{Facts, Measurement, Probe};
use super::names::{ChangeId, HostId, Subsession};
use super::reason::Reason;

/// An event on this host.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostEvent {
    /// Answers [`Proxy::Measure`].
    Measured {
        /// The change.
        change: ChangeId,
        /// The measurement, or the reason why the middlebox cannot leave.
        result: Result<Measurement, Reason>,
    },
    /// Answers [`Anchor::Lock`] and [`Chain::Hold`].
    Locked {
        /// The change.
        change: ChangeId,
        /// Facts about the session, sampled now.
        result: Result<Facts, Reason>,
    },
    /// Answers [`Pair::LockPair`].
    PairLocked {
        /// The change.
        change: ChangeId,
        /// Facts of the two ends, left and right, about their sessions.
        result: Result<[Facts; 2], Reason>,
    },
    /// Answers [`Anchor::Reserve`].
    Reserved {
        /// The change.
        change: ChangeId,
        /// The new subsession: a port of this host, and the server's end.
        result: Result<Subsession, Reason>,
    },
    /// Answers [`Anchor::Prepare`].
    TwoPaths {
        /// The change.
        change: ChangeId,
        /// Success, or the reason why the session is not in two paths.
        result: Result<(), Reason>,
    },
    /// Answers [`Pair::Join`], [`Direct::Prove`], [`Direct::Return`], [`Chain::Extend`] and
    /// [`Chain::Open`]. After [`Chain::Extend`] this event may also report that the path is
    /// gone, or cannot be used.
    Prepared {
        /// The change.
        change: ChangeId,
        /// Success, or the reason of the failure.
        result: Result<(), Reason>,
    },
    /// Answers [`Anchor::Try`]. At the right anchor, which gets no such command, the event reports
    /// that the path rejects the answers of its data plane.
    Tried {
        /// The change.
        change: ChangeId,
        /// FINs that this anchor and the other one had seen when the path opened, or the reason
        /// against the path. A FIN that arrives later is held back ([`two_paths::ending`]).
        ///
        /// [`two_paths::ending`]: dysco_common::two_paths::ending
        result: Result<[Fins; 2], Reason>,
    },
    /// Answers [`Anchor::Cut`], [`Pair::Cut`] and [`Chain::Cut`].
    CutDone {
        /// The change.
        change: ChangeId,
        /// First byte on the new path, in the local end's own space.
        cutoff: Cutoff,
    },
    /// Reports that all old data is acknowledged: the local end has acknowledged what arrived, and
    /// the other end what the local end sent.
    Drained {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Anchor::CheckPath`].
    PathChecked {
        /// The change.
        change: ChangeId,
        /// True if the data plane answers, or if the data that the path has carried cannot be taken
        /// back.
        carries: bool,
    },
    /// Answers [`Anchor::Mute`].
    Muted {
        /// The change.
        change: ChangeId,
        /// True if the host does not receive on the new path any more.
        muted: bool,
    },
    /// Answers [`Anchor::TakeBack`]: the old path has carried all data that the local end has
    /// received on either path, and the new path is forgotten.
    TakenBack {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Proxy::Close`] and [`Pair::Close`].
    Closed {
        /// The change.
        change: ChangeId,
        /// Success if the sockets were closed (or were gone before), or the reason of the failure.
        result: Result<(), Reason>,
    },
    /// Answers [`Direct::Watch`].
    Watching {
        /// The change.
        change: ChangeId,
        /// The segment for the client, or the reason why the client cannot prove that it receives
        /// one.
        result: Result<Watched, Reason>,
    },
    /// Reports that the client has received the segment.
    Proved {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Forwarder::Enlist`].
    Enlisted {
        /// The change.
        change: ChangeId,
        /// Host that asked.
        from: HostId,
        /// Success if this host can forward the session, or the reason against it.
        result: Result<(), Reason>,
    },
    /// Answers [`Forwarder::AskDelta`].
    DeltaKnown {
        /// The change.
        change: ChangeId,
        /// Host that asked.
        from: HostId,
        /// The delta, or the reason why it is not known.
        result: Result<Delta, Reason>,
    },
    /// Answers [`Forwarder::Forget`].
    Forgotten {
        /// The change.
        change: ChangeId,
        /// Host that asked.
        from: HostId,
    },
    /// Answers [`Chain::MoveState`].
    StateMoved {
        /// The change.
        change: ChangeId,
        /// Host whose firewall got the state.
        to: HostId,
        /// Success, or the reason of the failure.
        result: Result<(), Reason>,
    },
    /// Reports that [`Journal::Persist`] failed.
    PersistFailed {
        /// The change.
        change: ChangeId,
        /// Error text of the system.
        error: String,
    },
    /// Reports that the middlebox has ended a session of this change between two paths: its process
    /// has died, or has closed its sockets. The end has received a reset.
    Broken {
        /// The change.
        change: ChangeId,
        /// Number of bytes that the middlebox had acknowledged and not delivered here; 0 if none is
        /// known.
        bytes: u32,
    },
    /// Reports that a session of this host was closed or reset. If it had been cut, the host
    /// reports [`HostEvent::CutDone`] too, in any order.
    SessionGone {
        /// The session as the local socket has it.
        subsession: Subsession,
    },
}

/// A client whose answer is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watched {
    /// Session of the client.
    pub subsession_a: Subsession,
    /// Session with the server.
    pub subsession_b: Subsession,
    /// Segment that the client has received before.
    pub probe: Probe,
    /// Differences of the headers, as the server's end needs them, if this host's data plane
    /// relays.
    pub relay: Option<Translation>,
}

impl HostEvent {
    /// Returns the change of the event; `None` if it concerns all changes of a session.
    pub fn change(&self) -> Option<ChangeId> {
        match self {
            HostEvent::Measured { change, .. }
            | HostEvent::Locked { change, .. }
            | HostEvent::PairLocked { change, .. }
            | HostEvent::Reserved { change, .. }
            | HostEvent::TwoPaths { change, .. }
            | HostEvent::Prepared { change, .. }
            | HostEvent::Tried { change, .. }
            | HostEvent::CutDone { change, .. }
            | HostEvent::Drained { change }
            | HostEvent::Broken { change, .. }
            | HostEvent::PathChecked { change, .. }
            | HostEvent::Muted { change, .. }
            | HostEvent::TakenBack { change }
            | HostEvent::Closed { change, .. }
            | HostEvent::Watching { change, .. }
            | HostEvent::Proved { change }
            | HostEvent::Enlisted { change, .. }
            | HostEvent::DeltaKnown { change, .. }
            | HostEvent::Forgotten { change, .. }
            | HostEvent::StateMoved { change, .. }
            | HostEvent::PersistFailed { change, .. } => Some(*change),
            HostEvent::SessionGone { .. } => None,
        }
    }
}
