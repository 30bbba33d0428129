//! An entry as user space reads it: its state and the flags that refine it, as one type.
//!
//! The programs decide by words of the entry, one at a time, and are not to build a view.

mod meaning;
#[cfg(test)]
mod tests;
mod words;

pub use meaning::{Accepts, Case, Collected, Meaning, Need, Removal, Sends};

use crate::session::{Session, State, part};

/// An entry's state, with the values that have a meaning in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// The slot is unused.
    Free,
    /// The slot was collected, and a program may still hold it.
    Closed,
    /// A SYN was seen, but not yet the SYN-ACK.
    Opening,
    /// Packets pass on the session's own five-tuple, and the entry learns from them.
    Tracked,
    /// Known from the socket alone: not yet proven to pass here.
    Adopted,
    /// The session's path changes.
    Changing(Change),
    /// All packets take a path other than the session's own five-tuple.
    NewPath(Route),
    /// This host relays all packets, and its stack takes no part.
    Relayed(Relay),
    /// Replies go directly to the client.
    Returned,
    /// Services are in the session, or have added bytes to it.
    Detoured,
    /// Services come in before the first byte.
    Held,
    /// The session no longer passes this entry: a tombstone.
    Left(Leaver),
}

/// A change of a session's path that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A proxy leaves, and this host is an anchor.
    TwoPaths(Cutover),
    /// A proxy of this host leaves, and this host will relay.
    RelayTwoPaths(Cutover),
    /// The entry of a path that is being opened.
    Joining,
    /// The entry of the path that the session has just been switched to.
    Switching(Route),
    /// The entry of one of two paths, on a host that the session passes by both.
    Passing(Route),
}

/// Progress of an anchor between two paths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cutover {
    /// Progress of the cutoff.
    pub cut: Cut,
    /// The new path has carried a packet to this host.
    pub heard: bool,
    /// Packets on the new path are dropped.
    pub muted: bool,
}

/// Progress of a cutoff.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Cut {
    /// Nobody has ordered it.
    None,
    /// The next packet sets it.
    Ordered,
    /// It is set.
    Set,
}

impl Cutover {
    /// Returns true if a packet may have left or arrived by the new path.
    pub fn is_used(self) -> bool {
        self.cut != Cut::None || self.heard
    }
}

/// Path of a session whose packets do not take its own five-tuple.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Hosts between this host and the end that the path leads to.
    pub chain: ChainState,
    /// A middlebox has left the session, whatever its chain is now.
    pub bypassed: bool,
    /// Slot of the relay's entry for the other end, if this host relays the session to this path.
    pub relay: Option<u32>,
    /// Slot of the entry for the session's other side, on a host of its chain.
    pub joined: Option<u32>,
    /// Slot of the session's other entry, while its path changes.
    pub other: Option<u32>,
}

/// State of the chain that a path was laid by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ChainState {
    /// No chain.
    None,
    /// A chain whose SYN has not been answered.
    Opening,
    /// A chain that carries the session, or a direct path that was laid in its place.
    Open,
}

impl Route {
    /// Returns true if a chain has carried the session in both directions.
    pub fn is_open(self) -> bool {
        self.chain == ChainState::Open
    }

    /// Returns true if this host is one of the session's chain, and passes the session on.
    pub fn passes_on(self) -> bool {
        self.is_open() && self.joined.is_some()
    }
}

/// A relay in the place of a proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relay {
    /// Slot of the entry for the other end.
    pub other: Option<u32>,
    /// Replies bypass this host.
    pub returns: bool,
}

/// Cause for which a session no longer passes an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaver {
    /// A proxy of this host has left the session.
    Proxy,
    /// The session's chain no longer takes this path.
    Chain,
}

/// Returns true if an entry with this word as its state belongs to no session, as
/// [`View::is_unused`] does, but without the rest of the entry.
pub fn is_unused(state: u32) -> bool {
    matches!(
        State::from_word(state),
        Some(State::Free | State::Closed) | None
    )
}

impl View {
    /// Returns true if the entry belongs to no session.
    pub fn is_unused(self) -> bool {
        matches!(self, View::Free | View::Closed)
    }

    /// Returns true if the session's packets pass as its ends send them.
    pub fn is_unchanged(self) -> bool {
        matches!(self, View::Tracked | View::Adopted)
    }

    /// Returns true if packets of the session may arrive by two paths.
    pub fn is_between_paths(self) -> bool {
        matches!(self, View::Changing(change) if change != Change::Joining)
    }

    /// Returns true if the session takes one path between this host and the other end, so that a
    /// socket of this host may be its end.
    pub fn takes_one_path(self) -> bool {
        let changed = matches!(
            self,
            View::NewPath(_) | View::Returned | View::Detoured | View::Held
        );
        self.is_unchanged() || changed
    }

