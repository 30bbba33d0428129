//! Commands to an anchor of a removal.

use dysco_common::Translation;
use dysco_common::two_paths::Cutoff;
use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::names::Subsession;

/// Side of an anchor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Side {
    /// The left anchor: its local end opened the session. It translates.
    Left,
    /// The right anchor: its local end accepted the session. It only rewrites addresses.
    Right,
}

/// A command to one of the two anchors of a removal. It concerns the session that was locked.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Anchor {
    /// Locks this session against other changes. The answer is [`HostEvent::Locked`].
    Lock {
        /// The session.
        subsession: Subsession,
    },
    /// Unlocks the session.
    Unlock,
    /// Reserves a five-tuple for the new path. The answer is [`HostEvent::Reserved`].
    Reserve {
        /// The left anchor's session.
        subsession_a: Subsession,
        /// The right anchor's session.
        subsession_b: Subsession,
    },
    /// Returns the reserved five-tuple.
    Release,
    /// Enters two paths without a cutoff. The answer is [`HostEvent::TwoPaths`]. Has no effect if
    /// the session is in two paths or on the new path already.
    Prepare {
        /// Side of this host.
        side: Side,
        /// The session as the local socket has it.
        own: Subsession,
        /// The subsession of the new path.
        new: Subsession,
        /// Differences of the headers.
        translation: Translation,
    },
    /// Sends a SYN on the prepared path, which the right anchor's data plane answers. The answer is
    /// [`HostEvent::Tried`].
    Try,
    /// Leaves two paths and returns to the old path. Never given after [`Anchor::Cut`], and without
    /// effect after it.
    Unprepare,
    /// Sends new data on the new path. The answer is [`HostEvent::CutDone`], with the same cutoff
    /// if the session was cut already.
    Cut,
    /// Sets the first byte that arrives on the new path. [`HostEvent::Drained`] follows, possibly
    /// at once, and follows again if the command is repeated.
    SetCutIn {
        /// The cutoff, in the local end's own numbers.
        cutoff: Cutoff,
    },
    /// Ends the session with a reset for the local end, because the middlebox has died with bytes
    /// that it had acknowledged.
    Reset,
    /// Checks whether the right anchor's data plane answers on the new path. The answer is
    /// [`HostEvent::PathChecked`].
    CheckPath,
    /// Stops receiving on the new path, unless the other end has acknowledged data that the local
    /// end sent on it: the old path cannot carry such an acknowledgement. The answer is
    /// [`HostEvent::Muted`].
    Mute,
    /// Resumes receiving on the new path.
    Unmute,
    /// Returns everything to the old path, if `new` is still the session's new path. Given after
    /// [`Anchor::Mute`] at both anchors. The answer is [`HostEvent::TakenBack`], once the new
    /// path is forgotten.
    TakeBack {
        /// Subsession of the new path.
        new: Subsession,
    },
    /// Sends all packets on the new path.
    Complete,
}
