//! Commands to the host of a middlebox that is both anchors as well.

use dysco_common::Translation;

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::names::Subsession;

/// A command to the host of a middlebox, as both anchors of the removal. It concerns the two
/// sessions that were locked.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Pair {
    /// Locks both sessions of the middlebox against other changes. The answer is
    /// [`HostEvent::PairLocked`].
    LockPair {
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
    },
    /// Unlocks both sessions.
    Unlock,
    /// Enters two paths on both sessions, without a cutoff. The second path is the one through this
    /// host's data plane. The answer is [`HostEvent::Prepared`]. Has no effect if this was done
    /// already.
    Join {
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
        /// Differences of the headers, as the end on A's side needs them.
        translation: Translation,
    },
    /// Leaves two paths and returns to the middlebox. Never given after [`Pair::Cut`], and without
    /// effect after it.
    Unjoin,
    /// Relays new data. Each session gets the other's cutoff. The answer is
    /// [`HostEvent::CutDone`], with the same cutoff if the sessions were cut already.
    /// [`HostEvent::Drained`] follows when both have drained.
    Cut,
    /// Ends the session with a reset for both ends, because the middlebox has died with bytes that
    /// it had acknowledged.
    Reset,
    /// Relays all packets of both ends.
    Complete,
    /// Closes the middlebox's two sockets without a packet. The sessions get no tombstones, since
    /// the data plane relays between them. The answer is [`HostEvent::Closed`].
    Close {
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
    },
}