    /// Returns true if the entry decides where packets of its five-tuple go, or drops them: a SYN
    /// of another session does not arrive.
    pub fn redirects_packets(self) -> bool {
        self.meaning().sends != Sends::Unchanged
    }

    /// Returns true if the session is over for this entry.
    pub fn is_over(self) -> bool {
        self.is_unused() || matches!(self, View::Left(_))
    }

    /// Returns true if this host relays the session.
    pub fn is_relayed(self) -> bool {
        matches!(self, View::Relayed(_))
    }

    /// Returns true if this is a tombstone.
    pub fn is_tombstone(self) -> bool {
        matches!(self, View::Left(_))
    }

    /// Returns the path of an entry whose packets do not take the session's own five-tuple, unless
    /// the path is only being opened.
    pub fn route(self) -> Option<Route> {
        match self {
            View::NewPath(route)
            | View::Changing(Change::Switching(route) | Change::Passing(route)) => Some(route),
            _ => None,
        }
    }

    /// Returns the path that the session takes or has just been switched to, at one of its ends.
    pub fn taken_route(self) -> Option<Route> {
        match self {
            View::NewPath(route) | View::Changing(Change::Switching(route)) => Some(route),
            _ => None,
        }
    }

    /// Returns the path, if it is the only one of the session here.
    pub fn new_path(self) -> Option<Route> {
        match self {
            View::NewPath(route) => Some(route),
            _ => None,
        }
    }

    /// Returns the progress of an anchor of a bypass.
    pub fn two_paths(self) -> Option<Cutover> {
        match self {
            View::Changing(Change::TwoPaths(cutover)) => Some(cutover),
            _ => None,
        }
    }

    /// Returns the slot of the entry for the other end of a session that this host relays.
    pub fn relayed_to(self) -> Option<u32> {
        match self {
            View::Relayed(relay) => relay.other,
            _ => None,
        }
    }
}

impl Session {
    /// Returns the entry as user space reads it. A word that no program wrote is a free slot's.
    pub fn view(&self) -> View {
        match State::from_word(self.state) {
            Some(State::Free) | None => View::Free,
            Some(State::Closed) => View::Closed,
            Some(State::Opening) => View::Opening,
            Some(State::Tracked) => View::Tracked,
            Some(State::Adopted) => View::Adopted,
            Some(State::TwoPaths) => View::Changing(Change::TwoPaths(self.cutover())),
            Some(State::RelayTwoPaths) => View::Changing(Change::RelayTwoPaths(self.cutover())),
            Some(State::Joining) => View::Changing(Change::Joining),
            Some(State::Switching) => View::Changing(Change::Switching(self.route())),
            Some(State::Passing) => View::Changing(Change::Passing(self.route())),
            Some(State::NewPath) => View::NewPath(self.route()),
            Some(State::Relay) => View::Relayed(Relay {
                other: self.joined_to(),
                returns: self.two.returns != 0,
            }),
            Some(State::Return) => View::Returned,
            Some(State::Detour) => View::Detoured,
            Some(State::Held) => View::Held,
            Some(State::Tombstone) => View::Left(self.leaver()),
        }
    }

    /// Returns true if this is the session's only entry, or the entry of the path that it takes.
    pub fn is_current(&self) -> bool {
        self.two.part == part::CURRENT
    }

    /// Returns the state of the chain that the entry's path was laid by. A tombstone has it as
    /// well.
    pub fn chain_state(&self) -> ChainState {
        match self.two.chained {
            0 => ChainState::None,
            1 => ChainState::Opening,
            _ => ChainState::Open,
        }
    }

    /// Returns true if the entry's path was laid by a chain, even by one that has not opened.
    pub fn is_chained(&self) -> bool {
        self.chain_state() != ChainState::None
    }

    fn cutover(&self) -> Cutover {
        Cutover {
            cut: match (self.two.cut_set, self.two.cut_armed) {
                (0, 0) => Cut::None,
                (0, _) => Cut::Ordered,
                (_, _) => Cut::Set,
            },
            heard: self.two.new_received != 0,
            muted: self.muted != 0,
        }
    }

    fn route(&self) -> Route {
        Route {
            chain: self.chain_state(),
            bypassed: self.was_bypassed(),
            relay: self.relayed_by(),
            joined: self.joined_to(),
            other: self.other_path(),
        }
    }

    fn leaver(&self) -> Leaver {
        match self.is_chained() && !self.was_bypassed() {
            true => Leaver::Chain,
            false => Leaver::Proxy,
        }
    }
}
