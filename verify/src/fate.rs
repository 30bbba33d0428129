//! Outcomes of states.

/// Outcome of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Everything is over and in order, and this number of middleboxes has been removed.
    Ends {
        /// Number of middleboxes.
        removed: u8,
    },
    /// The world never comes to rest.
    Endless,
    /// Nothing can happen any more, and a change is still in progress.
    Stranded,
    /// The two anchors, or an anchor and the middlebox, are on different paths.
    Disagreement,
    /// A record, a lock, a window bound or a second path remains.
    Leftover,
    /// An end waits for bytes or for an acknowledgement that never arrives.
    Starved,
    /// One end is reset because its proxy has died, and the other end is not.
    HalfDead,
    /// A host reports that the proxy has left a session that died with the proxy.
    FalselyRemoved,
    /// The requester has not received the outcome.
    Unreported,
    /// The request was made while everything was idle and sound, and it had no effect.
    NobodyWon,
}

impl Default for Fate {
    fn default() -> Fate {
        Fate::Ends { removed: 0 }
    }
}
