//! The meaning of each state: the one table from which user space takes its answers. The table of
//! ARCHITECTURE.md is this one.

use super::{ChainState, Change, Cut, Cutover, Leaver, View};
use crate::session::State;

/// A row of the table: a state, or one of the cases that its flags distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // The rows explain them.
pub enum Case {
    Free,
    Closed,
    Opening,
    Tracked,
    Adopted,
    TwoPaths,
    TwoPathsCut,
    TwoPathsMuted,
    TwoPathsRolledBack,
    RelayTwoPaths,
    Joining,
    Switching,
    Passing,
    Bypassed,
    Chained,
    BesideRelay,
    Relayed,
    RelayedReturning,
    Returned,
    Detoured,
    Held,
    LeftByProxy,
    LeftByChain,
}

/// Path of the local end's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sends {
    /// The entry changes nothing.
    Unchanged,
    /// The old path.
    OldPath,
    /// The new path from the cutoff on, the old one before.
    Cutoff,
    /// The new path.
    NewPath,
    /// The new path; acknowledgements of earlier data take the path before.
    Switched,
    /// The path of the session's other entry.
    OtherEntry,
    /// The path that a packet arrived on.
    ArrivalPath,
    /// This host's stack before the cutoff, the other neighbour from the cutoff on.
    RelayedFromCutoff,
    /// The other neighbour.
    Relayed,
    /// Directly to the client.
    Client,
    /// The handler process of the session's services, while they are in.
    Handler,
    /// Dropped. Acknowledgements pass, without a window.
    Later,
    /// Dropped.
    Nowhere,
}

/// Paths from which packets are accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accepts {
    /// The session's own five-tuple.
    Own,
    /// Both paths.
    Both,
    /// The old path.
    OldPath,
    /// The new path.
    NewPath,
    /// The new path. Late packets of the old one are dropped.
    NewPathAlone,
    /// Both neighbours of a host that relays.
    BothSides,
    /// None.
    Nothing,
}

/// Condition under which user space collects an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collected {
    /// There is nothing to collect.
    Unused,
    /// Its SYN was not answered.
    Unanswered,
    /// Soon after the session's end.
    SoonAfterEnd,
    /// Two MSL after the session's end.
    AfterEnd,
    /// The same, once nothing moves and no socket has the session.
    OnceSilent,
    /// Two MSL after it became a tombstone.
    Tombstone,
}

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
    /// A proxy has left it, and its replies go directly to the client.
    Returned,
    /// Services are in it, or have added bytes to it.
    Services,
}

/// Mode by which a proxy leaves a session, or has left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Removal {
    /// The session bypasses the proxy's host.
    Bypass,
    /// The proxy's host relays.
    Local,
    /// The proxy's host relays, and replies bypass it.
    Return,
}

/// The meaning of a state, in one of its cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meaning {
    /// State of the entry.
    pub state: State,
    /// Flags that make the case; empty if there is no other.
    pub when: &'static str,
    /// Path of the local end's data.
    pub sends: Sends,
    /// Paths from which packets are accepted.
    pub accepts: Accepts,
    /// Condition under which user space collects the entry.
    pub collected: Collected,
    /// Reason why the session needs the data plane, unless it has ended.
    pub need: Option<Need>,
    /// Name of the state in listings.
    pub listed: &'static str,
    /// Mode by which a proxy leaves the session, or has left it.
    pub mode: Option<Removal>,
}

impl View {
    /// Returns the row of the table.
    pub fn case(self) -> Case {
        match self {
            View::Free => Case::Free,
            View::Closed => Case::Closed,
            View::Opening => Case::Opening,
            View::Tracked => Case::Tracked,
            View::Adopted => Case::Adopted,
            View::Changing(Change::TwoPaths(cutover)) => cutover.case(),
            View::Changing(Change::RelayTwoPaths(_)) => Case::RelayTwoPaths,
            View::Changing(Change::Joining) => Case::Joining,
            View::Changing(Change::Switching(_)) => Case::Switching,
            View::Changing(Change::Passing(_)) => Case::Passing,
            View::NewPath(route) if route.relay.is_some() => Case::BesideRelay,
            View::NewPath(route) if route.chain == ChainState::None || route.bypassed => {
                Case::Bypassed
            }
            View::NewPath(_) => Case::Chained,
            View::Relayed(relay) if relay.returns => Case::RelayedReturning,
            View::Relayed(_) => Case::Relayed,
            View::Returned => Case::Returned,
            View::Detoured => Case::Detoured,
            View::Held => Case::Held,
            View::Left(Leaver::Proxy) => Case::LeftByProxy,
            View::Left(Leaver::Chain) => Case::LeftByChain,
        }
    }

    /// Returns the meaning of the state.
    pub fn meaning(self) -> Meaning {
        self.case().meaning()
    }
}

impl Cutover {
    fn case(self) -> Case {
        match (self.muted, self.cut == Cut::Set) {
            (false, false) => Case::TwoPaths,
            (false, true) => Case::TwoPathsCut,
            (true, true) => Case::TwoPathsMuted,
            (true, false) => Case::TwoPathsRolledBack,
        }
    }
}

