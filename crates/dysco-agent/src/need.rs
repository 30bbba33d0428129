//! Sessions that need the data plane: without it they would stop.

use dysco_common::{Session, State};

/// Reason why a session would stop without the data plane of this host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Need {
    /// Its path is being changed.
    Changing,
    /// It passes a chain.
    Chained,
    /// A proxy has left it, and it bypasses the proxy's host.
    Bypassed,
    /// A proxy has left it, and this host relays it.
    Relayed,
    /// A proxy has left it, and its replies go straight to the client.
    Returned,
}

/// Returns why a session needs the data plane; `None` if the session would continue without it,
/// or has ended. A tombstone keeps late packets from the stack, and carries nothing.
pub fn need_of(s: &Session) -> Option<Need> {
    let closed = s.life.fin_out != 0 && s.life.fin_in != 0 && s.life.told != 0;
    match State::from_word(s.state)? {
        State::NewPath | State::Relay | State::Return if closed || s.life.reset != 0 => None,
        State::NewPath if s.is_beside_relay() => Some(Need::Relayed),
        State::NewPath if s.two.chained != 0 && !s.was_bypassed() => Some(Need::Chained),
        State::NewPath => Some(Need::Bypassed),
        State::Relay if s.two.returns != 0 => Some(Need::Returned),
        State::Relay => Some(Need::Relayed),
        State::Return => Some(Need::Returned),
        State::TwoPaths
        | State::FarTwoPaths
        | State::Joining
        | State::Switching
        | State::Passing => Some(Need::Changing),
        State::Free
        | State::Opening
        | State::Tracked
        | State::Adopted
        | State::Closed
        | State::Tombstone => None,
    }
}
