//! Ends of states.

/// The end of a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// Every byte has arrived, and every change has ended.
    Good,
    /// Bytes or acknowledgements are missing, and nothing brings them.
    Missing,
    /// A change has not ended, or has left something.
    Unfinished,
    /// One end was reset, and the other one waits for ever.
    HalfReset,
    /// Nothing comes to rest.
    Endless,
}
