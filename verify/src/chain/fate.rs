//! Outcomes of states.

/// Outcome of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fate {
    /// Everything is over and in order.
    #[default]
    Ends,
    /// The world never comes to rest.
    Endless,
    /// Nothing can happen any more, and a change is still in progress.
    Stranded,
    /// The two anchors are on different paths, or on one that carries nothing.
    Disagreement,
    /// A record, a lock or a second path remains.
    Leftover,
    /// A host that has left the chain still knows the session.
    Remembered,
    /// The firewall of a host that has left the chain still knows the session.
    StateLeft,
    /// The session can no longer get another chain.
    Stuck,
    /// An end waits for bytes or for an acknowledgement that never arrives.
    Starved,
    /// The requester has not received the outcome.
    Unreported,
    /// Nothing went wrong, and the request had no effect.
    NobodyWon,
}
