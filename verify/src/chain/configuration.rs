//! Parts of a configuration, and the configurations that others vary.

use super::seed::Seed;
use crate::faults::faults;
use crate::nature::Nature;

/// Index of the host that opens the session.
pub const LEFT: usize = 0;
/// Index of the host that accepts the session.
pub const RIGHT: usize = 1;

/// Number of faults of each kind that may still occur.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Faults {
    /// Messages lost.
    pub losses: u8,
    /// Delivered messages that arrive once more.
    pub duplicates: u8,
    /// Time-outs while an answer is in flight.
    pub late: u8,
    /// Daemons that die, at any step.
    pub crashes: u8,
    /// Commands that fail.
    pub refusals: u8,
    /// Cancels by an operator.
    pub cancels: u8,
    /// New paths that die before both ends have settled on them.
    pub deaths: u8,
    /// The session is reset.
    pub resets: u8,
    /// Segments of the session that are lost.
    pub packets: u8,
    /// Segments that are retransmitted while others are in flight.
    pub again: u8,
    /// Segments that arrive late.
    pub slow: u8,
}

/// A request of an operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// This chain, regardless of the session's chain at that time.
    Become(&'static [usize]),
    /// The session's chain without this host.
    Without(usize),
    /// The session's chain with the second host in place of the first.
    Replace(usize, usize),
}

/// An event that must occur somewhere in the exploration, so that the exploration is not vacuous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A session has another chain, and every host knows it.
    Changed,
    /// A left anchor rolled everything back.
    RollBack,
    /// Everything was rolled back while both anchors took the new path.
    BackFromNew,
    /// A session got a second chain after the first one.
    Twice,
    /// One chain was not established, and another was established after it.
    AfterBack,
    /// A request was refused because another held the session.
    Locked,
    /// The right anchor's data plane followed the left anchor's.
    Followed,
    /// A daemon started in the middle of a change, and the change continued.
    GoneOn,
    /// A change that was rolled back had installed state.
    StateMoved,
    /// Both sides of one host used two paths at the same time.
    AtOnce,
    /// A segment was split: its data took one path, its acknowledgement another.
    Split,
    /// Data sent before a path was taken was retransmitted after that.
    Repeated,
    /// Both FINs have passed while an end used two paths.
    ClosedBetween,
}

/// One exploration.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Name of the exploration.
    pub name: &'static str,
    /// Subject of the exploration.
    pub about: &'static str,
    /// Number of hosts: the two ends are hosts 0 and 1, the hosts of chains have numbers from 2.
    pub hosts: usize,
    /// Chain that the session has at first.
    pub first: &'static [usize],
    /// Requests of operators, made in any order and at any time.
    pub asks: &'static [Ask],
    /// True if no two requests are about the same hops, so that none may be refused.
    pub disjoint: bool,
    /// True if each request is made when no change is in progress.
    pub in_turn: bool,
    /// True if state moves from the hosts that leave to those that replace them.
    pub state: bool,
    /// True if every host of a chain has changed the length of the stream.
    pub deltas: bool,
    /// Number of bytes that the session carries to the right and to the left end, from the time
    /// when it is open. If both are 0, the check covers the paths only.
    pub bytes: [u8; 2],
    /// Ends that close when they have sent everything.
    pub closes: [bool; 2],
    /// Effect of new paths on packets.
    pub nature: Nature,
    /// Faults that may occur, in any order and at any time.
    pub faults: Faults,
    /// Hosts whose daemons may die. An empty list means all hosts.
    pub mortal: &'static [usize],
    /// Events that must occur.
    pub seen: &'static [Seen],
    /// Bug that is put in on purpose.
    pub seed: Option<Seed>,
}

pub(super) const NONE: Faults = Faults {
    losses: 0,
    duplicates: 0,
    late: 0,
    crashes: 0,
    refusals: 0,
    cancels: 0,
    deaths: 0,
    resets: 0,
    packets: 0,
    again: 0,
    slow: 0,
};

/// Faults that may make a change fail, one of each.
pub(super) const COMES_TO_NOTHING: Faults = faults!(cancels: 1, resets: 1, refusals: 1, deaths: 1);

/// A change is seen to succeed, and a change is seen to fail.
pub(super) const BOTH: &[Seen] = &[Seen::Changed, Seen::RollBack];

/// One host takes the place of another.
pub(super) const REPLACE: Configuration = Configuration {
    name: "",
    about: "",
    hosts: 4,
    first: &[2],
    asks: &[Ask::Become(&[3])],
    disjoint: false,
    in_turn: false,
    state: false,
    deltas: false,
    bytes: [0; 2],
    closes: [false; 2],
    nature: Nature::Plain,
    faults: NONE,
    mortal: &[],
    seen: &[Seen::Changed],
    seed: None,
};

/// One host replaces another.
pub(super) const BOTH_SIDES: Configuration = Configuration {
    hosts: 5,
    first: &[3, 2, 4],
    asks: &[Ask::Without(3), Ask::Without(4)],
    disjoint: true,
    seen: &[Seen::Changed, Seen::AtOnce],
    ..REPLACE
};

/// A host enters a session that had no chain.
pub(super) const INSERT: Configuration = Configuration {
    hosts: 3,
    first: &[],
    asks: &[Ask::Become(&[2])],
    ..REPLACE
};

/// A host stays while another enters before it, and then moves behind it.
pub(super) const STAYS: Configuration = Configuration {
    asks: &[Ask::Become(&[3, 2]), Ask::Become(&[2, 3])],
    in_turn: true,
    mortal: &[2],
    seen: &[Seen::Changed, Seen::Twice],
    ..REPLACE
};

/// The only host leaves.
pub(super) const DELETE: Configuration = Configuration {
    hosts: 3,
    first: &[2],
    asks: &[Ask::Become(&[])],
    ..REPLACE
};

/// A host that has changed the stream would be the right anchor, or the left one.
pub(super) const BEHIND_DELTA: Configuration = Configuration {
    first: &[2, 3],
    asks: &[Ask::Without(2), Ask::Without(3)],
    deltas: true,
    seen: &[Seen::RollBack],
    ..REPLACE
};

impl Configuration {
    /// True if the sessions of this configuration carry anything.
    pub(crate) fn has_streams(&self) -> bool {
        self.bytes != [0; 2] || self.closes != [false; 2]
    }

    /// Number of units that go to one side, and number of bytes among them.
    pub(super) fn units(&self, side: usize) -> (u8, u8) {
        let bytes = self.bytes[side];
        (bytes + u8::from(self.closes[side]), bytes)
    }
}
