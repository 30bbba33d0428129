//! What the host answers to commands, and tells by itself.

use dysco_common::two_paths::{Cutoff, Fins};
use dysco_common::{Delta, Translation};

#[cfg(doc)]
use super::command::Command;
use super::message::{ChangeId, Facts, HostId, Measurement, Probe, Subsession};
use super::reason::Reason;

/// What happened on this host.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HostEvent {
    /// Answers [`Command::Measure`].
    Measured {
        /// The change.
        change: ChangeId,
        /// What was measured, or why the middlebox cannot leave.
        result: Result<Measurement, Reason>,
    },
    /// Answers [`Command::Lock`] and [`Command::Hold`].
    Locked {
        /// The change.
        change: ChangeId,
        /// What is known of the session, sampled now.
        result: Result<Facts, Reason>,
    },
    /// Answers [`Command::LockPair`].
    PairLocked {
        /// The change.
        change: ChangeId,
        /// What the two ends, left and right, would say of their sessions.
        result: Result<[Facts; 2], Reason>,
    },
    /// Answers [`Command::Reserve`].
    Reserved {
        /// The change.
        change: ChangeId,
        /// The new subsession: a port of this host, and the server's end.
        result: Result<Subsession, Reason>,
    },
    /// Answers [`Command::Prepare`].
    TwoPaths {
        /// The change.
        change: ChangeId,
        /// The FINs that were seen before, or why the session is not in two paths.
        result: Result<Fins, Reason>,
    },
    /// Answers [`Command::Join`], [`Command::Prove`],
    /// [`Command::Return`], [`Command::Extend`] and [`Command::Open`]. After an
    /// [`Command::Extend`] it may also tell that the path is gone, or cannot be used.
    Prepared {
        /// The change.
        change: ChangeId,
        /// Done or not.
        result: Result<(), Reason>,
    },
    /// Answers [`Command::Try`]. At the right anchor, which is told nothing of the kind to
    /// do, it says that the path rejects what that answers.
    Tried {
        /// The change.
        change: ChangeId,
        /// The path carries packets, or not.
        result: Result<(), Reason>,
    },
    /// Answers [`Command::Cut`].
    CutDone {
        /// The change.
        change: ChangeId,
        /// First byte on the new path, in the local end's own space.
        cutoff: Cutoff,
    },
    /// All old data is acknowledged: what arrived by the local end, what the
    /// local end sent by the other.
    Drained {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Command::Look`].
    Looked {
        /// The change.
        change: ChangeId,
        /// It does, or what the path has carried cannot be taken back.
        carries: bool,
    },
    /// Answers [`Command::Deafen`].
    Deafened {
        /// The change.
        change: ChangeId,
        /// It is not heard any more.
        deaf: bool,
    },
    /// Answers [`Command::TakeBack`]: the old path has carried all that the local end has
    /// got by either, and the new one is forgotten.
    TakenBack {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Command::Close`].
    Closed {
        /// The change.
        change: ChangeId,
        /// Closed (or gone before) or not.
        result: Result<(), Reason>,
    },
    /// Answers [`Command::Watch`].
    Watching {
        /// The change.
        change: ChangeId,
        /// What the client shall be sent, or why it cannot show that it gets it.
        result: Result<Watched, Reason>,
    },
    /// The client has got what it was sent.
    Proved {
        /// The change.
        change: ChangeId,
    },
    /// Answers [`Command::Enlist`].
    Enlisted {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
        /// Can this host pass it on?
        result: Result<(), Reason>,
    },
    /// Answers [`Command::AskDelta`].
    DeltaKnown {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
        /// How much, or why nobody can say.
        result: Result<Delta, Reason>,
    },
    /// Answers [`Command::Forget`].
    Forgotten {
        /// The change.
        change: ChangeId,
        /// Who asked.
        from: HostId,
    },
    /// Answers [`Command::MoveState`].
    StateMoved {
        /// The change.
        change: ChangeId,
        /// To whom.
        to: HostId,
        /// Done or not.
        result: Result<(), Reason>,
    },
    /// [`Command::Persist`] failed.
    PersistFailed {
        /// The change.
        change: ChangeId,
        /// In the system's words.
        error: String,
    },
    /// The middlebox has ended a session of this change between two paths: its process has
    /// died, or closed its sockets. The end has heard a reset.
    Broken {
        /// The change.
        change: ChangeId,
        /// Bytes that it had taken and not delivered here; 0 if none is known of.
        bytes: u32,
    },
    /// A session of this host was closed or reset. Where it had been cut,
    /// report [`HostEvent::CutDone`] too, in any order.
    SessionGone {
        /// As the local socket knows it.
        subsession: Subsession,
    },
}

/// A client that is looked out for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Watched {
    /// Its session.
    pub subsession_a: Subsession,
    /// The one with the server.
    pub subsession_b: Subsession,
    /// What it has got before.
    pub probe: Probe,
    /// This host's data plane relays: how headers differ, from the server's end.
    pub relay: Option<Translation>,
}