impl Case {
    /// All cases, in the order of the table.
    pub const ALL: [Case; 23] = [
        Case::Free,
        Case::Opening,
        Case::Tracked,
        Case::Adopted,
        Case::TwoPaths,
        Case::TwoPathsCut,
        Case::TwoPathsMuted,
        Case::TwoPathsRolledBack,
        Case::RelayTwoPaths,
        Case::Joining,
        Case::Switching,
        Case::Passing,
        Case::Bypassed,
        Case::Chained,
        Case::BesideRelay,
        Case::Relayed,
        Case::RelayedReturning,
        Case::Returned,
        Case::Detoured,
        Case::Held,
        Case::LeftByProxy,
        Case::LeftByChain,
        Case::Closed,
    ];

    /// Returns the meaning of the case: its row of the table.
    #[rustfmt::skip]
    pub const fn meaning(self) -> Meaning {
        use {Accepts as A, Collected as C, Need as N, Removal as R, Sends as S};
        match self {
            Case::Free => row(State::Free, "", (S::Unchanged, A::Own), C::Unused, None, ("free", None)),
            Case::Opening => row(State::Opening, "", (S::Unchanged, A::Own), C::Unanswered, None, ("opening", None)),
            Case::Tracked => row(State::Tracked, "", (S::Unchanged, A::Own), C::SoonAfterEnd, None, ("tracked", None)),
            Case::Adopted => row(State::Adopted, "", (S::Unchanged, A::Own), C::SoonAfterEnd, None, ("adopted", None)),
            Case::TwoPaths => row(State::TwoPaths, "no cutoff", (S::OldPath, A::Both), C::OnceSilent, Some(N::Changing), ("two-paths", Some(R::Bypass))),
            Case::TwoPathsCut => row(State::TwoPaths, "cutoff set", (S::Cutoff, A::Both), C::OnceSilent, Some(N::Changing), ("two-paths", Some(R::Bypass))),
            Case::TwoPathsMuted => row(State::TwoPaths, "cutoff set, muted", (S::Cutoff, A::OldPath), C::OnceSilent, Some(N::Changing), ("two-paths", Some(R::Bypass))),
            Case::TwoPathsRolledBack => row(State::TwoPaths, "rolled back", (S::OldPath, A::OldPath), C::OnceSilent, Some(N::Changing), ("two-paths", Some(R::Bypass))),
            Case::RelayTwoPaths => row(State::RelayTwoPaths, "", (S::RelayedFromCutoff, A::BothSides), C::OnceSilent, Some(N::Changing), ("two-paths", Some(R::Local))),
            Case::Joining => row(State::Joining, "", (S::OtherEntry, A::NewPath), C::AfterEnd, Some(N::Changing), ("opening", None)),
            Case::Switching => row(State::Switching, "", (S::Switched, A::Both), C::OnceSilent, Some(N::Changing), ("two-paths", None)),
            Case::Passing => row(State::Passing, "", (S::ArrivalPath, A::Both), C::OnceSilent, Some(N::Changing), ("two-paths", None)),
            Case::Bypassed => row(State::NewPath, "a proxy has left", (S::NewPath, A::NewPathAlone), C::OnceSilent, Some(N::Bypassed), ("new-path", Some(R::Bypass))),
            Case::Chained => row(State::NewPath, "a chain", (S::NewPath, A::NewPathAlone), C::OnceSilent, Some(N::Chained), ("new-path", None)),
            Case::BesideRelay => row(State::NewPath, "a chain next to this host's relay", (S::NewPath, A::NewPathAlone), C::OnceSilent, Some(N::Relayed), ("new-path", Some(R::Local))),
            Case::Relayed => row(State::Relay, "", (S::Relayed, A::BothSides), C::OnceSilent, Some(N::Relayed), ("relayed", Some(R::Local))),
            Case::RelayedReturning => row(State::Relay, "replies bypass this host", (S::Relayed, A::BothSides), C::OnceSilent, Some(N::Returned), ("relayed", Some(R::Return))),
            Case::Returned => row(State::Return, "", (S::Client, A::Own), C::OnceSilent, Some(N::Returned), ("return", Some(R::Return))),
            Case::Detoured => row(State::Detour, "", (S::Handler, A::Own), C::OnceSilent, Some(N::Services), ("service", None)),
            Case::Held => row(State::Held, "", (S::Later, A::Own), C::SoonAfterEnd, Some(N::Services), ("held", None)),
            Case::LeftByProxy => row(State::Tombstone, "a proxy has left", (S::Nowhere, A::Nothing), C::Tombstone, None, ("tombstone", Some(R::Bypass))),
            Case::LeftByChain => row(State::Tombstone, "the chain has left", (S::Nowhere, A::Nothing), C::Tombstone, None, ("tombstone", None)),
            Case::Closed => row(State::Closed, "", (S::Unchanged, A::Own), C::Unused, None, ("closed", None)),
        }
    }
}

const fn row(
    state: State,
    when: &'static str,
    (sends, accepts): (Sends, Accepts),
    collected: Collected,
    need: Option<Need>,
    (listed, mode): (&'static str, Option<Removal>),
) -> Meaning {
    Meaning {
        state,
        when,
        sends,
        accepts,
        collected,
        need,
        listed,
        mode,
    }
}
