//! Ends of sessions on this host, as far as their entries show.

use dysco_common::Session;
use dysco_common::view::{Leaver, View};
use dysco_explain::Cause;

/// Returns the reason for which this host has no socket of a session, as far as its entry shows.
pub(in crate::engine) fn no_socket(s: &Session) -> Option<Cause> {
    let at_ends = |why: &str| Cause::new(why).hint("ask on the host of one of its ends");
    let view = s.view();
    if s.has_ended() || view.is_unused() {
        return Some("it has ended".into());
    }
    match view {
        View::Left(Leaver::Chain) => Some(at_ends("it has left this host")),
        View::Left(Leaver::Proxy) => {
            Some(at_ends("the proxy has left it, and its socket is closed"))
        }
        _ if view.is_relayed() || s.is_beside_relay() => Some(at_ends(
            "the proxy has left it, and this host only relays its packets",
        )),
        _ if s.is_chained() && s.joined_to().is_some() => Some(at_ends(
            "this host is one of its chain, and holds no end of it",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use dysco_common::State;

    use super::*;

    #[test]
    fn only_an_end_of_a_session_has_a_socket() {
        let entry = |state: State, chained, joined| {
            let mut s = Session {
                state: state as u32,
                joined,
                ..Session::default()
            };
            s.two.chained = chained;
            s
        };
        for state in [State::Tracked, State::Adopted, State::NewPath] {
            assert_eq!(no_socket(&entry(state, 0, 0)), None, "{state:?}");
        }
        for s in [
            entry(State::Tombstone, 0, 0),
            entry(State::Tombstone, 2, 0),
            entry(State::Relay, 0, 8),
            entry(State::NewPath, 2, 8),
            entry(State::Closed, 0, 0),
        ] {
            assert!(no_socket(&s).is_some(), "{:?}", s.view());
        }
    }
}
