//! Ends of states.

/// The end of a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fate {
    /// Every byte has arrived, and every change has ended.
    Good,
    /// Bytes or acknowledgements are missing and will never arrive.
    Missing,
    /// A change has not ended, or something of it remains.
    Unfinished,
    /// One end was reset, and the other one waits for ever.
    HalfReset,
    /// The world never comes to rest.
    Endless,
}
